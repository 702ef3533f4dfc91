"""Clients folded into the batch give the numbers of clients one by one; where they would not, they are not folded."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedscape import Federation, FixedSize, Key, Local, rounds
from fedscape.learning import FedAvg, LocalSGD, Setting, Sweep, cross_entropy, models, sweeps, trainer
from fedscape.learning.batches import Rows, groups, make_plan, work_of
from fedscape.learning.fast import program
from fedscape.learning.fast.agreement import agree
from fedscape.learning.fast.folded import folded
from fedscape.learning.fast.gradients import in_one_batch, once_used
from fedscape.learning.fast.lowrank import Factors
from fedscape.learning.layers import initialised, trainable_copy
from fedscape.learning.local import Timing
from fedscape.learning.loop import by_client
from fedscape.learning.optimisers import Rates, new_memory, update
from fedscape.learning.trainer import Trainer, trainer_of
from fedscape.personal import FedPer
from fedscape.personal.shared import trained_alone

CLIENTS, BATCH = 3, 4


class Pair(nn.Module):
    """Group norms, depthwise and plain convolutions, a residual, dropout by channels."""

    def __init__(self):
        super().__init__()
        self.one, self.each = nn.Conv2d(2, 4, (3, 2), padding=(1, 0)), nn.Conv2d(4, 4, 3, stride=2, groups=4, padding=1)
        self.norm, self.flat = nn.GroupNorm(2, 4), nn.LayerNorm([4, 3])
        self.drop, self.out = nn.Dropout2d(0.4), nn.Linear(12, 3)

    def forward(self, x):
        x = self.norm(self.each(self.drop(torch.tanh(self.one(x)))))
        return self.out(self.flat(x.mean(dim=3) + x.amax(dim=3)).flatten(1))


class Tokens(nn.Module):
    """An embedding, and a linear layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(7, 5), nn.Linear(5, 5), nn.Linear(5, 3, bias=False)

    def forward(self, x):
        return self.out(torch.tanh(self.mix(torch.tanh(self.mix(self.embed(x))))).sum(dim=1))


MODELS = {
    "linear": (lambda: models.linear(6, 3), (6,)),
    "cnn": (lambda: models.cnn((1, 8, 8), 3), (8, 8)),
    "lenet5": (lambda: models.lenet5((1, 28, 28), 3), (28, 28)),
    "lstm": (lambda: models.char_lstm(7, embedding=3, hidden=4), (5,)),
    "transformer": (lambda: models.transformer(7, width=8, heads=2, length=5, dropout=0.3), (5,)),
    "resnet18": (lambda: models.resnet18((3, 16, 16), 3, width=8), (16, 16, 3)),
    "mobilenet_v2": (lambda: models.mobilenet_v2((3, 32, 32), 3, width=0.25), (32, 32, 3)),
    "pair": (Pair, (2, 5, 6)),
    "tokens": (Tokens, (4,)),
}


