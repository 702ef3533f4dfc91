"""The laws every Computation obeys. New algorithms get these tests by giving `examples()`."""

from __future__ import annotations

import importlib
import itertools
import re

import computations as found
import numpy as np
import pytest

from fedscape import Computation, Federation, Gaussian, Key, Ledger, Local, PrivacyError, rounds
from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Reply, broadcast
from fedscape.core.computation import stable_name
from fedscape.core.rounds import frozen
from fedscape.engines.flower.computations import KNOWN
from fedscape.errors import TooFewClients
from fedscape.privacy.release import Release

CASES = [pytest.param(c, f, id=name) for name, c, f in found.examples()]
every = pytest.mark.parametrize(("computation", "fed"), CASES)


STATES: dict[int, dict] = {}  # by case: most laws look at the same state, and none may change it


def state_after(computation: Computation, fed: Federation):
    """The state after two rounds."""
    if id(computation) not in STATES:
        *_, last = rounds(computation, fed, n_rounds=2, allow=computation.reveals)
        STATES[id(computation)] = frozen(last.state)
    return STATES[id(computation)]


def run(computation: Computation, fed: Federation, state, *, threads: int = 1, cohort=None) -> Reply:
    everyone = np.arange(len(fed)) if cohort is None else np.asarray(cohort, dtype=np.int64)
    return Local(fed, threads=threads).run(computation, state, everyone, Key(0, 3), measure=True)


def assert_close(a: dict, b: dict, *, but: tuple[str, ...] = ("ids",)) -> None:
    assert set(a) == set(b)
    for name in set(a) - set(but):
        scale = max(float(np.abs(np.asarray(a[name], dtype=float)).max(initial=0.0)), 1.0)
        np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-9 * scale, err_msg=name)


def assert_same_bytes(a: dict, b: dict) -> None:
    assert set(a) == set(b)
    for name in a:
        assert np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes(), name


def test_names_are_stable_and_unique():
    """Files and messages name a computation: two of one name, or a name that goes with a module, would break them."""
    names = [kind.__dict__.get("name", "") for kind in found.computations()]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names), names
    assert len(set(names)) == len(names)


def test_computations_that_nodes_know_are_found_under_their_names():
    for name, place in KNOWN.items():
        module, _, kind = place.partition(":")
        assert stable_name(getattr(importlib.import_module(module), kind)) == name


def test_there_is_something_to_test():
    names = {kind.__name__ for kind in found.computations()}
    assert {"Histogram", "Moments", "FederatedKMeans"} <= names
    assert len(CASES) >= len(names)


@every
def test_block_size_does_not_change_the_sum(computation, fed, monkeypatch):
    state = state_after(computation, fed)
    whole = run(computation, fed, state)
    for clients in (1, 3, 7):
        monkeypatch.setattr(type(computation), "block_clients", clients)
        monkeypatch.setattr(type(computation), "total_clients", clients)
        cut = run(computation, fed, state)
        assert_close(whole.total, cut.total)
        assert_close(whole.metrics, cut.metrics)


@every
def test_threads_give_the_same_bytes(computation, fed, monkeypatch):
    monkeypatch.setattr(type(computation), "block_clients", 4)
    monkeypatch.setattr(type(computation), "total_clients", 4)
    state = state_after(computation, fed)
    one = run(computation, fed, state, threads=1)
    for threads in (2, 4):
        assert_same_bytes(one.total, run(computation, fed, state, threads=threads).total)


@every
def test_order_of_clients_does_not_change_a_byte(computation, fed):
    state = state_after(computation, fed)
    mixed = fed.take(np.random.default_rng(0).permutation(len(fed)))
    assert_same_bytes(run(computation, fed, state).total, run(computation, mixed, state).total)


@every
def test_sum_over_a_union_is_the_sum_of_sums(computation, fed):
    fed = fed.take(np.argsort(fed.ids))
    state = state_after(computation, fed)
    half = len(fed) // 2
    first, second = (run(computation, fed, state, cohort=c).total for c in (range(half), range(half, len(fed))))
    rows = {*computation.reveals, "ids"}  # client by client, and so one after the other
    joined = {n: np.concatenate([v, second[n]]) if n in rows else v + second[n] for n, v in first.items()}
    assert_close(run(computation, fed, state).total, joined)


