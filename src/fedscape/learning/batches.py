"""What a group of clients trains on: its rows step by step, in time or made ready before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from fedscape.core.arrays import rows_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.learning.device import Data, Device
from fedscape.learning.gradients import Batch, Tensors
from fedscape.learning.layers import dropout_keys
from fedscape.learning.local import LocalSGD
from fedscape.learning.plan import Plan, Rows, make_plan
from fedscape.types import Array, Tensor

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
