"""Operations of many clients on a GPU, in Triton: the twins of those in `conv` and `lowrank`.

With channels last, what one row of a kernel sees lies in memory as one piece, so that a product can read it from the
image. Sums are float32; products tf32, or bfloat16 where the images are.

benchmarks/fast_paths.py, rows "Triton convolution", "Triton pooling" and "Triton product".
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _convolve(
    x, weight, bias, out,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    HO: tl.constexpr = H + 2 * UP - KH + 1
    WO: tl.constexpr = W + 2 * LEFT - KW + 1
    ROWS: tl.constexpr = BATCH * HO * WO
    client = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    inside_rows = row < ROWS
    sample, r, s = row // (HO * WO), row // WO % HO - UP, row % WO - LEFT
    begin = ((sample * H + r) * W + s) * C
    x += client * BATCH * H * W * C
    weight += client * OUT * KH * KW * C
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    real = o < OUT
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    if C % BK == 0:  # a piece is of one place of the kernel: whether it is in the image is said of rows alone
        PIECES: tl.constexpr = C // BK
        for t in range(KH * KW * PIECES):
            place, first = t // PIECES, t % PIECES * BK
            i, j = place // KW, place % KW
            mask = inside_rows
            if UP + LEFT > 0:
                mask = inside_rows & (r + i >= 0) & (r + i < H) & (s + j >= 0) & (s + j < W)
            at = begin + (i * W + j) * C + first
            a = tl.load(x + at[:, None] + k[None, :], mask=mask[:, None], other=0.0)
            w = weight + o[None, :] * (KH * KW * C) + (place * C + first + k)[:, None]
            b = tl.load(w, mask=real[None, :], other=0.0)
            acc = tl.dot(a, b.to(a.dtype), acc, input_precision="tf32")
    else:
        STEPS: tl.constexpr = (KW * C + BK - 1) // BK
        for t in range(KH * STEPS):
            i, piece = t // STEPS, t % STEPS * BK + k
            inside = piece < KW * C
            mask = inside_rows[:, None] & inside[None, :]
            if UP + LEFT > 0:
                j = piece // C
                mask = mask & ((r + i >= 0) & (r + i < H))[:, None]
                mask = mask & (s[:, None] + j[None, :] >= 0) & (s[:, None] + j[None, :] < W)
            a = tl.load(x + (begin + i * W * C)[:, None] + piece[None, :], mask=mask, other=0.0)
            taken = inside[:, None] & real[None, :]
            w = weight + o[None, :] * (KH * KW * C) + (i * KW * C + piece)[:, None]
            b = tl.load(w, mask=taken, other=0.0)
            acc = tl.dot(a, b.to(a.dtype), acc, input_precision="tf32")
    if BIASED:
        acc += tl.load(bias + client * OUT + o, mask=real, other=0.0)[None, :]
    to = (client * ROWS + row)[:, None] * OUT + o[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=inside_rows[:, None] & real[None, :])


@triton.jit
def _gather(
    x, gradient, out, total,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, THROUGH: tl.constexpr,
):  # fmt: skip
    HO: tl.constexpr = H + 2 * UP - KH + 1
    WO: tl.constexpr = W + 2 * LEFT - KW + 1
    ROWS: tl.constexpr = BATCH * HO * WO
    EACH: tl.constexpr = (ROWS + PARTS * BM - 1) // (PARTS * BM) * BM
    PLACES: tl.constexpr = KH * KW * C
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) % PARTS
    place = tl.program_id(0) * BK + tl.arange(0, BK)
    i, j, inside = place // C // KW, place // C % KW, place < PLACES
    offset = (i * W + j) * C + place % C
    o = tl.program_id(1) // PARTS * BN + tl.arange(0, BN)
    real = o < OUT
    x += client * BATCH * H * W * C
    gradient += client * ROWS * OUT
    acc = tl.zeros((BK, BN), tl.float32)
    summed = tl.zeros((BN,), tl.float32)
    for t in range(EACH // BM):
        row = part * EACH + t * BM + tl.arange(0, BM)
        inside_rows = row < ROWS
        sample, r, s = row // (HO * WO), row // WO % HO - UP, row % WO - LEFT
        at = ((sample * H + r) * W + s) * C
        mask = inside_rows[None, :]
        if PLACES % BK != 0:
            mask = mask & inside[:, None]
        if UP + LEFT > 0:
            mask = mask & (r[None, :] + i[:, None] >= 0) & (r[None, :] + i[:, None] < H)
            mask = mask & (s[None, :] + j[:, None] >= 0) & (s[None, :] + j[:, None] < W)
        a = tl.load(x + at[None, :] + offset[:, None], mask=mask, other=0.0)
        gradient_mask = inside_rows[:, None]
        if OUT % BN != 0:
            gradient_mask = gradient_mask & real[None, :]
        g = tl.load(gradient + row[:, None] * OUT + o[None, :], mask=gradient_mask, other=0.0)
        summed += tl.sum(g.to(tl.float32), axis=0)
        if THROUGH:  # through registers: tensor cores want float32 with rows side by side, which memory has not
            a, g = a + 0.0, g + 0.0
        acc = tl.dot(a, g, acc, input_precision="tf32")
    clients = tl.num_programs(2)
    to = (part * clients + client) * OUT + o
    tl.store(out + to[None, :] * PLACES + place[:, None], acc, mask=inside[:, None] & real[None, :])
    if tl.program_id(0) == 0:
        tl.store(total + to, summed, mask=real)


@triton.jit
def _square(at, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    """Where the first of the four numbers lies that this one is the largest of."""
    place = at // C
    image, i, j = place // ((H // 2) * (W // 2)), place // (W // 2) % (H // 2), place % (W // 2)
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
    """See `conv.pool`; images are contiguous."""
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


@triton.jit
def _along(
    rows, past, out, clients, apart,
    BATCH: tl.constexpr, PLACES: tl.constexpr, FEATURES: tl.constexpr, EACH: tl.constexpr,
    BB: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(0)
    b, p, k = tl.arange(0, BB), tl.program_id(1) * BP + tl.arange(0, BP), tl.arange(0, BK)
    rows += client * BATCH * FEATURES
    past += client * apart
    acc = tl.zeros((BB, BP), tl.float32)
    for t in range(EACH // BK):
        at = part * EACH + t * BK + k
        inside = at < FEATURES
        a = tl.load(rows + b[:, None] * FEATURES + at[None, :], mask=(b < BATCH)[:, None] & inside[None, :], other=0.0)
        c = tl.load(past + p[:, None] * FEATURES + at[None, :], mask=(p < PLACES)[:, None] & inside[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(c), acc, input_precision="tf32")
    to = out + (part * clients + client) * BATCH * PLACES
    tl.store(to + b[:, None] * PLACES + p[None, :], acc, mask=(b < BATCH)[:, None] & (p < PLACES)[None, :])


@triton.jit
def _across(
    gradient, past, out, apart,
    BATCH: tl.constexpr, PLACES: tl.constexpr, FEATURES: tl.constexpr,
    BB: tl.constexpr, BP: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    b, f = tl.arange(0, BB), tl.program_id(0) * BF + tl.arange(0, BF)
    gradient += client * BATCH * PLACES
    past += client * apart
    acc = tl.zeros((BB, BF), tl.float32)
    for first in range(0, PLACES, BP):
        p = first + tl.arange(0, BP)
        mask = p < PLACES
        g = tl.load(gradient + b[:, None] * PLACES + p[None, :], mask=(b < BATCH)[:, None] & mask[None, :], other=0.0)
        c = tl.load(past + p[:, None] * FEATURES + f[None, :], mask=mask[:, None] & (f < FEATURES)[None, :], other=0.0)
        acc = tl.dot(g, c, acc, input_precision="tf32")
    to = out + client * BATCH * FEATURES
    tl.store(to + b[:, None] * FEATURES + f[None, :], acc, mask=(b < BATCH)[:, None] & (f < FEATURES)[None, :])


def along(rows: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """See `lowrank.along`; at most 64 rows a client, contiguous, as are those of one client in `past`."""
    clients, batch, features = rows.shape
    places = past.shape[1]
    bp, tiles = _tile(places, 64), triton.cdiv(places, 64)
    parts = max(1, min(triton.cdiv(features, 256), 1200 // (clients * tiles)))  # work for all of the GPU
    each = triton.cdiv(triton.cdiv(features, parts), 64) * 64
    parts = triton.cdiv(features, each)
    partial = rows.new_empty((parts, clients, batch, places))
    _along[(parts, triton.cdiv(places, bp), clients)](
        rows, past, partial, clients, past.stride(0), batch, places, features, each,
        BB=_tile(batch, 64), BP=bp, BK=64, num_warps=4, num_stages=3,
    )  # fmt: skip
    return partial.sum(dim=0)


def across(gradient: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """The gradient of the rows, from that of their products with earlier ones."""
    clients, batch, places = gradient.shape
    products = gradient.new_empty((clients, batch, past.shape[2]))
    _across[(triton.cdiv(past.shape[2], 128), clients)](
        gradient, past, products, past.stride(0), batch, places, past.shape[2],
        BB=_tile(batch, 64), BP=_tile(places, 64), BF=128, num_warps=4, num_stages=2,
    )  # fmt: skip
    return products


def _tile(number: int, most: int) -> int:
    return int(max(16, min(most, triton.next_power_of_2(number))))


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: tuple[int, int]
) -> torch.Tensor:
    """See `conv.convolve`; all arrays are contiguous."""
    clients, out, high, wide, channels = weight.shape
    batch, (height, width) = len(x) // clients, x.shape[1:3]
    ho, wo = height + 2 * padding[0] - high + 1, width + 2 * padding[1] - wide + 1
    output = x.new_empty((len(x), ho, wo, out))
    bn, bk = _tile(out, 128), 32 if channels % 32 == 0 else _tile(wide * channels, 32)
    grid = (triton.cdiv(batch * ho * wo, 128), triton.cdiv(out, bn), clients)
    _convolve[grid](
        x, weight, bias if bias is not None else weight, output,
        batch, height, width, channels, out, high, wide, *padding,
        BM=128, BN=bn, BK=bk, BIASED=bias is not None, num_warps=4, num_stages=3,
    )  # fmt: skip
    return output


def gather(
    x: torch.Tensor, gradient: torch.Tensor, clients: int, kernel: tuple[int, int], padding: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of weights and biases, from images and the gradient of what `convolve` made of them."""
    batch, (height, width, channels) = len(x) // clients, x.shape[1:]
    out, (high, wide) = gradient.shape[3], kernel
    bn, bk = _tile(out, 64), _tile(high * wide * channels, 128)
    tiles = triton.cdiv(high * wide * channels, bk) * triton.cdiv(out, bn) * clients
    rows = batch * gradient.shape[1] * gradient.shape[2]
    parts = max(1, min(16, 1200 // tiles, rows // 256))  # rows are shared out until there is work for all of the GPU
    partial = x.new_empty((parts, clients, out, high, wide, channels), dtype=torch.float32)
    total = x.new_empty((parts, clients, out), dtype=torch.float32)
    _gather[(tiles // (triton.cdiv(out, bn) * clients), triton.cdiv(out, bn) * parts, clients)](
        x, gradient, partial, total,
        batch, height, width, channels, out, high, wide, *padding,
        BM=64, BN=bn, BK=bk, PARTS=parts, THROUGH=x.dtype == torch.float32, num_warps=4, num_stages=3,
    )  # fmt: skip
    return partial.sum(dim=0), total.sum(dim=0)
