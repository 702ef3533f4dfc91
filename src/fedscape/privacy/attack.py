"""The attack: a matched filter on noisy totals, a threshold, and its power to detect too little noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedscape.core.random import Key
from fedscape.privacy.bounds import Booked, upper_limit
from fedscape.types import Array

_TAIL = np.array([0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08])
_SHARES = np.concatenate([_TAIL, np.linspace(0.1, 0.9, 17), 1 - _TAIL[::-1]])
_FLOOR = 1e-10  # a smaller variance counts as zero


@dataclass(frozen=True)
class Sample:
    """The observations of many runs: [runs, rounds, parts], in units of what the canary adds.

    `high` and `low` are the parts without noise if the canary takes part and is in, or out. `present` marks the rounds
    in which it took part; `rate` is the probability of that.
    """

    names: Sequence[str]
    values: Array
    present: Array
    coins: Array
    high: Array
    low: Array
    rate: float
    laplace: bool
    steps: Array  # the grid of each part, in the same units

    def joined(self) -> Sample:
        """Join the two rounds of each run, before and after a resume, into one: their noise may be the same.

        `high` and `low` already have the parts of both.
        """
        runs, rounds, parts = self.values.shape
        half = rounds // 2
        pairs = self.values.reshape(runs, 2, half, parts).transpose(0, 2, 1, 3).reshape(runs, half, 2 * parts)
        return replace(
            self,
            names=[f"{n} {when}" for when in ("before", "after") for n in self.names],
            values=pairs,
            present=self.present[:, half:],
            steps=np.tile(self.steps, 2),
        )

    @property
    def noise(self) -> Array:
        """The values minus the signal."""
        signal = np.where(self.coins[:, None, None], self.high, self.low)
        return np.asarray(self.values - signal * self.present[..., None])


@dataclass(frozen=True)
class Attack:
    """Upper confidence limits of the error rates, and the scores of all runs."""

    false_positive: float
    false_negative: float
    scores: Array


def attacked(sample: Sample, booked: Booked, confidence: float) -> Attack:
    """Fit the filter and the threshold on a third of the runs, and bound the error rates on the rest."""
    n = len(sample.coins) // 3
    first = replace(sample, values=sample.values[:n], present=sample.present[:n], coins=sample.coins[:n])
    best: tuple[float, Attack] | None = None
    for scores in _filters(sample, first.noise):
        attack, factor = _thresholded(scores, sample.coins, n, booked, confidence)
        if best is None or factor < best[0]:
            best = (factor, attack)
    assert best is not None
    return best[1]


def _filters(sample: Sample, noise: Array) -> list[Array]:
    flat = noise.reshape(-1, noise.shape[-1])
    covariance = flat.T @ flat / len(flat)
    scores = [_score(sample, lambda s: _gaussian(sample.values, s, covariance))]
    if sample.laplace:
        scale = np.maximum(np.abs(flat).mean(axis=0), _FLOOR)
        scores.append(_score(sample, lambda s: ((np.abs(sample.values) - np.abs(sample.values - s)) / scale).sum(-1)))
    return scores


def _score(sample: Sample, likelihood: Callable[[Array], Array]) -> Array:
    """Log likelihood ratio of in to out, summed over rounds with random participation of the canary."""
    high, low = (likelihood(s) for s in (sample.high, sample.low))
    if sample.rate < 1:
        rest, part = np.log1p(-sample.rate), np.log(sample.rate)
        high, low = np.logaddexp(rest, part + high), np.logaddexp(rest, part + low)
    return np.asarray((high - low).sum(axis=1))


def _gaussian(values: Array, signal: Array, covariance: Array) -> Array:
    """Log likelihood ratio of this signal to none under Gaussian noise; a direction without noise decides alone."""
    eigen, vectors = np.linalg.eigh(covariance)
    weights = vectors @ ((vectors.T @ signal) / np.maximum(eigen, _FLOOR))
    return np.asarray(values @ weights - signal @ weights / 2)


def _thresholded(scores: Array, coins: Array, n: int, booked: Booked, confidence: float) -> tuple[Attack, float]:
    """Choose the threshold that rules out the most noise on the first n runs; bound the errors on the rest."""
    thresholds = np.unique(np.quantile(scores[:n], _SHARES, method="lower"))
    pair, factor = booked.weakest(*_error_limits(scores[:n], coins[:n], thresholds, confidence))
    chosen = thresholds[[pair]]
    positive, negative = _error_limits(scores[n:], coins[n:], chosen, confidence)
    return Attack(float(positive[0]), float(negative[0]), scores), factor


def _error_limits(scores: Array, coins: Array, thresholds: Array, confidence: float) -> tuple[Array, Array]:
    """Simultaneous upper confidence limits of both error rates at each threshold."""
    each = 1 - (1 - confidence) / 2
    inside, outside = np.sort(scores[coins]), np.sort(scores[~coins])
    missed = np.searchsorted(inside, thresholds, side="left")
    alarms = len(outside) - np.searchsorted(outside, thresholds, side="left")
    return upper_limit(alarms, len(outside), each), upper_limit(missed, len(inside), each)


def power_of(sample: Sample, booked: Booked, confidence: float, factor: float, simulations: int, seed: int) -> float:
    """The share of simulated audits, with `factor` times the noise of the sample, that refute the booked mechanisms."""
    generator = Key(seed, purpose=f"audit power {factor:.6f}").generator()
    noise = sample.noise.reshape(-1, sample.noise.shape[-1])
    covariance = noise.T @ noise / len(noise)
    eigen, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(eigen, 0.0)) * factor
    refuted = 0
    for _ in range(simulations):
        coins = generator.random(len(sample.coins)) < 0.5
        present = generator.random(sample.present.shape) < sample.rate
        if sample.laplace:
            drawn = _laplace(generator, np.abs(noise).mean(axis=0), sample.steps, factor, sample.values.shape)
        else:
            drawn = generator.standard_normal(sample.values.shape) @ root.T
        signal = np.where(coins[:, None, None], sample.high, sample.low)
        new = replace(sample, values=drawn + signal * present[..., None], present=present, coins=coins)
        attack = attacked(new, booked, confidence)
        refuted += bool(booked.broken(attack.false_positive, attack.false_negative))
    return refuted / simulations


def _laplace(generator: np.random.Generator, size: Array, steps: Array, factor: float, shape: tuple[int, ...]) -> Array:
    """Discrete Laplace noise on grids of these steps, with `factor` times the scale of this mean absolute value."""
    m = np.maximum(size / steps, 1e-12)
    scale = -factor / np.log((np.sqrt(1 + m * m) - 1) / m)  # E|x| = 2p / (1 - p^2), p = exp(-1 / scale)
    stay = -np.expm1(-1 / scale)
    return np.asarray((generator.geometric(stay, shape) - generator.geometric(stay, shape)) * steps)
