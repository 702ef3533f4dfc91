"""The Flower engine over nodes in one process: what is lost, late, twice or wrong, and who believes whom."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fedscape import (
    DataError,
    EngineError,
    FederatedKMeans,
    Federation,
    FixedSize,
    Flower,
    Gaussian,
    GaussianMixture,
    Histogram,
    Key,
    Laplace,
    LatentClassRegression,
    Ledger,
    Local,
    MixtureOfDirichletMultinomials,
    Moments,
    Poisson,
    rounds,
)
from fedscape.core import codec
from fedscape.core.blocks import sum_type
from fedscape.core.computation import Computation
from fedscape.engines.flower import LocalGrid, Terms, client_app, computations, wire
from fedscape.engines.flower.library import Message, RecordDict
from fedscape.errors import CheckpointError, TooFewClients
from fedscape.mixtures.dirichlet_multinomial.private import DifferenceMoments
from fedscape.privacy.mechanisms import AdaptiveClip
from fedscape.privacy.release import Release
from fedscape.sketches import DistributionSketch

_spec = importlib.util.spec_from_file_location("nodes", Path(__file__).with_name("nodes.py"))
nodes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nodes)
engine_of, federation, Remember = nodes.engine_of, nodes.federation, nodes.Remember


class Faulty(LocalGrid):
    """A grid in which one node misbehaves in one round; `wrong` takes the reply and gives what comes instead."""

    node = 2
    at = 1
    wrong = staticmethod(lambda grid, message, reply: [reply])

    def deliver(self, message):
        reply = super().deliver(message)[0]
        self.last = getattr(self, "last", {})
        bad = message.metadata.dst_node_id == self.node and message.metadata.group_id == str(self.at)
        started = _header(message).get("op") == "run"
        out = self.wrong(self, message, reply) if bad and started else [reply]
        if message.metadata.dst_node_id == self.node and started and not bad:
            self.last["reply"] = reply
        return out


def _header(message):
    return wire.read(wire.disclose(message.content, 2**30))[1]


def answered(message, blob: bytes):
    return Message(wire.enclose(blob), reply_to=message)


def changed(reply, message, change):
    arrays, header = wire.read(wire.disclose(reply.content, 2**30))
    return answered(message, codec.pack(*change(arrays, header)))


def with_counts(make):
    def change(arrays, header):
        return {**arrays, "total/counts": make(arrays["total/counts"])}, header

    return lambda grid, message, reply: [changed(reply, message, change)]


def other_request(arrays, header):
    return arrays, {**header, "request": "0" * 64}


FAULTS = {
    "NaN": ("corrupt", with_counts(lambda v: np.full(v.shape, np.nan))),
    "wrong shape": ("corrupt", with_counts(lambda v: np.append(v, 1))),
    "oversized": ("corrupt", with_counts(lambda v: np.zeros(10**6, dtype=np.int64))),
    "random bytes": ("corrupt", lambda grid, message, reply: [answered(message, os.urandom(500))]),
    "damaged bytes": (
        "corrupt",
        lambda grid, message, reply: [answered(message, wire.disclose(reply.content, 2**30)[:-40] + bytes(40))],
    ),
    "no content of ours": ("corrupt", lambda grid, message, reply: [Message(RecordDict({}), reply_to=message)]),
    "last round's reply": (
        "corrupt",
        lambda grid, message, reply: [Message(grid.last["reply"].content, reply_to=message)],
    ),
    "another request's reply": (
        "corrupt",
        lambda grid, message, reply: [changed(reply, message, other_request)],
    ),
    "more clients than asked": (
        "corrupt",
        lambda grid, message, reply: [changed(reply, message, lambda a, h: (a, {**h, "clients": 10**6}))],
    ),
    "missing": ("missing", lambda grid, message, reply: []),
}


def grid_with(wrong, **settings):
    return type("Bad", (Faulty,), {"wrong": staticmethod(wrong), **settings})


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_answer_is_counted_left_out_and_named(name, tmp_path):
    fed = federation()
    kind, wrong = FAULTS[name]
    engine = engine_of(fed, tmp_path, grid=grid_with(wrong), largest=10**6)
    done = list(rounds(Histogram(3), engine, n_rounds=3))
    others = fed.take([i for i in range(12) if i % 3 != 1])
    assert [r.clients for r in done] == [12, 8, 12]
    assert [dict(r.faults) for r in done] == [{}, {kind: 1}, {}]
    assert done[1].state["counts"].tolist() == others.counts("y", 3).sum(axis=0).tolist()
    assert done[2].state["counts"].tolist() == fed.counts("y", 3).sum(axis=0).tolist()
    assert len(engine.troubles) == 1
    assert f"round 1, node 2: {kind}" in engine.troubles[0]


def test_a_lost_answer_is_asked_for_again_and_nothing_is_lost(tmp_path):
    lost = []

    def lose_once(grid, message, reply):
        lost.append(1)
        return [] if len(lost) == 1 else [reply]

    fed = federation()
    whole = [r.state["past"] for r in rounds(Remember(), fed, n_rounds=4)]
    engine = engine_of(fed, tmp_path, grid=grid_with(lose_once), own=(Remember(),))
    done = list(rounds(Remember(), engine, n_rounds=4))
    assert len(lost) == 2
    np.testing.assert_allclose([r.state["past"] for r in done], whole, rtol=1e-12)


def test_two_answers_count_once(tmp_path):
    fed = federation()
    engine = engine_of(fed, tmp_path, grid=grid_with(lambda grid, message, reply: [reply, reply]))
    done = list(rounds(Histogram(3), engine, n_rounds=2))
    assert dict(done[1].faults) == {"duplicate": 1}
    assert done[1].state["counts"].tolist() == fed.counts("y", 3).sum(axis=0).tolist()


def test_a_late_answer_is_dropped_and_counted_in_the_round_in_which_it_comes(tmp_path):
    class Late(LocalGrid):
        held = None

        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if self.held is not None and self.release:
                found, self.held = [*found, self.held], None
            return found

        release = False

        def deliver(self, message):
            reply = super().deliver(message)[0]
            if message.metadata.dst_node_id == 2 and message.metadata.group_id == "0" and self.slow:
                self.held, self.slow = reply, False
                return []
            if message.metadata.group_id == "1":
                self.release = True
            return [reply]

        slow = False

    engine = engine_of(federation(), tmp_path, grid=Late, attempts=1)
    engine.grid.slow = True
    done = list(rounds(Histogram(3), engine, n_rounds=2))
    assert [dict(r.faults) for r in done] == [{"missing": 1}, {"late": 1}]
    assert [r.clients for r in done] == [8, 12]


def test_an_answer_that_was_not_counted_leaves_no_trace_in_what_clients_keep(tmp_path):
    """Node 2's second answer is lost: the sums go on as if it had not been asked then."""
    fed = federation()
    engine = engine_of(fed, tmp_path, grid=grid_with(lambda *_: []), own=(Remember(),), attempts=1)
    there = [r.state["sum"] for r in rounds(Remember(), engine, n_rounds=3)]
    local = Local(fed, threads=1)
    everyone = np.arange(12)
    cohorts = [everyone, everyone[everyone % 3 != 1], everyone]
    here = [r.state["sum"] for r in rounds(Remember(), local, n_rounds=3, sampler=Listed(cohorts))]
    np.testing.assert_allclose(there, here, rtol=1e-12)


