"""Fit and describe a latent class regression of a federation, in plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from fedscape.core.engine import Engine, Local
from fedscape.core.federation import Federation
from fedscape.core.validate import column_names
from fedscape.errors import DataError, plural
from fedscape.formats.kinds import as_numbers, kind_of
from fedscape.mixtures.latent_class.model import LatentClassRegression, Link, Method
from fedscape.mixtures.numbers import numbers_of
from fedscape.types import Array

Fill = Literal["drop", "mean", "median"]
FILLS: tuple[str, ...] = get_args(Fill)


def regression(
    federation: Federation,
    *,
    target: str,
    features: Sequence[str],
    entity: str | None,
    candidates: Sequence[int],
    method: Method = "federated",
    link: Link = "identity",
    rounds: int = 20,
    chains: int = 1,
    alpha: float | None = 1.0,
    beta: float | None = 1.0,
    fill: Fill = "drop",
    seed: int = 0,
    progress: bool | None = None,
    place: Callable[[Federation], Engine] = Local,
) -> tuple[LatentClassRegression, dict[str, Any]]:
    """Fit to four fifths of each agent's events, test on the rest, and describe the classes, the most common first.

    `fill` handles missing features: "drop" drops the row; "mean" and "median" are those of the training rows, kept with
    the model as `fills_`. Rows without a target are always dropped; dropped rows are counted. `place` builds the engine
    of the agents.

    >>> from fedscape import datasets
    >>> _, about = regression(datasets.load("flights-mini"), target="arr_delay", features=["dep_delay", "distance"],
    ...     entity="tailnum", candidates=[2])
    >>> len(about["classes"]), about["test"]["R2"] > 0.5
    (2, True)
    """
    names = column_names(features, target=target)
    federation = _as_numbers(federation, [*names, target])
    if fill not in FILLS:
        raise DataError(f"fill must be one of {', '.join(FILLS)}, not {fill!r}")
    whole = _whole(federation, [target] if fill != "drop" else [*names, target])
    train, test = federation.where(whole).split(test=0.2, seed=seed)
    fills = _fills(train, names, fill)
    train, test = _filled(train, fills), _filled(test, fills)
    ks = tuple(candidates)
    model = LatentClassRegression(
        ks if len(ks) > 1 else ks[0],
        alpha=alpha,
        beta=beta,
        method=method,
        link=link,
        rounds=rounds,
        chains=chains,
        features=names,
        target=target,
        entity=entity,
        seed=seed,
    )
    model.fit(place(train), progress=progress)
    if fills:
        model.fills_ = fills
    about = {
        "target": target,
        "link": link,
        "candidates": getattr(model, "candidates_", []),
        "classes": [_class(model, int(k)) for k in np.argsort(-model.weights_)],
        "test": {**_tested(model, test), "sigma": model.sigma_, "rows_left_out": int((~whole).sum())},
    }
    if hasattr(model, "r_hat_"):
        about["r_hat"] = float(model.r_hat_.max())
        about["late_draws"] = rounds - rounds // 2  # per chain, for R-hat
    return model, about


def _class(model: LatentClassRegression, k: int) -> dict[str, Any]:
    f = len(model.feature_names_)
    named = zip(model.feature_names_, model.coefficients_[k], model.errors_[k], model.intervals_[k][:f], strict=True)
    rows = [(name, float(value), float(error), ends.tolist()) for name, value, error, ends in named]
    return {
        "share": float(model.weights_[k]),
        "entities": float(model.entities_[k]),
        "events": float(model.events_[k]),
        "intercept": float(model.intercepts_[k]),
        "coefficients": {name: value for name, value, _, _ in rows},
        "errors": {name: error for name, _, error, _ in rows},
        "intervals": {name: ends for name, _, _, ends in rows},
    }


def predictions(model: LatentClassRegression, federation: Federation) -> tuple[dict[str, Array], dict[str, Any]]:
    """Predict each event: `prediction` and `deviation`, and a summary.

    An event with a missing number has no prediction (NaN). If the target is present, the summary has the error.

    Parameters
    ----------
    model
        A fitted regression.
    federation
        Events with the features, and the entity column if the regression has one.
    """
    names = column_names(model.features, target=model.target)
    federation = _filled(_as_numbers(federation, [*names, model.target]), getattr(model, "fills_", {}))
    whole = _whole(federation, names)
    columns = {name: np.full(federation.n_rows, np.nan) for name in ("prediction", "deviation")}
    if whole.any():
        columns["prediction"][whole], columns["deviation"][whole] = model.predict(
            federation.where(whole), return_std=True
        )
    left_out = int((~whole).sum())
    about: dict[str, Any] = {"method": "regression", "target": model.target, "rows": federation.n_rows}
    about |= {"clients": len(federation), "rows_without_prediction": left_out}
    about["remarks"] = [f"{plural(left_out, 'row')} without a number and so without a prediction"] if left_out else []
    if model.target in federation and model.target not in federation.names:
        complete = whole & _whole(federation, [model.target])
        if complete.any():
            error = federation[model.target][complete].astype(float) - columns["prediction"][complete]
            about |= {"RMSE": float(np.sqrt((error**2).mean())), "labelled_rows": int(complete.sum())}
    return columns, about


def _as_numbers(federation: Federation, names: Sequence[str]) -> Federation:
    """Parse texts that are nearly all numbers, with the others missing; findings name the rows."""
    for name in names:
        values, texts = federation.columns.get(name), federation.names.get(name)
        if values is None or values.ndim != 1 or texts is None:
            continue
        if kind_of(name, values, texts).kind in ("number", "weight"):
            federation = federation.with_column(name, as_numbers(values, texts))
    return federation


def _fills(train: Federation, names: Sequence[str], fill: Fill) -> dict[str, list[float]]:
    """Fill values for each feature with missing numbers, learned from the training rows."""
    fills: dict[str, list[float]] = {}
    for name in names if fill != "drop" else ():
        values = numbers_of(train, name)
        if values.dtype.kind != "f":
            continue
        cells = np.where(np.isfinite(values), values, np.nan).reshape(len(values), -1)
        if not np.isfinite(cells).any(axis=0).all():
            raise DataError(
                f"--fill {fill} needs a number of {name!r} in some training row: leave it out of --features"
            )
        fills[name] = (np.nanmean if fill == "mean" else np.nanmedian)(cells, axis=0).tolist()
    return fills


def _filled(federation: Federation, fills: Mapping[str, Sequence[float]]) -> Federation:
    """Fill in missing features; a fill has one number for each of a row's cells."""
    for name, fill in fills.items():
        if name not in federation:
            continue
        values = numbers_of(federation, name).astype(np.float64)
        if not np.isfinite(values).all():
            stand_in = np.reshape(np.asarray(fill), values.shape[1:])
            values = np.where(np.isfinite(values), values, stand_in)
            federation = federation.with_column(name, values)
    return federation


def _whole(federation: Federation, names: Sequence[str]) -> Array:
    """Which rows have a number in each of these columns."""
    whole = np.ones(federation.n_rows, dtype=bool)
    for name in names:
        values = numbers_of(federation, name)
        if values.dtype.kind == "f":
            whole &= np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return whole


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
