"""Group norms of many clients, with a sum and a rectifier in the same pass: the twins of those in `norms`.

A program has a few whole groups of one image, and holds them in registers. A larger image is cut into parts, of which
a pass before makes the sums. Sums are float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl


@triton.jit
def _of_groups(each, c, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Of each channel the sum over its group; numbers beyond the chunk are zero."""
    if SIZE == CHUNK:
        return tl.sum(each, axis=0) + tl.zeros_like(each)
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
    BATCH, PIXELS, C, EPS, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    ADDS: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    local = tl.arange(0, BC)
    c = tl.program_id(1) * CHUNK + local
    real = (local < CHUNK) & (c < C)
    p = tl.arange(0, BP)
    w = tl.load(weight + image // BATCH * C + c, mask=real, other=0.0)
    shift = tl.load(bias + image // BATCH * C + c, mask=real, other=0.0)
    at, mask = image * PIXELS * C + p[:, None] * C + c[None, :], (p < PIXELS)[:, None] & real[None, :]
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    mean = _of_groups(tl.sum(v, axis=0), c, SIZE, CHUNK) / (PIXELS * SIZE)
    v = tl.where(mask, v - mean[None, :], 0.0)
    scale = 1.0 / tl.sqrt(_of_groups(tl.sum(v * v, axis=0), c, SIZE, CHUNK) / (PIXELS * SIZE) + EPS)
    v = _ended(v * (scale * w)[None, :] + shift[None, :], beside, at, mask, ADDS, LOWEST, HIGHEST)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
    tl.store(moments + image * 2 * C + c, mean, mask=real)
    tl.store(moments + image * 2 * C + C + c, scale, mask=real)


@triton.jit
def _norm_sums(x, parts, PIXELS, C, CHUNK: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Of a part of an image the mean of each channel, and the squares around it."""
    image, part, local = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.arange(0, BC)
    c, p = tl.program_id(1) * CHUNK + local, part * BP + tl.arange(0, BP)
    real = (local < CHUNK) & (c < C)
    mask = (p < PIXELS)[:, None] & real[None, :]
    v = tl.load(x + image * PIXELS * C + p[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / tl.minimum(BP, PIXELS - part * BP)
    v = tl.where(mask, v - mean[None, :], 0.0)
    to = (image * tl.num_programs(2) + part) * 2 * C + c
    tl.store(parts + to, mean, mask=real)
    tl.store(parts + to + C, tl.sum(v * v, axis=0), mask=real)


@triton.jit
def _norm_part(
    x, beside, weight, bias, out, moments, parts,
    BATCH, PIXELS, C, EPS, SIZE: tl.constexpr, CHUNK: tl.constexpr, BQ: tl.constexpr,
    ADDS: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    image, part, local = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.arange(0, BC)
    c, p, q = tl.program_id(1) * CHUNK + local, part * BP + tl.arange(0, BP), tl.arange(0, BQ)
    number = tl.num_programs(2)
    real = (local < CHUNK) & (c < C)
    at = (image * number + q)[:, None] * 2 * C + c[None, :]
    mask = (q < number)[:, None] & real[None, :]
    each = tl.minimum(BP, PIXELS - q * BP).to(tl.float32)[:, None]  # pixels of a part
    means = tl.load(parts + at, mask=mask, other=0.0)
    mean = _of_groups(tl.sum(tl.where(mask, means * each, 0.0), axis=0), c, SIZE, CHUNK) / (PIXELS * SIZE)
    apart = means - mean[None, :]
    squares = tl.load(parts + at + C, mask=mask, other=0.0) + each * apart * apart
    squares = tl.sum(tl.where(mask, squares, 0.0), axis=0)
    scale = 1.0 / tl.sqrt(_of_groups(squares, c, SIZE, CHUNK) / (PIXELS * SIZE) + EPS)
    w = tl.load(weight + image // BATCH * C + c, mask=real, other=0.0)
    shift = tl.load(bias + image // BATCH * C + c, mask=real, other=0.0)
    at, mask = image * PIXELS * C + p[:, None] * C + c[None, :], (p < PIXELS)[:, None] & real[None, :]
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
    v = _ended(v * (scale * w)[None, :] + shift[None, :], beside, at, mask, ADDS, LOWEST, HIGHEST)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
    if part == 0:
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
def _norm_back(
    gradient, x, out, weight, moments, images, beside, sums,
    BATCH, PIXELS, C, SIZE: tl.constexpr, CHUNK: tl.constexpr, BQ: tl.constexpr,
    ADDS: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """With BQ the image is in parts, and the sums of all are there."""
    image, part, local = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.arange(0, BC)
    c, p = tl.program_id(1) * CHUNK + local, part * BP + tl.arange(0, BP)
    real = (local < CHUNK) & (c < C)
    mean = tl.load(moments + image * 2 * C + c, mask=real, other=0.0)
    scale = tl.load(moments + image * 2 * C + C + c, mask=real, other=0.0)
    w = tl.load(weight + image // BATCH * C + c, mask=real, other=0.0)
    at, mask = image * PIXELS * C + p[:, None] * C + c[None, :], (p < PIXELS)[:, None] & real[None, :]
    g, v = _before(gradient, x, out, mean, scale, at, mask, LOWEST, HIGHEST)
    if BQ > 0:
        q, number = tl.arange(0, BQ), tl.num_programs(2)
        of, valid = (image * number + q)[:, None] * 2 * C + c[None, :], (q < number)[:, None] & real[None, :]
        along = tl.sum(tl.load(sums + of, mask=valid, other=0.0), axis=0)
        plain = tl.sum(tl.load(sums + of + C, mask=valid, other=0.0), axis=0)
    else:
        plain, along = tl.sum(g, axis=0), tl.sum(g * v, axis=0)
        tl.store(sums + image * 2 * C + c, along, mask=real)
        tl.store(sums + image * 2 * C + C + c, plain, mask=real)
    if ADDS:
        tl.store(beside + at, g.to(beside.dtype.element_ty), mask=mask)
    first = _of_groups(plain * w, c, SIZE, CHUNK) / (PIXELS * SIZE)
    second = _of_groups(along * w, c, SIZE, CHUNK) / (PIXELS * SIZE)
    v = (g * w[None, :] - first[None, :] - v * second[None, :]) * scale[None, :]
    tl.store(images + at, v.to(images.dtype.element_ty), mask=mask)


@triton.jit
def _norm_back_sums(
    gradient, x, out, moments, sums, PIXELS, C, CHUNK: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of a part of an image the sums of gradients, also times the normed numbers, of each channel."""
    image, part, local = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.arange(0, BC)
    c, p = tl.program_id(1) * CHUNK + local, part * BP + tl.arange(0, BP)
    real = (local < CHUNK) & (c < C)
    mean = tl.load(moments + image * 2 * C + c, mask=real, other=0.0)
    scale = tl.load(moments + image * 2 * C + C + c, mask=real, other=0.0)
    at, mask = image * PIXELS * C + p[:, None] * C + c[None, :], (p < PIXELS)[:, None] & real[None, :]
    g, v = _before(gradient, x, out, mean, scale, at, mask, LOWEST, HIGHEST)
    to = (image * tl.num_programs(2) + part) * 2 * C + c
    tl.store(sums + to, tl.sum(g * v, axis=0), mask=real)
    tl.store(sums + to + C, tl.sum(g, axis=0), mask=real)


IN_REGISTERS = 16_384  # numbers of an image that one program holds
AT_ONCE = 512  # sums of images, or of parts of them, that one program adds up at a time


class Tiles(NamedTuple):
    """Channels of a program, whole groups of them; powers of two of pixels and channels; warps; parts of an image."""

    chunk: int
    pixels: int
    channels: int
    warps: int
    parts: int


def tiles_of(pixels: int, channels: int, groups: int) -> Tiles:
    """A few whole groups of one image; of larger images a part, with sums over its parts in a pass before."""
    size = channels // groups
    chunk = min(channels, size * max(1, (16 if pixels >= 512 else 32) // size))
    wide, high = int(triton.next_power_of_2(chunk)), int(max(16, triton.next_power_of_2(pixels)))
    if high * wide <= IN_REGISTERS:
        return Tiles(chunk, high, wide, max(4, min(16, high * wide // 1024)), 1)
    chunk = min(channels, size * max(1, 64 // size))
    wide = int(triton.next_power_of_2(chunk))
    high = max(16, 8192 // wide)
    return Tiles(chunk, high, wide, 8, triton.cdiv(pixels, high))


def norm(
    x: torch.Tensor, beside: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor,
    groups: int, eps: float, lowest: bool, highest: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """See `norms.norm`; images are [clients x batch, H, W, channels]. Also means and scales [images, 2, channels]."""
    images, channels = len(x), x.shape[3]
    pixels, batch = x.shape[1] * x.shape[2], images // len(weight)
    tiles = tiles_of(pixels, channels, groups)
    out, moments = torch.empty_like(x), x.new_empty((images, 2, channels), dtype=torch.float32)
    grid = (images, triton.cdiv(channels, tiles.chunk), tiles.parts)
    how: dict[str, Any] = {"CHUNK": tiles.chunk, "BC": tiles.channels}
    how |= {"BP": tiles.pixels, "num_warps": tiles.warps}
    ends: dict[str, float] = {
        "SIZE": channels // groups,
        "ADDS": beside is not None,
        "LOWEST": lowest,
        "HIGHEST": highest,
    }
    held = (x, x if beside is None else beside, weight, bias, out, moments)
    if tiles.parts == 1:
        _norm[grid](*held, batch, pixels, channels, eps, **ends, **how)
        return out, moments
    parts = moments.new_empty((images, tiles.parts, 2, channels))
    _norm_sums[grid](x, parts, pixels, channels, **how)
    _norm_part[grid](*held, parts, batch, pixels, channels, eps, BQ=triton.next_power_of_2(tiles.parts), **ends, **how)
    return out, moments


def back(
    gradient: torch.Tensor, x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor, moments: torch.Tensor,
    groups: int, adds: bool, lowest: bool, highest: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of images and of what was added; those of weights and biases in parts, [clients, parts, 2, C]."""
    images, channels = len(x), x.shape[3]
    pixels, batch = x.shape[1] * x.shape[2], images // len(weight)
    tiles = tiles_of(pixels, channels, groups)
    moved = torch.empty_like(x)
    beside = torch.empty_like(x) if adds else moved
    sums = moments.new_empty((images * tiles.parts, 2, channels))
    grid = (images, triton.cdiv(channels, tiles.chunk), tiles.parts)
    how: dict[str, Any] = {"CHUNK": tiles.chunk, "BC": tiles.channels}
    how |= {"BP": tiles.pixels, "num_warps": tiles.warps, "LOWEST": lowest, "HIGHEST": highest}
    if tiles.parts > 1:
        _norm_back_sums[grid](gradient, x, out, moments, sums, pixels, channels, **how)
    _norm_back[grid](
        gradient, x, out, weight, moments, moved, beside, sums, batch, pixels, channels,
        SIZE=channels // groups, BQ=triton.next_power_of_2(tiles.parts) if tiles.parts > 1 else 0, ADDS=adds, **how,
    )  # fmt: skip
    return moved, beside, sums.unflatten(0, (len(weight), batch * tiles.parts))


@triton.jit
def _norm_descend(weight, bias, sums, rates, C, BATCH: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr):
    client = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    rate, to = tl.load(rates + client), client * C + c
    along, plain = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for first in range(0, BATCH, BB):
        b = first + tl.arange(0, BB)
        at, mask = ((client * BATCH + b) * 2 * C)[:, None] + c[None, :], (b < BATCH)[:, None] & (c < C)[None, :]
        along += tl.sum(tl.load(sums + at, mask=mask, other=0.0), axis=0)
        plain += tl.sum(tl.load(sums + at + C, mask=mask, other=0.0), axis=0)
    tl.store(weight + to, tl.load(weight + to, mask=c < C) - rate * along, mask=c < C)
    tl.store(bias + to, tl.load(bias + to, mask=c < C) - rate * plain, mask=c < C)


def descend(weight: torch.Tensor, bias: torch.Tensor, sums: torch.Tensor, rates: torch.Tensor) -> None:
    """An SGD step of weights and biases [clients, C] from the sums of `back`."""
    clients, batch, _, channels = sums.shape
    high = min(AT_ONCE, int(triton.next_power_of_2(batch)))
    _norm_descend[(triton.cdiv(channels, 32), clients)](
        weight, bias, sums, rates, channels, BATCH=batch, BB=high, BC=32, num_warps=4
    )
