"""The column that is modelled or predicted, as codes with names: the same classes in every command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedscape.errors import DataError
from fedscape.federation import Federation
from fedscape.formats.kinds import ColumnKind, Overrules, as_codes, as_numbers, kind_of
from fedscape.random import Array

BINS = 5


@dataclass(frozen=True, eq=False)
class Classes:
    """The class of each row.

    Parameters
    ----------
    codes
        [rows], -1 where a row has none.
    names
        What the classes are called.
    ordered
        Whether they are parts of a number, the least first.
    remark
        What was done to a number, or "".
    """

    codes: Array
    names: tuple[str, ...]
    ordered: bool = False
    remark: str = ""


def classes_of(
    federation: Federation, column: str, *, kind: ColumnKind | None = None, overrules: Overrules | None = None
) -> Classes:
    """The classes of a column: its values, or, for a number, five parts of about as many rows each.

    >>> made = classes_of(Federation({"stars": [5, 1, 3, 1]}, [0, 2, 4]), "stars")
    >>> made.codes.tolist(), made.names
    ([2, 0, 1, 0], ('1', '3', '5'))
    """
    said = overrules or Overrules()
    values, names = federation[column], federation.names.get(column)
    known = kind or kind_of(column, values, names if values.ndim == 1 else None, overrules=said)
    if known.kind == "array":
        raise DataError(
            f"the column {column!r} must hold categories, numbers or ready counts, one a row, not "
            f"{values.dtype}{list(values.shape[1:])}: name another with --column"
        )
    if known.kind == "empty":
        raise DataError(f"the column {column!r} has no value in any row: name another with --column")
    if known.kind in ("id", "date"):
        what = "dates" if known.kind == "date" else f"an id ({known.why})"
        raise DataError(
            f"the column {column!r} holds {what}, no classes: name another with --column, or --categorical {column} "
            "takes every value as a class"
        )
    if known.kind in ("number", "weight"):
        return _cut(as_numbers(values, names), column)
    labels = known.values or tuple(str(text) for text in names or ())
    return Classes(as_codes(values, labels, names), renamed(labels, said.names, column), known.kind == "ordered")


def with_classes(
    federation: Federation, column: str, *, kind: ColumnKind | None = None, overrules: Overrules | None = None
) -> tuple[Federation, Classes | None]:
    """The rows that have a class, the column replaced by codes with names; ready counts stay as they are.

    Whole numbers 0, 1, ... without a gap are codes already and stay.

    >>> fed, classes = with_classes(Federation({"y": [True, False, True]}, [0, 1, 3]), "y")
    >>> fed["y"].tolist(), fed.names["y"]
    ([1, 0, 1], ('0', '1'))
    """
    values = federation[column]
    if values.ndim == 2 and values.dtype.kind in "iu":
        return federation, None
    made = classes_of(federation, column, kind=kind, overrules=overrules)
    plain = column not in federation.names and values.dtype.kind in "iu"
    if plain and made.names == tuple(map(str, range(len(made.names)))):
        return federation, made
    known = made.codes >= 0
    rows = federation if known.all() else federation.where(known)
    return rows.with_column(column, made.codes[known].astype(np.int32), names=made.names), made


def renamed(labels: Sequence[str], names: Sequence[str] | None, column: str) -> tuple[str, ...]:
    """What classes are called: one name each in their order, or the names of 0, 1, 2, ... where they are such codes.

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


def _cut(numbers: Array, column: str) -> Classes:
    known = ~np.isnan(numbers)
    inner = np.unique(np.quantile(numbers[known], np.arange(1, BINS) / BINS))
    codes = np.where(known, np.searchsorted(inner, np.where(known, numbers, 0), side="right"), -1)
    shown = [f"{float(f'{end:.4g}'):,.10g}" for end in inner]  # four digits, and no exponent where people count
    labels = [f"{a} to {b}" for a, b in pairwise(shown)]
    labels = [f"below {shown[0]}", *labels, f"{shown[-1]} and more"]  # an extreme is the value of one row
    used = np.unique(codes[known])
    place = np.full(len(labels) + 1, -1)
    place[used] = np.arange(len(used))
    remark = (
        f"{column!r} is a number: it is cut at its quantiles into {len(used)} classes of about as many rows each; "
        f"--categorical {column} takes every value as a class."
    )
    return Classes(np.where(known, place[codes], -1), tuple(labels[j] for j in used), True, remark)
