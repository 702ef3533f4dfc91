"""Laws of a kind of device: rates by hour and age, activity of a device, speeds; likelihoods and updates by sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, psi

from fedscape.twin.tables import MOMENT
from fedscape.types import Array

LEAST = 1e-12  # of a rate an hour, and of a probability
PARTS = 4  # of the day, in which sessions of different lengths begin


class Posterior(NamedTuple):
    """Of the activity of devices: log-likelihood of their arrivals, mean and mean logarithm of the activity."""

    log_likelihood: Array
    mean: Array
    mean_log: Array


def activity_posterior(number: Array, expected: Array, shape: Array) -> Posterior:
    """Arrivals at g times the rates of the kind, g ~ Gamma(shape, shape): a negative binomial number of them.

    `number` and `expected` arrivals: [devices, kinds, zones]; `shape`: [kinds]. The factor prod rate^n is left out.

    >>> activity_posterior(np.array([[[3.0]]]), np.array([[[1.0]]]), np.array([1.0])).mean.tolist()
    [[[2.0]]]
    """
    a = shape[:, None]
    likelihood = a * np.log(a) - gammaln(a) + gammaln(a + number) - (a + number) * np.log(a + expected)
    return Posterior(likelihood, (a + number) / (a + expected), psi(a + number) - np.log(a + expected))


def gamma_shape(mean: Array, mean_log: Array) -> Array:
    """The shape a of Gamma(a, a) that maximises a log a - lgamma(a) + a (mean_log - mean), within 0.05 and 500.

    >>> a = 3.0
    >>> float(gamma_shape(np.array(1.0), psi(a) - np.log(a)).round(6))
    3.0
    """
    gap = np.maximum(mean - mean_log - 1.0, 1e-6)  # log a - psi(a) at the optimum
    log_a = np.log((3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap))
    for _ in range(20):
        a = np.exp(log_a)
        slope = 1 - a * trigamma(a)
        log_a = np.clip(log_a - (np.log(a) - psi(a) - gap) / slope, np.log(0.05), np.log(500.0))
    return np.asarray(np.exp(log_a))


def trigamma(x: Array) -> Array:
    """The derivative of the digamma function.

    >>> float(trigamma(np.array(1.0)).round(6))
    1.644934
    """
    from scipy.special import zeta

    return np.asarray(zeta(2.0, x))


def rates(daily: Array, weekly: Array, recency: Array) -> Array:
    """Arrivals an hour of each kind: [kinds, 7, 24, ages]."""
    return np.asarray(weekly[:, :, None, None] * daily[:, None, :, None] * recency[:, None, None, :])


def ratio(number: Array, exposure: Array, prior: Array, strength: float, old: Array) -> Array:
    """Occurrences by exposure, with `strength` further occurrences at the prior rate; the old rate where none is known.

    >>> ratio(np.array([3.0, 0.0]), np.array([1.5, 0.0]), np.array([1.0, 1.0]), 0.0, np.array([9.0, 9.0])).tolist()
    [2.0, 9.0]
    """
    number, exposure = np.maximum(number, 0.0), np.maximum(exposure, 0.0)
    above = number + strength
    below = exposure + strength / np.maximum(prior, LEAST)
    known = below > 1e-9
    return np.asarray(np.where(known, np.maximum(above / np.where(known, below, 1.0), LEAST), old))


def moments(lengths: Sequence[float]) -> Array:
    """The width in hours of each step between lengths that is a moment; NaN for the others.

    >>> moments((0.5, 0.5001, 2.0)).round(6).tolist()
    [nan, 0.0001, nan, nan]
    """
    width = np.diff(np.array([0.0, *lengths, np.inf]))
    return np.where(width < MOMENT, width, np.nan)


def ending_rates(ends: Array, present: Array, prior: Array, strength: float, old: Array, widths: Array) -> Array:
    """Rates at which sessions end by their age: `ratio`, and in a moment that of the share of sessions that end in it.

    `widths` are those of `moments`. A session that ends in a moment has lived through it: of n sessions there, e ends
    are a probability e / n, whose rate is -log(1 - e / n) over the width.

    >>> rates = ending_rates(np.array([3.0]), np.array([4e-4]), np.ones(1), 0.0, np.ones(1), np.array([1e-4]))
    >>> float(1 - np.exp(-1e-4 * rates[0]).round(6))
    0.75
    """
    moment = np.isfinite(widths)
    width = np.where(moment, widths, 1.0)
    usual = ratio(ends, present, prior, strength, old)
    chance = ratio(ends, present / width, -np.expm1(-prior * width), strength, -np.expm1(-old * width))
    return np.asarray(np.where(moment, -np.log1p(-np.minimum(chance, 1 - 1e-6)) / width, usual))


def lognormal_posterior(sums: Array, law: Array) -> tuple[Array, Array]:
    """Log-likelihood [devices, kinds] of y = mean + u + e, u ~ N(0, between^2) once a device, e ~ N(0, within^2).

    `sums` are each device's n, sum y, sum y^2; `law` is [kinds, 3]: mean, between, within. The second result is what
    `lognormal_law` adds up: [devices, kinds, 5].

    >>> law = np.array([[0.0, 1.0, 1.0]])
    >>> bool(np.isclose(lognormal_posterior(np.array([[1.0, 2.0, 4.0]]), law)[0][0, 0], -0.5 * np.log(4 * np.pi) - 1))
    True
    """
    n, first, second = (sums[:, None, i] for i in range(3))
    mean, between, within = (np.broadcast_to(law[:, i], (len(sums), len(law))) for i in range(3))
    t2, s2 = between**2, within**2
    total = s2 + n * t2
    shift = first - n * mean
    squares = second - 2 * mean * first + n * mean**2
    likelihood = -0.5 * (n * np.log(2 * np.pi * s2) + np.log(total / s2) + squares / s2 - t2 * shift**2 / (s2 * total))
    effect, variance = effect_posterior(sums, law)
    residual = second - 2 * first * (mean + effect) + n * ((mean + effect) ** 2 + variance)
    has = np.broadcast_to(n > 0, effect.shape).astype(float)
    parts = [np.broadcast_to(n, effect.shape), has * effect, residual, has * (effect**2 + variance), has]
    return np.asarray(likelihood), np.stack(parts, axis=2)


def effect_posterior(sums: Array, law: Array) -> tuple[Array, Array]:
    """Mean and variance of the device's effect u in `lognormal_posterior`, for each kind: [devices, kinds] twice.

    >>> [float(v[0, 0]) for v in effect_posterior(np.array([[1.0, 2.0, 4.0]]), np.array([[0.0, 1.0, 1.0]]))]
    [1.0, 0.5]
    """
    n, first = sums[:, None, 0], sums[:, None, 1]
    mean, t2, s2 = law[:, 0], law[:, 1] ** 2, law[:, 2] ** 2
    total = s2 + n * t2
    return np.asarray(t2 * (first - n * mean) / total), np.asarray(t2 * s2 / total)


def lognormal_law(total: Array, old: Array) -> Array:
    """The law [kinds, 3] of the sums [kinds, 5] of `lognormal_posterior`; a kind without numbers keeps its own."""
    n, effect, residual, squares, devices = (total[:, i] for i in range(5))
    enough = (n > 1e-9) & (devices > 1e-9)
    n, devices = np.where(enough, n, 1.0), np.where(enough, devices, 1.0)
    shift = effect / devices
    mean = np.clip(old[:, 0] + shift, -60.0, 60.0)
    between = np.sqrt(np.clip(squares / devices - shift**2, 1e-6, 1e6))
    within = np.sqrt(np.clip(residual / n, 1e-6, 1e6))
    return np.asarray(np.where(enough[:, None], np.stack([mean, between, within], axis=1), old))


def spread_laws(laws: Array, places: Array, devices: Array) -> Array:
    """Laws [kinds, 3] around the one of all devices, whose means lie `places` of its deviations off: where EM begins.

    Kinds that all begin with the same speeds would split by their hours alone, and EM would stay there.

    >>> spread_laws(np.array([[1.0, 3.0, 1.0], [1.0, 3.0, 1.0]]), np.array([-1.0, 1.0]), np.ones(2)).tolist()
    [[-2.0, 1.5, 1.0], [4.0, 1.5, 1.0]]
    """
    if len(laws) == 1:
        return laws
    share = np.maximum(devices, 0.0) + 1e-9
    share = share / share.sum()
    mean = share @ laws[:, 0]
    deviation = np.sqrt(share @ (laws[:, 1] ** 2 + (laws[:, 0] - mean) ** 2))
    wide = np.full(len(laws), deviation / len(laws))
    return np.stack([mean + deviation * places, wide, np.full(len(laws), share @ laws[:, 2])], axis=1)
