"""Commands for a deployment over Flower."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape.cli.options import Json
from fedscape.cli.show import pairs, short, show, table

deploy = typer.Typer(help="Write and check a deployment over Flower.", no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[Path, typer.Argument(help="The folder of the deployment.")]
NodeFolder = Annotated[Path, typer.Argument(help="The folder of a node: nodes/NUMBER of a deployment.")]


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
    strict: Annotated[
        bool, typer.Option("--strict", help="Terms that believe no server: only noise that the nodes add themselves.")
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Sums leave nodes only masked: a signing key and a roster for each.")
    ] = False,
    helper: Annotated[
        Path | None, typer.Option(help="helper.json of a second server: masked sums with two servers.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write a ready Flower app, certificates, node keys and terms (mode 600) and scripts into a new folder."""
    from fedscape.deploy import init as engine

    hosts = tuple(host) if host else ("127.0.0.1", "localhost")
    how = {"plain": plain_text_on_loopback, "strict": strict, "secure": secure}
    about = engine.init(folder, nodes=nodes, hosts=hosts, port=port, days=days, helper=helper, **how)
    show(about, json_, lambda made: pairs("a deployment; its README.md says how to start it", made))


@deploy.command()
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of the deployment, or of a node: nodes/NUMBER.")],
    data: Annotated[str | None, typer.Option(help="Of a node: the data it will be started with.")] = None,
    client: Annotated[str | None, typer.Option(help="Of a node: the column that names clients.")] = None,
    json_: Json = False,
) -> None:
    """Look for known gaps: telemetry, installations, permissions, expiry, plain text, what Flower leaves open."""
    from fedscape.deploy import init as engine

    if data is not None or (folder / "terms.toml").is_file():
        from fedscape.deploy import node as node

        show(node.check_node(folder, data, client), json_, lambda about: pairs("this node can answer", about))
        return

    found = [asdict(finding) for finding in engine.check(folder)]
    rows = [[finding["level"], finding["what"], finding["remedy"]] for finding in found]
    show(found, json_, lambda _: table(f"{folder}", ["level", "what", "remedy"], rows))
    if any(finding["level"] == "error" for finding in found):
        raise typer.Exit(1)


@deploy.command()
def add(folder: Folder, json_: Json = False) -> None:
    """Make keys, terms and a place on the roster for one node more; ./register.sh then tells the SuperLink."""
    from fedscape.deploy import keys as keys

    show(keys.add(folder), json_, lambda about: pairs("copy these to the hosts they belong to", about))


@deploy.command()
def revoke(
    folder: Folder, number: Annotated[int, typer.Argument(help="The number of the node.")], json_: Json = False
) -> None:
    """Take a node's keys away, and its place on the roster; ./register.sh then tells the SuperLink."""
    from fedscape.deploy import keys as keys

    show(keys.revoke(folder, number), json_, lambda about: pairs("revoked; copy the rosters to their hosts", about))


@deploy.command()
def renew(
    folder: Folder, number: Annotated[int, typer.Argument(help="The number of the node.")], json_: Json = False
) -> None:
    """Give a node new keys; its terms, ledger and what its clients keep stay as they are."""
    from fedscape.deploy import keys as keys

    show(keys.renew(folder, number), json_, lambda about: pairs("copy these to the hosts they belong to", about))


