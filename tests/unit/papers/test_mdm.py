"""Algorithms 1 and 2 of the MDM paper as printed, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import digamma, gammaln

import fedscape as fs
from fedscape.datasets.generators import mdm_table1
from fedscape.papers import PrintedMixture, PrintedStart, moments_of_the_first_category, nmse


def joined_by_hand(seed=0):
    """What clients of two components send, and the components that they joined."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(12, (0.5, 0.3, 0.2), 40)
    counts[:10] //= 2
    fed = fs.Federation({"y": counts}, np.arange(41))
    start = PrintedStart((2,), 3, np.arange(14))
    sent, _ = start.step(start.start(0), fed, fs.Key(0))
    return counts, sent["members"].astype(bool), start.update(start.start(0), summed(sent), fs.Key(0))


def summed(sent):
    return {name: values.sum(axis=0) for name, values in sent.items()}


def test_equations_6_to_9_are_those_of_algorithm_1():
    counts, members, state = joined_by_hand()
    mean, dispersion = moments_of_the_first_category(state)
    for k in range(2):
        mine = counts[members[:, k]]
        n = mine.sum(axis=1)
        p = (mine / n[:, None]).mean(axis=0)
        q = ((mine / n[:, None]) ** 2).mean(axis=0)
        np.testing.assert_allclose(mean[k], p, rtol=1e-7)
        np.testing.assert_allclose(1 / dispersion[k], (p[0] - q[0]) / (q[0] - p[0] ** 2), rtol=1e-9)
        np.testing.assert_array_equal(state["sizes"][k], np.bincount(n, minlength=13)[:13])  # E, eq. (6) times m_k
        assert state["members"][k] == len(mine)


def test_a_component_that_nobody_joined_has_a_law():
    state = {"members": np.zeros(1), "first": np.zeros((1, 4)), "square": np.zeros(1)}
    mean, dispersion = moments_of_the_first_category(state)
    np.testing.assert_allclose(mean, 0.25)
    assert dispersion[0] == 1


def printed_rounds(batches, weights, pi, alpha):
    """Algorithm 2 in NumPy, each round on its own clients: eq. (12) to (19)."""
    for counts in batches:
        n = counts.sum(axis=1)
        a0 = alpha.sum(axis=1)
        log = np.log(weights) + np.log(pi[:, n]).T + gammaln(a0) - gammaln(n[:, None] + a0)
        log = log + (gammaln(counts[:, None] + alpha) - gammaln(alpha)).sum(axis=2)
        omega = np.exp(log - log.max(axis=1, keepdims=True))
        omega /= omega.sum(axis=1, keepdims=True)
        u = np.einsum("ik,ikj->kj", omega, digamma(counts[:, None] + alpha) - digamma(alpha))
        v = (omega * (digamma(n[:, None] + a0) - digamma(a0))).sum(axis=0)
        weights, alpha = omega.mean(axis=0), alpha * u / v[:, None]
        pi = np.stack([np.bincount(n, weights=w, minlength=pi.shape[1]) for w in omega.T]) / omega.sum(axis=0)[:, None]
    return weights, alpha


class Turns(fs.FixedSize):
    """The first half of the clients in even rounds, the second in odd ones."""

    def draw(self, clients, key):
        n = len(clients)
        return np.arange(n // 2) if key.round % 2 == 0 else np.arange(n // 2, n)


@pytest.mark.parametrize("cohorts", [False, True])
def test_rounds_are_algorithm_2_by_hand_also_on_cohorts(cohorts):
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 2, 60)
    alphas = np.array([[3.0, 1.0, 1.0], [1.0, 1.0, 4.0]])
    counts = np.stack([rng.multinomial(9, rng.dirichlet(alphas[k])) for k in kind])
    begin, sampler = PrintedMixture(2, rounds=1, sizes=None), Turns(30) if cohorts else None
    fed = fs.Federation({"y": counts}, np.arange(61))
    first = begin.fit(fed, sampler=sampler, progress=False)
    later = PrintedMixture(2, rounds=9, sizes=None).fit(fed, sampler=sampler, progress=False)
    parts = [counts[:30], counts[30:]] if cohorts else [counts, counts]
    batches = [parts[t % 2] for t in range(1, 9)]
    weights, alpha = printed_rounds(batches, first.weights_, np.ones((2, 10)), first.concentrations_)
    order = np.argsort(-weights)
    np.testing.assert_allclose(later.weights_, weights[order], rtol=1e-6)
    np.testing.assert_allclose(later.concentrations_, alpha[order], rtol=1e-6)


def test_average_none_is_a_round_of_sums_alone_and_a_wrong_one_is_refused():
    fed, _ = mdm_table1("medium-2", 200, n=20, seed=0)
    how = {"solver": "fixed_point", "rounds": 9, "sizes": None, "n_init": 1}
    plain, averaged = (
        fs.MixtureOfDirichletMultinomials(2, **how, average=a).fit(fed, sampler=fs.FixedSize(50), progress=False)
        for a in (None, 0.7)
    )
    assert not np.allclose(plain.concentrations_, averaged.concentrations_)
    with pytest.raises(fs.errors.DataError, match=r"average must be above 0\.5 and at most 1, so that sums settle, or"):
        fs.MixtureOfDirichletMultinomials(2, average=0.2).fit(fed)


def test_first_sizes_are_those_of_the_clients_that_joined():
    counts = np.array([[2, 0], [0, 2], [9, 1], [1, 9]] * 20)
    printed, common = (PrintedMixture(2, rounds=1, first_sizes=which).fit(counts) for which in ("joined", "common"))
    assert np.abs(printed.weights_ - common.weights_).max() > 1e-6  # the first E-step has seen sizes
    with pytest.raises(fs.errors.DataError, match="first_sizes 'joined' or 'common'"):
        PrintedMixture(2, first_sizes="none").fit(counts)


def test_pooled_moments_are_nearer_than_the_first_category_alone():
    """Over seeds, by five standard errors of the difference."""
    off = {"printed": [], "pooled": []}
    for seed in range(20):
        fed, _ = mdm_table1("medium-1", 300, n=20, seed=seed)
        for moments, each in off.items():
            alpha = PrintedMixture(1, rounds=1, sizes=None, moments=moments, seed=seed).fit(fed).concentrations_
            each.append(abs(np.log(alpha.sum() / 8)))
    gain = np.array(off["printed"]) - np.array(off["pooled"])
    assert gain.mean() > 5 * gain.std(ddof=1) / np.sqrt(len(gain))


def test_equation_50_is_the_root_of_a_sum_of_squared_ratios():
    rng = np.random.default_rng(0)
    truth, found = rng.uniform(1, 2, (3, 4)), rng.uniform(1, 2, (3, 4))
    by_hand = sum(((found[k, j] - truth[k, j]) / truth[k, j]) ** 2 for k in range(3) for j in range(4)) ** 0.5
    assert nmse(found, truth) == pytest.approx(by_hand)
    assert nmse(np.tile(found, 4), np.tile(truth, 4)) == pytest.approx(2 * by_hand)  # four times the entries: no mean
    with pytest.raises(fs.errors.DataError, match="one shape"):
        nmse(found, truth[:2])
    with pytest.raises(fs.errors.DataError, match="truth must have no zeros"):
        nmse([1.0, 2.0], [1.0, 0.0])
    assert nmse([1.0 + 2**-52], [1.0]) == 2**-52  # not rounded
