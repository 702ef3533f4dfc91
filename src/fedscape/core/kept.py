"""Storage of what clients keep between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedscape.core.arrays import Ragged, offsets_of, rows_of
from fedscape.core.federation import Federation
from fedscape.errors import CheckpointError
from fedscape.types import Array


class Page(Protocol):
    """What one client keeps under one name, on a device or in host memory; its numbers never change."""

    def array(self) -> Array:
        """Its numbers in host memory."""
        ...


class HostPage(NamedTuple):
    """A row of an array in host memory."""

    flat: Array
    row: int

    def array(self) -> Array:
        return np.asarray(self.flat[self.row])


class Pages:
    """A page for each of some clients; NumPy reads them as an array [clients, ...], and so does another process.

    A trainer may return them for what clients keep. Then their numbers come to host memory only where somebody looks.

    >>> pages = Pages.of(np.array([[1, 2], [3, 4]]))
    >>> pages.shape, np.asarray(pages[np.array([1])]).tolist()
    ((2, 2), [[3, 4]])
    """

    def __init__(self, pages: Array, row: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.pages, self.shape, self.dtype = pages, (len(pages), *row), dtype

    @classmethod
    def of(cls, flat: Array) -> Pages:
        """The rows of an array, which stays where it is."""
        pages = np.empty(len(flat), dtype=object)
        for row in range(len(flat)):
            pages[row] = HostPage(flat, row)
        return cls(pages, flat.shape[1:], flat.dtype)

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, where: Array | slice) -> Pages:
        return Pages(self.pages[where], self.shape[1:], self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        out = np.empty(self.shape, self.dtype)
        for row, page in enumerate(self.pages):
            out[row] = page.array()
        return out if dtype is None else out.astype(dtype, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (np.asarray(self),)


class Store:
    """Arrays of any length for each of n clients, by name; a client that never kept anything has none.

    >>> store = Store(3)
    >>> store.put([(np.array([2]), {"z": Ragged(np.array([7, 8]), np.array([0, 2]))})])
    >>> store.arrays["z"].lengths
    array([0, 0, 2])
    """

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients
        self.arrays: dict[str, Ragged] = {}

    @property
    def on_host(self) -> dict[str, Ragged]:
        """The same in host memory, for whoever looks at it."""
        return {name: Ragged(np.asarray(flat), offsets) for name, (flat, offsets) in self.arrays.items()}

    def restore(self, kept: Mapping[str, Ragged]) -> None:
        """Take over what a checkpoint holds."""
        for name, (flat, offsets) in kept.items():
            if len(offsets) != self.n_clients + 1 or offsets[0] != 0 or offsets[-1] != len(flat):
                raise CheckpointError(f"kept {name!r} is not for {self.n_clients} clients")
        self.arrays = dict(kept)

    def put(self, parts: Sequence[tuple[Array | slice, Mapping[str, Ragged]]]) -> None:
        """Replace what these clients keep; the others' stays."""
        for name in sorted({name for _, kept in parts for name in kept}):
            whose = [where for where, kept in parts if name in kept]
            clients = whose[0] if len(whose) == 1 else np.concatenate([np.arange(self.n_clients)[w] for w in whose])
            flat = _concatenated([kept[name].flat for _, kept in parts if name in kept])
            lengths = np.concatenate([kept[name].lengths for _, kept in parts if name in kept])
            self.arrays[name] = self._merged(self.arrays.get(name), clients, flat, lengths)

    def _merged(self, old: Ragged | None, clients: Array | slice, flat: Any, lengths: Array) -> Ragged:
        if old is None or old.flat.shape[1:] != flat.shape[1:] or old.flat.dtype != flat.dtype:
            old = Ragged(np.empty((0, *flat.shape[1:]), flat.dtype), np.zeros(self.n_clients + 1, dtype=np.int64))
        before: Any = old.flat
        if isinstance(flat, Pages):
            before = before if isinstance(before, Pages) else Pages.of(before)
            pages, offsets = self._merged(Ragged(before.pages, old.offsets), clients, flat.pages, lengths)
            return Ragged(Pages(pages, flat.shape[1:], flat.dtype), offsets)  # type: ignore[arg-type]  # read as one
        if isinstance(before, Pages):
            old = Ragged(np.asarray(before), old.offsets)
        if np.array_equal(old.lengths[clients], lengths):
            old.flat[rows_of(old.offsets, clients)[0]] = flat  # the usual case: as long as before, in place
            return old
        clients = np.arange(self.n_clients)[clients]
        new_lengths = old.lengths.copy()
        new_lengths[clients] = lengths
        offsets = offsets_of(new_lengths)
        merged = np.empty((offsets[-1], *flat.shape[1:]), flat.dtype)
        others = np.setdiff1d(np.arange(self.n_clients), clients, assume_unique=True)
        merged[rows_of(offsets, others)[0]] = old.flat[rows_of(old.offsets, others)[0]]
        merged[rows_of(offsets, clients)[0]] = flat
        return Ragged(merged, offsets)


def kept_rows(clients: Federation, name: str, otherwise: Array) -> Array:
    """What each client keeps under this name, one row each; a client that keeps nothing gets `otherwise`."""
    kept = clients.kept.get(name)
    if kept is not None and len(clients) and len(kept.flat) == len(clients) and (kept.lengths > 0).all():
        return np.array(kept.flat)
    out = np.broadcast_to(otherwise, (len(clients), *otherwise.shape)).copy()
    if kept is not None:
        out[kept.lengths > 0] = kept.flat
    return out


def joined(parts: Sequence[tuple[int, Mapping[str, Ragged]]]) -> dict[str, Ragged]:
    """What several groups of clients keep, one group after the other; each part says how many clients it has.

    >>> one = {"z": Ragged(np.array([7, 8]), np.array([0, 2]))}
    >>> joined([(1, one), (2, {})])["z"].lengths
    array([2, 0, 0])
    """
    together = {}
    for name in sorted({name for _, kept in parts for name in kept}):
        have = [kept[name] for _, kept in parts if name in kept]
        lengths = [kept[name].lengths if name in kept else np.zeros(n, dtype=np.int64) for n, kept in parts]
        ends = offsets_of(np.concatenate(lengths))
        together[name] = Ragged(_concatenated([arrays.flat for arrays in have]), ends)
    return together


def _concatenated(flats: Sequence[Any]) -> Any:
    """Arrays one after the other, or pages if all are pages; one alone is not copied: it may be models."""
    if len(flats) == 1:
        return flats[0]
    if all(isinstance(flat, Pages) for flat in flats):
        return Pages(np.concatenate([flat.pages for flat in flats]), flats[0].shape[1:], flats[0].dtype)
    return np.concatenate(flats)
