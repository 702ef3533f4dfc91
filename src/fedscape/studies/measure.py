"""Heterogeneity of clients: in labels, in features, in features given labels, and in size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.simulate import ConditionallyIID, Labels, plan
from fedscape.sketches import DistributionSketch, heterogeneity, pairwise
from fedscape.statistics.description import label_skew
from fedscape.studies.between_sites import interval_over_rows, label_parts, sketch_parts
from fedscape.studies.intervals import gini_interval, plain
from fedscape.studies.prepare import Prepared
from fedscape.types import Array

_CELLS = 2**25
_MOST_SKETCH_ROWS = 256
_WORK = 2e10  # multiplications for the sketches of all rows: a few seconds
_ON_MAP = 600


def measure(data: Prepared, *, seed: int = 0, sites: bool = False) -> dict[str, Any]:
    """Label, feature and quantity skew, each with its interval and the value of IID clients.

    Intervals are over clients; of a few `sites`, which are all there are, over the rows inside each.

    >>> from fedscape import datasets
    >>> from fedscape.studies.prepare import prepare
    >>> round(measure(prepare(datasets.load("acs-race")))["labels"]["value"], 3)
    0.157
    """
    section: dict[str, Any] = {
        "labels": _labels(data.counts, seed, sites),
        "quantity": _quantity(data.counts.sum(axis=1), sites),
    }
    shown = _on_map(len(data.counts), seed)
    maps = {"labels": _map(_shares(data.counts)[shown], data.counts.sum(axis=1)[shown])}
    maps["labels"] |= directions(data.counts[shown], maps["labels"]["points"], data.names)
    if data.rows is not None and "x" in data.rows:
        about, sketches = sketched(data.rows, "x", seed=seed, sites=sites)
        section["features"] = about
        if sketches is not None:
            maps["features"] = _map(sketches[shown], data.rows.sizes[shown])
            if data.labels:
                about["by_labels"] = _by_labels(data, seed, sites)
    section["map"] = {"clients": shown.tolist(), **{name: plain(points, 4) for name, points in maps.items()}}
    rounded: dict[str, Any] = plain({k: v for k, v in section.items() if k != "map"})
    return rounded | {"map": section["map"]}


def sketched(
    federation: Federation, features: str, *, seed: int = 0, sites: bool = False
) -> tuple[dict[str, Any], Array | None]:
    """Heterogeneity of a numeric column by sketches: value, interval, IID reference; also the sketches."""
    if (federation.sizes >= 2).sum() < 2:
        return {"clients": int((federation.sizes >= 2).sum())}, None
    bits, most = 4, _CELLS // (16 * len(federation))  # the sketches of all clients are in memory at once
    work = int(_WORK // max(federation[features].size * bits, 1))
    rows = max(4, min(int(np.ceil(np.sqrt(federation.n_rows))), max(work, 32), _MOST_SKETCH_ROWS, most))
    sketch = DistributionSketch(rows, bits=bits, column=features, centre="mean", seed=seed)
    sketches = sketch.fit(federation, progress=False).transform(federation)
    about = asdict(heterogeneity(sketches, federation.sizes))
    if sites:
        parts, counts = sketch_parts(federation, sketch, seed=seed), sketches * federation.sizes[:, None, None]
        about["low"], about["high"] = interval_over_rows(counts, parts, about["value"])
    return plain({**about, "rows": rows, "cells": 2**bits}), sketches


def _shares(counts: Array) -> Array:
    """Label histograms as sketches of one row: [clients, 1, C]."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))[:, None, :]


def _labels(counts: Array, seed: int, sites: bool) -> dict[str, Any]:
    skew = label_skew(counts, seed=seed)
    about = {"tvd": skew["distance"], "tvd_iid": skew["iid"], "tvd_iid_sd": skew["iid_sd"]}
    about |= {"categories": skew["categories"], "categories_per_client": skew["categories_per_client"]}
    sizes = counts.sum(axis=1)
    if (sizes >= 2).sum() >= 2:
        about |= asdict(heterogeneity(_shares(counts), sizes))
        if sites:
            about["low"], about["high"] = interval_over_rows(counts[:, None, :], label_parts(counts), about["value"])
    return about


def _quantity(sizes: Array, sites: bool) -> dict[str, Any]:
    numbers = sizes.astype(float)
    effective = numbers.sum() ** 2 / max((numbers**2).sum(), 1e-12)
    about = gini_interval(numbers)
    if sites:
        about |= {"low": None, "high": None}  # the sizes are known
    return {**about, "effective_clients": float(effective), "clients": len(sizes)}


def _by_labels(data: Prepared, seed: int, sites: bool) -> dict[str, Any]:
    """Heterogeneity of features after permuting rows within each label: the part that labels explain."""
    assert data.rows is not None  # checked by the caller
    counts = data.rows.counts("y")
    column = Labels("y", counts.shape[1])
    swapped = plan(ConditionallyIID(counts), data.rows, column=column, seed=seed).federation()
    return sketched(swapped, "x", seed=seed, sites=sites)[0]


def _on_map(n: int, seed: int) -> Array:
    if n <= _ON_MAP:
        return np.arange(n)
    return np.sort(Key(seed, purpose="clients on the map").generator().permutation(n)[:_ON_MAP])


def directions(counts: Array, points: Array, names: Sequence[str]) -> dict[str, Any]:
    """What the map of labels means: `axes` [2, C + 1] that place shares on it, the constant last, and `toward`.

    Classical scaling of distances between shares is a projection of the shares: least squares finds it. `toward` names
    the categories that clients to the right, and to the top, have most and least of.
    """
    kept = np.isfinite(points[:, 0])
    if kept.sum() < 3:
        return {}
    shares = counts[kept] / counts[kept].sum(axis=1, keepdims=True)
    centre = shares.mean(axis=0)
    weights = np.linalg.pinv(shares - centre, rcond=1e-6) @ (points[kept] - points[kept].mean(axis=0))
    axes = np.concatenate([weights.T, (points[kept].mean(axis=0) - centre @ weights)[:, None]], axis=1)
    return {"axes": axes, "toward": [[names[int(w.argmax())], names[int(w.argmin())]] for w in weights.T]}


def _map(sketches: Array, sizes: Array) -> dict[str, Any]:
    """Classical scaling of the debiased squared distances to 2-D; clients with fewer than two rows have no point."""
    kept = np.flatnonzero(sizes >= 2)
    points = np.full((len(sizes), 2), np.nan)
    explained = 0.0
    if len(kept) >= 3:
        squares = np.asarray(pairwise(sketches[kept], sizes=sizes[kept], squared=True), dtype=float)
        centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
        values, vectors = np.linalg.eigh(-(centred + centred.T) / 4)
        two = np.maximum(values[::-1][:2], 0)
        explained = float(two.sum() / max(np.maximum(values, 0).sum(), 1e-300))
        axes = vectors[:, ::-1][:, :2] * np.sqrt(two)
        signs = np.where(
            axes[np.abs(axes).argmax(axis=0), np.arange(2)] < 0, -1.0, 1.0
        )  # fix the sign of the eigenvectors
        points[kept] = axes * signs / np.sqrt(sketches.shape[1])
    return {"points": points, "explained": explained}
