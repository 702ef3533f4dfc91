"""Data quality findings of a table, printed before any result, the worst first."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.formats.kinds import (
    BEYOND,
    ColumnKind,
    Overrules,
    as_codes,
    as_numbers,
    label_of,
)
from fedscape.formats.texts import how_written, parse_numbers
from fedscape.formats.weights import MEASURED
from fedscape.types import Array

LEAK = 0.97  # held-out accuracy above which a single column leaks the label
_ROWS = 20_000  # rows sampled to detect leaks
_LEAST_ROWS = 40
_FAR = 100  # outlier: this many times the 98% range away from the median
_FILL = "a study takes the mean instead; train takes --fill"
_NO_CLASS = "such a row is in no class of it; train --method glm leaves it out, or takes --fill"
_SUMS = frozenset(("total", "totals", "grand total", "subtotal", "sum", "summe", "gesamt", "insgesamt", "alle", "all"))
_ORDER = (
    "leak", "text in numbers", "written", "spelling", "infinite", "outlier", "no label", "empty", "id", "weight",
    "code", "text", "date", "of client", "constant", "duplicate", "missing", "clients", "dialect", "sample",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A data quality problem to report before any result.

    Parameters
    ----------
    kind
        leak, text in numbers, written, spelling, infinite, outlier, no label, empty, id, weight, code, text, date, of
        client, constant, duplicate, missing, clients, dialect or sample.
    column
        The column; "" for the table as a whole.
    line
        The problem in one line, without any row number or value.
    remedy
        What was done about it, and how to change that.
    row
        The row in the file, counted from 1 below the header; None if it concerns all rows.
    value
        The value in that row, as a text.
    count
        Number of rows concerned, if known.

    >>> str(Finding("infinite", "income", "'income' is infinite in 1 row", "taken as missing", 977, "inf"))
    "'income' is infinite in 1 row (row 977: 'inf'): taken as missing"
    """

    kind: str
    column: str
    line: str
    remedy: str = ""
    row: int | None = None
    value: str | None = None
    count: int | None = None

    def __str__(self) -> str:
        where = "" if self.row is None else f" (row {self.row:,}: {self.value!r})"
        return f"{self.line}{where}: {self.remedy}" if self.remedy else f"{self.line}{where}"

    def shared(self) -> dict[str, Any]:
        """Plain values without row and value, for a report that others read."""
        return asdict(replace(self, row=None, value=None)) | {"text": str(replace(self, row=None, value=None))}


