"""Attention and layer norms of many clients, the twins of those in `sequences`.

A program of attention has one head of one sequence, whose scores never leave its registers: the backward pass makes
them again. A program of a norm has a few rows of one client. Sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _shares(q, k, t, TIME, SCALE, CAUSAL: tl.constexpr, PRODUCTS: tl.constexpr):
    """What each place takes of each, a softmax of scores."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRODUCTS) * SCALE
    sees = (t < TIME)[None, :]
    if CAUSAL:
        sees = sees & (t[None, :] <= t[:, None])
    scores = tl.where(sees, scores, float("-inf"))
    scores = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return scores / tl.sum(scores, axis=1)[:, None]


@triton.jit
def _attend(
    query, key, value, out, TIME, WIDTH, SCALE,
    CAUSAL: tl.constexpr, DEEP: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    t, d = tl.arange(0, BT), tl.arange(0, BD)
    begin = tl.program_id(0).to(tl.int64) * TIME * WIDTH + tl.program_id(1) * DEEP
    at = begin + t[:, None] * WIDTH + d[None, :]
    mask = (t < TIME)[:, None] & (d < DEEP)[None, :]
    q = tl.load(query + at, mask=mask, other=0.0)
    k = tl.load(key + at, mask=mask, other=0.0)
    v = tl.load(value + at, mask=mask, other=0.0)
    p = _shares(q, k, t, TIME, SCALE, CAUSAL, PRODUCTS)
    made = tl.dot(p.to(v.dtype), v, input_precision=PRODUCTS)
    tl.store(out + at, made.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _attend_back(
    gradient, query, key, value, to_query, to_key, to_value, TIME, WIDTH, SCALE,
    CAUSAL: tl.constexpr, DEEP: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    t, d = tl.arange(0, BT), tl.arange(0, BD)
    begin = tl.program_id(0).to(tl.int64) * TIME * WIDTH + tl.program_id(1) * DEEP
    at = begin + t[:, None] * WIDTH + d[None, :]
    mask = (t < TIME)[:, None] & (d < DEEP)[None, :]
    q = tl.load(query + at, mask=mask, other=0.0)
    k = tl.load(key + at, mask=mask, other=0.0)
    p = _shares(q, k, t, TIME, SCALE, CAUSAL, PRODUCTS)
    g = tl.load(gradient + at, mask=mask, other=0.0)
    kind = to_query.dtype.element_ty
    made = tl.dot(tl.trans(p.to(g.dtype)), g, input_precision=PRODUCTS)
    tl.store(to_value + at, made.to(kind), mask=mask)
    v = tl.load(value + at, mask=mask, other=0.0)
    to_p = tl.dot(g, tl.trans(v), input_precision=PRODUCTS)
    to_scores = (p * (to_p - tl.sum(p * to_p, axis=1)[:, None]) * SCALE).to(q.dtype)
    made = tl.dot(to_scores, k, input_precision=PRODUCTS)
    tl.store(to_query + at, made.to(kind), mask=mask)
    made = tl.dot(tl.trans(to_scores), q, input_precision=PRODUCTS)
    tl.store(to_key + at, made.to(kind), mask=mask)


def _of_heads(query: torch.Tensor, heads: int) -> tuple[tuple[int, int], tuple[int, int, float], dict[str, int]]:
    """Programs by sequences and heads, sizes, and the powers of two of tiles."""
    rows, time, width = query.shape
    deep = width // heads
    tiles = {"BT": max(16, int(triton.next_power_of_2(time))), "BD": max(16, int(triton.next_power_of_2(deep)))}
    return (rows, heads), (time, width, deep**-0.5), {"DEEP": deep, **tiles}


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int, causal: bool, products: str
) -> torch.Tensor:
    """Attention from queries, keys and values [batch, time, width]."""
    grid, sizes, tiles = _of_heads(query, heads)
    out, warps = torch.empty_like(query), 8 if tiles["BT"] > 64 else 4
    _attend[grid](query, key, value, out, *sizes, CAUSAL=causal, PRODUCTS=products, **tiles, num_warps=warps)
    return out


def attend_back(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    heads: int, causal: bool, products: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of queries, keys and values."""
    grid, sizes, tiles = _of_heads(query, heads)
    made, warps = tuple(torch.empty_like(query) for _ in range(3)), 8 if tiles["BT"] > 64 else 4
    _attend_back[grid](
        gradient, query, key, value, *made, *sizes, CAUSAL=causal, PRODUCTS=products, **tiles, num_warps=warps
    )
    return made


@triton.jit
def _norm(
    x, weight, bias, out, moments, ROWS, WIDTH, EPS, OF_CLIENT: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    r, c = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BW)
    row = client * ROWS + r
    at = row[:, None] * WIDTH + c[None, :]
    mask = (r < ROWS)[:, None] & (c < WIDTH)[None, :]
    own = client * WIDTH + c if OF_CLIENT else c
    w = tl.load(weight + own, mask=c < WIDTH, other=0.0)
    shift = tl.load(bias + own, mask=c < WIDTH, other=0.0)
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=1) / WIDTH
    v = tl.where(mask, v - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, axis=1) / WIDTH + EPS)
    made = v * scale[:, None] * w[None, :] + shift[None, :]
    tl.store(out + at, made.to(out.dtype.element_ty), mask=mask)
    tl.store(moments + 2 * row, mean, mask=r < ROWS)
    tl.store(moments + 2 * row + 1, scale, mask=r < ROWS)


@triton.jit
def _norm_back(
    gradient, x, weight, moments, to_x, sums, ROWS, WIDTH, BLOCKS,
    OF_CLIENT: tl.constexpr, SUMS: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    r, c = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BW)
    row = client * ROWS + r
    at = row[:, None] * WIDTH + c[None, :]
    mask = (r < ROWS)[:, None] & (c < WIDTH)[None, :]
    own = client * WIDTH + c if OF_CLIENT else c
    w = tl.load(weight + own, mask=c < WIDTH, other=0.0)
    mean = tl.load(moments + 2 * row, mask=r < ROWS, other=0.0)
    scale = tl.load(moments + 2 * row + 1, mask=r < ROWS, other=0.0)
    g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    v = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean[:, None]) * scale[:, None]
    v = tl.where(mask, v, 0.0)
    if SUMS:
        place = sums + (client * BLOCKS + tl.program_id(0)) * 2 * WIDTH + c
        tl.store(place, tl.sum(g * v, axis=0), mask=c < WIDTH)
        tl.store(place + WIDTH, tl.sum(g, axis=0), mask=c < WIDTH)
    g = g * w[None, :]
    along = tl.sum(g * v, axis=1) / WIDTH
    made = (g - (tl.sum(g, axis=1) / WIDTH)[:, None] - v * along[:, None]) * scale[:, None]
    tl.store(to_x + at, made.to(to_x.dtype.element_ty), mask=mask)


def _of_rows(x: torch.Tensor, clients: int) -> tuple[tuple[int, int], tuple[int, int], dict[str, int]]:
    """Programs by rows and clients, rows of a client and numbers of a row, and the powers of two of tiles."""
    rows, width = x.shape
    wide = int(triton.next_power_of_2(width))
    high = max(1, min(16, 4096 // wide))
    return (triton.cdiv(rows // clients, high), clients), (rows // clients, width), {"BR": high, "BW": wide}


def norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, kind: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [clients x rows, width] normed, in this type, with means and scales; weights are [1 or clients, width]."""
    grid, sizes, tiles = _of_rows(x, len(weight))
    out, moments = torch.empty_like(x, dtype=kind), x.new_empty((len(x), 2), dtype=torch.float32)
    _norm[grid](x, weight, bias, out, moments, *sizes, eps, OF_CLIENT=len(weight) > 1, **tiles, num_warps=4)
    return out, moments


def norm_back(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, moments: torch.Tensor, trained: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of rows, and of weights and biases if they are `trained`."""
    clients = len(weight)
    grid, sizes, tiles = _of_rows(x, clients)
    to_x = torch.empty_like(x)
    sums = moments.new_empty((clients, grid[0], 2, x.shape[1]) if trained else 1)
    _norm_back[grid](
        gradient, x, weight, moments, to_x, sums, *sizes, grid[0],
        OF_CLIENT=clients > 1, SUMS=trained, **tiles, num_warps=4,
    )  # fmt: skip
    weights, biases = sums.sum(dim=1).unbind(1) if trained else (None, None)
    return to_x, weights, biases
