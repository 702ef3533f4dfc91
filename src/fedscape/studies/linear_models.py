"""Linear models of a number: of each client alone, of all by sums, of all with own deviations, of latent classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedscape.core.engine import Engine
from fedscape.core.federation import Federation
from fedscape.types import Array

#: Methods of the tournament, the simplest first.
CALLED = {
    "local": "Local (alone)",
    "linear": "Linear, by sums",
    "linear+": "Linear+ (own deviations)",
    "hlcr": "Latent classes (HLCR)",
}
#: What is tried for each: penalties, and numbers of classes.
SETTINGS: dict[str, tuple[float, ...]] = {
    "local": (1.0, 10.0, 100.0),
    "linear": (1.0, 30.0, 1000.0),
    "linear+": (1.0, 10.0, 100.0),
    "hlcr": (2.0, 4.0),
}
_COMMON = 1.0  # the penalty of the common model that own deviations start from

Predict = Callable[[Federation], Array]


def fitted(
    method: str, clients: Federation, setting: float, *, rounds: int, seed: int, engine: Engine | None = None
) -> Predict:
    """Fit a method to the columns x and v, and return how it predicts rows of the same clients.

    `engine` holds the same clients, where someone watches what they send.
    """
    data = clients if engine is None else engine
    if method == "local":
        return alone(clients, setting)
    if method == "hlcr":
        return _classes(clients, data, int(setting), rounds, seed)
    common = _common(data, setting if method == "linear" else _COMMON)
    return common if method == "linear" else with_deviations(clients, common, setting)


def _common(data: Federation | Engine, penalty: float) -> Predict:
    from fedscape.tabular import GLM

    model = GLM("gaussian", features="x", target="v", l2=penalty).fit(data, progress=False)
    return lambda rows: model.predict(rows["x"])


def alone(clients: Federation, penalty: float) -> Predict:
    """Ridge regression of each client's rows, its intercept free; a client without rows has the mean of all.

    >>> fed = Federation({"x": [[0.0], [1.0], [5.0]], "v": [1.0, 3.0, 7.0]}, [0, 2, 3])
    >>> alone(fed, 1e-9)(fed).round(6).tolist()
    [1.0, 3.0, 7.0]
    """
    width = clients["x"].shape[1]
    own = np.zeros((len(clients), width + 1))
    own[:, width] = clients["v"].mean()
    for c, (a, b) in enumerate(zip(clients.offsets[:-1], clients.offsets[1:], strict=True)):
        if b > a:
            x, v = clients["x"][a:b].astype(np.float64), clients["v"][a:b]
            middle = x.mean(axis=0)
            own[c, :width] = _ridge(x - middle, v - v.mean(), penalty)
            own[c, width] = v.mean() - middle @ own[c, :width]
    return _by_clients(clients, own)


def with_deviations(clients: Federation, common: Predict, penalty: float) -> Predict:
    """The common model, and of each client the ridge regression (intercept included) of what that leaves.

    >>> fed = Federation({"x": [[0.0], [0.0]], "v": [1.0, 3.0]}, [0, 1, 2])
    >>> with_deviations(fed, lambda rows: np.full(rows.n_rows, 2.0), 1.0)(fed).tolist()
    [1.5, 2.5]
    """
    width = clients["x"].shape[1]
    own, left = np.zeros((len(clients), width + 1)), clients["v"] - common(clients)
    for c, (a, b) in enumerate(zip(clients.offsets[:-1], clients.offsets[1:], strict=True)):
        if b > a:
            x = np.column_stack([clients["x"][a:b].astype(np.float64), np.ones(b - a)])
            own[c] = _ridge(x, left[a:b], penalty)
    deviations = _by_clients(clients, own)
    return lambda rows: common(rows) + deviations(rows)


def _ridge(x: Array, v: Array, penalty: float) -> Array:
    """Coefficients, by the smaller of the two systems."""
    n, width = x.shape
    if n < width:
        return np.asarray(x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(n), v))
    return np.asarray(np.linalg.solve(x.T @ x + penalty * np.eye(width), x.T @ v))


def _by_clients(clients: Federation, own: Array) -> Predict:
    ids = clients.ids

    def predict(rows: Federation) -> Array:
        assert np.array_equal(rows.ids, ids)
        mine = own[rows.client_of_row]
        return np.asarray((rows["x"] * mine[:, :-1]).sum(axis=1) + mine[:, -1])

    return predict


def _classes(clients: Federation, data: Federation | Engine, number: int, rounds: int, seed: int) -> Predict:
    """Each client is one entity: it has one class of coefficients, or shares of several."""
    from fedscape.mixtures import LatentClassRegression

    one = "of_client"  # an entity for all rows of a client
    model = LatentClassRegression(number, features="x", target="v", entity=one, rounds=rounds, seed=seed)
    if isinstance(data, Federation):
        data = data.with_column(one, np.zeros(data.n_rows, dtype=np.int64))
    model.fit(data, progress=False)
    return lambda rows: np.asarray(model.predict(rows.with_column(one, np.zeros(rows.n_rows, dtype=np.int64))))