def batch_of(shape, codes, seed=0):
    rng = np.random.default_rng(seed)
    size = (CLIENTS, BATCH, *shape)
    x = rng.integers(0, 7, size) if codes else rng.normal(size=size)
    share = torch.tensor(rng.random((CLIENTS, BATCH)))
    share[-1, 2:] = 0.0  # padding
    return torch.tensor(x), torch.tensor(rng.integers(0, 3, (CLIENTS, BATCH))), share


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_each_client_by_itself(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    local = LocalSGD(make().double(), cross_entropy, lr=0.1, epochs=1, batch_size=BATCH)
    module = trainable_copy(local.model)
    twin = folded(module)
    assert twin is not None
    params = {n: p.detach() + 0.1 * torch.randn(CLIENTS, *p.shape, dtype=p.dtype) for n, p in module.named_parameters()}
    dropped = [n for n, m in module.named_modules() if type(m).__name__ == "KeyedDropout"]
    random = {f"{n}.key": torch.randint(1, 999, (CLIENTS, 2), dtype=torch.int32) for n in dropped}
    x, y, share = batch_of(shape, name in ("lstm", "tokens", "transformer"))
    (want, loss), (found, other) = (
        f(params, random, x, y, share) for f in (by_client(local, module), in_one_batch(local, twin))
    )
    assert torch.allclose(loss, other, atol=1e-10)
    for n in want:
        assert torch.allclose(want[n], found[n], rtol=1e-7, atol=1e-9 * float(want[n].abs().max() + 1)), n


@pytest.mark.parametrize(
    ("name", "thin"),
    [
        ("linear", {"1"}),
        ("cnn", {"hidden", "out"}),
        ("pair", {"out"}),
        ("tokens", {"out"}),
        ("lstm", {"inputs.0", "inputs.1", "out"}),
    ],
)
def test_gradients_of_layers_used_once_come_as_factors_and_move_the_weights_alike(name, thin):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    local = LocalSGD(make().double(), cross_entropy, lr=0.1, epochs=1, batch_size=BATCH)
    module = trainable_copy(local.model)
    twin = folded(module)
    params = {n: p.detach() + 0.1 * torch.randn(CLIENTS, *p.shape, dtype=p.dtype) for n, p in module.named_parameters()}
    dropped = [n for n, m in module.named_modules() if type(m).__name__ == "KeyedDropout"]
    random = {f"{n}.key": torch.randint(1, 999, (CLIENTS, 2), dtype=torch.int32) for n in dropped}
    given = (params, random, *batch_of(shape, name in ("lstm", "tokens")))
    probes = once_used(local, twin, given)
    assert set(probes) == thin  # a layer that is used twice is not among them
    want, _ = in_one_batch(local, twin)(*given)
    found, _ = in_one_batch(local, twin, probes=probes)(*given)
    rates = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    for n, gradient in want.items():
        if not isinstance(found[n], Factors):
            assert torch.equal(found[n], gradient), n
            continue
        moved = params[n].clone()
        found[n].descend(moved, rates)
        assert torch.allclose(found[n].product(), gradient, rtol=1e-9, atol=1e-12), n
        assert torch.allclose(moved, params[n] - rates[:, None, None] * gradient, rtol=1e-9, atol=1e-12), n
    assert sum(isinstance(g, Factors) for g in found.values()) == len(thin)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.out = nn.Parameter(torch.zeros(6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x + self.shift)


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[1].weight = model[0].weight
    return model


def watched():
    model = models.mlp(6, 4, 3)
    model[1].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "make",
    [
        Own,
        tied,
        watched,
        lambda: nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1, groups=2), nn.Flatten()),
        lambda: nn.Embedding(5, 3, padding_idx=0),
    ],
    ids=["own parameter", "tied", "watched", "conv1d", "grouped", "padding"],
)
def test_layers_without_a_form_for_many_clients_are_not_folded(make):
    assert folded(trainable_copy(make())) is None


