"""What several commands take."""

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
Client = Annotated[str | None, typer.Option("--client", help="Column that says whose a row is (Parquet, CSV).")]
Column = Annotated[str | None, typer.Option("--column", help="The column to model: categories or count vectors.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option("--seed", help="Everything random is a function of it.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, no remarks.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
EngineName = Annotated[str, typer.Option("--engine", help="Where clients live: local, or ray (a cluster's workers).")]
Address = Annotated[str | None, typer.Option(help="ray: a running cluster, or auto; without one it is started here.")]
Workers = Annotated[int | None, typer.Option(help="ray: how many processes; by default one per core.")]


def free(path: Path | None, force: bool) -> None:
    """Refuse to write over what is there unless told so."""
    if path is not None and path.exists() and not force:
        raise DataError(f"{path} is there already: pass --force to replace it")


def check_json(path: Path | None) -> None:
    """Refuse an --out that does not end in .json, before any work."""
    if path is not None and path.suffix != ".json":
        raise DataError(f"--out must end in .json, not {path.name!r}")


def free_folder(path: Path, force: bool) -> None:
    """Refuse to write into a folder that holds anything, unless told so."""
    if path.exists() and not force and any(path.iterdir() if path.is_dir() else [path]):
        what = "holds a study" if (path / "result.json").is_file() else "is there already and holds no study"
        raise DataError(f"{path} {what}: pass --force to write over it, or name another folder with --out")


def ledger_beside(source: str, path: Path | None, *, epsilon: float, delta: float, quiet: bool) -> Ledger:
    """The ledger that releases from these data are written to: the one named, or one for the folder the data lie in."""
    from fedscape.privacy.ledger import Ledger

    folder = Path(source).absolute().parent if Path(source).exists() else Path.cwd()
    where = folder / ".fedscape" / "ledger.jsonl" if path is None else path
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        made = Ledger(where, epsilon=None if where.exists() else epsilon, delta=delta)
    except OSError as error:
        raise DataError(
            f"the ledger {where} cannot be written ({error.strerror}): name another with --ledger"
        ) from None
    if not quiet:
        budget = "no limit" if made.epsilon is None else f"a budget of {made.epsilon:g}"
        typer.echo(f"what is released is written to {where}, which has {budget}", err=True)
    return made


def placing(engine: str, address: str | None, workers: int | None) -> Callable[[Federation], Engine]:
    """What makes the engine for a Federation; it is closed when the command ends."""
    if engine == "ray":
        from fedscape.engines.ray.engine import Ray

        def join(federation: Federation) -> Engine:
            made = Ray(federation, address=address, workers=workers)
            if address is not None:
                typer.echo(
                    f"connected to the Ray cluster at {made.address}: {plural(made.workers, 'worker')}", err=True
                )
            return made

        return join
    if engine != "local":
        raise DataError(f"--engine must be local or ray, not {engine!r}")
    if address is not None or workers is not None:
        raise DataError("--address and --workers go with --engine ray")
    return Local


def say_revealed(method: str, names: Sequence[str]) -> None:
    """Say what a simulation does not hide and a deployment must be allowed to show."""
    if names:
        typer.echo(f"{method}: on a deployment the server would see, client by client: {', '.join(names)}", err=True)


def numbers(text: str) -> list[int]:
    """3 is [3], 1-6 is [1, ..., 6]."""
    low, dash, high = text.partition("-")
    try:
        found = list(range(int(low), int(high if dash else low) + 1))
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise DataError(f"--components must be a number such as 3 or a range such as 1-6, not {text!r}")
    return found


# -- what columns are --------------------------------------------------------------------------------------------------

Categorical = Annotated[str | None, typer.Option("--categorical", help="Columns that are classes, commas between.")]
Numeric = Annotated[str | None, typer.Option("--numeric", help="Columns that are numbers, commas between.")]
Ignore = Annotated[str | None, typer.Option("--ignore", help="Columns not to read, commas between.")]
Keep = Annotated[
    str | None, typer.Option("--keep", help="Features to use although they look like ids, weights or leaks.")
]
Names = Annotated[
    str | None, typer.Option("--names", help="What the classes are called: a list with commas, or a file of lines.")
]


def listed(text: str | None) -> tuple[str, ...]:
    """Names with commas between; one with a comma in it goes into double quotes.

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
    """What a person says about columns on the command line."""
    called: tuple[str, ...] | None = None
    if names is not None:
        path = Path(names)
        there = "," not in names and path.is_file()
        called = tuple(path.read_text(encoding="utf8").splitlines()) if there else listed(names)
    return Overrules(listed(categorical), listed(numeric), listed(ignore), listed(keep), called)


def say_reading(reading: Reading, json_: bool, *, features: bool = True) -> None:
    """Print what is odd about the data, what the target is and what the features are, before anything else."""
    if json_:
        return
    for line in reading.lines() if features else reading.lines()[:-1]:
        typer.echo(line)


def reading_json(reading: Reading) -> dict[str, Any]:
    """The same for programs."""
    kinds = [{"name": kind.name, "kind": kind.kind, "line": kind.line} for kind in reading.columns]
    findings = [{**asdict(found), "text": str(found)} for found in reading.findings]
    return {"findings": findings, "kinds": kinds, "features": list(reading.features)}
