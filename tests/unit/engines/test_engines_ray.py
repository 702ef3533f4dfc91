"""The Ray engine's own logic, in this process: shards, what they keep, and where they find rows."""

from __future__ import annotations

import functools
import operator
import subprocess
import sys

import numpy as np
import pytest

import fedscape.core.blocks
import fedscape.core.schedule
from fedscape import Computation, DataError, Federation, Gaussian, Histogram, Key, Local
from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Site, Task
from fedscape.core.schedule import sections
from fedscape.engines.ray.engine import Ray, _bounds
from fedscape.engines.ray.shard import Broadcast, Outcome, Part, Shard, Source, seal_of, software
from fedscape.formats import to_parquet
from fedscape.privacy.release import Release


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 5, 20))))
    fed = Federation({"y": rng.integers(0, 3, offsets[-1])}, offsets, ids=rng.permutation(20))
    fed.save(tmp_path / "clients")
    return fed, Source(str(tmp_path / "clients"), seal_of(tmp_path / "clients"), None, None)


def shard_of(source, begin=0, end=20):
    shard = Shard(source, begin, end, 1, None)
    assert shard.load(software()) is None
    return shard


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shards_cover_all_clients_and_none_is_empty(workers):
    rng = np.random.default_rng(workers)
    for sizes in (
        rng.integers(0, 9, 7),
        np.array([0, 0, 0, 0, 0, 0, 99]),
        np.array([99, 0, 0, 0, 0, 0, 0]),
        np.ones(50),
    ):
        bounds = _bounds(sizes, workers)
        assert (bounds[0], bounds[-1], len(bounds)) == (0, len(sizes), workers + 1)
        assert (np.diff(bounds) > 0).all()
    assert np.ptp(np.diff(_bounds(np.full(1000, 3), workers))) <= 1


def test_up_to_256_blocks_are_added_one_by_one_and_more_in_sections():
    work = Histogram(3)
    for blocks in (1, 256, 257, 1000):
        plan = sections(work, np.ones(512 * blocks, dtype=int), clipped=False)
        assert len(plan) <= 256
        assert [block for section in plan for block in section] == [(512 * i, 512 * i + 512) for i in range(blocks)]
        assert {len(section) for section in plan[:-1]} <= {1 if blocks <= 256 else -(-blocks // 256)}
    assert sections(work, np.empty(0, dtype=int), clipped=False) == []


class Add(Computation):
    """The sum of a column, whose last digits depend on the order in which numbers are added."""

    block_clients = 2

    def step(self, state, clients, key):
        return {"sum": clients.segment_sum("x")}, {}


def test_sections_give_the_same_bytes_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(fedscape.core.schedule, "SECTIONS", 5)
    values = np.random.default_rng(0).normal(size=(60, 8))
    fed = Federation({"x": values}, np.arange(61))
    blocks = values.reshape(5, 6, 2, 8).sum(axis=2)  # five sections of six blocks of two clients
    expected = functools.reduce(operator.add, [functools.reduce(operator.add, section) for section in blocks])
    assert (expected != functools.reduce(operator.add, blocks.reshape(30, 8))).any()  # the order shows
    totals = [Local(fed, threads=t).run(Add(), {}, np.arange(60), Key(0)).total["sum"] for t in (1, 2, 4)]
    assert [total.tobytes() for total in totals] == [expected.tobytes()] * 3


def test_rows_come_from_parquet_where_the_files_are_not_seen(saved, tmp_path):
    fed, source = saved
    to_parquet(fed, tmp_path / "rows.parquet", client="who")
    again = Federation.from_parquet(tmp_path / "rows.parquet", client="who")
    again.save(tmp_path / "again")
    elsewhere = Source("/nowhere", seal_of(tmp_path / "again"), str(tmp_path / "rows.parquet"), "who")
    found = elsewhere.open()
    assert found.fingerprint() == again.fingerprint()
    assert found["y"].tolist() == again["y"].tolist()
    with pytest.raises(DataError, match="is not the file that the driver read"):
        elsewhere._replace(seal="0").open()
    with pytest.raises(DataError, match=r"does not see the clients' files in /nowhere: pass folder= on a file system"):
        source._replace(folder="/nowhere").open()


def test_a_machine_with_other_versions_is_refused(saved):
    found = Shard(saved[1], 0, 20, 1, None).load({**software(), "numpy": "1.0"})
    assert "'numpy': '1.0'" in str(found)


def test_a_shard_keeps_its_own_part_and_lends_it(saved):
    _, source = saved
    shard = shard_of(source, 5, 10)
    kept = {"z": Ragged(np.arange(4.0), np.array([0, 1, 3, 4]))}
    kinds = {"z": (np.dtype(float), ()), "other": (np.dtype(np.int8), (2,))}
    shard.keep(kinds, [(np.array([4, 5, 9]), kept)])
    assert shard.kept()[1]["z"].lengths.tolist() == [2, 0, 0, 0, 1]
    assert shard.kept()[1]["z"].flat.tolist() == [1.0, 2.0, 3.0]
    assert shard.kept()[1]["other"].flat.shape == (0, 2)  # known, though none of its clients keeps any
    number, lent = shard.lend(np.array([5, 6]))
    assert (number, lent["z"].flat.tolist()) == (2, [1.0, 2.0])
    shard.restore(shard.kept()[1])
    assert shard.kept()[1]["z"].flat.tolist() == [1.0, 2.0, 3.0]
    shard.forget()
    assert shard.kept()[1] == {}


def test_grids_come_back_and_the_key_of_central_noise_never_leaves(saved):
    fed, source = saved
    release = Release(Gaussian(clip=2.0, multiplier=1.0), 2.0, b"secret", True, 1)
    shard = shard_of(source)
    told = Broadcast(Key(0), False, release.without_secret(), None, {})
    assert told.release.key == b""
    assert Release(Gaussian(clip=2.0, multiplier=1.0, place="local"), 2.0, b"k", True, 1).without_secret().key == b"k"
    assert shard.open("digest", Histogram(3), told) is None
    outcome, _ = shard.run(Part(slice(0, 20), [[(0, 20)]]))
    assert isinstance(outcome, Outcome)
    release.take_grids(outcome.grids[0])
    here = Release(Gaussian(clip=2.0, multiplier=1.0), 2.0, b"secret", True, 1)
    site = Site(fed, Task(Histogram(3), Key(0), False, here, None), {})
    order = np.argsort(fed.ids)
    expected = here.on_total(site.run([fedscape.core.blocks.Block(order, order)], lambda _: {}).sent, 20)
    assert release.on_total(outcome.answers[0].sent, 20)["counts"].tolist() == expected["counts"].tolist()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"min_clients": 0}, "min_clients must be at least 1, not 0"),
        ({"gpus_per_worker": -1.0}, "gpus_per_worker must not be negative, not -1.0"),
        ({"memory": 5}, "memory must be at least a mebibyte, not 5 bytes"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(how, said):
    with pytest.raises(DataError, match=said):
        Ray(Federation({}, [0, 0]), **how)


def test_wrong_data_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(DataError, match="is not a saved Federation: for Parquet files pass client="):
        Ray(tmp_path)
    held = Federation({}, [0, 0]).with_kept({"z": Ragged(np.ones(1), np.array([0, 1]))})
    with pytest.raises(DataError, match=r"to restore\(\)"):
        Ray(held)


def test_without_ray_it_says_what_to_install():
    code = (
        "import sys; sys.modules['ray'] = None\nimport fedscape as fs\n"
        "try: fs.Ray(fs.Federation({}, [0, 0]))\nexcept fs.FedscapeError as e: print(e)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'fedscape[ray]'" in said