class Centred(nn.Module):
    """Looks at other samples: in one batch with other clients it would look at theirs."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x - x.mean(dim=0))


class Turned(nn.Module):
    """Rows out of order: samples within clients, then clients within places."""

    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(3, 3), nn.Linear(6, 3)

    def forward(self, x):
        parts = self.mix(x.reshape(len(x), 2, 3).transpose(0, 1))
        return self.out(parts.transpose(0, 1).flatten(1))


def ragged(shape=(6,), seed=1):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum([7, 3, 0, 12, 4, 9, 1, 2, 5, 6])))
    x = rng.normal(size=(offsets[-1], *shape))
    return Federation({"x": x, "y": rng.integers(0, 3, offsets[-1])}, offsets)


def last(local, fed):
    *_, end = rounds(FedAvg(local), Local(fed, threads=1), n_rounds=3, measure=0)
    return end.state


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.parametrize("make", [Own, tied, Centred, Turned, lambda: models.mlp(6, 8, 3)])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"optimiser": "adam", "lr": 0.01},
        {"momentum": 0.5, "proximal": 0.2, "weight_decay": 0.1, "epochs": 3, "early_stopping": 0.02},
        {"epochs": None, "steps": 5},
    ],
    ids=["sgd", "adam", "everything", "steps"],
)
def test_programs_give_the_numbers_of_the_other_strategies(make, how, uncompiled):
    torch.manual_seed(3)
    given = {"lr": 0.1, "epochs": 1, "batch_size": 3, **how}
    local = LocalSGD(make().double(), cross_entropy, strategy="compiled", **given)
    one, other = last(local, ragged()), last(replace(local, strategy="vmap"), ragged())
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)


def test_clients_of_one_size_and_a_smaller_cohort_afterwards(uncompiled):
    """Room once made is used again, also by fewer clients; nothing of earlier rounds is left in it."""
    local = LocalSGD(
        models.mlp(6, 8, 3).double(), cross_entropy, lr=0.1, epochs=1, batch_size=3, momentum=0.9, strategy="compiled"
    )
    fed = ragged()
    for part in (fed, fed.take([0, 1]), fed.take([3, 4, 5, 6])):
        one, other = last(local, part), last(replace(local, strategy="vmap"), part)
        assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)


def test_a_client_alone_does_not_settle_whether_others_may_be_folded(uncompiled):
    """The largest client comes first and by itself; a model that looks at other samples looks at its own only."""
    rng = np.random.default_rng(0)
    fed = Federation({"x": rng.normal(size=(21, 6)), "y": rng.integers(0, 3, 21)}, [0, 12, 15, 18, 21])
    local = LocalSGD(Centred().double(), cross_entropy, lr=0.1, epochs=1, batch_size=12, strategy="compiled")
    one, other = last(local, fed), last(replace(local, strategy="vmap"), fed)
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)


def test_a_client_whose_numbers_run_away_takes_no_other_with_it(uncompiled):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 6))
    x[0] = np.inf
    fed = Federation({"x": x, "y": rng.integers(0, 3, 12)}, [0, 4, 8, 12])
    local = LocalSGD(Centred().double(), cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy="compiled")
    one, other = (
        FedAvg(how).step(FedAvg(how).start(0), fed, Key(0))[0] for how in (local, replace(local, strategy="vmap"))
    )
    for n in ("delta.out.weight", "delta.out.bias"):
        assert np.isfinite(one[n].reshape(3, -1)).all(axis=1).tolist() == [False, True, True]
        assert np.abs(one[n][1:] - other[n][1:]).max() < 1e-12


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "0", "1", "3.weight"])
def test_frozen_parameters_are_the_same_for_all_clients(frozen, uncompiled):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(frozen))
    assert folded(trainable_copy(model)) is not None
    local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=3, strategy="compiled")
    one, other = last(local, ragged()), last(replace(local, strategy="vmap"), ragged())
    assert one.keys() == other.keys()
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)
    assert trainer_of(local).programs[0, True].twin is not None


class Picky(nn.Module):
    """Speaks up against more samples than a client's batch has."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        if len(x) > 3:
            raise ValueError("too many")
        return self.out(x)


def test_a_model_that_refuses_many_samples_is_not_folded(uncompiled):
    local = LocalSGD(Picky().double(), cross_entropy, lr=0.1, epochs=1, batch_size=3, strategy="compiled")
    one, other = last(local, ragged()), last(replace(local, strategy="vmap"), ragged())
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)


def test_a_program_is_for_one_type_of_rows(uncompiled):
    """A recorded one copies rows into its own: bytes, which are scaled, and numbers must not meet there."""
    local = LocalSGD(models.mlp(6, 8, 3).double(), cross_entropy, lr=0.1, epochs=1, batch_size=4, strategy="compiled")
    y, offsets = np.zeros(8, int), [0, 4, 8]
    for kind in (np.uint8, np.float64):
        last(local, Federation({"x": np.ones((8, 6), kind), "y": y}, offsets))
    assert len(trainer_of(local).programs[0, True].compiled) == 2


def test_training_with_and_without_a_pull_keeps_both_programs(uncompiled):
    """As Ditto does in every round: to a common place, to none, and to a place of each client."""
    local = LocalSGD(models.mlp(6, 8, 3).double(), cross_entropy, lr=0.1, epochs=1, batch_size=3, strategy="compiled")
    fed, key, plain = ragged(), Key(0), replace(local, strategy="vmap")
    common = {n: torch.from_numpy(p) for n, p in local.parameters().items()}
    own = {n: torch.stack([p + 0.1 * i for i in range(len(fed))]) for n, p in common.items()}
    made = []
    for _ in range(2):
        for pull in (None, (0.5, common), (0.5, None)):
            one, other = (trained_alone(how, own, fed, key, pull=pull) for how in (local, plain))
            assert all((one[n] - other[n]).abs().max() < 1e-9 for n in one)
        made.append({kind: list(p.compiled) for kind, p in trainer_of(local).programs.items()})
    assert made[0] == made[1]
    assert sorted(made[0]) == [(0, False), (1, False), (2, False)]


