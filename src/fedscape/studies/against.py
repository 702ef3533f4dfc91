"""A reference for the figures of a report: what an earlier study, or a population, says of the same numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.errors import DataError
from fedscape.mixtures import MixtureOfDirichletMultinomials
from fedscape.studies.compare import compare
from fedscape.studies.intervals import plain
from fedscape.studies.prepare import OTHER
from fedscape.studies.result import Study


def is_population(path: Path) -> bool:
    """Whether the path is a saved population rather than a study."""
    if path.is_dir() or path.name == "result.json":
        return False
    if not path.is_file():
        raise DataError(f"no study or population at {path}: 'fedscape study' or 'fedscape fit' writes one")
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise DataError(
            f"{path} is neither a study nor a population: give the folder of 'fedscape study' or the .json of "
            "'fedscape fit'"
        ) from None
    return not (isinstance(content, dict) and "describe" in content)


Reference = Study | MixtureOfDirichletMultinomials


def read_reference(path: Path) -> Reference:
    """Read the folder of a study, or a population that 'fedscape fit' wrote."""
    return MixtureOfDirichletMultinomials.load(path) if is_population(path) else Study.load(path)


def with_reference(study: Study, reference: Reference) -> Study:
    """The same study with a reference beside it, which every figure of its report then shows.

    Only sums of the reference are kept. Its clients are not, and its categories only where this study lists them.

    Parameters
    ----------
    study
        The study to show.
    reference
        An earlier study, or a population of `fedscape fit`.

    >>> from fedscape import datasets, study
    >>> races = datasets.load("acs-race")
    >>> first, second = (study(races.take(slice(a, 80, 2)), progress=False) for a in (0, 1))
    >>> with_reference(second, first).result["against"]["drift"]["p"] > 0.05
    True
    """
    result = study.result
    names = list(result["model"]["names"])
    if isinstance(reference, Study):
        section = _of_study(reference, names, sites=_sites_match(study, reference))
        section["drift"] = compare(reference, study)["drift"]
        if reference.result["about"]["show_clients"] and not result["about"]["show_clients"]:  # rare ones have names
            section["drift"]["moved"] = [row for row in section["drift"]["moved"] if row["category"] in names]
        section["form"] = "study"
    else:
        section = _of_population(reference, names)
        section["form"] = "population"
    section["closest"] = _closest(result["model"]["components"], section["kinds"])
    return Study({**result, "against": plain(section)}, study.seconds)


def _aligned(values: Sequence[float], own: Sequence[str], names: Sequence[str]) -> list[float]:
    """Shares of these categories; what has another name is added to '(all other)' where that is one of them."""
    place = {name: j for j, name in enumerate(names)}
    out = np.zeros(len(names))
    for name, value in zip(own, values, strict=True):
        j = place.get(name, place.get(OTHER))
        if j is not None:
            out[j] += value
    return out.tolist()


def _interval(about: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if about is None or about.get("value") is None:
        return None
    return {key: about[key] for key in ("value", "low", "high")}


def _sites_match(study: Study, reference: Study) -> bool:
    """Whether sites go by their names in both: numbers follow the gains, and mean another site in each."""
    return bool(study.result["about"]["show_clients"] and reference.result["about"]["show_clients"])


def _of_study(reference: Study, names: Sequence[str], *, sites: bool) -> dict[str, Any]:
    result: Any = reference.result
    categories, measured, model = result["describe"]["categories"], result["measure"], result["model"]
    rows = np.asarray(categories["rows"], dtype=float)
    features = measured.get("features", {})
    section: dict[str, Any] = {
        "source": result["about"]["source"],
        "clients": result["describe"]["clients"],
        "sizes": {key: result["describe"]["sizes"][key] for key in ("edges", "clients")},
        "rows": _aligned(rows / max(rows.sum(), 1.0), categories["names"], names),
        "mean_share": _aligned(categories["mean_share"], categories["names"], names),
        "measure": {
            "labels": _interval(measured["labels"]),
            "features": _interval(features),
            "by_labels": _interval(features.get("by_labels")),
            "quantity": _interval(measured["quantity"]),
        },
        "kinds": [
            {
                "kind": kind["kind"],
                "share": _interval(kind["share"]),
                "means": _aligned(kind["means"], model["names"], names),
            }
            for kind in model["components"]
        ],
        "candidates": model["candidates"],
        "fidelity": {
            name: _interval(about)
            for name, about in result.get("simulate", {}).get("mixture", {}).items()
            if isinstance(about, Mapping) and "value" in about
        },
    }
    if "learn" in result:
        section["learn"] = _of_learn(result["learn"], sites)
    if result.get("time"):
        section["time"] = {key: result["time"][key] for key in ("period", "starts", "rows", "clients")}
    return section


def _of_learn(learn: Mapping[str, Any], sites: bool) -> dict[str, Any]:
    section: dict[str, Any] = {
        "methods": {
            row["method"]: {"accuracy": _interval(row["accuracy"]), "gain": _interval(row["gain"])}
            for row in learn["true"]
        },
        "cohorts": [{"clients": row["clients"], "curve": row["curve"]} for row in learn["cohorts"]],
        "by_kind": {kind["kind"]: _interval(kind) for kind in learn["by_kind"]},
    }
    if "joining" in learn:
        section["joining"] = {
            "pooled": _interval(learn["joining"]["pooled"]),
            "sites": {row["site"]: _interval(row["gain"]) for row in learn["joining"]["rows"]} if sites else {},
        }
    return section


def _of_population(population: MixtureOfDirichletMultinomials, names: Sequence[str]) -> dict[str, Any]:
    """What a population says: its kinds and mean shares. It keeps nothing of sizes, features and methods."""
    concentrations = np.asarray(population.concentrations_, dtype=float)
    own = list(map(str, population.category_names_ or range(concentrations.shape[1])))
    if not set(own) & set(names):
        raise DataError(
            f"the population and the study share no category: one has {own[:3]}, the other {list(names)[:3]}; study "
            "the same column"
        )
    means = concentrations / concentrations.sum(axis=1, keepdims=True)
    weights = np.asarray(population.weights_, dtype=float)
    order = np.argsort(-weights, kind="stable")
    return {
        "source": "a population",
        "clients": int(population.n_clients_ or 0),
        "mean_share": _aligned((weights @ means).tolist(), own, names),
        "kinds": [
            {
                "kind": chr(ord("A") + i),
                "share": {"value": float(weights[k]), "low": None, "high": None},
                "means": _aligned(means[k].tolist(), own, names),
            }
            for i, k in enumerate(order.tolist())
        ],
    }


def _closest(kinds: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each kind that of the reference it is nearest to, one to one, by total variation distance of their means."""
    from scipy.optimize import linear_sum_assignment

    means, theirs = (np.array([kind["means"] for kind in group], dtype=float) for group in (kinds, others))
    apart = np.abs(means[:, None, :] - theirs[None, :, :]).sum(axis=2) / 2
    return {
        kinds[i]["kind"]: {"kind": others[j]["kind"], "distance": float(apart[i, j]), "share": others[j]["share"]}
        for i, j in zip(*linear_sum_assignment(apart), strict=True)
    }
