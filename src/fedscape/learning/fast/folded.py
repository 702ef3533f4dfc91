"""Many clients' networks as one network: clients folded into the batch, every weight with a leading axis of clients.

A network that treats its samples one by one does not care whose they are; only the layers that hold weights do. With
those replaced, the model's own `forward` runs once over [clients x batch, ...], and every product of all clients is one
batched product.

benchmarks/fast_paths.py, row "folded": 1.7 times for a CNN.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedscape.learning.fast.conv import can_convolve, convolve, patches_of
from fedscape.learning.fast.lowrank import FEW
from fedscape.learning.fast.products import shifted_views, stands_for_product
from fedscape.learning.layers import KeyedDropout, Module, dropped, is_plain, kept
from fedscape.types import Tensor


def folded(module: Module, precision: str = "exact") -> Module | None:
    """A copy that takes [clients x batch, ...] under parameters [clients, ...]; None where a layer cannot be folded.

    Supported are linear layers, convolutions in two dimensions (plain or depthwise), group and layer norms, embeddings,
    keyed dropout, and whatever has no parameters of its own and treats samples one by one. That last is not checked
    here: see `agreement`. With the precision "bf16" convolutions, and products of many rows, are taken in bfloat16.

    >>> twin = folded(nn.Sequential(nn.Linear(2, 1), nn.Tanh()))
    >>> params = {"0.weight": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), "0.bias": torch.zeros(2, 1)}
    >>> torch.func.functional_call(twin, params, (torch.tensor([[0.5, 9.0], [9.0, 0.5]]),)).flatten().tolist()
    [0.46211716532707214, 0.46211716532707214]
    """
    twin = nn.Sequential(copy.deepcopy(module))
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            layer = _form(child, precision)
            if layer is not None:
                setattr(parent, name, layer)
    owners = [m for m in twin.modules() if next(m.parameters(recurse=False), None) is not None]
    watched = [m for m in twin.modules() if m._forward_hooks or m._forward_pre_hooks]
    users = [id(p) for m in owners for p in m.parameters(recurse=False)]
    all_folded = all(isinstance(m, Folded) for m in owners) and not watched
    return twin[0] if all_folded and len(set(users)) == len(users) else None


class Folded(nn.Module):  # type: ignore[misc]
    """A layer that holds the weights of a plain one, and is called with those of many clients in their place."""

    def __init__(self, layer: Module, precision: str) -> None:
        super().__init__()
        self.precision = precision
        for name, p in layer.named_parameters(recurse=False):
            self.register_parameter(name, p)
        for name in ("weight", "bias"):
            if getattr(self, name, None) is None:
                self.register_parameter(name, None)


class FoldedLinear(Folded):
    """A linear layer; while `watched` it adds a `probe` to its output and records its input rows.

    The gradient of a probe of zeros is that of the output, and with the rows it makes that of the weights: two thin
    factors, where the gradient itself is as large as the weights. With a trail the weights are those that clients began
    with, [1 or kinds, out, features], assigned round-robin; the low-rank update comes from its rows.
    """

    def __init__(self, layer: Module, precision: str) -> None:
        super().__init__(layer, precision)
        self.watched, self.rows = False, None
        for name in ("probe", "trail_up", "trail_rows"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        clients, out, features = self.weight.shape
        if self.watched:
            rows = x.reshape(len(self.probe), -1, features).to(self.weight.dtype)
            self.rows = rows.detach()
            output = by_turns(rows, self.weight) + (
                self.probe if self.bias is None else self.probe + self.bias[:, None]
            )
            if self.trail_up.ndim:
                output = output - rows @ self.trail_rows.transpose(1, 2) @ self.trail_up
            return output.reshape(*x.shape[:-1], out)
        rows, weight = x.reshape(clients, -1, features), self.weight.transpose(1, 2)
        kind = torch.bfloat16 if self.precision == "bf16" and rows.shape[1] >= FEW else weight.dtype
        output = rows.to(kind) @ weight.to(kind)
        output = output if self.bias is None else output + self.bias[:, None].to(kind)
        return output.reshape(*x.shape[:-1], out)


def by_turns(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows [clients, batch, features] times weights [kinds, out, features], assigned to clients round-robin.

    >>> by_turns(torch.ones(4, 1, 1), torch.tensor([[[2.0]], [[3.0]]])).flatten().tolist()
    [2.0, 3.0, 2.0, 3.0]
    """
    if len(weights) == 1:  # as one product, which a library may cut along the features
        return (rows.flatten(0, 1) @ weights[0].T).unflatten(0, rows.shape[:2])
    if len(weights) == len(rows):
        return rows @ weights.transpose(1, 2)
    mine = rows.unflatten(0, (-1, len(weights))).transpose(0, 1).flatten(1, 2)  # [kinds, clients of each x batch, ...]
    products = mine @ weights.transpose(1, 2)
    return products.unflatten(1, (-1, rows.shape[1])).transpose(0, 1).flatten(0, 1)


