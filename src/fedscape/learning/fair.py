"""Fair training: clients that do badly weigh more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays, sums_of_clients
from fedscape.learning.fedavg import FedAvg, rows_of_moves
from fedscape.learning.layers import initialised
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import cross_entropy
from fedscape.learning.server import Mean, Momentum, Rule
from fedscape.types import Array, Arrays, Kept

_MEAN = Mean()
_LEAST = 1e-10  # of a loss: for q < 1 the formula divides by a power of it


class QFedAvg(FedAvg):
    """FedAvg in which clients with a high loss weigh more: q-FedAvg (Li et al. 2020, algorithm 2).

    It seeks the least of sum_k F_k^(q + 1) / (q + 1), F_k being the mean loss of client k's rows, without weight
    decay and proximal term, and 1e-10 at the least. With d_k the client's move and F_k taken at the broadcast weights,
    the server moves by sum_k F_k^q d_k / sum_k (F_k^q + q F_k^(q - 1) |d_k|^2 / lr). This is the paper's formula for
    L = 1 / lr, divided by L above and below. Clients send the terms of both sums, as `delta.<parameter>` and `scale`.

    A client counts once, whatever its number of rows, and not at all without rows; so q = 0 is
    FedAvg(weighting="equal") where all clients have some. Under privacy the noise also falls on `scale`; a round whose
    `scale` is not above 0 changes nothing.

    Parameters
    ----------
    local
        How a client trains; without sample weights, and with a loss that is never negative.
    q
        How much the worst-off weigh: 0 all alike, large the worst client alone. The larger, the shorter the steps.
        F_k^q must fit into the model's type: in float32 what is below about 1e-38 is lost.
    server, initial
        As for FedAvg.

    >>> from fedscape import rounds
    >>> from fedscape.learning import squared_error
    >>> fed = Federation({"x": np.ones((4, 1)), "y": [0.0, 0.0, 0.0, 1.0]}, [0, 1, 2, 3, 4])  # three want 0, one 1
    >>> step = LocalSGD(nn.Linear(1, 1, bias=False), squared_error, lr=0.5, steps=1, batch_size=1)
    >>> def answer(q): return [r.state["model.weight"] for r in rounds(QFedAvg(step, q=q), fed, n_rounds=99)][-1]
    >>> [round(float(answer(q)[0, 0]), 2) for q in (0, 1, 3)]
    [0.25, 0.41, 0.46]
    """

    name = "q-fedavg"

    def __init__(self, local: LocalSGD, *, q: float = 1.0, server: Rule = _MEAN, initial: str = "given") -> None:
        super().__init__(local, server=server, weighting="equal", initial=initial)
        self.q = q
        if not 0 <= q < np.inf:
            raise DataError(f"q must be a number of at least 0, not {q}")
        if local.lr == 0:
            raise DataError(f"lr must be above 0 for QFedAvg, which divides by it, not {local.lr}")
        if local.weights is not None:
            raise DataError(
                f"local has sample weights, the column {local.weights!r}: QFedAvg weighs clients by the plain mean of "
                "their losses, use weights=None"
            )

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        loss, has_rows = self._losses(state, clients), clients.sizes > 0
        moves = rows_of_moves(self._moves(state, clients, key), model_arrays(state), clients, self.weighting)
        square = np.sum([_squares(rows) for rows in moves.values()], axis=0)
        rate = self.local.rate(key.round)
        slope = square / rate if rate > 0 else square  # a schedule may end at 0, where nobody moves
        weight = has_rows * self._powers(loss, clients)
        sent = {name: rows * _along(weight, rows) for name, rows in moves.items()}
        return {**sent, "scale": weight + has_rows * self.q * loss ** (self.q - 1) * slope}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        return None  # that of FedAvg has other weights

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        scale = float(total["scale"])
        if scale <= 0:  # nobody had a row, or noise says so
            return dict(state)
        mean = {name: rows / scale for name, rows in total.items() if name.startswith("delta.")}
        return super().update(state, {**mean, "clients": np.asarray(1)}, key)  # it is a mean already

    def _losses(self, state: Arrays, clients: Federation) -> Array:
        """The mean loss of each client's rows."""
        sums, _, rows = sums_of_clients(self.local, state, clients)
        loss = sums / np.maximum(rows, 1)
        if (loss < 0).any():
            bad = int(np.argmin(loss))
            raise DataError(
                f"the mean loss of client {clients.ids[bad]!s} is {loss[bad]:.6g}, but QFedAvg takes powers of it: "
                "use a loss of at least 0"
            )
        return np.maximum(loss, _LEAST)

    def _powers(self, loss: Array, clients: Federation) -> Array:
        """The losses to the power q, which must fit into the type of the model."""
        most = torch.finfo(self.local.dtype).max
        with np.errstate(over="ignore"):
            powers: Array = loss**self.q
        if (powers > most).any():
            bad = int(np.argmax(loss))
            raise DataError(
                f"the mean loss of client {clients.ids[bad]!s} is {loss[bad]:.6g}, and to the power q={self.q} it is "
                f"beyond {self.local.dtype}: use a smaller q or lr"
            )
        return powers

    @classmethod
    def examples(cls) -> Sequence[tuple[QFedAvg, Federation]]:
        rng = np.random.default_rng(5)
        offsets = offsets_of(rng.integers(0, 9, 14))
        fed = Federation({"x": rng.normal(size=(offsets[-1], 4)), "y": rng.integers(0, 3, offsets[-1])}, offsets)
        linear = initialised(nn.Linear(4, 3, dtype=torch.float64), 0)
        deep = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.25), nn.Linear(5, 3)).to(torch.float64)
        one = LocalSGD(linear, cross_entropy, lr=0.3, epochs=2, batch_size=3)
        two = LocalSGD(deep, cross_entropy, lr=0.1, steps=3, batch_size=4, momentum=0.5, strategy="sequential")
        return [
            (cls(one), fed),
            (cls(one, q=0.0), fed),
            (cls(two, q=3.5, server=Momentum(0.5), initial="seed"), fed),
        ]


def _squares(rows: Array) -> Array:
    """The squared length of each client's part, in float64."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    return np.asarray(np.einsum("ij,ij->i", flat, flat))


def _along(weight: Array, rows: Array) -> Array:
    """One number per client in the shape and type of the rows."""
    return weight.astype(rows.dtype).reshape(-1, *[1] * (rows.ndim - 1))
