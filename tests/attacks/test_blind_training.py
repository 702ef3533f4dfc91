"""`fedscape train --epsilon` whose releases tell nothing: the files of its models then follow no row either."""

from __future__ import annotations

import csv
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from blind import nothing_released

from fedscape import Ledger
from fedscape.cli import _built
from fedscape.learning import tracking

SIMULATION = ("clients.csv", "table.csv", "table.json", "checkpoint", "ledger.jsonl")  # exact, or of the noise's secret
ONE_ROW = {
    "": {},
    "a fraction and a gap": {"age": 40.5, "amount": ""},
    "a text": {"pay": "secret", "age": "n/a"},
    "far away": {"pay": 1e12, "few": 977, "amount": -5.0},
    "names of its own": {"job": "astronaut", "y": "maybe"},
}
NUMBERS, RANGES = "age,pay,few,amount", "age:0:120,pay:0:300,few:0:9,amount:0:50"
DECLARED = ["--names", "no,yes", "--features", NUMBERS, "--numeric", NUMBERS]
RUNS = {
    "glm": ["--method", "glm", *DECLARED, "--ranges", RANGES],
    "trees, found": ["--method", "trees", *DECLARED, "--find", "0.3", "--trees", "2"],
    "trees, found medians": ["--method", "trees", *DECLARED, "--find", "0.3", "--trees", "2", "--fill", "median"],
    "network": ["--model", "linear", *DECLARED, "--fill", "0"],
    "day and night": [
        *("--schedule", "blocks:T=2", "--modes", "few:3", "--cohort", "9"),
        *("--model", "linear", *DECLARED, "--fill", "0"),
    ],
    "network, found": ["--model", "linear", *DECLARED, "--find", "0.3", "--standardise", "--fill", "median"],
}


def write(path: Path, change: dict[str, object]) -> None:
    """Forty clients of eight rows; one row is changed."""
    rng, rows = np.random.default_rng(0), []
    for i in range(320):
        numbers = {"age": int(rng.integers(18, 90)), "pay": round(float(rng.normal(100, 30)), 2)}
        numbers |= {"few": int(rng.integers(0, 6)), "amount": round(float(rng.gamma(2, 3)), 3)}
        texts = {"job": str(rng.choice(["cook", "nurse", "smith"])), "y": str(rng.choice(["no", "yes"]))}
        rows.append({"client": f"c{i // 8}", **numbers, **texts})
    rows[13] |= change
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def trained(folder: Path, change: str, options: list[str], monkeypatch) -> tuple[dict[str, bytes], str]:
    folder.mkdir()
    write(folder / "table.csv", ONE_ROW[change])
    call = ["train", str(folder / "table.csv"), "--client", "client", "--column", "y", "--epsilon", "4", "--out"]
    call += [str(folder / "out"), "--rounds", "2", "--every", "2", *options]
    call += [] if {"--cohort", "--schedule"} & set(options) else ["--cohort", "0"]
    with nothing_released(monkeypatch, 3000.0), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        _built()(call, standalone_mode=False)
    files = [path for path in (folder / "out").iterdir() if not path.name.startswith(SIMULATION)]
    return {path.name: path.read_bytes() for path in files}, said.getvalue()


@pytest.mark.parametrize("name", RUNS)
def test_no_file_of_a_model_follows_a_row(name, tmp_path, monkeypatch):
    """A column's type did: whole numbers become fractions with one gap, and numbers texts with one text."""
    plain, said = trained(tmp_path / "plain", "", RUNS[name], monkeypatch)
    assert plain
    assert "follows from all rows" not in said
    for number, change in enumerate(ONE_ROW):
        assert trained(tmp_path / str(number), change, RUNS[name], monkeypatch)[0] == plain, change


def test_a_run_says_that_kinds_of_columns_follow_from_rows(tmp_path, monkeypatch):
    for number, options in enumerate(([], ["--numeric", NUMBERS])):
        call = ["--method", "glm", "--names", "no,yes", "--ranges", RANGES, "--features", NUMBERS, *options]
        said = trained(tmp_path / str(number), "", call, monkeypatch)[1]
        assert ("--numeric declares it" in said) == (number == 0)


@pytest.mark.parametrize(
    "cohort", [["--cohort", "10"], ["--cohort", "0"], ["--schedule", "blocks:T=2", "--modes", "few:3"]]
)
def test_search_and_training_share_one_budget_of_one_relation(cohort, tmp_path, monkeypatch):
    """What was found added or removed a client, and rounds replaced one: 0.3 + 0.7 of the budget were 1.3 of it."""
    options = ["--model", "linear", *DECLARED, "--find", "0.3", "--standardise", "--fill", "median", *cohort]
    trained(tmp_path / "run", "", options, monkeypatch)
    ((group, spent),) = Ledger(tmp_path / "run" / "out" / "ledger.jsonl").spent().items()
    assert group == ("client", "add-remove" if cohort[-1] == "0" else "replace-one", "central")
    assert 0.7 * 4 < spent <= 4


def test_the_size_of_a_network_is_not_the_largest_code_of_a_row(tmp_path):
    import fedscape as fs
    from fedscape.cli.rows import network_of
    from fedscape.errors import DataError
    from fedscape.learning.inputs import as_it_is

    for largest in (9, 70):
        codes = np.zeros((8, 5), dtype=np.int64)
        codes[3, 1] = largest
        fed = fs.Federation({"x": codes, "y": np.arange(8) % 4}, [0, 4, 8]).declare("y", ["a", "b", "c", "d"])
        with pytest.raises(DataError, match="the largest code of the rows, which --epsilon does not cover"):
            network_of("char_lstm", fed, as_it_is("x", "y"), 0, private=True)


@pytest.mark.parametrize("board", ["--wandb", "--mlflow"])
def test_a_board_is_told_that_its_metrics_are_exact(board, tmp_path, monkeypatch):
    kept: list[dict[str, object]] = []

    class Board(tracking.Sink):
        def __init__(self, *place: object, settings: dict[str, object], **how: object) -> None:
            kept.append(settings)

        def _put(self, step: int, numbers: dict[str, float]) -> None:
            pass

    monkeypatch.setattr(tracking, "WandB", Board)
    monkeypatch.setattr(tracking, "MLflow", Board)
    trained(tmp_path / "run", "", [*RUNS["network"], board, str(tmp_path / "board")], monkeypatch)
    assert kept[0]["metrics"] == "exact: the simulation's view, not private"
    assert kept[0]["epsilon"] == 4
