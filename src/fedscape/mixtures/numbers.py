"""Columns that mixtures take for numbers."""

from __future__ import annotations

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.types import Array


def numbers_of(clients: Federation, column: str) -> Array:
    """The column as it is; one of texts, which is stored as their places in the alphabet, is refused."""
    values = clients[column]
    if column in clients.names and values.ndim == 1:  # names of a wider column are those of its numbers
        raise DataError(f"the column {column!r} holds texts, not numbers: make indicator columns of it")
    return values