def test_a_node_of_one_client_sends_numbers_in_their_own_type_and_one_of_several_the_sum_in_float64(tmp_path):
    import torch
    from torch import nn

    from fedscape.learning import FedAvg, LocalSGD, cross_entropy

    rng = np.random.default_rng(0)
    fed = Federation({"x": rng.normal(size=(24, 3)), "y": rng.integers(0, 2, 24)}, np.arange(0, 25, 2))
    torch.manual_seed(0)  # of some weights the sum happens to be one of float32
    torch.manual_seed(0)
    linear = nn.Linear(3, 2, dtype=torch.float32)
    method = FedAvg(LocalSGD(linear, cross_entropy, lr=0.3, epochs=1, batch_size=2))
    here = [r.state for r in rounds(method, fed, n_rounds=3)]
    sent, up = {}, {}

    class Seen(LocalGrid):
        def deliver(self, message):
            replies = super().deliver(message)
            arrays, header = wire.read(wire.disclose(replies[0].content, 2**30))
            if "clients" in header:
                sent[header["clients"]] = {n: v.dtype for n, v in arrays.items()}
            return replies

    for n_nodes in (12, 3):
        engine = engine_of(fed, tmp_path / str(n_nodes), nodes=n_nodes, grid=Seen, own=(method,))
        done = list(rounds(method, engine, n_rounds=3, measure=0))
        up[n_nodes] = done[-1].bytes_up
        for a, b in zip(done, here, strict=True):
            for name, values in b.items():
                np.testing.assert_allclose(a.state[name], values, rtol=1e-5, atol=1e-6)
    assert sent[1]["total/delta.weight"] == np.float32
    assert sent[4]["total/delta.weight"] == np.float64
    assert up[12] == 4 * 8 + 1  # eight weights, and the number of rows
    assert up[3] > 8 * 6


class Listed:
    """A sampler with the cohort of each round written down."""

    def __init__(self, cohorts):
        self.cohorts = cohorts

    def draw(self, clients, key):
        return np.asarray(self.cohorts[key.round])


def test_too_few_clients_abandon_the_round_and_say_why(tmp_path):
    engine = engine_of(federation(), tmp_path, grid=grid_with(lambda *_: []), min_clients=10)
    done = list(rounds(Histogram(3), engine, n_rounds=3))
    assert [r.abandoned for r in done] == [False, True, False]
    assert dict(done[1].faults) == {"missing": 1}
    fitted = Histogram(3).fit(engine_of(federation(), tmp_path / "2"))
    assert "missing" not in fitted.history_.columns
    engine.grid.down = {1, 3}
    with pytest.raises(TooFewClients, match=r"4 clients reported, min_clients is 10 \(2 missing\)") as caught:
        engine.run(Histogram(3), Histogram(3).start(0), np.arange(12), _key())
    assert caught.value.faults == {"missing": 2}


def _key():
    return Key(0)


def test_nodes_that_answer_in_two_ways_are_an_error_where_neither_is_more_common(tmp_path):
    grid = grid_with(with_counts(lambda v: np.append(v, 1)))
    engine = engine_of(federation(), tmp_path, grid=grid, nodes=2)
    loop = rounds(Histogram(3), engine, n_rounds=2)
    next(loop)
    with pytest.raises(EngineError, match="there is no majority"):
        next(loop)


