"""Many machines: the clients sharded over the workers of a Ray cluster."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Reply, Task, broadcast, nobody
from fedscape.core.computation import Computation
from fedscape.core.engine import check_enough, ranks
from fedscape.core.federation import Federation
from fedscape.core.kept import Store, joined
from fedscape.core.random import Key
from fedscape.core.sampling import FixedSize, Sampler, bound, chosen
from fedscape.core.schedule import LEAVES, Fold, Tree, as_slice, blocks_of
from fedscape.engines.ray.cluster import Cluster
from fedscape.engines.ray.shard import Assignment, Broadcast, Kinds, Part, Source, taken
from fedscape.engines.ray.workers import Crew
from fedscape.errors import DataError, EngineError
from fedscape.formats.folder import INDEX, seal_of
from fedscape.formats.sharded import edges as shard_edges
from fedscape.privacy.release import Release
from fedscape.types import Array, Arrays

PARTS = 16  # parts of a round per worker: few enough to be cheap, enough to add while others compute
CALLS = 1024  # cap on the calls of a round where there are many workers, with one per worker at least
FEW = 4  # nodes of a round per worker below which they are dealt out evenly, wherever their clients are


class Ray:
    """The clients on the workers of a Ray cluster: the same bytes as `Local`, on one machine or many.

    Each worker is a process that maps the clients' files once and owns a shard: clients with consecutive ids, and their
    kept arrays. A round's state is sent once, through the object store. Workers run whole blocks and add their sums in
    the order of `Local`. A worker that dies is restarted, gets its clients' kept arrays as of the last finished round,
    and repeats the lost work: the result stays the same. Where its machine is lost, another takes its clients. Machines
    that join the cluster are used from the next round on.

    Parameters
    ----------
    data
        A Federation, which is written to memory-mapped files; the path of a folder written by `Federation.save`; or,
        with `client`, the path of Parquet files.
    client
        For Parquet: the column with the client ids.
    address
        Address of a running cluster ("auto" for the one on this machine); an error if this process is connected to
        another. By default the cluster this process is connected to, or else one on this machine alone, started here
        and stopped by `close`.
    workers
        Number of processes; by default as many as there are cores (and GPUs) for, also when machines join later.
    threads
        Number of blocks that a worker runs at once, each on one thread of BLAS and torch; it reserves as many cores.
    gpus_per_worker
        GPUs reserved for each worker, for training with device="cuda" and a `group_size`; 0.5 lets two share one.
    memory
        Bytes that a worker may allocate in addition to its start (Linux); files and the object store do not count.
    min_clients
        A round with fewer clients in the cohort is abandoned before anything is released.
    folder
        Folder for files written here; with several machines, on a file system that all of them share.

    >>> from fedscape import Histogram
    >>> with Ray(Federation({"y": [0, 1, 1]}, [0, 1, 3]), workers=1) as engine:  # doctest: +SKIP
    ...     Histogram(2).fit(engine).counts_
    array([1, 2])
    """

    def __init__(
        self,
        data: Federation | str | os.PathLike[str],
        *,
        client: str | None = None,
        address: str | None = None,
        workers: int | None = None,
        threads: int = 1,
        gpus_per_worker: float = 0.0,
        memory: int | None = None,
        min_clients: int = 1,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        for name, number in (("workers", workers), ("threads", threads), ("min_clients", min_clients)):
            if number is not None and number < 1:
                raise DataError(f"{name} must be at least 1, not {number}")
        if gpus_per_worker < 0:
            raise DataError(f"gpus_per_worker must not be negative, not {gpus_per_worker}")
        if memory is not None and memory < 2**20:
            raise DataError(f"memory must be at least a mebibyte, not {memory} bytes")
        self.min_clients, self.threads = min_clients, threads
        files = _Files(data, client, folder)
        self.federation = files.federation
        self._order = self.federation.order
        self._rank = None if self._order is None else ranks(self._order)
        try:
            self._cluster = Cluster(address, workers, threads, gpus_per_worker, memory)
        except BaseException:
            files.remove()
            raise
        self._shards, self._grows = files.shards, workers is None
        edges = self._edges(self._cluster.workers)
        self._crew = Crew(self._cluster, files.source, edges, self._names(edges), threads, memory)
        self._stop = weakref.finalize(self, _stop, self._crew, self._cluster, files)
        self._sent: tuple[str, Any] | None = None
        self._keeps, self._round = False, 0
        try:
            self._crew.start()
        except BaseException:
            self._stop()
            raise

    @property
    def clients(self) -> Federation:
        return self.federation

    @property
    def address(self) -> str:
        """Address of the workers' cluster."""
        return self._cluster.address

    def fingerprint(self) -> str:
        return self.federation.fingerprint()

    def close(self) -> None:
        """Stop the workers, remove the files written here, and stop the cluster if it was started here."""
        self._stop()

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        computation: Computation,
        state: Arrays,
        cohort: Array,
        key: Key,
        *,
        measure: bool = False,
        release: Release | None = None,
        measure_release: Release | None = None,
    ) -> Reply:
        check_enough(cohort, self.min_clients, key, release)
        self._check_open()
        self._crew.check_whole()
        self._settle()
        who = cohort if self._rank is None else np.sort(self._rank[cohort])
        where = who if self._order is None else self._order[who]
        blocks = blocks_of(computation, self.federation.sizes[where], clipped=release is not None)
        tree, sent = Tree(len(blocks)), broadcast(state)
        public = [None if each is None else each.without_secret() for each in (release, measure_release)]
        self._round += 1
        digest, shipped = self._shipped(computation)
        message = Broadcast(self._round, digest, shipped, key, measure, public[0], public[1], sent)
        assignments = self._assign(who, blocks, tree)
        task = Task(computation, key, measure, release, measure_release)
        fold, kinds = Fold(tree), Kinds()
        for outcome in self._crew.run(self._cluster.ray.put(message), assignments, lend=self._keeps):
            for level, _, part in outcome.nodes:
                fold.add(level, part)
            for each, grids in zip((release, measure_release), outcome.grids, strict=True):
                if each is not None:
                    each.take_grids(grids)
            kinds.update(outcome.kinds)
        answer = fold.finish() if blocks else nobody(self.federation, task, sent)
        for sums in (answer.sent, answer.metrics):
            for name, values in sums.items():
                sums[name] = values if values.flags.writeable else values.copy()  # frees the object store
        reply = answer.reply(computation, self.federation.ids[where], sent)
        if kinds:  # last: before it nothing has changed, after it the round is over
            self._keeps = True
            self._crew.keep(kinds, assignments)
        return reply

    def _shipped(self, computation: Computation) -> tuple[str, Any]:
        """The computation in the object store, sent only when it changes."""
        digest = hashlib.sha256(self._cluster.ray.cloudpickle.dumps(computation)).hexdigest()
        if self._sent is None or self._sent[0] != digest:
            self._sent = (digest, self._cluster.ray.put(computation))
        return self._sent

    def draw(self, sampler: Sampler, key: Key) -> Array:
        """The cohort that this sampler draws from all clients, each worker drawing among its own."""
        self._check_open()
        self._settle()
        n, below = len(self.federation), bound(sampler, len(self.federation))
        parts = self._crew.draw(sampler, key, below)
        if isinstance(sampler, FixedSize) and below < 1 and sum(len(each) for each, _ in parts) < sampler.size:
            parts = self._crew.draw(sampler, key, 1.0)
        return chosen(sampler, parts, n)

    def _assign(self, who: Array, blocks: Sequence[tuple[int, int]], tree: Tree) -> list[Assignment]:
        """Assign nodes of the tree to the shard of their first client, in a few calls for each shard.

        A few nodes, such as the groups that train on GPUs, go to all shards evenly.
        """
        level = tree.level(FEW * self.workers) if tree.blocks > LEAVES else 0
        nodes = [[blocks[i] for i in tree.blocks_of(level, node)] for node in range(tree.nodes(level))]
        if len(nodes) < FEW * self.workers:
            homes = np.arange(len(nodes)) * self.workers // max(len(nodes), 1)
        else:
            homes = np.searchsorted(self._bounds, who[[node[0][0] for node in nodes]], side="right") - 1
        edges = np.searchsorted(homes, np.arange(self.workers + 1)).tolist()
        calls = max(1, min(PARTS, CALLS // self.workers))
        assignments = []
        for shard, (first, last) in enumerate(itertools.pairwise(edges)):
            step = max(1, -(-(last - first) // calls))
            for begin in range(first, last, step):
                mine = nodes[begin : min(begin + step, last)]
                assignments.append(self._assignment(shard, who, mine, tree, level, begin))
        return assignments

    def _assignment(
        self, shard: int, who: Array, nodes: Sequence[Sequence[tuple[int, int]]], tree: Tree, level: int, first: int
    ) -> Assignment:
        begin, end = nodes[0][0][0], nodes[-1][-1][1]
        members = who[begin:end]
        relative = [[(a - begin, b - begin) for a, b in node] for node in nodes]
        first_home, last_home = np.searchsorted(self._bounds, members[[0, -1]], side="right") - 1
        guests = []
        for other in range(first_home, last_home + 1):
            low, high = np.searchsorted(members, self._bounds[other : other + 2])
            if low < high and other != shard:
                guests.append((other, members[low:high]))
        return Assignment(shard, Part(as_slice(members), relative, tree, level, first), guests, len(members))

    # -- machines ------------------------------------------------------------------------------------------------------

    def _edges(self, workers: int) -> list[tuple[int, int]]:
        """The ranks of each worker's clients; with enough shards on disk a worker has whole shards."""
        self.workers = max(1, min(workers, len(self.federation)))
        sizes = self.federation.sizes
        bounds = _bounds(sizes if self._order is None else sizes[self._order], self.workers)
        self._bounds = _at_shards(bounds, self._shards)
        return list(itertools.pairwise(self._bounds.tolist()))

    def _settle(self) -> None:
        """Use machines that have joined: shards without a core of their own move there, and all are cut anew."""
        room = self._cluster.room()
        if not self._grows or min(room, len(self.federation)) <= self.workers:
            self._crew.settle(room)
            return
        kept = self.kept()
        edges = self._edges(room)
        self._crew.reshape(edges, self._names(edges))
        if kept:
            self.restore(kept)

    # -- kept arrays ---------------------------------------------------------------------------------------------------

    def kept(self) -> Mapping[str, Ragged]:
        self._check_open()
        self._crew.check_whole()
        if not self._keeps:
            return {}
        widths = np.diff(self._bounds).tolist()
        by_rank = joined(list(zip(widths, self._crew.kept(), strict=True)))
        return by_rank if self._rank is None else taken(by_rank, self._rank)

    def restore(self, kept: Mapping[str, Ragged]) -> None:
        self._check_open()
        store = Store(len(self.federation))
        store.restore(kept)
        self._keeps = bool(kept)
        by_rank = kept if self._order is None else taken(kept, self._order)
        self._crew.restore([taken(by_rank, slice(begin, end)) for begin, end in self._crew.edges])

    def forget(self) -> None:
        self._check_open()
        self._keeps = False
        self._crew.forget()

    def _names(self, edges: Sequence[tuple[int, int]]) -> list[str]:
        return [self._name(shard, *edge) for shard, edge in enumerate(edges)]

    def _name(self, shard: int, begin: int, end: int) -> str:
        edges = np.array([begin, max(begin, end - 1)])
        who = self.federation.ids[edges if self._order is None else self._order[edges]] if end else ["none", "none"]
        return f"shard {shard + 1} of {self.workers} (clients {who[0]!s} to {who[1]!s})"

    def _check_open(self) -> None:
        if not self._stop.alive:
            raise EngineError("this Ray engine is closed: make a new one")


def _bounds(sizes: Array, workers: int) -> Array:
    """Edges of the shards: balanced in clients and rows, with at least one client each.

    >>> _bounds(np.array([1, 1, 1, 1, 9]), 2).tolist()
    [0, 4, 5]
    """
    load, place = np.concatenate(([0], np.cumsum(sizes + 1))), np.arange(1, workers)
    wanted = np.clip(np.searchsorted(load, load[-1] * place / workers) - place, 0, max(0, len(sizes) - workers))
    return np.concatenate(([0], np.maximum.accumulate(wanted) + place, [len(sizes)])).astype(np.int64)


def _at_shards(bounds: Array, shards: Array) -> Array:
    """The same edges moved to the nearest edges of shards on disk, where none becomes empty by it.

    >>> _at_shards(np.array([0, 4, 9]), np.array([0, 3, 6, 9])).tolist()
    [0, 3, 9]
    """
    if len(shards) < len(bounds):
        return bounds
    right = np.clip(np.searchsorted(shards, bounds), 1, len(shards) - 1)
    nearest = np.where(bounds - shards[right - 1] <= shards[right] - bounds, shards[right - 1], shards[right])
    return nearest if (np.diff(nearest) > 0).all() else bounds


class _Files:
    """The clients' files: existing ones, or written here and removed at the end."""

    def __init__(
        self,
        data: Federation | str | os.PathLike[str],
        client: str | None,
        folder: str | os.PathLike[str] | None,
    ) -> None:
        self.own: str | None = None
        self.shards = np.zeros(0, dtype=np.int64)  # edges of the shards on disk
        if isinstance(data, Federation):
            if data.kept:
                raise DataError("a Federation with kept arrays cannot be sharded: pass them to restore()")
            self.federation = data
            self.source = self._written(data, folder)
            return
        path = os.path.abspath(data)
        if (Path(path) / INDEX).is_file():
            self.shards = np.array(shard_edges(path))
            self.federation = Federation.load(path, verify=len(self.shards) == 2)  # of many, workers check their own
            self.source = Source(path, str(seal_of(path)), None, None)
            return
        if client is None:
            raise DataError(f"{path} is not a saved Federation: for Parquet files pass client=, the column of clients")
        parts = self._written(Federation.from_parquet(path, client=client), folder)
        self.federation = Federation.load(parts.folder)
        self.source = parts._replace(parquet=path, client=client)

    def _written(self, federation: Federation, folder: str | os.PathLike[str] | None) -> Source:
        self.own = tempfile.mkdtemp(prefix="fedscape-ray-", dir=folder)
        place = os.path.join(os.path.abspath(self.own), "clients")
        try:
            federation.save(place)
        except BaseException:
            self.remove()
            raise
        return Source(place, str(seal_of(place)), None, None)

    def remove(self) -> None:
        if self.own is not None:
            shutil.rmtree(self.own, ignore_errors=True)


def _stop(crew: Crew, cluster: Cluster, files: _Files) -> None:
    if cluster.ray.is_initialized():  # false while the interpreter shuts down
        crew.stop()
        cluster.leave()
    files.remove()
