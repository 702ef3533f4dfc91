"""A worker: a shard of the clients, their kept arrays, and the blocks to run."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Answer, Block, Site, Task, on_host
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.kept import Store, joined
from fedscape.core.random import Key
from fedscape.core.sampling import Sampler, candidates
from fedscape.core.schedule import Partial, Tree, as_slice, in_order, one_library_thread, without_warnings
from fedscape.engines.limits import allocated
from fedscape.errors import DataError, EngineError, FedscapeError
from fedscape.formats.folder import load_folder, seal_of
from fedscape.formats.sharded import verify_shards
from fedscape.privacy.release import Release
from fedscape.types import Array, Arrays

Kept = Mapping[str, Ragged]
Place = tuple[Array | slice, Kept]
Kinds = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


class Source(NamedTuple):
    """Location of the rows: memory-mapped files, or else the Parquet file they were converted from."""

    folder: str
    seal: str
    parquet: str | None
    client: str | None

    def open(self) -> Federation:
        """The Federation, memory-mapped."""
        if seal_of(self.folder) == self.seal:
            return load_folder(self.folder, verify=False, walk=True)
        if self.parquet is None or self.client is None:
            raise DataError(
                f"the machine {platform.node()} does not see the clients' files in {self.folder}: "
                "pass folder= on a file system that all machines share"
            )
        with tempfile.TemporaryDirectory(prefix="fedscape-ray-") as own:
            Federation.from_parquet(self.parquet, client=self.client).save(Path(own) / "clients")
            if seal_of(Path(own) / "clients") != self.seal:
                raise DataError(f"{self.parquet} on the machine {platform.node()} is not the file that the driver read")
            return load_folder(Path(own) / "clients", verify=False, walk=True)  # stays mapped once the files are gone


class Part(NamedTuple):
    """Nodes of the tree of sums that one worker adds up in one call.

    Clients are ranks, the blocks of each node are positions among them; `first` is the number of the first node in its
    level.
    """

    ranks: Array | slice
    nodes: Sequence[Sequence[tuple[int, int]]]
    tree: Tree
    level: int
    first: int


@dataclass(frozen=True)
class Assignment:
    """A part of a round, the shard that runs it, and its clients of other shards."""

    shard: int
    part: Part
    guests: list[tuple[int, Array]]
    clients: int


@dataclass(frozen=True)
class Broadcast:
    """What every worker knows of a round.

    `number` counts the rounds of an engine; `computation` is the computation or a reference to it in the object store,
    which is read only if its digest is new.
    """

    number: int
    digest: str
    computation: Any
    key: Key
    measure: bool
    release: Release | None
    measure_release: Release | None
    sent: Arrays


@dataclass(frozen=True)
class Outcome:
    """Outcome of a part: nodes with level and number, in order; grids and kinds of kept arrays for the server."""

    nodes: list[tuple[int, int, Answer]]
    grids: tuple[Mapping[str, float], Mapping[str, float]]
    kinds: Kinds


def joined_outcomes(parts: Sequence[Part], outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of consecutive parts as one; nodes are added as far as can be without their neighbours."""
    one, end = parts[0], parts[-1]
    partial = Partial(one.tree, one.level, one.first, end.first + len(end.nodes))
    grids: tuple[dict[str, float], dict[str, float]] = ({}, {})
    kinds = Kinds()
    for outcome in outcomes:
        for node in outcome.nodes:
            partial.add(*node)
        for into, new in zip(grids, outcome.grids, strict=True):
            into.update(new)
        kinds.update(outcome.kinds)
    return Outcome(partial.nodes, grids, kinds)


