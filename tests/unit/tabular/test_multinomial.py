"""Logistic regression of several classes against scikit-learn on pooled rows, and against GLM for two."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedscape import GLM, DataError, Federation, Gaussian, Ledger, PrivacyError
from fedscape.tabular import MultinomialGLM
from fedscape.tabular.multinomial import softmax


def clients(k: int = 4, n: int = 600, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [1.0, 5.0, 0.2]
    margin = x @ rng.normal(size=(3, k)) / [1.0] * 0.5 + rng.normal(size=k)
    y = (softmax(margin).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return Federation({"x": x, "y": y}, np.sort(np.append(rng.integers(0, n, 20), [0, n])))


@pytest.mark.parametrize("k", [3, 7])
def test_coefficients_are_those_of_scikit_learn_on_pooled_rows(k):
    fed = clients(k)
    model = MultinomialGLM(l2=2.0, rounds=400, tol=1e-9).fit(fed)
    pooled = LogisticRegression(C=0.5, tol=1e-12, max_iter=50_000).fit(fed["x"], fed["y"])
    np.testing.assert_allclose(model.coefficients_, pooled.coef_, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(fed["x"]), pooled.predict_proba(fed["x"]), atol=1e-6)
    assert model.converged_
    assert len(model.history_) < 400


def test_two_classes_are_logistic_regression_with_half_the_coefficients():
    fed = clients(2)
    two, one = MultinomialGLM(tol=1e-10).fit(fed), GLM("logistic").fit(fed)
    np.testing.assert_allclose(2 * two.coefficients_[1], one.coefficients_, atol=1e-8)
    np.testing.assert_allclose(two.predict_proba(fed["x"])[:, 1], one.predict(fed["x"]), atol=1e-9)
    assert len(two.history_) < 12  # Newton's own steps


def test_ranges_change_the_units_and_not_the_model():
    fed = clients(3)
    plain, ranged = (MultinomialGLM(ranges=r, tol=1e-10).fit(fed) for r in (None, {"x": (-30.0, 30.0)}))
    np.testing.assert_allclose(plain.predict_proba(fed["x"]), ranged.predict_proba(fed["x"]), atol=1e-7)


def test_a_row_moves_the_sums_by_no_more_than_the_bound():
    fed = clients(5, n=400)
    work = MultinomialGLM(5, ranges={"x": (-1.0, 1.0)})
    rng = np.random.default_rng(1)
    for scale in (0.0, 1.0, 30.0):
        state = {"coefficients": rng.normal(size=(5, 4)) * scale}
        rows = Federation(dict(fed.columns), np.arange(fed.n_rows + 1))
        sent, _ = work.step(state, rows, None)
        flat = np.concatenate([v.reshape(len(v), -1) for v in sent.values()], axis=1)
        for norm in (1, 2):
            assert np.linalg.norm(flat, norm, axis=1).max() <= work.row_bound(state, norm, fed) * (1 + 1e-12)


def test_a_private_fit_needs_ranges_and_declared_classes_and_is_booked():
    fed, noise = clients(3), Gaussian(clip=1.0, multiplier=1.0)
    with pytest.raises(PrivacyError, match="needs ranges="):
        MultinomialGLM().fit(fed, privacy=noise)
    with pytest.raises(PrivacyError, match="the classes of 'y' follow from the rows"):
        MultinomialGLM(ranges={"x": (-9, 9)}).fit(fed, privacy=noise)
    ledger = Ledger(epsilon=50.0, delta=1e-3)
    model = MultinomialGLM(ranges={"x": (-9, 9)}, rounds=3)
    model.fit(fed.declare("y", ["a", "b", "c"]), privacy=noise, ledger=ledger)
    assert 0 < max(ledger.spent().values()) <= 50
    assert np.isfinite(model.coefficients_).all()


def test_too_many_numbers_and_other_features_are_refused():
    wide = Federation({"x": np.zeros((2, 800)), "y": [0, 9]}, [0, 2])
    with pytest.raises(DataError, match="10 classes of 801 features are 6,416,010 numbers a client"):
        MultinomialGLM().fit(wide)
    with pytest.raises(DataError, match="x has 2 features a row, the model 3"):
        MultinomialGLM(rounds=1).fit(clients()).predict([[1.0, 2.0]])
