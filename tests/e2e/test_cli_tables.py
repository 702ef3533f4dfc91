"""Boosted trees and GLMs of a table from the command line: train, predict, and what is refused in one line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from shell import fedscape, ok, refused


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("tables") / "visits.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "age", "ward", "cost", "sick"])
        for i in range(600):
            age, ward = rng.uniform(20, 80), rng.choice(["east", "west", "north"])
            signal = 0.05 * (age - 50) + (ward == "west")
            sick = "yes" if signal + rng.normal(0, 0.3) > 0.3 else "no"
            writer.writerow(
                [f"s{i % 8}", "" if i % 40 == 0 else round(age, 2), ward, round(100 + 50 * signal, 3), sick]
            )
    return path


def run(*arguments: object) -> dict:
    return json.loads(ok(*arguments, "--client", "site", "--json", "--quiet"))


def test_trees_are_trained_saved_and_used_again(visits, tmp_path):
    how = ("--column", "sick", "--features", "age,ward", "--method", "trees", "--trees", 20)
    assert run("train", visits, *how, "--out", tmp_path / "run")["held_out"]["accuracy"] > 0.8
    again = run("predict", tmp_path / "run", visits, "--probabilities", "--out", tmp_path / "p.csv")
    assert again["accuracy"] > 0.85
    assert again["rows_without_prediction"] == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert len(rows) == 600
    assert set(rows[0]) >= {"prediction", "probability", "p(yes)", "p(no)"}


def test_a_glm_shows_its_coefficients(visits, tmp_path):
    how = ("--column", "cost", "--features", "age,ward", "--method", "glm")
    said = run("train", visits, *how, "--out", tmp_path / "run")
    found = {line["name"]: line["coefficient"] for line in said["coefficients"]}
    assert found["age"] == pytest.approx(2.5, abs=1e-3)
    assert found["ward=west"] == pytest.approx(50, abs=1e-2)
    again = run("predict", tmp_path / "run", visits)
    assert again["rows_without_prediction"] == 15
    assert again["r2"] > 0.999


def test_a_glm_does_not_take_a_gap_for_the_first_category(visits, tmp_path):
    """Costs follow age and ward without noise, so the rows that have both give the exact coefficients."""
    rows = [line.split(",") for line in visits.read_text().splitlines()]
    path = tmp_path / "gaps.csv"
    path.write_text(
        "\n".join(",".join([*r[:2], "" if i % 5 == 1 else r[2], *r[3:]]) for i, r in enumerate(rows)) + "\n"
    )
    how = ("--column", "cost", "--features", "age,ward", "--method", "glm")
    said = run("train", path, *how, "--out", tmp_path / "run")
    found = {line["name"]: line["coefficient"] for line in said["coefficients"]}
    assert found["ward=west"] == pytest.approx(50, abs=1e-2)
    assert found["ward=north"] == pytest.approx(0, abs=1e-2)
    assert run("predict", tmp_path / "run", path)["rows_without_prediction"] == 120
    run("train", path, *how, "--fill", "mean", "--out", tmp_path / "filled")
    assert run("predict", tmp_path / "filled", path)["rows_without_prediction"] == 0
    new = tmp_path / "new.csv"
    new.write_text("site,age,ward\ns1,30,south\ns1,31,west\n")
    assert (
        "1 row has a 'ward' that the model does not know, such as 'south': it counts as missing"
        in fedscape("predict", tmp_path / "run", new, "--client", "site").stderr
    )


def test_a_glm_says_what_its_coefficients_mean(visits, tmp_path):
    how = ("--client", "site", "--features", "age,ward", "--method", "glm", "--column")
    said = ok("train", visits, *how, "sick", "--out", tmp_path / "sick")
    assert "adds its coefficient to the log-odds of sick = yes against no; compared: ward with 'east'" in said
    assert "adds its coefficient to the mean of cost;" in ok("train", visits, *how, "cost", "--out", tmp_path / "cost")


BOTH = pytest.mark.parametrize("method", ["trees", "glm"])


@BOTH
def test_a_run_that_goes_on_ends_with_the_bytes_of_one_never_stopped_and_is_logged(method, visits, tmp_path):
    how = ["--column", "ward", "--features", "age,cost", "--fill", "mean", "--method", method, "--every", 2]
    whole = run("train", visits, *how, "--rounds", 7, "--out", tmp_path / "whole", "--tensorboard", tmp_path / "board")
    assert [row["round"] for row in whole["table"]] == [2, 4, 6, 7]
    run("train", visits, *how, "--rounds", 4, "--out", tmp_path / "parts")
    on = run("train", visits, *how, "--rounds", 7, "--out", tmp_path / "parts", "--resume")
    assert on["held_out"] == whole["held_out"]
    for name in ["model.json", "clients.csv", *(["model.trees.json"] if method == "trees" else [])]:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert list((tmp_path / "board").iterdir())
    said = refused(2, "train", visits, "--client", "site", *how, "--rounds", 7, "--out", tmp_path / "parts", "--resume")
    assert "has made its 7 rounds already" in said


@BOTH
def test_private_training_stays_within_its_budget_and_says_what_it_needs(method, visits, tmp_path):
    how = ["--column", "sick", "--features", "age,cost", "--method", method, "--epsilon", 20, "--names", "no,yes"]
    said = refused(2, "train", visits, "--client", "site", *how)
    assert f"--method {method} needs --ranges of all numbers, as age:0:100: missing are age, cost" in said
    ranges = ["--ranges", "age:0:120,cost:0:300"]
    done = run("train", visits, *how, *ranges, "--rounds", 3, "--out", tmp_path / "run")
    assert 0 < max(done["epsilon"].values()) <= 20
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) >= 3
    assert (tmp_path / "run" / "model.json").stat().st_mode & 0o077 == 0
    assert "coefficients" not in done
    again = run("predict", tmp_path / "run", visits)
    assert 0 <= again["accuracy"] <= 1
    number = ["--column", "cost", "--features", "age", "--method", method, "--epsilon", 20, "--rounds", 3]
    done = run("train", visits, *number, "--ranges", "age:0:120,cost:0:300")
    assert np.isfinite(done["held_out"]["rmse"])


def test_enough_clients_learn_privately_what_they_would_without_noise(tmp_path):
    """The oracle of a private run: with many clients and a large budget it is as accurate as an open one."""
    rng = np.random.default_rng(1)
    path = tmp_path / "many.csv"
    rows = [f"c{i // 4},{a:.3f},{'yes' if a > 0 else 'no'}" for i, a in enumerate(rng.uniform(-1, 1, 8000))]
    path.write_text("\n".join(["site,a,sick", *rows]) + "\n")
    for method, how in {"trees": ["--rounds", 10], "glm": ["--rounds", 3]}.items():
        call = ["--column", "sick", "--features", "a", "--method", method, "--names", "no,yes", *how]
        assert run("train", path, *call, "--epsilon", 50, "--ranges", "a:-1:1")["held_out"]["accuracy"] > 0.95


def test_what_is_refused_in_one_line(visits, tmp_path):
    where = ("train", visits, "--client", "site", "--features", "age,ward", "--column", "sick")
    for method, option, value in (
        ("trees", "--lr", 0.1), ("glm", "--model", "mlp"), ("glm", "--standardise", None), ("trees", "--q", 1),
        ("trees", "--schedule", "linear:T=4"), ("glm", "--batch-size", 3), ("trees", "--device", "cuda"),
        ("glm", "--group-size", 3),
    ):  # fmt: skip
        said = refused(2, *where, "--method", method, option, *([] if value is None else [value]))
        assert f"{option} goes with networks, not with {method}" in said
    assert "--family goes with --method trees or glm, not with fedavg" in refused(2, *where, "--family", "poisson")
    assert "--ranges goes with --epsilon" in refused(2, *where, "--method", "glm", "--ranges", "age:0:1")
    odd = ("--epsilon", 1, "--names", "no,yes", "--method", "glm", "--ignore", "ward", "--features", "age", "--ranges")
    where = ("train", visits, "--client", "site", "--column", "sick")
    assert "--ranges must be COLUMN:LEAST:GREATEST" in refused(2, *where, *odd, "age:3:1")
    assert "--ranges names 'pay', which is no column" in refused(2, *where, *odd, "age:0:120,pay:0:1")
    cost = ("--column", "cost", "--method", "trees", "--family", "gamma")
    assert "--family must be gaussian, logistic, poisson, not 'gamma'" in refused(2, *where[:-2], *cost)
    (tmp_path / "model.json").write_text('{"what": "fedscape table model", "format": 1}')
    assert "holds no model of a table" in refused(2, "predict", tmp_path, visits, "--client", "site")


def test_options_and_messages_speak_of_the_command_line(visits, tmp_path):
    where = ("train", visits, "--client", "site", "--features", "age,ward")
    assert "--trees must be at least 1, not 0" in refused(
        2, *where, "--column", "sick", "--method", "trees", "--trees", 0
    )
    assert "--trees goes with --method trees, not with glm" in refused(
        2, *where, "--column", "sick", "--method", "glm", "--trees", 5
    )
    assert "trees, glm, not 'fedmagic'" in refused(2, *where, "--column", "sick", "--method", "fedmagic")
    zero = tmp_path / "zero.csv"
    zero.write_text("site,a,cost\n" + "".join(f"s{i % 2},{i * 0.37},{max(i - 9, 0) * 0.5}\n" for i in range(40)))
    law = ("--features", "a", "--column", "cost", "--method", "glm", "--family", "gamma")
    said = refused(2, "train", zero, "--client", "site", *law)
    assert "the target 'cost' is 0 in row 0, which no gamma law has: it must be above 0 (" in said


def test_one_row_a_client_is_refused_before_anything_is_fitted(tmp_path):
    path = tmp_path / "single.csv"
    path.write_text("site,a,sick\n" + "".join(f"s{i},{i * 0.37},{i % 2}\n" for i in range(9)))
    for method in ("trees", "glm"):
        said = refused(2, "train", path, "--client", "site", "--column", "sick", "--method", method)
        assert "no client has rows to test on" in said


def test_what_takes_a_network_names_what_uses_trees(visits, tmp_path):
    run("train", visits, "--column", "sick", "--method", "trees", "--trees", 1, "--out", tmp_path / "run")
    for call in (("export", tmp_path / "run", tmp_path / "e", "--to", "torch"), ("adapt", tmp_path / "run", visits)):
        assert "holds trees or a GLM, and this takes a network: 'fedscape predict'" in refused(2, *call)
