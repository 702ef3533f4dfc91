"""A model is usable again: every method is trained, saved, and predicts in another process what it did in this one."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from every_command import call
from shell import fedscape, ok, refused, started

from fedscape import datasets
from fedscape.core import checkpoint
from fedscape.errors import FedscapeError
from fedscape.methods import names
from fedscape.trained import model as trained

PERSONAL, TEMPORAL, TABULAR = (names(family, command=True) for family in ("personal", "temporal", "tabular"))
HEADER = "town,street,age,job,income,species"


def people(path, *, towns=4, seed=0, first=0):
    """A messy table: texts and numbers with gaps, a client key of two columns, classes with names."""
    rng = np.random.default_rng(seed)
    lines = []
    for town in range(first, first + towns):
        for street in (1, 2):
            for _ in range(14):
                age, job = rng.normal(40, 12), rng.choice(["cook", "pilot", "nurse"])
                income = rng.normal(30_000 + 20_000 * (job == "pilot"), 3_000)
                score = (age - 40) / 12 + 2 * (job == "pilot") + 0.3 * rng.normal()
                kind = ("ash", "oak", "yew")[int(score > -0.5) + int(score > 1)]
                gap = rng.uniform() < 0.1
                lines.append(f"{town:02d},{street},{'' if gap else f'{age:.2f}'},{job},{income:.0f},{kind}")
    rng.shuffle(lines)
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


CALL = [
    *("--client", "town,street", "--features", "age,job,income", "--column", "species", "--fill", "median"),
    *("--rounds", 2, "--every", 2, "--cohort", 4, "--quiet"),
]
NETWORK = ["--standardise", "--lr", 0.1, "--model", "mlp"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    return people(folder / "people.csv"), people(folder / "new.csv", seed=1, first=2)


def train(method, table, out, *more):
    extra = {"fedprox": ["--proximal", "0.1"]}.get(method, [])
    if method in TEMPORAL:
        extra = ["--schedule", "linear:T=4", "--modes", "income:35000"]
    extra += [] if method in TABULAR else NETWORK
    done = call("train", table, *CALL, "--method", method, "--out", out, *extra, *more)  # in this process
    assert done.code == 0, done.err
    return out


@pytest.fixture(scope="module")
def runs(tables, tmp_path_factory):
    """The folder of a run of each method, trained when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(method):
        if method not in made:
            made[method] = train(method, tables[0], folder / method.replace("+", "plus"))
        return made[method]

    return run


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("method", names(command=True))
def test_every_method_predicts_in_a_new_process_what_it_did_in_this_one(method, runs, tables, tmp_path):
    run = runs(method)
    about = json.loads(ok("predict", run, tables[1], "--out", tmp_path / "p.csv", "--probabilities", "--json"))
    rows = rows_of(tmp_path / "p.csv")
    table = datasets.read(tables[1], client="town,street", rows="at")
    found = trained.load(run).predict(table)
    back = np.argsort(table["at"])
    assert [int(row["row"]) for row in rows] == list(range(table.n_rows))
    assert [row["client"] for row in rows] == table.ids[table.client_of_row][back].tolist()
    for i, name in enumerate(found.classes):
        said = np.array([float(row[f"p({name})"] or "nan") for row in rows])
        np.testing.assert_array_equal(said, found.probabilities[back, i])
    served = [row for row in rows if row["prediction"]]
    assert {row["prediction"] for row in served} <= {"ash", "oak", "yew"}
    for row in served:
        assert float(row["probability"]) == max(float(row[f"p({name})"]) for name in found.classes)
    labels = [line.rsplit(",", 1)[1] for line in tables[1].read_text().splitlines()[1:]]
    right = [row["prediction"] == label for row, label in zip(rows, labels, strict=True) if row["prediction"]]
    assert about["accuracy"] == pytest.approx(np.mean(right))
    assert about["labelled_rows"] == len(served)
    if method in PERSONAL:
        assert (about["known_clients"], about["new_clients"]) == (4, 4)
        assert len(served) == (56 if method in ("local", "fedrep", "fedper") else 112)
    else:
        assert "known_clients" not in about
        assert len(served) == 112


