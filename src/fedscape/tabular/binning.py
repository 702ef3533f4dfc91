"""Bin the features of a table: numbers by edges, one bin per category, one bin for missing values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.errors import DataError
from fedscape.types import Array

MOST = 255  # bins per feature besides the one for missing values: codes are uint8


class Bins(NamedTuple):
    """Bin edges [features, edges] of numbers, and the number of categories of each feature, 0 for numbers."""

    edges: Array
    categories: Array

    @property
    def n_bins(self) -> Array:
        """Bins of each feature, without the one for missing values."""
        return np.where(self.categories > 0, self.categories, self.edges.shape[1] + 1).astype(np.int64)

    @property
    def width(self) -> int:
        """Largest number of bins of a feature; also the code of missing values."""
        return int(self.n_bins.max(initial=1))


def column_values(clients: Federation, features: str | Sequence[str]) -> Array:
    """The features [rows, f] as floats: numbers or category codes, NaN if missing."""
    names = (features,) if isinstance(features, str) else tuple(features)
    parts = []
    for name in names:
        values = clients[name]
        if values.dtype.kind not in "biuf":
            raise DataError(f"column {name!r} must hold numbers or categories to be a feature, not {values.dtype}")
        rows = values.reshape(len(values), int(np.prod(values.shape[1:]))).astype(np.float64, copy=False)
        if name in clients.names and values.ndim == 1:
            rows = np.where(rows < 0, np.nan, rows)
        parts.append(rows)
    if not sum(rows.shape[1] for rows in parts):
        raise DataError(f"the features {', '.join(names) or '(none)'} hold no number a row: name others")
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))


def binned(x: Array, bins: Bins) -> Array:
    """Bin rows to codes [rows, features], uint8; an unknown category counts as missing.

    >>> binned(np.array([[0.5], [np.nan], [2.0]]), Bins(np.array([[1.0]]), np.array([0]))).ravel().tolist()
    [0, 2, 1]
    """
    if x.shape[1] != len(bins.edges):
        raise DataError(f"x has {x.shape[1]} features per row, the model has {len(bins.edges)}")
    codes = np.empty(x.shape, dtype=np.uint8)
    code_rows(x, np.ascontiguousarray(bins.edges), bins.categories, bins.width, codes)
    return codes


@kernel
def code_rows(x: Array, edges: Array, categories: Array, missing: int, codes: Array) -> None:
    """codes = number of edges below the value, or the category; `missing` for NaN and unknown categories."""
    low, value = np.empty(512, dtype=np.int64), np.empty(512)
    for begin in range(0, x.shape[0], 512):  # a feature's edges stay in the cache for 512 rows
        rows = min(512, x.shape[0] - begin)
        for f in range(x.shape[1]):
            for i in range(rows):
                low[i], value[i] = 0, x[begin + i, f]
            n = 1 if categories[f] > 0 else edges.shape[1]
            while n > 1:  # all rows take the same steps, none waits for another's
                half = n >> 1
                for i in range(rows):
                    low[i] += half * (edges[f, low[i] + half - 1] < value[i])
                n -= half
            for i in range(rows):
                if value[i] != value[i]:
                    codes[begin + i, f] = missing
                elif categories[f] > 0:
                    whole = value[i] == np.floor(value[i]) and value[i] >= 0 and value[i] < categories[f]
                    codes[begin + i, f] = np.int64(value[i]) if whole else missing
                else:
                    codes[begin + i, f] = low[i] + (edges[f, low[i]] < value[i])


def code_rows_twin(x: Array, edges: Array, categories: Array, missing: int, codes: Array) -> None:
    """The plain NumPy twin of `code_rows`."""
    for f in range(x.shape[1]):
        gap = np.isnan(x[:, f])
        value = np.where(gap, 0.0, x[:, f])
        if categories[f]:
            valid = ~gap & (value == np.floor(value)) & (value >= 0) & (value < categories[f])
            codes[:, f] = np.where(valid, value, missing)
        else:
            codes[:, f] = np.where(gap, missing, np.searchsorted(edges[f], value, side="left"))
