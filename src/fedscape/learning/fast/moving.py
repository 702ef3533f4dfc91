"""Convolutions that take their own SGD step as gradients pass, on a GPU.

The gradient of weights is as large as the weights: where a kernel that has a part of it moves that part of the weights,
it is never written and read again. The numbers of the next step's products are written in the same pass, in their type.

benchmarks/fast_paths.py, row "own steps".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fedscape.types import Tensor

Pair = tuple[int, int]


class Step(NamedTuple):
    """What a layer needs for its own step: a rate for each client, and where its products read their weights.

    The latter is None where they read the weights themselves.
    """

    rates: Tensor
    short: Tensor | None = None


class How(NamedTuple):
    """The padding, the stride and the precision of products of a convolution."""

    padding: Pair
    stride: Pair
    products: str


@contextmanager
def moving(layers: Collection[Any], rates: Tensor) -> Iterator[None]:
    """Within it these layers move their own weights by these rates."""
    for layer in layers:
        layer.rates = rates
    try:
        yield
    finally:
        for layer in layers:
            layer.rates = None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, step: Step | None, how: How) -> Tensor:
    """See `conv.convolve`; weights and biases, which lie as one piece, are moved by the backward pass.

    Without a step they are not, but have gradients, for kernels of a single place.
    """
    images: Tensor = _Convolve.apply(x, weight, bias, step, how)
    return images


class _Convolve(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, step: Step | None, how: How) -> Tensor:
        own = weight.to(x.dtype) if step is None or step.short is None else step.short
        ctx.save_for_backward(x)
        ctx.held, ctx.how = (weight.detach(), None if bias is None else bias.detach(), step, own.detach()), how
        if _is_product(weight, how):
            rows = x.reshape(len(weight), -1, x.shape[3])
            output = rows @ own[:, :, 0, 0].transpose(1, 2)
            output = output if bias is None else output + bias[:, None].to(output.dtype)
            return output.reshape(*x.shape[:3], weight.shape[1])
        from fedscape.learning.fast.triton import convolutions as gpu_kernels

        return gpu_kernels.convolve(x, own, bias, *how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from fedscape.learning.fast.triton import convolutions as gpu_kernels
        from fedscape.learning.fast.triton import sums as gpu_sums

        (x,), (weight, bias, step, own), how = ctx.saved_tensors, ctx.held, ctx.how
        gradient, images = gradient.contiguous(), None
        if not _is_product(weight, how):
            if ctx.needs_input_grad[0]:
                images = gpu_kernels.to_images(gradient, own, (x.shape[1], x.shape[2]), *how)
            gpu_kernels.move(x, gradient, weight, bias, step.rates, step.short, *how)
            return images, None, None, None, None
        each = gradient.reshape(len(weight), -1, gradient.shape[3])
        if ctx.needs_input_grad[0]:
            images = (each @ own[:, :, 0, 0]).reshape(x.shape)
        products = each.transpose(1, 2) @ x.reshape(len(weight), -1, x.shape[3])
        if step is None:
            biases = None if bias is None else each.sum(dim=1, dtype=bias.dtype)
            return images, products.to(weight.dtype).reshape(weight.shape), biases, None, None
        gpu_sums.descend(weight[:, :, 0, 0], products, step.rates, step.short)
        if bias is not None:
            gpu_sums.descend(bias, each.sum(dim=1, dtype=bias.dtype), step.rates)
        return images, None, None, None, None


def _is_product(weight: Tensor, how: How) -> bool:
    return is_single(tuple(weight.shape[2:4]), how.stride, how.padding)


def is_single(kernel: tuple[int, ...], stride: Pair, padding: Pair) -> bool:
    """Whether a convolution sees one place at a time: a product of its pixels."""
    return kernel == stride == (1, 1) and padding == (0, 0)
