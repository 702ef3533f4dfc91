"""What training keeps on a device: copies of the model; columns and the state as tensors, as long as they live."""

from __future__ import annotations

import copy
import functools
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedscape.core.arrays import Gathered
from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.learning.layers import Module, keyed_layers, trainable_copy
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import cross_entropy
from fedscape.types import Array, Tensor, Tensors

if TYPE_CHECKING:
    from fedscape.core.kept import Pages
    from fedscape.learning.pages import Pager


class Held(NamedTuple):
    """An array of the state that is on the device as well, and whether all its numbers are finite.

    Where `crossed` is false the array only stands for the tensor.
    """

    array: Array
    tensor: Tensor
    finite: bool
    crossed: bool = True


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
    whole = np.asarray(values, order="C")  # np.ascontiguousarray makes shape (1,) of shape ()
    if whole.size == 0 or not whole.dtype.isnative:
        return torch.from_numpy(np.array(whole, dtype=whole.dtype.newbyteorder("=")))
    return torch.from_numpy(np.asarray(_Writable(whole)))


def is_same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays are one: the same place, shape and type."""
    same_address = a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    return same_address and a.shape == b.shape and a.dtype == b.dtype


def _stand_in(values: Tensor) -> Array:
    """NaN (zero if not float) in the shape and type of a tensor, one number in memory."""
    kind = torch.empty(0, dtype=values.dtype).numpy().dtype
    number = np.array(np.nan if values.is_floating_point() else 0, dtype=kind)
    return np.broadcast_to(number, tuple(values.shape))


_ON_DEVICE: dict[tuple[int, str], tuple[Any, Tensor]] = {}


def resident(values: Array, device: str) -> Tensor:
    """A column of a Federation on a device: taken there once, and kept as long as the column lives."""
    key = (id(values), device)
    entry = _ON_DEVICE.get(key)
    if entry is None or entry[0]() is not values:
        forget = weakref.ref(values, lambda _: _ON_DEVICE.pop(key, None))
        entry = _ON_DEVICE[key] = (forget, shared(values).to(device))
    return entry[1]


RESIDENT = 2**33  # bytes of a column up to which all of it stays on a GPU
SMALL_MODEL = 2**17  # parameters up to which vmap is measured to win on a CPU (benchmarks/training_speed.py)
PINNED = 2**28  # bytes of an array up to which it may lie in pinned memory, which torch never gives back


class Data(NamedTuple):
    """Rows of some clients as tensors: features as they are stored, targets, and sample weights if there are any."""

    x: Tensor
    y: Tensor
    weights: Tensor | None


class Device:
    """What training keeps on its device between calls: model copies, the last state, and which rows the model takes.

    The settings themselves hold nothing: all of it goes with this object.

    Parameters
    ----------
    local
        How a client trains, and where.

    >>> local = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=0.1, epochs=1, batch_size=10)
    >>> Device(local).data(Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 4])).y.tolist()
    [0, 1, 1, 0]
    """

    def __init__(self, local: LocalSGD) -> None:
        self.local = copy.copy(local)  # equal settings, not the key that this object is remembered by
        self.n_weights = sum(p.numel() for p in local.model.parameters())  # trained or not
        self._spare: deque[Module] = deque()
        self._held: dict[str, Held] = {}
        self._accepted: set[tuple[tuple[int, ...], object]] = set()  # shapes and types of rows that the model takes

    @property
    def reference(self) -> str:
        """The strategy of the reference loop: "sequential" or "vmap".

        Many small clients at once win on a CPU while per-call overhead rules: up to 2**17 parameters, no convolution
        and no recurrent layer of torch's. Beyond that arithmetic or memory bounds the work and one client at a time is
        faster. On any other device clients train at once.
        """
        local = self.local
        if local.strategy in ("sequential", "vmap"):
            return local.strategy
        if torch.device(local.device).type != "cpu":
            return "vmap"
        heavy = (nn.modules.conv._ConvNd, nn.RNNBase)
        small = self.n_weights <= SMALL_MODEL and not any(isinstance(m, heavy) for m in local.model.modules())
        return "vmap" if small else "sequential"

    # -- rows ----------------------------------------------------------------------------------------------------------

    def data(self, clients: Federation, rows: slice = slice(None)) -> Data:
        """These rows of the clients on the device: features as stored, targets, sample weights."""
        local = self.local
        x, y = self.column(clients, local.features, rows), self.targets(clients, rows)
        self.check_row(x[:1])
        classes = local.loss is cross_entropy or isinstance(local.loss, nn.CrossEntropyLoss)
        if classes and y.dtype.is_floating_point and y.ndim == 1:
            short = str(y.dtype).removeprefix("torch.")
            raise DataError(f"column {local.target!r} must hold classes 0, 1, 2, ... for this loss, not {short}")
        return Data(x, y, self._weights(clients, rows))

    def check_row(self, row: Tensor) -> None:
        """Run one row, [1, ...] as stored, through the model, once per shape and type: a misfit is a DataError."""
        kind = (tuple(row.shape), row.dtype)
        if kind in self._accepted or not len(row):
            return
        try:
            with torch.no_grad(), self.borrowed() as module:
                module.eval()
                module(self.local.inputs(row))
                module.train()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            what = f"of shape {list(row.shape[1:])} ({str(row.dtype).removeprefix('torch.')})"
            reason = (str(error).splitlines() or [""])[0]
            raise DataError(f"the model does not take rows of {self.local.features!r} {what}: {reason}") from None
        self._accepted.add(kind)

    def targets(self, clients: Federation, rows: slice = slice(None)) -> Tensor:
        """The targets of these rows on the device."""
        y = self.column(clients, self.local.target, rows)
        return y.to(self.local.dtype if y.dtype.is_floating_point else torch.int64)

    def column(self, clients: Federation, name: str, rows: slice | Array) -> Tensor:
        """These rows of a column as it is stored, on the device; they must not be written to."""
        columns, local = clients.columns, self.local
        if local.on_gpu and isinstance(columns, Gathered) and columns.source[name].nbytes <= RESIDENT:
            where = columns.rows if isinstance(columns.rows, slice) else self.sent(columns.rows)
            return resident(columns.source[name], local.device)[where][
                rows if isinstance(rows, slice) else self.sent(rows)
            ]
        return shared(clients[name][rows]).to(local.device)

    def _weights(self, clients: Federation, rows: slice) -> Tensor | None:
        name = self.local.weights
        if name is None:
            return None
        values = np.array(clients[name][rows], dtype=np.float64)
        if values.ndim != 1 or not (np.isfinite(values).all() and (values >= 0).all()):
            raise DataError(f"the column {name!r} must hold one number of at least 0 per row: sample weights")
        return torch.from_numpy(values).to(self.local.device, self.local.dtype)

    # -- transfers -----------------------------------------------------------------------------------------------------

    def sent(self, values: Array) -> Tensor:
        """An array copied to the device through pinned memory, without waiting; it must not be written to."""
        if not self.local.on_gpu or values.nbytes > PINNED:
            return shared(values).to(self.local.device)
        return shared(values).pin_memory().to(self.local.device, non_blocking=True)

    def fetched(self, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
        """Tensors copied to host arrays."""
        if not self.local.on_gpu:
            return {name: values.cpu().numpy() for name, values in tensors.items()}
        if len(tensors) > 1 and sum(t.numel() * t.element_size() for t in tensors.values()) <= PINNED:
            return self._fetched_as_one(tensors)
        size = {n: t.numel() * t.element_size() for n, t in tensors.items()}
        pinned = {n: torch.empty(t.shape, dtype=t.dtype, pin_memory=size[n] <= PINNED) for n, t in tensors.items()}
        for name, values in tensors.items():
            pinned[name].copy_(values, non_blocking=True)  # several times as fast as to pageable memory
        torch.cuda.synchronize(self.local.device)
        return {name: values.numpy() for name, values in pinned.items()}

    def _fetched_as_one(self, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
        """The same by one copy for all tensors of a type."""
        arrays: dict[str, Array] = {}
        for kind in dict.fromkeys(t.dtype for t in tensors.values()):
            some = {n: t for n, t in tensors.items() if t.dtype == kind}
            whole = torch.cat([t.reshape(-1) for t in some.values()])
            pinned = torch.empty(whole.shape, dtype=kind, pin_memory=True)
            pinned.copy_(whole, non_blocking=True)
            ends = np.cumsum([t.numel() for t in some.values()])
            parts = zip(some.items(), np.split(pinned.numpy(), ends[:-1]), strict=True)
            arrays |= {n: part.reshape(tuple(t.shape)) for (n, t), part in parts}
        torch.cuda.synchronize(self.local.device)
        return {n: arrays[n] for n in tensors}

    # -- what clients keep ---------------------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether what clients keep may stay on the device between rounds."""
        return self.local.on_gpu and self.local.keep_on_device > 0

    @functools.cached_property
    def pager(self) -> Pager:
        """What leaves it there."""
        from fedscape.learning.pages import Pager

        return Pager(self, int(self.local.keep_on_device * self._free()))

    def _free(self) -> int:
        """Bytes of a GPU that nothing holds."""
        device = self.local.device
        if not self.local.on_gpu:
            return 0
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)

    def left(self, tensors: Mapping[str, Tensor]) -> dict[str, Array | Pages]:
        """Rows [clients, ...] as what clients keep: on the device as far as they may stay there, else on the host."""
        return {**self.pager.left(tensors)} if self.keeps else {**self.fetched(tensors)}

    def kept_rows(self, clients: Federation, name: str, otherwise: Tensor) -> Tensor:
        """What each client keeps, one row each, on the device; `otherwise` for a client that keeps nothing.

        The rows must not be written to.
        """
        kept, common = clients.kept.get(name), otherwise.expand(len(clients), *otherwise.shape)
        if kept is None or not len(kept.flat):
            return common
        flat: Any = kept.flat
        rows = self.sent(flat) if isinstance(flat, np.ndarray) else self.pager.tensor(flat)
        if len(rows) == len(clients) and (kept.lengths > 0).all():
            return rows
        out = common.clone()
        out[self.sent(np.flatnonzero(kept.lengths))] = rows
        return out

    # -- the state between rounds --------------------------------------------------------------------------------------

    def tensor(self, name: str, values: Array) -> Tensor:
        """An array of the state on the device, which may have it already; it must not be written to."""
        held = self._held.get(name)
        if held is not None and is_same_memory(held.array, values):
            return held.tensor
        return shared(values).to(self.local.device)

    @property
    def holds(self) -> bool:
        """Whether the state stays on the device between rounds, beside its copy in host memory."""
        return self.local.on_gpu

    def unseen(self, tensors: dict[str, Tensor]) -> dict[str, Array]:
        """Arrays of the state that stand for tensors, known to be finite, which stay on the device alone.

        Nothing waits for the device. The arrays are NaN all over (zero, if not floats) until `seen` has their numbers.
        """
        if not self.holds:
            return self.arrays(tensors)
        self._held |= {n: Held(_stand_in(v), v, finite=True, crossed=False) for n, v in tensors.items()}
        return {n: self._held[n].array for n in tensors}

    def arrays(self, tensors: dict[str, Tensor]) -> dict[str, Array]:
        """Tensors as arrays of the state; on a GPU the tensors stay there, too, for the next round."""
        if not self.holds:
            return {name: values.cpu().numpy() for name, values in tensors.items()}
        floats = [n for n, values in tensors.items() if values.is_floating_point() and values.numel()]
        largest = torch._foreach_norm([tensors[n] for n in floats], float("inf")) if floats else []
        good = torch.isfinite(torch.stack([size.to(torch.float64) for size in largest])) if floats else None
        arrays = self.fetched(tensors)
        finite = {} if good is None else dict(zip(floats, good.tolist(), strict=True))
        for n, values in tensors.items():
            self._held[n] = Held(arrays[n], values, finite.get(n, True))
        return arrays

    def only_here(self, state: Mapping[str, Array]) -> Tensors:
        """The tensors of a state that `unseen` left on the device."""
        held = {n: self._held[n] for n in state if n in self._held and not self._held[n].crossed}
        return {n: h.tensor for n, h in held.items() if is_same_memory(h.array, state[n])}

    def seen(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The state with its numbers where `unseen` left them on the device."""
        return {**state, **self.fetched(self.only_here(state))}

    def known_finite(self, state: Mapping[str, Array]) -> bool:
        """Whether every float of this state came from `arrays` and was checked on the device."""
        floats = {n: values for n, values in state.items() if values.dtype.kind == "f"}
        return bool(self._held) and all(self._is_finite(n, values) for n, values in floats.items())

    def _is_finite(self, name: str, values: Array) -> bool:
        held = self._held.get(name)
        if held is None or not is_same_memory(held.array, values):
            return values.ndim == 0 and bool(np.isfinite(values))
        return held.finite

    # -- model copies --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def dropout_paths(self) -> list[str]:
        """The paths of the layers that drop anything."""
        return [path for path, _ in keyed_layers(trainable_copy(self.local.model))]

    def new_copy(self) -> Module:
        """A trainable copy of the model on the device."""
        module = trainable_copy(self.local.model).to(self.local.device)
        if torch.device(self.local.device).type == "cpu" and self.reference == "sequential":
            module = module.to(memory_format=torch.channels_last)
        return module

    @contextmanager
    def borrowed(self) -> Iterator[Module]:
        """A copy of the model that no other thread uses; one that failed is not used again."""
        try:
            module = self._spare.pop()
        except IndexError:
            module = self.new_copy()
        yield module
        self._spare.append(module)
