"""Normalised averaging: who makes more local steps weighs no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays, tensors_of
from fedscape.learning.fedavg import FedAvg, rows_of_moves, sum_of_sums
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Mean, Rule
from fedscape.learning.trainer import deltas
from fedscape.types import Array, Arrays, Kept

_MEAN = Mean()


class FedNova(FedAvg):
    """FedAvg of moves per effective step: FedNova (Wang et al. 2020, equation 8).

    A client's move is -lr G_i a_i: its gradients G_i, weighted by a_i as its local solver does. FedAvg adds moves as
    they are, and so seeks the least of sum_i p_i |a_i| F_i instead of sum_i p_i F_i: clients that make more steps pull
    it to themselves. FedNova divides each move by |a_i| = sum of a_i and multiplies their mean by that of all |a_i|:

        w <- w + tau sum_i p_i move_i / |a_i|,   tau = sum_i p_i |a_i|.

    Where all clients make as many steps it is FedAvg. Weight decay and sample weights belong to F_i. Clients send
    `delta.<parameter>`, `weight` and `steps`, each times p_i; those without rows count for nothing. Under privacy noise
    falls on all three, and a round whose `weight` is below 1, or whose `steps` are not above 0, changes nothing.

    Parameters
    ----------
    local
        How a client trains: SGD, also with momentum and with a proximal weight; no Adam, no early stopping.
    server, weighting, initial
        As for FedAvg; with "equal" p_i is the same for all clients that have rows.

    >>> from fedscape import rounds
    >>> from fedscape.learning import models, squared_error
    >>> fed = Federation({"x": np.ones((10, 1)), "y": [0.0] * 9 + [1.0]}, [0, 9, 10])  # nine steps to 0, one to 1
    >>> step = LocalSGD(models.linear(1, 1), squared_error, lr=0.02, epochs=1, batch_size=1)
    >>> def end(kind): return [*rounds(kind(step, weighting="equal"), fed, n_rounds=50)][-1].state
    >>> [round(sum(v.item() for v in end(kind).values()), 2) for kind in (FedAvg, FedNova)]
    [0.12, 0.54]
    """

    name = "fednova"

    def __init__(
        self, local: LocalSGD, *, server: Rule = _MEAN, weighting: str = "samples", initial: str = "given"
    ) -> None:
        super().__init__(local, server=server, weighting=weighting, initial=initial)
        if local.optimiser != "sgd" or local.early_stopping is not None:
            raise DataError(
                "FedNova counts the steps of SGD: use optimiser='sgd' and early_stopping=None, not "
                f"{local.optimiser!r} and {local.early_stopping}"
            )

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves = rows_of_moves(self._moves(state, clients, key), model_arrays(state), clients, "equal")
        weight, steps = self._weights_and_steps(clients, key)
        each = weight / np.maximum(steps, 1)
        sent = {n: rows * each.astype(rows.dtype).reshape(-1, *[1] * (rows.ndim - 1)) for n, rows in moves.items()}
        return {**sent, "weight": weight, "steps": weight * steps}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        weight, steps = self._weights_and_steps(clients, key)
        start = tensors_of(self.local, model_arrays(state))
        sums = deltas(self.local, start, clients, key, weights=weight / np.maximum(steps, 1))
        added = sum_of_sums(sums, self.local, model_arrays(state), clients, "equal")
        return {**added, "weight": np.asarray(weight.sum()), "steps": np.asarray((weight * steps).sum())}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        weight, steps = float(total["weight"]), float(total["steps"])
        if weight < 1 or steps <= 0:  # nobody had a row, or noise says so
            return dict(state)
        moves = {n: rows * (steps / weight) for n, rows in total.items() if n.startswith("delta.")}
        return super().update(state, {**moves, "weight": np.asarray(weight), "clients": np.asarray(weight)}, key)

    def _weights_and_steps(self, clients: Federation, key: Key) -> tuple[Array, Array]:
        """What each client counts, p_i up to a factor, and its effective steps |a_i|: [clients] each."""
        weight = clients.sizes if self.weighting == "samples" else clients.sizes > 0
        taken = self.local.timing.all_steps(clients.sizes)
        return weight.astype(float), effective_steps(
            int(taken.max(initial=0)),
            momentum=self.local.momentum,
            pull=self.local.rate(key.round) * self.local.proximal,
        )[taken]

    @classmethod
    def examples(cls) -> Sequence[tuple[FedNova, Federation]]:
        kinds = [(replace(one.local, proximal=0.2), one.server, fed) for one, fed in FedAvg.examples()]
        return [(cls(local, server=rule, weighting=w), fed) for (local, rule, fed), w in zip(kinds, _EACH, strict=True)]


_EACH = ("samples", "equal", "samples")


def effective_steps(most: int, *, momentum: float = 0.0, pull: float = 0.0) -> Array:
    """|a| after 0, 1, ..., `most` steps: how far SGD goes, in learning rates, along a gradient that is always one.

    Plain SGD goes as far as it makes steps. With momentum rho a step adds v = rho v + 1 (section 4: a_i has 1 - rho^k
    over 1 - rho). With a proximal weight mu and pull = lr mu, it goes back by pull times the way so far (a_i has
    (1 - pull)^k).

    >>> effective_steps(3).tolist(), effective_steps(3, momentum=0.5).tolist(), effective_steps(3, pull=0.5).tolist()
    ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.5, 4.25], [0.0, 1.0, 1.5, 1.75])
    """
    way, velocity = np.zeros(most + 1), 0.0
    for k in range(most):
        velocity = momentum * velocity + 1 - pull * way[k]
        way[k + 1] = way[k] + velocity
    return way
