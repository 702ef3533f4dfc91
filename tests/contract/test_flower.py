"""Every Computation gives over Flower what it gives in one process, to rounding."""

from __future__ import annotations

from pathlib import Path

import computations as found
import numpy as np
import pytest

from fedscape import Computation, Federation, Flower, Gaussian, Local, rounds
from fedscape.engines.flower import LocalGrid, Terms, client_app, computations

CASES = {}
for _name, _computation, _fed in found.examples():
    CASES.setdefault(
        _computation.digest(), pytest.param(_computation, _fed, id=_name)
    )  # estimators repeat their phases
every = pytest.mark.parametrize(("computation", "fed"), CASES.values())
PRIVATE = [case for case in CASES.values() if case.id in ("moments-0", "dm-score-ascent-0", "gm-em-1", "fedavg-1")]
NODES = 3


def flower(computation: Computation, fed: Federation, folder: Path, **how) -> Flower:
    known = not computations.described(computation)["theirs"] and in_list(computation)
    app = client_app(
        lambda context: fed.take(np.arange(context.node_config["part"], len(fed), NODES)),
        folder=lambda context: folder / str(context.node_id),
        computations=() if known else (computation,),
        terms=Terms(reveals=computation.reveals),
    )
    return Flower(LocalGrid(app, [{"part": part} for part in range(NODES)]), min_clients=2, poll=0.001, **how)


def in_list(computation: Computation) -> bool:
    return computations.name_of(computation) in computations.KNOWN


def assert_close(a: dict, b: dict) -> None:
    assert set(a) == set(b)
    for name, values in a.items():
        if values.dtype.kind in "US":
            assert values.tolist() == b[name].tolist(), name
            continue
        scale = max(float(np.abs(np.asarray(values, dtype=float)).max(initial=0.0)), 1.0)
        np.testing.assert_allclose(values, b[name], rtol=1e-7, atol=1e-8 * scale, err_msg=name)


@every
def test_flower_agrees_with_local(computation, fed, tmp_path):
    here = list(rounds(computation, Local(fed, threads=1), n_rounds=2, allow=computation.reveals))
    engine = flower(computation, fed, tmp_path)
    there = list(rounds(computation, engine, n_rounds=2, allow=computation.reveals))
    assert not engine.troubles
    for a, b in zip(here, there, strict=True):
        assert (a.clients, b.clients, dict(b.faults)) == (len(fed), len(fed), {})
        assert_close(a.state, b.state)
        assert_close(a.metrics, b.metrics)


@pytest.mark.parametrize(("computation", "fed"), PRIVATE)
def test_private_sums_over_flower_are_those_of_local(computation, fed, tmp_path):
    privacy = Gaussian(clip=1.0, multiplier=2.0, noise_seed=1)
    states = []
    for engine in (Local(fed, threads=1, min_clients=2), flower(computation, fed, tmp_path)):
        with rounds(computation, engine, n_rounds=1, privacy=privacy) as loop:
            states.append(next(loop).state)
    assert_close(*states)


def test_what_needs_no_code_is_on_the_list():
    """A statistic that could cross and is not on the list would need its owner to supply it for no reason."""
    loose = {
        type(c).__module__
        for _, c, _ in found.examples()
        if not computations.described(c)["theirs"] and not in_list(c) and "torch" not in type(c).__module__
    }
    assert not {module for module in loose if module.split(".")[1] not in ("learning", "personal", "temporal")}
