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
from torch import nn
from torch.func import functional_call

from fedscape.learning.layers import Module
from fedscape.types import Tensor

LAYER = 0.015  # how far outputs and gradients of one layer in shorter numbers may be from exact ones
ROUGH = 0.3  # how far gradients of a whole network in shorter numbers may be from another's: rectifiers flip
CANCELS = 0.25  # a bias's gradient this short beside its terms is what they leave when they cancel: the key's, say
FAINT = 1e-6  # gradients this short settle nothing: beside `layers_agree`'s 1e-12 they are zero
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


def drawn_like(x: Tensor) -> Tensor:
    """Normal numbers in the shape of a tensor, the same in every call."""
    generator = torch.Generator(x.device).manual_seed(0)
    return torch.randn(x.shape, generator=generator, device=x.device).to(x.dtype)


def layers_agree(
    exact: Module,
    quick: Module,
    kind: type | tuple[type, ...],
    run: Callable[[], Any],
    exactly: Callable[[], AbstractContextManager[None]] = nullcontext,
    *,
    within: float = LAYER,
) -> bool:
    """Whether each layer of this kind does the same in two networks of one form, up to rounding.

    Outputs, and gradients of inputs and parameters, are compared at the inputs and output gradients of `run`, one pass
    of the exact network; within `exactly` products are exact. Where the output has no gradient but rounding, a random
    one is taken.
    """
    calls: list[_Call] = []

    def look(layer: Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        arguments = tuple(paths[id(x)] if isinstance(x, nn.Module) else x.detach() for x in inputs)
        calls.append(call := _Call(exact, paths[id(layer)], arguments))
        if output.requires_grad:
            output.register_hook(call.note)

    paths = {id(layer): path for path, layer in exact.named_modules()}
    layers: list[Module] = [layer for layer in exact.modules() if isinstance(layer, kind)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    try:
        with exactly():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    for call in calls:
        with exactly():
            want = call.again(exact)
        short = call.again(quick)
        terms = 0.0 if call.grad is None else float(call.grad.norm())
        for name, exactly_so in want.items():
            least = CANCELS * terms if name.endswith("bias") else 0.0
            if not _is_near(exactly_so, short[name], within, least):
                return False
    return True


class _Call:
    """One call of a layer: its inputs (other layers by path), what it held, and the gradient of its output if any."""

    def __init__(self, network: Module, path: str, inputs: tuple[Any, ...]) -> None:
        self.path, self.inputs = path, inputs
        held = _Layer(network, path, inputs)
        self.held = {n: v.detach() for n, v in (*held.named_parameters(), *held.named_buffers())}
        self.grad: Tensor | None = None

    def note(self, grad: Tensor) -> None:
        """Keep the gradient of the output."""
        self.grad = drawn_like(grad) if bool(grad.norm() <= FAINT) else grad.detach()

    def again(self, network: Module) -> dict[str, Tensor]:
        """The output in this network, and the gradients of inputs and of the parameters that are trained."""
        layer = _Layer(network, self.path, self.inputs)
        trained = {n for n, p in layer.named_parameters() if p.requires_grad}
        held = {n: v.clone().requires_grad_(n in trained) for n, v in self.held.items()}
        tensors = {f"inputs {i}": x.clone() for i, x in enumerate(self.inputs) if isinstance(x, torch.Tensor)}
        with torch.set_grad_enabled(self.grad is not None):
            for x in tensors.values():
                x.requires_grad_(self.grad is not None and x.is_floating_point())
            output = functional_call(layer, held, tuple(tensors.values()))
            results = {"output": output.detach()}
            if self.grad is not None:
                wanted = {n: v for n, v in {**held, **tensors}.items() if v.requires_grad}
                how: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
                grads = torch.autograd.grad(output, list(wanted.values()), self.grad.to(output.dtype), **how)
                results |= dict(zip(wanted, grads, strict=True))
        return results


class _Layer(nn.Module):  # type: ignore[misc]
    """A layer of a network with those it is called with, so that the weights of all can be exchanged."""

    def __init__(self, network: Module, path: str, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.layer, self.inputs = network.get_submodule(path), inputs
        self.others = nn.ModuleDict(
            {str(i): network.get_submodule(x) for i, x in enumerate(inputs) if isinstance(x, str)}
        )

    def forward(self, *tensors: Tensor) -> Tensor:
        left = iter(tensors)
        arguments = [self.others[str(i)] if isinstance(x, str) else next(left) for i, x in enumerate(self.inputs)]
        output: Tensor = self.layer(*arguments)
        return output


def _is_near(a: Tensor, b: Tensor, within: float, least: float) -> bool:
    return bool((a - b.to(a.dtype)).norm() <= within * max(float(a.norm()), least) + 1e-12)
