"""A model of a table as commands save and use it: the model, what turns a table into its features, one JSON file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.checkpoint import replace_file
from fedscape.core.federation import Federation
from fedscape.errors import CheckpointError, DataError
from fedscape.tabular.boosting import BoostedTrees
from fedscape.tabular.families import family_of
from fedscape.tabular.glm import GLM
from fedscape.tabular.inputs import TableInputs
from fedscape.tabular.multinomial import MultinomialGLM
from fedscape.types import Array

METHODS = ("trees", "glm")
FILE = "model.json"  # of a run's folder
_WHAT = "fedscape table model"
Model = BoostedTrees | GLM | MultinomialGLM
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
    inputs
        What turns a table into its features.
    private
        Whether it was trained privately: its files are then for their owner alone.
    """

    method: str
    model: Model
    inputs: TableInputs
    private: bool = False

    def predict(self, table: Federation) -> Array:
        """Probabilities [rows, classes], or the expected target [rows]; NaN where a value is missing that it needs."""
        x = self.inputs.x(table)
        used = self.inputs.usable(x)
        ready = x if isinstance(self.model, BoostedTrees) else np.nan_to_num(x)
        values = probabilities(self.model, ready) if self.inputs.classes else self.model.predict(ready)
        return np.where(used[:, None] if values.ndim == 2 else used, values, np.nan)

    def score(self, table: Federation) -> dict[str, float]:
        """How it does on rows with a known target: accuracy and log loss, or root mean squared error and R squared."""
        if not table.n_rows:
            raise DataError("there are no rows: nothing can be judged")
        predictions, y, target = self.predict(table), self.inputs.y(table), self.inputs.target
        used = (y >= 0 if self.inputs.classes else np.isfinite(y)) & ~np.isnan(
            predictions.reshape(len(predictions), -1)
        ).any(axis=1)
        if not used.any():
            raise DataError(f"no row has both a known {target!r} and the features: nothing can be judged")
        predictions, y = predictions[used], y[used]
        if self.inputs.classes:
            own = predictions[np.arange(len(y)), y.astype(int)]
            return {
                "rows": float(len(y)),
                "accuracy": float((predictions.argmax(axis=1) == y).mean()),
                "loss": float(-np.log(np.maximum(own, 1e-15)).mean()),
            }
        error, spread = float(((predictions - y) ** 2).mean()), float(y.var())
        return {"rows": float(len(y)), "rmse": error**0.5, "r2": 1 - error / spread if spread else 0.0}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file; trees are beside it, as `BoostedTrees.save` writes them."""
        about: dict[str, Any] = {"what": _WHAT, "format": 1, "method": self.method, **self.inputs.to_json()}
        if isinstance(self.model, BoostedTrees):
            self.model.save(_trees_beside(path), private=self.private)
        elif isinstance(self.model, MultinomialGLM):
            about |= {"family": "multinomial", "intercept": self.model.intercepts_.tolist()}
            about |= {"names": self.inputs.names(), "coefficients_": self.model.coefficients_.tolist()}
        else:
            model = self.model
            about |= {"family": model.family, "intercept": model.intercept_, "names": self.inputs.names()}
            about |= {name: getattr(model, name).tolist() for name in _LEARNED if hasattr(model, name)}
            if hasattr(model, "deviance_"):
                about |= {"deviance": model.deviance_, "dispersion": model.dispersion_, "rows": model.n_rows_}
        text = json.dumps(about, indent=1) + "\n"
        replace_file(path, lambda file: file.write(text.encode()), private=self.private)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableModel:
        """What `save` wrote; anything else is refused."""
        try:
            about = json.loads(Path(path).read_text("utf-8"))
            if about.get("what") != _WHAT or about.get("format") != 1 or about["method"] not in METHODS:
                raise ValueError("it is no model of a table of this version")
            inputs = TableInputs.from_json(about, indicators=about["method"] == "glm")
            trees = about["method"] == "trees"
            return cls(about["method"], BoostedTrees.load(_trees_beside(path)) if trees else _linear(about), inputs)
        except OSError as error:
            raise CheckpointError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            raise CheckpointError(f"{os.fspath(path)} holds no model of a table, or is damaged ({why})") from None


def probabilities(model: Model, x: Array) -> Array:
    """Of the classes, [rows, classes], for features [rows, f]."""
    if not isinstance(model, GLM):
        return model.predict_proba(x)
    mean = model.predict(x)
    return np.column_stack([1 - mean, mean])


def _linear(about: dict[str, Any]) -> GLM | MultinomialGLM:
    coefficients, names = np.array(about["coefficients_"], dtype=float), tuple(map(str, about["names"]))
    model: GLM | MultinomialGLM
    if about["family"] == "multinomial":
        model = MultinomialGLM(len(coefficients), target=str(about["target"]))
        model.intercepts_ = np.array(about["intercept"], dtype=float)
        if coefficients.ndim != 2 or model.intercepts_.shape != (len(coefficients),):
            raise ValueError("coefficients and intercepts are not of the same classes")
    else:
        model = GLM(family_of(about["family"]).name, target=str(about["target"]))
        model.intercept_ = float(about["intercept"])
    model.coefficients_, model.feature_names_ = coefficients, names
    return model


def is_table_model(path: Path) -> bool:
    """Whether this file, or the one in this folder, is such a model."""
    file = path / FILE if path.is_dir() else path
    try:
        return file.suffix == ".json" and json.loads(file.read_text("utf-8")).get("what") == _WHAT
    except (OSError, ValueError, AttributeError):
        return False


def _trees_beside(path: str | os.PathLike[str]) -> Path:
    return Path(path).with_suffix(".trees.json")
