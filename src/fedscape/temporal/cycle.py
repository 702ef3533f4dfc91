"""Read the clock from a training curve: period, peaks and valleys with an interval, or "no cycle".

The paper does this by eye (its section 2). Here a metric by round is modelled as a slow trend, a few harmonics of one
period, and autocorrelated AR(1) noise.
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
_FINE = 6  # frequencies tried per peak width
_FEWEST = 24
_WIDER = 1.3  # widens the interval: simulated curves know their harmonics too well, coverage was 83% without
_CYCLES = 2.2  # fewest cycles that the curve must cover


@dataclass(frozen=True)
class Cycle:
    """A cycle: `period` with its `interval` in rounds, None for both if there is none; `p_value` tests for a cycle.

    `peak` and `valley` are the first rounds at which the periodic part is highest and lowest. `strength` is its share
    of the detrended variance.

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
        """A temporal prior that is 1 at the peaks and 0 at the valleys, linear or a cosine in between.

        Whether the peaks are day or night does not matter: it decides only which branch comes first.
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
    """Estimate the cycle of a metric by round.

    Parameters
    ----------
    values
        One number per round, NaN for a missing one; more than two periods.
    harmonics
        Harmonics of the cycle; fewer are used if the period is short.
    draws
        Simulated curves, for the test and for the interval.
    level
        Confidence level of the interval.
    significance
        Above this p-value the answer is "no cycle"; at least 1 / (draws + 1). The null is the trend with AR(1) noise,
        and its best period too.
    seed
        Seed of the simulated curves.

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
    residuals = grid.rest(y[:, None])[:, 0]
    best = _shorter(grid, residuals, left)
    model = _fit(t, trend, y, best, harmonics, step)
    null = _noise(_fit(t, trend, y, None, harmonics, step), (len(y), draws), rng)
    gain = (_rest(trend, null)[None] / grid.rest(null)).max(axis=0)
    p_value = float((1 + (gain >= left / residuals.min()).sum()) / (1 + draws))
    strength = 1 - model.rest / left if left > 0 else 0.0
    if p_value > significance or left <= 1e-20 * max(float((y**2).sum()), 1.0):
        return Cycle(None, None, None, None, p_value, strength)
    local = _Grid.of(t, trend, best + np.linspace(-1.5, 1.5, 121) / length, harmonics, step)
    best = float(local.frequencies[local.rest(y[:, None])[:, 0].argmin()])  # simulated curves have this period
    model, period = _fit(t, trend, y, best, harmonics, step), 1 / best
    simulated = model.without_noise(t, best)[:, None] + _noise(model, (len(y), draws), rng)
    each = 1 / local.frequencies[local.rest(simulated).argmin(axis=0)]
    ends = np.quantile(each, [(1 - level) / 2, (1 + level) / 2])
    low, high = (float(period + _WIDER * (end - period)) for end in ends)
    half = period**2 / (length * 40)  # no finer than the grid of frequencies
    peak, valley = model.turning(period)
    return Cycle(period, (min(low, period - half), max(high, period + half)), peak, valley, p_value, strength)


