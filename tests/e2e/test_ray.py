"""Ray with real processes: workers that die, raise or want too much, and a driver that is killed."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import ray
from ray_computations import Diary, Training, digest, people, pupils

from fedscape import (
    All,
    DataError,
    EngineError,
    Federation,
    FixedSize,
    Gaussian,
    Histogram,
    Key,
    Ledger,
    Local,
    MixtureOfDirichletMultinomials,
    Poisson,
    Ray,
    rounds,
)
from fedscape.engines.ray import workers as crew
from fedscape.engines.ray.cluster import Cluster, surroundings

SCRIPT = Path(__file__).with_name("ray_computations.py")


@pytest.fixture(scope="module")
def cluster():
    """One cluster for all tests of this file, somebody else's; its GPUs are numbers alone."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with surroundings():
        ray.init("local", num_cpus=6, num_gpus=2, include_dashboard=False, logging_level=40, log_to_driver=False)
    yield
    assert ray.is_initialized()  # engines have not stopped what they did not start
    ray.shutdown()


@pytest.fixture(scope="module")
def engine(cluster):
    with Ray(people(), workers=2) as made:
        yield made


def ending(engine, computation, sampler=None, n_rounds=5):
    loop = rounds(computation, engine, n_rounds=n_rounds, sampler=sampler or FixedSize(60))
    for _ in loop:
        pass
    return digest(loop)


@pytest.fixture(scope="module")
def expected():
    return ending(Local(people()), Diary())


def test_a_worker_that_is_killed_in_the_middle_of_a_round_changes_nothing(engine, expected, tmp_path):
    for who in (3, 70):  # one in either shard
        marker = tmp_path / str(who)
        assert ending(engine, Diary("kill", who=who, marker=str(marker)), All()) == ending(
            Local(people()), Diary(), All()
        )
        assert marker.exists()
    assert ending(engine, Diary()) == expected


def test_a_private_round_that_is_repeated_is_spent_once(engine, tmp_path):
    endings, marker = [], tmp_path / "killed"
    for name, where in (("there", engine), ("here", Local(people()))):
        ledger = Ledger(tmp_path / f"{name}.jsonl", epsilon=100.0, delta=1e-5)
        how = {"privacy": Gaussian(clip=3.0, multiplier=1.0, noise_seed=5), "ledger": ledger, "sampler": Poisson(0.6)}
        with rounds(Diary("kill", marker=str(marker)), where, n_rounds=4, **how) as loop:
            for _ in loop:
                pass
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        endings.append((digest(loop), ledger.spent(), len(lines)))
        assert marker.exists()  # a worker died in a round, which was repeated; and not in the second run
    assert endings[0] == endings[1]


