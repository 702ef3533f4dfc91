"""Arrays of any length per client, and sums over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedscape.core.kernel import kernel
from fedscape.types import Array


class Ragged(NamedTuple):
    """Arrays of any length per client: client i owns `flat[offsets[i]:offsets[i + 1]]`.

    >>> Ragged(np.array([1.0, 2.0, 3.0]), np.array([0, 1, 1, 3])).lengths
    array([1, 0, 2])
    """

    flat: Array
    offsets: Array

    @property
    def lengths(self) -> Array:
        return np.diff(self.offsets)

    def take(self, positions: Array | slice) -> Ragged:
        """The arrays of these clients, in this order."""
        rows, offsets = rows_of(self.offsets, positions)
        return Ragged(self.flat[rows], offsets)


class Gathered(Mapping[str, Array]):
    """Rows of columns, read when a column is first asked for.

    >>> part = Gathered({"y": np.array([5, 6, 7])}, np.array([2, 0]))
    >>> part["y"]
    array([7, 5])
    """

    def __init__(self, source: Mapping[str, Array], rows: Array | slice) -> None:
        self.source = source
        self.rows = rows
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._read:
            self._read[name] = self.source[name][self.rows]
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)


def offsets_of(sizes: npt.ArrayLike) -> Array:
    """Where segments of these sizes begin and end when they lie one after the other.

    >>> offsets_of([2, 0, 3])
    array([0, 2, 2, 5])
    """
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64, copy=False)


def segment_sum(rows: Array, offsets: Array) -> Array:
    """Sum the rows between consecutive offsets; an empty segment sums to zero."""
    kind = np.int64 if rows.dtype.kind in "biu" else np.float64
    flat = np.ascontiguousarray(rows.reshape(len(rows), int(np.prod(rows.shape[1:]))), dtype=kind)
    out = np.zeros((len(offsets) - 1, flat.shape[1]), dtype=kind)
    _add_rows(flat, np.ascontiguousarray(offsets, dtype=np.int64), out)
    return out.reshape((len(offsets) - 1, *rows.shape[1:]))


@kernel
def _add_rows(rows: Array, offsets: Array, out: Array) -> None:
    for i in range(len(offsets) - 1):
        for row in range(offsets[i], offsets[i + 1]):
            for j in range(rows.shape[1]):
                out[i, j] += rows[row, j]


def segment_sum_twin(rows: Array, offsets: Array) -> Array:
    """The plain NumPy twin of `segment_sum` (reduceat misreads empty segments, so those are left out)."""
    kind = np.int64 if rows.dtype.kind in "biu" else np.float64
    out = np.zeros((len(offsets) - 1, *rows.shape[1:]), dtype=kind)
    filled = np.diff(offsets) > 0
    if filled.any():
        out[filled] = np.add.reduceat(rows.astype(kind), offsets[:-1][filled], axis=0)
    return out


def segment_count(codes: Array, offsets: Array, n_codes: int) -> Array:
    """How often each code occurs between consecutive offsets: [segments, n_codes], int32; codes are not checked."""
    out = np.zeros((len(offsets) - 1, n_codes), dtype=np.int32)
    _count_codes(np.ascontiguousarray(codes), np.ascontiguousarray(offsets, dtype=np.int64), out)
    return out


@kernel
def _count_codes(codes: Array, offsets: Array, out: Array) -> None:
    for i in range(len(offsets) - 1):
        for row in range(offsets[i], offsets[i + 1]):
            out[i, codes[row]] += 1


def segment_count_twin(codes: Array, offsets: Array, n_codes: int) -> Array:
    """The plain NumPy twin of `segment_count`."""
    n = len(offsets) - 1
    cell = np.repeat(np.arange(n) * n_codes, np.diff(offsets)) + codes
    return np.bincount(cell, minlength=n * n_codes).reshape(n, n_codes).astype(np.int32)


@kernel
def group_rows(codes: Array, place: Array) -> Array:
    """The order that brings rows of one code together: a counting sort; `place` is where each code's rows begin."""
    order = np.empty(len(codes), dtype=np.int64)
    for row in range(len(codes)):
        code = codes[row]
        order[place[code]] = row
        place[code] += 1
    return order


def as_slice(positions: Array) -> slice | None:
    """The slice that takes these positions without a copy; None where they are not one after the other.

    >>> as_slice(np.array([2, 3, 4])), as_slice(np.array([4, 2, 3]))
    (slice(2, 5, None), None)
    """
    n = len(positions)
    if n == 0 or positions[-1] - positions[0] != n - 1 or (np.diff(positions) != 1).any():
        return None
    return slice(int(positions[0]), int(positions[0]) + n)


def rows_of(offsets: Array, clients: Array | slice) -> tuple[Array | slice, Array]:
    """The rows of these clients (a slice where they lie together) and the offsets they then have."""
    if isinstance(clients, slice):
        first, last, step = clients.indices(len(offsets) - 1)
        if step == 1:
            last = max(first, last)
            ends = offsets[first : last + 1]
            return slice(int(ends[0]), int(ends[-1])), ends - ends[0]
        clients = np.arange(first, last, step)
    begin, sizes = offsets[clients], offsets[clients + 1] - offsets[clients]
    ends = offsets_of(sizes)
    rows = np.arange(ends[-1]) + np.repeat(begin - ends[:-1], sizes)
    return rows, ends