# -- who is there ------------------------------------------------------------------------------------------------------


def test_a_roster_has_every_client_once_in_the_order_of_ids(tmp_path):
    engine = engine_of(federation(7), tmp_path)
    assert engine.clients.ids.tolist() == [f"c{i:02d}" for i in range(7)]
    assert engine.clients.nodes.tolist() == [0, 1, 2, 0, 1, 2, 0]
    np.testing.assert_array_equal(engine.clients.keys, federation(7).keys)


def test_two_nodes_with_one_client_and_too_few_nodes_are_refused(tmp_path):
    app = client_app(lambda context: federation(2), folder=tmp_path)
    with pytest.raises(EngineError, match="two nodes claim the client c00"):
        Flower(LocalGrid(app, [{}, {}]), poll=0.001)
    with pytest.raises(EngineError, match="1 nodes are online after 0 s, 2 are needed"):
        Flower(LocalGrid(app, [{}]), nodes=2, wait=0, poll=0.001)
    broken = client_app(lambda context: 1 / 0, folder=tmp_path)
    with pytest.raises(EngineError, match="node 1: missing: it cannot answer in this run, its own log says why"):
        Flower(LocalGrid(broken, [{}]), poll=0.001)
    assert "division by zero" in (tmp_path / "log.jsonl").read_text()


def test_a_node_without_a_folder_is_an_error_on_the_node(tmp_path):
    app = client_app(lambda context: federation(2))
    with pytest.raises(DataError, match="a node needs a folder of its own"):
        Flower(LocalGrid(app, [{}]), poll=0.001)


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(DataError, match="attempts must be at least 1"):
        engine_of(federation(), tmp_path, attempts=0)
    with pytest.raises(DataError, match="unnoised must be a whole number of at least 0, not -1"):
        Terms(unnoised=-1)


# -- estimators --------------------------------------------------------------------------------------------------------


def test_estimators_learn_the_same_as_in_one_process(tmp_path):
    fed = federation(40)
    there = engine_of(fed, tmp_path / "a")
    a = MixtureOfDirichletMultinomials(2, n_categories=3, n_init=2, rounds=4, tol=0.0).fit(fed)
    b = MixtureOfDirichletMultinomials(2, n_categories=3, n_init=2, rounds=4, tol=0.0).fit(there)
    np.testing.assert_allclose(a.concentrations_, b.concentrations_, rtol=1e-6)
    rng = np.random.default_rng(1)
    numbers = Federation(
        {"x": rng.normal(size=(60, 2)), "y": rng.normal(size=60), "entity": rng.integers(0, 3, 60)},
        np.arange(0, 61, 5),
    )
    there = engine_of(numbers, tmp_path / "b")
    for kind, learned in (
        (GaussianMixture(2, n_features=2, rounds=3), "means_"),
        (LatentClassRegression(2, rounds=3), "coefficients_"),
        (Moments(), "mean_"),
        (FederatedKMeans(2, bound=4.0), "centres_"),
        (DistributionSketch(rows=5, bits=2), "total_"),
    ):
        own = {"features": "x", "target": "y", "entity": "entity"} if isinstance(kind, LatentClassRegression) else {}
        here = getattr(type(kind)(**kind.get_params()).fit(numbers, **own), learned)
        np.testing.assert_allclose(getattr(kind.fit(there, **own), learned), here, rtol=1e-6, atol=1e-9)


def test_sampled_cohorts_are_those_of_one_process(tmp_path):
    fed = federation(30)
    engine = engine_of(fed, tmp_path)
    for sampler in (FixedSize(9), Poisson(0.5)):
        here = [r.state["counts"] for r in rounds(Histogram(3), fed, n_rounds=3, sampler=sampler)]
        there = [r.state["counts"] for r in rounds(Histogram(3), engine, n_rounds=3, sampler=sampler)]
        np.testing.assert_array_equal(here, there)


# -- what clients keep -------------------------------------------------------------------------------------------------


def test_kept_state_is_on_the_node_with_two_versions_readable_by_its_owner_alone(tmp_path):
    engine = engine_of(federation(), tmp_path, own=(Remember(),))
    for _ in rounds(Remember(), engine, n_rounds=5):
        pass
    assert set(engine.kept()) == {"flower.run", "flower.versions"}
    (run,) = (tmp_path / "1" / "runs").iterdir()
    assert sorted(p.name for p in run.iterdir()) == ["3.kept", "4.kept"]
    files = [p for p in (tmp_path / "1").rglob("*") if p.is_file()]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}


def test_only_the_last_runs_stay_on_a_node(tmp_path):
    engine = engine_of(federation(), tmp_path)
    for _ in range(7):
        list(rounds(Histogram(3), engine, n_rounds=1))
    assert len(list((tmp_path / "1" / "runs").iterdir())) == 4


def test_the_run_that_is_answered_stays_whatever_the_clock_says(tmp_path):
    engine = engine_of(federation(), tmp_path, own=(Remember(),))
    for number in range(5):
        other = tmp_path / "1" / "runs" / f"{number:032x}"
        other.mkdir(parents=True, exist_ok=True)
        os.utime(other, (2**32, 2**32))
    done = list(rounds(Remember(), engine, n_rounds=3))
    assert [dict(r.faults) for r in done] == [{}] * 3
    assert len(list((tmp_path / "1" / "runs").iterdir())) == 4


