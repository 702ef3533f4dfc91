"""Convolutions of many clients, each with a kernel of its own: the twins of those in `conv`.

With channels last, what one row of a kernel sees lies in memory as one piece, so that a product can read it from the
image. Sums are float32; products as asked for, or bfloat16 where the images are.

benchmarks/fast_paths.py, row "Triton convolution": 1.5 times.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from fedscape.learning.fast.triton import sums


@triton.jit
def _convolve(
    x, weight, bias, out,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    HO: tl.constexpr = (H + 2 * UP - KH) // DOWN + 1
    WO: tl.constexpr = (W + 2 * LEFT - KW) // RIGHT + 1
    ROWS: tl.constexpr = BATCH * HO * WO
    client = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    inside_rows = row < ROWS
    sample, r, s = row // (HO * WO), row // WO % HO * DOWN - UP, row % WO * RIGHT - LEFT
    begin = ((sample * H + r) * W + s) * C
    x += client * BATCH * H * W * C
    weight += client * OUT * KH * KW * C
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    real = o < OUT
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    if C % BK == 0:  # a piece is of one tap of the kernel: whether it is in the image is said of rows alone
        PIECES: tl.constexpr = C // BK
        for t in range(KH * KW * PIECES):
            tap, first = t // PIECES, t % PIECES * BK
            i, j = tap // KW, tap % KW
            mask = inside_rows
            if UP + LEFT > 0:
                mask = inside_rows & (r + i >= 0) & (r + i < H) & (s + j >= 0) & (s + j < W)
            at = begin + (i * W + j) * C + first
            a = tl.load(x + at[:, None] + k[None, :], mask=mask[:, None], other=0.0)
            w = weight + o[None, :] * (KH * KW * C) + (tap * C + first + k)[:, None]
            b = tl.load(w, mask=real[None, :], other=0.0)
            acc = tl.dot(a, b.to(a.dtype), acc, input_precision=PRODUCTS)
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
            acc = tl.dot(a, b.to(a.dtype), acc, input_precision=PRODUCTS)
    if BIASED:
        acc += tl.load(bias + client * OUT + o, mask=real, other=0.0)[None, :]
    to = (client * ROWS + row)[:, None] * OUT + o[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=inside_rows[:, None] & real[None, :])


@triton.jit
def _to_images(
    gradient, weight, out,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """With strides, pixels whose rows and columns leave the same remainders see the same taps of the kernel."""
    HO: tl.constexpr = (H + 2 * UP - KH) // DOWN + 1
    WO: tl.constexpr = (W + 2 * LEFT - KW) // RIGHT + 1
    HA: tl.constexpr = (H + DOWN - 1) // DOWN  # rows of one remainder, one more than there are for some
    WA: tl.constexpr = (W + RIGHT - 1) // RIGHT
    PIECES: tl.constexpr = (OUT + BK - 1) // BK
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) % (DOWN * RIGHT)
    pr, ps = part // RIGHT, part % RIGHT
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    sample, a, b = row // (HA * WA), row // WA % HA, row % WA
    r, s = a * DOWN + pr, b * RIGHT + ps
    inside_rows = (row < BATCH * HA * WA) & (r < H) & (s < W)
    c = tl.program_id(1) // (DOWN * RIGHT) * BN + tl.arange(0, BN)
    real = c < C
    gradient += client * BATCH * HO * WO * OUT
    weight += client * OUT * KH * KW * C
    i0, j0 = (pr + UP) % DOWN, (ps + LEFT) % RIGHT
    last_r, last_s = a + (pr + UP - i0) // DOWN, b + (ps + LEFT - j0) // RIGHT  # outputs that the first tap feeds
    tall, broad = (KH - i0 + DOWN - 1) // DOWN, (KW - j0 + RIGHT - 1) // RIGHT  # taps of the kernel
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for t in range(tall * broad * PIECES):
        tap, o = t // PIECES, t % PIECES * BK + k
        u, v = tap // broad, tap % broad
        q, p = last_r - u, last_s - v
        mask = inside_rows & (q >= 0) & (q < HO) & (p >= 0) & (p < WO)
        at = ((sample * HO + q) * WO + p) * OUT
        w = weight + o[:, None] * (KH * KW * C) + (((i0 + u * DOWN) * KW + j0 + v * RIGHT) * C + c)[None, :]
        if OUT % BK == 0:
            g = tl.load(gradient + at[:, None] + o[None, :], mask=mask[:, None], other=0.0)
            b_tile = tl.load(w, mask=real[None, :], other=0.0)
        else:
            g = tl.load(gradient + at[:, None] + o[None, :], mask=mask[:, None] & (o < OUT)[None, :], other=0.0)
            b_tile = tl.load(w, mask=real[None, :] & (o < OUT)[:, None], other=0.0)
        acc = tl.dot(g, b_tile.to(g.dtype), acc, input_precision=PRODUCTS)
    to = (((client * BATCH + sample) * H + r) * W + s)[:, None] * C + c[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=inside_rows[:, None] & real[None, :])


@triton.jit
def _stepped(weights, mask, rate, gradients):
    """Numbers less a rate times their gradients."""
    return tl.load(weights, mask=mask, other=0.0) - tl.load(rate) * gradients


@triton.jit
def _to_weights(
    x, gradient, out, total, rates,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, PRODUCTS: tl.constexpr,
    MOVES: tl.constexpr, BIASED: tl.constexpr, THROUGH: tl.constexpr,
):  # fmt: skip
    """With MOVES what goes out are the weights and biases themselves, less the rate times their gradients."""
    HO: tl.constexpr = (H + 2 * UP - KH) // DOWN + 1
    WO: tl.constexpr = (W + 2 * LEFT - KW) // RIGHT + 1
    ROWS: tl.constexpr = BATCH * HO * WO
    EACH: tl.constexpr = (ROWS + PARTS * BM - 1) // (PARTS * BM) * BM
    TAPS: tl.constexpr = KH * KW * C
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) % PARTS
    o = tl.program_id(1) // PARTS * BN + tl.arange(0, BN)
    real = o < OUT
    tap = tl.program_id(0) * BK + tl.arange(0, BK)
    inside = tap < TAPS
    x += client * BATCH * H * W * C
    gradient += client * ROWS * OUT
    acc = tl.zeros((BK, BN), tl.float32)
    summed = tl.zeros((BM, BN), tl.float32)  # of rows once more at the end: a sum across threads in each step is slow
    for t in range(EACH // BM):
        row = part * EACH + t * BM + tl.arange(0, BM)
        inside_rows = row < ROWS
        sample, r, s = row // (HO * WO), row // WO % HO * DOWN - UP, row % WO * RIGHT - LEFT
        at = ((sample * H + r) * W + s) * C
        if C % BK == 0:  # all of one tap of the kernel: whether it is in the image is said of rows alone
            which, first = tl.program_id(0) // (C // BK), tl.program_id(0) % (C // BK) * BK
            i, j = which // KW, which % KW
            visible = inside_rows
            if UP + LEFT > 0:
                visible = visible & (r + i >= 0) & (r + i < H) & (s + j >= 0) & (s + j < W)
            at += (i * W + j) * C + first
            a = tl.load(x + at[None, :] + tl.arange(0, BK)[:, None], mask=visible[None, :], other=0.0)
        else:
            i, j = tap // C // KW, tap // C % KW
            mask = inside_rows[None, :]
            if TAPS % BK != 0:
                mask = mask & inside[:, None]
            if UP + LEFT > 0:
                mask = mask & (r[None, :] + i[:, None] >= 0) & (r[None, :] + i[:, None] < H)
                mask = mask & (s[None, :] + j[:, None] >= 0) & (s[None, :] + j[:, None] < W)
            a = tl.load(x + at[None, :] + ((i * W + j) * C + tap % C)[:, None], mask=mask, other=0.0)
        gradient_mask = inside_rows[:, None]
        if OUT % BN != 0:
            gradient_mask = gradient_mask & real[None, :]
        g = tl.load(gradient + row[:, None] * OUT + o[None, :], mask=gradient_mask, other=0.0)
        if BIASED:
            summed += g.to(tl.float32)
        if THROUGH:  # registers, as tensor cores want rows side by side in memory
            a, g = a + 0.0, g + 0.0
        acc = tl.dot(a, g, acc, input_precision=PRODUCTS)
    to = (part * tl.num_programs(2) + client) * OUT + o
    at, mask = to[None, :] * TAPS + tap[:, None], inside[:, None] & real[None, :]
    if MOVES:
        acc = _stepped(out + at, mask, rates + client, acc)
    tl.store(out + at, acc, mask=mask)
    if BIASED:  # noqa: SIM102, known when it is compiled
        if tl.program_id(0) == 0:
            biases = tl.sum(summed, axis=0)
            if MOVES:
                biases = _stepped(total + to, real, rates + client, biases)
            tl.store(total + to, biases, mask=real)


Pair = tuple[int, int]


class Tiles(NamedTuple):
    """Rows, columns and depth of the product of one program, its warps and how many loads are in flight."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


