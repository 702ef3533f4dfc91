"""A handful of sites: what each gains by joining, and how far the sites differ in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedscape.statistics.heterogeneity import heterogeneity
from fedscape.studies.describe import about_size
from fedscape.studies.intervals import Interval, plain
from fedscape.studies.judged import Judged

FEWER = 20  # clients than this are sites: all there are, and no sample of clients


def are_sites(n_clients: int, asked: bool | None) -> bool:
    """Whether the clients are a few sites: as a person says, or where there are fewer than 20.

    >>> are_sites(4, None), are_sites(4, False), are_sites(500, None)
    (True, False, False)
    """
    return n_clients < FEWER if asked is None else asked


def pooled(values: Sequence[float], variances: Sequence[float]) -> dict[str, Any]:
    """Random-effects meta-analysis of independent estimates (DerSimonian and Laird 1986).

    `q`, `tau2` and `i2` are those of `statistics.heterogeneity`. The pooled value weighs by 1 / (variance + tau2); `p`
    is that of no heterogeneity.

    >>> found = pooled([0.1, 0.3], [0.01, 0.01])
    >>> round(found["tau2"], 3), round(found["i2"], 3), found["value"]
    (0.01, 0.5, 0.2)
    """
    k = len(values)
    if k > 1:
        found = heterogeneity(values, variances)
        value, error = float(found.random), float(found.random_error)
        q, tau2, i2, p = map(float, (found.q, found.tau2, found.i2, found.p_value))
    else:  # one site differs from no other
        value, error = float(values[0]), float(variances[0]) ** 0.5
        q, tau2, i2, p = 0.0, 0.0, 0.0, 1.0
    about = {"value": value, "low": value - 1.96 * error, "high": value + 1.96 * error}
    made: dict[str, Any] = plain(about | {"q": q, "tau2": tau2, "i2": i2, "p": p, "sites": k})
    return made


def joining(judged: Judged, method: str, names: Sequence[str], *, least: int, exact: bool = False) -> dict[str, Any]:
    """Each site alone and with `method`, what it gains by joining, and how far sites differ in that.

    The gains of all sites hold together. A site of fewer than `least` rows tested on has no row of its own. Sizes are
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
    parts = judged._paired(method, "local", shared=False)
    known = [part for part in parts if part[3]]
    about = pooled([part[1] for part in known], [part[2] for part in known])
    return plain({"method": method, "rows": rows, "spread": about, "pooled": judged.difference(method, "local")})  # type: ignore[no-any-return]


def _verdict(gain: Interval) -> str:
    if gain["low"] is not None and gain["low"] > 0:
        return "gains"
    return "loses" if gain["high"] is not None and gain["high"] < 0 else "not shown"
