"""Stacks of linear layers with the gradient written out: all local steps of some clients in one call.

A step of such a model is so short that most of it is spent between its operations: in autograd, in gradients written
and read again, and where threads wait for each other in the interpreter. Here a step is a handful of batched products,
and torch's own interpreter, which threads need not share, runs all of them.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call

from fedscape.learning.fast.folded import agree
from fedscape.learning.layers import KeyedDropout, Module, Standardise, is_plain
from fedscape.learning.losses import Tensor, cross_entropy, logistic, squared_error

WIDE = 64  # outputs from which products are faster with a weight matrix [in, out] (benchmarks/training_speed.py)
IN_CACHE = 2**18  # weights up to which clients step side by side: those of more leave the processor's cache

_ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_LOSSES = {cross_entropy: "classes", logistic: "odds", squared_error: "squares"}
_SCRIPTING = threading.Lock()


class Dense(NamedTuple):
    """A linear layer: the names of its weight and bias ("" for none), its shape, and what comes after it."""

    weight: str
    bias: str
    inputs: int
    outputs: int
    activation: str  # of _ACTIVATIONS, or ""

    @property
    def turned(self) -> bool:
        """Whether the weight is held as [in, out]."""
        return self.outputs >= WIDE


class Stack(NamedTuple):
    """A model that is nothing but linear layers one after the other, with its loss."""

    layers: tuple[Dense, ...]
    loss: str
    flattens: bool
    standard: Standardise | None


def stack_of(model: Module, loss: Any) -> Stack | None:
    """What the model is made of, if it and its loss are of a kind whose gradient is written out here.

    That is `torch.nn.Sequential`, also within another, of linear layers, rectifiers, tanh and sigmoid, after flattening
    and `standardising`; with cross entropy, `logistic` or `squared_error`.

    >>> stack_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), cross_entropy).layers[0].activation
    'relu'
    >>> stack_of(nn.Sequential(nn.Linear(4, 3), nn.GELU()), cross_entropy) is None
    True
    """
    kind, types = _kind_of(loss), {p.dtype for p in model.parameters()}
    if kind is None or len(types) > 1 or not types <= {torch.float32, torch.float64}:
        return None
    layers: list[Dense] = []
    flattens, standard = False, None
    for path, layer in _leaves(model):
        activation = next((name for of, name in _ACTIVATIONS.items() if is_plain(layer, of)), None)
        if is_plain(layer, nn.Linear):
            if layers and layers[-1].outputs != layer.in_features:
                return None
            names = [f"{path}.{name}".lstrip(".") if p is not None else "" for name, p in layer._parameters.items()]
            layers.append(Dense(names[0], names[1], layer.in_features, layer.out_features, ""))
        elif activation and layers and not layers[-1].activation:
            layers[-1] = layers[-1]._replace(activation=activation)
        elif is_plain(layer, nn.Flatten) and not layers and (layer.start_dim, layer.end_dim) == (1, -1):
            flattens = True
        elif is_plain(layer, Standardise) and not layers and standard is None and not flattens:
            standard = layer
        elif not _does_nothing(layer):
            return None
    names = [name for layer in layers for name in (layer.weight, layer.bias) if name]
    if not layers or sorted(names) != sorted(n for n, _ in model.named_parameters()):  # a layer in two places is one
        return None
    whole = standard is None or (
        math.prod(standard.mean.shape) == layers[0].inputs and (flattens or standard.mean.ndim == 1)
    )
    fits = whole and (kind != "odds" or layers[-1].outputs == 1)
    return Stack(tuple(layers), kind, flattens, standard) if fits else None


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


# -- the steps ---------------------------------------------------------------------------------------------------------


def activated(z: torch.Tensor, kind: str) -> torch.Tensor:
    """The output of a layer after its activation, in place."""
    if kind == "relu":
        return torch.relu_(z)
    if kind == "tanh":
        return torch.tanh_(z)
    if kind == "sigmoid":
        return torch.sigmoid_(z)
    return z


def back_through(grad: torch.Tensor, output: torch.Tensor, kind: str) -> torch.Tensor:
    """The gradient before an activation, from that after it and the activation's output."""
    if kind == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    if kind == "tanh":
        return torch.ops.aten.tanh_backward(grad, output)
    if kind == "sigmoid":
        return torch.ops.aten.sigmoid_backward(grad, output)
    return grad


