"""Hits of each method, and accuracies and differences with intervals: over clients, or over rows of a few sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedscape.studies.intervals import Interval, mean_interval, plain
from fedscape.types import Array

#: Baselines without training: a method has to beat the better of the two.
BASELINES = {"commonest": "Commonest class of all", "own-commonest": "Commonest class of each client"}

NOTHING = ""  # the "second" method of a plain accuracy


@dataclass(frozen=True, eq=False)
class Judged:
    """Hits of each method, [repeats, rows]: 1 right, 0 wrong, -1 if the row was not held out in that repeat.

    Many clients are a sample: intervals are over clients, by Student's t. A few sites are the whole population:
    intervals are over the rows of each site, with equal weight for all sites. Differences are paired, by row or by
    client. Their intervals include the variance between trainings beyond that of the test rows. Repeats train on
    overlapping rows, so this variance is divided by less than their number (Nadeau and Bengio 2003). `more` is further
    variance of a baseline's mean, from `guessing.further_variance`.

    >>> hits = {"a": np.array([[1, 1, 0, 1]]), "b": np.array([[1, 0, 0, 1]])}
    >>> Judged(hits, np.array([0, 0, 1, 1]), 2, 4).difference("a", "b")["value"]
    0.25
    """

    hits: Mapping[str, Array]
    owner: Array
    n_clients: int
    folds: int
    sites: bool = False
    moves: Mapping[tuple[str, str], tuple[float, float]] | None = None  # how far repeats differ, where that is known
    more: Mapping[str, float] | None = None  # further variance of the means of baselines

    baselines: ClassVar[Mapping[str, str]] = BASELINES
    least: ClassVar[float] = 0.0  # of a mean
    apart: ClassVar[float] = 1.0  # of two means, at most

    def held(self, runs: Array) -> Array:
        """Which rows were held out, of the hits of one repeat or of all."""
        return np.asarray(runs >= 0)

    def scores(self, runs: Array) -> Array:
        """What each row counts: 1 if it was hit, 0 if it was missed or not held out."""
        return np.asarray(runs > 0)

    @cached_property
    def tests(self) -> Array:
        """Test rows of each client in each repeat, [repeats, clients]."""
        first = next(iter(self.hits.values()))
        return np.array([np.bincount(self.owner[self.held(run)], minlength=self.n_clients) for run in first])

    @cached_property
    def rows_tested(self) -> Array:
        """Rows of each client that were tested on in any repeat, [clients]."""
        ever = self.held(next(iter(self.hits.values()))).any(axis=0)
        return np.bincount(self.owner[ever], minlength=self.n_clients)

    @cached_property
    def rows(self) -> dict[str, Array]:
        """Share of repeats in which each method hit each row, [rows]; NaN if it was never held out."""
        tested = self.held(next(iter(self.hits.values()))).sum(axis=0)
        share = {name: self.scores(runs).sum(axis=0) / np.maximum(tested, 1) for name, runs in self.hits.items()}
        return {name: np.where(tested > 0, values, np.nan) for name, values in share.items()}

    @cached_property
    def clients(self) -> dict[str, Array]:
        """The accuracy of each client under each method, [clients]; NaN if it was never tested."""
        sums = {name: self._sums(values) for name, values in self.rows.items()}
        return {name: np.where(n > 0, total / np.maximum(n, 1), np.nan) for name, (total, n) in sums.items()}

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean accuracy of the clients under each method."""
        return {name: float(np.nanmean(values)) for name, values in self.clients.items()}

    def of_runs(self, name: str) -> Array:
        """Mean accuracy of the clients in each repeat, [repeats]."""
        right = np.array([np.bincount(self.owner, self.scores(run), self.n_clients) for run in self.hits[name]])
        share = np.where(self.tests > 0, right / np.maximum(self.tests, 1), np.nan)
        return np.asarray(np.nanmean(share, axis=1))

    def _sums(self, values: Array) -> tuple[Array, Array]:
        finite = np.isfinite(values)
        owner = self.owner[finite]
        total = np.bincount(owner, weights=values[finite], minlength=self.n_clients)
        return total, np.bincount(owner, minlength=self.n_clients)

    def accuracy(self, name: str, *, comparisons: int = 1) -> Interval:
        """The mean accuracy of clients."""
        extra = self.training_variance(name, NOTHING)
        if not self.sites:
            mine = self.clients[name]
            return mean_interval(mine, comparisons=comparisons, least=self.least, most=1.0, variance=extra)
        sums = [(t, n) for t, n in zip(*self._sums(self.rows[name]), strict=True) if n]
        parts = [_share(t, n, 2 / len(sums)) for t, n in sums]
        return stratified(parts, comparisons=comparisons, least=0.0, variance=extra)

    def of_sites(self, name: str, *, comparisons: int = 1) -> list[Interval]:
        """The accuracy of each site, with Wilson's interval over its rows."""
        total, number = self._sums(self.rows[name])
        return [wilson(t, n, comparisons=comparisons) for t, n in zip(total, number, strict=True)]

    def difference(self, first: str, second: str, *, comparisons: int = 1) -> Interval:
        """Accuracy of the first minus that of the second, mean over clients."""
        extra = self.training_variance(first, second)
        if not self.sites:
            paired = self.clients[first] - self.clients[second]
            return mean_interval(paired, comparisons=comparisons, variance=extra)
        parts = self.paired(first, second, shared=True)
        return stratified(parts, comparisons=comparisons, least=-self.apart, most=self.apart, variance=extra)

    def site_differences(self, first: str, second: str, *, comparisons: int = 1) -> list[Interval]:
        """The difference at each site, over its own rows (Bonett and Price 2012)."""
        parts = self.paired(first, second, shared=False)
        return [stratified([part], comparisons=comparisons, least=-self.apart, most=self.apart) for part in parts]

    def paired(self, first: str, second: str, *, shared: bool) -> list[tuple[float, float, float, int]]:
        """For each site: mean difference, adjusted mean, its variance, number of rows."""
        apart = self.rows[first] - self.rows[second]
        total, number = self._sums(apart)
        squares, _ = self._sums(apart**2)
        tested = int((number > 0).sum())
        extra = 2 / tested if shared else 2.0  # pseudo-rows of +1 and -1, so that no interval has zero width
        parts = []
        for t, s, n in zip(total, squares, number, strict=True):
            if n or not shared:
                middle = t / (n + extra)
                variance = ((s + extra) / (n + extra) - middle**2) / (n + extra)
                parts.append((float(t / max(n, 1)), float(middle), float(variance), int(n)))
        return parts

    def training_variance(self, first: str, second: str) -> tuple[float, float]:
        """The variance of a mean difference for other trainings than these, and its degrees of freedom.

        Repeats test on other rows, which moves their means as well: that part is known. A few repeats say little of
        one pair. So the excess over it is pooled over all methods, as a ratio; a pair that moves more than one in a
        hundred would by chance keeps its own. Of a baseline, `more` is added: which class is the commonest.
        """
        more = sum((self.more or {}).get(name, 0.0) for name in (first, second))
        n = len(self.tests)
        trained = [name for name in self.hits if name not in self.baselines and name != second]
        if n < 2 or not trained or (first in self.baselines and second in (*self.baselines, NOTHING)):
            return more, np.inf
        from scipy.special import chdtri

        moves = self.moves or self._moves
        every = np.array([moves[name, second] for name in trained]).sum(axis=0)
        between, explained = moves[first, second]
        ratio = every[0] / every[1] if every[1] > 0 else 1.0
        own = between / explained if explained > 0 else 1.0
        if own > float(chdtri(n - 1, 0.01)) / (n - 1):
            ratio = max(ratio, own)
        variance = max(ratio - 1, 0.0) * explained * (1 / n + 1 / (self.folds - 1))
        return variance + more, len(trained) * (n - 1)

    @cached_property
    def _moves(self) -> dict[tuple[str, str], tuple[float, float]]:
        """For each pair the variance over repeats of the mean difference, and what the rows tested on explain of it."""
        runs = {NOTHING: np.zeros(len(self.tests)), **{name: self.of_runs(name) for name in self.hits}}
        pairs = {}
        for first in self.hits:
            for second in runs:
                explained = [self._explained(first, second, run) for run in range(len(self.tests))]
                between = float((runs[first] - runs[second]).var(ddof=1))
                pairs[first, second] = (between, float(np.mean(explained)))
        return pairs

    def _explained(self, first: str, second: str, run: int) -> float:
        """The variance of the mean difference of one repeat over rows inside clients.

        Each client has its own variance; one that was tested on a single row has that of all.
        """
        values = self.scores(self.hits[first][run]).astype(float)
        if second != NOTHING:
            values = values - self.scores(self.hits[second][run])
        values = np.where(self.held(self.hits[first][run]), values, np.nan)
        total, number = self._sums(values)
        squares, _ = self._sums(values**2)
        apart = np.maximum(squares - total**2 / np.maximum(number, 1), 0.0)
        common = apart.sum() / max((number - 1).clip(0).sum(), 1)
        own = np.where(number > 1, apart / np.maximum(number - 1, 1), common)
        tested = number > 0
        return float((own[tested] / number[tested]).sum() / max(tested.sum(), 1) ** 2)

    def among(self, chosen: Array) -> Judged:
        """The same for some of the clients, a mask [clients]."""
        rows = chosen[self.owner]
        return replace(self, hits={name: runs[:, rows] for name, runs in self.hits.items()}, owner=self.owner[rows])

    def of_kinds(self, name: str, kind: Array) -> list[tuple[int, int, Interval]]:
        """Number, clients and mean accuracy of each kind [clients]; simultaneous, as the worst is one of several."""
        kinds = [int(k) for k in np.unique(kind)]
        accuracies = []
        for k in kinds:
            mine = kind == k
            tested = bool((self.rows_tested[mine] > 0).any())
            nothing: Interval = {"value": None, "low": None, "high": None}
            about = self.among(mine).accuracy(name, comparisons=len(kinds)) if tested else nothing
            accuracies.append((k, int(mine.sum()), about))
        return accuracies

    def redrawn(self, rng: np.random.Generator) -> Judged:
        """Redraw clients, or rows inside each site, with their hits."""
        order = np.argsort(self.owner, kind="stable")
        number = np.bincount(self.owner, minlength=self.n_clients)
        starts = np.cumsum(number) - number
        if self.sites:
            owner = self.owner
            rows = order[starts[owner] + (rng.random(len(order)) * number[owner]).astype(np.int64)]
        else:
            drawn = rng.integers(0, self.n_clients, self.n_clients)
            lengths = number[drawn]
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            rows = order[np.repeat(starts[drawn], lengths) + within]
            owner = np.repeat(np.arange(self.n_clients), lengths)
        moves = self.moves or (self._moves if len(self.tests) > 1 else None)
        hits = {name: runs[:, rows] for name, runs in self.hits.items()}
        return replace(self, hits=hits, owner=owner, moves=moves)


