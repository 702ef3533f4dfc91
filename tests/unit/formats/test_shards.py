"""Folders of shards: the same rows as one table, and nothing that is damaged or half-written is ever read."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedscape as fs
from fedscape import DataError, Federation
from fedscape.formats.lake import lake_source
from fedscape.formats.ranges import Ranges, splitters_of
from fedscape.formats.sharded import edges, mapped, verify_shards
from fedscape.formats.shuffle import Threads, shuffle


def table(rows=6_000, clients=300, seed=0, texts=True):
    rng = np.random.default_rng(seed)
    who = rng.integers(-50, clients, rows)
    return pa.table(
        {
            "who": pa.array([f"u{v}" for v in who]) if texts else pa.array(who),
            "flag": rng.integers(0, 2, rows).astype(bool),
            "age": pa.array([None if v < 3 else int(v) for v in rng.integers(0, 90, rows)]),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * rows).astype(np.float32)), 3),
            "word": pa.array(rng.choice(["north", "south", "east", None], rows).tolist()),
            "at": pa.array(rng.integers(0, 2**40, rows), type=pa.timestamp("ms")),
        }
    )


def same(one, other):
    """Whether both hold the same clients with the same rows; the first is in the order of ids."""
    other = other.take(np.argsort(other.ids))
    assert one.ids.tolist() == other.ids.tolist()
    np.testing.assert_array_equal(one.offsets, other.offsets)
    assert list(one.columns) == list(other.columns)
    for name in one.columns:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])
    assert dict(one.names) == dict(other.names)


def scanned(rows, folder, memory=2**20, threads=2, **how):
    shuffle(lake_source(rows), folder, client="who", memory=memory, tasks=Threads(threads), **how)
    return Federation.load(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "grouped"
    scanned(table(40_000), folder)
    assert len(edges(folder)) > 3
    return folder


@pytest.mark.parametrize("texts", [True, False])
def test_a_folder_of_shards_is_one_federation_whatever_the_memory_and_threads(tmp_path, texts):
    rows = table(40_000, texts=texts)
    whole = Federation.from_frame(rows, client="who")
    numbers = set()
    for memory, threads in ((2**20, 1), (2**20, 3), (2**22, 2), (2**30, 2)):
        folder = tmp_path / f"{memory}-{threads}"
        same(scanned(rows, folder, memory, threads), whole)
        numbers.add(len(edges(folder)) - 1)
    assert min(numbers) == 1 < max(numbers)  # of shards


def test_each_shard_is_a_folder_of_its_own(saved):
    whole, parts = Federation.load(saved), sorted(saved.glob("part-*"))
    assert len(parts) == len(edges(saved)) - 1
    same(Federation.concat([Federation.load(part) for part in parts]), whole)
    assert whole.order is None
    assert fs.Histogram(2).fit(whole, column="flag").counts_.sum() == whole.n_rows
    assert len(whole.take(slice(0, len(whole), 7))["x"]) == whole.take(slice(0, len(whole), 7)).n_rows


def test_columns_are_mapped_and_not_read(tmp_path):
    rows = pa.table({"who": np.arange(200_000) % 5000, "v": np.arange(200_000)})
    fed = scanned(rows, tmp_path / "grouped")
    with open("/proc/self/maps") as maps:
        lines = [line for line in maps if "grouped/part-" in line and line.rstrip().endswith("column-0.npy")]
    assert len(lines) == len(edges(tmp_path / "grouped")) - 1
    with pytest.raises(ValueError, match="read-only"):
        fed["v"][0] = 1
    view = fed["v"][10:20]
    shutil.rmtree(tmp_path / "grouped")
    del fed
    assert len(view) == 10  # the mapping lives as long as any view of it
    assert view.sum() > 0


def test_a_client_larger_than_the_memory_and_skewed_ids(tmp_path):
    rng = np.random.default_rng(0)
    who = np.where(rng.random(200_000) < 0.8, 77, rng.integers(0, 10**6, 200_000))  # one client has most rows
    rows = pa.table({"who": who, "v": np.arange(200_000), "w": rng.normal(size=200_000)})
    same(scanned(rows, tmp_path / "one"), Federation.from_frame(rows, client="who"))
    skewed = pa.table({"who": (rng.pareto(0.5, 100_000) * 3).astype(np.int64), "v": np.arange(100_000)})
    same(scanned(skewed, tmp_path / "two"), Federation.from_frame(skewed, client="who"))


def test_a_sorted_stream_whose_length_is_unknown(tmp_path):
    rows = pa.table({"who": np.repeat(np.arange(30_000), 5), "v": np.arange(150_000)})
    stream = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=1000))
    same(scanned(stream, tmp_path / "grouped"), Federation.from_frame(rows, client="who"))
    assert len(edges(tmp_path / "grouped")) > 10


@pytest.mark.parametrize("low", [-(2**63), -5, 0, 2**61])
def test_the_part_of_an_id_is_the_number_of_splitters_not_above_it(low):
    rng = np.random.default_rng(0)
    for width in (3, 1000, 2**40, 2**62):
        ids = np.clip(low + rng.integers(0, width, 5000, dtype=np.int64).astype(object), -(2**63), 2**63 - 1)
        ids = ids.astype(np.int64)
        splitters = splitters_of(ids[:500], 40)
        np.testing.assert_array_equal(Ranges(splitters).part_of(ids), np.searchsorted(splitters, ids, side="right"))


@pytest.mark.parametrize("sizes", [[5], [1000, 3, 0, 2000], [1, 1, 1], [4096, 8192, 1]])
@pytest.mark.parametrize("dtype", ["?", "<i2", "<f4", "<f8"])
def test_files_of_any_length_follow_one_another(tmp_path, sizes, dtype):
    from fedscape.formats.folder import Growing

    values, before, paths = np.arange(3 * sum(sizes)).reshape(-1, 3).astype(dtype), 0, []
    for j, size in enumerate(sizes):
        paths.append(tmp_path / f"{j}.npy")
        file = Growing(paths[-1], size, before=before)
        file.append(values[before : before + size], "v")
        assert file.close()["shape"] == [size, 3]
        np.testing.assert_array_equal(np.load(paths[-1]), values[before : before + size])
        before += size
    for walk in (True, False):
        np.testing.assert_array_equal(mapped(paths, values.dtype, values.shape, walk=walk), values)


# -- damage, full disks, cancelled runs --------------------------------------------------------------------------------


def copied(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_damaged_byte_names_the_shard(saved, tmp_path):
    folder = copied(saved, tmp_path)
    path = folder / "part-00001" / "column-2.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"column-2\.npy of .*part-00001 does not match its checksum"):
        Federation.load(folder)
    cuts = edges(folder)
    verify_shards(folder, 0, cuts[1])  # a worker checks the shards of its clients alone
    with pytest.raises(DataError, match="part-00001"):
        verify_shards(folder, cuts[1], cuts[2])


def test_a_missing_short_or_exchanged_shard_is_refused_without_reading_rows(saved, tmp_path):
    folder = copied(saved, tmp_path)
    shutil.move(folder / "part-00001", tmp_path / "aside")
    with pytest.raises(DataError, match=r"part-00001 of .* is missing"):
        Federation.load(folder, verify=False)
    shutil.copytree(folder / "part-00000", folder / "part-00001")
    with pytest.raises(DataError, match=r"part-00001 of .* is not the one that was written"):
        Federation.load(folder, verify=False)
    shutil.rmtree(folder / "part-00001")
    shutil.move(tmp_path / "aside", folder / "part-00001")
    Federation.load(folder)
    with (folder / "part-00001" / "column-0.npy").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(DataError, match=r"column-0\.npy of .*part-00001 is not the array"):
        Federation.load(folder, verify=False)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("offsets.npy", lambda v: v[[0, 2, 1, *range(3, len(v))]], "its offsets fall"),
        ("offsets.npy", lambda v: np.concatenate(([5], v[1:])), "do not begin with 0"),
        ("offsets.npy", lambda v: np.concatenate((v[:-1], [2**60])), "its shards hold"),
        ("ids.npy", lambda v: v[::-1], "its ids do not rise"),
        ("ids.npy", lambda v: np.full_like(v, v[0]), "its ids do not rise"),
        ("names", lambda v: {**v, "nothing": ["a"]}, "which is no column"),
    ],
)
def test_an_index_that_was_tampered_with_and_sealed_again_is_refused(saved, tmp_path, name, change, said):
    import hashlib
    import json

    from fedscape.formats.folder import _seal

    folder = copied(saved, tmp_path)
    index = json.loads((folder / "federation.json").read_text())
    if name.endswith(".npy"):
        np.save(folder / name, change(np.load(folder / name)))
        index[name.removesuffix(".npy")]["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    else:
        index[name] = change(index[name])
    index["sha256"] = _seal(index)
    (folder / "federation.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=said):
        Federation.load(folder, verify=False)


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in (2**16, 2**19):  # while rows are spilled, and while shards are written or before
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # a quota that the kernel enforces
        try:
            with pytest.raises(DataError, match="cannot be written, and nothing was left behind: File too large"):
                scanned(table(40_000, texts=False), tmp_path / "grouped", threads=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
import pyarrow as pa
import fedscape as fs

class Rows:
    schema = pa.schema([("who", pa.int64()), ("y", pa.int64())])

    def batches(self, columns, rows):
        for number in range(200):
            if number == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            yield pa.record_batch({"who": list(range(2000)), "y": [number] * 2000}).select(columns)

from fedscape.formats import folder
if sys.argv[2] == "1000":
    folder.seal_index = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
fs.Federation.scan(Rows(), client="who", into=sys.argv[1], memory=2**20, overwrite=True)
"""


