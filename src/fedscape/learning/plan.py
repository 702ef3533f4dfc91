"""Which rows a client uses in which local step: keyed shuffles, and clients of like size side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.kernel import kernel
from fedscape.core.random import Key
from fedscape.types import Array


class Rows(NamedTuple):
    """Clients' keys and where their rows begin and end: all that a shuffle needs to know."""

    keys: Array
    offsets: Array


class Plan(NamedTuple):
    """The rows of every local step.

    `rows` [clients, steps, width] are positions of rows; `counts` [clients, steps] says how many of them are real, the
    rest repeat the client's first row. Clients are in falling order of size, so those that still train are the first.
    """

    rows: Array
    counts: Array

    def active(self, step: int) -> tuple[int, int]:
        """How many clients take this step, and the largest batch among them."""
        counts = self.counts[:, step]
        return int((counts > 0).sum()), int(counts.max())

    @property
    def padding(self) -> float:
        """Padded rows as a share of the real ones."""
        steps = range(self.counts.shape[1])
        computed = sum(int(np.prod(self.active(t))) for t in steps)
        return float(computed / max(self.counts.sum(), 1) - 1)


class Timing(NamedTuple):
    """How long clients train: epochs or steps, and the batch size."""

    epochs: int | None
    steps: int | None
    batch_size: int

    def batches(self, sizes: Array) -> Array:
        """Batches of one epoch."""
        return np.asarray(-(-sizes // self.batch_size))

    def all_steps(self, sizes: Array) -> Array:
        """Steps of the whole training."""
        if self.epochs is not None:
            return self.batches(sizes) * self.epochs
        return np.where(sizes > 0, self.steps or 0, 0)

    def counts(self, size: int) -> Array:
        """How many rows a client of this size uses in each step.

        >>> Timing(2, None, 3).counts(5).tolist()
        [3, 2, 3, 2]
        """
        whole, rest = divmod(size, self.batch_size)
        epoch = [self.batch_size] * whole + [rest] * int(rest > 0)
        return np.resize(epoch, int(self.all_steps(np.asarray(size)))).astype(np.int64)


def groups(sizes: Array, timing: Timing, *, most: int, padding: float = 0.2) -> list[Array]:
    """Positions of clients in falling order of size, cut so that padding stays below this share.

    Clients without rows are in no group; no group has more than `most` clients.

    >>> [g.tolist() for g in groups(np.array([10, 3, 0, 9, 10]), Timing(1, None, 10), most=8)]
    [[0, 4, 3], [1]]
    """
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    if len(order) == 0 or sizes[order[0]] == sizes[order[-1]]:  # no padding
        return [order[begin : begin + most] for begin in range(0, len(order), most)]
    falling = sizes[order].astype(np.int64)
    ends = _group_ends(falling, timing.all_steps(falling).astype(np.int64), timing.batch_size, most, padding)
    return np.split(order, ends[:-1])


@kernel
def _group_ends(sizes: Array, wanted: Array, batch_size: int, most: int, padding: float) -> Array:
    """Where groups of clients in falling order of size end: before the first client that would pad too much."""
    width, active = np.zeros(wanted.max(), np.int64), np.zeros(wanted.max(), np.int64)  # of each step of this group
    ends = np.zeros(len(sizes), np.int64)
    n_groups, begin, steps, real = 0, 0, 0, 0
    for client in range(len(sizes)):
        batches = (sizes[client] + batch_size - 1) // batch_size
        last = sizes[client] - (batches - 1) * batch_size
        own, computed = 0, 0
        for t in range(max(steps, wanted[client])):
            rows_now = 0 if t >= wanted[client] else last if (t + 1) % batches == 0 else batch_size
            own += rows_now
            if t < steps:
                computed += max(width[t], rows_now) * (active[t] + (rows_now > 0))
        if client == begin or client - begin == most or computed > (1 + padding) * (real + own):
            if client > begin:
                ends[n_groups], n_groups, begin = client, n_groups + 1, client
            steps, real = wanted[client], 0
            width[:steps], active[:steps] = 0, 0
        for t in range(wanted[client]):
            rows_now = last if (t + 1) % batches == 0 else batch_size
            width[t], active[t] = max(width[t], rows_now), active[t] + 1
        real += own
    ends[n_groups] = len(sizes)
    return ends[: n_groups + 1]


def make_plan(clients: Rows, key: Key, timing: Timing) -> Plan:
    """Cut each client's rows, shuffled anew in every epoch, into batches; the last of an epoch may be smaller.

    A shuffle is a function of (seed, round, client, epoch). With `steps` a client goes through its rows again and again
    until it has made that many.

    >>> plan = make_plan(Rows(np.array([7], np.uint64), np.array([0, 5])), Key(0), Timing(1, None, 3))
    >>> plan.counts.tolist(), sorted(plan.rows[0, 0].tolist() + plan.rows[0, 1, :2].tolist())
    ([[3, 2]], [0, 1, 2, 3, 4])
    """
    begin, sizes = clients.offsets[:-1], np.diff(clients.offsets)
    batches, wanted = timing.batches(sizes), timing.all_steps(sizes)
    if len(sizes) and sizes[0] == sizes.max() == sizes.min() > 0:
        return _of_one_size(clients, key, timing)
    longest, width = int(wanted.max(initial=0)), int(min(timing.batch_size, sizes.max(initial=0)))
    rows = np.broadcast_to(begin[:, None, None], (len(sizes), longest, width)).copy()
    counts = np.zeros((len(sizes), longest), dtype=np.int64)
    for epoch in range(int((-(-wanted // np.maximum(batches, 1))).max(initial=0))):
        going = np.flatnonzero(batches * epoch < wanted)
        part = Rows(clients.keys[going], offsets_of(sizes[going]))
        drawn = key.to(f"shuffle {epoch}").uniform_rows(part)
        _deal(drawn, part.offsets, going, batches * epoch, wanted, timing.batch_size, rows, counts)
    return Plan(rows, counts)


@kernel
def _deal(
    drawn: Array, offsets: Array, clients: Array, begin: Array, wanted: Array, size: int, rows: Array, counts: Array
) -> None:
    """Add an epoch of these clients: their rows in the order of what was drawn for them, in batches from step `begin`.

    Where nothing is yet, `rows` holds the client's first row.
    """
    for place in range(len(clients)):
        client = clients[place]
        order = np.argsort(drawn[offsets[place] : offsets[place + 1]], kind="mergesort")
        for i in range(min(len(order), size * (wanted[client] - begin[client]))):
            step, slot = begin[client] + i // size, i % size
            rows[client, step, slot] += order[i]
            counts[client, step] = slot + 1


def _of_one_size(clients: Rows, key: Key, timing: Timing) -> Plan:
    """The same where all clients have as many rows: no row is looked at by itself."""
    begin, size = clients.offsets[:-1, None], int(clients.offsets[1] - clients.offsets[0])
    counts = timing.counts(size)
    width, batches = min(timing.batch_size, size), -(-size // timing.batch_size)
    whole = Rows(clients.keys, clients.offsets - clients.offsets[0])
    parts = []
    for epoch in range(-(-len(counts) // batches)):
        drawn = key.to(f"shuffle {epoch}").uniform_rows(whole).reshape(-1, size)
        rows = begin + np.argsort(drawn, axis=1, kind="stable")
        filled = np.concatenate([rows, np.repeat(begin, width * batches - size, axis=1)], axis=1)
        parts.append(filled.reshape(-1, batches, width))
    rows = np.concatenate(parts, axis=1)[:, : len(counts)]
    return Plan(np.ascontiguousarray(rows), np.repeat(counts[None], len(rows), axis=0))
