"""Latent class regression against integration, enumeration, the event-by-event recursion and scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from fedscape import (
    DataError,
    Federation,
    FixedSize,
    Key,
    LatentClassRegression,
    Local,
    NotFittedError,
    Poisson,
    rounds,
)
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.mixtures.latent_class.central import Chain
from fedscape.mixtures.latent_class.classes import Sums, classes_of, learned, opened
from fedscape.mixtures.latent_class.em import Share
from fedscape.mixtures.latent_class.kernels import (
    add_by_class,
    add_by_class_twin,
    add_events,
    add_events_twin,
    draw_labels,
    log_densities_twin,
    packed,
    unpacked,
    width,
)
from fedscape.mixtures.latent_class.predict import Places, all_drawn
from fedscape.mixtures.latent_class.rounds import ClassAssignment, densities, example
from fedscape.mixtures.latent_class.table import Table, groups_of, sums_of
from fedscape.papers import sequential_density


def sums_row(x, y):
    return np.concatenate([packed(x.T @ x), x.T @ y, [y @ y, len(y)]])


def problem(seed=0, k=3, f=4, n_entities=7, sigma=0.7, delta=1.3):
    """Labelled entities of k classes, and the state that holds all their sums."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, n_entities)
    data = [(rng.normal(size=(n, f)), rng.normal(size=n) * 2) for n in sizes]
    labels = rng.integers(0, k, n_entities)
    rows = np.array([sums_row(x, y) for x, y in data])
    state = ClassAssignment(Table(intercept=False), f, k, sigma=sigma, delta=delta).start(0)
    for row, label in zip(rows, labels, strict=True):
        state["sums"][label] += np.append(row, 1.0)
    return data, labels, rows, state


def prepared(state, f):
    return ClassAssignment(Table(intercept=False), f, len(state["sums"])).prepare(state)


# -- the predictive density --------------------------------------------------------------------------------------------


def test_density_equals_brute_force_integration_over_the_coefficients():
    sigma, delta = 0.8, 1.1
    rng = np.random.default_rng(1)
    x_class, y_class = rng.normal(size=(6, 2)), rng.normal(size=6)
    x, y = rng.normal(size=(3, 2)), rng.normal(size=3)
    state = ClassAssignment(Table(intercept=False), 2, 1, sigma=sigma, delta=delta).start(0)
    state["sums"][0] = np.append(sums_row(x_class, y_class), 1)
    grid = np.linspace(-6, 6, 1201)
    w = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    log_posterior = stats.norm.logpdf(w, 0, delta).sum(1) + stats.norm.logpdf(y_class, w @ x_class.T, sigma).sum(1)
    posterior = np.exp(log_posterior - log_posterior.max())
    likelihood = np.exp(stats.norm.logpdf(y, w @ x.T, sigma).sum(1))
    integral = np.log((posterior * likelihood).sum() / posterior.sum())
    block = densities(prepared(state, 2), sums_row(x, y)[None], np.array([-1]))[0, 0]
    assert block == pytest.approx(integral, abs=1e-9)


def recursion(x, y, precision, c, sigma):
    """Theorem 1, event by event, with the variance of eq. (27)."""
    return sequential_density(np.linalg.inv(precision), c, x, y, sigma)


def test_block_density_equals_the_event_by_event_recursion():
    data, _, rows, state = problem(f=5, k=6)
    ready, sigma = prepared(state, 5), 0.7
    block = densities(ready, rows, np.full(len(rows), -1))
    for k in range(6):
        precision = np.eye(5) / 1.3**2 + unpacked(state["sums"][k, :15], 5) / sigma**2
        for e, (x, y) in enumerate(data):
            c = state["sums"][k, 15:20] / sigma**2
            assert block[e, k] == pytest.approx(recursion(x, y, precision, c, sigma), rel=1e-11)


@pytest.mark.parametrize(("k", "f"), [(1, 1), (3, 4), (4, 7), (9, 3)])
def test_density_kernel_equals_its_twin_with_own_events_taken_out(k, f):
    _, labels, rows, state = problem(seed=k, k=k, f=f, n_entities=20)
    p = f * (f + 1) // 2
    second, first = unpacked(state["sums"][:, :p], f), state["sums"][:, p : p + f]
    for own in (labels, np.full(len(rows), -1), np.where(np.arange(20) % 2, labels, -1)):
        kernel = densities(prepared(state, f), rows, own)
        twin = log_densities_twin(rows, own, second, first, np.full(f, 1 / 1.3**2), 0.7)
        np.testing.assert_allclose(kernel, twin, rtol=1e-9, atol=1e-9)