def test_a_server_that_starts_again_from_its_checkpoint_ends_in_the_same_bytes(tmp_path):
    fed, path = federation(), tmp_path / "run.ckpt"
    whole = [r.state for r in rounds(Remember(), engine_of(fed, tmp_path / "w", own=(Remember(),)), n_rounds=6)][-1]
    for stop in (1, 3, 4):
        engine = engine_of(fed, tmp_path / "n", own=(Remember(),))  # a new server, the same nodes
        loop = rounds(Remember(), engine, n_rounds=6, resume=path)
        for r in loop:
            r.save(path)
            if r.index == stop:
                break
        next(loop)  # a round that the checkpoint never saw: nodes have taken the step, and must go back
    engine = engine_of(fed, tmp_path / "n", own=(Remember(),))
    again = [r.state for r in rounds(Remember(), engine, n_rounds=6, resume=path)]
    assert len(again) == 1
    assert again[-1]["past"].tobytes() == whole["past"].tobytes()


def test_asking_twice_gives_the_same_reply_from_the_disk(tmp_path):
    fed = federation()
    loads = []

    def load(context):
        loads.append(1)
        return fed

    app = client_app(load, folder=tmp_path, computations=(Remember(),))
    seen = []

    class Spy(LocalGrid):
        def deliver(self, message):
            replies = [super(Spy, self).deliver(message)[0] for _ in range(2)]
            seen.append([wire.disclose(r.content, 2**30) for r in replies])
            return replies[:1]

    list(rounds(Remember(), Flower(Spy(app, [{}]), min_clients=2, poll=0.001), n_rounds=3))
    assert all(a == b for a, b in seen)
    assert len(loads) == 2 + 3  # who is there, twice, and one step for each round


def test_a_request_that_was_under_way_too_long_undoes_nothing(tmp_path):
    fed = federation()
    app = client_app(lambda context: fed, folder=tmp_path, computations=(Remember(),))
    first = []

    class Slow(LocalGrid):
        def deliver(self, message):
            if _header(message)["op"] == "run":
                first.append(message)
            return super().deliver(message)

    grid = Slow(app, [{}])
    engine = Flower(grid, min_clients=2, poll=0.001)
    loop = rounds(Remember(), engine, n_rounds=5)
    for _ in range(4):
        next(loop)
    stale = wire.read(wire.disclose(LocalGrid.deliver(grid, first[0])[0].content, 2**30))[1]
    assert "older than one that was answered before" in stale["refused"]
    assert next(loop).state["past"] == pytest.approx(
        float([r.state["past"] for r in rounds(Remember(), fed, n_rounds=5)][-1])
    )


def test_no_clock_decides_which_request_is_newer(tmp_path, monkeypatch):
    fed, path = federation(), tmp_path / "run.ckpt"
    whole = [r.state["past"] for r in rounds(Remember(), fed, n_rounds=4)][-1]
    engine = engine_of(fed, tmp_path, own=(Remember(),))
    now, looks = time.time(), itertools.count()
    falling = property(lambda _: now - 0.01 * next(looks))
    monkeypatch.setattr("flwr.app.metadata.Metadata.created_at", falling)
    for r in rounds(Remember(), engine, n_rounds=2):
        r.save(path)
    again = engine_of(fed, tmp_path, own=(Remember(),))
    done = list(rounds(Remember(), again, n_rounds=4, resume=path))
    assert [dict(r.faults) for r in done] == [{}] * 2
    assert done[-1].state["past"] == pytest.approx(float(whole), rel=1e-12)


def test_a_request_of_a_server_that_was_replaced_undoes_nothing(tmp_path):
    fed, path = federation(), tmp_path / "run.ckpt"
    whole = [r.state["past"] for r in rounds(Remember(), fed, n_rounds=5)][-1]
    app = client_app(lambda context: fed, folder=tmp_path, computations=(Remember(),))
    sent = []

    class Spy(LocalGrid):
        def deliver(self, message):
            sent.extend([message] if _header(message)["op"] == "run" else [])
            return super().deliver(message)

    def server(**how):
        return rounds(Remember(), Flower(Spy(app, [{}]), min_clients=2, poll=0.001), n_rounds=5, **how)

    loop = server()
    next(loop).save(path)
    next(loop)
    old, loop = sent[-1], server(resume=path)
    for _ in range(3):
        next(loop)
    stale = wire.read(wire.disclose(LocalGrid.deliver(loop.engine.grid, old)[0].content, 2**30))[1]
    assert "older than one that was answered before" in stale["refused"]
    assert float(next(loop).state["past"]) == pytest.approx(float(whole), rel=1e-12)


def test_a_node_that_lost_its_files_says_so_and_is_left_out(tmp_path):
    fed, path = federation(), tmp_path / "run.ckpt"
    engine = engine_of(fed, tmp_path, own=(Remember(),))
    for r in rounds(Remember(), engine, n_rounds=2):
        r.save(path)
    for file in (tmp_path / "2" / "runs").rglob("*.kept"):
        file.unlink()
    done = list(rounds(Remember(), engine, n_rounds=3, resume=path))
    assert dict(done[-1].faults) == {"refused": 1}
    assert "does not hold any more" in engine.troubles[-1]


