"""Depthwise convolutions of many clients, by kernels of our own on a GPU.

benchmarks/fast_paths.py, row "Triton depthwise": 3.1 times.
"""

from __future__ import annotations

from typing import Any

import torch

from fedscape.types import Tensor

Pair = tuple[int, int]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, stride: Pair) -> Tensor:
    """Images [clients x batch, H, W, channels] by [clients, H kernel, W kernel, channels], a channel by itself."""
    images: Tensor = _Convolve.apply(x, weight, bias, padding, stride)
    return images


class _Convolve(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, stride: Pair) -> Tensor:
        from fedscape.learning.fast.triton import depthwise as gpu_kernels

        ctx.save_for_backward(x, weight)
        ctx.how, ctx.biased = (padding, stride), bias is not None
        return gpu_kernels.forward(x, weight, None if bias is None else bias.contiguous(), padding, stride)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from fedscape.learning.fast.triton import depthwise as gpu_kernels

        (x, weight), gradient = ctx.saved_tensors, gradient.contiguous()
        images = None
        if ctx.needs_input_grad[0]:
            images = gpu_kernels.to_images(gradient, weight, tuple(x.shape[1:3]), *ctx.how)
        weights, biases = gpu_kernels.to_weights(x, gradient, len(weight), tuple(weight.shape[1:3]), *ctx.how)
        return images, weights, biases if ctx.biased else None, None, None
