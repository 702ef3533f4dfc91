"""Batched convolutions with one kernel per client, as opaque operations for the compiler.

Left to a compiler, a convolution as a product of patches writes the patches, nine times the size of the image, up to
three times. On a GPU the operation reads them from the image (`triton.convolutions`); elsewhere it is what it says.

benchmarks/fast_paths.py, row "Triton convolution": 1.5 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input

from fedscape.types import Tensor

EXACT = "tf32x3"  # three tf32 products for one of float32, with errors of float32
HAS_TRITON = find_spec("triton") is not None  # looked for once: a compiler that follows the model stops where files are
Pair = tuple[int, int]


def runs_kernels(x: Tensor) -> bool:
    """Whether kernels of our own take this tensor: float32 or bfloat16, on a GPU, where Triton is installed."""
    return HAS_TRITON and bool(x.is_cuda) and x.dtype in (torch.float32, torch.bfloat16)


def can_convolve(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> bool:
    """Whether the Triton kernel applies; that of a single place is a plain product."""
    several = kernel != (1, 1) or stride != (1, 1)
    return several and padding[0] < kernel[0] and padding[1] < kernel[1] and runs_kernels(x)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, stride: Pair = (1, 1), *, exact: bool = False
) -> Tensor:
    """Images [clients x batch, H, W, channels] convolved with weights [clients, out, H kernel, W kernel, channels].

    Biases are [clients, out]. On a GPU products are tf32, of three parts if `exact`, or bfloat16 where the images are,
    and sums float32; elsewhere both have the type of the images.

    >>> weight = torch.stack([torch.ones(1, 3, 3, 1), torch.full((1, 3, 3, 1), 2.0)])
    >>> convolve(torch.ones(2, 3, 3, 1), weight, torch.zeros(2, 1), (0, 0)).flatten().tolist()
    [9.0, 18.0]
    """
    images: Tensor = _convolve(x, weight, bias, [*padding, *stride, int(exact)])[0]
    return images


@torch.library.custom_op("fedscape::convolve", mutates_args=())  # type: ignore[untyped-decorator]
def _convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The images, and the weights in their type where that is another; `how` is padding, stride and exactness."""
    padding, stride = how[:2], how[2:4]
    short = weight.to(x.dtype) if weight.dtype != x.dtype else weight
    kept = short.contiguous() if short is not weight else x.new_empty(0)
    if x.is_cuda:
        from fedscape.learning.fast.triton import convolutions as gpu_kernels

        own = None if bias is None else bias.contiguous()
        return gpu_kernels.convolve(x.contiguous(), short.contiguous(), own, *_as_kernels(how)), kept
    patches, shape = patches_of(_around(x, *padding), weight.shape[2:4], stride), weight.shape
    products = patches.reshape(shape[0], -1, patches.shape[3]) @ short.flatten(2).transpose(1, 2)
    outputs = products if bias is None else products + bias[:, None].to(x.dtype)
    return outputs.reshape(*patches.shape[:3], shape[1]), kept


@torch.library.custom_op("fedscape::convolve_to_images", mutates_args=())  # type: ignore[untyped-decorator]
def _to_images(gradient: torch.Tensor, weight: torch.Tensor, size: list[int], how: list[int]) -> torch.Tensor:
    """The gradient of images of this height and width."""
    padding, stride = how[:2], how[2:4]
    if gradient.is_cuda:
        from fedscape.learning.fast.triton import convolutions as gpu_kernels

        return gpu_kernels.to_images(gradient.contiguous(), weight.contiguous(), (size[0], size[1]), *_as_kernels(how))
    clients, _, _, _, channels = weight.shape
    batch = len(gradient) // clients
    wide = gradient.unflatten(0, (clients, batch)).permute(1, 0, 4, 2, 3).flatten(1, 2)
    kernels = weight.permute(0, 1, 4, 2, 3).flatten(0, 1)
    whole = conv2d_input((batch, clients * channels, *size), kernels, wide, stride, padding, groups=clients)
    return whole.unflatten(1, (clients, channels)).permute(1, 0, 3, 4, 2).flatten(0, 1).contiguous()


@torch.library.custom_op("fedscape::convolve_to_weights", mutates_args=())  # type: ignore[untyped-decorator]
def _to_weights(
    x: torch.Tensor, gradient: torch.Tensor, clients: int, kernel: list[int], how: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of weights and biases, on a GPU in float32."""
    padding, stride = how[:2], how[2:4]
    if x.is_cuda:
        from fedscape.learning.fast.triton import convolutions as gpu_kernels

        own = (kernel[0], kernel[1])
        return gpu_kernels.to_weights(x.contiguous(), gradient.contiguous(), clients, own, *_as_kernels(how))
    patches = patches_of(_around(x, *padding), kernel, stride)
    each = gradient.reshape(clients, -1, gradient.shape[3])
    products = each.transpose(1, 2) @ patches.reshape(clients, -1, patches.shape[3])
    return products.reshape(clients, -1, *kernel, x.shape[3]), each.sum(dim=1)


def _as_kernels(how: Sequence[int]) -> tuple[Pair, Pair, str]:
    return (how[0], how[1]), (how[2], how[3]), EXACT if how[4] else "tf32"


def patches_of(x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (1, 1)) -> Tensor:
    """Patches (im2col) of images [batch, H, W, channels]: [batch, H out, W out, kernel x channels].

    >>> patches_of(torch.arange(4.0).reshape(1, 2, 2, 1), (1, 2)).squeeze().tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    windows = x.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3)


def _around(x: Tensor, up: int, left: int) -> Tensor:
    return functional.pad(x, (0, 0, left, left, up, up))


@_convolve.register_fake  # type: ignore[untyped-decorator]
def _(x: Tensor, weight: Tensor, bias: Tensor | None, how: list[int]) -> tuple[Tensor, Tensor]:
    sides = zip(x.shape[1:3], weight.shape[2:4], how[:2], how[2:4], strict=True)
    size = [(n + 2 * padding - kernel) // stride + 1 for n, kernel, padding, stride in sides]
    kept = x.new_empty(weight.shape if weight.dtype != x.dtype else 0)
    return x.new_empty((x.shape[0], *size, weight.shape[1])), kept


@_to_images.register_fake  # type: ignore[untyped-decorator]
def _(gradient: Tensor, weight: Tensor, size: list[int], how: list[int]) -> Tensor:
    return gradient.new_empty((gradient.shape[0], *size, weight.shape[4]))


@_to_weights.register_fake  # type: ignore[untyped-decorator]
def _(x: Tensor, gradient: Tensor, clients: int, kernel: list[int], how: list[int]) -> tuple[Tensor, Tensor]:
    out, kind = gradient.shape[3], torch.float32 if x.is_cuda else x.dtype
    return x.new_empty((clients, out, *kernel, x.shape[3]), dtype=kind), x.new_empty((clients, out), dtype=kind)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, how = inputs
    ctx.save_for_backward(x, output[1] if output[1].numel() else weight)
    ctx.how, ctx.biased, ctx.kind = how, bias is not None, weight.dtype


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), how = ctx.saved_tensors, ctx.how
    gradient = gradient.contiguous()
    images = _to_images(gradient, weight, list(x.shape[1:3]), how) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:3]):
        return images, None, None, None
    weights, biases = _to_weights(x, gradient, len(weight), list(weight.shape[2:4]), how)
    return images, weights.to(ctx.kind), biases if ctx.biased else None, None


_convolve.register_autograd(_backward, setup_context=_keep)
