"""Clients like the true ones, cut from rows without clients, and how alike they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedscape import datasets
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.formats.kinds import Overrules
from fedscape.formats.modelled import with_classes
from fedscape.mixtures import MixtureOfDirichletMultinomials
from fedscape.simulate import FromMixture, FullyIID, Labels, Recipe, fidelity, plan
from fedscape.simulate.partition import Policy, as_proxy
from fedscape.statistics.description import describe
from fedscape.studies.intervals import plain
from fedscape.studies.prepare import Prepared
from fedscape.types import Array

LEAST = 20  # clients, for a comparison of laws
_DRAWS = 200
_MOST = 1000


def simulated(
    proxy: str | os.PathLike[str],
    population: str | os.PathLike[str],
    *,
    n_clients: int,
    column: str = "y",
    policy: str = "refuse",
    client: str | None = None,
    overrules: Overrules | None = None,
    seed: int = 0,
) -> tuple[Federation, dict[str, Any]]:
    """Clients of a saved population cut from the rows of a name, file or folder: the clients, and what was done.

    A Parquet file needs no client column unless `client` names one.
    """
    made = MixtureOfDirichletMultinomials.load(population)
    bare = Path(proxy).suffix == ".parquet" and client is None
    said = overrules or Overrules()
    rows = as_proxy(proxy) if bare else datasets.read(proxy, client=client)
    rows = rows.select([name for name in rows.columns if name not in said.ignore])
    rows = by_names(rows, column, made.category_names_, said)
    named = made.category_names_ is not None and column in rows.names
    modelled = Labels(column, None if named else made.concentrations_.shape[1])
    recipe = FromMixture(made)
    cut = plan(recipe, rows, n_clients=n_clients, column=modelled, seed=seed, policy=cast(Policy, policy))
    fed = cut.federation()
    about = describe(fed)
    return fed, {"feasibility": str(cut.feasibility), **about}


def by_names(
    rows: Federation, column: str, known: Sequence[str] | None, overrules: Overrules | None = None
) -> Federation:
    """The rows that have a class, as codes whose names are the population's, where that has names."""
    if rows[column].ndim > 1:
        return rows
    coded, classes = with_classes(rows, column, overrules=overrules)
    if classes is None or known is None or column in coded.names or not set(classes.names) <= set(known):
        return coded  # codes 0, 1, ... without names are those of the population by number
    return coded.with_column(column, coded[column].astype(np.int32), names=classes.names)


def simulating(data: Prepared, mixture: MixtureOfDirichletMultinomials, *, seed: int = 0) -> dict[str, Any]:
    """How alike the true clients are to clients of the mixture and to fully IID ones: {"mixture": ..., "iid": ...}.

    Where rows are known both are cut from all rows together, and compared by sketches of the features too.
    """
    recipes: dict[str, Recipe] = {"mixture": FromMixture(mixture), "iid": FullyIID(data.counts.sum(axis=1))}
    made: dict[str, Any] = {}
    for name, recipe in recipes.items():
        if data.width and data.rows is not None and data.rows.n_rows == data.counts.sum():  # no row left out
            if name == "iid":
                recipe = FullyIID(data.rows.sizes)
            sim = clients_of(data.rows, recipe, len(data.rows), seed=seed)
            about = fidelity(data.rows, sim, features="x", draws=_DRAWS, most=_MOST, seed=seed)
        else:
            about = fidelity(data.counts, _histograms(data, mixture, name, seed), draws=_DRAWS, most=_MOST, seed=seed)
        made[name] = {k: v for k, v in about.table().items() if k != "missing_ids"}
    return cast("dict[str, Any]", plain(made))


def clients_of(rows: Federation, recipe: Recipe, n_clients: int, *, seed: int) -> Federation:
    """Simulated clients cut from all rows together, with `row`, the place of each of their rows among these.

    Clients share rows of a category that has too few. `row` says which, so no row that was trained on is tested on.
    """
    numbered = rows.with_column("row", np.arange(rows.n_rows))
    column = Labels("y", rows.categories("y"))
    return plan(recipe, numbered, n_clients=n_clients, column=column, seed=seed, policy="replace").federation()


def _histograms(data: Prepared, mixture: MixtureOfDirichletMultinomials, name: str, seed: int) -> Array:
    """Label histograms of simulated clients, where there are no rows to cut them from."""
    n = len(data.counts)
    if name == "mixture":
        return np.asarray(mixture.sample(n, seed=seed))
    rng = Key(seed, purpose="iid clients of a study").generator()
    pool = data.counts.sum(axis=0) / max(data.counts.sum(), 1)
    return rng.multinomial(rng.choice(data.counts.sum(axis=1), n), pool)
