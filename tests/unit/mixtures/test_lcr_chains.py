"""Chains of labels side by side: R-hat, intervals that cover, and averaged predictions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscape import DataError, LatentClassRegression, Poisson
from fedscape.cli.regress import FEWEST_DRAWS
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.mixtures.latent_class.chains import Trace, agreement, log_evidence, nearest_others, split_r_hat
from fedscape.mixtures.latent_class.links import Probit
from fedscape.mixtures.latent_class.rounds import ClassAssignment
from fedscape.mixtures.latent_class.table import Table


def test_r_hat_is_one_where_chains_agree_and_large_where_they_do_not():
    rng = np.random.default_rng(0)
    same = rng.normal(size=(4, 400))
    assert split_r_hat(same) == pytest.approx(1, abs=0.02)
    assert split_r_hat(same + np.array([[0], [0], [0], [5]])) > 2
    assert split_r_hat(same + np.linspace(0, 5, 400)) > 1.4  # one that still drifts
    assert np.isnan(split_r_hat(same[:, :3]))


def test_below_the_draws_at_which_r_hat_is_judged_chains_that_agree_are_often_above_the_limit():
    rng = np.random.default_rng(1)

    def often(n):
        largest = [split_r_hat(rng.normal(size=(2, n, 4, 3))).max() for _ in range(400)]
        return np.mean(np.array(largest) >= 1.1)

    assert often(10) > 0.5  # the default of twenty rounds
    assert often(FEWEST_DRAWS) < 0.05


def test_with_a_link_the_chain_nearest_the_others_is_taken():
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(3, 4))
    chains = np.array([centre[rng.permutation(3)] + s * rng.normal(size=(3, 4)) for s in (2.0, 0.01, 0.5, 0.5)])
    assert nearest_others(chains) == 1
    work = Probit(Table(intercept=False), 4, 3)
    trace = Trace(np.tile(chains, (6, 1, 1, 1)), np.full((6, 4, 3, 4), 1e-6), np.zeros((6, 4)))
    found = agreement(work, work.begin(np.zeros(5), np.ones(4), deviation=1.0), trace, seed=0)
    assert found.best == 1
    assert ((found.intervals[..., 0] <= chains[1] + 0.01) & (chains[1] - 0.01 <= found.intervals[..., 1])).all()


def test_r_hat_is_gelman_and_rubins_formula():
    draws = np.random.default_rng(1).normal(size=(2, 6))
    halves = [draws[0, :3], draws[1, :3], draws[0, 3:], draws[1, 3:]]
    within = np.mean([np.var(h, ddof=1) for h in halves])
    between = 3 * np.var([h.mean() for h in halves], ddof=1)
    assert split_r_hat(draws) == pytest.approx(np.sqrt((2 / 3 * within + between / 3) / within))


def test_the_evidence_is_the_normal_density_of_all_targets_of_a_class():
    rng = np.random.default_rng(2)
    work = ClassAssignment(Table(intercept=False), 2, 2, sigma=0.8, delta=1.5)
    state, exact = work.start(0), 0.0
    low = np.tril_indices(2)
    for k, n in enumerate((5, 3)):
        x, y = rng.normal(size=(n, 2)), rng.normal(size=n)
        state["sums"][k] = np.concatenate([(x.T @ x)[low], x.T @ y, [y @ y, n, 1]])
        covariance = 0.8**2 * np.eye(n) + 1.5**2 * x @ x.T
        exact += stats.multivariate_normal.logpdf(y, np.zeros(n), covariance)
    assert log_evidence(work, state) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("how", [{"method": "central-exact"}, {"method": "central"}, {}])
def test_intervals_of_chains_cover_the_truth_as_often_as_they_say(how):
    covered = []
    for seed in range(6):
        fed, truth = hlcr_synthetic(
            30, entities=4, events=12, features=3, components=3, sigma=0.7, delta=1.5, seed=seed
        )
        reg = LatentClassRegression(3, beta=4.0, chains=4, rounds=24, seed=seed, **how).fit(fed)
        assert reg.r_hat_.shape == (3, 4)
        if reg.r_hat_.max() > 1.5:
            continue  # chains ended in different places, and say so
        far = np.abs(reg.coefficients_[:, None] - truth["coefficients"][None]).max(axis=2)
        match = far.argmin(axis=1)
        inside = (reg.intervals_[:, :3, 0] <= truth["coefficients"][match]) & (
            truth["coefficients"][match] <= reg.intervals_[:, :3, 1]
        )
        covered += inside.ravel().tolist()
    assert len(covered) >= 18
    assert abs(np.mean(covered) - 0.95) < 5 * np.sqrt(0.05 * 0.95 / len(covered))


def test_intervals_without_chains_are_those_of_the_last_labels():
    fed, _ = hlcr_synthetic(20, entities=3, events=12, features=2, components=2, seed=0)
    reg = LatentClassRegression(2, seed=0).fit(fed)
    np.testing.assert_allclose(reg.intervals_[:, :2].mean(axis=-1), reg.coefficients_, rtol=1e-9)
    np.testing.assert_allclose(reg.intervals_[:, 2].mean(axis=-1), reg.intercepts_, rtol=1e-9, atol=1e-12)
    half = np.diff(reg.intervals_[:, :2], axis=-1)[..., 0] / 2
    np.testing.assert_allclose(half, 1.96 * reg.errors_, rtol=1e-9)


def test_predictions_of_chains_are_averaged_and_no_worse_than_a_single_one():
    fed, _ = hlcr_synthetic(40, entities=4, events=8, features=4, components=4, sigma=1.0, seed=3)
    place = np.arange(fed.n_rows) % 8
    train, test = fed.where(place < 6), fed.where(place >= 6)
    one = [LatentClassRegression(4, beta=4.0, seed=s).fit(train).score(test) for s in range(4)]
    four = LatentClassRegression(4, beta=4.0, chains=4, seed=0).fit(train)
    assert four.score(test) > np.mean(one)
    mean, deviation = four.predict(test, return_std=True)
    assert (deviation >= 0.9 * four.sigma_).all()
    drawn = four.predict(test, classes="drawn")
    assert np.mean((test["y"] - mean) ** 2) < np.mean((test["y"] - drawn) ** 2)
    assert four.predict_proba(test).shape == (test.n_rows, 4)


def test_chains_resume_to_the_same_bytes_and_work_with_cohorts_and_links(tmp_path):
    fed, _ = hlcr_synthetic(12, entities=3, events=6, features=2, components=2, seed=0)
    whole = LatentClassRegression(2, chains=3, rounds=6).fit(fed, sampler=Poisson(0.7))
    LatentClassRegression(2, chains=3, rounds=6).fit(fed, sampler=Poisson(0.7), checkpoint=tmp_path / "run")
    again = LatentClassRegression(2, chains=3, rounds=6).fit(fed, sampler=Poisson(0.7), checkpoint=tmp_path / "run")
    assert whole.intervals_.tobytes() == again.intervals_.tobytes()
    assert whole.r_hat_.tobytes() == again.r_hat_.tobytes()
    answers = fed.with_column("y", (fed["y"] > 0).astype(float))
    assert LatentClassRegression(2, chains=2, rounds=8, link="probit").fit(answers).r_hat_.shape == (2, 3)


def test_no_chain_is_refused():
    with pytest.raises(DataError, match="rounds and chains must be at least 1, not 20 and 0"):
        LatentClassRegression(2, chains=0).fit(hlcr_synthetic(2, events=2)[0])