@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_parts_that_clients_keep_come_row_by_row_beside_sums_of_the_others(uncompiled, proximal):
    how = {"lr": 0.3, "epochs": 2, "batch_size": 3, "proximal": proximal}
    local = LocalSGD(models.mlp(6, 8, 3).double(), cross_entropy, strategy="compiled", **how)
    ends = []
    for step in (local, replace(local, strategy="vmap")):
        loop = rounds(FedPer(step), Local(ragged(), threads=1), n_rounds=3, sampler=FixedSize(5), measure=0)
        *_, last = loop
        ends.append({**last.state, **{n: v.flat for n, v in loop.engine.kept().items()}})
    assert bool(trainer_of(local).programs) == (proximal == 0)
    for name, values in ends[0].items():
        np.testing.assert_allclose(values, ends[1][name], rtol=1e-9, atol=1e-9)


def wide(sizes, seed=0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return Federation({"x": rng.normal(size=(offsets[-1], 60)), "y": rng.integers(0, 3, offsets[-1])}, offsets)


def broad(**how):
    """A first layer of 60 x 50 weights, in place of which up to 27 rows leave a trail: 27 x 110 < 3,000."""
    given = {"lr": 0.5, "epochs": 1, "batch_size": 2, "strategy": "compiled", **how}
    return LocalSGD(models.mlp(60, 50, 3).double(), cross_entropy, **given)


def trails_of(local):
    return trainer_of(local).programs[0, True].traced


@pytest.mark.parametrize("how", [{}, {"early_stopping": 0.3, "epochs": 3, "batch_size": 1}], ids=["plain", "stopping"])
@pytest.mark.parametrize("sizes", [[6, 6, 6], [6, 5, 1, 4, 2, 6, 3, 1, 1], [2] * 11])
def test_large_layers_leave_trails_and_the_sums_are_those_of_weights_of_each_client(sizes, how, uncompiled):
    fed = wide(np.minimum(sizes, 6 // how.get("epochs", 1)))
    local = broad(**how)
    one, other = last(local, fed), last(replace(local, strategy="sequential"), fed)
    assert all(np.abs(one[n] - other[n]).max() < 1e-12 for n in one)
    assert trails_of(local)


def test_a_trail_has_room_for_clients_with_more_rows_or_gives_way_to_weights(uncompiled):
    """Rounds of few rows, of more (made anew), of too many, and of few again; none is another for what was before."""
    local, seen = broad(), []
    for size in (3, 7, 5, 60, 7):
        fed = wide([size] * 3 + [1], seed=size)
        one, other = last(local, fed), last(replace(local, strategy="sequential"), fed)
        assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)
        fresh = last(replace(local), fed)
        assert all(np.array_equal(one[n], fresh[n]) for n in one)
        seen.append([trail.up.shape[1] for trail in trails_of(local).values()])
    assert seen == [[4], [16], [16], [], [16]]


@pytest.mark.parametrize("how", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"proximal": 0.1}, {"optimiser": "adam"}])
def test_steps_that_look_at_the_weights_leave_no_trail(how, uncompiled):
    local, fed = broad(lr=0.05, **how), wide([4, 4, 4])
    one, other = last(local, fed), last(replace(local, strategy="sequential"), fed)
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)
    assert not any(p.traced for p in trainer_of(local).programs.values())


def test_each_client_that_is_asked_for_has_weights_of_its_own(uncompiled):
    local, fed = broad(), wide([4, 4, 4])
    one, other = (
        FedAvg(how).step(FedAvg(how).start(0), fed, Key(0))[0] for how in (local, replace(local, strategy="vmap"))
    )
    assert all(np.abs(one[n] - other[n]).max() < 1e-12 for n in one)
    assert list(trainer_of(local).programs) == [(0, False)]


