"""Training: every path gives the numbers of a plain loop, and they depend on nothing but the key."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedscape import DataError, Federation, FixedSize, Gaussian, Key, Ledger, Local, rounds
from fedscape.learning import (
    Adagrad,
    Adam,
    CosineDecay,
    FedAdam,
    FedAvg,
    FedProx,
    LocalSGD,
    Mean,
    Momentum,
    Yogi,
    cross_entropy,
    evaluate,
    initialised,
    logistic,
    models,
    squared_error,
)
from fedscape.learning.batches import Rows, groups, make_plan
from fedscape.learning.device import Held, shared
from fedscape.learning.evaluation import Evaluation
from fedscape.learning.fast import program
from fedscape.learning.fast.fused import FusedTrainer, self_moving
from fedscape.learning.fast.products import ProductConv2d, stands_for_product
from fedscape.learning.layers import KeyedDropout, dropout_keys, trainable_copy
from fedscape.learning.local import Timing
from fedscape.learning.loop import one_thread, weighted_sum
from fedscape.learning.trainer import trainer_of


def federation(sizes, shape, n_classes, *, seed=0, codes=0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    x = rng.integers(0, codes, (offsets[-1], *shape)) if codes else rng.normal(size=(offsets[-1], *shape))
    return Federation({"x": x, "y": rng.integers(0, n_classes, offsets[-1])}, offsets)


def by_hand(local: LocalSGD, fed: Federation, n_rounds: int, seed: int) -> dict[str, np.ndarray]:
    """FedAvg as it stands in a textbook: a loop over rounds, clients, epochs and batches with torch.optim."""
    server = copy.deepcopy(local.model)
    for index in range(n_rounds):
        sums = [torch.zeros_like(p, dtype=torch.float64) for p in server.parameters()]
        for i in range(len(fed)):
            one = fed.take([i])
            model = copy.deepcopy(server).train()
            kind = (
                torch.optim.Adam
                if local.optimiser == "adam"
                else functools.partial(torch.optim.SGD, momentum=local.momentum)
            )
            optimiser = kind(model.parameters(), lr=local.rate(index), weight_decay=local.weight_decay)
            for batch in batches(local, one, Key(seed, index)):
                optimiser.zero_grad()
                x, y = torch.tensor(one["x"][batch]), torch.tensor(one["y"][batch])
                loss = local.loss(model(x if x.dtype == torch.int64 else x.to(local.dtype)), y).mean()
                for p, q in zip(model.parameters(), server.parameters(), strict=True):
                    loss = loss + local.proximal / 2 * (p - q.detach()).square().sum()
                loss.backward()
                optimiser.step()
            for total, p, q in zip(sums, model.parameters(), server.parameters(), strict=True):
                total += one.n_rows * (p.detach() - q.detach())
        with torch.no_grad():
            for p, total in zip(server.parameters(), sums, strict=True):
                p.copy_(p + total / fed.n_rows)
    return {f"model.{n}": p.detach().numpy() for n, p in server.named_parameters()}


def batches(local: LocalSGD, one: Federation, key: Key):
    epoch, made = 0, 0
    while one.n_rows and (epoch < local.epochs if local.epochs else made < local.steps):
        order = np.argsort(key.to(f"shuffle {epoch}").uniform_rows(one), kind="stable")
        for begin in range(0, one.n_rows, local.batch_size):
            if local.steps is None or made < local.steps:
                yield order[begin : begin + local.batch_size]
                made += 1
        epoch += 1


def trained(local: LocalSGD, fed: Federation, *, n_rounds=3, seed=5, threads=2, **kwargs) -> dict[str, np.ndarray]:
    engine = Local(fed, threads=threads)
    return [r.state for r in rounds(FedAvg(local, **kwargs), engine, n_rounds=n_rounds, seed=seed, measure=0)][-1]


def assert_agree(a, b, tolerance):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=name)


REFERENCE = {
    "linear": (models.linear(12, 3), (12,), 3, 0),
    "mlp": (models.mlp(12, 8, 3), (3, 4), 3, 0),
    "cnn": (models.cnn((1, 8, 8), 5, dropout=False), (8, 8), 5, 0),
    "lenet5": (models.lenet5((1, 28, 28), 4), (28, 28), 4, 0),
    "char_lstm": (models.char_lstm(11, 4, 6), (5,), 11, 11),
    "transformer": (models.transformer(11, width=8, heads=2, length=5), (5,), 11, 11),
    "encoder": (models.transformer(11, 3, width=8, layers=1, length=6, causal=False), (5,), 3, 11),
    "resnet18": (models.resnet18((3, 8, 8), 3, width=8), (8, 8, 3), 3, 0),
    "mobilenet_v2": (models.mobilenet_v2((3, 16, 16), 3, width=0.25), (3, 16, 16), 3, 0),
}


def test_networks_of_the_papers_have_the_papers_sizes():
    def size(model):
        return sum(p.numel() for p in model.parameters())

    assert size(models.mlp(784, 512, 10)) == 784 * 512 + 512 + 512 * 10 + 10
    assert size(models.lenet5((3, 32, 32), 10)) == 62_006  # as FedShare's network: 6 and 16 maps, 400-120-84-10
    assert size(models.cnn((1, 28, 28), 62)) == 1_206_590
    assert size(models.mobilenet_v2((3, 32, 32), 1000)) == 3_504_872  # Torchvision's; GroupNorm has as many weights
    cell = 4 * 256 * (8 + 256) + 4 * 256
    assert size(models.char_lstm(80, embedding=8, hidden=256, layers=1)) == 80 * 8 + cell + 256 * 80 + 80


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_every_reference_model_trains_as_by_hand_on_every_path(name, dtype, tolerance):
    model, shape, n_classes, codes = REFERENCE[name]
    deep = name in ("resnet18", "mobilenet_v2")
    fed = federation([2, 0, 3] if deep else [3, 0, 5, 1], shape, n_classes, codes=codes)
    local = LocalSGD(
        copy.deepcopy(model).to(dtype), cross_entropy, lr=0.002 if deep else 0.02, epochs=1, batch_size=2, momentum=0.5
    )
    with one_thread():
        expected = by_hand(local, fed, 3, 5)
        if name == "mobilenet_v2" and dtype == torch.float32:  # ill-conditioned: the plain loop's own rounding is more
            exact = by_hand(replace(local, model=copy.deepcopy(model).double()), fed, 3, 5)
            tolerance = max(tolerance, 3 * max(np.abs(expected[n] - exact[n]).max() for n in exact))
    for strategy in ("sequential", "vmap", *(["stacked"] if trainer_of(local).strategy == "stacked" else [])):
        assert_agree(expected, trained(replace(local, strategy=strategy), fed), tolerance)


SETTINGS = {
    "epochs": {"epochs": 2},
    "steps": {"steps": 5},
    "momentum and decay": {"epochs": 1, "momentum": 0.9, "weight_decay": 0.1},
    "proximal": {"steps": 4, "proximal": 0.5},
    "adam": {"epochs": 2, "optimiser": "adam", "weight_decay": 0.01},
    "adam, proximal": {"steps": 7, "optimiser": "adam", "proximal": 0.3},
    "schedule": {"epochs": 1, "schedule": CosineDecay(4)},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("strategy", ["sequential", "vmap", "stacked"])
def test_every_setting_is_that_of_a_plain_loop(settings, strategy):
    fed = federation([7, 2, 0, 11, 1, 4, 10], (4,), 3)
    model = models.mlp(4, 5, 3, seed=1).double()
    local = LocalSGD(model, cross_entropy, lr=0.1, batch_size=4, strategy=strategy, **settings)
    assert_agree(by_hand(local, fed, 3, 5), trained(local, fed), 1e-9)


@pytest.mark.parametrize("loss", [logistic, squared_error])
def test_other_losses_train_alike_on_both_paths(loss):
    fed = federation([3, 4, 2], (3,), 2)
    fed = fed.with_column("y", fed["y"].astype(float)) if loss is squared_error else fed
    local = LocalSGD(initialised(nn.Linear(3, 1), 0).double(), loss, lr=0.1, epochs=2, batch_size=2, strategy="vmap")
    assert_agree(trained(local, fed), trained(replace(local, strategy="sequential"), fed), 1e-9)


def with_dropout() -> nn.Module:
    layers = (nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.Dropout(0.4), nn.Linear(64, 3))
    return initialised(nn.Sequential(*layers), 0).double()


def test_dropout_is_the_same_on_both_paths_and_for_one_client_alone():
    fed = federation([5, 3, 0, 6], (1, 6, 6), 3)
    local = LocalSGD(with_dropout(), cross_entropy, lr=0.1, epochs=2, batch_size=2)
    by_path = [trained(replace(local, strategy=s), fed) for s in ("sequential", "vmap")]
    assert_agree(*by_path, 1e-9)
    computation = FedAvg(local)
    state = computation.start(0)
    rows, _ = computation.step(state, fed, Key(1, 2))
    alone, _ = computation.step(state, fed.take([3]), Key(1, 2))
    assert_agree({n: v[0] for n, v in alone.items()}, {n: v[3] for n, v in rows.items()}, 1e-9)
    assert any(np.abs(by_path[0][n] - v).max() > 1e-3 for n, v in trained(local, fed, seed=6).items())


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_a_dropout_layer_in_two_places_is_keyed_in_both(strategy):
    drop = nn.Dropout(0.5)
    model = initialised(nn.Sequential(drop, nn.Linear(4, 6), drop, nn.Linear(6, 3)), 0).double()
    local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=3, strategy=strategy)
    fed = federation([5, 3], (4,), 3)
    assert_agree(trained(local, fed), trained(replace(local, strategy="vmap"), fed), 1e-9)
    assert [type(layer).__name__ for layer in trainable_copy(model)][::2] == ["KeyedDropout"] * 2


def test_dropout_keeps_the_stated_share_and_differs_between_clients_steps_and_layers():
    clients = Rows(np.arange(50, dtype=np.uint64), np.arange(51))
    masks = {}
    for name, path, step in (("a", "1", 0), ("b", "1", 1), ("c", "2", 0)):
        layer = KeyedDropout(0.25)
        kept = []
        for key in dropout_keys(Key(0), clients, path, 3)[step]:
            layer.key.copy_(torch.from_numpy(key))
            kept.append((layer(torch.ones(400)) > 0).numpy())
        masks[name] = np.array(kept).astype(float)
        n = masks[name].size
        assert abs(masks[name].mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / n)
        assert np.abs(np.corrcoef(masks[name])[np.triu_indices(50, 1)]).max() < 5.5 / np.sqrt(400)
    for one, other in (("a", "b"), ("a", "c")):
        assert abs(np.corrcoef(masks[one].ravel(), masks[other].ravel())[0, 1]) < 5 / np.sqrt(n)
    assert (layer(torch.ones(400))[kept[-1]] == torch.tensor(1 / 0.75)).all()


def test_dropout_is_off_in_evaluation_and_the_model_given_is_left_alone():
    model = with_dropout()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    twin = trainable_copy(model)
    assert [type(layer).__name__ for layer in twin] == ["Conv2d", "KeyedDropout", "Flatten", "KeyedDropout", "Linear"]
    assert twin.eval()(torch.ones(1, 1, 6, 6, dtype=torch.float64)).shape == (1, 3)
    trained(LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2), federation([3], (1, 6, 6), 3))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert type(model[1]).__name__ == "Dropout2d"


class Tied(nn.Module):
    """Uses one linear layer twice, the weights of another beside the layer, and a third not at all."""

    def __init__(self):
        super().__init__()
        self.twice, self.beside, self.once, self.never = (nn.Linear(3, 3, dtype=torch.float64) for _ in range(4))
        self.shared = nn.Linear(3, 3, dtype=torch.float64)
        self.shared.weight = self.once.weight

    def forward(self, x):
        x = self.twice(torch.tanh(self.twice(x)))
        x = self.beside(x) + x @ self.beside.weight
        return self.shared(torch.tanh(self.once(x)))


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"momentum": 0.5}, {"proximal": 0.2}])
def test_layers_move_their_own_weights_only_where_that_is_the_same(settings):
    fed = federation([5, 3, 4], (3,), 3)
    for model in (initialised(Tied(), 0), models.mlp(3, 4, 3).double()):
        local = LocalSGD(model, cross_entropy, lr=0.3, epochs=2, batch_size=2, strategy="sequential", **settings)
        assert_agree(trained(local, fed), trained(replace(local, strategy="vmap"), fed), 1e-9)


def test_layers_that_move_by_themselves_are_found_and_left_as_they_were():
    twin = fused_copy(initialised(Tied(), 0))
    before = {n: p.detach().clone() for n, p in twin.named_parameters()}
    assert self_moving(twin, lambda: twin(torch.ones(2, 3, dtype=torch.float64)).sum().backward()) == []
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in twin.named_parameters())
    twin = fused_copy(models.mlp(3, 4, 3))
    assert len(self_moving(twin, lambda: twin(torch.ones(2, 3)).sum().backward())) == 2
    watched = models.mlp(3, 4, 3)
    watched[1].register_forward_hook(lambda *_: None)
    assert [type(m).__name__ for m in fused_copy(watched)][1::2] == ["Linear", "FusedLinear"]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 2)),
        nn.Conv2d(3, 4, 1, bias=False),
        nn.Conv2d(3, 2, 5, stride=3),
    ],
)
def test_a_convolution_is_a_product_of_patches(layer):
    layer, x = layer.double(), torch.randn(2, 3, 9, 11, dtype=torch.float64, requires_grad=True)
    for made, want in zip(_with_gradients(ProductConv2d(layer), x), _with_gradients(layer, x), strict=True):
        assert torch.allclose(made, want, atol=1e-12)


def _with_gradients(layer, x):
    made = layer(x)
    return [made, *torch.autograd.grad(made.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize(
    "odd", [{"groups": 3}, {"dilation": 2}, {"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}]
)
def test_other_convolutions_stay_what_they_are(odd):
    assert not stands_for_product(nn.Conv2d(3, 3, 3, **odd))


@pytest.mark.parametrize("make", [lambda: models.mlp(6, 8, 3), lambda: models.cnn((1, 8, 8), 3)], ids=["mlp", "cnn"])
def test_compiled_training_gives_the_same_numbers(make, monkeypatch):
    """The graph as it is traced; code generation takes minutes, benchmarks/training_gpu.py has it, on a GPU."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    fed = federation([7, 3, 4, 4], (6,) if make().state_dict().get("1.weight") is not None else (1, 8, 8), 3)
    local = LocalSGD(make().double(), cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy="compiled")
    assert_agree(trained(local, fed), trained(replace(local, strategy="sequential"), fed), 1e-9)


