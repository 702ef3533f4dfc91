"""Rectified maxima of the squares of an image: in one look at it, where nobody goes back."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedscape.core.kernel import compiles, has_compiler, kernel
from fedscape.core.random import Array
from fedscape.learning.losses import Tensor

_LARGE = 2**16  # numbers from which a compiled loop is worth its import


class RectifiedPool(nn.Module):  # type: ignore[misc]
    """`pool` as a layer.

    >>> RectifiedPool()(torch.tensor([[[[-1.0, 2.0], [0.0, 1.0]]]])).tolist()
    [[[[2.0]]]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return pool(x)


def pool(x: Tensor) -> Tensor:
    """The largest of each 2 x 2 numbers, or zero: [batch, channels, H, W] to [batch, channels, H // 2, W // 2].

    Torch notes where each maximum was, wanted or not, and rectifier and flattening read and write all of it again. The
    loop makes the same numbers.

    >>> pool(torch.tensor([[[[-1.0, 2.0, -3.0], [0.0, 1.0, 9.0]]]])).tolist()
    [[[[2.0]]]]
    """
    if not (_is_plain(x) and x.numel() >= _LARGE and compiles() and has_compiler()):
        return functional.relu(functional.max_pool2d(x, 2), inplace=not torch.is_grad_enabled())
    made = x.new_empty((*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2))
    _pool(x.permute(0, 2, 3, 1).numpy(), made.flatten(2).numpy())
    return made


def _is_plain(x: Tensor) -> bool:
    """Whether these are numbers in memory, channels last, that no gradient, vmap or compiler follows."""
    followed = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()
    if followed or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    here = x.is_cpu and x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
    return bool(here and min(x.shape[2:]) > 1)


@kernel
def _pool(x: Array, out: Array) -> None:
    """From x [batch, H, W, channels] to out [batch, channels, places]; NaN stays NaN."""
    high, wide, channels = x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
    rows = np.empty((high * wide, channels), x.dtype)  # of one image, which stay in the cache until they are turned
    for image in range(len(x)):
        for i in range(high):
            for j in range(wide):
                for c in range(channels):
                    a, b = x[image, 2 * i, 2 * j, c], x[image, 2 * i, 2 * j + 1, c]
                    d, e = x[image, 2 * i + 1, 2 * j, c], x[image, 2 * i + 1, 2 * j + 1, c]
                    a = a if a > b or a != a else b
                    d = d if d > e or d != d else e
                    a = a if a > d or a != a else d
                    rows[i * wide + j, c] = 0 if a < 0 else a
        for c in range(channels):
            for place in range(high * wide):
                out[image, c, place] = rows[place, c]
