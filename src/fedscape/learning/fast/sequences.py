"""Adapted linear layers and attention of many clients in fewer passes over their rows, on a GPU.

benchmarks/fast_paths.py, rows "adapters in fewer passes" (1.35 times) and "Triton attention" (1.19).
"""

from __future__ import annotations

from typing import Any

import torch

from fedscape.types import Tensor

LONGEST = 128  # places of a sequence whose scores stay in registers
DEEPEST = 64  # numbers of a head
HAS_WIDE = "out_dtype" in str(torch.bmm.__doc__)  # products in a wider type than their factors: torch 2.8


# -- adapted layers ----------------------------------------------------------------------------------------------------


def adapts(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether all clients share the adapted weights and nobody trains them."""
    return all(len(v) == 1 and not v.requires_grad for v in (weight, bias) if v is not None)


def adapted(rows: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, factor: float) -> Tensor:
    """Rows [clients, rows, features] times weights [1, out, features] plus biases, and factor * up (down rows).

    Factors are [1 or clients, rank, features] and [1 or clients, out, rank]; all products have the type of the weights.
    """
    both = (v.expand(len(rows), -1, -1) for v in (down, up if factor == 1 else up * factor))
    output: Tensor = _Adapted.apply(rows.to(weight.dtype), weight[0], None if bias is None else bias[0], *both)
    return output


class _Adapted(torch.autograd.Function):  # type: ignore[misc]
    """The update is added onto the product with the weights; thin rows are kept for the gradients of its factors."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        ctx.kinds = (down.dtype, up.dtype)
        down, up, flat = down.to(rows.dtype), up.to(rows.dtype), rows.flatten(0, 1)
        inner = rows @ down.transpose(1, 2)
        output = flat @ weight.T if bias is None else torch.addmm(bias, flat, weight.T)
        ctx.save_for_backward(rows, weight, down, up, inner)
        return output.unflatten(0, rows.shape[:2]).baddbmm_(inner, up.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, down, up, inner = ctx.saved_tensors
        wants_rows, _, _, wants_down, wants_up = ctx.needs_input_grad
        to_inner, to_rows = gradient @ up, None
        if wants_rows:
            to_rows = (gradient.flatten(0, 1) @ weight).unflatten(0, rows.shape[:2]).baddbmm_(to_inner, down)
        to_down = _product(to_inner.transpose(1, 2), rows, ctx.kinds[0]) if wants_down else None
        to_up = _product(gradient.transpose(1, 2), inner, ctx.kinds[1]) if wants_up else None
        return to_rows, None, None, to_down, to_up


def _product(a: Tensor, b: Tensor, kind: Any) -> Tensor:
    """A batched product whose sums are not rounded to the shorter type of its factors."""
    return torch.bmm(a, b, out_dtype=kind) if HAS_WIDE and a.is_cuda and a.dtype != kind else torch.bmm(a, b).to(kind)


# -- attention ---------------------------------------------------------------------------------------------------------


def attends(query: Tensor, key: Tensor, value: Tensor, heads: int, kind: Any, *, exact: bool) -> bool:
    """Whether the kernel takes such sequences, queries, keys and values of one shape, in products of this type."""
    fits = query.shape == key.shape == value.shape and query.shape[1] <= LONGEST and query.shape[2] // heads <= DEEPEST
    return fits and (kind == torch.bfloat16 or not exact)


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int, *, causal: bool) -> Tensor:
    """Attention from queries, keys and values [batch, time, width], with the scores in registers."""
    output: Tensor = _Attention.apply(query.contiguous(), key.contiguous(), value.contiguous(), heads, causal)
    return output


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, heads: int, causal: bool) -> Tensor:
        from fedscape.learning.fast.triton import sequences as gpu_kernels

        ctx.save_for_backward(query, key, value)
        ctx.how = (heads, causal, "tf32")
        return gpu_kernels.attend(query, key, value, *ctx.how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from fedscape.learning.fast.triton import sequences as gpu_kernels

        return *gpu_kernels.attend_back(gradient.contiguous(), *ctx.saved_tensors, *ctx.how), None, None