def test_a_worker_that_another_process_kills_changes_nothing(engine, tmp_path):
    marker = tmp_path / "pid"

    def kill():
        while not (marker.exists() and marker.read_text()):
            time.sleep(0.01)
        os.kill(int(marker.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    there = ending(engine, Diary("pid", at=3, marker=str(marker)), All())
    killer.join()
    assert there == ending(Local(people()), Diary(), All())


def test_a_worker_that_dies_every_time_is_an_error_that_names_its_clients(engine, expected):
    with pytest.raises(EngineError, match=r"shard 1 of 2 \(clients 0 to \d+\): its worker died 4 times in one round"):
        ending(engine, Diary("always"), All())
    assert ending(engine, Diary()) == expected


def test_a_worker_that_cannot_be_started_again_is_an_error_and_not_a_wait(engine, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "START_SECONDS", 1.0)
    monkeypatch.setattr(crew, "ROOM_SECONDS", 0.1)
    said = r"^shard 1 of 2 \(clients 0 to \d+\), whose worker died: only 0 of 1 workers started in 1 s; the cluster has"
    with monkeypatch.context() as patch:
        patch.setitem(engine._cluster._each, "num_gpus", 99)  # more than there are: it waits for its turn for ever
        for trouble in ("kill", "none"):  # and so does whoever goes on
            with pytest.raises(EngineError, match=said):
                ending(engine, Diary(trouble, marker=str(tmp_path / "killed")), All())
    monkeypatch.setattr(crew, "START_SECONDS", 60.0)
    assert ending(engine, Diary()) == expected


def test_a_shard_without_a_core_of_its_own_shares_one_until_there_is_room(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "ROOM_SECONDS", 0.1)
    expected = ending(Local(people()), Diary(), All())
    with monkeypatch.context() as patch:
        patch.setitem(engine._cluster._each, "num_cpus", 99)
        assert ending(engine, Diary("kill", marker=str(tmp_path / "killed")), All()) == expected
        assert engine._crew._guests == {0}
        patch.setattr(engine._cluster, "room", lambda: 1)
        assert ending(engine, Diary(), All()) == expected
        assert engine._crew._guests == {0}
    monkeypatch.setattr(crew, "ROOM_SECONDS", 120.0)
    assert ending(engine, Diary(), All()) == expected
    assert engine._crew._guests == set()


def test_rows_are_grouped_by_tasks_and_workers_check_their_shards(cluster, tmp_path, monkeypatch):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedscape.cli.data import data_group
    from fedscape.engines.ray.shuffle import scan, tasks_on
    from fedscape.formats.sharded import edges
    from fedscape.simulate import FromMixture, sharded

    rng = np.random.default_rng(0)
    rows = pa.table({"who": [f"u{v}" for v in rng.integers(0, 900, 90_000)], "y": rng.integers(0, 4, 90_000)})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=15_000)
    scan(tmp_path / "rows.parquet", tmp_path / "grouped", client="who", workers=2, memory=2**18)
    here = Federation.scan(tmp_path / "rows.parquet", client="who")
    there = Federation.load(tmp_path / "grouped")
    assert len(edges(tmp_path / "grouped")) > 3
    assert there.fingerprint() == here.fingerprint()
    assert there["y"].tobytes() == here["y"].tobytes()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)  # tasks need not have this working folder
        data_group("rows.parquet", Path("by-command"), "who", memory=16, engine="ray", workers=2)
    assert Federation.load(tmp_path / "by-command").fingerprint() == here.fingerprint()
    monkeypatch.setattr(sharded, "SHARD", 4096)
    recipe = FromMixture(MixtureOfDirichletMultinomials(1).fit(here.counts("y", n_categories=4)))
    with tasks_on(None, 2) as tasks:
        sharded.write_clients(recipe, here, tmp_path / "there", n_clients=5000, tasks=tasks)
    sharded.write_clients(recipe, here, tmp_path / "here", n_clients=5000)
    index = "part-00001/federation.json"  # has the checksums of all its files
    assert (tmp_path / "there" / index).read_bytes() == (tmp_path / "here" / index).read_bytes()
    with Ray(tmp_path / "grouped", workers=2) as engine:
        assert Histogram(4).fit(engine).counts_.tolist() == Histogram(4).fit(here).counts_.tolist()
        assert set(engine._bounds.tolist()) <= set(edges(tmp_path / "grouped"))
        cohort = engine.draw(FixedSize(50), Key(3))
        assert cohort.tolist() == FixedSize(50).draw(here, Key(3)).tolist()
        assert engine.draw(Poisson(0.1), Key(4)).tolist() == Poisson(0.1).draw(here, Key(4)).tolist()
        monkeypatch.setattr("fedscape.engines.ray.engine.bound", lambda *_: 1e-9)  # too few are found: it asks again
        assert engine.draw(FixedSize(50), Key(3)).tolist() == cohort.tolist()
    path = sorted((tmp_path / "grouped").glob("part-*/column-0.npy"))[-1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"does not match its checksum: the file is damaged, in shard 2 of 2"):
        Ray(tmp_path / "grouped", workers=2)


@pytest.mark.parametrize("machines", [1, 2])
def test_with_relays_between_the_bytes_are_the_same(cluster, tmp_path, monkeypatch, machines):
    """Two relays of two workers each: their clients keep more in every round, and lend to the other group."""
    monkeypatch.setattr(crew, "RELAYED", 2)
    monkeypatch.setattr(Cluster, "machines", lambda self: machines)
    with Ray(people(), workers=4) as engine:
        for sampler in (FixedSize(60), FixedSize(3), All()):
            assert ending(engine, Diary(), sampler, 8) == ending(Local(people()), Diary(), sampler, 8)
            assert len(engine._crew._relays.actors) == 2
        assert any(len(log) < 8 for log in engine._crew._log)  # snapshots of groups
        expected = ending(Local(people()), Diary(), All(), 8)
        for who in (3, 70) if machines == 2 else (30,):
            trouble = Diary("kill", at=6, who=who, marker=str(tmp_path / str(who)))
            assert ending(engine, trouble, All(), 8) == expected  # what was kept before comes from the driver's objects
            assert (tmp_path / str(who)).exists()
        kept = engine.kept()["diary"].flat.tobytes()
        engine._crew._drop_relays()
        ray.kill(engine._crew._actors[1], no_restart=True)
        assert engine.kept()["diary"].flat.tobytes() == kept
        with pytest.raises(DataError, match=r"holds nonsense .*, in shard 1 of 4"):
            ending(engine, Diary("refuse", who=30), All())


