"""Many clients' networks as one network: clients folded into the batch, every weight with a leading axis of clients.

A network that treats its samples one by one does not care whose they are; only the layers that hold weights do. With
those replaced, the model's own `forward` runs once over [clients x batch, ...], and every product of all clients is one
batched product.

benchmarks/fast_paths.py, row "folded": 1.7 times for a CNN.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedscape.learning.adapters import LowRank
from fedscape.learning.fast import depthwise, moving, norms, pooling, recurrence
from fedscape.learning.fast.conv import EXACT, can_convolve, convolve, patches_of
from fedscape.learning.fast.dropping import drop
from fedscape.learning.fast.forms import Folded, FoldedLinear, How, scaled, wide
from fedscape.learning.fast.products import shifted_views, stands_for_product
from fedscape.learning.fast.sequence_forms import FoldedAttention, FoldedLayerNorm, FoldedLowRank
from fedscape.learning.layers import (
    Attention,
    Cells,
    KeyedDropout,
    Module,
    RectifiedNorm,
    RectifiedPool,
    dropped,
    is_plain,
    kept,
)
from fedscape.types import Tensor


def folded(module: Module, precision: str = "exact", *, kernels: bool = True) -> Module | None:
    """A copy that takes [clients x batch, ...] under parameters [clients, ...]; None where a layer cannot be folded.

    Supported are linear layers, convolutions in two dimensions (plain or depthwise), group and layer norms, embeddings,
    keyed dropout, and whatever has no parameters of its own and treats samples one by one. That last is not checked
    here: see `agreement`. With the precision "bf16" convolutions, and products of many rows, are taken in bfloat16.
    Within a Sequential a norm or a pool takes the rectifier behind it into its own pass. Without `kernels` all is
    done by torch's own operations.

    >>> twin = folded(nn.Sequential(nn.Linear(2, 1), nn.Tanh()))
    >>> params = {"0.weight": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), "0.bias": torch.zeros(2, 1)}
    >>> torch.func.functional_call(twin, params, (torch.tensor([[0.5, 9.0], [9.0, 0.5]]),)).flatten().tolist()
    [0.46211716532707214, 0.46211716532707214]
    """
    twin = nn.Sequential(copy.deepcopy(module))
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            layer = _form(child, How(precision, kernels))
            if layer is not None:
                setattr(parent, name, layer)
        if is_plain(parent, nn.Sequential):
            _take_rectifiers(parent)
    owners = [m for m in twin.modules() if next(m.parameters(recurse=False), None) is not None]
    watched = [m for m in twin.modules() if m._forward_hooks or m._forward_pre_hooks]
    users = [id(p) for m in owners for p in m.parameters(recurse=False)]
    all_folded = all(isinstance(m, Folded) for m in owners) and not watched
    return twin[0] if all_folded and len(set(users)) == len(users) else None


class _Conv2d(Folded):
    """As one batched product over patches, channels last."""

    order = (0, 2, 3, 1)  # in which the axes of a kernel [out, channels, H, W] lie in memory

    def __init__(self, layer: Module, how: How) -> None:
        super().__init__(layer, how)
        self.stride, self.padding = tuple(layer.stride), tuple(layer.padding)
        if layer.groups == 1:  # the weights in the type of products, while it moves them
            self.register_buffer("short", torch.zeros(()))

    def can_move(self, x: Tensor) -> bool:
        kernel = tuple(self.weight.shape[3:])
        taken = moving.is_single(kernel, self.stride, self.padding) or can_convolve(
            x, kernel, self.stride, self.padding
        )
        return taken and self.how.runs(x) and _all_trained(self) and _lies(self.weight, self.order)

    def forward(self, x: Tensor) -> Tensor:
        own, bias = self.both()
        clients, out, _, high, wide = own.shape
        kind = self.how.kind(own.dtype)
        single = moving.is_single((high, wide), self.stride, self.padding)
        if self.rates is not None or (single and self.how.runs(x)):
            places, step = own.permute(0, 1, 3, 4, 2), None
            if self.rates is not None:
                step = moving.Step(self.rates, None if kind == own.dtype else self.short.permute(0, 1, 3, 4, 2))
            how = moving.How(self.padding, self.stride, EXACT if self.how.exact else "tf32")
            return moving.convolve(_rows(x, kind), places, bias, step, how).permute(0, 3, 1, 2)
        if self.how.kernels and can_convolve(x, (high, wide), self.stride, self.padding):
            places = own.permute(0, 1, 3, 4, 2)
            images = convolve(_rows(x, kind), places, bias, self.padding, self.stride, exact=self.how.exact)
            return images.permute(0, 3, 1, 2)
        weight = own.permute(0, 3, 4, 2, 1).reshape(clients, -1, out).to(kind)
        up, left = self.padding
        around = functional.pad(x.to(kind).permute(0, 2, 3, 1), (0, 0, left, left, up, up))
        patches = _Patches.apply(around, (high, wide), self.stride)
        h, w = patches.shape[1:3]
        if x.is_cuda and weight.shape[1] % 8:  # products of rows that begin anywhere are several times as slow
            spare = 8 - weight.shape[1] % 8
            patches = torch.cat([patches, patches.new_zeros((len(x), h, w, spare))], dim=-1)
            weight = functional.pad(weight, (0, 0, 0, spare))
        output = patches.reshape(clients, -1, weight.shape[1]) @ weight
        output = output if bias is None else output + bias[:, None].to(kind)
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

    order = (2, 3, 1, 0)

    def can_move(self, x: Tensor) -> bool:
        return self.how.runs(x) and _all_trained(self) and _lies(self.weight, self.order)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.both()
        clients, out, _, high, wide = weight.shape
        if self.how.runs(x):
            places, rows = weight.permute(0, 3, 4, 2, 1).squeeze(3), _rows(x, self.how.kind(weight.dtype))
            places = places if self.rates is not None else places.contiguous()
            images = depthwise.convolve(rows, places, bias, self.padding, self.stride, self.rates)
            return images.permute(0, 3, 1, 2)
        parts = shifted_views(x, (high, wide), self.stride, self.padding)
        h, w = parts[0].shape[1:3]
        factors = weight.reshape(clients, 1, out, high * wide)
        each = [p.reshape(clients, -1, out) * factors[..., i] for i, p in enumerate(parts)]
        output = torch.stack(each).sum(dim=0)
        output = output if bias is None else output + bias[:, None]
        return output.reshape(len(x), h, w, out).permute(0, 3, 1, 2)


class _GroupNorm(Folded):
    """With what comes right behind it: another image to be added, a lowest and a highest number."""

    def __init__(self, layer: Module, how: How) -> None:
        super().__init__(layer, how)
        self.groups, self.eps = layer.num_groups, layer.eps
        self.lowest, self.highest = isinstance(layer, RectifiedNorm), 0.0

    def can_move(self, x: Tensor) -> bool:
        return x.ndim == 4 and self.bias is not None and self.how.runs(x) and _all_trained(self)

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        if x.ndim == 4 and self.bias is not None and self.how.runs(x):
            rows = _rows(x, x.dtype)
            added = None if beside is None else _rows(beside, x.dtype)
            ends: dict[str, Any] = {"lowest": self.lowest, "highest": self.highest}
            output = norms.norm(rows, added, *self.both(), self.groups, self.eps, **ends, rates=self.rates)
            return output.permute(0, 3, 1, 2)
        output = functional.group_norm(wide(x, self.weight), self.groups, None, None, self.eps)
        output = scaled(output, *self.both(), (x.shape[1], *[1] * (x.ndim - 2)))
        output = output if beside is None else output + beside
        if self.highest:
            return functional.hardtanh(output, 0.0, self.highest)
        return functional.relu(output) if self.lowest else output


def _all_trained(layer: Folded) -> bool:
    return all(p.requires_grad for p in layer.parameters(recurse=False))


def _lies(weight: Tensor, order: tuple[int, ...]) -> bool:
    """Whether weights [clients, ...] lie as one piece, their axes in this order."""
    return bool(weight.permute(0, *(1 + axis for axis in order)).is_contiguous())


def _rows(x: Tensor, kind: Any) -> Tensor:
    """Images [batch, channels, H, W] with channels last."""
    return x.to(kind).permute(0, 2, 3, 1).contiguous()


class _Embedding(Folded):
    def forward(self, x: Tensor) -> Tensor:
        clients, codes, width = self.weight.shape
        first = torch.arange(clients, device=x.device) * codes
        rows = x.reshape(clients, -1) + first[:, None]
        return self.weight.reshape(-1, width)[rows.reshape(-1)].reshape(*x.shape, width)


class _Dropout(nn.Module):  # type: ignore[misc]
    """Keyed dropout; `key` is [clients, 2]."""

    def __init__(self, layer: KeyedDropout, how: How) -> None:
        super().__init__()
        self.how = how
        self.p, self.channels = layer.p, layer.channels
        self.register_buffer("key", layer.key)

    def forward(self, x: Tensor) -> Tensor:
        own = x.reshape(len(self.key), -1, *x.shape[1:])
        if self.how.runs(x):
            return drop(own, self.key, self.p, channels=self.channels).reshape(x.shape)
        keep = kept(own.shape[1:], self.key[:, None], self.p, channels=self.channels)
        return dropped(own, keep, self.p).reshape(x.shape)


class _Pool(nn.Module):  # type: ignore[misc]
    """2 x 2 maxima, with the rectifier right behind them."""

    def __init__(self, how: How, *, rectified: bool) -> None:
        super().__init__()
        self.how, self.rectified = how, rectified

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4 and self.how.runs(x):
            return pooling.pool(_rows(x, x.dtype), rectified=self.rectified).permute(0, 3, 1, 2)
        maxima = functional.max_pool2d(x, 2)
        return functional.relu(maxima) if self.rectified else maxima


class _Cells(Cells):
    """Cells of all clients in one pass, where the layer that feeds them back has only weights."""

    def __init__(self, how: How) -> None:
        super().__init__()
        self.how = how

    def forward(self, driven: Tensor, recurrent: Module) -> Tensor:
        plain = isinstance(recurrent, FoldedLinear) and recurrent.bias is None and not recurrent.watched
        if plain and self.how.runs(driven):
            products = EXACT if self.how.exact else "tf32"
            return recurrence.recur(driven.contiguous(), recurrent.weight, products)
        return super().forward(driven, recurrent)


LAYERS = (Folded, _Pool, _Dropout, _Cells, FoldedAttention)  # what may run kernels or take products in shorter numbers

_FORMS: dict[type, Callable[[Any, How], Module]] = {
    nn.Linear: FoldedLinear,
    nn.GroupNorm: _GroupNorm,
    RectifiedNorm: _GroupNorm,
    LowRank: FoldedLowRank,
    nn.LayerNorm: FoldedLayerNorm,
}


def _form(layer: Module, how: How) -> Module | None:
    """The batched form of a layer; None where there is none."""
    if isinstance(layer, KeyedDropout):
        return _Dropout(layer, how) if layer.p > 0 else nn.Identity()
    if is_plain(layer, RectifiedPool) or (is_plain(layer, nn.MaxPool2d) and pooling.is_two_by_two(layer)):
        return _Pool(how, rectified=isinstance(layer, RectifiedPool))
    if is_plain(layer, Cells):
        return _Cells(how)
    if is_plain(layer, Attention):
        return FoldedAttention(layer, how)
    if is_plain(layer, nn.Embedding) and layer.max_norm is layer.padding_idx is None and not layer.scale_grad_by_freq:
        return _Embedding(layer, how)
    if is_plain(layer, nn.Conv2d) and stands_for_product(layer):
        return _Conv2d(layer, how)
    if is_plain(layer, nn.Conv2d) and stands_for_product(layer, groups=layer.in_channels):
        return _Depthwise(layer, how) if layer.in_channels == layer.out_channels else None
    return next((form(layer, how) for kind, form in _FORMS.items() if is_plain(layer, kind)), None)


def _take_rectifiers(layers: Module) -> None:
    """Let norms and pools do what the rectifier right behind them would."""
    for (_, layer), (name, after) in itertools.pairwise(list(layers.named_children())):
        highest = 6.0 if is_plain(after, nn.ReLU6) else 0.0
        if not (highest or is_plain(after, nn.ReLU)):
            continue
        if isinstance(layer, _GroupNorm) and not layer.lowest:
            layer.lowest, layer.highest = True, highest
        elif isinstance(layer, _Pool) and not (layer.rectified or highest):
            layer.rectified = True
        else:
            continue
        setattr(layers, name, nn.Identity())
