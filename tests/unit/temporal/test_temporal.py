"""FedTEM, FedTKM and their baselines: every number of a round is that of a plain loop over clients."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedscape
from fedscape import DataError, EngineError, Federation, Gaussian, Key, Ledger, Local, PrivacyError, rounds
from fedscape.learning import Adam, LocalSGD, cross_entropy, initialised, models, squared_error
from fedscape.learning.batches import Rows, make_plan
from fedscape.methods import Options, make, names
from fedscape.mixtures import Diagonal
from fedscape.temporal import (
    Blocks,
    BranchFedEM,
    BranchLoss,
    Cosine,
    FedTEM,
    FedTEMBySums,
    FedTKM,
    Linear,
    LocalCentres,
    MeanOfBranches,
    MinLoss,
    MultiBranch,
    NearestCentre,
    SemiCyclic,
    Shifting,
    Soft,
    Steady,
    Trace,
    Zones,
    branched,
    centres_of,
    collect_centres,
    evaluate,
)
from fedscape.temporal.fedtem import small_example
from fedscape.temporal.gaussians import log_densities, log_posteriors, log_shares, mode_parameters


def tiny(seed: int = 0, n: int = 8) -> tuple[Federation, np.ndarray]:
    """Clients of two modes whose features lie apart."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(3, 12, n))))
    modes = np.arange(n) % 2
    mode = np.repeat(modes, np.diff(offsets))
    x = rng.normal(size=(offsets[-1], 4)) + 3 * mode[:, None] * np.array([1, -1, 0, 1])
    y = np.where(mode == 0, (x[:, 0] > 0).astype(int), 2 + (x[:, 1] > -3))
    return Federation({"x": x, "y": y}, offsets), modes


def training(**changes) -> LocalSGD:
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).to(torch.float64)
    net = MultiBranch(initialised(body, 3), "2", seed=1)
    return replace(LocalSGD(net, cross_entropy, lr=0.2, epochs=2, batch_size=4, strategy="vmap"), **changes)


# -- networks and objective --------------------------------------------------------------------------------------------


def test_each_branch_is_the_network_with_that_layer():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
    net, x = MultiBranch(body, "2", 3), torch.randn(7, 4)
    out, features = net(x, both=True)
    torch.testing.assert_close(features, body[:2](x))
    torch.testing.assert_close(out, net(x))
    for k in range(3):
        alone = copy.deepcopy(body)
        alone[2] = net.net[2].each[k]
        torch.testing.assert_close(out[:, k], alone(x))
    torch.testing.assert_close(out[:, 0], body(x))  # the model's own layer is the first
    assert not torch.equal(out[:, 1], out[:, 2])


def test_features_alone_are_those_with_outputs_and_no_branch_is_computed():
    torch.manual_seed(0)
    net, x = MultiBranch(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), "2"), torch.randn(7, 4)
    asked = []
    net.net[2].each[1].register_forward_hook(lambda *_: asked.append(1))
    nothing, features = net(x, both=True, outputs=False)
    assert nothing is None
    assert asked == []
    assert torch.equal(features, net(x, both=True)[1])
    assert net(x).shape == (7, 2, 3)  # the next call is whole again
    assert asked == [1, 1]


@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_the_objective_is_equation_4_for_shares_too(strength):
    rng = np.random.default_rng(2)
    out, y, shares = torch.from_numpy(rng.normal(size=(6, 3, 5))), rng.integers(0, 5, 6), rng.dirichlet(np.ones(3), 6)
    target = torch.from_numpy(np.column_stack([y, shares]))
    logs, smooth = torch.log_softmax(out, dim=-1).numpy(), 0.2 / 5 + 0.8 * np.eye(5)[y]
    own, other = -logs[np.arange(6), :, y], -(logs * smooth[:, None]).sum(axis=2)
    by_hand = (shares * own + strength / 2 * (1 - shares) * other).sum(axis=1)
    np.testing.assert_allclose(BranchLoss(strength, 0.2)(out, target).numpy(), by_hand, rtol=1e-12)


def test_bytes_of_the_extra_branch_are_those_of_the_paper():
    net = MultiBranch(models.cnn((1, 28, 28), 62), "out")
    assert sum(p.numel() for p in net.parameters()) == 1_214_588
    assert net.extra_bytes == 4 * (128 + 1) * 62
    assert net.overhead == pytest.approx(0.0066, abs=5e-5)
    assert net.n_features == 128


@pytest.mark.parametrize(
    ("model", "layer", "features", "percent"),
    [
        (lambda: models.resnet18(n_classes=110), None, 512, 0.5),
        (lambda: models.word_lstm(), "0.out", 670, 1.6),
    ],
    ids=["CIFAR", "Stack Overflow"],
)
def test_bytes_of_the_papers_other_networks(model, layer, features, percent):
    """At the paper's sizes; the LSTM's branch is 15 times smaller than its output."""
    net = MultiBranch(model(), layer)
    assert round(100 * net.overhead, 1) == percent
    assert net.n_features == features
    if layer:
        assert net.net[1].weight.numel() / net.net[0].out.each[0].weight.numel() == pytest.approx(15, abs=0.1)


