"""A private mixture is useful: on real clients it is far closer to the fit without privacy than to simpler models."""

from __future__ import annotations

import numpy as np
from scipy.stats import multinomial

from fedscape import Gaussian, Ledger, datasets
from fedscape.mixtures import MixtureOfDirichletMultinomials


def held_out(fed):
    aside = np.arange(len(fed)) % 5 == 0
    return fed.take(np.flatnonzero(~aside)), fed.take(np.flatnonzero(aside))


def private(k, train, epsilon, multiplier):
    """Six releases at these multipliers stay within epsilon at delta 1e-5; the ledger confirms it."""
    mixture, ledger = MixtureOfDirichletMultinomials(k, n_init=1, rounds=4), Ledger(delta=1e-5)
    mixture.fit(train, privacy=Gaussian(clip=1.5, multiplier=multiplier), ledger=ledger)
    assert 0.9 * epsilon < ledger.spent()["client", "add-remove", "central"] <= epsilon
    return mixture


def above(one, other):
    """The mean difference, and its standard error, client by client."""
    return (one - other).mean(), (one - other).std(ddof=1) / np.sqrt(len(one))


def test_on_acs_regions_it_beats_iid_clients_and_a_single_dirichlet_multinomial():
    train, test = held_out(datasets.load("acs-race"))
    pooled = train["y"].sum(axis=0) + 0.5
    iid = multinomial.logpmf(test["y"], test["y"].sum(axis=1), pooled / pooled.sum())
    single = MixtureOfDirichletMultinomials(1).fit(train).score_clients(test, sizes=False)
    for epsilon, multiplier in ((1.0, 9.2), (8.0, 1.5)):
        scores = private(3, train, epsilon, multiplier).score_clients(test, sizes=False)
        gain, error = above(scores, iid)
        assert gain > 5 * error
        gain, error = above(scores, single)
        assert gain > 5 * error


def test_on_femnist_writers_it_finds_the_two_campaigns():
    train, test = held_out(datasets.load("femnist-labels"))
    campaign = np.array([int(writer[1:5]) >= 1500 for writer in test.ids])
    found = private(2, train, 2.0, 4.9).predict(test, sizes=False)
    agree = (found == campaign).mean()
    assert max(agree, 1 - agree) > 0.95
