"""Rounds on many workers, in this process: a small stand-in for Ray calls the real shards and relays."""

from __future__ import annotations

import itertools
import pickle
import sys
import types

import numpy as np
import pytest

from fedscape import All, Computation, Federation, FixedSize, Gaussian, Key, Local, Poisson, rounds
from fedscape.core.arrays import Ragged
from fedscape.engines.ray import engine as engines
from fedscape.engines.ray import workers as crew
from fedscape.engines.ray.shard import Shard
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.personal import Ditto


class Died(Exception):
    """An actor has died."""


class Ref:
    def __init__(self, value, owner=None):
        self.value, self.owner = value, owner

    def get(self):
        if isinstance(self.value, Died):
            raise self.value
        return self.value


class Method:
    def __init__(self, actor, name, returns=1):
        self.actor, self.name, self.returns = actor, name, returns

    def options(self, num_returns):
        return Method(self.actor, self.name, num_returns)

    def remote(self, *given):
        actor, ray = self.actor, self.actor.ray
        try:
            given = [each.get() if isinstance(each, Ref) else each for each in given]
            if actor.dead or ray.dies(actor, self.name):
                actor.dead = True
                raise Died(f"{self.name} of an actor that is dead")
            answer = getattr(actor.made, self.name)(*given)
        except Died as death:
            return Ref(death) if self.returns == 1 else [Ref(death)] * self.returns
        return Ref(answer) if self.returns == 1 else [Ref(each) for each in answer]


class Actor:
    def __init__(self, ray, made):
        self.ray, self.made, self.dead = ray, made, False

    def __getattr__(self, name):
        return Method(self, name)


class InProcess(types.ModuleType):
    """What engines, workers and relays ask of Ray."""

    def __init__(self):
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayError=Died, RayActorError=Died, RayTaskError=(), ObjectLostError=())
        self.cloudpickle, self.deaths, self.rate = pickle, 0, 0.0
        self.rng = np.random.default_rng(0)

    def dies(self, actor, name):
        now = (
            isinstance(actor.made, Shard) and name in ("run", "lend", "keep", "draw") and self.rng.random() < self.rate
        )
        self.deaths += now
        return now

    def put(self, value):
        return Ref(value)

    def get(self, refs):
        return [ref.get() for ref in refs] if isinstance(refs, list) else refs.get()

    def wait(self, refs, num_returns=1, timeout=None):
        return refs, []

    def kill(self, actor):
        actor.dead = True

    def is_initialized(self):
        return True


@pytest.fixture
def ray(monkeypatch):
    fake = InProcess()

    class Cluster:
        def __init__(self, _address, workers, *_):
            self.ray, self.workers = fake, workers

        def room(self):
            return self.workers

        def machines(self):
            return 3

        def actor(self, kind, *given, guest=False):
            return Actor(fake, kind(*given))

        def leave(self):
            pass

    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(engines, "Cluster", Cluster)
    monkeypatch.setattr(crew, "RELAYED", 8)
    monkeypatch.setattr(crew, "RESTARTS", 10**6)
    return fake


class Diary(Computation):
    """Sums whose last digits depend on the order of addition; clients keep a list that grows by a draw a round."""

    block_clients = 2

    def start(self, seed):
        return {"sum": np.zeros(3)}

    def step(self, state, clients, key):
        old = clients.kept.get("diary", Ragged(np.empty(0), np.zeros(len(clients) + 1, dtype=np.int64)))
        draws = key.uniform(clients) + clients.sizes
        ends = old.offsets + np.arange(len(clients) + 1)
        flat = np.empty(ends[-1])
        flat[ends[1:] - 1] = draws
        flat[np.setdiff1d(np.arange(ends[-1]), ends[1:] - 1)] = old.flat
        past = np.array([flat[a:b].sum() for a, b in itertools.pairwise(ends)])
        return {"sum": np.stack((draws, past, np.exp(state["sum"][0] - past)), axis=1)}, {"diary": Ragged(flat, ends)}

    def measure(self, state, clients):
        return {"size": np.sqrt(clients.sizes)}

    def update(self, state, total, key):
        return {"sum": total["sum"] / total["clients"]}


