"""Commands on sketches of clients' data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import Categorical, Client, Force, Ignore, Json, Numeric, Seed, Source, free, overrules
from fedscape.cli.show import flat, pairs, show, table

sketch = typer.Typer(help="Small summaries of clients' data: make, compare, search.", no_args_is_help=True)

Sketches = Annotated[Path, typer.Argument(help="A file that 'fedscape sketch build' wrote.")]


@sketch.command("build")
def sketch_build(
    source: Source,
    out: Annotated[Path, typer.Option("--out", help="File for the clients' sketches.")],
    column: Annotated[str, typer.Option("--column", help="The column to sketch.")] = "x",
    client: Client = None,
    rows: Annotated[int | None, typer.Option(help="Rows of the sketch; by default the root of all rows.")] = None,
    bits: Annotated[int, typer.Option(help="A row has 2**bits cells.")] = 4,
    family: Annotated[
        str, typer.Option(help="srp, hadamard (angles), pstable (distances), minhash (texts, sets).")
    ] = "srp",
    centre: Annotated[str, typer.Option(help="A number, or mean.")] = "mean",
    scale: Annotated[str, typer.Option(help="A number, or deviation.")] = "1",
    width: Annotated[float, typer.Option(help="pstable: the width of a bucket.")] = 4.0,
    shingle: Annotated[int, typer.Option(help="minhash: codes or characters in a token.")] = 1,
    epsilon: Annotated[
        float | None, typer.Option(help="Protect each row on its client: Laplace noise for this budget.")
    ] = None,
    relation: Annotated[str, typer.Option(help="With --epsilon: add-remove or replace-one.")] = "add-remove",
    typical_size: Annotated[
        float | None, typer.Option(help="With --epsilon and no --rows: a client's rows, as far as is public.")
    ] = None,
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
    said = overrules(categorical, numeric, ignore)
    fed, reading = datasets.read_table(source, client=client, overrules=said)
    fed = sketchable(fed, reading[column], family)
    options |= {"centre": centre, "scale": scale, "seed": seed}
    done = build(fed, out, options, epsilon=epsilon, relation=relation, typical_size=typical_size)
    show(done, json_, lambda about: pairs(f"sketches in {out}", flat(about)))


@sketch.command("compare")
def sketch_compare(
    file: Sketches,
    other: Annotated[Path | None, typer.Argument(help="Another such file: how far its clients are.")] = None,
    json_: Json = False,
) -> None:
    """How far the clients of a federation are apart; or two federations as a whole."""
    from fedscape.sketches.files import compare

    show(compare(file, other), json_, lambda about: pairs("heterogeneity", flat(about)))


@sketch.command("neighbours")
def sketch_neighbours(
    file: Sketches,
    client: Annotated[str, typer.Option("--client", help="The id of the client whose neighbours are wanted.")],
    k: Annotated[int, typer.Option("-k", help="How many.")] = 5,
    json_: Json = False,
) -> None:
    """The clients whose data are most like this client's."""
    from fedscape.sketches.files import nearest

    show(nearest(file, client, k=k), json_, _neighbours_for_people)


def _neighbours_for_people(about: dict[str, Any]) -> None:
    names = ["client", "rows", "distance", "debiased square"]
    rows = [[found[name] for name in ("client", "rows", "distance", "square")] for found in about["neighbours"]]
    table(f"nearest to client {about['client']} ({about['rows']} rows)", names, rows)
