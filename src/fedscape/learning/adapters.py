"""Low-rank adapters (LoRA): clients fine-tune a few numbers of a frozen network and send only those."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedscape.core.validate import check_number, check_whole
from fedscape.errors import DataError
from fedscape.learning.layers import Module, drawing
from fedscape.types import Arrays, Tensor

FACTORS = ("both", "up")


class LowRank(nn.Module):  # type: ignore[misc]
    """A frozen linear layer plus a low-rank update of its weights: W x + b + factor * up (down x).

    `down` is [rank, inputs], `up` [outputs, rank] and zero at first.

    >>> layer = LowRank(nn.Linear(3, 2), rank=1, factor=1.0)
    >>> sorted(n for n, p in layer.named_parameters() if p.requires_grad)
    ['down', 'up']
    """

    def __init__(self, layer: Module, rank: int, factor: float) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.factor = factor
        rank = min(rank, *layer.weight.shape)
        self.down = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.up = nn.Parameter(layer.weight.new_empty(layer.out_features, rank))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.factor * functional.linear(functional.linear(x, self.down), self.up)

    def reset_parameters(self) -> None:
        """Draw `down` as torch draws a linear layer, and set `up` to zero: the network is then the frozen one."""
        nn.init.uniform_(self.down, -(bound := 1 / math.sqrt(self.down.shape[1])), bound)
        nn.init.zeros_(self.up)

    def merged(self) -> Module:
        """One linear layer that does the same, up to rounding."""
        layer = copy.deepcopy(self.layer)
        with torch.no_grad():
            update = self.factor * self.up.to(torch.float64) @ self.down.to(torch.float64)
            layer.weight.copy_(layer.weight.to(torch.float64) + update)
        return layer

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, factor={self.factor:g}"

    @property
    def weight(self) -> Tensor:
        """Refused: a model that reads the weights of a layer would pass its adapter by."""
        raise DataError(
            "the model reads the weights of an adapted layer itself, so that its adapter would have no effect: leave "
            "that layer out of layers="
        )


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen network whose linear layers have low-rank adapters, which alone are trained and sent: Hu et al. 2022.

    It is a model like any other: `LocalSGD(Adapted(model, rank=8), ...)` works with the global and personal methods.
    Those that keep a part of the model on each client then keep adapters. Whatever draws first weights anew
    (initial="seed") draws adapters, and leaves the rest.

    The mean of clients' updates is not exactly the update of the mean adapters, because an update is a product of two
    factors. With factors="up" it is: `down` then stays as it was drawn (FFA-LoRA, Sun et al. 2024).

    Parameters
    ----------
    model
        Any module; it is copied.
    rank
        Rank of an update, or the smaller side of a layer where that is less.
    layers
        Which linear layers: patterns of paths as in `model.named_modules()`, whole or from a dot on. "query" is every
        layer of that name. By default all.
    alpha
        An update is multiplied by alpha / rank; by default by 1.
    factors
        Which factors are trained: "both" or "up".
    also
        Patterns of parameters, or of layers that hold them, that are trained whole, such as a new last layer.
    seed
        What adapters are drawn from.

    >>> net = Adapted(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), rank=2, layers=["0"])
    >>> [n for n, p in net.named_parameters() if p.requires_grad], round(net.share, 3)
    (['network.0.down', 'network.0.up'], 0.053)
    """

    def __init__(
        self,
        model: Module,
        rank: int,
        *,
        layers: Sequence[str] = ("*",),
        alpha: float | None = None,
        factors: str = "both",
        also: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_whole("rank", rank, least=1)
        if factors not in FACTORS:
            raise DataError(f"factors must be one of {FACTORS}, not {factors!r}")
        if alpha is not None and not 0 < check_number("alpha", alpha) < math.inf:
            raise DataError(f"alpha must be a number above 0, not {alpha!r}")
        self.n_full = sum(p.numel() for p in model.parameters())
        holder = nn.Sequential(copy.deepcopy(model)).requires_grad_(False)  # as the model itself may be such a layer
        named = dict(holder[0].named_parameters())
        whole = [named[name] for name in _matching(list(named), also, "also")]
        factor, adapter_of = 1.0 if alpha is None else alpha / rank, {}
        with drawing(seed):
            for layer in _chosen(holder[0], layers):
                adapter_of[id(layer)] = LowRank(layer, rank, factor)
        for adapter in adapter_of.values():
            adapter.down.requires_grad_(factors == "both")
        for p in whole:
            p.requires_grad_(True)
        _exchange(holder, adapter_of)
        self.network = holder[0]
        self.settings = {"rank": rank, "layers": list(layers), "alpha": alpha, "factors": factors, "also": list(also)}

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def reset_parameters(self) -> None:
        """Draw the adapters anew where they are trained; the rest stays."""
        for adapter in self.adapters():
            down = adapter.down.detach().clone()
            adapter.reset_parameters()
            if self.settings["factors"] == "up":
                with torch.no_grad():
                    adapter.down.copy_(down)

    def adapters(self) -> Iterator[LowRank]:
        """The adapted layers."""
        return (layer for layer in self.network.modules() if isinstance(layer, LowRank))

    def merged(self) -> Module:
        """A network without adapters that does the same, up to rounding.

        >>> net = Adapted(nn.Linear(3, 2), rank=1)
        >>> net.merged()
        Linear(in_features=3, out_features=2, bias=True)
        """
        twin = nn.Sequential(copy.deepcopy(self.network))
        _exchange(twin, {id(layer): layer.merged() for layer in twin.modules() if isinstance(layer, LowRank)})
        return twin[0].requires_grad_(True)

    @property
    def share(self) -> float:
        """How many numbers are trained and sent, as a share of those of the network itself."""
        return float(sum(p.numel() for p in self.parameters() if p.requires_grad) / self.n_full)


def merged(model: Module) -> Module:
    """The model without adapters, if it is `Adapted`; any other as it is.

    >>> merged(Adapted(nn.Linear(3, 2), rank=1))
    Linear(in_features=3, out_features=2, bias=True)
    """
    return model.merged() if isinstance(model, Adapted) else model


def adapters_of(model: Module) -> dict[str, Any] | None:
    """The settings of the adapters in a model, for a file; None if it has none."""
    return next((dict(part.settings) for part in model.modules() if isinstance(part, Adapted)), None)


def frozen_arrays(model: Module) -> Arrays:
    """The parameters that nobody trains, which no state holds.

    >>> sorted(frozen_arrays(Adapted(nn.Linear(3, 2), rank=1)))
    ['network.layer.bias', 'network.layer.weight']
    """
    fixed = ((name, p) for name, p in model.named_parameters() if not p.requires_grad)
    return {name: p.detach().cpu().numpy().copy() for name, p in fixed}


def _exchange(holder: Module, others: Mapping[int, Module]) -> None:
    """Put other layers in the place of some, which are known by their id."""
    for parent in list(holder.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in others:
                setattr(parent, name, others[id(child)])


def _chosen(model: Module, patterns: Sequence[str]) -> list[Module]:
    """The plain linear layers whose paths have one of these patterns."""
    paths = {path: layer for path, layer in model.named_modules() if type(layer) is nn.Linear}
    if not paths:
        raise DataError(f"model has no torch.nn.Linear to adapt: it is a {type(model).__name__}")
    return [paths[path] for path in _matching(list(paths), patterns, "layers")]


def _matching(paths: Sequence[str], patterns: Sequence[str], what: str) -> list[str]:
    """The paths that match a pattern, whole or from a dot on; of parameters also those of a layer that matches."""
    if isinstance(patterns, str):
        raise DataError(f"{what} must be a list of patterns, not the text {patterns!r}")
    matches: dict[str, None] = {}
    for pattern in patterns:
        own = [path for path in paths if _has(path, pattern) or (what == "also" and _has(_holder(path), pattern))]
        if not own:
            have = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
            raise DataError(f"{what} has the pattern {pattern!r}, which is none of {have}")
        matches |= dict.fromkeys(own)
    if what == "layers" and not matches:
        raise DataError("layers must name at least one layer to adapt")
    return [path for path in paths if path in matches]


def _has(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")


def _holder(path: str) -> str:
    """The path of the layer that holds a parameter."""
    return path.rpartition(".")[0]