def test_a_round_of_fedtem_trains_resnet_18_in_small():
    rng = np.random.default_rng(0)
    fed = Federation({"x": rng.normal(size=(24, 3, 8, 8)).astype(np.float32), "y": np.arange(24) % 4}, [0, 6, 12, 24])
    net = MultiBranch(models.resnet18((3, 8, 8), 4, width=8, groups=4))
    local = LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=6, strategy="sequential")
    method = FedTEM(local, Linear(4), initial="seed")
    states = [r.state for r in rounds(method, fed, n_rounds=2, allow=method.reveals)]
    branches = [n for n in states[0] if ".each." in n]
    assert branches
    assert all(np.isfinite(states[1][n]).all() and (states[1][n] != states[0][n]).any() for n in branches)


def test_an_lstm_branches_at_its_projection():
    lstm = models.char_lstm(20, hidden=16)
    lstm.out = nn.Linear(16, 4)
    net = MultiBranch(nn.Sequential(lstm, nn.Linear(4, 20)), "0.out")
    out, features = net(torch.zeros(3, 5, dtype=torch.int64), both=True)
    assert out.shape == (3, 2, 20)
    assert features.shape == (3, 16)
    assert net.extra_bytes == 4 * 17 * 4


def test_sequences_and_images_before_a_branch_are_averaged():
    torch.manual_seed(0)
    sequence = MultiBranch(nn.Sequential(nn.Linear(3, 2)), "0")
    x = torch.randn(4, 5, 3)
    torch.testing.assert_close(sequence(x, both=True)[1], x.mean(dim=1))
    image = MultiBranch(nn.Sequential(nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), "0")
    picture = torch.randn(4, 3, 6, 6)
    torch.testing.assert_close(image(picture, both=True)[1], picture.mean(dim=(2, 3)))


def test_fresh_weights_differ_between_branches_and_seeds_and_repeat():
    net = MultiBranch(models.cnn((1, 28, 28), 5))
    first, again, other = (initialised(net, s).net.out.each for s in (1, 1, 2))
    assert torch.equal(first[0].weight, again[0].weight)
    assert torch.equal(first[1].weight, again[1].weight)
    assert not torch.equal(first[0].weight, first[1].weight)
    assert not torch.equal(first[0].weight, other[0].weight)
    assert initialised(net, 1).net.out.each[0].bias.abs().max() == 0  # the network's own rule


def test_networks_that_cannot_branch_are_refused_by_name():
    with pytest.raises(DataError, match="no layer 'head': it has 0, 1"):
        MultiBranch(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "head")
    with pytest.raises(DataError, match="n_branches must be at least 2"):
        MultiBranch(nn.Linear(2, 2), n_branches=1)
    with pytest.raises(DataError, match="no linear layer"):
        MultiBranch(nn.Sequential(nn.ReLU()))
    with pytest.raises(DataError, match="must be a MultiBranch"):
        FedTEM(LocalSGD(nn.Linear(2, 2), cross_entropy, lr=1.0, epochs=1, batch_size=1))
    with pytest.raises(DataError, match="the loss must be"):
        FedTKM(training(loss=squared_error))
    with pytest.raises(DataError, match="prior has 3 modes, but the network 2 branches"):
        FedTEM(training(), Zones(9))


@pytest.mark.parametrize(("strength", "smoothing"), [(0.0, 0.0), (0.5, 0.1), (2.0, 1.0)])
def test_the_objective_is_equation_4(strength, smoothing):
    rng = torch.Generator().manual_seed(0)
    out = torch.randn(6, 2, 5, generator=rng, dtype=torch.float64)
    y, branch = torch.arange(6) % 5, torch.tensor([0, 1, 1, 0, 1, 0])
    target = torch.cat([y[:, None].double(), functional.one_hot(branch).double()], dim=1)
    chosen, other = out[torch.arange(6), branch], out[torch.arange(6), 1 - branch]
    known = functional.cross_entropy(chosen, y, reduction="none") + strength * functional.cross_entropy(
        other, y, reduction="none", label_smoothing=smoothing
    )
    torch.testing.assert_close(BranchLoss(strength, smoothing)(out, target), known)


