"""Commands that monitor a federation over time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import Categorical, Client, Ignore, Json, Numeric, Quiet, Seed, ledger_beside, overrules
from fedscape.cli.show import as_text, show, table
from fedscape.core.checkpoint import replace_file
from fedscape.errors import DataError, plural

#: Exit codes besides 0 (nothing to report) and 2 (bad input).
DRIFTED, PROBLEMS = 3, 4


def check(
    source: Annotated[str, typer.Argument(metavar="DATA", help="The current data: a name, a file or a folder.")],
    against: Annotated[Path, typer.Option(help="The folder of a study, or a population that 'fedscape fit' wrote.")],
    column: Annotated[
        str | None, typer.Option("--column", help="The column of categories; by default that of the study.")
    ] = None,
    client: Client = None,
    alarms_per_year: Annotated[float, typer.Option(help="False alarms allowed in a year of nightly runs.")] = 1.0,
    epsilon: Annotated[
        float | None, typer.Option(help="With a population: compare by one private sum within this budget.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="With --epsilon: the ledger; by default one in the data's folder.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Folder in which to keep this run for 'fedscape log'.")] = None,
    label: Annotated[str | None, typer.Option(help="Name of this run in the log, such as a date.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the tests as JUnit XML.")] = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Compare data with a reference: drift of labels, features, sizes and kinds, and problems of single clients.

    Exits with 0 if nothing is found, 3 if something drifted, 4 if nothing drifted but clients have problems.
    """
    from fedscape.studies.against import is_population
    from fedscape.studies.check import NIGHTS

    if not 0 < alarms_per_year <= NIGHTS:
        raise DataError(f"--alarms-per-year must be above 0 and at most {NIGHTS}, not {alarms_per_year:g}")
    columns = overrules(categorical, numeric, ignore)
    population = is_population(against)
    if epsilon is not None and not population:
        raise DataError(
            "--epsilon needs a population to compare with: a comparison with a study reads all rows exactly"
        )
    fed, _ = datasets.read_table(source, client=client, target=column, overrules=columns)
    if population:
        about = _by_population(fed, against, column, alarms_per_year, epsilon, source, ledger, quiet, seed)
    else:
        from fedscape.studies import Study
        from fedscape.studies.check import check as checked

        about = checked(fed, Study.load(against), column=column, alarms_per_year=alarms_per_year, seed=seed)
    about["label"] = label or ""
    if log is not None:
        about["log"] = str(_keep(log, about))
    if junit is not None:
        replace_file(junit, lambda file: file.write(junit_of(about).encode()), private=epsilon is not None)
    show(about, json_, _for_people)
    if about["alarms"] or about["problems"]:
        raise typer.Exit(DRIFTED if about["alarms"] else PROBLEMS)


def _by_population(
    fed: Any,
    path: Path,
    column: str | None,
    alarms: float,
    epsilon: float | None,
    source: str,
    ledger: Path | None,
    quiet: bool,
    seed: int,
) -> dict[str, Any]:
    from fedscape.formats.modelled import declare_classes
    from fedscape.mixtures import MixtureOfDirichletMultinomials
    from fedscape.studies.check import DELTA, check_population
    from fedscape.studies.fidelity import by_names
    from fedscape.studies.prepare import label_of_table

    population = MixtureOfDirichletMultinomials.load(path)
    name = column or label_of_table(fed)
    if name is None:
        raise DataError("name the column of categories with --column")
    book = None if epsilon is None else ledger_beside(source, ledger, epsilon=epsilon, delta=DELTA, quiet=quiet)
    names = population.category_names_
    if names is not None and fed[name].ndim == 1:
        rows = declare_classes(fed, name, names)  # the population's classes, not those of the rows
        rows = rows.where(rows[name] >= 0)
    else:  # under privacy codes are used as they are: which codes occur is private
        rows = by_names(fed, name, names) if epsilon is None else fed
    about = check_population(
        rows, population, column=name, alarms_per_year=alarms, epsilon=epsilon, ledger=book, seed=seed
    )
    if book is not None:
        spent = max(book.spent().values(), default=0.0)
        about["budget_left"] = None if book.epsilon is None else round(max(book.epsilon - spent, 0.0), 6)
    return about


def _keep(folder: Path, about: Mapping[str, Any]) -> Path:
    """Write a run to the log under the next number and its label."""
    folder.mkdir(parents=True, exist_ok=True)
    last = max((int(path.name[:5]) for path in folder.glob("[0-9]*.json") if path.name[:5].isdigit()), default=0)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", str(about["label"])).strip("-.")[:60]
    path = folder / (f"{last + 1:05d}-{name}.json" if name else f"{last + 1:05d}.json")
    replace_file(path, lambda file: file.write((as_text(about, indent=1) + "\n").encode()), private=True)
    return path


