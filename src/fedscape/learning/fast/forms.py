"""What all folded layers share, and the linear one: weights with a leading axis of clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from fedscape.learning.fast.conv import runs_kernels
from fedscape.learning.fast.lowrank import FEW, by_turns
from fedscape.learning.layers import Module
from fedscape.types import Tensor


class How(NamedTuple):
    """How layers compute: in which precision, and whether by kernels of our own where there are any."""

    precision: str = "exact"
    kernels: bool = True

    @property
    def exact(self) -> bool:
        """Whether products have all digits of their type."""
        return self.precision == "exact"

    def runs(self, x: Tensor) -> bool:
        """Whether a kernel takes this tensor."""
        return self.kernels and runs_kernels(x)

    def kind(self, own: Any) -> Any:
        """The type of products of numbers of this type."""
        return torch.bfloat16 if self.precision == "bf16" else own


class Folded(nn.Module):  # type: ignore[misc]
    """A layer that holds the weights of a plain one, and is called with those of many clients in their place."""

    def __init__(self, layer: Module, how: How) -> None:
        super().__init__()
        self.how = how
        self.rates: Tensor | None = None  # of its own step, which it then takes in the backward pass
        for name, p in layer.named_parameters(recurse=False):
            self.register_parameter(name, p)
        for name in ("weight", "bias"):
            if getattr(self, name, None) is None:
                self.register_parameter(name, None)

    def can_move(self, x: Tensor) -> bool:
        """Whether the layer can take its own step with such an input."""
        return False

    def both(self) -> tuple[Tensor, Tensor | None]:
        """Weights and biases of as many clients; frozen ones are one for all, so that products have all rows."""
        weight, bias = self.weight, self.bias
        if weight is None or bias is None or len(weight) == len(bias):
            return weight, bias
        rows = max(len(weight), len(bias))
        return weight.expand(rows, *weight.shape[1:]), bias.expand(rows, *bias.shape[1:])


class FoldedLinear(Folded):
    """A linear layer; while `watched` it adds a `probe` to its output and records its input rows.

    The gradient of a probe of zeros is that of the output, and with the rows it makes that of the weights: two thin
    factors, where the gradient itself is as large as the weights. With a trail the weights are those that clients began
    with, [1 or kinds, out, features], assigned round-robin; the low-rank update comes from its rows.
    """

    def __init__(self, layer: Module, how: How) -> None:
        super().__init__(layer, how)
        self.watched, self.rows = False, None
        for name in ("probe", "trail_up", "trail_rows"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out, features = self.weight.shape[1:]
        if self.watched:
            rows = x.reshape(len(self.probe), -1, features).to(self.weight.dtype)
            self.rows = rows.detach()
            output = by_turns(rows, self.weight) + (
                self.probe if self.bias is None else self.probe + self.bias[:, None]
            )
            if self.trail_up.ndim:
                output = output - rows @ self.trail_rows.transpose(1, 2) @ self.trail_up
            return output.reshape(*x.shape[:-1], out)
        weight, bias = self.both()
        rows = x.reshape(len(weight), -1, features)
        kind = self.how.kind(weight.dtype) if rows.shape[1] >= FEW else weight.dtype
        output = rows.to(kind) @ weight.transpose(1, 2).to(kind)
        output = output if bias is None else output + bias[:, None].to(kind)
        return output.reshape(*x.shape[:-1], out)


def wide(x: Tensor, weight: Tensor | None) -> Tensor:
    """Cast to the type of the weights: means and variances are not computed in a shorter one."""
    return x if weight is None else x.to(weight.dtype)


def scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """x times the weight of its client plus its bias, both [clients, ...], of this shape in one sample."""
    if weight is None:
        return x
    each = x.reshape(len(weight), -1, *x.shape[1:]) * weight.reshape(len(weight), 1, *shape)
    return (each if bias is None else each + bias.reshape(len(bias), 1, *shape)).reshape(x.shape)
