"""Compare training on simulated clients with training on the true ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.sampling import Sampler
from fedscape.errors import DataError, require
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning import LocalSGD, Setting

Clients = Federation | Callable[[int], Federation]
_CHOICES = 70  # four of eight seeds


@dataclass(frozen=True)
class TrainingFidelity:
    """The distance between training on one kind of simulated clients and on the true ones, over settings.

    `difference` is the mean over settings of |accuracy - true accuracy|, both averaged over seeds; `floor` is the same
    between true clients under different seeds. `excess` is sqrt(max(D^2 - F^2, 0)) with D and F the root mean squares
    of these differences: the misfit without training noise. `tau` is Kendall's tau between the two rankings of the
    settings, `tau_floor` that of true against true. Pairs are 95% bootstrap intervals over settings and seeds.

    >>> true = np.array([[0.5, 0.52, 0.51, 0.5], [0.7, 0.71, 0.7, 0.72]])
    >>> compare_training(true, {"iid": true + 0.1})["iid"].difference
    0.1
    """

    difference: float
    difference_interval: tuple[float, float]
    floor: float
    excess: float
    excess_interval: tuple[float, float]
    tau: float
    tau_interval: tuple[float, float]
    tau_floor: float


def compare_training(
    true: npt.ArrayLike, others: Mapping[str, npt.ArrayLike], *, draws: int = 1000, seed: int = 0
) -> dict[str, TrainingFidelity]:
    """Compare final accuracies over settings and seeds with those on the true clients.

    Parameters
    ----------
    true
        [settings, seeds] accuracies on the true clients. They need at least twice the seeds of the others: the noise
        floor then averages over as many seeds as the misfit.
    others
        [settings, seeds] for each kind of simulated clients.
    draws
        Bootstrap draws over settings and seeds for the intervals.

    >>> true = np.array([[0.5, 0.52], [0.7, 0.71], [0.6, 0.59]])
    >>> compare_training(true, {"same": true[:, :1]})["same"].tau
    1.0
    """
    reference = np.asarray(true, dtype=float)
    if reference.ndim != 2 or reference.shape[1] < 2 or not np.isfinite(reference).all():
        raise DataError(f"true must be finite accuracies [settings, at least 2 seeds], not {list(reference.shape)}")
    comparisons = {}
    for name, values in others.items():
        other = np.asarray(values, dtype=float)
        if other.ndim != 2 or len(other) != len(reference) or not np.isfinite(other).all():
            raise DataError(f"{name!r} must be finite accuracies [{len(reference)} settings, seeds], not {other.shape}")
        half = min(other.shape[1], reference.shape[1] // 2)
        value = _numbers(reference, other, half)
        rng = Key(seed, purpose=f"training fidelity {name}").generator()
        drawn = np.array([_numbers(*_again(reference, other, rng), half) for _ in range(draws)])
        low, high = np.nanquantile(drawn, [0.025, 0.975], axis=0) if draws else (np.full(5, np.nan),) * 2
        comparisons[name] = TrainingFidelity(
            difference=round(float(value[0]), 12),
            difference_interval=(float(low[0]), float(high[0])),
            floor=float(value[1]),
            excess=float(value[2]),
            excess_interval=(float(low[2]), float(high[2])),
            tau=round(float(value[3]), 12),
            tau_interval=(float(low[3]), float(high[3])),
            tau_floor=float(value[4]),
        )
    return comparisons


def _again(reference: Array, other: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    settings = rng.integers(0, len(reference), len(reference))
    order = rng.permutation(reference.shape[1])  # split the true seeds anew; no seed is in both halves
    seeds = rng.integers(0, other.shape[1], other.shape[1])
    return reference[np.ix_(settings, order)], other[np.ix_(settings, seeds)]


def _numbers(reference: Array, other: Array, half: int) -> tuple[float, float, float, float, float]:
    """Difference, floor, excess, tau and its floor, averaged over choices of `half` of the true seeds."""
    seeds = range(reference.shape[1])
    chosen = _halves(reference.shape[1], half)
    simulated = other.mean(axis=1)  # the mean over all choices, too
    misfit, noise, taus, tau_floor = [], [], [], []
    for these in chosen:
        first = reference[:, list(these)].mean(axis=1)
        misfit.append(simulated - first)
        taus.append(kendall(simulated, first))
        second = reference[:, [s for s in seeds if s not in these][:half]].mean(axis=1)
        noise.append(second - first)
        tau_floor.append(kendall(second, first))
    square = float(np.mean(np.square(misfit)) - np.mean(np.square(noise)))
    return (
        float(np.mean(np.abs(misfit))),
        float(np.mean(np.abs(noise))),
        float(np.sqrt(max(square, 0.0))),
        float(np.mean(taus)),
        float(np.mean(tau_floor)),
    )


def _halves(n: int, half: int) -> list[tuple[int, ...]]:
    """All choices of `half` out of n, or 70 random ones if there are more."""
    if comb(n, half) <= _CHOICES:
        return list(combinations(range(n), half))
    rng = Key(0, purpose="halves of seeds").generator()
    return [tuple(rng.permutation(n)[:half].tolist()) for _ in range(_CHOICES)]


def kendall(a: Array, b: Array) -> float:
    """Kendall's tau-b of two rankings; 1 if all settings of both are tied.

    SciPy's `kendalltau` also computes a p-value and takes 20 times as long on the few settings of a bootstrap draw.

    >>> kendall(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.3333333333333333
    """
    first, second = np.triu_indices(len(a), 1)
    left, right = np.sign(a[first] - a[second]), np.sign(b[first] - b[second])
    scale = np.sqrt((left**2).sum() * (right**2).sum())
    if scale == 0:
        return float(np.array_equal(left, right))
    return float((left * right).sum() / scale)


def training_fidelity(
    ways: Sequence[LocalSGD],
    true: Federation,
    others: Mapping[str, Clients],
    *,
    settings: Sequence[Setting],
    test: Federation,
    n_rounds: int,
    sampler: Sampler | None = None,
    seeds: int = 3,
    seed: int = 0,
) -> dict[str, TrainingFidelity]:
    """Train on true and on simulated clients under the same settings, and compare the final accuracies.

    Every run has its own cohorts, initial weights and shuffles. The true clients are trained with twice as many seeds,
    to measure the noise of training.

    Parameters
    ----------
    ways
        How clients train, where a Setting has no field for it: epochs, batch sizes; combined with all `settings`.
    true
        The true clients.
    others
        Simulated clients by name; a function of the seed draws new ones for each seed.
    settings
        The settings to try; their seeds are ignored.
    test
        Rows on which accuracy is measured.
    n_rounds, sampler
        As for `learning.sweep`.
    seeds
        Number of seeds per kind of clients.

    >>> from fedscape.learning import LocalSGD, cross_entropy, grid, models
    >>> rng = np.random.default_rng(0)
    >>> fed = Federation({"x": rng.normal(size=(40, 4)), "y": rng.integers(0, 2, 40)}, np.arange(0, 41, 10))
    >>> way = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=5)
    >>> tried = grid(lr=[0.1, 1.0])
    >>> found = training_fidelity([way], fed, {"same": fed}, settings=tried, test=fed, n_rounds=2, seeds=1)
    >>> found["same"].difference <= 1
    True
    """
    require("torch", extra="learn")
    from fedscape.learning import sweep

    tried = [replace(setting, seed=0) for setting in settings]

    def accuracies(clients: Clients, kind: int, number: int) -> Array:
        runs = []
        for s in range(number):
            run = int(Key(seed, purpose="training fidelity").generator(1000 * kind + s).integers(2**31))
            fed = clients if isinstance(clients, Federation) else clients(run)
            column: list[float] = []
            for way in ways:
                mine = [replace(setting, seed=run) for setting in tried]
                done = sweep(
                    way, fed, mine, n_rounds=n_rounds, validation=test, sampler=sampler, initial="seed", seed=run
                )
                accuracy = {trial.setting: trial.evaluation.summary()["accuracy_pooled"] for trial in done}
                column += [accuracy[setting] for setting in mine]
            runs.append(column)
        return np.array(runs).T

    reference = accuracies(true, 0, 2 * seeds)
    return compare_training(reference, {n: accuracies(c, k, seeds) for k, (n, c) in enumerate(others.items(), 1)})