def test_density_stays_exact_where_the_target_lies_far_from_zero_beside_its_noise():
    rng = np.random.default_rng(3)
    x_class, x = rng.normal(size=(10_000, 3)), rng.normal(size=(4, 3))
    w = np.array([1e3, -2e3, 5e2])
    y_class, y = x_class @ w + rng.normal(size=10_000), x @ w + rng.normal(size=4)
    state = ClassAssignment(Table(intercept=False), 3, 1, sigma=1.0, delta=1e4).start(0)
    state["sums"][0] = np.append(sums_row(x_class, y_class), 1)
    precision = np.eye(3) / 1e8 + x_class.T @ x_class
    exact = recursion(x, y, precision, x_class.T @ y_class, 1.0)
    assert densities(prepared(state, 3), sums_row(x, y)[None], np.array([-1]))[0, 0] == pytest.approx(exact, rel=1e-6)


# -- the Gibbs conditional ---------------------------------------------------------------------------------------------


def log_evidence(data, labels, k, sigma, delta):
    """log p(y | labels): coefficients integrated out, as one normal law for each class."""
    total = 0.0
    for c in range(k):
        mine = [d for d, z in zip(data, labels, strict=True) if z == c]
        if mine:
            x, y = np.concatenate([x for x, _ in mine]), np.concatenate([y for _, y in mine])
            total += stats.multivariate_normal.logpdf(
                y, np.zeros(len(y)), sigma**2 * np.eye(len(y)) + delta**2 * x @ x.T
            )
    return total


def eq_2(labels, e, agent, k, alpha, beta):
    """Eq. (2) with z_ij left out of every count."""
    others = np.arange(len(labels)) != e
    everywhere = np.bincount(labels[others], minlength=k)
    here = np.bincount(labels[others & (agent == agent[e])], minlength=k)
    return (here + beta * (everywhere + alpha / k) / (everywhere.sum() + alpha)) / (here.sum() + beta)


def test_gibbs_conditional_equals_enumeration_of_the_labels():
    k, alpha, beta, sigma, delta = 3, 1.5, 0.8, 0.7, 1.3
    data, labels, rows, state = problem(seed=4, k=k, f=2, n_entities=5)
    agent = np.array([0, 0, 0, 1, 1])
    for e in range(5):
        exact = np.log(eq_2(labels, e, agent, k, alpha, beta))
        for c in range(k):
            changed = labels.copy()
            changed[e] = c
            exact[c] += log_evidence(data, changed, k, sigma, delta)
        exact = np.exp(exact - exact.max())
        # the one entity e is drawn anew, all the others of its agent are certain to stay where they are
        log_density = densities(prepared(state, 2), rows, labels)
        stay = np.arange(5) != e
        log_density[stay] = np.where(np.arange(k) == labels[stay][:, None], 0.0, -1e9)
        out, shares = np.empty(5, dtype=np.int64), np.empty((5, k))
        counts = state["sums"][:, -1]
        draw_labels(log_density, np.array([0, 3, 5]), labels, counts, 1.0, alpha, beta, np.full(5, 0.5), out, shares)
        np.testing.assert_allclose(shares[e], exact / exact.sum(), rtol=1e-8)


def test_labels_are_drawn_from_their_shares():
    n = 20_000
    log_density = np.log(np.tile([0.1, 0.0001, 0.6, 0.2999], (n, 1)))
    labels, shares = np.empty(n, dtype=np.int64), np.empty((n, 4))
    uniform = np.random.default_rng(0).random(n)
    offsets, old = np.arange(n + 1), np.full(n, -1)
    draw_labels(log_density, offsets, old, np.zeros(4), 0.0, 1.0, 1.0, uniform, labels, shares)
    expected = n * np.array([0.1, 0.0001, 0.6, 0.2999])
    assert (np.abs(np.bincount(labels, minlength=4) - expected) <= 5 * np.sqrt(expected + 1)).all()


# -- the kernels and the rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [0, 1])
def test_event_sums_equal_their_twin(intercept):
    rng = np.random.default_rng(2)
    x, y, order = rng.normal(size=(30, 3)), rng.normal(size=30), rng.permutation(30)
    starts, centre, scale = np.array([0, 4, 4, 29, 30]), rng.normal(size=4), np.array([1.0, 2.0, 0.5])
    kernel, twin = np.zeros((4, width(3 + intercept))), np.zeros((4, width(3 + intercept)))
    add_events(x, y, order, starts, centre, scale, kernel)
    add_events_twin(x, y, order, starts, centre, scale, twin)
    np.testing.assert_allclose(kernel, twin, rtol=1e-12, atol=1e-12)


