"""Group norms of many clients, with a sum and a rectifier in the same pass: the twins of those in `norms`.

A program has a few whole groups of one image. It holds them in registers; of larger images it reads them three
times, but for the first from the cache. Sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _of_groups(each, c, SIZE: tl.constexpr):
    """Of each channel the sum over its group."""
    same = (c // SIZE)[:, None] == (c // SIZE)[None, :]
    return tl.sum(tl.where(same, each[None, :], 0.0), axis=1)


@triton.jit
def _ended(v, beside, at, mask, ADDS: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr):
    """What comes behind a norm: another image, and the rectifier."""
    if ADDS:
        v += tl.load(beside + at, mask=mask, other=0.0).to(tl.float32)
    if LOWEST:
        v = tl.maximum(v, 0.0)
    if HIGHEST > 0:
        v = tl.minimum(v, HIGHEST)
    return v


@triton.jit
def _norm(
    x, beside, weight, bias, out, moments,
    BATCH, PIXELS, C, EPS, SIZE: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr,
    ADDS: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    local = tl.arange(0, BC)
    c = tl.program_id(1) * CHUNK + local
    real = (local < CHUNK) & (c < C)
    p = tl.arange(0, BP)
    begin = image * PIXELS * C
    w = tl.load(weight + image // BATCH * C + c, mask=real, other=0.0)
    shift = tl.load(bias + image // BATCH * C + c, mask=real, other=0.0)
    if WHOLE:  # all of it stays in registers
        at = begin + p[:, None] * C + c[None, :]
        mask = (p < PIXELS)[:, None] & real[None, :]
        v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        mean = _of_groups(tl.sum(v, axis=0), c, SIZE) / (PIXELS * SIZE)
        v = tl.where(mask, v - mean[None, :], 0.0)
        scale = 1.0 / tl.sqrt(_of_groups(tl.sum(v * v, axis=0), c, SIZE) / (PIXELS * SIZE) + EPS)
        v = _ended(v * (scale * w)[None, :] + shift[None, :], beside, at, mask, ADDS, LOWEST, HIGHEST)
        tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
    else:
        total = tl.zeros((BC,), tl.float32)
        for t in range((PIXELS + BP - 1) // BP):
            at = begin + (t * BP + p)[:, None] * C + c[None, :]
            mask = (t * BP + p < PIXELS)[:, None] & real[None, :]
            total += tl.sum(tl.load(x + at, mask=mask, other=0.0).to(tl.float32), axis=0)
        mean = _of_groups(total, c, SIZE) / (PIXELS * SIZE)
        squares = tl.zeros((BC,), tl.float32)
        for t in range((PIXELS + BP - 1) // BP):
            at = begin + (t * BP + p)[:, None] * C + c[None, :]
            mask = (t * BP + p < PIXELS)[:, None] & real[None, :]
            v = tl.where(mask, tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean[None, :], 0.0)
            squares += tl.sum(v * v, axis=0)
        scale = 1.0 / tl.sqrt(_of_groups(squares, c, SIZE) / (PIXELS * SIZE) + EPS)
        for t in range((PIXELS + BP - 1) // BP):
            at = begin + (t * BP + p)[:, None] * C + c[None, :]
            mask = (t * BP + p < PIXELS)[:, None] & real[None, :]
            v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
            v = _ended(v * (scale * w)[None, :] + shift[None, :], beside, at, mask, ADDS, LOWEST, HIGHEST)
            tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
    tl.store(moments + image * 2 * C + c, mean, mask=real)
    tl.store(moments + image * 2 * C + C + c, scale, mask=real)


@triton.jit
def _before(gradient, x, out, mean, scale, at, mask, LOWEST: tl.constexpr, HIGHEST: tl.constexpr):
    """The gradient before the rectifier, and the normed numbers."""
    g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    if LOWEST or HIGHEST > 0:
        y = tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
        if LOWEST:
            g = tl.where(y > 0.0, g, 0.0)
        if HIGHEST > 0:
            g = tl.where(y < HIGHEST, g, 0.0)
    return g, (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]


@triton.jit
def _back(
    gradient, x, out, weight, moments, images, beside, sums,
    BATCH, PIXELS, C, SIZE: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr,
    ADDS: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    local = tl.arange(0, BC)
    c = tl.program_id(1) * CHUNK + local
    real = (local < CHUNK) & (c < C)
    p = tl.arange(0, BP)
    begin = image * PIXELS * C
    mean = tl.load(moments + image * 2 * C + c, mask=real, other=0.0)
    scale = tl.load(moments + image * 2 * C + C + c, mask=real, other=0.0)
    w = tl.load(weight + image // BATCH * C + c, mask=real, other=0.0)
    if WHOLE:  # all of it stays in registers
        at = begin + p[:, None] * C + c[None, :]
        mask = (p < PIXELS)[:, None] & real[None, :]
        g, v = _before(gradient, x, out, mean, scale, at, mask, LOWEST, HIGHEST)
        plain, along = tl.sum(g, axis=0), tl.sum(g * v, axis=0)
        if ADDS:
            tl.store(beside + at, g.to(beside.dtype.element_ty), mask=mask)
        first = _of_groups(plain * w, c, SIZE) / (PIXELS * SIZE)
        second = _of_groups(along * w, c, SIZE) / (PIXELS * SIZE)
        v = (g * w[None, :] - first[None, :] - v * second[None, :]) * scale[None, :]
        tl.store(images + at, v.to(images.dtype.element_ty), mask=mask)
    else:
        plain, along = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
        for t in range((PIXELS + BP - 1) // BP):
            at = begin + (t * BP + p)[:, None] * C + c[None, :]
            mask = (t * BP + p < PIXELS)[:, None] & real[None, :]
            g, v = _before(gradient, x, out, mean, scale, at, mask, LOWEST, HIGHEST)
            plain += tl.sum(g, axis=0)
            along += tl.sum(g * v, axis=0)
        first = _of_groups(plain * w, c, SIZE) / (PIXELS * SIZE)
        second = _of_groups(along * w, c, SIZE) / (PIXELS * SIZE)
        for t in range((PIXELS + BP - 1) // BP):
            at = begin + (t * BP + p)[:, None] * C + c[None, :]
            mask = (t * BP + p < PIXELS)[:, None] & real[None, :]
            g, v = _before(gradient, x, out, mean, scale, at, mask, LOWEST, HIGHEST)
            if ADDS:
                tl.store(beside + at, g.to(beside.dtype.element_ty), mask=mask)
            v = (g * w[None, :] - first[None, :] - v * second[None, :]) * scale[None, :]
            tl.store(images + at, v.to(images.dtype.element_ty), mask=mask)
    tl.store(sums + image * 2 * C + c, along, mask=real)
    tl.store(sums + image * 2 * C + C + c, plain, mask=real)


IN_REGISTERS = 16_384  # numbers of an image that one program holds


def _tiles(pixels: int, channels: int, groups: int) -> tuple[int, int, int, int]:
    """Channels of a program, whole groups of them; the powers of two of tiles of pixels and of channels; warps."""
    size = channels // groups
    chunk = min(channels, size * max(1, (16 if pixels >= 512 else 32) // size))
    wide, high = int(triton.next_power_of_2(chunk)), int(max(16, triton.next_power_of_2(pixels)))
    fits = high * wide <= IN_REGISTERS
    bp = high if fits else max(16, 4096 // wide)
    return chunk, bp, wide, max(4, min(16, bp * wide // 1024))


def norm(
    x: torch.Tensor, beside: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor,
    groups: int, eps: float, lowest: bool, highest: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """See `norms.norm`; images are [clients x batch, H, W, channels]. Also means and scales [images, 2, channels]."""
    images, channels = len(x), x.shape[3]
    pixels, batch = x.shape[1] * x.shape[2], images // len(weight)
    chunk, bp, bc, warps = _tiles(pixels, channels, groups)
    out, moments = torch.empty_like(x), x.new_empty((images, 2, channels), dtype=torch.float32)
    _norm[(images, triton.cdiv(channels, chunk))](
        x, x if beside is None else beside, weight, bias, out, moments,
        batch, pixels, channels, eps, SIZE=channels // groups, CHUNK=chunk, WHOLE=bp >= pixels,
        ADDS=beside is not None, LOWEST=lowest, HIGHEST=highest, BP=bp, BC=bc, num_warps=warps,
    )  # fmt: skip
    return out, moments


def back(
    gradient: torch.Tensor, x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor, moments: torch.Tensor,
    groups: int, adds: bool, lowest: bool, highest: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of images and of what was added; those of weights and biases of each image, [clients, batch, 2, C]."""
    images, channels = len(x), x.shape[3]
    pixels, batch = x.shape[1] * x.shape[2], images // len(weight)
    chunk, bp, bc, warps = _tiles(pixels, channels, groups)
    moved = torch.empty_like(x)
    beside = torch.empty_like(x) if adds else moved
    sums = moments.new_empty((images, 2, channels))
    _back[(images, triton.cdiv(channels, chunk))](
        gradient, x, out, weight, moments, moved, beside, sums,
        batch, pixels, channels, SIZE=channels // groups, CHUNK=chunk, WHOLE=bp >= pixels,
        ADDS=adds, LOWEST=lowest, HIGHEST=highest, BP=bp, BC=bc, num_warps=warps,
    )  # fmt: skip
    return moved, beside, sums.unflatten(0, (len(weight), batch))


