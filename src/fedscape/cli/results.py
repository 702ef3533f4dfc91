"""Output of a training run: lines while it runs, tables at its end, files in its folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedscape.cli.show import as_text, table
from fedscape.errors import plural
from fedscape.methods import METHODS

if TYPE_CHECKING:
    from fedscape.core.federation import Federation
    from fedscape.learning import LocalSGD
    from fedscape.methods import Course

_FAR_WORSE = 2.0  # times the loss of guessing: below that the model may only be overconfident


def folder_for(out: Path | None, resume: bool, quiet: bool) -> Path | None:
    """Create the folder of a run; unless the run is resumed, delete its old checkpoints."""
    if out is None:
        return None
    if resume and not quiet and not any(out.glob("checkpoint*")):
        typer.echo(f"no run to resume in {out}: starting from round 1", err=True)
    out.mkdir(parents=True, exist_ok=True)
    if not resume:
        for old in out.glob("checkpoint*"):
            old.unlink()
    return out


def write(
    folder: Path,
    model: str,
    arguments: dict[str, Any],
    inputs: Any,
    name: str,
    course: Course,
    state: Any,
    evaluation: Any,
    rows: list[dict[str, Any]],
) -> None:
    """Save the model, its plain weights (if all clients share them) and the tables.

    Of a private run they are for their owner alone.
    """
    from dataclasses import replace

    from fedscape.learning import module_of, save_model
    from fedscape.learning.adapters import merged
    from fedscape.personal.personalised import Personalised
    from fedscape.temporal.mean_network import with_mean
    from fedscape.trained.model import MODEL, trained

    assert isinstance(course.model, Personalised)  # set by the evaluation
    kept = course.model
    if not course.personal:  # a shared model holds no client's name
        kept = replace(kept.common(), names=inputs.classes)
    trained(kept, model, arguments, inputs=inputs, name=name).save(folder / MODEL)
    if not course.personal:
        about, network = {"model": model, "round": rows[-1]["round"]}, course.computation.local.model
        plain = merged(module_of(network, with_mean(state)))
        last = {f"model.{name}": p.detach().cpu().numpy() for name, p in plain.named_parameters()}
        save_model(folder / "model.safetensors", plain, last, about=about, private=course.private)
    write_tables(folder, evaluation, rows, private=course.private)


def write_tables(folder: Path, evaluation: Any, rows: list[dict[str, Any]], *, private: bool) -> None:
    """Save the table of clients and the table of rounds."""
    import pyarrow as pa
    import pyarrow.csv

    from fedscape.core.checkpoint import replace_file
    from fedscape.formats.cells import without_formulas

    clients, text = without_formulas(pa.table(evaluation.table())), as_text(rows, indent=1) + "\n"
    rounds = pa.Table.from_pylist(rows)
    replace_file(folder / "clients.csv", lambda file: pyarrow.csv.write_csv(clients, file), private=private)
    replace_file(folder / "table.csv", lambda file: pyarrow.csv.write_csv(rounds, file), private=private)
    replace_file(folder / "table.json", lambda file: file.write(text.encode()), private=private)


_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "round": ("round", lambda value: f"{value:,}"),
    "cohort": ("cohort", lambda value: f"{value:,}"),
    "seconds": ("seconds", lambda value: f"{value:.1f}"),
    "loss": ("loss_pooled", lambda value: f"{value:.4f}"),
    "accuracy": ("accuracy_pooled", lambda value: f"{value:.4f}"),
    "mean of clients": ("accuracy_of_clients", lambda value: f"{value:.4f}"),
    "worst tenth": ("accuracy_worst_decile", lambda value: f"{value:.4f}"),
}


def say(rows: list[dict[str, Any]], quiet: bool, *, first: bool) -> None:
    """Print a line a row, under names of the columns where they are the first; numbers have no accuracy."""
    if quiet or not rows:
        return
    columns = {name: (key, tell) for name, (key, tell) in _COLUMNS.items() if key in rows[0]}
    if first:
        typer.echo("  ".join(f"{name:>15}" for name in columns))
    for row in rows:
        typer.echo("  ".join(f"{tell(row[key]):>15}" for key, tell in columns.values()))


def finish(about: dict[str, Any], folder: Path | None, quiet: bool) -> None:
    """Print the final accuracy and loss of clients, the privacy spent and the files in the folder."""
    last = about["table"][-1]
    names = ("p5", "p25", "p50", "p75", "p95", "worst_decile", "spread")
    if not quiet:
        if "coefficients" in about:
            lines = [[line["name"], *(f"{v:.4g}" for v in list(line.values())[1:])] for line in about["coefficients"]]
            table("coefficients", ["", "coefficient", "error", "error by client", "p"], lines)
            typer.echo(about["effect"])
        columns = ["of clients", *names]
        measures = [what for what in ("accuracy", "loss") if f"{what}_p5" in last]
        lines = [[what, *[f"{last[f'{what}_{name}']:.4f}" for name in names]] for what in measures]
        table(f"{plural(last['clients_with_rows'], 'client')} after {plural(last['round'], 'round')}", columns, lines)
    own = " and what clients keep are" if METHODS[about["method"]].family == "personal" else " is"
    for group, spent in about.get("epsilon", {}).items():
        typer.echo(
            f"spent: epsilon {spent:.3g} ({group}); the table of clients{own} the simulation's view, not private"
        )
    if folder is not None:
        typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def directions_lines(method: str, local: LocalSGD, rows: Federation) -> list[str]:
    """Say that fedgmm reduces the features, if there are many."""
    from fedscape.personal.methods import DIRECTIONS, is_wide

    if method != "fedgmm" or not is_wide(rows, local.features):
        return []
    width = math.prod(rows[local.features].shape[1:])
    return [f"{width:,} features are wide: the Gaussians are of their {DIRECTIONS} leading directions"]


def say_worse(about: dict[str, Any], n_classes: int, quiet: bool, *, large: bool) -> None:
    """Say that training diverged if its loss is far worse than that of guessing, and name the likely cause.

    `large` says that features are far from 1 and could be scaled.
    """
    if not n_classes:  # the loss of a number has no such scale
        return
    loss, guess = about["table"][-1].get("loss_pooled"), math.log(max(n_classes, 2))
    if loss is None or loss <= _FAR_WORSE * guess:
        return
    about["worse_than_guessing"] = True
    tabular = METHODS[about["method"]].family == "tabular"
    why = (
        "the classes are too few or too far apart for these rows"
        if tabular
        else "the features are far from 1: pass --standardise, or lower --lr"
        if large
        else "the clients' steps are too large: lower --lr"
    )
    if "epsilon" in about:
        why = (
            f"the noise exceeds the signal of {plural(about['clients'], 'client')}: use more clients, a larger "
            "--epsilon, fewer --rounds or a smaller --clip"
        )
    if not quiet:
        text = f"the training diverged: loss {loss:.3g} on held-out rows, {guess:.3g} by guessing; {why}"
        typer.echo(text, err=True)


def sweep_table(rows: list[dict[str, Any]]) -> None:
    """Print the settings, best first."""
    names = ["lr", "proximal", "server", "seed", "rounds"]
    shown = {"loss": "loss_pooled", "accuracy": "accuracy_pooled", "worst tenth": "accuracy_worst_decile"}
    lines = [
        [*[f"{row[n]:g}" for n in names], *["diverged" if row["diverged"] else f"{row[k]:.4f}" for k in shown.values()]]
        for row in rows
    ]
    table("settings, best first", [*names, *shown], lines)
