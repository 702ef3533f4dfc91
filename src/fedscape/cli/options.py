"""Options that several commands share."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscape.core.engine import Engine, Local
from fedscape.core.federation import Federation
from fedscape.errors import DataError, plural
from fedscape.formats.kinds import Overrules
from fedscape.formats.reading import Reading

if TYPE_CHECKING:
    from fedscape.privacy.ledger import Ledger

Source = Annotated[str, typer.Argument(help="A name (see 'fedscape data info'), a file or a folder.")]
Client = Annotated[str | None, typer.Option("--client", help="Column with the client of each row (Parquet, CSV).")]
Column = Annotated[str | None, typer.Option("--column", help="The column to model: categories or count vectors.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all randomness.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress bar and no remarks.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
EngineName = Annotated[str, typer.Option("--engine", help="Where clients run: local, or ray (workers of a cluster).")]
Address = Annotated[
    str | None,
    typer.Option(help="ray: address of a running cluster, or auto; by default one is started on this machine."),
]
Workers = Annotated[int | None, typer.Option(help="ray: number of worker processes; by default one per core.")]


def free(path: Path | None, force: bool) -> None:
    """Refuse to overwrite an existing path without --force."""
    if path is not None and path.exists() and not force:
        raise DataError(f"{path} already exists: pass --force to replace it")


def check_json(path: Path | None) -> None:
    """Refuse an --out that does not end in .json, before any work."""
    if path is not None and path.suffix != ".json":
        raise DataError(f"--out must end in .json, not {path.name!r}")


def free_folder(path: Path, force: bool) -> None:
    """Refuse to write into a folder that is not empty without --force."""
    if path.exists() and not force and any(path.iterdir() if path.is_dir() else [path]):
        what = "holds a study" if (path / "result.json").is_file() else "already exists and holds no study"
        raise DataError(f"{path} {what}: pass --force to write over it, or name another folder with --out")


def ledger_beside(source: str, path: Path | None, *, epsilon: float, delta: float, quiet: bool) -> Ledger:
    """Open the ledger for releases from these data: the one named, or the one in the data's folder."""
    from fedscape.privacy.ledger import Ledger

    folder = Path(source).absolute().parent if Path(source).exists() else Path.cwd()
    where = folder / ".fedscape" / "ledger.jsonl" if path is None else path
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        book = Ledger(where, epsilon=None if where.exists() else epsilon, delta=delta)
    except OSError as error:
        raise DataError(f"cannot write the ledger {where} ({error.strerror}): name another with --ledger") from None
    if not quiet:
        budget = "no limit" if book.epsilon is None else f"a budget of {book.epsilon:g}"
        typer.echo(f"releases are recorded in {where}, which has {budget}", err=True)
    return book


def placing(
    engine: str, address: str | None, workers: int | None, *, device: str = "cpu"
) -> Callable[[Federation], Engine]:
    """Return a function that builds the engine for a Federation; it is closed when the command ends.

    With Ray each worker has a GPU of its own if networks are trained there.
    """
    if engine == "ray":
        from fedscape.engines.ray.engine import Ray

        def join(federation: Federation) -> Engine:
            gpus = 1.0 if device.startswith("cuda") else 0.0
            cluster = Ray(federation, address=address, workers=workers, gpus_per_worker=gpus)
            if address is not None:
                typer.echo(
                    f"connected to the Ray cluster at {cluster.address}: {plural(cluster.workers, 'worker')}", err=True
                )
            return cluster

        return join
    if engine != "local":
        raise DataError(f"--engine must be local or ray, not {engine!r}")
    if address is not None or workers is not None:
        raise DataError("--address and --workers need --engine ray")
    return Local


def say_revealed(method: str, names: Sequence[str]) -> None:
    """Say which arrays a deployment would reveal client by client."""
    if names:
        typer.echo(f"{method}: on a deployment the server would see, client by client: {', '.join(names)}", err=True)


def numbers(text: str) -> list[int]:
    """Parse a number or a range: 3 is [3], 1-6 is [1, ..., 6]."""
    low, dash, high = text.partition("-")
    try:
        values = list(range(int(low), int(high if dash else low) + 1))
    except ValueError:
        values = []
    if not values or values[0] < 1:
        raise DataError(f"--components must be a number such as 3 or a range such as 1-6, not {text!r}")
    return values


# -- what columns are --------------------------------------------------------------------------------------------------

Categorical = Annotated[str | None, typer.Option("--categorical", help="Columns to read as classes (comma-separated).")]
Numeric = Annotated[str | None, typer.Option("--numeric", help="Columns to read as numbers (comma-separated).")]
Ignore = Annotated[str | None, typer.Option("--ignore", help="Columns to skip (comma-separated).")]
Keep = Annotated[
    str | None, typer.Option("--keep", help="Features to use although they look like ids, weights or leaks.")
]
Names = Annotated[
    str | None, typer.Option("--names", help="Names of the classes: comma-separated, or a file with one per line.")
]


def listed(text: str | None) -> tuple[str, ...]:
    """Parse comma-separated names; a name that contains a comma stands in double quotes.

    >>> listed('age,"income, net"')
    ('age', 'income, net')
    """
    return () if text is None else tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []))


def overrules(
    categorical: str | None = None,
    numeric: str | None = None,
    ignore: str | None = None,
    keep: str | None = None,
    names: str | None = None,
) -> Overrules:
    """Collect what the options say about columns."""
    class_names: tuple[str, ...] | None = None
    if names is not None:
        path = Path(names)
        is_file = "," not in names and path.is_file()
        class_names = tuple(path.read_text(encoding="utf8").splitlines()) if is_file else listed(names)
    return Overrules(listed(categorical), listed(numeric), listed(ignore), listed(keep), class_names)


def say_reading(reading: Reading, json_: bool, *, features: bool = True) -> None:
    """Print the findings about the data, the target and the features, before anything else."""
    if json_:
        return
    for line in reading.lines() if features else reading.lines()[:-1]:
        typer.echo(line)


def reading_json(reading: Reading) -> dict[str, Any]:
    """Return the findings, kinds and features for JSON."""
    kinds = [{"name": kind.name, "kind": kind.kind, "line": kind.line} for kind in reading.columns]
    findings = [{**asdict(finding), "text": str(finding)} for finding in reading.findings]
    return {"findings": findings, "kinds": kinds, "features": list(reading.features)}
