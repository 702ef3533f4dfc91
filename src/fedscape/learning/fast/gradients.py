"""Gradients of a folded model: one batch for all clients, those of thin linear layers as low-rank factors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from fedscape.learning.fast.forms import FoldedLinear
from fedscape.learning.fast.lowrank import Factors, Trail
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import checked_loss
from fedscape.types import Tensor, Tensors

Gradients = Mapping[str, Tensor | Factors]
FoldedGradient = Callable[[Tensors, Tensors, Tensor, Tensor, Tensor], tuple[Gradients, Tensor]]


def in_one_batch(
    local: LocalSGD,
    module: Module,
    compiled: Callable[[Any], Any] = lambda f: f,
    *,
    probes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    trails: Mapping[str, Trail] = MappingProxyType({}),
    moved: Collection[str] = (),
    shorts: Tensors | None = None,
) -> FoldedGradient:
    """The gradient of a `folded` model: one backward pass of the sum over clients gives each client's gradient.

    `probes` has the paths of linear layers whose weights' gradients are wanted as factors, with the shapes of their
    outputs, see `once_used`. Of those in `trails` the parameters are where clients began, [1 or kinds, ...]. Parameters
    in `moved` have no gradient: their layers take their own step. `shorts` are their weights in the type of products.
    """
    frozen = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    layers = {path: module.get_submodule(path) for path in probes}
    trail_buffers = {
        member(path, f"trail_{n}"): v for path, t in trails.items() for n, v in zip(t._fields, t, strict=True)
    }

    def loss_of_all(params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> tuple[Any, ...]:
        same = {n: p[None] for n, p in frozen.items()}  # one for all clients, so that products have all rows
        output = functional_call(module, (same, params, random), (local.inputs(x.flatten(0, 1)),)).to(local.dtype)
        rows = checked_loss(local.loss, output, y.flatten(0, 1))
        each = (rows.reshape(share.shape) * share).sum(dim=1)
        return each.sum(), each.detach(), [layer.rows for layer in layers.values()]

    forward = compiled(loss_of_all)

    def gradient(params: Tensors, *batch: Any) -> tuple[Gradients, Tensor]:
        thin = {member(path, "weight"): member(path, "probe") for path in probes}
        leaves = {n: p.detach().requires_grad_() for n, p in params.items() if n not in thin}
        fixed = {n: params[n].detach() for n in thin}
        like = next(iter(params.values()))
        zeros = {member(path, "probe"): like.new_zeros(shape).requires_grad_() for path, shape in probes.items()}
        with torch.enable_grad(), _watched(layers.values()):
            total, each, inputs_of = forward({**leaves, **fixed, **zeros, **trail_buffers, **(shorts or {})}, *batch)
        wanted = {**leaves, **zeros}
        grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
        gradient_of = {
            n: torch.zeros_like(v) if g is None else g
            for (n, v), g in zip(wanted.items(), grads, strict=True)
            if n not in moved
        }
        rows = dict(zip(thin, inputs_of, strict=True))
        left = (n for n in params if n not in moved)
        return {n: Factors(gradient_of[thin[n]], rows[n]) if n in thin else gradient_of[n] for n in left}, each

    return gradient


def member(path: str, name: str) -> str:
    """The name of a parameter or buffer of the layer at this path."""
    return f"{path}.{name}" if path else name


@contextmanager
def _watched(layers: Collection[Any]) -> Iterator[None]:
    for layer in layers:
        layer.watched = True
    try:
        yield
    finally:
        for layer in layers:
            layer.watched, layer.rows = False, None


def once_used(local: LocalSGD, twin: Module, arguments: tuple[Any, ...]) -> dict[str, tuple[int, ...]]:
    """The linear layers of a folded model that one step uses once, and the shapes of their outputs.

    The gradient of such a weight matrix is a product of two factors, and where rows are few larger than both.
    """
    shapes_of: dict[str, list[tuple[int, ...]]] = {}
    layers = {path: m for path, m in twin.named_modules() if isinstance(m, FoldedLinear) and m.weight.requires_grad}
    hooks = []
    for path, layer in layers.items():

        def look(_: Any, __: Any, output: Tensor, path: str = path) -> None:
            shapes_of.setdefault(path, []).append(
                (len(arguments[-1]), output[..., 0].numel() // len(arguments[-1]), output.shape[-1])
            )

        hooks.append(layer.register_forward_hook(look))
    try:
        in_one_batch(local, twin)(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return {path: shapes[0] for path, shapes in shapes_of.items() if len(shapes) == 1}


def unfactored(grads: Gradients) -> Tensors:
    """Materialise low-rank factors."""
    return {n: g.product() if isinstance(g, Factors) else g for n, g in grads.items()}


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operations dispatched within it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.number += 1
        return function(*arguments, **(named or {}))
