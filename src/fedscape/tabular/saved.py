"""A model of a table as commands make, save and use it: columns by name, categories, classes, one JSON file."""

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
    """Boosted trees or a GLM with what turns a table into their features.

    Parameters
    ----------
    method
        "trees" or "glm".
    model
        The fitted model.
    columns
        Feature columns in order, each with its categories; none for numbers. A GLM has an indicator for each category
        but the first.
    target, classes
        The column to predict, and what its classes are called; none for numbers.
    """

    method: str
    model: BoostedTrees | GLM
    columns: Mapping[str, tuple[str, ...]]
    target: str
    classes: tuple[str, ...]

    def predict(self, table: Federation) -> Array:
        """Probabilities [rows, classes], or the expected target [rows]; NaN where a GLM lacks a number."""
        if isinstance(self.model, BoostedTrees):
            x = np.column_stack([_values(table, name, known) for name, known in self.columns.items()])
            return self.model.predict_proba(x) if self.classes else self.model.predict(x)
        x = indicators(table, self.columns)
        mean = np.where(np.isnan(x).any(axis=1), np.nan, self.model.predict(np.nan_to_num(x)))
        return np.column_stack([1 - mean, mean]) if self.classes else mean

    def score(self, table: Federation) -> dict[str, float]:
        """How it does on rows with a known target: accuracy and log loss, or root mean squared error and R squared."""
        if not table.n_rows:
            raise DataError("there are no rows: nothing can be judged")
        found = self.predict(table)
        y = target_of(table, self.target, self.classes)
        used = (y >= 0 if self.classes else np.isfinite(y)) & ~np.isnan(found.reshape(len(found), -1)).any(axis=1)
        if not used.any():
            raise DataError(f"no row has both a known {self.target!r} and the features: nothing can be judged")
        found, y = found[used], y[used]
        if self.classes:
            own = found[np.arange(len(y)), y.astype(int)]
            return {
                "rows": float(len(y)),
                "accuracy": float((found.argmax(axis=1) == y).mean()),
                "loss": float(-np.log(np.maximum(own, 1e-15)).mean()),
            }
        error, spread = float(((found - y) ** 2).mean()), float(y.var())
        return {"rows": float(len(y)), "rmse": error**0.5, "r2": 1 - error / spread if spread else 0.0}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file; trees are beside it, as `BoostedTrees.save` writes them."""
        said: dict[str, Any] = {
            "what": _WHAT,
            "format": 1,
            "method": self.method,
            "columns": {name: list(known) for name, known in self.columns.items()},
            "target": self.target,
            "classes": list(self.classes),
        }
        if isinstance(self.model, BoostedTrees):
            self.model.save(_trees_beside(path))
        else:
            model = self.model
            said |= {"family": model.family, "intercept": model.intercept_, "names": list(model.feature_names_)}
            said |= {name: getattr(model, name).tolist() for name in _LEARNED if hasattr(model, name)}
            said |= {"deviance": model.deviance_, "dispersion": model.dispersion_, "rows": model.n_rows_}
        Path(path).write_text(json.dumps(said, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableModel:
        """What `save` wrote; anything else is refused."""
        try:
            said = json.loads(Path(path).read_text())
            if said.get("what") != _WHAT or said.get("format") != 1 or said["method"] not in METHODS:
                raise ValueError("it is no model of a table of this version")
            columns = {str(name): tuple(map(str, known)) for name, known in said["columns"].items()}
            model: BoostedTrees | GLM
            if said["method"] == "trees":
                model = BoostedTrees.load(_trees_beside(path))
            else:
                model = GLM(family_of(said["family"]).name, target=said["target"])
                model.coefficients_ = np.array(said["coefficients_"], dtype=float)
                model.intercept_, model.feature_names_ = float(said["intercept"]), tuple(said["names"])
            return cls(said["method"], model, columns, str(said["target"]), tuple(map(str, said["classes"])))
        except OSError as error:
            raise CheckpointError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            raise CheckpointError(f"{os.fspath(path)} holds no model of a table, or is damaged ({why})") from None


def is_table_model(path: Path) -> bool:
    """Whether this file, or the one in this folder, is such a model."""
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
    """Fit trees or a GLM to the rows of a table that have the target.

    Parameters
    ----------
    method
        "trees" or "glm".
    fed, columns, target, classes
        The table, and what of it is what; see `TableModel`.
    family
        The law of the target: for a GLM one of its families, for trees "poisson" for counts; by default logistic for
        classes, Gaussian (the squared error) for numbers.
    rounds
        For trees how many; for a GLM at most how many rounds.
    place
        Makes the engine; by default in this process.
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
    called = "y" if target in inputs else target  # as messages say it
    names = {called: classes} if method == "trees" and classes else {}
    parts: dict[str, Array] = {called: y.astype(np.int32) if classes else y}
    if method == "trees":
        for x, (name, known) in zip(inputs, columns.items(), strict=True):
            values = _values(fed, name, known)
            parts[x] = np.nan_to_num(values, nan=-1).astype(np.int32) if known else values
            names |= {x: known} if known else {}
    else:
        parts["x"] = indicators(fed, columns)
        used &= ~np.isnan(parts["x"]).any(axis=1)
    rows = Federation(parts, fed.offsets, fed.ids, names=names).where(used)
    engine: Federation | Engine = rows if place is None else place(rows)
    model: BoostedTrees | GLM
    if method == "trees":
        loss = None if classes else "poisson" if family == "poisson" else "squared"
        model = BoostedTrees(rounds or 100, loss=loss, seed=seed)
        model.fit(engine, features=inputs, target=called, progress=progress)
    else:
        model = GLM(family or ("logistic" if classes else "gaussian"), rounds=rounds or 25)
        model.fit(engine, features="x", target=called, progress=progress)
        model.feature_names_ = (*_indicator_names(columns), "intercept")
    return TableModel(method, model, columns, target, classes)


def target_of(table: Federation, target: str, classes: Sequence[str]) -> Array:
    """The target as codes of these classes, -1 where it is none of them, or as numbers, NaN where missing."""
    if classes:
        return as_codes(table[target], classes, table.names.get(target)).astype(float)
    return _values(table, target, ())


def indicators(table: Federation, columns: Mapping[str, tuple[str, ...]]) -> Array:
    """Features of a GLM: numbers, and 0 or 1 for each category but the first; NaN where a number is missing.

    >>> fed = Federation({"a": [1.0, 2.0], "b": ["u", "v"]}, [0, 2])
    >>> indicators(fed, {"a": (), "b": ("u", "v")}).tolist()
    [[1.0, 0.0], [2.0, 1.0]]
    """
    parts = []
    for name, known in columns.items():
        values = _values(table, name, known)
        parts += [(values == code).astype(float) for code in range(1, len(known))] if known else [values]
    return np.column_stack(parts)


def _indicator_names(columns: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [n for name, known in columns.items() for n in ([f"{name}={k}" for k in known[1:]] if known else [name])]


def _values(table: Federation, name: str, known: Sequence[str]) -> Array:
    """A column as numbers, or as codes of its categories; NaN where missing or not known."""
    values = table[name]
    if values.ndim != 1:
        raise DataError(f"column {name!r} must hold one value a row, not {list(values.shape[1:])}")
    if known:
        codes = as_codes(values, known, table.names.get(name)).astype(float)
        return np.where(codes < 0, np.nan, codes)
    if name in table.names or values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} must hold numbers, as when the model was trained")
    return values.astype(float)
