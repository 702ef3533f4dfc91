"""Low-rank adapters: the numbers of a plain loop, and only adapters move and are sent."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedscape import DataError, Federation, FixedSize, Gaussian, Key, Ledger, Local, rounds
from fedscape.learning import (
    Adapted,
    FedAvg,
    LocalSGD,
    cross_entropy,
    evaluate,
    initialised,
    models,
    module_of,
    squared_error,
)
from fedscape.learning.adapters import LowRank, merged
from fedscape.learning.trainer import trainer_of


def federation(sizes, width, n_classes, *, codes=0, seed=0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    x = rng.integers(0, codes, (offsets[-1], width)) if codes else rng.normal(size=(offsets[-1], width))
    return Federation({"x": x, "y": rng.integers(0, n_classes, offsets[-1])}, offsets)


def last(local: LocalSGD, fed: Federation, *, n_rounds=3, seed=5, **how):
    return list(rounds(FedAvg(local, **how), Local(fed, threads=2), n_rounds=n_rounds, seed=seed, measure=0))[-1].state


def nudged(net: Adapted, seed: int = 3) -> Adapted:
    """With `up` no longer zero, so that both factors have gradients from the first step on."""
    torch.manual_seed(seed)
    for adapter in net.adapters():
        nn.init.normal_(adapter.up, std=0.3)
    return net


def by_hand(fed: Federation, fixed, start, *, factor, lr, batch_size, n_rounds, seed):
    """FedAvg of the factors of a two-layer network written out with products alone, no module of the package."""
    server = {n: v.clone() for n, v in start.items()}
    for index in range(n_rounds):
        total = {n: torch.zeros_like(v) for n, v in server.items()}
        for i in range(len(fed)):
            one = fed.take([i])
            now = {n: v.clone().requires_grad_() for n, v in server.items()}
            order = np.argsort(Key(seed, index).to("shuffle 0").uniform_rows(one), kind="stable")
            for begin in range(0, one.n_rows, batch_size):
                rows = order[begin : begin + batch_size]
                x, y = torch.tensor(one["x"][rows]), torch.tensor(one["y"][rows])
                w0 = fixed["0.weight"] + factor * now["0.up"] @ now["0.down"]
                w2 = fixed["2.weight"] + factor * now["2.up"] @ now["2.down"]
                output = torch.tanh(x @ w0.T + fixed["0.bias"]) @ w2.T + fixed["2.bias"]
                loss = -torch.log_softmax(output, dim=1)[torch.arange(len(y)), y].mean()
                for (n, v), g in zip(list(now.items()), torch.autograd.grad(loss, list(now.values())), strict=True):
                    now[n] = (v.detach() - lr * g).requires_grad_()
            for n in total:
                total[n] += one.n_rows * (now[n].detach() - server[n])
        server = {n: v + total[n] / fed.n_rows for n, v in server.items()}
    return server


@pytest.mark.parametrize("strategy", ["sequential", "vmap", "compiled"])
def test_training_is_that_of_products_written_out(strategy, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    fed = federation([7, 0, 4, 9, 1], 6, 3)
    base = initialised(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), 1).double()
    net = nudged(Adapted(base, 2, alpha=3.0))
    fixed = dict(base.state_dict())
    start = {n.removeprefix("network."): p.detach() for n, p in net.named_parameters() if p.requires_grad}
    want = by_hand(fed, fixed, start, factor=1.5, lr=0.2, batch_size=4, n_rounds=3, seed=5)
    state = last(LocalSGD(net, cross_entropy, lr=0.2, epochs=1, batch_size=4, strategy=strategy), fed)
    assert set(state) == {f"model.network.{n}" for n in want}
    for n, v in want.items():
        np.testing.assert_allclose(state[f"model.network.{n}"], v.numpy(), rtol=1e-9, atol=1e-12, err_msg=n)


NETWORKS = {
    "linear": (models.linear(6, 3), 0, {}),
    "mlp, one layer": (models.mlp(6, 5, 3), 0, {"layers": ["1"]}),
    "transformer": (models.transformer(9, 3, width=8, heads=2, length=6), 9, {"layers": ["query", "value"]}),
    "transformer, head whole": (models.transformer(9, 3, width=8, heads=2, length=6), 9, {"also": ["out"]}),
    "transformer, up alone": (models.transformer(9, 3, width=8, length=6, causal=False), 9, {"factors": "up"}),
    "transformer, dropout": (models.transformer(9, 3, width=8, heads=2, length=6, dropout=0.3), 9, {}),
    "lstm": (models.char_lstm(9, 4, 5), 9, {"layers": ["inputs.*"]}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_strategies_agree_and_the_merged_network_is_the_adapted_one(name):
    model, codes, how = NETWORKS[name]
    fed = federation([5, 3, 0, 6], 6, 3, codes=codes)
    net = nudged(Adapted(copy.deepcopy(model).double(), 2, **how))
    local = LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=3, momentum=0.5)
    states = {s: last(replace(local, strategy=s), fed) for s in ("sequential", "vmap")}
    for n, v in states["vmap"].items():
        np.testing.assert_allclose(states["sequential"][n], v, rtol=1e-9, atol=1e-11, err_msg=n)
        assert np.abs(v - local.parameters()[n.removeprefix("model.")]).max() > 1e-6, f"{n} was not trained"
    adapted = module_of(net, states["vmap"])
    plain = merged(adapted)
    assert not any(isinstance(layer, LowRank) for layer in plain.modules())
    assert {n: p.shape for n, p in plain.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
    x = torch.tensor(fed["x"])
    np.testing.assert_allclose(plain(x).detach(), adapted(x).detach(), rtol=1e-12, atol=1e-12)


def test_an_adapted_network_is_at_first_the_network_and_leaves_it_alone():
    model = models.transformer(9, 3, width=8, heads=2, length=6)
    before = copy.deepcopy(model.state_dict())
    net = Adapted(model, 4)
    x = torch.randint(0, 9, (5, 6))
    assert torch.equal(net(x), model(x))
    assert all(p.requires_grad for p in model.parameters())
    last(LocalSGD(net, cross_entropy, lr=0.5, epochs=1, batch_size=3), federation([5, 3], 6, 3, codes=9))
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_with_full_rank_and_an_orthogonal_factor_it_is_fine_tuning_of_all_weights():
    """d(up) = -lr g down^T, so the weights move by -lr g down^T down: with down^T down = 1, by that of plain SGD."""
    fed = federation([7, 4, 9], 4, 3)
    base = initialised(nn.Linear(4, 3), 1).double()
    square, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
    net = Adapted(nn.Sequential(nn.Linear(4, 8).double(), copy.deepcopy(base)), 1, layers=["1"])  # for its shape alone
    net = Adapted(base, 3, factors="up", also=["bias"])
    adapter = next(net.adapters())
    adapter.down = nn.Parameter(torch.tensor(square), requires_grad=False)
    adapter.up = nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
    how = {"lr": 0.3, "epochs": 2, "batch_size": 3}
    full = last(LocalSGD(base, cross_entropy, **how), fed, n_rounds=5)
    net = module_of(net, last(LocalSGD(net, cross_entropy, **how), fed, n_rounds=5)).merged()
    np.testing.assert_allclose(net.weight.detach(), full["model.weight"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(net.bias.detach(), full["model.bias"], rtol=1e-10, atol=1e-12)


def test_both_factors_of_full_rank_reach_the_least_squares_of_all_rows():
    rng = np.random.default_rng(0)
    x, truth = rng.normal(size=(60, 4)), rng.normal(size=(2, 4))
    y = x @ truth.T + 0.1 * rng.normal(size=(60, 2))
    fed = Federation({"x": x, "y": y}, [0, 20, 40, 60])
    net = Adapted(nn.Linear(4, 2, bias=False).double(), 2)
    local = LocalSGD(net, squared_error, lr=0.1, steps=1, batch_size=20)
    state = last(local, fed, n_rounds=800)
    weight = module_of(net, state).merged().weight.detach().numpy()
    np.testing.assert_allclose(weight, np.linalg.lstsq(x, y, rcond=None)[0].T, atol=1e-6)


def test_the_mean_of_updates_is_the_update_of_the_means_with_one_factor_and_not_with_both():
    fed = federation([12, 9], 6, 3)
    away = {}
    for factors in ("up", "both"):
        net = nudged(Adapted(initialised(nn.Linear(6, 3), 1).double(), 2, factors=factors))
        local = LocalSGD(net, cross_entropy, lr=0.5, epochs=3, batch_size=3)
        common = merged(module_of(net, last(local, fed, n_rounds=1, weighting="equal"))).weight
        each = [merged(module_of(net, last(local, fed.take([i]), n_rounds=1))).weight for i in range(2)]
        away[factors] = float((common - (each[0] + each[1]) / 2).detach().abs().max())
    assert away["up"] < 1e-14
    assert away["both"] > 1e-3


def test_what_is_sent_are_the_factors_alone_and_their_share_is_as_counted():
    net = Adapted(models.transformer(80, width=64, length=80), 4)
    local = LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=3)
    per_block = 4 * 4 * (64 + 64) + 2 * 4 * (64 + 256)
    assert local.n_parameters == 2 * per_block + 4 * (64 + 80)
    full = sum(p.numel() for p in models.transformer(80, width=64, length=80).parameters())
    assert net.share == local.n_parameters / full
    fed = federation([2], 80, 80, codes=80)
    sent, kept = FedAvg(local).step(FedAvg(local).start(0), fed, Key(0))
    assert sum(v.size for n, v in sent.items() if n.startswith("delta.")) == local.n_parameters
    assert not kept


def test_a_new_seed_draws_adapters_and_leaves_the_network():
    model = models.cnn((1, 8, 8), 3)  # whose own reset_parameters draws its layers
    net = nudged(Adapted(model, 2, also=["out.bias"]))
    fresh = initialised(net, 7)
    for n, p in fresh.named_parameters():
        same = torch.equal(p, net.get_parameter(n))
        assert same != n.endswith((".up", ".down")), n
    assert all(not adapter.up.any() for adapter in fresh.adapters())
    fixed = initialised(Adapted(model, 2, factors="up"), 7)
    assert torch.equal(next(fixed.adapters()).down, next(Adapted(model, 2).adapters()).down)


def test_frozen_weights_are_part_of_what_a_node_and_a_checkpoint_must_agree_on(tmp_path):
    def local(seed):
        return LocalSGD(Adapted(models.mlp(6, 4, 3, seed=seed), 2), cross_entropy, lr=0.1, epochs=1, batch_size=3)

    assert local(0).settings() == local(0).settings()
    assert local(0).settings() != local(1).settings()
    fed = federation([4, 3], 6, 3)
    for r in rounds(FedAvg(local(0)), fed, n_rounds=2, seed=1):
        r.save(tmp_path / "run")
    with pytest.raises(Exception, match="computation"):
        list(rounds(FedAvg(local(1)), fed, n_rounds=3, seed=1, resume=tmp_path / "run"))


def test_an_adapted_network_travels_to_another_process():
    local = LocalSGD(nudged(Adapted(models.mlp(6, 4, 3), 2)), cross_entropy, lr=0.1, epochs=1, batch_size=3)
    again = pickle.loads(pickle.dumps(local))  # noqa: S301
    assert again.settings() == local.settings()
    fed = federation([4, 3], 6, 3)
    assert all(np.array_equal(v, last(again, fed)[n]) for n, v in last(local, fed).items())


def test_a_run_that_was_stopped_ends_with_the_same_bytes(tmp_path):
    fed = federation([5, 3, 4, 6], 6, 3, codes=9)
    net = Adapted(models.transformer(9, 3, width=8, heads=2, length=6, dropout=0.2), 2)
    method = FedAvg(LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=3), initial="seed")
    how = {"sampler": FixedSize(2), "seed": 4}
    whole = list(rounds(method, fed, n_rounds=5, **how))[-1].state
    for r in rounds(method, fed, n_rounds=5, **how):
        if r.index == 1:
            r.save(tmp_path / "run")
            break
    resumed = list(rounds(method, fed, n_rounds=5, resume=tmp_path / "run", **how))[-1].state
    assert {n: v.tobytes() for n, v in whole.items()} == {n: v.tobytes() for n, v in resumed.items()}


def test_private_training_clips_the_adapters_of_a_client_as_one_update():
    fed = federation([5, 3, 4, 6], 6, 3)
    local = LocalSGD(Adapted(models.mlp(6, 4, 3), 2), cross_entropy, lr=5.0, epochs=3, batch_size=3)
    method, ledger = FedAvg(local, weighting="equal"), Ledger()
    privacy = Gaussian(clip=0.5, multiplier=1e-4, unit="client")
    moved = list(rounds(method, fed, n_rounds=1, seed=0, privacy=privacy, ledger=ledger))[-1].state
    begin = method.start(0)
    length = np.sqrt(sum(np.sum((moved[n] - begin[n]) ** 2.0) for n in begin))
    assert 0.1 < length <= 0.5 + 1e-3  # the mean of four updates of length 0.5 at most
    assert ledger.spent()


def test_the_adapters_of_a_network_that_reads_its_weights_itself_are_refused():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return functional.linear(x, self.layer.weight)

    with pytest.raises(DataError, match="leave that layer out"):
        Adapted(Tied(), 2)(torch.zeros(2, 4))
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = Adapted(attention, 2).eval()
    with torch.no_grad(), pytest.raises(DataError, match="leave that layer out"):
        net(torch.zeros(2, 3, 8))


def test_layers_that_are_shared_share_their_adapter():
    layer = nn.Linear(4, 4)
    net = nudged(Adapted(nn.Sequential(layer, nn.Tanh(), layer), 2))
    assert len({id(a) for a in net.adapters()}) == 1
    x = torch.ones(2, 4)
    np.testing.assert_allclose(net.merged()(x).detach(), net(x).detach(), rtol=1e-5)


def test_a_rank_above_the_smaller_side_of_a_layer_is_that_side():
    net = Adapted(nn.Linear(6, 3), 8)
    assert next(net.adapters()).down.shape == (3, 6)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rank": 0}, "rank must be"),
        ({"layers": ["query"]}, "layers has the pattern 'query', which is none of 1, 3"),
        ({"layers": "1"}, "layers must be a list of patterns"),
        ({"layers": []}, "layers must name at least one"),
        ({"also": ["4"]}, "also has the pattern '4', which is none of"),
        ({"alpha": 0.0}, "alpha must be a number above 0"),
        ({"factors": "down"}, "factors must be one of"),
    ],
)
def test_a_wrong_argument_is_refused(how, message):
    with pytest.raises(DataError, match=message):
        Adapted(models.mlp(4, 3, 2), **{"rank": 2, **how})


def test_a_network_without_linear_layers_is_refused():
    with pytest.raises(DataError, match=r"no torch\.nn\.Linear to adapt: it is a Conv2d"):
        Adapted(nn.Conv2d(1, 2, 3), 2)


def test_clients_that_differ_do_better_with_adapters_of_their_own():
    """Two kinds of clients whose labels contradict each other: one model for all cannot serve both."""
    from fedscape.personal import Ditto, FedPer, LocalOnly

    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * 30, 5))
    y = ((x[:, 0] > 0) ^ (np.repeat(np.arange(8), 30) % 2 == 1)).astype(np.int64)
    fed = Federation({"x": x.astype(np.float32), "y": y}, np.arange(0, 241, 30))
    net = Adapted(models.mlp(5, 16, 2), 2)
    local = LocalSGD(net, cross_entropy, lr=0.3, epochs=3, batch_size=10)
    names = [n for n in local.names if n.endswith(".up")]
    found = {}
    for method in (FedAvg(local), LocalOnly(local), Ditto(local), FedPer(local, head=tuple(names))):
        rs = list(rounds(method, fed, n_rounds=15, seed=0, measure=1))
        found[method.name] = float(rs[-1].metrics["accuracy"])
    assert found["fedavg"] < 0.7
    assert min(found[n] for n in ("local-only", "ditto", "fedper")) > 0.85, found


def test_accuracy_of_every_client_is_that_of_the_adapted_network():
    fed = federation([5, 3, 6], 6, 3)
    net = nudged(Adapted(models.mlp(6, 4, 3), 2))
    local = LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=3)
    state = FedAvg(local).start(0)
    right = net(torch.tensor(fed["x"], dtype=torch.float32)).argmax(dim=1).numpy() == fed["y"]
    assert evaluate(local, state, fed).accuracy.tolist() == [
        float(right[a:b].mean()) for a, b in zip(fed.offsets[:-1], fed.offsets[1:], strict=True)
    ]
    assert trainer_of(local).strategy == "vmap"
