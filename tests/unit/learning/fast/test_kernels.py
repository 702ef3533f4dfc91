"""Kernels for a GPU: each does what its plain twin does, and networks call them with the right arguments."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import plain_kernels
import pytest
import torch
from torch import nn

from fedscape import Federation, Local
from fedscape import rounds as fs_rounds
from fedscape.learning import Adapted, FedAvg, LocalSGD, cross_entropy, models
from fedscape.learning.fast import admission, agreement, folded, forms, program, sequences
from fedscape.learning.fast.gradients import in_one_batch
from fedscape.learning.layers import RectifiedNorm, trainable_copy

NETWORKS = {
    "cnn": (lambda: models.cnn((1, 8, 8), 3), (8, 8), {"drop", "pool"}),
    "lenet5": (lambda: models.lenet5((1, 28, 28), 3), (28, 28), {"pool"}),
    "lstm": (lambda: models.char_lstm(7, embedding=3, hidden=4), (5,), {"recur"}),
    "transformer": (lambda: models.transformer(7, width=8, heads=2, length=20), (20,), {"attention"}),
    "adapters": (lambda: adapters(), (20,), {"adapted", "attention"}),
    "resnet18": (lambda: models.resnet18((3, 16, 16), 3, width=8), (16, 16, 3), {"norm"}),
    "mobilenet_v2": (
        lambda: models.mobilenet_v2((3, 32, 32), 3, width=0.25),
        (32, 32, 3),
        {"norm", "depthwise", "moving"},
    ),
}


CODES = ("lstm", "transformer", "adapters")  # networks of codes


def adapters(**how):
    """As they begin, adding nothing."""
    return Adapted(models.transformer(7, width=8, layers=1, heads=2, length=20, causal=False), 2, alpha=3.0, **how)


def as_kernels(monkeypatch):
    """The plain twins stand in for kernels, on any tensor; the names of those that were called."""
    called = set()

    def standing_in(owner, name, twin):
        def call(*arguments, **named):
            called.add(twin)
            return getattr(plain_kernels, twin)(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    monkeypatch.setattr(forms, "runs_kernels", lambda x: x.is_floating_point())
    standing_in(folded.norms, "norm", "norm")
    standing_in(folded.pooling, "pool", "pool")
    standing_in(folded.recurrence, "recur", "recur")
    standing_in(folded.depthwise, "convolve", "depthwise")
    standing_in(folded, "drop", "drop")
    standing_in(folded.moving, "convolve", "moving")
    standing_in(sequences, "adapted", "adapted")
    standing_in(sequences, "attention", "attention")
    monkeypatch.setattr(sequences, "attends", lambda *_, **__: True)
    return called


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_kernels_has_the_gradients_of_one_without(name, monkeypatch):
    make, shape, kernels = NETWORKS[name]
    torch.manual_seed(0)
    local = LocalSGD(make().double(), cross_entropy, lr=0.1, epochs=1, batch_size=4)
    rng, module = np.random.default_rng(0), trainable_copy(local.model)
    trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
    params = {n: p + 0.1 * torch.randn(3, *p.shape, dtype=p.dtype) for n, p in trained.items()}
    dropping = [n for n, m in module.named_modules() if type(m).__name__ == "KeyedDropout" and m.p > 0]
    random = {f"{n}.key": torch.randint(1, 999, (3, 2), dtype=torch.int32) for n in dropping}
    x = rng.integers(0, 7, (3, 4, *shape)) if name in CODES else rng.normal(size=(3, 4, *shape))
    batch = (params, random, torch.tensor(x), torch.tensor(rng.integers(0, 3, (3, 4))), torch.full((3, 4), 0.25))
    want, _ = in_one_batch(local, folded.folded(module, kernels=False))(*batch)
    called = as_kernels(monkeypatch)
    found, _ = in_one_batch(local, folded.folded(module))(*batch)
    assert called == kernels
    for n, gradient in want.items():
        assert torch.allclose(found[n], gradient, rtol=1e-7, atol=1e-9 * float(gradient.abs().max() + 1)), n


@pytest.mark.parametrize("frozen", ["", "down"])
@pytest.mark.parametrize("bias", [True, False])
def test_adapted_layers_in_fewer_passes_are_what_their_twin_is(bias, frozen):
    torch.manual_seed(0)
    rows, weight, down, up = (
        torch.randn(*shape, dtype=torch.float64)
        for shape in ((3, 7, 5), (1, 6, 5), (1 if frozen else 3, 2, 5), (3, 6, 2))
    )
    shift = torch.randn(1, 6, dtype=torch.float64) if bias else None
    leaves = [v.requires_grad_() for v in ([rows, up] if frozen else [rows, up, down])]
    along, both = torch.randn(3, 7, 6, dtype=torch.float64), []
    for way in (sequences.adapted, plain_kernels.adapted):
        output = way(rows, weight, shift, down, up, 1.5)
        both.append([output, *torch.autograd.grad(output, leaves, along)])
    for one, other in zip(*both, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_adapted_weights_that_are_trained_as_well_have_the_plain_form(monkeypatch):
    called, net = as_kernels(monkeypatch), adapters(also=["up"], layers=["up"])
    twin = folded.folded(trainable_copy(net))
    params = {
        n: p.detach().expand(2, *p.shape) if p.requires_grad else p.detach()[None] for n, p in twin.named_parameters()
    }
    torch.func.functional_call(twin, params, (torch.randint(0, 7, (8, 20)),))
    assert "adapted" not in called


def test_rectifiers_go_into_the_norm_or_pool_before_them_and_nowhere_else():
    layers = nn.Sequential(
        *(nn.GroupNorm(1, 2), nn.ReLU6(), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.ReLU()),
        *(nn.GroupNorm(1, 2), nn.Tanh(), nn.MaxPool2d(2), nn.ReLU6()),
    )
    twin = folded.folded(layers)
    assert (twin[0].lowest, twin[0].highest, twin[2].rectified, twin[6].lowest, twin[8].rectified) == (
        *(True, 6.0, True),
        *(False, False),
    )
    assert [type(twin[i]).__name__ for i in (1, 3, 5, 9)] == ["Identity", "Identity", "ReLU", "ReLU6"]
    x = 9 * torch.randn(3, 2, 8, 8)
    params = {n: p[None] for n, p in layers.named_parameters()}
    assert torch.allclose(torch.func.functional_call(twin, params, (x,)), layers(x), atol=1e-6)


def test_a_pool_that_is_not_two_by_two_stays():
    for pool in (
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
    ):
        assert isinstance(folded.folded(nn.Sequential(nn.Conv2d(1, 1, 1), pool))[1], nn.MaxPool2d)


def test_a_rectified_norm_is_a_norm_a_sum_and_a_rectifier():
    layer, x, beside = RectifiedNorm(2, 4), torch.randn(3, 4, 5, 5), torch.randn(3, 4, 5, 5)
    plain = nn.GroupNorm(2, 4)(x)
    assert torch.equal(layer(x), plain.relu())
    assert torch.equal(layer(x, beside), (plain + beside).relu())


WRONG = {  # a network, a kernel, and how it is wrong
    "norm": ("resnet18", "norm", lambda right: lambda x, beside, *a, **how: right(x, beside, *a, **how) * 1.001),
    "sum": (
        "resnet18",
        "norm",
        lambda right: lambda x, b, *a, **how: right(x, None if b is None else 1.01 * b, *a, **how),
    ),
    "pool": ("lenet5", "pool", lambda right: lambda x, **how: right(x, **how) * 1.001),
    "drop": ("cnn", "drop", lambda right: lambda x, *a, **how: right(x, *a, **how) * 1.001),
    "cells": ("lstm", "recur", lambda right: lambda driven, weight, *a: right(driven, 1.01 * weight, *a)),
    "adapted": ("adapters", "adapted", lambda right: lambda x, w, b, d, up, *a: right(x, w, b, d, 1.01 * up, *a)),
    "twice": ("adapters", "adapted", lambda right: lambda x, w, b, d, up, *a: right(x, w, b, d, 2 * up, *a)),
    "attention": ("transformer", "attention", lambda right: lambda q, *a, **how: right(1.01 * q, *a, **how)),
    "depthwise": ("mobilenet_v2", "depthwise", lambda right: lambda x, w, *a: right(x, 1.001 * w, *a)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_kernel_that_is_wrong_is_not_admitted(what, monkeypatch):
    """Its layer is compared with torch's own, also where little else of the network says so."""
    name, kernel, wrong = WRONG[what]
    make, shape, _ = NETWORKS[name]
    local = LocalSGD(make(), cross_entropy, lr=0.1, epochs=1, batch_size=4)
    module = trainable_copy(local.model)
    params = {n: p.detach().expand(2, *p.shape).clone() for n, p in module.named_parameters() if p.requires_grad}
    dropping = [n for n, m in module.named_modules() if type(m).__name__ == "KeyedDropout" and m.p > 0]
    random = {f"{n}.key": torch.randint(1, 999, (2, 2), dtype=torch.int32) for n in dropping}
    x = torch.randint(0, 7, (2, 4, *shape)) if name in CODES else torch.rand(2, 4, *shape)
    batch = program.Batch(x, torch.zeros(2, 4, dtype=torch.int64), torch.full((2, 4), 0.25), random)

    def has_kernels():
        twin = admission.foldable(local, module, params, batch)
        return {layer.how.kernels for layer in twin.modules() if hasattr(layer, "how")}

    as_kernels(monkeypatch)
    monkeypatch.setattr(admission, "runs_kernels", lambda x: True)
    assert has_kernels() == {True}
    monkeypatch.setattr(plain_kernels, kernel, wrong(getattr(plain_kernels, kernel)))
    assert has_kernels() == {False}


