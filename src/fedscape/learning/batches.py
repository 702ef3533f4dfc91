"""What a group of clients trains on: which rows in which local step, by keyed shuffles, as tensors of a device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from fedscape.core.arrays import offsets_of, rows_of
from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.core.random import Key
from fedscape.learning.device import Data, Device
from fedscape.learning.layers import dropout_keys
from fedscape.learning.local import LocalSGD, Timing
from fedscape.types import Array, Tensor, Tensors


class Batch(NamedTuple):
    """What one local step takes: rows [clients, batch, ...], targets, the share of each row, and keys of dropout."""

    x: Tensor
    y: Tensor
    share: Tensor
    random: Tensors


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


LEAST = 8  # clients below which a program for exactly that number is not worth compiling


class Work(NamedTuple):
    """The rows of a block of clients, which of them each member of a group takes when, and its keys for dropout.

    A row of work is one training: a client, or in a sweep a client under one of the settings.
    """

    data: Data
    plan: Plan
    dropout: Callable[[str, int], Array]  # (path of the layer, steps) -> [steps, rows, 2]
    feed: Feed | None = None  # its batches, where they were made ready


def work_of(local: LocalSGD, data: Data, clients: Federation, positions: Array, key: Key) -> Work:
    """The work of these clients, which must be in falling order of size; `data` is that of the block."""
    rows, offsets = rows_of(clients.offsets, positions)
    members = Rows(clients.keys[positions], offsets)
    plan = make_plan(members, key, local.timing)
    whose = np.arange(clients.n_rows)[rows]  # rows of the group among those of the block
    return Work(data, plan._replace(rows=whose[plan.rows]), lambda path, steps: dropout_keys(key, members, path, steps))


class Feed:
    """The batches of a group of clients, made where they are trained on.

    For a program, where clients differ in size, behind the last client or row come zeros, so that few shapes are met:
    `room` clients, a multiple of `kinds`, and batches of `wide` rows.
    """

    def __init__(self, device: Device, work: Work, *, padded: bool = True, kinds: int = 1) -> None:
        local = device.local
        plan, most, rows = work.plan, local.timing.batch_size, len(work.plan.rows)
        wide = plan.rows.shape[2]
        few = local.on_gpu and rows < LEAST and wide < most  # a client or two of a size of their own
        self.ragged = padded and (few or bool((plan.counts != plan.counts[0]).any()))
        room, wide = (
            (rounded(rows, rows, kinds), min(most, 1 << (wide - 1).bit_length())) if self.ragged else (rows, wide)
        )
        self.room, self.wide, self.data = room, wide, work.data
        index, counts = (device.sent(a) for a in plan)
        self.index, self.counts = padded_to(padded_to(index, room), wide, 2), padded_to(counts, room)
        self.keys = {path: padded_to(k, room, 1) for path, k in keys_of(device, work).items()}
        column = torch.arange(self.index.shape[2], device=counts.device)
        number = self.counts[..., None]
        self.shares = (column < number).to(local.dtype) / number.clamp(min=1)  # [clients, steps, width]

    def batch(self, step: int, clients: int, width: int) -> Batch:
        """What the first clients take in this step."""
        rows, share = self.index[:clients, step, :width], self.shares[:clients, step, :width]
        if self.data.weights is not None:
            share = share * self.data.weights[rows]
        random = {f"{path}.key": k[step, :clients] for path, k in self.keys.items()}
        return Batch(self.data.x[rows], self.data.y[rows], share, random)

    def all(self) -> Batch:
        """What all clients take in all steps, [steps, clients, ...]."""
        index, shares = (values.transpose(0, 1).contiguous() for values in (self.index, self.shares))
        if self.data.weights is not None:
            shares = shares * self.data.weights[index]
        random = {f"{path}.key": k for path, k in self.keys.items()}
        return Batch(self.data.x[index], self.data.y[index], shares, random)


def keys_of(device: Device, work: Work) -> Tensors:
    """The keys of each layer that drops anything, [steps, rows, 2]."""
    return {path: device.sent(work.dropout(path, work.plan.counts.shape[1])) for path in device.dropout_paths}


def room_for(places: int, *, ragged: bool) -> int:
    """A number of rows rounded up: few numbers, few programs. Where clients differ, to a power of 4.

    >>> [room_for(n, ragged=False) for n in (3, 50, 64, 65)], [room_for(n, ragged=True) for n in (3, 50, 65)]
    ([3, 56, 64, 80], [4, 64, 256])
    """
    if ragged:
        return int(4 ** math.ceil(math.log(places, 4) - 1e-9))
    part = max(1, (1 << (places - 1).bit_length()) // 8)
    return -(-places // part) * part


def rounded(number: int, of: int, kinds: int = 1) -> int:
    """A number of clients rounded up so that up to four numbers come of all up to `of`; a multiple of `kinds`.

    >>> sorted({rounded(n, 50) for n in range(1, 51)})
    [16, 32, 48, 64]
    """
    part = max(LEAST, (1 << math.ceil(math.log2(of))) // 4)
    return -(-(-(-number // part) * part) // kinds) * kinds


def padded_to(values: Tensor, room: int, axis: int = 0) -> Tensor:
    """Zeros behind, up to this many along the axis."""
    if values.shape[axis] == room:
        return values
    shape = list(values.shape)
    shape[axis] = room - shape[axis]
    return torch.cat([values, values.new_zeros(shape)], dim=axis)
