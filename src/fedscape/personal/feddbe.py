"""FedDBE: a shift that each client keeps absorbs its own part of the features; the rest is pulled to a consensus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedscape.core.blocks import on_host
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.layers import Centre, Module, ShiftedLinear
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.trainer import trainer_of
from fedscape.personal.features import last_linear, with_embedding, with_last
from fedscape.personal.fedem import small_example
from fedscape.personal.fedper import FedPer
from fedscape.types import Array, Arrays, Kept, Tensors


def with_shift(model: Module) -> Module:
    """A copy of the model whose last linear layer is a ShiftedLinear; unchanged if it is one already.

    >>> from torch import nn
    >>> [n for n, _ in with_shift(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))).named_parameters()][-1]
    '2.shift'
    """
    return model if isinstance(last_linear(model), ShiftedLinear) else with_last(model, ShiftedLinear, "a shift")


class FedDBE(FedPer):
    """FedAvg with two terms that keep a client's own bias out of the common features: Zhang et al. 2023 (NeurIPS).

    Each client adds its own vector to the input of the last linear layer, trains it and keeps it (the paper's
    personalised representation bias memory). Its loss has the extra term kappa / 2 times the mean square of m - g. Here
    m is a running mean of the batches' features. The consensus is g, which the first round finds and nothing else:
    clients train without the term, send the sum of their rows' features under the body that they have then, and drop
    what they trained; without a pull there is no such round. (The paper takes running means of the batches' features in
    that training.) Body and last layer are common.

    The server sees sums: the rows, and the features in the first round, the moves in the others. A new client has a
    shift of zero; with labelled rows it trains only its shift.

    Parameters
    ----------
    local
        How a client trains; its model gets a shift in its last linear layer (`with_shift`).
    kappa
        Weight of the pull to the consensus; the authors use 50 for a CNN of four layers.
    momentum
        mu: m = (1 - mu) m + mu (mean of the batch), from zero in each round; 1 uses the batch alone.
    initial
        "given" or "seed".

    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedDBE(step).head_names
    ['3.shift']
    """

    name = "feddbe"
    newcomers: ClassVar[str | None] = "the common model with no shift"

    def __init__(self, local: LocalSGD, *, kappa: float = 1.0, momentum: float = 1.0, initial: str = "given") -> None:
        check_local(local, initial)
        model = with_shift(local.model)
        shifted = local if model is local.model else replace(local, model=model)
        super().__init__(
            shifted, head=tuple(n for n in shifted.names if n.rpartition(".")[2] == "shift"), initial=initial
        )
        self.kappa = kappa
        self.momentum = momentum
        if not 0 <= check_number("kappa", kappa) < np.inf or not 0 < check_number("momentum", momentum) <= 1:
            raise DataError(f"kappa must be at least 0, momentum above 0 and at most 1: {kappa}, {momentum}")

    def start(self, seed: int) -> Arrays:
        width = last_linear(self.local.model).in_features
        return {**super().start(seed), "consensus": np.zeros(width), "known": np.asarray(float(self.kappa == 0))}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        if state["known"] > 0:
            return super().step(state, clients, key)
        moves, _ = self._trained(state, clients, key)
        kept = self._left(self._own_part(state, clients))
        return {"features": self._features(state, clients, moves), "weight": clients.sizes}, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept] | None:  # type: ignore[override]
        return super().total(state, clients, key) if state["known"] > 0 else None

    def _features(self, state: Arrays, clients: Federation, moves: Tensors) -> Array:
        """The sum over each client's rows of their features under the body that it has just trained."""
        sums, moved = np.zeros((len(clients), len(state["consensus"]))), on_host(moves)
        for i in np.flatnonzero(clients.sizes):
            own = {f"model.{n}": p + moved[n][i] if n in moved else p for n, p in model_arrays(state).items()}
            sums[i] = with_embedding(clients.take([int(i)]), self.local, own)["z"].sum(axis=0)
        return sums

    def _centre(self, state: Arrays) -> Centre | None:
        if state["known"] <= 0 or self.kappa == 0:
            return None
        return Centre(trainer_of(self.local).sent(state["consensus"]).to(self.local.dtype), self.kappa, self.momentum)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        if state["known"] > 0:
            return super().update(state, total, key)
        if total["weight"] < 1:
            return state
        return {**state, "consensus": total["features"] / float(total["weight"]), "known": np.ones(())}

    @classmethod
    def examples(cls) -> Sequence[tuple[FedDBE, Federation]]:
        fed, _, two = small_example()
        return [(cls(two), fed), (cls(replace(two, strategy="vmap"), momentum=0.3, initial="seed"), fed)]
