"""Train and use models of tables: boosted trees and GLMs."""

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


TABLES = ("trees", "glm")  # methods of `train` that are no networks


def check_table(method: str, epsilon: float | None, resume: bool, trees: int | None) -> None:
    """Refuse what these methods have no option for."""
    if trees is not None and method != "trees":
        raise DataError(f"--trees goes with --method trees, not {method}")
    if trees is not None and trees < 1:
        raise DataError(f"--trees must be at least 1, not {trees}")
    if epsilon is not None:
        raise DataError(
            f"--epsilon with --method {method} needs ranges of all columns, which the command line does not take: use "
            f"{'BoostedTrees' if method == 'trees' else 'GLM'}(ranges=...) in Python"
        )
    if resume:
        raise DataError(f"--resume goes with networks: --method {method} is quick enough to begin anew")


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
    """Fit trees or a GLM, judge it on each client's held-out rows, and show and save it."""
    from fedscape.formats.kinds import kind_of
    from fedscape.learning.fitting import class_names, feature_kinds
    from fedscape.learning.run import held_out
    from fedscape.tabular.saved import FILE, learn_table

    kinds = feature_kinds(reading)
    wide = [name for name, kind in kinds.items() if kind == "array"]
    if wide:
        raise DataError(
            f"--method {method} takes columns of one value a row; {wide[0]!r} holds arrays: train a network"
        )
    number = target not in fed.names and kind_of(target, fed[target]).kind not in ("class", "ordered", "constant")
    classes = () if number or family in ("gaussian", "poisson", "gamma") else class_names(fed, target)
    columns = {name: class_names(fed, name) if kinds[name] == "category" else () for name in reading.features}
    learners, rest = held_out(fed, test=test, seed=seed)
    say_lines(lines, quiet)
    made = learn_table(
        method, learners, columns=columns, target=target, classes=classes, family=family, rounds=rounds, seed=seed,
        place=place, progress=False if quiet else None,
    )  # fmt: skip
    n_rounds = len(made.model.history_)
    about: dict[str, Any] = {"method": method, "clients": len(learners), "rounds": n_rounds, "rows": learners.n_rows}
    about |= {"held_out": made.score(rest)}
    if method == "glm":
        about["coefficients"] = coefficients(made.model)
    folder = folder_for(out, False, quiet)
    if folder is not None:
        made.save(folder / FILE)
        (folder / "table.json").write_text(as_text(about, indent=1) + "\n")
    show(about, json_, lambda said: _say(said, folder, quiet))


def coefficients(model: Any) -> list[dict[str, Any]]:
    """A line for each coefficient of a GLM."""
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
        said = {name: about[name] for name in ("method", "clients", "rounds", "rows")}
        pairs("held-out rows", {**said, **{f"held-out {n}": short(v) for n, v in about["held_out"].items()}})
    if folder is not None:
        typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def predict_table(
    model: Path, read: Callable[[], Federation], every: bool
) -> tuple[Federation, dict[str, Any], dict[str, Any]]:
    """The table, predictions a row, and what is to be said about them."""
    import numpy as np

    from fedscape.tabular.saved import FILE, TableModel

    made = TableModel.load(model / FILE if model.is_dir() else model)
    rows = read()
    missing = [name for name in made.columns if name not in rows]
    if missing:
        raise DataError(f"the model needs the column {missing[0]!r}, which is not there")
    found = np.asarray(made.predict(rows))
    about: dict[str, Any] = {"method": made.method, "rows": rows.n_rows, "clients": len(rows)}
    if made.classes:
        some = np.asarray(~np.isnan(found).any(axis=1))
        codes, names = np.nan_to_num(found).argmax(axis=1), np.array(made.classes, dtype=object)
        columns: dict[str, Any] = {
            "prediction": [name if there else None for name, there in zip(names[codes], some, strict=True)],
            "probability": np.where(some, np.nan_to_num(found).max(axis=1), np.nan),
        }
        if every:
            columns |= {f"p({name})": found[:, i] for i, name in enumerate(made.classes)}
    elif every:
        raise DataError("--probabilities goes with classes, and this model predicts numbers")
    else:
        some, columns = ~np.isnan(found), {"prediction": found}
    about["rows_without_prediction"] = int((~some).sum())
    if made.target in rows:
        judged = made.score(rows)
        about |= {"labelled_rows": int(judged.pop("rows")), **judged}
    return rows, columns, {**about, "remarks": []}