def test_a_worker_that_is_busy_for_long_is_not_waited_for_when_another_dies(cluster, tmp_path, monkeypatch):
    with Ray(people(), workers=2) as engine:
        monkeypatch.setattr(crew, "START_SECONDS", 2.0)
        engine._crew._actors[1].__ray_call__.remote(lambda shard: time.sleep(600))
        ray.kill(engine._crew._actors[0])
        monkeypatch.setattr(engine._crew, "_begin_again", lambda shard, death: again.append(shard))
        again, begin = [], time.monotonic()
        while not again and time.monotonic() - begin < 200:  # a full machine is slow to say that someone died
            engine._crew._alarms = 0
            engine._crew._revive(EngineError("one died"))
        assert again == [0]
        assert time.monotonic() - begin < 300


def test_a_bug_in_a_computation_names_shard_clients_and_cause(engine, expected):
    with pytest.raises(EngineError, match=r"^shard 1 of 2 \(clients 0 to \d+\): ValueError: a bug of the author's$"):
        ending(engine, Diary("raise"), All())
    assert ending(engine, Diary()) == expected


def test_an_error_of_ours_arrives_as_it_is_and_the_failed_round_is_not_kept(engine):
    with pytest.raises(DataError) as here:
        ending(Local(people()), Diary("refuse"), All())
    with pytest.raises(DataError) as there:
        ending(engine, Diary("refuse"), All())
    assert str(there.value).startswith(str(here.value))
    assert re.search(r", in shard 1 of 2 \(clients 0 to \d+\)$", str(there.value))
    assert engine.kept()["diary"].lengths.tolist() == [2] * 100  # of the two rounds before


def test_what_clients_keep_goes_out_and_in(engine):
    loop = rounds(Diary(), engine, n_rounds=3, sampler=FixedSize(60))
    for _ in loop:
        pass
    kept = {name: type(v)(v.flat.copy(), v.offsets.copy()) for name, v in engine.kept().items()}
    engine.forget()
    assert engine.kept() == {}
    engine.restore(kept)
    for a, b in zip(engine.kept()["diary"], kept["diary"], strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, EngineError])
@pytest.mark.parametrize("when", [0, 2])
def test_a_round_broken_off_while_it_is_kept_cannot_be_taken_twice(
    engine, expected, tmp_path, monkeypatch, error, when
):
    loop = rounds(Diary(), engine, n_rounds=5, sampler=FixedSize(60))
    for _ in range(when):
        next(loop).save(tmp_path / "run.ckpt")

    def broken(method, arguments, *shards):
        if method == "keep":
            ray.get(engine._crew._actors[0].keep.remote(*arguments(0)))  # one worker has it, the other has not
            raise error("stop")
        return whole(method, arguments, *shards)

    whole = engine._crew._all
    with monkeypatch.context() as patch:
        patch.setattr(engine._crew, "_all", broken)
        with pytest.raises(error, match="stop"):
            next(loop)
    for go_on in (lambda: next(loop), engine.kept):
        with pytest.raises(EngineError, match=r"broke off .*: restore from the checkpoint"):
            go_on()
    again = rounds(Diary(), engine, n_rounds=5, sampler=FixedSize(60), resume=tmp_path / "run.ckpt")
    for _ in again:
        pass
    assert digest(again) == expected


def test_memory_is_bounded(cluster):
    with (
        Ray(people(), workers=1, memory=2**30) as engine,
        pytest.raises(EngineError, match=r"shard 1 of 1 .*MemoryError.*; memory=1,073,741,824 bounds it"),
    ):
        ending(engine, Diary("memory"), All())


def test_more_than_the_cluster_has_is_refused(cluster):
    with pytest.raises(EngineError, match=r"9 workers with 1 CPUs each do not fit the cluster, which has 6"):
        Ray(people(), workers=9)
    with pytest.raises(EngineError, match=r"2 workers with 1.5 GPUs each do not fit the cluster, which has 2"):
        Ray(people(), workers=2, gpus_per_worker=1.5)


def test_there_are_as_many_workers_as_gpus_where_each_takes_one(cluster):
    with Ray(people(), gpus_per_worker=1) as engine:
        assert engine.workers == 2  # of six cores


def test_groups_of_a_network_train_in_two_processes_and_one_of_them_may_die(cluster, tmp_path):
    """What several GPUs do, on the CPU: the bytes depend on `group_size` and not on who trains which group."""
    ends = {}
    with Ray(pupils(), workers=2) as engine:
        for name, where, marker in (
            ("here", pupils(), ""), ("there", engine, ""), ("killed", engine, str(tmp_path / "killed")),
        ):  # fmt: skip
            loop = rounds(Training(group_size=6, marker=marker), where, n_rounds=3, sampler=FixedSize(12))
            ends[name] = [v.tobytes() for r in loop for v in r.state.values()]
    assert (tmp_path / "killed").exists()
    assert ends["there"] == ends["here"]
    assert ends["killed"] == ends["here"]


