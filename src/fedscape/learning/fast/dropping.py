"""Keyed dropout in one pass, by a kernel of our own on a GPU.

benchmarks/fast_paths.py, rows "Triton dropout" (1.14 times) and "Triton pooling and dropout" (1.27).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fedscape.types import Tensor


def drop(x: Tensor, key: Tensor, p: float, *, channels: bool) -> Tensor:
    """Rows [clients, batch, ...] under the keys of clients, [clients, 2]: as `layers.dropped` and `layers.kept`."""
    left: Tensor = _Drop.apply(x, key, p, math.prod(x.shape[3:]) if channels else 1)
    return left


class _Drop(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, p: float, span: int) -> Tensor:
        from fedscape.learning.fast.triton import sums as gpu_kernels

        ctx.save_for_backward(key)
        ctx.how = (p, span)
        return gpu_kernels.drop(x.contiguous(), key.contiguous(), p, span)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        from fedscape.learning.fast.triton import sums as gpu_kernels

        (key,) = ctx.saved_tensors
        return gpu_kernels.drop(gradient.contiguous(), key, *ctx.how), None, None, None
