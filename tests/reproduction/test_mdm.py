"""The claims about mixtures of Dirichlet-multinomials, small and quick; the full tables are in benchmarks/mdm_*.py."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, datasets, rounds
from fedscape.datasets.generators.counts import mdm_a2, mdm_table1
from fedscape.mixtures import MixtureOfDirichletMultinomials, choose_components
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM


def truth_as_mixture(truth, like):
    mixture = MixtureOfDirichletMultinomials(len(truth["weights"]), sizes=None)
    mixture.weights_, mixture.concentrations_ = np.array(truth["weights"]), np.array(truth["concentrations"])
    mixture.size_laws_, mixture.reach_ = None, like.reach_
    return mixture


@pytest.mark.parametrize(("setting", "n"), [("low-2", 100), ("medium-1", 20), ("medium-3", 100), ("high-3", 100)])
def test_table_1_is_recovered_to_within_sampling_error(setting, n):
    fed, truth = mdm_table1(setting, 1000, n=n, seed=0)
    fresh, _ = mdm_table1(setting, 2000, n=n, seed=10_000)
    mixture = MixtureOfDirichletMultinomials(int(setting[-1]), sizes=None, rounds=60, tol=1e-5).fit(fed)
    true = truth_as_mixture(truth, mixture)
    assert mixture.score(fed) >= true.score(fed)
    assert true.score(fresh) - mixture.score(fresh) <= 2.5 * mixture.n_parameters_ / 2000


def test_appendix_a2_chooses_three_components():
    fed, fresh = mdm_a2(200, seed=0)[0], mdm_a2(1000, seed=10_000)[0]
    mixture = MixtureOfDirichletMultinomials(sizes=None, rounds=30, n_init=2)
    choice = choose_components(mixture, fed, candidates=range(1, 5), validation=fresh)
    assert choice.n_components == 3
    assert choice.scores[2] - choice.scores[0] > 1.0  # Figure 7


@pytest.fixture(scope="module")
def femnist() -> Federation:
    return datasets.load("femnist-labels")


def adjusted_rand(a, b):
    table = np.array([[np.sum((a == x) & (b == y)) for y in np.unique(b)] for x in np.unique(a)])

    def pairs(n):
        return float((n * (n - 1) / 2).sum())

    rows, columns, every = pairs(table.sum(axis=1)), pairs(table.sum(axis=0)), pairs(np.array([table.sum()]))
    expected = rows * columns / every
    return (pairs(table) - expected) / ((rows + columns) / 2 - expected)


def test_femnist_has_two_collection_campaigns_and_they_are_found_in_five_rounds(femnist):
    campaign = np.array([int(writer[1:5]) >= 1500 for writer in femnist.ids])
    quick = MixtureOfDirichletMultinomials(2, rounds=3).fit(femnist)  # five with the survey and the start
    best = MixtureOfDirichletMultinomials(2, rounds=60, tol=1e-7).fit(femnist)
    assert best.log_likelihood_ - quick.log_likelihood_ < 0.05
    assert adjusted_rand(quick.predict(femnist), campaign) >= 0.93


def test_exact_needs_fewer_rounds_than_the_papers_fixed_point(femnist):
    counts = femnist.take(slice(0, None, 6))
    mixture = MixtureOfDirichletMultinomials(2, rounds=1, n_init=1).fit(counts)
    scale = mixture.concentrations_.sum(axis=1)
    last = {}
    for solver in ("exact", "newton", "fixed_point"):
        work = TailCountEM((2,), mixture.reach_, solver=solver)
        state = work.begin(mixture.concentrations_ / scale[:, None], np.full(2, 1 / 100.0))
        last[solver] = [float(r.metrics["log_likelihood"][0]) for r in rounds(work, counts, n_rounds=12, state=state)]
    best = max(last["exact"])
    assert best - last["exact"][4] < 0.05
    assert best - last["newton"][-1] < best - last["fixed_point"][-1]
    assert best - last["fixed_point"][-1] > 0.05


@pytest.mark.parametrize("name", ["acs-race", "acs-income"])
def test_a_mixture_predicts_unseen_regions_better_than_one_component_and_than_iid(name):
    train, test = datasets.load(name).split_clients(test=0.2, seed=0)
    scores = [MixtureOfDirichletMultinomials(k, rounds=15).fit(train).score(test, sizes=False) for k in (1, 3)]
    iid = MixtureOfDirichletMultinomials(1).fit(train)
    pooled = train["y"].sum(axis=0) + 0.5
    iid.concentrations_ = 1e10 * (pooled / pooled.sum())[None]
    assert iid.score(test, sizes=False) < scores[0] < scores[1]


@pytest.mark.parametrize("name", ["acs-race", "acs-income"])
def test_drawn_clients_differ_from_one_another_as_true_ones_do_and_iid_ones_do_not(name):
    """Figures 4, 12 and 13 in a number: the mean distance of a client's shares to those of all."""
    counts = datasets.load(name).counts("y")

    def spread(some):
        shares = some / np.maximum(some.sum(axis=1, keepdims=True), 1)
        return np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean() / 2

    mixture = MixtureOfDirichletMultinomials(5, rounds=15).fit(counts)
    iid = np.random.default_rng(0).multinomial(counts.sum(axis=1), counts.sum(axis=0) / counts.sum())
    drawn, true = spread(mixture.sample(len(counts), seed=0)), spread(counts)
    assert abs(drawn / true - 1) < 0.1
    assert spread(iid) < 0.6 * true
