"""FedClock: the regression recovers the modes, the discriminant is Fisher's, a clock that says nothing does no harm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

from fedscape import DataError, Federation, Gaussian, Key, Ledger, Local, rounds
from fedscape.learning import LocalSGD, cross_entropy, initialised
from fedscape.learning.branches import BranchLoss, branch_evidence, contrast_loss, contrast_targets
from fedscape.temporal import (
    Blocks,
    Cosine,
    FedClock,
    FedTKM,
    Harmonics,
    Linear,
    MultiBranch,
    Shifting,
    Soft,
    Steady,
    Zones,
    evaluate,
    parse_prior,
)
from fedscape.temporal.branched import Branched
from fedscape.temporal.calibration import ScoreSums, posterior
from fedscape.temporal.clues import label_products, label_roots, looked_at, projected
from fedscape.temporal.covariates import Context, Shares
from fedscape.temporal.regression import (
    Groups,
    Moments,
    aligned,
    discriminant,
    nonnegative,
    pack,
    packed_pairs,
    significance,
    tail_of_f,
    unpack,
    vertices,
)
from fedscape.temporal.scores import branch_statistics, score_statistics, unit_scores


def population(n: int = 80, rows: int = 12, *, seed: int = 0, apart: float = 3.0, labels: bool = True):
    """Clients of two modes: features lie apart, labels of the second mode are 2 and 3, or are the same."""
    rng = np.random.default_rng(seed)
    modes = np.arange(n) % 2
    mode = np.repeat(modes, rows)
    x = rng.normal(size=(n * rows, 4)) + apart * mode[:, None] * np.array([1, -1, 0, 0])
    y = (x[:, 3] > 0).astype(int) ^ (mode if not labels else 0)
    return Federation({"x": x, "y": y + 2 * mode * labels}, np.arange(0, n * rows + 1, rows)), modes


def training(n_branches: int = 2, **changes) -> LocalSGD:
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).to(torch.float64)
    net = MultiBranch(initialised(body, 3), "2", n_branches, seed=1)
    return replace(LocalSGD(net, cross_entropy, lr=0.2, epochs=1, batch_size=6, strategy="vmap"), **changes)


def run(method: FedClock, fed: Federation, sampler, n: int, **how):
    *_, last = rounds(method, fed, n_rounds=n, sampler=sampler, measure=0, **how)
    return last.state


# -- regression and discriminant ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", [Linear(16), Cosine(16, 4.0), Zones(16, 3), Blocks(16, 2)])
def test_modes_are_recovered_exactly_where_shares_are_exact(curve):
    """Cohorts whose mean is the shares' mean of the modes, whatever else their clients are."""
    rng, k, d = np.random.default_rng(0), curve.n_modes, 5
    mu, moments = rng.normal(size=(k, d)), Moments.empty(k, d)
    for t in range(32):
        z = rng.normal(size=(6, d))
        z += curve.shares(t) @ mu - z.mean(axis=0)
        moments = moments.plus(curve.shares(t), 6.0, z.sum(axis=0), pack(z.T @ z))
    np.testing.assert_allclose(moments.coefficients(), mu, atol=1e-10)


def test_coefficients_and_residual_are_those_of_least_squares_on_all_clients():
    rng, moments, rows, values = np.random.default_rng(1), Moments.empty(3, 4), [], []
    for t in range(20):
        a, z = Harmonics(7).row(t), rng.normal(size=(5, 4)) + t / 5
        moments = moments.plus(a, 5.0, z.sum(axis=0), pack(z.T @ z))
        rows += [a] * 5
        values.append(z)
    a, z = np.stack(rows), np.concatenate(values)
    beta = np.linalg.lstsq(a, z, rcond=None)[0]
    np.testing.assert_allclose(moments.coefficients(), beta, atol=1e-10)
    left = z - a @ beta
    np.testing.assert_allclose(moments.residual(100.0), left.T @ left / 100, atol=1e-10)


def grouped(z, mode, n_rounds: int) -> Groups:
    groups = Groups.empty(mode.max() + 1, z.shape[1])
    for part in np.array_split(np.arange(len(z)), n_rounds):
        near = np.eye(mode.max() + 1)[mode[part]]
        away = z[part] - groups.means[mode[part]]
        groups = groups.plus(near.sum(0), near.T @ away, pack(away.T @ away), len(part), np.ones(len(near[0])), 1.0)
    return groups


