"""The worker pool of a Ray engine: start, call, restart workers that die."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedscape.core.arrays import Ragged
from fedscape.engines.ray.cluster import Cluster
from fedscape.engines.ray.shard import Kinds, Outcome, Part, Shard, Source, software
from fedscape.errors import EngineError, FedscapeError
from fedscape.formats.files import one_line
from fedscape.types import Array

AHEAD = 2  # parts queued on a worker: one running, one waiting
RESTARTS = 3  # restarts of one worker in one round
START_SECONDS = 120.0


@dataclass(frozen=True)
class Assignment:
    """A part of a round, the shard that runs it, and its clients of other shards."""

    shard: int
    part: Part
    guests: list[tuple[int, Array]]
    clients: int


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
        self._round: tuple[Any, ...] | None = None
        self._kept: dict[int, Any] = {}
        self._log: list[list[tuple[str, tuple[Any, ...]]]] = [[] for _ in edges]
        self._logged = [0] * len(edges)
        self._deaths = [0] * len(edges)
        self._alarms = 0
        self._torn = False

    # -- starting and stopping -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers, and let each open its files."""
        ray, versions = self.cluster.ray, software()
        self._actors = [self._new(shard) for shard in range(len(self.edges))]
        loads = [actor.load.remote(versions) for actor in self._actors]
        self._check_started(loads)
        try:
            for shard, load in enumerate(loads):
                self._value(shard, load)
        except ray.exceptions.RayActorError as error:
            self._revive(error)

    def _check_started(self, loads: Sequence[Any]) -> None:
        ready, _ = self.cluster.ray.wait(list(loads), num_returns=len(loads), timeout=START_SECONDS)
        if len(ready) < len(loads):
            free = self.cluster.ray.available_resources()
            raise EngineError(
                f"only {len(ready)} of {len(loads)} workers started in {START_SECONDS:g} s; the cluster has "
                f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs to spare: ask for fewer workers"
            )

    def _new(self, shard: int) -> Any:
        return self.cluster.actor(Shard, self.source, *self.edges[shard], self.threads, self.memory)

    def stop(self) -> None:
        """End all workers."""
        for actor in self._actors:
            self.cluster.ray.kill(actor)
        self._actors = []

    # -- a round -------------------------------------------------------------------------------------------------------

    def open(self, digest: str, computation: Any, message: Any) -> None:
        """Open the round on every worker."""
        self._deaths, self._alarms = [0] * len(self.edges), 0
        self._round = (digest, computation, message)
        self._all("open", lambda shard: self._round or ())

    def run(self, assignments: Sequence[Assignment], *, lend: bool) -> Iterator[Outcome]:
        """Run the assignments and return their outcomes in order; a worker that dies is restarted and repeats its part.

        Only a few parts are in flight at a time: an error or Ctrl-C leaves little running.
        """
        ray = self.cluster.ray
        waiting = [deque(i for i, a in enumerate(assignments) if a.shard == shard) for shard in range(len(self.edges))]
        flying: dict[Any, int] = {}
        done: dict[int, Outcome | FedscapeError] = {}
        self._kept, end = {}, len(assignments)
        for turn in range(len(assignments)):
            while turn not in done:
                for shard, queue in enumerate(waiting):
                    room = AHEAD - sum(assignments[i].shard == shard for i in flying.values())
                    for _ in range(min(room, len(queue))):
                        if (i := queue.popleft()) < end:
                            flying[self._send(i, assignments[i], lend)] = i
                ref = ray.wait(list(flying), num_returns=1)[0][0]
                i = flying.pop(ref)
                try:
                    done[i] = self._value(assignments[i].shard, ref)
                except ray.exceptions.RayActorError as error:
                    waiting[assignments[i].shard].appendleft(i)
                    self._revive(error)
                except FedscapeError as error:
                    done[i], end = error, min(end, i)
            outcome = done.pop(turn)
            if isinstance(outcome, FedscapeError):
                raise outcome
            yield outcome

    def _send(self, index: int, assigned: Assignment, lend: bool) -> Any:
        lent = [self._actors[other].lend.remote(ranks) for other, ranks in assigned.guests] if lend else []
        actor = self._actors[assigned.shard]
        outcome, self._kept[index] = actor.run.options(num_returns=2).remote(assigned.part, *lent)
        return outcome

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
        with self._changing():
            for shard, log in enumerate(self._log):
                mine = [i for i, a in enumerate(assignments) if shard in (a.shard, *(other for other, _ in a.guests))]
                log.append(("keep", (kinds, *(self._kept[i] for i in mine))))
                self._logged[shard] += sum(assignments[i].clients for i in mine)
            self._all("keep", lambda shard: self._log[shard][-1][1])
            self._kept = {}
            for shard, (begin, end) in enumerate(self.edges):
                if self._logged[shard] > 2 * (end - begin):
                    self._shorten(shard)

    def _shorten(self, shard: int) -> None:
        """Compact the log of a shard into a snapshot when it is longer than the snapshot."""
        finished, kept = self._actors[shard].kept.options(num_returns=2).remote()
        try:
            self._value(shard, finished)
        except self.cluster.ray.exceptions.RayActorError as error:
            self._revive(error)
        else:
            self._log[shard], self._logged[shard] = [("restore", (kept,))], 0

    def kept(self) -> list[Mapping[str, Ragged]]:
        """The kept arrays of each shard's clients."""
        return [kept for _, kept in self._all("kept", lambda shard: ())]

    def restore(self, parts: Sequence[Mapping[str, Ragged]]) -> None:
        """Restore the kept arrays of each shard's clients."""
        with self._changing():
            self._log = [[("restore", (self.cluster.ray.put(part),))] for part in parts]
            self._logged, self._round = [0] * len(parts), None
            self._all("restore", lambda shard: self._log[shard][0][1])

    def forget(self) -> None:
        """Drop the kept arrays of all clients."""
        with self._changing():
            self._log, self._logged, self._round = [[] for _ in self.edges], [0] * len(self.edges), None
            self._all("forget", lambda shard: ())

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """Call all workers; if one dies, all calls are repeated: every call is idempotent."""
        while True:
            refs = [getattr(actor, method).remote(*arguments(shard)) for shard, actor in enumerate(self._actors)]
            try:
                return [self._value(shard, ref) for shard, ref in enumerate(refs)]
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
            raise EngineError(
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

    def _begin_again(self, shard: int, death: Exception) -> None:
        while True:
            self._deaths[shard] += 1
            if self._deaths[shard] > RESTARTS:
                self._deaths[shard] = 0  # the next round may try again
                bound = "" if self.memory is None else f"; memory={self.memory:,} bounds it"
                raise EngineError(
                    f"{self.names[shard]}: its worker died {RESTARTS + 1} times in one round{bound}; Ray says: "
                    + str(death).strip().splitlines()[-1]
                ) from death
            actor = self._actors[shard] = self._new(shard)
            calls = [actor.load.remote(software())]
            calls += [getattr(actor, method).remote(*arguments) for method, arguments in self._log[shard]]
            calls += [] if self._round is None else [actor.open.remote(*self._round)]
            try:
                self._check_started(calls[:1])
            except EngineError as error:
                self.cluster.ray.kill(actor)  # the next call finds it dead and does not wait
                raise EngineError(f"{self.names[shard]}, whose worker died: {error}") from None
            try:
                for call in calls:
                    self._value(shard, call)
                return
            except self.cluster.ray.exceptions.RayActorError as again:
                death = again