def test_a_checkpoint_of_one_process_or_of_other_nodes_is_refused(tmp_path):
    fed, path = federation(), tmp_path / "run.ckpt"
    engine = engine_of(fed, tmp_path)
    with pytest.raises(CheckpointError, match="not made over Flower"):
        engine.restore({})
    for r in rounds(Histogram(3), engine, n_rounds=1):
        r.save(path)
    with pytest.raises(CheckpointError, match="its clients is"):
        rounds(Histogram(3), engine_of(federation(5), tmp_path / "5"), n_rounds=2, resume=path)
    with pytest.raises(CheckpointError, match="knows 3 nodes, here are 2"):
        rounds(Histogram(3), engine_of(fed, tmp_path / "2", nodes=2), n_rounds=2, resume=path)


# -- privacy -----------------------------------------------------------------------------------------------------------


def test_central_noise_is_the_servers_and_its_key_never_leaves_it(tmp_path):
    fed = federation()
    sent = []

    class Spy(LocalGrid):
        def deliver(self, message):
            sent.append(_header(message))
            return super().deliver(message)

    privacy = Gaussian(clip=3.0, multiplier=1.5, noise_seed=4)
    engine = engine_of(fed, tmp_path, grid=Spy)
    ledger = Ledger()
    there = Histogram(3).fit(engine, privacy=privacy, ledger=ledger)
    here = Histogram(3).fit(Local(fed, min_clients=2), privacy=privacy)
    np.testing.assert_array_equal(there.counts_, here.counts_)
    releases = [h["release"] for h in sent if h["op"] == "run"]
    assert releases
    assert not any("key" in r or "noise_seed" in r["privacy"] for r in releases)
    assert ledger.spent() == here.ledger_.spent()


def test_clients_clip_themselves_whatever_the_server_would_like(tmp_path):
    fed = Federation({"y": np.zeros(1000, dtype=int)}, [0, 1000, 1000, 1000])
    privacy = Gaussian(clip=2.0, multiplier=1e-3, noise_seed=1)
    counts = Histogram(3).fit(engine_of(fed, tmp_path), privacy=privacy).counts_
    assert abs(counts[0] - 2.0) < 0.1


def test_local_and_distributed_noise_is_made_on_the_node_with_its_own_key(tmp_path):
    fed = federation(12)
    for place in ("local", "distributed"):
        privacy = Gaussian(clip=3.0, multiplier=1.0, place=place, noise_seed=1)
        counts = [Histogram(3).fit(engine_of(fed, tmp_path / f"{place}{i}"), privacy=privacy) for i in range(2)]
        assert counts[0].counts_.tolist() != counts[1].counts_.tolist()  # a seed of the server's does not reach it
        exact = fed.counts("y", 3).sum(axis=0)
        assert np.abs(counts[0].counts_ - exact).max() < 20 * np.sqrt(12) * 3


def test_rows_are_protected_where_they_are(tmp_path):
    fed = federation(12)
    privacy = Laplace(clip=1.0, epsilon=1.0, unit="row")
    there = Histogram(3).fit(engine_of(fed, tmp_path), privacy=privacy)
    assert np.abs(there.counts_ - fed.counts("y", 3).sum(axis=0)).max() < 40
    lower = wire.release_written(Release(privacy, 1.0, b"", False, 2, 1.0))
    lower["privacy"]["clip"] = lower["clip"] = 0.5  # a server that claims a row moves the sums by less than it does
    said = ask(tmp_path / "2", computation=Histogram(3), release=lower)
    assert "not a release this node can make" in said


def test_an_adaptive_clip_follows_over_flower(tmp_path):
    privacy = Gaussian(clip=AdaptiveClip(1.0), multiplier=1.0, noise_seed=3)
    fed = federation(30)
    here = [r.state["counts"] for r in rounds(Histogram(3), Local(fed, min_clients=2), n_rounds=3, privacy=privacy)]
    there = [r.state["counts"] for r in rounds(Histogram(3), engine_of(fed, tmp_path), n_rounds=3, privacy=privacy)]
    np.testing.assert_array_equal(here, there)


def test_another_set_of_reporters_gets_other_noise_and_another_entry(tmp_path):
    """The same noise on two sums that differ in one client would give that client away."""
    fed = federation(12)
    privacy = Gaussian(clip=3.0, multiplier=5.0, noise_seed=1)
    sums, digests = [], []
    for down in ((), (2,), (3,)):
        engine = engine_of(fed, tmp_path / str(down), attempts=1, min_clients=1)
        engine.grid.down = set(down)
        ledger = Ledger()
        with rounds(Histogram(3), engine, n_rounds=1, privacy=privacy, ledger=ledger) as loop:
            sums.append(next(loop).state["counts"])
        digests += [line["digest"] for line in ledger.entries() if line["kind"] == "release"]
    assert len(set(digests)) == 3
    part = fed.take([i for i in range(12) if i % 3 == 1])
    clipped = part.counts("y", 3) * np.minimum(1, 3 / np.linalg.norm(part.counts("y", 3), axis=1).clip(1e-9))[:, None]
    assert np.abs((sums[0] - sums[1]) - clipped.sum(axis=0)).max() > 0.1


