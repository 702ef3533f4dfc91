"""What a latent class regression says about a federation, in plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedscape.engine import Engine, Local
from fedscape.federation import Federation
from fedscape.mixtures._numbers import numbers_of
from fedscape.mixtures.latent_class_regression import LatentClassRegression, Method, column_names


def regression(
    federation: Federation,
    *,
    target: str,
    features: Sequence[str],
    entity: str | None,
    candidates: Sequence[int],
    method: Method = "federated",
    rounds: int = 20,
    alpha: float = 1.0,
    beta: float = 1.0,
    seed: int = 0,
    progress: bool | None = None,
    place: Callable[[Federation], Engine] = Local,
) -> dict[str, Any]:
    """Fit to four fifths of each agent's events, test on the rest, and say what the classes are, the commonest first.

    Rows without a number in any of the columns are left out, and counted; `place` says where the agents live.

    >>> from fedscape import datasets
    >>> about = regression(datasets.load("flights-mini"), target="arr_delay", features=["dep_delay", "distance"],
    ...     entity="tailnum", candidates=[2])
    >>> len(about["classes"]), about["test"]["R2"] > 0.5
    (2, True)
    """
    names = column_names(features)
    whole = np.ones(federation.n_rows, dtype=bool)
    for name in (*names, target):
        values = numbers_of(federation, name)
        if values.dtype.kind == "f":
            whole &= np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    train, test = federation.where(whole).split(test=0.2, seed=seed)
    ks = tuple(candidates)
    model = LatentClassRegression(
        ks if len(ks) > 1 else ks[0],
        alpha=alpha,
        beta=beta,
        method=method,
        rounds=rounds,
        features=names,
        target=target,
        entity=entity,
        seed=seed,
    )
    model.fit(place(train), progress=progress)
    return {
        "target": target,
        "candidates": getattr(model, "candidates_", []),
        "classes": [_class(model, int(k)) for k in np.argsort(-model.weights_)],
        "test": {**_tested(model, test), "sigma": model.sigma_, "rows_left_out": int((~whole).sum())},
    }


def _class(model: LatentClassRegression, k: int) -> dict[str, Any]:
    named = zip(model.feature_names_, model.coefficients_[k], model.errors_[k], strict=True)
    rows = [(name, float(value), float(error)) for name, value, error in named]
    return {
        "share": float(model.weights_[k]),
        "entities": float(model.entities_[k]),
        "events": float(model.events_[k]),
        "intercept": float(model.intercepts_[k]),
        "coefficients": {name: value for name, value, _ in rows},
        "errors": {name: error for name, _, error in rows},
    }


def _tested(model: LatentClassRegression, test: Federation) -> dict[str, float]:
    if not test.n_rows:
        return {"rows": 0}
    y = test[model.target].astype(float)
    error = y - model.predict(test)
    spread = float(((y - y.mean()) ** 2).mean())
    return {
        "rows": test.n_rows,
        "R2": 1 - float((error**2).mean()) / spread if spread > 0 else float("nan"),
        "RMSE": float(np.sqrt((error**2).mean())),
        "log_likelihood": model.score(test),
    }
