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

    Files of a private run are readable by their owner only.
    """
    from dataclasses import replace

    from fedscape.learning import save_model
    from fedscape.trained.model import MODEL, trained

    assert course.model is not None  # set by the evaluation
    kept = course.model
    if not course.personal:  # a shared model holds no client's name
        kept = replace(kept.common(), names=inputs.classes)
    trained(kept, model, arguments, inputs=inputs, name=name).save(folder / MODEL)
    if not course.personal:
        about, network = {"model": model, "round": rows[-1]["round"]}, course.computation.local.model
        save_model(folder / "model.safetensors", network, state, about=about, private=course.private)
    _write_tables(folder, evaluation, rows, private=course.private)


def _write_tables(folder: Path, evaluation: Any, rows: list[dict[str, Any]], *, private: bool) -> None:
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


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "round": lambda row: f"{row['round']:,}",
    "cohort": lambda row: f"{row['cohort']:,}",
    "seconds": lambda row: f"{row['seconds']:.1f}",
    "loss": lambda row: f"{row['loss_pooled']:.4f}",
    "accuracy": lambda row: f"{row['accuracy_pooled']:.4f}",
    "mean of clients": lambda row: f"{row['accuracy_of_clients']:.4f}",
    "worst tenth": lambda row: f"{row['accuracy_worst_decile']:.4f}",
}


def say(rows: list[dict[str, Any]], quiet: bool, *, first: bool) -> None:
    """Print one line per row; `first` also prints the header."""
    if quiet:
        return
    if first:
        typer.echo("  ".join(f"{name:>15}" for name in _COLUMNS))
    for row in rows:
        typer.echo("  ".join(f"{cell(row):>15}" for cell in _COLUMNS.values()))


def finish(about: dict[str, Any], folder: Path | None, quiet: bool) -> None:
    """Print the final accuracy and loss of clients, the privacy spent and the files in the folder."""
    last = about["table"][-1]
    names = ("p5", "p25", "p50", "p75", "p95", "worst_decile", "spread")
    if not quiet:
        columns = ["of clients", *names]
        lines = [[what, *[f"{last[f'{what}_{name}']:.4f}" for name in names]] for what in ("accuracy", "loss")]
        table(f"{plural(last['clients_with_rows'], 'client')} after {plural(last['round'], 'round')}", columns, lines)
    own = " and what clients keep are" if METHODS[about["method"]].family == "personal" else " is"
    for group, spent in about.get("epsilon", {}).items():
        typer.echo(
            f"spent: epsilon {spent:.3g} ({group}); the table of clients{own} the simulation's view, not private"
        )
    if folder is not None:
        typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def say_directions(method: str, local: LocalSGD, rows: Federation, quiet: bool) -> None:
    """Say that fedgmm reduces the features, if there are many."""
    from fedscape.personal.methods import DIRECTIONS, is_wide

    if method == "fedgmm" and not quiet and is_wide(rows, local.features):
        width = math.prod(rows[local.features].shape[1:])
        typer.echo(
            f"{width:,} features are many: fedgmm fits its Gaussians to their {DIRECTIONS} leading directions", err=True
        )


def say_worse(about: dict[str, Any], n_classes: int, quiet: bool) -> None:
    """Say that training diverged if its loss is far worse than that of guessing, and name the likely cause."""
    loss, guess = about["table"][-1].get("loss_pooled"), math.log(max(n_classes, 2))
    if loss is None or loss <= _FAR_WORSE * guess:
        return
    about["worse_than_guessing"] = True
    why = "the clients' steps are too large: lower --lr"
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
