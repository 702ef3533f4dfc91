"""Adapted linear layers and attention of many clients in fewer passes over their rows, by torch's own kernels on a GPU.

benchmarks/fast_paths.py, rows "adapters in fewer passes" and "attention without scores".
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedscape.types import Tensor

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def adapts(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether all clients share the adapted weights and nobody trains them."""
    return all(len(v) == 1 and not v.requires_grad for v in (weight, bias) if v is not None)


def adapted(
    rows: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, factor: float, kind: Any
) -> Tensor:
    """Rows [clients, rows, features] times weights [1, out, features] plus biases, and factor * up (down rows).

    Factors are [1 or clients, rank, features] and [1 or clients, out, rank]; `kind` is the type of all products.
    """
    whole, shift = weight[0].to(kind), None if bias is None else bias[0].to(kind)
    scaled = up if factor == 1 else up * factor
    both = (v.to(kind).expand(len(rows), -1, -1) for v in (down, scaled))
    output: Tensor = _Adapted.apply(rows.to(kind), whole, shift, *both)
    return output


class _Adapted(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        inner = rows @ down.transpose(1, 2)
        flat = rows.flatten(0, 1)
        output = flat @ weight.T if bias is None else torch.addmm(bias, flat, weight.T)
        ctx.save_for_backward(rows, weight, down, up, inner)
        return output.unflatten(0, rows.shape[:2]).baddbmm_(inner, up.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, down, up, inner = ctx.saved_tensors
        wants_rows, _, _, wants_down, wants_up = ctx.needs_input_grad
        to_inner = gradient @ up
        to_rows = None
        if wants_rows:
            to_rows = (gradient.flatten(0, 1) @ weight).unflatten(0, rows.shape[:2]).baddbmm_(to_inner, down)
        to_down = to_inner.transpose(1, 2) @ rows if wants_down else None
        to_up = gradient.transpose(1, 2) @ inner if wants_up else None
        return to_rows, None, None, to_down, to_up


def attends(kind: Any) -> bool:
    """Whether numbers of this type are so short that a kernel takes them."""
    return bool(kind == torch.bfloat16)


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Attention of heads [batch, heads, time, width of a head], as [batch, time, width]."""
    with sdpa_kernel(BACKENDS):
        output = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return output.transpose(1, 2).flatten(2)
