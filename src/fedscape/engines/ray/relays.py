"""Between the driver and very many workers: each relay calls a group of them and adds up what they return."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedscape.core.random import Key
from fedscape.core.sampling import Sampler
from fedscape.engines.ray.cluster import Cluster
from fedscape.engines.ray.shard import Assignment, Kept, Kinds, Outcome, Part, Place, joined_outcomes
from fedscape.errors import FedscapeError
from fedscape.types import Array

Lent = dict[tuple[int, int], tuple[int, Kept]]  # by part and shard: a number of clients and what they keep
RelayedPart = tuple[int, int, Part, list[tuple[int, Array]]]  # its number, its shard, and its clients of other shards
RELAYED = 64  # workers of one relay; with more than that, calls go through relays


class Relay:
    """Calls a group of workers, in a process of its own, and adds up what they return."""

    def take(self, first: int, actors: Sequence[Any], edges: Sequence[tuple[int, int]]) -> None:
        """Take the workers of consecutive shards with these edges, the first of which has this number."""
        self.first, self.actors, self.edges = first, actors, edges

    def lend(self, wanted: Sequence[tuple[int, int, Array]]) -> Lent:
        """What clients keep, for parts of other groups; wanted are the number of the part, the shard, its clients."""
        import ray

        lent = ray.get([self.actors[shard - self.first].lend.remote(ranks) for _, shard, ranks in wanted])
        return {(part, shard): each for (part, shard, _), each in zip(wanted, lent, strict=True)}

    def run(
        self, message: Any, parts: Sequence[RelayedPart], *lent: Lent
    ) -> tuple[Outcome | FedscapeError, list[Place]]:
        """Let workers run these parts; returns their outcomes as one, and what clients keep."""
        import ray

        borrowed: dict[tuple[int, int], Any] = {where: each for group in lent for where, each in group.items()}
        for number, _, _, guests in parts:  # before any part, for which they would have to wait
            for other, ranks in guests:
                if (number, other) not in borrowed:
                    borrowed[number, other] = self._worker(other).lend.remote(ranks)
        calls = []
        for number, shard, part, guests in parts:
            theirs = [borrowed[number, other] for other, _ in guests]
            calls.append(self._worker(shard).run.options(num_returns=2).remote(message, part, *theirs))
        outcomes = ray.get([outcome for outcome, _ in calls])
        for outcome in outcomes:
            if isinstance(outcome, FedscapeError):
                return outcome, []
        kept = [ref for refs in ray.get([kept for _, kept in calls]) for ref in refs]
        return joined_outcomes([part for _, _, part, _ in parts], outcomes), kept

    def _worker(self, shard: int) -> Any:
        return self.actors[shard - self.first]

    def draw(self, sampler: Sampler, key: Key, below: float) -> tuple[Array, Array] | FedscapeError:
        """Let workers draw among their clients; returns all their candidates."""
        import ray

        parts = ray.get([actor.draw.remote(sampler, key, below) for actor in self.actors])
        where, numbers = (np.concatenate(each) for each in zip(*parts, strict=True))
        return where, numbers

    def keep(self, kinds: Kinds, shards: Sequence[int], *parts: Sequence[Place]) -> FedscapeError | None:
        """Let the workers of these shards replace what their clients keep; each takes its own."""
        import ray

        shipped = [ray.put(part) for part in parts]
        calls = [self.actors[shard - self.first].keep.remote(kinds, *shipped) for shard in shards]
        return next((answer for answer in ray.get(calls) if isinstance(answer, FedscapeError)), None)

    def kept(self) -> list[Place]:
        """What the clients of all workers keep."""
        import ray

        kept = [arrays for _, arrays in ray.get([actor.kept.remote() for actor in self.actors])]
        return [(slice(*edge), arrays) for edge, arrays in zip(self.edges, kept, strict=True)]


class Relays:
    """The relays of a worker pool, as the driver calls them.

    Parameters
    ----------
    cluster
        The cluster in which they are started.
    actors, edges
        The workers, and the ranks at which the shard of each begins and ends.
    each
        Number of workers of a relay.
    """

    def __init__(self, cluster: Cluster, actors: Sequence[Any], edges: Sequence[tuple[int, int]], each: int) -> None:
        self.ray, self.each = cluster.ray, each
        self.groups = [range(begin, min(begin + each, len(edges))) for begin in range(0, len(edges), each)]
        self.actors = [cluster.actor(Relay, guest=True) for _ in self.groups]
        self.ray.get(
            [
                relay.take.remote(group[0], [actors[i] for i in group], [edges[i] for i in group])
                for relay, group in zip(self.actors, self.groups, strict=True)
            ]
        )

    def stop(self) -> None:
        """End them."""
        for actor in self.actors:
            self.ray.kill(actor)

    def run(
        self, message: Any, assignments: Sequence[Assignment], lend: bool
    ) -> dict[int, tuple[Outcome | FedscapeError, Any]]:
        """Outcomes by group, in order, and references to what clients keep."""
        parts = defaultdict[int, list[RelayedPart]](list)
        wanted = defaultdict[tuple[int, int], list[tuple[int, int, Array]]](list)
        for i, assigned in enumerate(assignments):
            to, guests = assigned.shard // self.each, assigned.guests if lend else []
            parts[to].append((i, assigned.shard, assigned.part, guests))
            for other, ranks in guests:
                if other // self.each != to:
                    wanted[other // self.each, to].append((i, other, ranks))
        lent = defaultdict[int, list[Any]](list)
        for (of, to), each in wanted.items():  # before any part, for which they would have to wait
            lent[to].append(self.actors[of].lend.remote(each))
        refs = {
            to: self.actors[to].run.options(num_returns=2).remote(message, mine, *lent[to])
            for to, mine in parts.items()  # rising, as the assignments
        }
        outcomes = self.ray.get([outcome for outcome, _ in refs.values()])
        return {to: (outcome, refs[to][1]) for to, outcome in zip(refs, outcomes, strict=True)}

    def draw(self, sampler: Sampler, key: Key, below: float) -> list[tuple[Array, Array]] | None:
        """The candidates of each group."""
        parts = self.ray.get([relay.draw.remote(sampler, key, below) for relay in self.actors])
        return None if any(isinstance(part, FedscapeError) for part in parts) else parts

    def keep(self, kinds: Kinds, news: Mapping[int, tuple[Any, ...]]) -> bool | None:
        """Let shards replace what their clients keep."""
        groups = defaultdict[int, list[int]](list)
        for shard in news:
            groups[shard // self.each].append(shard)
        calls = []
        for to, shards in groups.items():
            refs = dict.fromkeys(ref for shard in shards for ref in news[shard][1:])
            calls.append(self.actors[to].keep.remote(kinds, shards, *refs))
        return None if any(isinstance(answer, FedscapeError) for answer in self.ray.get(calls)) else True

    def kept(self, shards: Sequence[int]) -> list[tuple[range, Any]]:
        """The groups of these shards, with a reference to what their clients keep."""
        refs = [(group, self.actors[group[0] // self.each].kept.remote()) for group in self._of(shards)]
        for _, ref in refs:
            self.ray.get(ref)  # they are there
        return refs

    def _of(self, shards: Sequence[int]) -> list[range]:
        return [self.groups[to] for to in sorted({shard // self.each for shard in shards})]