def test_the_mean_of_branches_is_vanilla():
    net = MultiBranch(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    torch.testing.assert_close(MeanOfBranches(net)(x), (net(x)[:, 0] + net(x)[:, 1]) / 2)


# -- the mixture -------------------------------------------------------------------------------------------------------


def test_densities_and_posteriors_are_those_of_the_mixture_module():
    rng = np.random.default_rng(1)
    x, means, variances = rng.normal(size=(30, 3)), rng.normal(size=(2, 3)), rng.uniform(0.5, 2, (2, 3))
    weights = np.array([0.3, 0.7])
    gmm = fedscape.GaussianMixture(
        2, covariance=Diagonal(), means_init=means, covariances_init=variances, weights_init=weights, rounds=1
    )
    f, m, v, w = (torch.from_numpy(a) for a in (x, means, variances, weights))
    posterior = log_posteriors(log_densities(f, m, v), w).exp().numpy()
    logs = -0.5 * (((x[:, None] - means) ** 2 / variances) + np.log(2 * np.pi * variances)).sum(axis=2) + np.log(
        weights
    )
    np.testing.assert_allclose(posterior, np.exp(logs - np.logaddexp(*logs.T)[:, None]), rtol=1e-10)
    fed = Federation({"x": x}, np.arange(0, 31, 3))
    gmm.shared_weights, gmm.regularisation = True, 1e-12
    new_means = gmm.fit(fed, progress=False).means_
    by_hand = (posterior.T @ x) / posterior.sum(axis=0)[:, None]
    order = np.argsort(new_means[:, 0])
    np.testing.assert_allclose(new_means[order], by_hand[np.argsort(by_hand[:, 0])], rtol=1e-6)


def test_shares_of_clients_are_means_of_posteriors_also_where_they_saturate():
    posteriors = torch.log_softmax(torch.tensor([[0.0, 1.0], [2.0, 0.0], [5.0, 5.0], [0.0, 3000.0]]).double(), dim=1)
    shares = log_shares(posteriors, torch.tensor([0, 2, 2, 3, 4]))
    np.testing.assert_allclose(shares[0].exp(), posteriors[:2].exp().mean(dim=0))
    assert shares[1].tolist() == [0.0, 0.0]
    assert shares[3].tolist() == [-3000.0, 0.0]


def test_equation_10_and_the_law_of_total_variance():
    rng = np.random.default_rng(2)
    parts = [rng.normal(i, 1 + i, (4 + i, 3)) for i in range(5)]
    modes, rows = np.array([0, 1, 0, 1, 0]), np.array([len(p) for p in parts])
    means, variances = (np.stack([getattr(p, what)(axis=0) for p in parts]) for what in ("mean", "var"))
    before = (np.zeros((3, 3)), np.full((3, 3), 7.0))
    m, v, mass = mode_parameters(modes, rows, means, variances, before, scatter="all")
    for k in (0, 1):
        pooled = np.concatenate([p for p, mode in zip(parts, modes, strict=True) if mode == k])
        np.testing.assert_allclose(m[k], pooled.mean(axis=0))
        np.testing.assert_allclose(v[k], pooled.var(axis=0))
    assert (m[2] == 0).all()
    assert (v[2] == 7).all()  # nobody is of the third mode
    assert mass.tolist() == [4 + 6 + 8, 5 + 7, 0]
    _, printed, _ = mode_parameters(modes, rows, means, variances, before, scatter="within_clients")
    np.testing.assert_allclose(printed[0], np.average(variances[modes == 0], axis=0, weights=rows[modes == 0]))


# -- a round by hand ---------------------------------------------------------------------------------------------------


def train_by_hand(local: LocalSGD, net: MultiBranch, one: Federation, branch: int, t: int, loss) -> MultiBranch:
    """Plain SGD on one client with the keyed batches."""
    model = copy.deepcopy(net)
    plan = make_plan(Rows(one.keys, one.offsets), Key(0, t), local.timing)
    x, y = torch.from_numpy(np.array(one["x"])), torch.from_numpy(np.array(one["y"]))
    optimiser = torch.optim.SGD(model.parameters(), lr=local.lr)
    for step in range(plan.counts.shape[1]):
        rows = torch.from_numpy(plan.rows[0, step, : plan.counts[0, step]])
        optimiser.zero_grad()
        loss(model(x[rows]), y[rows], branch).backward()
        optimiser.step()
    return model


def objective(out, y, branch):
    other = functional.cross_entropy(out[:, 1 - branch], y, label_smoothing=0.1)
    return functional.cross_entropy(out[:, branch], y) + 0.5 * other


def add_mean(net: MultiBranch, models_: list, rows: list) -> None:
    with torch.no_grad():
        for p, *each in zip(net.parameters(), *[m.parameters() for m in models_], strict=True):
            p.copy_(sum(n * q for n, q in zip(rows, each, strict=True)) / sum(rows))


def features(net: MultiBranch, one: Federation) -> np.ndarray:
    with torch.no_grad():
        return net(torch.from_numpy(np.array(one["x"])), both=True)[1].numpy()


def gamma(f, means, variances, weights):
    logs = -0.5 * ((f[:, None] - means) ** 2 / variances + np.log(2 * np.pi * variances)).sum(axis=2) + np.log(weights)
    return np.exp(logs - np.logaddexp(*logs.T)[:, None])


@pytest.mark.parametrize("strategy", ["vmap", "sequential"])
def test_rounds_of_fedtem_are_algorithm_1_by_hand(strategy):
    fed, _ = tiny()
    local = training(strategy=strategy)
    method = FedTEM(local, Linear(6), scatter="within_clients", floor=1e-6)
    state = method.start(5)
    net = copy.deepcopy(local.model)
    means, variances, weights = state["means"].copy(), state["variances"].copy(), state["weights"].copy()
    for r in rounds(method, fed, n_rounds=5, seed=0, state=state, allow=method.reveals):
        t, made, told = r.index, [], []
        for i in range(len(fed)):
            one = fed.take([i])
            branch = int(gamma(features(net, one), means, variances, weights).mean(axis=0).argmax())
            mine = train_by_hand(local, net, one, branch, t, objective)
            f = features(mine, one)
            told.append((gamma(f, means, variances, weights).mean(axis=0)[0], f.mean(axis=0), f.var(axis=0)))
            made.append(mine)
        first = np.argsort([-share for share, _, _ in told], kind="stable")[: int(np.floor(Linear(6)(t) * 8 + 0.5))]
        mass = []
        for k in (0, 1):
            who = [i for i in range(8) if (i in first) == (k == 0)]
            mass.append(sum(fed.sizes[who]))
            if who:
                means[k] = sum(fed.sizes[i] * told[i][1] for i in who) / mass[k]
                variances[k] = sum(fed.sizes[i] * told[i][2] for i in who) / mass[k]
        weights = 0.99 * weights + 0.01 * np.array(mass) / sum(mass)
        add_mean(net, made, fed.sizes.tolist())
        np.testing.assert_allclose(r.state["means"], means, atol=1e-9)
        np.testing.assert_allclose(r.state["variances"], variances, atol=1e-9)
        np.testing.assert_allclose(r.state["weights"], weights, atol=1e-12)
        for name, p in net.named_parameters():
            np.testing.assert_allclose(r.state[f"model.{name}"], p.detach(), atol=1e-9)


@pytest.mark.parametrize("strategy", ["vmap", "sequential"])
def test_rounds_of_fedtkm_are_algorithm_2_by_hand(strategy):
    fed, _ = tiny(3)
    local = training(strategy=strategy)
    method = FedTKM(local, Cosine(6), rate=0.3)
    state = method.start(2)
    net, centres, alpha = copy.deepcopy(local.model), state["centres"].copy(), 1.0
    for r in rounds(method, fed, n_rounds=5, seed=0, state=state):
        t, made, told = r.index, [], []
        for i in range(len(fed)):
            one = fed.take([i])
            away = np.linalg.norm(features(net, one)[:, None] - centres, axis=2).mean(axis=0) * [1, alpha]
            mine = train_by_hand(local, net, one, int(away.argmin()), t, objective)
            f = features(mine, one)
            later = np.linalg.norm(f[:, None] - centres, axis=2).mean(axis=0) * [1, alpha]
            told.append((later[0] <= later[1], f.mean(axis=0)))
            made.append(mine)
        seen = np.mean([q for q, _ in told])
        for k in (0, 1):
            who = [i for i in range(8) if told[i][0] == (k == 0)]
            if who:
                centres[k] = sum(fed.sizes[i] * told[i][1] for i in who) / sum(fed.sizes[who])
        q = Cosine(6)(t)
        alpha *= np.exp(2 * abs(0.5 - q) * 0.3 * (q - seen))
        add_mean(net, made, fed.sizes.tolist())
        np.testing.assert_allclose(r.state["centres"], centres, atol=1e-9)
        np.testing.assert_allclose(r.state["factors"], [1, alpha], atol=1e-12)
        for name, p in net.named_parameters():
            np.testing.assert_allclose(r.state[f"model.{name}"], p.detach(), atol=1e-9)


def test_fedtem_by_sums_is_fedtem_where_the_threshold_agrees_with_the_ranking():
    fed, _ = tiny(4)
    original, by_sums = FedTEM(training(), Linear(8)), FedTEMBySums(training(), Linear(8))
    state = original.start(1)
    rows, _ = original.step(state, fed, Key(0))
    odds = np.arcsinh((rows["log_share"][:, 0] - rows["log_share"][:, 1]) / 2) * 2
    middle = np.sort(odds)[3:5].mean()  # four of eight are above it: the ranking at q = 1/2
    total = {n: v if n in original.reveals else v.sum(axis=0) for n, v in rows.items()}
    known = original.update(state, {**total, "clients": np.asarray(8)}, Key(0, 2))
    with_threshold = {**by_sums.start(1), "thresholds": np.array([0.0, -middle])}
    sums = by_sums.total(with_threshold, fed, Key(0))
    made = by_sums.update(with_threshold, {**sums, "clients": np.asarray(8)}, Key(0, 2))
    assert sums["near"].tolist() == [4, 4]
    for name in ("means", "variances", "weights"):
        np.testing.assert_allclose(made[name], known[name], rtol=1e-9)


# -- following the prior -----------------------------------------------------------------------------------------------


def test_the_running_prior_stays_a_law_and_lags_as_worked_out():
    method, weights, seen = FedTEM(training(), Linear(256)), np.array([0.5, 0.5]), []
    for t in range(2048):
        q = Linear(256)(t)
        weights = method._running({"weights": weights}, np.array([q, 1 - q]))
        seen.append(weights[0])
    assert weights.sum() == pytest.approx(1)
    late = np.array(seen[1024:])
    assert (late.min(), late.max()) == pytest.approx((0.349, 0.651), abs=2e-3)
    assert abs((np.argmax(late[:256]) % 256) - 44) <= 1


@pytest.mark.parametrize("kind", [FedTKM, FedTEMBySums])
def test_controllers_find_the_quantile_that_a_steady_prior_asks_for(kind):
    rng = np.random.default_rng(5)
    fed = Federation({"x": rng.normal(size=(400, 4)) + rng.normal(size=(40, 1, 4)).repeat(10, 1).reshape(400, 4),
                      "y": rng.integers(0, 2, 400)}, np.arange(0, 401, 10))  # fmt: skip
    frozen = LocalSGD(MultiBranch(models.linear(4, 2)), cross_entropy, lr=0.0, epochs=1, batch_size=10)
    prior = fedscape.temporal.Steady(2, (0.8, 0.2))
    method = kind(frozen, prior, rate=0.5)
    state = method.start(0)
    if kind is FedTKM:
        state["centres"] = np.array([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    shares, x, offsets = [], torch.from_numpy(np.array(fed["x"])), method.offsets(fed)
    for _ in range(300):
        total = {n: v.sum(axis=0) for n, v in method.look_back(state, x, offsets).items()}
        shares.append(total["near"][0] / total["near"].sum())
        follow = "factors" if kind is FedTKM else "thresholds"
        state = {**state, follow: method.learn(state, total, Key(0))[follow]}
    assert np.mean(shares[-50:]) == pytest.approx(0.8, abs=0.03)


def test_an_abandoned_round_does_not_delay_the_prior():
    fed, _ = tiny()
    there = np.ones((8, 6), dtype=np.int8)
    there[:, [1, 2]] = 0
    method = FedTKM(training(), Linear(6))
    done = list(rounds(method, fed, n_rounds=6, sampler=Trace(there)))
    assert [r.abandoned for r in done] == [False, True, True, False, False, False]
    expected = [Linear(6)(r.index) for r in done if not r.abandoned]
    np.testing.assert_allclose([r.state["server.shares"][0] for r in done if not r.abandoned], expected, atol=1e-12)


def test_the_soft_prior_is_followed_within_a_run():
    fed, _ = tiny()
    method = FedTEM(training(), Soft(8))
    q = [float(r.state["server.shares"][0]) for r in rounds(method, fed, n_rounds=9, allow=method.reveals)]
    assert (q[0], q[4], q[8]) == (1, 0, 1)
    assert (np.diff(q[:5]) <= 0).all()
    assert (np.diff(q[4:]) >= 0).all()


def test_a_mode_that_nobody_has_keeps_its_parameters():
    fed, _ = tiny()
    for method in (FedTEM(training(), Blocks(8)), FedTEM(training(), Linear(8))):
        state = method.start(0)
        done = next(rounds(method, fed, n_rounds=1, state=state, allow=method.reveals))  # all are of the first mode
        assert (done.state["means"][1] == state["means"][1]).all()
        assert (done.state["means"][0] != state["means"][0]).any()


def hands(n: int = 40, rows: int = 20) -> tuple[Federation, np.ndarray]:
    """Clients of two modes that lie apart on the second feature; on the first they differ more, whatever their mode."""
    rng, modes = np.random.default_rng(0), np.arange(n) % 2
    centre = rng.normal(size=(n, 3)) * [2.5, 0.3, 0.3] + np.stack([0 * modes, 2 * modes - 1, 0 * modes], axis=1)
    x = np.repeat(centre, rows, axis=0) + rng.normal(size=(n * rows, 3))
    return Federation({"x": x, "y": np.zeros(n * rows, dtype=int)}, np.arange(0, n * rows + 1, rows)), modes


@pytest.mark.parametrize("kind", [FedTEM, FedTEMBySums])
def test_modes_that_learn_in_their_own_hours_are_found_where_equation_10_takes_a_hand_for_a_mode(kind):
    fed, modes = hands()
    local = replace(training(), model=MultiBranch(nn.Linear(3, 2, dtype=torch.float64)), lr=0.0)
    found = {}
    for hours, inertia in (("all", 0.0), ("own", 0.5)):
        method = kind(local, Linear(16), hours=hours, inertia=inertia)
        run = rounds(method, fed, n_rounds=49, sampler=Shifting(modes, Linear(16), 10), measure=0, allow=method.reveals)
        states = [r.state for r in run if r.index >= 32 and r.index % 4 == 0]
        chosen = [method.branches_of(state, fed, unit="client") for state in states]
        found[hours] = np.mean([np.mean(c == modes[fed.client_of_row]) for c in chosen])
    assert found["own"] > 0.9
    assert found["all"] < 0.75


@pytest.mark.parametrize("kind", [FedTEM, FedTEMBySums, FedTKM])
def test_a_mode_keeps_its_place_outside_of_its_own_hours(kind):
    fed, modes = hands()
    local = replace(training(), model=MultiBranch(nn.Linear(3, 2, dtype=torch.float64)), lr=0.0)
    method, name = kind(local, Linear(16), hours="own", inertia=0.5), "centres" if kind is FedTKM else "means"
    states = [method.start(0)]
    for r in rounds(method, fed, n_rounds=9, sampler=Shifting(modes, Steady(2), 10), measure=0, allow=method.reveals):
        states.append(r.state)
    moved = np.array([np.abs(b[name] - a[name]).max(axis=1) for a, b in pairwise(states)])
    assert (moved[:5, 1] == 0).all()  # shares of the second mode: 0 to 1/2
    assert (moved[4:, 0] == 0).all()
    assert moved[:4, 0].max() > 0
    assert moved[5:, 1].max() > 0


@pytest.mark.parametrize("kind", [FedTEM, FedTEMBySums, FedTKM])
def test_hours_are_known_by_name_and_need_a_prior(kind):
    with pytest.raises(DataError, match="hours must be 'all' or 'own', not 'night'"):
        kind(training(), hours="night")
    with pytest.raises(DataError, match="hours='own' needs a prior"):
        kind(training(), None, hours="own")


def test_features_without_spread_meet_the_floor():
    fed = Federation({"x": np.ones((6, 4)), "y": [0, 1, 0, 1, 0, 1]}, [0, 3, 6])
    for kind in (FedTEM, FedTEMBySums):
        method = kind(
            LocalSGD(MultiBranch(models.linear(4, 2)), cross_entropy, lr=0.1, epochs=1, batch_size=3), Linear(4)
        )
        for r in rounds(method, fed, n_rounds=3, allow=method.reveals):
            assert r.state["variances"].min() >= method.floor * (1 - 1e-12)
            assert np.isfinite(r.metrics["loss"])


# -- what the server sees ----------------------------------------------------------------------------------------------


def test_fedtem_is_refused_unless_allowed_by_name_and_never_private_centrally():
    fed, _ = tiny()
    method = FedTEM(training())
    with pytest.raises(EngineError, match="lets the server see, client by client: log_share, mean, variance, rows"):
        next(rounds(method, fed, n_rounds=1))
    with pytest.raises(PrivacyError, match="reveals rows"):
        next(rounds(method, fed, n_rounds=1, allow=method.reveals, privacy=Gaussian(clip=1.0, multiplier=1.0)))
    assert all(not m(training()).reveals for m in (FedTKM, FedTEMBySums, MinLoss, BranchFedEM, SemiCyclic))
    assert LocalCentres.reveals == ("centres", "rows")


@pytest.mark.parametrize("kind", [FedTKM, FedTEMBySums])
def test_by_sums_it_runs_privately_on_a_schedule(kind):
    fed, modes = tiny(n=30)
    ledger = Ledger()
    method = kind(training(), Linear(4), weighting="equal")
    sampler = Shifting(modes, Linear(4), 12)
    private = {"privacy": Gaussian(clip=2.0, multiplier=4.0), "ledger": ledger}
    done = list(rounds(method, fed, n_rounds=6, sampler=sampler, **private))
    assert all(np.isfinite(v).all() for v in done[-1].state.values() if v.dtype.kind == "f")
    assert list(ledger.spent()) == [("client", "replace-one", "central")]
    if kind is FedTKM:
        assert (done[-1].state["factors"] > 0).all()
    with_rows, _ = method.step(method.start(0), fed, Key(0))
    assert "mass" not in with_rows
    assert "weight" not in with_rows  # how many rows a client has is not sent


def test_noise_on_the_counts_leaves_the_soft_prior_a_share():
    fed, _ = tiny(n=8)
    method = FedTEM(training(), Soft(8))
    for seed in range(4):
        noise = Gaussian(clip=10.0, multiplier=2.0, place="local", noise_seed=seed)
        for r in rounds(method, fed, n_rounds=9, allow=method.reveals, privacy=noise):
            shares = r.state["server.shares"]
            assert shares.min() >= 0
            assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("noise", [3.0, 10.0])
@pytest.mark.parametrize("kind", [FedTKM, FedTEMBySums])
def test_a_mode_without_clients_does_not_follow_the_noise(kind, noise):
    method = kind(training(), Linear(8), weighting="equal", noise=noise)
    rng, state = np.random.default_rng(0), method.modes(0)
    name = "centres" if kind is FedTKM else "means"
    before, d = state[name][1].copy(), state[name].shape[1]
    for _ in range(100):
        total = {n: rng.normal(0, noise, (2, d)) for n in ("away", "first", "second")}
        total |= {n: np.array([50.0, 0.0]) + rng.normal(0, noise, 2) for n in ("near", "likely")}
        state = {**state, **method.learn(state, total, Key(0))}
    assert np.linalg.norm(state[name][1] - before) < 3  # without noise=: 26 and more
    if kind is FedTEMBySums:
        assert state["variances"][1].min() > 0.1
        assert state["weights"][1] < 0.3


def test_a_noisy_centre_moves_no_farther_than_the_centres_lie_apart():
    method = FedTKM(training(), None, weighting="equal", noise=1.0)
    state = {**method.modes(0), "centres": np.array([[0.0] * 4, [2.0, 0, 0, 0]])}
    total = {"near": np.array([5.0, 5.0]), "away": np.array([[50.0, 0, 0, 0], [0, 5.0, 0, 0]])}
    moved = method.learn(state, total, Key(0))["centres"] - state["centres"]
    np.testing.assert_allclose(moved, [[2.0, 0, 0, 0], [0, 1.0, 0, 0]])
    free = FedTKM(training(), None, weighting="equal")
    np.testing.assert_allclose(free.learn(state, total, Key(0))["centres"][0], [10.0, 0, 0, 0])
    for kind in (FedTKM, FedTEMBySums):
        with pytest.raises(DataError, match="rate and noise must be at least 0"):
            kind(training(), noise=-1.0)


# -- baselines ---------------------------------------------------------------------------------------------------------


def test_min_loss_trains_the_branch_that_fits_the_labels_best():
    fed, _ = tiny()
    method = MinLoss(training())
    state = method.start(0)
    chosen = method.choose(state, fed, Key(0))[0]
    for i in range(len(fed)):
        one = fed.take([i])
        with torch.no_grad():
            out = training().model(torch.from_numpy(np.array(one["x"])))
        losses = [float(functional.cross_entropy(out[:, k], torch.from_numpy(np.array(one["y"])))) for k in (0, 1)]
        assert (chosen[fed.offsets[i] : fed.offsets[i + 1]].argmax(axis=1) == np.argmin(losses)).all()


def test_semi_cyclic_leaves_the_other_branch_alone():
    fed, _ = tiny()
    method = SemiCyclic(training(), Linear(8))
    before = method.start(0)
    day = next(rounds(method, fed, n_rounds=1, state=before)).state
    assert (day["model.net.2.each.1.weight"] == before["model.net.2.each.1.weight"]).all()
    assert (day["model.net.2.each.0.weight"] != before["model.net.2.each.0.weight"]).any()


def test_the_surest_branch_is_the_one_farthest_from_uniform():
    fed, _ = tiny()
    method = MinLoss(training())
    state = method.start(0)
    rows = method.see(state, fed, outputs=True)
    p = functional.softmax(rows.outputs, dim=-1).numpy()
    kl = (p * np.log(p * p.shape[-1])).sum(axis=-1)
    np.testing.assert_allclose(method.evidence(state, rows), kl, atol=1e-12)
    assert (method.branches_of(state, fed, unit="sample") == kl.argmax(axis=1)).all()


def test_branch_fedem_keeps_shares_and_uses_labels_of_test_rows():
    fed, _ = tiny()
    method, engine = BranchFedEM(training()), Local(fed)
    *_, r = rounds(method, engine, n_rounds=4)
    kept = engine.kept()["shares"]
    np.testing.assert_allclose(kept.flat.sum(axis=1), 1)
    mixed = fed.with_column("y", (fed["y"] + 1) % 4)
    a, b = (method.log_probs(r.state, f, unit="client") for f in (fed, mixed))
    assert np.abs(a - b).max() > 1e-6  # so it must say that it had labels


def test_t_shot_finds_the_modes_of_raw_rows():
    fed, modes = tiny(n=20)
    fed = fed.with_column("x", fed["x"] + 20 * np.repeat(modes, fed.sizes)[:, None])
    centres = collect_centres(fed, 2, n_rounds=2, sampler=fedscape.FixedSize(10), column="x")
    means = [fed["x"][np.repeat(modes, fed.sizes) == k].mean(axis=0) for k in (0, 1)]
    np.testing.assert_allclose(centres, means, atol=1.5)
    method = NearestCentre(training(), centres)
    assert (method.branches_of(method.start(0), fed, unit="sample") == np.repeat(modes, fed.sizes)).all()
    with pytest.raises(DataError, match="2 centres cannot be found among the 0"):
        centres_of(LocalCentres().start(0), 2)
    with pytest.raises(DataError, match="centres must be finite numbers"):
        NearestCentre(training(), [[0.0]])


@pytest.mark.parametrize("name", names("temporal"))
def test_every_method_trains_by_name(name):
    fed, modes = tiny(n=16)
    centres = collect_centres(fed, 2, n_rounds=1, column="x")
    method = make(name, training(), Options(prior=Linear(4), server=Adam(0.05), initial="seed", centres=centres))
    sampler = Shifting(modes, Linear(4), 8)
    before = evaluate(method, method.start(0), fed).loss.mean()
    *_, r = rounds(method, fed, n_rounds=16, sampler=sampler, allow=method.reveals, measure=0)
    found = evaluate(method, r.state, fed)
    assert found.loss.mean() < before
    assert found.rows.tolist() == fed.sizes.tolist()


@pytest.mark.parametrize("name", ["fedtem", "fedtkm"])
def test_features_are_looked_at_where_a_group_norm_follows_a_convolution(name, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    rng = np.random.default_rng(0)
    fed = Federation({"x": rng.normal(size=(12, 2, 4, 4)), "y": rng.integers(0, 3, 12)}, [0, 4, 8, 12])
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    model, ends = MultiBranch(nn.Sequential(*layers)).double(), []
    for strategy in ("vmap", "compiled"):
        local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy=strategy)
        method = make(name, local, Options(prior=Linear(4)))
        *_, last = rounds(method, fed, n_rounds=2, allow=method.reveals, measure=0)
        ends.append(last.state)
    assert all(np.allclose(ends[0][n], ends[1][n], atol=1e-9) for n in ends[0])


@pytest.mark.parametrize("name", ["fedtem", "fedtkm"])
def test_features_are_looked_at_part_by_part_behind_layers_that_are_frozen(name, monkeypatch):
    monkeypatch.setattr(branched, "_FEW", 3)
    rng = np.random.default_rng(0)
    fed = Federation({"x": rng.normal(size=(14, 2, 4, 4)), "y": rng.integers(0, 3, 14)}, [0, 7, 7, 10, 14])
    layers = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3)
    layers[0].requires_grad_(False)
    model, ends = MultiBranch(nn.Sequential(*layers)).double(), []
    for strategy in ("vmap", "sequential"):
        local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy=strategy)
        method = make(name, local, Options(prior=Linear(4)))
        *_, last = rounds(method, fed, n_rounds=3, allow=method.reveals, measure=0)
        ends.append(last.state)
    assert all(np.allclose(ends[0][n], ends[1][n], atol=1e-9) for n in ends[0])


def test_a_client_whose_training_runs_away_is_named():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 4))
    x[4:8] *= 1e200
    fed = Federation({"x": x, "y": rng.integers(0, 2, 12)}, [0, 4, 8, 12], ids=["a", "wild", "c"])
    model = MultiBranch(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).double()
    method = FedTEM(LocalSGD(model, cross_entropy, lr=1e120, epochs=3, batch_size=2), Linear(4))
    with pytest.raises(EngineError, match="NaN or infinity for client"):
        list(rounds(method, fed, n_rounds=2, allow=method.reveals, measure=0))


