"""Steps and sums of many clients' weights in one pass, by kernels of our own on a GPU.

benchmarks/fast_paths.py, rows "Triton sums" (1.08 times) and "Triton pooling, dropout and sums" (1.27).
"""

from __future__ import annotations

import torch

from fedscape.learning.fast.conv import runs_kernels
from fedscape.types import Tensor, Tensors


def summed(now: Tensor, start: Tensor, weights: Tensor) -> Tensor:
    """The float64 sum over clients of how far each is from where it began, times its weight: [kinds, ...].

    Rows are [clients x kinds, ...], where they began is [1, kinds or rows, ...], weights are [clients] or [clients,
    kinds].
    """
    from fedscape.learning.fast.triton import sums as gpu_kernels

    return gpu_kernels.summed(now, start, weights)


def descend(weight: Tensor, gradient: Tensor, rates: Tensor) -> None:
    """An SGD step of weights [clients, ...] in place; the gradient lies in memory as they do."""
    from fedscape.learning.fast.triton import sums as gpu_kernels

    gpu_kernels.descend(weight, gradient, rates)


def of_moves(now: Tensors, start: Tensors, weights: Tensor) -> Tensors:
    """What `summed` gives for each of several arrays, by operations that a compiler fuses."""
    each = {n: p.unflatten(0, weights.shape).to(weights.dtype) - start[n].to(weights.dtype) for n, p in now.items()}
    factors = {n: weights.reshape(*weights.shape, *[1] * (p.ndim - 1)) for n, p in now.items()}
    return {n: (moved * factors[n]).sum(dim=0) for n, moved in each.items()}


def of_moves_by_kernel(now: Tensors, start: Tensors, weights: Tensor) -> Tensors:
    """What `summed` gives for each of several arrays, by a kernel for each."""
    begun = {n: _as_laid_out(p, start[n]) for n, p in now.items()}
    totals = {n: summed(p, begun[n], weights) for n, p in now.items()}
    return {n: total if weights.ndim == 2 else total[0] for n, total in totals.items()}


def _as_laid_out(like: Tensor, start: Tensor) -> Tensor:
    """Where clients began, in the order of memory of their weights."""
    return torch.empty_strided(start.shape, like.stride(), dtype=start.dtype, device=start.device).copy_(start)


def lie_alike(weight: Tensor, gradient: Tensor) -> bool:
    """Whether kernels may take both as flat arrays."""
    return runs_kernels(weight) and weight.stride() == gradient.stride() and weight.dtype == gradient.dtype
