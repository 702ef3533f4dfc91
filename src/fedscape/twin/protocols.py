"""How a server hands out work and adds up reports: synchronous, semi-asynchronous, FedBuff, FedAsync."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.twin.kernels import BUFFERED, PERIODIC, SYNCHRONOUS
from fedscape.types import Array


class ServerProtocol(Protocol):
    """What the event loop and the training loop need to know of a protocol."""

    #: Whether reports may begin from an older version than the one they are added to.
    stale: ClassVar[bool]

    @property
    def loop(self) -> tuple[int, int, int, float]:
        """The kernel's code, reports in an update, devices at work at once, and seconds of the deadline or period."""
        ...

    def weights(self, staleness: Array) -> Array:
        """The weight of reports by their staleness: updates since they began."""
        ...

    def pace(self, weights: Array) -> float:
        """How much of the update is applied, of the weights of its reports; 1 is all."""
        ...


@dataclass(frozen=True)
class Synchronous:
    """Rounds: the state goes to a cohort, the round ends when enough have reported (Bonawitz et al. 2019).

    A round begins when `size * over` devices are idle. It ends with the first `size` reports, at the deadline, or when
    no more can come. What was under way then is lost.

    Parameters
    ----------
    size
        Reports that end a round.
    over
        Over-selection: devices that begin a round, as a multiple of `size`.
    deadline
        Seconds after which a round ends with the reports that are in; None waits for all.

    >>> Synchronous(10, over=1.3, deadline=600).loop
    (0, 10, 13, 600.0)
    """

    size: int
    over: float = 1.0
    deadline: float | None = None

    stale: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("size", self.size, least=1)
        if not 1 <= self.over < np.inf:
            raise DataError(f"over must be at least 1, not {self.over}")
        _check_seconds("deadline", self.deadline)

    @property
    def loop(self) -> tuple[int, int, int, float]:
        wanted = math.ceil(self.size * self.over - 1e-9)
        return SYNCHRONOUS, self.size, wanted, np.inf if self.deadline is None else float(self.deadline)

    def weights(self, staleness: Array) -> Array:
        return np.ones(len(staleness))

    def pace(self, weights: Array) -> float:
        return 1.0


@dataclass(frozen=True)
class _Stale:
    """What protocols with stale reports share: a report that is t updates late weighs (1 + t)^-exponent."""

    exponent: float = 0.5

    stale: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < np.inf:
            raise DataError(f"exponent must be at least 0, not {self.exponent}")

    def weights(self, staleness: Array) -> Array:
        return np.asarray((1.0 + staleness) ** -self.exponent)

    def pace(self, weights: Array) -> float:
        return float(weights.mean())


@dataclass(frozen=True)
class SemiAsynchronous(_Stale):
    """The server adds up what came in every `period` seconds; late reports count in the next update, with less weight.

    Parameters
    ----------
    exponent
        Reports that are t updates late weigh (1 + t)^-exponent.
    concurrency
        Devices at work after each update.
    period
        Seconds from one update to the next.

    >>> SemiAsynchronous(concurrency=20, period=300).loop
    (1, 20, 20, 300.0)
    """

    concurrency: int = 100
    period: float = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("concurrency", self.concurrency, least=1)
        _check_seconds("period", self.period)

    @property
    def loop(self) -> tuple[int, int, int, float]:
        return PERIODIC, self.concurrency, self.concurrency, float(self.period)


@dataclass(frozen=True)
class FedBuff(_Stale):
    """Devices work all the time; every `buffer` reports make an update (Nguyen et al. 2022, algorithm 1).

    Parameters
    ----------
    exponent
        Reports that are t updates late weigh (1 + t)^-exponent; the paper has 0.5.
    concurrency
        Devices at work at any time.
    buffer
        Reports in an update.

    >>> FedBuff(concurrency=100, buffer=10).weights(np.array([0, 3])).tolist()
    [1.0, 0.5]
    """

    concurrency: int = 100
    buffer: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("concurrency", self.concurrency, least=1)
        check_whole("buffer", self.buffer, least=1)

    @property
    def loop(self) -> tuple[int, int, int, float]:
        return BUFFERED, self.buffer, self.concurrency, np.inf


@dataclass(frozen=True)
class FedAsync(_Stale):
    """Every report is an update: the state moves by alpha (1 + t)^-exponent towards the client's (Xie et al. 2019).

    The client's state is the update of the version that it began from, so it also pulls back what came since.

    Parameters
    ----------
    exponent
        How fast old reports lose weight.
    concurrency
        Devices at work at any time.
    alpha
        The weight of a report without staleness.

    >>> FedAsync(concurrency=100, alpha=0.6).pace(np.array([0.5]))
    0.3
    """

    concurrency: int = 100
    alpha: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("concurrency", self.concurrency, least=1)
        if not 0 < self.alpha <= 1:
            raise DataError(f"alpha must be above 0 and at most 1, not {self.alpha}")

    @property
    def loop(self) -> tuple[int, int, int, float]:
        return BUFFERED, 1, self.concurrency, np.inf

    def pace(self, weights: Array) -> float:
        return self.alpha * float(weights.mean())


def _check_seconds(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < np.inf:
        raise DataError(f"{name} must be a positive number of seconds, not {value}")
