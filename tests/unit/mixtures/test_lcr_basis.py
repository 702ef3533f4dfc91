"""Classes that are linear in functions of the features."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermevander

import fedscape as fs
from fedscape.mixtures.latent_class.basis import parse_basis


def bent(seed=0, agents=30, entities=4, events=20, kinds=2):
    """Two kinds of entities: |x| and -|x|, which no straight line tells apart."""
    rng = np.random.default_rng(seed)
    n = agents * entities * events
    x = rng.normal(2.0, 3.0, n)
    kind = np.repeat(rng.integers(0, kinds, agents * entities), events)
    y = np.where(kind == 0, 1.0, -1.0) * np.abs(x - 2.0) + 0.3 * rng.normal(size=n)
    entity = np.tile(np.repeat(np.arange(entities), events), agents)
    fed = fs.Federation({"x": x, "y": y, "entity": entity}, np.arange(0, n + 1, entities * events))
    return fed, kind


def design(kind, z):
    if kind == "hinges":
        return np.column_stack([z, *(np.maximum(z - knot, 0) for knot in (-1.0, 0.0, 1.0))])
    return np.delete(hermevander(np.clip(z, -6, 6), 3), 0, axis=1)


@pytest.mark.parametrize("text", ["hinges", "polynomials:3"])
def test_one_class_is_pooled_least_squares_on_the_expanded_design(text):
    fed, _ = bent()
    how = {"sigma": 1e-3, "delta": 1e4, "entity": None, "basis": text}
    reg = fs.LatentClassRegression(1, **how).fit(fed)
    x = fed["x"]
    columns = np.column_stack([np.ones(len(x)), design(text.split(":")[0], (x - x.mean()) / x.std())])
    best = np.linalg.lstsq(columns, fed["y"], rcond=None)[0]
    np.testing.assert_allclose(reg.predict(fed), columns @ best, atol=1e-6)
    np.testing.assert_allclose(reg.coefficients_[0], best[1:], atol=1e-6)
    assert len(reg.feature_names_) == columns.shape[1] - 1


def test_a_layer_is_least_squares_on_its_units_and_the_same_for_everyone():
    fed, _ = bent()
    reg = fs.LatentClassRegression(1, sigma=1e-3, delta=1e4, entity=None, basis="layer:6,seed=2").fit(fed)
    x = fed["x"]
    units = parse_basis("layer:6,seed=2").expand(((x - x.mean()) / x.std())[:, None])
    best = np.linalg.lstsq(np.column_stack([np.ones(len(x)), units]), fed["y"], rcond=None)[0]
    np.testing.assert_allclose(reg.predict(fed), np.column_stack([np.ones(len(x)), units]) @ best, atol=1e-5)
    assert units.shape[1] == 7
    assert np.abs(units[:, 1:]).max() <= 1


def test_classes_that_bend_are_told_apart_where_lines_are_not():
    fed, _ = bent()
    train, test = fed.split(test=0.25, seed=0)
    errors = {}
    for text in (None, "hinges", "layer:8"):
        reg = fs.LatentClassRegression(2, basis=text, seed=0).fit(train)
        errors[text] = np.mean((reg.predict(test) - test["y"]) ** 2)
    assert errors["hinges"] < 1.3 * 0.09  # the noise
    assert errors["layer:8"] < 3 * 0.09
    assert errors[None] > 10 * 0.09


@pytest.mark.parametrize("method", ["central", "em"])
def test_other_methods_take_a_basis_too(method):
    fed, _ = bent(agents=12)
    reg = fs.LatentClassRegression(2, basis="hinges:0", method=method, seed=0).fit(fed)
    assert reg.coefficients_.shape == (2, 2)
    assert reg.feature_names_ == ("x", "x above 0 sd")


def test_a_saved_basis_predicts_the_same(tmp_path):
    fed, _ = bent(agents=8)
    reg = fs.LatentClassRegression(2, basis="polynomials:2", seed=0).fit(fed)
    reg.save(tmp_path / "bent.json")
    again = fs.LatentClassRegression.load(tmp_path / "bent.json")
    np.testing.assert_array_equal(again.predict(fed), reg.predict(fed))


def test_the_number_of_classes_is_chosen_with_a_basis():
    fed, _ = bent()
    reg = fs.LatentClassRegression((1, 2), basis="hinges", seed=0).fit(fed)
    assert reg.coefficients_.shape == (2, 4)
    assert reg.candidates_[0]["behind"] > 5 * reg.candidates_[0]["error"]


@pytest.mark.parametrize(
    "text", ["splines", "hinges:1,1", "polynomials:1", "polynomials", "layer", "layer:0", "hinges:a"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(fs.errors.DataError, match="basis must be 'hinges'"):
        fs.LatentClassRegression(1, basis=text).fit(bent(agents=2)[0])


def test_a_basis_without_bounds_is_refused_where_ranges_are_needed():
    reg = fs.LatentClassRegression(1, basis="hinges", ranges={"x": (-10, 10), "y": (-10, 10)})
    with pytest.raises(fs.errors.DataError, match="goes without ranges, and so without privacy"):
        reg.fit(bent(agents=2)[0])
