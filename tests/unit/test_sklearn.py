"""The adapters keep scikit-learn's laws, and stand in its pipelines, searches and cross-validation."""

from __future__ import annotations

import numpy as np
import pytest

import fedscape as fs
from fedscape import DataError, Federation

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.linear_model import LinearRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

from fedscape.sklearn import Classifier, Density, Regressor  # noqa: E402

ADAPTERS = {
    "trees": Classifier(fs.BoostedTrees(10, depth=3, bins=32)),
    "multinomial": Classifier(fs.tabular.MultinomialGLM()),
    "regression trees": Regressor(fs.BoostedTrees(10, depth=3, bins=32, loss="squared")),
    "glm": Regressor(fs.GLM()),
    "mixture": Density(fs.GaussianMixture(rounds=5)),
}


def rows(n=240):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, np.where(x[:, 0] + 0.3 * rng.normal(size=n) > 0, "yes", "no"), rng.integers(8, size=n)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_laws_of_scikit_learn_hold(name):
    results = check_estimator(ADAPTERS[name], on_fail=None, on_skip=None)
    failed = {r["check_name"]: str(r["exception"])[:300] for r in results if r["status"] == "failed"}
    assert not failed


def test_a_pipeline_is_searched_and_cross_validated_by_client():
    x, y, clients = rows()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), Classifier(fs.BoostedTrees(5, bins=16))),
        {"classifier__model__depth": [1, 2]},
        cv=GroupKFold(3),
    )
    search.fit(x, y, groups=clients)
    assert search.best_score_ > 0.85
    assert search.best_estimator_["classifier"].model_.depth in (1, 2)
    assert cross_val_score(Classifier(fs.BoostedTrees(5, bins=16)), x, y, cv=3).mean() > 0.85


def test_groups_are_the_clients_and_the_model_is_the_one_of_fedscape():
    x, y, clients = rows()
    fitted = Classifier(fs.BoostedTrees(5, bins=16)).fit(x, y, groups=clients)
    fed = Federation.from_arrays({"x": x, "y": (y == "yes").astype(int)}, clients=clients)
    expected = fs.BoostedTrees(5, bins=16).fit(fed).predict_proba(x)
    np.testing.assert_array_equal(fitted.predict_proba(x), expected)
    with pytest.raises(DataError, match="groups must name the client of each of the 240 rows"):
        fitted.fit(x, y, groups=clients[:-1])


def test_a_glm_by_sums_is_linear_regression():
    x, _, clients = rows()
    target = x @ [1.0, -2.0, 0.5] + 3.0 + np.random.default_rng(1).normal(size=len(x))
    ours, theirs = Regressor(fs.GLM()).fit(x, target, groups=clients), LinearRegression().fit(x, target)
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), rtol=1e-9)


def test_a_copy_is_not_fitted_and_has_models_of_its_own():
    x, y, _ = rows()
    fitted = Classifier(fs.BoostedTrees(3, bins=16)).fit(x, y)
    copy = clone(fitted)
    assert copy.model is not fitted.model
    assert copy.model.get_params() == fitted.model.get_params()
    assert not hasattr(copy, "model_")