@pytest.mark.parametrize("k", [2, 3])
def test_the_discriminant_of_known_modes_is_that_of_scikit_learn(k):
    rng = np.random.default_rng(k)
    mode, mix = rng.integers(0, k, 300), rng.normal(size=(4, 4))
    z = rng.normal(size=(300, 4)) @ mix + 2 * rng.normal(size=(k, 4))[mode]
    groups = grouped(z, mode, 17)
    for j in range(k):
        np.testing.assert_allclose(groups.means[j], z[mode == j].mean(axis=0), atol=1e-10)
    own = discriminant(groups.means, groups.within())
    lda = LinearDiscriminantAnalysis(solver="lsqr", priors=np.full(k, 1 / k)).fit(z, mode)
    new = rng.normal(size=(200, 4)) @ mix
    # lsqr pools class covariances by the priors, here by the clients: refit with the clients' own shares for weights
    scatter = sum(np.cov(z[mode == j].T, bias=True) * np.mean(mode == j) for j in range(k))
    np.testing.assert_allclose(groups.within(), scatter, atol=1e-9)
    shares = LinearDiscriminantAnalysis(solver="lsqr").fit(z, mode)
    mine = new @ own.weights.T + own.offsets + np.log(np.bincount(mode) / 300)
    theirs = new @ shares.coef_.T + shares.intercept_ if k > 2 else None
    if theirs is None:
        np.testing.assert_allclose(mine[:, 1] - mine[:, 0], shares.decision_function(new), rtol=1e-8, atol=1e-8)
    else:
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-8)
    assert (mine.argmax(axis=1) == shares.predict(new)).all()
    assert ((new @ own.weights.T + own.offsets).argmax(axis=1) == lda.predict(new)).mean() > 0.97


def test_a_statistic_that_never_varies_has_no_weight_and_a_ridge_tames_one_that_hardly_does():
    means, scatter = np.array([[1.0, 5.0, 1e-3], [-1.0, 5.0, -1e-3]]), np.diag([1.0, 0.0, 1e-8])
    plain, tamed = (discriminant(means, scatter, ridge=r).weights[0] for r in (0.0, 0.1))
    assert plain[1] == tamed[1] == 0
    assert plain[2] == pytest.approx(1e5)
    assert abs(tamed[2]) < 1


def test_triangles_and_nearest_positive_matrices():
    a = np.random.default_rng(0).normal(size=(5, 5))
    a = a + a.T
    np.testing.assert_array_equal(unpack(pack(a)), a)
    near = nonnegative(a)
    values, vectors = np.linalg.eigh(a)
    np.testing.assert_allclose(near, (vectors * np.maximum(values, 0)) @ vectors.T, atol=1e-12)
    np.testing.assert_allclose(nonnegative(a @ a), a @ a)


@pytest.mark.parametrize("k", [3, 7])
def test_corners_keep_the_order_of_the_discriminant_so_far(k):
    rng = np.random.default_rng(0)
    means = rng.normal(size=(k, 9))
    scores, shuffled = discriminant(means, np.eye(9)), rng.permutation(k)
    np.testing.assert_allclose(means[shuffled][aligned(means[shuffled], *scores)], means)


def test_absent_modes_drift_with_those_that_are_there():
    """Features of both modes move together; only the first mode is seen while they do."""
    rng, groups, both = np.random.default_rng(0), Groups.empty(2, 3), np.array([0] * 5 + [1] * 5)
    mu, shift = np.array([[1.0, 0.0, 2.0], [-1.0, 3.0, 0.0]]), np.zeros(3)
    for t in range(60):
        mode = both if t < 30 else np.zeros(10, dtype=int)
        shift += 0.05 if t >= 30 else 0.0
        away = mu[mode] + shift + 0.1 * rng.normal(size=(10, 3)) - groups.means[mode]
        near = np.eye(2)[mode]
        memory = np.full(2, 0.99)
        groups = groups.plus(near.sum(0), near.T @ away, pack(away.T @ away), 10, memory, 0.99, drift=0.5)
    np.testing.assert_allclose(groups.means, mu + shift, atol=0.2)
    assert np.diag(groups.within()).max() < 0.03  # what drifts is no scatter


def test_drift_leaves_the_sums_of_one_round_exact():
    rng = np.random.default_rng(1)
    z, mode = rng.normal(size=(8, 2)), np.array([0, 1] * 4)
    near = np.eye(2)[mode]
    first = Groups.empty(2, 2).plus(near.sum(0), near.T @ z, pack(z.T @ z), 8, np.ones(2), 1.0)
    away = z + 1.0 - first.means[mode]
    second = first.plus(near.sum(0), near.T @ away, pack(away.T @ away), 8, np.ones(2), 1.0, drift=1.0)
    np.testing.assert_allclose(second.means, first.means + 1.0)
    np.testing.assert_allclose(second.scatter, 2 * first.scatter, atol=1e-12)