def test_a_client_stops_after_an_epoch_that_is_no_better():
    fed = federation([6, 5, 3, 0, 1], (3,), 2)
    local = LocalSGD(models.linear(3, 2).double(), cross_entropy, lr=0.4, epochs=6, batch_size=2)
    for least in (0.0, 0.01, 0.1):
        early = replace(local, early_stopping=least)
        states = [trained(replace(early, strategy=s), fed) for s in ("sequential", "vmap")]
        assert_agree(*states, 1e-9)
        adam = replace(early, optimiser="adam", lr=0.01)
        assert_agree(*(trained(replace(adam, strategy=s), fed) for s in ("sequential", "vmap")), 1e-9)
    whole = replace(local, batch_size=8, lr=0.1)  # every step is better
    assert_agree(trained(replace(whole, early_stopping=0.0), fed), trained(whole, fed), 1e-12)
    two = trained(replace(local, early_stopping=1e9), fed)
    assert_agree(two, trained(replace(local, epochs=2), fed), 1e-9)  # the second epoch never is
    with pytest.raises(DataError, match="goes with epochs"):
        replace(local, epochs=None, steps=3, early_stopping=0.1)


def test_reduced_precision_is_refused_where_there_is_no_gpu():
    with pytest.raises(DataError, match="precision must be 'exact' on the device 'cpu', not 'tf32'"):
        LocalSGD(nn.Linear(3, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2, precision="tf32")


def test_sample_weights_scale_gradients_on_both_paths():
    fed = federation([4, 2, 5], (3,), 2)
    local = LocalSGD(models.linear(3, 2).double(), cross_entropy, lr=0.1, epochs=2, batch_size=3, weights="w")
    half = fed.with_column("w", np.full(fed.n_rows, 0.5))
    plain = trained(replace(local, weights=None, lr=0.05), fed)
    for strategy in ("sequential", "vmap"):
        assert_agree(plain, trained(replace(local, strategy=strategy), half), 1e-9)
    mixed = fed.with_column("w", np.random.default_rng(0).random(fed.n_rows))
    assert_agree(*(trained(replace(local, strategy=s), mixed) for s in ("sequential", "vmap")), 1e-9)
    with pytest.raises(DataError, match="'w' must hold one number of at least 0"):
        trained(local, fed.with_column("w", np.full(fed.n_rows, -1.0)))


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_threads_do_not_change_a_byte_and_torch_keeps_its_threads(strategy, monkeypatch):
    monkeypatch.setattr(FedAvg, "block_clients", 2)
    fed = federation([5, 3, 4, 6, 2, 7], (6,), 3)
    local = LocalSGD(models.mlp(6, 8, 3), cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy=strategy)
    before = torch.get_num_threads()
    one, four = (trained(local, fed, threads=t) for t in (1, 4))
    assert all(one[n].tobytes() == four[n].tobytes() for n in one)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert torch.get_num_threads() == before
    assert seen == [before]


def test_the_global_generator_is_not_touched():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    local = LocalSGD(models.cnn((1, 8, 8), 3), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    trained(local, federation([3, 2], (8, 8), 3), initial="seed")
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_seed_draws_the_first_weights_where_asked():
    local = LocalSGD(models.mlp(4, 5, 3), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    one, again, other = (FedAvg(local, initial="seed").start(seed) for seed in (1, 1, 2))
    assert all(one[n].tobytes() == again[n].tobytes() for n in one)
    assert any(one[n].tobytes() != other[n].tobytes() for n in one)
    given = FedAvg(local).start(1)
    assert all((given[f"model.{n}"] == p.detach().numpy()).all() for n, p in local.model.named_parameters())


def test_frozen_parameters_are_neither_sent_nor_moved():
    model = models.mlp(4, 5, 3)
    model[1].weight.requires_grad_(False)
    local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2)
    fed = federation([4, 3], (4,), 3)
    states = [trained(replace(local, strategy=s), fed) for s in ("sequential", "vmap")]
    assert set(states[0]) == {"model.1.bias", "model.3.weight", "model.3.bias"}
    assert_agree(*states, 1e-5)


def test_bytes_are_pixels_and_images_come_either_way_round():
    fed = federation([4, 3], (8, 8, 3), 2)
    pixels = np.random.default_rng(0).integers(0, 256, fed["x"].shape).astype(np.uint8)
    local = LocalSGD(models.cnn((3, 8, 8), 2, dropout=False), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    states = [
        trained(local, fed.with_column("x", x))
        for x in (pixels, (pixels / 255).astype(np.float32), np.moveaxis(pixels, 3, 1))
    ]
    assert_agree(states[0], states[1], 1e-5)
    assert_agree(states[0], states[2], 1e-5)
    with pytest.raises(DataError, match=r"images must be of shape \[3, 8, 8\]"):
        trained(local, fed.with_column("x", pixels[:, :7]))


def test_sums_made_on_the_device_are_the_sums_of_what_clients_send():
    fed = federation([4, 0, 7, 1, 5], (4,), 3)
    local = LocalSGD(models.mlp(4, 5, 3).double(), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    for weighting in ("samples", "equal"):
        computation = FedAvg(local, weighting=weighting)
        rows, _ = computation.step(computation.start(0), fed, Key(0, 1))
        sums = computation.total(computation.start(0), fed, Key(0, 1))
        assert_agree({n: v.sum(axis=0) for n, v in rows.items()}, sums, 1e-9)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_padding_stays_below_a_fifth_and_no_row_is_lost():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = rng.lognormal(2.5, 1.2, 60).astype(int)
        timing = Timing(*([2, None] if rng.random() < 0.5 else [None, 9]), batch_size=10)
        made = groups(sizes, timing, most=16)
        assert sorted(np.concatenate(made).tolist()) == np.flatnonzero(sizes).tolist()
        for group in made:
            assert len(group) <= 16
            offsets = np.concatenate(([0], np.cumsum(sizes[group])))
            members = Rows(group.astype(np.uint64), offsets)
            plan = make_plan(members, Key(0), timing)
            assert plan.padding <= 0.2
            assert all((plan.counts[i, : len(c)] == c).all() for i, c in enumerate(map(timing.counts, sizes[group])))
            for i in range(len(group)):
                used = np.concatenate([plan.rows[i, t, :c] for t, c in enumerate(plan.counts[i])])
                if timing.epochs:
                    assert (np.sort(used) == np.repeat(np.arange(offsets[i], offsets[i + 1]), 2)).all()


def test_a_shuffle_is_a_function_of_seed_round_client_and_epoch():
    keys = np.array([4, 9], dtype=np.uint64)
    plan = functools.partial(make_plan, timing=Timing(2, None, 50))
    both = plan(Rows(keys, np.array([0, 50, 100])), Key(0, 1)).rows
    alone = plan(Rows(keys[1:], np.array([0, 50])), Key(0, 1)).rows
    assert (both[1] - 50 == alone[0]).all()
    orders = {tuple(both[0, 0]), tuple(both[0, 1]), tuple(alone[0, 0]), tuple(alone[0, 1])}
    orders |= {tuple(plan(Rows(keys[1:], np.array([0, 50])), k).rows[0, 0]) for k in (Key(0, 2), Key(1, 1))}
    assert len(orders) == 6


# -- server rules ------------------------------------------------------------------------------------------------------


def test_fedadam_with_bias_correction_is_adam():
    rule, w = Adam(0.1, beta2=0.999, epsilon=1e-8, correction="bias"), torch.zeros(3, dtype=torch.float64)
    optimiser = torch.optim.Adam([w.requires_grad_()], lr=0.1, eps=1e-8)
    here, memory = np.zeros(3), rule.memory({"w": np.zeros(3)})
    for t in range(5):
        d = np.array([1.0, -2.0, 3.0]) * (t + 1)
        w.grad = torch.tensor(-d)
        optimiser.step()
        moves, memory = rule.move(memory, {"w": d})
        here = here + moves["w"]
    np.testing.assert_allclose(here, w.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("server", [Mean(), Mean(0.5), Momentum(0.5), Adam(0.05), Yogi(0.05), Adagrad(0.1)])
def test_every_rule_learns_and_its_memory_is_in_the_state(server):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5))
    fed = Federation({"x": x, "y": (x[:, 0] > 0).astype(int)}, np.arange(0, 201, 10))
    local = LocalSGD(models.linear(5, 2), cross_entropy, lr=0.3, epochs=1, batch_size=5)
    run = list(rounds(FedAvg(local, server=server), fed, n_rounds=15, sampler=FixedSize(10)))
    assert run[-1].metrics["loss"] < 0.7 * run[0].metrics["loss"]
    assert {n for n in run[-1].state if n.startswith("server.")} == {
        f"server.{n}" for n in server.memory(local.parameters())
    }


def test_named_methods_are_parameters_of_fedavg():
    local = LocalSGD(models.linear(5, 2), cross_entropy, lr=0.3, epochs=1, batch_size=5)
    assert FedProx(local, proximal=0.2).digest() == FedAvg(replace(local, proximal=0.2)).digest()
    assert FedAdam(local, lr=0.2).digest() == FedAvg(local, server=Adam(0.2)).digest()
    assert FedAvg(local).digest() != FedAvg(replace(local, lr=0.2)).digest()
    assert FedAvg(local).digest() != FedAvg(replace(local, model=models.linear(4, 2))).digest()
    assert "0x" not in repr(FedAvg(local))


def test_a_step_travels_to_another_process():
    local = LocalSGD(models.linear(3, 2), cross_entropy, lr=0.3, epochs=1, batch_size=5)
    fed = federation([3, 4], (3,), 2)
    first = trained(local, fed)
    again = pickle.loads(pickle.dumps(local))  # noqa: S301
    assert FedAvg(again).digest() == FedAvg(local).digest()
    assert_agree(first, trained(again, fed), 0)


def test_nobody_with_a_row_leaves_the_model_as_it_is():
    local = LocalSGD(models.linear(3, 2), cross_entropy, lr=0.3, epochs=1, batch_size=5)
    for weighting in ("samples", "equal"):
        state = trained(local, federation([0, 0], (3,), 2), weighting=weighting)
        assert_agree(state, FedAvg(local).start(0), 0)


def test_private_training_learns_a_linear_model_and_writes_it_down():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8000, 5))
    fed = Federation({"x": x, "y": (x[:, 0] - x[:, 1] > 0).astype(int)}, np.arange(0, 8001, 4))
    local = LocalSGD(models.linear(5, 2), cross_entropy, lr=0.5, epochs=1, batch_size=4)
    ledger, seen = Ledger(), []
    privacy = Gaussian(clip=0.5, multiplier=1.0, noise_seed=1)
    run = rounds(
        FedAvg(local, weighting="equal"),
        fed,
        n_rounds=10,
        sampler=FixedSize(400),
        privacy=privacy,
        ledger=ledger,
        measure=0,
    )
    for r in run:
        seen.append(r.state)
    scored = FedAvg(local).measure(seen[-1], fed)
    assert scored["accuracy"].mean() > 0.9
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 10


# -- refusals ----------------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return functional.dropout(self.layer(x), 0.5, training=True)


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_a_model_with_functional_dropout_is_refused(strategy):
    local = LocalSGD(Noisy(), cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy=strategy)
    with pytest.raises(DataError, match=r"use torch\.nn\.Dropout layers"):
        trained(local, federation([3], (3,), 2), threads=1)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm2d(24), r"'0' is BatchNorm2d, .* use torch\.nn\.GroupNorm\(8, 24\)"),
        (nn.Sequential(nn.BatchNorm1d(7)), r"'0\.0' is BatchNorm1d, .* use torch\.nn\.GroupNorm\(1, 7\)"),
        (nn.InstanceNorm2d(8, track_running_stats=True), r"InstanceNorm2d, .* use torch\.nn\.GroupNorm\(8, 8\)"),
        (nn.LSTM(3, 4, 2, dropout=0.5), r"'0' is LSTM with random numbers .* use torch\.nn\.Dropout"),
        (nn.RReLU(), "RReLU with random numbers"),
        (nn.ReLU(), "nothing to train"),
    ],
)
def test_a_layer_that_clients_cannot_train_is_named_with_its_replacement(layer, message):
    with pytest.raises(DataError, match=message):
        LocalSGD(nn.Sequential(layer), cross_entropy, lr=0.1, epochs=1, batch_size=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": None}, "give one of epochs and steps"),
        ({"steps": 3}, "give one of epochs and steps"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"lr": -1.0}, "lr must be a number of at least 0, not -1.0"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"momentum": 1.0}, "momentum must be below 1"),
        ({"momentum": 0.5, "optimiser": "adam"}, "momentum must be below 1, and 0 with adam"),
        ({"optimiser": "lbfgs"}, "optimiser must be 'sgd' or 'adam', not 'lbfgs'"),
        ({"strategy": "fast"}, "strategy must be one of"),
        ({"loss": "mse"}, "loss must be a callable"),
        ({"model": "net"}, "model must be a torch.nn.Module, not str"),
    ],
)
def test_a_wrong_argument_is_refused(wrong, message):
    right = {"model": nn.Linear(3, 2), "loss": cross_entropy, "lr": 0.1, "epochs": 1, "batch_size": 2}
    with pytest.raises(DataError, match=message):
        LocalSGD(**{**right, **wrong})


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_a_loss_that_is_a_mean_is_refused(strategy):
    local = LocalSGD(nn.Linear(3, 2), functional.cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy=strategy)
    with pytest.raises(DataError, match="reduction='none'"):
        trained(local, federation([3], (3,), 2), threads=1)


