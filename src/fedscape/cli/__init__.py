"""The command line: each command is one library call whose result is printed as tables or, with --json, as JSON."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated

import click
import typer

import fedscape
from fedscape.cli.audit import audit
from fedscape.cli.check import check, log
from fedscape.cli.command import Command
from fedscape.cli.data import data
from fedscape.cli.deploy import deploy
from fedscape.cli.failures import FAILURE, say_failure, without_debug
from fedscape.cli.helping import mend
from fedscape.cli.options import Json
from fedscape.cli.personal import adapt, novelty
from fedscape.cli.plan import plan
from fedscape.cli.population import describe, fit, sample
from fedscape.cli.predicting import export, predict
from fedscape.cli.privacy import privacy
from fedscape.cli.regress import regress
from fedscape.cli.show import flat, pairs, show
from fedscape.cli.simulate import fidelity, simulate
from fedscape.cli.sketch import sketch
from fedscape.cli.study import compare, explain, report, study
from fedscape.cli.train import sweep, train

mend()
app = typer.Typer(
    name="fedscape",
    help="Measure, model, simulate and learn the landscape of client data in federated learning.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    study,
    report,
    compare,
    check,
    log,
    explain,
    describe,
    fit,
    sample,
    train,
    sweep,
    regress,
    predict,
    export,
    simulate,
    fidelity,
    plan,
    adapt,
    novelty,
    audit,
):
    app.command(cls=Command)(command)
for name, group in {"data": data, "deploy": deploy, "privacy": privacy, "sketch": sketch}.items():
    for registered in group.registered_commands:
        registered.cls = Command
    app.add_typer(group, name=name)


@functools.cache
def _built() -> click.Command:
    """Build all commands once per process: that takes longer than running many of them."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line: exit 0 on success, 2 for bad input, 1 for any other failure; never a traceback."""
    arguments, debug = without_debug(sys.argv[1:])
    try:
        _built()(arguments, prog_name="fedscape")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILURE)
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(say_failure(error, debug=debug))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedscape {fedscape.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. It may stand anywhere on the line.")
    ] = False,
) -> None:
    pass


@app.command(cls=Command)
def doctor(
    node: Annotated[Path | None, typer.Option(help="Also check this node of a deployment: nodes/NUMBER.")] = None,
    data: Annotated[str | None, typer.Option(help="With --node: the data it will be started with.")] = None,
    client: Annotated[str | None, typer.Option(help="With --node: the column that names clients.")] = None,
    clear_programs: Annotated[
        bool, typer.Option("--clear-programs", help="First delete the programs that training has compiled and kept.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show Python, packages, extras, GPU and data folder: what is installed and what is missing."""
    from fedscape.cli.doctor import clear, examine

    if clear_programs:
        clear(quiet=json_)
    show(examine(node, data, client), json_, lambda report: pairs("fedscape doctor", flat(report)))
