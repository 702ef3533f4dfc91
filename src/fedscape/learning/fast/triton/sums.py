"""Steps and float64 sums of many clients' weights, and keyed dropout: what a compiler would write in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _summed(
    now, start, weights, out, size, clients,
    KINDS: tl.constexpr, OF_KIND: tl.constexpr, OF_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kind = tl.program_id(1).to(tl.int64)
    mask = at < size
    total = tl.zeros((BLOCK,), tl.float64)
    if OF_KIND:
        start += kind * size
    begin = tl.load(start + at, mask=mask, other=0.0).to(tl.float64)
    for client in range(clients):
        row = client * KINDS + kind
        value = tl.load(now + row * size + at, mask=mask, other=0.0).to(tl.float64)
        if OF_ROW:
            begin = tl.load(start + row * size + at, mask=mask, other=0.0).to(tl.float64)
        total += (value - begin) * tl.load(weights + row)
    tl.store(out + kind * size + at, total, mask=mask)


def summed(now: torch.Tensor, start: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum over clients of how far each is from where it began, times its weight, client after client in float64.

    Rows are [clients x kinds, ...] for weights [clients, kinds], and begin at [1, kinds or rows, ...]; the sums are
    [kinds, ...]. They are read in the order of memory, which both arrays share.
    """
    clients, kinds = len(weights), 1 if weights.ndim == 1 else weights.shape[1]
    one_each = len(start) == len(now) > 1
    size, shape, strides = now[0].numel(), now.shape[1:], now.stride()[1:]
    out = now.new_empty(0, dtype=torch.float64).new_empty_strided((kinds, *shape), (size, *strides))
    _summed[(triton.cdiv(size, 512), kinds)](
        now, start, weights, out, size, clients,
        KINDS=kinds, OF_KIND=len(start) == kinds > 1 and not one_each, OF_ROW=one_each, BLOCK=512, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _drop(x, key, out, size, each, KEPT: tl.constexpr, SPAN: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    client = at // each
    number = ((at % each) // SPAN).to(tl.int32)
    h = number * tl.load(key + client * 2 + 1, mask=mask, other=0) + tl.load(key + client * 2, mask=mask, other=0)
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * 0x21F0AAAD
    h = h ^ ((h >> 15) & 0x1FFFF)
    h = h * (0xD35A2D97 - 0x100000000)
    h = h ^ ((h >> 15) & 0x1FFFF)
    keep = (h & 0xFFFFFF) >= BOUND
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * KEPT
    tl.store(out + at, tl.where(keep, v, 0.0).to(out.dtype.element_ty), mask=mask)


def drop(x: torch.Tensor, key: torch.Tensor, p: float, span: int) -> torch.Tensor:
    """Rows [clients, batch, ...] with numbers set to zero as `layers.kept` says; the others are divided by 1 - p.

    `span` is how many numbers share one decision.
    """
    out = torch.empty_like(x)
    _drop[(triton.cdiv(x.numel(), 1024),)](
        x, key, out, x.numel(), x[0].numel(),
        KEPT=1.0 / (1.0 - p), SPAN=span, BOUND=round(p * 2**24), BLOCK=1024, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _descend(
    weight, gradient, rates, short, size, each, part,
    PARTS: tl.constexpr, SHORT: tl.constexpr, BB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    client = tl.program_id(1).to(tl.int64)
    gradient += client * each
    if BB == 1:
        total = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    else:
        total = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, PARTS, BB):
            b = first + tl.arange(0, BB)
            of = b.to(tl.int64)[:, None] * part + at[None, :]
            total += tl.sum(tl.load(gradient + of, mask=(b < PARTS)[:, None] & mask[None, :], other=0.0), axis=0)
    at += client * size
    moved = tl.load(weight + at, mask=mask) - tl.load(rates + client) * total
    tl.store(weight + at, moved.to(weight.dtype.element_ty), mask=mask)
    if SHORT:
        tl.store(short + at, moved.to(short.dtype.element_ty), mask=mask)


def descend(
    weight: torch.Tensor, gradient: torch.Tensor, rates: torch.Tensor, short: torch.Tensor | None = None
) -> None:
    """An SGD step of weights [clients, ...] in number; the gradient lies in memory as they do, or in parts.

    Parts are [clients, parts, ...] and float32, and are added up; each lies in memory as the weights. `short` takes the
    new weights as well, in its own type.
    """
    size, parts = weight[0].numel(), gradient.shape[1] if gradient.ndim > weight.ndim else 1
    wide = min(16, int(triton.next_power_of_2(parts)))
    block = (2048 if size >= 2048 * 8 else 256) if parts == 1 else max(128, 2048 // wide) if size >= 2048 else 64
    _descend[(triton.cdiv(size, block), len(weight))](
        weight, gradient, rates, weight if short is None else short,
        size, gradient.stride(0), gradient.stride(1) if parts > 1 else 0,
        PARTS=parts, SHORT=short is not None, BB=wide, BLOCK=block, num_warps=4,
    )  # fmt: skip