def assert_sweeps_agree(local, fed, *, n_rounds):
    """Four settings side by side go through the numbers of clients one after the other."""
    settings = [Setting(lr=lr, seed=seed) for lr in (0.1, 0.7) for seed in (0, 1)]
    one, other = (
        rounds(Sweep(how, settings, initial="seed"), Local(fed, threads=1), n_rounds=n_rounds, measure=0)
        for how in (local, replace(local, strategy="sequential"))
    )
    for a, b in zip(one, other, strict=True):
        assert all(np.abs(a.state[n].astype(float) - b.state[n]).max() < 1e-12 for n in a.state)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [6, 3, 5, 1]])
def test_settings_of_a_sweep_read_the_weights_of_their_own_start(sizes, uncompiled):
    local, fed = broad(), wide(sizes)
    assert_sweeps_agree(local, fed, n_rounds=3)
    assert [len(common) for common in trainer_of(local).programs[0, True].common.values()] == [4]


@pytest.mark.parametrize("strategy", ["compiled", "vmap"])
@pytest.mark.parametrize("sizes", [[6] * 9, [6, 3, 5, 1, 2, 2, 4, 6, 1]])
def test_a_plan_made_ahead_is_the_plan_made_in_time(sizes, strategy, uncompiled, monkeypatch):
    local, fed, made = broad(strategy=strategy), wide(sizes), []
    how = {"n_rounds": 4, "sampler": FixedSize(4), "measure": 0}
    *_, want = rounds(FedAvg(local), Local(fed, threads=1), **how)
    monkeypatch.setattr(Trainer, "prefetches", True)
    plain = work_of
    monkeypatch.setattr(trainer, "work_of", lambda *a: made.append(a[-1].round) or plain(*a))
    *_, found = rounds(FedAvg(local), Local(fed, threads=1), **how)
    assert all(np.array_equal(want.state[n], found.state[n]) for n in want.state)
    assert made == sorted(made)  # none again in its own round
    assert len(made) == 4 or len(set(sizes)) > 1
    assert trainer_of(local)._prefetched is None


@pytest.mark.parametrize("strategy", ["compiled", "vmap"])
@pytest.mark.parametrize("sizes", [[6] * 9, [6, 3, 5, 1, 2, 2, 4, 6, 1]])
def test_a_sweep_draws_ahead_what_it_trains_on_and_nothing_else(sizes, strategy, uncompiled, monkeypatch):
    local, fed, drawn = broad(strategy=strategy), wide(sizes), []
    method = Sweep(local, [Setting(lr=lr, seed=seed) for lr in (0.1, 0.7) for seed in (3, 4)], initial="seed", begin=2)
    how = {"n_rounds": 4, "sampler": FixedSize(4), "measure": 0}
    *_, want = rounds(method, Local(fed, threads=1), **how)
    monkeypatch.setattr(Trainer, "prefetches", True)
    plain = work_of
    monkeypatch.setattr(trainer, "work_of", lambda *a: pytest.fail("drawn for one setting that is none of these"))
    monkeypatch.setattr(sweeps, "work_of", lambda *a: drawn.append((a[-1].round, a[-1].seed)) or plain(*a))
    *_, now = rounds(method, Local(fed, threads=1), **how)
    assert all(want.state[n].tobytes() == now.state[n].tobytes() for n in want.state)
    assert [r for r, _ in drawn] == sorted(r for r, _ in drawn)  # none again in its own round
    assert set(drawn) == {(r, seed) for r in (2, 3, 4, 5) for seed in (3, 4)}
    assert len(drawn) == 8 or len(set(sizes)) > 1
    assert trainer_of(local)._prefetched is None


def test_batches_drawn_for_one_computation_are_not_those_of_another():
    local, fed = broad(strategy="vmap"), wide([6, 3, 5, 1])
    one, other = (Sweep(local, [Setting(lr=0.1, seed=seed)]) for seed in (0, 1))
    want, state = FedAvg(local).total(FedAvg(local).start(0), fed, Key(0)), FedAvg(local).start(0)
    one.trainer.prefetch(fed, Key(0))
    assert all(np.array_equal(v, want[n]) for n, v in FedAvg(local).total(state, fed, Key(0)).items())
    want = other.total(other.start(0), fed, Key(0))
    one.trainer.prefetch(fed, Key(0))
    assert all(np.array_equal(v, want[n]) for n, v in other.total(other.start(0), fed, Key(0)).items())