def test_sums_by_class_equal_their_twin():
    rng = np.random.default_rng(2)
    sums, shares, offsets = rng.normal(size=(9, 5)), rng.dirichlet(np.ones(3), 9), np.array([0, 0, 4, 9])
    kernel, twin = np.zeros((3, 3, 6)), np.zeros((3, 3, 6))
    add_by_class(sums, offsets, shares, kernel)
    add_by_class_twin(sums, offsets, shares, twin)
    np.testing.assert_allclose(kernel, twin, rtol=1e-12)


def test_entities_are_found_whatever_the_order_of_events():
    fed = example()
    groups = groups_of(fed, "entity")
    for i in range(len(fed)):
        mine = fed["entity"][fed.offsets[i] : fed.offsets[i + 1]]
        assert groups.codes[groups.offsets[i] : groups.offsets[i + 1]].tolist() == sorted(set(mine.tolist()))
    assert np.array_equal(groups.codes[groups.of_event], fed["entity"])
    ordered = Federation.from_arrays(dict(fed.columns), clients=np.repeat(np.arange(len(fed)), fed.sizes))
    assert np.array_equal(groups_of(ordered, "entity").codes, groups.codes)


# -- Algorithm 3 -------------------------------------------------------------------------------------------------------


def plain_loop(fed, k, f, *, alpha, beta, sigma, delta, n_rounds, seed):
    """Algorithm 3 with gamma = 1 and all agents, own events taken out, in plain NumPy."""
    table = Table(intercept=False)
    state = {"centre": np.zeros(f + 1), "scale": np.ones(f)}
    agents = [fed.take([i]) for i in range(len(fed))]
    groups = [groups_of(a, "entity") for a in agents]
    rows = [sums_of(table, a, g, state) for a, g in zip(agents, groups, strict=True)]
    labels = [np.full(len(r), -1) for r in rows]
    p = f * (f + 1) // 2
    total = np.zeros((k, width(f) + 1))
    for t in range(n_rounds):
        new = np.zeros_like(total)
        for i, agent in enumerate(agents):
            second, first = unpacked(total[:, :p], f), total[:, p : p + f]
            density = log_densities_twin(rows[i], labels[i], second, first, np.full(f, delta**-2.0), sigma)
            place = type("Place", (), {"keys": agent.keys, "offsets": np.array([0, len(rows[i])])})
            uniform = Key(seed, t).uniform_rows(place)
            for e in range(len(rows[i])):
                here = np.bincount(np.delete(labels[i], e)[np.delete(labels[i], e) >= 0], minlength=k)
                everywhere = total[:, -1] - (np.arange(k) == labels[i][e])
                prior = here + beta * (everywhere + alpha / k) / (everywhere.sum() + alpha) if t else np.ones(k)
                weight = np.exp(density[e] - density[e].max()) * prior
                labels[i][e] = np.searchsorted(np.cumsum(weight) / weight.sum(), uniform[e], side="right")
                new[labels[i][e]] += np.append(rows[i][e], 1)
        total = new
    return total, labels


@pytest.mark.parametrize("gamma", [1.0, None])
def test_rounds_over_all_agents_equal_a_plain_loop(gamma):
    fed, settings = example(), {"alpha": 2.0, "beta": 0.7, "sigma": 0.6, "delta": 1.5}
    total, labels = plain_loop(fed, 3, 2, **settings, n_rounds=6, seed=11)
    work = ClassAssignment(Table(intercept=False), 2, 3, **settings, gamma=gamma, n_agents=len(fed))
    engine = Local(fed)
    state = [r.state for r in rounds(work, engine, n_rounds=6, seed=11)][-1]
    np.testing.assert_allclose(state["sums"], total, rtol=1e-9, atol=1e-9)
    assert engine.kept()["labels"].flat.tolist() == np.concatenate(labels).tolist()


def test_latest_contributions_add_up_to_the_labels_that_agents_keep_whoever_takes_part():
    fed = example()
    work = ClassAssignment(Table(intercept=False), 2, 3)
    engine = Local(fed)
    state = [r.state for r in rounds(work, engine, n_rounds=7, seed=3, sampler=Poisson(0.4))][-1]
    kept, groups = engine.kept()["labels"], groups_of(fed, "entity")
    rows = sums_of(work.table, fed, groups, state)
    expected = np.zeros_like(state["sums"])
    for i in range(len(fed)):
        for place, label in enumerate(kept.flat[kept.offsets[i] : kept.offsets[i + 1]]):
            expected[label] += np.append(rows[groups.offsets[i] + place], 1)
    np.testing.assert_allclose(state["sums"], expected, rtol=1e-9, atol=1e-9)