def mixed():
    """Layers that can take their own step, and others."""
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False), nn.Conv2d(8, 6, 2, bias=False), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(12, 5))


def trained(local, rounds=3, sizes=(10, 8, 12, 3)):
    """The state after a few rounds of clients of unequal sizes."""
    rng, rows = np.random.default_rng(0), sum(sizes)
    x, y = rng.normal(size=(rows, 3, 7, 6)).astype(np.float32), rng.integers(0, 5, rows)
    fed = Federation({"x": x, "y": y}, np.append(0, np.cumsum(sizes)))
    method = FedAvg(local)
    *_, last = fs_rounds(method, Local(fed, threads=1), n_rounds=rounds, measure=0)
    return {n: np.array(v) for n, v in last.state.items()}


def stepping_layers(monkeypatch):
    """Plain twins stand in for kernels, also where they are admitted; what `_self_moving` answers."""
    as_kernels(monkeypatch)
    monkeypatch.setattr(admission, "runs_kernels", lambda x: True)
    monkeypatch.setattr(folded, "can_convolve", lambda x, kernel, stride, padding: kernel != (1, 1))
    answers, ask = [], program.Program._self_moving

    def asked(self, *arguments):
        answers.append(ask(self, *arguments))
        return answers[-1]

    monkeypatch.setattr(program.Program, "_self_moving", asked)
    return answers


