"""Training a group of clients whose model is a stack of linear layers; see `stacks`."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import torch

from fedscape.core.random import Array
from fedscape.learning.fast.stacks import Stack, Steps, in_names, laid_out, run_steps, targets_of
from fedscape.learning.local import Data, LocalSGD
from fedscape.learning.losses import Tensor
from fedscape.learning.optimisers import Rate, Rates
from fedscape.learning.plan import Plan

Tensors = dict[str, Tensor]


def train_stack(
    local: LocalSGD,
    start: Tensors,
    anchor: Tensors,
    data: Data,
    plan: Plan,
    rates: Rates,
    *,
    weights: Array | None,
    still: Collection[str],
) -> Tensors | None:
    """As `train`; None where rows or targets are not such as the stack takes, and the model has to say why."""
    stack = local.stack
    taken = None if stack is None else _taken(local, stack, data)
    if stack is None or taken is None:
        return None
    x, y = taken
    pulled = isinstance(rates.proximal, torch.Tensor) or rates.proximal > 0
    fixed = {n: p.detach()[None] for n, p in local.model.named_parameters() if not p.requires_grad}
    begin, to = laid_out(stack, {**fixed, **start}), laid_out(stack, {**fixed, **anchor}) if pulled else None
    steps = _steps(local, y, data.weights, plan, rates, pulled)
    factors = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
    moved = run_steps(
        stack, x, begin, steps, anchor=to, momentum=local.momentum, still={*still, *fixed}, factors=factors
    )
    made = in_names(stack, moved)
    return {n: (made[n] if weights is None else made[n][0]).contiguous() for n in local.names}


def _taken(local: LocalSGD, stack: Stack, data: Data) -> tuple[Tensor, Tensor] | None:
    """Rows and targets as the steps take them."""
    x, y, outputs = data.x, data.y, stack.layers[-1].outputs
    if stack.standard is not None and stack.standard.mean.shape != x.shape[1:]:
        return None
    if len(x) == 0 or x.ndim < 2 or (x.ndim > 2 and not stack.flattens):
        return None
    if math.prod(x.shape[1:]) != stack.layers[0].inputs:
        return None
    x = x.reshape(len(x), -1)
    if stack.loss == "classes":
        known = y.ndim == 1 and y.dtype == torch.int64 and int(y.min()) >= 0 and int(y.max()) < outputs
    else:
        known = y.numel() == len(y) * outputs and (y.ndim == 1 or stack.loss != "odds")
    return (x, targets_of(stack, y, local.dtype)) if known else None


def _steps(local: LocalSGD, y: Tensor, weights: Tensor | None, plan: Plan, rates: Rates, pulled: bool) -> Steps:
    index, counts = (torch.from_numpy(np.ascontiguousarray(a.swapaxes(0, 1))) for a in plan)
    number = counts[..., None]
    lr, proximal = (_by_client(rate, local) for rate in rates)
    shares = (torch.arange(index.shape[2]) < number).to(local.dtype) / number.clamp(min=1) * lr
    if weights is not None:
        shares = shares * weights[index]
    decay = lr * local.weight_decay if local.weight_decay else lr[:0]
    pull = lr * proximal if pulled else lr[:0]
    return Steps(index, y[index], shares[..., None], counts, decay[..., None], pull[..., None])


def _by_client(rate: Rate, local: LocalSGD) -> Tensor:
    """[1 or clients, 1]."""
    made = rate if isinstance(rate, torch.Tensor) else torch.tensor([rate], dtype=torch.float64)
    return made.to(local.dtype).reshape(-1, 1)
