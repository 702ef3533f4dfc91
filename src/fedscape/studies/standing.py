"""The table of a tournament: accuracy, gain over FedAvg, lead over the baseline, and the worst-served clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.core.random import Key
from fedscape.methods import METHODS
from fedscape.studies.intervals import FEW, Interval, plain
from fedscape.studies.judged import BASELINES, Judged
from fedscape.types import Array


def standing(judged: Judged, *, seed: int, entered: int | None = None) -> list[dict[str, Any]]:
    """Tabulate every method and baseline: accuracy, worst tenth, gain over FedAvg and lead over the baseline.

    Gains and leads are paired, with simultaneous intervals; a lead is that over the better baseline. `together` is the
    accuracy with a simultaneous interval, valid also for the method chosen for its accuracy. All are simultaneous for
    as many methods as `entered` the tournament; by default these.
    """
    trained = [name for name in judged.hits if name not in BASELINES]
    number = len(trained) if entered is None else entered
    means = judged.means
    base = max(BASELINES, key=lambda name: means[name])
    rows = []
    for name in judged.hits:
        row: dict[str, Any] = {
            "method": name,
            "called": BASELINES.get(name) or METHODS[name].title,
            "baseline": name in BASELINES,
            "accuracy": judged.accuracy(name),
            "together": judged.accuracy(name, comparisons=number),
            "worst": worst(judged, name, seed=seed),
            "gain": None,
            "over": None if name in BASELINES else judged.difference(name, base, comparisons=number),
        }
        if name in trained and name != "fedavg":
            row["gain"] = judged.difference(name, "fedavg", comparisons=number - 1)
            apart = judged.clients[name] - judged.clients["fedavg"]
            row["better"] = float((apart[np.isfinite(apart)] > 0).mean())
        runs = judged.of_runs(name)
        row["seeds"] = float(runs.std(ddof=1)) if len(runs) > 1 else None
        rows.append(row)
    return plain(rows)  # type: ignore[no-any-return]


def worst(judged: Judged, name: str, *, seed: int) -> Interval:
    """Accuracy of the worst tenth of the clients, at least five; for sites, of the worst one."""
    accuracy, tests = judged.clients[name], judged.rows_tested
    tested = tests > 0
    if judged.sites:
        sites = [s for s in judged.of_sites(name, comparisons=int(tested.sum())) if s["value"] is not None]
        low = min(sites, key=lambda site: float(site["value"]))
        return {**low, "clients": 1, "seen": low["value"], "equal": None}
    right, tests = accuracy[tested] * tests[tested], tests[tested]
    about = worst_interval(right, tests, seed=seed)
    equal = equal_tenth(accuracy[tested], tests, seed=seed)
    return about | {"clients": worst_clients(len(tests)), "seen": worst_tenth(accuracy[tested]), "equal": equal}


def worst_clients(n: int) -> int:
    """Size of the worst tenth of n clients: at least five, since fewer would be about single clients.

    >>> worst_clients(20), worst_clients(80), worst_clients(4)
    (5, 8, 4)
    """
    return max(min(FEW, n), n // 10)


def worst_tenth(values: Array) -> float:
    """Mean of the lowest tenth of the values, at least five.

    >>> worst_tenth(np.arange(20.0))
    2.0
    """
    return float(np.sort(values)[: worst_clients(len(values))].mean())


def worst_interval(right: Array, tests: Array, *, seed: int, draws: int = 400) -> Interval:
    """Mean accuracy of the worst tenth of the clients, corrected for the noise of few test rows.

    The lowest observed accuracies are partly bad luck. Accuracies are assumed to follow a beta distribution, fitted by
    moments to redrawn clients. Each draw samples every client's accuracy from its posterior and averages the lowest
    tenth.

    >>> worst_interval(np.zeros(10), np.full(10, 4), seed=0)["high"] > 0.01
    True
    """
    rng = Key(seed, purpose="clients served worst").generator()
    n, drawn = len(tests), []
    for _ in range(draws):
        sample = rng.integers(0, n, n)
        middle, spread = beta_moments(right[sample], tests[sample])
        a, b = middle * spread, (1 - middle) * spread
        drawn.append(worst_tenth(rng.beta(right + a, tests - right + b)))
    low, high = np.quantile(drawn, [0.025, 0.975])
    interval: Interval = plain({"value": float(np.mean(drawn)), "low": float(low), "high": float(high)})
    return interval


def beta_moments(right: Array, tests: Array) -> tuple[float, float]:
    """Mean and concentration a + b of the beta distribution of accuracies, from the analysis of variance.

    >>> beta_moments(np.array([5.0, 5.0, 5.0]), np.array([10, 10, 10]))[1] > 1e5
    True
    """
    total, k = float(tests.sum()), len(tests)
    share = right / tests
    middle = (float(right.sum()) + 0.5) / (total + 1)  # never 0 or 1, even if no row was missed
    within = float((tests * share * (1 - share)).sum()) / max(total - k, 1)
    between = float((tests * (share - right.sum() / total) ** 2).sum()) / max(k - 1, 1)
    size = (total - float((tests**2).sum()) / total) / max(k - 1, 1)
    below = between + (size - 1) * within
    correlation = min(max((between - within) / below, 1e-6), 0.99) if below > 0 else 1e-6
    return middle, (1 - correlation) / correlation


def equal_tenth(accuracy: Array, sizes: Array, *, seed: int, draws: int = 200) -> float:
    """Expected worst tenth if all clients had the mean accuracy: the effect of few test rows.

    >>> equal_tenth(np.full(50, 0.5), np.full(50, 10**8), seed=0).__round__(3)
    0.5
    """
    rng = Key(seed, purpose="clients served equally").generator()
    drawn = rng.binomial(sizes, accuracy.mean(), size=(draws, len(sizes))) / sizes
    return float(np.mean([worst_tenth(values) for values in drawn]))
