"""LSTM cells of many clients over a sequence, by kernels of our own on a GPU.

benchmarks/fast_paths.py, row "Triton recurrence": 4.9 times.
"""

from __future__ import annotations

from typing import Any

import torch

from fedscape.types import Tensor


def recur(driven: Tensor, weight: Tensor, products: str = "tf32") -> Tensor:
    """Outputs [clients x batch, time, width] of cells that begin at zero.

    What drives their four gates is [clients x batch, time, 4 width], their weights are [clients, 4 width, width].
    """
    outputs: Tensor = _Recur.apply(driven, weight, products)
    return outputs


class _Recur(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, driven: Tensor, weight: Tensor, products: str) -> Tensor:
        from fedscape.learning.fast.triton import recurrence as gpu_kernels

        short = weight.to(driven.dtype).contiguous()
        out, cells, gates = gpu_kernels.forward(driven, short, products)
        ctx.save_for_backward(short, out, cells, gates)
        ctx.kind, ctx.products = weight.dtype, products
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        from fedscape.learning.fast.triton import recurrence as gpu_kernels

        weight, out, cells, gates = ctx.saved_tensors
        moved = gpu_kernels.backward(gradient.contiguous(), weight, cells, gates, ctx.products)
        clients, width = len(weight), out.shape[2]
        later = moved[:, 1:].reshape(clients, -1, 4 * width)
        return moved, (later.transpose(1, 2) @ out[:, :-1].reshape(clients, -1, width)).to(ctx.kind), None
