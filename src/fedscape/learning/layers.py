"""What a network must be to be trained by clients, and dropout that is a function of the client."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.types import Array, HasKeys, Tensor

Module = Any

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_RANDOM = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
_BITS = 24


def check_module(model: Module) -> Module:
    """The model, or a DataError that names the layer that cannot be trained by clients and its replacement.

    >>> check_module(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))
    Traceback (most recent call last):
    fedscape.errors.DataError: model layer '1' is BatchNorm2d, ...: use torch.nn.GroupNorm(16, 48)
    """
    if not isinstance(model, nn.Module):
        raise DataError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    for path, layer in model.named_modules():
        what = f"model layer {path or '(itself)'!r} is {type(layer).__name__}"
        if isinstance(layer, nn.modules.batchnorm._NormBase) and (
            isinstance(layer, nn.modules.batchnorm._BatchNorm) or layer.track_running_stats
        ):
            raise DataError(
                f"{what}, whose statistics over a batch or over time are no mean of clients: use {_group_norm(layer)}"
            )
        if isinstance(layer, _RANDOM) or (not isinstance(layer, _DROPOUTS) and _inner_dropout(layer) > 0):
            raise DataError(
                f"{what} with random numbers that no client can repeat: set it to 0 and use torch.nn.Dropout"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise DataError("model must have a parameter with requires_grad=True, it has none: there is nothing to train")
    return model


def _group_norm(layer: Module) -> str:
    number = layer.num_features
    if not number:
        return "torch.nn.GroupNorm"
    return f"torch.nn.GroupNorm({math.gcd(number, 32)}, {number})"


def _inner_dropout(layer: Module) -> float:
    inner = getattr(layer, "dropout", 0.0)
    return float(inner) if isinstance(inner, float | int) else 0.0


class KeyedDropout(nn.Module):  # type: ignore[misc]
    """Dropout whose mask is a function of `key` and of the place in the input, the batch being its first axis.

    The bits are those of a 32-bit integer hash (two multiplications and three shifted exclusive ors) of place x stride
    + offset, with (offset, stride) = `key`. It is plain arithmetic, so one client alone, many under `vmap`, and any
    device get the same mask.

    >>> layer = KeyedDropout(0.5)
    >>> bool((layer(torch.ones(4)) == layer(torch.ones(6))[:4]).all())
    True
    """

    def __init__(self, p: float, *, channels: bool = False) -> None:
        super().__init__()
        self.p = p
        self.channels = channels
        self.register_buffer("key", torch.tensor([1, 1], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return dropped(x, kept(x.shape, self.key, self.p, channels=self.channels), self.p)


def kept(like: Sequence[int], key: Tensor, p: float, *, channels: bool) -> Tensor:
    """Which places of a batch of this shape stay, under one key [2] or under each of several [clients, 1, 2]."""
    shape = (*like[:2], *[1] * (len(like) - 2)) if channels else tuple(like)
    index = torch.arange(math.prod(shape), dtype=torch.int32, device=key.device)
    bits = _hashed(index * key[..., 1] + key[..., 0]) & (2**_BITS - 1)
    return (bits >= round(p * 2**_BITS)).reshape(*key.shape[:-2], *shape)


def dropped(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """What stays, scaled up for what goes."""
    return torch.where(keep, x / (1 - p), torch.zeros((), dtype=x.dtype, device=x.device))


def _hashed(h: Tensor) -> Tensor:
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * 0x21F0AAAD
    h = h ^ ((h >> 15) & 0x1FFFF)
    h = h * (0xD35A2D97 - 2**32)
    return h ^ ((h >> 15) & 0x1FFFF)


def trainable_copy(model: Module, stand_in: Callable[[Module], Module | None] | None = None) -> Module:
    """A copy in training mode whose dropout layers are keyed; the model itself is left as it is.

    `stand_in` may give a layer to take the place of another, or None to leave it.
    """
    twin = nn.Sequential(copy.deepcopy(model))  # so that the model itself may be such a layer
    for parent in list(twin.modules()):
        for name, child in list(parent._modules.items()):  # a layer under two names is two, with keys of their own
            if child is None:
                continue
            if isinstance(child, _DROPOUTS):
                setattr(parent, name, KeyedDropout(child.p, channels=not isinstance(child, nn.Dropout)))
            elif stand_in is not None and (layer := stand_in(child)) is not None:
                setattr(parent, name, layer)
    return twin[0].train()


def is_plain(layer: Module, kind: type) -> bool:
    """Exactly of this class, and nobody looks at what goes through it."""
    watched = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) is kind and not watched


class Attention(nn.Module):  # type: ignore[misc]
    """Attention of several heads (Vaswani et al. 2017) from queries, keys and values, each [batch, time, width].

    With `causal` a place sees those before it and itself.

    >>> x = torch.tensor([[[1.0], [3.0]]])
    >>> Attention(1, causal=True)(0 * x, x, x).flatten().tolist()
    [1.0, 2.0]
    """

    def __init__(self, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (self.apart(x) for x in (query, key, value))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        if self.causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2)

    def apart(self, x: Tensor) -> Tensor:
        """Each head by itself, [batch, heads, time, width / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, causal={self.causal}"


class RectifiedPool(nn.Module):  # type: ignore[misc]
    """The largest of each 2 x 2 numbers, or zero: the rectifier after the maxima, on a quarter of the numbers.

    >>> RectifiedPool()(torch.tensor([[[[-1.0, 2.0, -3.0], [0.0, 1.0, 9.0]]]])).tolist()
    [[[[2.0]]]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(functional.max_pool2d(x, 2), inplace=not torch.is_grad_enabled())


class RectifiedNorm(nn.GroupNorm):  # type: ignore[misc]
    """A group norm with the rectifier behind it, after the sum with another image if there is one.

    >>> RectifiedNorm(1, 2)(torch.tensor([[[1.0], [3.0]]])).round().tolist()
    [[[0.0], [1.0]]]
    """

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        output = super().forward(x)
        return functional.relu(output if beside is None else output + beside)


class Cells(nn.Module):  # type: ignore[misc]
    """LSTM cells over a sequence, written out so that vmap can batch them; they begin at zero.

    >>> Cells()(torch.zeros(2, 5, 4 * 3), nn.Linear(3, 4 * 3, bias=False)).shape
    torch.Size([2, 5, 3])
    """

    def forward(self, driven: Tensor, recurrent: Module) -> Tensor:
        """Outputs [batch, time, width] of what drives the four gates [batch, time, 4 width]."""
        h = c = driven.new_zeros(()).expand(len(driven), driven.shape[2] // 4)
        outputs = []
        for t in range(driven.shape[1]):
            i, f, g, o = (driven[:, t] + recurrent(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class Standardise(nn.Module):  # type: ignore[misc]
    """Takes a mean off its inputs and divides by a deviation, number by number.

    >>> Standardise(np.ones(2), np.full(2, 4.0))(torch.tensor([[3.0, 1.0]])).tolist()
    [[0.5, 0.0]]
    """

    def __init__(self, mean: Array, scale: Array) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.scale).to(x.dtype)


class ShiftedLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer that adds a vector to its inputs; these are appended to `seen` if that is a list.

    >>> layer = ShiftedLinear(2, 1)
    >>> [n for n, _ in layer.named_parameters()]
    ['weight', 'bias', 'shift']
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True) -> None:
        super().__init__(n_in, n_out, bias=bias)
        self.shift = nn.Parameter(torch.zeros(n_in))
        self.seen: list[Tensor] | None = None

    def reset_parameters(self) -> None:
        """Draw the weights again; the shift is zero."""
        super().reset_parameters()
        if hasattr(self, "shift"):
            nn.init.zeros_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        if self.seen is not None:
            self.seen.append(x)
        return functional.linear(x + self.shift, self.weight, self.bias)


class Centre(NamedTuple):
    """A term of every step's loss: strength / 2 times the mean square of m - target.

    m is a running mean of the inputs of the model's ShiftedLinear, m <- (1 - momentum) m + momentum (mean of the
    batch), from zero at the first step.
    """

    target: Tensor  # [inputs]
    strength: float
    momentum: float

    def moved(self, mean: Tensor, z: Tensor, real: Tensor) -> Tensor:
        """The running mean after a batch of inputs [batch, d], of which only the `real` rows [batch] count."""
        batch = (z.flatten(1) * real[:, None]).sum(dim=0) / real.sum().clamp(min=1)
        return (1 - self.momentum) * mean + self.momentum * batch

    def loss(self, mean: Tensor) -> Tensor:
        """The term for this running mean."""
        return self.strength / 2 * (mean - self.target).square().mean()


def shifted_layer(module: Module) -> ShiftedLinear:
    """The layer of the model whose inputs a Centre pulls."""
    layers = [layer for layer in module.modules() if isinstance(layer, ShiftedLinear)]
    if not layers:
        raise DataError("the model has no ShiftedLinear layer whose inputs could be pulled to a centre")
    return layers[-1]


def keyed_layers(module: Module) -> Iterator[tuple[str, KeyedDropout]]:
    """The paths and layers of the keyed dropout in a `trainable_copy` that drop anything."""
    layers = ((path, layer) for path, layer in module.named_modules() if isinstance(layer, KeyedDropout))
    return ((path, layer) for path, layer in layers if layer.p > 0)


def dropout_keys(key: Key, clients: HasKeys, path: str, steps: int) -> Array:
    """Offset and stride of the hash for each client, at one layer and every local step: [steps, clients, 2], int32."""
    bits = (key.to(f"dropout {path}").uniform(clients) * 2.0**53).astype(np.uint64)
    stride = (((bits & np.uint64(0x3FFFFF)) * np.uint64(1021)) | np.uint64(1)).astype(np.uint32)
    golden = np.uint32(0x9E3779B9)
    begin = (bits >> np.uint64(22)).astype(np.uint32) + golden * np.arange(steps, dtype=np.uint32)[:, None]
    words = np.stack([_mixed(begin), np.broadcast_to(stride, begin.shape)], axis=-1)
    return np.ascontiguousarray(words).view(np.int32)


def _mixed(h: Array) -> Array:
    """The same hash on whole numbers: neighbouring steps get offsets that have nothing in common."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
    return np.asarray(h ^ (h >> np.uint32(15)))


def initialised(model: Module, seed: int) -> Module:
    """A copy of the model with fresh weights drawn from this seed; the global generator is left as it was.

    A module that has `reset_parameters` draws its own and its children's; others ask their children.

    >>> a, b = (initialised(nn.Linear(3, 2), 7).weight for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    fresh = copy.deepcopy(model)
    with drawing(seed):
        redraw(fresh)
    return fresh


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Weights drawn inside come from this seed; the global generator is afterwards as it was before."""
    seeded = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    with torch.random.fork_rng(devices=[]):
        seeded(seed)  # without a GPU the first would keep a traceback of each call
        yield


def redraw(module: Module) -> None:
    """Draw the weights anew, in place, as `initialised` says."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
        return
    if hasattr(module, "_reset_parameters"):
        module._reset_parameters()
    for child in module.children():
        redraw(child)
