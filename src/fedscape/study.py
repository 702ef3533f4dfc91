"""The main job, end to end: what the clients of a federation have in common, and what not."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedscape import datasets
from fedscape.checkpoint import replace_file
from fedscape.clustering import FederatedKMeans
from fedscape.description import describe
from fedscape.engine import Engine, Local
from fedscape.errors import DataError
from fedscape.federation import Federation
from fedscape.ledger import Ledger
from fedscape.mixtures import MixtureOfDirichletMultinomials, choose_components
from fedscape.mixtures._dm_rounds import Solver
from fedscape.privacy import Gaussian, calibrate
from fedscape.random import Array
from fedscape.sampling import All
from fedscape.simulate import FromMixture, FullyIID, Labels, Recipe, fidelity, plan
from fedscape.simulate.plan import Policy, as_proxy
from fedscape.sketches import DistributionSketch, heterogeneity
from fedscape.statistics import Histogram

_CELLS = 2**25


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
    """Describe a federation, count its categories privately, model its kinds of clients, and simulate them.

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
    A dict of plain numbers, lists and texts: describe, census, population, simulated (fidelity of clients of the
    mixture and of IID clients, given 20 clients), features and clusters (given features), seconds.

    >>> from fedscape import datasets
    >>> result = study(datasets.load("acs-race"))
    >>> round(result["describe"]["skew"]["distance"], 3)
    0.22
    """
    if len(federation) < 2:
        raise DataError(f"a study compares clients and needs at least two of them, there is {len(federation)}")
    started = time.perf_counter()
    result: dict[str, Any] = {"describe": describe(federation, column=column, seed=seed)}
    result["census"] = census(federation, column, epsilon=epsilon, delta=delta)
    candidates = range(1, min(4, len(federation) // 5) + 1) or [1]
    mixture, result["population"] = population(federation, column, candidates=candidates, seed=seed, progress=progress)
    if len(federation) >= 20:
        result["simulated"] = likeness(federation, column, mixture, seed=seed)
    wanted = features or ("x" if "x" in federation else None)
    if wanted is not None:
        result["features"] = measure(federation, wanted, seed=seed)
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


def population(
    federation: Federation,
    column: str,
    *,
    candidates: Sequence[int],
    solver: str = "exact",
    n_init: int = 4,
    rounds: int = 30,
    seed: int = 0,
    progress: bool | None = None,
    place: Callable[[Federation], Engine] = Local,
) -> tuple[MixtureOfDirichletMultinomials, dict[str, Any]]:
    """Model the kinds of clients, choosing how many by clients held out: the mixture, and what it says.

    `place` says where the clients live.

    >>> from fedscape import datasets
    >>> made, about = population(datasets.load("acs-race"), "y", candidates=[2])
    >>> len(about["components"])
    2
    """
    mixture = MixtureOfDirichletMultinomials(
        candidates[0], solver=cast(Solver, solver), n_init=n_init, rounds=rounds, column=column, seed=seed
    )
    tried, engine = [], place(federation)
    if len(candidates) > 1:
        choice = choose_components(mixture, engine, candidates=candidates, progress=progress)
        mixture = MixtureOfDirichletMultinomials(**{**mixture.get_params(), "n_components": choice.n_components})
        tried = [
            {"components": k, "score": round(float(s), 4), "behind": round(float(b), 4), "error": round(float(e), 4)}
            for k, s, b, e in zip(choice.candidates, choice.scores, choice.behind, choice.errors, strict=True)
        ]
    mixture.fit(engine, progress=progress)
    names = federation.names.get(column) or [str(i) for i in range(mixture.concentrations_.shape[1])]
    sizes = federation.counts(column).sum(axis=1)
    shares = mixture.predict_proba(federation)
    about = {
        "candidates": tried,
        "components": [
            _component(mixture, k, names, float(shares[:, k] @ sizes / max(shares[:, k].sum(), 1e-9)))
            for k in range(mixture.n_components)
        ],
        "log_likelihood": round(float(mixture.log_likelihood_), 4),
        "rounds": len(mixture.history_),
        "bytes_up": int(max(mixture.history_["bytes_up"])),
    }
    return mixture, about


def _component(mixture: MixtureOfDirichletMultinomials, k: int, names: Sequence[str], size: float) -> dict[str, Any]:
    alpha = mixture.concentrations_[k]
    mean = alpha / alpha.sum()
    top = np.argsort(-mean)[:5]
    return {
        "weight": round(float(mixture.weights_[k]), 4),
        "scale": "multinomial" if alpha.sum() > 1e9 else float(f"{alpha.sum():.4g}"),
        "mean_size": round(size, 1),
        "most": ", ".join(f"{names[j]} {mean[j]:.1%}" for j in top),
    }


def measure(federation: Federation, features: str, *, seed: int = 0) -> dict[str, Any]:
    """How far clients are apart in their features, by sketches: one number, its interval, and the IID reference."""
    if (federation.sizes >= 2).sum() < 2:
        return {"clients": int((federation.sizes >= 2).sum())}
    bits, most = 4, _CELLS // (16 * len(federation))  # all clients' sketches are in memory at once
    rows = max(4, min(int(np.ceil(np.sqrt(federation.n_rows))), 1000, most))
    sketch = DistributionSketch(rows, bits=bits, column=features, centre="mean", seed=seed)
    sketches = sketch.fit(federation, progress=False).transform(federation)
    found = heterogeneity(sketches, federation.sizes)
    shape = {"rows": rows, "cells": 2**bits}
    return {**{name: round(value, 6) for name, value in asdict(found).items()}, **shape}


def draw(path: str | os.PathLike[str], n_clients: int, *, seed: int = 0) -> Federation:
    """New clients from a saved population: one row of counts each, in the column y."""
    if n_clients < 1:
        raise DataError(f"at least one client must be drawn, not {n_clients}")
    made = MixtureOfDirichletMultinomials.load(path)
    names = None if made.category_names_ is None else {"y": made.category_names_}
    return Federation({"y": made.sample(n_clients, seed=seed)}, np.arange(n_clients + 1), names=names)


def simulated(
    proxy: str | os.PathLike[str],
    population: str | os.PathLike[str],
    *,
    n_clients: int,
    column: str = "y",
    policy: str = "refuse",
    client: str | None = None,
    seed: int = 0,
) -> tuple[Federation, dict[str, Any]]:
    """Clients of a saved population cut from the rows of a name, file or folder: the clients, and what was done.

    A Parquet file needs no client column unless `client` names one.
    """
    made = MixtureOfDirichletMultinomials.load(population)
    bare = Path(proxy).suffix == ".parquet" and client is None
    rows = as_proxy(proxy) if bare else datasets.read(proxy, client=client)
    named = made.category_names_ is not None and column in rows.names
    modelled = Labels(column, None if named else made.concentrations_.shape[1])
    recipe = FromMixture(made)
    cut = plan(recipe, rows, n_clients=n_clients, column=modelled, seed=seed, policy=cast(Policy, policy))
    fed = cut.federation()
    about = describe(fed)
    return fed, {"feasibility": str(cut.feasibility), **about}


def likeness(
    federation: Federation, column: str, mixture: MixtureOfDirichletMultinomials, *, seed: int
) -> dict[str, Any]:
    """Clients of the mixture and fully IID clients, both cut from all rows together, compared with the true ones."""
    rows = federation[column]
    counts = federation.counts(column)
    if rows.ndim == 2:  # ready counts: as many rows of each category
        rows = np.repeat(np.arange(counts.shape[1]), counts.sum(axis=0))
    proxy, n, most = Federation({"y": rows}, [0, len(rows)]), len(federation), mixture.concentrations_.shape[1]
    recipes: dict[str, Recipe] = {"mixture": FromMixture(mixture), "iid": FullyIID(counts.sum(axis=1))}
    true = Federation({"y": counts}, np.arange(n + 1), ids=federation.ids)
    made: dict[str, Any] = {}
    for name, recipe in recipes.items():
        sim = plan(recipe, proxy, n_clients=n, column=Labels("y", most), seed=seed, policy="replace").federation()
        made[name] = fidelity(true, sim, draws=100, most=1000, seed=seed).table()
    return made


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
