"""Choice of the form of a model that is trained: folded where gradients agree, tf32 or bf16 where layers agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedscape.learning.batches import Batch
from fedscape.learning.fast.agreement import ROUGH, agree, layers_agree
from fedscape.learning.fast.folded import Folded, folded
from fedscape.learning.fast.gradients import in_one_batch, unfactored
from fedscape.learning.layers import Module, trainable_copy
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import by_client, precise
from fedscape.types import Tensors


def foldable(local: LocalSGD, module: Module, params: Tensors, batch: Batch) -> Module | None:
    """The folded model, if it gives the gradients of client by client on this batch; None if it does not.

    In tf32 or bf16 if each of its layers then agrees with the exact one (`layers_agree`), else in the model's own type.
    """
    arguments = (params, batch.random, batch.x, batch.y, batch.share)
    exact = replace(local, precision="exact")
    with precise(exact):
        want, _ = by_client(exact, module)(*arguments)  # its errors are readable
        twin, grads = _gradients(exact, arguments)
        if twin is None or not agree(want, grads):
            return None
    if local.precision == "exact":
        return twin
    quick, grads = _gradients(local, arguments)
    if quick is None or not agree(want, grads, ROUGH):
        return twin
    gradient = in_one_batch(exact, twin)
    return quick if layers_agree(twin, quick, Folded, lambda: gradient(*arguments), lambda: precise(exact)) else twin


def _gradients(local: LocalSGD, arguments: tuple[Any, ...]) -> tuple[Module | None, Tensors]:
    """The folded model and its gradients of this batch; no model where it has no such form or does not take them."""
    twin = folded(trainable_copy(local.model), local.precision)
    if twin is None:
        return None, {}
    try:
        return twin, unfactored(in_one_batch(local, twin.to(local.device))(*arguments)[0])
    except Exception:  # whatever a model says of a shape or a type that only a client by itself has
        return None, {}