class Replayed:
    """A recording without a GPU: what was given is copied, and the program runs on the copies; at first twice more."""

    def __init__(self, run, moved, place):
        self.run, self.moved, self.held = run, moved, None

    def __call__(self, *given):
        if self.held is None:
            self.held, before = [v.clone() for v in given], [v.clone() for v in self.moved]
            for _ in range(2):
                self.run(*self.held)
            for values, old in zip(self.moved, before, strict=True):
                values.copy_(old)
        for held, values in zip(self.held, given, strict=True):
            held.copy_(values)
        return self.run(*self.held)


@pytest.fixture
def replayed(monkeypatch, uncompiled):
    monkeypatch.setattr(program, "Recorded", Replayed)
    for place in (program, sys.modules["fedscape.learning.fast.trainers"]):
        monkeypatch.setattr(place, "records", lambda local: True)


@pytest.mark.parametrize(
    "how", [{}, {"momentum": 0.5}, {"optimiser": "adam", "lr": 0.01}, {"weights": "w"}, {"weight_decay": 0.1}], ids=str
)
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_a_round_that_comes_again_is_one_program(how, drop, replayed):
    rng, fed = np.random.default_rng(0), wide([4] * 7)
    fed = fed.with_column("w", rng.random(fed.n_rows))
    model = nn.Sequential(nn.Linear(60, 50), nn.Tanh(), nn.Dropout(drop), nn.Linear(50, 3)).double()
    local = LocalSGD(model, cross_entropy, **{"lr": 0.5, "epochs": 2, "batch_size": 2, "strategy": "compiled", **how})
    ends = []
    for one in (local, replace(local, strategy="vmap")):
        *_, end = rounds(FedAvg(one), Local(fed, threads=1), n_rounds=5, sampler=FixedSize(3), measure=0)
        ends.append(end.state)
    assert all(np.abs(ends[0][n] - ends[1][n]).max() < 1e-9 for n in ends[0])
    made = trainer_of(local).programs[0, True]
    assert len(made.wholes) == 1
    assert bool(made.traced) == (how in ({}, {"weights": "w"}))


@pytest.mark.parametrize("how", [{"proximal": 0.1}, {"early_stopping": 0.1}], ids=str)
def test_rounds_with_a_pull_or_an_end_of_their_own_go_step_by_step(how, replayed):
    local, fed = broad(epochs=2, **how), wide([4] * 5)
    one, other = last(local, fed), last(replace(local, strategy="vmap"), fed)
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)
    assert not any(p.wholes for p in trainer_of(local).programs.values())


def test_groups_whose_blocks_differ_share_a_recorded_round(replayed):
    """Clients of other sizes, in cohorts of as many, make the same steps."""
    local, fed = broad(epochs=None, steps=2), wide([4, 5, 6, 7, 8, 9, 10, 11])
    ends = []
    for how in (local, replace(local, strategy="vmap")):
        *_, end = rounds(FedAvg(how), Local(fed, threads=1), n_rounds=6, sampler=FixedSize(3), measure=0)
        ends.append(end.state)
    assert all(np.abs(ends[0][n] - ends[1][n]).max() < 1e-9 for n in ends[0])
    assert len(trainer_of(local).programs[0, True].wholes) == 1


@pytest.mark.parametrize("order", [(100, 20, 100), (20, 100, 20)])
def test_trails_are_the_same_whatever_number_of_rows_came_first(order, uncompiled):
    """Also across the number of rows from which a gradient is made as it is."""
    model = initialised(models.mlp(200, 400, 3), 0)
    local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=100, strategy="compiled")
    rng = np.random.default_rng(0)
    for size in order:
        x, y = rng.normal(size=(3 * size, 200)).astype(np.float32), rng.integers(0, 3, 3 * size)
        fed = Federation({"x": x, "y": y}, np.arange(4) * size)
        one, fresh = last(local, fed), last(replace(local), fed)
        assert all(np.array_equal(one[n], fresh[n]) for n in one)