def test_sums_of_a_cohort_are_scaled_up_to_all_agents():
    fed = example()
    work = ClassAssignment(Table(intercept=False), 2, 2, gamma=0.5, n_agents=20)
    state = work.begin(np.zeros(3), np.ones(2), deviation=1.0)
    sums = np.abs(np.random.default_rng(0).normal(size=state["sums"].shape))
    sums[:, :3] = [2.0, 0.1, 3.0]
    first = work.update(state, {"sums": sums, "clients": np.asarray(5)}, Key(0))
    np.testing.assert_allclose(first["sums"], 4 * sums)
    second = work.update(first, {"sums": 0 * sums, "clients": np.asarray(10)}, Key(0))
    np.testing.assert_allclose(second["sums"], 2 * sums)
    assert first["held"] == second["held"] == 0
    assert len(fed) == 20


# -- the special cases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
def test_one_class_is_scikit_learns_ridge(standardise, intercept):
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, (200, 3)) * [1.0, 10.0, 0.1]
    y = x @ [1.0, -0.2, 5.0] + 7 + rng.normal(size=200)
    fed = Federation({"a": x[:, 0], "b": x[:, 1:], "y": y}, [0, 50, 50, 120, 200])
    reg = LatentClassRegression(1, sigma=2.0, delta=0.5, standardise=standardise, intercept=intercept, entity=None)
    reg.fit(fed, features=["a", "b"], target="y")
    scale = np.ones(3)
    if standardise:
        scale = x.std(axis=0) if intercept else np.sqrt((x**2).mean(axis=0))
    ridge = Ridge(alpha=2.0**2 / 0.5**2, fit_intercept=intercept).fit(x / scale, y)
    np.testing.assert_allclose(reg.coefficients_[0], ridge.coef_ / scale, rtol=1e-9)
    np.testing.assert_allclose(reg.intercepts_[0], ridge.intercept_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(reg.predict(fed), ridge.predict(x / scale), rtol=1e-9)
    assert reg.feature_names_ == ("a", "b.0", "b.1")


def test_one_class_learns_noise_and_coefficients_variance_like_scikit_learns_evidence():
    from sklearn.linear_model import BayesianRidge

    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 5))
    y = x @ rng.normal(0, 2, 5) + rng.normal(0, 0.7, 400)
    flat = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0}
    exact = BayesianRidge(fit_intercept=False, tol=1e-10, max_iter=2000, **flat).fit(x, y)
    reg = LatentClassRegression(1, intercept=False, standardise=False, entity=None).fit(
        Federation({"x": x, "y": y}, [0, 100, 400])
    )
    assert reg.sigma_**-2 == pytest.approx(exact.alpha_, rel=1e-6)
    assert reg.delta_**-2 == pytest.approx(exact.lambda_, rel=1e-6)


def dense_em(x, y, entity, labels, k, n_rounds, prior):
    """EM for a mixture of ridge regressions, row by row in plain NumPy."""

    def ridges(rows, noise):
        solved = [
            np.linalg.solve((x * r[:, None]).T @ x / noise + prior * np.eye(2), x.T @ (r * y) / noise) for r in rows.T
        ]
        return np.array(solved)

    groups = np.unique(entity, return_inverse=True)[1]
    shares, noise, path = np.eye(k)[labels], y.var() / 4, []
    for _ in range(n_rounds):
        rows = shares[groups]
        for _ in range(5):
            noise = (rows * (y[:, None] - x @ ridges(rows, noise).T) ** 2).sum() / len(y)
        w = ridges(rows, noise)
        weights = shares.mean(axis=0)
        each = stats.norm.logpdf(y[:, None], x @ w.T, np.sqrt(noise))
        joint = np.log(weights) + np.array([np.bincount(groups, c) for c in each.T]).T
        high = joint.max(axis=1, keepdims=True)
        path.append(float((np.log(np.exp(joint - high).sum(axis=1)) + high[:, 0]).sum() - prior / 2 * (w**2).sum()))
        shares = np.exp(joint - high)
        shares /= shares.sum(axis=1, keepdims=True)
    return w, noise, path


def test_em_equals_dense_em_and_its_likelihood_with_the_prior_never_falls():
    fed = example()
    agent, delta = fed.client_of_row, 3.0
    work = Share(Table(intercept=False), 2, 2, gamma=1.0, delta=delta)
    groups = groups_of(fed, "entity")
    place = type("Place", (), {"keys": fed.keys, "offsets": groups.offsets})
    labels = (Key(7, 0).uniform_rows(place) * 2).astype(int)
    begin = work.begin(np.zeros(3), np.ones(2), deviation=float(fed["y"].std()))
    states = [r.state for r in rounds(work, fed, n_rounds=12, seed=7, state=begin, measure=0)]
    w, noise, path = dense_em(fed["x"], fed["y"], agent * 100 + fed["entity"], labels, 2, 12, delta**-2)
    assert float(states[-1]["noise"]) == pytest.approx(noise, rel=1e-6)
    sums = states[-1]["sums"]
    mean = np.array([np.linalg.solve(unpacked(s[:3], 2) / noise + np.eye(2) / delta**2, s[3:5] / noise) for s in sums])
    np.testing.assert_allclose(mean, w, rtol=1e-6)
    assert all(after >= before - 1e-9 * abs(before) for before, after in itertools.pairwise(path))


