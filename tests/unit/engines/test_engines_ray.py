"""The Ray engine's own logic, in this process: shards, what they keep, and where they find rows."""

from __future__ import annotations

import functools
import itertools
import operator
import subprocess
import sys

import numpy as np
import pytest

import fedscape.core.blocks
from fedscape import Computation, DataError, Federation, FixedSize, Gaussian, Histogram, Key, Local
from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Answer, Site, Task
from fedscape.core.sampling import bound, candidates, chosen
from fedscape.core.schedule import Fold, Partial, Tree, blocks_of, cut
from fedscape.engines.ray.engine import Ray, _bounds
from fedscape.engines.ray.shard import Broadcast, Outcome, Part, Shard, Source, software
from fedscape.formats import to_parquet
from fedscape.formats.folder import seal_of
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


def test_blocks_are_cut_at_512_clients_or_where_there_are_too_many_rows():
    work = Histogram(3)
    for blocks in (1, 256, 257, 1000):
        cuts = blocks_of(work, np.ones(512 * blocks, dtype=int), clipped=False)
        assert cuts == [(512 * i, 512 * i + 512) for i in range(blocks)]
    assert blocks_of(work, np.empty(0, dtype=int), clipped=False) == []
    sizes = np.array([3, 3, 9, 1, 1, 1, 1])
    assert cut(sizes, 3, 6) == [(0, 2), (2, 3), (3, 6), (6, 7)]
    assert cut(sizes[3:], 3, 6) == [(0, 3), (3, 4)]


def nested(values, branches):
    """The sum of a tree, written as it is defined: children in order, level by level."""
    while len(values) > 1:
        values = [functools.reduce(operator.add, values[i : i + branches]) for i in range(0, len(values), branches)]
    return values[0]


@pytest.mark.parametrize("blocks", [1, 2, 16, 17, 255, 256, 257, 272, 1000, 4096, 5001])
def test_any_division_of_the_work_adds_up_in_the_same_order(blocks):
    values = np.random.default_rng(blocks).normal(size=blocks)
    tree, rng = Tree(blocks), np.random.default_rng(0)
    expected = nested(list(values), 256 if blocks <= 256 else 16)
    for level in range(3):
        nodes = []
        for number in range(tree.nodes(level)):
            mine = Fold(tree)
            for i in tree.blocks_of(level, number):
                mine.add(0, Answer({"v": values[i].copy()}))
            nodes.append(mine.finish())
        cuts = np.unique([0, len(nodes), *rng.integers(0, len(nodes), 5)])
        fold, twice = Fold(tree), Partial(tree, level, 0, len(nodes))
        for first, last in itertools.pairwise(cuts.tolist()):
            partial = Partial(tree, level, first, last)
            for number in range(first, last):
                partial.add(level, number, Answer(dict(nodes[number].sent)))
            for at, number, answer in partial.nodes:
                fold.add(at, Answer(dict(answer.sent)))
                twice.add(at, number, answer)
        again = Fold(tree)
        for at, _, answer in twice.nodes:
            again.add(at, answer)
        assert fold.finish().sent["v"].tobytes() == expected.tobytes() == again.finish().sent["v"].tobytes()


@pytest.mark.parametrize("size", [1, 30, 900, 4000])
def test_parts_that_return_few_candidates_draw_the_same_cohort(size):
    ids, sampler, wholes = np.random.default_rng(0).permutation(4000), FixedSize(size), 0
    fed = Federation({}, [0] * 4001, ids=ids)
    for number in range(20):
        key, below = Key(1, number), bound(sampler, 4000)
        cuts = [0, 7, 1000, 1001, 4000]
        parts = [candidates(sampler, ids[a:b], np.arange(a, b), key, below=below) for a, b in itertools.pairwise(cuts)]
        assert sum(len(where) for where, _ in parts) >= size  # ten standard errors above it
        wholes += sum(len(where) for where, _ in parts)
        assert chosen(sampler, parts, 4000).tolist() == sampler.draw(fed, key).tolist()
    assert wholes / 20 < size + 12 * np.sqrt(size) + 30


class Add(Computation):
    """The sum of a column, whose last digits depend on the order in which numbers are added."""

    block_clients = 2

    def step(self, state, clients, key):
        return {"sum": clients.segment_sum("x")}, {}


def test_the_tree_gives_the_same_bytes_on_any_number_of_threads():
    values = np.random.default_rng(0).normal(size=(1200, 8))
    fed = Federation({"x": values}, np.arange(1201))
    blocks = list(values.reshape(600, 2, 8).sum(axis=1))  # of two clients
    expected = nested(blocks, 16)
    assert (expected != functools.reduce(operator.add, blocks)).any()  # the order shows
    totals = [Local(fed, threads=t).run(Add(), {}, np.arange(1200), Key(0)).total["sum"] for t in (1, 2, 4)]
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
    told = Broadcast(1, "digest", Histogram(3), Key(0), False, release.without_secret(), None, {})
    assert told.release.key == b""
    assert Release(Gaussian(clip=2.0, multiplier=1.0, place="local"), 2.0, b"k", True, 1).without_secret().key == b"k"
    outcome, _ = shard.run(told, Part(slice(0, 20), [[(0, 20)]], Tree(1), 0, 0))
    assert isinstance(outcome, Outcome)
    release.take_grids(outcome.grids[0])
    here = Release(Gaussian(clip=2.0, multiplier=1.0), 2.0, b"secret", True, 1)
    site = Site(fed, Task(Histogram(3), Key(0), False, here, None), {})
    order = np.argsort(fed.ids)
    expected = here.on_total(site.run([fedscape.core.blocks.Block(order, order)], lambda _: {}).sent, 20)
    assert release.on_total(outcome.nodes[0][2].sent, 20)["counts"].tolist() == expected["counts"].tolist()


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