FEW = 200  # programs that do not fill a GPU of 132 multiprocessors


def _power(number: int, most: int) -> int:
    return int(max(16, min(most, triton.next_power_of_2(number))))


def product_tiles(rows: int, out: int, channels: int, row: int, *, clients: int, short: bool) -> Tiles:
    """Tiles of `convolve` and `to_images`: smaller where the last would be mostly empty, or all are too few.

    benchmarks/gpu.py has what they bring.
    """
    depth = 64 if short and channels % 64 == 0 else 32 if channels % 32 == 0 else _power(row, 32)
    high, wide = 128 if rows >= 512 or rows % 128 == 0 else 64, _power(out, 128)
    if wide == 128 and triton.cdiv(rows, high) * triton.cdiv(out, wide) * clients < FEW:
        wide = 64
    return Tiles(high, wide, depth, 8 if high == wide == 128 else 4, 4 if high * wide <= 64 * 128 else 3)


def weight_tiles(taps: int, out: int, channels: int, rows: int, *, short: bool, products: str) -> Tiles:
    """Tiles of `to_weights`: taps of the kernel, outputs, and images' rows in a step.

    In tf32 two warps, for which Triton takes the tensor cores' older instruction: the newer one wants rows side by side
    in memory, and was 1.3 to 1.7 times as slow.
    """
    if not short and products == "tf32" and channels % 64 == 0:
        return Tiles(64, _power(out, 64), 32, 2, 3)
    wide = 64 if channels == 64 or (short and channels % 64 == 0 and rows < 2048) else _power(taps, 128)
    return Tiles(
        wide,
        _power(out, 64),
        32 if short and rows % 64 and rows % 32 == 0 else 64,
        4,
        4 if short and channels % 64 == 0 else 3,
    )


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Pair,
    stride: Pair,
    products: str = "tf32",
) -> torch.Tensor:
    """See `conv.convolve`; all arrays are contiguous."""
    clients, out, high, wide, channels = weight.shape
    batch, (height, width) = len(x) // clients, x.shape[1:3]
    ho, wo = (
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip((height, width), padding, (high, wide), stride, strict=True)
    )
    output = x.new_empty((len(x), ho, wo, out))
    short = x.dtype == torch.bfloat16
    tiles = product_tiles(batch * ho * wo, out, channels, wide * channels, clients=clients, short=short)
    grid = (triton.cdiv(batch * ho * wo, tiles.rows), triton.cdiv(out, tiles.columns), clients)
    _convolve[grid](
        x, weight, bias if bias is not None else weight, output,
        batch, height, width, channels, out, high, wide, *padding, *stride,
        BM=tiles.rows, BN=tiles.columns, BK=tiles.depth, BIASED=bias is not None, PRODUCTS=products,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return output


def to_images(
    gradient: torch.Tensor, weight: torch.Tensor, size: Pair, padding: Pair, stride: Pair, products: str = "tf32"
) -> torch.Tensor:
    """The gradient of the images of `convolve`, of this height and width, from that of its outputs."""
    clients, out, high, wide, channels = weight.shape
    batch = len(gradient) // clients
    images = gradient.new_empty((len(gradient), *size, channels))
    rows = batch * triton.cdiv(size[0], stride[0]) * triton.cdiv(size[1], stride[1])
    short = gradient.dtype == torch.bfloat16
    tiles = product_tiles(rows, channels, out, out, clients=clients * stride[0] * stride[1], short=short)
    if not short and products == "tf32" and channels % 64 == 0:  # see `weight_tiles`: 1.9 to 2.7 times as fast
        tiles = Tiles(64, min(64, tiles.columns), tiles.depth, 2, 4)
    grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(channels, tiles.columns) * stride[0] * stride[1], clients)
    _to_images[grid](
        gradient, weight, images,
        batch, *size, channels, out, high, wide, *padding, *stride,
        BM=tiles.rows, BN=tiles.columns, BK=tiles.depth, PRODUCTS=products,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return images


def to_weights(
    x: torch.Tensor,
    gradient: torch.Tensor,
    clients: int,
    kernel: Pair,
    padding: Pair,
    stride: Pair,
    products: str = "tf32",
    *,
    biased: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of weights and of biases, if there are any, from images and the gradient of their convolution."""
    partial, total = _partly(x, gradient, clients, kernel, padding, stride, products, biased=biased)
    if len(partial) > 1:
        return partial.sum(dim=0), total.sum(dim=0) if biased else total
    return partial[0], total[0] if biased else total


def move(
    x: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rates: torch.Tensor,
    short: torch.Tensor | None, padding: Pair, stride: Pair, products: str = "tf32",
) -> None:  # fmt: skip
    """An SGD step of weights [clients, out, H kernel, W kernel, channels] and biases, which are moved in place.

    `short` takes the new weights as well, in its own type; then gradients are written first. With both stores in one
    kernel, Triton 3.6 left the weights as they were on an H200.
    """
    clients, kernel = len(weight), (weight.shape[2], weight.shape[3])
    if short is None and _parts(x, gradient, clients, kernel, products)[1] == 1:
        _partly(x, gradient, clients, kernel, padding, stride, products, (weight, bias, rates))
        return
    partial, total = _partly(x, gradient, clients, kernel, padding, stride, products, biased=bias is not None)
    sums.descend(weight, partial.movedim(0, 1), rates, short)
    if bias is not None:
        sums.descend(bias, total.movedim(0, 1), rates)


Moved = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]


def _parts(x: torch.Tensor, gradient: torch.Tensor, clients: int, kernel: Pair, products: str) -> tuple[Tiles, int]:
    """Tiles of `to_weights`, and into how many parts the images' rows are cut, until all of a GPU has work."""
    taps, out = kernel[0] * kernel[1] * x.shape[3], gradient.shape[3]
    rows = len(x) // clients * gradient.shape[1] * gradient.shape[2]
    tiles = weight_tiles(taps, out, x.shape[3], rows, short=x.dtype == torch.bfloat16, products=products)
    programs = triton.cdiv(taps, tiles.rows) * triton.cdiv(out, tiles.columns) * clients
    return tiles, max(1, min(16, 720 // programs, rows // 256))


def _partly(
    x: torch.Tensor, gradient: torch.Tensor, clients: int, kernel: Pair, padding: Pair, stride: Pair, products: str,
    moved: Moved | None = None, *, biased: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The sums of each part, [parts, clients, ...]; or the step, where there is one part."""
    batch, (height, width, channels) = len(x) // clients, x.shape[1:]
    out, (high, wide) = gradient.shape[3], kernel
    tiles, parts = _parts(x, gradient, clients, kernel, products)
    if moved is None:
        partial = x.new_empty((parts, clients, out, high, wide, channels), dtype=torch.float32)
        total = x.new_empty((parts, clients, out), dtype=torch.float32) if biased else None
        rates = None
    else:
        partial, total, rates = moved
    across = triton.cdiv(high * wide * channels, tiles.rows), triton.cdiv(out, tiles.columns)
    _to_weights[(across[0], across[1] * parts, clients)](
        x, gradient, partial, partial if total is None else total,
        partial if rates is None else rates,
        batch, height, width, channels, out, high, wide, *padding, *stride,
        BM=tiles.depth, BN=tiles.columns, BK=tiles.rows, PARTS=parts, PRODUCTS=products,
        MOVES=moved is not None, BIASED=total is not None,
        THROUGH=x.dtype == torch.float32 and tiles.warps >= 4,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return partial, partial.new_empty(0) if total is None else total