@deploy.command()
def helper(
    folder: Annotated[Path, typer.Argument(help="The helper's folder: its key, and which rounds it has answered.")],
    new: Annotated[
        str | None,
        typer.Option(help="Create a helper with this host name or address and write helper.json; no serving."),
    ] = None,
    port: Annotated[int, typer.Option(help="The port it listens on.")] = 8443,
    host: Annotated[str, typer.Option(help="The address it listens on.")] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option(help="Its TLS certificate; by default server.pem in its folder.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
    roster: Annotated[Path | None, typer.Option(help="roster.txt of the deployment: only these nodes count.")] = None,
    least: Annotated[int, typer.Option(help="With fewer nodes nothing is opened.")] = 3,
    json_: Json = False,
) -> None:
    """Run the second server of TwoServers, in another hand than the first: print its public key, then serve."""
    from fedscape.deploy import helper as second

    if new is not None:
        show(second.write_helper(folder, new, port), json_, lambda about: pairs("a second server", about))
        return
    server, public = second.helper_server(
        folder, port, host=host, certificate=certificate, key=key, roster=roster, least=least
    )
    typer.echo(public)
    if roster is None:
        typer.echo("no --roster: the first server could make up nodes", err=True)
    with server:
        server.serve_forever()


@deploy.command()
def terms(
    folder: NodeFolder,
    epsilon: Annotated[float | None, typer.Option(help="Budget of each unit, relation and place.")] = None,
    delta: Annotated[float | None, typer.Option(help="The delta at which budgets are stated.")] = None,
    total_epsilon: Annotated[float | None, typer.Option(help="One budget over all of them.")] = None,
    unnoised: Annotated[int | None, typer.Option(help="How many answers may leave without promised noise.")] = None,
    place: Annotated[list[str] | None, typer.Option(help="central, distributed or local; may be repeated.")] = None,
    unit: Annotated[list[str] | None, typer.Option(help="client or row; may be repeated.")] = None,
    relation: Annotated[list[str] | None, typer.Option(help="add-remove or replace-one; may be repeated.")] = None,
    parts: Annotated[int | None, typer.Option(help="Clients that distributed noise may be split over.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="A column that may be read; may be repeated.")] = None,
    computation: Annotated[
        list[str] | None, typer.Option(help="A computation that may be asked for; may be repeated.")
    ] = None,
    reveal: Annotated[list[str] | None, typer.Option(help="An array shown client by client; may be repeated.")] = None,
    numbers: Annotated[int | None, typer.Option(help="The most numbers of a request or an answer.")] = None,
    largest: Annotated[float | None, typer.Option(help="The largest number of a request.")] = None,
    secure: Annotated[bool | None, typer.Option("--secure/--no-secure", help="Sums leave only masked.")] = None,
    smallest: Annotated[int | None, typer.Option(help="Honest nodes in any masked sum, at least.")] = None,
    colluders: Annotated[float | None, typer.Option(help="Share of nodes that may collude with the server.")] = None,
    clear: Annotated[list[str] | None, typer.Option(help="A term that gets its default; may be repeated.")] = None,
    json_: Json = False,
) -> None:
    """Show a node's terms and what is spent; with options, write them to its terms.toml (mode 600) first."""
    from fedscape.deploy import node as node

    lists = {"places": place, "units": unit, "relations": relation, "columns": column}
    lists |= {"computations": computation, "reveals": reveal}
    changes: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "total_epsilon": total_epsilon}
    changes |= {"unnoised": unnoised, "parts": parts, "numbers": numbers, "largest": largest}
    changes |= {"secure": secure, "smallest": smallest, "colluders": colluders}
    changes |= {name: None if values is None else tuple(values) for name, values in lists.items()}
    changes = {name: value for name, value in changes.items() if value is not None}
    cleared = [name.replace("-", "_") for name in clear or ()]
    if changes or cleared:
        node.change_terms(folder, changes, clear=cleared)
    show(node.terms_of(folder), json_, _show_terms)


def _show_terms(about: dict[str, Any]) -> None:
    shown = {name: "no limit" if value is None else value for name, value in about["terms"].items()}
    values = {n: (", ".join(v) or "none") if isinstance(v, list | tuple) else v for n, v in shown.items()}
    pairs(f"terms of {about['folder']}: {about['in_force']}", values)
    rows = [[*list(group.values())[:3], short(group["epsilon"])] for group in about["spent"]]
    table(
        f"spent; in all {short(about['spent_in_all'])}; {about['unnoised']} answers without noise; "
        f"{about['failed_runs']} of {about['failed_runs_allowed']} failed runs",
        ["unit", "relation", "place", "epsilon"],
        rows,
    )


@deploy.command()
def log(
    folder: NodeFolder,
    last: Annotated[int | None, typer.Option(help="Only the last so many.")] = None,
    json_: Json = False,
) -> None:
    """Show what was asked of a node, by name and column, what it answered, and why it refused or failed."""
    from fedscape.deploy import node as node

    names = ["time", "outcome", "asked", "columns", "answer", "why"]
    lines = node.log_of(folder, last=last)
    rows = [[_text(line.get(name, "")) for name in names] for line in lines]
    show(lines, json_, lambda _: table(f"{folder}", names, rows))


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
