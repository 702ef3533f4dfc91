"""Features from columns that are no numbers: dates, texts, and categories too many for an indicator each."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedscape.core.federation import Federation
from fedscape.formats.kinds import ColumnKind
from fedscape.formats.reading import Reading
from fedscape.types import Array

BUCKETS = 64  # that words or categories are hashed into
_WEIGHT = 3.0  # together the buckets of a column vary as much as this many squared numbers do
_LEFT_OUT = ("leak", "duplicate", "of client", "id")
_WORD = re.compile(r"\w+")
_DAY = np.timedelta64(1, "D")


def derived_columns(federation: Federation, reading: Reading, column: str | None) -> list[str]:
    """Columns that a study makes features of, though they are no numbers: dates, texts, and many categories."""
    odd = {finding.column for finding in reading.findings if finding.kind in _LEFT_OUT}
    return [
        kind.name
        for kind in reading.columns
        if kind.name != column and kind.name not in odd and not kind.use and _way(federation, kind)
    ]


def _way(federation: Federation, kind: ColumnKind) -> str:
    """How a column becomes numbers: "date", "words", "category", or "" where it does not."""
    values = federation[kind.name]
    if kind.kind == "date":
        return "date" if values.dtype.kind == "M" else ""
    if kind.kind not in ("text", "class") or kind.name not in federation.names or values.ndim != 1:
        return ""
    names = federation.names[kind.name]
    spaced = np.mean([" " in str(name).strip() for name in names[:1000]]) if len(names) else 0.0
    return "words" if spaced > 0.5 else "category"


def with_derived(federation: Federation, reading: Reading, column: str | None) -> Reading:
    """The same reading, whose findings say what a study makes of these columns."""
    used = {name: _SAID[_way(federation, reading[name])] for name in derived_columns(federation, reading, column)}
    findings = [
        replace(finding, remedy=used[str(finding.column)])
        if finding.column in used and finding.kind in ("text", "date", "code")
        else finding
        for finding in reading.findings
    ]
    return replace(reading, findings=tuple(findings))


_SAID = {
    "date": "used as the day, the day of the week, the time of the year and of the day",
    "words": f"used by its words, hashed into {BUCKETS} numbers",
    "category": f"used by its values, hashed into {BUCKETS} numbers",
}


def derived(federation: Federation, reading: Reading, names: Sequence[str]) -> list[Array]:
    """The numbers of each of these columns, [rows, inputs]; a row without a value has zeros.

    >>> fed = Federation({"when": np.array(["2024-01-01T06", "2024-01-02T06"], dtype="M8[s]")}, [0, 2])
    >>> from fedscape.formats.reading import read_columns
    >>> derived(fed, read_columns(fed), ["when"])[0].shape
    (2, 4)
    """
    inputs = []
    for name in names:
        way, values = _way(federation, reading[name]), federation[name]
        if way == "date":
            inputs.append(of_dates(values))
            continue
        vectors = np.stack([hashed(str(text), whole=way == "category") for text in federation.names[name]])
        rows = np.where((values >= 0)[:, None], vectors[np.maximum(values, 0)], 0.0)
        spread = rows.std(axis=0)
        rows = (rows - rows.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
        inputs.append(rows * np.sqrt(_WEIGHT / BUCKETS))
    return inputs


def of_dates(values: Array) -> Array:
    """Days since the first, indicators of days of the week but one, and where it is on the circles of year and day.

    Columns that do not vary are left out. A row without a date has zeros.

    >>> of_dates(np.array(["2024-01-01", "2024-01-03", "NaT"], dtype="M8[D]")).round(2)[:, 0].tolist()
    [-1.0, 1.0, 0.0]
    """
    dated = ~np.isnat(values)
    times = np.where(dated, values, values[dated][0] if dated.any() else np.datetime64(0, "s"))
    day = times.astype("M8[D]")
    year = 2 * np.pi * ((day - times.astype("M8[Y]").astype("M8[D]")) / _DAY) / 365.25
    clock = 2 * np.pi * ((times - day) / _DAY)
    week = (day.astype(np.int64) + 3) % 7  # Monday is 0
    parts = [(day - day.min()) / _DAY, *[week == d for d in range(1, 7)]]
    parts += [np.sin(year), np.cos(year), np.sin(clock), np.cos(clock)]
    x = np.stack(parts, axis=1).astype(np.float64)
    middle, spread = x[dated].mean(axis=0), x[dated].std(axis=0)
    x = (x - middle) / np.where(spread > 1e-9, spread, np.inf)
    return np.where(dated[:, None], x, 0.0)[:, spread > 1e-9]


def hashed(text: str, *, whole: bool = False) -> Array:
    """A text as signed counts of its words in a few buckets, of length one; with `whole` it is one word.

    No vocabulary is learned, so that nothing of it has to be shared.

    >>> np.allclose(hashed("Red lights"), hashed("LIGHTS, red")), float((hashed("red") ** 2).sum())
    (True, 1.0)
    """
    counts = np.zeros(BUCKETS)
    for word in [text] if whole else _WORD.findall(text.lower()):
        code = zlib.crc32(word.encode())
        counts[code % BUCKETS] += 1.0 if code >> 31 else -1.0
    length = float(np.sqrt((counts**2).sum()))
    return counts / length if length > 0 else counts
