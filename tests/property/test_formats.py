"""Round trips: what is written comes back, whatever the types, shapes, names, ids and empty clients."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedscape.core.federation import Federation
from fedscape.formats import (
    from_csv,
    from_frame,
    from_huggingface,
    from_leaf,
    from_parquet,
    load_folder,
    save_folder,
    stack_clients,
    to_csv,
    to_huggingface,
    to_leaf,
    to_parquet,
)
from fedscape.formats.grouping import destinations

# a zero byte is no text: a CSV file that holds one is refused
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
kept_texts = texts.filter(lambda text: not text.endswith("\0"))  # NumPy's own texts cannot end in NUL
names_of_columns = texts.filter(bool)
exact = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
times = ["M8[ms]", "M8[us]", "M8[ns]", "m8[s]", "m8[ns]"]


@st.composite
def federations(
    draw: Any, *, dtypes: list[str], trailing: int = 2, empty_clients: bool = True, least: int = 0
) -> Federation:
    """A small Federation with columns of these types, codes among them, and any ids and names."""
    sizes = draw(st.lists(st.integers(0 if empty_clients else 1, 4), max_size=6))
    n_rows = sum(sizes)
    columns: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    column_names = names_of_columns.filter(lambda text: text != "client")
    for name in draw(st.lists(column_names, unique=True, min_size=least, max_size=4)):
        shape = (n_rows, *draw(st.lists(st.integers(1, 3), max_size=trailing)))
        if draw(st.booleans()):
            number = st.integers(1, 4) if len(shape) == 1 else st.just(shape[-1])  # of codes, or along the last axis
            n = draw(number)
            names[name] = draw(st.lists(texts, unique=True, min_size=n, max_size=n))
            values = st.integers(-1, n - 1) if len(shape) == 1 else st.integers(-9, 99)
            columns[name] = draw(hnp.arrays(np.int32, shape, elements=values))
        else:
            columns[name] = draw(hnp.arrays(np.dtype(draw(st.sampled_from(dtypes))), shape))
    kinds = st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=len(sizes), max_size=len(sizes)),
        st.lists(kept_texts, unique=True, min_size=len(sizes), max_size=len(sizes)),
    )
    return Federation(columns, np.concatenate(([0], np.cumsum(sizes))).astype(int), draw(kinds), names=names)


def equal(a: Federation, b: Federation, *, dtypes: bool = True) -> None:
    assert a.ids.tolist() == b.ids.tolist()
    assert a.offsets.tolist() == b.offsets.tolist()
    assert list(a.columns) == list(b.columns)
    assert {k: tuple(v) for k, v in a.names.items()} == {k: tuple(v) for k, v in b.names.items()}
    for name in a.columns:
        assert not dtypes or a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name])


def spelled(fed: Federation, name: str) -> list[Any]:
    """The texts behind the codes of a column, flat."""
    return [None if code < 0 else fed.names[name][code] for code in fed[name].ravel().tolist()]


@settings(max_examples=80, deadline=None)
@given(federations(dtypes=[*exact, *times, "M8[D]", ">i4", "g"]))
def test_a_folder_brings_back_the_same_bytes(fed: Federation) -> None:
    with tempfile.TemporaryDirectory() as place:
        save_folder(fed, Path(place) / "f")
        back = load_folder(Path(place) / "f")
        equal(back, fed)
        for name in fed.columns:
            assert back[name].tobytes() == fed[name].tobytes()
        del back


@settings(max_examples=80, deadline=None)
@given(federations(dtypes=[*exact, *times]))
def test_parquet_brings_back_the_same_values(fed: Federation) -> None:
    with tempfile.TemporaryDirectory() as place:
        to_parquet(fed, Path(place) / "a.parquet")
        equal(from_parquet(Path(place) / "a.parquet", client="client"), fed)


@settings(max_examples=50, deadline=None)
@given(federations(dtypes=["?", "i4", "i8", "f4", "f8"], least=1))
def test_leaf_brings_back_values_and_texts(fed: Federation) -> None:
    with tempfile.TemporaryDirectory() as place:
        to_leaf(fed, Path(place) / "a.json")
        back = from_leaf(Path(place) / "a.json")
    assert back.ids.tolist() == [str(client) for client in fed.ids.tolist()]
    assert back.sizes.tolist() == fed.sizes.tolist()
    for name in fed.columns if fed.n_rows else ():
        if name in fed.names and fed[name].ndim == 1:
            assert spelled(back, name) == spelled(fed, name)
        else:
            np.testing.assert_array_equal(back[name], fed[name])


@settings(max_examples=50, deadline=None)
@given(federations(dtypes=["i4", "i8", "f4", "f8"], trailing=0, empty_clients=False))
def test_csv_brings_back_values_and_texts(fed: Federation) -> None:
    safe = {name: tuple(f"t {text}" for text in known) for name, known in fed.names.items()}  # not to look like numbers
    fed = Federation(fed.columns, fed.offsets, [f"c {i}" for i in range(len(fed))], names=safe)
    with tempfile.TemporaryDirectory() as place:
        to_csv(fed, Path(place) / "a.csv")
        back = from_csv(Path(place) / "a.csv", client="client")
    assert back.sizes.tolist() == fed.sizes.tolist()
    assert list(back.columns) == list(fed.columns)
    for name in fed.columns if fed.n_rows else ():
        if name in fed.names and any(spelled(fed, name)):
            assert spelled(back, name) == spelled(fed, name)
        elif name not in fed.names:
            np.testing.assert_array_equal(back[name].astype(fed[name].dtype), fed[name])


@settings(max_examples=30, deadline=None)
@given(federations(dtypes=[*exact, "M8[us]"], trailing=1, empty_clients=False))
def test_hugging_face_brings_back_the_same_values(fed: Federation) -> None:
    plain = {name: f"column {i}" for i, name in enumerate(fed.columns) if name not in fed.names or fed[name].ndim == 1}
    names = {plain[name]: fed.names[name] for name in plain if name in fed.names}
    fed = Federation({new: fed[name] for name, new in plain.items()}, fed.offsets, fed.ids, names=names)
    equal(from_huggingface(to_huggingface(fed), client="client"), fed)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_frame_and_a_parquet_file_in_any_chunks_agree_with_the_arrays(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 40))
    client = data.draw(
        st.lists(st.sampled_from(data.draw(st.sampled_from([[3, -1, 8], ["b", "", "a"]]))), min_size=n, max_size=n)
    )
    x = data.draw(hnp.arrays(np.float32, (n, 2)))
    words = data.draw(st.lists(st.sampled_from(["u", "v", "w"]), min_size=n, max_size=n))
    table = pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2),
            "who": pa.array(client, type=pa.string() if client and isinstance(client[0], str) else pa.int64()),
            "t": pa.array(words, type=pa.string()),
        }
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    edges = zip([0, *cuts], [*cuts, n], strict=True)
    chunked = pa.concat_tables([table.slice(begin, end - begin) for begin, end in edges])
    expected = Federation.from_arrays({"x": x, "t": np.array(words, dtype=str)}, clients=client)
    fed = from_frame(chunked, client="who")
    equal(fed, expected)
    with tempfile.TemporaryDirectory() as place:
        pq.write_table(table, Path(place) / "a.parquet", row_group_size=7)
        equal(from_parquet(Path(place) / "a.parquet", client="who"), fed)


@settings(max_examples=60, deadline=None)
@given(federations(dtypes=exact, least=1))
def test_the_tables_of_single_clients_stack_to_the_whole(fed: Federation) -> None:
    tables = [dict(fed.take([i]).columns) for i in range(len(fed))]
    columns, sizes, _ = stack_clients(tables)
    assert sizes.tolist() == fed.sizes.tolist()
    for name in columns:
        np.testing.assert_array_equal(columns[name], fed[name])
        assert columns[name].dtype == fed[name].dtype


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=60), st.lists(st.integers(0, 60), max_size=3))
def test_destinations_are_those_of_a_stable_sort_however_the_rows_are_cut(codes: list[int], cuts: list[int]) -> None:
    rows = np.array(codes, dtype=np.int32)
    place = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=6))))[:-1]
    parts = [part for part in np.split(rows, sorted(cuts)) if len(part)]
    target = np.concatenate([np.empty(0, dtype=int), *(destinations(part, place) for part in parts)])
    assert np.argsort(target).tolist() == np.argsort(rows, kind="stable").tolist()