def loss_gradient(output: torch.Tensor, target: torch.Tensor, share: torch.Tensor, kind: str) -> torch.Tensor:
    """The gradient of the batch's loss at the outputs [clients, batch, out]; `share` [clients, batch, 1]."""
    if kind == "classes":
        odds = (output - output.amax(2, True)).exp_()  # quicker than softmax, which takes a row of classes at a time
        return odds.mul_(share / odds.sum(2, True)).scatter_add_(2, target, -share)
    if kind == "odds":
        return (torch.sigmoid(output) - target).mul_(share)
    return (output - target).mul_(share)


def first(values: torch.Tensor, end: int) -> torch.Tensor:
    """Those of the first clients; what is one for all, or nothing, stays."""
    return values if values.size(0) <= end else values[:end]


def loosen(
    value: torch.Tensor,
    memory: torch.Tensor,
    anchor: torch.Tensor,
    decay: torch.Tensor,
    pull: torch.Tensor,
    momentum: float,
) -> torch.Tensor:
    """All of a step but the gradient, in place; what the gradient is to be added to: the memory, or the value."""
    away = value - anchor if len(pull) > 0 else anchor
    if momentum > 0:
        memory.mul_(momentum)
        if len(decay) > 0:
            memory.addcmul_(value, decay)
        return memory.addcmul_(away, pull) if len(pull) > 0 else memory
    if len(decay) > 0:
        value.mul_(1 - decay)
    return value.addcmul_(away, pull, value=-1.0) if len(pull) > 0 else value


def all_steps(
    x: torch.Tensor,
    index: torch.Tensor,
    targets: torch.Tensor,
    shares: torch.Tensor,
    active: list[tuple[int, int]],
    standard: list[torch.Tensor],
    weights: list[torch.Tensor],
    anchors: list[torch.Tensor],
    moves: list[bool],
    turned: list[bool],
    kinds: list[str],
    numbers: list[torch.Tensor],
    momentum: float,
) -> None:
    """All local steps of a few clients, in place.

    Parameters
    ----------
    x
        Rows of all clients.
    index, targets, shares
        [steps, clients, width, ...]: the rows of each step, their targets, and what they count times the learning rate.
    active
        Of each step: how many clients take it, and the largest batch among them.
    standard
        What is taken off the inputs and what they are divided by, or nothing.
    weights, anchors
        For each layer its weight [clients, ...] and its bias [clients, 1, out], and what a proximal weight pulls to.
    moves
        Which of these are trained.
    turned, kinds
        Of each layer: whether its weight is [in, out]; its activation, and last the loss.
    numbers
        Learning rate times weight decay, and times the proximal weight: [clients, 1, 1], or empty for none.
    """
    depth, lowest, sign = len(turned), 0, 1.0 if momentum > 0 else -1.0
    memories = [torch.zeros_like(w) if momentum > 0 else w for w in weights]
    while lowest < depth - 1 and not (moves[2 * lowest] or moves[2 * lowest + 1]):
        lowest += 1
    for t in range(len(active)):
        end, width = active[t]
        rows, target, share = index[t], targets[t], shares[t]
        if end < index.size(1) or width < index.size(2):
            rows, target, share = rows[:end, :width], target[:end, :width], share[:end, :width]
        a = x.index_select(0, rows.reshape(-1))
        if a.dtype != shares.dtype:
            a = a.to(shares.dtype).div_(255) if a.dtype == torch.uint8 else a.to(shares.dtype)
        if len(standard) > 0:
            a = ((a - standard[0]) / standard[1]).to(shares.dtype)
        a = a.reshape(end, width, -1)
        passed = [a]
        for layer in range(depth):
            w, b = first(weights[2 * layer], end), first(weights[2 * layer + 1], end)
            m = w if turned[layer] else w.transpose(1, 2)
            a = activated(torch.baddbmm(b, a, m) if b.numel() > 0 else torch.bmm(a, m), kinds[layer])
            passed.append(a)
        grad = loss_gradient(a, target, share, kinds[depth])
        for i in range(depth - lowest):
            layer = depth - 1 - i
            grad = back_through(grad, passed[layer + 1], kinds[layer])
            down = grad
            if layer > lowest:
                w = first(weights[2 * layer], end)
                down = torch.bmm(grad, w.transpose(1, 2) if turned[layer] else w)
            for j in range(2 * layer, 2 * layer + 2):
                if moves[j]:
                    value, memory = first(weights[j], end), first(memories[j], end)
                    anchor, decay, pull = first(anchors[j], end), first(numbers[0], end), first(numbers[1], end)
                    to = loosen(value, memory, anchor, decay, pull, momentum)
                    if j % 2 == 1:
                        to.add_(grad.sum(1, keepdim=True), alpha=sign)
                    elif turned[layer]:
                        to.baddbmm_(passed[layer].transpose(1, 2), grad, alpha=sign)
                    else:
                        to.baddbmm_(grad.transpose(1, 2), passed[layer], alpha=sign)
                    if momentum > 0:
                        value.sub_(memory)
            grad = down


