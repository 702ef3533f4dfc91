"""Networks with several light branches on one body, and the objective that trains them (equation 4)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedscape.errors import DataError
from fedscape.learning.layers import Module, drawing, redraw
from fedscape.types import Tensor


class Branches(nn.Module):  # type: ignore[misc]
    """Several layers in place of one: their outputs one below the other, [K batch, ...].

    What follows treats rows alike, so it works on all branches at once.

    >>> Branches([nn.Linear(3, 2), nn.Linear(3, 2)])(torch.zeros(4, 3)).shape
    torch.Size([8, 2])
    """

    def __init__(self, each: list[Module]) -> None:
        super().__init__()
        self.each = nn.ModuleList(each)
        self.watched = self.last = False
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.watched:
            self.seen = x
            if self.last:
                raise _Reached
        return torch.cat([layer(x) for layer in self.each])


class _Reached(Exception):
    """No error: the features are known, and the rest of the network is not wanted."""


class MultiBranch(nn.Module):  # type: ignore[misc]
    """A network of which one layer exists K times, each copy with weights of its own: output [batch, K, ...].

    The layers before it are the shared extractor, what enters it are the features that modes are told apart by; layers
    after it are shared too. The paper's branches are the last layer of an image network, and for an LSTM the projection
    before the output.

    Parameters
    ----------
    model
        Any module; it is copied. Its own layer becomes the first branch.
    layer
        The path of the layer, as in `model.named_modules()`; by default the last linear one.
    n_branches
        K.
    seed
        The other branches' weights are drawn from it.

    >>> from fedscape.learning import models
    >>> net = MultiBranch(models.cnn(), "out")
    >>> sum(p.numel() for p in net.parameters()), round(100 * net.overhead, 2)
    (1214588, 0.66)
    """

    def __init__(self, model: Module, layer: str | None = None, n_branches: int = 2, *, seed: int = 0) -> None:
        super().__init__()
        if n_branches < 2:
            raise DataError(f"n_branches must be at least 2, not {n_branches}: one branch is the model itself")
        path, net = _last_linear(model) if layer is None else layer, copy.deepcopy(model)
        if path == "":  # the model is the layer
            path, net = "0", nn.Sequential(net)
        self.layer = path
        self.n_branches = n_branches
        first = _layer(net, self.layer)
        others = [copy.deepcopy(first) for _ in range(n_branches - 1)]
        spare = copy.deepcopy(net)
        with drawing(seed):
            for other in others:
                _put(spare, self.layer, other)
                redraw(spare)
        _put(net, self.layer, Branches([first, *others]))
        self.net = net

    def forward(self, x: Tensor, both: bool = False, outputs: bool = True) -> Any:
        """Outputs of all branches [batch, K, ...]; with `both`, the features [batch, d] too.

        Without `outputs` these are None, and nothing is computed beyond the features.
        """
        branches, made = _layer(self.net, self.layer), None
        branches.watched, branches.last = both, not outputs
        try:
            made = self.net(x)
            made = made.reshape(self.n_branches, len(x), *made.shape[1:]).transpose(0, 1)
        except _Reached:
            pass
        if not both:
            return made
        seen, branches.seen, branches.watched = branches.seen, None, False
        axes = {2: (), 3: (1,), 4: (2, 3)}.get(seen.ndim)  # sequences [batch, time, d], images [batch, d, H, W]
        if axes is None:
            raise DataError(f"what enters layer {self.layer!r} must have 2 to 4 axes, it has {seen.ndim}")
        return made, seen.mean(dim=axes) if axes else seen

    def reset_parameters(self) -> None:
        """Draw all weights anew, those of each branch on their own."""
        branches = _layer(self.net, self.layer)
        for layer in reversed(branches.each):
            _put(self.net, self.layer, layer)
            redraw(self.net)
        _put(self.net, self.layer, branches)

    def first(self) -> Module:
        """The network with its first branch alone."""
        net = copy.deepcopy(self.net)
        _put(net, self.layer, _layer(net, self.layer).each[0])
        return net

    @property
    def n_features(self) -> int:
        """How many numbers the features of a row are."""
        first = _layer(self.net, self.layer).each[0]
        for name in ("in_features", "in_channels"):
            if hasattr(first, name):
                return int(getattr(first, name))
        raise DataError(f"layer {self.layer!r} is {type(first).__name__}: branch a linear layer or a convolution")

    @property
    def extra_bytes(self) -> int:
        """Bytes that the branches beyond the first add to every message."""
        return sum(p.numel() * p.element_size() for b in _layer(self.net, self.layer).each[1:] for p in b.parameters())

    @property
    def overhead(self) -> float:
        """The same as a share of the network with one branch."""
        whole = sum(p.numel() * p.element_size() for p in self.parameters())
        return float(self.extra_bytes / (whole - self.extra_bytes))


class MeanOfBranches(nn.Module):  # type: ignore[misc]
    """The mean of the outputs of all branches: how networks without a choice of branch use the same capacity.

    >>> MeanOfBranches(MultiBranch(nn.Linear(3, 2)))(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(self, branches: MultiBranch) -> None:
        super().__init__()
        self.branches = copy.deepcopy(branches)

    def forward(self, x: Tensor) -> Tensor:
        return self.branches(x).mean(dim=1)


@dataclass(frozen=True)
class BranchLoss:
    """Cross entropy of the chosen branch, and of the others with smoothed labels: equation (4).

    Outputs are [batch, K, classes], targets [batch, 1 + K]: the class, then the weight w_k of each branch (one for the
    chosen branch, zero for others; or shares). With s = (1 - smoothing) onehot + smoothing / classes the loss is
    sum_k w_k CE(g_k, y) + strength / (K - 1) sum_k (1 - w_k) CE(g_k, s).

    >>> target = torch.tensor([[1.0, 1.0, 0.0]])
    >>> round(float(BranchLoss(0.5, 0.2)(torch.zeros(1, 2, 4), target)), 4)
    2.0794
    """

    strength: float = 0.5
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not (self.strength >= 0 and 0 <= self.smoothing <= 1):
            raise DataError(f"strength must be at least 0 and smoothing from 0 to 1: {self.strength}, {self.smoothing}")

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        k, n_classes = output.shape[1:]
        chosen, classes = target[:, 1:], target[:, :1, None].to(torch.int64).expand(-1, k, 1)
        if self.strength == 0:
            return -(chosen * functional.log_softmax(output, dim=-1).gather(2, classes)[:, :, 0]).sum(dim=1)
        others = self.strength / (k - 1) * (1 - chosen)
        even = (others * (self.smoothing / n_classes))[:, :, None].expand(-1, -1, n_classes)
        label = even.scatter_add(2, classes, (chosen + (1 - self.smoothing) * others)[:, :, None])
        return -(label * functional.log_softmax(output, dim=-1)).sum(dim=(1, 2))  # one sum: little to go back through


def _layer(model: Module, path: str) -> Any:
    try:
        return model.get_submodule(path)
    except AttributeError:
        known = ", ".join(name for name, _ in model.named_modules() if name)
        raise DataError(f"the model has no layer {path!r}: it has {known}") from None


def _put(model: Module, path: str, layer: Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)


def _last_linear(model: Module) -> str:
    found = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise DataError("the model has no linear layer to make branches of: name the layer")
    return str(found[-1])