def test_a_grid_of_one_nodes_own_does_not_change_the_others(tmp_path):
    def scaled(factor):
        def change(arrays, header):
            return arrays, {**header, "grids": {"counts": header["grids"]["counts"] * factor}}

        return lambda grid, message, reply: [changed(reply, message, change)]

    fed = federation()
    others = fed.take([i for i in range(12) if i % 3 != 1])
    for factor, unit in ((2.0, "client"), (0.5**31, "row")):
        privacy = Laplace(clip=1.0 if unit == "row" else 1e6, epsilon=1e3, unit=unit)
        engine = engine_of(fed, tmp_path / unit, grid=grid_with(scaled(factor), at=0))
        done = next(rounds(Histogram(3), engine, n_rounds=1, privacy=privacy))
        assert dict(done.faults) == {"corrupt": 1}
        if unit == "row":
            assert np.abs(done.state["counts"] - others.counts("y", 3).sum(axis=0)).max() < 0.5


def test_a_sum_that_no_clipped_clients_can_have_is_left_out(tmp_path):
    grid = grid_with(with_counts(lambda v: v * 1000 + 2**60), at=0)
    engine = engine_of(federation(), tmp_path, grid=grid, min_clients=1)
    privacy = Gaussian(clip=3.0, multiplier=1.0)
    done = next(rounds(Histogram(3), engine, n_rounds=1, privacy=privacy))
    assert dict(done.faults) == {"corrupt": 1}
    assert "more than 4 clipped clients can have" in engine.troubles[0]


# -- the node does not trust the server --------------------------------------------------------------------------------


def ask(tmp_path, *, terms=None, own=(), change=None, state=None, computation=None, **header):
    """What a node says to one request that is changed on the way; None where it answers."""
    fed = federation()

    class Changed(LocalGrid):
        def deliver(self, message):
            arrays, about = wire.read(wire.disclose(message.content, 2**30))
            if about["op"] == "run":
                new = change(arrays, {**about, **header}) if change else (arrays, {**about, **header})
                blob = codec.pack(*new)
                message.content = wire.enclose(blob, wire.order_of(message.content))
                reply = super().deliver(message)[0]
                said.append(wire.read(wire.disclose(reply.content, 2**30))[1].get("refused"))
                return [reply]
            return super().deliver(message)

    said = []
    engine = engine_of(fed, tmp_path, grid=Changed, nodes=1, terms=terms, own=own, attempts=1)
    work = computation or Moments(column="y")
    engine.min_clients = 1
    begin = work.start(0) if state is None else state
    with contextlib.suppress(EngineError):
        engine.run(work, begin, np.arange(12), _key())
    return said[0]


def test_what_the_server_sends_is_checked_before_any_work(tmp_path):
    big = {"state/mean": np.zeros(150_000)}
    cases = {
        "NaN or infinity": {"state": {"x": np.array([np.nan])}},
        "beyond the owner's range": {"state": {"x": np.array([1e30])}},
        "larger than the owner allows": {
            "terms": Terms(numbers=10**5),
            "change": lambda a, h: ({**a, **big}, h),
        },
        "not on the list": {
            "change": lambda a, h: (a, {**h, "computation": {**h["computation"], "name": "os.system"}})
        },
        "of another version": {"change": lambda a, h: (a, {**h, "computation": {**h["computation"], "version": 2}})},
        "not a computation": {
            "computation": Histogram(3),
            "change": lambda a, h: (a, {**h, "computation": {"name": 1}}),
        },
        "neither a number nor a text nor an array": {
            "change": lambda a, h: (a, {**h, "computation": {**h["computation"], "parameters": {"column": {"x": 1}}}})
        },
        "without a round": {"change": lambda a, h: ({n: v for n, v in a.items() if n != "cohort"}, h)},
        "in which each client is once": {"change": lambda a, h: ({**a, "cohort": a["cohort"].repeat(2)}, h)},
        "a run without a proper name": {"run": "../../etc"},
        "not a request of a round": {"key": ["x", 0, "step"]},
        "of another format": {"format": 99},
        "a round to go on from": {"closed": 0, "number": 1},
        "not a mechanism of privacy": {"release": {"mechanism": "Exec"}},
    }
    for number, (text, how) in enumerate(cases.items()):
        said = ask(tmp_path / str(number), **how)
        assert said is not None, text
        assert text in said, (text, said)


def test_a_state_of_wrong_shape_or_that_lacks_an_array_is_found_before_any_row_is_read(tmp_path):
    from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM

    work = TailCountEM((2,), np.array([8, 8, 8, 32]))
    good = work.start(0)
    assert ask(tmp_path / "good", computation=work, state=good) is None
    said = ask(tmp_path / "bad", computation=work, state={**good, "mean": good["mean"][:, :2]})
    assert "a state of other shapes than the computation's" in said
    said = ask(tmp_path / "less", computation=work, state={n: v for n, v in good.items() if n != "mean"})
    assert "a state that does not fit the computation (KeyError)" in said


def test_an_answer_larger_than_the_owner_allows_is_not_made(tmp_path):
    said = ask(
        tmp_path, computation=DifferenceMoments(60), state={"centre": np.full(60, 0.1)}, terms=Terms(numbers=1000)
    )
    assert "sends more than the owner allows" in said


