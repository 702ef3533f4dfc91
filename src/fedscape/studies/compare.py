"""Compare two studies: whether labels drifted, and their numbers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.studies.intervals import plain
from fedscape.studies.result import Study
from fedscape.types import Array

DRAWS = 4000


def compare(first: Study, second: Study, *, seed: int = 0) -> dict[str, Any]:
    """Compare two studies by their results only, without the data.

    `drift` is the total variation distance between the clients' mean shares, with its interval and the p-value of no
    drift. `rows` are numbers that both have, with the 95% interval of their difference. Both assume that the clients of
    the two studies are independent samples. For the same clients at two times the intervals are conservative.

    Parameters
    ----------
    first, second
        Studies; categories are matched by name.
    seed
        Seed of the draws for p-value and interval.

    >>> from fedscape import datasets
    >>> from fedscape.studies import study
    >>> done = study(datasets.load("acs-race").take(slice(24)))
    >>> compare(done, done)["drift"]["value"]
    0.0
    """
    a, b = first.result, second.result
    return {
        "first": a["about"]["source"],
        "second": b["about"]["source"],
        "drift": drift(a["describe"]["categories"], b["describe"]["categories"], seed=seed),
        "rows": [row for row in (_row(name, get, a, b) for name, get in _NUMBERS.items()) if row is not None],
    }


def drift(first: Mapping[str, Any], second: Mapping[str, Any], *, seed: int = 0, draws: int = DRAWS) -> dict[str, Any]:
    """Distance between two populations' mean shares, its interval, and the p-value of no drift.

    The means of many clients are near normal with the covariances that both studies keep. These are estimates, so
    draws are from a multivariate t (Welch and Satterthwaite's degrees of freedom by the traces). Under no drift the
    difference has the sum of both covariances, and the p-value is the share of such draws that are at least as long.
    The interval is that of draws around the observed difference; its lower end is corrected for the noise. For a study
    of one client p is 1.
    """
    means, covariances, names = _matched(first, second)
    covariance, freedom = covariances[0] + covariances[1], _freedom(covariances, first, second)
    apart = means[0] - means[1]
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    rng = Key(seed, purpose="drift").generator()
    noise = rng.standard_normal((draws, len(values))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    if freedom:
        noise *= np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
    else:
        noise += 3.0  # larger than any difference: no drift can be ruled out
    value = float(np.abs(apart).sum() / 2)
    null = np.abs(noise).sum(axis=1) / 2
    redrawn = np.abs(apart + noise).sum(axis=1) / 2
    low, high = np.quantile(redrawn, [0.025, 0.975])
    moved = np.argsort(-np.abs(apart))[:5]
    return {
        "value": round(value, 6),
        "low": round(max(2 * value - float(high), 0.0), 6),
        "high": round(min(max(2 * value - float(low), float(high)), 1.0), 6),
        "none": round(min(float(null.mean()), 1.0), 6),
        "p": round(float((1 + (null >= value).sum()) / (draws + 1)), 5),
        "moved": [
            {"category": names[j], "first": round(float(means[0][j]), 6), "second": round(float(means[1][j]), 6)}
            for j in moved.tolist()
        ],
    }


def _matched(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[Array], list[Array], list[str]]:
    if not set(first["names"]) & set(second["names"]):
        raise DataError(
            f"the two studies share no category: one has {first['names'][:3]}, the other {second['names'][:3]}; study "
            "the same column in both"
        )
    names = list(dict.fromkeys([*first["names"], *second["names"]]))
    place = {name: j for j, name in enumerate(names)}
    means, covariances = [], []
    for about in (first, second):
        where = [place[name] for name in about["names"]]
        mean = np.zeros(len(names))
        mean[where] = about["mean_share"]
        means.append(mean)
        spread = np.zeros((len(names), len(names)))
        spread[np.ix_(where, where)] = np.asarray(about["covariance"], dtype=float)
        covariances.append(spread)
    return means, covariances, names


def _freedom(covariances: Sequence[Array], *studies: Mapping[str, Any]) -> float:
    """Degrees of freedom of the sum of both covariances: n1 + n2 - 2 for equal covariances and sizes."""
    freedoms = [about["clients_with_rows"] - 1 for about in studies]
    if min(freedoms) < 1:
        return 0.0
    traces = [float(np.trace(covariance)) for covariance in covariances]
    below = sum(trace**2 / n for trace, n in zip(traces, freedoms, strict=True))
    return sum(traces) ** 2 / below if below > 0 else float(sum(freedoms))


def _best(result: Mapping[str, Any]) -> Any:
    learn = result.get("learn", {})
    rows = [row for row in learn.get("true", []) if row["method"] == learn["advised"]]
    return rows[0]["together"] if rows else None  # chosen for its accuracy: the simultaneous interval


def _method(result: Mapping[str, Any], name: str) -> Any:
    rows = result.get("learn", {}).get("true", [])
    return next((row["accuracy"] for row in rows if row["method"] == name), None)


def _of(*path: str) -> Any:
    def get(result: Any) -> Any:
        for name in path:
            result = result.get(name) if isinstance(result, Mapping) else None
        return result

    return get


_NUMBERS: dict[str, Any] = {
    "clients": _of("describe", "clients"),
    "rows": _of("describe", "rows"),
    "log of a client's rows": _of("describe", "sizes", "log_mean"),
    "heterogeneity of labels": _of("measure", "labels"),
    "heterogeneity of features": _of("measure", "features"),
    "unevenness of sizes (Gini)": _of("measure", "quantity"),
    "kinds of clients": lambda result: len(result["model"]["components"]),
    "accuracy of FedAvg": lambda result: _method(result, "fedavg"),
    "accuracy alone": lambda result: _method(result, "local"),
    "accuracy of the method advised": _best,
}


def _row(name: str, get: Any, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any] | None:
    first, second = get(a), get(b)
    if isinstance(first, int) and isinstance(second, int):
        return {"what": name, "first": first, "second": second, "difference": second - first, "low": None, "high": None}
    if not all(isinstance(v, Mapping) and v.get("value") is not None for v in (first, second)):
        return None
    difference = second["value"] - first["value"]
    reach = None
    if all(v.get(end) is not None for v in (first, second) for end in ("low", "high")):
        reach = float(np.hypot(*((v["high"] - v["low"]) / 2 for v in (first, second))))
    numbers = {"what": name, "first": first["value"], "second": second["value"], "difference": difference}
    ends = {"low": None, "high": None} if reach is None else {"low": difference - reach, "high": difference + reach}
    return dict(plain({**numbers, **ends}))
