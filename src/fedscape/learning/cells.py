"""The cells of a column as texts or numbers, and where a row lies, for messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedscape.errors import DataError
from fedscape.federation import Federation
from fedscape.random import Array


def texts_of(table: Federation, name: str) -> tuple[Array, Sequence[str]]:
    """A code for each row, -1 where there is no value, and the text of each code; whole numbers as they are written.

    >>> texts_of(Federation({"a": [2.0, np.nan, 7.5]}, [0, 3]), "a")
    (array([ 0, -1,  1]), ['2', '7.5'])
    """
    values = table[name]
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} must hold one value a row, not {values.dtype}{list(values.shape[1:])}")
    if name in table.names:
        names = table.names[name]
        return np.where((values >= 0) & (values < len(names)), values, -1).astype(np.int64), names
    known = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=bool)
    distinct, place = np.unique(values[known], return_inverse=True)
    codes = np.full(len(values), -1, dtype=np.int64)
    codes[known] = place
    return codes, [_text(value) for value in distinct.tolist()]


def _text(value: bool | int | float) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def codes_of(codes: Array, texts: Sequence[str], wanted: Sequence[str]) -> Array:
    """The place of each row's text among the wanted ones, -1 where it is none of them or missing.

    >>> codes_of(np.array([0, 1, -1]), ["oak", "yew"], ["ash", "oak"]).tolist()
    [1, -1, -1]
    """
    place = {text: i for i, text in enumerate(wanted)}
    table = np.array([*(place.get(text, -1) for text in texts), -1], dtype=np.int64)
    return np.asarray(table[codes])


def place_of(table: Federation, row: int) -> str:
    """A row as people find it: its number among the rows of its client, from 0.

    >>> place_of(Federation({"a": [1, 2, 3]}, [0, 1, 3], ids=["u", "v"]), 2)
    "row 1 of client 'v'"
    """
    client = int(np.searchsorted(table.offsets, row, side="right")) - 1
    return f"row {row - int(table.offsets[client]):,} of client {table.ids[client].item()!r}"


def check_numbers(table: Federation, name: str) -> None:
    """Refuse a column that holds no numbers, or an infinite one; NaN is a gap."""
    values = table[name]
    if name in table.names and values.ndim == 1:
        texts = table.names[name]
        wrong = next((text for text in texts if not _is_number(text)), texts[0] if texts else "")
        rows = np.flatnonzero(values == list(texts).index(wrong)) if texts else values[:0]
        where = f", such as {wrong!r} in {place_of(table, int(rows[0]))}" if len(rows) else ""
        raise DataError(f"column {name!r} holds texts{where}, but must hold numbers: mend it, or leave it out")
    if values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} must hold numbers, not {values.dtype}: make them numbers, or leave it out")
    if values.dtype.kind == "f" and np.isinf(values).any():
        row = int(np.argwhere(np.isinf(values))[0][0])
        raise DataError(f"column {name!r} holds an infinite number in {place_of(table, row)}: mend it")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def first_texts(texts: Sequence[str], n: int = 5) -> str:
    """The first few texts in quotes.

    >>> first_texts(["a", "b", "c"], 2)
    "'a', 'b', ..."
    """
    return ", ".join(map(repr, texts[:n])) + (", ..." if len(texts) > n else "")