class _Conv2d(Folded):
    """As one batched product over patches, channels last."""

    def __init__(self, layer: Module, precision: str) -> None:
        super().__init__(layer, precision)
        self.stride, self.padding = tuple(layer.stride), tuple(layer.padding)

    def forward(self, x: Tensor) -> Tensor:
        clients, out, _, high, wide = self.weight.shape
        kind = torch.bfloat16 if self.precision == "bf16" else self.weight.dtype
        if self.precision != "exact" and can_convolve(x, (high, wide), self.stride, self.padding):
            rows, places = x.to(kind).permute(0, 2, 3, 1).contiguous(), self.weight.permute(0, 1, 3, 4, 2).contiguous()
            return convolve(rows, places, self.bias, self.padding).permute(0, 3, 1, 2)
        weight = self.weight.permute(0, 3, 4, 2, 1).reshape(clients, -1, out).to(kind)
        up, left = self.padding
        around = functional.pad(x.to(kind).permute(0, 2, 3, 1), (0, 0, left, left, up, up))
        patches = _Patches.apply(around, (high, wide), self.stride)
        h, w = patches.shape[1:3]
        if x.is_cuda and weight.shape[1] % 8:  # products of rows that begin anywhere are several times as slow
            spare = 8 - weight.shape[1] % 8
            patches = torch.cat([patches, patches.new_zeros((len(x), h, w, spare))], dim=-1)
            weight = functional.pad(weight, (0, 0, 0, spare))
        output = patches.reshape(clients, -1, weight.shape[1]) @ weight
        output = output if self.bias is None else output + self.bias[:, None].to(kind)
        return output.reshape(len(x), h, w, out).permute(0, 3, 1, 2)