# -- prediction --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    fed, truth = hlcr_synthetic(40, entities=5, events=14, features=3, components=3, sigma=0.5, seed=2)
    place = np.arange(fed.n_rows) % 14
    train, test = fed.where(place < 10), fed.where(place >= 10)
    settings = {"alpha": 3.0, "beta": 4.0, "rounds": 30, "seed": 1}
    return LatentClassRegression(3, **settings).fit(train), train, test, truth


def test_coefficients_and_noise_come_back(fitted):
    reg, _, _, truth = fitted
    nearest = np.abs(reg.coefficients_[:, None] - truth["coefficients"][None]).max(axis=2)
    assert (nearest.min(axis=0) < 5 * reg.errors_.max()).all()
    assert sorted(nearest.argmin(axis=0)) == [0, 1, 2]
    assert reg.sigma_ == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2 * 2000))


def test_prediction_is_theorem_2_of_the_classes_mixed(fitted):
    reg, train, test, _ = fitted
    mean, deviation = reg.predict(test, return_std=True)
    shares = reg.predict_proba(test)
    each = test["x"] @ reg.coefficients_.T + reg.intercepts_
    np.testing.assert_allclose(mean, (shares * each).sum(axis=1), rtol=1e-9, atol=1e-9)
    assert (deviation >= reg.sigma_).all()
    covered = np.abs(test["y"] - mean) < 2 * deviation
    assert abs(covered.mean() - 0.954) < 5 * np.sqrt(0.046 * 0.954 / len(covered)) + 0.01
    drawn = reg.predict(test, classes="drawn")
    labels = reg.labels_.flat[groups_of(test, "entity").of_event]
    np.testing.assert_allclose(drawn, each[np.arange(len(labels)), labels], rtol=1e-9, atol=1e-9)
    assert np.mean((test["y"] - mean) ** 2) <= np.mean((test["y"] - drawn) ** 2) + 0.01
    assert len(train) == 40


def test_labels_of_agents_that_never_took_part_are_drawn_for_the_prediction(fitted):
    _, train, test, _ = fitted
    settings = {"sigma": 0.5, "delta": 1.0, "standardise": False, "intercept": False, "seed": 1}
    few = LatentClassRegression(3, **settings, rounds=3).fit(train, sampler=FixedSize(5))
    labels = few._draws[0].places.labels  # of all agents, -1 for those that never took part
    assert 0 < (labels < 0).mean() < 1
    drawn = few.predict(test, classes="drawn")
    each = test["x"] @ few.coefficients_.T
    said = np.abs(each - drawn[:, None]).argmin(axis=1)
    np.testing.assert_allclose(drawn, each[np.arange(len(said)), said], atol=1e-9)
    seen = labels[groups_of(test, "entity").of_event]
    np.testing.assert_array_equal(said[seen >= 0], seen[seen >= 0])
    np.testing.assert_array_equal(drawn, few.predict(test, classes="drawn"))
    shares, n = np.array([0.2, 0.3, 0.5]), 20_000
    ends, none = np.array([0, n]), np.full(n, -1)
    places = all_drawn(Places(np.array(["a"]), ends, np.arange(n), None, np.tile(shares, (n, 1)), none), 0)
    assert (np.abs(np.bincount(places.labels) / n - shares) < 5 * np.sqrt(shares * (1 - shares) / n)).all()


def test_new_entities_have_their_agents_classes_and_new_agents_those_of_all(fitted):
    reg, _, test, _ = fitted
    new = test.with_column("entity", test["entity"] + 100)
    counts = np.array([np.bincount(reg.labels_.flat[5 * i : 5 * i + 5], minlength=3) for i in range(40)])
    agents = (counts + 4.0 * reg.weights_) / (5 + 4.0)
    seen = reg.predict_proba(new)[:: 4 * 5]
    assert np.abs(seen - agents).max() < 0.15  # expected counts beside drawn ones
    strangers = Federation(dict(test.columns), test.offsets, ids=[f"new{i}" for i in range(40)])
    np.testing.assert_allclose(reg.predict_proba(strangers), np.tile(reg.weights_, (test.n_rows, 1)), rtol=1e-12)


