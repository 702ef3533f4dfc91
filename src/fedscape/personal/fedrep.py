"""FedRep: a body for all, and a head for each client, trained one after the other."""

from __future__ import annotations

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.personal.fedper import FedPer
from fedscape.personal.shared import common_model
from fedscape.types import Array, Arrays, Kept, Tensors


class FedRep(FedPer):
    """Clients share all but the last layer: Collins et al. 2021, algorithm 1.

    In a round a client first trains its own head with the broadcast body fixed, then the body with its head fixed. It
    sends the body's move and keeps its head. FedPer trains both at once.

    Parameters
    ----------
    local
        How a client trains; it applies to both halves.
    head
        Names or prefixes of the parameters that each client keeps; by default those of the last layer.
    initial
        "given" or "seed".

    >>> from fedscape.learning import LocalSGD, cross_entropy, models
    >>> step = LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedRep(step).head_names
    ['3.weight', '3.bias']
    """

    name = "fedrep"

    def _trained(
        self, state: Arrays, clients: Federation, key: Key, *, weights: Array | None = None
    ) -> tuple[Tensors, Kept]:
        heads = self._heads(state, clients, key)
        body = {n: p for n, p in common_model(self.local, state).items() if n not in heads}
        moves = self._body_moves(body, heads, clients, key, weights=weights)
        return moves, self._left(heads)
