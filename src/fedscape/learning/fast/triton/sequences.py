"""Attention of many clients, the twin of that in `sequences`.

A program has one head of one sequence. Its scores never leave the registers: the backward pass makes them again. Sums
are float32.
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
    mixed = tl.dot(p.to(v.dtype), v, input_precision=PRODUCTS)
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=mask)


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
    to_v = tl.dot(tl.trans(p.to(g.dtype)), g, input_precision=PRODUCTS)
    tl.store(to_value + at, to_v.to(kind), mask=mask)
    v = tl.load(value + at, mask=mask, other=0.0)
    to_p = tl.dot(g, tl.trans(v), input_precision=PRODUCTS)
    to_scores = (p * (to_p - tl.sum(p * to_p, axis=1)[:, None]) * SCALE).to(q.dtype)
    to_q = tl.dot(to_scores, k, input_precision=PRODUCTS)
    tl.store(to_query + at, to_q.to(kind), mask=mask)
    to_k = tl.dot(tl.trans(to_scores), q, input_precision=PRODUCTS)
    tl.store(to_key + at, to_k.to(kind), mask=mask)


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
    to_inputs, warps = tuple(torch.empty_like(query) for _ in range(3)), 8 if tiles["BT"] > 64 else 4
    _attend_back[grid](
        gradient, query, key, value, *to_inputs, *sizes, CAUSAL=causal, PRODUCTS=products, **tiles, num_warps=warps
    )
    return to_inputs
