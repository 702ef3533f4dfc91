"""2 x 2 max pooling of many clients, optionally with a rectifier: the twins of those in `pooling`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _square(at, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    """Where the first of the four numbers lies that this one is the largest of."""
    pixel = at // C
    image, i, j = pixel // ((H // 2) * (W // 2)), pixel // (W // 2) % (H // 2), pixel % (W // 2)
    return ((image * H + 2 * i) * W + 2 * j) * C + at % C


@triton.jit
def _larger(best, which, other, number: tl.constexpr):
    taken = (other > best) | (other != other)
    return tl.where(taken, other, best), tl.where(taken, number, which)


@triton.jit
def _pool(
    x, out, index, NUMBER: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    RECTIFIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < NUMBER
    begin = x + _square(at, H, W, C)
    best = tl.load(begin, mask=mask, other=0.0)
    which = tl.zeros((BLOCK,), tl.int32)
    best, which = _larger(best, which, tl.load(begin + C, mask=mask, other=0.0), 1)
    best, which = _larger(best, which, tl.load(begin + W * C, mask=mask, other=0.0), 2)
    best, which = _larger(best, which, tl.load(begin + W * C + C, mask=mask, other=0.0), 3)
    if RECTIFIED:
        low = best <= 0.0
        best, which = tl.where(low, 0.0, best), tl.where(low, 4, which)
    tl.store(out + at, best.to(out.dtype.element_ty), mask=mask)
    tl.store(index + at, which.to(tl.int8), mask=mask)


@triton.jit
def _unpool(
    gradient, index, out, NUMBER: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < NUMBER
    begin = out + _square(at, H, W, C)
    g, which = tl.load(gradient + at, mask=mask, other=0.0), tl.load(index + at, mask=mask, other=4)
    tl.store(begin, tl.where(which == 0, g, 0.0), mask=mask)
    tl.store(begin + C, tl.where(which == 1, g, 0.0), mask=mask)
    tl.store(begin + W * C, tl.where(which == 2, g, 0.0), mask=mask)
    tl.store(begin + W * C + C, tl.where(which == 3, g, 0.0), mask=mask)


def pool(x: torch.Tensor, rectified: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """See `pooling.pool`; images are contiguous."""
    batch, height, width, channels = x.shape
    maxima = x.new_empty((batch, height // 2, width // 2, channels))
    index = torch.empty_like(maxima, dtype=torch.int8)
    grid = (triton.cdiv(maxima.numel(), 1024),)
    _pool[grid](x, maxima, index, maxima.numel(), height, width, channels, RECTIFIED=rectified, BLOCK=1024, num_warps=4)
    return maxima, index


def unpool(gradient: torch.Tensor, index: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The gradient of the images, from that of their maxima and where these were."""
    batch, channels = gradient.shape[0], gradient.shape[3]
    new = gradient.new_zeros if height % 2 or width % 2 else gradient.new_empty
    images = new((batch, height, width, channels))
    grid = (triton.cdiv(gradient.numel(), 1024),)
    _unpool[grid](gradient, index, images, gradient.numel(), height, width, channels, BLOCK=1024, num_warps=4)
    return images
