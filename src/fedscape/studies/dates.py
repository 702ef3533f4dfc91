"""The time axis of a study: rows, clients and categories period by period, where a column holds dates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedscape.errors import plural
from fedscape.formats.modelled import classes_of
from fedscape.studies.intervals import plain
from fedscape.studies.prepare import Prepared
from fedscape.types import Array

_MOST_PERIODS = 60
_MOST_CURVES = 5
#: Periods, shortest first: a unit of numpy, how many of it, and by how many it is shifted (weeks start on a Monday).
_PERIODS = {
    "hour": ("h", 1, 0),
    "day": ("D", 1, 0),
    "week": ("D", 7, 3),
    "month": ("M", 1, 0),
    "quarter": ("M", 3, 0),
    "year": ("Y", 1, 0),
}
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ,]+(\d{1,2}):(\d{2}).*)?")
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?:[T ,]+(\d{1,2}):(\d{2}).*)?")
_SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[T ,]+(\d{1,2}):(\d{2}).*)?")


def over_time(data: Prepared, shares: Array, notes: list[str], *, least: int) -> dict[str, Any] | None:
    """Rows, clients and shares of the commonest categories by period; None where no column holds dates.

    The period is the shortest of hour, day, week, month, quarter and year that gives at most 60. What is about fewer
    than `least` clients is None. `shares` [clients, kinds] says of which kind a client is.
    """
    column = next((kind.name for kind in data.reading.columns if kind.kind == "date"), None)
    if column is None:
        return None
    times = times_of(data.table[column], data.table.names.get(column))
    if times is None:
        notes.append(
            f"The dates of {column!r} can be read in more than one way, so there is no time axis: write them as "
            "2024-01-31."
        )
        return None
    valid = ~np.isnat(times)
    if not valid.any() or len(np.unique(times[valid].astype("datetime64[h]"))) < 2:
        return None
    period, code, starts = _periods(times, valid)
    codes = np.where(valid, code, -1)
    owner, n = data.table.client_of_row, len(starts)
    clients = _distinct(codes, owner, n)
    rows = np.bincount(codes[valid], minlength=n)
    enough = (clients >= least) | (clients == 0)
    kind = shares.argmax(axis=1)
    result: dict[str, Any] = {
        "column": column,
        "period": period,
        "starts": [str(start) for start in starts],
        "rows": [int(r) if ok else None for r, ok in zip(rows, enough, strict=True)],
        "clients": [int(c) if ok else None for c, ok in zip(clients, enough, strict=True)],
        "withheld": int((~enough).sum()),
        "undated": int((~valid).sum()),
        "kinds": _kinds(
            np.array([_distinct(np.where((kind == k)[owner], codes, -1), owner, n) for k in range(shares.shape[1])]),
            least,
        ),
    }
    result["categories"] = _categories(data, codes, enough, n)
    if result["withheld"]:
        notes.append(
            f"{plural(result['withheld'], period)} of fewer than {least} clients "
            f"{'is' if result['withheld'] == 1 else 'are'} left out of the time axis."
        )
    return plain(result)  # type: ignore[no-any-return]


def times_of(values: Array, names: Any) -> Array | None:
    """A column of dates as datetime64[s]; None where its texts could be read in two ways.

    >>> times_of(np.array([0, 1, -1]), ["31.1.2024", "1.2.2024 07:30"]).astype(str).tolist()
    ['2024-01-31T00:00:00', '2024-02-01T07:30:00', 'NaT']
    """
    if names is None:
        return values.astype("datetime64[s]") if values.dtype.kind == "M" else None
    day_first = _day_first(names)
    parsed = [_time_of(str(text), day_first) for text in names]
    unread = sum(time is None for time in parsed)
    if unread > 0.05 * len(parsed):
        return None
    table = np.array([*("NaT" if time is None else time for time in parsed), "NaT"], dtype="datetime64[s]")
    return np.asarray(table[values])  # -1 takes the last entry


def _day_first(texts: Sequence[Any]) -> bool | None:
    """Whether dates with slashes begin with the day: a number above 12 tells. None where none does, or both do.

    >>> _day_first(["01/02/2024", "31/01/2024"]), _day_first(["01/02/2024"])
    (True, None)
    """
    slashed = [match for text in texts if (match := _SLASHED.fullmatch(str(text).strip()))]
    first, second = (any(int(match[n]) > 12 for match in slashed) for n in (1, 2))
    return first if first != second else None


def _time_of(text: str, day_first: bool | None) -> str | None:
    """A text of a date in the form of ISO 8601; None where it is of another form, or of no day there is."""
    if match := _YEAR_FIRST.fullmatch(text.strip()):
        year, month, day, hour, minute = match.groups()
    elif match := _DOTTED.fullmatch(text.strip()):
        day, month, year, hour, minute = match.groups()
    elif day_first is not None and (match := _SLASHED.fullmatch(text.strip())):
        first, second, year, hour, minute = match.groups()
        day, month = (first, second) if day_first else (second, first)
    else:
        return None
    time = f"{year}-{int(month):02d}-{int(day):02d}T{int(hour or 0):02d}:{minute or '00'}"
    try:
        np.datetime64(time, "s")
    except ValueError:
        return None
    return time


def _periods(times: Array, valid: Array) -> tuple[str, Array, Array]:
    """The name of the period, the period of each row, and where periods start."""
    first, last = times[valid].min(), times[valid].max()
    for name, (unit, step, shift) in _PERIODS.items():

        def number_of(time: Array, unit: str = unit, step: int = step, shift: int = shift) -> Array:
            return np.asarray((time.astype(f"datetime64[{unit}]").astype(np.int64) + shift) // step)

        begin, n = number_of(first), int(number_of(last) - number_of(first)) + 1
        if n <= _MOST_PERIODS or name == "year":
            break
    starts = ((np.arange(n) + begin) * step - shift).astype(f"datetime64[{unit}]")
    return name, number_of(times) - begin, starts.astype("datetime64[h]" if name == "hour" else "datetime64[D]")


def _distinct(codes: Array, owner: Array, n: int) -> Array:
    """How many clients have rows in each of n periods."""
    inside = (codes >= 0) & (codes < n)
    pairs = np.unique(codes[inside] * (int(owner.max(initial=0)) + 1) + owner[inside])
    return np.bincount(pairs // (int(owner.max(initial=0)) + 1), minlength=n)


def _kinds(counts: Array, least: int) -> dict[str, list[int | None]]:
    """Clients of each kind [kinds, periods] by the name of the kind; None for fewer than `least`.

    Where a single kind would be None, the next smallest is, too: else it would be the total less the others.

    >>> _kinds(np.array([[9, 9], [6, 0], [2, 7]]), 5)
    {'A': [9, 9], 'B': [None, 0], 'C': [None, 7]}
    """
    few = (counts > 0) & (counts < least)
    for period in np.flatnonzero(few.sum(axis=0) == 1):
        others = np.flatnonzero((counts[:, period] > 0) & ~few[:, period])
        if len(others):
            few[others[counts[others, period].argmin()], period] = True
    return {
        chr(ord("A") + k): [None if hide else int(c) for c, hide in zip(line, few[k], strict=True)]
        for k, line in enumerate(counts)
    }


def _categories(data: Prepared, codes: Array, enough: Array, n: int) -> list[dict[str, Any]]:
    """Shares of rows of the commonest categories by period; empty where rows have no category of their own."""
    if data.apart is None or not data.labels or data.table[data.column].ndim != 1:
        return []
    labels = classes_of(data.table, data.column, kind=data.reading[data.column]).codes
    labelled = labels >= 0
    if labelled.sum() != data.apart.clients.n_rows:  # classes were declared: which rows have one is not kept
        return []
    category = data.apart.place[data.apart.clients["y"]]
    period = codes[labelled]
    dated = period >= 0
    table = np.zeros((n, len(data.names)))
    np.add.at(table, (period[dated], category[dated]), 1.0)
    total = table.sum(axis=1)
    top = np.argsort(-table.sum(axis=0), kind="stable")[:_MOST_CURVES]
    return [
        {
            "name": data.names[j],
            "shares": [float(table[i, j] / total[i]) if total[i] > 0 and enough[i] else None for i in range(n)],
        }
        for j in sorted(top.tolist())
    ]
