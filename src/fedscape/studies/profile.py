"""Profiles of the columns for later checks: means and spreads over clients, missing shares, blurred ranges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.kinds import as_numbers
from fedscape.studies.intervals import plain
from fedscape.types import Array

MOST = 100  # inputs of an array column that are profiled
_GRID = 0.05  # grid to which shares of one client are rounded up


def profile(federation: Federation, columns: list[str]) -> list[dict[str, Any]]:
    """Profile each numeric column: `mean` and `sd` of the clients' means, and ranges that hold all clients.

    One range is that of the rows, widened by half its width on both sides. The other is that of the clients' medians,
    widened by its full width. Both are rounded outwards to two digits, so they reveal no row.

    >>> fed = Federation({"a": [1.0, 3.0, np.nan, 5.0]}, [0, 2, 4])
    >>> about = profile(fed, ["a"])[0]
    >>> about["mean"], about["missing"], about["low"], about["high"]
    (3.5, 0.25, -1.0, 7.0)
    """
    profiles = []
    for name, values in numbers_of(federation, columns):
        about = of_clients(federation, values)
        present = np.isfinite(about["mean"])
        if not present.any():
            continue
        low, high = _blurred(values[np.isfinite(values)])
        medians = _blurred(about["median"][present], 1.0)  # medians of few rows vary, by less than a unit
        sizable = present & (about["rows"] >= 10)
        profiles.append(
            {
                "name": name,
                "clients": int(present.sum()),
                "mean": float(about["mean"][present].mean()),
                "sd": float(about["mean"][present].std(ddof=1)) if present.sum() > 1 else None,
                "missing": float(np.isnan(values).mean()),
                "missing_most": _up(float(about["missing"].max())),
                "low": low,
                "high": high,
                "median_low": medians[0],
                "median_high": medians[1],
                "constant": bool((about["constant"] & sizable).any()),
            }
        )
    return plain(profiles, 9)  # type: ignore[no-any-return]


def numbers_of(federation: Federation, columns: list[str]) -> list[tuple[str, Array]]:
    """The numeric columns as (name, float64 [rows]), NaN if missing; of an array column the first inputs."""
    numeric: list[tuple[str, Array]] = []
    for name in columns:
        if name not in federation:
            continue
        values = federation[name]
        if values.ndim > 1:
            flat = values.reshape(len(values), -1)
            numeric += [(f"{name}[{j}]", flat[:, j].astype(np.float64)) for j in range(min(flat.shape[1], MOST))]
            continue
        try:
            numeric.append((name, np.asarray(as_numbers(values, federation.names.get(name)), dtype=np.float64)))
        except (DataError, ValueError, TypeError):  # now text: reported as a missing column
            continue
    return numeric


def of_clients(federation: Federation, values: Array) -> dict[str, Array]:
    """For each client: mean, median, share missing, whether it is constant, and its rows."""
    owner, n = federation.client_of_row, len(federation)
    finite = np.isfinite(values)
    number = np.bincount(owner[finite], minlength=n)
    total = np.bincount(owner[finite], weights=values[finite], minlength=n)
    median, constant = np.full(n, np.nan), np.zeros(n, dtype=bool)
    for c in range(n):
        own = values[federation.offsets[c] : federation.offsets[c + 1]]
        own = own[np.isfinite(own)]
        if len(own):
            median[c], constant[c] = np.median(own), len(own) > 1 and bool((own == own[0]).all())
    rows = federation.sizes
    return {
        "mean": np.where(number > 0, total / np.maximum(number, 1), np.nan),
        "median": median,
        "missing": np.where(rows > 0, 1 - number / np.maximum(rows, 1), 0.0),
        "constant": constant,
        "rows": rows,
    }


def duplicates(federation: Federation) -> Array:
    """The share of each client's rows that repeat an earlier row of it in all columns."""
    codes = np.zeros(federation.n_rows, dtype=np.int64)
    for name in federation.columns:
        values = federation[name]
        flat = values.reshape(len(values), -1)
        if flat.dtype.kind == "f":
            flat = np.where(np.isnan(flat), np.inf, flat)
        for j in range(min(flat.shape[1], MOST)):
            _, own = np.unique(flat[:, j], return_inverse=True)
            _, codes = np.unique(codes * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
    owner = federation.client_of_row
    _, first = np.unique(owner * (int(codes.max(initial=0)) + 1) + codes, return_index=True)
    fresh = np.bincount(owner[first], minlength=len(federation))
    return np.where(federation.sizes > 0, 1 - fresh / np.maximum(federation.sizes, 1), 0.0)


def _blurred(values: Array, wider: float = 0.5) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    room = wider * (high - low) or max(abs(low), 1e-9)
    return _outward(low - room, -1), _outward(high + room, 1)


def _outward(value: float, way: int) -> float:
    """Round away from the centre to two digits.

    >>> _outward(123.4, 1), _outward(-123.4, -1)
    (130.0, -130.0)
    """
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    steps = value / unit
    return float(f"{(math.ceil(steps - 1e-9) if way > 0 else math.floor(steps + 1e-9)) * unit:.3g}")


def _up(share: float) -> float:
    return min(1.0, math.ceil(share / _GRID - 1e-9) * _GRID)
