"""GPFL: a valve makes two of each feature vector, one guided by common class vectors, one for its client's own head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number
from fedscape.errors import DataError
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.losses import cross_entropy
from fedscape.learning.trainer import trainer_of
from fedscape.personal.features import last_linear, with_last
from fedscape.personal.fedem import small_example
from fedscape.personal.fedper import FedPer
from fedscape.personal.shared import class_counts
from fedscape.types import Array, Arrays, Kept, Tensor, Tensors


class Valve(nn.Linear):  # type: ignore[misc]
    """The last layer of a model of GPFL: conditional valve V, vectors C of the U classes, and a client's head.

    Of its input f and a condition v the valve makes relu((a + 1) f + b), with a = N(relu(A v)), A a linear layer and N
    a layer normalisation; b likewise by layers of its own (equations 3 and 4). The common route has as condition the
    mean of the frozen class vectors, a client's own route their sum weighted by its class shares, over U (equations 5
    and 7).

    When evaluated, it gives the head's output for the own route. Without shares, so for nobody in particular, it gives
    the cosines of the common route with the class vectors (equation 13). In training it gives [batch, 2, U]: the head's
    output, and for each class what guidance to it costs. The frozen vectors and the shares are parameters only so that
    a state and a client can hold them: their gradient is zero.
    """

    def __init__(
        self, n_in: int, n_out: int, *, bias: bool = True, magnitude: float = 0.01, decay: float = 0.1
    ) -> None:
        super().__init__(n_in, n_out, bias=bias)
        self.magnitude, self.decay = magnitude, decay
        shapes = {"weight": (2 * n_in, n_in), "bias": (2 * n_in,), "scale": (2, n_in), "shift": (2, n_in)}
        self.valve = nn.ParameterDict({name: torch.empty(shape) for name, shape in shapes.items()})  # of a, then of b
        self.classes, self.frozen = (nn.Parameter(torch.empty(n_out, n_in)) for _ in range(2))
        self.shares = nn.Parameter(torch.zeros(n_out))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw head and valve as torch draws linear layers, class vectors from N(0, 1)."""
        super().reset_parameters()
        if not hasattr(self, "shares"):
            return
        bound = 1 / math.sqrt(self.in_features)
        for name in ("weight", "bias"):
            nn.init.uniform_(self.valve[name], -bound, bound)
        nn.init.ones_(self.valve["scale"])
        nn.init.zeros_(self.valve["shift"])
        nn.init.normal_(self.classes)
        with torch.no_grad():
            self.frozen.copy_(self.classes)
            self.shares.zero_()

    def forward(self, f: Tensor) -> Tensor:
        if f.ndim != 2:
            raise DataError(f"GPFL takes one vector of features a row, not the shape {list(f.shape)} of all")
        frozen, shares = self.frozen.detach(), self.shares.detach()
        conditions = torch.stack([frozen.mean(dim=0), shares @ frozen / len(frozen)])  # [route, K]
        common, own = self._routed(f, conditions)
        output = functional.linear(own, self.weight, self.bias)
        cosines = functional.normalize(common, dim=-1, eps=1e-6) @ functional.normalize(self.classes, dim=-1).T
        if not self.training:
            return torch.where(shares.sum() > 0, output, cosines)
        return torch.stack([output, self._guidance(common, cosines, frozen)], dim=-2)

    def _routed(self, f: Tensor, conditions: Tensor) -> Tensor:
        """The vectors of each route: [route, batch, K]."""
        v, width = self.valve, (self.in_features,)
        raw = functional.relu(functional.linear(conditions, v["weight"], v["bias"])).unflatten(-1, (2, *width))
        a, b = (functional.layer_norm(raw, width) * v["scale"] + v["shift"])[:, :, None].unbind(dim=1)
        return functional.relu((a + 1) * f + b)

    def _guidance(self, common: Tensor, cosines: Tensor, frozen: Tensor) -> Tensor:
        """For each class -log softmax of the cosines (8), the distance to its frozen vector (9), and weight decay."""
        squares = common.square().sum(dim=-1, keepdim=True) - 2 * common @ frozen.T + frozen.square().sum(dim=-1)
        size = sum((p.square().sum() for p in self.valve.values()), self.classes.square().sum())
        distance = squares.clamp(min=1e-12).sqrt()
        return self.magnitude * distance - functional.log_softmax(cosines, dim=-1) + self.decay / 2 * size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, magnitude={self.magnitude:g}, decay={self.decay:g}"