def test_a_run_that_is_killed_leaves_nothing_that_can_be_read(tmp_path):
    target = tmp_path / "grouped"
    scanned(table(), target)  # an older folder, which stays as it was
    whole = Federation.load(target)
    for moment in ("150", "1000"):  # while it spills, and before an index is written
        done = subprocess.run([sys.executable, "-c", KILLED, str(target), moment], capture_output=True)
        assert done.returncode == -signal.SIGKILL
        same(Federation.load(target), whole)
    drafts = [path for path in tmp_path.iterdir() if path != target]
    assert len(drafts) == 2
    for draft in drafts:
        with pytest.raises(DataError, match="is not a saved Federation"):
            Federation.load(draft)


def test_an_error_in_the_rows_names_file_and_row_group(tmp_path):
    pq.write_table(table(seed=1), tmp_path / "good.parquet", row_group_size=1000)
    pq.write_table(table(seed=2), tmp_path / "late.parquet", row_group_size=1000)
    data = bytearray((tmp_path / "late.parquet").read_bytes())
    begin = pq.ParquetFile(tmp_path / "late.parquet").metadata.row_group(3).column(0).dictionary_page_offset
    data[begin : begin + 40] = bytes(40)
    (tmp_path / "late.parquet").write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"row group 3 of .*late\.parquet cannot be read"):
        Federation.scan(tmp_path, client="who")


