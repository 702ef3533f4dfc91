"""Commands that simulate clients from server data and compare them with true clients."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import (
    Address,
    Categorical,
    Client,
    EngineName,
    Force,
    Ignore,
    Json,
    Names,
    Numeric,
    Seed,
    Workers,
    free,
    overrules,
    placing,
)
from fedscape.cli.show import show, table

Label = Annotated[str, typer.Option("--column", help="The column of categories to model.")]


def simulate(
    proxy: Annotated[str, typer.Argument(help="The server's rows: a name, a file or a folder; clients are ignored.")],
    population: Annotated[Path, typer.Option(help="A .json file that 'fedscape fit' wrote.")],
    clients: Annotated[int, typer.Option(help="Number of clients to simulate.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="Where to write them: .parquet, .json (LEAF) or a folder.")] = None,
    column: Label = "y",
    policy: Annotated[
        str, typer.Option(help="If a category has too few rows: refuse, replace, scale, or independent.")
    ] = "refuse",
    client: Client = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    names: Names = None,
    force: Force = False,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Simulate clients like the true ones from data without clients."""
    from fedscape.studies.fidelity import check_engine, simulated

    free(out, force)
    placing(engine, address, workers)  # refuse options that do not go together
    with contextlib.ExitStack() as opened:
        tasks = None
        if engine == "ray":
            from fedscape.engines.ray.shuffle import tasks_on

            check_engine(out, policy)
            tasks = opened.enter_context(tasks_on(address, workers))
        about = simulated(
            proxy, population, n_clients=clients, column=column, policy=policy, client=client,
            overrules=overrules(categorical, numeric, ignore, names=names), seed=seed,
            out=None if out is None else out.absolute(), overwrite=force, tasks=tasks,
        )[1]  # fmt: skip
    show(about, json_, _clients_for_people)


def fidelity(
    true: Annotated[str, typer.Argument(help="The true clients: a name, a file or a folder.")],
    simulated: Annotated[str, typer.Argument(help="The simulated clients: a name, a file or a folder.")],
    column: Label = "y",
    features: Annotated[str | None, typer.Option(help="A numeric column to compare by sketches as well.")] = None,
    client: Client = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    names: Names = None,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Measure how alike true and simulated clients are: the misfit with its interval, then a p-value."""
    from fedscape.formats.modelled import with_same_classes
    from fedscape.simulate import fidelity as compared

    columns = overrules(categorical, numeric, ignore, names=names)
    engine_for = placing(engine, address, workers)
    both = [
        datasets.read_table(source, client=client, overrules=columns, sample=seed, engine_for=engine_for)[0]
        for source in (true, simulated)
    ]
    both = with_same_classes(both, column, overrules=columns)
    show(
        compared(both[0], both[1], column=column, features=features, seed=seed, engine_for=engine_for).table(),
        json_,
        fidelity_table,
    )


def _clients_for_people(about: dict[str, Any]) -> None:
    typer.echo(f"rows: {about['feasibility']}")
    sizes = about["rows_per_client"]
    names = ["clients", "rows", "smallest", "median", "largest"]
    row = [about["clients"], about["rows"], sizes["min"], sizes["median"], sizes["max"]]
    table("simulated clients", names, [row])


def fidelity_table(about: dict[str, Any]) -> None:
    """Print the measures, the misfit first."""
    titles = {
        "misfit": "misfit of matched clients (ranks simulators)",
        "auc": "classifier AUC (0.5: indistinguishable)",
        "distance": "distribution of distances to the pooled data",
        "size": "distribution of sizes, in units of the mean",
        "pool": "pooled rows, total variation",
        "sketch": "sketches, energy distance",
    }
    rows = [
        [titles[name], *(f"{m[part]:.4g}" for part in ("value", "low", "high", "alike", "p"))]
        for name, m in about.items()
        if name in titles
    ]
    table("true against simulated clients", ["misfit", "value", "from", "to", "if alike", "p"], rows)
    missing = ", ".join(map(str, about["missing_ids"][:5])) or "none"
    typer.echo(
        f"not represented: {about['missing']:.1%} of the true clients ({missing}); "
        f"invented: {about['invented']:.1%} of the simulated"
    )
