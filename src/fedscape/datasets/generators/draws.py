"""Draws and checks shared by the generators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError
from fedscape.types import Array


def pick(rng: np.random.Generator, weights: Array, n: int) -> Array:
    """Draw n categories with these weights."""
    ends = np.cumsum(weights)
    return np.searchsorted(ends / ends[-1], rng.random(n), side="right").astype(np.int32)


def check_positive(name: str, value: float) -> float:
    """Check that a number is finite and above zero."""
    if not isinstance(value, int | float | np.number) or not 0 < value < float("inf"):
        raise DataError(f"{name} must be a finite number above 0, not {value!r}")
    return float(value)


def check_sizes(name: str, sizes: npt.ArrayLike, n_clients: int) -> Array:
    """Check the sizes, and expand one for all to one per client."""
    numbers = np.asarray(sizes)
    if numbers.dtype.kind not in "iu" or numbers.shape not in ((), (n_clients,)) or (numbers < 0).any():
        raise DataError(
            f"{name} must be a whole number from 0 on, or one for each of the {n_clients:,} clients, "
            f"not {np.array2string(numbers, threshold=4)}"
        )
    return np.broadcast_to(numbers, (n_clients,)).astype(np.int64)