def guided(output: Tensor, target: Tensor) -> Tensor:
    """The loss of a model in training that ends in a Valve: cross-entropy, and the guidance to the sample's class.

    >>> guided(torch.tensor([[[0.0, 0.0], [5.0, 7.0]]]), torch.tensor([1])).round(decimals=3)
    tensor([7.6930])
    """
    if output.ndim != 3:
        raise DataError(
            f"GPFL's last linear layer must give the model's output, one vector a row: in training it gave the shape "
            f"{list(output.shape)}"
        )
    logits, guidance = output.unbind(dim=1)
    return cross_entropy(logits, target) + guidance.gather(1, target[:, None])[:, 0]


def with_valve(model: Module, *, magnitude: float = 0.01, decay: float = 0.1) -> Module:
    """A copy of the model whose last linear layer is a Valve; unchanged if it is this one already.

    >>> [n for n, _ in with_valve(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))).named_parameters()][2:5]
    ['2.weight', '2.bias', '2.classes']
    """
    old = last_linear(model)
    if isinstance(old, Valve) and (old.magnitude, old.decay) == (magnitude, decay):
        return model
    return with_last(model, Valve, "a valve", magnitude=magnitude, decay=decay)


class GPFL(FedPer):
    """Global and personal features at once: Zhang et al. 2023 (ICCV), algorithm 1.

    Behind the body a conditional valve makes two vectors of a row's features: one by a condition that all clients
    share, one by a condition that a client makes of its class shares. The first is guided to the common vector of the
    row's class, by -log softmax of its cosines with the vectors, and by `magnitude` times its distance to the vector as
    it was broadcast. The second goes through the client's own head, with cross-entropy. A client trains all at once and
    keeps its head and its class shares.

    The server sees sums: the moves of body, valve and class vectors, and the rows. A new client has neither head nor
    shares: it gets the class whose vector has the largest cosine with its common route. With labelled rows it counts
    its shares and trains its head alone.

    Parameters
    ----------
    local
        How a client trains, with cross-entropy and no weight decay; its model gets a `Valve`.
    magnitude
        lambda, of the distance to the frozen class vectors.
    decay
        mu: weight decay of valve and class vectors, as in the authors' code. (The paper writes norms, not squared.) For
        a CNN of four layers and an MLP they have magnitude 0.01 and decay 0.1, for a ResNet 0.0001 and 0.
    initial
        "given" or "seed".

    >>> from fedscape.learning import models
    >>> GPFL(LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)).head_names
    ['3.weight', '3.bias', '3.shares']
    """

    name = "gpfl"
    newcomers: ClassVar[str | None] = "the class whose common vector is nearest to its features"

    def __init__(self, local: LocalSGD, *, magnitude: float = 0.01, decay: float = 0.1, initial: str = "given") -> None:
        check_local(local, initial)
        self.magnitude = magnitude
        self.decay = decay
        for name, value in (("magnitude", magnitude), ("decay", decay)):
            if not 0 <= check_number(name, value) < math.inf:
                raise DataError(f"{name} must be at least 0, not {value}")
        if local.loss is not cross_entropy or local.weight_decay:
            raise DataError(
                f"local must have the loss cross_entropy, as GPFL has a vector for each class, and no weight decay, as "
                f"decay= is GPFL's own; not {getattr(local.loss, '__name__', local.loss)} and {local.weight_decay:g}"
            )
        model = with_valve(local.model, magnitude=magnitude, decay=decay)
        valved = local if model is local.model else replace(local, model=model)
        path = next(f"{n}." if n else "" for n, layer in valved.model.named_modules() if isinstance(layer, Valve))
        own = (f"{path}weight", f"{path}bias", f"{path}shares")
        super().__init__(valved, head=own, initial=initial)
        self._classes, self._frozen, self._shares = f"{path}classes", f"{path}frozen", f"{path}shares"
        self._guided = replace(valved, loss=guided)

    @property
    def training(self) -> LocalSGD:
        return self._guided

    def _own_part(self, state: Arrays, clients: Federation) -> Tensors:
        """Each client's head, and its class shares (equation 6)."""
        counts = class_counts(self.local, clients, len(state[f"model.{self._shares}"]))
        own = super()._own_part(state, clients)
        shares = counts / np.maximum(clients.sizes, 1)[:, None]
        return own | {self._shares: trainer_of(self.local).sent(shares).to(own[self._shares].dtype)}

    def _trained(
        self, state: Arrays, clients: Federation, key: Key, *, weights: Array | None = None
    ) -> tuple[Tensors, Kept]:
        moves, kept = super()._trained(state, clients, key, weights=weights)
        del moves[self._frozen]  # it did not move
        return moves, kept

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        new = super().update(state, total, key)
        return {**new, f"model.{self._frozen}": new[f"model.{self._classes}"]}

    @classmethod
    def examples(cls) -> Sequence[tuple[GPFL, Federation]]:
        fed, _, two = small_example()
        return [(cls(two), fed), (cls(replace(two, strategy="vmap"), magnitude=0.5, initial="seed"), fed)]