# -- branches that tell modes apart ------------------------------------------------------------------------------------


def test_the_loss_of_a_branch_and_its_contrast_are_one_softmax_over_modes_and_classes():
    output, mode, y = torch.randn(5, 3, 4, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0]), torch.arange(5) % 4
    weights = np.eye(3)[mode.numpy()]
    target = torch.cat(
        [y[:, None].double(), torch.from_numpy(contrast_targets(weights, weights, np.full(3, 1 / 3), 1.0))], 1
    )
    joint = nn.functional.cross_entropy(output.flatten(1), 4 * mode + y, reduction="none")
    torch.testing.assert_close(BranchLoss(0.0, 0.0)(output, target), joint)
    alone = torch.cat([y[:, None].double(), torch.from_numpy(weights)], 1)
    none = torch.cat(
        [y[:, None].double(), torch.from_numpy(contrast_targets(weights, 0 * weights, np.full(3, 1 / 3), 1.0))], 1
    )
    for loss in (BranchLoss(0.0, 0.0), BranchLoss(0.5, 0.1)):
        torch.testing.assert_close(loss(output, none), loss(output, alone))


def test_the_contrast_corrected_for_shares_learns_the_odds_of_balanced_modes():
    """Nine rows of one mode and one of the other on one input: log-odds of the optimum are zero, not log 9."""
    logits = torch.zeros(1, 2, 1, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]], dtype=torch.float64)
    for shares, odds in (([0.9, 0.1], 0.0), ([0.5, 0.5], np.log(9))):
        optimiser = torch.optim.LBFGS([logits], max_iter=100)

        def closure(shares=shares, optimiser=optimiser):
            optimiser.zero_grad()
            log_shares = torch.tensor([shares], dtype=torch.float64).log()
            loss = contrast_loss(logits[:, :, 0].expand(10, 2), weights, log_shares).mean()
            loss.backward()
            return loss

        optimiser.step(closure)
        assert float(branch_evidence(logits.detach())) == pytest.approx(odds, abs=1e-4)


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_rows_held_out_are_looked_at_and_never_trained_on(strength):
    fed, _ = population(20, 8)
    method = FedClock(training(), Linear(16), held=0.25, strength=strength)
    state, few = method.start(0), fed.take(slice(0, 4))
    held = looked_at(few, 0.25, 10)[1]
    assert held.sum() == 8
    other = few.with_column("x", np.where(held[:, None], few["x"] + 1.0, few["x"]))
    one, two = (method.step(state, part, Key(0, 1))[0] for part in (few, other))
    for name in (n for n in one if n.startswith("delta.")):
        np.testing.assert_array_equal(one[name], two[name])
    assert not np.array_equal(one["score_first"], two["score_first"])
    whole = FedClock(training(), Linear(16), held=0.0)
    one, two = (whole.step(state, part, Key(0, 1))[0] for part in (few, other))
    assert any(not np.array_equal(one[n], two[n]) for n in one if n.startswith("delta."))


# -- does the clock matter ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "above", "below"), [(1.0, 3, 30), (2.5, 5, 60), (4.0, 2, 40), (9.0, 8, 100)])
def test_the_tail_of_f_is_that_of_scipy(value, above, below):
    assert tail_of_f(value, above, below) == pytest.approx(stats.f.sf(value, above, below), rel=0.25, abs=1e-4)


def rounds_of(rng, n: int, d: int, shift: float, design) -> Moments:
    moments = Moments.empty(len(design.constant), d)
    for t in range(n):
        a = design.row(t)
        y = rng.normal(size=d) * np.linspace(0.5, 2, d) + shift * a[-1]
        moments = moments.plus(a, 1.0, y, pack(np.outer(y, y)))
    return moments


@pytest.mark.parametrize("design", [Shares(Linear(12), 2), Harmonics(12), Context.of(list("abca" * 10))])
@pytest.mark.parametrize("d", [3, 60])
def test_the_test_keeps_its_level_with_more_statistics_than_rounds_too(design, d):
    rng = np.random.default_rng(d)
    p = np.array([significance(rounds_of(rng, 40, d, 0.0, design), design.constant).p_value for _ in range(200)])
    for level in (0.05, 0.2):
        assert (p < level).mean() <= level + 5 * np.sqrt(level * (1 - level) / 200)
    assert significance(rounds_of(rng, 40, d, 3.0, design), design.constant).p_value < 1e-4


def test_too_few_rounds_and_one_covariate_say_nothing():
    rng = np.random.default_rng(0)
    assert significance(rounds_of(rng, 3, 2, 9.0, Shares(Linear(12), 2)), np.ones(2)).p_value == 1.0
    assert significance(rounds_of(rng, 30, 2, 9.0, Shares(None, 2)), np.ones(2)).p_value == 1.0