class Shard:
    """The clients of ranks begin to end - 1 (positions in the order of ids), in their own process."""

    def __init__(self, source: Source, begin: int, end: int, threads: int, memory: int | None) -> None:
        self.source, self.begin, self.end, self.threads, self.memory = source, begin, end, threads, memory
        self._store = Store(end - begin)
        self._pool = None if threads == 1 else ThreadPoolExecutor(threads, thread_name_prefix="fedscape")
        self._computation: tuple[str, Computation] | None = None
        self._number = -1

    def load(self, versions: Mapping[str, str]) -> FedscapeError | None:
        """Open the files; return the error if they, or this machine, do not fit."""
        try:
            if (mine := software()) != versions:
                raise EngineError(f"the machine {platform.node()} has {mine}, the driver {dict(versions)}")
            self.federation = self.source.open()
            self._order = self.federation.order
            if self._order is None:
                verify_shards(self.source.folder, self.begin, self.end)
            if self.memory is not None:
                _bound_memory(self.memory)
        except FedscapeError as error:
            return error
        return None

    def ping(self) -> None:
        """Return at once: the process is alive."""

    def _open(self, message: Broadcast) -> None:
        """Open a round; a computation that is already here stays, with its data on the device."""
        if message.number == self._number:
            return
        if self._computation is None or self._computation[0] != message.digest:
            computation = message.computation
            if not isinstance(computation, Computation):
                import ray

                computation = ray.get(computation)
            self._computation = (message.digest, computation)
        task = Task(self._computation[1], message.key, message.measure, message.release, message.measure_release)
        self._site = Site(self.federation, task, message.sent)
        self._number = message.number

    def run(
        self, message: Broadcast, part: Part, *lent: tuple[int, Kept]
    ) -> tuple[Outcome | FedscapeError, list[Place]]:
        """Add up nodes of the cohort; clients may belong to other shards, which lend their kept arrays in order."""
        try:
            with one_library_thread(), without_warnings(message.release):
                self._open(message)
                partial = Partial(part.tree, part.level, part.first, part.first + len(part.nodes))
                work = in_order(self._work(part, lent), part.nodes, self._pool, self.threads)
                for number, answer in enumerate(work, part.first):
                    partial.add(part.level, number, answer)
        except FedscapeError as error:
            return error, []
        kept = [place for _, _, answer in partial.nodes for place in answer.kept]
        for _, _, answer in partial.nodes:
            answer.kept = []  # goes to the shards, not to the driver
        kinds = {name: (v.flat.dtype, v.flat.shape[1:]) for _, arrays in kept for name, v in arrays.items()}
        releases = (self._site.task.release, self._site.task.measure_release)
        first, second = ({} if release is None else release.grids for release in releases)
        return Outcome(partial.nodes, (first, second), kinds), kept

    def draw(self, sampler: Sampler, key: Key, below: float) -> tuple[Array, Array]:
        """The clients of this shard that may be in a cohort: their positions, and numbers that decide among them."""
        ranks = np.arange(self.begin, self.end)
        where = ranks if self._order is None else self._order[self.begin : self.end]
        return candidates(sampler, self.federation.ids[where], where, key, below=below)

    def _work(self, part: Part, lent: Sequence[tuple[int, Kept]]) -> Callable[[Sequence[tuple[int, int]]], Answer]:
        kept = self._kept_by(part, lent)

        def work(node: Sequence[tuple[int, int]]) -> Answer:
            places = [_cut(part.ranks, begin, end) for begin, end in node]
            answer = self._site.run([Block(self._rows(place), place) for place in places], kept)
            answer.sent = on_host(answer.sent)
            return answer

        return work

    def _rows(self, place: Array | slice) -> Array | slice:
        return place if self._order is None else as_slice(self._order[place])

    def _kept_by(self, part: Part, lent: Sequence[tuple[int, Kept]]) -> Callable[[Array | slice], Kept]:
        if not lent:
            return self._kept_at
        ranks = numbers(part.ranks)
        mine = ranks[(ranks >= self.begin) & (ranks < self.end)]
        before = np.searchsorted(np.cumsum([0, *(n for n, _ in lent)]), (ranks < self.begin).sum())
        joint = joined([*lent[:before], self.lend(mine), *lent[before:]])
        return lambda place: taken(joint, np.searchsorted(ranks, numbers(place)))

    # -- kept arrays ---------------------------------------------------------------------------------------------------

    def lend(self, ranks: Array) -> tuple[int, Kept]:
        """The number of these clients in the shard, and their kept arrays."""
        return len(ranks), self._kept_at(ranks)

    def _kept_at(self, place: Array | slice) -> Kept:
        return taken(self._store.arrays, _shifted(place, self.begin))

    def keep(self, kinds: Kinds, *parts: Sequence[Place]) -> None:
        """Replace the kept arrays of clients of the shard; ignore clients of other shards."""
        own = [mine for part in parts for place, kept in part if (mine := self._own_part(place, kept)) is not None]
        none = np.zeros(1, dtype=np.int64)  # all shards know all names, as an engine in one process does
        named = {name: Ragged(np.empty((0, *shape), dtype), none) for name, (dtype, shape) in kinds.items()}
        self._store.put([(np.empty(0, dtype=np.int64), named), *own])

    def _own_part(self, place: Array | slice, kept: Kept) -> Place | None:
        ranks = numbers(place)
        inside = np.flatnonzero((ranks >= self.begin) & (ranks < self.end))
        if len(inside) == 0:
            return None
        return ranks[inside] - self.begin, kept if len(inside) == len(ranks) else taken(kept, inside)

    def kept(self) -> tuple[None, Kept]:
        """The kept arrays of all clients of the shard."""
        return None, self._store.arrays

    def restore(self, kept: Kept) -> None:
        """Restore the kept arrays of the shard's clients."""
        self._store.restore({name: Ragged(flat.copy(), offsets) for name, (flat, offsets) in kept.items()})

    def forget(self) -> None:
        """Drop the kept arrays of the shard's clients."""
        self._store = Store(self.end - self.begin)


def software() -> dict[str, str]:
    """Software versions that must match on all machines for identical bytes."""
    from fedscape import __version__

    return {"fedscape": __version__, "numpy": np.__version__, "python": platform.python_version()}


def numbers(place: Array | slice) -> Array:
    """Ranks as an array."""
    return np.arange(place.start, place.stop) if isinstance(place, slice) else place


def taken(kept: Kept, where: Array | slice) -> dict[str, Ragged]:
    """The kept arrays of some of the clients."""
    return {name: arrays.take(where) for name, arrays in kept.items()}


def _cut(ranks: Array | slice, begin: int, end: int) -> Array | slice:
    if isinstance(ranks, slice):
        return slice(ranks.start + begin, ranks.start + end)
    return as_slice(ranks[begin:end])


def _shifted(place: Array | slice, by: int) -> Array | slice:
    return slice(place.start - by, place.stop - by) if isinstance(place, slice) else place - by


def _bound_memory(more: int) -> None:
    """Limit the memory this process may add from now on; mapped files and the object store do not count."""
    now = allocated()
    if now is None:
        raise EngineError("memory= needs Linux: the kernel enforces the bound on a worker")
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_DATA, (now + more, resource.getrlimit(resource.RLIMIT_DATA)[1]))
