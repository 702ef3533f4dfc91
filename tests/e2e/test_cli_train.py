"""Training from the command line: real processes, a run that is stopped and goes on, one-line errors."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from shell import fedscape, ok, refused, started

from fedscape.methods import names

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
    assert "checkpoint, clients.csv, model, table.csv, table.json" in out
    about = json.loads(ok("adapt", tmp_path / "run", "femnist-mini", "--json"))
    assert (about["method"], about["clients"]) == ("fedem", 30)


@pytest.mark.parametrize("method", ["fedavg+", "ditto", "clustered"])
def test_a_personal_run_that_goes_on_ends_with_the_bytes_of_one_never_stopped(method, tmp_path):
    how = ["train", "femnist-mini", *SHORT, "--method", method, "--quiet"]
    ok(*how, "--out", tmp_path / "whole", "--tensorboard", tmp_path / "board")
    ok(*how, "--rounds", 2, "--out", tmp_path / "parts")
    ok(*how, "--out", tmp_path / "parts", "--resume")
    for name in ("model", "clients.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    tables = [json.loads((tmp_path / run / "table.json").read_text()) for run in ("whole", "parts")]
    assert [[{**row, "seconds": 0} for row in rows] for rows in tables] == [
        [{**row, "seconds": 0} for row in tables[0]]
    ] * 2
    lines = (tmp_path / "whole" / "table.csv").read_text().splitlines()
    assert [row["round"] for row in csv.DictReader(lines)] == ["2", "4"]
    assert list((tmp_path / "board").iterdir())


def test_a_personal_method_is_private_in_what_it_sends(tmp_path):
    how = ["train", "femnist-mini", *SHORT, "--epsilon", 8, "--delta", 1e-3]
    about = json.loads(ok(*how, "--method", "ditto", "--out", tmp_path / "run", "--json"))
    assert 4 < about["epsilon"]["client replace-one central"] <= 8
    assert (tmp_path / "run" / "model").stat().st_mode & 0o077 == 0
    said = refused(2, *how, "--method", "clustered")
    assert "clustered cannot be private: the server sees projected updates client by client" in said


def test_fair_training_is_a_method_with_a_weight_of_its_own(tmp_path):
    made = {}
    for q in (0, 5):
        ok("train", "femnist-mini", *SHORT, "--method", "qfedavg", "--q", q, "--out", tmp_path / str(q), "--quiet")
        made[q] = (tmp_path / str(q) / "model.safetensors").read_bytes()
    assert made[0] != made[5]


def test_adapters_start_from_an_earlier_run_and_send_few_numbers(tmp_path):
    ok("train", "femnist-mini", "--model", "mlp", "--standardise", "--rounds", 2, "--out", tmp_path / "base", "--quiet")
    how = ["train", "femnist-mini", "--base", tmp_path / "base", "--lora", 2, "--lr", 0.01, "--every", 2]
    done = fedscape(*how, "--rounds", 4, "--out", tmp_path / "whole")
    assert "adapters of rank 2: 3,740 numbers are trained and sent, 0.9% of the 433,726 of the network" in done.stderr
    ok(*how, "--rounds", 2, "--out", tmp_path / "parts", "--quiet")
    ok(*how, "--rounds", 4, "--out", tmp_path / "parts", "--resume", "--quiet")
    for name in ("model.safetensors", "model", "clients.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    sizes = [(tmp_path / run / "checkpoint").stat().st_size for run in ("whole", "base")]
    assert sizes[0] < sizes[1] / 20
    ok("predict", tmp_path / "whole", "femnist-mini", "--out", tmp_path / "predicted.csv")
    rows = list(csv.DictReader((tmp_path / "predicted.csv").read_text().splitlines()))
    assert len(rows) == 7_115
    ok("export", tmp_path / "whole", tmp_path / "plain.pt2", "--to", "torch")
    ok(*how, "--method", "ditto", "--rounds", 1, "--out", tmp_path / "own", "--quiet")
    about = json.loads(ok("adapt", tmp_path / "own", "femnist-mini", "--json"))
    assert about["numbers_per_client"] == 3_740


def test_a_sweep_of_adapters_starts_from_an_earlier_run(tmp_path):
    ok("train", "femnist-mini", *SHORT, "--standardise", "--out", tmp_path / "base", "--quiet")
    before = json.loads((tmp_path / "base" / "table.json").read_text())[-1]["loss_pooled"]
    how = ["sweep", "femnist-mini", "--base", tmp_path / "base", "--lr", "1e-9,0.003", "--rounds", 2, "--json"]
    for more in ([], ["--lora", 4]):
        rows = {row["lr"]: row["loss_pooled"] for row in json.loads(ok(*how, *more, "--quiet"))}
        assert rows[1e-9] == pytest.approx(before, rel=1e-5)
        assert rows[0.003] != pytest.approx(before, rel=1e-5)
    assert "--shape is as the model in --base has it" in refused(2, *how, "--shape", "28,28")
    assert "--lora-layers needs --lora" in refused(2, *how, "--lora-layers", "1")


def test_a_base_without_adapters_is_where_all_weights_start(tmp_path):
    ok("train", "femnist-mini", *SHORT, "--standardise", "--out", tmp_path / "base", "--quiet")
    how = ["train", "femnist-mini", "--base", tmp_path / "base", "--rounds", 1, "--lr", 1e-9, "--json", "--quiet"]
    about = json.loads(ok(*how))
    before = json.loads((tmp_path / "base" / "table.json").read_text())[-1]
    assert about["model"] == "linear"
    assert about["table"][-1]["accuracy_pooled"] == before["accuracy_pooled"]
    assert "the model in" in refused(2, "train", "acs-mini", "--base", tmp_path / "base", "--column", "race")
    assert "--model is as the model in --base has it" in refused(2, *how, "--model", "mlp")
    assert "would begin as that of --base and stay alike: add --lora" in refused(2, *how, "--method", "fedem")


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
        (["train", "femnist-mini", "--lora", "0"], "rank must be a whole number of at least 1"),
        (["train", "femnist-mini", "--lora-layers", "1"], "--lora-layers needs --lora"),
        (["train", "femnist-mini", "--lora", "2", "--lora-layers", "query"], "'query', which is none of 1, 3"),
        (["train", "femnist-mini", "--lora", "2", "--schedule", "linear:p=1,T=8"], "not with the branches of fedclock"),
        (["train", "acs-mini", "--method", "trees", "--lora", "2"], "--lora goes with networks, not with trees"),
        (["train", "femnist-mini", "--base", "nowhere"], "nowhere"),
        (["train", "femnist-mini", "--method", "sgd"], f"one of {', '.join(names(command=True))}, not"),
        (["train", "femnist-mini", "--method", "fedprox"], "fedprox needs proximal above 0"),
        (["train", "femnist-mini", "--method", "fedadam", "--q", "1"], "q goes with qfedavg, not with fedadam"),
        (["train", "femnist-mini", "--method", "ifca", "--q", "1"], "q goes with qfedavg, not with ifca"),
        (["train", "femnist-mini", "--resume"], "--resume needs --out"),
        (["train", "acs-mini", "--features", "SCHL,PINCP", "--target", "race"], "'SCHL' must hold one finite number"),
        (["train", "acs-mini", "--features", "AGEP", "--target", "PINCP"], "is a number, not a class"),
        (["train", "acs-mini", "--model", "cnn", "--features", "AGEP,SEX", "--target", "race"], "cnn reads images"),
        (["train", "femnist-mini", "--features", "pixels"], "pixels"),
        (["sweep", "femnist-mini", "--lr", "fast"], "--lr must be comma-separated numbers"),
        (["sweep", "femnist-mini", "--resume"], "--resume needs --out"),
        (["sweep", "femnist-mini", "--lr", "0.1,0"], "--lr must be numbers above 0: with 0 nothing is learned"),
        (["train", "femnist-mini", "--epsilon", "4", "--standardise"], "which --epsilon does not cover"),
        (["train", "femnist-mini", "--device", "cuda"], "torch finds no CUDA device here"),
        (["train", "femnist-mini", "--device", "abacus"], "device must be one that torch knows"),
        (["train", "femnist-mini", "--group-size", "0"], "group_size must be"),
        (["train", "femnist-mini", "--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["train", "femnist-mini", "--method", "ditto", "--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["train", "femnist-mini", "--method", "fedem", "--every", "-1"], "--every must be at least 1, not -1"),
        (["train", "femnist-mini", "--prior", "foo"], "--prior needs --schedule and one of fedclock"),
        (
            ["train", "femnist-mini", "--method", "vanilla", "--schedule", "cosine:p=1,T=4", "--prior", "cosine"],
            "--prior needs --schedule and one of fedclock, fedtem, fedtem-sums, fedtkm, scsgd, not vanilla",
        ),
        (["train", "femnist-mini", "--clip", "2"], "--clip needs --epsilon"),
        (["train", "femnist-mini", "--method", "ifca", "--delta", "0.1"], "--delta needs --epsilon"),
        (["train", "femnist-mini", "--epsilon", "3", "--clip", "0"], "--clip must be a positive number, not 0"),
        (["train", "femnist-mini", "--epsilon", "3", "--delta", "0"], "--delta must be between 0 and 1, not 0"),
        (["sweep", "femnist-mini", "--seeds", "0,1.5"], "--seeds must be comma-separated whole numbers"),
        (["train", "femnist-mini", "--fill", "often"], "--fill must be one of mean, median, drop or a number"),
        (["train", "femnist-mini", "--features", "z*"], "--features z* matches no column"),
        (["train", "femnist-mini", "--model", "char_lstm", "--standardise"], "char_lstm reads character codes"),
        (
            ["train", "acs-mini", "--features", "AGEP,race", "--target", "race"],
            "the target 'race' is none of them",
        ),
        (["train", "femnist-mini", "--ignore", "z"], "--ignore names 'z', which is no column"),
    ],
)
def test_bad_input_gives_one_clear_line(arguments, message):
    said = refused(2, *arguments)
    assert message in said
    assert len(said.strip().splitlines()) == 1


TREES = ["--client", "user", "--features", "a,b", "--target", "tree", "--model", "linear", "--rounds", 1]


def trees(path, sizes, *, without=()):
    """A table of trees by user; rows named in `without` have no tree."""
    owners = [f"u{i}" for i, size in enumerate(sizes) for _ in range(size)]
    names = ["" if i in without else ("ash", "oak")[i % 2] for i in range(len(owners))]
    lines = [f"{who},{i % 2}.5,{i}.0,{name}" for i, (who, name) in enumerate(zip(owners, names, strict=True))]
    path.write_text("\n".join(["user,a,b,tree", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    "command", [["train"], ["train", "--method", "fedem", "--quiet"], ["train", "--json"], ["sweep"]]
)
def test_nothing_to_test_on_is_refused_before_training(tmp_path, command):
    said = refused(2, command[0], trees(tmp_path / "one.csv", [1] * 6), *TREES, *command[1:])
    assert "no client has rows to test on" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_without_a_label_are_left_out_and_counted(tmp_path, form):
    source = trees(tmp_path / "trees.csv", [10] * 4, without=[3, 14])
    if form == "parquet":
        ok("data", "convert", source, tmp_path / "trees.parquet", "--client", "user")
        source = tmp_path / "trees.parquet"
    call = [source, *(TREES if form == "csv" else ["--client", "client", *TREES[2:]])]
    for command in ("train", "sweep"):
        done = fedscape(command, *call, "--out", tmp_path / command)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("2 of 40 rows have no 'tree': they are left out\n") == 1
        assert "left out" not in fedscape(command, *call, "--quiet").stderr
    clients = csv.DictReader((tmp_path / "train" / "clients.csv").read_text().splitlines())
    assert [int(row["rows"]) for row in clients] == [2, 2, 2, 2]


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_run_that_is_not_there_begins_anew_and_says_so(tmp_path, command):
    call = [command, trees(tmp_path / "trees.csv", [10] * 4), *TREES, "--out", tmp_path / "run", "--resume"]
    first = fedscape(*call)
    assert first.returncode == 0, first.stderr
    assert f"no run to resume in {tmp_path / 'run'}: starting from round 1" in first.stderr
    call[call.index("--rounds") + 1] = 2
    assert "to resume" not in fedscape(*call).stderr


def test_a_model_of_one_number_a_row_adapts_to_rows_of_it_and_leaves_out_those_without_a_label(tmp_path):
    call = ["--client", "user", "--features", "a", "--target", "tree", "--model", "linear", "--rounds", 1]
    ok("train", trees(tmp_path / "trees.csv", [10] * 4), *call, "--method", "fedem", "--out", tmp_path / "run")
    more = trees(tmp_path / "more.csv", [10] * 2, without=(3,))
    found = json.loads(ok("adapt", tmp_path / "run", more, "--client", "user", "--json"))
    assert found["clients"] == 2
    assert 0 <= found["accuracy_after"] <= 1


def test_a_model_that_ran_away_is_one_line_after_what_was_found(tmp_path):
    call = ["train", trees(tmp_path / "trees.csv", [10] * 4), *TREES, "--method", "ditto", "--out", tmp_path / "run"]
    *found, last = refused(2, *call, "--lr", 1e38).splitlines()
    assert found[-1] == "features: a, b"
    assert "NaN or infinity" in last


def test_losses_that_are_not_known_are_null_for_programs(tmp_path):
    call = ["train", trees(tmp_path / "trees.csv", [10] * 4), *TREES, "--method", "fedem", "--lr", 1e38]
    shown = ok(*call, "--out", tmp_path / "run", "--json")
    for text in (shown, (tmp_path / "run" / "table.json").read_text()):
        assert "NaN" not in text
        assert '"loss_p50": null' in text


def test_a_training_that_ends_far_worse_than_guessing_says_so_in_one_line(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3))
    rows = [f"{i % 12},{a:.3f},{b:.3f},{c:.3f},{int(a + b > 0) ^ int(i % 5 == 0)}" for i, (a, b, c) in enumerate(x)]
    (tmp_path / "t.csv").write_text("site,a,b,c,y\n" + "\n".join(rows) + "\n")
    how = ("train", tmp_path / "t.csv", "--client", "site", "--model", "linear", "--cohort", 0, "--rounds", 6)
    noisy = fedscape(*how, "--epsilon", 0.01, "--names", "0,1", "--features", "a,b,c", "--json")
    assert noisy.returncode == 0
    assert json.loads(noisy.stdout)["worse_than_guessing"] is True
    (line,) = [text for text in noisy.stderr.splitlines() if "diverged" in text]
    assert "0.693 by guessing; the noise exceeds the signal of 12 clients" in line
    wild = fedscape(*how, "--lr", 300)
    (line,) = [text for text in wild.stderr.splitlines() if "diverged" in text]
    assert line.endswith("the clients' steps are too large: lower --lr")
    assert "diverged" not in fedscape(*how).stderr
    rows = [f"{i % 12},{60 + a:.3f},{b:.3f},{c:.3f},{int(a > 0)}" for i, (a, b, c) in enumerate(x)]
    (tmp_path / "t.csv").write_text("site,a,b,c,y\n" + "\n".join(rows) + "\n")
    (line,) = [text for text in fedscape(*how).stderr.splitlines() if "diverged" in text]
    assert line.endswith("the features are far from 1: pass --standardise, or lower --lr")
    assert "diverged" not in fedscape(*how, "--standardise").stderr