# -- covariates --------------------------------------------------------------------------------------------------------


def test_without_a_curve_the_ends_of_the_path_are_the_modes():
    """Two modes that are alone once in a period, of which only the period is known."""
    rng, mu, moments = np.random.default_rng(0), np.array([[1.0, 0.0, 2.0], [-1.0, 3.0, 0.0]]), Moments.empty(3, 3)
    for t in range(96):
        z = Cosine(24, peak=5).shares(t) @ mu + 0.01 * rng.normal(size=(8, 3))
        moments = moments.plus(Harmonics(24).row(t), 8.0, z.sum(axis=0), pack(z.T @ z))
    loadings = Harmonics(24).loadings(moments.coefficients(), np.eye(3), moments.gram, 2)
    means = loadings @ moments.coefficients()
    order = np.argsort(-means[:, 0])
    np.testing.assert_allclose(means[order], mu, atol=0.05)


def test_contexts_of_levels_and_of_numbers():
    days = Context.of(["sat", "mon", "sat", "tue"])
    assert days.row(3).tolist() == [0.0, 0.0, 1.0]
    assert (days.constant @ days.row(0), len(days.constant)) == (1.0, 3)
    numbers = Context.of([[0.0, 1.0], [2.0, 1.0]])
    assert numbers.row(1).tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(DataError, match="context has 4 rounds and none for round 4"):
        days.row(4)
    with pytest.raises(DataError, match="context must be finite, round 1 is not"):
        Context.of([0.0, np.nan])
    with pytest.raises(DataError, match="context must hold a level or numbers"):
        Context.of(np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match="one a round"):
        Context.of(np.zeros((2, 2), dtype=int))
    with pytest.raises(DataError, match="period must be at least 2 rounds"):
        Harmonics(1.0)


# -- what clients say --------------------------------------------------------------------------------------------------


def test_roots_of_label_shares_and_rows_that_are_looked_at():
    fed = Federation({"y": [0, 0, 2, 1, 1]}, [0, 3, 3, 5])
    np.testing.assert_allclose(label_roots(fed, "y", 3) ** 2, [[2 / 3, 0, 1 / 3], [0, 0, 0], [0, 1, 0]])
    with pytest.raises(DataError, match="must hold classes 0 to 1, not 0 to 2"):
        label_roots(fed, "y", 2)
    long = Federation({"y": np.arange(120)}, [0, 100, 103, 120])
    few = long.where(looked_at(long, 0.0, 10)[0])
    assert few.sizes.tolist() == [10, 3, 10]
    assert np.diff(few["y"][:10]).tolist() == [10] * 9
    looked, out = looked_at(long, 0.2, 10)
    assert [part.sizes.tolist() for part in (long.where(looked), long.where(out))] == [[10, 3, 3], [10, 0, 3]]


def test_fixed_features_are_the_same_for_everybody_and_blind_to_the_background_of_an_image():
    x = torch.rand(6, 8, 8)
    np.testing.assert_array_equal(projected(x, 5)[2:4], projected(x[2:4], 5))
    np.testing.assert_allclose(projected(x, 5, scaled=True), projected(x + 1.0, 5, scaled=True), atol=1e-5)
    codes = torch.tensor([[3, 7], [7, 3], [3, 3]])
    made = projected(codes, 4)
    np.testing.assert_allclose(made[0], made[1])
    assert (made[0] != made[2]).all()


def test_the_cut_follows_a_shift_of_all_scores_while_one_mode_is_away():
    rng, sums, shift = np.random.default_rng(0), ScoreSums.empty(2), 0.0
    for t in range(120):
        shift += 0.02 if t >= 60 else 0.0
        mode = rng.integers(0, 2, 10) if t < 60 else np.ones(10, dtype=int)  # the first mode goes away
        score = np.where(mode == 0, 0.7, -0.7) + shift + 0.5 * rng.normal(size=10)
        near = np.eye(2)[mode]
        fresh = ScoreSums.empty(2)._replace(
            mass=near.sum(0), first=near.T @ score[:, None], pairs=(near.T @ score[:, None] ** 2)[:, :, None]
        )
        sums = sums.plus(fresh, 0.96 ** near.mean(axis=0))
    law = sums.law({})
    np.testing.assert_allclose(law["score_means"][:, 0] - shift, [0.7, -0.7], atol=0.6)  # it lags by the memory
    assert np.diff(law["score_means"][:, 0]) == pytest.approx(-1.4, abs=0.15)
    np.testing.assert_allclose(law["score_scatter"].ravel(), 0.25, atol=0.2)


