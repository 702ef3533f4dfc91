"""SCAFFOLD: control variates take the drift out of clients' steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedscape.core.arrays import as_slice
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays, tensors_of
from fedscape.learning.fedavg import FedAvg
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import weighted_sums
from fedscape.learning.optimisers import Rates
from fedscape.learning.server import Mean, Rule
from fedscape.learning.trainer import trainer_of
from fedscape.types import Array, Arrays, Kept, Tensor, Tensors

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
        weight, sent, new = self._weights(clients), _zeros_for(state, len(clients)), self._controls(state, clients)
        for where, moves, shares in self._corrected(state, new, clients, key):
            common = {n: trainer_of(self.local).sent(state[f"control.{n}"]) for n in moves}
            change = {n: _by_row(shares, m) * m - common[n] if shares is not None else 0 * m for n, m in moves.items()}
            for name, rows in {**_named("delta", moves), **_named("change", change)}.items():
                factor = torch.as_tensor(weight[where]).to(rows)
                sent[name][where] = (rows * _by_row(factor, rows)).cpu().numpy()
        return {**sent, **self._sent_weight(clients)}, trainer_of(self.local).left(_named("control", new))

    def total(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:  # type: ignore[override]
        sums: Tensors = {}
        weight, new = self._weights(clients), self._controls(state, clients)
        for where, moves, shares in self._corrected(state, new, clients, key):
            mine = torch.as_tensor(weight[where], dtype=torch.float64, device=self.local.device)
            both = torch.stack([mine, mine * (0 * mine if shares is None else shares)])
            for n, m in moves.items():
                moved, changed = (each.reshape(m.shape[1:]) for each in weighted_sums(m, both))
                if shares is not None:
                    changed -= mine.sum() * trainer_of(self.local).sent(state[f"control.{n}"])
                for name, rows in ((f"delta.{n}", moved), (f"change.{n}", changed)):
                    sums[name] = rows if name not in sums else sums[name].add_(rows)
        none = {n: v[0] for n, v in _zeros_for(state, 1).items()}
        summed = {n: sums[n].cpu().numpy() if n in sums else v for n, v in none.items()}
        sums = {**summed, **{n: v.sum() for n, v in self._sent_weight(clients).items()}}
        return sums, trainer_of(self.local).left(_named("control", new))

    def _weights(self, clients: Federation) -> Array:
        return clients.sizes if self.weighting == "samples" else np.ones(len(clients))

    def _sent_weight(self, clients: Federation) -> Arrays:
        return {"weight": clients.sizes} if self.weighting == "samples" else {}

    def _controls(self, state: Arrays, clients: Federation) -> Tensors:
        """Room for each client's new control variate, [clients, ...]; those without rows have theirs already."""
        old = self._old_controls(state, clients)
        new = {n: torch.empty(v.shape, dtype=v.dtype, device=v.device) for n, v in old.items()}
        if (clients.sizes == 0).any():
            still = trainer_of(self.local).sent(np.flatnonzero(clients.sizes == 0))
            for n, v in new.items():
                v[still] = old[n][still]
        return new

    def _old_controls(self, state: Arrays, clients: Federation) -> Tensors:
        """Each client's control variate, [clients, ...]; it must not be written to."""
        trainer = trainer_of(self.local)
        common = {n: trainer.tensor(f"model.{n}", p) for n, p in model_arrays(state).items()}
        return {n: trainer.kept_rows(clients, f"control.{n}", torch.zeros_like(p)) for n, p in common.items()}

    def _corrected(
        self, state: Arrays, new: Tensors, clients: Federation, key: Key
    ) -> Iterator[tuple[Array, Tensors, Tensor | None]]:
        """Positions, moves and -1 / (K lr) of each client, group by group; fills in `new` control variates.

        A client steps against g + c - c_i; then c_i changes by (x - y) / (K lr) - c. Nothing changes at a rate of 0,
        where a schedule stands still: None.
        """
        local, trainer, old = self.local, trainer_of(self.local), self._old_controls(state, clients)
        rates, start = Rates(local.rate(key.round), local.proximal), tensors_of(local, model_arrays(state))
        common = {n: trainer.sent(state[f"control.{n}"]) for n in old}
        for where, work in trainer.works(clients, key):
            at = as_slice(where)
            at = trainer.sent(where) if at is None else at
            drift = {n: common[n] - c[at] for n, c in old.items()}
            moves = trainer.train(start, work, rates, drift=drift)
            if float(rates.lr) == 0:
                for n, v in new.items():
                    v[at] = old[n][at]
                yield where, moves, None
                continue
            steps = local.timing.all_steps(clients.sizes[where]) * float(rates.lr)
            shares = torch.as_tensor(-1 / steps).to(local.device, local.dtype)
            for n, m in moves.items():
                now = (
                    torch.mul(m, _by_row(shares, m), out=new[n][at])
                    if isinstance(at, slice)
                    else m * _by_row(shares, m)
                )
                now.sub_(drift[n])  # the change -m / (K lr) - c, and c_i: what the client steps against is c - c_i
                if not isinstance(at, slice):
                    new[n][at] = now
            yield where, moves, shares

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


def _zeros_for(state: Arrays, n: int) -> Arrays:
    """What clients send that do not move: a row of zeros for each array."""
    params = model_arrays(state).items()
    return {f"{what}.{name}": np.zeros((n, *p.shape), p.dtype) for what in ("delta", "change") for name, p in params}


def _by_row(factors: Tensor, rows: Tensor) -> Tensor:
    return factors.reshape(-1, *[1] * (rows.ndim - 1))


def _named(what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{what}.{n}": v for n, v in values.items()}
