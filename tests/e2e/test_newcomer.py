"""What someone meets who has a CSV file and reads only --help: each message says what is wrong and what to do."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from every_command import call

NUMBERS = [f"sensor {i} (mV)" for i in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("newcomer")


@pytest.fixture(scope="module")
def wines(folder):
    """Columns with spaces, a few gaps and texts in each, and names that end as ids do."""
    rng = np.random.default_rng(5)
    lines = [["estate", *NUMBERS, "malic_acid", "price", "quality", "cultivar"]]
    for i in range(240):
        kind = int(rng.integers(3))
        cells = [f"{v:.2f}" for v in rng.normal(kind, 1, len(NUMBERS))]
        if i % 20 < len(NUMBERS):
            cells[i % 20] = "?" if i >= 120 else ""
        acid = int(rng.integers(100, 400))
        lines.append([f"e{i % 8}", *cells, acid, f"{acid / 7 + rng.normal():.3f}", f"{rng.normal():.4f}", "abc"[kind]])
    with (folder / "wines.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return folder / "wines.csv"


def refusal(*arguments):
    done = call(*arguments)
    assert done.code == 2, done
    assert done.fault is None
    return done.err


def test_a_file_that_is_not_there_is_called_a_file(folder, wines):
    said = refusal("describe", folder / "wine.csv", "--client", "estate")
    assert f"there is no file {folder / 'wine.csv'}: did you mean {folder / 'wines.csv'}?" in said
    assert "there is no file nothing.parquet: check its name" in refusal("describe", "nothing.parquet")
    assert "there is no set of data called 'femnist-min'" in refusal("describe", "femnist-min")


def test_a_near_name_of_a_column_is_proposed(wines):
    assert "did you mean 'cultivar'?" in refusal("describe", wines, "--client", "estate", "--column", "Cultivar")
    assert "did you mean 'estate'?" in refusal("describe", wines, "--client", "Estates")


def test_fit_and_train_without_a_column_ask_for_one(wines):
    for command in ("fit", "train"):
        assert "name one with --column" in refusal(command, wines, "--client", "estate")


def test_a_name_that_happens_to_end_in_id_is_no_id(wines):
    done = call("describe", wines, "--client", "estate", "--column", "cultivar")
    assert "'malic_acid' looks like" not in done.out
    assert "malic_acid" in next(line for line in done.out.splitlines() if line.startswith("features: "))


def test_many_columns_with_the_same_finding_are_one_line_and_options_can_be_pasted(wines):
    out = call("describe", wines, "--client", "estate", "--column", "cultivar").out
    gaps = [line for line in out.splitlines() if "has no value" in line or "have no value" in line]
    assert len(gaps) == 1
    assert gaps[0].startswith("6 columns have no value in some rows ('sensor 0 (mV)' 12, 'sensor 1 (mV)' 12, ")
    texts = [line for line in out.splitlines() if "hold a text" in line]
    assert len(texts) == 1
    assert texts[0].startswith("6 columns are numbers, but some rows hold a text ('sensor 0 (mV)' 6, ")
    assert "(row " not in texts[0]
    assert "the first is row 121 of 'sensor 0 (mV)': '?'" in texts[0]
    one = call("describe", wines, "--client", "estate", "--ignore", ",".join(NUMBERS[1:])).out
    assert "--categorical 'sensor 0 (mV)' takes all as classes" in one


def test_a_column_of_numbers_with_a_text_is_described_as_numbers(wines):
    about = json.loads(call("describe", wines, "--client", "estate", "--json").out)
    row = next(each for each in about["columns"] if each["name"] == NUMBERS[0])
    assert row["kind"] == "number"
    assert row["min"] < 0 < row["mean"] < row["max"]


def test_training_to_predict_a_number_is_sent_to_regress(wines):
    said = refusal("train", wines, "--client", "estate", "--column", "quality", "--fill", "mean")
    assert "'quality' is a number, not a class: 'fedscape regress' predicts numbers" in said
    assert "make a column of classes first" in said


def test_regress_and_predict_take_texts_among_numbers_as_missing(wines, folder):
    named = ("--features", f"malic_acid,{NUMBERS[0]}", "--column", "price", "--components", 1, "--rounds", 2)
    done = call("regress", wines, "--client", "estate", *named, "--out", folder / "price.json", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["test"]["rows_left_out"] == 12
    done = call("predict", folder / "price.json", wines, "--client", "estate", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows_without_prediction"] == 12
    assert json.loads(done.out)["labelled_rows"] == 228
    said = refusal("regress", wines, "--client", "estate", *named[:1], "cultivar", *named[2:])
    assert "the column 'cultivar' holds texts, not numbers" in said


def test_an_ending_is_refused_before_any_work(wines, folder):
    whose = ("--client", "estate", "--column", "price", "--out", folder / "p.txt")
    for command in (("regress", wines, "--features", "malic_acid", *whose), ("fit", wines, *whose)):
        done = call(*command)
        assert (done.code, done.out, done.err) == (2, "", "fedscape: --out must end in .json, not 'p.txt'\n")


def test_predict_names_the_columns_of_the_file_and_no_other(wines, folder):
    assert "fedscape.row" not in refusal("predict", folder / "price.json", wines)
    saved = folder / "model"
    learn = ("--column", "cultivar", "--features", NUMBERS[1], "--fill", "mean", "--rounds", 1, "--model", "linear")
    assert call("train", wines, "--client", "estate", *learn, "--out", saved).code == 0
    (folder / "bare.csv").write_text("estate,age\ne1,3\n")
    assert refusal("predict", saved, folder / "bare.csv").endswith("the columns are: 'age'\n")
    assert "cannot be read: No such file" in refusal("predict", folder / "no.json", wines)


def test_filled_values_are_one_line_for_each_part(wines):
    call_ = ("--client", "estate", "--column", "cultivar", "--fill", "mean", "--rounds", 1, "--model", "linear")
    done = call("train", wines, *call_)
    assert done.code == 0, done.err
    filled = [line for line in done.err.splitlines() if "filled in" in line]
    assert len(filled) == 2
    assert filled[0].startswith("rows to train on: missing values are filled in: ")


def test_a_sample_of_clients_can_be_a_csv_file(wines, folder):
    call("fit", wines, "--client", "estate", "--column", "cultivar", "--components", 1, "--out", folder / "p.json")
    done = call("sample", folder / "p.json", "--clients", 5, "--out", folder / "s.csv", "--seed", 3)
    assert done.code == 0, done.err
    rows = list(csv.reader((folder / "s.csv").read_text().splitlines()))
    assert rows[0] == ["client", "a", "b", "c"]
    call("sample", folder / "p.json", "--clients", 5, "--out", folder / "s.parquet", "--seed", 3)
    from fedscape import datasets

    assert np.array(rows[1:])[:, 1:].astype(int).tolist() == datasets.read(folder / "s.parquet")["y"].tolist()
    assert "give the .json file that 'fedscape fit --out' wrote" in refusal("sample", wines)


def test_a_private_study_without_declared_classes_is_refused_before_a_ledger_is_made(wines, folder):
    said = refusal("study", wines, "--client", "estate", "--column", "cultivar", "--epsilon", 1, "--out", folder / "st")
    assert "name them with --names a,b,c" in said
    assert "drop --epsilon" not in said
    assert not (folder / ".fedscape").exists()
