"""The worker pool of a Ray engine: start, call, restart workers that die."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fedscape.core.arrays import Ragged
from fedscape.core.random import Key
from fedscape.core.sampling import Sampler
from fedscape.engines.ray.cluster import Cluster
from fedscape.engines.ray.relays import RELAYED, Relays
from fedscape.engines.ray.shard import Assignment, Kinds, Outcome, Shard, Source, software
from fedscape.errors import EngineError, FedscapeError
from fedscape.formats.files import one_line
from fedscape.types import Array

T = TypeVar("T")
AHEAD = 2  # parts queued on a worker: one running, one waiting
RESTARTS = 3  # restarts of one worker in one round
START_SECONDS = 120.0
ROOM_SECONDS = 15.0  # so long a restarted worker waits for a core of its own


class Crew:
    """One process for each shard.

    The kept arrays of a shard's clients, as of the last finished round, are also in the object store, as a log: a
    snapshot, then the changes of each round since. A restarted worker reads it.

    Parameters
    ----------
    cluster
        The cluster in which processes are started.
    source
        Location of the rows.
    edges
        The ranks at which each shard begins and ends.
    names
        The name of each shard in error messages.
    threads, memory
        As for `Ray`.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        edges: Sequence[tuple[int, int]],
        names: Sequence[str],
        threads: int,
        memory: int | None,
    ) -> None:
        self.cluster, self.source, self.edges, self.names = cluster, source, edges, names
        self.threads, self.memory = threads, memory
        self._actors: list[Any] = []
        self._relays: Relays | None = None
        self._kept: dict[int, Any] = {}
        self._alarms = 0
        self._torn = False
        self._begin_empty()

    def _begin_empty(self) -> None:
        """Begin with clients that keep nothing."""
        self._log: list[list[tuple[str, tuple[Any, ...]]]] = [[] for _ in self.edges]
        self._logged = [0] * len(self.edges)
        self._deaths = [0] * len(self.edges)
        self._told: list[Kinds] = [{} for _ in self.edges]  # the kinds of kept arrays that each shard knows
        self._guests: set[int] = set()  # shards that have no core of their own

    # -- starting and stopping -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers, and let each open its files."""
        ray, versions = self.cluster.ray, software()
        self.machines = self.cluster.machines()
        self._actors = [self._new(shard) for shard in range(len(self.edges))]
        loads = [actor.load.remote(versions) for actor in self._actors]
        self._check_started(loads, START_SECONDS)
        try:
            for shard, load in enumerate(loads):
                self._value(shard, load)
        except ray.exceptions.RayActorError as error:
            self._revive(error)

    def _check_started(self, loads: Sequence[Any], seconds: float) -> None:
        ready, _ = self.cluster.ray.wait(list(loads), num_returns=len(loads), timeout=seconds)
        if len(ready) < len(loads):
            free = self.cluster.ray.available_resources()
            raise EngineError(
                f"only {len(ready)} of {len(loads)} workers started in {seconds:g} s; the cluster has "
                f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs to spare: ask for fewer workers"
            )

    def _new(self, shard: int, *, guest: bool = False) -> Any:
        return self.cluster.actor(Shard, self.source, *self.edges[shard], self.threads, self.memory, guest=guest)

    def stop(self) -> None:
        """End all workers."""
        self._drop_relays()
        while self._actors:
            self.cluster.ray.kill(self._actors.pop())

    def reshape(self, edges: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
        """Start anew with other shards, whose clients keep nothing yet."""
        self.stop()
        self.edges, self.names = edges, names
        self._begin_empty()
        self.start()

    def settle(self, room: int) -> None:
        """Give shards without a core of their own one each, where there is room now."""
        self.machines = self.cluster.machines()
        for shard in sorted(self._guests):
            if room < len(self.edges) - len(self._guests) + 1:
                return
            self.cluster.ray.kill(self._actors[shard])
            self._guests.discard(shard)
            self._begin_again(shard, EngineError("it moves to another machine"), moves=True)

    # -- a round -------------------------------------------------------------------------------------------------------

    def run(self, message: Any, assignments: Sequence[Assignment], *, lend: bool) -> Iterator[Outcome]:
        """Run the assignments and return their outcomes in order; a worker that dies is restarted and repeats its part.

        Few parts are in flight at a time: an error or Ctrl-C leaves little running. Very many workers have relays.
        """
        self._deaths, self._alarms, self._kept = [0] * len(self.edges), 0, {}
        if (relayed := self._by_relays(lambda relays: self._relayed(relays, message, assignments, lend))) is not None:
            yield from relayed
            return
        ray = self.cluster.ray
        lent = {i: self._lent(a, lend) for i, a in enumerate(assignments)}  # before any part, which they would wait for
        waiting: dict[int, deque[int]] = defaultdict(deque)
        for i, assigned in enumerate(assignments):
            waiting[assigned.shard].append(i)
        busy, flying = defaultdict[int, int](int), dict[Any, int]()
        done: dict[int, Outcome | FedscapeError] = {}
        end, turn, hungry = len(assignments), 0, list(waiting)
        while turn < len(assignments):
            for shard in hungry:
                while waiting[shard] and busy[shard] < AHEAD:
                    if (i := waiting[shard].popleft()) < end:
                        theirs = lent.pop(i, []) or self._lent(assignments[i], lend)
                        flying[self._send(i, assignments[i], message, theirs)] = i
                        busy[shard] += 1
            hungry = []
            if turn not in done:
                for ref in self._ready(list(flying)):
                    i = flying.pop(ref)
                    shard = assignments[i].shard
                    busy[shard] -= 1
                    hungry.append(shard)
                    try:
                        done[i] = self._value(shard, ref)
                        self._kept[i] = self._safe(shard, self._kept[i], done[i])
                    except (ray.exceptions.RayActorError, _Lost) as error:
                        waiting[shard].appendleft(i)
                        self._revive(error)
                    except FedscapeError as error:
                        done[i], end = error, min(end, i)
            while turn in done:
                outcome = done.pop(turn)
                if isinstance(outcome, FedscapeError):
                    raise outcome
                yield outcome
                turn += 1

    def _ready(self, refs: list[Any]) -> list[Any]:
        """All calls that are done, at least one."""
        ready, _ = self.cluster.ray.wait(refs, num_returns=len(refs), timeout=0)
        return list(ready or self.cluster.ray.wait(refs, num_returns=1)[0])

    def _lent(self, assigned: Assignment, lend: bool) -> list[Any]:
        return [self._actors[other].lend.remote(ranks) for other, ranks in assigned.guests] if lend else []

    def _send(self, index: int, assigned: Assignment, message: Any, lent: Sequence[Any]) -> Any:
        actor = self._actors[assigned.shard]
        outcome, self._kept[index] = actor.run.options(num_returns=2).remote(message, assigned.part, *lent)
        return outcome

    def _safe(self, shard: int, ref: Any, outcome: Outcome | FedscapeError) -> Any:
        """With several machines, a copy of what clients keep that is not lost with one of them."""
        if self.machines == 1 or isinstance(outcome, FedscapeError) or not outcome.kinds:
            return ref
        return self.cluster.ray.put(self._value(shard, ref))

    def _by_relays(self, work: Callable[[Relays], T | None]) -> T | None:
        """What this work returns with relays; None where there are few workers, or where one has died just now."""
        if len(self.edges) <= RELAYED:
            return None
        try:
            if self._relays is None:
                self._relays = Relays(self.cluster, self._actors, self.edges, RELAYED)
            return work(self._relays)
        except self.cluster.ray.exceptions.RayError as error:
            self._drop_relays()
            self._revive(error)
            return None

    def _relayed(
        self, relays: Relays, message: Any, assignments: Sequence[Assignment], lend: bool
    ) -> list[Outcome] | None:
        outcomes, refs = [], {}
        for to, (outcome, kept) in relays.run(message, assignments, lend).items():
            if isinstance(outcome, FedscapeError):
                return None  # the workers say it again, and with their names
            outcomes.append(outcome)
            refs[to] = self._copied(kept) if outcome.kinds else kept
        self._kept = {i: refs[assigned.shard // RELAYED] for i, assigned in enumerate(assignments)}
        return outcomes

    def _copied(self, ref: Any) -> Any:
        """With several machines, a copy of an object that is not lost with one of them."""
        return ref if self.machines == 1 else self.cluster.ray.put(self.cluster.ray.get(ref))

    def _drop_relays(self) -> None:
        if self._relays is not None:
            self._relays.stop()
        self._relays = None

    def draw(self, sampler: Sampler, key: Key, below: float) -> list[tuple[Array, Array]]:
        """Let each shard draw among its clients."""
        parts = self._by_relays(lambda relays: relays.draw(sampler, key, below))
        return self._all("draw", lambda shard: (sampler, key, below)) if parts is None else parts

    # -- kept arrays ---------------------------------------------------------------------------------------------------

    def check_whole(self) -> None:
        """Refuse to continue if a broken round updated the kept arrays of some clients and not of others."""
        if self._torn:
            raise EngineError(
                "a round broke off while it updated the kept arrays, and only some clients may have new ones: "
                "restore from the checkpoint, or start over"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Mark kept arrays as inconsistent until this context ends without an error."""
        self._torn = True
        yield
        self._torn = False

    def keep(self, kinds: Kinds, assignments: Sequence[Assignment]) -> None:
        """Finish the round: replace the kept arrays of its clients."""
        touching = defaultdict[int, list[int]](list)
        for i, a in enumerate(assignments):
            for shard in (a.shard, *(other for other, _ in a.guests)):
                touching[shard].append(i)
        with self._changing():
            shards = [shard for shard in range(len(self.edges)) if touching[shard] or self._told[shard] != kinds]
            for shard in shards:  # where no client took part, the names are new
                refs = dict.fromkeys(self._kept[i] for i in touching[shard])
                self._log[shard].append(("keep", (kinds, *refs)))
                self._logged[shard] += sum(assignments[i].clients for i in touching[shard])
                self._told[shard] = kinds
            news = {shard: self._log[shard][-1][1] for shard in shards}
            if self._by_relays(lambda relays: relays.keep(kinds, news)) is None:
                self._all("keep", lambda shard: news[shard], shards)
            self._kept = {}
            if long := [s for s, (begin, end) in enumerate(self.edges) if self._logged[s] > 2 * (end - begin)]:
                self._shorten(long)

    def _shorten(self, shards: Sequence[int]) -> None:
        """Compact the logs of these shards into snapshots: they are longer than those."""
        copies = self._by_relays(lambda relays: [(each, self._copied(ref)) for each, ref in relays.kept(shards)])
        if copies is not None:
            for shard, copied in ((shard, copied) for group, copied in copies for shard in group):
                self._log[shard], self._logged[shard] = [("keep", (self._told[shard], copied))], 0  # it takes its part
            return
        calls = [(shard, *self._actors[shard].kept.options(num_returns=2).remote()) for shard in shards]
        for shard, finished, kept in calls:
            try:
                self._value(shard, finished)
                copied = self._copied(kept)
            except (self.cluster.ray.exceptions.RayError, _Lost) as error:  # the log stays, and is long
                self._revive(error)
            else:
                self._log[shard], self._logged[shard] = [("restore", (copied,))], 0

    def kept(self) -> list[Mapping[str, Ragged]]:
        """The kept arrays of each shard's clients."""
        return [kept for _, kept in self._all("kept", lambda shard: ())]

    def restore(self, parts: Sequence[Mapping[str, Ragged]]) -> None:
        """Restore the kept arrays of each shard's clients."""
        with self._changing():
            self._log = [[("restore", (self.cluster.ray.put(part),))] for part in parts]
            self._logged, self._told = [0] * len(parts), [{} for _ in parts]
            self._all("restore", lambda shard: self._log[shard][0][1])

    def forget(self) -> None:
        """Drop the kept arrays of all clients."""
        with self._changing():
            self._log, self._logged = [[] for _ in self.edges], [0] * len(self.edges)
            self._told = [{} for _ in self.edges]
            self._all("forget", lambda shard: ())

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _all(
        self, method: str, arguments: Callable[[int], tuple[Any, ...]], shards: Sequence[int] | None = None
    ) -> list[Any]:
        """Call all workers, or those of some shards; if one dies, all calls are repeated: every call is idempotent."""
        whose = range(len(self.edges)) if shards is None else shards
        while True:
            refs = [(shard, getattr(self._actors[shard], method).remote(*arguments(shard))) for shard in whose]
            try:
                return [self._value(shard, ref) for shard, ref in refs]
            except self.cluster.ray.exceptions.RayActorError as error:
                self._revive(error)

    def _value(self, shard: int, ref: Any) -> Any:
        """The return value of a worker; a failure names its shard, the death of a worker passes through."""
        errors = self.cluster.ray.exceptions
        try:
            value = self.cluster.ray.get(ref)
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayActorError):  # the shard that should lend has died
                raise error.cause from None
            raise EngineError(f"{self.names[shard]}: {self._cause(error)}") from error
        except errors.ObjectLostError as error:
            raise _Lost(
                f"{self.names[shard]}: its kept arrays were lost with a machine; resume from the last checkpoint"
            ) from error
        if isinstance(value, FedscapeError):
            raise type(value)(f"{value}, in {self.names[shard]}")
        return value

    def _cause(self, error: Any) -> str:
        """The cause of a worker's failure, on one line."""
        if isinstance(error.cause, self.cluster.ray.exceptions.RaySystemError):  # its text includes the traceback
            last = str(error.cause).strip().splitlines()[-1]
            return f"{last}: a computation of your own must be in a module that workers can import"
        bound = isinstance(error.cause, MemoryError) and self.memory is not None
        text = f"{type(error.cause).__name__}: {one_line(error.cause)}"
        return f"{text}; memory={self.memory:,} bounds it" if bound else text

    def _revive(self, error: Exception) -> None:
        """Restart dead workers and restore their state.

        Ray reports deaths at once; a worker that does not answer in time has a long part to run.
        """
        dead = self.cluster.ray.exceptions.RayActorError
        pings = {actor.ping.remote(): shard for shard, actor in enumerate(self._actors)}
        answered, _ = self.cluster.ray.wait(list(pings), num_returns=len(pings), timeout=START_SECONDS)
        lost = False
        for ping in answered:
            shard = pings[ping]
            try:
                self._value(shard, ping)
            except dead as death:
                lost = True
                self._begin_again(shard, death)
        self._alarms += not lost
        if self._alarms > RESTARTS * len(self._actors):
            raise EngineError(f"the workers are alive, but cannot be reached: {one_line(error)}") from error

    def _begin_again(self, shard: int, death: Exception, *, moves: bool = False) -> None:
        while True:
            self._deaths[shard] += not moves
            if self._deaths[shard] > RESTARTS:
                self._deaths[shard] = 0  # the next round may try again
                bound = "" if self.memory is None else f"; memory={self.memory:,} bounds it"
                raise EngineError(
                    f"{self.names[shard]}: its worker died {RESTARTS + 1} times in one round{bound}; Ray says: "
                    + str(death).strip().splitlines()[-1]
                ) from death
            self._drop_relays()
            calls = self._started_again(shard)
            try:
                for call in calls:
                    self._value(shard, call)
                return
            except self.cluster.ray.exceptions.RayActorError as again:
                death = again

    def _started_again(self, shard: int) -> list[Any]:
        """Start a worker and restore what its clients keep; where no machine has room, on one that is full already."""
        for guest in (shard in self._guests, True):
            actor = self._actors[shard] = self._new(shard, guest=guest)
            calls = [actor.load.remote(software())]
            calls += [getattr(actor, method).remote(*arguments) for method, arguments in self._log[shard]]
            try:
                self._check_started(calls[:1], START_SECONDS if guest else ROOM_SECONDS)
            except EngineError as error:
                self.cluster.ray.kill(actor)  # the next call finds it dead and does not wait
                if guest:
                    raise EngineError(f"{self.names[shard]}, whose worker died: {error}") from None
                continue
            if guest:
                self._guests.add(shard)
            break
        return calls


class _Lost(EngineError):
    """An object was lost with a machine."""
