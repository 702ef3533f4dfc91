"""Training from the command line: real processes, a run that is stopped and goes on, one-line errors."""

from __future__ import annotations

import csv
import json

import pytest
from shell import ok, refused, started

SHORT = ["--model", "linear", "--rounds", 4, "--every", 2, "--cohort", 5, "--lr", 0.1]


def test_train_prints_a_table_and_keeps_what_it_made(tmp_path):
    out = ok("train", "femnist-mini", *SHORT, "--out", tmp_path / "run")
    assert "worst tenth" in out
    assert "30 clients after 4 rounds" in out
    rows = json.loads((tmp_path / "run" / "table.json").read_text())
    assert [row["round"] for row in rows] == [2, 4]
    clients = list(csv.DictReader((tmp_path / "run" / "clients.csv").read_text().splitlines()))
    assert len(clients) == 30
    pooled = sum(float(c["accuracy"]) * int(c["rows"]) for c in clients) / sum(int(c["rows"]) for c in clients)
    assert pooled == pytest.approx(rows[-1]["accuracy_pooled"])
    assert "already" in refused(2, "train", "femnist-mini", *SHORT, "--out", tmp_path / "run")


def test_a_run_that_goes_on_ends_with_the_bytes_of_one_never_stopped(tmp_path):
    started("train", "femnist-mini", *SHORT, "--out", tmp_path / "whole", "--quiet")
    ok("train", "femnist-mini", *SHORT[:3], 2, *SHORT[4:], "--out", tmp_path / "parts", "--quiet")
    ok("train", "femnist-mini", *SHORT, "--out", tmp_path / "parts", "--resume", "--quiet")
    for name in ("model.safetensors", "clients.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "raise --rounds" in refused(2, "train", "femnist-mini", *SHORT, "--out", tmp_path / "parts", "--resume")


def test_a_personal_method_trains_and_its_file_is_read_by_adapt(tmp_path):
    out = ok("train", "femnist-mini", *SHORT, "--method", "fedem", "--out", tmp_path / "run")
    assert "30 clients after 4 rounds" in out
    assert "clients.csv, personal, table.json" in out
    about = json.loads(ok("adapt", tmp_path / "run" / "personal", "femnist-mini", "--json"))
    assert (about["method"], about["clients"]) == ("FedEM", 30)
    assert "not ditto" in refused(2, "train", "femnist-mini", "--method", "ditto", "--epsilon", 3)


def test_personal_methods_are_those_of_the_library():
    from fedscape.cli.train import PERSONAL
    from fedscape.personal import METHODS

    assert set(PERSONAL) == set(METHODS) - {"fedavg"}


def test_methods_on_a_schedule_are_among_those_of_the_library():
    from fedscape.cli.train import TEMPORAL
    from fedscape.temporal import METHODS

    assert set(TEMPORAL) <= set(METHODS)


def test_fair_training_is_a_method_with_a_weight_of_its_own(tmp_path):
    made = {}
    for q in (0, 5):
        ok("train", "femnist-mini", *SHORT, "--method", "qfedavg", "--q", q, "--out", tmp_path / str(q), "--quiet")
        made[q] = (tmp_path / str(q) / "model.safetensors").read_bytes()
    assert made[0] != made[5]


def test_private_training_stays_within_its_budget(tmp_path):
    about = json.loads(
        ok("train", "femnist-mini", *SHORT, "--epsilon", 8, "--delta", 1e-3, "--out", tmp_path / "run", "--json")
    )
    assert list(about["epsilon"]) == ["client replace-one central"]
    assert 4 < about["epsilon"]["client replace-one central"] <= 8
    assert (tmp_path / "run" / "ledger.jsonl").exists()


def test_sweep_ranks_settings_and_goes_on(tmp_path):
    call = ["femnist-mini", "--model", "linear", "--lr", "0.000001,0.01,3", "--rounds", 3, "--rungs", 2]
    rows = json.loads(ok("sweep", *call, "--out", tmp_path / "s", "--json"))
    assert [row["rounds"] for row in rows] == [3, 1, 1]
    assert rows[0]["lr"] == 0.01
    again = json.loads(started("sweep", *call, "--out", tmp_path / "s", "--resume", "--json"))
    assert again == rows
    assert "settings, best first" in ok("sweep", *call, "--quiet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "femnist-mini", "--model", "vgg"], "model must be one of linear, mlp, cnn"),
        (["train", "femnist-mini", "--method", "sgd"], "method must be one of fedavg, fedprox, fedadam"),
        (["train", "femnist-mini", "--method", "fedprox"], "fedprox needs proximal above 0"),
        (["train", "femnist-mini", "--method", "fedadam", "--q", "1"], "q goes with qfedavg, not with fedadam"),
        (["train", "femnist-mini", "--method", "ifca", "--q", "1"], "--q go with fedavg and its kin, not ifca"),
        (["train", "femnist-mini", "--resume"], "--resume goes with --out"),
        (["train", "acs-mini", "--features", "SCHL,PINCP", "--target", "race"], "'SCHL' must hold one finite number"),
        (["train", "acs-mini", "--features", "AGEP", "--target", "PINCP"], "must hold classes"),
        (["train", "acs-mini", "--model", "cnn", "--features", "AGEP,SEX", "--target", "race"], "cnn reads images"),
        (["train", "femnist-mini", "--features", "pixels"], "pixels"),
        (["sweep", "femnist-mini", "--lr", "fast"], "--lr must be numbers with commas between"),
        (["sweep", "femnist-mini", "--resume"], "--resume goes with --out"),
        (["train", "femnist-mini", "--epsilon", "4", "--standardise"], "which --epsilon does not cover"),
        (["train", "femnist-mini", "--device", "cuda"], "torch finds no CUDA device here"),
        (["train", "femnist-mini", "--device", "abacus"], "device must be one that torch knows"),
        (["train", "flights-mini", "--features", "tailnum", "--target", "month"], "'tailnum' holds texts"),
        (["train", "femnist-mini", "--rounds", "0"], "n_rounds must be at least 1"),
    ],
)
def test_bad_input_gives_one_clear_line(arguments, message):
    said = refused(2, *arguments)
    assert message in said
    assert len(said.strip().splitlines()) == 1