def test_layers_that_take_their_own_step_end_where_their_gradients_lead(monkeypatch):
    local = LocalSGD(mixed(), cross_entropy, lr=0.1, epochs=2, batch_size=4, strategy="recorded")
    want = trained(replace(local, strategy="sequential"))
    answers = stepping_layers(monkeypatch)
    found = trained(replace(local))
    assert answers
    assert {path for a in answers for path in a} == {"0", "2", "3", "5", "6"}
    for name, values in want.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"optimiser": "adam"}])
def test_only_plain_steps_are_taken_by_layers_themselves(how, monkeypatch):
    answers = stepping_layers(monkeypatch)
    trained(LocalSGD(mixed(), cross_entropy, lr=0.01, epochs=1, batch_size=4, strategy="recorded", **how), rounds=1)
    assert answers
    assert not any(answers)


@pytest.mark.parametrize(("kernel", "right_ones"), [("convolution", "35"), ("norm", "0256"), ("depthwise", "0236")])
def test_layers_whose_own_step_is_wrong_do_not_take_it(kernel, right_ones, monkeypatch):
    answers = stepping_layers(monkeypatch)
    owner, name = {
        "convolution": (folded.moving, "convolve"),
        "norm": (folded.norms, "norm"),
        "depthwise": (folded.depthwise, "convolve"),
    }[kernel]
    right = getattr(owner, name)

    def wrong(*arguments, **named):
        faster = lambda rates: None if rates is None else 1.001 * rates  # noqa: E731
        if kernel == "convolution":
            x, weight, bias, step, how = arguments
            arguments = x, weight, bias, step and step._replace(rates=faster(step.rates)), how
        elif kernel == "norm":
            named["rates"] = faster(named["rates"])
        else:
            arguments = (*arguments[:-1], faster(arguments[-1]))
        return right(*arguments, **named)

    monkeypatch.setattr(owner, name, wrong)
    trained(LocalSGD(mixed(), cross_entropy, lr=0.1, epochs=1, batch_size=4, strategy="recorded"), rounds=1)
    assert answers
    assert all(set(answer) == set(right_ones) for answer in answers)


