"""Group norms of many clients with a sum and a rectifier in the same pass, by kernels of our own on a GPU.

benchmarks/fast_paths.py, row "Triton norm": 1.9 times.
"""

from __future__ import annotations

from typing import Any

import torch

from fedscape.types import Tensor


def norm(
    x: Tensor, beside: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float,
    *, lowest: bool = False, highest: float = 0.0,
) -> Tensor:  # fmt: skip
    """Images [clients x batch, H, W, channels] normed, weighted, added to others, and cut off below 0 and above.

    Weights and biases are [clients, channels]; `highest` of 0 is none.
    """
    images: Tensor = _Norm.apply(x, beside, weight, bias, (groups, eps, lowest, highest))
    return images


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beside: Tensor | None, weight: Tensor, bias: Tensor, how: tuple[int, float, bool, float]
    ) -> Tensor:
        from fedscape.learning.fast.triton import norms as gpu_kernels

        out, moments = gpu_kernels.norm(x, beside, weight.contiguous(), bias.contiguous(), *how)
        ctx.save_for_backward(x, out, weight, moments)
        ctx.how, ctx.adds = how, beside is not None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from fedscape.learning.fast.triton import norms as gpu_kernels

        (x, out, weight, moments), (groups, _, lowest, highest) = ctx.saved_tensors, ctx.how
        images, beside, weights, biases = gpu_kernels.back(
            gradient.contiguous(), x, out, weight.contiguous(), moments, groups, ctx.adds, lowest, highest
        )
        return images, beside if ctx.adds else None, weights, biases, None
