"""Which layers of a folded model may take their own step: those that then move as their gradients say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.func import functional_call

from fedscape.learning.batches import Batch
from fedscape.learning.fast.admission import EXACTLY
from fedscape.learning.fast.agreement import drawn_like
from fedscape.learning.fast.forms import Folded
from fedscape.learning.fast.gradients import in_one_batch, member
from fedscape.learning.fast.moving import moving
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.types import Tensor, Tensors

FAR = 1024.0  # a rate beside which weights are small, so that what they move is not lost in their rounding
FOUND = 100.0  # how many times further a step must lead than its rounding, or it says nothing of the kernel


class _Called(NamedTuple):
    """One call of a layer: its inputs, and the parameters that it was called with."""

    inputs: tuple[Tensor, ...]
    held: Tensors


def own_steps(local: LocalSGD, twin: Module, params: Tensors, batch: Batch) -> dict[str, list[str]]:
    """The layers that take their own step, and their parameters: those that move as their gradients say.

    Each is tested by itself, at its inputs of this batch and a random gradient of its output: that of the batch may be
    zero, as before a norm whose scale is, and a kernel that does nothing would be right. What a layer leaves for the
    products of the next step must be its new weights in the type of products, to the bit. One that fails takes none.
    """
    right: dict[str, list[str]] = {}
    for path, called in self_moving(local, twin, (params, batch.random, batch.x, batch.y, batch.share)).items():
        layer = twin.get_submodule(path)
        try:
            does = _steps_right(layer, called, batch.share.new_full((len(batch.y),), FAR), local.precision)
        except Exception:  # the layer has just run without: whatever is raised here comes from the kernel of its step
            does = False
        if does:
            right[path] = [member(path, n) for n in called.held]
    return right


def self_moving(local: LocalSGD, twin: Module, arguments: tuple[Any, ...]) -> dict[str, _Called]:
    """The layers of a folded model that can take their own step, as one step uses them once, and those calls."""
    layers = {path: m for path, m in twin.named_modules() if isinstance(m, Folded) and path}
    calls = dict.fromkeys(layers, 0)
    able: dict[str, _Called] = {}

    def look(path: str) -> Callable[..., None]:
        def see(layer: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
            calls[path] += 1
            if layer.can_move(inputs[0]) and all(isinstance(x, torch.Tensor) for x in inputs):
                held = {n: p.detach() for n, p in layer.named_parameters(recurse=False)}
                able[path] = _Called(tuple(x.detach() for x in inputs), held)

        return see

    hooks = [layer.register_forward_hook(look(path)) for path, layer in layers.items()]
    try:
        in_one_batch(local, twin)(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return {path: called for path, called in able.items() if calls[path] == 1}


def _steps_right(layer: Any, called: _Called, rates: Tensor, precision: str) -> bool:
    def passed(held: Tensors, **buffers: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of parameters, as far as the layer gives them; those it moves are moved."""
        leaves = [v.detach().requires_grad_() for v in held.values()]
        inputs = tuple(x.detach().requires_grad_(x.is_floating_point()) for x in called.inputs)
        with torch.enable_grad():
            output = functional_call(layer, {**dict(zip(held, leaves, strict=True)), **buffers}, inputs)
        wanted = [*leaves, *(x for x in inputs if x.requires_grad)]
        grads: tuple[Tensor | None, ...] = torch.autograd.grad(output, wanted, drawn_like(output), allow_unused=True)
        return grads[: len(leaves)]

    grads, now, buffers = passed(called.held), {n: v.clone() for n, v in called.held.items()}, {}
    if hasattr(layer, "short") and precision == "bf16":
        buffers["short"] = now["weight"].to(torch.bfloat16)
    with moving([layer], rates):
        passed(now, **buffers)
    if buffers and not torch.equal(buffers["short"], now["weight"].to(torch.bfloat16)):
        return False
    return all(
        g is not None and _has_moved(begin, g, now[n]) for (n, begin), g in zip(called.held.items(), grads, strict=True)
    )


def _has_moved(begin: Tensor, grads: Tensor, now: Tensor) -> bool:
    """Whether parameters have moved by their gradients, up to rounding: of the gradients, and of the parameters.

    A step that is lost in the rounding of the parameters settles nothing, and no is the answer.
    """
    far, lost = FAR * grads.norm(), 2**-22 * now.norm() + 1e-12
    apart = (now - (begin - FAR * grads)).norm()
    return bool(far > FOUND * lost) and bool(apart <= EXACTLY * far + lost)
