"""The FedHLCR paper, small: SynthHLCR is learned in a few rounds, and what its misprints would do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscape import LatentClassRegression, Poisson
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.papers import PrintedRegression, sequential_density, with_event, without_event

MODEL = {"alpha": 16.0, "beta": 4.0, "delta": 1.0, "intercept": False, "standardise": False}


def relative_error(sigma, seed=0, *, entities=16, events=10, sampler=None, k=16, **settings):
    fed, _ = hlcr_synthetic(128, entities=entities, events=events + 2, sigma=sigma, seed=seed)
    place = np.arange(fed.n_rows) % (events + 2)
    train, test = fed.where(place < events), fed.where(place >= events)
    reg = LatentClassRegression(k, **MODEL, sigma=sigma, seed=seed, **settings).fit(train, sampler=sampler)
    return np.mean((reg.predict(test) - test["y"]) ** 2) / sigma**2


@pytest.mark.parametrize("sigma", [1.0, 0.3])
def test_enough_events_come_near_the_noise_in_twenty_rounds_where_one_line_does_not(sigma):
    assert np.median([relative_error(sigma, seed) for seed in range(3)]) <= 1.2
    assert relative_error(sigma, k=1, rounds=1) > 5 / sigma**2


@pytest.mark.parametrize("sigma", [1.0, 0.3])
def test_a_cohort_of_fifteen_percent_comes_near_it_too(sigma):
    errors = [relative_error(sigma, seed, sampler=Poisson(0.15), gamma=0.5) for seed in range(3)]
    assert np.median(errors) <= 1.4


@pytest.mark.parametrize("form", [PrintedRegression, LatentClassRegression])
def test_figure_3b_a_rate_of_one_is_unstable_with_few_agents_and_three_quarters_is_not(form):
    """The paper says it of 0.75; as printed and in the toolkit it is 1 (sigma 0.3, 15% of the agents)."""

    def error(gamma, seed):
        fed, _ = hlcr_synthetic(128, events=10, sigma=0.3, seed=seed)
        test = np.arange(fed.n_rows) % 5 == 0
        reg = form(16, **MODEL, sigma=0.3, gamma=gamma, rounds=20, seed=seed)
        reg.fit(fed.where(~test), sampler=Poisson(0.15), progress=False)
        held = fed.where(test)
        return np.mean((reg.predict(held) - held["y"]) ** 2) / 0.3**2

    quick, latest = ([error(gamma, seed) for seed in range(600, 603)] for gamma in (0.75, 1.0))
    assert np.median(quick) < 1.5
    assert max(latest) > 2 * max(quick)


def test_fewer_events_than_features_are_not_enough():
    assert np.median([relative_error(1.0, seed, entities=4, events=5) for seed in range(3)]) > 1.2


def test_eq_4_and_the_order_of_algorithm_1_are_misprinted():
    """The digest's figures: exact -8.4076, by eq. (4) and by updating first other numbers."""
    rng = np.random.default_rng(0)
    x, sigma = rng.normal(size=(5, 2)), 0.8
    y = x @ [1.0, -1.0] + sigma * rng.normal(size=5)
    exact = stats.multivariate_normal.logpdf(y, np.zeros(5), sigma**2 * np.eye(5) + x @ x.T)

    def sequential(*mended):
        return sequential_density(np.eye(2), np.zeros(2), x, y, sigma, mended=mended)

    assert sequential("variance", "order") == pytest.approx(exact, rel=1e-10)
    assert abs(sequential("order") - exact) > 0.01
    assert sequential("variance") > exact + 0.5


def test_events_are_added_and_taken_out_by_eq_8_and_9():
    rng = np.random.default_rng(1)
    x, y, sigma = rng.normal(size=(6, 3)), rng.normal(size=6), 0.7
    inverse, b = np.eye(3), np.zeros(3)
    for row, target in zip(x, y, strict=True):
        inverse, b = with_event(inverse, b, row, target, sigma)
    np.testing.assert_allclose(inverse, np.linalg.inv(np.eye(3) + x.T @ x / sigma**2), atol=1e-12)
    np.testing.assert_allclose(b, x.T @ y / sigma**2, atol=1e-12)
    for row, target in zip(x[:2], y[:2], strict=True):
        inverse, b = without_event(inverse, b, row, target, sigma)
    np.testing.assert_allclose(inverse, np.linalg.inv(np.eye(3) + x[2:].T @ x[2:] / sigma**2), atol=1e-12)
    np.testing.assert_allclose(b, x[2:].T @ y[2:] / sigma**2, atol=1e-12)
