"""Read numeric columns for mixtures."""

from __future__ import annotations

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.types import Array


def numbers_of(clients: Federation, column: str) -> Array:
    """Return the column; refuse texts, which are stored as codes in alphabetical order."""
    values = clients[column]
    if column in clients.names and values.ndim == 1:  # names of a two-dimensional column label its numbers
        raise DataError(f"the column {column!r} holds texts, not numbers: make indicator columns of it")
    return values
