"""Commands for a deployment over Flower."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedscape.cli.options import Json
from fedscape.cli.show import pairs, show, table

deploy = typer.Typer(help="Write and check a deployment over Flower.", no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[Path, typer.Argument(help="The folder of the deployment.")]


@deploy.command()
def init(
    folder: Folder,
    nodes: Annotated[int, typer.Option(help="How many node keys to make.")] = 3,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address nodes use for the server; the first is the main one.")
    ] = None,
    port: Annotated[int, typer.Option(help="The SuperLink's port.")] = 8000,
    days: Annotated[int, typer.Option(help="How long the certificates hold.")] = 365,
    plain_text_on_loopback: Annotated[
        bool, typer.Option("--plain-text-on-loopback", help="No TLS and no node keys: on this machine alone.")
    ] = False,
    json_: Json = False,
) -> None:
    """Write a ready Flower app, certificates, node keys (mode 600) and scripts into a new folder."""
    from fedscape.engines import deploy as engine

    hosts = tuple(host) if host else ("127.0.0.1", "localhost")
    about = engine.init(folder, nodes=nodes, hosts=hosts, port=port, days=days, plain=plain_text_on_loopback)
    show(about, json_, lambda made: pairs("a deployment; its README.md says how to start it", made))


@deploy.command()
def check(folder: Folder, json_: Json = False) -> None:
    """Look for known gaps: telemetry, installations, permissions, expiry, plain text, what Flower leaves open."""
    from fedscape.engines import deploy as engine

    found = [asdict(finding) for finding in engine.check(folder)]
    rows = [[finding["level"], finding["what"], finding["remedy"]] for finding in found]
    show(found, json_, lambda _: table(f"{folder}", ["level", "what", "remedy"], rows))
    if any(finding["level"] == "error" for finding in found):
        raise typer.Exit(1)
