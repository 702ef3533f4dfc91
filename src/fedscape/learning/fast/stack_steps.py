"""All local steps of a few clients of a stack, with a hand-written backward pass.

A step of such a model is so short that most of it is spent in autograd and in gradients written and read again. Here
it is a handful of batched products.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from torch.nn.functional import linear

from fedscape.learning.fast.branch_stacks import Joined, apart, branch_gradient, joined
from fedscape.learning.layers import Standardise
from fedscape.types import Tensor

WIDE = 64  # outputs from which products are faster with a weight matrix [in, out] (benchmarks/training_speed.py)
IN_CACHE = 2**18  # weights up to which clients step side by side: those of more leave the processor's cache


class Dense(NamedTuple):
    """A linear layer: the names of its weight and bias ("" for none), its shape, and the activation after it."""

    weight: str
    bias: str
    inputs: int
    outputs: int
    activation: str  # "relu", "tanh", "sigmoid" or ""

    @property
    def turned(self) -> bool:
        """Whether the weight is held as [in, out]."""
        return self.outputs >= WIDE


class Stack(NamedTuple):
    """A sequential model of linear layers with its loss."""

    layers: tuple[Dense, ...]
    loss: str  # "classes", "odds", "squares" or "branches"
    flattens: bool
    standard: Standardise | None
    shift: str = ""  # what the last layer adds to its inputs ("" for nothing)
    branches: int = 1  # side by side in the last layer
    joined: Joined = ()
    pull: tuple[float, float] = (0.0, 0.0)  # strength and smoothing of the loss "branches"

    @property
    def outputs(self) -> int:
        """Of the model, or of each of its branches."""
        return self.layers[-1].outputs // self.branches

    @property
    def names(self) -> list[str]:
        """Of the arrays of `laid_out`: each layer's weight and bias, then the shift."""
        return [name for layer in self.layers for name in (layer.weight, layer.bias)] + [self.shift]

    def inputs(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Flat rows as the first layer takes them."""
        if x.dtype != dtype:
            x = x.to(dtype).div_(255) if x.dtype == torch.uint8 else x.to(dtype)
        if self.standard is None:
            return x
        return ((x - self.standard.mean.reshape(-1)) / self.standard.scale.reshape(-1)).to(dtype)


class Pull(NamedTuple):
    """What the running mean of the last layer's inputs is pulled to: `target` [d].

    `rate` [1 or clients, 1, 1] is the learning rate times strength and momentum over d.
    """

    target: Tensor
    rate: Tensor
    momentum: float

    def of(self, mean: Tensor, a: Tensor, share: Tensor) -> Tensor:
        """Update the running means [clients, 1, d] in place by a batch; what each of its rows gets: [clients, b, d]."""
        real = (share > 0).to(a.dtype)
        number = real.sum(1, keepdim=True).clamp(min=1)
        mean.mul_(1 - self.momentum).add_(torch.bmm(real.transpose(1, 2), a) / number, alpha=self.momentum)
        return torch.bmm(real * (first(self.rate, len(a)) / number), mean - self.target)


class Push(NamedTuple):
    """What every step takes off the arrays of `laid_out`: these times the rate; nothing if the list is empty."""

    of: list[Tensor]
    rate: float = 1.0


NO_PUSH = Push([])


class Steps(NamedTuple):
    """The batches of every step, with rates folded into the shares.

    `index`, `targets` and `shares` are [steps, clients, width, ...]: the rows of each step, their targets, and what
    they count times the learning rate. `decay` and `pull` are the learning rate times weight decay, and times the
    proximal weight: [1 or clients, 1, 1], or empty for none.
    """

    index: Tensor
    targets: Tensor
    shares: Tensor
    counts: Tensor  # [steps, clients]
    decay: Tensor
    pull: Tensor

    def part(self, begin: int, end: int) -> Steps:
        """Those of some clients."""
        index, targets, shares, counts = (values[:, begin:end] for values in self[:4])
        return Steps(index, targets, shares, counts, between(self.decay, begin, end), between(self.pull, begin, end))

    def active(self) -> list[tuple[int, int]]:
        """Of each step: how many clients take it, and the largest batch among them."""
        ends, widths = (self.counts > 0).sum(dim=1).tolist(), self.counts.amax(dim=1).tolist()
        return [(end, width) for end, width in zip(ends, widths, strict=True) if end]


def between(values: Tensor, begin: int, end: int) -> Tensor:
    """The values of some clients; shared (size 1) and empty tensors are returned unchanged."""
    return values if len(values) <= 1 else values[begin:end]


def first(values: Tensor, end: int) -> Tensor:
    """The values of the first clients; shared and empty tensors are returned unchanged."""
    return values if values.shape[0] <= end else values[:end]


def activated(z: Tensor, kind: str) -> Tensor:
    """The output of a layer after its activation, in place."""
    if kind == "relu":
        return torch.relu_(z)
    if kind == "tanh":
        return torch.tanh_(z)
    if kind == "sigmoid":
        return torch.sigmoid_(z)
    return z


def back_through(grad: Tensor, output: Tensor, kind: str) -> Tensor:
    """Backward pass of an activation, from its output."""
    if kind == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    if kind == "tanh":
        return torch.ops.aten.tanh_backward(grad, output)
    if kind == "sigmoid":
        return torch.ops.aten.sigmoid_backward(grad, output)
    return grad


def loss_gradient(output: Tensor, target: Tensor, share: Tensor, stack: Stack) -> Tensor:
    """The gradient of the batch's loss at the outputs [clients, batch, out]; `share` [clients, batch, 1]."""
    kind, k = stack.loss, stack.branches
    if kind == "branches":
        return branch_gradient(output, target, share, k, stack.pull)
    if k > 1:  # the model's output is the mean of its branches
        mean = output.unflatten(2, (k, -1)).mean(dim=2)
        return loss_gradient(mean, target, share / k, stack._replace(branches=1)).repeat(1, 1, k)
    if kind == "classes":
        odds = (output - output.amax(2, True)).exp_()  # quicker than softmax, which takes a row of classes at a time
        return odds.mul_(share / odds.sum(2, True)).scatter_add_(2, target, -share)
    if kind == "odds":
        return (torch.sigmoid(output) - target).mul_(share)
    return (output - target).mul_(share)


def loosen(
    value: Tensor,
    memory: Tensor,
    anchor: Tensor,
    decay: Tensor,
    pull: Tensor,
    momentum: float,
) -> Tensor:
    """Apply weight decay and proximal pull in place; returns what the gradient is added to: momentum, or the value."""
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
    stack: Stack,
    x: Tensor,
    steps: Steps,
    weights: list[Tensor],
    anchors: list[Tensor],
    moves: list[bool],
    momentum: float,
    push: Push,
    pull: Pull | None,
) -> None:
    """All local steps of a few clients, in place.

    Parameters
    ----------
    stack
        The layers.
    x
        Rows of all clients.
    steps
        Which of them these clients take when.
    weights, anchors
        For each layer its weight [clients, ...] and its bias [clients, 1, out], then the shift [clients, 1, in], and
        what a proximal weight pulls to.
    moves
        Which of these are trained.
    momentum
        Of plain SGD; 0 for none.
    push
        What every step takes off the weights and biases besides the gradient.
    pull
        What the last layer's inputs are pulled to, if to anything.
    """
    layers, dtype, last = stack.layers, steps.shares.dtype, len(stack.layers) - 1
    means = steps.shares.new_zeros((len(weights[0]), 1, layers[-1].inputs)) if pull is not None else steps.shares
    memories = [torch.zeros_like(w) if momentum > 0 else w for w in weights]
    sign = 1.0 if momentum > 0 else -1.0
    lowest = next((k for k in range(len(layers)) if moves[2 * k] or moves[2 * k + 1]), last)
    for t, (end, width) in enumerate(steps.active()):
        rows, target, share = (values[t, :end, :width] for values in steps[:3])
        a = stack.inputs(x.index_select(0, rows.reshape(-1)), dtype).reshape(end, width, -1)
        passed, pulled = [a], None
        for k, layer in enumerate(layers):
            w, b = first(weights[2 * k], end), first(weights[2 * k + 1], end)
            if k == last and pull is not None:
                pulled = pull.of(means[:end], a, share)
            if k == last:
                top = a = a + first(weights[-1], end) if stack.shift else a
            m = w if layer.turned else w.transpose(1, 2)
            a = activated(torch.baddbmm(b, a, m) if b.numel() > 0 else torch.bmm(a, m), layer.activation)
            passed.append(a)
        grad = loss_gradient(a, target, share, stack)
        for k in range(last, lowest - 1, -1):
            layer, fed = layers[k], top if k == last else passed[k]
            grad = back_through(grad, passed[k + 1], layer.activation)
            down = grad
            if k > lowest or (k == last and moves[-1]):
                w = first(weights[2 * k], end)
                down = torch.bmm(grad, w.transpose(1, 2) if layer.turned else w)
            for j in (2 * k, 2 * k + 1, 2 * last + 2)[: 2 + (k == last)]:
                if not moves[j]:
                    continue
                value, memory = first(weights[j], end), first(memories[j], end)
                pulls = first(anchors[j], end), first(steps.decay, end), first(steps.pull, end)
                to = loosen(value, memory, *pulls, momentum)
                if push.of:
                    to.add_(first(push.of[j], end), alpha=sign * push.rate)
                if j > 2 * k:
                    to.add_((down if j > 2 * k + 1 else grad).sum(1, keepdim=True), alpha=sign)
                elif layer.turned:
                    to.baddbmm_(fed.transpose(1, 2), grad, alpha=sign)
                else:
                    to.baddbmm_(grad.transpose(1, 2), fed, alpha=sign)
                if momentum > 0:
                    value.sub_(memory)
            grad = down if pulled is None or k < last else down.add_(pulled)