def test_a_wrong_method_is_refused():
    local = LocalSGD(nn.Linear(3, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    for wrong, message in (
        ({"weighting": "size"}, "weighting must be one of"),
        ({"initial": "zero"}, "initial must be"),
    ):
        with pytest.raises(DataError, match=message):
            FedAvg(local, **wrong)
    with pytest.raises(DataError, match="local must be a LocalSGD"):
        FedAvg(nn.Linear(3, 2))
    with pytest.raises(DataError, match="lr must be at least 0"):
        Adam(-1.0)
    with pytest.raises(DataError, match="the state is of another model"):
        FedAvg(local).measure({"model.weights": np.zeros((2, 3))}, federation([3], (3,), 2))


def test_torch_keeps_to_one_thread_until_the_outermost_block_is_left():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            with one_thread():
                pass
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_batches_of_small_clients_are_not_padded_to_a_batch_size_beyond_them(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    seen, step = [], program.Program.step
    monkeypatch.setattr(program.Program, "step", lambda self, b, *a: seen.append(b.x.shape) or step(self, b, *a))
    fed = federation([6, 3, 4, 5], (4,), 2)
    local = LocalSGD(models.linear(4, 2).double(), cross_entropy, lr=0.1, epochs=1, batch_size=5000)
    found = trained(replace(local, strategy="compiled"), fed)
    assert max(shape[1] for shape in seen) == 8
    assert_agree(found, trained(replace(local, strategy="vmap"), fed), 1e-9)


def test_a_sum_of_rows_leaves_them_as_they_are():
    rows = torch.ones(2, 3, dtype=torch.float64)
    assert weighted_sum(rows, np.array([2.0, 3.0])).tolist() == [5.0] * 3
    assert rows.tolist() == [[1.0] * 3] * 2


def fused_copy(model):
    return FusedTrainer(
        LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy="sequential")
    ).new_copy()


def test_a_state_counts_as_finite_only_where_each_of_its_arrays_was_found_so_on_the_device():
    local = LocalSGD(models.linear(2, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    method = FedAvg(local).trainer
    good, bad = np.ones(3), np.array([1.0, np.nan])
    assert not method.known_finite({"model.a": good})  # nothing is on a device: it is looked at
    method._held["model.a"] = Held(good, torch.ones(3), True)
    method._held["model.b"] = Held(bad, torch.tensor(bad), False)
    assert method.known_finite({"model.a": good, "server.t": np.asarray(3), "server.x": np.asarray(0.5)})
    assert not method.known_finite({"model.a": good, "model.b": bad})
    assert not method.known_finite({"model.a": good.copy()})
    assert not method.known_finite({"model.a": good, "server.x": np.asarray(np.inf)})


def test_rows_that_the_model_does_not_take_and_targets_that_are_no_classes_are_refused_in_one_line():
    fed = Federation({"x": np.ones((4, 3)), "y": [0, 1, 1, 0]}, [0, 2, 4])
    step = LocalSGD(models.mlp(4, 5, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    state = {f"model.{n}": p for n, p in step.parameters().items()}
    said = r"^the model does not take rows of 'x' of shape \[3\] \(float64\): mat1 and mat2 shapes"
    for strategy in ("auto", "sequential", "vmap"):
        with pytest.raises(DataError, match=said):
            next(rounds(FedAvg(replace(step, strategy=strategy)), fed, n_rounds=1, measure=0))
    with pytest.raises(DataError, match=said):
        evaluate(step, state, fed)
    real = Federation({"x": np.ones((4, 4)), "y": [0.5, 1.0, 1.0, 0.0]}, [0, 2, 4])
    for loss in (cross_entropy, nn.CrossEntropyLoss(reduction="none")):
        with pytest.raises(DataError, match=r"column 'y' must hold classes 0, 1, 2, \.\.\. for this loss, not float32"):
            next(rounds(FedAvg(replace(step, loss=loss)), real, n_rounds=1, measure=0))


def test_the_worst_tenth_of_losses_that_are_not_numbers_is_none_either():
    found = Evaluation(np.arange(3), np.ones(3), np.array([1.0, np.nan, 2.0]), None).summary()
    assert np.isnan(found["loss_worst_decile"])


def test_a_code_without_an_embedding_is_refused_whichever_row_has_it():
    x = np.zeros((4, 5), dtype=np.int64)
    x[3, 2] = 9
    fed = Federation({"x": x, "y": [0, 1, 1, 0]}, [0, 2, 4])
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(15, 2))
    step = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy="sequential")
    with pytest.raises(DataError, match="column 'x' holds a code that the model has no embedding of"):
        next(rounds(FedAvg(step), fed, n_rounds=1, measure=0))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 2)])
def test_a_tensor_has_the_shape_of_its_array(shape):
    for kind in ("<f8", ">f8"):
        assert shared(np.ones(shape, dtype=kind)).shape == shape
    assert shared(np.ones((2, 3)).T).tolist() == [[1.0, 1.0]] * 3
