"""Settings of masked sums, `SecureSum` and those shared with `TwoServers`, and rounds within one process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

import numpy as np

from fedscape.errors import DataError, PrivacyError
from fedscape.secure.numbers import DEFAULT_BOUND, Form, Range
from fedscape.secure.parameters import Parameters, derive
from fedscape.types import Array, Arrays


class Session(Protocol):
    """A round of masked sums with all parties in this process."""

    def add(self, party: int, words: Array) -> None:
        """Mask a party's words and add them."""
        ...

    def total(self) -> Array:
        """The sum of all words modulo 2^64."""
        ...

    def bytes_up(self) -> int:
        """Bytes that a party sends besides its words, at most."""
        ...


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Settings common to SecureSum and TwoServers.

    Parameters
    ----------
    bounds
        The largest absolute value of a real number that a party may send: one for all arrays, or by name (2^24 for
        arrays that are not named). Real numbers are rounded to the finest grid on which the sum cannot overflow.
        Integers need no bound, and under privacy all sums are integers.
    allow
        Names of revealed arrays that the server may see client by client, while all others are masked.
    """

    bounds: float | Mapping[str, float] = DEFAULT_BOUND
    allow: Sequence[str] = ()

    def __post_init__(self) -> None:
        values = self.bounds.values() if isinstance(self.bounds, Mapping) else [self.bounds]
        if not all(isinstance(v, int | float) and isfinite(v) and v > 0 for v in values):
            raise DataError(f"bounds must be positive numbers, not {self.bounds!r}")
        if isinstance(self.allow, str):
            raise DataError(f"allow must be a list of names, not {self.allow!r}")

    def range(self, parties: int) -> Range:
        """The range of numbers in a sum of this many parties."""
        known = self.bounds
        if isinstance(known, Mapping):  # an array crosses as total/NAME or metrics/NAME
            known = {f"{kind}/{name}": v for name, v in known.items() for kind in ("total", "metrics")}
        return Range(parties, known)

    def check_reveals(self, computation: str, reveals: Sequence[str]) -> None:
        """Refuse a computation that reveals arrays, unless they are allowed by name."""
        if shown := [name for name in reveals if name not in self.allow]:
            raise PrivacyError(
                f"{computation} lets the server see {', '.join(shown)} client by client, which secure= is there to "
                f"prevent: allow it by name, {type(self).__name__}(allow={tuple(reveals)!r}), or use a form with sums"
            )

    def smallest(self, parties: int) -> int:
        """The least number of honest parties in any sum that can be opened."""
        raise TypeError("use SecureSum or TwoServers")

    def session(self, parties: int) -> Session:
        """A round with all parties in this process."""
        raise TypeError("use SecureSum or TwoServers")


@dataclass(frozen=True, kw_only=True)
class SecureSum(Masked):
    """Masked sums (Bonawitz et al. 2017 on the graph of Bell et al. 2020): the server learns the total alone.

    A party is a client, or over Flower a node. Cohorts too small for the given drop-outs and colluders are refused.

    Parameters
    ----------
    neighbours
        Number of other parties with which each shares its secrets; by default the fewest that are safe.
    threshold
        Number of neighbours that must answer at the end; by default all but those that may drop out.
    dropouts
        The share of a cohort that may drop out in a round; with more it is abandoned and nothing is opened.
    colluders
        The share of a cohort that may collude with the server.
    bounds, allow
        See `Masked`: the largest real numbers, and arrays that may be seen client by client.

    >>> SecureSum(neighbours=20, colluders=0.02).parameters(100).threshold
    12
    """

    neighbours: int | None = None
    threshold: int | None = None
    dropouts: float = 0.1
    colluders: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dropouts", "colluders"):
            share = getattr(self, name)
            if not isinstance(share, int | float) or not 0 <= share < 1:
                raise DataError(f"{name} must be a share from 0 to below 1, not {share!r}")
        for name in ("neighbours", "threshold"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise DataError(f"{name} must be a whole number of at least 1, not {number!r}")

    def parameters(self, parties: int) -> Parameters:
        """The parameters of a cohort of this many parties; a PrivacyError if none are safe."""
        how = {"neighbours": self.neighbours, "threshold": self.threshold}
        return derive(parties, dropouts=self.dropouts, colluders=self.colluders, **how)

    def smallest(self, parties: int) -> int:
        return self.parameters(parties).smallest

    def session(self, parties: int) -> Session:
        return _Rehearsal(self, parties)


class _Rehearsal:
    """All parties and the server of a round in one process, with every key, share and mask of a real round."""

    def __init__(self, how: SecureSum, parties: int) -> None:
        from fedscape.secure.protocol import Client, Frame, Roster
        from fedscape.secure.server import Server

        parameters, name = how.parameters(parties), os.urandom(16)
        self._clients = [Client(os.urandom(32), name) for _ in range(parties)]
        roster = Roster.checked(name, [client.advertise_keys() for client in self._clients])
        self._frame = Frame(roster, 0, tuple(range(parties)), parameters)
        self._server = Server(self._frame)
        for u, client in enumerate(self._clients):
            self._server.take_shares(u, client.share_keys(self._frame))

    def add(self, party: int, words: Array) -> None:
        received = self._server.received_by(party)
        self._server.take_masked(party, self._clients[party].masked_input(self._frame, words, received))

    def total(self) -> Array:
        living, dead = self._server.lists()
        for w in living:
            self._server.take_unmasking(w, self._clients[w].unmask(self._frame, living, dead))
        return self._server.total()

    def bytes_up(self) -> int:
        return bytes_besides(self._frame.parameters)


def bytes_besides(parameters: Parameters) -> int:
    """Bytes that a party sends besides its masked words: key, commitment, packages, then open and encrypted shares.

    >>> bytes_besides(SecureSum(neighbours=20, colluders=0.02).parameters(100))
    3620
    """
    k, seed, tag = parameters.neighbours, 32, 16
    return 2 * seed + k * (3 * seed + tag) + k * (2 * seed + 1) + tag


@dataclass
class MaskedSum:
    """A masked round of an engine with all parties in this process: takes each party's arrays, gives the totals."""

    how: Masked
    parties: int
    released: bool = False  # the integers of a release, which were bounded before noise was added
    form: Form | None = None
    _session: Any = field(init=False)

    def __post_init__(self) -> None:
        self._session, self._range = self.how.session(self.parties), self.how.range(self.parties)

    def add(self, party: int, sent: Arrays, metrics: Arrays) -> None:
        """Mask a party's arrays and add them."""
        arrays = {f"total/{n}": np.asarray(v) for n, v in sent.items()}
        arrays |= {f"metrics/{n}": np.asarray(v) for n, v in metrics.items()}
        form = Form.of(arrays)
        if self.form is not None and self.form != form:
            raise DataError("clients sent arrays of different names, kinds or shapes, which cannot be added masked")
        self.form = form
        self._session.add(party, self._range.encode(arrays, released=self.released))

    def totals(self) -> tuple[Arrays, Arrays]:
        """The sums of sent arrays and of metrics."""
        if self.form is None:
            return {}, {}
        arrays = self._range.decode(self._session.total(), self.form, released=self.released)
        kinds = ("total/", "metrics/")
        sent, metrics = ({n[len(k) :]: v for n, v in arrays.items() if n.startswith(k)} for k in kinds)
        return sent, metrics

    def bytes_up(self, *, besides: bool = True) -> int:
        """Bytes that a party sends: its words and, with `besides`, what masks cost; that depends on the cohort."""
        words = 0 if self.form is None else 8 * self.form.length
        return words + (int(self._session.bytes_up()) if besides else 0)
