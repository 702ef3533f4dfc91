"""Where the clients live, and what they keep."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Answer, Block, Reply, Site, Task, broadcast, nobody, on_host
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.kept import Store
from fedscape.core.random import Key
from fedscape.core.schedule import (
    LEAVES,
    Fold,
    Tree,
    as_slice,
    blocks_of,
    cores,
    in_order,
    one_library_thread,
    without_warnings,
)
from fedscape.errors import DataError, PrivacyError, TooFewClients, plural
from fedscape.types import Array, Arrays, HasKeys

if TYPE_CHECKING:
    from fedscape.privacy.release import Release
    from fedscape.secure.sums import Masked


class Engine(Protocol):
    """Where clients live. One verb, `run`; the rest says who they are and looks after what they keep."""

    @property
    def clients(self) -> HasKeys:
        """The clients to sample from."""
        ...

    @property
    def min_clients(self) -> int:
        """With fewer clients a round is abandoned before anything is released."""
        ...

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
        """Run the step on the cohort and sum what it sends; a release clips and rounds on the client."""
        ...

    def fingerprint(self) -> str:
        """A digest of who the clients are."""
        ...

    def kept(self) -> Mapping[str, Ragged]:
        """What all clients keep, for a checkpoint."""
        ...

    def restore(self, kept: Mapping[str, Ragged]) -> None:
        """Give all clients what they kept."""
        ...

    def forget(self) -> None:
        """Let all clients drop what they kept."""
        ...


class Trainer(Protocol):
    """What a run may ask of the device that a computation trains on; see `learning.trainer`."""

    @property
    def prefetches(self) -> bool:
        """Whether the device computes while the host is free to prefetch."""
        ...

    def prefetch(self, clients: Federation, key: Key) -> None:
        """Prefetch the batches of these clients in the round of this key, which comes next."""
        ...

    def known_finite(self, state: Mapping[str, Array]) -> bool:
        """Whether all numbers of this state were checked on the device."""
        ...


class Local:
    """All clients in this process, block by block on a few threads.

    The cohort, in the order of ids, is cut into blocks; where depends on the computation alone. Threads take whole
    blocks. Block sums are added in an order that depends on their number alone (`core.schedule`), so the result is the
    same to the byte whatever the number of threads.

    Parameters
    ----------
    federation
        The clients.
    threads
        How many blocks run at once; by default one per core.
    min_clients
        With fewer clients in the cohort a round is abandoned before anything is released.
    secure
        How sums are masked, with every client by itself: `SecureSum()` or `TwoServers()`. All keys, shares and
        masks are made and taken away again, as over a network: a simulation that costs what the real thing costs.

    >>> engine = Local(Federation({"y": [1, 2]}, [0, 1, 2]), threads=2)
    >>> len(engine.clients.keys)
    2
    """

    def __init__(
        self,
        federation: Federation,
        *,
        threads: int | None = None,
        min_clients: int = 1,
        secure: Masked | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise DataError(f"threads must be at least 1, not {threads}")
        if min_clients < 1:
            raise DataError(f"min_clients must be at least 1, not {min_clients}")
        self.federation = federation
        self.threads = threads or cores()
        self.min_clients, self.secure = min_clients, secure
        self._store = Store(len(federation))
        self._prefetched: tuple[Array, Federation] | None = None
        self._pool = None if self.threads == 1 else ThreadPoolExecutor(self.threads, thread_name_prefix="fedscape")

    @property
    def clients(self) -> Federation:
        return self.federation

    def fingerprint(self) -> str:
        return self.federation.fingerprint()

    def kept(self) -> Mapping[str, Ragged]:
        return self._store.on_host

    def restore(self, kept: Mapping[str, Ragged]) -> None:
        self._store.restore(kept)

    def forget(self) -> None:
        self._store = Store(len(self.federation))

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
        cohort = self._in_order_of_id(cohort)
        sent = broadcast(state)
        task = Task(computation, key, measure, release, measure_release)
        if self.secure is not None:
            return self._run_masked(self.secure, task, sent, cohort)
        blocks = blocks_of(computation, self.federation.sizes[cohort], clipped=release is not None)
        tree = Tree(len(blocks))
        level = 1 if len(blocks) > LEAVES else 0
        fold, nodes = Fold(tree), [tree.blocks_of(level, node) for node in range(tree.nodes(level))]
        with one_library_thread(), without_warnings(release):
            site = Site(self.federation, task, sent, whole=self._whole_cohort(cohort) if len(blocks) == 1 else None)

            def work(node: range) -> Answer:
                members = (as_slice(cohort[blocks[i][0] : blocks[i][1]]) for i in node)
                return site.run([Block(where, where) for where in members], self._kept)

            for part in in_order(work, nodes, self._pool, self.threads):
                fold.add(level, part)
        answer = fold.finish() if blocks else nobody(self.federation, task, sent)
        self._store.put(answer.kept)
        return answer.reply(computation, self.federation.ids[cohort], sent)

    def _run_masked(self, secure: Masked, task: Task, sent: Arrays, cohort: Array) -> Reply:
        """The same round, in which each client masks what it sends and only the total is opened."""
        from fedscape.secure.sums import MaskedSum

        computation = task.computation
        secure.check_reveals(type(computation).__name__, computation.reveals)
        secret = task.release is not None and task.release.counted  # the number of clients is
        try:
            masked, answer = MaskedSum(secure, len(cohort), released=task.release is not None), Answer()
        except PrivacyError:
            if not secret:
                raise
            raise PrivacyError(
                "secure sums: the cohort is too small for the stated drop-outs and colluders: sample more clients"
            ) from None
        for release in (task.release, task.measure_release):
            if release is not None:
                release.largest = secure.range(len(cohort)).most
        parts = [[Block(slice(int(u), int(u) + 1), slice(int(u), int(u) + 1))] for u in cohort]
        with one_library_thread(), without_warnings(task.release):
            site = Site(self.federation, task, sent)
            work = in_order(lambda blocks: site.run(blocks, self._kept), parts, self._pool, self.threads)
            for party, part in enumerate(work):
                masked.add(party, on_host(part.sent), on_host(part.metrics))
                answer.add(Answer(revealed=part.revealed, kept=part.kept))
        answer.sent, answer.metrics = masked.totals()
        answer.bytes_up = masked.bytes_up(besides=not secret) + sum(rows[0].nbytes for rows in answer.revealed.values())
        self._store.put(answer.kept)
        return answer.reply(computation, self.federation.ids[cohort], sent)

    def parties(self, cohort: Array) -> int:
        """How many add a share of distributed noise each."""
        return len(cohort)

    def noise_clients(self, cohort: Array) -> int:
        """How many clients make up distributed noise: those in the smallest sum that can be opened."""
        return self.min_clients if self.secure is None else self.secure.smallest(len(cohort))

    def prefetch(self, computation: Computation, trainer: Trainer, cohort: Array, key: Key) -> None:
        """Let a trainer prefetch the round of this key, where its cohort makes one block."""
        cohort = self._in_order_of_id(cohort)
        if len(blocks_of(computation, self.federation.sizes[cohort], clipped=False)) == 1:
            clients = self.federation.borrow(as_slice(cohort))
            self._prefetched = (cohort, clients)
            trainer.prefetch(clients, key)

    def _whole_cohort(self, cohort: Array) -> Federation | None:
        ready, self._prefetched = self._prefetched, None
        return ready[1] if ready is not None and np.array_equal(ready[0], cohort) else None

    def _kept(self, where: Array | slice) -> Mapping[str, Ragged]:
        return {name: arrays.take(where) for name, arrays in self._store.arrays.items()}

    def _in_order_of_id(self, cohort: Array) -> Array:
        order = self.federation.order
        return cohort if order is None else order[np.sort(ranks(order)[cohort])]


def check_enough(cohort: Array, min_clients: int, key: Key, release: Release | None) -> None:
    """Refuse a cohort that is too small, before anything is computed; a secret number is compared after its noise."""
    if len(cohort) < min_clients and not (release is not None and release.counted):
        raise TooFewClients(
            f"round {key.round}: {plural(len(cohort), 'client')} reported, min_clients is {min_clients}"
        )


def ranks(order: Array) -> Array:
    """The place of each client in the order of ids.

    >>> ranks(np.array([2, 0, 1]))
    array([1, 2, 0])
    """
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank


def as_engine(data: Engine | Federation) -> Engine:
    """The engine itself, or `Local` for a Federation.

    >>> type(as_engine(Federation({}, [0, 0]))).__name__
    'Local'
    """
    return Local(data) if isinstance(data, Federation) else data
