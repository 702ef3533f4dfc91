"""Batched convolutions with one kernel per client, as opaque operations for the compiler.

Left to a compiler, a convolution as a product of patches writes the patches, nine times the size of the image, up to
three times. On a GPU the operation reads them from the image (`gpu_kernels`); elsewhere it is what it says.

benchmarks/fast_paths.py, row "Triton convolution": 1.5 times.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional

from fedscape.types import Tensor

HAS_TRITON = find_spec("triton") is not None  # looked for once: a compiler that follows the model stops where files are


def can_convolve(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> bool:
    """Whether the Triton kernel applies: float32 or bfloat16 on a GPU, stride 1, a kernel larger than 1 x 1."""
    plain = stride == (1, 1) and kernel != (1, 1) and padding[0] < kernel[0] and padding[1] < kernel[1]
    short = x.dtype in (torch.float32, torch.bfloat16)
    return plain and short and HAS_TRITON and bool(x.is_cuda)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """Images [clients x batch, H, W, channels] convolved with weights [clients, out, H kernel, W kernel, channels].

    Biases are [clients, out]. On a GPU products are tf32, or bfloat16 where the images are, and sums float32; elsewhere
    both have the type of the images.

    >>> weight = torch.stack([torch.ones(1, 3, 3, 1), torch.full((1, 3, 3, 1), 2.0)])
    >>> convolve(torch.ones(2, 3, 3, 1), weight, torch.zeros(2, 1), (0, 0)).flatten().tolist()
    [9.0, 18.0]
    """
    images: Tensor = _convolve(x, weight, bias, *padding)
    return images


@torch.library.custom_op("fedscape::convolve", mutates_args=())  # type: ignore[untyped-decorator]
def _convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, up: int, left: int) -> torch.Tensor:
    if x.is_cuda:
        from fedscape.learning.fast import triton as gpu_kernels

        own = None if bias is None else bias.contiguous()
        return gpu_kernels.convolve(x.contiguous(), weight.contiguous(), own, (up, left))
    patches, shape = patches_of(_around(x, up, left), weight.shape[2:4]), weight.shape
    products = patches.reshape(shape[0], -1, patches.shape[3]) @ weight.flatten(2).transpose(1, 2).to(x.dtype)
    outputs = products if bias is None else products + bias[:, None].to(x.dtype)
    return outputs.reshape(*patches.shape[:3], shape[1])


@torch.library.custom_op("fedscape::convolve_backward", mutates_args=())  # type: ignore[untyped-decorator]
def _to_weights(
    x: torch.Tensor, gradient: torch.Tensor, clients: int, high: int, wide: int, up: int, left: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of weights and biases, on a GPU in float32."""
    if x.is_cuda:
        from fedscape.learning.fast import triton as gpu_kernels

        return gpu_kernels.gather(x.contiguous(), gradient.contiguous(), clients, (high, wide), (up, left))
    patches = patches_of(_around(x, up, left), (high, wide))
    each = gradient.reshape(clients, -1, gradient.shape[3])
    products = each.transpose(1, 2) @ patches.reshape(clients, -1, patches.shape[3])
    return products.reshape(clients, -1, high, wide, x.shape[3]), each.sum(dim=1)


def patches_of(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1)) -> Tensor:
    """Patches (im2col) of images [batch, H, W, channels]: [batch, H out, W out, kernel x channels].

    >>> patches_of(torch.arange(4.0).reshape(1, 2, 2, 1), (1, 2)).squeeze().tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    windows = x.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3)


def _around(x: Tensor, up: int, left: int) -> Tensor:
    return functional.pad(x, (0, 0, left, left, up, up))


@_convolve.register_fake  # type: ignore[untyped-decorator]
def _(x: Tensor, weight: Tensor, bias: Tensor | None, up: int, left: int) -> Tensor:
    high, wide = x.shape[1] + 2 * up - weight.shape[2] + 1, x.shape[2] + 2 * left - weight.shape[3] + 1
    return x.new_empty((x.shape[0], high, wide, weight.shape[1]))


@_to_weights.register_fake  # type: ignore[untyped-decorator]
def _(x: Tensor, gradient: Tensor, clients: int, high: int, wide: int, up: int, left: int) -> tuple[Tensor, Tensor]:
    out, kind = gradient.shape[3], torch.float32 if x.is_cuda else x.dtype
    return x.new_empty((clients, out, high, wide, x.shape[3]), dtype=kind), x.new_empty((clients, out), dtype=kind)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, up, left = inputs
    ctx.save_for_backward(x, weight)
    ctx.padding, ctx.biased = (up, left), bias is not None


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of the images is a convolution of `gradient` with the kernels turned round."""
    (x, weight), (up, left) = ctx.saved_tensors, ctx.padding
    high, wide = weight.shape[2:4]
    gradient = gradient.contiguous()
    images = None
    if ctx.needs_input_grad[0]:
        turned = weight.flip(2, 3).permute(0, 4, 2, 3, 1).contiguous()
        images = _convolve(gradient, turned, None, high - 1 - up, wide - 1 - left)
    if not any(ctx.needs_input_grad[1:3]):
        return images, None, None, None, None
    weights, biases = _to_weights(x, gradient, len(weight), high, wide, up, left)
    return images, weights.to(weight.dtype), biases if ctx.biased else None, None, None


_convolve.register_autograd(_backward, setup_context=_keep)
