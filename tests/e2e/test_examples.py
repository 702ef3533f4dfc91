"""Every example is short, runs, and says what it found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "flights": "a new carrier",
    "new_clients": "like nobody we know",
    "online_retail": "the first basket saves",
    "private_census": "spent in all: epsilon",
    "tune_on_simulated_clients": "what the choice costs the true clients",
}


def test_there_is_an_answer_to_look_for_in_each():
    assert {path.stem for path in EXAMPLES} == set(SAYS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_short_and_run(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run([sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SAYS[path.stem] in done.stdout
