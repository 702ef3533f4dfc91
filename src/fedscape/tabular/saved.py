"""A tabular model with its preprocessing, as the commands train, save and use it: one JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.engine import Engine
from fedscape.core.federation import Federation
from fedscape.errors import CheckpointError, DataError
from fedscape.formats.kinds import as_codes
from fedscape.tabular.boosting import BoostedTrees
from fedscape.tabular.families import FAMILIES, family_of
from fedscape.tabular.glm import GLM
from fedscape.types import Array

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = ("trees", "glm")
FILE = "model.json"  # of a run's folder
_WHAT = "fedscape table model"
_LEARNED = ("coefficients_", "standard_errors_", "robust_errors_", "z_values_", "p_values_")


@dataclass(frozen=True)
class TableModel:
    """Boosted trees or a GLM with the encoding of their features.

    Parameters
    ----------
    method
        "trees" or "glm".
    model
        The fitted model.
    columns
        Feature columns in order, each with its categories; none for numbers. A GLM has an indicator for every category
        but the first.
    target, classes
        The column to predict, and the names of its classes; none for numbers.
    """

    method: str
    model: BoostedTrees | GLM
    columns: Mapping[str, tuple[str, ...]]
    target: str
    classes: tuple[str, ...]

    def predict(self, table: Federation) -> Array:
        """Probabilities [rows, classes], or the expected target [rows]; NaN where a GLM lacks a number."""
        if isinstance(self.model, BoostedTrees):
            x = np.column_stack([_values(table, name, categories) for name, categories in self.columns.items()])
            return self.model.predict_proba(x) if self.classes else self.model.predict(x)
        x = indicators(table, self.columns)
        mean = np.where(np.isnan(x).any(axis=1), np.nan, self.model.predict(np.nan_to_num(x)))
        return np.column_stack([1 - mean, mean]) if self.classes else mean

    def score(self, table: Federation) -> dict[str, float]:
        """Evaluate on the rows that have a target: accuracy and log loss, or root mean squared error and R squared."""
        if not table.n_rows:
            raise DataError("the table has no rows to evaluate")
        predicted = self.predict(table)
        y = target_of(table, self.target, self.classes)
        used = (y >= 0 if self.classes else np.isfinite(y)) & ~np.isnan(predicted.reshape(len(predicted), -1)).any(
            axis=1
        )
        if not used.any():
            raise DataError(f"no row has both the target {self.target!r} and all features: nothing to evaluate")
        predicted, y = predicted[used], y[used]
        if self.classes:
            own = predicted[np.arange(len(y)), y.astype(int)]
            return {
                "rows": float(len(y)),
                "accuracy": float((predicted.argmax(axis=1) == y).mean()),
                "loss": float(-np.log(np.maximum(own, 1e-15)).mean()),
            }
        error, spread = float(((predicted - y) ** 2).mean()), float(y.var())
        return {"rows": float(len(y)), "rmse": error**0.5, "r2": 1 - error / spread if spread else 0.0}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file; trees go to a second file beside it, written by `BoostedTrees.save`."""
        document: dict[str, Any] = {
            "what": _WHAT,
            "format": 1,
            "method": self.method,
            "columns": {name: list(categories) for name, categories in self.columns.items()},
            "target": self.target,
            "classes": list(self.classes),
        }
        if isinstance(self.model, BoostedTrees):
            self.model.save(_trees_beside(path))
        else:
            model = self.model
            document |= {"family": model.family, "intercept": model.intercept_, "names": list(model.feature_names_)}
            document |= {name: getattr(model, name).tolist() for name in _LEARNED if hasattr(model, name)}
            document |= {"deviance": model.deviance_, "dispersion": model.dispersion_, "rows": model.n_rows_}
        Path(path).write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableModel:
        """Read a file that `save` wrote; refuse anything else."""
        try:
            document = json.loads(Path(path).read_text())
            if document.get("what") != _WHAT or document.get("format") != 1 or document["method"] not in METHODS:
                raise ValueError("not a tabular model of format 1")
            columns = {str(name): tuple(map(str, categories)) for name, categories in document["columns"].items()}
            model: BoostedTrees | GLM
            if document["method"] == "trees":
                model = BoostedTrees.load(_trees_beside(path))
            else:
                model = GLM(family_of(document["family"]).name, target=document["target"])
                model.coefficients_ = np.array(document["coefficients_"], dtype=float)
                model.intercept_, model.feature_names_ = float(document["intercept"]), tuple(document["names"])
            return cls(
                document["method"], model, columns, str(document["target"]), tuple(map(str, document["classes"]))
            )
        except OSError as error:
            raise CheckpointError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            raise CheckpointError(f"{os.fspath(path)} holds no model of a table, or is damaged ({why})") from None


