"""Five tasks that start from an untidy CSV file, typed as by someone who has read --help: each ends, and answers."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "from_a_csv"
ANSWERS = {
    "1_study.sh": ["'form' alone predicts 'outcome'", "Which method?", "study/report.html: the report"],
    "2_population.sh": ["2 kinds of clients", '"client","home","surgery","therapy"'],
    "3_train_and_predict.sh": ['"client","row","prediction","probability"', "sklearn", "torch", "RMSE"],
    "4_new_clients.sh": ["clinic 99", "accuracy_after", "known_clients"],
    "5_own_computation.py": ["round 5: between", "median age near", "spent"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of programs, in which `fedscape` and `python` are those of this test."""
    made = tmp_path_factory.mktemp("bin")
    for name, call in (("fedscape", "-W ignore -m fedscape"), ("python", "")):
        (made / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (made / name).chmod(0o755)
    return made


def run(name, place, folder):
    shell = [sys.executable, "-W", "error"] if name.endswith(".py") else [shutil.which("sh")]
    environment = {**os.environ, "PATH": f"{place}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run([*shell, FOLDER / name], cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_there_is_an_answer_to_look_for_in_each():
    assert {path.name for path in FOLDER.iterdir() if path.name[0].isdigit()} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_task_is_short_and_ends(name, place, tmp_path):
    assert len((FOLDER / name).read_text().splitlines()) <= 60
    said = run(name, place, tmp_path)
    assert "Traceback" not in said
    for words in ANSWERS[name]:
        assert words in said
    if name.startswith("3"):
        with (tmp_path / "predictions.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 90
    if name.startswith("4"):
        row = next(line.split("│") for line in said.splitlines() if "clinic 99" in line and "│" in line)
        assert float(row[4]) > 0.9  # of a clinic with other units; where its numbers are missing, a mean is known
