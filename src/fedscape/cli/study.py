"""The study, its report, and commands that use its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click import get_current_context

from fedscape import datasets
from fedscape.cli.command import as_typed
from fedscape.cli.options import (
    Address,
    Categorical,
    Client,
    EngineName,
    Force,
    Ignore,
    Json,
    Keep,
    Names,
    Numeric,
    Quiet,
    Seed,
    Workers,
    free_folder,
    ledger_beside,
    listed,
    overrules,
    placing,
    say_reading,
)
from fedscape.cli.show import show, table
from fedscape.cli.studied import for_people
from fedscape.errors import DataError, PrivacyError
from fedscape.formats.kinds import LABELS

if TYPE_CHECKING:
    from fedscape.core.federation import Federation
    from fedscape.formats.reading import Reading
    from fedscape.privacy.ledger import Ledger

_AGAINST = "An earlier study, or a population, that every figure shows as a reference."
Folder = Annotated[Path, typer.Argument(help="The folder that 'fedscape study --out' wrote.")]


def study(
    source: Annotated[
        str,
        typer.Argument(metavar="[DATA]", help="A name, a file or a folder; by default the embedded FEMNIST writers."),
    ] = "femnist-mini",
    column: Annotated[
        str | None,
        typer.Option("--column", help="Categories, count vectors, or a number; by default y, label or target."),
    ] = None,
    features: Annotated[str | None, typer.Option(help="Columns to learn from (comma-separated).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, result.json and tables.")] = Path("study"),
    client: Client = None,
    budget: Annotated[str, typer.Option(help="Time for the tournament: 30s, 2min or 20min.")] = "30s",
    sites: Annotated[
        bool | None,
        typer.Option("--sites/--devices", help="Clients are a few sites (by default fewer than 20), or a sample."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of the tournament, instead of the budget's.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Training runs per method, each with its own seed.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods of 'train' to compare with fedavg and local, comma-separated.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Also count the categories privately within this budget.")
    ] = None,
    find: Annotated[
        float | None,
        typer.Option(help="With --epsilon: share of it to find the categories with, where --names declares none."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="With --epsilon: the ledger; by default one in the data's folder.")
    ] = None,
    show_clients: Annotated[
        bool,
        typer.Option(
            "--show-clients/--share",
            help="Put ids and a row per client into the report (do not share it then), or write one to be shared.",
        ),
    ] = False,
    events: Annotated[
        str | None, typer.Option(help="Who was there when: a log of sessions, slots or check-ins, as for 'plan'.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="With --events: the column of the client of each row.")] = None,
    against: Annotated[Path | None, typer.Option(help=_AGAINST)] = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    keep: Keep = None,
    names: Names = None,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Study a federation: describe, measure, model, simulate, learn, advise; write a report."""
    from fedscape.studies import study as studied

    _check_privacy(epsilon, find, ledger, names)
    _check_effort(budget, rounds, seeds)
    chosen, reference, (log, tick) = _methods(methods), _reference(against), _log(events, device)
    columns = overrules(categorical, numeric, ignore, keep, names)
    inputs = None if features is None else listed(features)
    engine_for = placing(engine, address, workers)
    fed, reading = datasets.read_table(
        source, client=client, target=column or LABELS, features=inputs, overrules=columns, sample=seed,
        engine_for=engine_for,
    )  # fmt: skip
    free_folder(out, force)  # after the checks of the table, before the long work
    _say_reading(fed, reading, column, inputs, json_)
    book = None
    if epsilon is not None:
        if find is None:
            _check_declared(fed, column, columns.names)
        book = _ledger(source, ledger, epsilon, quiet)
    command = as_typed(
        get_current_context(), without=("out", "force", "quiet", "json_", "ledger", "engine", "address", "workers")
    )
    with _naming(book):
        outcome = studied(
            fed,
            column=column,
            features=inputs,
            overrules=columns,
            reading=reading,
            budget=budget,
            rounds=rounds,
            seeds=seeds,
            sites=sites,
            methods=chosen,
            epsilon=epsilon,
            find=find,
            ledger=book,
            show_clients=show_clients,
            events=log,
            tick=tick,
            against=reference,
            source=Path(source).name,
            command=command,
            seed=seed,
            progress=False if quiet else None,
            engine_for=engine_for,
        )
    folder = outcome.save(out)
    show(dict(outcome.result), json_, lambda result: for_people(result, outcome.seconds, folder))


def _methods(methods: str | None) -> tuple[str, ...] | None:
    """The methods of --methods; unknown ones are refused before the table is read."""
    from fedscape.studies.tournament import entrants

    chosen = None if methods is None else listed(methods)
    entrants(chosen)
    return chosen


def _reference(against: Path | None) -> Any:
    """The study or population of --against."""
    from fedscape.studies.against import read_reference

    return None if against is None else read_reference(against)


def _log(events: str | None, device: str | None) -> tuple[Any, float]:
    """The log of --events, and the seconds of its tick."""
    from fedscape.cli.plan import read_events

    if device is not None and events is None:
        raise DataError("--device needs --events, the log whose column it is")
    return (None, 0.0) if events is None else read_events(events, device)


def _say_reading(
    fed: Federation, reading: Reading, column: str | None, features: Sequence[str] | None, json_: bool
) -> None:
    """Say how the columns were read, with those derived from them where no features are named."""
    from fedscape.studies.derived import with_derived

    target = column or next((name for name in LABELS if name in fed), None)
    say_reading(reading if features else with_derived(fed, reading, target), json_)


