"""A cohort in blocks: what clients of a process do in a round, and how it is added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.computation import Computation, sent_and_kept
from fedscape.core.federation import Federation
from fedscape.core.kept import Pages, joined
from fedscape.core.random import Key
from fedscape.core.validate import all_finite
from fedscape.errors import DataError, EngineError, NotFinite
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.privacy.release import Release


@dataclass(frozen=True)
class Reply:
    """The result of a cohort: sums, sums of metrics, number of clients that reported, bytes per client.

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


@dataclass(frozen=True)
class Task:
    """The work of a block of clients."""

    computation: Computation
    key: Key
    measure: bool
    release: Release | None
    measure_release: Release | None


class Block(NamedTuple):
    """Clients that one call of `step` sees: where their rows are, and their place among what is kept."""

    where: Array | slice
    place: Array | slice


@dataclass
class Answer:
    """The partial result of a block of clients; blocks, and runs of blocks, are added in order."""

    sent: Arrays = field(default_factory=dict)
    metrics: Arrays = field(default_factory=dict)
    revealed: dict[str, list[Array]] = field(default_factory=dict)
    kept: list[tuple[Array | slice, Mapping[str, Ragged]]] = field(default_factory=list)
    bytes_up: int = 0
    owned: set[str] = field(default_factory=set)  # names of sums in memory of this answer, which are added to in place

    def add(self, other: Answer) -> None:
        """Add the answer of the next clients."""
        for what in ("sent", "metrics"):
            sums, new = getattr(self, what), getattr(other, what)
            for name, values in new.items():
                own = f"{what} {name}"
                if name not in sums:
                    sums[name] = values
                elif own in self.owned and sums[name].dtype == values.dtype:
                    sums[name] += values
                else:
                    sums[name] = sums[name] + values
                    self.owned.add(own)
        for name, rows in other.revealed.items():
            self.revealed.setdefault(name, []).extend(rows)
        self.kept += other.kept
        self.bytes_up = max(self.bytes_up, other.bytes_up)

    def reply(self, computation: Computation, ids: Array, state: Arrays) -> Reply:
        """The reply of the clients of these ids, who received this state."""
        total = {**self.sent, **{name: np.concatenate(rows) for name, rows in self.revealed.items()}}
        if computation.reveals:
            total["ids"] = ids
        total["clients"] = np.asarray(len(ids))
        return Reply(total, self.metrics, len(ids), bytes_down(state), self.bytes_up)


class Site:
    """Clients of a process at work in one round: what `Local` and the workers of other engines have in common."""

    def __init__(self, federation: Federation, task: Task, sent: Arrays, *, whole: Federation | None = None) -> None:
        self.federation, self.task = federation, task
        self.whole = whole  # the clients of the only block, if they were borrowed before
        self._state = task.computation.prepare(sent)
        self._own = own_row_numbers(sent, federation)

    def run(self, blocks: Sequence[Block], kept: Callable[[Array | slice], Mapping[str, Ragged]]) -> Answer:
        """Run these blocks in order and add them; `kept` returns what the clients at a place keep."""
        answer = Answer()
        for block in blocks:
            answer.add(self._run_one(block, kept(block.place)))
        return answer

    def _run_one(self, block: Block, kept: Mapping[str, Ragged]) -> Answer:
        clients = self.federation.borrow(block.where) if self.whole is None else self.whole
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
    fast = computation.total(state, clients, task.key)
    totals, left = fast if isinstance(fast, tuple) else (fast or {}, {})
    sums = {name: values for name, values in totals.items() if name not in computation.reveals}
    lost = computation.reveals and not all(np.isfinite(float(v.sum())) for v in sums.values())
    if fast is not None and not lost:  # for a bad number step names the client
        if missing := set(computation.reveals) - set(totals):
            raise EngineError(f"{type(computation).__name__}.total must have a row a client of {sorted(missing)}")
        rows = _checked(computation, {name: totals[name] for name in computation.reveals}, clients)
        up = sum(v.nbytes for v in sums.values()) + _bytes_each(rows)
        return Answer(sums, metrics, {n: [v] for n, v in rows.items()}, _placed(left, clients, place), up)
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
    """The sent and kept arrays of these clients; a failing step counts as a client without rows.

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
    """Bytes of one client's row of these arrays."""
    return sum(v.itemsize * int(np.prod(v.shape[1:])) for v in rows.values())


def on_host(arrays: Mapping[str, Any]) -> Arrays:
    """Copy sums that were left on a device to NumPy arrays."""
    return {name: np.asarray(v.cpu() if hasattr(v, "cpu") else v) for name, v in arrays.items()}


def _placed(kept: Kept, clients: Federation, place: Array | slice) -> list[tuple[Array | slice, Mapping[str, Ragged]]]:
    return [(place, as_ragged(kept, len(clients)))] if kept else []


def _summed(rows: Arrays) -> Arrays:
    return {name: add_up(values) for name, values in rows.items()}


def sum_type(values: Array) -> type[np.int64] | type[np.float64]:
    """The dtype of sums of these arrays."""
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
    each: dict[str, Any] = {name: v if isinstance(v, Pages | Ragged) else np.asarray(v) for name, v in kept.items()}
    return {name: v if isinstance(v, Ragged) else Ragged(v, np.arange(n + 1)) for name, v in each.items()}


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