@every
def test_a_client_alone_sends_its_row_of_the_block(computation, fed):
    state = state_after(computation, fed)
    rows, _ = computation.step(computation.prepare(broadcast(state)), fed, Key(0, 3))
    for i in {0, len(fed) // 2, len(fed) - 1}:
        alone, _ = computation.step(computation.prepare(broadcast(state)), fed.take([i]), Key(0, 3))
        assert_close({n: v[0] for n, v in alone.items()}, {n: v[i] for n, v in rows.items()})


@every
def test_total_equals_the_sum_of_what_clients_send(computation, fed):
    state = state_after(computation, fed)
    fast = computation.total(computation.prepare(broadcast(state)), fed, Key(0, 3))
    rows, kept = computation.step(computation.prepare(broadcast(state)), fed, Key(0, 3))
    if fast is not None:
        fast, left = fast if isinstance(fast, tuple) else (fast, {})
        assert_close(_plain(left), _plain(kept))
        seen = computation.reveals
        assert_close(fast, {n: values if n in seen else values.sum(axis=0) for n, values in rows.items()})
    for name, values in rows.items():
        assert len(values) == len(fed), name


def _plain(kept: dict) -> dict:
    return {name: values.flat if isinstance(values, Ragged) else values for name, values in kept.items()}


@every
def test_an_empty_client_is_normal(computation, fed):
    state = state_after(computation, fed)
    nobody = {name: values[:0] for name, values in fed.columns.items()}
    empty = Federation(nobody, [0, 0], ids=["~none"], names=fed.names)
    reply = run(computation, empty, state)
    assert all(np.isfinite(np.asarray(v, dtype=float)).all() for n, v in reply.total.items() if n != "ids")
    new = computation.update(state, reply.total, Key(0, 3))
    assert all(np.isfinite(v).all() for v in new.values() if v.dtype.kind == "f")


@every
def test_an_empty_cohort_is_abandoned_and_changes_nothing(computation, fed):
    state = state_after(computation, fed)
    with pytest.raises(TooFewClients, match="min_clients"):
        run(computation, fed, state, cohort=[])


@every
def test_results_are_finite_and_the_state_is_not_changed(computation, fed):
    state = state_after(computation, fed)
    before = {name: values.tobytes() for name, values in state.items()}
    reply = run(computation, fed, state)
    new = computation.update(state, reply.total, Key(0, 3))
    assert all(np.isfinite(v).all() for v in new.values() if np.asarray(v).dtype.kind == "f")
    assert {name: values.tobytes() for name, values in state.items()} == before


@every
def test_metrics_have_one_row_per_client(computation, fed):
    state = state_after(computation, fed)
    for name, values in computation.measure(computation.prepare(broadcast(state)), fed).items():
        assert len(values) == len(fed), name
        assert np.isfinite(values).all(), name


@every
def test_likelihood_does_not_fall_when_everyone_takes_part(computation, fed):
    seen = []
    for r in rounds(computation, fed, n_rounds=6, allow=computation.reveals):
        seen += [r.metrics["log_likelihood"]] if "log_likelihood" in r.metrics else []
        if r.index == 2 and not seen:
            return  # it has none
    for before, after in itertools.pairwise(seen):
        assert (after >= before - 1e-9 * np.abs(before)).all()


@every
def test_a_resumed_run_ends_in_the_same_bytes(computation, fed, tmp_path):
    whole = [r.state for r in rounds(computation, fed, n_rounds=4, allow=computation.reveals)][-1]
    for r in rounds(computation, fed, n_rounds=2, allow=computation.reveals):
        r.save(tmp_path / "run")
    again = [r.state for r in rounds(computation, fed, n_rounds=4, resume=tmp_path / "run", allow=computation.reveals)]
    assert len(again) == 2
    assert_same_bytes(whole, again[-1])


@every
def test_no_client_moves_a_private_sum_by_more_than_the_clip(computation, fed):
    state = state_after(computation, fed)
    rows, _ = computation.step(computation.prepare(broadcast(state)), fed, Key(0, 3))
    sent = {name: values for name, values in rows.items() if name not in computation.reveals}
    if not sent:
        return  # nothing is summed
    length = np.sqrt(sum((values.reshape(len(fed), -1).astype(float) ** 2).sum(axis=1) for values in sent.values()))
    clip = float(np.median(length[length > 0]))
    release = Release(Gaussian(clip=clip, multiplier=1.0), clip, b"key", True, 1)
    cells = release.on_clients(sent, fed)
    clipped = [(cells[name] * release._grids[name]).reshape(len(fed), -1) for name in sent]
    assert np.linalg.norm(np.concatenate(clipped, axis=1), axis=1).max() <= clip


@every
def test_a_private_run_is_finite_and_written_down(computation, fed):
    if computation.reveals:
        with pytest.raises(PrivacyError, match="reveals rows"):
            next(
                rounds(
                    computation, fed, n_rounds=1, allow=computation.reveals, privacy=Gaussian(clip=1.0, multiplier=1.0)
                )
            )
        return
    ledger = Ledger()
    for r in rounds(computation, fed, n_rounds=3, privacy=Gaussian(clip=1.0, multiplier=2.0), ledger=ledger):
        assert all(np.isfinite(v).all() for v in r.state.values() if v.dtype.kind == "f")
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 3


@every
def test_parameters_are_stored_under_their_names_and_make_the_same_computation(computation, fed):
    again = type(computation)(**computation.get_params())
    assert again.digest() == computation.digest()
    assert type(computation).__name__ in repr(computation)
