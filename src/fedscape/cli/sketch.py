"""Commands for sketches of clients' data."""

from __future__ import annotations

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
    Numeric,
    Seed,
    Source,
    Workers,
    free,
    overrules,
    placing,
)
from fedscape.cli.show import flat, pairs, show, table
from fedscape.errors import plural

sketch = typer.Typer(help="Small summaries of clients' data: build, compare, search.", no_args_is_help=True)

Sketches = Annotated[Path, typer.Argument(help="A file that 'fedscape sketch build' wrote.")]


@sketch.command("build")
def sketch_build(
    source: Source,
    out: Annotated[Path, typer.Option("--out", help="File for the clients' sketches.")],
    column: Annotated[str, typer.Option("--column", help="The column to sketch.")] = "x",
    client: Client = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of the sketch; by default the square root of the number of data rows.")
    ] = None,
    bits: Annotated[int, typer.Option(help="Each row has 2**bits cells.")] = 4,
    family: Annotated[
        str, typer.Option(help="srp, hadamard (angles), pstable (distances), minhash (texts, sets).")
    ] = "srp",
    centre: Annotated[str, typer.Option(help="A number, or mean.")] = "mean",
    scale: Annotated[str, typer.Option(help="A number, or deviation (standard deviation).")] = "1",
    width: Annotated[float, typer.Option(help="pstable: the width of a bucket.")] = 4.0,
    shingle: Annotated[int, typer.Option(help="minhash: codes or characters in a token.")] = 1,
    epsilon: Annotated[
        float | None, typer.Option(help="Protect each row by local Laplace noise, within this budget.")
    ] = None,
    relation: Annotated[str, typer.Option(help="With --epsilon: add-remove or replace-one.")] = "add-remove",
    typical_size: Annotated[
        float | None,
        typer.Option(help="With --epsilon and without --rows: a public guess of a client's number of rows."),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    force: Force = False,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Sketch the data of every client in one pass."""
    from fedscape.formats.modelled import sketchable
    from fedscape.sketches.files import build

    free(out, force)
    options = {"rows": rows, "bits": bits, "family": family, "column": column, "width": width, "shingle": shingle}
    columns = overrules(categorical, numeric, ignore)
    fed, reading = datasets.read_table(source, client=client, overrules=columns)
    fed = sketchable(fed, reading[column], family)
    options |= {"centre": centre, "scale": scale, "seed": seed}
    engine_for = placing(engine, address, workers)
    summary = build(
        fed, out, options, epsilon=epsilon, relation=relation, typical_size=typical_size, engine_for=engine_for
    )
    show(summary, json_, lambda about: pairs(f"sketches in {out}", flat(about)))


@sketch.command("compare")
def sketch_compare(
    file: Sketches,
    other: Annotated[Path | None, typer.Argument(help="Another such file to compare with.")] = None,
    json_: Json = False,
) -> None:
    """Measure how much the clients of a federation differ, or how far two federations are apart."""
    from fedscape.sketches.files import compare

    show(compare(file, other), json_, lambda about: pairs("heterogeneity", flat(about)))


@sketch.command("neighbours")
def sketch_neighbours(
    file: Sketches,
    client: Annotated[str, typer.Option("--client", help="Id of the client.")],
    k: Annotated[int, typer.Option("-k", help="Number of neighbours.")] = 5,
    json_: Json = False,
) -> None:
    """List the clients whose data are most like this client's."""
    from fedscape.sketches.files import nearest

    show(nearest(file, client, k=k), json_, _neighbours_for_people)


def _neighbours_for_people(about: dict[str, Any]) -> None:
    names = ["client", "rows", "distance", "debiased square"]
    rows = [[other[name] for name in ("client", "rows", "distance", "square")] for other in about["neighbours"]]
    table(f"nearest to client {about['client']} ({plural(about['rows'], 'row')})", names, rows)
