"""Choice of the form of a model that is trained: folded where gradients agree, tf32 or bf16 where layers agree."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedscape.learning.batches import Batch
from fedscape.learning.fast.agreement import LAYER, ROUGH, agree, layers_agree
from fedscape.learning.fast.conv import runs_kernels
from fedscape.learning.fast.folded import LAYERS, folded
from fedscape.learning.fast.gradients import in_one_batch, unfactored
from fedscape.learning.layers import Module, trainable_copy
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import by_client, precise
from fedscape.types import Tensors

NOISE = 1e-3  # added to parameters where they are compared: at a start of zeros nothing passes through some layers
EXACTLY = 1e-4  # how far outputs and gradients of one layer by a kernel may be from torch's own in float32


def foldable(local: LocalSGD, module: Module, params: Tensors, batch: Batch) -> Module | None:
    """The folded model, if it gives the gradients of client by client on this batch; None if it does not.

    Its kernels are used, and products are tf32 or bf16, if each of its layers then agrees with torch's own in the
    model's own type (`layers_agree`): those with weights, and pools, dropout and recurrent cells. All of this is at
    parameters a little beside those given: of adapters, whose second factor begins at zero, these would compare little.
    """
    exact, params = replace(local, precision="exact"), _beside(params)
    if not _folds(exact, module, params, batch):
        return None
    arguments = (params, batch.random, batch.x, batch.y, batch.share)
    with precise(exact):
        plain, want = _gradients(exact, arguments, kernels=False)
    if plain is None or (local.precision == "exact" and not any(map(runs_kernels, params.values()))):
        return plain
    quick, grads = _gradients(local, arguments)
    if quick is None or not agree(want, grads, ROUGH):
        return plain
    gradient, within = in_one_batch(exact, plain), EXACTLY if local.precision == "exact" else LAYER
    run, exactly = partial(gradient, *arguments), partial(precise, exact)
    return quick if layers_agree(plain, quick, LAYERS, run, exactly, within=within) else plain


def _beside(params: Tensors) -> Tensors:
    """Parameters with a little noise, another for each client and the same in every call."""
    drawn = {}
    for i, (name, p) in enumerate(params.items()):
        generator = torch.Generator(p.device).manual_seed(i)
        drawn[name] = p.clone().add_(
            torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype), alpha=NOISE
        )
    return drawn


def _folds(local: LocalSGD, module: Module, params: Tensors, batch: Batch) -> bool:
    """Whether two clients have the same gradients folded as client by client, all their rows counting alike.

    In float64, if the loss takes it: a network may multiply rounding so much that float32 settles nothing.
    """
    with_rows = (batch.share > 0).any(dim=1).to(torch.int8)
    clients = torch.argsort(with_rows, descending=True, stable=True)[:2]
    even = torch.full_like(batch.share, 1 / batch.share.shape[1])  # also of rows that count for nothing
    x, y, share = (values[clients] for values in (batch.x, batch.y, even))
    random = {name: keys[clients] for name, keys in batch.random.items()}
    with precise(local):
        for dtype, within in ((torch.float64, 1e-6), (local.dtype, 1e-3)):
            own = {n: p[clients].to(dtype) for n, p in params.items()}
            try:
                wide = replace(local, model=copy.deepcopy(local.model).to(dtype))
                arguments = (own, random, x, y, share.to(dtype))
                want, _ = by_client(wide, copy.deepcopy(module).to(dtype))(*arguments)
            except Exception:
                if dtype == local.dtype:
                    raise  # its errors are readable
                continue
            twin, grads = _gradients(wide, arguments, kernels=False)
            return twin is not None and agree(want, grads, within)
    return False


def _gradients(local: LocalSGD, arguments: tuple[Any, ...], *, kernels: bool = True) -> tuple[Module | None, Tensors]:
    """The folded model and its gradients of this batch; no model where it has no such form or does not take them."""
    twin = folded(trainable_copy(local.model).to(local.device), local.precision, kernels=kernels)
    if twin is None:
        return None, {}
    try:
        return twin, unfactored(in_one_batch(local, twin)(*arguments)[0])
    except Exception:  # whatever a model says of a shape or a type that only a client by itself has
        return None, {}