def outputs_of_branches(stack: Stack, params: Mapping[str, Tensor], x: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What a MultiBranch with these parameters makes of rows, [rows, K, out]; None for a stack or rows that differ."""
    layers, whole = stack.layers, math.prod(x.shape[1:]) == stack.layers[0].inputs
    fits = stack.standard is None or stack.standard.mean.shape == x.shape[1:]
    if stack.loss != "branches" or not (whole and fits and (x.ndim == 2 or (x.ndim > 2 and stack.flattens))):
        return None
    of, last = dict(stack.joined), layers[-1]
    with torch.no_grad():
        a = stack.inputs(x.reshape(len(x), layers[0].inputs), dtype)
        for layer in layers[:-1]:
            a = activated(linear(a, params[layer.weight], params[layer.bias] if layer.bias else None), layer.activation)
        biases = [params[n] for n in of[last.bias]] if last.bias else [None] * stack.branches
        each = [linear(a, params[n], bias) for n, bias in zip(of[last.weight], biases, strict=True)]
        return activated(torch.stack(each, dim=1), last.activation)


def run_steps(
    stack: Stack,
    x: Tensor,
    start: list[Tensor],
    steps: Steps,
    *,
    anchor: list[Tensor] | None = None,
    momentum: float = 0.0,
    still: Collection[str] = (),
    push: Push = NO_PUSH,
    pull: Pull | None = None,
    factors: Tensor | None = None,
    each: Collection[str] = (),
) -> list[Tensor]:
    """The update of each client in the layout of `laid_out`; with factors the weighted sum in float64, but of `each`.

    A few clients at a time, as many as stay in the cache. Parameters that are `still` stay.
    """
    clients, names = steps.index.shape[1], stack.names
    sums = [factors is not None and name not in each for name in names]
    out = [
        torch.zeros(((1 if s else clients) if len(p) else 0, *p.shape[1:]), dtype=torch.float64 if s else p.dtype)
        for p, s in zip(start, sums, strict=True)
    ]
    moves = [bool(name) and name not in still for name in names]
    to = [p[:0] for p in start] if anchor is None else anchor
    with torch.inference_mode():
        for begin, end in _parts(clients, max(1, IN_CACHE // sum(p[:1].numel() for p in start))):
            begun = [between(p, begin, end) for p in start]
            at = [
                (p.new_empty((end - begin, *p.shape[1:])) if s else room[begin:end]).copy_(p) if p.numel() else p
                for p, room, s in zip(begun, out, sums, strict=True)
            ]
            pulls, pushes = ([between(p, begin, end) for p in values] for values in (to, push.of))
            mine = None if pull is None else pull._replace(rate=between(pull.rate, begin, end))
            all_steps(stack, x, steps.part(begin, end), at, pulls, moves, momentum, Push(pushes, push.rate), mine)
            for now, before, total, s in zip(at, begun, out, sums, strict=True):
                moved = now.sub_(before).flatten(1)
                if factors is not None and s and moved.numel():
                    _add(moved, factors[begin:end], total.view(-1))
    return out


def _parts(clients: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut clients into parts of similar size with a cap on each."""
    few = -(-clients // -(-clients // most))
    return ((begin, min(begin + few, clients)) for begin in range(0, clients, few))


def _add(moved: Tensor, factors: Tensor, total: Tensor) -> None:
    """Add rows times factors to a sum in float64, as many rows at a time as stay in the cache in that type."""
    together = max(8, 2**16 // moved.shape[1])
    for rows, weights in zip(moved.split(together), factors.split(together), strict=True):
        total.addmv_(rows.to(torch.float64).t(), weights)


def laid_out(stack: Stack, params: dict[str, Tensor]) -> list[Tensor]:
    """Of {name: [rows, ...]} each layer's weight and bias [rows, 1, out], then the shift; empty where there is none.

    Each is contiguous, wide weights as [in, out]; it may share memory with the parameters.
    """
    arrays, params = [], joined(params, stack.joined)
    for layer in stack.layers:
        weight = params[layer.weight]
        arrays.append((weight.transpose(1, 2) if layer.turned else weight).contiguous())
        arrays.append(params[layer.bias][:, None].contiguous() if layer.bias else weight.new_zeros((0, 1, 1)))
    arrays.append(params[stack.shift][:, None].contiguous() if stack.shift else weight.new_zeros((0, 1, 1)))
    return arrays


def in_names(stack: Stack, at: list[Tensor]) -> dict[str, Tensor]:
    """Views under the model's names and shapes: {name: [rows, ...]}."""
    named = {}
    for layer, weight, bias in zip(stack.layers, at[:-1:2], at[1::2], strict=True):
        named[layer.weight] = weight.transpose(1, 2) if layer.turned else weight
        if layer.bias:
            named[layer.bias] = bias[:, 0]
    if stack.shift:
        named[stack.shift] = at[-1][:, 0]
    return apart(named, stack.joined)
