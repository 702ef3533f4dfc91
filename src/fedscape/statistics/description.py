"""Describe a federation: sizes, columns, and the label skew of one column."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.formats.kinds import Overrules, as_numbers, kind_of
from fedscape.formats.modelled import with_classes
from fedscape.types import Array


def describe(
    federation: Federation, *, column: str | None = None, overrules: Overrules | None = None, seed: int = 0
) -> dict[str, Any]:
    """Describe clients, sizes and columns with their kinds; for one column also its skew over the clients.

    Parameters
    ----------
    federation
        The Federation to describe.
    column
        A column of classes or count vectors, or a number, which is binned into five classes.
    overrules
        Column kinds set by hand.
    seed
        Seed of the reference draws.

    >>> described = describe(Federation({"y": [0, 0, 1, 1]}, [0, 2, 4]), column="y")
    >>> described["clients"], described["skew"]["distance"]
    (2, 0.5)
    """
    rules = overrules or Overrules()
    sizes = federation.sizes
    about: dict[str, Any] = {
        "clients": len(federation),
        "rows": federation.n_rows,
        "clients_without_rows": int((sizes == 0).sum()),
        "rows_per_client": _spread(sizes) if len(sizes) else {},
        "columns": [_column(federation, name, rules) for name in federation.columns],
    }
    if column is not None:
        coded, classes = with_classes(federation, column, overrules=rules)
        about["skew"] = label_skew(coded.counts(column), seed=seed)
        about["skew"]["column"] = column
        if classes is not None and classes.remark:
            about["skew"]["remark"] = classes.remark
    return about


def label_skew(counts: Array, *, seed: int = 0, draws: int = 20) -> dict[str, Any]:
    """The mean distance of clients' histograms to the pooled one, beside clients of the same sizes without skew.

    The distance is the mean over clients of the total variation distance (half the L1 distance) to the pooled shares.
    A small client is far from the pool by chance alone. `iid` is the distance for clients of these sizes drawn from the
    pool, with its standard deviation over draws.

    Parameters
    ----------
    counts
        [clients, categories].
    seed
        Seed of the reference draws.
    draws
        Number of reference populations.

    >>> label_skew(np.array([[8, 0], [0, 8]]))["distance"]
    0.5
    """
    filled = counts[counts.sum(axis=1) > 0]
    if not len(filled):
        raise DataError("no client has a row in this column, so there is no skew to measure")
    pool = filled.sum(axis=0) / filled.sum()
    rng = Key(seed, purpose="iid reference").generator()
    sizes = filled.sum(axis=1)
    reference = [_distance(rng.multinomial(sizes, pool), pool) for _ in range(draws)]
    return {
        "distance": round(_distance(filled, pool), 6),
        "iid": round(float(np.mean(reference)), 6),
        "iid_sd": round(float(np.std(reference)), 6),
        "categories": int(counts.shape[1]),
        "categories_per_client": _spread((counts > 0).sum(axis=1)),
    }


def _distance(counts: Array, pool: Array) -> float:
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - pool).sum(axis=1).mean() / 2)


def _spread(values: Array) -> dict[str, float]:
    low, first, middle, third, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    named = {"min": low, "q1": first, "median": middle, "q3": third, "max": high, "mean": values.mean()}
    return {name: round(float(value), 3) for name, value in named.items()}


def _column(federation: Federation, name: str, overrules: Overrules) -> dict[str, Any]:
    values, names = federation[name], federation.names.get(name)
    kind = kind_of(name, values, names if values.ndim == 1 else None, overrules=overrules)
    about: dict[str, Any] = {
        "name": name,
        "kind": kind.kind,
        "type": str(values.dtype),
        "shape": list(values.shape[1:]),
    }
    about["missing"] = kind.missing
    if names is not None and values.ndim > 1:
        about["categories"] = len(names)
    elif kind.kind in ("class", "ordered", "constant"):
        about["categories"] = kind.distinct
    if kind.kind in ("number", "weight") and names is not None and values.ndim == 1:
        values, names, about["type"] = as_numbers(values, names), None, "text"
    if values.size and values.dtype.kind in "biuf" and (names is None or values.ndim > 1):
        finite = values if values.dtype.kind != "f" else values[np.isfinite(values)]
        if finite.size:
            about |= {"min": float(finite.min()), "max": float(finite.max()), "mean": round(float(finite.mean()), 6)}
    return about