def test_a_history_places_new_agents_as_well_as_those_of_the_fit(fitted):
    reg, train, test, _ = fitted
    ids = [f"new{i}" for i in range(40)]
    past, future = (Federation(dict(part.columns), part.offsets, ids=ids) for part in (train, test))
    placed = np.mean((future["y"] - reg.predict(future, history=past)) ** 2)
    assert placed == pytest.approx(np.mean((test["y"] - reg.predict(test)) ** 2), rel=0.05)
    assert placed < 0.5 * np.mean((future["y"] - reg.predict(future)) ** 2)
    assert reg.score(future, history=past) > reg.score(future)


def test_entities_with_names_are_found_whatever_their_codes(fitted):
    _, train, test, _ = fitted
    names = [f"e{i}" for i in range(5)]
    named = train.with_column("entity", train["entity"], names=names)
    reg = LatentClassRegression(3, alpha=3.0, beta=4.0, rounds=30, seed=1).fit(named)
    turned = test.with_column("entity", 4 - test["entity"], names=names[::-1])
    plain = test.with_column("entity", test["entity"], names=names)
    np.testing.assert_allclose(reg.predict(turned), reg.predict(plain), rtol=1e-12)
    with pytest.raises(DataError, match="texts in one Federation and numbers in the other"):
        reg.predict(test)


def test_the_number_of_classes_is_chosen_by_held_out_events():
    fed, _ = hlcr_synthetic(60, entities=4, events=15, features=3, components=2, sigma=0.7, seed=4)
    reg = LatentClassRegression(range(1, 5), alpha=2.0, beta=2.0, rounds=15, seed=0).fit(fed)
    scores = {row["components"]: row["score"] for row in reg.candidates_}
    assert len(reg.coefficients_) == 2
    assert scores[2] > scores[1] + 0.1


# -- Algorithm 2 -------------------------------------------------------------------------------------------------------


def tiny(seed=0):
    rng = np.random.default_rng(seed)
    entity, x = np.repeat([0, 1, 0, 1], 2), rng.normal(size=(8, 1))
    y = np.array([1.0, -1.0, 1.0, 1.0]).repeat(2) * x[:, 0] + rng.normal(0, 0.8, 8)
    return Federation({"x": x, "y": y, "entity": entity}, [0, 4, 8])


def exact_posterior(fed, alpha, beta, sigma, delta):
    """p(z | y) of four entities of two agents and two classes: all 16 assignments, psi by quadrature."""
    data = [(fed["x"][2 * e : 2 * e + 2], fed["y"][2 * e : 2 * e + 2]) for e in range(4)]
    psi = (np.arange(20_000) + 0.5) / 20_000
    density = stats.beta.pdf(psi, alpha / 2, alpha / 2)
    out = {}
    for z in itertools.product((0, 1), repeat=4):
        given = np.ones_like(psi)
        for agent in (z[:2], z[2:]):  # theta integrated out: a Polya urn
            first, second = (psi if label == 0 else 1 - psi for label in agent)
            given = given * first * (beta * second + (agent[0] == agent[1])) / (beta + 1)
        out[z] = np.log((density * given).mean()) + log_evidence(data, z, 2, sigma, delta)
    values = np.exp(np.array(list(out.values())) - max(out.values()))
    return list(out), values / values.sum()


def test_the_exact_chain_visits_labels_as_often_as_enumeration_says():
    fed, settings = tiny(), {"alpha": 2.0, "beta": 1.5, "sigma": 0.8, "delta": 1.0}
    assignments, exact = exact_posterior(fed, **settings)
    work = ClassAssignment(Table(intercept=False), 1, 2, **settings)
    chain, n = Chain(work, work.start(0), fed, exact=True, seed=3), 6_000
    seen = np.zeros((n, len(assignments)))
    for index, _ in enumerate(chain.sweeps(n)):
        seen[index, assignments.index(tuple(chain.labels.tolist()))] = 1
    batches = seen.reshape(60, -1, len(assignments)).mean(axis=1)
    error = batches.std(axis=0) / np.sqrt(len(batches) - 1)
    assert (np.abs(seen.mean(axis=0) - exact) <= 5 * error + 1e-3).all()


