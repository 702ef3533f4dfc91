"""Describe the clients: sizes, categories, columns, their numbers or names; and the versions used."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from fedscape.errors import plural
from fedscape.statistics.description import describe
from fedscape.studies.intervals import around, mean_interval, plain
from fedscape.studies.prepare import Prepared
from fedscape.types import Array

_PACKAGES = ("fedscape", "numpy", "scipy", "numba", "torch")


def about_study(data: Prepared, source: str, seed: int, show_clients: bool) -> dict[str, Any]:
    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return {
        "source": source,
        "column": data.column,
        "labels": data.labels,
        "features": list(data.features),
        "seed": seed,
        "show_clients": show_clients,
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}},
        "machine": platform.machine(),
    }


def described(data: Prepared, show: bool) -> dict[str, Any]:
    about = describe(data.table)
    for column in about["columns"]:
        for extreme in ("min", "max"):  # the value of one row
            column.pop(extreme, None)
    about["rows_per_client"]["largest"] = about_size(int(data.table.sizes.max()), show)
    if not show:
        for extreme in ("min", "max"):  # the size of one client
            about["rows_per_client"].pop(extreme)
        for name, quartile in (("q1", 0.25), ("median", 0.5), ("q3", 0.75)):  # of an odd number a client's size, too
            about["rows_per_client"][name] = round(around(data.table.sizes, quartile), 3)
    counts = data.counts
    edges, tally = _size_bins(counts.sum(axis=1))
    shares = shares_of(counts, data.names)
    sizes = np.log(np.maximum(counts.sum(axis=1), 1))
    about["sizes"] = {"edges": edges, "clients": tally, "log_mean": mean_interval(sizes)}
    about["categories"] = {
        "ordered": data.ordered,
        "rows": counts.sum(axis=0),
        "clients": (counts > 0).sum(axis=0),
    }
    result: dict[str, Any] = plain(about)
    result["categories"] |= shares
    return result


def shares_of(counts: Array, names: Sequence[str]) -> dict[str, Any]:
    """Mean shares of the clients and the covariance of that mean, for comparisons of studies."""
    filled = counts[counts.sum(axis=1) > 0]
    shares, n = filled / filled.sum(axis=1, keepdims=True), len(filled)
    spread = np.cov(shares.T, ddof=1) / n if n > 1 else np.zeros((counts.shape[1],) * 2)
    return {
        "names": list(names),
        "mean_share": plain(shares.mean(axis=0)),
        "clients_with_rows": n,
        "covariance": plain(spread, 10),  # small numbers: more digits than the rest
    }


def _size_bins(sizes: Array) -> tuple[list[float], list[int]]:
    """Histogram of sizes with bins at powers of 2, or of sqrt(2) for a narrow range: no edge reveals a size."""
    positive = sizes[sizes > 0]
    logs = np.log2([positive.min(), positive.max()])
    fine = 1 if logs[1] - logs[0] > 8 else 2
    edges = np.arange(np.floor(fine * logs[0]), np.floor(fine * logs[1]) + 2) / fine
    edges = np.unique(np.floor(2**edges))
    if len(edges) < 2:  # all clients have one row, or all have two
        edges = np.append(edges, edges[-1] + 1)
    return edges.tolist(), np.histogram(positive, edges)[0].tolist()


def name_clients(
    result: dict[str, Any], data: Prepared, shares: Array, accuracies: dict[str, Array], show: bool
) -> None:
    """Add kind and number to the points of the map; with `show`, also a row per client.

    Numbers follow positions on the map, so they reveal nothing about the order of the ids.
    """
    kind = [chr(ord("A") + k) for k in shares.argmax(axis=1).tolist()]
    points = result["measure"]["map"]
    places = points.pop("clients")
    sizes = [about_size(int(data.counts[i].sum()), show) for i in places]
    ways = [name for name in ("labels", "features") if name in points]
    printed = [
        ([[_last(v) for v in points[name]["points"][j]] for name in ways], sizes[j], kind[i])
        for j, i in enumerate(places)
    ]
    order = sorted(range(len(places)), key=printed.__getitem__)  # ties are equal in everything printed
    for name in ways:
        points[name]["points"] = [points[name]["points"][j] for j in order]
    shown = [places[j] for j in order]
    points["client"] = [str(data.table.ids[i]) if show else f"client {n + 1}" for n, i in enumerate(shown)]
    points["kind"] = [kind[i] for i in shown]
    points["size"] = [sizes[j] for j in order]
    if not show:
        points["labels"].pop("axes", None)  # with them a place says the shares of a client's labels
        return
    table: list[dict[str, Any]] = []
    where = {int(c): i for i, c in enumerate(accuracies.get("who", np.empty(0)).tolist())}
    for i in range(len(data.counts)):
        row = {"client": str(data.table.ids[i]), "rows": int(data.counts[i].sum()), "kind": kind[i]}
        for name in (m for m in accuracies if m != "who"):
            row[name] = plain(accuracies[name][where[i]]) if i in where else None
        table.append(row)
    result["clients"] = table


def _last(value: float | None) -> float:
    """A coordinate to sort by; clients without a position come last."""
    return float("inf") if value is None else value


def about_size(size: int, exact: bool) -> str:
    """A size, exact or as a range between powers of two: enough for a figure, and harder to recognise a client by."""
    if exact or size < 2:
        return plural(size, "row")
    low = 2 ** (size.bit_length() - 1)
    return f"{low:,} to {2 * low - 1:,} rows"
