"""Commands for personalised models: adapt to new clients, and detect novelty."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import Client, Force, Json, Source, free
from fedscape.cli.show import flat, pairs, short, show, table
from fedscape.errors import require

Model = Annotated[Path, typer.Argument(help="The --out folder of 'fedscape train', or a file of 'adapt --out'.")]


def adapt(
    model: Model,
    source: Source,
    out: Annotated[Path | None, typer.Option(help="Where to write the model that includes these clients.")] = None,
    client: Client = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Fit the personal part of new clients from labelled rows, or (fedgmm) from features; the rest does not change.

    accuracy_before and accuracy_after are of these same rows. To estimate accuracy on new rows, hold some out.
    """
    require("torch", extra="learn")
    from fedscape.trained.model import load_network

    free(out, force)
    trained = load_network(model)
    adapted, about = trained.adapt(datasets.read(source, client=client or trained.inputs.client))
    if out is not None:
        adapted.save(out)
    show(about, json_, lambda scores: pairs("new clients", _short(flat(scores))))


def novelty(
    model: Model,
    reference: Annotated[
        str, typer.Argument(metavar="KNOWN", help="Rows that count as known; best not the training rows.")
    ],
    source: Source,
    score: Annotated[
        str,
        typer.Option(help="log_prob_x, typicality, confidence; with labels also log_prob_y_given_x, log_prob_joint."),
    ] = "log_prob_x",
    rate: Annotated[float, typer.Option(help="False-alarm rate on known rows.")] = 0.05,
    client: Client = None,
    json_: Json = False,
) -> None:
    """Detect rows and clients that are new to a personalised model, at a given false-alarm rate."""
    require("torch", extra="learn")
    from fedscape.trained.model import load_network

    trained = load_network(model)
    tables = [datasets.read(which, client=client or trained.inputs.client) for which in (reference, source)]
    show(trained.novelty(*tables, score=score, rate=rate), json_, _for_people)


def _for_people(scores: dict[str, Any]) -> None:
    pairs("novelty", _short({n: v for n, v in scores.items() if n != "clients"}))
    columns = ["client", "rows", "score", "share_new"]
    table("clients with the highest scores", columns, [[short(c[n]) for n in columns] for c in scores["clients"]])


def _short(values: dict[str, Any]) -> dict[str, Any]:
    return {name: short(value) for name, value in values.items()}
