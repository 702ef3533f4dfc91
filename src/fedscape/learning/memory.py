"""Arrays of the host as tensors: on the same memory, or on a device as long as the array lives."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np
import torch

from fedscape.types import Array, Tensor


class Held(NamedTuple):
    """An array of the state that is on the device as well, and whether all its numbers are finite."""

    array: Array
    tensor: Tensor
    finite: bool


class _Writable:
    """Says that an array may be written to: torch warns of any that may not, though nothing here writes."""

    def __init__(self, values: Array) -> None:
        self.values = values  # keeps the memory alive
        self.__array_interface__ = {**values.__array_interface__, "data": (values.ctypes.data, False)}


def shared(values: Array) -> Tensor:
    """A tensor on the same memory; it must not be written to.

    >>> shared(np.arange(3)).tolist()
    [0, 1, 2]
    """
    whole = np.ascontiguousarray(values)
    if whole.size == 0 or not whole.dtype.isnative:
        return torch.from_numpy(np.array(whole, dtype=whole.dtype.newbyteorder("=")))
    return torch.from_numpy(np.asarray(_Writable(whole)))


def is_same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays are one: the same place, shape and type."""
    same_address = a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    return same_address and a.shape == b.shape and a.dtype == b.dtype


_ON_DEVICE: dict[tuple[int, str], tuple[Any, Tensor]] = {}


def resident(values: Array, device: str) -> Tensor:
    """A column of a Federation on a device: taken there once, and kept as long as the column lives."""
    key = (id(values), device)
    entry = _ON_DEVICE.get(key)
    if entry is None or entry[0]() is not values:
        forget = weakref.ref(values, lambda _: _ON_DEVICE.pop(key, None))
        entry = _ON_DEVICE[key] = (forget, shared(values).to(device))
    return entry[1]
