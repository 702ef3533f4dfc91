"""Curves: the shares of the modes among available clients as a function of time, such as day and night.

A curve is a function of the round; `shares(t)` [K] adds to one. The paper is Zhu et al. 2022 (FedTEM).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedscape.errors import DataError
from fedscape.types import Array


@runtime_checkable
class Curve(Protocol):
    """Shares of the modes as a function of the round."""

    @property
    def n_modes(self) -> int:
        """How many modes there are."""
        ...

    def shares(self, t: float) -> Array:
        """The share of each mode in round t: [n_modes], adding to one."""
        ...


@dataclass(frozen=True)
class _Cycle:
    """Shared part of the two curves of equation (3): a phase from 0 at the peak through 1/2 at the valley to 1."""

    period: float = 256.0
    p: float = 1.0
    peak: float = 0.0
    valley: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.period < np.inf and 0 < self.p < np.inf and np.isfinite(self.peak)):
            raise DataError(f"period and p must be positive numbers and peak a round: {self}")
        if self.valley is not None and not 0 < (self.valley - self.peak) % self.period < self.period:
            raise DataError(f"valley must be another place of the period than peak, not {self.valley} and {self.peak}")

    @property
    def n_modes(self) -> int:
        return 2

    def phase(self, t: float) -> float:
        """Position of round t in its cycle: 0 at the peak, 1/2 at the valley."""
        at = (t - self.peak) % self.period / self.period
        low = 0.5 if self.valley is None else (self.valley - self.peak) % self.period / self.period
        return float(at / low / 2 if at < low else 0.5 + (at - low) / (1 - low) / 2)

    def __call__(self, t: float) -> float:
        """The share of the first mode."""
        raise TypeError("use Linear or Cosine")

    def shares(self, t: float) -> Array:
        """The shares of the first mode and of the second."""
        q = self(t)
        return np.array([q, 1 - q])


@dataclass(frozen=True)
class Linear(_Cycle):
    """q(t) = |2 (t mod T) / T - 1|^p: equation (3), left. One at t = 0, zero at T / 2.

    Parameters
    ----------
    period
        T, in rounds.
    p
        Below 1 the first mode is present more often, above 1 the second.
    peak, valley
        Rounds at which q is 1 and 0; by default 0 and half a period later.

    >>> [Linear(8)(t) for t in (0, 1, 4, 6, 8)]
    [1.0, 0.75, 0.0, 0.5, 1.0]
    """

    def __call__(self, t: float) -> float:
        return float(abs(2 * self.phase(t) - 1) ** self.p)


@dataclass(frozen=True)
class Cosine(_Cycle):
    """q(t) = ((cos(2 pi t / T) + 1) / 2)^p: equation (3), right.

    Parameters
    ----------
    period, p, peak, valley
        As for Linear.

    >>> [round(Cosine(8)(t), 3) for t in (0, 1, 2, 4)]
    [1.0, 0.854, 0.5, 0.0]
    """

    def __call__(self, t: float) -> float:
        return float(((np.cos(2 * np.pi * self.phase(t)) + 1) / 2) ** self.p)


@dataclass(frozen=True)
class Blocks:
    """One mode after the other, each alone for its part of the period: block-cyclic shift, Eichner et al. 2019.

    >>> [int(Blocks(8).shares(t).argmax()) for t in (0, 3, 4, 7, 8)]
    [0, 0, 1, 1, 0]
    """

    period: float = 256.0
    n_modes: int = 2

    def __post_init__(self) -> None:
        _check_cycle(self.period, self.n_modes)

    def shares(self, t: float) -> Array:
        """One for the mode of this part of the period, zero for the others."""
        return np.asarray(np.eye(self.n_modes)[int(t % self.period * self.n_modes / self.period)])


@dataclass(frozen=True)
class Steady:
    """No shift: the same shares in every round, by default equal ones.

    >>> Steady(2).shares(17)
    array([0.5, 0.5])
    """

    n_modes: int = 2
    fixed: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        of = self.fixed
        if self.n_modes < 1 or (of is not None and (len(of) != self.n_modes or min(of) < 0 or not sum(of) > 0)):
            raise DataError(f"fixed must be {self.n_modes} shares of at least 0, some above 0, not {of}")

    def shares(self, t: float) -> Array:
        """The fixed shares."""
        weights = np.ones(self.n_modes) if self.fixed is None else np.asarray(self.fixed, dtype=float)
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Zones:
    """Several time zones: mode k follows the cosine of equation (3), k / K of a period later; shares are normalised.

    Parameters
    ----------
    period
        In rounds.
    n_modes
        K; the peaks of successive zones are a K-th of a period apart.
    p
        The larger, the fewer zones at a time.

    >>> Zones(12, 3).shares(4).round(3)
    array([0.167, 0.667, 0.167])
    """

    period: float = 256.0
    n_modes: int = 3
    p: float = 1.0

    def __post_init__(self) -> None:
        _check_cycle(self.period, self.n_modes)

    def shares(self, t: float) -> Array:
        """The shares of the zones."""
        k = np.arange(self.n_modes)
        weights = ((np.cos(2 * np.pi * (t / self.period - k / self.n_modes)) + 1) / 2) ** self.p
        return np.asarray(weights / weights.sum())


def _check_cycle(period: float, n_modes: int) -> None:
    if not 0 < period < np.inf or n_modes < 2:
        raise DataError(f"period must be positive and n_modes at least 2, not {period} and {n_modes}")


_KINDS: dict[str, tuple[Callable[..., Curve], tuple[str, ...]]] = {
    "linear": (Linear, ("T", "p", "peak", "valley")),
    "cosine": (Cosine, ("T", "p", "peak", "valley")),
    "blocks": (Blocks, ("T", "K")),
    "steady": (Steady, ("K",)),
    "zones": (Zones, ("T", "K", "p")),
}
_MEANING = {"T": "period", "K": "n_modes"}


def parse_curve(text: str) -> Curve:
    """Read a curve as written on the command line: linear, cosine, blocks, steady or zones, with their arguments.

    >>> parse_curve("cosine:p=4,T=128")
    Cosine(period=128.0, p=4.0, peak=0.0, valley=None)
    """
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise DataError(
            f"a schedule must begin with one of {', '.join(_KINDS)}, such as cosine:p=1,T=256, not {text!r}"
        )
    make, parameters = _KINDS[kind]
    arguments: dict[str, float | int] = {}
    for part in rest.split(",") if rest else ():
        name, _, value = part.partition("=")
        if name not in parameters:
            raise DataError(f"{kind} takes {', '.join(parameters)}, not {name!r} (in {text!r})")
        try:
            arguments[_MEANING.get(name, name)] = int(value) if name == "K" else float(value)
        except ValueError:
            raise DataError(f"{name} must be a number, not {value!r} (in {text!r})") from None
    return make(**arguments)
