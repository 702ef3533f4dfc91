"""Simulate clients from rows without clients, and compare them with the true ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedscape import datasets
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.datasets.sources import ENDINGS
from fedscape.errors import DataError
from fedscape.formats.kinds import Overrules
from fedscape.formats.modelled import with_classes
from fedscape.formats.shuffle import Tasks
from fedscape.mixtures import MixtureOfDirichletMultinomials
from fedscape.simulate import FromMixture, FullyIID, Labels, Recipe, fidelity, plan
from fedscape.simulate.partition import Policy, as_proxy
from fedscape.simulate.sharded import write_clients
from fedscape.statistics.description import describe
from fedscape.studies.intervals import plain
from fedscape.studies.prepare import Prepared
from fedscape.types import Array

LEAST = 20  # clients, to compare distributions
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
    out: Path | None = None,
    overwrite: bool = False,
    tasks: Tasks | None = None,
) -> tuple[Federation, dict[str, Any]]:
    """Simulate clients of a saved population from the rows of a name, file or folder; also return a description.

    A Parquet file needs no client column unless `client` names one. With policy "independent" a folder `out` is written
    shard by shard, by `tasks`, and no step holds the rows of all clients.
    """
    if tasks is not None:
        check_engine(out, policy)
    mixture = MixtureOfDirichletMultinomials.load(population)
    bare = Path(proxy).suffix == ".parquet" and client is None
    columns = overrules or Overrules()
    rows = as_proxy(proxy) if bare else datasets.read(proxy, client=client)
    rows = rows.select([name for name in rows.columns if name not in columns.ignore])
    rows = by_names(rows, column, mixture.category_names_, columns)
    named = mixture.category_names_ is not None and column in rows.names
    modelled = Labels(column, None if named else mixture.concentrations_.shape[1])
    recipe = FromMixture(mixture)
    if out is not None and _in_shards(out, policy):
        how: dict[str, Any] = {"n_clients": n_clients, "column": modelled, "seed": seed, "overwrite": overwrite}
        feasible = write_clients(recipe, rows, out, tasks=tasks, **how)
        fed = Federation.load(out, verify=False)
    else:
        cut = plan(recipe, rows, n_clients=n_clients, column=modelled, seed=seed, policy=cast(Policy, policy))
        fed, feasible = cut.federation(), cut.feasibility
        if out is not None:
            datasets.write(fed, out, overwrite=overwrite)
    return fed, {"feasibility": str(feasible), **describe(fed)}


def check_engine(out: Path | None, policy: str) -> None:
    """Refuse to simulate on an engine what one process has to deal out."""
    if not _in_shards(out, policy):
        raise DataError(
            "an engine simulates clients that do not depend on one another, into a folder: give --policy independent "
            "and --out FOLDER, or leave --engine out"
        )


def _in_shards(out: Path | None, policy: str) -> bool:
    return out is not None and out.suffix not in ENDINGS and policy == "independent"


def by_names(
    rows: Federation, column: str, category_names: Sequence[str] | None, overrules: Overrules | None = None
) -> Federation:
    """Keep the rows that have a class, coded by the population's category names if it has any."""
    if rows[column].ndim > 1:
        return rows
    coded, classes = with_classes(rows, column, overrules=overrules)
    if (
        classes is None
        or category_names is None
        or column in coded.names
        or not set(classes.names) <= set(category_names)
    ):
        return coded  # codes without names match the population's by number
    return coded.with_column(column, coded[column].astype(np.int32), names=classes.names)


def simulating(data: Prepared, mixture: MixtureOfDirichletMultinomials, *, seed: int = 0) -> dict[str, Any]:
    """Compare the true clients with clients of the mixture and with IID ones: {"mixture": ..., "iid": ...}.

    If there are rows, both are drawn from the pooled rows, and also compared by sketches of the features.
    """
    recipes: dict[str, Recipe] = {"mixture": FromMixture(mixture), "iid": FullyIID(data.counts.sum(axis=1))}
    fidelities: dict[str, Any] = {}
    for name, recipe in recipes.items():
        if data.width and data.rows is not None and data.rows.n_rows == data.counts.sum():  # no row left out
            if name == "iid":
                recipe = FullyIID(data.rows.sizes)
            sim = clients_of(data.rows, recipe, len(data.rows), seed=seed)
            about = fidelity(data.rows, sim, features="x", draws=_DRAWS, most=_MOST, seed=seed)
        else:
            about = fidelity(data.counts, _histograms(data, mixture, name, seed), draws=_DRAWS, most=_MOST, seed=seed)
        fidelities[name] = {k: v for k, v in about.table().items() if k != "missing_ids"}
    return cast("dict[str, Any]", plain(fidelities))


def clients_of(rows: Federation, recipe: Recipe, n_clients: int, *, seed: int) -> Federation:
    """Simulate clients from the pooled rows, with a column `row`, the index of each row in the pool.

    Clients share rows of a category that has too few. With `row` no row is both trained and tested on.
    """
    numbered = rows.with_column("row", np.arange(rows.n_rows))
    column = Labels("y", rows.categories("y"))
    return plan(recipe, numbered, n_clients=n_clients, column=column, seed=seed, policy="replace").federation()


def _histograms(data: Prepared, mixture: MixtureOfDirichletMultinomials, name: str, seed: int) -> Array:
    """Label histograms of simulated clients, if there are no rows to draw from."""
    n = len(data.counts)
    if name == "mixture":
        return np.asarray(mixture.sample(n, seed=seed))
    rng = Key(seed, purpose="iid clients of a study").generator()
    pool = data.counts.sum(axis=0) / max(data.counts.sum(), 1)
    return rng.multinomial(rng.choice(data.counts.sum(axis=1), n), pool)
