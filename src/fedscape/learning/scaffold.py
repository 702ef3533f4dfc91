"""SCAFFOLD: control variates take the drift out of clients' steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.validate import check_number
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.fedavg import FedAvg, rows_of_moves
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import by_client
from fedscape.learning.optimisers import Rates, new_memory, update
from fedscape.learning.server import Mean, Rule
from fedscape.learning.stepping import groups_of
from fedscape.types import Array, Arrays, Kept, Tensors

_MEAN = Mean()


class Scaffold(FedAvg):
    """FedAvg whose clients correct each step by c - c_i: Karimireddy et al. 2020, algorithm 1.

    A client steps by y <- y - lr (g(y) - c_i + c) from the broadcast weights x. After its K steps it sets its control
    variate to c_i + (x - y) / (K lr) - c (the paper's option II). It sends its move and the change of c_i. The server
    moves x by the mean of the moves and c by the mean of the changes, times the share of the clients that take part. So
    c stays the mean of all c_i, and both are sums: nothing is revealed. A client sends twice the numbers of FedAvg, and
    keeps as many as the model has. Under privacy both share one clip, and changes are 1 / (K lr) times as long as
    moves: give the moves a larger scale, or expect them to be lost in the noise.

    Parameters
    ----------
    local
        How a client trains: plain SGD, with a rate above 0 and no early stopping. Weight decay and a proximal term are
        part of what the control variate is the mean of.
    server, weighting, initial
        As for FedAvg. With "samples" c is the mean over rows, so that it goes with the moves; the paper's is "equal".
    participation
        |S| / N, the share of the clients that take part in a round: 1 where all do.

    >>> from torch import nn
    >>> from fedscape import rounds
    >>> from fedscape.learning import cross_entropy
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 1, 4])
    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> [r.metrics["accuracy"].item() for r in rounds(Scaffold(step, initial="seed"), fed, n_rounds=9)][-1]
    1.0
    """

    name = "scaffold"

    def __init__(
        self,
        local: LocalSGD,
        *,
        server: Rule = _MEAN,
        weighting: str = "samples",
        initial: str = "given",
        participation: float = 1.0,
    ) -> None:
        super().__init__(local, server=server, weighting=weighting, initial=initial)
        self.participation = participation
        if not 0 < check_number("participation", participation) <= 1:
            raise DataError(f"participation must be above 0 and at most 1, not {participation}")
        if local.optimiser != "sgd" or local.momentum or local.early_stopping is not None or local.lr == 0:
            raise DataError(
                "local must be plain SGD with a rate above 0 for Scaffold, whose control variates are mean gradients: "
                f"it has optimiser={local.optimiser!r}, momentum={local.momentum:g}, lr={local.lr:g}, "
                f"early_stopping={local.early_stopping}"
            )

    def start(self, seed: int) -> Arrays:
        state = super().start(seed)
        return {**state, **{f"control.{n}": np.zeros_like(p) for n, p in model_arrays(state).items()}}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        params = model_arrays(state)
        common = {n: state[f"control.{n}"] for n in params}
        own = {n: kept_rows(clients, f"control.{n}", np.zeros_like(p)) for n, p in params.items()}
        sent = rows_of_moves(self._corrected(params, common, own, clients, key), params, clients, self.weighting)
        weight = (clients.sizes if self.weighting == "samples" else np.ones(len(clients)))[:, None]
        steps = self.local.timing.all_steps(clients.sizes)
        scale = 1 / np.maximum(steps * self.local.rate(key.round), 1e-300)[:, None]
        trains = (steps > 0)[:, None] & (self.local.rate(key.round) > 0)
        kept = {}
        for n, c in common.items():
            shape = (len(clients), *c.shape)
            mine, move = own[n].reshape(len(clients), -1), sent[f"delta.{n}"].reshape(len(clients), -1)
            mean = -move / np.maximum(weight, 1) * scale  # (x - y) / (K lr); move is weight (y - x)
            change = np.where(trains, mean - c.reshape(1, -1), 0.0)  # what comes on top of c_i
            sent[f"change.{n}"] = (change * weight).astype(c.dtype).reshape(shape)
            kept[f"control.{n}"] = (mine + change).astype(c.dtype).reshape(shape)
        return sent, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        return None  # that of FedAvg knows no control variates

    def _corrected(
        self, params: Arrays, common: Arrays, own: Arrays, clients: Federation, key: Key
    ) -> Iterator[tuple[Array, Tensors]]:
        """How far clients move when c - c_i joins each gradient."""
        local, names = self.local, self.local.names
        rates = Rates(local.rate(key.round), local.proximal)
        for group in groups_of(local, clients, key):
            where, sent = group.positions, group.trainer.sent
            begin = {n: sent(params[n][None]) for n in names}
            now = {n: p.expand(len(where), *p.shape[1:]).clone() for n, p in begin.items()}
            drift = {n: sent(common[n] - own[n][where]) for n in names}
            memory, gradient = new_memory(local, list(now.values())), by_client(local, group.module)
            for t, end, batch in group.steps():
                part = {n: p[:end] for n, p in now.items()}
                grads, _ = gradient(part, batch.random, batch.x, batch.y, batch.share)
                corrected = torch._foreach_add([grads[n] for n in names], [drift[n][:end] for n in names])
                to = [begin[n] for n in names]
                update(local, list(part.values()), list(corrected), to, memory.rows(end), t + 1, rates)
            yield where, {n: now[n] - begin[n] for n in names}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        new = super().update(state, total, key)
        weight = float(total["weight" if self.weighting == "samples" else "clients"])
        if weight < 1:
            return new
        moved = {
            n: (c + self.participation * np.asarray(total[f"change.{n.removeprefix('control.')}"]) / weight).astype(
                c.dtype
            )
            for n, c in state.items()
            if n.startswith("control.")
        }
        return {**new, **moved}

    @classmethod
    def examples(cls) -> Sequence[tuple[Scaffold, Federation]]:
        (one, fed), *_ = FedAvg.examples()
        plain = replace(one.local, proximal=0.0)
        return [(cls(plain), fed), (cls(one.local, weighting="equal", initial="seed", participation=0.5), fed)]