@triton.jit
def _descend(weight, bias, sums, rates, C, BATCH: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr):
    client = tl.program_id(1).to(tl.int64)
    b, c = tl.arange(0, BB), tl.program_id(0) * BC + tl.arange(0, BC)
    at, mask = ((client * BATCH + b) * 2 * C)[:, None] + c[None, :], (b < BATCH)[:, None] & (c < C)[None, :]
    rate, to = tl.load(rates + client), client * C + c
    along = tl.sum(tl.load(sums + at, mask=mask, other=0.0), axis=0)
    tl.store(weight + to, tl.load(weight + to, mask=c < C) - rate * along, mask=c < C)
    plain = tl.sum(tl.load(sums + at + C, mask=mask, other=0.0), axis=0)
    tl.store(bias + to, tl.load(bias + to, mask=c < C) - rate * plain, mask=c < C)


def descend(weight: torch.Tensor, bias: torch.Tensor, sums: torch.Tensor, rates: torch.Tensor) -> None:
    """An SGD step of weights and biases [clients, C] from the sums of `back`."""
    clients, batch, _, channels = sums.shape
    _descend[(triton.cdiv(channels, 64), clients)](
        weight, bias, sums, rates, channels, BATCH=batch, BB=triton.next_power_of_2(batch), BC=64, num_warps=2
    )
