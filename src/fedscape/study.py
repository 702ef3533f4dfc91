"""The main job, end to end: what the clients of a federation have in common, and what not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.checkpoint import replace_file
from fedscape.clustering import FederatedKMeans
from fedscape.description import describe
from fedscape.errors import DataError
from fedscape.federation import Federation
from fedscape.ledger import Ledger
from fedscape.privacy import Gaussian, calibrate
from fedscape.random import Array
from fedscape.sampling import All
from fedscape.statistics import Histogram


def study(
    federation: Federation,
    *,
    column: str = "y",
    features: str | None = None,
    epsilon: float = 2.0,
    delta: float = 1e-5,
    seed: int = 0,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Describe a federation, measure how its clients differ, and count its categories privately.

    Parameters
    ----------
    federation
        The clients.
    column
        A column of categories, or of ready counts.
    features
        A column of numbers to cluster by sums; by default "x" where there is one.
    epsilon, delta
        The budget of the private count, with the client as its unit.
    seed
        Everything random but the noise is a function of it.

    Returns
    -------
    A dict of plain numbers, lists and texts: describe, census, clusters (where there are features), seconds.

    >>> from fedscape import datasets
    >>> result = study(datasets.load("acs-race"))
    >>> round(result["describe"]["skew"]["distance"], 3)
    0.22
    """
    if len(federation) < 2:
        raise DataError(
            f"a study needs at least two clients, there is {len(federation)}: the clients are what it compares"
        )
    started = time.perf_counter()
    result: dict[str, Any] = {"describe": describe(federation, column=column, seed=seed)}
    result["census"] = census(federation, column, epsilon=epsilon, delta=delta)
    wanted = features or ("x" if "x" in federation else None)
    if wanted is not None:
        result["clusters"] = clusters(federation, wanted, column, seed=seed, progress=progress)
    result["seconds"] = round(time.perf_counter() - started, 3)
    return result


def census(federation: Federation, column: str, *, epsilon: float, delta: float) -> dict[str, Any]:
    """Count the categories of all clients under client-level privacy, and say how far off the noisy shares are.

    The clip is the 90th percentile of the clients' lengths, read from the data here: right for a simulation. A real
    deployment takes it from a public guess or an AdaptiveClip.
    """
    counts = federation.counts(column)
    lengths = np.linalg.norm(counts, axis=1)
    multiplier = calibrate(epsilon, delta, rounds=1, sampler=All())
    clip = float(max(np.quantile(lengths, 0.9), 1.0))
    model = Histogram(counts.shape[1], column=column)
    exact = model.fit(federation, progress=False).shares_
    ledger = Ledger(epsilon=epsilon, delta=delta)
    private = model.fit(federation, privacy=Gaussian(clip=clip, multiplier=multiplier), ledger=ledger, progress=False)
    spent = ledger.spent()[("client", "add-remove", "central")]
    return {
        "names": list(federation.names.get(column, map(str, range(len(exact))))),
        "exact": _plain(exact),
        "private": _plain(private.shares_),
        "error": round(float(np.abs(exact - private.shares_).sum() / 2), 6),
        "clip": clip,
        "multiplier": multiplier,
        "epsilon": round(spent, 4),
        "delta": delta,
        "unit": "client",
    }


def clusters(
    federation: Federation, features: str, column: str, *, seed: int, progress: bool | None, n_clusters: int = 10
) -> dict[str, Any]:
    """Cluster all rows by sums, and say how unevenly clients use the clusters."""
    model = FederatedKMeans(n_clusters, column=features, seed=seed).fit(federation, progress=progress)
    coded = federation.with_column("cluster", model.predict(federation[features]))
    skew = describe(coded.select(["cluster"]), column="cluster", seed=seed)["skew"]
    return {
        "rounds": len(model.history_),
        "bytes_up": max(model.history_["bytes_up"]),
        "sizes": [int(n) for n in model.sizes_],
        "distance": skew["distance"],
        "iid": skew["iid"],
        "iid_sd": skew["iid_sd"],
    }


def save(result: dict[str, Any], folder: str | os.PathLike[str]) -> Path:
    """Write `result.json` into a folder, which is made where it does not exist."""
    path = Path(folder) / "result.json"
    content = json.dumps(result, indent=1).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made: {error.strerror}") from None
    replace_file(path, lambda file: file.write(content))
    return path


def _plain(values: Array) -> list[float]:
    return [round(float(value), 6) for value in values]
