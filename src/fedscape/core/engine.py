"""Where the clients live, and what they keep."""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.computation import Arrays, Computation, Kept, sent_and_kept
from fedscape.core.federation import Federation
from fedscape.core.kept import Store, joined
from fedscape.core.random import Array, HasKeys, Key
from fedscape.core.validate import all_finite
from fedscape.errors import DataError, EngineError, NotFinite, TooFewClients, plural
from fedscape.privacy.release import Release

T = TypeVar("T")
S = TypeVar("S")

SECTIONS = 256  # at most so many runs of blocks, each added up where it is run: what waits for its turn is bounded


@dataclass(frozen=True)
class Reply:
    """What a cohort gave: the sums, the sums of the metrics, how many reported, bytes per client.

    Where some of the cohort did not report, `absent` is a digest of who did, and `faults` counts what went wrong.

    >>> Reply({"rows": np.array(3)}, {}, clients=2, bytes_down=0, bytes_up=8).total["rows"]
    array(3)
    """

    total: Arrays
    metrics: Arrays
    clients: int
    bytes_down: int
    bytes_up: int
    absent: str = ""
    faults: Mapping[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """Where clients live. One verb, `run`; the rest says who they are and looks after what they keep."""

    @property
    def clients(self) -> HasKeys:
        """Who there is to sample from."""
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
        """Let the cohort take the step, and add up what it sends; a release clips and rounds it on the client."""
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


class Local:
    """All clients in this process, block by block on a few threads.

    The cohort, in the order of ids, is cut into blocks at places that depend on the computation alone; threads take
    whole blocks; block sums are added in order, those of a section (one block, or as many as make 256 sections) first.
    So the result is the same to the byte whatever the number of threads.

    Parameters
    ----------
    federation
        The clients.
    threads
        How many blocks run at once; by default one per core.
    min_clients
        With fewer clients in the cohort a round is abandoned before anything is released.

    >>> engine = Local(Federation({"y": [1, 2]}, [0, 1, 2]), threads=2)
    >>> len(engine.clients.keys)
    2
    """

    def __init__(self, federation: Federation, *, threads: int | None = None, min_clients: int = 1) -> None:
        if threads is not None and threads < 1:
            raise DataError(f"threads must be at least 1, not {threads}")
        if min_clients < 1:
            raise DataError(f"min_clients must be at least 1, not {min_clients}")
        self.federation = federation
        self.threads = threads or cores()
        self.min_clients = min_clients
        self.by_rows = False  # as in Task
        self._store = Store(len(federation))
        self._foreseen: tuple[Array, Federation] | None = None
        self._pool = None if self.threads == 1 else ThreadPoolExecutor(self.threads, thread_name_prefix="fedscape")

    @property
    def clients(self) -> Federation:
        return self.federation

    def fingerprint(self) -> str:
        return self.federation.fingerprint()

    def kept(self) -> Mapping[str, Ragged]:
        return self._store.arrays

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
        task = Task(computation, key, measure, release, measure_release, self.by_rows)
        parts = [
            [Block(where, where) for where in (as_slice(cohort[begin:end]) for begin, end in section)]
            for section in sections(computation, self.federation.sizes[cohort], clipped=release is not None)
        ]
        answer = Answer() if parts else nobody(self.federation, task, sent)
        with one_library_thread(), without_warnings(release):
            site = Site(self.federation, task, sent, known=self._known(cohort) if len(parts) == 1 else None)
            for part in in_order(lambda blocks: site.run(blocks, self._kept), parts, self._pool, self.threads):
                answer.add(part)
        self._store.put(answer.kept)
        return answer.reply(computation, self.federation.ids[cohort], sent)

    def foresee(self, computation: Computation, cohort: Array, key: Key) -> None:
        """Tell a computation who will take the round of this key, where they make one block."""
        cohort = self._in_order_of_id(cohort)
        if len(sections(computation, self.federation.sizes[cohort], clipped=False)) == 1:
            clients = self.federation.borrow(as_slice(cohort))
            self._foreseen = (cohort, clients)
            computation.foresee(clients, key)

    def _known(self, cohort: Array) -> Federation | None:
        foreseen, self._foreseen = self._foreseen, None
        return foreseen[1] if foreseen is not None and np.array_equal(foreseen[0], cohort) else None

    def _kept(self, where: Array | slice) -> Mapping[str, Ragged]:
        return {name: arrays.take(where) for name, arrays in self._store.arrays.items()}

    def _in_order_of_id(self, cohort: Array) -> Array:
        order = self.federation.order
        return cohort if order is None else order[np.sort(ranks(order)[cohort])]


def cores() -> int:
    """How many this process may use; where the system does not say, how many there are.

    >>> cores() >= 1
    True
    """
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


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


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> Any:
    """What limits the libraries that are loaded; they are looked for again when modules were imported since."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # a machine with NumPy and torch alone
        return None
    return ThreadpoolController()


def one_library_thread() -> AbstractContextManager[Any]:
    """Within it BLAS uses one thread: a block is the work of one thread, and the threads are ours."""
    found = _libraries(len(sys.modules))
    return nullcontext() if found is None else found.limit(limits=1)


@contextmanager
def without_warnings(release: Release | None) -> Iterator[None]:
    """Within it nothing warns where there is a release: a warning may depend on rows, and where it goes is not known.

    Filters are those of the process: enter it before blocks are handed to threads.
    """
    if release is None:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def as_engine(data: Engine | Federation) -> Engine:
    """The engine itself, or `Local` for a Federation.

    >>> type(as_engine(Federation({}, [0, 0]))).__name__
    'Local'
    """
    return Local(data) if isinstance(data, Federation) else data


@dataclass(frozen=True)
class Task:
    """What a block of clients is asked to do."""

    computation: Computation
    key: Key
    measure: bool
    release: Release | None
    measure_release: Release | None
    by_rows: bool = False  # one client, whose answer crosses a network: see Computation.narrow_rows


class Block(NamedTuple):
    """Clients that one call of `step` sees: where their rows are, and their place among what is kept."""

    where: Array | slice
    place: Array | slice


@dataclass
class Answer:
    """What a block of clients gave; blocks, and runs of blocks, are added in their order."""

    sent: Arrays = field(default_factory=dict)
    metrics: Arrays = field(default_factory=dict)
    revealed: dict[str, list[Array]] = field(default_factory=dict)
    kept: list[tuple[Array | slice, Mapping[str, Ragged]]] = field(default_factory=list)
    bytes_up: int = 0
    made: set[str] = field(default_factory=set)  # names of sums that are this answer's own memory

    def add(self, other: Answer) -> None:
        """Take in the answer of the clients that come next."""
        for what in ("sent", "metrics"):
            sums, new = getattr(self, what), getattr(other, what)
            for name, values in new.items():
                own = f"{what} {name}"
                if name not in sums:
                    sums[name] = values
                elif own in self.made and sums[name].dtype == values.dtype:
                    sums[name] += values
                else:
                    sums[name] = sums[name] + values
                    self.made.add(own)
        for name, rows in other.revealed.items():
            self.revealed.setdefault(name, []).extend(rows)
        self.kept += other.kept
        self.bytes_up = max(self.bytes_up, other.bytes_up)

    def reply(self, computation: Computation, ids: Array, state: Arrays) -> Reply:
        """What the clients of these ids, who were sent this state, gave together."""
        total = {**self.sent, **{name: np.concatenate(rows) for name, rows in self.revealed.items()}}
        if computation.reveals:
            total["ids"] = ids
        total["clients"] = np.asarray(len(ids))
        return Reply(total, self.metrics, len(ids), bytes_down(state), self.bytes_up)


class Site:
    """Clients of a process at work in one round: what `Local` and the workers of other engines have in common."""

    def __init__(self, federation: Federation, task: Task, sent: Arrays, *, known: Federation | None = None) -> None:
        self.federation, self.task = federation, task
        self.known = known  # the clients of the only block, if they were borrowed before
        self._state = task.computation.prepare(sent)
        self._own = own_row_numbers(sent, federation)

    def run(self, blocks: Sequence[Block], kept: Callable[[Array | slice], Mapping[str, Ragged]]) -> Answer:
        """These blocks one after the other, added in order; `kept` says what the clients at a place keep."""
        answer = Answer()
        for block in blocks:
            answer.add(self._run_one(block, kept(block.place)))
        return answer

    def _run_one(self, block: Block, kept: Mapping[str, Ragged]) -> Answer:
        clients = self.federation.borrow(block.where) if self.known is None else self.known
        if kept:
            clients = clients.with_kept(kept)
        try:
            mine = self._state if self._own is None else own_rows(self._state, self._own[block.where])
            return answer_of(self.task, mine, clients, block.place)
        except DataError as error:
            if self.task.release is not None:
                raise  # it does not depend on rows; whose they are must not be told
            first, last = clients.ids[0], clients.ids[-1]
            raise DataError(f"{error} (among the clients {first!s} to {last!s}, rows counted from the first)") from None


def answer_of(task: Task, state: Arrays, clients: Federation, place: Array | slice) -> Answer:
    """One block: step, check, clip, sum."""
    if task.release is not None:
        return _private_answer(task, task.release, state, clients, place)
    computation, metrics = task.computation, {}
    if task.measure:
        metrics = _summed(_checked(computation, computation.measure(state, clients), clients))
    rows = task.by_rows and computation.narrow_rows
    fast = None if rows else computation.total(state, clients, task.key)
    given, left = fast if isinstance(fast, tuple) else (fast or {}, {})
    sums = {name: values for name, values in given.items() if name not in computation.reveals}
    lost = computation.reveals and not all(np.isfinite(float(v.sum())) for v in sums.values())
    if fast is not None and not lost:  # step says whose numbers they are
        if missing := set(computation.reveals) - set(given):
            raise EngineError(f"{type(computation).__name__}.total must have a row a client of {sorted(missing)}")
        seen = _checked(computation, {name: given[name] for name in computation.reveals}, clients)
        up = sum(v.nbytes for v in sums.values()) + _bytes_each(seen)
        return Answer(sums, metrics, {n: [v] for n, v in seen.items()}, _placed(left, clients, place), up)
    sent, kept = _step(computation, state, clients, task.key)
    up = _bytes_each(sent)
    revealed = {name: [sent.pop(name)] for name in computation.reveals}
    return Answer(_summed(sent), metrics, revealed, _placed(kept, clients, place), up)


def _private_answer(task: Task, release: Release, state: Arrays, clients: Federation, place: Array | slice) -> Answer:
    """One block under a release: nothing that depends on rows leaves it but sums that are clipped and noised."""
    computation, metrics = task.computation, {}
    release.check_rows(computation.row_bound(state, release.privacy.norm, clients))
    if task.measure:
        measured, _ = _sheltered(
            lambda mine, some: (_checked(computation, computation.measure(mine, some), some), {}),
            computation,
            state,
            clients,
        )
        if task.measure_release is not None and measured:
            measured = task.measure_release.on_clients(measured, clients)
        metrics = _summed(measured)
    sent, kept = _sheltered(
        lambda mine, some: _step(computation, mine, some, task.key),
        computation,
        state,
        clients,
        by_row=release.privacy.unit == "row",
    )
    up = _bytes_each(sent)
    if sent:
        sent = release.on_clients(sent, clients)  # before anything is revealed
    revealed = {name: [sent.pop(name)] for name in computation.reveals}
    return Answer(_summed(sent), metrics, revealed, _placed(kept, clients, place), up)


def _step(computation: Computation, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
    sent, kept = sent_and_kept(computation, computation.step(state, clients, key))
    return _checked(computation, sent, clients), kept


Work = Callable[[Arrays, Federation], tuple[Arrays, Kept]]


def _sheltered(
    work: Work, computation: Computation, state: Arrays, clients: Federation, *, by_row: bool = False
) -> tuple[Arrays, Kept]:
    """What these clients send and keep, whatever is in their rows.

    Rows outside the computation's domain are left out. Where the work still fails, each client does it alone, and one
    that fails gives what a client without rows gives. An error that remains does not depend on rows. With `by_row` one
    row is protected, which must not take the client's other rows with it: it is left out if it fails alone.
    """

    def attempt(mine: Arrays, some: Federation) -> tuple[Arrays, Kept]:
        valid = computation.valid_rows(mine, some)
        return work(mine, some if valid is None or valid.all() else some.where(valid))

    with np.errstate(all="ignore"):  # a warning would tell
        try:
            return attempt(state, clients)
        except Exception:  # of whatever kind: it may depend on the rows
            each = (slice(i, i + 1) for i in range(len(clients)))
            parts = [_attempt_alone(attempt, _own_state(state, one), clients.borrow(one), by_row) for one in each]
    sent = {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}
    return sent, joined([(1, as_ragged(part[1], 1)) for part in parts])


def _attempt_alone(attempt: Work, state: Arrays, client: Federation, by_row: bool) -> tuple[Arrays, Kept]:
    with suppress(Exception):
        return attempt(state, client)
    if by_row:
        passing = np.array([_passes(attempt, state, client, row) for row in range(client.n_rows)], dtype=bool)
        with suppress(Exception):
            return attempt(state, client.where(passing))
    return attempt(state, emptied(client))


def _passes(attempt: Work, state: Arrays, client: Federation, row: int) -> bool:
    alone = client.where(np.arange(client.n_rows) == row)
    with suppress(Exception):
        attempt(state, alone)
        return True
    return False


def _own_state(state: Arrays, one: slice) -> Arrays:
    """The state of a block as one of its clients gets it."""
    return {name: values[one] if name.startswith("of_client.") else values for name, values in state.items()}


def emptied(clients: Federation) -> Federation:
    """The same clients without rows, and without what they kept.

    >>> emptied(Federation({"y": [1, 2]}, [0, 1, 2])).sizes
    array([0, 0])
    """
    return clients.where(np.zeros(clients.n_rows, dtype=bool)).with_kept({})


def nobody(federation: Federation, task: Task, sent: Arrays) -> Answer:
    """The answer of an empty cohort: that of one client without rows, which keeps nothing; under a release, zeros.

    What a client without rows sends need not be zero. Then one client more than none would take that away and add its
    own, and move the sum further than the clip.
    """
    columns = {name: values[:0] for name, values in federation.columns.items()}
    none = Federation(columns, [0, 0], names=federation.names)
    state = task.computation.prepare(sent)
    if "of_client.ids" in state:
        state = own_rows(state, np.array([-1]))
    answer = answer_of(task, state, none, slice(0, 1))
    answer.kept, answer.revealed = [], {name: [rows[0][:0]] for name, rows in answer.revealed.items()}
    if task.release is not None:
        answer.sent = {name: np.zeros_like(values) for name, values in answer.sent.items()}
        answer.metrics = {name: np.zeros_like(values) for name, values in answer.metrics.items()}
    return answer


def _bytes_each(rows: Arrays) -> int:
    """What one client's row of these arrays takes."""
    return sum(v.itemsize * int(np.prod(v.shape[1:])) for v in rows.values())


def on_host(arrays: Mapping[str, Any]) -> Arrays:
    """The same as NumPy's arrays, where a sum was left on a device."""
    return {name: np.asarray(v.cpu() if hasattr(v, "cpu") else v) for name, v in arrays.items()}


def _placed(kept: Kept, clients: Federation, place: Array | slice) -> list[tuple[Array | slice, Mapping[str, Ragged]]]:
    return [(place, as_ragged(kept, len(clients)))] if kept else []


def _summed(rows: Arrays) -> Arrays:
    return {name: add_up(values) for name, values in rows.items()}


def sum_type(values: Array) -> type[np.int64] | type[np.float64]:
    """The type in which these are added."""
    return np.int64 if values.dtype.kind in "biu" else np.float64


def add_up(rows: Array) -> Array:
    """Sum over the clients: whole numbers exactly, the rest in float64."""
    kind = sum_type(rows)
    if len(rows) == 1:  # large networks come one at a time, and a sum is several times as slow as a copy
        return np.asarray(rows[0].astype(kind))
    return np.asarray(rows.sum(axis=0, dtype=kind))


def _checked(computation: Computation, sent: Mapping[str, Array], clients: Federation) -> Arrays:
    for name, values in sent.items():
        what = f"{type(computation).__name__} sent {name!r}"
        if name in ("clients", "ids"):
            raise EngineError(f"{what}: this name is the engine's own, choose another")
        if np.ndim(values) == 0 or len(values) != len(clients):
            raise EngineError(
                f"{what} of shape {np.shape(values)} for {len(clients)} clients: the first axis is the clients"
            )
        if not all_finite(values):
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise NotFinite(
                f"{what} with NaN or infinity for client {clients.ids[bad]!s}: look for extreme values in its rows, or "
                "take smaller steps"
            )
    return dict(sent)


def as_ragged(kept: Kept, n: int) -> dict[str, Ragged]:
    """Kept arrays in one form: [clients, ...] is one row per client."""
    return {name: v if isinstance(v, Ragged) else Ragged(np.asarray(v), np.arange(n + 1)) for name, v in kept.items()}


def broadcast(state: Arrays) -> Arrays:
    """What clients are sent of a state: all but the server's own."""
    return {name: values for name, values in state.items() if not name.startswith("server.")}


def own_row_numbers(state: Arrays, clients: Federation) -> Array | None:
    """For each client the row of `of_client.*` that is its own, -1 where it has none; None where the state has no rows.

    A computation that reveals may put `of_client.ids` and `of_client.<name>` arrays, one row per id, into its state.
    """
    if "of_client.ids" not in state:
        return None
    place = {v: i for i, v in enumerate(state["of_client.ids"].tolist())}
    return np.array([place.get(v, -1) for v in clients.ids.tolist()], dtype=np.int64)  # others may be elsewhere


def own_rows(state: Arrays, own: Array) -> Arrays:
    """The state as clients get it: of `of_client.*` each its own row, zeros where `of_client.known` is False."""
    mine = {name: values for name, values in state.items() if not name.startswith("of_client.")}
    mine["of_client.known"] = own >= 0
    for name, values in state.items():
        if name.startswith("of_client.") and name != "of_client.ids":
            rows = np.zeros((len(own), *values.shape[1:]), dtype=values.dtype)
            rows[own >= 0] = values[own[own >= 0]]
            mine[name] = rows
    return mine


def bytes_down(state: Arrays) -> int:
    """Bytes of the state one client gets."""
    number = len(state["of_client.ids"]) if "of_client.ids" in state else 1
    return sum(
        v.nbytes if not n.startswith("of_client.") else v.nbytes // max(number, 1)
        for n, v in state.items()
        if n != "of_client.ids"
    )


def cut(sizes: Array, clients: int, rows: int) -> list[tuple[int, int]]:
    """Cut clients of these sizes into blocks of at most so many clients and (but for one large client) so many rows.

    >>> cut(np.array([3, 3, 9, 1]), clients=2, rows=6)
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.concatenate(([0], np.cumsum(sizes)))
    blocks, begin = [], 0
    while begin < len(sizes):
        full = int(np.searchsorted(ends, ends[begin] + rows, side="right")) - 1
        end = max(begin + 1, min(begin + clients, full, len(sizes)))
        blocks.append((begin, end))
        begin = end
    return blocks


def sections(computation: Computation, sizes: Array, *, clipped: bool) -> list[list[tuple[int, int]]]:
    """The blocks of a cohort of these sizes, in runs that are each added up before they are added to one another.

    Up to 256 blocks a section is one block. Where sections begin depends on the computation and the cohort alone.

    >>> [len(section) for section in sections(Computation(), np.ones(300 * 512), clipped=False)][:2]
    [2, 2]
    """
    size = computation.block_clients
    if not clipped and not computation.reveals and computation.total_clients is not None:
        size = computation.total_clients
    blocks = cut(sizes, size, computation.block_rows)
    several = -(-len(blocks) // SECTIONS)
    return [blocks[begin : begin + several] for begin in range(0, len(blocks), several)] if blocks else []


def as_slice(positions: Array) -> Array | slice:
    """A slice where the positions follow one another, so that rows are viewed and not copied."""
    first, last = int(positions[0]), int(positions[-1])
    if last - first == len(positions) - 1 and np.all(positions[1:] > positions[:-1]):
        return slice(first, last + 1)
    return positions


def in_order(work: Callable[[S], T], items: Sequence[S], pool: ThreadPoolExecutor | None, threads: int) -> Iterator[T]:
    """The results in the order of the items, never more than a few ahead of the consumer."""
    if pool is None or len(items) == 1:
        yield from map(work, items)
        return
    several = 1 if len(items) < 64 else 8  # handing over a task costs as much as a small block
    waiting: deque[Future[list[T]]] = deque()
    try:
        for begin in range(0, len(items), several):
            waiting.append(pool.submit(lambda group: [work(item) for item in group], items[begin : begin + several]))
            if len(waiting) > 2 * threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        for future in waiting:  # an error or Ctrl-C: start nothing more, and leave nothing running
            future.cancel()
        wait(waiting)
