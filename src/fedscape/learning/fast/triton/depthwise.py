"""Depthwise convolutions of many clients: every channel by itself. Sums are float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _depthwise(
    x, weight, bias, out,
    BATCH, H: tl.constexpr, W: tl.constexpr, C,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    BIASED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    HO = (H + 2 * UP - KH) // DOWN + 1
    WO = (W + 2 * LEFT - KW) // RIGHT + 1
    image = tl.program_id(2).to(tl.int64)
    client = image // BATCH
    p, c = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    real = c < C
    r, s = p // WO * DOWN - UP, p % WO * RIGHT - LEFT
    acc = tl.zeros((BP, BC), tl.float32)
    if BIASED:
        acc += tl.load(bias + client * C + c, mask=real, other=0.0)[None, :]
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            mask = (p < HO * WO) & (r + i >= 0) & (r + i < H) & (s + j >= 0) & (s + j < W)
            at = ((image * H + r + i) * W + s + j) * C
            v = tl.load(x + at[:, None] + c[None, :], mask=mask[:, None] & real[None, :], other=0.0)
            w = tl.load(weight + (client * KH * KW + i * KW + j) * C + c, mask=real, other=0.0)
            acc += v.to(tl.float32) * w[None, :]
    to = (image * HO * WO + p)[:, None] * C + c[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=(p < HO * WO)[:, None] & real[None, :])


@triton.jit
def _depthwise_to_images(
    gradient, weight, out,
    BATCH, H: tl.constexpr, W: tl.constexpr, C,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    HO = (H + 2 * UP - KH) // DOWN + 1
    WO = (W + 2 * LEFT - KW) // RIGHT + 1
    image = tl.program_id(2).to(tl.int64)
    client = image // BATCH
    p, c = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    real = c < C
    r, s = p // W + UP, p % W + LEFT
    acc = tl.zeros((BP, BC), tl.float32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            q, o = (r - i) // DOWN, (s - j) // RIGHT
            mask = (p < H * W) & (r >= i) & (s >= j) & ((r - i) % DOWN == 0) & ((s - j) % RIGHT == 0)
            mask = mask & (q < HO) & (o < WO)
            at = ((image * HO + q) * WO + o) * C
            g = tl.load(gradient + at[:, None] + c[None, :], mask=mask[:, None] & real[None, :], other=0.0)
            w = tl.load(weight + (client * KH * KW + i * KW + j) * C + c, mask=real, other=0.0)
            acc += g.to(tl.float32) * w[None, :]
    to = (image * H * W + p)[:, None] * C + c[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=(p < H * W)[:, None] & real[None, :])


@triton.jit
def _depthwise_to_weights(
    x, gradient, out, total,
    H, W, C,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The sums over one image."""
    HO = (H + 2 * UP - KH) // DOWN + 1
    WO = (W + 2 * LEFT - KW) // RIGHT + 1
    image, tap = tl.program_id(2).to(tl.int64), tl.program_id(0)
    i, j = tap // KW, tap % KW
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    real = c < C
    acc, summed = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for t in range((HO * WO + BP - 1) // BP):
        p = t * BP + tl.arange(0, BP)
        r, s = p // WO * DOWN - UP + i, p % WO * RIGHT - LEFT + j
        inside = (p < HO * WO)[:, None] & real[None, :]
        visible = ((r >= 0) & (r < H) & (s >= 0) & (s < W))[:, None] & inside
        g = tl.load(gradient + (image * HO * WO + p)[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + ((image * H + r) * W + s)[:, None] * C + c[None, :], mask=visible, other=0.0).to(tl.float32)
        acc += tl.sum(g * v, axis=0)
        summed += tl.sum(g, axis=0)
    tl.store(out + (image * KH * KW + tap) * C + c, acc, mask=real)
    if tap == 0:
        tl.store(total + image * C + c, summed, mask=real)


@triton.jit
def _depthwise_nine_to_weights(
    x, gradient, out, total, H: tl.constexpr, W: tl.constexpr, C,
    UP: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    BIASED: tl.constexpr, PARTS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The sums over a part of one image, of a kernel of 3 x 3: all nine in one pass."""
    HO: tl.constexpr = (H + 2 * UP - 3) // DOWN + 1
    WO: tl.constexpr = (W + 2 * LEFT - 3) // RIGHT + 1
    PIXELS: tl.constexpr = HO * WO
    EACH: tl.constexpr = (PIXELS + PARTS * BP - 1) // (PARTS * BP) * BP
    image = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    real = c < C
    a0 = tl.zeros((BP, BC), tl.float32)
    a1 = tl.zeros((BP, BC), tl.float32)
    a2 = tl.zeros((BP, BC), tl.float32)
    a3 = tl.zeros((BP, BC), tl.float32)
    a4 = tl.zeros((BP, BC), tl.float32)
    a5 = tl.zeros((BP, BC), tl.float32)
    a6 = tl.zeros((BP, BC), tl.float32)
    a7 = tl.zeros((BP, BC), tl.float32)
    a8 = tl.zeros((BP, BC), tl.float32)
    summed = tl.zeros((BP, BC), tl.float32)
    x += image * H * W * C
    gradient += image * PIXELS * C
    for t in range(EACH // BP):
        p = part * EACH + t * BP + tl.arange(0, BP)
        r, s = p // WO * DOWN - UP, p % WO * RIGHT - LEFT
        inside = p < PIXELS
        g = tl.load(gradient + p[:, None] * C + c[None, :], mask=inside[:, None] & real[None, :], other=0.0)
        g = g.to(tl.float32)
        if BIASED:
            summed += g
        at = (r * W + s)[:, None] * C + c[None, :]
        up, left = inside & (r >= 0) & (r < H), (s >= 0) & (s < W)
        mid, in2 = inside & (r + 1 >= 0) & (r + 1 < H), (s + 1 >= 0) & (s + 1 < W)
        low, right = inside & (r + 2 >= 0) & (r + 2 < H), (s + 2 >= 0) & (s + 2 < W)
        a0 += g * tl.load(x + at, mask=(up & left)[:, None] & real[None, :], other=0.0).to(tl.float32)
        a1 += g * tl.load(x + at + C, mask=(up & in2)[:, None] & real[None, :], other=0.0).to(tl.float32)
        a2 += g * tl.load(x + at + 2 * C, mask=(up & right)[:, None] & real[None, :], other=0.0).to(tl.float32)
        at += W * C
        a3 += g * tl.load(x + at, mask=(mid & left)[:, None] & real[None, :], other=0.0).to(tl.float32)
        a4 += g * tl.load(x + at + C, mask=(mid & in2)[:, None] & real[None, :], other=0.0).to(tl.float32)
        a5 += g * tl.load(x + at + 2 * C, mask=(mid & right)[:, None] & real[None, :], other=0.0).to(tl.float32)
        at += W * C
        a6 += g * tl.load(x + at, mask=(low & left)[:, None] & real[None, :], other=0.0).to(tl.float32)
        a7 += g * tl.load(x + at + C, mask=(low & in2)[:, None] & real[None, :], other=0.0).to(tl.float32)
        a8 += g * tl.load(x + at + 2 * C, mask=(low & right)[:, None] & real[None, :], other=0.0).to(tl.float32)
    if BIASED:
        tl.store(total + (image * PARTS + part) * C + c, tl.sum(summed, axis=0), mask=real)
    to = (image * PARTS + part) * 9 * C + c
    tl.store(out + to, tl.sum(a0, axis=0), mask=real)
    tl.store(out + to + C, tl.sum(a1, axis=0), mask=real)
    tl.store(out + to + 2 * C, tl.sum(a2, axis=0), mask=real)
    tl.store(out + to + 3 * C, tl.sum(a3, axis=0), mask=real)
    tl.store(out + to + 4 * C, tl.sum(a4, axis=0), mask=real)
    tl.store(out + to + 5 * C, tl.sum(a5, axis=0), mask=real)
    tl.store(out + to + 6 * C, tl.sum(a6, axis=0), mask=real)
    tl.store(out + to + 7 * C, tl.sum(a7, axis=0), mask=real)
    tl.store(out + to + 8 * C, tl.sum(a8, axis=0), mask=real)


Pair = tuple[int, int]


def _tiles(pixels: int, channels: int) -> Pair:
    wide = min(64, int(triton.next_power_of_2(channels)))
    return int(max(16, min(triton.next_power_of_2(pixels), 2048 // wide))), wide


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: Pair, stride: Pair
) -> torch.Tensor:
    """See `depthwise.convolve`; weights are [clients, H kernel, W kernel, channels]."""
    clients, high, wide, channels = weight.shape
    height, width = x.shape[1:3]
    ho, wo = (
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip((height, width), padding, (high, wide), stride, strict=True)
    )
    out = x.new_empty((len(x), ho, wo, channels))
    bp, bc = _tiles(ho * wo, channels)
    _depthwise[(triton.cdiv(ho * wo, bp), triton.cdiv(channels, bc), len(x))](
        x, weight, weight if bias is None else bias, out,
        len(x) // clients, height, width, channels, high, wide, *padding, *stride,
        BIASED=bias is not None, BP=bp, BC=bc, num_warps=4,
    )  # fmt: skip
    return out


def to_images(gradient: torch.Tensor, weight: torch.Tensor, size: Pair, padding: Pair, stride: Pair) -> torch.Tensor:
    """The gradient of the images, of this height and width."""
    clients, high, wide, channels = weight.shape
    out = gradient.new_empty((len(gradient), *size, channels))
    bp, bc = _tiles(size[0] * size[1], channels)
    _depthwise_to_images[(triton.cdiv(size[0] * size[1], bp), triton.cdiv(channels, bc), len(gradient))](
        gradient, weight, out,
        len(gradient) // clients, *size, channels, high, wide, *padding, *stride,
        BP=bp, BC=bc, num_warps=4,
    )  # fmt: skip
    return out


def to_weights(
    x: torch.Tensor,
    gradient: torch.Tensor,
    clients: int,
    kernel: Pair,
    padding: Pair,
    stride: Pair,
    *,
    biased: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of weights [clients, parts, H kernel, W kernel, channels] and of biases, in parts to be added up."""
    images, (height, width, channels), (high, wide) = len(x), x.shape[1:], kernel
    if kernel == (3, 3):
        pixels = gradient.shape[1] * gradient.shape[2]
        parts = max(1, min(4, pixels // 256))
        out = x.new_empty((clients, images // clients * parts, high, wide, channels), dtype=torch.float32)
        total = x.new_empty((clients, images // clients * parts, channels), dtype=torch.float32)
        _depthwise_nine_to_weights[(parts, triton.cdiv(channels, 64), images)](
            x, gradient, out, total, height, width, channels, *padding, *stride,
            BIASED=biased, PARTS=parts, BP=16, BC=64, num_warps=4,
        )  # fmt: skip
        return out, total
    out = x.new_empty((images, high, wide, channels), dtype=torch.float32)
    total = x.new_empty((images, channels), dtype=torch.float32)
    bp, bc = _tiles(gradient.shape[1] * gradient.shape[2], channels)
    _depthwise_to_weights[(high * wide, triton.cdiv(channels, bc), images)](
        x, gradient, out, total,
        height, width, channels, high, wide, *padding, *stride, BP=bp, BC=bc, num_warps=4,
    )  # fmt: skip
    return out.unflatten(0, (clients, -1)), total.unflatten(0, (clients, -1))
