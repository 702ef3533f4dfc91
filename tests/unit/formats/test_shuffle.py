"""Rows that do not fit in memory: scattered, grouped part by part, and the same as if they had been grouped at once."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import fedscape as fs
from fedscape import DataError, Federation
from fedscape.formats import shuffle as under_test


def table(rows=3_000, clients=200, seed=0, texts=True):
    rng = np.random.default_rng(seed)
    who = rng.integers(0, clients, rows)
    word = rng.choice(["north", "south", "east", None], rows)
    return pa.table(
        {
            "who": pa.array([f"u{v}" for v in who]) if texts else pa.array(who),
            "y": rng.integers(0, 5, rows),
            "age": pa.array([None if v < 3 else int(v) for v in rng.integers(0, 90, rows)]),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * rows)), 3),
            "word": pa.array(word.tolist()),
            "year": pa.array(rng.integers(2020, 2024, rows)),
        }
    )


def same(one, other):
    assert sorted(one.ids.tolist()) == sorted(other.ids.tolist())
    order, again = np.argsort(one.ids), np.argsort(other.ids)
    one, other = one.take(order), other.take(again)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    assert set(one.columns) == set(other.columns)
    for name in one.columns:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])
    assert dict(one.names) == dict(other.names)


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize("number", [1, 8])
def test_scanning_is_grouping(tmp_path, monkeypatch, texts, number):
    monkeypatch.setattr("fedscape.formats.spill.BATCH", 500)
    monkeypatch.setattr(under_test, "how_many", lambda *_: number)
    pq.write_table(table(texts=texts), tmp_path / "rows.parquet", row_group_size=700)
    whole = Federation.from_parquet(tmp_path / "rows.parquet", client="who")
    same(Federation.scan(tmp_path / "rows.parquet", client="who"), whole)


def test_a_fit_ends_in_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(under_test, "how_many", lambda *_: 4)
    rows = table()
    scanned, whole = Federation.scan(rows, client="who"), Federation.from_frame(rows, client="who")
    one, other = (
        fs.MixtureOfDirichletMultinomials(n_components=2, rounds=5).fit(fed, column="y") for fed in (scanned, whole)
    )
    assert one.concentrations_.tobytes() == other.concentrations_.tobytes()


def test_hive_partitions_filters_and_columns(tmp_path):
    rows = table()
    ds.write_dataset(rows, tmp_path / "lake", format="parquet", partitioning=["year"], partitioning_flavor="hive")
    late = Federation.scan(tmp_path / "lake", client="who", columns=["y", "year"], filter=ds.field("year") >= 2022)
    kept = rows.filter(ds.field("year") >= 2022)
    assert late.n_rows == kept.num_rows
    assert set(late.columns) == {"y", "year"}
    assert late["year"].min() == 2022
    assert len(late) == len(set(kept["who"].to_pylist()))


def test_a_glob_a_list_and_uris(tmp_path):
    import fsspec

    rows = table()
    for j in range(3):
        pq.write_table(rows.slice(1000 * j, 1000), tmp_path / f"day-{j}.parquet")
    whole = Federation.from_frame(rows, client="who")
    same(Federation.scan(f"{tmp_path}/day-*.parquet", client="who"), whole)
    same(Federation.scan([tmp_path / f"day-{j}.parquet" for j in range(3)], client="who"), whole)
    same(Federation.scan(f"file://{tmp_path}", client="who"), whole)
    memory = fsspec.filesystem("memory")
    with memory.open("/lake/rows.parquet", "wb") as file:
        pq.write_table(rows, file)
    same(Federation.scan("memory://lake/rows.parquet", client="who"), whole)
    memory.rm("/lake", recursive=True)


def test_whatever_streams_arrow_can_be_scanned():
    rows = table()

    class Relation:
        """As DuckDB's relations, Polars' frames and ADBC's readers do it."""

        def __arrow_c_stream__(self, requested_schema=None):
            return rows.__arrow_c_stream__(requested_schema)

    same(Federation.scan(Relation(), client="who"), Federation.from_frame(rows, client="who"))
    same(Federation.scan(ds.dataset(rows), client="who"), Federation.from_frame(rows, client="who"))


def test_the_folder_stays_where_it_is_named(tmp_path):
    rows = table()
    Federation.scan(rows, client="who", into=tmp_path / "grouped")
    same(Federation.load(tmp_path / "grouped"), Federation.from_frame(rows, client="who"))  # checksums hold
    assert not (tmp_path / "grouped" / "spill").exists()
    with pytest.raises(DataError, match="exists already"):
        Federation.scan(rows, client="who", into=tmp_path / "grouped")


def test_a_client_may_be_several_columns():
    rows = pa.table({"st": [6, 6, 7], "puma": [1, 2, 1], "y": [1, 2, 3]})
    assert sorted(Federation.scan(rows, client="st,puma").ids.tolist()) == ["6/1", "6/2", "7/1"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pa.table({"who": pa.array(["a", None]), "y": [1, 2]}), "has no value in row 1"),
        (pa.table({"who": pa.array([1.5, 2.5]), "y": [1, 2]}), "must hold whole numbers or texts"),
        (pa.table({"user": [1, 2], "y": [1, 2]}), "has no column 'who'"),
        (pa.table({"who": [1, 2], "x": pa.array([[1.0], [1.0, 2.0]])}), "lists of different lengths"),
        (pa.table({"who": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}), "nothing to group"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_left_behind(tmp_path, rows, said):
    with pytest.raises(DataError, match=said):
        Federation.scan(rows, client="who", into=tmp_path / "grouped")
    assert os.listdir(tmp_path) == []


def test_a_damaged_file_is_named(tmp_path):
    for j in range(2):
        pq.write_table(table(seed=j), tmp_path / f"{j}.parquet")
    data = bytearray((tmp_path / "1.parquet").read_bytes())
    data[200:260] = os.urandom(60)
    (tmp_path / "1.parquet").write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"1\.parquet"):
        Federation.scan(tmp_path, client="who", into=tmp_path / "grouped")
    assert not (tmp_path / "grouped").exists()
    with pytest.raises(DataError, match="there is no file or folder"):
        Federation.scan(tmp_path / "nowhere", client="who")
    with pytest.raises(DataError, match="no file matches"):
        Federation.scan(f"{tmp_path}/*.orc", client="who")
    with pytest.raises(DataError, match="nothing here opens"):
        Federation.scan("nosuch://bucket/x", client="who")


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_args, **_how):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedscape.formats.folder.Growing.append", full)
    with pytest.raises(DataError, match="No space left"):
        Federation.scan(table(), client="who", into=tmp_path / "grouped")
    assert os.listdir(tmp_path) == []


def test_parts_fit_in_the_memory_and_in_the_caches_where_that_leaves_pieces_to_read():
    assert under_test.how_many(10**4, 24, 2**29) == 1
    assert under_test.how_many(10**8, 24, 2**60) == -(-24 * 10**8 // under_test.CACHED)
    assert under_test.how_many(10**9, 24, 2**28) == 2**28 // (3 * under_test.PIECE)
    assert under_test.how_many(10**9, 24, 2**26) == -(-25 * 24 * 10**8 // 2**26)
    assert under_test.how_many(10**8, 24, 1) == under_test.MOST_PARTS
