"""A cohort of nobody has the sum zero: one client more then moves it by its own contribution, as the ledger counts."""

from __future__ import annotations

import computations as found
import numpy as np
import pytest

from fedscape import Computation, Federation, Gaussian, Laplace, Local, Poisson, rounds
from fedscape.core.blocks import Task, broadcast, nobody
from fedscape.core.random import Key
from fedscape.mixtures.dirichlet_multinomial.private import Outline
from fedscape.privacy.release import Release

CASES = [pytest.param(c, f, id=name) for name, c, f in found.examples() if not c.reveals]


def released(computation: Computation, fed: Federation, cohort) -> np.ndarray:
    """The sum of this cohort before noise, in units of the clip."""
    release = Release(Gaussian(clip=1.0, multiplier=1e9), 1.0, b"", True, 1)
    reply = Local(fed).run(
        computation, computation.start(0), np.array(cohort, dtype=np.int64), Key(0, 0), release=release
    )
    sums = [v * release.grids[n] for n, v in sorted(reply.total.items()) if n != "clients"]
    return np.concatenate([np.ravel(v) for v in sums])


def test_one_client_more_than_none_moves_the_sum_by_no_more_than_the_clip():
    fed = Federation({"y": np.zeros(50, dtype=np.int64)}, [0, 50])
    moved = released(Outline(4), fed, [0]) - released(Outline(4), fed, [])
    assert np.linalg.norm(moved) <= 1.0


@pytest.mark.parametrize(("computation", "fed"), CASES)
def test_nobody_sends_nothing(computation, fed):
    for privacy in (Gaussian(clip=1.0, multiplier=1.0), Laplace(clip=1.0, epsilon=1.0)):
        release, metrics = (Release(privacy, 1.0, b"", True, 1) for _ in range(2))
        answer = nobody(fed, Task(computation, Key(0, 0), True, release, metrics), broadcast(computation.start(0)))
        assert not any(values.any() for values in (*answer.sent.values(), *answer.metrics.values()))


def test_an_empty_round_shows_no_client():
    class Ones(Computation):
        def start(self, seed):
            return {"n": np.zeros(1)}

        def step(self, state, clients, key):
            return {"n": np.ones((len(clients), 1))}, {}

        def update(self, state, total, key):
            return {"n": total["n"]}

    fed, privacy = Federation({"y": np.arange(6)}, np.arange(7)), Gaussian(clip=1.0, multiplier=1e-3, noise_seed=1)
    done = next(rounds(Ones(), fed, n_rounds=1, sampler=Poisson(1e-9), privacy=privacy))
    assert done.state["n"][0] == pytest.approx(0.0, abs=0.1)