def test_one_sweep_equals_one_by_one_draws_from_the_enumerated_conditional():
    fed, settings = example(), {"alpha": 1.5, "beta": 0.8, "sigma": 0.7, "delta": 1.3}
    work = ClassAssignment(Table(intercept=False), 2, 3, **settings)
    chain = Chain(work, work.start(0), fed, exact=False, seed=3)
    labels, rows = chain.labels.copy(), chain.sums
    agent = np.repeat(np.arange(len(fed)), np.diff(chain.groups.offsets))
    uniform = chain.key.at(0).generator().random(len(labels))
    for e in range(len(labels)):
        second, first = np.zeros((3, 2, 2)), np.zeros((3, 2))
        np.add.at(second, labels, unpacked(rows[:, :3], 2))
        np.add.at(first, labels, rows[:, 3:5])
        density = log_densities_twin(rows[[e]], labels[[e]], second, first, np.full(2, 1.3**-2), 0.7)[0]
        weight = np.exp(density - density.max()) * eq_2(labels, e, agent, 3, 1.5, 0.8)
        labels[e] = np.searchsorted(np.cumsum(weight) / weight.sum(), uniform[e], side="right")
    chain.sweep(0)
    assert chain.labels.tolist() == labels.tolist()


def test_geweke_the_exact_chain_leaves_the_joint_law_of_labels_and_targets_as_it_is():
    alpha, beta, sigma, delta, k = 2.0, 1.5, 0.6, 1.2, 2
    fed, rng = tiny(1), np.random.default_rng(0)
    x = fed["x"][:, 0]

    def targets(z, w):
        return w[np.repeat(z, 2)] * x + sigma * rng.normal(size=8)

    def statistics(z, y):
        return [
            z[0] == z[1],
            z[0] == z[2],
            np.mean(z == z[0]),
            (y**2).mean(),
            abs(y).max(),
            y[:4] @ x[:4] * (z[0] == z[1]),
        ]

    def forward():
        psi = rng.dirichlet([alpha / k] * k)
        z = np.concatenate(
            [rng.choice(k, 2, p=p / p.sum()) for p in (rng.dirichlet(beta * psi + 1e-300) for _ in "ab")]
        )
        return psi, z, targets(z, delta * rng.normal(size=k))

    n = 4_000
    marginal = np.array([statistics(*forward()[1:]) for _ in range(n)], dtype=float)
    work = ClassAssignment(Table(intercept=False), 1, k, alpha=alpha, beta=beta, sigma=sigma, delta=delta)
    psi, z, y = forward()
    chain, successive = Chain(work, work.start(0), fed, exact=True, seed=5), []
    for index in range(n):
        now = Chain.__new__(Chain)
        now.__dict__.update(chain.__dict__)
        now.sums = np.column_stack([np.add.reduceat(v, [0, 2, 4, 6]) for v in (x * x, x * y, y * y, np.ones(8))])
        now.labels, now.psi = z.copy(), psi
        now.state = now._counted(chain.state)
        state = now.sweep(index)
        z, psi = now.labels, now.psi
        law = classes_of(opened(state["sums"], 1), sigma**2, np.array([delta**2]))
        y = targets(z, law.mean[:, 0] + np.sqrt(law.covariance[:, 0, 0]) * rng.normal(size=k))
        successive.append(statistics(z, y))
    batches = np.array(successive, dtype=float).reshape(80, -1, marginal.shape[1]).mean(axis=1)
    error = np.sqrt(batches.var(axis=0) / (len(batches) - 1) + marginal.var(axis=0) / n)
    assert (np.abs(batches.mean(axis=0) - marginal.mean(axis=0)) < 5 * error).all()