class Residual(nn.Module):
    """A block that at first adds nothing, so that its convolution has no gradient."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 3, 3, padding=1), nn.GroupNorm(1, 3), nn.Linear(126, 5)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        return self.out((x + self.norm(self.conv(x))).flatten(1))


def steps_that(monkeypatch, does):
    """The own steps of convolutions take the rates that this answers from their images and rates."""
    right = folded.moving.convolve

    def convolve(x, weight, bias, step, how):
        return right(x, weight, bias, step and step._replace(rates=does(x, step.rates)), how)

    monkeypatch.setattr(folded.moving, "convolve", convolve)


@pytest.mark.parametrize("still", [False, True])
def test_a_kernel_that_does_nothing_is_not_right_where_the_first_gradient_is_zero(still, monkeypatch):
    local = LocalSGD(Residual(), cross_entropy, lr=0.1, epochs=2, batch_size=4, strategy="recorded")
    want, answers = trained(replace(local, strategy="sequential")), stepping_layers(monkeypatch)
    if still:
        steps_that(monkeypatch, lambda _, rates: 0 * rates)
    found = trained(local)
    assert answers
    assert all(set(answer) == ({"norm"} if still else {"conv", "norm"}) for answer in answers)
    for name, values in want.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_layer_whose_own_step_fails_takes_none(monkeypatch):
    def fail(x, rates):
        raise RuntimeError("too large a tile")

    answers = stepping_layers(monkeypatch)
    steps_that(monkeypatch, fail)
    trained(LocalSGD(mixed(), cross_entropy, lr=0.1, epochs=1, batch_size=4, strategy="recorded"), rounds=1)
    assert answers
    assert all(set(answer) == {"3", "5"} for answer in answers)


def test_own_steps_are_tested_again_for_each_kind_of_batch(monkeypatch):
    """A kernel that is right for the first batches alone moves the weights with those alone."""
    local = LocalSGD(mixed(), cross_entropy, lr=0.1, epochs=2, batch_size=4, strategy="recorded")
    answers = stepping_layers(monkeypatch)
    want, kinds = trained(replace(local), sizes=[9, 3] * 10), []
    answers.clear()
    steps_that(
        monkeypatch, lambda x, rates: rates if len(x) == (kinds or kinds.append(len(x)) or kinds)[0] else 0 * rates
    )
    found = trained(local, sizes=[9, 3] * 10)
    assert {"".join(sorted(answer)) for answer in answers} == {"02356", "35"}
    for name, values in want.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


class Chunks(nn.Module):
    """Looks at other rows, four at a time."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.cat([c - c.mean(dim=0) for c in x.split(4)]))


@pytest.mark.parametrize("share", [[0.1] * 10, [0.0] * 9 + [1.0], [0.0] * 10], ids=["all", "one", "none"])
def test_a_model_that_mixes_rows_is_not_folded_whatever_they_count(share):
    local = LocalSGD(Chunks(), cross_entropy, lr=0.1, epochs=1, batch_size=10)
    params = {n: p.detach().expand(3, *p.shape).clone() for n, p in local.model.named_parameters()}
    batch = program.Batch(torch.randn(3, 10, 6), torch.zeros(3, 10, dtype=torch.int64), torch.tensor([share] * 3), {})
    assert admission.foldable(local, trainable_copy(local.model), params, batch) is None


@pytest.mark.parametrize("factors", ["both", "up"])
def test_adapters_are_folded(factors):
    net = Adapted(models.mlp(6, 8, 3), rank=2, factors=factors)
    local = LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=4)
    params = {n: p.detach() + torch.randn(3, *p.shape) for n, p in net.named_parameters() if p.requires_grad}
    batch = program.Batch(torch.randn(3, 4, 6), torch.zeros(3, 4, dtype=torch.int64), torch.full((3, 4), 0.25), {})
    assert admission.foldable(local, trainable_copy(net), params, batch) is not None


def test_attention_goes_to_its_kernel_where_queries_keys_and_values_have_one_shape():
    long, short = torch.zeros(2, 9, 8), torch.zeros(2, 5, 8)
    assert sequences.attends(long, long, long, 2, torch.float32, exact=False)
    assert not sequences.attends(long, long, long, 2, torch.float32, exact=True)
    assert not sequences.attends(long, short, short, 2, torch.float32, exact=False)
    assert not sequences.attends(long, long, long[..., :4], 2, torch.float32, exact=False)


