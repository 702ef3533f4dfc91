"""Latent class regression against integration, enumeration, the event-by-event recursion and scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from fedscape import Federation, Key, Local, rounds
from fedscape.mixtures._lcr_kernels import (
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
from fedscape.mixtures._lcr_rounds import Assign, densities, example
from fedscape.mixtures._lcr_rows import Table, groups_of, sums_of


def sums_row(x, y):
    return np.concatenate([packed(x.T @ x), x.T @ y, [y @ y, len(y)]])


def problem(seed=0, k=3, f=4, n_entities=7, sigma=0.7, delta=1.3):
    """Labelled entities of k classes, and the state that holds all their sums."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, n_entities)
    data = [(rng.normal(size=(n, f)), rng.normal(size=n) * 2) for n in sizes]
    labels = rng.integers(0, k, n_entities)
    rows = np.array([sums_row(x, y) for x, y in data])
    state = Assign(Table(intercept=False), f, k, sigma=sigma, delta=delta).start(0)
    for row, label in zip(rows, labels, strict=True):
        state["sums"][label] += np.append(row, 1.0)
    return data, labels, rows, state


def prepared(state, f):
    return Assign(Table(intercept=False), f, len(state["sums"])).prepare(state)


# -- the predictive density --------------------------------------------------------------------------------------------


def test_density_equals_brute_force_integration_over_the_coefficients():
    sigma, delta = 0.8, 1.1
    rng = np.random.default_rng(1)
    x_class, y_class = rng.normal(size=(6, 2)), rng.normal(size=6)
    x, y = rng.normal(size=(3, 2)), rng.normal(size=3)
    state = Assign(Table(intercept=False), 2, 1, sigma=sigma, delta=delta).start(0)
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
    """Theorem 1, event by event, with the variance of eq. (27); eq. (4) and the order of Algorithm 1 are misprinted."""
    inverse, b, total = np.linalg.inv(precision), c.copy(), 0.0
    for row, target in zip(x, y, strict=True):
        total += stats.norm.logpdf(target, b @ inverse @ row, np.sqrt(sigma**2 + row @ inverse @ row))
        move = inverse @ row
        inverse = inverse - np.outer(move, move) / (sigma**2 + row @ move)
        b = b + row * target / sigma**2
    return total


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
    state = Assign(Table(intercept=False), 3, 1, sigma=1.0, delta=1e4).start(0)
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
            total += stats.multivariate_normal.logpdf(y, np.zeros(len(y)), sigma**2 * np.eye(len(y)) + delta**2 * x @ x.T)
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
                prior = here + beta * (everywhere + alpha / k) / (everywhere.sum() + alpha)
                weight = np.exp(density[e] - density[e].max()) * prior
                labels[i][e] = np.searchsorted(np.cumsum(weight) / weight.sum(), uniform[e], side="right")
                new[labels[i][e]] += np.append(rows[i][e], 1)
        total = new
    return total, labels


@pytest.mark.parametrize("gamma", [1.0, None])
def test_rounds_over_all_agents_equal_a_plain_loop(gamma):
    fed, settings = example(), {"alpha": 2.0, "beta": 0.7, "sigma": 0.6, "delta": 1.5}
    total, labels = plain_loop(fed, 3, 2, **settings, n_rounds=6, seed=11)
    work = Assign(Table(intercept=False), 2, 3, **settings, gamma=gamma, n_agents=len(fed))
    engine = Local(fed)
    state = [r.state for r in rounds(work, engine, n_rounds=6, seed=11)][-1]
    np.testing.assert_allclose(state["sums"], total, rtol=1e-9, atol=1e-9)
    assert engine.kept()["labels"].flat.tolist() == np.concatenate(labels).tolist()


def test_latest_contributions_add_up_to_the_labels_that_agents_keep_whoever_takes_part():
    from fedscape import Poisson

    fed = example()
    work = Assign(Table(intercept=False), 2, 3)
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
    work = Assign(Table(intercept=False), 2, 2, gamma=0.5, n_agents=20)
    state = work.begin(np.zeros(3), np.ones(2), deviation=1.0)
    sums = np.abs(np.random.default_rng(0).normal(size=state["sums"].shape))
    sums[:, :3] = [2.0, 0.1, 3.0]
    first = work.update(state, {"sums": sums, "clients": np.asarray(5)})
    np.testing.assert_allclose(first["sums"], 4 * sums)
    second = work.update(first, {"sums": 0 * sums, "clients": np.asarray(10)})
    np.testing.assert_allclose(second["sums"], 2 * sums)
    assert first["held"] == second["held"] == 0
    assert len(fed) == 20
