"""Lakes as they come: ids of all types, files that disagree, places of all kinds, rows that no code may change."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from fedscape import DataError, Federation, datasets
from fedscape.formats import shuffle as shuffling
from fedscape.formats.gather import Part
from fedscape.formats.lake import lake_source
from fedscape.formats.sharded import edges
from fedscape.formats.shuffle import Threads, shuffle

ROWS = 40_000


def same(rows, **how):
    """The rows scanned in many parts are those of one table grouped in memory."""
    scanned = Federation.scan(rows, client="who", memory=2**20, **how)
    whole = Federation.from_frame(rows, client="who")
    whole = whole.take(np.argsort(whole.ids))
    assert scanned.ids.tolist() == whole.ids.tolist()
    np.testing.assert_array_equal(scanned.offsets, whole.offsets)
    for name in whole.columns:
        assert scanned[name].dtype == whole[name].dtype
        np.testing.assert_array_equal(scanned[name], whole[name])  # rows of a client are in their order
    assert dict(scanned.names) == dict(whole.names)


def written(folder, *tables):
    folder.mkdir()
    for number, rows in enumerate(tables):
        pq.write_table(rows, folder / f"{number}.parquet")
    return folder


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "int16", "int64", "uint8", "uint32", "uint64"])
def test_whole_numbers_of_all_types_and_sizes(kind):
    low, high = np.iinfo(kind).min, min(np.iinfo(kind).max, 2**63 - 1)
    ids = np.random.default_rng(0).integers(low, high, ROWS, dtype=np.int64, endpoint=True).astype(kind)
    ids[:4] = low, high, low, high
    same(pa.table({"who": pa.array(ids), "v": np.arange(ROWS)}))


def test_texts_of_all_letters():
    texts = ["", "ü", "🙂", "a\0b", "é" * 50, "Z", "a", "中文", " ", "\n"]
    who = [texts[i % 10] + (str(i % 977) if i % 10 > 2 else "") for i in range(ROWS)]
    same(pa.table({"who": who, "v": np.arange(ROWS)}))
    same(pa.table({"who": pa.array(who, pa.string_view()), "v": np.arange(ROWS)}))


@pytest.mark.parametrize("values", [[7, -5, 2**40], ["x", "y", "z"]])
def test_dictionaries_of_texts_and_of_numbers(values):
    codes = pa.array(np.random.default_rng(0).integers(0, 3, ROWS), pa.int32())
    same(pa.table({"who": pa.DictionaryArray.from_arrays(codes, pa.array(values)), "v": np.arange(ROWS)}))


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (pa.array([2**63 + 5, 1, 1], pa.uint64()), "must fit in 64 signed bits"),
        (pa.array(["a\0", "a", "b"]), "ends in a NUL character"),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["x", None])), "has no value in row 1"),
        (pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), pa.array([4, None])), "has no value in row 2"),
        (pa.array([1, None, 2]), "has no value in row 1"),
        (pa.array(["x" * 2000, "y", "z"]), "takes 2,000 bytes"),
        (
            pa.StringArray.from_buffers(3, pa.py_buffer(np.arange(4, dtype=np.int32)), pa.py_buffer(b"a\xffb")),
            "Invalid UTF8",
        ),
    ],
)
def test_ids_that_no_federation_can_keep_are_refused(tmp_path, who, said):
    with pytest.raises(DataError, match=said):
        Federation.scan(pa.table({"who": who, "v": [1, 2, 3]}), client="who", into=tmp_path / "grouped")
    assert list(tmp_path.iterdir()) == []


def test_whole_numbers_are_never_rounded_where_others_are_missing():
    kinds = pa.schema([("who", pa.int64()), ("v", pa.int64())])
    first, second = ([1, 2], [2**53 + 1, 3]), ([1, 2], [None, 4])
    batches = [pa.record_batch([pa.array(who), pa.array(v, pa.int64())], schema=kinds) for who, v in (first, second)]
    with pytest.raises(DataError, match="9007199254740993 with missing values"):
        Federation.scan(pa.RecordBatchReader.from_batches(kinds, batches), client="who")


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_without_rows_come_first(tmp_path):
    none = pa.table({"who": pa.array([], pa.int64()), "v": pa.array([], pa.int64())})
    some = pa.table({"who": np.arange(ROWS) % 999, "v": np.arange(ROWS)})
    folder = written(tmp_path / "lake", none, none, none, some)
    scanned = Federation.scan(folder, client="who", memory=2**20)
    assert scanned.n_rows == ROWS
    late = Federation.scan(folder, client="who", filter=ds.field("v") >= ROWS - 10)  # no row of the first task's files
    assert sorted(late["v"].tolist()) == list(range(ROWS - 10, ROWS))


@pytest.mark.parametrize(
    ("first", "later", "said"),
    [
        ({"who": [1], "v": [1]}, {"who": [2], "v": [2], "w": [5]}, r"1\.parquet has a column 'w', unlike"),
        ({"who": [1], "v": [1], "w": [5]}, {"who": [2], "v": [2]}, r"1\.parquet lacks the column 'w'"),
        ({"who": [1], "v": [1]}, {"who": [2], "v": [2.0]}, r"'v' is double in .*1\.parquet, but int64 in .*0\.parquet"),
        ({"who": [7], "v": [1]}, {"who": ["07"], "v": [2]}, r"'who' is string in .*1\.parquet"),
        ({"who": [1], "v": ["a"]}, {"who": [2], "v": pa.array([None], pa.null())}, "'v' is null in"),
    ],
)
def test_files_that_disagree_are_refused_by_name(tmp_path, first, later, said):
    folder = written(tmp_path / "lake", pa.table(first), pa.table(later))
    with pytest.raises(DataError, match=said):
        Federation.scan(folder, client="who")
    unified = pa.schema([("who", pa.string()), ("v", pa.string())])  # a schema of your own says what is meant
    assert Federation.scan(ds.dataset(folder, schema=unified, format="parquet"), client="who").n_rows == 2


def test_columns_that_are_not_read_may_differ(tmp_path):
    folder = written(tmp_path / "lake", pa.table({"who": [1], "v": [1], "w": ["a"]}), pa.table({"v": [2], "who": [2]}))
    assert Federation.scan(folder, client="who", columns=["v"])["v"].tolist() == [1, 2]
    with pytest.raises(DataError, match="lacks the column 'w'"):
        Federation.scan(folder, client="who", columns=["v", "w"])


def test_folders_files_and_uris_may_be_named_together(tmp_path):
    each = [pa.table({"who": [number, 9], "v": [number, 9]}) for number in range(4)]
    folders = [written(tmp_path / f"l{number}", rows) for number, rows in enumerate(each)]
    mixed = [folders[0], folders[1] / "0.parquet", f"file://{folders[2]}", f"file://{folders[3]}/*.parquet"]
    for where in (mixed, folders, f"{tmp_path}/l*", f"{tmp_path}/l*/0.parquet"):
        assert Federation.scan(where, client="who").client(9).n_rows == 4
    (folders[0] / "_SUCCESS").write_bytes(b"")
    assert Federation.scan(f"{tmp_path}/l?", client="who").n_rows == 8


def test_a_glob_of_partitions_keeps_what_their_names_say(tmp_path):
    rows = pa.table({"who": [1, 2, 3, 1], "v": [1, 2, 3, 4], "year": [2020, 2021, 2022, 2020]})
    ds.write_dataset(rows, tmp_path / "t", format="parquet", partitioning=["year"], partitioning_flavor="hive")
    some = Federation.scan(f"{tmp_path}/t/year=202[01]", client="who")
    assert some["year"].tolist() == [2020, 2020, 2021]
    by_year = Federation.scan(tmp_path / "t", client="year", columns=[])  # the client is in the path alone
    assert dict(zip(by_year.ids.tolist(), by_year.sizes.tolist(), strict=True)) == {2020: 2, 2021: 1, 2022: 1}


@pytest.mark.parametrize(
    ("folders", "ids"),
    [
        (["007", "7"], ["007", "7"]),  # no number, or two clients would become one
        (["-3", str(2**40)], [-3, 2**40]),
        (["%C3%BC%2F2", "x=3"], ["x=3", "ü/2"]),
        ([str(2**63), "1"], ["1", str(2**63)]),
    ],
)
def test_the_client_may_be_in_the_path_alone(tmp_path, folders, ids):
    for number, name in enumerate(folders):
        written(tmp_path / f"who={name}", pa.table({"v": [number, number]}))
    for where in (tmp_path, f"{tmp_path}/who=*", [tmp_path / f"who={name}" / "0.parquet" for name in folders]):
        scanned = Federation.scan(where, client="who")
        assert scanned.ids.tolist() == ids
        assert scanned.sizes.tolist() == [2, 2]


def test_commands_that_read_one_table_say_how_a_lake_is_grouped(tmp_path):
    written(tmp_path / "year=2020", pa.table({"who": [1], "v": [1]}))
    for lake in (tmp_path, "s3://bucket/events"):
        with pytest.raises(DataError, match=f"{lake} is a lake.* data group {lake} grouped --client who, and name"):
            datasets.read(lake, client="who")


def test_a_key_in_the_path_and_in_the_file_must_be_the_same(tmp_path):
    for year in (2020, 2021):
        rows = pa.table({"who": [1, 2], "v": [1, 2], "year": pa.array([year] * 2, pa.int64())})
        written(tmp_path / f"year={year}", rows)
    same = Federation.scan(tmp_path, client="who")
    assert same["year"].tolist() == [2020, 2021, 2020, 2021]
    assert same["year"].dtype == np.int64
    pq.write_table(rows.set_column(2, "year", [[2021, 2022]]), tmp_path / "year=2021" / "0.parquet")
    said = r"'year' is 2021 in the path of row group 0 of .*year=2021/0\.parquet, which holds 2021 to 2022"
    for how in ({}, {"filter": ds.field("who") == 1}):
        with pytest.raises(DataError, match=said):
            Federation.scan(tmp_path, client="who", **how)
    assert Federation.scan(tmp_path, client="who", columns=["v"]).n_rows == 4


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("README.md", b"# mine", r"README\.md is no Parquet.*'lake/\*\*/\*\.parquet' leaves other files out"),
        ("z.parquet", b"", r"z\.parquet is no Parquet"),
        ("z.parquet", None, r"z\.parquet is no file, perhaps a link to nothing"),
    ],
)
def test_a_file_that_is_no_parquet_is_named(tmp_path, name, content, said):
    folder = written(tmp_path / "lake", pa.table({"who": [1], "v": [2]}))
    if content is None:
        (folder / name).symlink_to("/nowhere")
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        Federation.scan(folder, client="who")
    assert Federation.scan(f"{folder}/**/0.parquet", client="who").n_rows == 1


def test_bad_rows_are_named_by_file_and_row_group(tmp_path):
    good = {"who": [1] * 5, "v": [1] * 5, "x": [[1.0]] * 5}
    gap, ragged = {**good, "who": [1, 1, 1, None, 1]}, {**good, "x": [[1.0]] * 4 + [[1.0, 2.0]]}
    large = {**good, "v": [1, 1, 2**60, None, 1]}
    for rows, said in (
        (gap, r"'who' of row group 1 of .*1\.parquet has no value in row 1"),
        (ragged, r"row group 2 of .*1\.parquet: column 'x' holds lists of different lengths"),
        (large, r"row group 1 of .*1\.parquet: column 'v' mixes 1152921504606846976"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        written(folder, pa.table(good))
        pq.write_table(pa.table(rows), folder / "1.parquet", row_group_size=2)
        with pytest.raises(DataError, match=said):
            Federation.scan(folder, client="who")


def test_datasets_of_other_formats_are_read_as_well(tmp_path):
    (tmp_path / "rows.csv").write_text("who,v\n1,2\n3,4\n1,5\n")
    scanned = Federation.scan(ds.dataset(tmp_path / "rows.csv", format="csv"), client="who")
    assert scanned.client(1)["v"].tolist() == [2, 5]


def test_names_that_fedscape_wrote_into_a_file_keep_their_codes(tmp_path):
    fed = Federation({"y": [0, 1, 1]}, [0, 1, 3], ids=["a", "b"], names={"y": ["yes", "no"]})
    fed_path = tmp_path / "own.parquet"
    from fedscape.formats import to_parquet

    to_parquet(fed, fed_path)
    scanned = Federation.scan(fed_path, client="client")
    assert scanned["y"].tolist() == [0, 1, 1]
    assert scanned.names["y"] == ("yes", "no")
    assert scanned.is_declared("y")


# -- streams, memory, parts --------------------------------------------------------------------------------------------


def test_a_table_of_your_own_that_knows_its_length_is_read_once():
    rows = pa.table({"who": np.arange(200_000) % 5000, "v": np.arange(200_000)})

    class Own:
        schema, n_rows, calls = rows.schema, rows.num_rows, 0

        def batches(self, columns, n):
            Own.calls += 1
            yield from rows.select(columns).to_batches(max_chunksize=min(n, 1000))

    scanned = Federation.scan(Own(), client="who", memory=2**20)
    assert Own.calls == 1
    np.testing.assert_array_equal(scanned.client(7)["v"], np.arange(7, 200_000, 5000))


def test_lists_whose_length_no_type_says_count_as_what_they_take(tmp_path):
    values = pa.array(np.arange(32 * 20_000, dtype=np.float32))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 32 * 20_000 + 1, 32, dtype=np.int32)), values)
    source = lake_source(pa.table({"who": np.arange(20_000), "x": lists}))
    assert 128 <= shuffling.row_bytes(source, "who", ["x"]) <= 180
    folder = tmp_path / "grouped"
    shuffle(source, folder, client="who", memory=2**20, tasks=Threads(1))
    assert len(edges(folder)) > 5


def test_few_files_hold_many_parts(tmp_path, monkeypatch):
    rows = pa.table({"who": np.random.default_rng(0).integers(0, 9000, ROWS), "v": np.arange(ROWS), "w": np.ones(ROWS)})
    shuffle(lake_source(rows), tmp_path / "many", client="who", memory=2**20, tasks=Threads(2))
    monkeypatch.setattr(shuffling, "MOST_FILES", 6)
    shuffle(lake_source(rows), tmp_path / "few", client="who", memory=2**20, tasks=Threads(2))
    many, few = Federation.load(tmp_path / "many"), Federation.load(tmp_path / "few")
    assert len(edges(tmp_path / "few")) - 1 == 3 < len(edges(tmp_path / "many")) - 1
    assert many.fingerprint() == few.fingerprint()
    np.testing.assert_array_equal(many["v"], few["v"])


def test_a_task_is_sent_its_own_part_alone(tmp_path):
    rows = pa.table({"who": np.random.default_rng(0).integers(0, 9000, ROWS), "v": np.arange(ROWS)})
    source = lake_source(rows)
    plan = shuffling.Plan(source, "who", "who", ["v"], 2**20, Threads(1))
    plan.scatter(tmp_path)
    parts = plan.parts(tmp_path)
    again: Part = copy.copy(parts[1])  # what pickle makes of it
    assert [len(run.ends) for spill in again.spills for run in spill.runs] == [2] * len(parts[1].spills[0].runs)
    assert (again.n_rows, again.bytes) == (parts[1].n_rows, parts[1].bytes)
    for one, other in zip(again.spills[0].read(0, False), parts[1].spills[0].read(1, False), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1]["v"], other[1]["v"])


def test_one_shuffle_that_fails_does_not_touch_another(tmp_path):
    good = pa.table({"who": np.arange(3 * 2**20) % 5000, "v": np.arange(3 * 2**20)})
    bad = good.set_column(0, "who", pa.array([None] + [1] * (good.num_rows - 1), pa.int64()))
    stop, failures = threading.Event(), []

    def fail():
        while not stop.is_set():
            try:
                Federation.scan(bad, client="who")
            except DataError as error:
                failures.append(str(error))

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        scanned = Federation.scan(good, client="who", memory=2**24)
    finally:
        stop.set()
        thread.join()
    assert scanned.n_rows == good.num_rows
    assert all("has no value in row 0" in each for each in failures)


def test_of_two_that_write_one_folder_one_wins_and_nothing_is_left(tmp_path):
    rows = pa.table({"who": np.arange(ROWS) % 99, "v": np.arange(ROWS)})
    wrong = []

    def write():
        try:
            Federation.scan(rows, client="who", into=tmp_path / "grouped", overwrite=True, memory=2**20)
        except DataError as error:
            wrong.append(str(error))

    for _ in range(3):
        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Federation.load(tmp_path / "grouped").n_rows == ROWS
        assert [path.name for path in tmp_path.iterdir()] == ["grouped"]
    assert all("cannot be written" in each or "no saved" in each for each in wrong)
