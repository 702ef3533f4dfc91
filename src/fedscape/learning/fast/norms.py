"""Group norms of many clients with a sum and a rectifier in the same pass, by kernels of our own on a GPU.

benchmarks/fast_paths.py, row "Triton norm": 1.9 times.
"""

from __future__ import annotations

from typing import Any

import torch

from fedscape.types import Tensor


def norm(
    x: Tensor, beside: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float,
    *, lowest: bool = False, highest: float = 0.0, rates: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Images [clients x batch, H, W, channels] normed, weighted, added to others, and cut off below 0 and above.

    Weights and biases are [clients, channels]; `highest` of 0 is none. With rates [clients] the backward pass takes the
    SGD step of weights and biases, in place.
    """
    images: Tensor = _Norm.apply(x, beside, weight, bias, (groups, eps, lowest, highest), rates)
    return images


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        beside: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        how: tuple[int, float, bool, float],
        rates: Tensor | None,
    ) -> Tensor:
        from fedscape.learning.fast.triton import norms as gpu_kernels

        out, moments = gpu_kernels.norm(x, beside, weight.contiguous(), bias.contiguous(), *how)
        ctx.save_for_backward(x, out, moments)
        ctx.held, ctx.how, ctx.adds = (weight.detach(), bias.detach(), rates), how, beside is not None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from fedscape.learning.fast.triton import norms as gpu_kernels

        (x, out, moments), (groups, _, lowest, highest) = ctx.saved_tensors, ctx.how
        weight, bias, rates = ctx.held
        images, beside, sums = gpu_kernels.back(
            gradient.contiguous(), x, out, weight.contiguous(), moments, groups, ctx.adds, lowest, highest
        )
        added = beside if ctx.adds else None
        if rates is None:
            return images, added, *sums.sum(dim=1).unbind(1), None, None
        gpu_kernels.descend(weight, bias, sums, rates)
        return images, added, None, None, None, None
