"""The cells of a column as texts or numbers, and where a row lies, for messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.kinds import as_numbers, label_of
from fedscape.types import Array


def is_text(table: Federation, name: str) -> bool:
    """Whether a column holds one text a row."""
    return name in table.names and table[name].ndim == 1


def missing_in(table: Federation, name: str) -> Array:
    """Which rows have no value."""
    values = table[name]
    if is_text(table, name):
        return np.asarray((values < 0) | (values >= len(table.names[name])))
    if values.dtype.kind == "f":
        return ~np.isfinite(values)
    return np.isnat(values) if values.dtype.kind in "mM" else np.zeros(len(values), dtype=bool)


def text_at(table: Federation, name: str, row: int) -> str:
    """The value of a row as a text.

    >>> text_at(Federation({"a": [2.0, 7.5]}, [0, 2]), "a", 0)
    '2'
    """
    value = table[name][row]
    return table.names[name][int(value)] if is_text(table, name) else label_of(value)


def numbers_in(table: Federation, name: str) -> Array:
    """A column as float64 [rows, numbers], NaN where there is no finite number; one of texts alone is refused."""
    values = table[name]
    if is_text(table, name):
        texts = table.names[name]
        numbers = as_numbers(values, texts)
        rows = np.flatnonzero(np.isnan(numbers) & ~missing_in(table, name))
        if len(rows) and np.isnan(numbers).all():
            raise DataError(
                f"column {name!r} holds texts, such as {text_at(table, name, int(rows[0]))!r} in "
                f"{place_of(table, int(rows[0]))}, but must hold numbers: mend it, or leave it out of the features"
            )
        return numbers[:, None]
    if values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} must hold numbers, not {values.dtype}: make them numbers, or leave it out")
    return as_numbers(values).reshape(len(values), -1)


def place_of(table: Federation, row: int) -> str:
    """A row as people find it: its number among the rows of its client, from 0.

    >>> place_of(Federation({"a": [1, 2, 3]}, [0, 1, 3], ids=["u", "v"]), 2)
    "row 1 of client 'v'"
    """
    client = int(np.searchsorted(table.offsets, row, side="right")) - 1
    return f"row {row - int(table.offsets[client]):,} of client {table.ids[client].item()!r}"


def first_texts(texts: Sequence[str], n: int = 5) -> str:
    """The first few texts in quotes.

    >>> first_texts(["a", "b", "c"], 2)
    "'a', 'b', ..."
    """
    return ", ".join(map(repr, texts[:n])) + (", ..." if len(texts) > n else "")
