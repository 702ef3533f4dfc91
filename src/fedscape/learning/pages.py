"""What clients keep between rounds, left on the device that made it: as much as fits, the rest in host memory."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedscape.core.kept import Pages
from fedscape.types import Array, Tensor

if TYPE_CHECKING:
    from fedscape.learning.device import Device


class DevicePage:
    """A row on a device until a pager moves it to host memory: the numbers are the same before and after."""

    def __init__(self, number: int, tensor: Tensor, freed: deque[int]) -> None:
        self.number, self.tensor, self._freed = number, tensor, freed
        self._host: Array | None = None

    def __del__(self) -> None:
        self._freed.append(self.number)

    def array(self) -> Array:
        tensor = self.tensor  # another thread may move it
        return np.asarray(self._host) if tensor is None else np.asarray(tensor.cpu().numpy())

    def move(self) -> None:
        """Take the row to host memory."""
        self._host = self.array()
        self.tensor = None


class Pager:
    """Leaves rows that clients keep on a device up to a number of bytes; those that were left first are moved first.

    The pages belong to whoever holds them, the engine: a page that nobody holds any more is gone.

    Parameters
    ----------
    device
        What sends arrays to the device.
    limit
        Bytes of pages on the device.

    >>> from fedscape.learning.local import LocalSGD
    >>> from fedscape.learning.device import Device
    >>> local = LocalSGD(torch.nn.Linear(4, 2), torch.nn.MSELoss(reduction="none"), lr=0.1, epochs=1, batch_size=10)
    >>> pager = Pager(Device(local), limit=16)
    >>> one, two = (pager.left({"z": torch.full((1, 2), value)})["z"] for value in (1.0, 2.0))
    >>> pager.bytes, pager.tensor(one).tolist(), pager.left({"z": torch.zeros(1, 2)})["z"].shape, pager.bytes
    (16, [[1.0, 1.0]], (1, 2), 16)
    """

    def __init__(self, device: Device, limit: int) -> None:
        self._device, self.limit, self.bytes = device, limit, 0
        self._numbers = itertools.count()
        self._pages: OrderedDict[int, tuple[weakref.ref[DevicePage], int]] = OrderedDict()  # those on the device
        self._freed: deque[int] = deque()  # numbers of pages that are gone
        self._lock = threading.Lock()

    def left(self, tensors: Mapping[str, Tensor]) -> dict[str, Pages]:
        """Rows [clients, ...] as pages of their own, on the device as far as they fit."""
        with self._lock:
            out = {name: self._new(rows) for name, rows in tensors.items()}
            self._forget()
            while self.bytes > self.limit:
                number, (page, _) = next(iter(self._pages.items()))
                if (held := page()) is not None:
                    held.move()
                self._drop(number)
        return out

    def _new(self, rows: Tensor) -> Pages:
        pages = np.empty(len(rows), dtype=object)
        size = rows.element_size() * rows[:1].numel()
        for row, own in enumerate(torch.unbind_copy(rows)):  # each in memory of its own, which goes with it
            pages[row] = page = DevicePage(next(self._numbers), own, self._freed)
            self._pages[page.number] = (weakref.ref(page), size)
        self.bytes += size * len(rows)
        return Pages(pages, tuple(rows.shape[1:]), torch.empty(0, dtype=rows.dtype).numpy().dtype)

    def _forget(self) -> None:
        while self._freed:
            self._drop(self._freed.popleft())

    def _drop(self, number: int) -> None:
        self.bytes -= self._pages.pop(number, (None, 0))[1]

    def tensor(self, kept: Pages) -> Tensor:
        """The rows [clients, ...] on the device."""
        rows = [getattr(page, "tensor", None) for page in kept.pages]
        away = [row for row, tensor in enumerate(rows) if tensor is None]
        if away:
            for row, tensor in zip(away, self._device.sent(np.asarray(kept[np.array(away)])), strict=True):
                rows[row] = tensor
        return torch.stack(rows)