def test_scores_are_cut_farther_out_where_no_noise_grows_with_it():
    """Sure scores still show that the network moved all of them."""
    each, ends = np.full((3, 1), 9.0), np.array([0, 3])
    assert unit_scores(each, ends).means.item() == 9.0
    fed, _ = population(6, 4)
    sent = []
    for method in (FedClock(training(), Linear(16)), FedClock(training(), Linear(16), noise=1.0)):
        state = {n: 40.0 * v if n.startswith("mean.") else v for n, v in method.start(0).items()}
        sent.append(np.abs(method.step(state, fed, Key(0, 1))[0]["score_first"]).max())
    assert 4.0 < sent[0] <= 12.0
    assert sent[1] == 4.0


def test_the_mean_network_is_what_predicts():
    fed, modes = population(20, 6)
    method = FedClock(training(), Linear(8), inertia=0.5)
    state = run(method, fed, Shifting(modes, Linear(8), 6), 12)
    other = {n: v + 1.0 if n.startswith("model.") else v for n, v in state.items()}
    np.testing.assert_array_equal(method.log_probs(state, fed), method.log_probs(other, fed))
    states = [r.state for r in rounds(method, fed, n_rounds=12, sampler=Shifting(modes, Linear(8), 6), measure=0)]
    expected = 0.5 * states[-2]["mean.net.0.weight"] + 0.5 * states[-1]["model.net.0.weight"]
    np.testing.assert_allclose(state["mean.net.0.weight"], expected)