_MANY = 3  # more columns than this with the same finding share a line
_SHARED = {
    "missing": "have no value in some rows",
    "text in numbers": "are numbers, but some rows hold a text",
    "constant": "have one value in all rows",
    "empty": "have no value in any row",
}


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Format one line per finding; many columns with the same finding share a line.

    >>> lines_of([Finding("empty", name, f"{name!r} has no value in any row", "left out") for name in "abcd"])
    ["4 columns have no value in any row ('a', 'b', 'c', 'd'): left out"]
    """
    groups: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        alike = each.kind if each.kind in _SHARED else each.line
        groups.setdefault((alike, each.remedy if each.row is None else ""), []).append(each)
    return [line for alike in groups.values() for line in ([_shared(alike)] if len(alike) > _MANY else map(str, alike))]


def _shared(alike: Sequence[Finding], *, most: int = 12) -> str:
    """Format one line for the same finding in many columns."""
    first = alike[0]
    where = ", ".join(f"{x.column!r}" + (f" {x.count:,}" if x.count else "") for x in alike[:most])
    where += f" and {len(alike) - most:,} more" if len(alike) > most else ""
    if first.row is not None:
        where += f"; the first is row {first.row:,} of {first.column!r}: {first.value!r}"
    remedy = first.remedy.replace(shlex.quote(first.column), "COLUMN") if first.row is not None else first.remedy
    return f"{len(alike):,} columns {_SHARED[first.kind]} ({where}): {remedy}"


def find(
    federation: Federation, columns: Sequence[ColumnKind], *, target: str | None = None, overrules: Overrules
) -> list[Finding]:
    """List all findings, the worst first; `row` is the row in the Federation, from 0.

    >>> fed = Federation({"a": [1.5, np.inf, 2.5], "b": [7, 7, 7]}, [0, 3])
    >>> from fedscape.formats.kinds import kind_of
    >>> kinds = [kind_of(name, fed[name]) for name in fed.columns]
    >>> [(found.kind, found.column) for found in find(fed, kinds, overrules=Overrules())]
    [('infinite', 'a'), ('constant', 'b'), ('missing', 'a')]
    """
    findings = [finding for kind in columns for finding in _of_column(federation, kind, target, overrules)]
    findings += _duplicates(federation, columns, target)
    findings += _of_clients(federation, target, columns)
    if target is not None:
        target_kind = next((kind for kind in columns if kind.name == target), None)
        if target_kind is not None:
            findings += _leaks(federation, columns, target_kind, overrules)
    left_out = {each.column for each in findings if each.kind == "of client"}  # no line may say that it is used
    findings = [each for each in findings if each.kind != "code" or each.column not in left_out]
    return sorted(findings, key=lambda finding: _ORDER.index(finding.kind))


def _rows(number: int) -> str:
    return f"{number:,} {'row' if number == 1 else 'rows'}"


def _of_column(fed: Federation, kind: ColumnKind, target: str | None, rules: Overrules) -> Iterator[Finding]:
    name, values, names = kind.name, fed[kind.name], fed.names.get(kind.name)
    option = shlex.quote(name)  # quoted for the shell
    kept = " as --keep says" if name in rules.keep else ""
    if kind.kind == "array":
        if kind.missing:
            yield Finding("missing", name, f"{name!r} misses {kind.missing:,} numbers", _FILL)
        return
    if kind.kind in ("number", "weight") and names is not None:
        yield from _texts(name, values, names)
    elif names is None and values.dtype.kind == "f":
        yield from _extremes(name, values)
    if kind.kind == "class" and names is not None:
        yield from _spellings(name, values, names)
    left_out = "used" + kept if kept else "left out of the features"
    if name == target:
        if kind.missing:
            line = f"{kind.missing:,} of {_rows(len(values))} have no {name!r}"
            yield Finding("no label", name, line, "they are left out")
        return
    if kind.kind == "id":
        line = f"{name!r} looks like an id ({kind.distinct:,} values in {_rows(len(values))}; {kind.why})"
        how = f"--categorical {option}" if kind.low is None else f"--keep {option}"
        yield Finding("id", name, line, f"{left_out}; {how} uses it")
    elif kind.kind == "weight":
        line = f"{name!r} looks like a survey weight, which says how many a row stands for ({kind.why})"
        yield Finding("weight", name, line, f"{left_out}, and rows count once; --keep {option} uses it")
    elif kind.why == MEASURED:
        line = f"{name!r} is taken for {MEASURED}, not for a survey weight"
        yield Finding("weight", name, line, f"used as a number; --ignore {option} leaves it out")
    elif kind.code:
        used = "an indicator for each" if kind.use else "too many values, left out of the features"
        line = f"{name!r} looks like a code ({kind.distinct:,} whole numbers whose order means nothing)"
        yield Finding("code", name, line, f"{used}; --numeric {option} takes it as a number")
    elif kind.kind in ("text", "date"):
        what = f"texts of {kind.distinct:,} values" if kind.kind == "text" else "dates"
        yield Finding(kind.kind, name, f"{name!r} holds {what}", "left out of the features; make numbers of it first")
    elif kind.kind == "class" and not kind.use:
        line = f"{name!r} has {kind.distinct:,} classes"
        yield Finding("text", name, line, "too many for an indicator each, left out of the features")
    elif kind.kind == "constant":
        yield Finding("constant", name, f"{name!r} has one value in all rows", "left out of the features")
    elif kind.kind == "empty":
        yield Finding("empty", name, f"{name!r} has no value in any row", "left out of the features")
    if kind.missing and kind.use:
        line = f"{name!r} has no value in {kind.missing:,} of {_rows(len(values))} ({kind.missing / len(values):.1%})"
        line += _without_any(fed, values)
        yield Finding("missing", name, line, _NO_CLASS if kind.use == "indicators" else _FILL, count=kind.missing)


def _without_any(fed: Federation, values: Array) -> str:
    """Say of how many clients a column has no value at all: where sites have other columns, the gaps are theirs."""
    gaps = np.isnan(values) if values.dtype.kind == "f" else values < 0
    none = int(((np.bincount(fed.client_of_row[gaps], minlength=len(fed)) == fed.sizes) & (fed.sizes > 1)).sum())
    return f", and in no row of {none:,} of {len(fed):,} clients" if none else ""


def _texts(name: str, values: Array, names: Sequence[str]) -> Iterator[Finding]:
    """Texts in a column of numbers: how many, and the first of them with its row."""
    numbers, bad = parse_numbers(names)
    wrong = np.append(bad, False)[values]  # -1, a missing text, takes the last entry
    if wrong.any():
        row = int(np.argmax(wrong))
        line = f"{name!r} is a number, but {_rows(int(wrong.sum()))} {'holds' if wrong.sum() == 1 else 'hold'} a text"
        remedy = f"taken as missing; mend the cells, or --categorical {shlex.quote(name)} takes all as classes"
        yield Finding("text in numbers", name, line, remedy, row, str(names[int(values[row])]), int(wrong.sum()))
    form = how_written([str(text) for text, no_number in zip(names, bad.tolist(), strict=True) if not no_number])
    if form and not wrong.all():
        line = f"{name!r} holds numbers as texts, with {form}"
        yield Finding(
            "written", name, line, f"read as numbers; --categorical {shlex.quote(name)} takes them as classes"
        )
    if not wrong.all():
        yield from _extremes(name, np.append(numbers, np.nan)[values])


def _spellings(name: str, values: Array, names: Sequence[str]) -> Iterator[Finding]:
    """Classes that differ in case or in spaces only, letters apart: how many, and the first row of a rarer spelling."""
    counts = np.bincount(values[values >= 0].astype(np.int64), minlength=len(names))
    alike: dict[str, list[int]] = {}
    for code in np.flatnonzero(counts).tolist():
        alike.setdefault(" ".join(str(names[code]).casefold().split()), []).append(code)
    words = [codes for text, codes in alike.items() if len(text) > 1]
    rarer = [code for codes in words for code in sorted(codes, key=lambda c: -counts[c])[1:]]
    if rarer:
        concerned = np.isin(values, rarer)
        row = int(np.argmax(concerned))
        what = "1 class that differs" if len(rarer) == 1 else f"{len(rarer):,} classes that differ"
        line = f"{name!r} has {what} from another in case or spaces only"
        remedy = "taken as classes of their own; mend the cells"
        yield Finding("spelling", name, line, remedy, row, str(names[int(values[row])]), int(concerned.sum()))


def _extremes(name: str, numbers: Array) -> Iterator[Finding]:
    with np.errstate(invalid="ignore"):
        huge = np.abs(numbers) > BEYOND  # infinities too
    if huge.any():
        row = int(np.argmax(huge))
        line = f"{name!r} is infinite or beyond {BEYOND:g} in {_rows(int(huge.sum()))}"
        yield Finding("infinite", name, line, "taken as missing; mend or drop them", row, label_of(numbers[row]))
    finite = np.flatnonzero(np.isfinite(numbers) & ~huge)
    if len(finite) < _LEAST_ROWS:
        return
    some = numbers[finite[:: max(1, len(finite) // 100_000)]]
    low, middle, high = np.quantile(some, [0.01, 0.5, 0.99])
    far = np.abs(numbers[finite] - middle) > _FAR * (high - low)
    if high > low and far.any() and far.sum() <= 0.001 * len(finite) + 1:
        row = int(finite[np.argmax(far)])
        line = f"{name!r} is more than {_FAR} times as far out as 98% of the values in {_rows(int(far.sum()))}"
        yield Finding("outlier", name, line, "used as it is; mend or drop such rows", row, label_of(numbers[row]))


def _duplicates(fed: Federation, columns: Sequence[ColumnKind], target: str | None) -> Iterator[Finding]:
    first_with: dict[str, str] = {}
    for kind in columns:
        if kind.kind in ("array", "constant", "empty") or kind.name == target:
            continue
        values, names = fed[kind.name], fed.names.get(kind.name)
        plain = values.astype(np.int64) if values.dtype.kind in "mM" else values.astype(np.float64) + 0.0
        digest = hashlib.sha256(plain.tobytes() + repr(names).encode()).hexdigest()
        if digest in first_with:
            line = f"{kind.name!r} is the same as {first_with[digest]!r} in all rows"
            yield Finding("duplicate", kind.name, line, "left out of the features")
        first_with.setdefault(digest, kind.name)


def _of_clients(fed: Federation, target: str | None, columns: Sequence[ColumnKind]) -> Iterator[Finding]:
    """Find clients that take no part, and columns that identify clients."""
    sizes = fed.sizes
    if target is not None and fed[target].ndim == 1:
        sizes = fed.segment_sum(known_rows(fed, target).astype(np.int64))
    none = (sizes == 0) & (fed.sizes > 0)
    if none.any():
        line = f"{int(none.sum()):,} of {len(fed):,} clients have no row with a {target!r}"
        first = fed.ids[int(np.argmax(none))]
        yield Finding("clients", "", line, "they take no part", int(fed.offsets[int(np.argmax(none))]), str(first))
    empty = int((fed.sizes == 0).sum())
    if empty:
        yield Finding("clients", "", f"{empty:,} of {len(fed):,} clients have no rows", "they take no part")
    single = int((sizes == 1).sum())
    if single:
        line = f"{single:,} of {len(fed):,} clients have one row"
        yield Finding("clients", "", line, "nothing of them can be held out to test on")
    sums = np.flatnonzero([str(name).strip().casefold() in _SUMS for name in fed.ids])
    if len(sums):
        line = f"{len(sums):,} of {len(fed):,} clients {'is' if len(sums) == 1 else 'are'} named like a line of sums"
        first = int(fed.offsets[sums[0]])
        yield Finding(
            "clients", "", line, "taken as a client: remove its rows if it is none", first, str(fed.ids[sums[0]])
        )
    for kind in columns:
        if kind.name != target and kind.use and is_of_client(fed, kind.name):
            line = f"{kind.name!r} has one value in all rows of each client, which tells clients apart as an id does"
            yield Finding(
                "of client", kind.name, line, f"left out of the features; --keep {shlex.quote(kind.name)} uses it"
            )


def known_rows(fed: Federation, column: str) -> Array:
    """Which rows have a value in this column."""
    values = fed[column]
    if column in fed.names:
        return np.asarray(values >= 0)
    if values.dtype.kind in "mM":
        return ~np.isnat(values)
    return np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=bool)


def is_of_client(fed: Federation, name: str) -> bool:
    """Whether a column describes clients and not rows: constant within each client, not across all of them."""
    values = fed[name]
    filled = int((fed.sizes > 0).sum())
    if values.ndim != 1 or values.dtype.kind not in "biuf" or fed.n_rows < 2 * filled or filled < 2:
        return False
    first = values[fed.offsets[:-1][fed.sizes > 0]].repeat(fed.sizes[fed.sizes > 0])
    same = values == first
    if values.dtype.kind == "f":
        same |= np.isnan(values) & np.isnan(first)
    return bool(same.all()) and len(np.unique(first)) > 1


# -- leaks -------------------------------------------------------------------------------------------------------------


def _leaks(fed: Federation, columns: Sequence[ColumnKind], target: ColumnKind, rules: Overrules) -> Iterator[Finding]:
    """Find columns that alone predict the held-out labels, by the most frequent label of each value."""
    if fed[target.name].ndim != 1 or target.kind not in ("class", "ordered", "number"):
        return
    rows = Key(0, purpose="rows for leaks").generator().permutation(fed.n_rows)[:_ROWS]
    label = _cells(fed, target, rows, few=target.kind == "number")
    rows, label = rows[label >= 0], label[label >= 0]
    if len(rows) < _LEAST_ROWS or len(np.unique(label)) < 2:
        return
    half = len(rows) // 2
    base = np.bincount(label[:half]).argmax()
    chance = float((label[half:] == base).mean())
    for kind in columns:
        if kind.name == target.name or kind.kind in ("array", "constant", "empty", "date", "id", "text"):
            continue
        cell = _cells(fed, kind, rows)
        share = _predicted(cell[:half], label[:half], cell[half:], label[half:], int(base))
        if share > LEAK and share - chance > 0.9 * (1 - chance):
            line = f"{kind.name!r} alone predicts {target.name!r} in {share:.1%} of held-out rows"
            used = "used as --keep says; without it nothing is given away"
            left = f"it gives the label away and is left out of the features; --keep {shlex.quote(kind.name)} uses it"
            yield Finding("leak", kind.name, line, used if kind.name in rules.keep else left)


def _cells(fed: Federation, kind: ColumnKind, rows: Array, *, few: bool = False) -> Array:
    """Bin a column: classes keep their code, numbers go into 64 (or 5) bins; -1 is missing."""
    values, names = fed[kind.name][rows], fed.names.get(kind.name)
    if kind.kind in ("class", "ordered"):
        return as_codes(values, kind.values, names).astype(np.int64)
    numbers = as_numbers(values, names)
    present = ~np.isnan(numbers)
    if not present.any():
        return np.full(len(rows), -1)
    cuts = np.unique(np.quantile(numbers[present], np.linspace(0, 1, 6 if few else 65)[1:-1]))
    return np.where(present, np.searchsorted(cuts, np.where(present, numbers, 0), side="right"), -1)


def _predicted(cell: Array, label: Array, other: Array, truth: Array, base: int) -> float:
    """Share of the other rows that have the most frequent label of their cell."""
    width = int(max(label.max(), truth.max())) + 1
    pairs, often = np.unique((cell + 1) * width + label, return_counts=True)
    order = np.lexsort((-often, pairs // width))
    cells, first = np.unique(pairs[order] // width, return_index=True)
    best = pairs[order][first] % width
    index = np.searchsorted(cells, other + 1)
    in_cells = (index < len(cells)) & (cells[np.minimum(index, len(cells) - 1)] == other + 1)
    guess = np.where(in_cells, best[np.minimum(index, len(cells) - 1)], base)
    return float((guess == truth).mean())