def _checked(values: npt.ArrayLike) -> tuple[Array, Array, int]:
    """Values, their rounds, and the number of rounds averaged into each value."""
    series = np.asarray(values, dtype=float)
    if series.ndim != 1 or np.isinf(series).any() or np.isfinite(series).sum() < _FEWEST:
        raise DataError(
            f"values must be at least {_FEWEST} finite numbers, one a round (NaN for none), not {series.shape}"
        )
    step = -(-len(series) // _MOST)
    padded = np.append(series, np.full(-len(series) % step, np.nan)).reshape(-1, step)
    finite = np.isfinite(padded)
    some = finite.any(axis=1)
    means = np.where(finite, padded, 0.0).sum(axis=1)[some] / finite.sum(axis=1)[some]
    return means, (np.arange(len(padded)) * step + (step - 1) / 2)[some], step


def _trend(t: Array, length: float) -> Array:
    """Orthonormal columns of a slow trend that cannot turn twice."""
    u = t / length
    return np.linalg.qr(np.stack([np.ones_like(u), u, u**2, *(np.log1p(a * u) for a in (10, 60))], axis=1))[0]


def _rest(basis: Array, y: Array) -> Array:
    """Residual sums of squares after projecting on orthonormal columns: [curves]."""
    return np.asarray(np.maximum((y**2).sum(axis=0) - ((basis.T @ y) ** 2).sum(axis=0), 1e-300))


def _waves(t: Array, frequency: float, harmonics: int, step: int) -> Array:
    number = max(1, min(harmonics, int(0.5 / (frequency * step))))
    angle = 2 * np.pi * frequency * t[:, None] * np.arange(1, number + 1)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


class _Grid(NamedTuple):
    """Bases of the trend and the harmonics for many frequencies."""

    frequencies: Array
    bases: list[Array]

    @classmethod
    def of(cls, t: Array, trend: Array, frequencies: Array, harmonics: int, step: int) -> _Grid:
        frequencies = frequencies[frequencies > 0]
        bases = [np.linalg.qr(np.column_stack([trend, _waves(t, f, harmonics, step)]))[0] for f in frequencies]
        return cls(frequencies, bases)

    def rest(self, y: Array) -> Array:
        """Residual sum of squares of each curve at each frequency: [frequencies, curves]."""
        return np.stack([_rest(basis, y) for basis in self.bases])


class _Fit(NamedTuple):
    """One frequency fitted to a curve, and the AR(1) law of the residuals."""

    fitted: Array
    waves: Array  # coefficients of cosines, then of sines
    rest: float
    likeness: float
    spread: float

    def without_noise(self, t: Array, frequency: float) -> Array:
        """The fit without harmonics that noise alone could explain: they would make simulated curves too sharp."""
        number = len(self.waves) // 2
        angle = 2 * np.pi * frequency * t[:, None] * np.arange(1, number + 1)
        step = float(np.median(np.diff(t)))
        turn = 2 * np.pi * frequency * step * np.arange(1, number + 1)
        density = self.spread**2 / (1 - 2 * self.likeness * np.cos(turn) + self.likeness**2)
        power = (self.waves[:number] ** 2 + self.waves[number:] ** 2) * len(t) / (4 * density)
        weak = (power < 4.6) & (np.arange(number) > 0)  # noise exceeds this in about one of a hundred
        waves = np.concatenate([np.cos(angle)[:, weak], np.sin(angle)[:, weak]], axis=1)
        return np.asarray(self.fitted - waves @ self.waves[np.concatenate([weak, weak])])

    def turning(self, period: float) -> tuple[float, float]:
        """Positions of the highest and the lowest value of the periodic part in the first period."""
        at = np.linspace(0, period, 720, endpoint=False)
        number = np.arange(1, len(self.waves) // 2 + 1)
        angle = 2 * np.pi * at[:, None] / period * number
        shape = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) @ self.waves
        return float(at[shape.argmax()]), float(at[shape.argmin()])


def _fit(t: Array, trend: Array, y: Array, frequency: float | None, harmonics: int, step: int) -> _Fit:
    """Fit the trend, with harmonics of this frequency if there is one."""
    columns = trend if frequency is None else np.column_stack([trend, _waves(t, frequency, harmonics, step)])
    weights = np.linalg.lstsq(columns, y, rcond=None)[0]
    fitted = columns @ weights
    left = y - fitted
    rest = float(left @ left)
    likeness = float(left[1:] @ left[:-1] / rest) if rest > 0 else 0.0
    likeness = float(np.clip(likeness + (1 + 3 * likeness) / len(y), -0.95, 0.97))  # corrects the bias at lag one
    spread = float(np.sqrt(rest / max(len(y) - columns.shape[1], 1) * (1 - likeness**2)))
    return _Fit(fitted, weights[trend.shape[1] :], rest, likeness, spread)


def _noise(model: _Fit, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """AR(1) curves distributed as the residuals of the model."""
    shocks = model.spread * rng.standard_normal(shape)
    out = np.empty(shape)
    out[0] = shocks[0] / np.sqrt(1 - model.likeness**2)
    for i in range(1, shape[0]):
        out[i] = model.likeness * out[i - 1] + shocks[i]
    return out


def _shorter(grid: _Grid, residuals: Array, left: float) -> float:
    """The best frequency, or two or three times it if that fits nearly as well: long periods mimic short ones."""
    best = float(grid.frequencies[residuals.argmin()])
    for times in (3, 2):
        near = np.abs(grid.frequencies / (times * best) - 1) < 0.02
        if near.any():
            i = np.flatnonzero(near)[residuals[near].argmin()]
            if left - residuals[i] > 0.8 * (left - residuals.min()):
                return float(grid.frequencies[i])
    return best
