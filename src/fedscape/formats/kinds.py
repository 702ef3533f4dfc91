"""Detect the kind of a column: class, ordered class, number, text, date, id, weight or constant."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedscape.errors import DataError
from fedscape.formats.texts import are_dates, how_written, parse_numbers
from fedscape.formats.weights import weight_or_mass
from fedscape.types import Array

Kind = Literal["class", "ordered", "number", "text", "date", "id", "weight", "constant", "empty", "array"]
Use = Literal["number", "indicators", "array", ""]  # how a column is used as a feature; "": left out

BEYOND = 1e30  # larger magnitudes count as missing: float32 cannot hold their squares
FEW = 20  # integers with at most this many distinct values are classes
MOST_CODES = 300  # codes with more values are left out
LABELS = ("y", "label", "labels", "target", "class")
INDEXES = ("__index_level_0__", "Unnamed: 0", "index")
_ID = re.compile(
    r"(^|[_\W])(ids?|uuid|guid|key|ssn|serial(no)?)$|(?-i:[a-z]I[dD])$|^(id|uuid|guid)([_\W]|$)|"
    r"^(invoice|order|ticket|transaction|customer|patient|account|phone|user|person|case|record)(_?(no|nr|num|number))?$",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"code|zip|postal|postcode|fips|naics|naicsp|^soc|occ(p|upation)?$|icd|isco|puma|sku|^st$|state", re.I
)


@dataclass(frozen=True)
class ColumnKind:
    """The detected kind of one column.

    Parameters
    ----------
    name
        The column.
    kind
        class, ordered (a class with ordered values), number, text, date, id, weight, constant, empty, or array (more
        than one number per row).
    use
        How it is used as a feature: one number, one indicator per class, or the array; "" if it is left out.
    values
        The classes in order, as texts.
    distinct
        Number of distinct values.
    low, high
        Smallest and largest number.
    missing
        Number of rows without a value.
    why
        The reason, if it is not obvious.
    code
        Whether it looks like a code: integers without a meaningful order.
    """

    name: str
    kind: Kind
    use: Use = ""
    values: tuple[str, ...] = ()
    distinct: int = 0
    low: float | None = None
    high: float | None = None
    missing: int = 0
    why: str = ""
    code: bool = False

    @property
    def line(self) -> str:
        """Describe the column in one line, with the option that overrules it.

        >>> ColumnKind("label", "class", values=("1", "2"), distinct=2, low=1, high=2).line
        'label: class, 2 values 1 to 2; --numeric label overrules'
        """
        what = "ordered class" if self.kind == "ordered" else self.kind
        text = f"{self.name}: {what}"
        if self.kind in ("class", "ordered") and self.values:
            text += f", {self.distinct:,} {'value' if self.distinct == 1 else 'values'} {_ends(self.values)}"
        elif self.kind in ("number", "weight") and self.low is not None:
            text += f", {self.low:g} to {self.high:g}"
        elif self.kind in ("id", "text"):
            text += f", {self.distinct:,} values"
        if self.missing:
            text += f", {self.missing:,} missing"
        if self.why:
            text += f" ({self.why})"
        counted = "ignore" if self.low is None else "numeric"
        other = {"class": counted, "ordered": counted, "array": "ignore", "date": "ignore", "empty": "ignore"}
        return f"{text}; --{other.get(self.kind, 'categorical')} {shlex.quote(self.name)} overrules"


@dataclass(frozen=True)
class Overrules:
    """Column kinds set by hand, overruling those detected from the values.

    Parameters
    ----------
    categorical, numeric
        Columns to treat as classes, and columns to treat as numbers.
    ignore
        Columns not to read at all.
    keep
        Columns to use as features although they are ids, weights or leak the label.
    names
        Names of the classes of the modelled column: one per class, in the order of their values.
    """

    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None

    def check(self, columns: Sequence[str]) -> None:
        """Refuse names of unknown columns, and a column under two options."""
        option_of: dict[str, str] = {}
        for heading in ("categorical", "numeric", "ignore", "keep"):
            for name in getattr(self, heading):
                if name not in columns:
                    have = ", ".join(map(repr, list(columns)[:20])) or "none"
                    raise DataError(f"--{heading} names {name!r}, which is no column; the columns are: {have}")
                if heading != "keep" and name in option_of:
                    raise DataError(f"{name!r} is under --{option_of[name]} and under --{heading}: name it once")
                option_of.setdefault(name, heading)


def kind_of(
    name: str, values: Array, names: Sequence[str] | None = None, *, overrules: Overrules | None = None
) -> ColumnKind:
    """Detect the kind of a column.

    Parameters
    ----------
    name
        Its name; some names decide the kind: y, id, weight, zip_code.
    values
        One value per row; texts as codes, -1 if missing.
    names
        The text of each code.
    overrules
        Kinds set by hand.

    >>> kind_of("label", np.array([1, 5, 2, 3, 4, 5])).line
    'label: class, 5 values 1 to 5; --numeric label overrules'
    >>> kind_of("height", np.array([1.71, 1.64, 1.8])).kind
    'number'
    """
    rules = overrules or Overrules()
    if values.ndim > 1:
        return ColumnKind(name, "array", "array", missing=_missing(values, None))
    missing = _missing(values, names)
    if missing == len(values):
        return ColumnKind(name, "empty", missing=missing, why="no row has a value")
    if names is not None:
        kind = _text_kind(name, values, names, missing, rules)
    elif values.dtype.kind in "mM":
        times = np.unique(values[~np.isnat(values)])
        kind = ColumnKind(name, "date", distinct=len(times), missing=missing)
        if name in rules.categorical:
            kind = _as_class(kind, [str(v) for v in times], "class")
        elif name in rules.numeric:
            raise DataError(f"--numeric names {name!r}, which holds dates: make it a number of days first")
    else:
        kind = _number_kind(name, values, missing, rules)
    return replace(kind, use=_use(kind, rules))


def _as_class(kind: ColumnKind, labels: Sequence[str], what: Kind, why: str = "", **more: Any) -> ColumnKind:
    return replace(kind, kind=what, values=tuple(labels), distinct=len(labels), why=why, **more)


def _text_kind(name: str, codes: Array, names: Sequence[str], missing: int, rules: Overrules) -> ColumnKind:
    often = np.bincount(codes[codes >= 0], minlength=len(names))
    used = np.flatnonzero(often)
    labels = [str(names[j]) for j in used.tolist()]
    n, d = int(often.sum()), len(used)
    kind = ColumnKind(name, "text", distinct=d, missing=missing)
    if name in rules.categorical:
        return _as_class(kind, labels, "class")
    numbers, bad = parse_numbers(labels)
    wrong = int(often[used][bad].sum())
    key = bool(_ID.search(name)) and d > FEW and name not in rules.numeric
    if name in rules.numeric or (not key and _nearly_numeric(labels, numbers, bad, wrong, n)):
        if bad.all():
            raise DataError(f"--numeric names {name!r}, but none of its texts is a number: the first is {labels[0]!r}")
        fine = numbers[np.abs(numbers) <= BEYOND]
        low, high = (float(fine.min()), float(fine.max())) if len(fine) else (0.0, 0.0)
        why = f"texts, {wrong:,} not {'a number' if wrong == 1 else 'numbers'}" if wrong else "texts of numbers"
        form = how_written([labels[j] for j in np.flatnonzero(~bad)])
        why += f", {form}" if form else ""
        weight = weight_or_mass(name, numbers, often[used])
        if weight is not None and weight[0] == "weight" and name not in rules.numeric:
            return replace(kind, kind="weight", low=low, high=high, missing=missing + wrong, why=weight[1])
        lost = missing + int(often[used][~(np.abs(numbers) <= BEYOND)].sum())
        return replace(kind, kind="number", low=low, high=high, missing=lost, why=why)
    if d == 1:
        return replace(kind, kind="constant", values=tuple(labels), why=f"{labels[0]!r} in all rows")
    if are_dates(labels) and d > 2:
        return replace(kind, kind="date", why="texts of dates")
    spaced = np.mean([" " in text.strip() and len(text) > 20 for text in labels[:1000]])
    if n >= 20 and d > 0.9 * n:
        return replace(kind, kind="text" if spaced > 0.5 else "id", why="a value of its own in nearly every row")
    if key:
        return replace(kind, kind="id", why="by its name")
    if d <= FEW or n >= 2 * d:
        return _as_class(kind, labels, "class")
    return kind


def _number_kind(name: str, values: Array, missing: int, rules: Overrules) -> ColumnKind:
    finite = values[np.abs(values) <= BEYOND] if values.dtype.kind == "f" else values
    if not len(finite):
        return ColumnKind(name, "empty", missing=missing, why="no finite number in any row")
    distinct, often = np.unique(finite, return_counts=True)
    whole = distinct.dtype.kind != "f" or bool(np.all(distinct == np.floor(distinct)))
    n, d = len(finite), len(distinct)
    kind = ColumnKind(name, "number", distinct=d, low=float(distinct[0]), high=float(distinct[-1]), missing=missing)
    if name in rules.categorical:
        return _as_class(kind, [label_of(v) for v in distinct], "class" if whole else "ordered")
    if name in rules.numeric:
        return kind
    if d == 1:
        return replace(
            kind, kind="constant", values=(label_of(distinct[0]),), why=f"{label_of(distinct[0])} in all rows"
        )
    if whole:
        return _whole_kind(kind, finite, distinct, often)
    if (weight := weight_or_mass(name, distinct, often)) is not None:
        return replace(kind, kind=weight[0], why=weight[1])
    if d <= FEW and n >= 5 * d:
        return _as_class(kind, [label_of(v) for v in distinct], "ordered")
    return kind


def _whole_kind(kind: ColumnKind, finite: Array, distinct: Array, often: Array) -> ColumnKind:
    """Detect the kind of integers, the hardest case."""
    n, d, name = len(finite), len(distinct), kind.name
    span = float(distinct[-1]) - float(distinct[0]) + 1
    label = name.lower() in LABELS
    if name in INDEXES and d > FEW:
        return replace(kind, kind="id", why="the index of a data frame")
    if d > FEW and _ID.search(name):
        return replace(kind, kind="id", why="by its name")
    if d <= FEW:
        return _as_class(kind, [label_of(v) for v in distinct], "class", code=_is_code(name, distinct, often))
    if label and span <= 1.5 * d and n >= 2 * d:
        return _as_class(kind, [label_of(v) for v in distinct], "class", "by its name")
    if (weight := weight_or_mass(name, distinct, often)) is not None:
        return replace(kind, kind=weight[0], why=weight[1])
    if n >= 50 and d > 0.95 * n and (float(distinct[-1]) > 2**53 or (finite.dtype.kind in "iu" and _is_even(distinct))):
        return replace(kind, kind="id", why="a value of its own in nearly every row")
    if _is_code(name, distinct, often):
        why = "looks like a code"
        return _as_class(kind, [label_of(v) for v in distinct], "class", why, code=True)
    return kind


def _is_code(name: str, distinct: Array, often: Array) -> bool:
    """Whether integers look like codes: by their name, or because they have gaps and jump in frequency.

    The frequency of a quantity (an age, a count) changes little from one value to the next; that of a code jumps.
    Rounded amounts jump too, at round numbers. But over wider bins amounts have a single peak, and codes do not.
    """
    d = len(distinct)
    if _CODE.search(name):
        return d > 2
    if d <= FEW or often.sum() < 5 * d or float(distinct[0]) < 0:
        return False
    span = float(distinct[-1]) - float(distinct[0]) + 1
    if span < 3 * d or float(distinct[-1]) > 1e6 * max(float(distinct[0]), 1):
        return False
    jumps = np.abs(np.diff(often)).sum() / (2 * often.sum())
    digits = np.log10(np.maximum(distinct.astype(float), 1)).astype(int)
    same_length = np.average(digits == np.median(digits), weights=often)
    coarse = np.histogram(distinct.astype(float), bins=20, weights=often)[0]
    peaks = np.abs(np.diff(coarse, prepend=0, append=0)).sum() / (2 * coarse.max())  # 1 for a single peak
    return bool(jumps > 0.25 and same_length > 0.6 and peaks > 2)


def _is_even(distinct: Array) -> bool:
    """Whether values are spread evenly over their range, as ids are and amounts are not."""
    low, high = float(distinct[0]), float(distinct[-1])
    places = (distinct.astype(float) - low) / max(high - low, 1.0)
    return bool(np.abs(places - np.linspace(0, 1, len(places))).max() < 0.15)


def _use(kind: ColumnKind, rules: Overrules) -> Use:
    if kind.kind == "number" or kind.kind == "ordered":
        return "number"
    if kind.kind == "class":
        texts = kind.low is None
        if (texts or kind.code) and kind.distinct > 2:
            return "indicators" if kind.distinct <= MOST_CODES else ""
        return "indicators" if texts or kind.name in rules.categorical else "number"
    if kind.kind == "weight" and kind.name in rules.keep:
        return "number"
    return "number" if kind.name in rules.keep and kind.low is not None else ""


def _nearly_numeric(labels: list[str], numbers: Array, bad: Array, wrong: int, n: int) -> bool:
    """Whether texts are a number column with a few non-numeric cells."""
    good = np.flatnonzero(~bad)
    if len(good) <= FEW and wrong > 0.01 * n:
        return False
    if any(
        labels[j].strip().lstrip("+-")[:1] == "0" and labels[j].strip().isdigit() and labels[j].strip() != "0"
        for j in good[:2000]
    ):
        return False  # 01234 is a code
    if len(good) < max(3, FEW * (wrong == 0)):
        return False
    return wrong <= 0.05 * n or (bad.sum() <= 3 and wrong <= 0.5 * n)


def as_numbers(values: Array, names: Sequence[str] | None = None) -> Array:
    """Convert a column to float64, NaN where there is no finite number."""
    if names is not None:
        table = np.append(parse_numbers(names)[0], np.nan)
        return as_numbers(table[values])  # -1 takes the last entry
    numbers = values.astype(np.float64)
    return np.where(np.abs(numbers) <= BEYOND, numbers, np.nan)


def as_codes(values: Array, classes: Sequence[str], names: Sequence[str] | None = None) -> Array:
    """Encode a column as int32 codes of these classes; -1 if the value is missing or not among them.

    >>> as_codes(np.array([5, 1, 9]), ["1", "5"]).tolist()
    [1, 0, -1]
    """
    code_of = {text: j for j, text in enumerate(classes)}
    if names is not None:
        table = np.array([*(code_of.get(str(text), -1) for text in names), -1], dtype=np.int32)
        return np.asarray(table[np.where((values >= 0) & (values < len(names)), values, len(names))])
    missing = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    if values.dtype.kind in "mM":
        missing = np.isnat(values)
    distinct, inverse = np.unique(values, return_inverse=True)
    table = np.array([code_of.get(label_of(v), -1) for v in distinct] or [-1], dtype=np.int32)
    return np.where(missing, np.int32(-1), table[inverse.reshape(-1)] if len(distinct) else np.int32(-1))


def label_of(value: Any) -> str:
    """Format a value as a class label: 5 and 5.0 are both 5.

    >>> label_of(np.float64(5.0)), label_of(np.float64(2.5)), label_of(np.bool_(True))
    ('5', '2.5', '1')
    """
    if isinstance(value, bool | np.bool_):
        return str(int(value))  # a boolean column with missing values is read as 0, 1 and NaN
    if isinstance(value, float | np.floating):
        return str(int(value)) if np.isfinite(value) and value == np.floor(value) else repr(float(value))
    return str(value)


def _missing(values: Array, names: Sequence[str] | None) -> int:
    if names is not None and values.ndim == 1:
        return int((values < 0).sum())
    if values.dtype.kind == "f":
        return int((~(np.abs(values) <= BEYOND)).sum())  # NaN too
    return int(np.isnat(values).sum()) if values.dtype.kind in "mM" else 0


def _ends(values: Sequence[str]) -> str:
    shown = [text if len(text) <= 24 else text[:21] + "..." for text in (values[0], values[-1])]
    return shown[0] if len(values) == 1 else f"{shown[0]} to {shown[1]}"
