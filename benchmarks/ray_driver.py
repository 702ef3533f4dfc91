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

from fedscape import Federation, Histogram, Key
from fedscape.core.blocks import Answer
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
        result = pickle.dumps(self.actor.answer(self.name, given), protocol=5)
        self.clock.paused += time.process_time() - begin
        return (result, b"") if self.name == "run" and not self.actor.relay else result


class Actor:
    """A worker that adds zeros, or a relay."""

    def __init__(self, clock: Clock, width: int, relay: bool) -> None:
        self.clock, self.width, self.relay = clock, width, relay

    def __getattr__(self, name: str) -> Remote:
        return Remote(self.clock, self, name)

    def outcome(self, part: Part) -> Outcome:
        partial = Partial(part.tree, part.level, part.first, part.first + len(part.nodes))
        for number, _ in enumerate(part.nodes, part.first):
            partial.add(part.level, number, Answer({"counts": np.zeros(self.width)}))
        return Outcome(partial.nodes, ({}, {}), {})

    def answer(self, name: str, given: tuple[Any, ...]) -> Any:
        if name == "run" and self.relay:
            parts = [part for _, part in given[1]]
            return joined_outcomes(parts, [self.outcome(part) for part in parts]), [b""] * len(parts)
        return (self.outcome(given[1]), []) if name == "run" else None


class Simulated:
    """What the engine asks of Ray."""

    class exceptions:
        RayError = RayActorError = RayTaskError = ObjectLostError = ConnectionError

    def __init__(self) -> None:
        from ray import cloudpickle

        self.cloudpickle = cloudpickle

    def put(self, value: Any) -> bytes:
        return pickle.dumps(value, protocol=5)

    def wait(self, refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return refs, []

    def get(self, refs: Any) -> Any:
        return [self.get(ref) for ref in refs] if isinstance(refs, list) else self.read(refs)

    def read(self, ref: bytes) -> Any:
        return pickle.loads(ref)  # noqa: S301 - our own bytes

    def kill(self, _: Any) -> None:
        pass

    def is_initialized(self) -> bool:
        return True


class SimulatedCluster:
    """A cluster of simulated workers."""

    clock = Clock()
    width = 62

    def __init__(self, _address: Any, workers: int, *_: Any) -> None:
        self.ray, self.workers = Simulated(), workers

    def room(self) -> int:
        return self.workers

    def machines(self) -> int:
        return 1

    def actor(self, kind: type, *_: Any, guest: bool = False) -> Actor:
        return Actor(self.clock, self.width, kind is Relay)

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


def measure(workers: int, n: int, repeats: int, each: float) -> dict[str, Any]:
    fed = Federation({"y": np.zeros(n, dtype=np.uint8)}, np.arange(n + 1))
    engines.Cluster = SimulatedCluster
    clock = SimulatedCluster.clock
    with engines.Ray(Federation({"y": np.zeros(8, dtype=np.uint8)}, np.arange(9)), workers=1) as small:
        engine = small
        engine.federation, engine._rank = fed, None
        engine._crew.stop()
        edges = engine._edges(workers)
        engine._crew.reshape(edges, [f"shard {i}" for i in range(workers)])
        work, cohort = Histogram(SimulatedCluster.width), np.arange(n)
        state, seconds, calls = work.start(0), [], 0
        for number in range(repeats):
            clock.paused, clock.calls = 0.0, 0
            begin = time.process_time()
            engine.run(work, state, cohort, Key(0, number))
            seconds.append(time.process_time() - begin - clock.paused)
            calls = clock.calls
    best = min(seconds[1:] or seconds)
    return {
        "workers": workers,
        "clients": n,
        "blocks": -(-n // 512),
        "calls of the driver": calls,
        "ours, s": best,
        "Ray's, s": calls * each,
        "driver, s": best + calls * each,
    }


def main() -> None:
    args = arguments(__doc__, clients=10_000_000, repeats=4)
    n = 200_000 if args.quick else args.clients
    each = ray_call(200 if args.quick else 2000)
    rows = [
        measure(workers, n, args.repeats, each) for workers in ((2, 100) if args.quick else (100, 1000, 3200, 10_000))
    ]
    report("ray_driver", rows, note=f"CPU seconds; a call of Ray takes the driver {1e6 * each:.0f} us")


if __name__ == "__main__":
    main()
