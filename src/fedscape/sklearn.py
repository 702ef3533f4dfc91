"""Models of fedscape on plain arrays, for scikit-learn's pipelines, searches and cross-validation.

Needs `pip install 'fedscape[sklearn]'`. Each adapter takes a model of fedscape and adds `fit(X, y)`; `groups` says the
client of each row, and without it all rows are one client's. The fitted model is `model_`.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedscape.core.estimator import Estimator
from fedscape.core.federation import Federation
from fedscape.errors import DataError, require
from fedscape.types import Array

require("sklearn", extra="sklearn")
from sklearn.base import BaseEstimator, ClassifierMixin, DensityMixin, RegressorMixin  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402


class _Adapter(BaseEstimator):  # type: ignore[misc]
    """What the adapters share: a model as their one parameter, and a federation from arrays."""

    model_: Any

    def __init__(self, model: Estimator | None = None) -> None:
        self.model = model

    def _default(self) -> Estimator:
        raise TypeError(f"{type(self).__name__} must define _default()")

    def _learn(self, groups: npt.ArrayLike | None, **columns: Array) -> Self:
        rows = len(columns["x"])
        clients = np.zeros(rows, dtype=np.int64) if groups is None else np.asarray(groups)
        if clients.shape != (rows,):
            raise DataError(f"groups must name the client of each of the {rows} rows, not have shape {clients.shape}")
        model = self._default() if self.model is None else self.model
        own: Any = type(model)(**model.get_params())
        self.model_ = own.fit(Federation.from_arrays(columns, clients=clients), progress=False)
        return self

    def _checked(self, X: npt.ArrayLike) -> Array:
        check_is_fitted(self, "model_")
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))


class Classifier(ClassifierMixin, _Adapter):  # type: ignore[misc]
    """A classifier of rows: `BoostedTrees()` by default, or `MultinomialGLM()`; labels may be texts.

    Parameters
    ----------
    model
        A model with `predict_proba`, not fitted; its features are "x", its target "y".

    >>> from fedscape.sklearn import Classifier
    >>> Classifier().fit([[0.0], [1.0], [2.0], [3.0]] * 5, ["no", "no", "yes", "yes"] * 5).predict([[2.5]]).tolist()
    ['yes']
    """

    def _default(self) -> Estimator:
        from fedscape.tabular import BoostedTrees

        return BoostedTrees()

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from rows X [n, f] and their labels y [n]."""
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError("y has one class: a classifier needs rows of two classes or more")
        return self._learn(groups, x=x, y=codes)

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """The probability of each class, [rows, classes], in the order of `classes_`."""
        x = self._checked(X)
        return np.asarray(self.model_.predict_proba(x))

    def predict(self, X: npt.ArrayLike) -> Array:
        """The most likely class of each row."""
        likely = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likely])


class Regressor(RegressorMixin, _Adapter):  # type: ignore[misc]
    """A regressor of rows: `BoostedTrees(loss="squared")` by default, or a `GLM`.

    Parameters
    ----------
    model
        A model whose `predict` gives a number for each row, not fitted; its features are "x", its target "y".

    >>> from fedscape import GLM
    >>> from fedscape.sklearn import Regressor
    >>> Regressor(GLM()).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).predict([[4.0]]).round(6).tolist()
    [9.0]
    """

    def _default(self) -> Estimator:
        from fedscape.tabular import BoostedTrees

        return BoostedTrees(loss="squared")

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from rows X [n, f] and their numbers y [n]."""
        x, values = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        return self._learn(groups, x=x, y=np.asarray(values, dtype=np.float64))

    def predict(self, X: npt.ArrayLike) -> Array:
        """The mean of each row."""
        x = self._checked(X)
        return np.asarray(self.model_.predict(x))


class Density(DensityMixin, _Adapter):  # type: ignore[misc]
    """A mixture over rows: `GaussianMixture()` by default.

    Parameters
    ----------
    model
        A mixture with `score_samples` and `predict` over rows of the column "x", not fitted.

    >>> from fedscape.sklearn import Density
    >>> round(Density().fit([[-1.0], [1.0]]).score([[0.0], [0.0]]), 3)
    -0.919
    """

    def _default(self) -> Estimator:
        from fedscape.mixtures import GaussianMixture

        return GaussianMixture()

    def fit(self, X: npt.ArrayLike, y: object = None, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from rows X [n, f]; y is ignored, as in scikit-learn."""
        return self._learn(groups, x=validate_data(self, X, dtype=np.float64, ensure_min_samples=2))

    def score_samples(self, X: npt.ArrayLike) -> Array:
        """log p(x) of each row."""
        x = self._checked(X)
        return np.asarray(self.model_.score_samples(x))

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """The mean over rows of log p(x)."""
        return float(self.score_samples(X).mean())

    def predict(self, X: npt.ArrayLike) -> Array:
        """The component with the largest responsibility for each row."""
        x = self._checked(X)
        return np.asarray(self.model_.predict(x))


__all__ = ["Classifier", "Density", "Regressor"]
