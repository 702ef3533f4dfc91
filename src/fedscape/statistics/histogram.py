"""Count categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.estimator import Estimator, Fit, reading
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_categories, valid_categories
from fedscape.errors import DataError
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.core.engine import Engine


class Histogram(Estimator):
    """The frequency of each category over all clients: one round, one sum.

    Parameters
    ----------
    n_categories
        Categories are 0 to n_categories - 1; others are refused, and dropped under privacy.
    column
        The column of categories, or of count vectors (two-dimensional).

    Learns `counts_` [n_categories] and `shares_`, which add up to one.

    >>> fed = Federation({"y": [0, 1, 1, 2]}, [0, 1, 4])
    >>> Histogram(3).fit(fed).counts_
    array([1, 2, 1])
    """

    name = "histogram"

    def __init__(self, n_categories: int, *, column: str = "y") -> None:
        self.n_categories = n_categories
        self.column = column

    def start(self, seed: int) -> Arrays:
        if self.n_categories < 1:
            raise DataError(f"n_categories must be at least 1, not {self.n_categories}")
        return {"counts": np.zeros(self.n_categories, dtype=np.int64)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return {"counts": clients.counts(self.column, self.n_categories)}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        values = check_categories(clients[self.column], self.n_categories, self.column)
        if values.ndim == 2:
            return {"counts": values.sum(axis=0, dtype=np.int64)}
        return {"counts": np.bincount(values, minlength=self.n_categories)}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {"counts": total["counts"]}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """One more category adds one to a count; a row with a count vector is a full histogram without a bound."""
        return None if clients is not None and clients[self.column].ndim > 1 else 1.0

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_categories(clients[self.column], self.n_categories)

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        state = self._run(reading(self, column), engine, how, n_rounds=1)
        self.counts_ = state["counts"]
        positive = np.maximum(self.counts_, 0)
        self.shares_ = positive / max(positive.sum(), 1)

    @classmethod
    def examples(cls) -> Sequence[tuple[Histogram, Federation]]:
        rng = np.random.default_rng(0)
        sizes = rng.integers(0, 9, 40)
        offsets = offsets_of(sizes)
        labels = Federation({"y": rng.integers(0, 5, offsets[-1])}, offsets)
        counts = Federation({"y": rng.integers(0, 4, (12, 3))}, np.arange(13), ids=[f"c{i:02d}" for i in range(12)])
        return [(cls(5), labels), (cls(3), counts)]
