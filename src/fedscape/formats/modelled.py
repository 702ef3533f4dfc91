"""The modelled or predicted column as codes with names: the same classes in every command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.validate import Collected
from fedscape.errors import DataError
from fedscape.formats.kinds import ColumnKind, Overrules, as_codes, as_numbers, kind_of
from fedscape.types import Array

BINS = 5


@dataclass(frozen=True, eq=False)
class Classes:
    """The class of each row.

    Parameters
    ----------
    codes
        [rows], -1 where a row has none.
    names
        Names of the classes.
    ordered
        Whether they are bins of a number, in ascending order.
    remark
        How a number was binned, or "".
    """

    codes: Array
    names: tuple[str, ...]
    ordered: bool = False
    remark: str = ""


def classes_of(
    federation: Federation, column: str, *, kind: ColumnKind | None = None, overrules: Overrules | None = None
) -> Classes:
    """The classes of a column: its values, or five bins of about equal size for a number.

    >>> made = classes_of(Federation({"stars": [5, 1, 3, 1]}, [0, 2, 4]), "stars")
    >>> made.codes.tolist(), made.names
    ([2, 0, 1, 0], ('1', '3', '5'))
    """
    rules = overrules or Overrules()
    values, names = federation[column], federation.names.get(column)
    column_kind = kind or kind_of(column, values, names if values.ndim == 1 else None, overrules=rules)
    if column_kind.kind == "array":
        raise DataError(
            f"the column {column!r} must hold categories, numbers or count vectors, one a row, not "
            f"{values.dtype}{list(values.shape[1:])}: name another with --column"
        )
    if column_kind.kind == "empty":
        raise DataError(f"the column {column!r} has no value in any row: name another with --column")
    if column_kind.kind in ("id", "date"):
        what = "dates" if column_kind.kind == "date" else f"an id ({column_kind.why})"
        raise DataError(
            f"the column {column!r} holds {what}, no classes: name another with --column, or --categorical "
            f"{shlex.quote(column)} takes every value as a class"
        )
    if column_kind.kind in ("number", "weight"):
        return cut_number(as_numbers(values, names), column)
    labels = column_kind.values or tuple(str(text) for text in names or ())
    return Classes(as_codes(values, labels, names), renamed(labels, rules.names, column), column_kind.kind == "ordered")


def with_classes(
    federation: Federation, column: str, *, kind: ColumnKind | None = None, overrules: Overrules | None = None
) -> tuple[Federation, Classes | None]:
    """Keep the rows that have a class, and replace the column by codes with names; count vectors stay as they are.

    Consecutive integers from 0 are codes already and stay.

    >>> fed, classes = with_classes(Federation({"y": [True, False, True]}, [0, 1, 3]), "y")
    >>> fed["y"].tolist(), fed.names["y"]
    ([1, 0, 1], ('0', '1'))
    """
    values = federation[column]
    if values.ndim == 2 and values.dtype.kind in "iu":
        return federation, None
    classes = classes_of(federation, column, kind=kind, overrules=overrules)
    plain = column not in federation.names and values.dtype.kind in "iu"
    if plain and classes.names == tuple(map(str, range(len(classes.names)))):
        return federation, classes
    present = classes.codes >= 0
    rows = federation if present.all() else federation.where(present)
    names = (
        classes.names
        if overrules is not None and overrules.names is not None
        else _as_known(federation, column, classes)
    )
    return rows.with_column(column, classes.codes[present].astype(np.int32), names=names), classes


def _as_known(federation: Federation, column: str, classes: Classes) -> tuple[str, ...]:
    """Class names, marked as collected from the rows unless the column's own were declared."""
    declared = column in federation.names and federation.is_declared(column)
    return classes.names if declared else Collected(classes.names)


def overruled(
    federation: Federation, categorical: Sequence[str], numeric: Sequence[str], ignore: Sequence[str]
) -> Federation:
    """Apply the overrules: classes as codes with names (-1: missing), texts as numbers, ignored columns dropped."""
    rules = Overrules(tuple(categorical), tuple(numeric), tuple(ignore))
    rules.check(list(federation.columns))
    table = federation.select([name for name in federation.columns if name not in ignore]) if ignore else federation
    for name in categorical:
        classes = classes_of(table, name, overrules=rules)
        table = table.with_column(name, classes.codes, names=_as_known(table, name, classes))
    for name in numeric:
        kind_of(name, table[name], table.names.get(name), overrules=rules)  # raises if no text is a number
        table = table.with_column(name, as_numbers(table[name], table.names.get(name)))
    return table