class _Patches(torch.autograd.Function):  # type: ignore[misc]
    """Patches (im2col) of a convolution, [batch, H out, W out, H kernel x W kernel x channels].

    By two `unfold`s, which a compiler copies in one pass. Their own gradient would be scattered number by number: here
    it is added up from as many shifted images as the kernel has places.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        ctx.how = (x.shape, kernel, stride)
        return patches_of(x, kernel, stride)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (batch, height, width, channels), (high, wide), (down, right) = ctx.how
        h, w = grad.shape[1:3]
        parts = grad.unflatten(3, (high, wide, channels))
        whole = grad.new_zeros((batch, height, width, channels))
        strip, total = grad.new_zeros((batch, h, width, channels)), whole
        for i in range(high):
            for j in range(wide):
                row = torch.slice_scatter(strip, parts[:, :, :, i, j], 2, j, j + right * (w - 1) + 1, right)
                total = total + torch.slice_scatter(whole, row, 1, i, i + down * (h - 1) + 1, down)
        return total, None, None


class _Depthwise(_Conv2d):
    """Every channel by itself: a sum of shifted images, each times one number per client and channel."""

    def forward(self, x: Tensor) -> Tensor:
        clients, out, _, high, wide = self.weight.shape
        parts = shifted_views(x, (high, wide), self.stride, self.padding)
        h, w = parts[0].shape[1:3]
        factors = self.weight.reshape(clients, 1, out, high * wide)
        each = [p.reshape(clients, -1, out) * factors[..., i] for i, p in enumerate(parts)]
        output = (
            torch.stack(each).sum(dim=0) if self.bias is None else torch.stack(each).sum(dim=0) + self.bias[:, None]
        )
        return output.reshape(len(x), h, w, out).permute(0, 3, 1, 2)


class _GroupNorm(Folded):
    def __init__(self, layer: Module, precision: str) -> None:
        super().__init__(layer, precision)
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        output = functional.group_norm(_wide(x, self.weight), self.groups, None, None, self.eps)
        return _scaled(output, self.weight, self.bias, (x.shape[1], *[1] * (x.ndim - 2)))


class _LayerNorm(Folded):
    def __init__(self, layer: Module, precision: str) -> None:
        super().__init__(layer, precision)
        self.shape, self.eps = layer.normalized_shape, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        output = functional.layer_norm(_wide(x, self.weight), self.shape, None, None, self.eps)
        return _scaled(output, self.weight, self.bias, (*[1] * (x.ndim - 1 - len(self.shape)), *self.shape))


def _wide(x: Tensor, weight: Tensor | None) -> Tensor:
    """Cast to the type of the weights: means and variances are not computed in a shorter one."""
    return x if weight is None else x.to(weight.dtype)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """x times the weight of its client plus its bias, both [clients, ...], of this shape in one sample."""
    if weight is None:
        return x
    each = x.reshape(len(weight), -1, *x.shape[1:]) * weight.reshape(len(weight), 1, *shape)
    return (each if bias is None else each + bias.reshape(len(bias), 1, *shape)).reshape(x.shape)


class _Embedding(Folded):
    def forward(self, x: Tensor) -> Tensor:
        clients, codes, width = self.weight.shape
        first = torch.arange(clients, device=x.device) * codes
        rows = x.reshape(clients, -1) + first[:, None]
        return self.weight.reshape(-1, width)[rows.reshape(-1)].reshape(*x.shape, width)


class _Dropout(nn.Module):  # type: ignore[misc]
    """Keyed dropout; `key` is [clients, 2]."""

    def __init__(self, layer: KeyedDropout) -> None:
        super().__init__()
        self.p, self.channels = layer.p, layer.channels
        self.register_buffer("key", layer.key)

    def forward(self, x: Tensor) -> Tensor:
        own = x.reshape(len(self.key), -1, *x.shape[1:])
        keep = kept(own.shape[1:], self.key[:, None], self.p, channels=self.channels)
        return dropped(own, keep, self.p).reshape(x.shape)


_FORMS: dict[type, Callable[[Any, str], Module]] = {
    nn.Linear: FoldedLinear,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
}


def _form(layer: Module, precision: str) -> Module | None:
    """The batched form of a layer; None where there is none."""
    if isinstance(layer, KeyedDropout):
        return _Dropout(layer) if layer.p > 0 else nn.Identity()
    if is_plain(layer, nn.Embedding) and layer.max_norm is layer.padding_idx is None and not layer.scale_grad_by_freq:
        return _Embedding(layer, precision)
    if is_plain(layer, nn.Conv2d) and stands_for_product(layer):
        return _Conv2d(layer, precision)
    if is_plain(layer, nn.Conv2d) and stands_for_product(layer, groups=layer.in_channels):
        return _Depthwise(layer, precision) if layer.in_channels == layer.out_channels else None
    return next((form(layer, precision) for kind, form in _FORMS.items() if is_plain(layer, kind)), None)
