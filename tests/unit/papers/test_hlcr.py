"""Algorithm 3 of FedHLCR as printed."""

from __future__ import annotations

import numpy as np
import pytest

import fedscape as fs
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.mixtures.latent_class.classes import opened
from fedscape.mixtures.latent_class.table import Table
from fedscape.papers import MENDS, PrintedAssignment, PrintedRegression

KNOWN = {"alpha": 4.0, "beta": 2.0, "delta": 1.0, "sigma": 0.5, "intercept": False}


def small(seed=0):
    return hlcr_synthetic(12, entities=4, events=6, features=2, components=3, sigma=0.5, seed=seed)[0]


def first_labels(fed, *, uniform_first, beta):
    work = PrintedAssignment(
        Table(intercept=False), 2, 3, alpha=3.0, beta=beta, sigma=0.5, delta=1.0, uniform_first=uniform_first
    )
    state = work.prepare(work.start(0))
    return np.concatenate([work.step(state, fed, fs.Key(s))[1]["labels"].flat for s in range(40)])


def test_the_first_round_draws_by_agents_own_laws_and_lumps_their_entities():
    fed = small()
    work = fed.take(slice(0, 6))
    printed, uniform = (first_labels(work, uniform_first=u, beta=0.1) for u in (False, True))

    def alike(labels):
        rows = labels.reshape(-1, 4)  # the four entities of an agent
        return np.mean(rows[:, 1:] == rows[:, :1])

    assert alike(printed) > 0.85  # beta 0.1: (1 + 0.1 / 3) / 1.1 for the second
    assert abs(alike(uniform) - 1 / 3) < 5 * np.sqrt(2 / 9 / len(uniform))


@pytest.mark.parametrize("gamma", [0.2, 0.75])
def test_line_16_smooths_the_sums_of_a_cohort_as_they_are(gamma):
    fed = small()
    work = PrintedAssignment(Table(intercept=False), 2, 3, alpha=4.0, beta=2.0, sigma=0.5, delta=1.0, gamma=gamma)
    engine, state = fs.Local(fed), work.start(0)
    expected = np.zeros_like(state["sums"])
    for t, cohort in enumerate((np.arange(12), np.arange(3), np.arange(5, 12))):
        reply = engine.run(work, state, cohort, fs.Key(0, t))
        rate = 1.0 if t == 0 else gamma
        expected = (1 - rate) * expected + rate * reply.total["sums"]
        state = work.update(state, reply.total, fs.Key(0, t))
        np.testing.assert_allclose(state["sums"], expected, atol=1e-9)
        assert float(state["noise"]) == 0.25  # sigma holds from the first round on
    assert opened(state["sums"], 2).entities.sum() < 48


def test_all_mends_on_all_agents_are_the_toolkits_rounds():
    fed = small()
    mended = PrintedRegression(3, **KNOWN, gamma=1.0, rounds=6, mended=MENDS).fit(fed)
    toolkit = fs.LatentClassRegression(3, **KNOWN, standardise=False, gamma=1.0, rounds=6)
    toolkit._work = without_warm(toolkit._work)
    toolkit.fit(fed)
    np.testing.assert_allclose(mended.coefficients_, toolkit.coefficients_, rtol=1e-9)
    short, printed = (PrintedRegression(3, **KNOWN, gamma=1.0, rounds=2, mended=m).fit(fed) for m in (MENDS, ()))
    assert not np.allclose(short.coefficients_, printed.coefficients_)


def without_warm(make):
    """The toolkit approaches a given sigma over two rounds; the paper does not."""

    def work(*place):
        made = make(*place)
        made.warm = made.early = 0
        return made

    return work


def test_an_unknown_mend_is_refused():
    with pytest.raises(fs.errors.DataError, match="mended must hold names of first round, own events"):
        PrintedRegression(2, mended=("everything",)).fit(small())
