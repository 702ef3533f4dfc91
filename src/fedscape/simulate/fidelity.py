"""Compare true and simulated clients: the misfit with intervals, then p-values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.engine import Engine, Local
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.simulate.classifier import classify
from fedscape.simulate.columns import Column, codes_of, with_codes
from fedscape.sketches import DistributionSketch
from fedscape.types import Array

Population = Federation | npt.ArrayLike
MEASURES = ("misfit", "auc", "distance", "size", "pool", "sketch")
CERTAIN = 0.9  # not represented: clients like this are at least nine times as common in the other population


@dataclass(frozen=True)
class Measure:
    """One measure of misfit: its 95% interval, its value under equal distributions (`alike`), and their p-value.

    >>> str(Measure(0.61, 0.57, 0.65, 0.5, 0.003))
    '0.61 [0.57, 0.65], 0.5 if alike, p = 0.003'
    """

    value: float
    low: float
    high: float
    alike: float
    p: float

    def __str__(self) -> str:
        p = f"p = {self.p:.2g}" if self.p >= 1e-4 else "p < 0.0001"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}], {self.alike:.3g} if alike, {p}"


@dataclass(frozen=True, eq=False)
class Fidelity:
    """The result of `fidelity`. With thousands of clients every model is rejected: read the values, not the p-values.

    `misfit` is the one number to rank simulators by. Each true client is matched with a simulated one to minimise the
    mean distance (the transport distance of the populations). The distance is the share of a client's rows that would
    need other labels, averaged with that of its sketches if `features` are compared. Clients of equal laws do not match
    exactly either: `alike` is their mean distance. Unlike `auc`, misfit does not saturate. Each of the other measures
    covers one aspect.

    `auc`: AUC of a classifier that tells true from simulated clients, 0.5 if it cannot, far below 0.5 if simulated
    clients are copies of true ones. `distance`: Wasserstein distance between the laws of a client's total variation
    distance to the pooled clients. `size`: Wasserstein distance between the laws of sizes, in mean true sizes. `pool`:
    total variation distance between all true and all simulated rows. `sketch`: energy distance between representations,
    unbiased and so sometimes below zero.

    `missing` is the share of true clients at least nine times as common among true as among simulated clients.
    `missing_ids` lists them, the most extreme first. `invented` is the share of simulated clients the other way round.
    These three and `auc` use equally many clients of each; the larger population is subsampled with the seed.
    """

    misfit: Measure
    auc: Measure
    distance: Measure
    size: Measure
    pool: Measure
    sketch: Measure | None
    missing: float
    missing_ids: tuple[Any, ...]
    invented: float
    clients: tuple[int, int]

    def table(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        measures = {n: m for n in MEASURES if (m := getattr(self, n)) is not None}
        return {
            **{name: asdict(measure) for name, measure in measures.items()},
            "missing": self.missing,
            "missing_ids": list(self.missing_ids[:20]),
            "invented": self.invented,
            "clients": {"true": self.clients[0], "simulated": self.clients[1]},
        }

    def __str__(self) -> str:
        lines = [
            f"misfit, 0 to 1: {self.misfit}",
            f"classifier AUC: {self.auc}",
            f"laws of the distance to all: {self.distance}",
            f"laws of sizes: {self.size}",
            f"all rows together: {self.pool}",
        ]
        lines += [] if self.sketch is None else [f"sketches: {self.sketch}"]
        lines += [f"not represented: {self.missing:.1%} of the true clients; invented: {self.invented:.1%}"]
        return "\n".join(lines)


def fidelity(
    true: Population,
    simulated: Population,
    *,
    column: Column = "y",
    features: str | None = None,
    sketches: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    draws: int = 200,
    most: int = 5000,
    seed: int = 0,
    engine_for: Callable[[Federation], Engine] = Local,
) -> Fidelity:
    """Compare true with simulated clients, with access to both; `self_score` needs only sums.

    Parameters
    ----------
    true, simulated
        Federations, or counts [clients, C].
    column
        The column to compare, as for `clients`. Categories are matched by name if both have names, else by number.
    features
        A numeric column of both: clients are also compared by distribution sketches of it.
    sketches
        Another representation of each client, true and simulated: [clients, ...] twice.
    draws
        Bootstrap draws for the intervals, and permutations for the values under equal laws.
    most
        Maximum number of clients of each, subsampled with the seed.
    engine_for
        Makes the engine on which sketches are fitted.

    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.multinomial(30, [0.3, 0.7], 200), rng.multinomial(30, rng.dirichlet([3, 7], 200))
    >>> fidelity(a, b).auc.value > 0.6
    True
    """
    counts, other, ids = _both(true, simulated, column)
    if min(len(counts), len(other)) < 20:
        raise DataError(f"fidelity compares laws and needs 20 clients of each, got {len(counts)} and {len(other)}")
    if features is not None:
        if sketches is not None or not (isinstance(true, Federation) and isinstance(simulated, Federation)):
            raise DataError("features= goes with two Federations and instead of sketches=")
        sketches = _sketched(true, simulated, features, seed, engine_for)
    if sketches is not None and (len(np.asarray(sketches[0])), len(np.asarray(sketches[1]))) != (
        len(counts),
        len(other),
    ):
        raise DataError("sketches must have one row for each client, true and simulated")
    rng = Key(seed, purpose="fidelity").generator()
    these, those = (np.sort(rng.permutation(len(c))[:most]) for c in (counts, other))
    populations = (counts[these].astype(np.int64), other[those].astype(np.int64))
    if not (populations[0].any() and populations[1].any()):
        raise DataError("no client has a row in this column: there is nothing to compare")
    fewer = min(len(these), len(those))  # where one kind is rare, a classifier is too sure of the other
    equal = [np.sort(rng.permutation(len(c))[:fewer]) for c in populations]
    verdict = classify(populations[0][equal[0]], populations[1][equal[1]], seed=seed)
    spread = 1.96 * verdict.error
    auc = Measure(verdict.auc, max(verdict.auc - spread, 0.0), min(verdict.auc + spread, 1.0), 0.5, verdict.p)
    scale = max(float(populations[0].sum(axis=1).mean()), 1e-300)
    order = np.argsort(-verdict.of_true, kind="stable")
    lost = order[verdict.of_true[order] > CERTAIN]
    shares = [c / np.maximum(c.sum(axis=1, keepdims=True), 1) for c in populations]
    ways = [(shares[0], shares[1], 1)]
    if features is not None and sketches is not None:
        sketched = [np.asarray(s)[who] for s, who in zip(sketches, (these, those), strict=True)]
        ways.append((sketched[0].reshape(len(these), -1), sketched[1].reshape(len(those), -1), sketched[0].shape[1]))
    return Fidelity(
        misfit=_matched(ways, rng, draws),
        auc=auc,
        distance=_distance_laws(populations[0], populations[1], rng, draws),
        size=_laws(populations[0].sum(axis=1) / scale, populations[1].sum(axis=1) / scale, rng, draws),
        pool=_pools(populations[0], populations[1], rng, draws),
        sketch=None if sketches is None else _energy(np.asarray(sketches[0]), np.asarray(sketches[1]), rng, draws),
        missing=float((verdict.of_true > CERTAIN).mean()),
        missing_ids=tuple(ids[these[equal[0][lost]]].tolist()),
        invented=float((verdict.of_simulated < 1 - CERTAIN).mean()),
        clients=(len(counts), len(other)),
    )


def _sketched(
    true: Federation, simulated: Federation, column: str, seed: int, engine_for: Callable[[Federation], Engine]
) -> tuple[Array, Array]:
    """Sketch both populations with the same functions, centred at the true mean: [clients, 64 x 16] twice."""
    sketch = DistributionSketch(64, bits=4, column=column, centre="mean", seed=seed).fit(
        engine_for(true), progress=False
    )
    return sketch.transform(true), sketch.transform(simulated)


def _both(true: Population, simulated: Population, column: Column) -> tuple[Array, Array, Array]:
    histograms, ids, names = [], [], []
    for population in (true, simulated):
        if isinstance(population, Federation):
            plain = isinstance(column, str)
            fed = population if plain else with_codes(population, column)
            histograms.append(fed.counts(str(column) if plain else "code"))
            ids.append(population.ids)
            names.append(population.names.get(str(column)) if plain else codes_of(population, column).names)
        else:
            counts = np.asarray(population)
            if counts.ndim != 2 or counts.dtype.kind not in "iu" or (counts.size and counts.min() < 0):
                raise DataError(f"counts must be whole numbers [clients, categories], not {counts.dtype}{counts.shape}")
            histograms.append(counts)
            ids.append(np.arange(len(counts)))
            names.append(None)
    if names[0] is not None and names[1] is not None and names[0] != names[1]:
        histograms = _by_name(histograms, [list(names[0]), list(names[1])])
    wide = max(c.shape[1] for c in histograms)  # a category that one of the two never saw
    histograms = [np.pad(c, ((0, 0), (0, wide - c.shape[1]))) for c in histograms]
    return histograms[0], histograms[1], ids[0]


def _by_name(counts: list[Array], names: list[list[str]]) -> list[Array]:
    """Align both over the union of their categories, in one order."""
    if not set(names[0]) & set(names[1]):
        raise DataError(
            f"the two populations share no category: one has {names[0][:3]}, the other {names[1][:3]}; give both the "
            "same names, or none"
        )
    position = {name: j for j, name in enumerate(sorted({*names[0], *names[1]}))}
    aligned = []
    for own, called in zip(counts, names, strict=True):
        out = np.zeros((len(own), len(position)), dtype=own.dtype)
        out[:, [position[name] for name in called]] = own
        aligned.append(out)
    return aligned


def _distances(counts: Array) -> Array:
    """The total variation distance of each client with rows to the pooled clients."""
    filled = counts[counts.sum(axis=1) > 0]
    pool = filled.sum(axis=0) / max(filled.sum(), 1)
    return np.asarray(np.abs(filled / filled.sum(axis=1, keepdims=True) - pool).sum(axis=1) / 2)


def _distance_laws(a: Array, b: Array, rng: np.random.Generator, draws: int) -> Measure:
    """Wasserstein distance between the laws of clients' distances to the pool of their own population.

    Each draw resamples the clients and recomputes the pools, because the pools are part of the comparison.
    """
    both = np.concatenate((a, b))

    def apart(left: Array, right: Array) -> float:
        first, second = _distances(left), _distances(right)
        return wasserstein(first, second) if len(first) and len(second) else 0.0

    def resampled() -> float:
        return apart(a[rng.integers(0, len(a), len(a))], b[rng.integers(0, len(b), len(b))])

    def mixed() -> float:
        order = rng.permutation(len(both))
        return apart(both[order[: len(a)]], both[order[len(a) :]])

    return _measure(apart(a, b), resampled, mixed, draws)


def _laws(a: Array, b: Array, rng: np.random.Generator, draws: int) -> Measure:
    """The Wasserstein distance between two samples."""
    if not len(a) or not len(b):
        raise DataError("no client has a row in this column: there is nothing to compare")
    both = np.concatenate((a, b))

    def resampled() -> float:
        return wasserstein(rng.choice(a, len(a)), rng.choice(b, len(b)))

    def mixed() -> float:
        order = rng.permutation(len(both))
        return wasserstein(both[order[: len(a)]], both[order[len(a) :]])

    return _measure(wasserstein(a, b), resampled, mixed, draws)


def wasserstein(a: Array, b: Array) -> float:
    """The area between two cumulative distribution functions.

    >>> wasserstein(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    1.0
    """
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(a, b))


def _pools(a: Array, b: Array, rng: np.random.Generator, draws: int) -> Measure:
    """The total variation distance between pooled shares, with clients resampled."""
    both = np.concatenate((a, b)).astype(float)

    def apart(left: Array, right: Array) -> float:
        return float(np.abs(left / max(left.sum(), 1) - right / max(right.sum(), 1)).sum() / 2)

    def resampled() -> float:
        weights = [rng.multinomial(len(c), np.full(len(c), 1 / len(c))) for c in (a, b)]
        return apart(weights[0] @ a, weights[1] @ b)

    def mixed() -> float:
        left = rng.permutation(len(both)) < len(a)
        return apart(left @ both, ~left @ both)

    return _measure(apart(a.sum(axis=0), b.sum(axis=0)), resampled, mixed, draws)


def _measure(value: float, resampled: Callable[[], float], mixed: Callable[[], float], draws: int) -> Measure:
    """Reflected bootstrap interval; mean and tail under permutations.

    A distance is never below zero, and the bootstrap fails near zero. If the test does not reject, the interval begins
    at zero.
    """
    bootstrap, null = (np.array([one() for _ in range(draws)]) for one in (resampled, mixed))
    low, high = np.quantile(bootstrap, [0.025, 0.975])
    p = float((1 + (null >= value).sum()) / (draws + 1))
    begin = float(max(2 * value - high, 0.0)) if p <= 0.05 else 0.0
    return Measure(value, begin, float(max(2 * value - low, value)), float(null.mean()), p)


def _matched(ways: list[tuple[Array, Array, int]], rng: np.random.Generator, draws: int, most: int = 200) -> Measure:
    """The minimum mean distance of a matching between true and simulated clients.

    `ways` are distributions of the clients: [clients, ...] twice, and the number of rows per client, each of which sums
    to one. Equally many clients of both are matched. The interval has the spread of a bootstrap over clients, for
    populations of that many clients.
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    number = len(ways[0][0]), len(ways[0][1])
    n = min(*number, most)
    left, right = (np.sort(rng.permutation(size)[:n]) for size in number)
    apart = np.zeros((2 * n, 2 * n))
    for a, b, rows in ways:
        both = np.concatenate((a[left], b[right])).astype(float)
        apart += cdist(both, both, "cityblock") / (2 * rows * len(ways))

    def cost(order: Array) -> float:
        own = apart[np.ix_(order[:n], order[n:])]
        return float(own[linear_sum_assignment(own)].mean())

    value = cost(np.arange(2 * n))
    bootstrap = [cost(np.concatenate((rng.integers(0, n, n), n + rng.integers(0, n, n)))) for _ in range(draws)]
    null = np.array([cost(rng.permutation(2 * n)) for _ in range(draws)])
    reach = 1.96 * float(np.std(bootstrap))
    p = float((1 + (null >= value).sum()) / (draws + 1))
    return Measure(value, max(value - reach, 0.0), min(value + reach, 1.0), float(null.mean()), p)


def _energy(a: Array, b: Array, rng: np.random.Generator, draws: int, most: int = 1000) -> Measure:
    """Unbiased 2 E|A - B| - E|A - A'| - E|B - B'|, from the Euclidean distances between clients."""
    a, b = (x[rng.permutation(len(x))[:most]].reshape(min(len(x), most), -1).astype(float) for x in (a, b))
    both = np.concatenate((a, b))
    squares = (both**2).sum(axis=1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * both @ both.T, 0.0))
    np.fill_diagonal(apart, 0.0)

    def energy(order: Array) -> tuple[float, float]:
        left, right = order[: len(a)], order[len(a) :]
        cross = apart[np.ix_(left, right)]
        own_left = apart[np.ix_(left, left)].sum(axis=1) / (len(left) - 1)
        own_right = apart[np.ix_(right, right)].sum(axis=1) / (len(right) - 1)
        pull_left, pull_right = 2 * (cross.mean(axis=1) - own_left), 2 * (cross.mean(axis=0) - own_right)
        variance = pull_left.var(ddof=1) / len(left) + pull_right.var(ddof=1) / len(right)
        return float(2 * cross.mean() - own_left.mean() - own_right.mean()), float(variance)

    value, variance = energy(np.arange(len(both)))
    null = np.array([energy(rng.permutation(len(both)))[0] for _ in range(draws)])
    reach = np.hypot(1.96 * np.sqrt(variance), 2 * null.std())  # the first term vanishes near equal laws
    p = float((1 + (null >= value).sum()) / (draws + 1))
    return Measure(value, value - reach, value + reach, float(null.mean()), p)
