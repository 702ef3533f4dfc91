"""Local steps of a group of clients side by side, for methods whose step is no gradient of one loss alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.learning.batches import Batch, Feed, Work
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import known_classes, no_random_operation
from fedscape.learning.trainer import Trainer, trainer_of
from fedscape.types import Array


class Group(NamedTuple):
    """Clients that train together: where they are, a module to call, and their batches."""

    positions: Array
    module: Module
    trainer: Trainer
    work: Work

    def steps(self) -> Iterator[tuple[int, int, Batch]]:
        """The number of the step, how many of the first clients take it, and their batches."""
        plan, feed = self.work.plan, Feed(self.trainer, self.work, padded=False)
        for t in range(plan.counts.shape[1]):
            end, width = plan.active(t)  # clients are in falling order of size: those that still train come first
            with no_random_operation():
                yield t, end, feed.batch(t, end, width)


def groups_of(local: LocalSGD, clients: Federation, key: Key) -> Iterator[Group]:
    """The clients that have rows, group by group, with the batches that LocalSGD would give them.

    >>> import numpy as np
    >>> from torch import nn
    >>> from fedscape.learning import cross_entropy
    >>> local = LocalSGD(nn.Linear(2, 2), cross_entropy, lr=0.1, epochs=2, batch_size=2)
    >>> fed = Federation({"x": np.eye(4)[:, :2], "y": [0, 1, 1, 0]}, [0, 3, 3, 4])
    >>> [(g.positions.tolist(), [end for _, end, _ in g.steps()]) for g in groups_of(local, fed, Key(0))]
    [([0, 2], [2, 2, 1, 1])]
    """
    trainer = trainer_of(local)
    for positions, work in trainer.works(clients, key):
        with trainer.on_device(), known_classes(local), trainer.borrowed() as module:
            yield Group(positions, module, trainer, work)