@pytest.mark.parametrize("method", names(command=True))
def test_what_is_saved_judges_held_out_rows_as_training_did(method, runs, tables):
    """The table of clients that training wrote is an oracle for the file: same rows, same models."""
    run = runs(method)
    table = datasets.read(tables[0], client="town,street")
    if method in TEMPORAL:
        from fedscape.temporal import by_mode

        table, _ = by_mode(table, (table["income"] >= 35_000).astype(int))
    rest = table.split(test=0.2, seed=0)[1]
    found = trained.load(run).predict(rest)
    right = found.codes == found.applied.rows["species"]
    said = {row["client"]: row for row in rows_of(run / "clients.csv")}
    for i, client in enumerate(rest.ids.tolist()):
        mine = right[rest.offsets[i] : rest.offsets[i + 1]]
        assert int(said[client]["rows"]) == len(mine)
        if len(mine):
            assert float(said[client]["accuracy"]) == pytest.approx(mine.mean()), client


@pytest.mark.parametrize("method", PERSONAL)
def test_new_clients_adapt_and_are_known_then(method, runs, tables, tmp_path):
    new = datasets.read(tables[1], client="town,street")
    adapted, about = trained.load(runs(method)).adapt(new)
    assert (about["method"], about["clients"]) == (method, 8)
    adapted.save(tmp_path / "more")
    after = trained.load(tmp_path / "more").predict(new)
    assert after.known.all()
    np.testing.assert_array_equal(after.probabilities, adapted.predict(new).probabilities)
    assert after.accuracy("species")[0] == pytest.approx(about["accuracy_after"])  # clients have as many rows each


def test_adapt_writes_a_model_that_predict_reads(runs, tables, tmp_path):
    about = json.loads(ok("adapt", runs("local"), tables[1], "--out", tmp_path / "more", "--json"))
    after = json.loads(ok("predict", tmp_path / "more", tables[1], "--json"))
    assert (after["known_clients"], after["new_clients"], after["rows_without_prediction"]) == (8, 0, 0)
    assert after["accuracy"] == pytest.approx(about["accuracy_after"])


def test_an_export_is_written_once(runs, tmp_path):
    about = json.loads(
        started("export", runs("ditto"), tmp_path / "m.json", "--to", "sklearn", "--for", "01/1", "--json")
    )
    assert (about["method"], about["client"], about["networks"]) == ("ditto", "01/1", 1)
    assert "pass --force" in refused(2, "export", runs("ditto"), tmp_path / "m.json", "--to", "sklearn")
    said = refused(2, "export", runs("local"), tmp_path / "m.pt2", "--to", "torch")
    assert "local has a model for each client alone: name one with --for" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("method", ["fedavg", "fedclock", "fedtkm"])
def test_a_model_for_all_has_nothing_to_adapt(method, runs, tables):
    said = refused(2, "adapt", runs(method), tables[1])
    assert f"{method} has one model for all clients: there is nothing to adapt" in said
    assert said.count("\n") == 1


def test_novelty_reads_the_same_inputs(runs, tables, tmp_path):
    far = tmp_path / "far.csv"
    lines = tables[1].read_text().splitlines()
    moved = [
        ",".join([*cells[:4], str(int(cells[4]) + 10**6), cells[5]]) for cells in (x.split(",") for x in lines[1:])
    ]
    far.write_text("\n".join([lines[0], *moved]) + "\n")
    about = json.loads(ok("novelty", runs("fedgmm"), tables[1], far, "--json"))
    assert about["share_new"] == 1.0
    sure = json.loads(ok("novelty", runs("ditto"), tables[1], tables[0], "--score", "confidence", "--json"))
    assert 0 <= sure["share_new"] < 0.5
    assert "densities are FedGMM's" in refused(2, "novelty", runs("ditto"), tables[1], far)


@pytest.mark.parametrize("method", ["local", "fedrep"])
def test_a_method_without_a_model_for_new_clients_says_so(method, runs, tables, tmp_path):
    done = fedscape("predict", runs(method), tables[1], "--out", tmp_path / "p.parquet")
    assert done.returncode == 0, done.stderr
    assert f"4 of 8 clients are new and get no prediction: {method} has no model for them" in done.stderr
    made = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert made["prediction"].count(None) == made["probability"].count(None) == 56
    strangers = people(tmp_path / "strangers.csv", towns=1, first=9)
    said = refused(2, "predict", runs(method), strangers)
    assert "the model knows none of the 2 clients" in said
    assert said.count("\n") == 1


