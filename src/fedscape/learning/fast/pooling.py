"""2 x 2 max pooling with a rectifier, by kernels of our own on a GPU.

benchmarks/fast_paths.py, rows "Triton pooling" (1.15 times) and "Triton pooling and dropout" (1.27).
"""

from __future__ import annotations

from typing import Any

import torch

from fedscape.types import Tensor


def pool(x: Tensor, *, rectified: bool) -> Tensor:
    """The largest of each 2 x 2 numbers of images [batch, H, W, channels], and none below 0 if rectified."""
    maxima: Tensor = _Pool.apply(x, rectified)
    return maxima


def is_two_by_two(layer: Any) -> bool:
    """Whether a max pool takes each 2 x 2 numbers, and nothing else."""
    pair = all(side in (2, (2, 2)) for side in (layer.kernel_size, layer.stride))
    plain = layer.padding == 0 and layer.dilation == 1 and not (layer.ceil_mode or layer.return_indices)
    return bool(pair and plain)


class _Pool(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, rectified: bool) -> Tensor:
        from fedscape.learning.fast.triton import pooling as gpu_kernels

        maxima, index = gpu_kernels.pool(x, rectified)
        ctx.save_for_backward(index)
        ctx.size = tuple(x.shape[1:3])
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        from fedscape.learning.fast.triton import pooling as gpu_kernels

        (index,) = ctx.saved_tensors
        return gpu_kernels.unpool(gradient.contiguous(), index, *ctx.size), None
