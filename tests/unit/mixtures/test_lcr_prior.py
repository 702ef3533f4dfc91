"""alpha and beta of a latent class regression against brute force, and against labels whose law is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from scipy.special import gammaln

from fedscape import LatentClassRegression, Poisson
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.mixtures.latent_class.prior import RATE, learned_prior, tables_of


def labels_of(counts):
    return np.concatenate([np.repeat(np.arange(len(row)), row) for row in counts])


def draw(agents, n, beta, psi, seed=0):
    rng = np.random.default_rng(seed)
    counts = np.array([rng.multinomial(n, rng.dirichlet(beta * psi)) for _ in range(agents)])
    return counts, labels_of(counts), np.arange(agents + 1) * n


def settled(labels, offsets, psi, steps=400):
    alpha, beta = 1.0, 1.0
    for _ in range(steps):
        alpha, beta = learned_prior(tables_of(labels, offsets, psi, beta).sum(axis=0), 1.0, alpha, beta)
    return alpha, beta


def test_beta_is_where_the_likelihood_of_the_labels_with_its_prior_is_highest():
    psi = np.array([0.5, 0.3, 0.2])
    counts, labels, offsets = draw(60, 8, 2.5, psi)

    def loss(log_beta):
        b = np.exp(log_beta)
        each = gammaln(b) - gammaln(b + 8) + (gammaln(b * psi + counts) - gammaln(b * psi)).sum(axis=1)
        return -each.sum() + RATE * b

    best = np.exp(optimize.minimize_scalar(loss, bounds=(-5, 8), method="bounded", options={"xatol": 1e-10}).x)
    assert settled(labels, offsets, psi)[1] == pytest.approx(best, rel=1e-4)


def test_alpha_is_where_the_likelihood_of_the_tables_with_its_prior_is_highest():
    tables = np.array([40.0, 12.5, 3.0, 0.2])

    def loss(log_alpha):
        a = np.exp(log_alpha)
        each = gammaln(a / 4 + tables) - gammaln(a / 4)
        return -(gammaln(a) - gammaln(a + tables.sum()) + each.sum()) + RATE * a

    best = np.exp(optimize.minimize_scalar(loss, bounds=(-6, 8), method="bounded", options={"xatol": 1e-10}).x)
    alpha = 1.0
    for _ in range(20):
        alpha, _ = learned_prior(np.append(tables / 2, 3.0), 2.0, alpha, 1.0)  # of a cohort of half the agents
    assert alpha == pytest.approx(best, rel=1e-3)


def test_agents_alike_have_a_large_beta_and_nobody_changes_nothing():
    psi = np.full(4, 0.25)
    labels, offsets = np.tile(np.arange(4), 100), np.arange(101) * 4
    assert settled(labels, offsets, psi)[1] > 20
    assert learned_prior(np.zeros(5), 1.0, 1.5, 2.5) == (1.5, 2.5)


@pytest.mark.parametrize("how", [{"method": "central-exact"}, {}, {"sampler": Poisson(0.4)}])
def test_beta_comes_back_from_a_fit(how):
    fed, truth = hlcr_synthetic(300, entities=10, events=12, features=2, components=3, sigma=0.3, seed=3, beta=3.0)
    counts = np.array([np.bincount(z, minlength=3) for z in truth["z"]])
    _, exact = settled(labels_of(counts), np.arange(301) * 10, truth["psi"])  # as well as the true labels tell it
    sampler = how.pop("sampler", None) if "sampler" in how else None
    settings = {"alpha": None, "beta": None, "rounds": 30, "seed": 1, **how}
    reg = LatentClassRegression(3, **settings).fit(fed, sampler=sampler)
    assert reg.beta_ == pytest.approx(exact, rel=0.4 if sampler is not None else 0.15)
    assert exact == pytest.approx(3.0, rel=0.25)
    assert reg.alpha_ > 0
