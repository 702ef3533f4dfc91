"""What does a round cost the driver of a Ray engine, with up to 10,000 workers?

Workers are simulated: a call is pickled as Ray does it, its result is pickled and read, and the clock stands still
while a worker works. What Ray itself takes for a call is measured beside it, by calls of an idle actor of a real
cluster, and added. So this is the time in which the driver is busy; the network, the relays and the workers come on
top.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np

from fedscape import Federation, FixedSize, Histogram, Key
from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Answer
from fedscape.core.sampling import candidates
from fedscape.core.schedule import Partial
from fedscape.engines.ray import engine as engines
from fedscape.engines.ray.relays import Relay
from fedscape.engines.ray.shard import Outcome, Part, joined_outcomes
from table import arguments, report


class Clock:
    """Counts the time of the driver and its calls."""

    def __init__(self) -> None:
        self.paused = 0.0
        self.calls = 0


class Ref:
    """A reference to an object in the object store, small wherever it is sent."""

    def __init__(self, value: Any) -> None:
        self.content = pickle.dumps(value, protocol=5)

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (16,)

    def read(self) -> Any:
        return pickle.loads(self.content)  # noqa: S301 - our own bytes


class Remote:
    """A method of a simulated actor."""

    def __init__(self, clock: Clock, actor: Actor, name: str) -> None:
        self.clock, self.actor, self.name = clock, actor, name

    def options(self, **_: Any) -> Remote:
        return self

    def remote(self, *given: Any) -> Any:
        self.clock.calls += 1
        if self.name != "take":
            pickle.dumps(given, protocol=5)
        begin = time.process_time()
        answer = getattr(self.actor, f"_{self.name}", lambda *_: None)(*given)
        pair = self.name == "run" or (self.name == "kept" and not self.actor.relay)
        result = tuple(map(Ref, answer)) if pair else Ref(answer)
        self.clock.paused += time.process_time() - begin
        return result


class Actor:
    """A worker that adds zeros, or a relay of such workers."""

    def __init__(self, cluster: type[SimulatedCluster], edges: list[tuple[int, int]]) -> None:
        self.cluster, self.relay, self.edges = cluster, not edges, edges

    def __getattr__(self, name: str) -> Remote:
        if name.startswith("_"):
            raise AttributeError(name)
        return Remote(self.cluster.clock, self, name)

    def _take(self, _first: int, _actors: Any, edges: Any) -> None:
        self.edges = edges

    def _outcome(self, part: Part) -> Outcome:
        partial = Partial(part.tree, part.level, part.first, part.first + len(part.nodes))
        for number, _ in enumerate(part.nodes, part.first):
            partial.add(part.level, number, Answer({"counts": np.zeros(self.cluster.width)}))
        return Outcome(partial.nodes, ({}, {}), {"shares": (np.dtype(float), (3,))} if self.cluster.keeps else {})

    def _places(self, ranks: Any) -> list[Any]:
        if not self.cluster.keeps:
            return []
        n = ranks.stop - ranks.start if isinstance(ranks, slice) else len(ranks)
        return [(ranks, {"shares": Ragged(np.zeros((n, 3)), np.arange(n + 1))})]

    def _run(self, _message: Any, given: Any, *_lent: Any) -> tuple[Outcome, list[Any]]:
        if not self.relay:
            return self._outcome(given), self._places(given.ranks)
        parts = [part for _, _, part, _ in given]
        outcome = joined_outcomes(parts, [self._outcome(part) for part in parts])
        return outcome, [place for part in parts for place in self._places(part.ranks)]

    def _draw(self, sampler: Any, key: Key, below: float) -> Any:
        first, last = self.edges[0][0], self.edges[-1][1]
        ids = np.arange(first, last)
        return candidates(sampler, ids, ids, key, below=below)

    def _kept(self) -> Any:
        places = [place for edge in self.edges for place in self._places(slice(*edge))]
        return places if self.relay else (None, places[0][1])


class Simulated:
    """What the engine asks of Ray."""

    class exceptions:
        RayError = RayActorError = RayTaskError = ObjectLostError = ConnectionError

    def __init__(self) -> None:
        from ray import cloudpickle

        self.cloudpickle = cloudpickle

    def put(self, value: Any) -> Ref:
        return Ref(value)

    def wait(self, refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return refs, []

    def get(self, refs: Any) -> Any:
        return [self.get(ref) for ref in refs] if isinstance(refs, list) else refs.read()

    def kill(self, _: Any) -> None:
        pass

    def is_initialized(self) -> bool:
        return True


class SimulatedCluster:
    """A cluster of simulated workers."""

    clock = Clock()
    width = 62
    keeps = False

    def __init__(self, _address: Any, workers: int, *_: Any) -> None:
        self.ray, self.workers = Simulated(), workers

    def room(self) -> int:
        return self.workers

    def machines(self) -> int:
        return self.workers  # what clients keep is copied to the driver

    def actor(self, kind: type, *given: Any, guest: bool = False) -> Actor:
        return Actor(SimulatedCluster, [] if kind is Relay else [given[1:3]])

    def leave(self) -> None:
        pass


def ray_call(calls: int = 2000) -> float:
    """Seconds of the driver for a call of an actor of a real cluster, and for reading its result."""
    import ray

    from fedscape.engines.ray.cluster import Cluster

    class Idle:
        def run(self, part: Any) -> Any:
            return part

    cluster = Cluster(None, 1, 1, 0.0, None)
    actor = cluster.actor(Idle)
    ray.get(actor.run.remote(0))
    part = ray.put(np.zeros(64))
    used = time.process_time()
    ray.get([actor.run.remote(part) for _ in range(calls)])
    used = time.process_time() - used
    cluster.leave()
    return used / calls


ROUNDS = {
    "all": (None, False),
    "10,000 drawn": (FixedSize(10_000), False),
    "all, who keep shares": (None, True),
    "10,000 drawn, who keep shares": (FixedSize(10_000), True),
}


def measure(workers: int, n: int, repeats: int, each: float) -> list[dict[str, Any]]:
    fed = Federation({"y": np.zeros(n, dtype=np.uint8)}, np.arange(n + 1))
    engines.Cluster, rows = SimulatedCluster, []
    clock = SimulatedCluster.clock
    for title, (sampler, keeps) in ROUNDS.items():
        SimulatedCluster.keeps = False
        with engines.Ray(Federation({"y": np.zeros(8, dtype=np.uint8)}, np.arange(9)), workers=1) as engine:
            engine.federation, engine._rank = fed, None
            engine._crew.stop()
            engine._crew.reshape(engine._edges(workers), [f"shard {i}" for i in range(workers)])
            SimulatedCluster.keeps = keeps
            work = Histogram(SimulatedCluster.width)
            state, seconds, calls = work.start(0), [], []
            for number in range(repeats):
                clock.paused, clock.calls = 0.0, 0
                begin = time.process_time()
                cohort = np.arange(n) if sampler is None else engine.draw(sampler, Key(0, number))
                engine.run(work, state, cohort, Key(0, number))
                seconds.append(time.process_time() - begin - clock.paused)
                calls.append(clock.calls)
        ours, many = float(np.mean(seconds[1:])), float(np.mean(calls[1:]))  # the first starts relays
        rows.append(
            {
                "clients": title,
                "workers": workers,
                "calls of the driver": round(many),
                "ours, s": ours,
                "Ray's, s": many * each,
                "driver, s": ours + many * each,
            }
        )
    return rows


def main() -> None:
    args = arguments(__doc__, clients=10_000_000, repeats=7)
    n = 200_000 if args.quick else args.clients
    args.repeats = 3 if args.quick else args.repeats
    each = ray_call(200 if args.quick else 2000)
    numbers = (2, 100) if args.quick else (100, 1000, 3200, 10_000)
    rows = [row for workers in numbers for row in measure(workers, n, args.repeats, each)]
    rows.sort(key=lambda row: list(ROUNDS).index(row["clients"]))
    report(
        "ray_driver",
        rows,
        note=f"{n:,} clients; CPU seconds, means of {args.repeats - 1} rounds; a call of Ray takes the driver "
        f"{1e6 * each:.0f} us",
    )


if __name__ == "__main__":
    main()
