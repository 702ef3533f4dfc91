"""Stacks of linear layers with a hand-written backward pass: detection and training.

benchmarks/fast_paths.py, row "stack".
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from fedscape.learning.batches import Plan, Work
from fedscape.learning.branches import BranchLoss, MeanOfBranches, MultiBranch
from fedscape.learning.device import Data
from fedscape.learning.fast.agreement import agree
from fedscape.learning.fast.stack_steps import NO_PUSH, Dense, Pull, Push, Stack, Steps, in_names, laid_out, run_steps
from fedscape.learning.layers import Centre, KeyedDropout, Module, ShiftedLinear, Standardise, is_plain
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import cross_entropy, logistic, squared_error
from fedscape.learning.optimisers import Rate, Rates
from fedscape.types import Array, Tensor, Tensors

WIDE = 64  # outputs from which products are faster with a weight matrix [in, out] (benchmarks/training_speed.py)
IN_CACHE = 2**18  # weights up to which clients step side by side: those of more leave the processor's cache

_ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_LOSSES = {cross_entropy: "classes", logistic: "odds", squared_error: "squares"}


def stack_of(model: Module, loss: Any) -> Stack | None:
    """The layers of the model, if its backward pass and that of its loss are hand-written here; else None.

    That is `torch.nn.Sequential`, also within another, of linear layers, rectifiers, tanh and sigmoid, after flattening
    and `standardising`; with cross entropy, `logistic` or `squared_error`. The last layer may be a ShiftedLinear. Or it
    may be branches: a MultiBranch with its BranchLoss, or their mean with cross entropy.

    >>> stack_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), cross_entropy).layers[0].activation
    'relu'
    >>> stack_of(nn.Sequential(nn.Linear(4, 3), nn.GELU()), cross_entropy) is None
    True
    """
    if is_plain(model, MultiBranch) or is_plain(model, MeanOfBranches):
        return _of_branches(model, loss)
    kind, types = _kind_of(loss), {p.dtype for p in model.parameters()}
    if kind is None or len(types) > 1 or not types <= {torch.float32, torch.float64}:
        return None
    layers: list[Dense] = []
    flattens, standard, shift = False, None, ""
    for path, layer in _leaves(model):
        activation = next((name for of, name in _ACTIVATIONS.items() if is_plain(layer, of)), None)
        if is_plain(layer, nn.Linear) or is_plain(layer, ShiftedLinear):
            if shift or (layers and layers[-1].outputs != layer.in_features):
                return None
            names = [f"{path}.{name}".lstrip(".") if p is not None else "" for name, p in layer._parameters.items()]
            layers.append(Dense(names[0], names[1], layer.in_features, layer.out_features, ""))
            shift = "".join(names[2:])
        elif activation and layers and not layers[-1].activation:
            layers[-1] = layers[-1]._replace(activation=activation)
        elif is_plain(layer, nn.Flatten) and not layers and (layer.start_dim, layer.end_dim) == (1, -1):
            flattens = True
        elif is_plain(layer, Standardise) and not layers and standard is None and not flattens:
            standard = layer
        elif not _does_nothing(layer):
            return None
    names = [name for layer in layers for name in (layer.weight, layer.bias) if name] + [shift] * bool(shift)
    if not layers or sorted(names) != sorted(n for n, _ in model.named_parameters()):  # a layer in two places is one
        return None
    whole = standard is None or (
        math.prod(standard.mean.shape) == layers[0].inputs and (flattens or standard.mean.ndim == 1)
    )
    fits = whole and (kind != "odds" or layers[-1].outputs == 1)
    return Stack(tuple(layers), kind, flattens, standard, shift) if fits else None


def _of_branches(model: Module, loss: Any) -> Stack | None:
    """The stack with the branches as one wide layer."""
    mean = is_plain(model, MeanOfBranches)
    net, prefix = (model.branches, "branches.net.") if mean else (model, "net.")
    each = list(net.net.get_submodule(net.layer).each)
    if not all(is_plain(layer, nn.Linear) for layer in each) or mean != (_kind_of(loss) == "classes"):
        return None
    if not (mean or isinstance(loss, BranchLoss)):
        return None
    bias = each[0].bias is not None
    one = nn.Linear(each[0].in_features, len(each) * each[0].out_features, bias, dtype=each[0].weight.dtype)
    stack = stack_of(net.with_layer(one), cross_entropy)
    if stack is None or stack.shift or stack.layers[-1].weight != f"{net.layer}.weight":
        return None
    layers = [
        layer._replace(weight=prefix + layer.weight, bias=layer.bias and prefix + layer.bias) for layer in stack.layers
    ]
    wide = [name for name in (layers[-1].weight, layers[-1].bias) if name]
    groups = [
        (n, tuple(f"{prefix}{net.layer}.each.{i}.{n.rpartition('.')[2]}" for i in range(len(each)))) for n in wide
    ]
    changed = stack._replace(layers=tuple(layers), branches=len(each), joined=tuple(groups))
    return changed if mean else changed._replace(loss="branches", pull=(loss.strength, loss.smoothing))


def _kind_of(loss: Any) -> str | None:
    if isinstance(loss, nn.CrossEntropyLoss) and is_plain(loss, nn.CrossEntropyLoss):
        plain = (loss.reduction, loss.weight, loss.label_smoothing, loss.ignore_index) == ("none", None, 0.0, -100)
        return "classes" if plain else None
    try:
        return _LOSSES.get(loss)
    except TypeError:  # a callable that cannot be a key
        return None


def _leaves(module: Module, path: str = "") -> Iterator[tuple[str, Module]]:
    if not is_plain(module, nn.Sequential):
        yield path, module
        return
    for name, child in module._modules.items():
        yield from _leaves(child, f"{path}.{name}".lstrip("."))


def _does_nothing(layer: Module) -> bool:
    dropouts = (nn.Dropout, KeyedDropout)
    return is_plain(layer, nn.Identity) or any(is_plain(layer, of) and layer.p == 0 for of in dropouts)


def checked_stack(model: Module, loss: Any) -> Stack | None:
    """`stack_of` the model, if one step on random weights and rows agrees with autograd."""
    stack = stack_of(model, loss)
    if stack is None:
        return None
    twin, drawn = copy.deepcopy(model), torch.Generator().manual_seed(0)
    dtype, first, last = next(model.parameters()).dtype, stack.layers[0], stack.layers[-1]
    shape = (first.inputs,) if stack.standard is None else tuple(stack.standard.mean.shape)
    x = torch.randn((6, *shape), generator=drawn, dtype=dtype)
    y = torch.randint(0, stack.outputs if stack.loss in ("classes", "branches") else 2, (6,), generator=drawn)
    if stack.loss == "squares":
        y = torch.randn((6, last.outputs), generator=drawn, dtype=dtype)
    if stack.loss == "branches":
        y = torch.cat([y[:, None], torch.rand((6, 3 * stack.branches), generator=drawn)], dim=1).to(dtype)
    params = {
        n: torch.randn((2, *p.shape), generator=drawn, dtype=dtype) / math.sqrt(p.shape[-1])
        for n, p in model.named_parameters()
    }
    want: dict[str, list[Tensor]] = {n: [] for n in params}
    for client in range(2):
        own = {n: p[client].requires_grad_() for n, p in params.items()}
        with torch.enable_grad():
            total = loss(functional_call(twin, own, (x[3 * client : 3 * client + 3],)), y[3 * client : 3 * client + 3])
            grads = torch.autograd.grad(total.mean(), list(own.values()))
        for name, grad in zip(own, grads, strict=True):
            want[name].append(grad)
    start = laid_out(stack, {n: p.detach() for n, p in params.items()})
    nothing, counts = x.new_zeros((0, 1, 1)), torch.full((1, 2), 3)
    targets, shares = targets_of(stack, y, dtype).reshape(1, 2, 3, -1), torch.full((1, 2, 3, 1), 1 / 3, dtype=dtype)
    steps = Steps(torch.arange(6).reshape(1, 2, 3), targets, shares, counts, nothing, nothing)
    moved = in_names(stack, run_steps(stack, x.reshape(6, -1), start, steps))
    return stack if agree({n: -torch.stack(g) for n, g in want.items()}, moved) else None


def targets_of(stack: Stack, y: Tensor, dtype: Any) -> Tensor:
    """Targets as the gradient of the loss takes them: [rows, 1 or outputs or what branches have]."""
    return y.reshape(len(y), -1) if stack.loss == "classes" else y.to(dtype).reshape(len(y), -1)


def train_stack(
    local: LocalSGD,
    stack: Stack,
    start: Tensors,
    anchor: Tensors,
    work: Work,
    rates: Rates,
    *,
    weights: Array | None,
    still: Collection[str],
    drift: Tensors | None = None,
    centre: Centre | None = None,
    each: Collection[str] = (),
) -> Tensors | None:
    """As `train`; None for rows or targets that the stack does not take, so that the model itself raises the error."""
    data, taken = work.data, _taken(local, stack, work.data)
    fixed = {n: p.detach()[None] for n, p in local.model.named_parameters() if not p.requires_grad}
    if taken is None or {n for _, names in stack.joined for n in names} & {*fixed, *still, *each}:
        return None
    x, y = taken
    pulled = isinstance(rates.proximal, torch.Tensor) or rates.proximal > 0
    begin, to = laid_out(stack, {**fixed, **start}), laid_out(stack, {**fixed, **anchor}) if pulled else None
    steps = _steps(local, y, data.weights, work.plan, rates, pulled)
    factors = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
    push = NO_PUSH if drift is None else _push(stack, {**fixed, **drift}, rates.lr)
    moved = run_steps(
        stack,
        x,
        begin,
        steps,
        anchor=to,
        momentum=local.momentum,
        still={*still, *fixed},
        push=push,
        pull=None if centre is None else _pull(local, centre, rates.lr),
        factors=factors,
        each=each,
    )
    named = in_names(stack, moved)
    return {n: (named[n] if weights is None or n in each else named[n][0]).contiguous() for n in local.names}


def _taken(local: LocalSGD, stack: Stack, data: Data) -> tuple[Tensor, Tensor] | None:
    """Flat rows and targets for the steps; None where they do not fit."""
    x, y, outputs, k = data.x, data.y, stack.outputs, stack.branches
    if stack.standard is not None and stack.standard.mean.shape != x.shape[1:]:
        return None
    if len(x) == 0 or x.ndim < 2 or (x.ndim > 2 and not stack.flattens):
        return None
    if math.prod(x.shape[1:]) != stack.layers[0].inputs:
        return None
    x = x.reshape(len(x), -1)
    if stack.loss == "classes":
        fits = y.ndim == 1 and y.dtype == torch.int64 and int(y.min()) >= 0 and int(y.max()) < outputs
    elif stack.loss == "branches":
        fits = y.ndim == 2 and y.shape[1] in (1 + k, 1 + 3 * k)
        fits = fits and int(y[:, 0].min()) >= 0 and int(y[:, 0].max()) < outputs
    else:
        fits = y.numel() == len(y) * outputs and (y.ndim == 1 or stack.loss != "odds")
    return (x, targets_of(stack, y, local.dtype)) if fits else None


def _steps(local: LocalSGD, y: Tensor, weights: Tensor | None, plan: Plan, rates: Rates, pulled: bool) -> Steps:
    index, counts = (torch.from_numpy(np.ascontiguousarray(a.swapaxes(0, 1))) for a in plan)
    number = counts[..., None]
    lr, proximal = (_by_client(rate, local) for rate in rates)
    shares = (torch.arange(index.shape[2]) < number).to(local.dtype) / number.clamp(min=1) * lr
    if weights is not None:
        shares = shares * weights[index]
    decay = lr * local.weight_decay if local.weight_decay else lr[:0]
    pull = lr * proximal if pulled else lr[:0]
    return Steps(index, y[index], shares[..., None], counts, decay[..., None], pull[..., None])


def _push(stack: Stack, drift: Tensors, lr: Rate) -> Push:
    """What a drift takes off the parameters in every step."""
    if not isinstance(lr, torch.Tensor):
        return Push(laid_out(stack, drift), float(lr))
    return Push([d.mul(lr.reshape(-1, 1, 1)) if len(d) else d for d in laid_out(stack, drift)])


def _pull(local: LocalSGD, centre: Centre, lr: Rate) -> Pull:
    """A centre with the learning rate folded in."""
    rate = centre.strength * centre.momentum / len(centre.target) * _by_client(lr, local)
    return Pull(centre.target.to(local.dtype), rate[..., None], centre.momentum)


def _by_client(rate: Rate, local: LocalSGD) -> Tensor:
    """[1 or clients, 1]."""
    rates = rate if isinstance(rate, torch.Tensor) else torch.tensor([rate], dtype=torch.float64)
    return rates.to(local.dtype).reshape(-1, 1)
