"""Convolution, ReLU and pooling of many models as single GPU kernels: the twins of `simulate_steps.Unfused`.

No patch and no unpooled map is ever written: a row of a product is a pooled place, which is worked out for each of its
four, and the images of a model stay in the cache meanwhile. Sums are float32; products tf32, or bfloat16 by HALF.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _dot(a, b, acc, HALF: tl.constexpr):
    if HALF:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="tf32")


@triton.jit
def _forward(
    x, weight, bias, out, where,
    BATCH: tl.constexpr, SIDE: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    half_side: tl.constexpr = (SIDE - 2) // 2
    places: tl.constexpr = BATCH * half_side * half_side
    model = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    here = row < places
    sample, cell = row // (half_side * half_side), row % (half_side * half_side)
    corner = ((sample * SIDE + 2 * (cell // half_side)) * SIDE + 2 * (cell % half_side)) * CI
    x += model * BATCH * SIDE * SIDE * CI
    weight += model * 9 * CI * CO
    column = tl.arange(0, CO)
    best = tl.full((BM, CO), float("-inf"), tl.float32)
    which = tl.zeros((BM, CO), tl.int32)
    for q in tl.static_range(4):
        acc = tl.zeros((BM, CO), tl.float32)
        for start in range(0, 9 * CI, BK):
            k = start + tl.arange(0, BK)
            at = ((q // 2 + k // CI // 3) * SIDE + q % 2 + k // CI % 3) * CI + k % CI
            a = tl.load(x + corner[:, None] + at[None, :], mask=here[:, None] & (k < 9 * CI)[None, :], other=0.0)
            b = tl.load(weight + k[:, None] * CO + column[None, :], mask=(k < 9 * CI)[:, None], other=0.0)
            acc = _dot(a, b, acc, HALF)
        which = tl.where(acc > best, q, which)
        best = tl.maximum(acc, best)
    best += tl.load(bias + model * CO + column)[None, :]
    to = (model * places + row)[:, None] * CO + column[None, :]
    tl.store(out + to, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=here[:, None])
    tl.store(where + to, tl.where(best > 0, which, 4).to(tl.uint8), mask=here[:, None])


@triton.jit
def _input(
    weight, gradient, where, out,
    BATCH: tl.constexpr, SIDE: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, BM: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    half_side: tl.constexpr = (SIDE - 2) // 2
    places: tl.constexpr = BATCH * SIDE * SIDE
    model = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    here = row < places
    sample, i, j = row // (SIDE * SIDE), row // SIDE % SIDE, row % SIDE
    weight += model * 9 * CI * CO
    gradient += model * BATCH * half_side * half_side * CO
    where += model * BATCH * half_side * half_side * CO
    channel, column = tl.arange(0, CI), tl.arange(0, CO)
    acc = tl.zeros((BM, CI), tl.float32)
    for tap in range(9):
        u, v = i - tap // 3, j - tap % 3
        seen = here & (u >= 0) & (v >= 0) & (u < 2 * half_side) & (v < 2 * half_side)
        cell = (sample * half_side + u // 2) * half_side + v // 2
        at = cell[:, None] * CO + column[None, :]
        g = tl.load(gradient + at, mask=seen[:, None], other=0.0)
        from_here = tl.load(where + at, mask=seen[:, None], other=4).to(tl.int32) == (u % 2 * 2 + v % 2)[:, None]
        b = tl.load(weight + (tap * CI + channel)[None, :] * CO + column[:, None])
        acc = _dot(tl.where(from_here, g, 0.0), b, acc, HALF)
    to = (model * places + row)[:, None] * CI + channel[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=here[:, None])


@triton.jit
def _move(
    x, gradient, where, weight, bias,
    BATCH: tl.constexpr, SIDE: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    half_side: tl.constexpr = (SIDE - 2) // 2
    places: tl.constexpr = BATCH * half_side * half_side
    model = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    column = tl.arange(0, CO)
    x += model * BATCH * SIDE * SIDE * CI
    gradient += model * places * CO
    where += model * places * CO
    acc = tl.zeros((BK, CO), tl.float32)
    total = tl.zeros((CO,), tl.float32)
    for start in range(0, places, BM):
        row = start + tl.arange(0, BM)
        here = row < places
        sample, cell = row // (half_side * half_side), row % (half_side * half_side)
        corner = ((sample * SIDE + 2 * (cell // half_side)) * SIDE + 2 * (cell % half_side)) * CI
        to = row[:, None] * CO + column[None, :]
        g = tl.load(gradient + to, mask=here[:, None], other=0.0).to(tl.float32)
        which = tl.load(where + to, mask=here[:, None], other=4).to(tl.int32)
        total += tl.sum(tl.where(which < 4, g, 0.0), axis=0)
        for q in tl.static_range(4):
            at = ((q // 2 + k // CI // 3) * SIDE + q % 2 + k // CI % 3) * CI + k % CI
            a = tl.load(x + corner[None, :] + at[:, None], mask=here[None, :] & (k < 9 * CI)[:, None], other=0.0)
            acc = _dot(a, tl.where(which == q, g, 0.0), acc, HALF)
    place = weight + model * 9 * CI * CO + k[:, None] * CO + column[None, :]
    old = tl.load(place, mask=(k < 9 * CI)[:, None], other=0.0)
    tl.store(place, old - acc, mask=(k < 9 * CI)[:, None])
    if tl.program_id(0) == 0:
        tl.store(bias + model * CO + column, tl.load(bias + model * CO + column) - total)


@triton.jit
def _head(
    flat, w3, b3, w4, b4, label, share, back,
    BATCH: tl.constexpr, FLAT: tl.constexpr, HIDDEN: tl.constexpr, CLASSES: tl.constexpr, BB: tl.constexpr,
    BF: tl.constexpr, BC: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Both dense layers up to the loss, and back to the hidden layer; moves all their weights but w3."""
    model = tl.program_id(0).to(tl.int64)
    row, unit, column = tl.arange(0, BB), tl.arange(0, HIDDEN), tl.arange(0, BC)
    real, known = row < BATCH, column < CLASSES
    flat += model * BATCH * FLAT
    w3 += model * FLAT * HIDDEN
    acc = tl.zeros((BB, HIDDEN), tl.float32)
    for start in range(0, FLAT, BF):
        f = start + tl.arange(0, BF)
        a = tl.load(flat + row[:, None] * FLAT + f[None, :], mask=real[:, None] & (f < FLAT)[None, :], other=0.0)
        b = tl.load(w3 + f[:, None] * HIDDEN + unit[None, :], mask=(f < FLAT)[:, None], other=0.0)
        acc = _dot(a, b, acc, HALF)
    bias = tl.load(b3 + model * HIDDEN + unit)
    hidden = tl.maximum(acc + bias[None, :], 0.0)
    place = w4 + model * HIDDEN * CLASSES + unit[:, None] * CLASSES + column[None, :]
    weight = tl.load(place, mask=known[None, :], other=0.0)
    last = tl.load(b4 + model * CLASSES + column, mask=known, other=0.0)
    logits = _dot(hidden, weight, tl.zeros((BB, BC), tl.float32), HALF) + last[None, :]
    logits = tl.where(known[None, :], logits, float("-inf"))
    odds = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    right = column[None, :] == tl.load(label + model * BATCH + row, mask=real, other=-1)[:, None]
    g = odds / tl.sum(odds, axis=1)[:, None] - tl.where(right, 1.0, 0.0)
    g *= tl.load(share + model * BATCH + row, mask=real, other=0.0)[:, None]
    through = _dot(g, tl.trans(weight), tl.zeros((BB, HIDDEN), tl.float32), HALF)
    through = tl.where(hidden > 0, through, 0.0)
    tl.store(back + (model * BATCH + row)[:, None] * HIDDEN + unit[None, :], through, mask=real[:, None])
    moved = _dot(tl.trans(hidden), g, tl.zeros((HIDDEN, BC), tl.float32), HALF)
    tl.store(place, weight - moved, mask=known[None, :])
    tl.store(b4 + model * CLASSES + column, last - tl.sum(g, axis=0), mask=known)
    tl.store(b3 + model * HIDDEN + unit, bias - tl.sum(through, axis=0))


