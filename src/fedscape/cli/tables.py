"""Train and use boosted trees and GLMs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscape.cli.options import listed
from fedscape.cli.results import write_tables
from fedscape.cli.rows import check_declared_rows, fill_of
from fedscape.errors import DataError, plural
from fedscape.methods import Columns, Course, Options

if TYPE_CHECKING:
    from fedscape.cli.training import Request
    from fedscape.core.federation import Federation
    from fedscape.formats.reading import Reading
    from fedscape.learning.evaluation import Evaluation
    from fedscape.statistics.undeclared import Discovery
    from fedscape.tabular.inputs import TableInputs
    from fedscape.tabular.saved import TableModel
    from fedscape.types import Arrays


@dataclass(frozen=True)
class TableTask:
    """Trees or a GLM on the rows of a table."""

    learners: Federation
    held_out: Federation
    local: Columns
    options: Options
    rounds: int
    lines: list[str]
    inputs: TableInputs
    method: str
    rest: Federation

    @property
    def n_classes(self) -> int:
        return len(self.inputs.classes)

    def _model(self, course: Course) -> TableModel:
        from fedscape.methods.tabular import TabularModel
        from fedscape.tabular.saved import TableModel

        assert isinstance(course.model, TabularModel)  # it was judged
        model = course.model.model if course.private else course.model.with_errors(course.engine)
        model.feature_names_ = (*self.inputs.names(), *(["intercept"] if self.method == "glm" else []))
        return TableModel(self.method, model, self.inputs, course.private)

    def save(
        self, folder: Path, course: Course, state: Arrays, evaluation: Evaluation, rows: list[dict[str, Any]]
    ) -> None:
        from fedscape.tabular.saved import FILE

        self._model(course).save(folder / FILE)
        write_tables(folder, evaluation, rows, private=course.private)

    def about(self, course: Course) -> dict[str, Any]:
        model = self._model(course)
        about: dict[str, Any] = {"rows": self.learners.n_rows, "held_out": model.score(self.rest)}
        if hasattr(model.model, "standard_errors_"):
            about["coefficients"] = coefficients(model.model)
            about["effect"] = effect(self.inputs, getattr(model.model, "family", "gaussian"))
        return about


def table_task(request: Request, fed: Federation, reading: Reading, discovery: Discovery | None = None) -> TableTask:
    """Columns as trees or a GLM read them, rows to learn from and to judge by, and who takes part."""
    from fedscape.cli.training import sampler_of
    from fedscape.learning.fitting import class_names, feature_kinds
    from fedscape.learning.run import held_out
    from fedscape.methods.tabular import rounds_for
    from fedscape.tabular.inputs import TableInputs, fills

    method, target, private = request.name, request.target, request.epsilon is not None
    kinds = feature_kinds(reading)
    wide = [name for name, kind in kinds.items() if kind == "array"]
    if wide:
        raise DataError(
            f"--method {method} takes columns of one value a row; {wide[0]!r} holds arrays: train a network"
        )
    classes = () if is_number(request, fed) else class_names(fed, target)
    if private:
        check_declared_rows(fed, reading, target, classes=bool(classes))
    columns = {name: class_names(fed, name) if kinds[name] == "category" else () for name in reading.features}
    learners, rest = held_out(fed, test=request.test, seed=request.seed)
    fill = fill_of(request.fill)
    filled = (
        medians(discovery, columns)
        if discovery is not None and fill == "median"
        else fills(learners, columns, fill, indicators=method == "glm" and not private)
    )
    gaps = fill == "drop" or (fill is None and method == "glm")
    inputs = TableInputs(
        columns, target, classes, method == "glm", filled, gaps,
        _ranges(request, columns, classes, discovery) if private else None, request.client,
    )  # fmt: skip
    rows, judged = inputs.rows(learners), inputs.rows(rest)
    lines = []
    for where, part, table in (("to train on", rows, learners), ("held out", judged, rest)):
        if not part.n_rows:
            raise DataError(f"no rows are left {where}: every one lacks a feature; fill them in with --fill mean")
        if part.n_rows < table.n_rows:
            lines.append(f"rows {where}: {plural(table.n_rows - part.n_rows, 'row')} without a value left out")
    trees = 100 if request.trees is None else request.trees
    options = Options(
        law=None if classes else request.family or "gaussian", trees=trees, ranges=inputs.row_ranges, seed=request.seed,
        sampler=sampler_of(request.cohort or 0, len(rows)), progress=False if request.quiet else None,
    )  # fmt: skip
    local = Columns(features=inputs.features, target=inputs.called)
    rounds = rounds_for(method, trees) if request.rounds is None else request.rounds
    return TableTask(rows, judged, local, options, rounds, lines, inputs, method, rest)


def is_number(request: Request, fed: Federation) -> bool:
    """Whether the target is a number and no class."""
    from fedscape.formats.kinds import kind_of
    from fedscape.methods.tabular import LAWS

    laws = [law for law in LAWS if request.name == "glm" or law != "gamma"]
    if request.family is not None and request.family not in laws:
        raise DataError(f"--family must be {', '.join(laws)}, not {request.family!r}")
    if request.family is not None:
        return request.family != "logistic"
    kind = "class" if request.target in fed.names else kind_of(request.target, fed[request.target]).kind
    return kind not in ("class", "ordered", "constant")


def medians(discovery: Discovery, columns: dict[str, tuple[str, ...]]) -> dict[str, float]:
    """The found medians of columns of numbers."""
    return {name: float(discovery.scales[name].centre[0]) for name, own in columns.items() if not own}


def declared_ranges(text: str | None) -> dict[str, tuple[float, float]]:
    """What --ranges says."""
    ranges = {}
    for part in listed(text):
        name, *ends = part.rsplit(":", 2)
        try:
            low, high = (float(end) for end in ends)
        except ValueError:
            low, high = 0.0, 0.0
        if not -float("inf") < low < high < float("inf"):
            raise DataError(f"--ranges must be COLUMN:LEAST:GREATEST, comma-separated, such as age:0:120, not {part!r}")
        ranges[name] = (low, high)
    return ranges


def _ranges(
    request: Request, columns: dict[str, tuple[str, ...]], classes: tuple[str, ...], discovery: Discovery | None
) -> dict[str, tuple[float, float]]:
    """The declared or found ranges of all columns of numbers, and of a target that is one."""
    ranges = (discovery.ranges() if discovery is not None else {}) | declared_ranges(request.ranges)
    needed = [*(name for name, categories in columns.items() if not categories), *([] if classes else [request.target])]
    missing = [name for name in needed if name not in ranges]
    if missing:
        raise DataError(
            f"--epsilon with --method {request.name} needs --ranges of all numbers, as {missing[0]}:0:100: missing "
            f"{'is' if len(missing) == 1 else 'are'} {', '.join(missing)}; --find 0.2 finds them with part of the "
            "budget"
        )
    unknown = [name for name in ranges if name not in needed]
    if unknown:
        raise DataError(f"--ranges names {unknown[0]!r}, which is no column of numbers that the model reads")
    return ranges


def coefficients(model: Any) -> list[dict[str, Any]]:
    """One row per coefficient of a GLM."""
    values = [*model.coefficients_, *([model.intercept_] if model.intercept else [])]
    rows = zip(model.feature_names_, values, model.standard_errors_, model.robust_errors_, model.p_values_, strict=True)
    return [
        {"name": n, "coefficient": float(b), "error": float(e), "error_by_client": float(r), "p": float(p)}
        for n, b, e, r, p in rows
    ]


def effect(inputs: TableInputs, family: str) -> str:
    """What a coefficient adds to, and which category each indicator is compared with."""
    what = {"gaussian": f"the mean of {inputs.target}"}.get(family, f"the log of the mean of {inputs.target}")
    if len(inputs.classes) == 2:
        no, yes = inputs.classes
        what = f"the log-odds of {inputs.target} = {yes} against {no}"
    firsts = [f"{name} with {classes[0]!r}" for name, classes in inputs.columns.items() if len(classes) > 1]
    return f"each unit adds its coefficient to {what}" + (f"; compared: {', '.join(firsts)}" if firsts else "")


def predict_table(
    model: Path, read: Callable[[str | None], Federation], probabilities: bool
) -> tuple[Federation, dict[str, Any], dict[str, Any]]:
    """Return the table, the prediction of each row, and a summary."""
    import numpy as np

    from fedscape.tabular.saved import FILE, TableModel

    trained = TableModel.load(model / FILE if model.is_dir() else model)
    rows, inputs = read(trained.inputs.client), trained.inputs
    missing = [name for name in inputs.columns if name not in rows]
    if missing:
        raise DataError(f"the model needs the column {missing[0]!r}, which is not there")
    predictions = np.asarray(trained.predict(rows))
    about: dict[str, Any] = {"method": trained.method, "rows": rows.n_rows, "clients": len(rows)}
    if inputs.classes:
        has_prediction = np.asarray(~np.isnan(predictions).any(axis=1))
        codes, names = np.nan_to_num(predictions).argmax(axis=1), np.array(inputs.classes, dtype=object)
        columns: dict[str, Any] = {
            "prediction": [
                name if predicted else None for name, predicted in zip(names[codes], has_prediction, strict=True)
            ],
            "probability": np.where(has_prediction, np.nan_to_num(predictions).max(axis=1), np.nan),
        }
        if probabilities:
            columns |= {f"p({name})": predictions[:, i] for i, name in enumerate(inputs.classes)}
    elif probabilities:
        raise DataError("--probabilities goes with classes, and this model predicts numbers")
    else:
        has_prediction, columns = ~np.isnan(predictions), {"prediction": predictions}
    about["rows_without_prediction"] = int((~has_prediction).sum())
    if inputs.target in rows:
        judged = trained.score(rows)
        about |= {"labelled_rows": int(judged.pop("rows")), **judged}
    return rows, columns, {**about, "remarks": inputs.remarks(rows)}
