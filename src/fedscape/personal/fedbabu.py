"""FedBABU: clients train the body together under a fixed head, then fine-tune."""

from __future__ import annotations

from typing import ClassVar

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.learning.trainer import trainer_of
from fedscape.personal.fedper import FedPer
from fedscape.personal.shared import COMMON_MODEL, common_model, moved_alone, own_models, spread, trained_alone
from fedscape.types import Array, Arrays, Kept, Tensors


class FedBABU(FedPer):
    """FedAvg of the body; the head stays as initialised, the same for all: Oh, Kim and Yun 2022.

    After the rounds each client fine-tunes the whole network on its own rows and keeps it: `adapt`, or
    `train("fedbabu", ...)`, which ends in rounds of LocalOnly. Until then all clients have one model. A new client
    without labels gets it too.

    Parameters
    ----------
    local
        How a client trains.
    head
        Names or prefixes of the parameters that stay fixed; by default those of the last layer.
    initial
        "given" or "seed".

    >>> import numpy as np
    >>> from fedscape.learning import LocalSGD, cross_entropy, models
    >>> step = LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> sorted(FedBABU(step).step(FedBABU(step).start(0), fed, Key(0))[0])
    ['delta.1.bias', 'delta.1.weight', 'weight']
    """

    name = "fedbabu"
    newcomers: ClassVar[str | None] = COMMON_MODEL

    def _trained(
        self, state: Arrays, clients: Federation, key: Key, *, weights: Array | None = None
    ) -> tuple[Tensors, Kept]:
        params, heads = common_model(self.local, state), self.head_names
        every = spread(params, clients)
        if trainer_of(self.local).strategy == "stacked":
            moves = moved_alone(self.local, every, clients, key, still=frozenset(heads), weights=weights)
            return {n: m for n, m in moves.items() if n not in heads}, {}
        half = self._half({n: params[n] for n in heads})
        body = {n: p for n, p in every.items() if n not in heads}
        return moved_alone(half, body, clients, key, weights=weights), {}

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """The whole network of each client after fine-tuning on its own rows."""
        tuned = trained_alone(self.local, own_models(self.local, state, clients), clients, key)
        return self._left(tuned)
