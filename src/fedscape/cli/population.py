"""Commands that look at a federation and model its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import (
    Address,
    Client,
    Column,
    EngineName,
    Force,
    Json,
    Quiet,
    Seed,
    Source,
    Workers,
    free,
    numbers,
    placing,
)
from fedscape.cli.show import description, flat, pairs, population_table, show, table
from fedscape.cli.simulate import fidelity_table


def describe(source: Source, column: Column = None, client: Client = None, seed: Seed = 0, json_: Json = False) -> None:
    """Clients, sizes, columns and missing values; with --column also how far clients are apart in it."""
    from fedscape.description import describe as described

    about = described(datasets.read(source, client=client), column=column, seed=seed)
    show(about, json_, description)


def study(
    source: Annotated[
        str, typer.Argument(help="A name, a file or a folder; without one, embedded writers.")
    ] = "femnist-mini",
    column: Annotated[str, typer.Option("--column", help="The column to model: categories or ready counts.")] = "y",
    client: Client = None,
    epsilon: Annotated[float, typer.Option(help="The budget of the private count.")] = 2.0,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Describe a federation, measure how its clients differ, and count its categories privately."""
    from fedscape.study import save
    from fedscape.study import study as studied

    fed = datasets.read(source, client=client)
    result = studied(fed, column=column, epsilon=epsilon, seed=seed, progress=False if quiet else None)
    if out is not None:
        save(result, out)
    show(result, json_, _study_for_people)


def fit(
    source: Source,
    column: Annotated[str, typer.Option("--column", help="The column to model: categories or ready counts.")] = "y",
    components: Annotated[str, typer.Option(help="How many kinds of clients: 3, or 1-6 to choose among them.")] = "1-6",
    out: Annotated[Path | None, typer.Option(help="Where the population goes: a .json file.")] = None,
    client: Client = None,
    solver: Annotated[str, typer.Option(help="exact, newton or fixed_point.")] = "exact",
    starts: Annotated[int, typer.Option(help="How many starts run side by side.")] = 4,
    rounds: Annotated[int, typer.Option(help="At most this many rounds.")] = 30,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Model the population of clients as a mixture of Dirichlet-multinomials, and save it."""
    from fedscape.study import population

    free(out, force)
    fed = datasets.read(source, client=client)
    made, about = population(
        fed,
        column,
        candidates=numbers(components),
        solver=solver,
        n_init=starts,
        rounds=rounds,
        seed=seed,
        progress=False if quiet else None,
        place=placing(engine, address, workers),
    )
    if out is not None:
        made.save(out)
    show(about, json_, population_table)


def sample(
    population: Annotated[Path, typer.Argument(help="A .json file that 'fedscape fit' wrote.")],
    clients: Annotated[int, typer.Option(help="How many clients to draw.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="Where their counts go: .parquet, .json (LEAF) or a folder.")] = None,
    force: Force = False,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Draw new clients from a fitted population: their counts, one row a client."""
    from fedscape.study import draw

    fed = draw(population, clients, seed=seed)
    if out is not None:
        datasets.write(fed, out, overwrite=force)
    from fedscape.description import describe as described

    show(described(fed, column="y", seed=seed), json_, description)


def _study_for_people(result: dict[str, Any]) -> None:
    description(dict(result["describe"]))
    census = result["census"]
    title = (
        f"private count (unit client, epsilon {census['epsilon']:g}, delta {census['delta']:g}): "
        f"noisy shares are {census['error']:.4f} from the exact ones"
    )
    largest = sorted(zip(census["names"], census["exact"], census["private"], strict=True), key=lambda row: -row[1])
    table(title, ["category", "exact share", "private share"], [list(row) for row in largest[:10]])
    population_table(result["population"])
    if "features" in result:
        pairs("how far clients are apart in their features (0 alike, 1 points of their own)", flat(result["features"]))
    for name, about in result.get("simulated", {}).items():
        typer.echo(f"clients simulated by the {name}:" if name != "iid" else "clients simulated as IID:")
        fidelity_table(about)
    if "clusters" in result:
        pairs("clusters of the features, by sums alone", flat(result["clusters"]))
    typer.echo(f"done in {result['seconds']:.1f} s")
