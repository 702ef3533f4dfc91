"""How far each method was off the number to be predicted, and what follows with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedscape.core.random import Key
from fedscape.studies.intervals import Interval, mean_interval, plain
from fedscape.studies.judged import Judged, stratified
from fedscape.studies.standing import worst_clients
from fedscape.types import Array

#: What needs no features: a method has to beat the better of the two.
MEANS = {"mean": "Mean of all", "own-mean": "Mean of each client"}

_REDRAWS = 200

Strata = list[tuple[float, float, float, int]]


@dataclass(frozen=True, eq=False)
class JudgedNumbers(Judged):
    """Errors of each method, [repeats, rows], NaN where the row was not held out in that repeat.

    The score of a row is 1 - error^2 / `spread`, so that the mean score is R2, the share of the variance that is
    explained, with clients weighing the same. Methods are compared by it as classifiers are by their accuracy: one
    point is one percent of the variance. `spread` is the mean over clients of the squared distance to the mean of all.

    >>> errors = {"a": np.array([[1.0, -1.0, 1.0, 1.0]]), "b": np.array([[2.0, 0.0, 2.0, 2.0]])}
    >>> judged = JudgedNumbers(errors, np.array([0, 0, 1, 1]), 2, 4, spread=4.0)
    >>> judged.means, judged.rmse("a")["value"]
    ({'a': 0.75, 'b': 0.25}, 1.0)
    """

    spread: float = 1.0

    baselines: ClassVar[Mapping[str, str]] = MEANS
    least: ClassVar[float] = -np.inf
    apart: ClassVar[float] = np.inf

    def held(self, runs: Array) -> Array:
        return np.isfinite(runs)

    def scores(self, runs: Array) -> Array:
        return np.where(np.isfinite(runs), 1 - runs**2 / self.spread, 0.0)

    def accuracy(self, name: str, *, comparisons: int = 1) -> Interval:
        """R2: the share of the variance explained, mean over clients."""
        if not self.sites:
            return super().accuracy(name, comparisons=comparisons)
        extra = self.training_variance(name, "")
        parts = self._strata(self.rows[name])
        return stratified(parts, comparisons=comparisons, least=-np.inf, variance=extra)

    def of_sites(self, name: str, *, comparisons: int = 1) -> list[Interval]:
        """R2 of each site, over its rows alone."""
        parts = self._strata(self.rows[name])
        return [stratified([part], comparisons=comparisons, least=-np.inf) for part in parts]

    def paired(self, first: str, second: str, *, shared: bool) -> Strata:
        parts = self._strata(self.rows[first] - self.rows[second])
        return [part for part in parts if part[3] or not shared]

    def _strata(self, values: Array) -> Strata:
        """Of each site: the mean, twice, its variance and its rows; one row or none says nothing of a variance."""
        total, number = self._sums(values)
        squares, _ = self._sums(values**2)
        strata = []
        for t, s, n in zip(total, squares, number, strict=True):
            mean = t / max(n, 1)
            variance = max(s - n * mean**2, 0.0) / (n - 1) / n if n > 1 else np.inf
            strata.append((float(mean), float(mean), float(variance), int(n)))
        return strata

    def rmse(self, name: str, *, comparisons: int = 1) -> Interval:
        """Root mean squared error in units of the target: R2 and its interval, turned into it."""
        about = self.accuracy(name, comparisons=comparisons)
        ends = {"value": about["value"], "low": about["high"], "high": about["low"]}
        turned = {k: None if v is None else float(np.sqrt(self.spread * max(1 - v, 0.0))) for k, v in ends.items()}
        interval: Interval = plain(turned, 9)
        return interval

    def of_clients_absolute(self, name: str) -> Array:
        """The mean absolute error of each client, [clients]; NaN where it was never tested."""
        total, number = self._sums(self._absolute(name))
        return np.where(number > 0, total / np.maximum(number, 1), np.nan)

    def _absolute(self, name: str) -> Array:
        tested = np.isfinite(self.hits[name])
        total = np.where(tested, np.abs(self.hits[name]), 0.0).sum(axis=0)
        return np.where(tested.any(axis=0), total / np.maximum(tested.sum(axis=0), 1), np.nan)

    def mae(self, name: str) -> Interval:
        """Mean absolute error in units of the target; how trainings differ is not in its interval."""
        if not self.sites:
            return mean_interval(self.of_clients_absolute(name), least=0.0)
        return stratified(self._strata(self._absolute(name)), least=0.0, most=np.inf)

    def worst(self, name: str, *, seed: int) -> Interval:
        """The mean absolute error of the clients served worst, a tenth of them, at least five; of sites the worst one.

        Who looks worst has been unlucky, too. So clients are chosen by half of their rows and judged by the other
        half, both ways round; the interval is Student's t, with the spread over redrawn clients. `seen` is the error of
        the worst as they look.
        """
        if self.sites:
            parts = self._strata(self._absolute(name))
            tested_sites = int(sum(part[3] > 0 for part in parts))
            sites = [stratified([p], comparisons=tested_sites, least=0.0, most=np.inf) for p in parts if p[3]]
            low = max(sites, key=lambda site: float(site["value"]))
            return {**low, "clients": 1, "seen": low["value"]}
        rng = Key(seed, purpose="clients served worst").generator()
        absolute = self._absolute(name)
        half = rng.random(len(absolute)) < 0.5
        sums = [self._sums(np.where(which, absolute, np.nan)) for which in (half, ~half)]
        halves = np.stack([total / np.maximum(n, 1) for total, n in sums], axis=1)
        halves = halves[np.stack([n for _, n in sums], axis=1).min(axis=1) > 0]
        apparent = self.of_clients_absolute(name)
        apparent = np.sort(apparent[np.isfinite(apparent)])[::-1]
        about = {
            "clients": worst_clients(len(apparent)),
            "seen": float(apparent[: worst_clients(len(apparent))].mean()),
        }
        return plain({**worst_by_halves(halves, rng), **about}, 9)  # type: ignore[no-any-return]


def worst_by_halves(halves: Array, rng: np.random.Generator) -> Interval:
    """Mean error of the clients that half of their rows chooses, by the other half; its interval from redrawn clients.

    Who is chosen differs from draw to draw as well, which an interval over those chosen would leave out. Student's t on
    the scale of logarithms; above, Johnson's correction for the skewness of the redraws makes it longer.

    >>> rng = np.random.default_rng(0)
    >>> worst_by_halves(np.ones((9, 2)), rng)
    {'value': 1.0, 'low': 1.0, 'high': 1.0}
    """
    from scipy.special import stdtrit
    from scipy.stats import skew

    if len(halves) < 2:
        return mean_interval(halves.mean(axis=1), least=0.0)
    n, chosen = len(halves), chosen_worst(halves)
    value = float(chosen.mean())
    drawn = np.array([chosen_worst(halves[rng.integers(0, n, n)]).mean() for _ in range(_REDRAWS)])
    if drawn.min() <= 0 or drawn.max() == drawn.min():
        return {"value": value, "low": 0.0 if drawn.min() <= 0 else value, "high": float(max(drawn.max(), value))}
    logs = np.log(drawn)
    quantile, error = float(stdtrit(max(len(chosen) - 1, 1), 0.975)), float(logs.std(ddof=1))
    longer = max(float(skew(logs)), 0.0) * (1 + 2 * quantile**2) / 6
    return {
        "value": value,
        "low": value * np.exp(-quantile * error),
        "high": value * np.exp((quantile + longer) * error),
    }


def chosen_worst(halves: Array) -> Array:
    """Errors of the tenth of the clients that are worst by one half of their rows [clients, 2], by the other half.

    Both ways round: a client that is chosen by both halves has the mean of both.

    >>> chosen_worst(np.array([[1.0, 3.0], [5.0, 4.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).tolist()
    [2.0, 4.5, 0.0, 0.0, 0.0]
    """
    n = worst_clients(len(halves))
    judged = np.full(halves.shape, np.nan)
    for way in (0, 1):
        chosen = np.argsort(-halves[:, way], kind="stable")[:n]
        judged[chosen, 1 - way] = halves[chosen, 1 - way]
    some = np.isfinite(judged).any(axis=1)
    return np.asarray(np.nanmean(judged[some], axis=1))