def test_code_cannot_be_asked_for_and_owners_code_must_agree_with_the_servers(tmp_path):
    assert "owner has not supplied it" in ask(tmp_path / "1", computation=Coded(len))
    assert ask(tmp_path / "2", computation=Coded(len), own=(Coded(len),)) is None
    assert ask(tmp_path / "3", computation=Coded(len, power=2), own=(Coded(len),)) is not None
    made = type("Inside", (Histogram,), {"__qualname__": "f.<locals>.Inside"})
    engine = engine_of(federation(), tmp_path / "4")
    with pytest.raises(EngineError, match="made inside a function"):
        engine.run(made(3), {}, np.arange(12), _key())


def trained(**changed):
    from torch import nn

    from fedscape.learning import FedAvg, LocalSGD, cross_entropy

    settings = {"lr": 0.05, "epochs": 1, "batch_size": 2}
    how = {name: changed.pop(name) for name in ("server", "weighting", "initial") if name in changed}
    layer = nn.Linear(3, 2, bias=changed.pop("bias", True))
    return FedAvg(LocalSGD(layer, changed.pop("loss", cross_entropy), **{**settings, **changed}), **how)


def other_loss(output, target):
    return ((output - target[:, None]) ** 2).sum(dim=1)


def training_differences():
    from fedscape.learning import Momentum
    from fedscape.learning.schedules import CosineDecay

    return [
        ({"lr": 0.1}, "lr is 0.1 on the node, 0.05 at the server"),
        ({"lr": 0.1, "batch_size": 7}, "batch_size is 7 on the node, 2 at the server"),
        ({"epochs": 3}, "epochs is 3 on the node, 1 at the server"),
        ({"epochs": None, "steps": 4}, "steps is 4 on the node, None at the server"),
        ({"momentum": 0.9}, "momentum is 0.9 on the node, 0 at the server"),
        ({"proximal": 0.5}, "proximal is 0.5 on the node, 0 at the server"),
        ({"weight_decay": 0.5}, "weight_decay is 0.5 on the node, 0 at the server"),
        ({"optimiser": "adam"}, "optimiser is 'adam' on the node, 'sgd' at the server"),
        ({"schedule": CosineDecay(5)}, "schedule is CosineDecay(n_rounds=5, end=0.0) on the node, None at the server"),
        ({"weights": "w"}, "weights is 'w' on the node, None at the server"),
        ({"loss": other_loss}, "other_loss on the node, fedscape.learning.losses.cross_entropy at the server"),
        ({"bias": False}, "parameters is weight 2x3 float32 on the node, weight 2x3 float32, bias 2 float32 at the"),
        ({"weighting": "equal"}, "weighting is 'equal' on the node, 'samples' at the server"),
        ({"server": Momentum()}, "server is "),
    ]


@pytest.mark.parametrize("number", range(14))
def test_a_node_that_would_train_otherwise_refuses_and_says_in_what(number, tmp_path):
    changed, text = training_differences()[number]
    said = ask(tmp_path, computation=trained(), own=(trained(**changed),))
    assert said is not None
    assert "a computation with other settings than the owner's: " in said
    assert text in said


def test_where_and_how_fast_a_node_trains_is_its_own():
    from fedscape.learning import LocalSGD

    own = trained(strategy="sequential", lr=0.05)
    assert computations.rebuilt(computations.described(trained()), (trained(lr=0.1), own)) is own
    apart = set(own.local.settings()) ^ {f.name for f in fields(LocalSGD) if f.init}
    assert apart == {"parameters", "strategy", "precision", "device", "group_size", "keep_on_device"}


class Coded(Computation):
    """Has a function among its arguments."""

    def __init__(self, what, power: int = 1) -> None:
        self.what, self.power = what, power

    def start(self, seed):
        return {"n": np.zeros(())}

    def step(self, state, clients, key):
        return {"n": clients.sizes**self.power}, {}

    def update(self, state, total, key):
        return {"n": total["n"]}


def test_what_is_revealed_needs_the_owners_consent(tmp_path):
    from fedscape.sketches.distribution import ClientSketches

    work = ClientSketches(DistributionSketch(rows=2, bits=1, column="y"))
    assert "shows client by client what the owner does not" in ask(tmp_path / "1", computation=work)
    assert ask(tmp_path / "2", computation=work, terms=Terms(reveals=("counts",))) is None


def test_error_texts_carry_no_data(tmp_path):
    fed = Federation({"y": [777_777]}, [0, 1], ids=["Annabel"])
    app = client_app(lambda context: fed, folder=tmp_path)
    engine = Flower(LocalGrid(app, [{}]), min_clients=1, poll=0.001)
    with pytest.raises(TooFewClients) as caught:
        engine.run(Histogram(3), Histogram(3).start(0), np.arange(1), _key())
    text = f"{caught.value} {engine.troubles}"
    assert "777" not in text
    assert "Annabel" not in text
    assert "DataError" not in text
    assert "node 1: missing: it cannot answer in this run" in text
    assert "777777" in (tmp_path / "log.jsonl").read_text()


