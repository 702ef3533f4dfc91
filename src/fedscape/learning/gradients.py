"""Gradients of many clients at once, client by client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.func import functional_call, grad_and_value, vmap

from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import checked_loss
from fedscape.types import Tensor

Tensors = dict[str, Tensor]


class Batch(NamedTuple):
    """What one local step takes: rows [clients, batch, ...], targets, the share of each row, and keys of dropout."""

    x: Tensor
    y: Tensor
    share: Tensor
    random: Tensors


Gradient = Callable[[Tensors, Tensors, Tensor, Tensor, Tensor], tuple[Tensors, Tensor]]


@contextmanager
def precise(local: LocalSGD) -> Iterator[None]:
    """Within it products on a GPU are as exact as `local.precision` says."""
    if not local.on_gpu:
        yield
        return
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = local.precision != "exact"
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def output_of(local: LocalSGD, module: Module, x: Tensor, *with_params: Any) -> Tensor:
    """The model's output for rows as they are stored."""
    if local.precision != "bf16":
        return functional_call(module, with_params, (local.inputs(x),)) if with_params else module(local.inputs(x))
    with torch.autocast("cuda", torch.bfloat16):
        output = functional_call(module, with_params, (local.inputs(x),)) if with_params else module(local.inputs(x))
    return output.to(local.dtype)


def by_client(local: LocalSGD, module: Module) -> Gradient:
    """Gradients and losses of a batch of each client, whatever the model does."""

    def batch_loss(params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        return (checked_loss(local.loss, output_of(local, module, x, params, random), y) * share).sum()

    return vmap(grad_and_value(batch_loss))  # type: ignore[no-any-return]