# -- sources -----------------------------------------------------------------------------------------------------------


def test_a_table_of_your_own(tmp_path):
    rows = table()

    class Own:
        schema = rows.schema
        n_rows = rows.num_rows
        asked: list[list[str]] = []

        def batches(self, columns, n):
            self.asked.append(columns)
            yield from rows.select(columns).to_batches(max_chunksize=n)

    same(
        Federation.scan(Own(), client="who", columns=["age"]), Federation.from_frame(rows, client="who").select(["age"])
    )
    assert Own.asked == [["who", "age"]]  # other columns are not asked for
    Own.n_rows += 1
    with pytest.raises(DataError, match="declares 6,001 rows, but 6,000 were read"):
        Federation.scan(Own(), client="who")


def test_globs_of_a_file_system_and_sql_through_adbc(tmp_path):
    import sqlite3

    import fsspec

    rows = table()
    memory = fsspec.filesystem("memory")
    for j in range(3):
        with memory.open(f"/glob/year={j}/rows.parquet", "wb") as file:
            pq.write_table(rows.slice(2000 * j, 2000), file)
    found = Federation.scan("memory://glob/year=*/rows.parquet", client="who")
    same(found.select(list(found.columns)[:-1]), Federation.from_frame(rows, client="who"))
    with pytest.raises(DataError, match=r"no file matches memory://glob/\*\.csv"):
        Federation.scan("memory://glob/*.csv", client="who")
    memory.rm("/glob", recursive=True)

    class Cursor:
        """A cursor as ADBC has it, on a database of the standard library."""

        def __init__(self):
            self.found = sqlite3.connect(":memory:")
            self.found.execute("create table t (who text, a int, b int)")
            self.found.executemany("insert into t values (?, ?, ?)", [("u", 1, 2), ("v", 3, 4), ("u", 5, 6)])

        def execute(self, query):
            self.rows = self.found.execute(query)

        def fetch_record_batch(self):
            names = [each[0] for each in self.rows.description]
            kinds = pa.schema([(name, pa.string() if name == "who" else pa.int64()) for name in names])
            batch = pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in self.rows], kinds)
            return pa.RecordBatchReader.from_batches(kinds, [batch])

    class Connection:
        def cursor(self):
            return Cursor()

    query = "select * from t where b > 2;"
    kept = Federation.scan(query, client="who", columns=["a"], connection=Connection())
    assert {who: kept.client(who)["a"].tolist() for who in kept.ids.tolist()} == {"u": [5], "v": [3]}
    with pytest.raises(DataError, match="the query fails: no such table"):
        Federation.scan("select * from no_table", client="who", connection=Connection())
