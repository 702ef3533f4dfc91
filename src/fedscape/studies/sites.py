"""A few sites: what each gains by joining, and the heterogeneity of these gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedscape.statistics.heterogeneity import heterogeneity
from fedscape.studies.describe import about_size
from fedscape.studies.intervals import Interval, plain
from fedscape.studies.judged import Judged

FEWER = 20  # with fewer clients they are sites: a whole population, not a sample


def are_sites(n_clients: int, override: bool | None) -> bool:
    """Whether the clients are sites: as `override` says, by default if there are fewer than 20.

    >>> are_sites(4, None), are_sites(4, False), are_sites(500, None)
    (True, False, False)
    """
    return n_clients < FEWER if override is None else override


def pooled(values: Sequence[float], variances: Sequence[float]) -> dict[str, Any]:
    """Random-effects meta-analysis of independent estimates (DerSimonian and Laird 1986).

    `q`, `tau2` and `i2` are those of `statistics.heterogeneity`. The pooled value has weights 1 / (variance + tau2);
    `p` is the p-value of no heterogeneity.

    >>> estimate = pooled([0.1, 0.3], [0.01, 0.01])
    >>> round(estimate["tau2"], 3), round(estimate["i2"], 3), estimate["value"]
    (0.01, 0.5, 0.2)
    """
    k = len(values)
    if k > 1:
        estimate = heterogeneity(values, variances)
        value, error = float(estimate.random), float(estimate.random_error)
        q, tau2, i2, p = map(float, (estimate.q, estimate.tau2, estimate.i2, estimate.p_value))
    else:  # a single site has no heterogeneity
        value, error = float(values[0]), float(variances[0]) ** 0.5
        q, tau2, i2, p = 0.0, 0.0, 0.0, 1.0
    about = {"value": value, "low": value - 1.96 * error, "high": value + 1.96 * error}
    rounded: dict[str, Any] = plain(about | {"q": q, "tau2": tau2, "i2": i2, "p": p, "sites": k})
    return rounded


def joining(judged: Judged, method: str, names: Sequence[str], *, least: int, exact: bool = False) -> dict[str, Any]:
    """Accuracy of each site alone and with `method`, its gain by joining, and the heterogeneity of the gains.

    The intervals of the gains are simultaneous. A site with fewer than `least` test rows is not listed. Sizes are
    ranges, or `exact`.
    """
    shown = [c for c in range(judged.n_clients) if judged.rows_tested[c] >= max(least, 1)]
    gains = judged.site_differences(method, "local", comparisons=max(len(shown), 1))
    alone, joined = judged.of_sites("local"), judged.of_sites(method)
    rows = [
        {
            "site": names[c],
            "size": about_size(int(judged.rows_tested[c]), exact),
            "alone": alone[c],
            "joined": joined[c],
            "gain": gains[c],
            "verdict": _verdict(gains[c]),
        }
        for c in shown
    ]
    parts = judged.paired(method, "local", shared=False)
    tested = [part for part in parts if part[3]]
    about = pooled([part[1] for part in tested], [part[2] for part in tested])
    return plain({"method": method, "rows": rows, "spread": about, "pooled": judged.difference(method, "local")})  # type: ignore[no-any-return]


def _verdict(gain: Interval) -> str:
    if gain["low"] is not None and gain["low"] > 0:
        return "gains"
    return "loses" if gain["high"] is not None and gain["high"] < 0 else "not shown"
