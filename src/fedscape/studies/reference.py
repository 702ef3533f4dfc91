"""The reference for later checks: profiles of columns, fit of clients to the kinds, bins of a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.formats.kinds import as_numbers
from fedscape.formats.modelled import classes_of, cut_number, cut_points
from fedscape.mixtures import MixtureOfDirichletMultinomials
from fedscape.simulate import self_score
from fedscape.studies.intervals import plain
from fedscape.studies.prepare import OTHER, Prepared
from fedscape.studies.profile import duplicates, profile
from fedscape.types import Array

_MOST = 2000  # clients whose fit is scored
BINS = 50  # a new kind fills the first


def reference(data: Prepared, model: dict[str, Any], *, seed: int) -> dict[str, Any]:
    """The section of a study that `check` compares later data with; it holds no value of a single row."""
    numbers = [
        c.name for c in data.reading.columns if c.kind in ("number", "weight", "array") and c.name != data.column
    ]
    sizes = np.log(np.maximum(data.counts.sum(axis=1), 1))
    section: dict[str, Any] = {
        "columns": profile(data.table, [name for name in numbers if name in data.table]),
        "sizes": moments(sizes),
        "kinds": kinds(data.counts, model, seed=seed),
        "duplicates_most": float(np.ceil(20 * duplicates(data.table).max() - 1e-9) / 20),
    }
    if data.ordered and data.labels and data.reading[data.column].kind in ("number", "weight"):
        values = as_numbers(data.table[data.column], data.table.names.get(data.column))
        section["cuts"] = cut_points(values)
    return plain(section, 9)  # type: ignore[no-any-return]


def moments(values: Array) -> dict[str, Any]:
    """Mean and standard deviation over clients, and their number."""
    finite = values[np.isfinite(values)]
    spread = float(finite.std(ddof=1)) if len(finite) > 1 else None
    return {"mean": float(finite.mean()) if len(finite) else None, "sd": spread, "clients": len(finite)}


def mixture_of(model: dict[str, Any]) -> MixtureOfDirichletMultinomials:
    """Rebuild the mixture from the section model of a result, without size laws."""
    kinds = model["components"]
    scale = np.array([1e9 if kind["scale"] == "multinomial" else float(kind["scale"]) for kind in kinds])
    means = np.maximum(np.array([kind["means"] for kind in kinds], dtype=float), 1e-9)
    mixture = MixtureOfDirichletMultinomials(len(kinds), sizes=None)
    weights = np.maximum([kind["share"]["value"] for kind in kinds], 1e-9)
    mixture.weights_ = weights / weights.sum()
    mixture.concentrations_ = means / means.sum(axis=1, keepdims=True) * scale[:, None]
    mixture.size_laws_, mixture.n_clients_ = None, 0
    mixture.category_names_ = tuple(model["names"])
    return mixture


def kinds(counts: Array, model: dict[str, Any], *, seed: int) -> dict[str, Any]:
    """Score how clients fit the kinds of a model: a histogram of the ranks of their likelihoods among draws from it.

    Ranks are uniform for clients of these kinds, and low for a new kind.
    """
    some = counts[counts.sum(axis=1) > 1]
    if len(some) > _MOST:
        some = some[np.sort(Key(seed, purpose="clients scored").generator().permutation(len(some))[:_MOST])]
    if not len(some):
        return {"ranks": [0] * BINS, "clients": 0}
    clients = Federation({"y": some}, np.arange(len(some) + 1), names={"y": model["names"]})
    score = self_score(mixture_of(model), clients, bins=BINS, draws=99, seed=seed)
    return {"ranks": score.histograms["likelihood"].astype(int), "clients": len(some)}


def counts_against(
    federation: Federation, column: str, names: list[str], cuts: list[float] | None
) -> tuple[Array, float]:
    """Counts [clients, C] of a reference's categories in other data, and the share of rows with other categories."""
    if federation[column].ndim == 2:
        counts = federation.counts(column)
        called = list(map(str, federation.names.get(column) or range(counts.shape[1])))
        codes_names: tuple[str, ...] = tuple(called)
    else:
        if cuts is not None:
            classes = cut_number(as_numbers(federation[column], federation.names.get(column)), column, np.asarray(cuts))
        else:
            classes = classes_of(federation, column)
        labelled = classes.codes >= 0
        rows = federation.select([]).where(labelled).with_column("y", classes.codes[labelled].astype(np.int32))
        counts, codes_names = rows.counts("y", len(classes.names)), classes.names
    out = np.zeros((len(counts), len(names)), dtype=np.int64)
    unknown = 0
    for j, name in enumerate(codes_names):
        if name in names:
            out[:, names.index(name)] += counts[:, j]
        elif OTHER in names:
            out[:, names.index(OTHER)] += counts[:, j]
        else:
            unknown += int(counts[:, j].sum())
    if not out.any():
        raise DataError(
            f"the column {column!r} has none of the categories of the reference, such as {names[0]!r}: check the same "
            "column of the same data"
        )
    return out, unknown / max(float(counts.sum()), 1.0)
