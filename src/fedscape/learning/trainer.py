"""Who trains: the trainer of some settings, an object with a lifetime that holds all that training keeps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.learning.batches import Work, groups, work_of
from fedscape.learning.device import Device, is_same_memory
from fedscape.learning.layers import Centre
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import (
    Look,
    Steps,
    descend,
    drawing_nothing,
    each_start,
    known_classes,
    one_thread,
    precise,
    sequential,
    side_by_side,
    summed,
)
from fedscape.learning.optimisers import Rates
from fedscape.types import Array, Tensor, Tensors

Works = Iterator[tuple[Array, Work]]  # positions of clients, and the work of each group


class Draws(NamedTuple):
    """How a computation draws the batches of a round, where it is not one training for each client."""

    whose: Any  # what tells these draws from others, compared by value
    draw: Callable[[Federation, Key], Works]
    kinds: int  # trainings of each client


class Trainer(Device):
    """Trains groups of clients on one device by the reference loop.

    The trainers of `learning/fast` are subclasses that agree with this one to rounding; `trainer_of` finds the one to
    use.

    >>> from torch import nn
    >>> from fedscape.learning import cross_entropy
    >>> Trainer(LocalSGD(nn.Linear(4, 2), cross_entropy, lr=0.1, epochs=1, batch_size=10)).strategy
    'vmap'
    """

    def __init__(self, local: LocalSGD) -> None:
        super().__init__(local)
        self._prefetched: tuple[Federation, Key, Any, list[tuple[Array, Work]]] | None = None
        self._draws_nothing = False  # whether the model was seen to draw no random numbers

    @property
    def strategy(self) -> str:
        """How clients are trained: "sequential", "vmap", "recorded", "compiled" or "stacked"."""
        return self.reference

    @property
    def chunk(self) -> int:
        """How many clients are trained side by side: `group_size`, or as many as fit a fixed number of weights.

        Frozen weights count: all clients share them, but not what is computed with them.
        """
        if self.local.group_size is not None:
            return self.local.group_size
        if torch.device(self.local.device).type != "cpu":
            return int(min(max(2**27 // self.n_weights, 1), 4096))
        return int(min(max(2**20 // self.n_weights, 1), 256))

    # -- the work of a round -------------------------------------------------------------------------------------------

    @property
    def prefetches(self) -> bool:
        """Whether a run should call `prefetch`: a GPU computes while the host draws the next round's batches."""
        return self.local.on_gpu

    def prefetch(self, clients: Federation, key: Key, draws: Draws | None = None) -> None:
        """Draw the batches of the round of this key while the device is busy with the round before."""
        drawn = [(where, self.fed(work, draws)) for where, work in self.works(clients, key, draws)]
        self._prefetched = (clients, key, draws and draws.whose, drawn)

    def works(self, clients: Federation, key: Key, draws: Draws | None = None) -> Works:
        """Positions and work of groups of clients, prefetched (also if what they keep was added since) or drawn now."""
        ready, self._prefetched = self._prefetched, None
        if ready is not None and _same_rows(ready[0], clients) and ready[1:3] == (key, draws and draws.whose):
            yield from ready[3]
            return
        yield from (self._drawn if draws is None else draws.draw)(clients, key)

    def fed(self, work: Work, draws: Draws | None) -> Work:
        """The work with all that can be made ready for it before its round."""
        return work

    def _drawn(self, clients: Federation, key: Key) -> Works:
        data = self.data(clients)
        for positions in groups(clients.sizes, self.local.timing, most=self.chunk):
            yield positions, work_of(self.local, data, clients, positions, key)

    # -- training ------------------------------------------------------------------------------------------------------

    def train(
        self,
        start: Tensors,
        work: Work,
        rates: Rates,
        anchor: Tensors | None = None,
        *,
        weights: Array | None = None,
        still: Collection[str] = (),
        drift: Tensors | None = None,
        centre: Centre | None = None,
        each: Collection[str] = (),
        look: Look | None = None,
    ) -> Tensors:
        """As `train`, by the reference loop."""
        rows = len(work.plan.rows)
        start, anchor = each_start(start, rows), None if anchor is None else each_start(anchor, rows)
        to = start if anchor is None else anchor
        with self.on_device(), self.borrowed() as module, known_classes(self.local):
            if self.reference == "sequential" and not still:
                with nullcontext() if self._draws_nothing else drawing_nothing():
                    moved = sequential(
                        self, module, start, to, work, rates,
                        drift=drift, look=look, centre=centre, descend=self.descend,
                    )  # fmt: skip
                self._draws_nothing = True
            else:
                moved = side_by_side(self, module, start, to, work, rates, still, drift, centre)
            return moved if weights is None else summed(moved, weights, each)

    def outputs(self, params: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """What the network with these parameters makes of rows as they are stored; in evaluation, without gradients."""
        with self.on_device(), torch.no_grad(), self.borrowed() as module:
            module.eval()
            own = dict(module.named_parameters())
            torch._foreach_copy_([own[n] for n in params], list(params.values()))
            output: Tensor = module(self.local.inputs(rows))
            module.train()
        return output

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Within it torch computes on this device, on one thread of a CPU, as exactly as the settings say."""
        with torch.cuda.device(self.local.device) if self.local.on_gpu else one_thread(), precise(self.local):
            yield

    def descend(self, local: LocalSGD, steps: Steps) -> None:
        """Make the steps of one client."""
        descend(local, steps)


def _same_rows(one: Federation, other: Federation) -> bool:
    return one.columns is other.columns and is_same_memory(one.offsets, other.offsets)


_TRAINERS: weakref.WeakKeyDictionary[LocalSGD, Trainer] = weakref.WeakKeyDictionary()
_PICKING = threading.Lock()


def trainer_of(local: LocalSGD) -> Trainer:
    """The trainer of these settings: made when first asked for, and gone with them.

    This is the only door to `learning/fast`; without that folder all training is by the reference loop.

    >>> from torch import nn
    >>> from fedscape.learning import cross_entropy
    >>> local = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=0.1, epochs=1, batch_size=10)
    >>> trainer_of(local) is trainer_of(local), trainer_of(local).strategy
    (True, 'stacked')
    """
    trainer = _TRAINERS.get(local)
    if trainer is None:
        with _PICKING:
            trainer = _TRAINERS.get(local)
            if trainer is None:
                trainer = _TRAINERS[local] = _pick()(local)
    return trainer


def _pick() -> Callable[[LocalSGD], Trainer]:
    try:
        from fedscape.learning.fast import pick
    except ModuleNotFoundError as error:
        if error.name != "fedscape.learning.fast":
            raise
        return Trainer
    return pick


def deltas(
    local: LocalSGD, start: Tensors, clients: Federation, key: Key, *, weights: Array | None = None
) -> Iterator[tuple[Array, Tensors]]:
    """Train all clients, group by group: positions of the clients, and how far each moves each parameter.

    With `weights`, one for each client, the weighted sums over the group instead.
    """
    trainer, rates = trainer_of(local), Rates(local.rate(key.round), local.proximal)
    for positions, work in trainer.works(clients, key):
        yield positions, trainer.train(start, work, rates, weights=None if weights is None else weights[positions])


def train(
    local: LocalSGD,
    start: Tensors,
    work: Work,
    rates: Rates,
    anchor: Tensors | None = None,
    *,
    weights: Array | None = None,
    still: Collection[str] = (),
    drift: Tensors | None = None,
    centre: Centre | None = None,
    each: Collection[str] = (),
    look: Look | None = None,
) -> Tensors:
    """How far each row of work moves each parameter: {name: [rows, ...]}, or with weights the sum of that as float64.

    Sums are taken in float64, but for those that a program makes of a `Trail`: these are products in the model's type.

    Parameters
    ----------
    local
        How to train.
    start
        Where to begin, {name: [1, kinds or rows, ...]}: rows of work take them round-robin.
    work
        The rows of a group.
    rates
        Learning rate and proximal weight, for all rows or for each.
    anchor
        What the proximal weight pulls to, like `start`; by default where training begins.
    weights
        One for each row of work: the sum over rows, so weighted, is wanted and not the rows. As [clients, kinds], where
        a client has a row of each kind, sums over clients: {name: [kinds, ...]}.
    still
        Parameters that stay as they are, on each row its own.
    drift
        What joins the gradient of every step, {name: [rows, ...]}; for plain SGD.
    centre
        What the mean inputs of a ShiftedLinear are pulled to.
    each
        With weights: parameters whose moves are wanted row by row all the same.
    look
        Where rows train one after the other, called with the row and the module that it has just trained.
    """
    return trainer_of(local).train(
        start, work, rates, anchor, weights=weights, still=still, drift=drift, centre=centre, each=each, look=look
    )
