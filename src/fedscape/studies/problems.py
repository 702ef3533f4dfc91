"""Data problems of single clients: columns that are missing, empty, constant, out of range or in another unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.studies.profile import duplicates, numbers_of, of_clients
from fedscape.types import Array

_BEYOND = 0.3  # allowed excess of missing or repeated rows over the worst client of the reference
_LEAST = 10  # rows, for statements about all rows of a client
#: Ratios of units: thousands, hundreds, tens, inches, pounds, minutes, mmol of glucose.
_FACTORS = (1000.0, 100.0, 10.0, 2.54, 0.45359237, 60.0, 18.016)


def problems(federation: Federation, reference: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the problems of single clients, most rows first: {client, column, kind, text, rows}."""
    profiles = {about["name"]: about for about in reference["columns"]}
    names = list(dict.fromkeys(name.partition("[")[0] for name in profiles))
    columns = dict(numbers_of(federation, names))
    issues = [
        problem("", name, "missing column", f"the column {name!r} is missing or holds no numbers", federation.n_rows)
        for name in profiles
        if name not in columns
    ]
    for name, values in columns.items():
        if name in profiles:
            issues += _of_column(federation, name, values, profiles[name])
    most = reference["duplicates_most"] + _BEYOND
    for c, share in enumerate(duplicates(federation).tolist()):
        if share > most and federation.sizes[c] >= _LEAST:
            text = f"{share:.0%} of the rows repeat another row"
            issues.append(problem(federation.ids[c], "", "duplicated", text, round(share * int(federation.sizes[c]))))
    return sorted(issues, key=lambda issue: -issue["rows"])


def problem(client: Any, column: str, kind: str, text: str, rows: int) -> dict[str, Any]:
    """One problem of a client; a client "" stands for all."""
    return {"client": str(client), "column": column, "kind": kind, "text": text, "rows": int(rows)}


def _of_column(federation: Federation, name: str, values: Array, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    clients = of_clients(federation, values)
    outside = (values < about["low"]) | (values > about["high"])
    often = np.bincount(federation.client_of_row[outside], minlength=len(federation))
    issues = []
    for c, client in enumerate(federation.ids):
        rows = int(federation.sizes[c])
        missing = float(clients["missing"][c])
        if missing > about["missing_most"] + _BEYOND or (missing == 1.0 and about["missing_most"] < 1.0):
            if rows >= (3 if missing == 1.0 else _LEAST):
                text = f"{missing:.0%} of {name!r} is missing, at most {about['missing_most']:.0%} in the reference"
                issues.append(problem(client, name, "missing", text, round(missing * rows)))
            continue
        if rows < _LEAST:
            if often[c]:
                issues.append(_outside(client, name, int(often[c]), about))
            continue
        if clients["constant"][c] and not about["constant"]:
            text = f"{name!r} is {clients['median'][c]:.4g} in all its rows"
            issues.append(problem(client, name, "constant", text, rows))
        elif unit := _unit(float(clients["median"][c]), about):
            text = f"{name!r} is about {unit:g} times as large as elsewhere: another unit?"
            issues.append(problem(client, name, "another unit", text, rows))
        elif often[c]:
            issues.append(_outside(client, name, int(often[c]), about))
    return issues


def _outside(client: Any, name: str, often: int, about: Mapping[str, Any]) -> dict[str, Any]:
    text = f"{often:,} values of {name!r} lie outside {about['low']:g} to {about['high']:g}"
    return problem(client, name, "out of range", text, often)


def _unit(median: float, about: Mapping[str, Any]) -> float | None:
    """The ratio of another unit, if a client's median is out of range and dividing by it brings it back."""
    low, high = about["median_low"], about["median_high"]
    if not np.isfinite(median) or low <= median <= high or median == 0:
        return None
    middle = about["mean"]
    ways = [f for factor in _FACTORS for f in (factor, 1 / factor) if low <= median / f <= high]
    return min(ways, key=lambda f: abs(median / f - middle)) if ways else None
