"""Networks with several light branches on one body, and the objective that trains them (equation 4)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedscape.errors import DataError
from fedscape.learning.layers import Module, drawing, redraw
from fedscape.types import Array, Tensor

_RARE = 0.02  # least share of a mode in the loss that contrasts modes


class Branches(nn.Module):  # type: ignore[misc]
    """Several layers in place of one: their outputs stacked along the batch axis, [K batch, ...].

    The layers after it treat rows independently, so they run on all branches at once.

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
    """Stops the forward pass once the features are computed. Not an error."""


class MultiBranch(nn.Module):  # type: ignore[misc]
    """A network with K copies of one layer, each with its own weights: output [batch, K, ...].

    The layers before it are the shared extractor. The input of the branched layer is the features that separate the
    modes. The layers after it are shared too. The paper branches the last layer of an image network, and for an LSTM
    the projection before the output.

    Parameters
    ----------
    model
        Any module; it is copied. Its own layer becomes the first branch.
    layer
        The path of the layer, as in `model.named_modules()`; by default the last linear one.
    n_branches
        K.
    seed
        Seed of the weights of the other branches.

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

        Without `outputs` the first is None, and the forward pass stops at the features.
        """
        branches, output = _layer(self.net, self.layer), None
        branches.watched, branches.last = both, not outputs
        try:
            output = self.net(x)
            output = output.reshape(self.n_branches, len(x), *output.shape[1:]).transpose(0, 1)
        except _Reached:
            pass
        if not both:
            return output
        features, branches.seen, branches.watched = branches.seen, None, False
        axes = {2: (), 3: (1,), 4: (2, 3)}.get(features.ndim)  # sequences [batch, time, d], images [batch, d, H, W]
        if axes is None:
            raise DataError(f"what enters layer {self.layer!r} must have 2 to 4 axes, it has {features.ndim}")
        return output, features.mean(dim=axes) if axes else features

    def reset_parameters(self) -> None:
        """Draw all weights again, each branch independently."""
        branches = _layer(self.net, self.layer)
        for layer in reversed(branches.each):
            _put(self.net, self.layer, layer)
            redraw(self.net)
        _put(self.net, self.layer, branches)

    def first(self) -> Module:
        """The network with its first branch alone."""
        return self.with_layer(copy.deepcopy(_layer(self.net, self.layer).each[0]))

    def with_layer(self, layer: Module) -> Module:
        """The network with this layer in place of the branches."""
        net = copy.deepcopy(self.net)
        _put(net, self.layer, layer)
        return net

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        first = _layer(self.net, self.layer).each[0]
        for name in ("in_features", "in_channels"):
            if hasattr(first, name):
                return int(getattr(first, name))
        raise DataError(f"layer {self.layer!r} is {type(first).__name__}: branch a linear layer or a convolution")

    @property
    def extra_bytes(self) -> int:
        """Bytes that the additional branches add to every message."""
        return sum(p.numel() * p.element_size() for b in _layer(self.net, self.layer).each[1:] for p in b.parameters())

    @property
    def overhead(self) -> float:
        """The same relative to the network with one branch."""
        whole = sum(p.numel() * p.element_size() for p in self.parameters())
        return float(self.extra_bytes / (whole - self.extra_bytes))


class MeanOfBranches(nn.Module):  # type: ignore[misc]
    """The mean of the outputs of all branches: the same capacity for methods that choose no branch.

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
    chosen branch, zero for others; or shares; all zero for a row that is not trained on). With W = sum_k w_k and
    s = (1 - smoothing) onehot + smoothing / classes the loss is sum_k w_k CE(g_k, y) +
    strength / (K - 1) sum_k (W - w_k) CE(g_k, s). Targets [batch, 1 + 3 K] add `contrast_loss`.

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
        k = output.shape[1]
        chosen, classes = target[:, 1 : 1 + k], target[:, :1, None].to(torch.int64).expand(-1, k, 1)
        logs = functional.log_softmax(output, dim=-1)
        right = logs.gather(2, classes)[:, :, 0]
        own = -(chosen * right).sum(dim=1) if self.strength == 0 else self._pulling(logs, chosen, classes)
        if target.shape[1] == 1 + k:
            return own
        evidence = output.gather(2, classes)[:, :, 0] - right  # the log-sum-exp of each branch, which is at hand
        return own + contrast_loss(evidence, target[:, 1 + k : 1 + 2 * k], target[:, 1 + 2 * k :])

    def _pulling(self, logs: Tensor, chosen: Tensor, classes: Tensor) -> Tensor:
        k, n_classes = logs.shape[1:]
        others = self.strength / (k - 1) * (chosen.sum(dim=1, keepdim=True) - chosen)
        even = (others * (self.smoothing / n_classes))[:, :, None].expand(-1, -1, n_classes)
        label = even.scatter_add(2, classes, (chosen + (1 - self.smoothing) * others)[:, :, None])
        return -(label * logs).sum(dim=(1, 2))  # one sum: a short backward pass


def contrast_loss(evidence: Tensor, weights: Tensor, log_shares: Tensor) -> Tensor:
    """Cross entropy of the mode of each row, from the log-sum-exp of the outputs of each branch [batch, K]: [batch].

    All outputs of all branches are one softmax over modes and classes; a mode's log-odds are the log-sum-exp of its
    branch. Adding the log of the modes' current shares makes what is learned the same whatever the hour.

    >>> one = torch.tensor([[1.0, 0.0]])
    >>> round(float(contrast_loss(torch.zeros(1, 2), one, torch.tensor([[0.25, 0.75]]).log())), 4)
    1.3863
    """
    return -(weights * functional.log_softmax(evidence + log_shares, dim=1)).sum(dim=1)


def contrast_targets(weights: Array, modes: Array, shares: Array, contrast: float) -> Array:
    """Columns of targets for `contrast_loss` beside the weights [rows, K] of branches: [rows, 3 K].

    `modes` [rows, K] has a one for the mode of each row, `shares` [K] are the modes' shares of late.

    >>> one = np.array([[1.0, 0.0]])
    >>> contrast_targets(one, one, np.array([1.0, 0.0]), 0.3).round(2).tolist()
    [[1.0, 0.0, 0.3, 0.0, 0.0, -3.91]]
    """
    log_shares = np.broadcast_to(np.log(np.maximum(shares, _RARE)), weights.shape)
    return np.concatenate([weights, contrast * modes, log_shares], axis=1)


def branch_evidence(output: Tensor) -> Tensor:
    """Log-odds of each mode but the last against the last, from outputs [batch, K, classes]: [batch, K - 1].

    >>> branch_evidence(torch.tensor([[[1.0, 1.0], [0.0, 0.0]]])).tolist()
    [[1.0]]
    """
    modes = output.logsumexp(dim=-1)
    return modes[:, :-1] - modes[:, -1:]


def _layer(model: Module, path: str) -> Any:
    try:
        return model.get_submodule(path)
    except AttributeError:
        names = ", ".join(name for name, _ in model.named_modules() if name)
        raise DataError(f"the model has no layer {path!r}: it has {names}") from None


def _put(model: Module, path: str, layer: Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)


def _last_linear(model: Module) -> str:
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise DataError("the model has no linear layer to make branches of: name the layer")
    return str(linear[-1])
