"""Convolutions as matrix products, which vmap turns into batched products: for models that cannot be folded.

benchmarks/fast_paths.py, row "product convolution": 1.4 times for a CNN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from fedscape.learning.layers import Module
from fedscape.types import Tensor


class ProductConv2d(nn.Module):  # type: ignore[misc]
    """A convolution as one matrix product over patches, channels last: over many clients, a batch of products.

    >>> layer, x = nn.Conv2d(2, 3, 3, stride=2, padding=1), torch.arange(50.0).reshape(1, 2, 5, 5)
    >>> torch.allclose(ProductConv2d(layer)(x), layer(x), atol=1e-4)
    True
    """

    def __init__(self, layer: Module) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.padding = layer.stride, layer.padding

    def forward(self, x: Tensor) -> Tensor:
        out, _, high, wide = self.weight.shape
        parts = shifted_views(x, (high, wide), self.stride, self.padding)
        h, w = parts[0].shape[1:3]
        patches = torch.cat(parts, dim=-1).reshape(len(x), h * w, -1)
        outputs = patches @ self.weight.permute(2, 3, 1, 0).reshape(-1, out)
        outputs = outputs if self.bias is None else outputs + self.bias
        return outputs.reshape(len(x), h, w, out).permute(0, 3, 1, 2).contiguous()  # a group norm under vmap wants that


def stands_for_product(layer: Module, *, groups: int = 1) -> bool:
    """Whether this convolution has nothing that a sum over `shifted_views` leaves out."""
    plain = layer.groups == groups and layer.padding_mode == "zeros" and tuple(layer.dilation) == (1, 1)
    return plain and not isinstance(layer.padding, str)


def shifted_views(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[Tensor]:
    """Views of the padded images, channels last, one for each place of the kernel: [batch, H out, W out, channels]."""
    (up, left), (down, right), (high, wide) = padding, stride, kernel
    x = functional.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, up, up))
    h, w = (x.shape[1] - high) // down + 1, (x.shape[2] - wide) // right + 1
    corners = [(i, j) for i in range(high) for j in range(wide)]
    return [x[:, i : i + down * (h - 1) + 1 : down, j : j + right * (w - 1) + 1 : right] for i, j in corners]
