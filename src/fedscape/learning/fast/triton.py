"""Convolutions of many clients on a GPU, in Triton: the twins of those in `conv`.

With channels last, what one row of a kernel sees lies in memory as one piece, so that a product can read it from the
image. Sums are float32; products tf32, or bfloat16 where the images are.

benchmarks/fast_paths.py, row "Triton convolution": 1.5 times.
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
