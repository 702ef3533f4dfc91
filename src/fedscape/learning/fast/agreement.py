"""Whether a faster way gives the gradients of the reference: up to rounding, and for shorter numbers layer by layer.

Rounding to u = 2**-9 (bf16; tf32 has 2**-11) moves a number by at most u, by u / sqrt(3) = 0.11% on average. One layer
rounds its inputs, weights and outputs, and sums of shifted images up to 25 times more. Independent errors add up in
squares, so that outputs and gradients of one layer, at given inputs, are within sqrt(30) x 0.11% = 0.6% of the exact
ones. `LAYER` is more than twice that, and half of the 3% that must be detected.

Gradients of a whole network say less: a rectifier whose input rounding carries over zero changes the gradient of its
unit by all of it. A share p of such units moves the gradient by sqrt(p), 5% for p = 0.3%, though nothing is wrong. So
each layer is compared by itself, at the inputs and the output gradients that the exact network has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.func import functional_call

from fedscape.learning.layers import Module
from fedscape.types import Tensor

LAYER = 0.015  # how far outputs and gradients of one layer in shorter numbers may be from exact ones
ROUGH = 0.3  # how far gradients of a whole network in shorter numbers may be from another's: rectifiers flip
CANCELS = 0.25  # a bias's gradient this short beside its terms is what they leave when they cancel: the key's, say
FEW = 64  # numbers below which the length of a gradient says nothing: one flipped rectifier is all of it


def agree(one: Mapping[str, Tensor], other: Mapping[str, Tensor], within: float = 1e-3) -> bool:
    """Whether two sets of gradients [clients, ...] are the same up to rounding: their distance beside their length.

    Clients whose gradients in the one are not finite settle nothing; where there are no others, no is the answer.
    """
    finite = [torch.isfinite(values.reshape(len(values), -1)).all(dim=1) for values in one.values()]
    which = torch.stack(finite).all(dim=0)
    apart = torch.stack([(values - other[name])[which].norm() for name, values in one.items()]).norm()
    size = torch.stack([values[which].norm() for values in one.values()]).norm()
    return bool(which.any()) and bool(apart <= within * size + 1e-12)


def same_lengths(one: Mapping[str, Tensor], other: Mapping[str, Tensor], within: float = LAYER) -> bool:
    """Whether each parameter's gradients have the same length: flipped rectifiers hardly change it."""
    pairs = [(values.norm(), other[name].norm()) for name, values in one.items() if values.numel() >= FEW]
    return all(bool((a - b).abs() <= within * a + 1e-12) for a, b in pairs)


def layers_agree(
    exact: Module,
    quick: Module,
    kind: type,
    run: Callable[[], Any],
    exactly: Callable[[], AbstractContextManager[None]] = nullcontext,
    *,
    within: float = LAYER,
) -> bool:
    """Whether each layer of this kind does the same in two networks of one form, up to rounding.

    Outputs, and gradients of inputs and parameters, are compared at the inputs and output gradients of `run`, one pass
    of the exact network; within `exactly` products are exact.
    """
    calls: list[dict[str, Any]] = []

    def look(layer: Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        own = {name: p.detach() for name, p in layer.named_parameters()}
        calls.append({"path": paths[id(layer)], "x": inputs[0].detach(), "params": own})
        if output.requires_grad:
            output.register_hook(lambda grad, call=calls[-1]: call.update(grad=grad.detach()))

    paths = {id(layer): path for path, layer in exact.named_modules() if isinstance(layer, kind)}
    hooks = [exact.get_submodule(path).register_forward_hook(look) for path in paths.values()]
    try:
        with exactly():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    for call in calls:
        if "grad" in call:
            with exactly():
                want = _pass(exact.get_submodule(call["path"]), call)
            short = _pass(quick.get_submodule(call["path"]), call)
            terms = float(call["grad"].norm())
            for name, exactly_so in want.items():
                least = CANCELS * terms if name == "bias" else 0.0
                if not _is_near(exactly_so, short[name], within, least):
                    return False
    return True


def _pass(layer: Module, call: Mapping[str, Any]) -> dict[str, Tensor]:
    """Output of one layer, and gradients of its inputs and of the parameters that are trained."""
    trained = {name for name, p in layer.named_parameters() if p.requires_grad}
    leaves = {name: p.clone().requires_grad_(name in trained) for name, p in call["params"].items()}
    x = call["x"].clone()
    x = x.requires_grad_() if x.is_floating_point() else x
    with torch.enable_grad():
        output = functional_call(layer, leaves, (x,))
        wanted = {name: p for name, p in {**leaves, "inputs": x}.items() if p.requires_grad}
        grad = call["grad"].to(output.dtype)
        grads = torch.autograd.grad(output, list(wanted.values()), grad, allow_unused=True, materialize_grads=True)
    return {"output": output.detach(), **dict(zip(wanted, grads, strict=True))}


def _is_near(a: Tensor, b: Tensor, within: float, least: float) -> bool:
    return bool((a - b.to(a.dtype)).norm() <= within * max(float(a.norm()), least) + 1e-12)
