"""Commands that list and convert data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import Address, Client, EngineName, Force, Json, Source, Workers, listed, placing
from fedscape.cli.show import flat, pairs, show, table
from fedscape.errors import DataError, plural, require

data = typer.Typer(help="List and convert data sets.", no_args_is_help=True)


@data.command("info")
def data_info(
    name: Annotated[str | None, typer.Argument(help="A data set; without one, all are listed.")] = None,
    json_: Json = False,
) -> None:
    """List the data sets, or describe one."""
    if name is not None:
        if name not in datasets.names() and Path(name).exists():
            raise DataError(f"{name} is a path, not the name of a data set: use 'fedscape describe {name}'")
        show(datasets.info(name), json_, lambda about: pairs(str(about["name"]), flat(about)))
        return
    show([datasets.info(each) for each in datasets.names()], json_, _names_for_people)


@data.command("convert")
def data_convert(
    source: Source,
    target: Annotated[Path, typer.Argument(help="A .parquet, .csv or .json (LEAF) file, or a new folder.")],
    client: Client = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Write data in another format.

    Texts are written unchanged, also to .csv: a spreadsheet may run one that begins with =, +, - or @ as a formula.
    """
    fed = datasets.read(source, client=client)
    datasets.write(fed, target, overwrite=force)
    summary = {"written": str(target), "clients": len(fed), "rows": fed.n_rows}
    show(
        summary, json_, lambda about: typer.echo(f"{target}: {plural(len(fed), 'client')}, {plural(fed.n_rows, 'row')}")
    )


@data.command("card")
def data_card(
    source: Source,
    target: Annotated[Path, typer.Argument(help="The file to write, such as README.md.")],
    label: Annotated[str | None, typer.Option("--column", help="The categories whose differences are told.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="By default the name of the data.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", help="By default that of a known data set.")] = None,
    client: Client = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Write a dataset card for the Hugging Face Hub, without rows and ids of clients."""
    from fedscape.core.checkpoint import replace_file
    from fedscape.formats.files import free_target

    fed = datasets.read(source, client=client)
    about_set = datasets.info(source) if source in datasets.names() else {}
    free_target(target, overwrite=force)
    text = datasets.card(
        fed, name=title or Path(source).stem, label=label, description=about_set.get("description", ""),
        licence=licence or about_set.get("licence", ""), citation=about_set.get("citation", ""),
    )  # fmt: skip
    replace_file(target, lambda file: file.write(text.encode()))
    show({"written": str(target), "clients": len(fed)}, json_, lambda about: typer.echo(f"{target} is written"))


@data.command("group")
def data_group(
    source: Annotated[str, typer.Argument(help="Parquet: a file, a folder with or without partitions, a glob, a URI.")],
    target: Annotated[Path, typer.Argument(help="The folder to write; every command can read it.")],
    client: Annotated[str, typer.Option("--client", help="Column with the client of each row, or several: ST,PUMA.")],
    columns: Annotated[str | None, typer.Option("--columns", help="Read only these columns (comma-separated).")] = None,
    memory: Annotated[
        int, typer.Option("--memory", help="Approximate memory limit in megabytes; on Ray of each task.", min=16)
    ] = 512,
    sql: Annotated[
        Path | None, typer.Option("--sql", help="A DuckDB file: then the first argument is a query on it.")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Group rows by client on disk, for data larger than memory."""
    from fedscape.core.federation import Federation

    selected = None if columns is None else listed(columns)
    options: dict[str, Any] = {"client": client, "columns": selected, "memory": memory * 2**20, "overwrite": force}
    placing(engine, address, workers)  # refuse options that do not go together
    if sql is not None:
        if not sql.is_file():
            raise DataError(f"there is no database {sql}: check the path")
        options["connection"] = require("duckdb", extra="sql").connect(str(sql), read_only=True)
    if engine == "ray":
        from fedscape.engines.ray.shuffle import scan as scan_on_ray

        scan_on_ray(source, target.absolute(), address=address, workers=workers, **options)
        fed = Federation.load(target, verify=False)
    else:
        fed = Federation.scan(source, into=target, **options)
    summary = {"written": str(target), "clients": len(fed), "rows": fed.n_rows}
    show(
        summary, json_, lambda about: typer.echo(f"{target}: {plural(len(fed), 'client')}, {plural(fed.n_rows, 'row')}")
    )


def _names_for_people(sets: list[dict[str, Any]]) -> None:
    rows = []
    for about in sets:
        where = "embedded" if about["embedded"] else "found" if about["size"] is not None else "needs FEDSCAPE_DATA"
        rows.append([about["name"], about["clients"], about["rows"], where, about["description"]])
    table("data sets", ["name", "clients", "rows", "where", "what"], rows)