def is_table_model(path: Path) -> bool:
    """Whether this file, or model.json in this folder, is a tabular model."""
    file = path / FILE if path.is_dir() else path
    try:
        return file.suffix == ".json" and json.loads(file.read_text()).get("what") == _WHAT
    except (OSError, ValueError, AttributeError):
        return False


def _trees_beside(path: str | os.PathLike[str]) -> Path:
    return Path(path).with_suffix(".trees.json")


def learn_table(
    method: str,
    fed: Federation,
    *,
    columns: Mapping[str, tuple[str, ...]],
    target: str,
    classes: tuple[str, ...],
    family: str | None = None,
    rounds: int | None = None,
    seed: int = 0,
    place: Callable[[Federation], Engine] | None = None,
    progress: bool | None = None,
) -> TableModel:
    """Fit trees or a GLM to the rows that have a target.

    Parameters
    ----------
    method
        "trees" or "glm".
    fed, columns, target, classes
        The table and the roles of its columns; see `TableModel`.
    family
        The distribution of the target: for a GLM one of its families, for trees "poisson" for counts. By default
        logistic for classes, Gaussian (the squared error) for numbers.
    rounds
        The number of trees, or the most rounds of a GLM.
    place
        Builds the engine; by default one in this process.
    """
    if method not in METHODS:
        raise DataError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    numeric = family in ("gaussian", "poisson", "gamma")
    if family is not None and (family not in FAMILIES or (method == "trees" and family == "gamma")):
        raise DataError(f"--family must be gaussian, logistic, poisson{', gamma' * (method == 'glm')}, not {family!r}")
    classes = () if numeric else classes
    if method == "glm" and classes and len(classes) != 2:
        raise DataError(f"a logistic GLM has two classes, {target!r} has {len(classes)}: use --method trees")
    y = target_of(fed, target, classes)
    used = y >= 0 if classes else np.isfinite(y)
    inputs = [f"x{i}" for i in range(len(columns))] if method == "trees" else ["x"]
    target_name = "y" if target in inputs else target  # the name that messages show
    names = {target_name: classes} if method == "trees" and classes else {}
    parts: dict[str, Array] = {target_name: y.astype(np.int32) if classes else y}
    if method == "trees":
        for x, (name, categories) in zip(inputs, columns.items(), strict=True):
            values = _values(fed, name, categories)
            parts[x] = np.nan_to_num(values, nan=-1).astype(np.int32) if categories else values
            names |= {x: categories} if categories else {}
    else:
        parts["x"] = indicators(fed, columns)
        used &= ~np.isnan(parts["x"]).any(axis=1)
    rows = Federation(parts, fed.offsets, fed.ids, names=names).where(used)
    engine: Federation | Engine = rows if place is None else place(rows)
    model: BoostedTrees | GLM
    if method == "trees":
        loss = None if classes else "poisson" if family == "poisson" else "squared"
        model = BoostedTrees(rounds or 100, loss=loss, seed=seed)
        model.fit(engine, features=inputs, target=target_name, progress=progress)
    else:
        model = GLM(family or ("logistic" if classes else "gaussian"), rounds=rounds or 25)
        model.fit(engine, features="x", target=target_name, progress=progress)
        model.feature_names_ = (*_indicator_names(columns), "intercept")
    return TableModel(method, model, columns, target, classes)


def target_of(table: Federation, target: str, classes: Sequence[str]) -> Array:
    """The target as class codes, -1 for other values, or as numbers, NaN if missing."""
    if classes:
        return as_codes(table[target], classes, table.names.get(target)).astype(float)
    return _values(table, target, ())


def indicators(table: Federation, columns: Mapping[str, tuple[str, ...]]) -> Array:
    """Features of a GLM: numbers, NaN if missing, and a 0/1 indicator for every category but the first.

    >>> fed = Federation({"a": [1.0, 2.0], "b": ["u", "v"]}, [0, 2])
    >>> indicators(fed, {"a": (), "b": ("u", "v")}).tolist()
    [[1.0, 0.0], [2.0, 1.0]]
    """
    parts = []
    for name, categories in columns.items():
        values = _values(table, name, categories)
        parts += [(values == code).astype(float) for code in range(1, len(categories))] if categories else [values]
    return np.column_stack(parts)


def _indicator_names(columns: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [
        n
        for name, categories in columns.items()
        for n in ([f"{name}={c}" for c in categories[1:]] if categories else [name])
    ]


def _values(table: Federation, name: str, categories: Sequence[str]) -> Array:
    """A column as numbers or category codes; NaN if missing or unknown."""
    values = table[name]
    if values.ndim != 1:
        raise DataError(f"column {name!r} must hold one value per row, not {list(values.shape[1:])}")
    if categories:
        codes = as_codes(values, categories, table.names.get(name)).astype(float)
        return np.where(codes < 0, np.nan, codes)
    if name in table.names or values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} must hold numbers, as when the model was trained")
    return values.astype(float)
