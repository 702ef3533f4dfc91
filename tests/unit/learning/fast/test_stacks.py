"""Stacks of linear layers: a gradient written out gives the numbers of autograd, and anything else is left to it."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedscape import DataError, Federation, Key, Local, rounds
from fedscape.core.blocks import Answer
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, logistic, models, squared_error, standardising, sweep
from fedscape.learning.batches import work_of
from fedscape.learning.branches import BranchLoss, MeanOfBranches, MultiBranch
from fedscape.learning.evaluation import tensors_of
from fedscape.learning.fast import stack_steps as under_test
from fedscape.learning.fast import trainers
from fedscape.learning.fast.stacks import checked_stack, stack_of
from fedscape.learning.layers import initialised
from fedscape.learning.optimisers import Rates
from fedscape.learning.sweeps import grid
from fedscape.learning.trainer import train, trainer_of

SIZES = [7, 2, 0, 11, 1, 4, 10, 8, 3]


def federation(shape=(6,), n_classes=3, *, dtype=np.float64, seed=0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(SIZES)))
    x = rng.integers(0, 256, (offsets[-1], *shape)) if dtype == np.uint8 else rng.normal(size=(offsets[-1], *shape))
    return Federation({"x": x.astype(dtype), "y": rng.integers(0, n_classes, offsets[-1])}, offsets)


def trained(local: LocalSGD, fed: Federation, *, threads=2) -> dict[str, np.ndarray]:
    return [r.state for r in rounds(FedAvg(local), Local(fed, threads=threads), n_rounds=3, seed=5, measure=0)][-1]


def assert_agree(a, b, tolerance=1e-9):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=name)


def step(model, loss=cross_entropy, **settings) -> LocalSGD:
    return LocalSGD(model, loss, **{"lr": 0.1, "epochs": 2, "batch_size": 4, **settings})


def assert_as_plain(local: LocalSGD, fed: Federation, tolerance=1e-9):
    assert trainer_of(local).strategy == "stacked"
    assert_agree(trained(local, fed), trained(replace(local, strategy="vmap"), fed), tolerance)


def frozen(model: nn.Sequential, *names: str) -> nn.Sequential:
    for name, p in model.named_parameters():
        p.requires_grad_(name not in names)
    return model


MODELS = {
    "itself a layer": nn.Linear(6, 3),
    "without bias": nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)),
    "wide, nested": nn.Sequential(nn.Sequential(nn.Linear(6, 70), nn.ReLU()), nn.Identity(), nn.Linear(70, 3)),
    "deep": nn.Sequential(
        nn.Flatten(), nn.Linear(6, 66), nn.Sigmoid(), nn.Dropout(0.0), nn.Linear(66, 65), nn.Tanh(), nn.Linear(65, 3)
    ),
    "no activation between": nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)),
    "an activation last": nn.Sequential(nn.Linear(6, 3), nn.Tanh()),
    "a frozen layer": frozen(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "0.weight", "0.bias"),
    "a frozen bias": frozen(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "0.bias"),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_stack_trains_as_any_model_does(model):
    model = initialised(model, 1)
    assert_as_plain(step(copy.deepcopy(model).double()), federation())
    assert_as_plain(step(model.float()), federation(), 1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.2},
        {"proximal": 0.5},
        {"proximal": 0.5, "weight_decay": 0.2},
        {"momentum": 0.9},
        {"momentum": 0.5, "proximal": 0.5, "weight_decay": 0.2},
        {"epochs": None, "steps": 5},
        {"batch_size": 1},
        {"batch_size": 100},
    ],
)
@pytest.mark.parametrize("weights", [None, "w"])
def test_every_setting_is_that_of_any_model(settings, weights):
    fed = federation()
    fed = fed.with_column("w", np.random.default_rng(1).random(fed.n_rows))
    assert_as_plain(step(models.mlp(6, 70, 3).double(), weights=weights, **settings), fed)


def test_every_loss_has_its_gradient():
    fed, linear = federation(n_classes=2), initialised(nn.Linear(6, 1), 0).double()
    assert_as_plain(step(linear, logistic), fed)
    assert_as_plain(step(linear, squared_error), fed)
    two = fed.with_column("y", np.random.default_rng(2).normal(size=(fed.n_rows, 2)))
    assert_as_plain(step(initialised(nn.Linear(6, 2), 0).double(), squared_error), two)
    assert_as_plain(step(initialised(nn.Linear(6, 3), 0).double(), nn.CrossEntropyLoss(reduction="none")), federation())


@pytest.mark.parametrize(("strength", "smoothing"), [(0.0, 0.0), (0.0, 0.3), (0.5, 0.0), (0.5, 0.3)])
@pytest.mark.parametrize("contrasted", [False, True])
def test_branches_with_their_loss_have_its_gradient(strength, smoothing, contrasted):
    fed, rng = federation(), np.random.default_rng(4)
    numbers = rng.random((fed.n_rows, 9 if contrasted else 3))
    fed = fed.with_column("y", np.concatenate([fed["y"][:, None], numbers], axis=1))
    loss = BranchLoss(strength, smoothing)
    for net in (models.mlp(6, 70, 3), initialised(nn.Linear(6, 3, bias=False), 2)):
        assert_as_plain(step(MultiBranch(net, n_branches=3).double(), loss, momentum=0.5, proximal=0.1), fed)


def test_outputs_of_branches_are_computed_by_one_thread(monkeypatch):
    """As everything else is: sums of other threads are other sums."""
    local, seen, right = (
        step(MultiBranch(models.mlp(6, 70, 3), n_branches=3), BranchLoss()),
        [],
        trainers.outputs_of_branches,
    )
    noted = lambda *given: seen.append(torch.get_num_threads()) or right(*given)  # noqa: E731
    monkeypatch.setattr(trainers, "outputs_of_branches", noted)
    params, before = {n: p.detach() for n, p in local.model.named_parameters()}, torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert trainer_of(local).outputs(params, torch.ones(4, 6)).shape == (4, 3, 3)
    finally:
        torch.set_num_threads(before)
    assert seen == [1]


def test_the_mean_of_branches_has_its_gradient_and_other_branches_are_left_to_autograd():
    fed, net = federation(), MultiBranch(models.mlp(6, 70, 3))
    assert_as_plain(step(MeanOfBranches(net).double()), fed)
    assert stack_of(net, cross_entropy) is None  # outputs of all branches: no classes
    assert stack_of(MeanOfBranches(net), BranchLoss()) is None
    assert stack_of(MultiBranch(nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3))), BranchLoss()) is None
    assert stack_of(MultiBranch(models.mlp(6, 70, 3), "1"), BranchLoss()) is None  # more layers after the branches
    still = frozen(MultiBranch(models.mlp(6, 5, 3)).double(), "net.3.each.1.bias")
    coded = fed.with_column("y", np.concatenate([fed["y"][:, None], np.full((fed.n_rows, 2), 0.5)], axis=1))
    assert_as_plain(step(still, BranchLoss()), coded)


def test_bytes_images_and_standardised_inputs_are_taken_as_the_model_takes_them():
    for dtype, tolerance in ((np.uint8, 1e-9), (np.float32, 1e-9), (np.int64, 1e-9)):
        fed = federation((2, 3), dtype=dtype)
        assert_as_plain(step(models.mlp(6, 5, 3).double()), fed, tolerance)
        assert_as_plain(step(standardising(models.linear(6, 3).double(), fed)), fed, tolerance)
    flat = federation()
    assert_as_plain(step(standardising(initialised(nn.Linear(6, 3), 0).double(), flat)), flat)


def test_rows_sums_and_parameters_that_stay_are_those_of_any_model():
    fed, local = federation(), step(models.mlp(6, 70, 3).double(), momentum=0.5)
    start, positions = tensors_of(local, local.parameters()), np.argsort(-fed.sizes, kind="stable")[:8]
    work = work_of(local, trainer_of(local).data(fed), fed, positions, Key(3))
    own = {n: p + 0.1 * torch.randn((8, *p.shape[1:]), dtype=p.dtype) for n, p in start.items()}
    rates = Rates(torch.linspace(0.01, 0.2, 8).double(), torch.linspace(0.0, 1.0, 8).double())
    plain = replace(local, strategy="vmap")
    for given in ((own, work, rates), (own, work, rates, start), (start, work, Rates(0.1, 0.0))):
        for still in ((), ("1.weight", "1.bias"), ("3.weight",)):
            rows, wanted = (train(way, *given, still=still) for way in (local, plain))
            assert_agree(rows, wanted)
            assert all(not rows[name].any() for name in still)
            sums = train(local, *given, still=still, weights=np.arange(8.0))
            assert_agree(sums, {n: np.tensordot(np.arange(8.0), p.numpy(), 1) for n, p in wanted.items()})


def test_a_few_clients_at_a_time_are_all_of_them(monkeypatch):
    local, fed = step(models.mlp(6, 70, 3).double(), proximal=0.2, momentum=0.5), federation()
    whole = trained(local, fed)
    monkeypatch.setattr(under_test, "IN_CACHE", 2000)
    assert_agree(whole, trained(local, fed))


def test_threads_do_not_change_a_byte(monkeypatch):
    monkeypatch.setattr(FedAvg, "block_clients", 2)
    local, fed = step(models.mlp(6, 70, 3)), federation()
    one, four = (trained(local, fed, threads=threads) for threads in (1, 4))
    assert all(one[n].tobytes() == four[n].tobytes() for n in one)


def test_a_gradient_that_is_not_the_models_is_found_out(monkeypatch):
    model = models.mlp(6, 5, 3).double()
    assert checked_stack(model, cross_entropy) is not None
    monkeypatch.setattr(under_test, "back_through", lambda grad, output, kind: grad)
    assert checked_stack(model, cross_entropy) is None
    local, fed = step(model), federation()
    assert trainer_of(local).strategy == "vmap"
    assert_agree(trained(local, fed), trained(replace(local, strategy="sequential"), fed))


def hooked() -> nn.Module:
    model = models.mlp(6, 5, 3)
    model[1].register_forward_hook(lambda *_: None)
    return model


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer)


class Own(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


OTHERS = {
    "another layer": nn.Sequential(nn.Linear(6, 3), nn.GELU()),
    "dropout": nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
    "a hook": hooked(),
    "a layer twice": tied(),
    "a class of its own": Own(nn.Linear(6, 3)),
    "flattened later": nn.Sequential(nn.Linear(6, 3), nn.Flatten()),
    "flattened in part": nn.Sequential(nn.Flatten(1, 2), nn.Linear(6, 3)),
    "half precision": nn.Linear(6, 3).bfloat16(),
    "two types": nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3).double()),
    "layers that do not meet": nn.Sequential(nn.Linear(6, 4), nn.Linear(5, 3)),
}


@pytest.mark.parametrize("model", OTHERS.values(), ids=OTHERS)
def test_other_models_are_no_stacks(model):
    assert stack_of(model, cross_entropy) is None


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="none", ignore_index=1),
        nn.CrossEntropyLoss(reduction="none", weight=torch.ones(3)),
        nn.CrossEntropyLoss(),
        lambda output, target: functional.cross_entropy(output, target, reduction="none"),
        logistic,
    ],
)
def test_other_losses_are_left_to_autograd(loss):
    assert stack_of(nn.Linear(6, 3), loss) is None


def test_other_ways_to_train_are_left_to_autograd():
    for settings in ({"optimiser": "adam"}, {"early_stopping": 0.1}, {"strategy": "vmap"}, {"strategy": "sequential"}):
        assert trainer_of(step(models.linear(6, 3), **settings)).strategy in ("vmap", "sequential")
    assert trainer_of(step(models.cnn((1, 8, 8), 3), strategy="stacked")).strategy == "sequential"
    assert trainer_of(step(models.linear(6, 3), strategy="stacked")).strategy == "stacked"


def test_rows_that_a_stack_does_not_take_are_the_models_business():
    fed, local = federation(), step(initialised(nn.Linear(6, 3), 0).double())
    with pytest.raises(DataError, match="'y' holds a class that the model has no output for"):
        trained(local, fed.with_column("y", np.full(fed.n_rows, 3)))
    some = np.where(np.arange(fed.n_rows) % 3 == 0, -100, fed["y"])  # torch leaves these rows out
    assert_as_plain(local, fed.with_column("y", some))
    said = []
    for strategy in ("auto", "vmap"):
        with pytest.raises(DataError, match=r"does not take rows of 'x' of shape \[5\]") as error:
            trained(replace(local, strategy=strategy), federation((5,)))
        said.append(str(error.value))
    assert said[0] == said[1]


def test_a_sweep_trains_stacks_under_rates_of_their_own():
    fed, model = federation(), models.mlp(6, 70, 3).double()
    settings = grid(lr=[0.01, 0.1], proximal=[0.0, 0.3], seeds=[0, 1])
    found = [sweep(step(model, strategy=s), fed, settings, n_rounds=2, validation=fed) for s in ("stacked", "vmap")]
    losses = [{trial.setting: trial.loss for trial in trials} for trials in found]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_blocks_are_added_without_touching_what_they_gave():
    blocks = [{"a": np.full(3, float(i)), "n": np.asarray(i)} for i in range(1, 5)]
    answer = Answer()
    for block in blocks:
        answer.add(Answer(dict(block)))
    assert answer.sent["a"].tolist() == [10.0] * 3
    assert int(answer.sent["n"]) == 10
    assert [block["a"].tolist() for block in blocks] == [[float(i)] * 3 for i in range(1, 5)]


def test_rows_and_targets_that_the_model_refuses_are_refused():
    fed = federation()
    column = fed.with_column("y", (fed["y"] % 2)[:, None].astype(float))
    flat = fed.with_column("x", fed["x"][:, 0])
    for data, local in [
        (column, step(nn.Sequential(nn.Linear(6, 1)).double(), logistic)),
        (flat, step(nn.Sequential(nn.Flatten(), nn.Linear(1, 3)).double())),
    ]:
        for strategy in ("vmap", "stacked"):
            with pytest.raises((DataError, ValueError, IndexError)):
                trained(replace(local, strategy=strategy), data)
