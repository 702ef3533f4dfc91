"""Steps of LSTM cells of many clients: the twins of those in `recurrence`.

A step is one launch: the product of the last outputs with each client's weights, and the cell behind it. Sums and cells
are float32; products as asked for, or bfloat16 where the inputs are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit(do_not_specialize=["t"])
def _forward(
    driven, weight, out, cells, gates, t,
    BATCH: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
    BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    h = tl.program_id(0) * BH + tl.arange(0, BH)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    row = client * BATCH + b
    mask = (b < BATCH)[:, None] & (h < WIDTH)[None, :]
    at = ((row * TIME + t) * 4 * WIDTH)[:, None] + h[None, :]
    i = tl.load(driven + at, mask=mask, other=0.0).to(tl.float32)
    f = tl.load(driven + at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(driven + at + 2 * WIDTH, mask=mask, other=0.0).to(tl.float32)
    o = tl.load(driven + at + 3 * WIDTH, mask=mask, other=0.0).to(tl.float32)
    at_step = ((row * TIME + t) * WIDTH)[:, None] + h[None, :]
    before = tl.zeros((BB, BH), tl.float32)
    if t > 0:
        weight += client * 4 * WIDTH * WIDTH
        for first in range(0, WIDTH, BK):
            k = first + tl.arange(0, BK)
            last = out + ((row * TIME + t - 1) * WIDTH)[:, None] + k[None, :]
            v = tl.load(last, mask=(b < BATCH)[:, None] & (k < WIDTH)[None, :], other=0.0)
            w = weight + h[None, :] * WIDTH + k[:, None]
            real = (h < WIDTH)[None, :] & (k < WIDTH)[:, None]
            i = tl.dot(v, tl.load(w, mask=real, other=0.0), i, input_precision=PRODUCTS)
            f = tl.dot(v, tl.load(w + WIDTH * WIDTH, mask=real, other=0.0), f, input_precision=PRODUCTS)
            g = tl.dot(v, tl.load(w + 2 * WIDTH * WIDTH, mask=real, other=0.0), g, input_precision=PRODUCTS)
            o = tl.dot(v, tl.load(w + 3 * WIDTH * WIDTH, mask=real, other=0.0), o, input_precision=PRODUCTS)
        before = tl.load(cells + at_step - WIDTH, mask=mask, other=0.0)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    cell = f * before + i * g
    kind = out.dtype.element_ty
    tl.store(gates + at, i.to(kind), mask=mask)
    tl.store(gates + at + WIDTH, f.to(kind), mask=mask)
    tl.store(gates + at + 2 * WIDTH, g.to(kind), mask=mask)
    tl.store(gates + at + 3 * WIDTH, o.to(kind), mask=mask)
    tl.store(cells + at_step, cell, mask=mask)
    tl.store(out + at_step, (o * _tanh(cell)).to(kind), mask=mask)


@triton.jit(do_not_specialize=["t"])
def _backward(
    gradient, weight, cells, gates, moved, carry, t,
    BATCH: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
    BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    h = tl.program_id(0) * BH + tl.arange(0, BH)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    row = client * BATCH + b
    mask = (b < BATCH)[:, None] & (h < WIDTH)[None, :]
    at = ((row * TIME + t) * 4 * WIDTH)[:, None] + h[None, :]
    at_step = ((row * TIME + t) * WIDTH)[:, None] + h[None, :]
    up = tl.load(gradient + at_step, mask=mask, other=0.0).to(tl.float32)
    later = tl.zeros((BB, BH), tl.float32)
    if t < TIME - 1:
        weight += client * 4 * WIDTH * WIDTH
        for first in range(0, 4 * WIDTH, BK):
            k = first + tl.arange(0, BK)
            after = moved + ((row * TIME + t + 1) * 4 * WIDTH)[:, None] + k[None, :]
            v = tl.load(after, mask=(b < BATCH)[:, None] & (k < 4 * WIDTH)[None, :], other=0.0)
            real = (k < 4 * WIDTH)[:, None] & (h < WIDTH)[None, :]
            w = tl.load(weight + k[:, None] * WIDTH + h[None, :], mask=real, other=0.0)
            up = tl.dot(v, w, up, input_precision=PRODUCTS)
        later = tl.load(carry + row[:, None] * WIDTH + h[None, :], mask=mask, other=0.0)
    i = tl.load(gates + at, mask=mask, other=0.0).to(tl.float32)
    f = tl.load(gates + at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gates + at + 2 * WIDTH, mask=mask, other=0.0).to(tl.float32)
    o = tl.load(gates + at + 3 * WIDTH, mask=mask, other=0.0).to(tl.float32)
    bent = _tanh(tl.load(cells + at_step, mask=mask, other=0.0))
    before = tl.zeros((BB, BH), tl.float32)
    if t > 0:
        before = tl.load(cells + at_step - WIDTH, mask=mask, other=0.0)
    cell = later + up * o * (1.0 - bent * bent)
    kind = moved.dtype.element_ty
    tl.store(moved + at, (cell * g * i * (1.0 - i)).to(kind), mask=mask)
    tl.store(moved + at + WIDTH, (cell * before * f * (1.0 - f)).to(kind), mask=mask)
    tl.store(moved + at + 2 * WIDTH, (cell * i * (1.0 - g * g)).to(kind), mask=mask)
    tl.store(moved + at + 3 * WIDTH, (up * bent * o * (1.0 - o)).to(kind), mask=mask)
    tl.store(carry + row[:, None] * WIDTH + h[None, :], cell * f, mask=mask)


def _grid(clients: int, batch: int, width: int) -> tuple[tuple[int, int, int], int, int]:
    """Programs by outputs, clients and rows; the rows and the outputs of one."""
    rows = int(max(16, min(64, triton.next_power_of_2(batch))))
    outputs = 32 if width % 32 == 0 or width > 64 else 16
    return (triton.cdiv(width, outputs), clients, triton.cdiv(batch, rows)), rows, outputs


def forward(
    driven: torch.Tensor, weight: torch.Tensor, products: str = "tf32"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, cells and gates of all steps; see `recurrence.recur`. Weights have the type of what drives."""
    (rows, time, _), (clients, _, width) = driven.shape, weight.shape
    out, gates = driven.new_empty((rows, time, width)), torch.empty_like(driven)
    cells = driven.new_empty((rows, time, width), dtype=torch.float32)
    grid, bb, bh = _grid(clients, rows // clients, width)
    for t in range(time):
        _forward[grid](
            driven, weight, out, cells, gates, t,
            rows // clients, time, width, BB=bb, BH=bh, BK=64, PRODUCTS=products, num_warps=4, num_stages=2,
        )  # fmt: skip
    return out, cells, gates


def backward(
    gradient: torch.Tensor, weight: torch.Tensor, cells: torch.Tensor, gates: torch.Tensor, products: str = "tf32"
) -> torch.Tensor:
    """The gradient of what drives the cells."""
    (rows, time, width), clients = gradient.shape, len(weight)
    moved, carry = torch.empty_like(gates), cells.new_empty((rows, width))
    grid, bb, bh = _grid(clients, rows // clients, width)
    for t in reversed(range(time)):
        _backward[grid](
            gradient, weight, cells, gates, moved, carry, t,
            rows // clients, time, width, BB=bb, BH=bh, BK=64, PRODUCTS=products, num_warps=4, num_stages=2,
        )  # fmt: skip
    return moved