def with_same_classes(
    federations: Sequence[Federation], column: str, *, overrules: Overrules | None = None
) -> list[Federation]:
    """Give several Federations the same classes in a column: those of the first, then those only others have.

    Numbers are binned at the cut points of the first.

    >>> a, b = Federation({"y": [1, 2]}, [0, 2]), Federation({"y": [2, 3]}, [0, 2])
    >>> [fed["y"].tolist() for fed in with_same_classes([a, b], "y")]
    [[0, 1], [1, 2]]
    """
    if any(fed[column].ndim > 1 for fed in federations):
        return list(federations)
    rules = overrules or Overrules()
    kinds = [kind_of(column, fed[column], fed.names.get(column), overrules=rules) for fed in federations]
    if kinds[0].kind in ("number", "weight"):
        cuts = cut_points(as_numbers(federations[0][column], federations[0].names.get(column)))
        coded = [cut_number(as_numbers(fed[column], fed.names.get(column)), column, cuts) for fed in federations]
    else:
        coded = [classes_of(fed, column, kind=kind) for fed, kind in zip(federations, kinds, strict=True)]
    labels = list(dict.fromkeys(name for classes in coded for name in classes.names))
    if all(label.isdigit() for label in labels):
        labels.sort(key=int)
    names = renamed(labels, rules.names, column)
    out = []
    for fed, classes in zip(federations, coded, strict=True):
        recode = np.array([*(labels.index(name) for name in classes.names), -1], dtype=np.int32)
        present = classes.codes >= 0
        rows = fed if present.all() else fed.where(present)
        out.append(rows.with_column(column, recode[classes.codes[present]], names=names))
    return out


def sketchable(federation: Federation, kind: ColumnKind, family: str) -> Federation:
    """Keep the rows that can be sketched: finite numbers, or classes for minhash.

    >>> fed = Federation({"a": [1.5, np.nan, 2.5]}, [0, 3])
    >>> sketchable(fed, kind_of("a", fed["a"]), "srp")["a"].tolist()
    [1.5, 2.5]
    """
    name = kind.name
    if kind.kind == "array":
        return federation
    if family == "minhash":
        if name in federation.names or kind.kind not in ("class", "ordered", "constant"):
            return federation
        return with_classes(federation, name, kind=kind)[0]
    if kind.kind not in ("number", "weight") and (kind.low is None or kind.kind == "empty"):
        return federation if name in federation.names else _refuse_sketch(kind)
    numbers = as_numbers(federation[name], federation.names.get(name))
    present = ~np.isnan(numbers)
    return federation.where(present).with_column(name, numbers[present])


def _refuse_sketch(kind: ColumnKind) -> Federation:
    raise DataError(f"{kind.line.partition(';')[0]}: it cannot be sketched; name a column of numbers with --column")


def renamed(labels: Sequence[str], names: Sequence[str] | None, column: str) -> tuple[str, ...]:
    """Rename classes: one name each in their order, or names for the codes 0, 1, 2, ... if the classes are such codes.

    >>> renamed(["0", "2"], ["ash", "oak", "yew"], "tree")
    ('ash', 'yew')
    """
    if names is None:
        return tuple(labels)
    if len(names) == len(labels):
        return tuple(names)
    if all(label.isdigit() and int(label) < len(names) for label in labels):
        return tuple(names[int(label)] for label in labels)
    raise DataError(f"--names gives {len(names):,} names, but the column {column!r} has {len(labels):,} classes")


def cut_points(numbers: Array) -> Array:
    """Cut points that bin a number into classes of about equal size: its inner quantiles, without NaN.

    >>> cut_points(np.arange(101.0)).tolist()
    [20.0, 40.0, 60.0, 80.0]
    """
    present = numbers[~np.isnan(numbers)]
    return np.unique(np.quantile(present, np.arange(1, BINS) / BINS)) if len(present) else np.zeros(1)


def cut_number(numbers: Array, column: str, inner: Array | None = None) -> Classes:
    """Bin a number at these cut points; by default at its quantiles, and empty classes are dropped."""
    present = ~np.isnan(numbers)
    cuts = cut_points(numbers) if inner is None else inner
    codes = np.where(present, np.searchsorted(cuts, np.where(present, numbers, 0), side="right"), -1)
    shown = [f"{float(f'{end:.4g}'):,.10g}" for end in cuts]  # four digits, and no exponent where people count
    labels = [f"{a} to {b}" for a, b in pairwise(shown)]
    labels = [f"below {shown[0]}", *labels, f"{shown[-1]} and more"]  # hide the extremes: they are single rows
    used = np.unique(codes[present]) if inner is None else np.arange(len(labels))
    recode = np.full(len(labels) + 1, -1)
    recode[used] = np.arange(len(used))
    remark = (
        f"{column!r} is a number: it is cut at its quantiles into {len(used)} classes of about as many rows each; "
        f"--categorical {shlex.quote(column)} takes every value as a class."
    )
    return Classes(np.where(present, recode[codes], -1), tuple(labels[j] for j in used), True, remark)


def declare_classes(federation: Federation, column: str, names: Sequence[str]) -> Federation:
    """Encode a column with declared classes, whatever rows there are; rows of any other class get the code -1.

    For a text column the names are its texts. For integers the names are the numbers themselves if all names are
    integers, else the names of codes 0, 1, ...

    >>> declare_classes(Federation({"stars": [5, 1, 3]}, [0, 3]), "stars", ["1", "5"])["stars"].tolist()
    [1, 0, -1]
    """
    numbers = [int(name) for name in names if name.lstrip("-").isdigit()]
    if column in federation.names or len(numbers) < len(names):
        return federation.declare(column, names)
    values = federation[column]
    codes = np.full(len(values), -1, dtype=np.int32)
    for code, number in enumerate(numbers):
        codes[values == number] = code
    return federation.with_column(column, codes, names=tuple(names))
