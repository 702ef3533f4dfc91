"""`--find`: names and scales that nobody declared cost a part of the budget."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shell import fedscape, ok, refused

CALL = ("--client", "person", "--column", "sick", "--features", "age,ward", "--epsilon", 60, "--find", 0.5)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory) -> Path:
    """Four hundred patients with six visits each; what one patient alone has must not show."""
    rng = np.random.default_rng(0)
    lines = ["person,age,ward,sick"]
    for person in range(400):
        for visit in range(6):
            age, ward = rng.normal(45, 12), rng.choice(["north", "south"])
            sick = "yes" if age + 8 * (ward == "north") + rng.normal(0, 6) > 49 else "no"
            if (person, visit) == (7, 0):
                age, ward, sick = 1e9, "attic", "unsure"
            lines.append(f"p{person},{'' if visit == 5 and person % 9 == 0 else f'{age:.1f}'},{ward},{sick}")
    path = tmp_path_factory.mktemp("clinic") / "clinic.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "how",
    [
        ("--method", "glm", "--rounds", 3, "--fill", "median"),
        ("--method", "trees", "--trees", 2),
        ("--model", "linear", "--rounds", 2, "--cohort", 0, "--standardise", "--fill", "median"),
    ],
    ids=["glm", "trees", "network"],
)
def test_what_is_found_is_in_the_ledger_and_serves_the_training(how, clinic, tmp_path):
    run = fedscape("train", clinic, *CALL, *how, "--out", tmp_path / "run")
    assert run.returncode == 0, run.stderr
    (line,) = (line for line in run.stderr.splitlines() if line.startswith("found for epsilon 30, in "))
    assert "2 of 'sick', 2 of 'ward'" in line
    found = json.loads((tmp_path / "run" / "found.json").read_text())
    assert found["names"] == {"sick": ["no", "yes"], "ward": ["north", "south"]}
    assert found["scales"]["age"][3][0] < 200
    entries = [json.loads(text) for text in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert len({entry["run"] for entry in entries if entry["kind"] == "release"}) == 5
    saved = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").glob("*.json"))
    assert "attic" not in saved
    assert "unsure" not in saved
    assert json.loads(ok("predict", tmp_path / "run", clinic, "--json"))["rows"] == 2400


def test_a_run_that_goes_on_does_not_search_again(clinic, tmp_path):
    how = ("train", clinic, *CALL, "--method", "glm", "--rounds", 4, "--fill", 0, "--out", tmp_path / "run")
    ok(*how)
    found, spent = (tmp_path / "run" / "found.json").read_bytes(), (tmp_path / "run" / "ledger.jsonl").read_bytes()
    assert "has made its 4 rounds already" in refused(2, *how, "--resume")
    assert (tmp_path / "run" / "found.json").read_bytes() == found
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == spent


def test_a_study_counts_names_that_it_found(clinic, tmp_path):
    how = ("--client", "person", "--column", "sick", "--epsilon", 30, "--rounds", 1, "--seeds", 1)
    ok("study", clinic, *how, "--find", 0.5, "--methods", "glm", "--out", tmp_path / "study")
    census = json.loads((tmp_path / "study" / "result.json").read_text())["model"]["census"]
    assert census["found"]["names"] == ["no", "yes"]
    assert len(census["shares"]) == 2
    assert census["spent"][0]["epsilon"] <= 30
    assert "were found privately" in (tmp_path / "study" / "report.html").read_text()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (("--method", "glm"), "or spend part of the budget to find them, as with --find 0.2"),
        (("--method", "glm", "--find", 1.5), "--find must be a share of the budget above 0 and below 1"),
        (("--method", "glm", "--find", 0.2, "--fill", "mean"), "--fill mean takes the exact mean of all rows"),
        (("--standardise",), "or find scales with part of the budget, as with --find 0.2"),
        (("--find", 0.01, "--epsilon", 0.5), "no class of 'sick' is found that"),
        (("--find", 0.2, "--names", "no,yes", "--features", "age"), "--find has nothing to find"),
    ],
)
def test_refusals_are_a_line(how, message, clinic):
    call = ("train", clinic, "--client", "person", "--column", "sick", "--epsilon", 8, "--features", "age,ward")
    assert message in refused(2, *call, *how)
