"""Commands about personalised models: new clients, and what is new in their data."""

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
    out: Annotated[Path | None, typer.Option(help="Where the model goes that knows these clients too.")] = None,
    client: Client = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Learn what new clients have of their own, from labelled rows or (fedgmm) features alone; nothing else changes.

    accuracy_before and accuracy_after are of these same rows, those adapted to: rows kept apart tell how new ones fare.
    """
    require("torch", extra="learn")
    from fedscape.trained.model import load_network

    free(out, force)
    made = load_network(model)
    adapted, about = made.adapt(datasets.read(source, client=client or made.inputs.client))
    if out is not None:
        adapted.save(out)
    show(about, json_, lambda found: pairs("new clients", _short(flat(found))))


def novelty(
    model: Model,
    known: Annotated[str, typer.Argument(help="Rows that count as known, best not those trained on.")],
    source: Source,
    score: Annotated[
        str,
        typer.Option(help="log_prob_x, typicality, confidence; with labels also log_prob_y_given_x, log_prob_joint."),
    ] = "log_prob_x",
    rate: Annotated[float, typer.Option(help="The rate of false alarms on known rows.")] = 0.05,
    client: Client = None,
    json_: Json = False,
) -> None:
    """Say which rows and clients are new to a personalised model, at a stated rate of false alarms."""
    require("torch", extra="learn")
    from fedscape.trained.model import load_network

    made = load_network(model)
    read = [datasets.read(which, client=client or made.inputs.client) for which in (known, source)]
    show(made.novelty(*read, score=score, rate=rate), json_, _for_people)


def _for_people(found: dict[str, Any]) -> None:
    pairs("novelty", _short({n: v for n, v in found.items() if n != "clients"}))
    columns = ["client", "rows", "score", "share_new"]
    table("the clients with the highest scores", columns, [[short(c[n]) for n in columns] for c in found["clients"]])


def _short(values: dict[str, Any]) -> dict[str, Any]:
    return {name: short(value) for name, value in values.items()}
