"""Depthwise convolutions of many clients, by kernels of our own on a GPU.

benchmarks/fast_paths.py, row "Triton depthwise": 3.1 times.
"""

from __future__ import annotations

from typing import Any

import torch

from fedscape.types import Tensor

Pair = tuple[int, int]


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, stride: Pair, rates: Tensor | None = None
) -> Tensor:
    """Images [clients x batch, H, W, channels] by [clients, H kernel, W kernel, channels], a channel by itself.

    With rates [clients] the backward pass takes the SGD step of weights and biases, which lie as one piece, in place.
    """
    images: Tensor = _Convolve.apply(x, weight, bias, padding, stride, rates)
    return images


class _Convolve(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        padding: Pair,
        stride: Pair,
        rates: Tensor | None,
    ) -> Tensor:
        from fedscape.learning.fast.triton import depthwise as gpu_kernels

        ctx.save_for_backward(x)
        ctx.held, ctx.how = (weight.detach(), None if bias is None else bias.detach(), rates), (padding, stride)
        return gpu_kernels.forward(x, weight, None if bias is None else bias.contiguous(), padding, stride)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from fedscape.learning.fast.triton import depthwise as gpu_kernels
        from fedscape.learning.fast.triton import sums as gpu_sums

        (x,), (weight, bias, rates), gradient = ctx.saved_tensors, ctx.held, gradient.contiguous()
        images = None
        if ctx.needs_input_grad[0]:
            images = gpu_kernels.to_images(gradient, weight, tuple(x.shape[1:3]), *ctx.how)
        kernel = (weight.shape[1], weight.shape[2])
        weights, biases = gpu_kernels.to_weights(x, gradient, len(weight), kernel, *ctx.how, biased=bias is not None)
        if rates is None:
            return images, weights.sum(dim=1), None if bias is None else biases.sum(dim=1), None, None, None
        gpu_sums.descend(weight, weights, rates)
        if bias is not None:
            gpu_sums.descend(bias, biases, rates)
        return images, None, None, None, None, None
