"""Every computation of the package on Ray: the same bytes as on `Local`, whatever the number of workers."""

from __future__ import annotations

import computations as found
import numpy as np
import pytest

import fedscape.core.blocks
import fedscape.core.schedule
from fedscape import FixedSize, Gaussian, Ray, rounds
from fedscape.engines.ray.cluster import Cluster
from fedscape.engines.ray.shard import Shard
from fedscape.engines.ray.workers import Crew


@pytest.fixture
def processes_used_again(monkeypatch):
    """A hundred engines share four processes; each begins anew in the ones it is given."""
    idle, start = [], Cluster.actor

    def actor(self, kind, *arguments, guest=False):
        if not idle:
            return start(self, kind, *arguments)
        again = idle.pop()
        self.ray.get(again.__ray_call__.remote(lambda shard, *given: Shard.__init__(shard, *given), *arguments))
        return again

    def stop(self):
        idle.extend(self._actors)
        self._actors = []

    monkeypatch.setattr(Cluster, "actor", actor)
    monkeypatch.setattr(Crew, "stop", stop)


@pytest.fixture
def small_blocks(monkeypatch):
    """Examples are small: five blocks or so, so that every shard has one, and some belong to two shards."""
    cut = fedscape.core.schedule.cut
    few = lambda sizes, clients, rows: cut(sizes, min(clients, max(2, len(sizes) // 5)), rows)  # noqa: E731
    monkeypatch.setattr(fedscape.core.schedule, "cut", few)


@pytest.fixture(scope="module")
def held():
    """One cluster, or each engine would start its own."""
    cluster = Cluster(None, 4, 1, 0.0, None)
    yield cluster
    cluster.leave()


def cases():
    """The first example of each kind with all numbers of workers, others in short; ids are not in their order."""
    seen, kinds = set(), set()
    for name, computation, fed in found.examples():
        what = (type(computation), computation.digest(), fed.fingerprint())
        if what not in seen:
            mixed = fed.take(np.random.default_rng(len(seen)).permutation(len(fed)))
            yield name, computation, mixed, *(((4,), 2) if type(computation) in kinds else ((1, 2, 4), 5))
            seen.add(what)
            kinds.add(type(computation))


def run(computation, engine, **how):
    """All that the rounds leave: states, metrics, bytes, and what clients keep."""
    loop = rounds(computation, engine, allow=computation.reveals, **how)
    made = {}
    for r in loop:
        made |= {f"{r.index} state {n}": v.tobytes() for n, v in r.state.items()}
        made |= {f"{r.index} metric {n}": np.asarray(v).tobytes() for n, v in r.metrics.items()}
        made[f"{r.index} bytes"] = (r.bytes_up, r.bytes_down, r.clients)
    for name, kept in loop.engine.kept().items():
        made |= {f"kept {name}": kept.flat.tobytes(), f"kept {name} by": kept.offsets.tobytes()}
    return made


def test_every_computation_gives_the_bytes_of_local(held, processes_used_again, small_blocks):
    wrong, tried = [], set()
    for name, computation, fed, numbers, n_rounds in cases():
        how = {"sampler": FixedSize(max(1, 2 * len(fed) // 3)), "n_rounds": n_rounds}
        here = run(computation, fed, **how)
        for workers in numbers:
            with Ray(fed, workers=workers) as engine:
                there = run(computation, engine, **how)
            if here != there:
                wrong.append((name, workers, [n for n in here if here[n] != there.get(n)]))
            tried.add((type(computation), workers))
    _, computation, fed = next(case for case in found.examples() if case[0] == "histogram-0")
    for place in ("central", "distributed", "local"):
        secret = {"n_rounds": 2, "privacy": Gaussian(clip=3.0, multiplier=1.0, place=place, noise_seed=5)}
        with Ray(fed, workers=2) as engine:
            assert run(computation, engine, **secret) == run(computation, fed, **secret)
    assert not wrong
    assert {workers for _, workers in tried} == {1, 2, 4}
    assert len(tried) >= 60


@pytest.mark.parametrize("example", ["gm-em-1", "gm-em-3"])
def test_private_rounds_of_floats_give_the_bytes_of_local_and_so_does_what_clients_keep(
    held, processes_used_again, small_blocks, example
):
    _, computation, fed = next(case for case in found.examples() if case[0] == example)
    mixed = fed.take(np.random.default_rng(1).permutation(len(fed)))
    for place in ("central", "distributed", "local"):
        how = {"n_rounds": 3, "privacy": Gaussian(clip=3.0, multiplier=0.1, place=place, noise_seed=5)}
        here = run(computation, mixed, **how)
        with Ray(mixed, workers=2) as engine:
            assert run(computation, engine, **how) == here
        assert here["kept shares"]
        other = {**how, "privacy": Gaussian(clip=3.0, multiplier=0.1, place=place, noise_seed=6)}
        assert run(computation, mixed, **other)["kept shares"] != here["kept shares"]  # the noise of a round shows
