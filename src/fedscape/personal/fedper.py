"""FedPer: common layers and own last layers per client; also the base of all methods that share a part."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from fedscape.core.blocks import on_host
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.evaluation import valid_rows
from fedscape.learning.layers import Centre, initialised
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.trainer import Trainer, trainer_of
from fedscape.personal.fedem import small_example
from fedscape.personal.shared import (
    check_own,
    common_model,
    each_own_log_probs,
    measured,
    moved_alone,
    own_models,
    spread,
    sums_of,
    trained_alone,
    weighted,
)
from fedscape.types import Array, Arrays, Kept, Tensors


class FedPer(Computation):
    """Clients train the whole network, send the move of its body and keep its head: Arivazhagan et al. 2019.

    Also the base of FedRep, FedBN, FedBABU and PFedFDA: some parameters are common and move by the mean of clients'
    moves, weighted by rows. The rest, `head_names`, belongs to each client and never leaves it. The methods differ in
    these parameters and in how a client trains (`_trained`). The server sees the sum of the moves and of the rows;
    clipping and noise make it private as in FedAvg. A new client trains its own part alone on its rows (`adapt`); until
    then it has the one of the first state.

    Parameters
    ----------
    local
        How a client trains.
    head
        Names or prefixes of the parameters that each client keeps; by default those of the last layer.
    initial
        "given" or "seed".

    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedPer(step).head_names, FedPer(step, head=("1",)).head_names
    (['3.weight', '3.bias'], ['1.weight', '1.bias'])
    """

    name = "fedper"
    newcomers: ClassVar[str | None] = None

    block_rows = 2**14

    def __init__(self, local: LocalSGD, *, head: tuple[str, ...] = (), initial: str = "given") -> None:
        self.local = local
        self.head = head
        self.initial = initial
        check_local(local, initial)
        if not 0 < len(self.head_names) < len(local.names):
            raise DataError(
                f"head must name some of the parameters and leave some: {head} of {', '.join(local.names)}; "
                "a model of one layer has no body to share"
            )

    @property
    def head_names(self) -> list[str]:
        """The parameters that each client keeps."""
        last = self.local.names[-1].rpartition(".")[0]
        return [n for n in self.local.names if n.startswith(self.head or (f"{last}.",))]

    @property
    def training(self) -> LocalSGD:
        """How a client trains: `local`, or in a subclass with a loss of its own."""
        return self.local

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it depends on the model
        """Number of clients trained side by side."""
        return trainer_of(self.local).chunk

    @property
    def trainer(self) -> Trainer:
        """The trainer of the device, which may prefetch."""
        return trainer_of(self.training)

    def start(self, seed: int) -> Arrays:
        model = self.local.model if self.initial == "given" else initialised(self.local.model, seed)
        return {f"model.{n}": p for n, p in self.local.parameters(model).items()}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, kept = self._trained(state, clients, key)
        return {**weighted(moves, clients.sizes), "weight": clients.sizes}, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sums, kept = self._trained(state, clients, key, weights=clients.sizes)
        sent = on_host({f"delta.{n}": s for n, s in sums.items()})
        return {**sent, "weight": clients.sizes.sum()}, kept

    def _trained(
        self, state: Arrays, clients: Federation, key: Key, *, weights: Array | None = None
    ) -> tuple[Tensors, Kept]:
        """Each client's move of the body, with weights their sum; and each client's own head."""
        begin, heads = self._begin(state, clients), self.head_names
        moves = moved_alone(self.training, begin, clients, key, centre=self._centre(state), weights=weights, each=heads)
        own = {n: begin[n] + moves.pop(n) for n in heads}
        check_own(own, clients, key)
        return moves, self._left(own)

    def _centre(self, state: Arrays) -> Centre | None:
        """What a client's features are pulled to while it trains: nothing here."""
        return None

    def _begin(self, state: Arrays, clients: Federation) -> Tensors:
        """The broadcast body and each client's own head, [clients, ...]."""
        params = common_model(self.local, state)
        return spread(params, clients) | self._own_part(state, clients)

    def _own_part(self, state: Arrays, clients: Federation) -> Tensors:
        """Each client's own head, [clients, ...]; that of the state for a client that keeps none."""
        trainer, params = trainer_of(self.local), common_model(self.local, state)
        return {n: trainer.kept_rows(clients, f"model.{n}", params[n]) for n in self.head_names}

    def _left(self, heads: Tensors) -> Kept:
        """Heads as what clients keep."""
        return trainer_of(self.local).left({f"model.{n}": v for n, v in heads.items()})

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        over = max(float(total["weight"]), 1e-9)
        moved = {n: v.astype(np.float64) + total[f"delta.{n.removeprefix('model.')}"] / over
                 for n, v in state.items() if f"delta.{n.removeprefix('model.')}" in total}  # fmt: skip
        return {n: moved[n].astype(v.dtype) if n in moved and total["weight"] >= 1 else v for n, v in state.items()}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p(class | x) of each row under the common body and its client's own head: [rows, classes]."""
        return each_own_log_probs(self.local, own_models(self.local, state, clients), clients)

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """Train the head of each client for one round on its own rows, with the body fixed."""
        return self._left(self._heads(state, clients, key))

    # -- train one part, fix the other ---------------------------------------------------------------------------------

    def _heads(self, state: Arrays, clients: Federation, key: Key) -> Tensors:
        """Each client's head, trained on the broadcast body."""
        params = common_model(self.local, state)
        half = self._half({n: p for n, p in params.items() if n not in self.head_names})
        return trained_alone(half, self._own_part(state, clients), clients, key)

    def _body_moves(
        self, body: Tensors, heads: Tensors, clients: Federation, key: Key, *, weights: Array | None = None
    ) -> Tensors:
        """Each client's move of the body with its own head fixed, [clients, ...]; with weights their sum."""
        every = spread(body, clients)
        if trainer_of(self.local).strategy != "sequential":
            begin, still = {**every, **heads}, frozenset(heads)
            moves = moved_alone(self.local, begin, clients, key, still=still, weights=weights, each=still)
            return {n: moves[n] for n in body}
        moves = {n: p.new_zeros(p.shape) for n, p in every.items()}
        for i in np.flatnonzero(clients.sizes):
            half = self._half({n: v[i] for n, v in heads.items()})
            one = moved_alone(half, {n: p[None] for n, p in body.items()}, clients.take([int(i)]), key)
            for n, move in one.items():
                moves[n][i] = move[0]
        return moves if weights is None else sums_of(moves, weights)

    def _half(self, fixed: Tensors) -> LocalSGD:
        """The same training with these parameters fixed; not compiled, as the program would be used once."""
        model = copy.deepcopy(self.local.model)
        for name, p in model.named_parameters():
            if name in fixed:
                with torch.no_grad():
                    p.copy_(fixed[name])
                p.requires_grad_(False)
        compiled = trainer_of(self.local).strategy in ("compiled", "recorded")
        return replace(self.training, model=model, strategy="vmap" if compiled else self.local.strategy)

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[FedPer, Federation]]:
        fed, _, two = small_example()
        return [(cls(two), fed), (cls(replace(two, strategy="vmap"), head=("2",), initial="seed"), fed)]