def between(values: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """Those of some clients; what is one for all, or nothing, stays."""
    return values if values.size(0) <= 1 else values[begin:end]


def all_clients(
    x: torch.Tensor,
    index: torch.Tensor,
    targets: torch.Tensor,
    shares: torch.Tensor,
    active: list[list[tuple[int, int]]],
    standard: list[torch.Tensor],
    start: list[torch.Tensor],
    anchors: list[torch.Tensor],
    moves: list[bool],
    turned: list[bool],
    kinds: list[str],
    numbers: list[torch.Tensor],
    momentum: float,
    factors: torch.Tensor,
    out: list[torch.Tensor],
) -> None:
    """How far all clients move, a few at a time: into `out` [clients, ...], or with `factors` added to it in float64.

    As for `all_steps`; `active` is that of each few, `start` is where all clients, or each, begin.
    """
    few = -(-index.size(1) // max(len(active), 1))
    for i in range(len(active)):
        begin, end = few * i, min(few * i + few, index.size(1))
        first_of = [between(p, begin, end) for p in start]
        at: list[torch.Tensor] = []
        for j in range(len(start)):
            p = first_of[j]
            room = out[j][begin:end] if len(factors) == 0 else p.new_empty([end - begin, p.size(1), p.size(2)])
            at.append(room.copy_(p) if p.numel() > 0 else p)
        all_steps(
            x,
            index[:, begin:end],
            targets[:, begin:end],
            shares[:, begin:end],
            active[i],
            standard,
            at,
            [between(p, begin, end) for p in anchors],
            moves,
            turned,
            kinds,
            [between(p, begin, end) for p in numbers],
            momentum,
        )
        for j in range(len(start)):
            moved = at[j].sub_(first_of[j]).flatten(1)
            if len(factors) > 0 and moved.numel() > 0:
                together = max(8, 2**16 // moved.size(1))  # as many as stay in the cache in the wider type
                weights, total = factors[begin:end].split(together), out[j].view(-1)
                for k, rows in enumerate(moved.split(together)):
                    total.addmv_(rows.to(torch.float64).t(), weights[k])


@functools.cache
def _scripted() -> Callable[..., None]:
    """`all_clients` run by torch's own interpreter, or as it is where torch has none."""
    with _SCRIPTING, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            made = torch.jit.script(all_clients)
        except (AttributeError, OSError, RuntimeError):  # no such interpreter, or no source for it to read
            return all_clients

    def run(*given: Any) -> None:
        with torch.jit.optimized_execution(False):  # a loop of products has nothing that a second look would find
            made(*given)

    return run


class Steps(NamedTuple):
    """Which rows clients take in which step, and how far they go; see `all_steps`."""

    index: Tensor
    targets: Tensor
    shares: Tensor
    counts: Tensor  # [steps, clients]
    decay: Tensor
    pull: Tensor

    def active(self, few: int) -> list[list[tuple[int, int]]]:
        """Of so many clients after the other: how many take each step, and their largest batch."""
        made = []
        for part in self.counts.split(few, dim=1):
            ends, widths = (part > 0).sum(dim=1).tolist(), part.amax(dim=1).tolist()
            made.append([(end, width) for end, width in zip(ends, widths, strict=True) if end])
        return made


def run_steps(
    stack: Stack,
    x: Tensor,
    start: list[Tensor],
    steps: Steps,
    *,
    anchor: list[Tensor] | None = None,
    momentum: float = 0.0,
    still: Collection[str] = (),
    factors: Tensor | None = None,
) -> list[Tensor]:
    """How far each client moves, laid out as `start` is by `laid_out`; with factors the sum, so weighted, in float64.

    Parameters that are `still` stay.
    """
    clients, layers = steps.index.shape[1], stack.layers
    most = max(1, IN_CACHE // sum(p[:1].numel() for p in start))
    active = steps.active(-(-clients // -(-clients // most)))  # parts of like size
    rows, kind = (clients, x.new_zeros(0, dtype=torch.float64)) if factors is None else (1, factors)
    dtype = start[0].dtype if factors is None else torch.float64
    out = [torch.zeros((rows if len(p) else 0, *p.shape[1:]), dtype=dtype) for p in start]
    standard = [] if stack.standard is None else [v.reshape(-1) for v in (stack.standard.mean, stack.standard.scale)]
    moves = [bool(name) and name not in still for layer in layers for name in (layer.weight, layer.bias)]
    turned, kinds = [layer.turned for layer in layers], [*(layer.activation for layer in layers), stack.loss]
    to, numbers = [p[:0] for p in start] if anchor is None else anchor, [steps.decay, steps.pull]
    with torch.inference_mode():
        _scripted()(x, *steps[:3], active, standard, start, to, moves, turned, kinds, numbers, momentum, kind, out)
    return out


def laid_out(stack: Stack, params: dict[str, Tensor]) -> list[Tensor]:
    """Of {name: [rows, ...]} each layer's weight and bias [rows, 1, out], empty where there is none.

    Each is in one piece, wide weights as [in, out]; it may be the memory of the parameters themselves.
    """
    made = []
    for layer in stack.layers:
        weight = params[layer.weight]
        made.append((weight.transpose(1, 2) if layer.turned else weight).contiguous())
        made.append(params[layer.bias][:, None].contiguous() if layer.bias else weight.new_zeros((0, 1, 1)))
    return made


def in_names(stack: Stack, at: list[Tensor]) -> dict[str, Tensor]:
    """Views of the same memory as the model names and shapes it: {name: [rows, ...]}."""
    made = {}
    for layer, weight, bias in zip(stack.layers, at[::2], at[1::2], strict=True):
        made[layer.weight] = weight.transpose(1, 2) if layer.turned else weight
        if layer.bias:
            made[layer.bias] = bias[:, 0]
    return made


def checked_stack(model: Module, loss: Any) -> Stack | None:
    """`stack_of` the model, if one step from weights at random is that of the model itself, on rows at random."""
    stack = stack_of(model, loss)
    if stack is None:
        return None
    twin, drawn = copy.deepcopy(model), torch.Generator().manual_seed(0)
    dtype, first, last = next(model.parameters()).dtype, stack.layers[0], stack.layers[-1]
    shape = (first.inputs,) if stack.standard is None else tuple(stack.standard.mean.shape)
    x = torch.randn((6, *shape), generator=drawn, dtype=dtype)
    y = torch.randint(0, last.outputs if stack.loss == "classes" else 2, (6,), generator=drawn)
    if stack.loss == "squares":
        y = torch.randn((6, last.outputs), generator=drawn, dtype=dtype)
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
    found = in_names(stack, run_steps(stack, x.reshape(6, -1), start, steps))
    return stack if agree({n: -torch.stack(g) for n, g in want.items()}, found) else None


def targets_of(stack: Stack, y: Tensor, dtype: Any) -> Tensor:
    """Targets as the gradient of the loss takes them: [rows, 1 or outputs]."""
    return y.reshape(len(y), -1) if stack.loss == "classes" else y.to(dtype).reshape(len(y), -1)