def log(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that 'fedscape check --log' wrote to.")],
    json_: Json = False,
) -> None:
    """Show the runs of a check in order: the p-value of each test, and which runs raised an alarm."""
    runs = []
    for path in sorted(folder.glob("[0-9]*.json")) if folder.is_dir() else []:
        try:
            run = json.loads(path.read_text("utf-8"))
            tests = {test["test"]: {"p": test["p"], "alarm": test["alarm"]} for test in run["tests"]}
            row = {"run": path.stem, "clients": run["clients"], "rows": run["rows"], "alarms": run["alarms"]}
            runs.append({**row, "problems": len(run["problems"]), "tests": tests})
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a run of a check: {error}; remove it") from None
    if not runs:
        raise DataError(f"no runs in {folder}: 'fedscape check DATA --against STUDY --log {folder}' writes one")
    show({"runs": runs}, json_, _timeline)


def _timeline(about: Mapping[str, Any]) -> None:
    runs = about["runs"]
    names = list(dict.fromkeys(name for run in runs for name in run["tests"]))
    rows = [
        [
            run["run"],
            *["?" if run[what] is None else f"{run[what]:,}" for what in ("clients", "rows")],
            *[_cell(run["tests"].get(name)) for name in names],
            run["problems"] or "",
        ]
        for run in runs
    ]
    table("p-values run by run (! is an alarm)", ["run", "clients", "rows", *names, "problems"], rows)
    nights = sum(run["alarms"] > 0 for run in runs)
    typer.echo(f"{plural(nights, 'run')} of {len(runs):,} with an alarm")


def _cell(test: Mapping[str, Any] | None) -> str:
    return "" if test is None else f"{test['p']:.2g}{' !' if test['alarm'] else ''}"


def junit_of(about: Mapping[str, Any]) -> str:
    """Write the tests and problems of a check as JUnit XML: one case each; alarms and problems are failures."""
    from xml.sax.saxutils import escape, quoteattr

    cases = []
    for test in about["tests"]:
        outcome = f"p = {test['p']:.2g}, alarm below {test['threshold']:.2g}: {test['text']}"
        body = (
            f"<failure message={quoteattr(outcome)}/>"
            if test["alarm"]
            else f"<system-out>{escape(outcome)}</system-out>"
        )
        cases.append(f'  <testcase classname="drift" name={quoteattr(test["test"])}>{body}</testcase>')
    for problem in about["problems"]:
        name = quoteattr(f"{problem['client']} {problem['column']} {problem['kind']}".strip())
        cases.append(
            f'  <testcase classname="problem" name={name}><failure message={quoteattr(problem["text"])}/></testcase>'
        )
    failed = about["alarms"] + len(about["problems"])
    head = f'<testsuite name="fedscape check" tests="{len(cases)}" failures="{failed}">'
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>"]) + "\n"


def _for_people(about: Mapping[str, Any]) -> None:
    same = "too few to tell" if about.get("too_few") else "as before"
    rows = [
        ["DRIFT" if test["alarm"] else same, test["test"], f"{test['p']:.2g}", test["text"]] for test in about["tests"]
    ]
    rate = f"{about['alarms_per_year']:g} in a year of nightly runs"
    table(
        f"against {about['reference']}; alarm below p = {about['level']:.2g}; false alarms: {rate}",
        ["", "test", "p", "what"],
        rows,
    )
    for problem in about["problems"][:20]:
        who = f"client {problem['client']}: " if problem["client"] else ""
        typer.echo(f"{problem['kind']}: {who}{problem['text']}")
    if len(about["problems"]) > 20:
        typer.echo(f"and {len(about['problems']) - 20:,} more problems: --json lists all")
    worst = about.get("worst", {})
    if worst.get("clients"):
        listed = ", ".join(worst["clients"][:5]) + (", ..." if len(worst["clients"]) > 5 else "")
        typer.echo(
            f"farthest from every kind, a tenth ({listed}): {worst['value']:.0%} of their rows would need another "
            f"category, {worst['chance']:.0%} by chance"
        )
    if about.get("too_few"):
        typer.echo(
            f"too few clients to tell: in four of five runs only a shift of {about['detectable']:.1f} standard "
            "deviations of clients would be seen"
        )
    if about.get("budget_left") is not None:
        typer.echo(f"privacy budget left: epsilon {about['budget_left']:.3g}")
    typer.echo(f"{plural(about['alarms'], 'alarm')}, {plural(len(about['problems']), 'problem')}")
