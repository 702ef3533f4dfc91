"""Train and use boosted trees and GLMs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedscape.cli.results import folder_for
from fedscape.cli.rows import say_lines
from fedscape.cli.show import as_text, pairs, short, show, table
from fedscape.errors import DataError

if TYPE_CHECKING:
    from fedscape.core.engine import Engine
    from fedscape.core.federation import Federation
    from fedscape.formats.reading import Reading


TABLES = ("trees", "glm")  # methods of `train` that are not networks


def check_table(method: str, epsilon: float | None, resume: bool, trees: int | None) -> None:
    """Refuse options that these methods do not take."""
    if trees is not None and method != "trees":
        raise DataError(f"--trees needs --method trees, not {method}")
    if trees is not None and trees < 1:
        raise DataError(f"--trees must be at least 1, not {trees}")
    if epsilon is not None:
        raise DataError(
            f"--epsilon with --method {method} needs the ranges of all columns, which the command line cannot take: "
            f"use {'BoostedTrees' if method == 'trees' else 'GLM'}(ranges=...) in Python"
        )
    if resume:
        raise DataError(f"--resume needs a network: --method {method} is fast enough to start over")


def train_table(
    method: str,
    fed: Federation,
    reading: Reading,
    *,
    target: str,
    family: str | None,
    rounds: int | None,
    test: float,
    seed: int,
    place: Callable[[Federation], Engine],
    out: Path | None,
    lines: list[str],
    quiet: bool,
    json_: bool,
) -> None:
    """Fit trees or a GLM, evaluate it on each client's held-out rows, print and save it."""
    from fedscape.formats.kinds import kind_of
    from fedscape.learning.fitting import class_names, feature_kinds
    from fedscape.learning.run import held_out
    from fedscape.tabular.saved import FILE, learn_table

    kinds = feature_kinds(reading)
    wide = [name for name, kind in kinds.items() if kind == "array"]
    if wide:
        raise DataError(
            f"--method {method} takes columns with one value per row; {wide[0]!r} holds arrays: train a network"
        )
    number = target not in fed.names and kind_of(target, fed[target]).kind not in ("class", "ordered", "constant")
    classes = () if number or family in ("gaussian", "poisson", "gamma") else class_names(fed, target)
    columns = {name: class_names(fed, name) if kinds[name] == "category" else () for name in reading.features}
    learners, rest = held_out(fed, test=test, seed=seed)
    say_lines(lines, quiet)
    fitted = learn_table(
        method, learners, columns=columns, target=target, classes=classes, family=family, rounds=rounds, seed=seed,
        place=place, progress=False if quiet else None,
    )  # fmt: skip
    n_rounds = len(fitted.model.history_)
    about: dict[str, Any] = {"method": method, "clients": len(learners), "rounds": n_rounds, "rows": learners.n_rows}
    about |= {"held_out": fitted.score(rest)}
    if method == "glm":
        about["coefficients"] = coefficients(fitted.model)
    folder = folder_for(out, False, quiet)
    if folder is not None:
        fitted.save(folder / FILE)
        (folder / "table.json").write_text(as_text(about, indent=1) + "\n")
    show(about, json_, lambda result: _say(result, folder, quiet))


def coefficients(model: Any) -> list[dict[str, Any]]:
    """One row per coefficient of a GLM."""
    values = [*model.coefficients_, *([model.intercept_] if model.intercept else [])]
    rows = zip(model.feature_names_, values, model.standard_errors_, model.robust_errors_, model.p_values_, strict=True)
    return [
        {"name": n, "coefficient": float(b), "error": float(e), "error_by_client": float(r), "p": float(p)}
        for n, b, e, r, p in rows
    ]


def _say(about: dict[str, Any], folder: Path | None, quiet: bool) -> None:
    if not quiet:
        if "coefficients" in about:
            columns = ["", "coefficient", "error", "error by client", "p"]
            rows = [[line["name"], *(f"{v:.4g}" for v in list(line.values())[1:])] for line in about["coefficients"]]
            table("coefficients", columns, rows)
        sizes = {name: about[name] for name in ("method", "clients", "rounds", "rows")}
        pairs("held-out rows", {**sizes, **{f"held-out {n}": short(v) for n, v in about["held_out"].items()}})
    if folder is not None:
        typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def predict_table(
    model: Path, read: Callable[[], Federation], every: bool
) -> tuple[Federation, dict[str, Any], dict[str, Any]]:
    """Return the table, the prediction of each row, and a summary."""
    import numpy as np

    from fedscape.tabular.saved import FILE, TableModel

    saved = TableModel.load(model / FILE if model.is_dir() else model)
    rows = read()
    missing = [name for name in saved.columns if name not in rows]
    if missing:
        raise DataError(f"the model needs the column {missing[0]!r}, which the table lacks")
    predicted = np.asarray(saved.predict(rows))
    about: dict[str, Any] = {"method": saved.method, "rows": rows.n_rows, "clients": len(rows)}
    if saved.classes:
        answered = np.asarray(~np.isnan(predicted).any(axis=1))
        codes, names = np.nan_to_num(predicted).argmax(axis=1), np.array(saved.classes, dtype=object)
        columns: dict[str, Any] = {
            "prediction": [name if ok else None for name, ok in zip(names[codes], answered, strict=True)],
            "probability": np.where(answered, np.nan_to_num(predicted).max(axis=1), np.nan),
        }
        if every:
            columns |= {f"p({name})": predicted[:, i] for i, name in enumerate(saved.classes)}
    elif every:
        raise DataError("--probabilities needs classes, and this model predicts numbers")
    else:
        answered, columns = ~np.isnan(predicted), {"prediction": predicted}
    about["rows_without_prediction"] = int((~answered).sum())
    if saved.target in rows:
        judged = saved.score(rows)
        about |= {"labelled_rows": int(judged.pop("rows")), **judged}
    return rows, columns, {**about, "remarks": []}
