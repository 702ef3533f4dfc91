"""Logistic and probit latent class regression against optimisation, integration and known probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit, log_expit, log_ndtr, ndtr, xlogy

from fedscape import DataError, Federation, LatentClassRegression, Poisson
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.mixtures.latent_class.links import LEAST, Logistic, Probit
from fedscape.mixtures.latent_class.table import Table

LINKS = {"logistic": (log_expit, expit, Logistic), "probit": (log_ndtr, ndtr, Probit)}


def answers(link, seed=0, agents=60, entities=4, events=40, components=2, delta=1.5):
    """SynthHLCR with a link: the chance of a 1 is known for every event."""
    fed, truth = hlcr_synthetic(
        agents, entities=entities, events=events, features=3, components=components, delta=delta, seed=seed
    )
    w = truth["coefficients"][np.repeat(truth["z"].ravel(), events)]
    chance = LINKS[link][1]((fed["x"] * w).sum(axis=1))
    y = (np.random.default_rng(seed).random(fed.n_rows) < chance).astype(float)
    return fed.with_column("y", y), chance, truth


@pytest.mark.parametrize("link", ["logistic", "probit"])
@pytest.mark.parametrize("sampler", [None, Poisson(0.8)])
def test_one_class_ends_where_an_optimiser_does(link, sampler):
    fed, _, _ = answers(link, agents=20, components=1)
    settings = {"delta": 0.7, "intercept": False, "standardise": False, "link": link, "rounds": 25}
    reg = LatentClassRegression(1, **settings).fit(fed, sampler=sampler)

    def loss(w):
        return -LINKS[link][0](np.where(fed["y"] > 0, 1, -1) * (fed["x"] @ w)).sum() + (w**2).sum() / (2 * 0.7**2)

    best = optimize.minimize(loss, np.zeros(3), tol=1e-12)
    if sampler is None:
        np.testing.assert_allclose(reg.coefficients_[0], best.x, rtol=1e-5)
        at = fed["x"] @ best.x
        chance = LINKS[link][1](at)
        slope = stats.norm.pdf(at) if link == "probit" else chance * expit(-at)
        information = slope**2 / (chance * LINKS[link][1](-at))
        exact = np.linalg.inv((fed["x"] * np.maximum(information, LEAST)[:, None]).T @ fed["x"] + np.eye(3) / 0.7**2)
        np.testing.assert_allclose(reg.errors_[0], np.sqrt(np.diag(exact)), rtol=1e-4)
    else:
        np.testing.assert_allclose(reg.coefficients_[0], best.x, atol=0.5 * reg.errors_[0].max())


@pytest.mark.parametrize("link", ["logistic", "probit"])
def test_chances_are_the_average_over_the_law_of_the_coefficients(link):
    kind = LINKS[link][2]
    work = kind(Table(), 1, 1, sigma=1.0, gamma=1.0)
    mean, variance = np.array([[-2.0], [0.3], [1.5]]), np.array([[0.5], [2.0], [1.0]])
    at = np.exp(work.log_chances(mean, variance, np.array([True, True, True])))
    grid = np.linspace(-12, 12, 4001)
    for i in range(3):
        weights = stats.norm.pdf(grid, mean[i, 0], np.sqrt(variance[i, 0]))
        exact = (weights * LINKS[link][1](grid)).sum() / weights.sum()
        assert at[i, 0] == pytest.approx(exact, abs=1e-6 if link == "probit" else 0.01)  # MacKay's is approximate
    never = np.exp(work.log_chances(mean, variance, np.array([False, False, False])))
    np.testing.assert_allclose(at + never, 1.0, rtol=1e-12)


@pytest.mark.parametrize("link", ["logistic", "probit"])
def test_classes_are_found_and_chances_are_calibrated(link):
    fed, chance, _ = answers(link, seed=2)
    place = np.arange(fed.n_rows) % 40
    train, test, known = fed.where(place < 30), fed.where(place >= 30), chance[place >= 30]
    reg = LatentClassRegression(2, link=link, beta=4.0, rounds=30, seed=0).fit(train)
    flat = LatentClassRegression(1, link=link, rounds=30).fit(train)
    p, deviation = reg.predict(test, return_std=True)
    np.testing.assert_allclose(deviation, np.sqrt(p * (1 - p)), atol=1e-6)
    best = np.mean(xlogy(known, known) + xlogy(1 - known, 1 - known))
    assert reg.score(test) > flat.score(test) + 0.1
    assert reg.score(test) > best - 0.05
    for low in np.arange(0, 1, 0.2):  # in each bin of chances as many as foretold
        inside = (p >= low) & (p < low + 0.2)
        error = np.sqrt((p[inside] * (1 - p[inside])).sum())
        assert abs(test["y"][inside].sum() - p[inside].sum()) < 5 * error + 0.02 * inside.sum()


def test_separable_answers_keep_finite_coefficients():
    x = np.linspace(-1, 1, 40)[:, None]
    fed = Federation({"x": x, "y": (x[:, 0] > 0).astype(int)}, [0, 10, 40])
    for link in ("logistic", "probit"):
        reg = LatentClassRegression(1, link=link, delta=5.0, entity=None, rounds=40).fit(fed)
        assert reg.coefficients_[0, 0] > 1
        assert np.isfinite(reg.coefficients_).all()
        assert (np.abs(reg.predict(fed) - fed["y"]) < 0.5).all()


def test_scores_of_a_linear_regression_are_calibrated_by_one_logistic_class():
    fed, _, _ = answers("logistic", seed=2)
    place = np.arange(fed.n_rows) % 40
    train, test = fed.where(place < 30), fed.where(place >= 30)
    linear = LatentClassRegression(2, beta=4.0, seed=0, rounds=30).fit(train)
    scored = [part.with_column("score", linear.predict(part)) for part in (train, test)]
    scale = LatentClassRegression(1, link="logistic", features="score", entity=None).fit(scored[0])
    p = scale.predict(scored[1])
    assert p.min() > 0
    assert p.max() < 1
    clipped = np.clip(scored[1]["score"], 0.01, 0.99)
    plain = np.mean(np.where(test["y"] > 0, np.log(clipped), np.log(1 - clipped)))
    assert scale.score(scored[1]) > plain


def test_the_number_of_classes_can_be_chosen_with_a_link():
    fed, _, _ = answers("logistic", agents=30, seed=4, delta=2.0)
    reg = LatentClassRegression(range(1, 4), link="logistic", rounds=15).fit(fed)
    assert len(reg.coefficients_) >= 2


def test_what_links_refuse():
    fed, _, _ = answers("logistic", agents=3)
    with pytest.raises(DataError, match=r"the target 'y' must be 0 or 1 for a probit or logistic link, not 2 in row 5"):
        LatentClassRegression(2, link="logistic").fit(fed.with_column("y", np.where(np.arange(fed.n_rows) == 5, 2, 0)))
    with pytest.raises(DataError, match="link must be one of identity, logistic, probit, not 'log'"):
        LatentClassRegression(2, link="log").fit(fed)
    for wrong in ({"method": "central"}, {"method": "em"}, {"gamma": "latest"}):
        with pytest.raises(DataError, match="link='probit' goes with method='federated' and gamma a number or None"):
            LatentClassRegression(2, link="probit", **wrong).fit(fed)
