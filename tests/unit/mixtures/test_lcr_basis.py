"""Classes that are linear in functions of the features."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermevander
from scipy import stats

import fedscape as fs
from fedscape.mixtures.latent_class.basis import parse_basis
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.networks import Networks
from fedscape.mixtures.latent_class.table import Table


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


# -- networks ----------------------------------------------------------------------------------------------------------


def waves(seed=0, agents=40, entities=4, events=20):
    """Two kinds of entities, each a wave along a direction of its own: three straight pieces do not follow them."""
    rng = np.random.default_rng(seed)
    n = agents * entities * events
    x = rng.normal(size=(n, 2))
    kind = np.repeat(rng.integers(0, 2, agents * entities), events)
    along = (x * np.array([[2.5, 1.0], [-1.0, 2.5]])[kind]).sum(axis=1)
    y = 2 * np.sin(along) + 0.3 * rng.normal(size=n)
    entity = np.tile(np.repeat(np.arange(entities), events), agents)
    return fs.Federation({"x": x, "y": y, "entity": entity}, np.arange(0, n + 1, entities * events))


def some_network():
    fed = waves(agents=6)
    work = Networks(Table(), 2 + 3 + 1, 2, hidden=3, seed=4)
    rng = np.random.default_rng(3)
    state = work.begin(np.array([0.1, -0.2, 0.3]), np.array([1.2, 0.8]), deviation=1.4)
    state = work.prepare({**state, "inner": state["inner"] + rng.normal(size=state["inner"].shape)})
    return work, {**state, "mean": rng.normal(size=(2, 6))}, fed, rng.integers(0, 2, 24)


def test_agents_send_the_gradient_of_their_squared_error_by_the_hidden_weights():
    work, state, fed, labels = some_network()

    def error(inner):
        mine = work.designs({**state, "inner": inner}, fed)
        kind = np.repeat(labels, 20)
        said = np.stack([d @ w for d, w in zip(mine, state["mean"], strict=True)], axis=1)[np.arange(len(kind)), kind]
        return fed.segment_sum((fed["y"] - state["centre"][-1] - said) ** 2)

    sent = work.gradient(state, fed, labels)
    for at in np.ndindex(state["inner"].shape):
        move = np.zeros(state["inner"].shape)
        move[at] = 1e-5
        slope = (error(state["inner"] + move) - error(state["inner"] - move)) / 2e-5
        np.testing.assert_allclose(sent[(slice(None), *at)], -slope / 2, rtol=1e-5, atol=1e-6)


def test_densities_of_networks_are_those_of_a_regression_on_their_units():
    fed = waves(agents=6)
    work = Networks(Table(), 2 + 3 + 1, 2, hidden=3, n_agents=6)
    *_, last = fs.rounds(work, fed, n_rounds=9)
    state = work.prepare(last.state)
    assert np.abs(state["inner"][0] - state["inner"][1]).max() > 0.01  # a layer of its own in each class
    labelled = work.label(state, fed)
    noise, law = float(state["noise"]), classes_of(opened(state["sums"], 6), float(state["noise"]), state["spread"])
    for k, units in enumerate(work.designs(state, fed)):
        for e in range(0, 24, 5):
            mine = slice(20 * e, 20 * e + 20)
            y, cov = fed["y"][mine] - state["centre"][-1], units[mine] @ law.covariance[k] @ units[mine].T
            expected = stats.multivariate_normal.logpdf(y, units[mine] @ law.mean[k], cov + noise * np.eye(20))
            assert labelled.log_density[e, k] == pytest.approx(expected, abs=1e-6)


def test_networks_follow_what_fixed_functions_do_not():
    train, test = waves().split(test=0.25, seed=0)
    errors = {}
    for text in (None, "layer:8", "network:8"):
        reg = fs.LatentClassRegression(2, basis=text, rounds=150, seed=0).fit(train)
        errors[text] = float(np.mean((reg.predict(test) - test["y"]) ** 2))
    assert errors["network:8"] < 0.16  # the noise has 0.09
    assert errors["layer:8"] > 0.5
    assert errors[None] > 1.0
    assert abs(reg.sigma_ - 0.3) < 0.1
    assert reg.coefficients_.shape == (2, 2)


def test_one_network_without_steps_is_least_squares_on_its_units():
    fed, _ = bent()
    how = {"sigma": 1e-3, "delta": 1e4, "entity": None, "rounds": 5}  # before hidden layers move
    reg = fs.LatentClassRegression(1, basis="network:6,seed=2", **how).fit(fed)
    fixed = fs.LatentClassRegression(1, basis="layer:6,seed=2", **how).fit(fed)
    np.testing.assert_allclose(reg.predict(fed), fixed.predict(fed), atol=1e-4)


def test_networks_are_saved_and_chosen_and_learn_from_cohorts(tmp_path):
    train, test = waves(agents=24).split(test=0.25, seed=0)
    reg = fs.LatentClassRegression((1, 2), basis="network:4", rounds=40, seed=0).fit(train)
    assert reg.coefficients_.shape == (2, 2)
    reg.save(tmp_path / "net.json")
    again = fs.LatentClassRegression.load(tmp_path / "net.json")
    assert np.array_equal(again.predict(test), reg.predict(test))
    assert again.score(test, history=train) == reg.score(test, history=train)
    some = fs.LatentClassRegression(2, basis="network:4", rounds=60, seed=0).fit(train, sampler=fs.Poisson(0.5))
    assert some.score(test) > fs.LatentClassRegression(2, seed=0).fit(train).score(test)


@pytest.mark.parametrize("how", [{"method": "em"}, {"link": "logistic"}, {"chains": 2}, {"gamma": "latest"}])
def test_networks_refuse_what_their_rounds_do_not_know(how):
    with pytest.raises(fs.errors.DataError, match="goes with link='identity', method='federated', one chain"):
        fs.LatentClassRegression(2, basis="network:4", **how).fit(waves(agents=2))