@pytest.mark.parametrize("method", ["central", "central-exact", "em", "federated"])
def test_every_method_predicts_nearly_as_well_as_the_truth_allows(method):
    fed, _ = hlcr_synthetic(40, entities=6, events=12, features=3, components=3, sigma=0.5, seed=5)
    place = np.arange(fed.n_rows) % 12
    train, test = fed.where(place < 10), fed.where(place >= 10)
    reg = LatentClassRegression(3, beta=4.0, method=method, rounds=30, seed=0).fit(train)
    assert np.mean((reg.predict(test) - test["y"]) ** 2) < 1.2 * 0.25


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components must be at least 1, not 0"),
        ({"n_components": ()}, "several to choose among; got none"),
        ({"beta": 0.0}, "beta must be a positive number, not 0.0"),
        ({"sigma": -1.0}, "sigma must be a positive number, not -1.0"),
        ({"rounds": 0}, "rounds and chains must be at least 1, not 0 and 1"),
        ({"method": "gibbs"}, "method must be one of federated, central, central-exact, em, not 'gibbs'"),
        ({"gamma": 1.5}, "gamma must be above 0 and at most 1, 'latest', or None, not 1.5"),
        ({"gamma": "last"}, "gamma must be above 0 and at most 1, 'latest', or None, not 'last'"),
        ({"features": ()}, "features must name at least one column"),
        ({"entity": "x"}, "must hold one whole number or text an event"),
        ({"features": "y", "target": "x"}, "the target 'x' must be one number an event"),
        ({"features": ("x", "x")}, "features must name a column once: 'x' is there 2 times"),
        ({"target": "x"}, "features must not name 'x', the target: leave it out of them"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        LatentClassRegression(**settings).fit(example())


def test_bad_data_are_refused():
    fed = example()
    broken = fed["x"].copy()
    broken[3, 1] = np.nan
    with pytest.raises(DataError, match="column 'x' holds NaN or infinity in row"):
        LatentClassRegression(2).fit(fed.with_column("x", broken))
    with pytest.raises(DataError, match="there are no events to learn from"):
        LatentClassRegression(2).fit(fed.where(np.zeros(fed.n_rows, dtype=bool)))
    reg = LatentClassRegression(2, rounds=2).fit(fed)
    with pytest.raises(DataError, match="the features have 1 numbers an event, the model has 2"):
        reg.predict(fed.with_column("x", fed["x"][:, :1]))
    with pytest.raises(DataError, match="classes must be 'shares' or 'drawn', not 'last'"):
        reg.predict(fed, classes="last")
    with pytest.raises(NotFittedError):
        LatentClassRegression(2).predict(fed)
    for name in ("x", "y"):
        texts = fed.with_column(name, np.zeros(fed.n_rows, dtype=np.int64), names=["red"])
        with pytest.raises(DataError, match=f"the column '{name}' holds texts, not numbers: make indicator columns"):
            LatentClassRegression(2).fit(texts)
    missing = fed.with_column("entity", np.where(np.arange(fed.n_rows) == 5, -1, 0), names=["a"])
    with pytest.raises(DataError, match="has no value in row 5"):
        LatentClassRegression(2).fit(missing)


def test_same_seed_same_bytes_whatever_the_threads_and_a_killed_fit_goes_on(tmp_path):
    fed = example()
    one = LatentClassRegression(3, rounds=6, seed=4).fit(Local(fed, threads=1))
    two = LatentClassRegression(3, rounds=6, seed=4).fit(Local(fed, threads=3), checkpoint=tmp_path / "run")
    again = LatentClassRegression(3, rounds=6, seed=4).fit(fed, checkpoint=tmp_path / "run")
    for other in (two, again):
        assert one.coefficients_.tobytes() == other.coefficients_.tobytes()
        assert one.labels_.flat.tobytes() == other.labels_.flat.tobytes()


def test_constant_features_and_a_constant_target_are_no_trouble():
    fed = example()
    flat = fed.with_column("x", np.ones_like(fed["x"])).with_column("y", np.full(fed.n_rows, 3.0))
    reg = LatentClassRegression(2, rounds=4).fit(flat)
    np.testing.assert_allclose(reg.predict(flat), 3.0, atol=1e-6)


def test_counts_that_noise_made_too_small_are_no_trouble():
    labels, shares = np.empty(1, dtype=np.int64), np.empty((1, 1))
    one, zero = np.array([0, 1]), np.zeros((1, 1))
    draw_labels(zero, one, np.array([0]), np.zeros(1), 1.0, 1.0, 1.0, np.array([0.5]), labels, shares)
    assert labels.tolist() == [0]
    assert shares.tolist() == [[1.0]]


def test_early_noise_is_that_of_the_purest_classes():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 400, 2))
    y = x @ np.array([1.0, -1.0]) + np.array([[0.1], [2.0], [1.0]]) * rng.normal(size=(3, 400))
    x[2], y[2] = 0.0, 0.0  # a class without events
    events = np.array([400.0, 400.0, 0.0])
    sums = Sums(np.einsum("kna,knb->kab", x, x), np.einsum("kna,kn->ka", x, y), (y**2).sum(axis=1), events, events)
    how = {"sigma": True, "delta": False, "slopes": 2, "least": 1e-10, "steps": 50}
    pure, most, all_ = (learned(sums, 1.0, np.full(2, 100.0), **how, part=part)[0] for part in (0.3, 0.8, 1.0))
    assert pure == pytest.approx(0.01, rel=5 * np.sqrt(2 / 400))
    assert all_ == pytest.approx((0.01 + 4) / 2, rel=5 * np.sqrt(2 / 400))
    assert most == all_


def test_learned_noise_parts_kinds_of_entities_within_twenty_rounds():
    fed, _ = hlcr_synthetic(64, entities=16, events=12, components=6, sigma=0.3, seed=0)
    reg = LatentClassRegression(6, alpha=16.0, beta=4.0, intercept=False, standardise=False, seed=0).fit(fed)
    assert reg.sigma_ == pytest.approx(0.3, abs=0.03)
