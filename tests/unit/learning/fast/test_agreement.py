"""Shorter numbers are admitted where they only round, and refused where a layer is wrong by 3%."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.learning.fast import folded as forms
from fedscape.learning.fast.agreement import LAYER, ROUGH, agree, layers_agree, same_lengths
from fedscape.learning.fast.folded import Folded, folded
from fedscape.learning.fast.gradients import in_one_batch
from fedscape.learning.layers import trainable_copy

CLIENTS, BATCH = 4, 70  # rows from which linear layers are computed in bfloat16 too


def deep() -> nn.Module:
    layers = [layer for _ in range(12) for layer in (nn.Linear(30, 30), nn.ReLU())]
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # signals neither grow nor vanish
    return nn.Sequential(*layers, nn.Linear(30, 5))


NETWORKS = {
    "mlp": (lambda: models.mlp(30, 40, 5), (30,)),
    "cnn": (lambda: models.cnn((1, 10, 10), 5, dropout=False), (1, 10, 10)),
    "lenet5": (models.lenet5, (1, 28, 28)),
    "resnet18": (lambda: models.resnet18((3, 8, 8), 5, width=8, groups=4), (3, 8, 8)),
    "deep": (deep, (30,)),
}


def networks(name: str):
    """The exact folded network, one in bfloat16, and a pass of the exact one."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    local = LocalSGD(make(), cross_entropy, lr=0.1, epochs=1, batch_size=BATCH)
    module = trainable_copy(local.model)
    exact, short = folded(module), folded(module, "bf16")
    params = {n: p.detach().expand(CLIENTS, *p.shape).clone() for n, p in module.named_parameters()}
    x, y = torch.randn(CLIENTS, BATCH, *shape), torch.randint(0, 5, (CLIENTS, BATCH))
    arguments = (params, {}, x, y, torch.full((CLIENTS, BATCH), 1 / BATCH))
    return exact, short, lambda twin: in_one_batch(local, twin)(*arguments)[0]


class Wrong(nn.Module):
    """Does what another layer does, but for an error of a share of it."""

    def __init__(self, layer: nn.Module, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = layer, kind
        for name, p in layer.named_parameters(recurse=False):
            self.register_parameter(name, p)

    def forward(self, x):
        output = torch.func.functional_call(self.layer, dict(self.named_parameters(recurse=False)), (x,))
        if self.kind == "scale":
            return output * 1.03
        if self.kind == "noise":
            drawn = torch.Generator().manual_seed(1)
            return output + 0.03 * output.detach().std() * torch.randn(output.shape, generator=drawn).to(output.dtype)
        return output + 0.03 * (output - output.detach())  # right outputs, gradients wrong by 3%


@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_is_admitted_because_a_layer_by_itself_only_rounds(name):
    exact, short, gradients = networks(name)
    assert layers_agree(exact, short, Folded, lambda: gradients(exact))
    assert not layers_agree(exact, short, Folded, lambda: gradients(exact), within=1e-6)  # it does round
    assert layers_agree(exact, short, Folded, lambda: gradients(exact), within=LAYER / 2)  # and has room


@pytest.mark.parametrize("kind", ["scale", "noise", "gradient"])
@pytest.mark.parametrize("name", NETWORKS)
def test_each_layer_that_is_wrong_by_3_percent_is_refused(name, kind):
    exact, _, gradients = networks(name)
    paths = [path for path, layer in exact.named_modules() if isinstance(layer, forms.FoldedLinear | forms._Conv2d)]
    for path in {paths[0], paths[len(paths) // 2], paths[-1]}:
        _, short, _ = networks(name)
        parent, _, own = path.rpartition(".")
        setattr(short.get_submodule(parent), own, Wrong(short.get_submodule(path), kind))
        assert not layers_agree(exact, short, Folded, lambda: gradients(exact)), path


def test_a_layer_without_a_gradient_is_compared_at_a_random_one():
    """As before a norm whose scale is still zero."""
    net = nn.Sequential(nn.Linear(30, 30), nn.LayerNorm(30), nn.Linear(30, 5))
    nn.init.zeros_(net[1].weight)
    params = {n: p.detach().expand(CLIENTS, *p.shape).clone() for n, p in net.named_parameters()}
    x, y = torch.randn(CLIENTS, BATCH, 30), torch.randint(0, 5, (CLIENTS, BATCH))
    local = LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=BATCH)
    exact, quick = folded(trainable_copy(net)), folded(trainable_copy(net))
    arguments = (params, {}, x, y, torch.full((CLIENTS, BATCH), 1 / BATCH))
    assert layers_agree(exact, quick, Folded, lambda: in_one_batch(local, exact)(*arguments))
    quick[0] = Wrong(quick[0], "gradient")
    assert not layers_agree(exact, quick, Folded, lambda: in_one_batch(local, exact)(*arguments))


def test_gradients_of_a_whole_network_do_not_settle_it():
    """Flipped rectifiers move them further than the error that must be found out."""
    exact, short, gradients = networks("deep")
    want, found = gradients(exact), gradients(short)
    assert not all(agree({n: g}, {n: found[n]}, 0.03) for n, g in want.items())
    assert agree(want, found, ROUGH)


def test_a_compiled_program_with_a_wrong_layer_is_refused_by_the_lengths_of_its_gradients():
    _, short, gradients = networks("cnn")
    want = gradients(short)
    assert same_lengths(want, want)
    noisy = {n: g + 0.05 * g.std() * torch.randn_like(g) for n, g in want.items()}  # as flips do
    assert same_lengths(want, noisy)
    for name in (n for n, g in want.items() if g.numel() >= 64):
        assert not same_lengths(want, {**want, name: 1.03 * want[name]})
