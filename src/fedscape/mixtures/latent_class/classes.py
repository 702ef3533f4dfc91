"""Estimates from the sums of the classes: coefficients with their uncertainty, and noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.mixtures.latent_class.kernels import packed, triangle, unpacked
from fedscape.types import Array, Arrays

FLOOR = 1e-10  # of the target's variance: lower limit of noise and coefficient variances


class Classes(NamedTuple):
    """The posterior of each class's coefficients given its sums: normal with this mean, precision and covariance."""

    mean: Array  # [K, F]
    precision: Array  # [K, F, F]: D
    covariance: Array  # [K, F, F]: H


class Sums(NamedTuple):
    """The sums of each class's events, and its number of entities."""

    second: Array  # [K, F, F]: X'X
    first: Array  # [K, F]: X'y
    square: Array  # [K]: y'y
    events: Array  # [K]
    entities: Array  # [K]


def opened(sums: Array, f: int) -> Sums:
    """Unpack the rows [K, P + F + 3] that agents send."""
    p = triangle(f)
    return Sums(unpacked(sums[:, :p], f), sums[:, p : p + f], sums[:, p + f], sums[:, p + f + 1], sums[:, p + f + 2])


def classes_of(sums: Sums, noise: float, spread: Array) -> Classes:
    """D = diag(1 / delta^2) + X'X / sigma^2, H = D^-1, mean = H X'y / sigma^2 (Theorem 2): ridge per class."""
    precision = np.diag(1 / spread) + sums.second / noise
    each = np.arange(precision.shape[-1])
    precision[:, each, each] *= 1 + 1e-13  # keeps collinear features factorisable
    covariance = np.linalg.inv(precision)
    covariance = (covariance + covariance.transpose(0, 2, 1)) / 2
    mean = np.linalg.solve(precision, sums.first[..., None] / noise)[..., 0]
    return Classes(mean, precision, covariance)


def for_agents(state: Arrays, f: int) -> Arrays:
    """The classes and their factors, which agents compute from the broadcast before reading events."""
    classes = classes_of(opened(state["sums"], f), float(state["noise"]), state["spread"])
    factor = np.linalg.cholesky(classes.precision)
    return {
        **state,
        "precision": packed(classes.precision),
        "mean": classes.mean,
        "pivot": 1 / np.diagonal(factor, axis1=1, axis2=2) ** 2,
        "floor": 1 / state["spread"],
    }


def learned(
    sums: Sums,
    noise: float,
    spread: Array,
    *,
    sigma: bool,
    delta: bool,
    slopes: int,
    least: float,
    steps: int,
    certain: bool = False,
    part: float = 1.0,
) -> tuple[float, Array]:
    """Update the noise sigma^2 and the coefficients' variances delta^2 [F] by a few EM steps, given the labels.

    sigma^2 is the expected squared residual, delta^2 the expected squared coefficient, over the coefficients' law;
    intercepts have their own variance. `certain` takes the coefficients at their mean. With a `part` below 1, sigma^2
    is that of the purest classes that together hold this part of the events. Only the requested parameters are learned.
    """
    if not (sigma or delta) or sums.events.sum() <= 0:
        return noise, spread
    most = 1e12 * least / FLOOR
    for _ in range(steps):
        before = noise
        mean, _, covariance = classes_of(sums, noise, spread)
        if certain:
            covariance = np.zeros_like(covariance)
        if sigma:
            fitted = np.einsum("kf,kf->k", mean, 2 * sums.first - np.einsum("kfg,kg->kf", sums.second, mean))
            left = np.maximum(sums.square - fitted, 0.0) + np.einsum("kfg,kfg->k", sums.second, covariance)
            noise = min(max(_mean_of_purest(left, sums.events, part), least), most)
        if delta:
            squared = mean**2 + np.diagonal(covariance, axis1=1, axis2=2)  # [K, F]
            spread = np.empty(mean.shape[1])
            spread[:slopes] = squared[:, :slopes].mean() if slopes else least
            spread[slopes:] = squared[:, slopes:].mean(axis=0)
            spread = np.clip(spread, least, most)
        if abs(noise - before) <= 1e-10 * before and not delta:
            break
    return noise, spread


def _mean_of_purest(left: Array, events: Array, part: float) -> float:
    """The mean squared residual per event of the classes where it is smallest, which hold a part of all events."""
    if part >= 1:
        return float(left.sum() / events.sum())
    order = np.argsort(left / np.maximum(events, 1e-300), kind="stable")
    order = order[events[order] > 0]
    enough = np.searchsorted(np.cumsum(events[order]), part * events.sum()) + 1
    return float(left[order[:enough]].sum() / events[order[:enough]].sum())


def sound(sums: Array, f: int, least: float = 0.0) -> Array:
    """Project noisy sums to valid ones: noise may leave X'X with negative eigenvalues, and counts below zero.

    Eigenvalues are raised to `least`, the noise level: ridge in directions with little data.
    """
    p, out = triangle(f), np.array(sums)
    values, vectors = np.linalg.eigh(unpacked(out[:, :p], f))
    wrong = values[:, 0] < np.maximum(-1e-9 * np.maximum(values[:, -1], 1e-300), least)
    if wrong.any():
        positive = np.maximum(values[wrong], least)
        out[wrong, :p] = packed((vectors[wrong] * positive[:, None, :]) @ vectors[wrong].transpose(0, 2, 1))
    out[:, p + f :] = np.maximum(out[:, p + f :], 0.0)
    return out
