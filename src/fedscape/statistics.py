"""The first things to know about a federation: how often, how large, how spread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedscape.checks import check_categories, check_finite
from fedscape.computation import Arrays, Kept
from fedscape.engine import Engine
from fedscape.errors import DataError
from fedscape.estimator import Estimator, Fit, reading
from fedscape.federation import Federation
from fedscape.ragged import offsets_of
from fedscape.random import Array, Key


class Histogram(Estimator):
    """How often each category occurs over all clients: one round, one sum.

    Parameters
    ----------
    n_categories
        Categories are 0 to n_categories - 1; anything else is refused.
    column
        The column of categories, or of ready counts (two-dimensional).

    Learns `counts_` [n_categories] and `shares_`, which add up to one.

    >>> fed = Federation({"y": [0, 1, 1, 2]}, [0, 1, 4])
    >>> Histogram(3).fit(fed).counts_
    array([1, 2, 1])
    """

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

    def update(self, state: Arrays, total: Arrays) -> Arrays:
        return {"counts": total["counts"]}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        return 1.0

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


class Moments(Estimator):
    """Mean and covariance of the rows of all clients.

    Clients send the number of their rows and the first two moments about a broadcast centre; the server moves the
    centre to the mean. The first round is about zero, the second about the mean of the first: that one has no
    cancellation left, however far from zero the data lie.

    Parameters
    ----------
    column
        Numbers of any trailing shape; they are flattened to d features.
    bound
        Rows longer than this (about zero) are shortened to it, which bounds what one row can change.
    rounds
        How many rounds; one is enough for data near zero.

    Learns `mean_` [d], `covariance_` [d, d] (divided by the number of rows) and `n_rows_`.

    >>> fed = Federation({"x": [[0.0], [2.0], [4.0]]}, [0, 1, 3])
    >>> moments = Moments().fit(fed)
    >>> moments.mean_.tolist(), moments.covariance_.round(6).tolist()
    ([2.0], [[2.666667]])
    """

    block_clients = 128  # a client sends d x d numbers

    def __init__(self, *, column: str = "x", bound: float | None = None, rounds: int = 2) -> None:
        self.column = column
        self.bound = bound
        self.rounds = rounds

    def start(self, seed: int) -> Arrays:
        return {"mean": np.zeros(0), "covariance": np.zeros((0, 0)), "n_rows": np.zeros(())}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        x = self._centred(state, clients)
        second = [x[a:b].T @ x[a:b] for a, b in pairwise(clients.offsets)]
        return {"n_rows": clients.sizes, "first": clients.segment_sum(x), "second": np.array(second)}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        x = self._centred(state, clients)
        return {"n_rows": np.asarray(len(x)), "first": x.sum(axis=0), "second": x.T @ x}

    def update(self, state: Arrays, total: Arrays) -> Arrays:
        n = np.maximum(total["n_rows"], 1.0)
        shift = total["first"] / n  # of the mean from the centre
        covariance = total["second"] / n - np.outer(shift, shift)
        mean = state["mean"] + shift if state["mean"].size else shift
        return {"mean": mean, "covariance": (covariance + covariance.T) / 2, "n_rows": total["n_rows"]}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        d = state["mean"].size
        if self.bound is None or (norm == 1 and not d):  # before the first round the number of features is not known
            return None
        r = self.bound + float(np.linalg.norm(state["mean"]))  # length of a row about the centre
        return float(np.sqrt(1 + r**2 + r**4)) if norm == 2 else 1 + np.sqrt(d) * r + d * r**2

    def _centred(self, state: Arrays, clients: Federation) -> Array:
        x = features(clients, self.column, self.bound)
        return x - state["mean"] if state["mean"].size else x  # at first the centre is zero, of a size not known yet

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        state = self._run(reading(self, column), engine, how, n_rounds=self.rounds)
        self.mean_, self.covariance_, self.n_rows_ = state["mean"], state["covariance"], float(state["n_rows"])

    @classmethod
    def examples(cls) -> Sequence[tuple[Moments, Federation]]:
        rng = np.random.default_rng(1)
        offsets = offsets_of(rng.integers(0, 6, 30))
        x = rng.normal(3.0, 2.0, (offsets[-1], 2, 2))
        return [(cls(), Federation({"x": x}, offsets)), (cls(bound=1.0), Federation({"x": x}, offsets))]


def features(clients: Federation, column: str, bound: float | None = None) -> Array:
    """The column as [rows, d] float64, rows shortened to the bound."""
    values = check_finite(clients[column], column)
    x: Array = values.reshape(len(values), int(np.prod(values.shape[1:])))
    if bound is None:
        return x
    if bound <= 0:
        raise DataError(f"bound must be positive, not {bound}")
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x * np.minimum(1.0, bound / np.maximum(length, 1e-300)))
