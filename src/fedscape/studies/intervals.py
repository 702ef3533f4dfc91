"""Means with intervals over clients, and rounding for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.core.random import Key
from fedscape.types import Array

Interval = dict[str, Any]

#: A report that may be shared has no number about fewer clients than this.
FEW = 5


def mean_interval(
    values: Array,
    *,
    comparisons: int = 1,
    least: float = -np.inf,
    most: float = np.inf,
    variance: tuple[float, float] = (0.0, np.inf),
) -> Interval:
    """Mean over clients and its 95% t-interval; with several comparisons a simultaneous one (Bonferroni).

    `variance` is an additional variance of the mean, such as that between seeds of a training, with its degrees of
    freedom; both are combined by Welch and Satterthwaite. The interval is clipped to `least` and `most`. For a single
    client both ends are None.

    >>> mean_interval(np.array([1.0, 2.0, 3.0]))
    {'value': 2.0, 'low': -0.484138, 'high': 4.484138}
    """
    from scipy.stats import t

    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    n = len(finite)
    if n == 0:
        return {"value": None, "low": None, "high": None}
    middle = float(finite.mean())
    reach = float("inf")
    if n > 1:
        parts = np.array([finite.var(ddof=1) / n, variance[0]])
        freedom = n - 1.0
        if variance[0] > 0:
            freedom = float(parts.sum() ** 2 / (parts**2 / (n - 1, variance[1])).sum())
        reach = float(t.ppf(1 - 0.025 / comparisons, freedom) * np.sqrt(parts.sum()))
    low, high = (max(middle - reach, least), min(middle + reach, most)) if np.isfinite(reach) else (np.nan, np.nan)
    interval: Interval = plain({"value": middle, "low": low, "high": high})
    return interval


def bootstrap_interval(values: Array, statistic: Any, *, seed: int, draws: int = 500) -> Interval:
    """A statistic of the clients [clients, ...] and its 95% bootstrap percentile interval.

    >>> bootstrap_interval(np.zeros(5), np.mean, seed=0)
    {'value': 0.0, 'low': 0.0, 'high': 0.0}
    """
    rng = Key(seed, purpose="bootstrap of clients").generator()
    drawn = [float(statistic(values[rng.integers(0, len(values), len(values))])) for _ in range(draws)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    interval: Interval = plain({"value": float(statistic(values)), "low": float(low), "high": float(high)})
    return interval


def gini(sizes: Array) -> float:
    """Gini coefficient of the sizes: 0 if all clients have the same number of rows, near 1 if one has all.

    >>> gini(np.array([1, 1, 1])), round(gini(np.array([0, 0, 3])), 3)
    (0.0, 0.667)
    """
    rising = np.sort(np.asarray(sizes, dtype=float))
    n, total = len(rising), rising.sum()
    return float(2 * (np.arange(1, n + 1) @ rising) / (n * total) - (n + 1) / n) if total else 0.0


def plain(value: Any, digits: int = 6) -> Any:
    """Convert to rounded values for JSON; NaN and infinities become None.

    >>> plain({"a": np.float64(1 / 3), "b": np.array([1, 2]), "c": float("inf")})
    {'a': 0.333333, 'b': [1, 2], 'c': None}
    """
    if isinstance(value, dict):
        return {str(name): plain(part, digits) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), digits)
    if isinstance(value, list | tuple):
        return [plain(part, digits) for part in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return round(float(value), digits) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
