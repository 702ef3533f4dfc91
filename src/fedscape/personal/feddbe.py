"""FedDBE: a shift that each client keeps absorbs its own part of the features; the rest is pulled to a consensus."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.validate import check_number
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.losses import checked_loss
from fedscape.learning.optimisers import Rates, new_memory, update
from fedscape.learning.stepping import groups_of
from fedscape.personal.features import last_linear, with_embedding
from fedscape.personal.fedem import small_example
from fedscape.personal.fedper import FedPer
from fedscape.personal.shared import sums_of, sums_over_rows
from fedscape.types import Array, Arrays, Kept, Tensor

Tensors = dict[str, Tensor]


class ShiftedLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer that adds a vector to its inputs; `seen` holds the inputs of the last call.

    >>> layer = ShiftedLinear(2, 1)
    >>> [n for n, _ in layer.named_parameters()]
    ['weight', 'bias', 'shift']
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True) -> None:
        super().__init__(n_in, n_out, bias=bias)
        self.shift = nn.Parameter(torch.zeros(n_in))
        self.seen: Tensor | None = None

    def reset_parameters(self) -> None:
        """Draw the weights again; the shift is zero."""
        super().reset_parameters()
        if hasattr(self, "shift"):
            nn.init.zeros_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return functional.linear(x + self.shift, self.weight, self.bias)


def with_shift(model: Module) -> Module:
    """A copy of the model whose last linear layer is a ShiftedLinear; unchanged if it is one already.

    >>> [n for n, _ in with_shift(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))).named_parameters()][-1]
    '2.shift'
    """
    old = last_linear(model)
    if isinstance(old, ShiftedLinear):
        return model
    if not old.weight.requires_grad:
        raise DataError("the last linear layer gets a shift, and its weights must be trained, but they are frozen")
    twin = nn.Sequential(copy.deepcopy(model))
    old = last_linear(twin)
    new = ShiftedLinear(old.in_features, old.out_features, bias=old.bias is not None).to(old.weight)
    with torch.no_grad():
        new.weight.copy_(old.weight)
        if old.bias is not None:
            new.bias.copy_(old.bias)
    for parent in twin.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)
    return twin[0]


class FedDBE(FedPer):
    """FedAvg with two terms that keep a client's own bias out of the common features: Zhang et al. 2023 (NeurIPS).

    Each client adds its own vector to the input of the last linear layer, trains it and keeps it (the paper's
    personalised representation bias memory). Its loss has the extra term kappa / 2 times the mean square of m - g. Here
    m is a running mean of the batches' features. The consensus is g: the mean over all rows of the features under the
    first weights, collected by sums in the first round. (The paper takes the clients' running means while they train
    for a first time, which differ from this by what that training moves.) Body and last layer are common.

    The server sees sums: the moves, the rows, and once the features. A new client has a shift of zero; with labelled
    rows it trains only its shift.

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
        return {**super().start(seed), "consensus": np.zeros(width), "known": np.zeros(())}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sent, kept = super().step(state, clients, key)
        return {**sent, **self._features(state, clients)}, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sums, kept = super().total(state, clients, key)
        return {**sums, **{n: v.sum(axis=0) for n, v in self._features(state, clients).items()}}, kept

    def _features(self, state: Arrays, clients: Federation) -> Arrays:
        """The sum of each client's features, until the consensus is known."""
        if state["known"] > 0:
            return {}
        z = (
            with_embedding(clients, self.local, state)["z"]
            if clients.n_rows
            else np.zeros((0, len(state["consensus"])))
        )
        return {"features": sums_over_rows(z, clients)}

    def _trained(
        self, state: Arrays, clients: Federation, key: Key, *, weights: Array | None = None
    ) -> tuple[Arrays, Kept]:
        if state["known"] <= 0 or self.kappa == 0:
            return super()._trained(state, clients, key, weights=weights)
        local, names, shift = self.local, self.local.names, self.head_names
        params = model_arrays(state)
        moves = {n: np.zeros((len(clients), *params[n].shape), params[n].dtype) for n in names if n not in shift}
        kept = {n: kept_rows(clients, f"model.{n}", params[n]) for n in shift}
        rates = Rates(local.rate(key.round), local.proximal)
        for group in groups_of(local, clients, key):
            where, sent = group.positions, group.trainer.sent
            start = {n: sent(kept[n][where] if n in shift else params[n][None]) for n in names}
            now = {n: p.expand(len(where), *p.shape[1:]).clone() for n, p in start.items()}
            consensus = sent(state["consensus"]).to(local.dtype)
            mean = torch.zeros((len(where), len(consensus)), dtype=local.dtype, device=local.device)
            memory, gradient = new_memory(local, list(now.values())), self._gradient(group.module)
            for t, end, batch in group.steps():
                part = {n: p[:end] for n, p in now.items()}
                grads, mean[:end] = gradient(part, batch.random, batch.x, batch.y, batch.share, mean[:end], consensus)
                to = [start[n][:end] for n in names]
                update(local, list(part.values()), [grads[n] for n in names], to, memory.rows(end), t + 1, rates)
            for n, values in group.trainer.fetched({n: now[n] - start[n] for n in names}).items():
                if n in shift:
                    kept[n][where] += values
                else:
                    moves[n][where] = values
        return moves if weights is None else sums_of(moves, weights), {f"model.{n}": v for n, v in kept.items()}

    def _gradient(self, module: Module) -> Tensor:
        """Gradients of loss and pull for a batch of each client, and the updated running means of features."""
        local, layer = self.local, last_linear(module)

        def loss(
            params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor, mean: Tensor, consensus: Tensor
        ) -> tuple[Tensor, Tensor]:
            output = functional_call(module, (params, random), (local.inputs(x),))
            features, layer.seen = layer.seen.flatten(1), None
            each = checked_loss(local.loss, output, y)
            weight = (share > 0).to(share.dtype)
            batch = (features * weight[:, None]).sum(dim=0) / weight.sum().clamp(min=1)
            now = (1 - self.momentum) * mean + self.momentum * batch
            pull = self.kappa / 2 * (now - consensus).square().mean()
            return (each * share).sum() + pull, now.detach()

        return vmap(grad(loss, has_aux=True), in_dims=(0, 0, 0, 0, 0, 0, None))

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        new = super().update(state, total, key)
        if state["known"] > 0 or total["weight"] < 1:
            return new
        return {**new, "consensus": total["features"] / float(total["weight"]), "known": np.ones(())}

    @classmethod
    def examples(cls) -> Sequence[tuple[FedDBE, Federation]]:
        fed, _, two = small_example()
        return [(cls(two), fed), (cls(replace(two, strategy="vmap"), momentum=0.3, initial="seed"), fed)]
