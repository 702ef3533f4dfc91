"""Every way in and out of a Federation: what each type becomes, and what is refused with which words."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscape import formats
from fedscape.core.federation import Federation
from fedscape.errors import DataError, MissingExtraError
from fedscape.formats import (
    from_csv,
    from_flower,
    from_frame,
    from_huggingface,
    from_leaf,
    from_parquet,
    from_torch,
    load_folder,
    save_folder,
    stack_clients,
    to_csv,
    to_huggingface,
    to_leaf,
    to_parquet,
)
from fedscape.formats import parquet as parquet_module
from fedscape.formats.arrow import Codes
from fedscape.formats.files import new_folder
from fedscape.formats.folder import INDEX
from fedscape.formats.grouping import destinations


def same(a: Federation, b: Federation, *, dtypes: bool = True) -> None:
    assert a.ids.tolist() == b.ids.tolist()
    assert a.offsets.tolist() == b.offsets.tolist()
    assert list(a.columns) == list(b.columns)
    assert dict(a.names) == dict(b.names)
    for name in a.columns:
        np.testing.assert_array_equal(a[name], b[name])
        assert not dtypes or a[name].dtype == b[name].dtype


@pytest.fixture
def fed() -> Federation:
    """Five clients, two of them empty, with a column of each kind."""
    n = 7
    return Federation(
        {
            "number": np.array([1.5, np.nan, -np.inf, 0, 2, 3, 4]),
            "small": np.arange(n, dtype=np.uint8),
            "flag": np.arange(n) % 2 == 0,
            "when": np.array(["2020-01-01", "NaT", *["2021-05-06T07:08:09"] * 5], dtype="M8[us]"),
            "image": np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3),
            "../x": np.array([2, 0, -1, 1, 1, 0, 2], dtype=np.int32),
        },
        [0, 3, 3, 5, 7, 7],
        ids=["b", "empty", "a", "ü\n", "last"],
        names={"../x": ["zebra", "ape", "NA", "unused"]},
    )


def test_every_public_name_is_there_and_importing_them_is_light() -> None:
    script = (
        "import sys, fedscape.formats as f; from fedscape.formats import load_folder, save_folder; "
        "print('pyarrow' in sys.modules, [n for n in f.__all__ if not callable(getattr(f, n))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False []"
    with pytest.raises(AttributeError, match="has no attribute 'from_fax'"):
        _ = formats.from_fax


# -- one table per client ----------------------------------------------------------------------------------------------


def test_an_empty_client_does_not_change_the_type_of_a_column() -> None:
    columns, sizes, _ = stack_clients([{"y": []}, {"y": [1, 2]}, {"y": np.empty(0)}])
    assert columns["y"].dtype == np.int64
    assert sizes.tolist() == [0, 2, 0]


def test_an_empty_client_does_not_change_the_shape_of_a_column() -> None:
    columns, _, _ = stack_clients([{"x": []}, {"x": np.ones((2, 3))}])
    assert columns["x"].shape == (2, 3)


def test_texts_of_all_clients_share_one_table_of_codes() -> None:
    columns, _, names = stack_clients([{"y": ["b"]}, pd.DataFrame({"y": ["a", "b"]}), pa.table({"y": ["c", None]})])
    assert names == {"y": ("a", "b", "c")}
    assert columns["y"].tolist() == [1, 0, 1, 2, -1]
    assert columns["y"].dtype == np.int32


def test_clients_may_be_bare_arrays() -> None:
    fed = Federation.from_clients([np.array([1, 2]), [3]], ids=["a", "b"])
    assert fed["x"].tolist() == [1, 2, 3]


def test_no_clients_make_an_empty_federation() -> None:
    assert len(Federation.from_clients([])) == 0


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([{"y": [1]}, {"z": [1]}], r"client 1 has the columns \['z'\], client 0 has \['y'\]"),
        ([{"y": [1], "z": [1, 2]}], r"client 0 has columns of different lengths"),
        ([{"y": [1]}, {"y": ["a"]}], r"'y' holds texts in client 1, but numbers in client 0"),
        ([{"y": [[1, 2]]}, {"y": [[1]]}], r"'y' has the shape \[1\] a row in client 1, but \[2\] in client 0"),
        ([{"y": [1]}, {"y": [1, None]}], r"client 1: column 'y' mixes types \(NoneType, int\)"),
        ([{"y": [2**62]}, {"y": [0.5]}], r"'y' mixes 4611686018427387904 with .* fractions"),
        ({"a": {"y": [1]}}, r"a list of tables, not a mapping"),
    ],
)
def test_clients_that_disagree_are_refused_by_position(clients: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stack_clients(clients)


# -- one table for all -------------------------------------------------------------------------------------------------


def test_a_frame_is_grouped_like_the_arrays_in_it() -> None:
    rng = np.random.default_rng(0)
    client, x = rng.integers(0, 50, 1000), rng.normal(size=(1000, 2))
    table = pa.table({"c": client, "x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)})
    same(from_frame(table, client="c"), Federation.from_arrays({"x": x}, clients=client))


def test_rows_that_lie_together_keep_the_order_of_their_clients() -> None:
    fed = from_frame(pd.DataFrame({"c": ["z", "z", "a"], "y": [1, 2, 3]}), client="c")
    assert fed.ids.tolist() == ["z", "a"]


def test_a_dictionary_in_another_order_than_the_rows_does_not_move_them() -> None:
    client = pa.DictionaryArray.from_arrays(pa.array([1, 1, 0], pa.int8()), pa.array(["a", "z", "unused"]))
    fed = from_frame(pa.table({"c": client, "y": [1, 2, 3]}), client="c")
    assert fed.ids.tolist() == ["z", "a"]
    assert fed["y"].tolist() == [1, 2, 3]


def test_given_ids_set_the_order_and_bring_clients_without_rows() -> None:
    fed = from_frame(pd.DataFrame({"c": [7, 7, 3], "y": [1, 2, 3]}), client="c", ids=[5, 3, 7])
    assert fed.sizes.tolist() == [0, 1, 2]
    assert fed["y"].tolist() == [3, 1, 2]
    with pytest.raises(DataError, match="client 3 has rows but is not among the 2 ids"):
        from_frame(pd.DataFrame({"c": [7, 3]}), client="c", ids=[5, 7])


def test_each_type_becomes_the_column_it_should() -> None:
    frame = pd.DataFrame(
        {
            "c": [1, 1, 2],
            "text": ["b", None, "a"],
            "category": pd.Categorical(["lo", "hi", "lo"], categories=["lo", "hi", "never"]),
            "codes": pd.Categorical([10, 3, 10]),
            "gap": pd.array([1, None, 3], dtype="Int16"),
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "bool": [True, False, True],
            "float": np.array([1, np.nan, 3], dtype=np.float32),
            "time": pd.to_datetime(["2020-01-01", None, "2020-01-03"]),
            "zoned": pd.to_datetime(["2020-01-01T12:00+02:00"] * 3),
            "list": [[1, 2], [3, 4], [5, 6]],
            "nothing": [None, None, None],
        }
    )
    fed = from_frame(frame, client="c")
    assert list(fed.columns) == list(frame.columns[1:])
    assert (fed["text"].tolist(), fed.names["text"]) == ([1, -1, 0], ("a", "b"))
    assert (fed["category"].tolist(), fed.names["category"]) == ([1, 0, 1], ("hi", "lo", "never"))
    assert (fed["codes"].tolist(), fed.names["codes"]) == ([1, 0, 1], ("3", "10"))
    assert fed["text"].dtype == fed["category"].dtype == fed["codes"].dtype == np.int32
    np.testing.assert_array_equal(fed["gap"], [1, np.nan, 3])
    np.testing.assert_array_equal(fed["maybe"], [1, np.nan, 0])
    assert fed["bool"].dtype == bool
    assert fed["float"].dtype == np.float32
    assert np.isnan(fed["float"][1])
    assert fed["time"].dtype.kind == "M"
    assert np.isnat(fed["time"][1])
    assert fed["zoned"][0] == np.datetime64("2020-01-01T10:00")
    assert fed["list"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert np.isnan(fed["nothing"]).all()


def test_a_missing_number_in_a_later_batch_turns_the_whole_column_to_float() -> None:
    column = pa.chunked_array([pa.array([1, 2]), pa.array([None, 4])])
    fed = from_frame(pa.table({"c": [0, 1, 0, 1], "y": column}), client="c")
    np.testing.assert_array_equal(fed["y"], [1.0, np.nan, 2.0, 4.0])


def test_tensors_keep_their_shape_and_lists_of_texts_are_refused() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3))
    table = pa.table({"c": [1, 2], "words": [["b", "a"], ["c", "a"]], "tensor": tensors})
    assert from_frame(table.drop(["words"]), client="c")["tensor"].shape == (2, 2, 3)
    with pytest.raises(DataError, match=r"'words' has the Arrow type list<.*: make it one text a row"):
        from_frame(table, client="c")


def test_ready_counts_keep_the_names_of_their_categories(tmp_path) -> None:
    fed = Federation({"y": [[7, 0, 900], [1, 2, 3]]}, [0, 1, 2], names={"y": ["a", "b", "c"]})
    to_parquet(fed, tmp_path / "a.parquet")
    back = from_parquet(tmp_path / "a.parquet", client="client")
    assert back["y"].tolist() == fed["y"].tolist()
    assert back.names["y"] == ("a", "b", "c")
    with pytest.raises(DataError, match="3 values along its last axis, but 2 names"):
        Federation({"y": [[7, 0, 900]]}, [0, 1], names={"y": ["a", "b"]})
    with pytest.raises(DataError, match="texts of shape \\[2\\] a row: make it one text a row"):
        Federation({"y": [["a", "b"]]}, [0, 1])


def test_a_frame_without_rows_has_its_columns_and_the_given_clients() -> None:
    schema = pa.schema({"c": pa.int64(), "t": pa.string(), "v": pa.list_(pa.float32(), 3), "w": pa.list_(pa.int8())})
    fed = from_frame(schema.empty_table(), client="c", ids=[4])
    assert fed.n_rows == 0
    assert fed.ids.tolist() == [4]
    assert fed["v"].shape == (0, 3)
    assert fed.names["t"] == ()
    assert from_frame(pd.DataFrame({"c": [], "y": []}, dtype=object), client="c").n_rows == 0


def test_a_frame_does_not_share_memory_with_the_federation() -> None:
    values = np.array([1.0, 2.0])
    fed = from_frame(pa.table({"c": [0, 0], "y": pa.array(values)}), client="c")
    values[:] = 9
    assert fed["y"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([b"a", b"b"]), r"'v' has the Arrow type binary, .* decode it"),
        (pa.array([{"a": 1}, {"a": 2}]), r"'v' has the Arrow type struct<a: int64>, .* flatten"),
        (pa.array([Decimal("1.5")] * 2, pa.decimal128(5, 1)), r"'v' has the Arrow type decimal128\(5, 1\), .* float64"),
        (pa.array([1, 2], pa.time32("s")), r"'v' has the Arrow type time32\[s\], .* whole numbers"),
        (pa.array([[b"a"], [b"b"]]), r"'v' has the Arrow type list<"),
        (pa.array([[1], [1, 2]]), r"'v' holds lists of different lengths \(\[1\] and \[2\]\): pad"),
        (pa.array([[1], None]), r"'v' misses a list \(row 1 "),
        (pa.array([2**60, None]), r"'v' mixes 1152921504606846976 with missing values"),
    ],
)
def test_what_no_column_can_hold_is_refused_by_name_type_and_remedy(column: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_frame(pa.table({"c": [1, 2], "v": column}), client="c")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pa.table({"a": [1], "b": [2]}), r"the frame has no column 'c'; its columns are 'a', 'b'"),
        (pa.table({"c": [1.0]}), r"client column 'c' must hold whole numbers or texts, not double"),
        (pa.table({"c": [1, None]}), r"client column 'c' of the frame has no value in row 1"),
        (pa.table({"c": ["a\0"]}), r"ends in a NUL character"),
        (pa.table({"c": pa.array([2**63], pa.uint64())}), r"must fit in 64 signed bits, but reach 9223372036854775808"),
        (pa.Table.from_arrays([pa.array([1])] * 3, names=["c", "y", "y"]), r"2 columns called 'y'"),
        (pd.DataFrame({"c": [1, 2], "y": [1, "a"]}), r"cannot become an Arrow table: .*: make each column all numbers"),
        ([1, 2], r"must be a pandas DataFrame or an Arrow table, not list"),
    ],
)
def test_a_frame_that_cannot_be_grouped_is_refused(frame: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        from_frame(frame, client="c")
    assert "\n" not in str(caught.value)


def test_a_dictionary_with_missing_or_repeated_entries_is_read_by_value() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", None, "a"]), safe=False)
    fed = from_frame(pa.table({"c": [1, 1, 1], "y": column}), client="c")
    assert fed["y"].tolist() == [0, -1, 0]


@pytest.mark.parametrize("kind", ["i1", "u1", "i8", "u8"])
def test_whole_numbers_get_one_code_each_whether_they_lie_close_or_far_apart(kind: str) -> None:
    limits = np.iinfo(kind)
    rng = np.random.default_rng(0)
    near = rng.integers(limits.min, limits.min + 100, 3000, dtype=kind)
    far = rng.integers(limits.min, limits.max, 3000, dtype=kind, endpoint=True)
    top = rng.integers(limits.max - 100, limits.max, 3000, dtype=kind, endpoint=True)
    codes, parts = Codes(), [near[:5], near, far, top, near[::-1], far[::-1]]
    made = np.concatenate([codes.encode(pa.array(part)) for part in parts])
    values = np.array(list(codes.table), dtype=kind)
    np.testing.assert_array_equal(values[made], np.concatenate(parts))
    assert len(values) == len(np.unique(values))


def test_destinations_agree_with_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 40, 1000).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=40))))
    place, parts = offsets[:-1].copy(), np.split(np.arange(1000), [1, 300, 301])
    target = np.concatenate([destinations(codes[part], place) for part in parts])
    expected = np.empty(1000, dtype=np.int64)
    expected[np.argsort(codes, kind="stable")] = np.arange(1000)
    np.testing.assert_array_equal(target, expected)
    assert place.tolist() == offsets[1:].tolist()


# -- Parquet -----------------------------------------------------------------------------------------------------------


def test_parquet_brings_back_every_column_name_and_empty_client(fed: Federation, tmp_path: Path) -> None:
    to_parquet(fed, tmp_path / "a.parquet")
    same(from_parquet(tmp_path / "a.parquet", client="client"), fed)


def test_parquet_brings_back_days_and_seconds(tmp_path: Path) -> None:
    days = np.array(["1969-12-31", "NaT", "2400-02-29"], dtype="M8[D]")
    to_parquet(Federation({"day": days, "second": days.astype("M8[s]")}, [0, 3]), tmp_path / "a.parquet")
    back = from_parquet(tmp_path / "a.parquet", client="client")
    assert back["day"].dtype == days.dtype
    np.testing.assert_array_equal(back["day"], days)
    np.testing.assert_array_equal(back["second"], days)


def test_parquet_without_any_rows_keeps_the_clients(tmp_path: Path, fed: Federation) -> None:
    empty = fed.where(np.zeros(fed.n_rows, dtype=bool))
    to_parquet(empty, tmp_path / "a.parquet")
    same(from_parquet(tmp_path / "a.parquet", client="client"), empty)


@pytest.mark.parametrize("stream_above", [0, 2**26])
def test_parquet_read_in_small_batches_equals_the_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream_above: int
) -> None:
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "c": [f"client {i}" for i in rng.integers(0, 30, 500)],
            "t": pa.array([None if v == 0 else f"text {v}" for v in rng.integers(0, 90, 500)]),
            "n": pa.array([None if v == 0 else int(v) for v in rng.integers(0, 90, 500)]),
            "v": rng.normal(size=(500, 3)).tolist(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=60)
    monkeypatch.setattr(parquet_module, "BATCH_BYTES", 100)
    monkeypatch.setattr(parquet_module, "STREAM_ABOVE", stream_above)
    same(from_parquet(tmp_path / "a.parquet", client="c"), from_frame(table, client="c"))


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_parquet_texts_of_any_encoding_are_read(tmp_path: Path, encoding: str) -> None:
    table = pa.table({"c": ["b", "a", "b"], "y": ["v", None, "u"]})
    options = {"use_dictionary": False, "column_encoding": {"c": encoding, "y": encoding}}
    pq.write_table(table, tmp_path / "a.parquet", **options)
    same(from_parquet(tmp_path / "a.parquet", client="c"), from_frame(table, client="c"))


def test_a_folder_of_parquet_files_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": [2, 1], "y": ["b", "x"]}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"c": [1, 2], "y": ["a", "b"]}), tmp_path / "1.parquet")
    (tmp_path / "notes.txt").write_text("no data")
    fed = from_parquet(tmp_path, client="c")
    assert [fed.names["y"][code] for code in fed["y"]] == ["a", "x", "b", "b"]


def test_clients_listed_in_several_parquet_files_are_joined(tmp_path: Path) -> None:
    to_parquet(Federation({"y": [1]}, [0, 0, 1], ids=["e", "b"]), tmp_path / "1.parquet")
    to_parquet(Federation({"y": [2]}, [0, 1], ids=["a"]), tmp_path / "2.parquet")
    fed = from_parquet(tmp_path, client="client")
    assert fed.ids.tolist() == ["e", "b", "a"]
    assert fed.sizes.tolist() == [0, 1, 1]


def test_clients_listed_for_another_column_are_not_used(tmp_path: Path) -> None:
    to_parquet(Federation({"y": [1]}, [0, 0, 1], ids=["e", "b"]), tmp_path / "1.parquet")
    assert from_parquet(tmp_path / "1.parquet", client="y").ids.tolist() == [1]


def test_columns_of_a_parquet_file_can_be_chosen_and_their_order(fed: Federation, tmp_path: Path) -> None:
    to_parquet(fed, tmp_path / "a.parquet")
    some = from_parquet(tmp_path / "a.parquet", client="client", columns=["small", "number"])
    assert list(some.columns) == ["small", "number"]
    with pytest.raises(DataError, match="has no column 'smal'; its columns are 'client', 'number'"):
        from_parquet(tmp_path / "a.parquet", client="client", columns=["smal"])
    with pytest.raises(DataError, match=r"write \['small'\]"):
        from_parquet(tmp_path / "a.parquet", client="client", columns="small")


def test_files_that_disagree_about_a_type_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": [1], "y": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"c": [1], "y": [1.5]}), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"'y' is double in .*2\.parquet, but int64 in .*1\.parquet: cast"):
        from_parquet(tmp_path, client="c")


def test_a_missing_and_an_empty_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none\.parquet"):
        from_parquet(tmp_path / "none.parquet", client="c")
    with pytest.raises(DataError, match=r"holds no \.parquet file"):
        from_parquet(tmp_path, client="c")


@pytest.mark.parametrize("keep", [0, 3, 40, -1, -8])
def test_a_truncated_parquet_file_gives_one_line_that_names_it(tmp_path: Path, fed: Federation, keep: int) -> None:
    to_parquet(fed, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:keep])
    with pytest.raises(DataError, match=r"b\.parquet is not a readable Parquet file: ") as caught:
        from_parquet(tmp_path / "b.parquet", client="client")
    assert "\n" not in str(caught.value)


def test_a_parquet_file_that_declares_more_than_the_limit_is_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"c": np.zeros(100_000, dtype=np.int64), "y": np.zeros(100_000)}), tmp_path / "a.parquet")
    assert from_parquet(tmp_path / "a.parquet", client="c").n_rows == 100_000
    monkeypatch.setattr(parquet_module, "ALWAYS_ALLOWED", 2**20)
    monkeypatch.setattr(parquet_module, "MOST_EXPANSION", 2)
    with pytest.raises(DataError, match=r"declares 100,000 rows of 1,200,000 bytes, beyond the limit of 1,048,576"):
        from_parquet(tmp_path / "a.parquet", client="c")


def varint(number: int) -> bytes:
    """A whole number as Parquet's footer writes it."""
    number, out = number * 2, bytearray()
    while number > 127:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (2**60, r"declares 1,152,921,504,606,846,976 rows of [0-9,]+ bytes, beyond the limit of 1,073,741,824 \(1 GiB"),
        (50_000_000, r"is not a readable Parquet file|declares 50,000,000 rows, but 77,777 were read"),
    ],
)
def test_a_footer_that_lies_about_the_rows_is_refused(tmp_path: Path, rows: int, message: str) -> None:
    pq.write_table(pa.table({"c": np.arange(77_777), "y": np.ones(77_777)}), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    footer = whole[-8 - length : -8].replace(varint(77_777), varint(rows))
    assert footer != whole[-8 - length : -8]
    lie = whole[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    (tmp_path / "a.parquet").write_bytes(lie)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            from_parquet(tmp_path / "a.parquet", client="c")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (2**22 if rows == 2**60 else parquet_module.ALWAYS_ALLOWED)


def test_damaged_pages_of_our_own_parquet_files_are_always_noticed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    to_parquet(Federation({"x": rng.normal(size=5000)}, [0, 5000]), tmp_path / "a.parquet")
    whole = bytearray((tmp_path / "a.parquet").read_bytes())
    for place in (len(whole) // 3, len(whole) // 2):
        damaged = whole.copy()
        damaged[place] ^= 1
        (tmp_path / "b.parquet").write_bytes(damaged)
        with pytest.raises(DataError, match="CRC"):
            from_parquet(tmp_path / "b.parquet", client="client")


_PEAK = """
import re, sys
from fedscape.formats import from_parquet
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
before = peak()
fed = from_parquet(sys.argv[1], client="c")
print(len(fed), sum(v.nbytes for v in fed.columns.values()), peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_reading_parquet_takes_less_than_three_times_the_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 4_000_000
    labels = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 9, n)), pa.array([f"text {i}" for i in range(9)]))
    columns = {"c": rng.integers(0, 40_000, n), "x": rng.normal(size=n), "z": rng.normal(size=n), "y": labels}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=500_000)
    run = [sys.executable, "-c", _PEAK, str(tmp_path / "a.parquet")]
    clients, size, peak = map(int, subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
    assert clients == 40_000
    assert size == n * 20
    assert peak < 3 * size


# -- CSV ---------------------------------------------------------------------------------------------------------------


def test_csv_brings_back_numbers_texts_and_missing_values(tmp_path: Path) -> None:
    fed = Federation(
        {"x": [1.5, np.nan, 3.0], "n": [1, 2, 3], "t": np.array([0, -1, 3])},
        [0, 2, 3],
        ids=["007", "7"],
        names={"t": ["", "+1-1", "=A1", 'a "quoted"\nline, with é']},
    )
    to_csv(fed, tmp_path / "a.csv")
    back = from_csv(tmp_path / "a.csv", client="client")
    assert back.ids.tolist() == ["007", "7"]
    np.testing.assert_array_equal(back["x"], fed["x"])
    assert back["n"].tolist() == [1, 2, 3]
    assert back.names["t"] == ("", 'a "quoted"\nline, with é')
    assert back["t"].tolist() == [0, -1, 1]


def test_csv_reads_na_as_missing_among_numbers_and_as_a_text_among_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("c,n,t\n1,NA,NA\n2,5,b\n1,6,\n")
    fed = from_csv(tmp_path / "a.csv", client="c")
    assert fed.ids.tolist() == [1, 2]
    np.testing.assert_array_equal(fed["n"], [np.nan, 6, 5])
    assert (fed["t"].tolist(), fed.names["t"]) == ([0, -1, 1], ("NA", "b"))


def test_a_folder_of_csv_files_is_one_federation(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("c,n\nb,1\na,2\n")
    (tmp_path / "2.csv").write_text("c,n\nb,3.5\n")
    fed = from_csv(tmp_path, client="c", columns=["n"])
    assert fed["n"].tolist() == [2, 1, 3.5]
    (tmp_path / "3.csv").write_text("c,m\nb,3.5\n")
    with pytest.raises(DataError, match=r"3\.csv has other columns than .*1\.csv: it lacks 'n', and it has 'm', which"):
        from_csv(tmp_path, client="c")
    (tmp_path / "3.csv").write_text("n,c\n3.5,b\n")
    with pytest.raises(DataError, match=r"3\.csv has other columns than .*1\.csv: in another order.* with empty cells"):
        from_csv(tmp_path, client="c")


def test_a_column_of_numbers_in_one_file_and_texts_in_another_is_named(tmp_path: Path) -> None:
    for number, cells in enumerate(("1,2", "2,", "3,no")):
        (tmp_path / f"{number}.csv").write_text(f"c,y\n{cells}\n")
    said = "the column 'y': 2.csv holds texts, 0.csv holds int64 values: write it alike in all"
    with pytest.raises(DataError, match=re.escape(said)):
        from_csv(tmp_path, client="c")


@pytest.mark.parametrize(("ending", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-16"), ("\n", "utf-8-sig")])
def test_a_line_of_unlike_length_is_named(tmp_path: Path, ending: str, encoding: str) -> None:
    """The parser's own message quotes the line, which is hard to find in a long file and is nobody else's."""
    lines = ["c;n;t", 'a;1,5;"x;y"', "", 'b;2,5;"two', 'lines"', "b;3,5;z;;more", "b;4,5"]
    (tmp_path / "a.csv").write_bytes(ending.join(lines).encode(encoding))
    with pytest.raises(
        DataError, match=r"a\.csv is not a readable CSV file: line 6 has 5 cells, where the header names 3"
    ):
        from_csv(tmp_path / "a.csv", client="c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c,y\n1,2\n3,4,5\n", r"a\.csv is not a readable CSV file: line 3 has 3 cells"),
        ("", r"a\.csv is not a readable CSV file: Empty"),
        ("a,y\n1,2\n", r"a\.csv has no column 'c'; its columns are 'a', 'y'"),
        ("c,y,y\n1,2,3\n", r"2 columns called 'y'"),
        ("c,y\n,2\n", r"no value in row 0"),
    ],
)
def test_a_bad_csv_file_is_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        from_csv(tmp_path / "a.csv", client="c")
    assert "\n" not in str(caught.value)
    assert "3,4,5" not in str(caught.value)  # what is in a row stays there


def test_csv_refuses_more_than_one_dimension(fed: Federation, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'image' has the shape \[2, 3\] a row.*to_parquet\(\)"):
        to_csv(fed, tmp_path / "a.csv")
    assert list(tmp_path.iterdir()) == []


# -- what cannot be written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ({"client": [1]}, {}, r"has a column 'client' already: pass client="),
        ({"y": [3]}, {"y": ["a"]}, r"'y' holds the code 3, but has names for 0 to 0"),
        ({"y": [-2]}, {"y": ["a"]}, r"'y' holds the code -2"),
        ({"y": [0.0]}, {"y": ["a"]}, r"'y' has names, so it must hold whole-number codes, not float64"),
        ({"y": [0]}, {"y": ["a", "a"]}, r"'y' has the name 'a' for several codes"),
        ({"y": np.zeros((1, 0))}, {}, r"'y' has the shape \[0\] a row and so no values"),
        ({"y": np.zeros(1, dtype=np.longdouble)}, {}, r"'y' is (float128|longdouble), which Arrow cannot hold"),
        ({"y": np.array([2**31], dtype="M8[D]")}, {}, r"'y' holds a day beyond the year 5,881,580"),
    ],
)
def test_what_arrow_cannot_hold_is_refused(tmp_path: Path, columns: Any, names: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        to_parquet(Federation(columns, [0, 1], names=names), tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [to_parquet, to_csv, to_leaf])
def test_an_existing_file_is_replaced_only_on_request(write: Any, tmp_path: Path) -> None:
    one, two = Federation({"y": [1]}, [0, 1]), Federation({"y": [2, 3]}, [0, 2])
    write(one, tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    with pytest.raises(DataError, match=r"a exists already: .* overwrite=True"):
        write(two, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == before
    write(two, tmp_path / "a", overwrite=True)
    assert (tmp_path / "a").read_bytes() != before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("write", [to_parquet, to_csv, to_leaf, save_folder])
def test_a_write_that_fails_leaves_nothing_behind(write: Any, tmp_path: Path) -> None:
    fed = Federation({"y": np.arange(300_000)}, [0, 300_000])
    with pytest.raises(DataError, match=r"missing.* cannot be written, and nothing was left behind: No such file"):
        write(fed, tmp_path / "missing" / "a")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # as a full disk would, but for this process alone
    try:
        with pytest.raises(DataError, match=r"a cannot be written, and nothing was left behind: ") as caught:
            write(fed, tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_brings_back_everything(fed: Federation, tmp_path: Path) -> None:
    fed.save(tmp_path / "f")
    same(Federation.load(tmp_path / "f"), fed)
    assert sorted(entry.name for entry in tmp_path.rglob("*") if entry.is_file()) == [
        *(f"column-{place}.npy" for place in range(6)),
        "federation.json",
        "ids.npy",
        "offsets.npy",
    ]


def test_a_folder_of_no_clients_and_of_no_columns_comes_back(tmp_path: Path) -> None:
    for place, fed in enumerate([Federation({}, [0]), Federation({"x": np.empty((0, 3))}, [0, 0], ids=["a"])]):
        fed.save(tmp_path / str(place))
        same(Federation.load(tmp_path / str(place)), fed)


def test_arrays_in_any_memory_layout_are_saved(tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(4, 6)
    columns = {"fortran": np.asfortranarray(x), "strided": x[:, ::2], "big": x.astype(">f8"), "scalar": x[::-1, 0]}
    Federation(columns, [0, 4]).save(tmp_path / "f")
    same(Federation.load(tmp_path / "f"), Federation(columns, [0, 4]))


def test_loaded_columns_are_memory_mapped_and_not_copied(tmp_path: Path) -> None:
    Federation({"x": np.arange(10.0)}, [0, 10]).save(tmp_path / "f")
    values: Any = Federation.load(tmp_path / "f")["x"]
    while not isinstance(values, np.memmap):
        assert values.base is not None
        values = values.base
    assert values.mode == "r"


def test_an_existing_folder_is_replaced_only_on_request_and_only_if_it_is_ours(tmp_path: Path) -> None:
    one, two = Federation({"y": [1]}, [0, 1]), Federation({"z": [2, 3]}, [0, 2])
    one.save(tmp_path / "f")
    with pytest.raises(DataError, match=r"f exists already: .* overwrite=True"):
        two.save(tmp_path / "f")
    old = Federation.load(tmp_path / "f")
    two.save(tmp_path / "f", overwrite=True)
    same(Federation.load(tmp_path / "f"), two)
    assert old["y"].tolist() == [1]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(DataError, match=r"mine holds no federation\.json, so it is not replaced"):
        two.save(tmp_path / "mine", overwrite=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["f", "mine"]
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


@pytest.mark.parametrize(
    ("overwrite", "mark", "message"),
    [(False, INDEX, "exists already"), (False, "letter", "exists already"), (True, "letter", "so it is not replaced")],
)
def test_a_folder_that_appears_during_a_write_stays(tmp_path: Path, overwrite: bool, mark: str, message: str) -> None:
    target = tmp_path / "f"

    def write(target: Path, overwrite: bool, mark: str) -> None:
        with new_folder(target, overwrite=overwrite, mark=INDEX) as draft:
            (draft / INDEX).write_text("ours")
            target.mkdir()
            (target / mark).write_text("theirs")

    with pytest.raises(DataError, match=message):
        write(target, overwrite, mark)
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]
    assert (target / mark).read_text() == "theirs"
    write(tmp_path / "g", True, INDEX)
    assert (tmp_path / "g" / INDEX).read_text() == "ours"


def test_a_replacement_that_fails_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Federation({"y": [1]}, [0, 1])
    one.save(tmp_path / "f")
    rename, calls = os.rename, []

    def fail_second(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr("fedscape.disk.exchanged", lambda *_: False)  # a system that cannot
    monkeypatch.setattr(os, "rename", fail_second)
    with pytest.raises(DataError, match=r"cannot be written, and nothing was left behind: Input/output error"):
        Federation({"y": [2]}, [0, 1]).save(tmp_path / "f", overwrite=True)
    same(Federation.load(tmp_path / "f"), one)
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_a_changed_byte_in_a_column_is_noticed_when_verified(fed: Federation, tmp_path: Path) -> None:
    fed.save(tmp_path / "f")
    file = tmp_path / "f" / "column-2.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"column-2\.npy of .*f does not match its checksum: the file is damaged"):
        load_folder(tmp_path / "f")
    assert len(load_folder(tmp_path / "f", verify=False)) == 5


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["column-0.npy", "ids.npy", "offsets.npy", "federation.json"])
def test_a_truncated_missing_or_swapped_file_is_noticed(
    fed: Federation, tmp_path: Path, name: str, verify: bool
) -> None:
    fed.save(tmp_path / "f")
    file = tmp_path / "f" / name
    content = file.read_bytes()
    for damaged in (content[:-2], content + b"\0", content[:20], b"", b"???" + content[3:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=name.replace(".", r"\.")) as caught:
            load_folder(tmp_path / "f", verify=verify)
        assert "\n" not in str(caught.value)
    file.unlink()
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        load_folder(tmp_path / "f", verify=verify)


def reseal(path: Path, change: Any) -> None:
    """Edit an index and give it the checksum it then needs, as someone with ill intent would."""
    from fedscape.formats.folder import _seal

    index = json.loads((path / "federation.json").read_text())
    change(index)
    index["sha256"] = _seal(index)
    (path / "federation.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i["columns"][0].update(file="../../etc/passwd"), r"names the file '\.\./\.\./etc/passwd'"),
        (lambda i: i["columns"][0].update(file="/etc/passwd"), r"names the file '/etc/passwd'"),
        (lambda i: i["columns"][0].update(file="column-0.npy\n"), r"names the file"),
        (lambda i: i["columns"][0].update(file=7), r"names the file 7"),
        (lambda i: i["columns"][0].update(dtype="|O"), r"holds object\[7\], which no column can"),
        (lambda i: i["columns"][0].update(dtype="<f4"), r"float64\[7\] instead of float32\[7\]"),
        (lambda i: i["columns"][0].update(shape=[2**60]), r"instead of float64\[1152921504606846976\]"),
        (lambda i: i["columns"][0].update(shape=[]), r"which no column can"),
        (lambda i: i["columns"][0].update(name="small"), r"names a column twice"),
        (lambda i: i["columns"].clear(), r"names are given for '../x', which is no column"),
        (lambda i: i.update(version=3), r"has version 3, and this fedscape reads 1 and 2: upgrade"),
        (lambda i: i.update(version=2), r"not a readable index of a Federation: 'shards'"),
        (lambda i: i.update(format="zip"), r"does not say that it is a 'fedscape federation'"),
        (lambda i: i.update(ids=i["offsets"]), r"names the file 'offsets\.npy'"),
        (lambda i: i.pop("names"), r"not a readable index of a Federation: 'names'"),
    ],
)
def test_an_index_that_was_tampered_with_is_refused(fed: Federation, tmp_path: Path, change: Any, message: str) -> None:
    fed.save(tmp_path / "f")
    reseal(tmp_path / "f", change)
    with pytest.raises(DataError, match=message):
        load_folder(tmp_path / "f")


def test_a_pickle_in_a_column_file_is_never_loaded(tmp_path: Path) -> None:
    Federation({"x": [1.0]}, [0, 1]).save(tmp_path / "f")
    np.save(tmp_path / "f" / "column-0.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"column-0\.npy of .* is not the array"):
        load_folder(tmp_path / "f", verify=False)


def test_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere is not a saved Federation: it holds no federation\.json"):
        load_folder(tmp_path / "nowhere")


# -- LEAF --------------------------------------------------------------------------------------------------------------


def test_leaf_files_come_in_by_user(tmp_path: Path) -> None:
    content = {
        "users": ["u", "empty", "v"],
        "num_samples": [2, 0, 1],
        "hierarchies": ["h", "h", "g"],
        "user_data": {
            "v": {"x": [[5, 6]], "y": ["yes"]},
            "u": {"x": [[1, 2], [3, 4]], "y": ["no", None]},
            "empty": {"x": [], "y": []},
        },
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    fed = from_leaf(tmp_path / "a.json")
    assert fed.ids.tolist() == ["u", "empty", "v"]
    assert fed.sizes.tolist() == [2, 0, 1]
    assert fed["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (fed["y"].tolist(), fed.names["y"]) == ([0, -1, 1], ("no", "yes"))


def test_leaf_brings_back_what_json_can_hold(fed: Federation, tmp_path: Path) -> None:
    some = fed.select(["number", "small", "flag", "image", "../x"])
    to_leaf(some, tmp_path / "a.json")
    back = from_leaf(tmp_path / "a.json")
    assert back.names["../x"] == ("NA", "ape", "zebra")
    recoded = some.with_column(
        "../x", [2 - code if code >= 0 else -1 for code in some["../x"]], names=back.names["../x"]
    )
    same(back, recoded, dtypes=False)
    with pytest.raises(DataError, match=r"'when' is datetime64\[us\], and JSON has no times"):
        to_leaf(fed, tmp_path / "b.json")


def test_a_folder_of_leaf_files_is_one_federation_unless_a_user_is_in_two(tmp_path: Path) -> None:
    for name, user in (("1.json", "b"), ("2.json", "a")):
        to_leaf(Federation({"y": [1]}, [0, 1], ids=[user]), tmp_path / name)
    assert from_leaf(tmp_path).ids.tolist() == ["b", "a"]
    to_leaf(Federation({"y": [1]}, [0, 1], ids=["a"]), tmp_path / "3.json")
    with pytest.raises(DataError, match="user 'a' is in more than one file"):
        from_leaf(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": [3]}, r"user 'u' has 3 samples by num_samples, but 'y' holds 2"),
        ({"num_samples": []}, r"num_samples must list one number for each of the 1 users"),
        ({"users": ["u", "u"]}, r"name the same users once each, but differ for 'u'"),
        ({"users": ["w"]}, r"name the same users once each, but differ for 'u'"),
        ({"users": 3}, r"users must be a list of texts"),
        ({"hierarchies": []}, r"hierarchies must list one entry for each of the 1 users"),
        ({"user_data": {"u": [1, 2]}}, r"data of user 'u' must be an object of lists"),
        ({"user_data": {"u": {}}}, r"data of user 'u' must be an object of lists"),
        ({"user_data": {"u": {"y": "ab"}}}, r"but 'y' holds str"),
        ({"user_data": {"u": {"y": [[1], [1, 2]]}}}, r"client 0: column 'y' is not one array"),
        ({"user_data": {"u": {"y": [1, "a"]}}}, r"client 0: column 'y'"),
        ({"user_data": {"u": {"y": [10**30, 1]}}}, r"client 0: column 'y' mixes types"),
    ],
)
def test_a_leaf_file_that_contradicts_itself_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    content = {"users": ["u"], "num_samples": [2], "user_data": {"u": {"y": [1, 2]}}, **change}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        from_leaf(tmp_path / "a.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{", "[]", "\xff", '{"users": []}', "1" * 5000])
def test_what_is_not_leaf_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.json is not a (readable )?LEAF file"):
        from_leaf(tmp_path / "a.json")


# -- other libraries ---------------------------------------------------------------------------------------------------


def test_a_hugging_face_dataset_keeps_labels_order_and_selection() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "who": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["zebra", "ape"]),
            "x": datasets.Value("int8"),
        }
    )
    rows = {"who": ["a", "b", "a", "c"], "label": [1, 0, -1, 1], "x": [1, 2, 3, 4]}
    dataset = datasets.Dataset.from_dict(rows, features=features).select([2, 1, 0])
    fed = from_huggingface(dataset, client="who", ids=["b", "a", "none"])
    assert fed.names["label"] == ("zebra", "ape")
    assert fed["label"].tolist() == [0, -1, 1]
    assert fed["x"].tolist() == [2, 3, 1]
    assert fed["x"].dtype == np.int8
    with pytest.raises(DataError, match=r"'label' .* has no value in row 0"):
        from_huggingface(dataset, client="label")
    assert from_huggingface(dataset.select([1, 2]), client="label").ids.tolist() == ["zebra", "ape"]


def test_hugging_face_brings_back_the_rows(fed: Federation) -> None:
    pytest.importorskip("datasets")
    filled = fed.take(fed.sizes > 0)
    dataset = to_huggingface(filled, client="who")
    assert dataset.features["../x"].names == list(fed.names["../x"])
    assert dataset[0]["image"] == filled["image"][0].tolist()
    same(from_huggingface(dataset, client="who"), filled)


def test_a_dictionary_of_splits_and_a_stream_are_refused() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"c": [1]})
    with pytest.raises(DataError, match=r"not DatasetDict: pick one split"):
        from_huggingface(datasets.DatasetDict({"train": dataset}), client="c")
    with pytest.raises(DataError, match=r"not IterableDataset: load it without streaming"):
        from_huggingface(dataset.to_iterable_dataset(), client="c")


def test_a_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch, fed: Federation) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="needs 'datasets'"):
        to_huggingface(fed)


def test_flower_partitions_become_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, flwr_datasets = pytest.importorskip("datasets"), pytest.importorskip("flwr_datasets")
    features = datasets.Features({"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["no", "a yes"])})
    rows = datasets.Dataset.from_dict({"x": list(range(10)), "label": [i % 2 for i in range(10)]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: datasets.DatasetDict({"train": rows}))  # the download
    partitioner = flwr_datasets.partitioner.IidPartitioner(num_partitions=3)
    whole = flwr_datasets.FederatedDataset(dataset="none", partitioners={"train": partitioner}, shuffle=True, seed=1)
    fed = from_flower(whole, "train")
    assert fed.ids.tolist() == [0, 1, 2]
    assert fed.sizes.tolist() == [4, 3, 3]
    assert fed["x"].tolist() == [v for i in range(3) for v in partitioner.load_partition(i)["x"]]
    assert fed["x"].tolist() != list(range(10))
    np.testing.assert_array_equal(fed["label"], fed["x"] % 2)
    assert fed.names["label"] == ("no", "a yes")
    with pytest.raises(DataError, match=r"no partitioner for the split 'test', only for \['train'\]"):
        from_flower(whole, "test")


class Pairs:
    """A map-style dataset without torch."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


def test_a_map_style_dataset_is_grouped_by_client() -> None:
    fed = from_torch(
        Pairs([(np.ones((2, 2)) * i, f"label {i % 2}") for i in range(4)]), clients=[1, 0, 1, 0], ids=[0, 1, 2]
    )
    assert fed["x"].shape == (4, 2, 2)
    assert fed["x"][:, 0, 0].tolist() == [1, 3, 0, 2]
    assert (fed["y"].tolist(), fed.names["y"]) == ([1, 1, 0, 0], ("label 0", "label 1"))
    assert fed.sizes.tolist() == [2, 2, 0]
    assert from_torch(Pairs([{"a": 1, "b": 2.0}]), clients=["c"])["b"].tolist() == [2.0]
    assert from_torch(Pairs([5, 6]), clients=[0, 0])["x"].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([([1.0], 1), ([1.0, 2.0], 1)], r"'x' of item 1 is float64\[2\], that of item 0 is float64\[1\]"),
        ([(1, 1), (1, 0.5)], r"'y' of item 1 is float64\[\], that of item 0 is int64\[\]"),
        ([(1, 1), 1], r"item 1 has the fields \['x'\], item 0 has \['x', 'y'\]"),
        ([(1, 2, 3)], r"item 0 is a tuple of 3: return \(x, y\)"),
        ([(None, 1)], r"'x' of item 0 must be numbers or one text, not NoneType"),
        ([([1, [2]], 1)], r"'x' of item 0 cannot become an array"),
    ],
)
def test_items_that_differ_from_the_first_are_refused_by_number(items: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_torch(Pairs(items), clients=[0] * len(items))


def test_a_stream_of_items_is_refused() -> None:
    with pytest.raises(DataError, match="list_iterator is a stream"):
        from_torch(iter([1]), clients=[0])


def test_a_real_torch_dataset_comes_in() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(6, dtype=torch.float32).reshape(3, 2), torch.tensor([2, 1, 0]))
    fed = from_torch(data, clients=["b", "a", "b"])
    assert fed["x"].tolist() == [[2, 3], [0, 1], [4, 5]]
    assert fed["x"].dtype == np.float32
    assert fed["y"].tolist() == [1, 2, 0]
    grad = torch.utils.data.TensorDataset(torch.ones(1, 2, requires_grad=True))
    with pytest.raises(DataError, match="'x' of item 0 cannot become an array"):
        from_torch(grad, clients=[0])