def test_programs_that_are_made_anew_are_recorded_in_a_new_pool(replayed, monkeypatch):
    """A pool whose last recording is gone cannot be used again."""
    made = []
    monkeypatch.setattr(program, "new_pool", lambda: made.append(len(made)) or made[-1])
    local = broad()
    for size in (3, 7, 3):
        last(local, wide([size] * 3))
    mine = trainer_of(local).programs[0, True]
    assert len(made) == 0
    monkeypatch.setattr(LocalSGD, "on_gpu", True)
    mine._forget()
    mine._forget()
    assert (made, mine.pool) == ([0, 1], 1)


def test_cohorts_of_many_shapes_are_not_all_recorded(replayed, monkeypatch):
    monkeypatch.setattr(program, "ROUNDS", 2)
    local, fed = broad(), wide([4] * 9)
    for size in (3, 4, 5, 6, 3, 4, 5, 6):
        one, other = (last(how, fed.take(np.arange(size))) for how in (local, replace(local, strategy="vmap")))
        assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)
    assert len(trainer_of(local).programs[0, True].wholes) == 2


def test_settings_of_a_sweep_are_one_program_too(replayed):
    local, fed = broad(), wide([4] * 5)
    assert_sweeps_agree(local, fed, n_rounds=4)
    assert len(trainer_of(local).programs[0, True].wholes) == 1


def test_evaluating_meanwhile_takes_no_program_away(uncompiled):
    local = LocalSGD(models.mlp(6, 8, 3).double(), cross_entropy, lr=0.1, epochs=1, batch_size=4, strategy="compiled")
    last(local, ragged())
    before = dict(trainer_of(local).programs)
    with trainer_of(local).borrowed():
        last(local, ragged())
    assert trainer_of(local).programs == before


def test_a_compiler_that_makes_something_else_is_not_trusted(monkeypatch):
    def wrong(function, **_):
        def call(*arguments):
            made = function(*arguments)
            return (made[0] * 3, *made[1:]) if isinstance(made, tuple) else made

        return call

    monkeypatch.setattr(torch, "compile", wrong)
    local = LocalSGD(models.mlp(6, 8, 3).double(), cross_entropy, lr=0.1, epochs=1, batch_size=3, strategy="compiled")
    one, other = last(local, ragged()), last(replace(local, strategy="vmap"), ragged())
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9999)])
def test_steps_of_adam_counted_on_the_device_are_as_exact_as_those_counted_here(betas):
    local = LocalSGD(
        nn.Linear(3, 2), cross_entropy, lr=1.0, epochs=1, batch_size=3, optimiser="adam", betas=betas, epsilon=1e-30
    )
    moved = []
    for number in (2, torch.tensor(2.0)):
        p = [torch.zeros(2, 3)]
        update(local, p, [torch.ones(2, 3)], p, new_memory(local, p), number, Rates(1.0, 0.0))
        moved.append(p[0])
    assert torch.allclose(*moved, rtol=1e-6, atol=0.0)


def test_gradients_that_are_not_finite_settle_nothing():
    ones, other = {"w": torch.ones(3)}, {"w": torch.tensor([1.0, 1.0, 1.2])}
    assert agree(ones, ones)
    assert not agree(ones, other)
    assert agree(ones, other, within=0.2)
    assert not agree({"w": torch.tensor([float("nan")])}, {"w": torch.zeros(1)})
    lost, nan = {"w": torch.tensor([1.0, float("nan")])}, torch.tensor(float("nan"))
    assert agree(lost, lost)
    assert not agree(lost, {"w": torch.stack([nan, nan])})


@pytest.mark.parametrize("size", [1, 3, 5, 10, 23])
@pytest.mark.parametrize("timing", [Timing(1, None, 10), Timing(2, None, 7), Timing(None, 9, 4), Timing(None, 3, 100)])
def test_the_plan_of_clients_of_one_size_is_that_of_any(size, timing):
    """An empty client beside them keeps the general way."""
    keys, key = np.arange(5, dtype=np.uint64) + 9, Key(4, 2)
    alike = make_plan(Rows(keys[:4], 3 + size * np.arange(5)), key, timing)
    mixed = make_plan(Rows(keys, np.append(3 + size * np.arange(5), 3 + 4 * size)), key, timing)
    assert alike.counts.tolist() == mixed.counts[:4].tolist()
    assert alike.rows.tolist() == mixed.rows[:4].tolist()