def test_a_node_writes_down_what_leaves_and_refuses_beyond_the_owners_budget(tmp_path):
    fed = federation()
    budget = Terms(epsilon=3.0, delta=1e-6)
    engine = engine_of(fed, tmp_path, terms=budget, attempts=1, min_clients=1)
    privacy = Laplace(clip=5.0, epsilon=1.0)
    loop = rounds(Histogram(3), engine, n_rounds=4, privacy=privacy)
    assert [next(loop).abandoned for _ in range(3)] == [False] * 3
    with pytest.raises(EngineError, match=r"every node refused; round 3, node 3: .* the budget"):
        next(loop)
    lines = [json.loads(line) for line in (tmp_path / "1" / "ledger.jsonl").read_text().splitlines()]
    entries = [line["entry"] for line in lines if line["kind"] == "reserve"]
    assert all(entry["note"] == "protected only by the server" for entry in entries)
    assert Ledger(tmp_path / "1" / "ledger.jsonl").spent() == pytest.approx(
        {("client", "add-remove", "central"): 3.0}, rel=1e-4
    )


def test_answers_without_noise_are_logged_and_limited(tmp_path):
    fed = federation()
    engine = engine_of(fed, tmp_path, terms=Terms(unnoised=2), attempts=1)
    loop = rounds(Histogram(3), engine, n_rounds=3)
    assert [next(loop).clients for _ in range(2)] == [12] * 2
    with pytest.raises(EngineError, match="one more answer without noise than the owner allows"):
        next(loop)
    lines = [json.loads(line) for line in (tmp_path / "1" / "ledger.jsonl").read_text().splitlines()]
    said = "no noise: protected only by the server: histogram(column='y', n_categories=3) on y"
    assert [line["note"] for line in lines if line["kind"] == "note"] == [said] * 2


def test_a_process_that_answers_one_message_loads_no_compiler(tmp_path):
    code = f"""
import sys
import numpy as np
from fedscape import Federation, Flower, rounds
from fedscape.engines.flower import LocalGrid, client_app
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
fed = Federation({{"y": np.arange(40) % 3}}, np.arange(0, 41, 4))
engine = Flower(LocalGrid(client_app(lambda context: fed, folder={str(tmp_path)!r}), [{{}}]), poll=0.001)
work = TailCountEM((2,), np.array([8, 8, 8, 32]))
engine.run(work, work.start(0), np.arange(10), __import__("fedscape").Key(0))
print([name for name in ("numba", "torch", "dp_accounting", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_random_bytes_and_changed_bytes_never_break_a_node(tmp_path):
    """The checksum of changed bytes is made anew, so that what is behind it has to read them."""
    app = client_app(lambda context: federation(3), folder=tmp_path)
    grid = LocalGrid(app, [{}])
    rng = np.random.default_rng(0)
    work = Histogram(3)
    about = {
        "format": wire.FORMAT,
        "op": "run",
        "run": "0" * 32,
        "number": 0,
        "closed": -1,
        "computation": computations.described(work),
        "key": [0, 0, "step"],
        "measure": False,
        "release": wire.release_written(Release(Gaussian(clip=1.0, multiplier=1.0, place="local"), 1.0, b"", False, 1)),
        "measure_release": None,
    }
    good = codec.pack({"state/counts": work.start(0)["counts"], "cohort": np.array(["c00"])}, about)
    header = range(19, good[:-32].rindex(b"}") + 1)
    heard, past = [], 0
    for number in range(300):
        body = bytearray(rng.bytes(int(rng.integers(0, 300))) if number % 5 == 0 else good[:-32])
        for _ in range(1 + number % 3 if number % 5 else 0):
            where = int(rng.choice(header)) if number % 2 else int(rng.integers(len(body)))
            digit = 48 <= body[where] < 58 and rng.random() < 0.5  # another number is read more often than other bytes
            body[where] = int(rng.integers(48, 58)) if digit else int(rng.integers(32, 127))
        blob = bytes(body) + hashlib.sha256(body).digest()
        with contextlib.suppress(wire.Unreadable):
            past += bool(wire.read(blob))
        order = wire.Order(0, "0" * 16, number)
        message = Message(wire.enclose(blob, order), dst_node_id=1, message_type="query.fedscape")
        grid.push_messages([message])
        heard.append(wire.read(wire.disclose(grid.deliver(message)[0].content, 2**30))[1].get("refused", "answered"))
    assert all(said.startswith(("refused", "failed", "answered")) for said in heard)
    assert past > 60
    assert len(set(heard)) > 8  # they fail in many places


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_what_crosses_is_narrow_only_where_nothing_is_lost(dtype):
    rng = np.random.default_rng(0)
    large = [0, 1, 127, 128, 255, 256, 2**15, 2**31 - 1, 2**31, 2**62]
    given = [np.array([v, w], dtype) for v in large for w in (-3, 0, v)] + [np.zeros((0, 2), dtype)]
    given += [rng.normal(size=5).astype(dtype), np.array([1e300, 0.1], dtype=np.float64)]
    for values in given:
        back = wire.narrow(values).astype(sum_type(values))
        assert back.tobytes() == values.tobytes()
        assert back.dtype == values.dtype


def test_a_node_of_one_client_counts_beyond_what_its_rows_could_hold(tmp_path):
    fed = Federation({"y": np.array([[2 * 10**9, 1]] * 4)}, [0, 2, 4])
    engine = engine_of(fed, tmp_path, nodes=2)
    assert Histogram(2).fit(engine).counts_.tolist() == [8 * 10**9, 4]