def test_without_smoothing_a_class_that_is_ruled_out_costs_nothing():
    output = torch.tensor([[[1.0, 0.0, -torch.inf], [0.0, 0.0, -torch.inf]]])
    target = torch.tensor([[0.0, 1.0, 0.0]])
    want = functional.cross_entropy(output[:, 0], torch.tensor([0]))
    assert float(BranchLoss(0.0, 0.1)(output, target)) == pytest.approx(float(want))


def test_a_name_that_there_is_not_and_missing_centres_are_refused():
    with pytest.raises(DataError, match=r"method must be one of fedavg, .*, fedtem"):
        make("fedxyz", training())
    with pytest.raises(DataError, match="t-shot needs centres"):
        make("t-shot", training())


# -- which branch, in tests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedtem", "fedtem-sums", "fedtkm", "ifca-branches", "scsgd"])
def test_the_branch_of_test_rows_depends_on_neither_labels_nor_other_clients(name):
    fed, _ = tiny()
    method = make(name, training(), Options(prior=Linear(4)))
    state = method.start(0)
    for unit in ("sample", "batch", "client"):
        whole = method.branches_of(state, fed, unit=unit, batch=4)
        other = fed.with_column("y", (fed["y"] + 1) % 4)
        assert (whole == method.branches_of(state, other, unit=unit, batch=4)).all()
        alone = [method.branches_of(state, fed.take([i]), unit=unit, batch=4) for i in range(len(fed))]
        assert (whole == np.concatenate(alone)).all()


