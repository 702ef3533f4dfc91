"""Reading the clock from a training curve: period, peaks and valleys with an interval, or that there is no cycle.

The paper does this by eye (its section 2). Here a metric by round is a slow trend, a few harmonics of one period, and
noise whose neighbours are alike (AR(1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.temporal.curves import Cosine, Linear
from fedscape.types import Array

_MOST = 480  # points after averaging neighbours
_SHORTEST = 6  # points of the shortest period
_FINE = 6  # frequencies tried in the width of a peak
_FEWEST = 24
_WIDER = 1.3  # simulated curves know their harmonics better than the data do: coverage was 83% without
_CYCLES = 2.2  # at least so many must have been seen


@dataclass(frozen=True)
class Cycle:
    """What was read: `period` with its `interval` in rounds, or None for both; `p_value` of a cycle at all.

    `peak` and `valley` are the first rounds at which the periodic part is highest and lowest; `strength` is its share
    of the variance that the trend leaves.

    >>> Cycle(None, None, None, None, 0.4, 0.1)
    Cycle(no cycle, p = 0.4)
    """

    period: float | None
    interval: tuple[float, float] | None
    peak: float | None
    valley: float | None
    p_value: float
    strength: float

    def prior(self, kind: str = "linear") -> Linear | Cosine:
        """A temporal prior that is 1 at the peaks and 0 at the valleys, straight or a cosine in between.

        Whether the peaks are the day or the night does not matter: it says only which branch is called the first.
        """
        if kind not in ("linear", "cosine"):
            raise DataError(f"kind must be 'linear' or 'cosine', not {kind!r}")
        if self.period is None or self.peak is None:
            raise DataError(f"there is no cycle to make a prior of (p = {self.p_value:.3g}): use prior=None")
        make = Linear if kind == "linear" else Cosine
        return make(self.period, peak=self.peak, valley=self.valley)

    def __repr__(self) -> str:
        if self.period is None or self.interval is None or self.peak is None or self.valley is None:
            return f"Cycle(no cycle, p = {self.p_value:.3g})"
        low, high = self.interval
        places = f"peak {self.peak:.4g}, valley {self.valley:.4g}"
        return f"Cycle(period {self.period:.4g} [{low:.4g}, {high:.4g}], {places}, p = {self.p_value:.3g})"


def read_clock(
    values: npt.ArrayLike,
    *,
    harmonics: int = 3,
    draws: int = 199,
    level: float = 0.95,
    significance: float = 0.01,
    seed: int = 0,
) -> Cycle:
    """The cycle of a metric by round.

    Parameters
    ----------
    values
        One number a round, NaN where there is none; more than two periods of it.
    harmonics
        How many harmonics the shape of a cycle has; fewer where the period is short.
    draws
        Simulated curves, for the test and for the interval.
    level
        Of the interval.
    significance
        Above this p-value the answer is "no cycle"; at least 1 / (draws + 1). The null is the trend with AR(1) noise,
        and its best period too.
    seed
        Of the simulated curves.

    >>> t = np.arange(300)
    >>> curve = np.log1p(t) + np.cos(2 * np.pi * t / 40) + np.random.default_rng(0).normal(0, 0.3, 300)
    >>> cycle = read_clock(curve)
    >>> round(cycle.period), cycle.interval[0] < 40 < cycle.interval[1]
    (40, True)
    """
    y, t, step = _checked(values)
    if harmonics < 1 or draws < 19 or not 0 < level < 1:
        raise DataError(f"harmonics must be at least 1, draws 19, level between 0 and 1: {harmonics}, {draws}, {level}")
    if not 0 < significance < 1 or draws + 1 < 1 / significance - 1e-9:
        raise DataError(
            f"significance must be between 0 and 1, and at least 1 / (draws + 1), the smallest p-value there is: "
            f"{significance} with {draws} draws; raise draws"
        )
    length, rng = float(t[-1] + step), Key(seed, purpose="clock").generator()
    trend = _trend(t, length)
    grid = _Grid.of(
        t, trend, np.arange(_CYCLES / length, 1 / (_SHORTEST * step), 1 / (_FINE * length)), harmonics, step
    )
    left = float(_rest(trend, y[:, None])[0])
    found = grid.rest(y[:, None])[:, 0]
    best = _shorter(grid, found, left)
    model = _fit(t, trend, y, best, harmonics, step)
    null = _noise(_fit(t, trend, y, None, harmonics, step), (len(y), draws), rng)
    gain = (_rest(trend, null)[None] / grid.rest(null)).max(axis=0)
    p_value = float((1 + (gain >= left / found.min()).sum()) / (1 + draws))
    strength = 1 - model.rest / left if left > 0 else 0.0
    if p_value > significance or left <= 1e-20 * max(float((y**2).sum()), 1.0):
        return Cycle(None, None, None, None, p_value, strength)
    local = _Grid.of(t, trend, best + np.linspace(-1.5, 1.5, 121) / length, harmonics, step)
    best = float(local.frequencies[local.rest(y[:, None])[:, 0].argmin()])  # simulated curves have this period
    model, period = _fit(t, trend, y, best, harmonics, step), 1 / best
    again = model.without_noise(t, best)[:, None] + _noise(model, (len(y), draws), rng)
    each = 1 / local.frequencies[local.rest(again).argmin(axis=0)]
    ends = np.quantile(each, [(1 - level) / 2, (1 + level) / 2])
    low, high = (float(period + _WIDER * (end - period)) for end in ends)
    half = period**2 / (length * 40)  # no finer than the grid it was read from
    peak, valley = model.turning(period)
    return Cycle(period, (min(low, period - half), max(high, period + half)), peak, valley, p_value, strength)


def _checked(values: npt.ArrayLike) -> tuple[Array, Array, int]:
    """Values, their rounds, and how many rounds each is the mean of."""
    given = np.asarray(values, dtype=float)
    if given.ndim != 1 or np.isinf(given).any() or np.isfinite(given).sum() < _FEWEST:
        raise DataError(
            f"values must be at least {_FEWEST} finite numbers, one a round (NaN for none), not {given.shape}"
        )
    step = -(-len(given) // _MOST)
    padded = np.append(given, np.full(-len(given) % step, np.nan)).reshape(-1, step)
    known = np.isfinite(padded)
    some = known.any(axis=1)
    means = np.where(known, padded, 0.0).sum(axis=1)[some] / known.sum(axis=1)[some]
    return means, (np.arange(len(padded)) * step + (step - 1) / 2)[some], step


def _trend(t: Array, length: float) -> Array:
    """A slow trend that cannot turn twice: orthonormal columns."""
    u = t / length
    return np.linalg.qr(np.stack([np.ones_like(u), u, u**2, *(np.log1p(a * u) for a in (10, 60))], axis=1))[0]


def _rest(basis: Array, y: Array) -> Array:
    """Sums of squares that orthonormal columns leave: [curves]."""
    return np.asarray(np.maximum((y**2).sum(axis=0) - ((basis.T @ y) ** 2).sum(axis=0), 1e-300))


def _waves(t: Array, frequency: float, harmonics: int, step: int) -> Array:
    number = max(1, min(harmonics, int(0.5 / (frequency * step))))
    angle = 2 * np.pi * frequency * t[:, None] * np.arange(1, number + 1)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


class _Grid(NamedTuple):
    """Bases of trend and waves for many frequencies."""

    frequencies: Array
    bases: list[Array]

    @classmethod
    def of(cls, t: Array, trend: Array, frequencies: Array, harmonics: int, step: int) -> _Grid:
        frequencies = frequencies[frequencies > 0]
        made = [np.linalg.qr(np.column_stack([trend, _waves(t, f, harmonics, step)]))[0] for f in frequencies]
        return cls(frequencies, made)

    def rest(self, y: Array) -> Array:
        """What each frequency leaves of each curve: [frequencies, curves]."""
        return np.stack([_rest(basis, y) for basis in self.bases])


class _Fit(NamedTuple):
    """One frequency fitted to a curve, and the AR(1) law of what is left."""

    fitted: Array
    waves: Array  # coefficients of cosines, then of sines
    rest: float
    likeness: float
    spread: float

    def without_noise(self, t: Array, frequency: float) -> Array:
        """What was fitted less the harmonics that noise alone may have made: they would sharpen simulated curves."""
        number = len(self.waves) // 2
        angle = 2 * np.pi * frequency * t[:, None] * np.arange(1, number + 1)
        step = float(np.median(np.diff(t)))
        turn = 2 * np.pi * frequency * step * np.arange(1, number + 1)
        density = self.spread**2 / (1 - 2 * self.likeness * np.cos(turn) + self.likeness**2)
        power = (self.waves[:number] ** 2 + self.waves[number:] ** 2) * len(t) / (4 * density)
        weak = (power < 4.6) & (np.arange(number) > 0)  # about one in a hundred
        waves = np.concatenate([np.cos(angle)[:, weak], np.sin(angle)[:, weak]], axis=1)
        return np.asarray(self.fitted - waves @ self.waves[np.concatenate([weak, weak])])

    def turning(self, period: float) -> tuple[float, float]:
        """Where the periodic part is highest and lowest within the first period."""
        at = np.linspace(0, period, 720, endpoint=False)
        number = np.arange(1, len(self.waves) // 2 + 1)
        angle = 2 * np.pi * at[:, None] / period * number
        shape = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) @ self.waves
        return float(at[shape.argmax()]), float(at[shape.argmin()])


def _fit(t: Array, trend: Array, y: Array, frequency: float | None, harmonics: int, step: int) -> _Fit:
    """The trend with waves of this frequency, or alone."""
    columns = trend if frequency is None else np.column_stack([trend, _waves(t, frequency, harmonics, step)])
    weights = np.linalg.lstsq(columns, y, rcond=None)[0]
    fitted = columns @ weights
    left = y - fitted
    rest = float(left @ left)
    likeness = float(left[1:] @ left[:-1] / rest) if rest > 0 else 0.0
    likeness = float(np.clip(likeness + (1 + 3 * likeness) / len(y), -0.95, 0.97))  # lag-one estimates are too small
    spread = float(np.sqrt(rest / max(len(y) - columns.shape[1], 1) * (1 - likeness**2)))
    return _Fit(fitted, weights[trend.shape[1] :], rest, likeness, spread)


def _noise(model: _Fit, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """AR(1) curves like what the model leaves."""
    shocks = model.spread * rng.standard_normal(shape)
    out = np.empty(shape)
    out[0] = shocks[0] / np.sqrt(1 - model.likeness**2)
    for i in range(1, shape[0]):
        out[i] = model.likeness * out[i - 1] + shocks[i]
    return out


def _shorter(grid: _Grid, found: Array, left: float) -> float:
    """The best frequency, or two or three times it where that explains nearly as much: long ones mimic short ones."""
    best = float(grid.frequencies[found.argmin()])
    for times in (3, 2):
        near = np.abs(grid.frequencies / (times * best) - 1) < 0.02
        if near.any():
            i = np.flatnonzero(near)[found[near].argmin()]
            if left - found[i] > 0.8 * (left - found.min()):
                return float(grid.frequencies[i])
    return best