def test_each_worker_sees_the_gpus_that_are_its_own(cluster, tmp_path):
    with Ray(people(), workers=2, gpus_per_worker=1) as engine:
        for who in (3, 70):  # one in either shard
            ending(engine, Diary("gpu", who=who, marker=str(tmp_path / str(who))), All())
    assert {(tmp_path / str(who)).read_text() for who in (3, 70)} == {"0", "1"}


def test_files_and_parquet_give_the_same_and_files_written_here_are_removed(cluster, tmp_path):
    fed = people()
    fed.save(tmp_path / "clients")
    from fedscape.formats import to_parquet

    to_parquet(fed, tmp_path / "clients.parquet", client="who")
    whole = Histogram(4).fit(fed).counts_.tolist()
    for data, client in ((tmp_path / "clients", None), (tmp_path / "clients.parquet", "who"), (fed, None)):
        with Ray(data, client=client, workers=1, threads=2, folder=tmp_path) as engine:
            assert Histogram(4).fit(engine).counts_.tolist() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clients", "clients.parquet"]
    with pytest.raises(EngineError, match="closed"):
        Histogram(4).fit(engine)


def test_a_cluster_that_runs_already_is_joined_by_its_address(cluster, tmp_path, expected):
    address = ray.get_runtime_context().gcs_address
    call = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path), "5", address]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["run.ckpt"]


def test_another_cluster_than_the_connected_one_is_refused(cluster, tmp_path, monkeypatch):
    host, port = ray.get_runtime_context().gcs_address.rsplit(":", 1)
    said = f"this process is connected to the Ray cluster at {host}:{port}, not to "
    for other in (f"{host}:1", f"192.0.2.1:{port}", f"ray://{host}:{port}"):
        with pytest.raises(EngineError, match=re.escape(f"{said}{other!r}: leave address out")):
            Ray(people(), workers=1, address=other, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    with pytest.raises(EngineError, match=re.escape(f"{said}'auto'")):
        Ray(people(), workers=1, address="auto")
    monkeypatch.delenv("RAY_ADDRESS")
    for same in (f"{host}:{port}", f"localhost:{port}", f"127.0.0.1:{port}", "auto"):
        with Ray(people(), workers=1, address=same) as engine:
            assert Histogram(4).fit(engine).counts_.sum() == people().n_rows


def test_a_cluster_that_an_engine_has_started_is_not_the_one_that_runs_on_this_machine(monkeypatch):
    calls = []
    fake = types.SimpleNamespace(
        is_initialized=lambda: bool(calls),
        init=lambda *where, **how: calls.append((where, how.get("address"))),
        shutdown=calls.clear,
        get_runtime_context=lambda: types.SimpleNamespace(gcs_address="10.0.0.1:6379"),
        util=types.SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1"),
        cluster_resources=lambda: {"CPU": 4},
        exceptions=types.SimpleNamespace(RayError=RuntimeError),
    )
    monkeypatch.setattr("fedscape.engines.ray.cluster.require", lambda *_, **__: fake)
    monkeypatch.setattr("fedscape.engines.ray.cluster._ENGINES", {"users": 0, "ours": 0})
    monkeypatch.setattr("fedscape.engines.ray.cluster._JOINED", {})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the test")
    first = Cluster(None, 1, 1, 0.0, None)
    with pytest.raises(EngineError, match=r"connected to the Ray cluster at 10\.0\.0\.1:6379, not to 'auto'"):
        Cluster("auto", 1, 1, 0.0, None)
    first.leave()
    both = [Cluster("auto", 1, 1, 0.0, None) for _ in range(2)]
    assert calls == [((), "auto")]
    for each in both:
        each.leave()
    assert calls == []


def test_a_driver_that_is_killed_goes_on_to_the_same_bytes(tmp_path):
    many = 60  # so that it has not come to its end before it is killed
    call = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path), str(many)]
    running = subprocess.Popen(call, stdout=subprocess.PIPE, text=True)
    for line in running.stdout:
        if line == "round 1\n":
            break
    running.kill()
    running.communicate()
    left = list(tmp_path.glob("fedscape-ray-*"))  # as docs/engines.md says
    assert [stat.S_IMODE(path.stat().st_mode) for path in left] == [0o700]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] in {f"round {number}" for number in range(2, many)}
    assert done.stdout.splitlines()[-1] == ending(Local(people()), Diary(), n_rounds=many)