class Heat(nn.Module):
    """A layer whose only parameter is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(x * self.heat)


@pytest.mark.parametrize("strategy", ["vmap", "sequential"])
def test_a_parameter_of_one_number_has_a_mean_and_predicts(strategy):
    fed, modes = population(20, 6)
    body = initialised(nn.Sequential(nn.Linear(4, 6), Heat(), nn.Linear(6, 4)).to(torch.float64), 3)
    local = replace(training(), model=MultiBranch(body, "2", 2, seed=1), strategy=strategy)
    method, sampler = FedClock(local, Linear(8), inertia=0.5), Shifting(modes, Linear(8), 6)
    states = [r.state for r in rounds(method, fed, n_rounds=12, sampler=sampler, measure=0)]
    last, before = states[-1], states[-2]
    assert last["mean.net.1.heat"].shape == last["model.net.1.heat"].shape == ()
    assert last["model.net.1.heat"] != before["model.net.1.heat"]
    expected = 0.5 * before["mean.net.1.heat"] + 0.5 * last["model.net.1.heat"]
    np.testing.assert_allclose(last["mean.net.1.heat"], expected)
    assert np.isfinite(evaluate(method, last, fed).loss).all()


def test_scores_become_probabilities_that_hold():
    """Of units with posterior p, a share p is of the mode, whatever their number of rows."""
    rng, n = np.random.default_rng(0), 40_000
    mode, rows = rng.integers(0, 2, n), rng.choice([2, 5, 20], n)
    centre = np.where(mode == 0, 0.8, -0.8) + rng.normal(0, 0.7, n)
    score = (centre + rng.normal(size=n) * 2 / np.sqrt(rows))[:, None]
    near = np.eye(2)[mode]
    sums = ScoreSums(
        near.sum(0), near.T @ score, (near.T @ score**2)[:, :, None], near.sum(0),
        4.0 * near.sum(0)[:, None, None], near.sum(0), near.T @ (1 / rows),
    )  # fmt: skip
    chances = posterior(sums.law({}), score, rows)[:, 0]
    for low in np.arange(0, 1, 0.1):
        mine = (chances >= low) & (chances < low + 0.1)
        half = 5 * np.sqrt(0.25 / mine.sum())
        assert (mode[mine] == 0).mean() == pytest.approx(chances[mine].mean(), abs=half)
    assert posterior(sums.law({}), score[:1], np.zeros(1, dtype=int)).tolist() == [[0.5, 0.5]]


# -- whole runs --------------------------------------------------------------------------------------------------------


def right_share(method: FedClock, state, test: Federation, modes) -> float:
    chosen = method.branches_of(state, test, unit="client")
    return float((chosen == modes[test.client_of_row]).mean())


@pytest.mark.parametrize("prior", [Linear(16), Cosine(16), Harmonics(16), Soft(16)])
def test_branches_are_found_by_clients_without_labels_that_never_took_part(prior):
    fed, modes = population()
    method = FedClock(training(), prior)
    state = run(method, fed, Shifting(modes, Linear(16), 10), 64)
    new, theirs = population(30, 5, seed=9)
    verdict = method.verdict(state)
    assert verdict.branching, str(verdict)
    share = right_share(method, state, new, theirs)
    assert max(share, 1 - share if isinstance(prior, Harmonics) else share) > 0.95  # which end is first is not known
    assert method.reveals == ()


def test_three_zones_have_three_branches():
    rng, modes = np.random.default_rng(0), np.arange(90) % 3
    mode = np.repeat(modes, 10)
    x = rng.normal(size=(900, 4)) + 4 * np.eye(4)[mode]
    fed = Federation({"x": x, "y": mode}, np.arange(0, 901, 10))
    method = FedClock(training(3), Zones(18))
    state = run(method, fed, Shifting(modes, Zones(18), 12), 72)
    assert right_share(method, state, fed, modes) > 0.95


def test_modes_with_the_same_labels_are_told_by_features_and_branches_mend_them():
    fed, modes = population(labels=False)  # the same input means one thing by day and the other by night
    by_labels, by_both = (FedClock(training(), Linear(16), by=by) for by in ("labels", "both"))
    sampler = Shifting(modes, Linear(16), 10)
    states = [run(method, fed, sampler, 96) for method in (by_labels, by_both)]
    assert not by_labels.verdict(states[0]).branching
    assert "try by='both'" in str(by_labels.verdict(states[0]))
    assert by_both.verdict(states[1]).branching
    one, two = (
        evaluate(m, s, fed, unit="client").accuracy.mean() for m, s in zip((by_labels, by_both), states, strict=True)
    )
    assert two > one + 0.03


@pytest.mark.parametrize("case", ["no shift", "no modes", "no feature"])
def test_where_the_clock_or_features_say_nothing_it_says_so_and_is_as_one_model(case):
    fed, modes = population(apart=0.0 if case == "no feature" else 3.0)
    curve = Steady(2) if case == "no shift" else Linear(16)
    given = np.random.default_rng(3).permutation(modes) if case == "no modes" else modes
    method = FedClock(training(), Linear(16), features="fixed", projections=4)
    state = run(method, fed, Shifting(given, curve, 10), 64)
    verdict = method.verdict(state)
    assert not verdict.branching
    assert str(verdict).startswith("one model for all: ")
    assert verdict.trusted == (case == "no feature")
    assert (method._shares_of_units(state, method.see(state, fed), fed, "client", 64).numpy() == 0.5).all()


def test_a_wrong_prior_degrades_gracefully():
    """Late by an eighth of a period or ten percent too long it still finds branches; by a quarter it claims none."""
    fed, modes = population()
    sampler = Shifting(modes, Linear(16), 10)
    for prior, n in ((Linear(16, peak=2), 80), (Linear(17.6), 48), (Linear(16, 4.0), 48)):
        method = FedClock(training(), prior)
        assert right_share(method, run(method, fed, sampler, n), fed, modes) > 0.9, prior
    method = FedClock(training(), Linear(16, peak=4))
    verdict = method.verdict(run(method, fed, sampler, 64))
    assert not verdict.branching, str(verdict)


def test_a_context_makes_branches_only_if_it_matters():
    fed, modes = population()
    days = np.array(["week", "week", "end"] * 32)
    sampler = Shifting(modes, Blocks(3), 10)  # modes: round 0 and part of 1 against the rest
    method = FedClock(training(), None, context=days)
    other = FedClock(training(), None, context=np.arange(96) // 8 % 3)
    assert method.verdict(run(method, fed, sampler, 60)).branching
    assert not other.verdict(run(other, fed, sampler, 60)).trusted


def test_a_run_that_is_stopped_goes_on_to_the_same_bytes(tmp_path):
    fed, modes = population(20, 6)
    method = FedClock(training(), Linear(8))
    how = {"sampler": Shifting(modes, Linear(8), 6), "measure": 0, "seed": 4, "n_rounds": 12}
    states = []
    for r in rounds(method, fed, **how):
        states.append(r.state)
        if r.index == 5:
            r.save(tmp_path / "run")
    *_, again = rounds(method, fed, resume=tmp_path / "run", **how)
    for name, values in states[-1].items():
        assert np.asarray(values).tobytes() == np.asarray(again.state[name]).tobytes(), name


def test_it_is_private_by_the_ordinary_release_that_leaves_the_network_most_of_the_clip():
    fed, modes = population(200, 4)
    method, privacy = FedClock(training(), Linear(16)).under(Gaussian(clip=4.0, multiplier=0.1, noise_seed=1))
    assert method.weighting == "equal"
    assert method.noise == pytest.approx(0.1 * privacy.with_count(4.0) * privacy.scales["near"])
    ledger = Ledger(epsilon=1e6, delta=1e-6)
    state = run(method, fed, Shifting(modes, Linear(16), 100), 64, privacy=privacy, ledger=ledger)
    assert len(ledger.entries()) > 0
    assert method.verdict(state).branching, str(method.verdict(state))
    assert right_share(method, state, fed, modes) > 0.9
    state = {**state, "model.net.2.each.0.bias": 100.0 * np.ones_like(state["model.net.2.each.0.bias"])}
    sent = method.step(state, fed, Key(0, 1))[0]  # scores are as far as they can be
    assert set(sent) == set(privacy.scales) | {n for n in sent if n.startswith("delta.")}
    beside = sum(
        (np.reshape(sent[n], (len(fed), -1)) / s) ** 2 @ np.ones(sent[n][0].size) for n, s in privacy.scales.items()
    )
    assert np.sqrt(beside.max()) <= 2.0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"by": "time"}, "by must be one of"),
        ({"features": "raw"}, "features one of"),
        ({"projections": 0}, "projections must be at least 1"),
        ({"held": 1.0}, "held and inertia must be at least 0 and below 1"),
        ({"inertia": 1.0}, "held and inertia must be at least 0"),
        ({"rows": 1}, "rows and classes at least 2"),
        ({"memory": 0.0}, "memory and significance must be above 0"),
        ({"abstain": 1.5}, "abstain from 0 to 1"),
        ({"ridge": -1.0}, "ridge, noise and contrast must be at least 0"),
        ({"prior": "linear"}, "prior must be a curve of shares such as Linear"),
        ({"prior": Zones(8)}, "the prior has 3 modes, but the network 2 branches"),
        ({"prior": Cosine(8), "context": [0, 1]}, "give a prior or a context, not both"),
    ],
)
def test_what_makes_no_sense_is_refused(how, message):
    with pytest.raises(DataError, match=message):
        FedClock(training(), **how)


@pytest.mark.parametrize("how", [{"by": "both"}, {"features": "network"}])
def test_a_release_is_not_fitted_to_statistics_without_a_bound(how):
    with pytest.raises(DataError, match="under knows bounds of labels and log-odds alone"):
        FedClock(training(), Linear(16), **how).under(Gaussian(clip=1.0, multiplier=1.0))


def test_labels_that_are_always_the_same_do_not_follow_the_clock():
    fed, modes = population(20, 6)
    method = FedClock(training(), Linear(8))
    state = run(method, fed.with_column("y", 0 * fed["y"]), Shifting(modes, Linear(8), 6), 24)
    assert method.verdict(state).p_value == 1.0


def test_the_verdict_names_the_condition_that_fails():
    state = {"trusted": 0.0, "branching": 0.0, "p_value": 1e-6, "rounds": 64.0, "agreement": np.zeros(2)}
    method = FedClock(training(), Linear(8))
    assert str(method.verdict(state)) == (
        "one model for all: labels follow the clock (p = 1e-06, 64 rounds), but modes are not clearly apart; "
        "try by='both'"
    )
    assert "do not clearly follow" in str(method.verdict({**state, "p_value": 0.5}))


def test_only_fedclock_takes_a_period_without_a_curve():
    assert parse_prior("harmonics", 24) == Harmonics(24)
    with pytest.raises(DataError, match="Harmonics is for FedClock alone"):
        FedTKM(training(), Harmonics(24))


def test_engines_and_lone_clients_agree():
    fed, modes = population(24, 5)
    method = FedClock(training(), Linear(8), by="both", rows=3)
    state = run(method, fed, Shifting(modes, Linear(8), 12), 12)
    whole = Local(fed, threads=1).run(method, state, np.arange(24), Key(0, 9)).total
    rows = [method.step(state, fed.take(slice(i, i + 1)), Key(0, 9))[0] for i in range(24)]
    for name in rows[0]:
        alone = sum(np.asarray(r[name][0], dtype=float) for r in rows)
        np.testing.assert_allclose(whole[name], alone, rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_regression_adds_every_round_and_is_solved_every_fourth():
    fed, modes = population(20, 6)
    method, sampler = FedClock(training(), Linear(8)), Shifting(modes, Linear(8), 6)
    states = [r.state for r in rounds(method, fed, n_rounds=9, sampler=sampler, measure=0)]
    assert [float(s["rounds"]) for s in states] == pytest.approx(range(1, 10))
    solved = [i for i in range(1, 9) if not np.array_equal(states[i]["clue_weights"], states[i - 1]["clue_weights"])]
    assert solved == [4, 8]
    coefficients = Moments(*(states[8][f"server.clue_{n}"] for n in Moments._fields)).coefficients()
    offsets = -0.5 * (states[8]["clue_weights"] * coefficients).sum(axis=1)  # of shares the modes are the coefficients
    np.testing.assert_allclose(states[8]["clue_offsets"], offsets)


def law_of(rng, k):
    """A distribution of the scores of k modes, as the state has it."""
    roots = {n: rng.normal(size=(k, k - 1, k - 1)) for n in ("score_scatter", "score_rows")}
    law = {n: root @ root.swapaxes(1, 2) for n, root in roots.items()}
    return {**law, "score_means": 3 * rng.normal(size=(k, k - 1)), "score_thin": rng.uniform(0, 1, k)}


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("far", [12.0, 0.5])
def test_statistics_of_branches_are_those_of_their_log_odds(k, far):
    rng = np.random.default_rng(k)
    outputs, offsets = torch.from_numpy(4 * rng.normal(size=(14, k, 5))), np.array([0, 3, 3, 4, 10, 14])
    near = np.eye(k)[rng.integers(0, k, 5)] * np.array([1, 0, 1, 1, 1])[:, None]
    each = branch_evidence(outputs).numpy()
    for law in (law_of(rng, k), {n: 0 * v for n, v in law_of(rng, k).items()}):
        plain = score_statistics(law, each, offsets, near, far)
        quick = branch_statistics(law, outputs, offsets, near, far)
        assert list(plain) == list(quick)
        for name, values in plain.items():
            np.testing.assert_allclose(quick[name], values, rtol=0, atol=1e-12, err_msg=name)


def test_products_of_label_shares_are_those_of_their_square_roots():
    rng = np.random.default_rng(0)
    fed = Federation({"y": rng.integers(0, 6, 20)}, [0, 5, 5, 6, 20])
    roots, pairs = label_products(fed, "y", 7, np.dtype(float))
    np.testing.assert_allclose(roots, label_roots(fed, "y", 7), rtol=1e-15)
    np.testing.assert_allclose(pairs, pack(roots[:, :, None] * roots[:, None, :]), rtol=1e-15)
    np.testing.assert_array_equal(packed_pairs(roots), pack(roots[:, :, None] * roots[:, None, :]))
    with pytest.raises(DataError, match="must hold classes 0 to 2, not 0 to 5"):
        label_products(fed, "y", 3, np.dtype(float))


def test_names_of_what_the_server_learns_are_those_that_it_began_with():
    for method, _ in FedClock.examples():
        state = method.start(0)
        assert set(method.own_names(state)) == set(method.modes(0))


def test_branches_are_asked_without_the_module_where_they_are_a_stack():
    """Outputs by hand are those of the network; of the rows asked for, and of all."""
    fed, _ = population(6, 4)
    for method in (FedClock(training(), Linear(16)), FedClock(replace(training(), strategy="sequential"), Linear(16))):
        state, rows = method.start(0), np.array([3, 0, 7])
        whole = Branched.see(method, state, fed, outputs=True).outputs
        asked = method.outputs_of(state, fed)
        np.testing.assert_allclose(asked.numpy(), whole.numpy(), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(method.outputs_of(state, fed, rows).numpy(), asked[rows].numpy(), atol=1e-6)
        again = method.outputs_of({n: v for n, v in state.items() if not n.startswith("model.")}, fed, network="mean")
        np.testing.assert_array_equal(again.numpy(), asked.numpy())


@pytest.mark.parametrize(
    ("how", "ages"),
    [({}, False), ({"by": "features"}, False), ({"by": "both"}, False), ({"by": "both", "features": "fixed"}, False),
     ({"by": "features", "features": "network"}, True), ({"by": "labels", "features": "network"}, False)],
)  # fmt: skip
def test_what_does_not_change_with_the_network_never_ages(how, ages):
    """The clock's regression remembers every round, where no feature of the network is in it."""
    fed, modes = population(20, 4)
    method = FedClock(training(), Linear(8), memory=0.9, **how)
    *_, r = rounds(method, fed, n_rounds=20, sampler=Shifting(modes, Linear(8), 6), measure=0)
    assert (r.state["rounds"] < 10) == ages
    assert ages or r.state["rounds"] == pytest.approx(20)


def test_ends_of_a_path_that_are_equally_far_come_in_the_order_of_the_path():
    """Rounding, which differs from engine to engine, does not choose the first mode."""
    points = np.array([[1.0, 0.0], [0.0, 0.3], [-1.0, 0.0], [0.0, -0.3]])
    for a, b in ((0.0, 1e-9), (1e-9, 0.0)):
        moved = points + np.array([[a, 0], [0, 0], [-b, 0], [0, 0]])
        assert vertices(moved, 2).tolist() == [0, 2]