CHANGES = {
    "the column 'job'": (lambda t: t.replace("job", "work"), "the model needs the column 'job', which is not there"),
    "texts for numbers": (
        lambda t: "\n".join([HEADER, "01,1,old,cook,30000,ash", "01,1,young,cook,31000,oak"]) + "\n",
        "column 'age' holds texts, such as",
    ),
    "numbers for texts": (
        lambda t: "\n".join([HEADER, "01,1,30,1,30000,ash", "01,1,31,2,31000,oak"]) + "\n",
        "column 'job' holds none of the categories that the model knows ('cook', 'nurse', 'pilot'); its first is '1'",
    ),
    "no client": (lambda t: t.replace("street", "lane"), "has no column 'street'"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_table_that_does_not_fit_is_one_line(what, runs, tables, tmp_path):
    change, message = CHANGES[what]
    (tmp_path / "odd.csv").write_text(change(tables[1].read_text()))
    said = refused(2, "predict", runs("fedavg"), tmp_path / "odd.csv")
    assert message in said
    assert said.count("\n") == 1


def test_gaps_are_filled_and_new_categories_count_as_none_and_both_are_said(runs, tmp_path):
    (tmp_path / "odd.csv").write_text("\n".join([HEADER, "01,1,,cook,1e300,ash", "01,1,31,baker,31000,elm"]) + "\n")
    done = fedscape("predict", runs("fedavg"), tmp_path / "odd.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert "1 missing value of 'age' is filled in" in done.stderr
    assert "1 missing value of 'income' is filled in" in done.stderr  # no model computes with 1e300
    assert "1 row has a 'job' that the model does not know, such as 'baker': it counts as none" in done.stderr
    about = json.loads(done.stdout)
    assert about["labelled_rows"] == 2  # a class that the model does not know is never right
    said = refused(2, "adapt", runs("ditto"), tmp_path / "odd.csv")
    assert "column 'species' holds 'elm' in row 1 of client '01/1', but the model knows 'ash', 'oak', 'yew'" in said


def test_the_target_may_be_missing(runs, tables, tmp_path):
    lines = [line.rsplit(",", 1)[0] for line in tables[1].read_text().splitlines()]
    (tmp_path / "bare.csv").write_text("\n".join(lines) + "\n")
    about = json.loads(started("predict", runs("ditto"), tmp_path / "bare.csv", "--json"))
    assert "accuracy" not in about
    assert about["rows_without_prediction"] == 0
    assert "numbers_per_client" in ok("adapt", runs("fedgmm"), tmp_path / "bare.csv")
    assert "learns a client's shares from labels" in refused(2, "adapt", runs("fedem"), tmp_path / "bare.csv")


def test_damaged_and_foreign_models_are_one_line(runs, tables, tmp_path):
    whole = (runs("ditto") / "model").read_bytes()
    (tmp_path / "torn").write_bytes(whole[:-100])
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "empty").mkdir()
    arrays, header = checkpoint.read(runs("ditto") / "model")
    for name, change in (
        ("inputs", {"about": {**header["about"], "inputs": {"features": 3}}}),
        ("settings", {"about": {**header["about"], "settings": {"strength": -1}}}),
        ("method", {"method": "Oracle"}),
        ("arguments", {"about": {**header["about"], "arguments": {"n_features": 2, "n_classes": 3}}}),
    ):
        checkpoint.write(tmp_path / name, arrays, {**header, **change})
    checkpoint.write(tmp_path / "kept", {**arrays, "ids": arrays["ids"][:-1]}, header)
    for name, message in {
        "torn": "is torn or damaged",
        "notes.txt": "is not a fedscape checkpoint",
        "empty": "holds no trained model: give the --out folder of 'fedscape train'",
        "inputs": "what is saved about the inputs is damaged",
        "settings": "strength must be a number of at least 0",
        "method": "is no personalised model that can be made again",
        "arguments": "cannot be made again",
        "kept": "is not for its 7 clients",
        "nothing": "cannot be read: No such file",
    }.items():
        with pytest.raises(FedscapeError) as error:
            trained.load(tmp_path / name)
        assert message in str(error.value), name
        assert "\n" not in str(error.value)
    for command in ("predict", "adapt"):
        said = refused(2, command, tmp_path / "torn", tables[1])
        assert "is torn or damaged" in said
        assert said.count("\n") == 1


def test_out_is_csv_or_parquet_and_is_not_written_over(runs, tables, tmp_path):
    assert "--out must end in .csv or .parquet" in refused(
        2, "predict", runs("fedavg"), tables[1], "--out", tmp_path / "p.xlsx"
    )
    (tmp_path / "p.csv").write_text("mine\n")
    assert "pass --force" in refused(2, "predict", runs("fedavg"), tables[1], "--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "mine\n"


def test_fills_from_data_are_refused_under_privacy_and_declared_ones_are_not(tables):
    private = ["--rounds", 1, "--epsilon", 50, "--names", "ash,oak,yew", "--features", "age,income"]
    asked = [*CALL[: CALL.index("--fill")], *CALL[CALL.index("--rounds") + 2 :], *NETWORK[1:], *private]
    for fill in ("mean", "median"):
        said = call("train", tables[0], *asked, "--fill", fill).err
        assert f"--fill {fill} takes the exact {fill} of all rows, which --epsilon does not cover" in said
    assert "epsilon" in json.loads(ok("train", tables[0], *asked, "--fill", 40, "--json"))


def test_dropped_rows_have_no_prediction(tables, tmp_path):
    asked = [*CALL[: CALL.index("--fill")], "--fill", "drop", *CALL[CALL.index("--rounds") :], *NETWORK]
    ok("train", tables[0], *asked, "--out", tmp_path / "run")
    about = json.loads(ok("predict", tmp_path / "run", tables[1], "--out", tmp_path / "p.csv", "--json"))
    gaps = sum(line.split(",")[2] == "" for line in tables[1].read_text().splitlines()[1:])
    assert about["rows_without_prediction"] == gaps > 0
    assert sum(row["prediction"] == "" for row in rows_of(tmp_path / "p.csv")) == gaps
    assert len(rows_of(tmp_path / "p.csv")) == 112


def test_gaps_without_a_fill_are_refused_with_the_remedy(tables):
    asked = [*CALL[: CALL.index("--fill")], *CALL[CALL.index("--rounds") :], *NETWORK]
    said = refused(2, "train", tables[0], *asked)
    assert "column 'age' must hold one finite number a row" in said
    assert "pass --fill mean (or median, drop) in training" in said
    assert said.count("\n") == 1


def test_pixels_in_columns_become_images(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"p{i}" for i in range(144)]
    lines = [",".join([f"w{i % 3}", str(5 + i % 2), *map(str, rng.integers(0, 255, 144).tolist())]) for i in range(30)]
    (tmp_path / "pixels.csv").write_text("\n".join([",".join(["who", "digit", *names]), *lines]) + "\n")
    asked = ["--client", "who", "--features", "p*", "--column", "digit", "--model", "cnn", "--rounds", 1, "--quiet"]
    ok("train", tmp_path / "pixels.csv", *asked, "--shape", "12,12", "--out", tmp_path / "run")
    ok("predict", tmp_path / "run", tmp_path / "pixels.csv", "--out", tmp_path / "p.csv")
    assert {row["prediction"] for row in rows_of(tmp_path / "p.csv")} <= {"5", "6"}
    flat = [*asked[:-5], "--model", "linear", *asked[-3:], "--method", "fedgmm"]  # wide: Gaussians of a projection
    ok("train", tmp_path / "pixels.csv", *flat, "--standardise", "--out", tmp_path / "wide")
    assert json.loads(ok("predict", tmp_path / "wide", tmp_path / "pixels.csv", "--json"))["known_clients"] == 3
    said = refused(2, "train", tmp_path / "pixels.csv", *asked, "--shape", "11,12")
    assert "shape must hold the 144 numbers of a row, 11,12 holds 132" in said
    assert "--shape must be comma-separated whole numbers" in refused(
        2, "train", tmp_path / "pixels.csv", *asked, "--shape", "big"
    )