def test_units_are_rows_batches_of_a_client_and_clients():
    fed = Federation({"x": np.zeros((9, 4)), "y": np.zeros(9, int)}, [0, 5, 5, 9])
    method = FedTKM(training())
    ends = {u: method.offsets_of_units(fed, u, 3).tolist() for u in ("sample", "batch", "client")}
    assert ends == {"sample": list(range(10)), "batch": [0, 3, 5, 8, 9], "client": [0, 5, 9]}
    with pytest.raises(DataError, match="unit must be one of"):
        evaluate(method, method.start(0), fed, unit="group")


def test_fedtem_infers_with_a_uniform_prior_whatever_it_ran_with():
    fed, _ = tiny()
    method = FedTEM(training(), Linear(4))
    state = method.start(0)
    night = {**state, "weights": np.array([1e-9, 1 - 1e-9])}
    assert (method.branches_of(state, fed) == method.branches_of(night, fed)).all()


def test_sampled_branches_follow_the_shares_and_the_key():
    fed, local, _ = small_example()
    method = FedTEM(local, pick="sampled")
    state = method.start(0)
    greedy = FedTEM(local)
    f = greedy.see(state, fed)
    shares = greedy._client_shares(state, f.features, greedy.offsets(fed), state["weights"]).exp().numpy()
    first = np.zeros(len(fed))
    for t in range(300):
        rows = method.choose(state, fed, Key(1, t))[0]
        for i in np.flatnonzero(fed.sizes):
            first[i] += rows[fed.offsets[i], 0]
    some = fed.sizes > 0
    error = np.sqrt(shares[:, 0] * (1 - shares[:, 0]) / 300)
    assert (np.abs(first / 300 - shares[:, 0])[some] <= 5 * error[some] + 1e-9).all()
    assert (method.choose(state, fed, Key(1, 7))[0] == method.choose(state, fed, Key(1, 7))[0]).all()


