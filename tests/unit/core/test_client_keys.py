"""A client that several columns name, and rows that know their place in the file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscape import DataError, datasets
from fedscape.formats import from_csv, from_frame, from_parquet

ROWS = {"ST": ["06", "06", "36", "06"], "PUMA": ["00101", "00102", "00101", "00101"], "y": [1, 2, 3, 4]}
KEYS = ["06/00101", "06/00102", "36/00101"]


@pytest.fixture(params=["csv", "parquet", "frame"])
def read(request, tmp_path):
    """A function that writes columns and groups them by a client."""

    def make(columns, **how):
        if request.param == "frame":
            how.pop("rows", None)
            return from_frame(pa.table(columns), **how)
        path = tmp_path / f"t.{request.param}"
        if request.param == "parquet":
            pq.write_table(pa.table(columns), path)
            return from_parquet(path, **how)
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *lines]) + "\n")
        return from_csv(path, **how)

    return make


def test_a_client_of_two_columns_is_a_pair_of_values(read):
    fed = read(ROWS, client="ST,PUMA")
    assert fed.ids.tolist() == KEYS
    assert fed["y"].tolist() == [1, 4, 2, 3]
    assert list(fed.columns) == ["y"]
    assert read(ROWS, client="PUMA , ST").ids.tolist() == ["00101/06", "00101/36", "00102/06"]


def test_two_pairs_never_become_one_client(read):
    fed = read({"a": ["x/", "x", "x\\", "x"], "b": ["y", "/y", "/y", "\\//y"], "v": [0, 1, 2, 3]}, client="a,b")
    assert len(fed) == 4


def test_whole_numbers_are_parts_of_a_client_too(read):
    assert read({"a": [1, 1, 2], "b": ["u", "v", "u"], "y": [0, 1, 2]}, client="a,b").ids.tolist() == [
        "1/u",
        "1/v",
        "2/u",
    ]


def test_what_is_no_client_is_refused_in_one_line(read):
    with pytest.raises(DataError, match=r"has no column 'county'; its columns are 'ST', 'PUMA', 'y'"):
        read(ROWS, client="ST,county")
    with pytest.raises(DataError, match="name each once"):
        read(ROWS, client="ST,ST")


def test_a_fraction_is_no_part_of_a_client(tmp_path):
    with pytest.raises(DataError, match="client column 'b' must hold whole numbers or texts, not double"):
        from_frame(pa.table({"a": ["x"], "b": [0.5], "y": [1]}), client="a,b")
    with pytest.raises(DataError, match="has no value in row 1"):
        from_frame(pa.table({"a": ["x", None], "b": [1, 2], "y": [1, 2]}), client="a,b")


def test_a_column_whose_name_has_a_comma_is_one_column():
    assert from_frame(pa.table({"a,b": ["u"], "a": [1], "b": [2]}), client="a,b").ids.tolist() == ["u"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_know_where_they_were(tmp_path, form):
    path = tmp_path / f"t.{form}"
    table = pa.table({"who": ["b", "a", "b", "a"], "y": [5, 6, 7, 8]})
    if form == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text("who,y\nb,5\na,6\nb,7\na,8\n")
    fed = datasets.read(path, client="who", rows="at")
    assert fed["at"].tolist() == [1, 3, 0, 2]
    assert (fed["y"] == fed["at"] + 5).all()
    with pytest.raises(DataError, match="has a column 'y' already"):
        datasets.read(path, client="who", rows="y")


def test_a_named_set_has_its_rows_in_its_own_order():
    assert datasets.read("acs-race", rows="at")["at"][:3].tolist() == [0, 1, 2]