def test_biases_whose_gradients_cancel_do_not_settle_it():
    """The key's bias of attention has no gradient but rounding; a wrong one that has is noticed."""
    exact, other = torch.full((2, 3), 1e-8), torch.full((2, 3), 1e-3)
    assert agreement._is_near(exact, other, 0.015, 1.0)
    assert not agreement._is_near(torch.ones(2, 3), 1.1 * torch.ones(2, 3), 0.015, agreement.CANCELS)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, whose interpreter has no GPU")
def test_kernels_give_what_their_twins_give():
    script = """
    import torch
    from fedscape.learning.fast.triton import convolutions, depthwise, norms, pooling, recurrence, sequences, sums
    import plain_kernels as plain
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    r = lambda *shape: torch.randn(*shape, device=device)
    def near(a, b):
        assert (a.double() - b.double()).norm() <= 1e-4 * b.double().norm() + 1e-9
    def back(y, *leaves):
        along = torch.randn(y.shape, dtype=y.dtype, device=device)
        return along.float(), torch.autograd.grad(y, leaves, along)
    def leaves(*values):
        return [v.double().requires_grad_() for v in values]
    seen = set()
    for clients, batch, h, w, c, out, kernel, padding, stride in [*CASES, (1, 2, 18, 17, 3, 4, (3, 3), (1, 1), (1, 1))]:
        x, weight, bias = r(clients * batch, h, w, c), r(clients, out, *kernel, c), r(clients, out)
        xs, ws, bs = leaves(x, weight, bias)
        want = plain.convolve(xs, ws, bs, padding, stride)
        near(convolutions.convolve(x, weight, bias, padding, stride, "ieee"), want)
        along, grads = back(want, xs, ws, bs)
        near(convolutions.to_images(along, weight, (h, w), padding, stride, "ieee"), grads[0])
        for a, b in zip(convolutions.to_weights(x, along, clients, kernel, padding, stride, "ieee"), grads[1:]):
            near(a, b)
        rates, short = r(clients), torch.empty_like(weight, dtype=torch.bfloat16)
        convolutions.move(x, along, weight, bias, rates, short, padding, stride, "ieee")
        near(weight, ws - rates.double().reshape(-1, 1, 1, 1, 1) * grads[1])
        near(bias, bs - rates.double()[:, None] * grads[2])
        assert (short - weight).norm() <= 2**-7 * weight.norm()  # the interpreter cuts digits off
        for biased in (True, False):
            weight, bias = ws.detach().float(), bs.detach().float()
            convolutions.move(x, along, weight, bias if biased else None, rates, None, padding, stride, "ieee")
            near(weight, ws - rates.double().reshape(-1, 1, 1, 1, 1) * grads[1])
            near(bias, bs - rates.double()[:, None] * grads[2] if biased else bs)
        seen.add(convolutions._parts(x, along, clients, kernel, "ieee")[1])
    assert seen == {1, 2}
    for h, w, c, kernel, padding, stride in [
        *((7, 6, 5, (3, 3), (1, 1), (1, 1)), (8, 9, 40, (3, 2), (1, 0), (2, 1))),
        *((9, 8, 70, (3, 3), (0, 1), (2, 1)), (24, 24, 3, (3, 3), (1, 1), (1, 1))),
        *((7, 6, 5, (3, 3), (2, 2), (1, 1)), (6, 7, 5, (3, 3), (2, 0), (2, 2)), (7, 6, 5, (3, 3), (0, 2), (1, 2))),
    ]:
        x, weight = r(4, h, w, c), r(2, *kernel, c)
        xs, ws = leaves(x, weight)
        want = plain.depthwise(xs, ws, None, padding, stride)
        near(depthwise.forward(x, weight, None, padding, stride), want)
        along, grads = back(want, xs, ws)
        near(depthwise.to_images(along, weight, (h, w), padding, stride), grads[0])
        weights, biases = depthwise.to_weights(x, along, 2, kernel, padding, stride)
        near(weights.sum(dim=1), grads[1])
        near(biases.sum(dim=1), along.unflatten(0, (2, 2)).sum(dim=(1, 2, 3)))
    for side, c, groups, lowest, highest in [
        *((4, 8, 2, True, 0.0), (5, 24, 3, True, 1.0), (40, 16, 4, False, 0.0), (20, 90, 3, True, 2.0)),
        (3, 40, 1, True, 0.0),
    ]:
        x, beside, weight, bias = r(4, side, side, c) + 5, r(4, side, side, c), r(2, c), r(2, c)
        held = leaves(x, beside, weight, bias)
        want = plain.norm(*held, groups, 1e-5, lowest=lowest, highest=highest)
        got, moments = norms.norm(x, beside, weight, bias, groups, 1e-5, lowest, highest)
        near(got, want)
        along, grads = back(want, *held)
        images, added, gradients = norms.back(along, x, got, weight, moments, groups, True, lowest, highest)
        for a, b in zip((images, added, *gradients.sum(dim=1).unbind(1)), grads):
            near(a, b)
        rates = r(2)
        norms.descend(weight, bias, gradients, rates)
        near(weight, held[2] - rates.double()[:, None] * grads[2])
        near(bias, held[3] - rates.double()[:, None] * grads[3])
    weight, bias, parts, rates = r(1, 3), r(1, 3), r(1, 33_000, 2, 3), r(1)  # of very large images
    want = (torch.stack([weight, bias], 1).double() - rates.double() * parts.double().sum(dim=1)).unbind(1)
    norms.descend(weight, bias, parts, rates)
    for a, b in zip((weight, bias), want):
        near(a, b)
    assert norms.AT_ONCE * 32 <= 2**20
    for rectified in (True, False):
        x = r(3, 7, 6, 5)
        (xs,) = leaves(x)
        want = plain.pool(xs, rectified=rectified)
        got, index = pooling.pool(x, rectified)
        near(got, want)
        along, grads = back(want, xs)
        near(pooling.unpool(along, index, 7, 6), grads[0])
    driven, weight = r(6, 5, 64), r(2, 64, 16) / 4
    ds, ws = leaves(driven, weight)
    want = plain.recur(ds, ws)
    out, cells, gates = recurrence.forward(driven, weight, "ieee")
    near(out, want)
    along, grads = back(want, ds)
    near(recurrence.backward(along, weight, cells, gates, "ieee"), grads[0])
    key, x = torch.randint(1, 2**31 - 1, (3, 2), dtype=torch.int32, device=device), r(3, 4, 6, 5, 5)
    for channels in (False, True):
        near(sums.drop(x, key, 0.3, 25 if channels else 1), plain.drop(x, key, 0.3, channels=channels))
    for time, heads, deep, causal in [(5, 2, 4, True), (33, 3, 16, False), (80, 2, 20, True)]:
        held = leaves(*(r(3, time, heads * deep) for _ in range(3)))
        q, k, v = (x.detach().float() for x in held)
        want = plain.attention(*held, heads, causal=causal)
        near(sequences.attend(q, k, v, heads, causal, "ieee"), want)
        along, grads = back(want, *held)
        for a, b in zip(sequences.attend_back(along, q, k, v, heads, causal, "ieee"), grads):
            near(a, b)
    for kinds, starts in [(1, 1), (1, 4), (3, 1), (3, 3), (3, 12)]:
        now, start = (r(n, 5, 3, 3, 7).movedim(-1, 2) for n in (4 * kinds, starts))
        weights = torch.rand((4, kinds) if kinds > 1 else 4, dtype=torch.float64, device=device)
        near(sums.summed(now, start, weights), plain.summed(now, start, weights))
    weight, gradient, rates = r(4, 5, 700), r(4, 5, 700), r(4)
    want = weight.double() - rates.double()[:, None, None] * gradient.double()
    sums.descend(weight, gradient, rates)
    near(weight, want)
    for one in (False, True):
        weight, parts, short = r(4, 5, 700), r(3, 4, 5, 700), torch.empty(4, 5, 700, dtype=torch.bfloat16)
        parts = parts[0].bfloat16() if one else parts.movedim(0, 1)
        total = parts.double() if one else parts.double().sum(dim=1)
        want = weight.double() - rates.double()[:, None, None] * total
        sums.descend(weight, parts, rates, short := short.to(device))
        near(weight, want)
        assert (short - weight).norm() <= 2**-7 * weight.norm()
    """
    run = [sys.executable, "-c", textwrap.dedent(script).replace("CASES", repr(plain_kernels.CASES))]
    paths = os.pathsep.join(sys.path)
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
