"""Linear layers that update their own weights in the backward pass: plain SGD, one client after the other, on a CPU."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedscape.learning.layers import Module, is_plain, trainable_copy
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import Steps, descend, drawing_nothing
from fedscape.learning.optimisers import Memory, Stop, update
from fedscape.learning.trainer import Trainer
from fedscape.types import Tensor


class FusedLinear(nn.Module):  # type: ignore[misc]
    """A linear layer that, given a `rate`, moves its weights by itself as gradients pass: w <- keep w - rate g.

    The gradient of a weight matrix is as large as the matrix; so it is never written and read again. Only for plain
    SGD, and only where a step uses the layer exactly once: see `self_moving`.

    >>> layer = FusedLinear(nn.Linear(2, 1, bias=False))
    >>> layer.rate, layer.weight.data[:] = 0.5, 1.0
    >>> layer(torch.tensor([[1.0, 3.0]])).sum().backward()
    >>> layer.weight.tolist()
    [[0.5, -0.5]]
    """

    def __init__(self, layer: Module) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.rate: float | None = None
        self.keep = 1.0
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.rate is None:
            return functional.linear(x, self.weight, self.bias)
        return _Fused.apply(x, self.weight, self.bias, self)


class _Fused(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: FusedLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x,), layer = ctx.saved_tensors, ctx.layer
        down = grad @ layer.weight if ctx.needs_input_grad[0] else None  # before the weights move
        rows = grad.reshape(-1, grad.shape[-1])
        layer.weight.addmm_(rows.t(), x.reshape(-1, x.shape[-1]), beta=layer.keep, alpha=-layer.rate)
        if layer.bias is not None:
            layer.bias.mul_(layer.keep).sub_(rows.sum(dim=0), alpha=layer.rate)
        return down, None, None, None


def self_moving(module: Module, backward: Callable[[], None]) -> list[FusedLinear]:
    """The layers that may move their own weights: used once in a step, their weights by nobody else.

    `backward` makes one pass there and back; no weight is changed.
    """
    users = Counter(id(p) for m in module.modules() for p in m.parameters(recurse=False))
    layers = [m for m in module.modules() if isinstance(m, FusedLinear)]
    for layer in layers:
        layer.calls, layer.rate = 0, 0.0
    backward()
    moving = []
    for layer in layers:
        mine = list(layer.parameters())
        alone = all(users[id(p)] == 1 and p.grad is None and p.requires_grad for p in mine)
        moving += [layer] if alone and layer.calls == 1 else []
        layer.rate = None
    for p in module.parameters():
        p.grad = None
    return moving


class FusedTrainer(Trainer):
    """The reference trainer with `FusedLinear` layers where it trains one client after the other.

    benchmarks/fast_paths.py, row "fused linear": it pays for wide layers, whose gradients do not stay in the cache.
    """

    def __init__(self, local: LocalSGD) -> None:
        super().__init__(local)
        self._moving: weakref.WeakKeyDictionary[Module, list[FusedLinear]] = weakref.WeakKeyDictionary()

    def new_copy(self) -> Module:
        if self.reference != "sequential":
            return super().new_copy()
        module = trainable_copy(self.local.model, _stand_in).to(self.local.device)
        return module if self.local.on_gpu else module.to(memory_format=torch.channels_last)

    def descend(self, local: LocalSGD, steps: Steps) -> None:
        if local.optimiser != "sgd" or local.momentum or steps.rates.proximal != 0:
            descend(local, steps)
            return
        with self._self_moving(local, steps) as moving:
            named = {n: p for n, p in steps.module.named_parameters() if n in steps.anchor and id(p) not in moving}
            params, to, stop = list(named.values()), [steps.anchor[n] for n in named], Stop(local, steps.counts)
            for t in range(len(stop.counts)):
                loss = steps.loss(t)
                loss.backward()  # reaches the layers that move by themselves, too
                grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
                for p in params:
                    p.grad = None
                with torch.no_grad():
                    update(local, params, grads, to, Memory(()), t + 1, steps.rates)
                if stop.after(t, loss.detach()):
                    break

    @contextmanager
    def _self_moving(self, local: LocalSGD, steps: Steps) -> Iterator[frozenset[int]]:
        """Within it linear layers move their own weights; the ids of those weights."""
        layers = self._moving.get(steps.module)
        if layers is None:
            with drawing_nothing():
                layers = self_moving(steps.module, lambda: steps.loss(0).backward())
            self._moving[steps.module] = layers
        lr = float(steps.rates.lr)
        for layer in layers:
            layer.rate, layer.keep = lr, 1 - lr * local.weight_decay
        try:
            yield frozenset(id(p) for layer in layers for p in layer.parameters())
        finally:
            for layer in layers:
                layer.rate = None


def _stand_in(layer: Module) -> Module | None:
    return FusedLinear(layer) if is_plain(layer, nn.Linear) else None
