"""Commands that describe a federation and model its population of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedscape import datasets
from fedscape.cli.options import (
    Address,
    Categorical,
    Client,
    Column,
    EngineName,
    Force,
    Ignore,
    Json,
    Names,
    Numeric,
    Quiet,
    Seed,
    Source,
    Workers,
    check_json,
    free,
    numbers,
    overrules,
    placing,
    reading_json,
    say_reading,
)
from fedscape.cli.show import description, population_table, show


def describe(
    source: Source,
    column: Column = None,
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
    """Show findings, clients, sizes, columns and their kinds; with --column also how much clients differ in it."""
    from fedscape.statistics.description import describe as described

    columns, engine_for = overrules(categorical, numeric, ignore, names=names), placing(engine, address, workers)
    fed, reading = datasets.read_table(
        source, client=client, target=column, overrules=columns, sample=seed, engine_for=engine_for
    )
    say_reading(reading, json_)
    show(reading_json(reading) | described(fed, column=column, overrules=columns, seed=seed), json_, description)


def fit(
    source: Source,
    column: Annotated[str, typer.Option("--column", help="The column to model: categories or count vectors.")] = "y",
    components: Annotated[
        str | None, typer.Option(help="Number of kinds of clients: 3, or 1-6 to choose; by default as in a study.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the population: a .json file.")] = None,
    client: Client = None,
    solver: Annotated[str, typer.Option(help="exact, newton or fixed_point.")] = "exact",
    starts: Annotated[int, typer.Option(help="Number of starts run in parallel.")] = 4,
    rounds: Annotated[int, typer.Option(help="Most rounds of EM.")] = 30,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    names: Names = None,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Model the population of clients as a mixture of Dirichlet-multinomials, and save it."""
    from fedscape.formats.modelled import with_classes
    from fedscape.studies import population
    from fedscape.studies.kinds import candidates_for
    from fedscape.studies.prepare import single_rows

    free(out, force)
    check_json(out)
    columns = overrules(categorical, numeric, ignore, names=names)
    fed, reading = datasets.read_table(source, client=client, target=column, overrules=columns)
    say_reading(reading, json_, features=False)
    fed, classes = with_classes(fed, column, kind=reading[column], overrules=columns)
    if classes is not None and classes.remark and not json_:
        typer.echo(classes.remark)
    single = single_rows(fed.sizes) if fed[column].ndim == 1 else None
    if single and not json_:
        typer.echo(single)
    mixture, about = population(
        fed,
        column,
        candidates=candidates_for(fed, column) if components is None else numbers(components),
        solver=solver,
        n_init=starts,
        rounds=rounds,
        seed=seed,
        progress=False if quiet else None,
        engine_for=placing(engine, address, workers),
    )
    if out is not None:
        mixture.save(out)
    show(reading_json(reading) | about, json_, population_table)


def sample(
    population: Annotated[Path, typer.Argument(help="A .json file that 'fedscape fit' wrote.")],
    clients: Annotated[int, typer.Option(help="Number of clients to draw.")] = 1000,
    out: Annotated[
        Path | None, typer.Option(help="Where to write their counts: .csv, .parquet, .json (LEAF) or a folder.")
    ] = None,
    force: Force = False,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Draw new clients from a fitted population: their counts, one row per client."""
    from fedscape.statistics.description import describe as described
    from fedscape.studies import draw
    from fedscape.studies.kinds import in_columns

    fed = draw(population, clients, seed=seed)
    if out is not None:
        datasets.write(in_columns(fed) if out.suffix == ".csv" else fed, out, overwrite=force)
    show(described(fed, column="y", seed=seed), json_, description)