def _share(total: float, n: int, extra: float) -> tuple[float, float, float, int]:
    middle = (total + extra) / (n + 2 * extra)
    return total / n, middle, middle * (1 - middle) / (n + 2 * extra), n


def wilson(right: float, n: float, *, comparisons: int = 1) -> Interval:
    """A share of n rows and its 95% Wilson score interval; None for no rows.

    >>> wilson(0, 4)
    {'value': 0.0, 'low': 0.0, 'high': 0.489891}
    """
    from scipy.special import ndtri

    if n <= 0:
        return {"value": None, "low": None, "high": None}
    z, share = float(ndtri(1 - 0.025 / comparisons)), right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    interval: Interval = plain({"value": share, "low": max(middle - reach, 0.0), "high": min(middle + reach, 1.0)})
    return interval


def stratified(
    parts: list[tuple[float, float, float, int]],
    *,
    comparisons: int = 1,
    least: float = -1.0,
    most: float = 1.0,
    variance: tuple[float, float] = (0.0, np.inf),
) -> Interval:
    """The mean of independent strata (value, adjusted mean, its variance, rows) and its 95% interval."""
    from scipy.special import stdtrit

    tested = [part for part in parts if part[3]]
    if not tested:
        return {"value": None, "low": None, "high": None}
    value, middle = (float(np.mean([part[i] for part in tested])) for i in (0, 1))
    each = np.array([part[2] for part in tested] + [variance[0] * len(tested) ** 2]) / len(tested) ** 2
    if not each.sum() > 0:
        return plain({"value": value, "low": value, "high": value})  # type: ignore[no-any-return]
    if not np.isfinite(each.sum()):
        return plain({"value": value, "low": None, "high": None})  # type: ignore[no-any-return]
    freedom = np.array([max(part[3] - 1, 1) for part in tested] + [variance[1]])
    together = float(each.sum() ** 2 / (each**2 / freedom).sum())
    reach = float(stdtrit(together, 1 - 0.025 / comparisons) * np.sqrt(each.sum()))
    low, high = max(min(middle - reach, value), least), min(max(middle + reach, value), most)
    interval: Interval = plain({"value": value, "low": low, "high": high})
    return interval