@pytest.mark.parametrize("timing", [Timing(1, None, 10), Timing(2, None, 7), Timing(None, 9, 4), Timing(None, 3, 100)])
def test_a_plan_deals_the_rows_of_each_client_in_the_order_of_its_draws(timing):
    sizes = np.array([23, 10, 10, 7, 0, 1])
    clients = Rows(np.arange(6, dtype=np.uint64) + 9, np.append(0, np.cumsum(sizes)))
    plan, key = make_plan(clients, Key(4, 2), timing), Key(4, 2)
    for i, size in enumerate(sizes.tolist()):
        one, dealt, counts = Rows(clients.keys[i : i + 1], np.array([0, size])), [], timing.counts(size).tolist()
        while size and len(dealt) < len(counts):
            epoch = len(dealt) // -(-size // timing.batch_size)
            order = np.argsort(key.to(f"shuffle {epoch}").uniform_rows(one), kind="stable") + clients.offsets[i]
            dealt += [order[at : at + timing.batch_size].tolist() for at in range(0, size, timing.batch_size)]
        assert plan.counts[i].tolist() == counts + [0] * (plan.counts.shape[1] - len(counts))
        for step, count in enumerate(counts):
            assert plan.rows[i, step, :count].tolist() == dealt[step]
            assert (plan.rows[i, step, count:] == clients.offsets[i]).all()


def plain_groups(sizes, timing, most, padding=0.2):
    order = np.argsort(-sizes, kind="stable")
    made, counts = [], {n: timing.counts(int(n)) for n in set(sizes.tolist())}

    def computed(members):
        steps = [counts[int(sizes[m])] for m in members]
        table = np.stack([np.pad(c, (0, len(steps[0]) - len(c))) for c in steps])
        return int((table.max(axis=0) * (table > 0).sum(axis=0)).sum()), int(table.sum())

    for client in order[sizes[order] > 0].tolist():
        if made and len(made[-1]) < most:
            all_rows, real = computed([*made[-1], client])
            if all_rows <= (1 + padding) * real:
                made[-1].append(client)
                continue
        made.append([client])
    return made


@pytest.mark.parametrize("timing", [Timing(1, None, 3), Timing(3, None, 10), Timing(None, 8, 4), Timing(None, 1, 7)])
@pytest.mark.parametrize("most", [1, 4, 100])
def test_groups_are_those_of_a_plain_loop(timing, most):
    rng = np.random.default_rng(most)
    for law in (rng.integers(0, 50, 60), rng.integers(0, 3, 30), rng.geometric(0.03, 60), np.array([0]), np.array([5])):
        assert [g.tolist() for g in groups(law, timing, most=most)] == plain_groups(law, timing, most)


def test_groups_of_one_size_are_cut_by_number_alone():
    assert [g.tolist() for g in groups(np.array([4, 0, 4, 4]), Timing(1, None, 3), most=2)] == [[0, 2], [3]]


@pytest.mark.parametrize("few", [True, False])
def test_a_network_of_very_many_operations_is_not_compiled(monkeypatch, few):
    called = set()

    def compile_it(function, **_):
        def call(*arguments):
            called.add(function.__code__.co_name.split("_program")[0])
            return function(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", compile_it)
    if not few:
        monkeypatch.setattr(program, "MANY", 3)
    local = LocalSGD(models.mlp(6, 8, 3).double(), cross_entropy, lr=0.1, epochs=1, batch_size=3, strategy="compiled")
    found, want = last(local, ragged()), last(replace(local, strategy="vmap"), ragged())
    assert all(np.abs(found[n] - want[n]).max() < 1e-9 for n in found)
    assert "move" in called
    assert ("loss_of_all" in called) == few


class Watching(nn.Linear):
    """Stores what it sees, which is a wrapper of torch.func that no compiled code can give back."""

    def forward(self, x):
        self.seen = x
        return super().forward(x)


def test_a_model_that_the_compiler_fails_on_is_trained_uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), Watching(5, 3)).double()
    local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=3, strategy="compiled")
    one, other = last(local, ragged()), last(replace(local, strategy="vmap"), ragged())
    assert all(np.abs(one[n] - other[n]).max() < 1e-9 for n in one)