@triton.jit
def _dense_back(
    flat, w3, back, out,
    BATCH: tl.constexpr, FLAT: tl.constexpr, HIDDEN: tl.constexpr, BB: tl.constexpr, BF: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """The gradient of the flat maps, and w3 moved, which is read and written once."""
    model = tl.program_id(1).to(tl.int64)
    row, unit, f = tl.arange(0, BB), tl.arange(0, HIDDEN), tl.program_id(0) * BF + tl.arange(0, BF)
    real = (row < BATCH)[:, None]
    place = w3 + model * FLAT * HIDDEN + f[:, None] * HIDDEN + unit[None, :]
    weight = tl.load(place, mask=(f < FLAT)[:, None], other=0.0)
    g = tl.load(back + (model * BATCH + row)[:, None] * HIDDEN + unit[None, :], mask=real, other=0.0)
    to = (model * BATCH + row)[:, None] * FLAT + f[None, :]
    a = tl.load(flat + to, mask=real & (f < FLAT)[None, :], other=0.0).to(tl.float32)
    through = _dot(g, tl.trans(weight), tl.zeros((BB, BF), tl.float32), HALF)
    tl.store(out + to, through, mask=real & (f < FLAT)[None, :])
    moved = _dot(tl.trans(a), g, tl.zeros((BF, HIDDEN), tl.float32), HALF)
    tl.store(place, weight - moved, mask=(f < FLAT)[:, None])


class Fused:
    """The pooled convolutions, each a kernel; `move` takes gradients that bear the learning rate already."""

    rows = 64  # of a product at a time: more take registers that more programs at once need

    def __init__(self, half: bool) -> None:
        self.half, self.kept = half, torch.bfloat16 if half else torch.float32

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        models, batch, side, _, channels = x.shape
        shape = (models, batch, (side - 2) // 2, (side - 2) // 2, weight.shape[2])
        out = torch.empty(shape, dtype=self.kept, device=x.device)
        where = torch.empty(shape, dtype=torch.uint8, device=x.device)
        grid = (triton.cdiv(batch * shape[2] * shape[3], self.rows), models)
        deep = _depth(channels)
        _forward[grid](
            x, weight, bias, out, where, batch, side, channels, shape[4], self.rows, deep, self.half, num_stages=2
        )
        return out, where

    def input(self, weight: torch.Tensor, gradient: torch.Tensor, where: torch.Tensor, side: int) -> torch.Tensor:
        models, batch, channels = *gradient.shape[:2], weight.shape[1] // 9
        out = torch.empty((models, batch, side, side, channels), dtype=self.kept, device=gradient.device)
        grid = (triton.cdiv(batch * side * side, self.rows), models)
        _input[grid](
            weight, gradient, where, out, batch, side, channels, gradient.shape[4], self.rows, self.half, num_stages=2
        )
        return out

    def move(self, params: list[torch.Tensor], x: torch.Tensor, gradient: torch.Tensor, where: torch.Tensor) -> None:
        models, batch, side, _, channels = x.shape
        deep = _depth(channels)
        grid = (triton.cdiv(9 * channels, deep), models)
        _move[grid](
            x, gradient, where, *params, batch, side, channels, where.shape[4], self.rows, deep, self.half, num_stages=2
        )

    def dense(
        self, maps: torch.Tensor, params: list[torch.Tensor], labels: torch.Tensor, share: torch.Tensor
    ) -> torch.Tensor:
        (models, batch), flat = maps.shape[:2], maps[0, 0].numel()
        hidden, classes = params[2].shape[1:]
        back = torch.empty((models, batch, hidden), device=maps.device)
        out = torch.empty(maps.shape, device=maps.device)
        bb, bc = (max(triton.next_power_of_2(number), 16) for number in (batch, classes))
        _head[(models,)](
            maps, *params, labels, share, back, batch, flat, hidden, classes, bb, 32, bc, self.half, num_stages=4
        )
        grid = (triton.cdiv(flat, 32), models)
        _dense_back[grid](maps, params[0], back, out, batch, flat, hidden, bb, 32, self.half)
        return out


def _depth(channels: int) -> int:
    """How many of the 9 x channels weights to an output a product takes at a time."""
    return 32 if 16 < 9 * channels <= 32 else 16
