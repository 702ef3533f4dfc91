"""Mean and covariance of the rows of all clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.engine import Engine
from fedscape.core.estimator import Estimator, Fit, reading
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_finite, valid_numbers
from fedscape.errors import DataError
from fedscape.types import Array, Arrays, Kept


class Moments(Estimator):
    """Mean and covariance of the rows of all clients.

    Clients send their number of rows and the first two moments about a broadcast centre; the server moves the centre
    to the mean. The first round is about zero, the second about the mean of the first. The second has no cancellation,
    even if the data lie far from zero.

    Parameters
    ----------
    column
        Numbers of any trailing shape; they are flattened to d features.
    bound
        Rows longer than this (about zero) are scaled to this norm, which bounds what one row can change.
    rounds
        Number of rounds; one is enough for data near zero.

    Learns `mean_` [d], `covariance_` [d, d] (divided by the number of rows) and `n_rows_`.

    >>> fed = Federation({"x": [[0.0], [2.0], [4.0]]}, [0, 1, 3])
    >>> moments = Moments().fit(fed)
    >>> moments.mean_.tolist(), moments.covariance_.round(6).tolist()
    ([2.0], [[2.666667]])
    """

    name = "moments"

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

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = np.maximum(total["n_rows"], 1.0)
        shift = total["first"] / n  # of the mean from the centre
        covariance = total["second"] / n - np.outer(shift, shift)
        mean = state["mean"] + shift if state["mean"].size else shift
        return {"mean": mean, "covariance": (covariance + covariance.T) / 2, "n_rows": total["n_rows"]}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        d = state["mean"].size
        if self.bound is None or (norm == 1 and not d):  # before the first round the number of features is unknown
            return None
        r = self.bound + float(np.linalg.norm(state["mean"]))  # length of a row about the centre
        return float(np.sqrt(1 + r**2 + r**4)) if norm == 2 else 1 + np.sqrt(d) * r + d * r**2

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_numbers(clients[self.column])

    def _centred(self, state: Arrays, clients: Federation) -> Array:
        x = features(clients, self.column, self.bound)
        return x - state["mean"] if state["mean"].size else x  # the first centre is zero, of unknown size

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
    """The column as [rows, d] float64, rows scaled down to the bound."""
    values = check_finite(clients[column], column)
    x: Array = values.reshape(len(values), int(np.prod(values.shape[1:])))
    if bound is not None and bound <= 0:
        raise DataError(f"bound must be positive, not {bound}")
    return x if bound is None else shortened(x, bound)


def shortened(x: Array, bound: float) -> Array:
    """Scale rows [n, d] to at most this norm; no square overflows or underflows.

    >>> shortened(np.array([[3e200, 4e200], [0.3, 0.4]]), 1.0).round(6).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    least = max(bound * 1e-300, float(np.finfo(float).tiny))
    largest = np.maximum(np.abs(x).max(axis=1, keepdims=True, initial=0.0), least)
    unit = x / largest
    length = np.sqrt(np.einsum("nd,nd->n", unit, unit))[:, None]  # in units of the largest number
    shrink = bound / largest < length
    return np.asarray(np.where(shrink, unit * (bound / np.maximum(length, 1.0)), x))
