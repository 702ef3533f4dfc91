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
    nodes: Annotated[int, typer.Option(help="Number of nodes to generate keys for.")] = 3,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host name or address of the server, as nodes see it; repeatable, the first is the default."),
    ] = None,
    port: Annotated[int, typer.Option(help="The SuperLink's port.")] = 8000,
    days: Annotated[int, typer.Option(help="Validity of the certificates in days.")] = 365,
    plain_text_on_loopback: Annotated[
        bool, typer.Option("--plain-text-on-loopback", help="No TLS and no node keys: for tests on one machine.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Terms that do not trust the server: only noise added on the nodes counts.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Secure aggregation: nodes send masked sums only, each with a signing key and a roster."
        ),
    ] = False,
    helper: Annotated[
        Path | None, typer.Option(help="helper.json of a second server: masked sums with two servers.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write a Flower app, certificates, node keys, terms (mode 600) and start scripts into a new folder."""
    from fedscape.deploy import init as engine

    hosts = tuple(host) if host else ("127.0.0.1", "localhost")
    how = {"plain": plain_text_on_loopback, "strict": strict, "secure": secure}
    about = engine.init(folder, nodes=nodes, hosts=hosts, port=port, days=days, helper=helper, **how)
    show(about, json_, lambda files: pairs("deployment written; its README.md says how to start it", files))


@deploy.command()
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of the deployment, or of a node: nodes/NUMBER.")],
    data: Annotated[str | None, typer.Option(help="For a node: the data it will be started with.")] = None,
    client: Annotated[str | None, typer.Option(help="For a node: the column that names clients.")] = None,
    json_: Json = False,
) -> None:
    """Look for known gaps: telemetry, remote installs, file permissions, expiry, plain text, Flower's open defaults."""
    from fedscape.deploy import init as engine

    if data is not None or (folder / "terms.toml").is_file():
        from fedscape.deploy import node as node

        show(node.check_node(folder, data, client), json_, lambda about: pairs("this node can answer", about))
        return

    findings = [asdict(finding) for finding in engine.check(folder)]
    rows = [[finding["level"], finding["what"], finding["remedy"]] for finding in findings]
    show(findings, json_, lambda _: table(f"{folder}", ["level", "what", "remedy"], rows))
    if any(finding["level"] == "error" for finding in findings):
        raise typer.Exit(1)


@deploy.command()
def add(folder: Folder, json_: Json = False) -> None:
    """Add a node: write its keys and terms and add it to the roster. Then run ./register.sh to tell the SuperLink."""
    from fedscape.deploy import keys as keys

    show(keys.add(folder), json_, lambda about: pairs("copy these to the hosts they belong to", about))


@deploy.command()
def revoke(
    folder: Folder, number: Annotated[int, typer.Argument(help="The number of the node.")], json_: Json = False
) -> None:
    """Revoke a node: delete its keys and roster entry. Then run ./register.sh to tell the SuperLink."""
    from fedscape.deploy import keys as keys

    show(keys.revoke(folder, number), json_, lambda about: pairs("revoked; copy the rosters to their hosts", about))


@deploy.command()
def renew(
    folder: Folder, number: Annotated[int, typer.Argument(help="The number of the node.")], json_: Json = False
) -> None:
    """Give a node new keys; its terms, its ledger and its clients' kept state do not change."""
    from fedscape.deploy import keys as keys

    show(keys.renew(folder, number), json_, lambda about: pairs("copy these to the hosts they belong to", about))


@deploy.command()
def helper(
    folder: Annotated[Path, typer.Argument(help="Folder for the helper's key and its record of answers.")],
    new: Annotated[
        str | None,
        typer.Option(help="Create a helper with this host name or address and write helper.json; no serving."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8443,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option(help="TLS certificate; by default server.pem in the folder.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    roster: Annotated[Path | None, typer.Option(help="roster.txt: accept only these nodes.")] = None,
    least: Annotated[int, typer.Option(help="Minimum number of nodes in a sum that is opened.")] = 3,
    json_: Json = False,
) -> None:
    """Run the second server of TwoServers, which another operator should run: print its public key, then serve."""
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
    epsilon: Annotated[float | None, typer.Option(help="Budget for each (unit, relation, place).")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the budgets.")] = None,
    total_epsilon: Annotated[float | None, typer.Option(help="Total budget over all of them.")] = None,
    unnoised: Annotated[int | None, typer.Option(help="Number of answers allowed without noise.")] = None,
    place: Annotated[
        list[str] | None, typer.Option(help="Allowed place of noise: central, distributed or local; repeatable.")
    ] = None,
    unit: Annotated[list[str] | None, typer.Option(help="Allowed unit: client or row; repeatable.")] = None,
    relation: Annotated[
        list[str] | None, typer.Option(help="Allowed relation: add-remove or replace-one; repeatable.")
    ] = None,
    parts: Annotated[int | None, typer.Option(help="Most clients that distributed noise may be split over.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="A column that may be read; repeatable.")] = None,
    computation: Annotated[list[str] | None, typer.Option(help="A computation that may be run; repeatable.")] = None,
    reveal: Annotated[
        list[str] | None, typer.Option(help="An array that may be revealed client by client; repeatable.")
    ] = None,
    numbers: Annotated[int | None, typer.Option(help="Most numbers in a request or an answer.")] = None,
    largest: Annotated[float | None, typer.Option(help="Largest value in a request.")] = None,
    secure: Annotated[
        bool | None, typer.Option("--secure/--no-secure", help="Answer only by secure aggregation.")
    ] = None,
    smallest: Annotated[int | None, typer.Option(help="Fewest honest nodes in a masked sum.")] = None,
    colluders: Annotated[
        float | None, typer.Option(help="Assumed share of nodes that collude with the server.")
    ] = None,
    clear: Annotated[list[str] | None, typer.Option(help="A term to reset to its default; repeatable.")] = None,
    json_: Json = False,
) -> None:
    """Show a node's terms and its privacy spent; with options, first change its terms.toml (mode 600)."""
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
        f"spent: {short(about['spent_in_all'])} in total; {about['unnoised']} answers without noise; "
        f"{about['failed_runs']} of {about['failed_runs_allowed']} failed runs",
        ["unit", "relation", "place", "epsilon"],
        rows,
    )


@deploy.command()
def log(
    folder: NodeFolder,
    last: Annotated[int | None, typer.Option(help="Show only the last N requests.")] = None,
    json_: Json = False,
) -> None:
    """Show the requests a node received: computation, columns, answer, and why it refused or failed."""
    from fedscape.deploy import node as node

    names = ["time", "outcome", "asked", "columns", "answer", "why"]
    lines = node.log_of(folder, last=last)
    rows = [[_text(line.get(name, "")) for name in names] for line in lines]
    show(lines, json_, lambda _: table(f"{folder}", names, rows))


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
