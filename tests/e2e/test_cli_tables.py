"""Boosted trees and GLMs of a table from the command line: train, predict, and what is refused in one line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from shell import ok, refused


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


def test_what_is_refused_in_one_line(visits, tmp_path):
    where = ("train", visits, "--client", "site", "--features", "age,ward")
    assert "needs ranges" in refused(2, *where, "--column", "sick", "--method", "trees", "--epsilon", "1")
    assert "--family must be" in refused(2, *where, "--column", "cost", "--method", "trees", "--family", "gamma")
    assert "need --method trees or glm" in refused(2, *where, "--column", "sick", "--family", "poisson")
    (tmp_path / "model.json").write_text('{"what": "fedscape table model", "format": 1}')
    assert "holds no model of a table" in refused(2, "predict", tmp_path, visits, "--client", "site")


def test_options_and_messages_speak_of_the_command_line(visits, tmp_path):
    where = ("train", visits, "--client", "site", "--features", "age,ward")
    assert "--trees must be at least 1, not 0" in refused(
        2, *where, "--column", "sick", "--method", "trees", "--trees", 0
    )
    assert "--trees needs --method trees" in refused(2, *where, "--column", "sick", "--method", "glm", "--trees", 5)
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