@contextmanager
def _naming(book: Ledger | None) -> Iterator[None]:
    """Within it, errors of the budget name the ledger and what else may be done."""
    try:
        yield
    except PrivacyError as error:
        if book is None:
            raise
        remedy = f"{book.path} holds earlier releases: drop --epsilon, or name another --ledger for other people's data"
        raise PrivacyError(f"{error}; {remedy}") from None


def _check_privacy(epsilon: float | None, find: float | None, ledger: Path | None, names: str | None) -> None:
    """Refuse options of the private count that do not go together."""
    for option, value in (("ledger", ledger), ("find", find)):
        if value is not None and epsilon is None:
            raise DataError(f"--{option} needs --epsilon, the budget of the private count")
    if find is not None and (names is not None or not 0 < find < 1):
        why = "--names declares the categories" if names is not None else f"it must lie between 0 and 1, not at {find}"
        raise DataError(f"--find is the share of the budget that finds categories, and {why}")


def _check_effort(budget: str, rounds: int | None, seeds: int | None) -> None:
    """Refuse a budget that is not one of the three, and numbers below one."""
    from fedscape.studies.budget import BUDGETS

    if budget not in BUDGETS:
        raise DataError(f"--budget must be one of {', '.join(BUDGETS)}, not {budget!r}")
    for option, number in (("--rounds", rounds), ("--seeds", seeds)):
        if number is not None and number < 1:
            raise DataError(f"{option} must be at least 1, not {number}")


def _check_declared(fed: Federation, column: str | None, names: Sequence[str] | None) -> None:
    """Refuse classes that are inferred from the rows, before a ledger is created."""
    from fedscape.studies.kinds import declared_counts

    try:
        declared_counts(fed, column, names)
    except PrivacyError as error:
        raise DataError(str(error)) from None


def _ledger(source: str, path: Path | None, epsilon: float, quiet: bool) -> Ledger:
    from fedscape.privacy.ranges import NOISE, check_positive
    from fedscape.studies.kinds import CENSUS_DELTA

    check_positive("--epsilon", epsilon, NOISE, error=DataError)
    return ledger_beside(source, path, epsilon=epsilon, delta=CENSUS_DELTA, quiet=quiet)


def report(
    folder: Folder,
    against: Annotated[Path | None, typer.Option(help=_AGAINST)] = None,
    json_: Json = False,
) -> None:
    """Render the report of a study from its result.json."""
    from fedscape.studies import Study
    from fedscape.studies.against import read_reference, with_reference

    loaded = Study.load(folder)
    if against is not None:
        loaded = with_reference(loaded, read_reference(against))
    path = loaded.render_into(folder if folder.is_dir() else folder.parent)
    show({"report": str(path), "bytes": path.stat().st_size}, json_, lambda about: typer.echo(about["report"]))


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="The folder of a study.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The folder of another.")],
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Compare two studies, with a test for label drift and its interval."""
    from fedscape.studies import Study
    from fedscape.studies import compare as compared

    show(compared(Study.load(first), Study.load(second), seed=seed), json_, _comparison)


def explain(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Such as fedavg, fedgmm, trees, glm, mdm, kmeans.")],
    json_: Json = False,
) -> None:
    """Show what the server sees of a method: what is summed, what is revealed, bytes, the unit of privacy."""
    from fedscape.studies import explain as explained

    show(explained(method), json_, _explanation)


def _comparison(about: Mapping[str, Any]) -> None:
    drift = about["drift"]
    verdict = "Labels drifted" if drift["p"] < 0.05 else "No significant label drift"
    typer.echo(
        f"{verdict}: distance {drift['value']:.3f} [{drift['low']:.3f}, {drift['high']:.3f}], {drift['none']:.3f} "
        f"expected without drift, p = {drift['p']:.2g}."
    )
    moved = [[row["category"], f"{row['first']:.4f}", f"{row['second']:.4f}"] for row in drift["moved"]]
    table("categories that moved most (mean share of a client)", ["category", about["first"], about["second"]], moved)
    rows = [
        [
            row["what"],
            f"{row['first']:,.4g}",
            f"{row['second']:,.4g}",
            f"{row['difference']:,.4g}",
            "" if row["low"] is None else f"{row['low']:,.4g} to {row['high']:,.4g}",
        ]
        for row in about["rows"]
    ]
    table("side by side", ["what", about["first"], about["second"], "difference", "95% interval"], rows)


def _explanation(about: Mapping[str, Any]) -> None:
    typer.echo(about["words"])
    for phase in about["phases"]:
        rows = [[a["name"], "x".join(map(str, a["shape"])) or "1", a["bytes"], a["seen"]] for a in phase["sent"]]
        title = f"{phase['phase']}: {phase['bytes_down']:,} bytes down, {phase['bytes_up']:,} bytes up per client"
        table(title, ["sent", "shape", "bytes", "seen by the server as"], rows)
        typer.echo(f"  kept, never sent: {', '.join(phase['kept']) or 'nothing'}")
    typer.echo(f"revealed client by client: {', '.join(about['reveals']) or 'nothing'}")
    if about["new_client"] is not None:
        typer.echo(f"a new client gets: {about['new_client']}")
    typer.echo(about["privacy"])
    if about["cannot_be_private"]:
        typer.echo(f"This method cannot be private: {about['cannot_be_private']}.")
    typer.echo(about["secure"])
    typer.echo(f"(bytes for {about['reference']})")