def test_classes_must_be_whole_numbers_and_known():
    fed, _ = tiny()
    method = FedTKM(training())
    with pytest.raises(DataError, match="holds a class that the model has no output for"):
        next(rounds(method, fed.with_column("y", fed["y"] + 90), n_rounds=1, measure=0))
    with pytest.raises(DataError, match="must hold classes 0, 1, 2"):
        next(rounds(method, fed.with_column("y", fed["y"] + 0.5), n_rounds=1, measure=0))


def test_three_zones_find_three_branches():
    rng = np.random.default_rng(0)
    modes = np.arange(45) % 3
    mode = np.repeat(modes, 12)
    x = rng.normal(size=(540, 4)) + 3 * np.eye(4)[mode]
    fed = Federation({"x": x, "y": (mode + (x[:, 3] > 0)) % 3}, np.arange(0, 541, 12))
    local = LocalSGD(MultiBranch(models.linear(4, 3), n_branches=3), cross_entropy, lr=0.1, epochs=1, batch_size=6)
    method = FedTEM(local, Zones(12, 3, p=3.0), inertia=0.8)
    sampler = Shifting(modes, Zones(12, 3, p=3.0), 12)
    *_, r = rounds(method, fed, n_rounds=60, sampler=sampler, allow=method.reveals, measure=0)
    chosen = method.branches_of(r.state, fed, unit="client")[fed.offsets[:-1]]
    assert len(set(zip(chosen.tolist(), modes.tolist(), strict=True))) == 3  # each branch is one zone
    assert evaluate(method, r.state, fed).accuracy.mean() > 0.8
