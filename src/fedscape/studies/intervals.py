"""Means with intervals over clients, and rounding for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.statistics.jackknife import jackknife_interval
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
    from scipy.special import stdtrit

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
            shares = parts / parts.sum()  # Welch and Satterthwaite; infinite where only a known variance is left
            inverse = float((shares**2 / (n - 1, variance[1])).sum())
            freedom = 1 / inverse if inverse > 0 else np.inf
        reach = float(stdtrit(freedom, 1 - 0.025 / comparisons) * np.sqrt(parts.sum()))
    low, high = (max(middle - reach, least), min(middle + reach, most)) if np.isfinite(reach) else (np.nan, np.nan)
    interval: Interval = plain({"value": middle, "low": low, "high": high})
    return interval


def gini(sizes: Array) -> float:
    """Gini coefficient of the sizes: 0 if all clients have the same number of rows, near 1 if one has all.

    >>> gini(np.array([1, 1, 1])), round(gini(np.array([0, 0, 3])), 3)
    (0.0, 0.667)
    """
    rising = np.sort(np.asarray(sizes, dtype=float))
    n, total = len(rising), rising.sum()
    return float(2 * (np.arange(1, n + 1) @ rising) / (n * total) - (n + 1) / n) if total else 0.0


def gini_interval(sizes: Array) -> Interval:
    """The Gini coefficient with its 95% interval over clients: jackknife on the scale of log odds, with its skewness.

    The interval is about that of all clients these are a sample of, which a sample understates by 1 / n. Where few
    clients have most rows, a sample without such clients does not show them, and the interval ends too early.

    >>> gini_interval(np.array([3, 3, 3])), gini_interval(np.arange(1.0, 40.0))["low"] > 0.2
    ({'value': 0.0, 'low': 0.0, 'high': 0.0}, True)
    """
    from scipy.special import expit, logit

    rising = np.sort(np.asarray(sizes, dtype=float))
    n, value = len(rising), gini(sizes)
    if n < 3 or not 0 < value < 1 - 1 / n:
        return plain({"value": value, "low": value, "high": value})  # type: ignore[no-any-return]
    above = rising.sum() - np.cumsum(rising)
    ranked = np.arange(1, n + 1) @ rising - np.arange(1, n + 1) * rising - above
    without = 2 * ranked / ((n - 1) * np.maximum(rising.sum() - rising, 1e-300)) - n / (n - 1)
    odds = logit(np.clip(without * (n - 1) / (n - 2), 1e-9, 1 - 1e-9))
    low, high = map(float, expit(jackknife_interval(float(logit(min(value * n / (n - 1), 1 - 1e-9))), odds)))
    return plain({"value": value, "low": min(low, value), "high": max(high, value)})  # type: ignore[no-any-return]


def around(values: Array, share: float) -> float:
    """The mean of the five values next to a quantile: of many the quantile, and never a single client's value.

    >>> around(np.array([1.0, 2.0, 3.0, 4.0, 6.0, 90.0]), 0.5)
    3.2
    """
    ordered = np.sort(values)
    first = min(max(round(share * (len(ordered) - 1)) - FEW // 2, 0), max(len(ordered) - FEW, 0))
    return float(ordered[first : first + FEW].mean())


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