def people(n):
    rng = np.random.default_rng(n)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 6, n))))
    return Federation({"y": rng.integers(0, 4, offsets[-1])}, offsets, ids=rng.permutation(n))


def left(engine, sampler, n_rounds=5, **how):
    loop = rounds(Diary(), engine, n_rounds=n_rounds, sampler=sampler, **how)
    told = [(r.clients, r.abandoned, r.state["sum"].tobytes(), str(r.metrics)) for r in loop]
    kept = loop.engine.kept()
    return told, {name: (each.flat.tobytes(), each.offsets.tobytes()) for name, each in kept.items()}


SAMPLERS = [All(), FixedSize(40), FixedSize(1), Poisson(0.3), Poisson(0.003)]  # of the last most cohorts are empty


@pytest.mark.parametrize(("clients", "workers"), [(5, 1), (5, 9), (60, 7), (60, 60), (60, 150), (600, 23), (600, 300)])
def test_any_number_of_workers_and_relays_gives_the_bytes_of_local(ray, clients, workers):
    fed = people(clients)  # 600 clients are 300 blocks, which are added by a tree
    with engines.Ray(fed, workers=workers) as engine:
        for sampler in SAMPLERS:
            if getattr(sampler, "size", 0) <= clients:
                assert left(engine, sampler) == left(Local(fed), sampler)
                key = Key(7).to("cohort")
                if type(sampler) is not All:
                    assert engine.draw(sampler, key).tolist() == sampler.draw(fed, key).tolist()
        assert (engine._crew._relays is not None) == (engine.workers > 8)


def test_groups_that_train_go_to_all_workers_evenly_wherever_their_clients_are(ray, monkeypatch):
    """As on several GPUs: five groups a round; a worker borrows the models that clients of other shards keep."""
    monkeypatch.setattr(crew, "RELAYED", 2)
    ran, run = [], Shard.run
    monkeypatch.setattr(Shard, "run", lambda self, message, part, *lent: (
        ran.append((self.begin, len(part.nodes))), run(self, message, part, *lent))[1])  # fmt: skip
    rng = np.random.default_rng(0)
    fed = people(40)
    fed = Federation({"x": rng.normal(size=(fed.n_rows, 3)), "y": fed["y"] % 2}, fed.offsets, ids=fed.ids)
    local = LocalSGD(models.linear(3, 2), cross_entropy, lr=0.5, epochs=1, batch_size=3, group_size=4)

    def ending(engine):
        loop = rounds(Ditto(local), engine, n_rounds=4, sampler=FixedSize(20))
        states = [v.tobytes() for r in loop for v in r.state.values()]
        return states, [(n, k.flat.tobytes(), k.offsets.tobytes()) for n, k in sorted(loop.engine.kept().items())]

    expected = ending(Local(fed, threads=1))
    for workers in (1, 2, 5, 7):
        ran.clear()
        with engines.Ray(fed, workers=workers) as engine:
            assert ending(engine) == expected
        loads = np.array([sum(nodes for begin, nodes in ran if begin == first) for first in {b for b, _ in ran}])
        assert loads.sum() == 5 * 4
        assert len(loads) == min(workers, 5)
        assert np.ptp(loads) <= 4  # a group more in each round


@pytest.mark.parametrize("workers", [7, 40])
@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_workers_that_die_again_and_again_change_nothing(ray, monkeypatch, workers, rate):
    fed = people(120)
    with engines.Ray(fed, workers=workers) as engine:
        for sampler in SAMPLERS[:4]:
            expected = left(Local(fed), sampler, 7)
            ray.rate, ray.deaths = rate / workers, 0
            assert left(engine, sampler, 7) == expected
            ray.rate = 0.0
    assert ray.deaths


def test_a_private_empty_cohort_is_a_release_like_any_other(ray):
    fed, how = people(60), {"privacy": Gaussian(clip=3.0, multiplier=1.0, noise_seed=1), "measure": 0}
    with engines.Ray(fed, workers=20) as engine:
        for sampler in (Poisson(0.003), Poisson(0.3)):
            assert left(engine, sampler, 3, **how) == left(Local(fed), sampler, 3, **how)
