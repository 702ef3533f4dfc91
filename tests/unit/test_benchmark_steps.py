"""The benchmark of training on simulated clients: its quick way gives the weights of plain training."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("simulate_round")


@pytest.mark.parametrize(("side", "channels", "classes"), [(28, 1, 62), (24, 3, 10)])
def test_a_chunk_ends_where_plain_training_ends(benchmark: ModuleType, side: int, channels: int, classes: int) -> None:
    steps = import_module("simulate_steps")
    x, y = torch.randn(30, side, side, channels).half(), torch.randint(0, classes, (30,))
    weights = [w + 0.01 * torch.randn_like(w) for w in steps.first_weights((side, side, channels), classes, 0)]
    batches = torch.randint(0, 30, (4, 4, 5), dtype=torch.int32)
    batches[1, :, 2:] = -1
    batches[2, 1:, 1:] = -1
    chunk = steps.Chunk(x, y, weights, batches, size=8, way="unfused")
    assert steps.disagreement(chunk, weights) < 1e-5
    before = [p.clone() for p in chunk.params]
    chunk.step(8)
    assert all(torch.equal(a, b) for a, b in zip(chunk.params, before, strict=True))  # no model has a fourth step


def test_rounds_in_several_chunks_are_rounds_of_plain_training(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("simulate_steps"), "GRAIN", 3)
    data, made = benchmark.made_up()
    args = Namespace(kinds="true;iid", seed=0, cohort=2, batch=10, chunk=13, products="tf32", quick=True)
    start, ends = [], []
    for way in ("auto", "plain"):
        experiment = benchmark.Experiment("femnist_same", data, made, Namespace(**vars(args), way=way), "cpu")
        assert (experiment.chunk is None) == (way == "plain")
        start = experiment.world
        for index in range(2):
            experiment.round(experiment.draw(index))
        ends.append(experiment.world)
    for a, b, c in zip(*ends, start, strict=True):  # a maximum of nearly equal ones may change places
        assert (a - b).norm() < 1e-3 * (b - c).norm()


def test_a_way_that_fails_or_disagrees_is_passed_over(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = import_module("simulate_steps")
    x, y = torch.randn(10, 28, 28, 1).half(), torch.arange(10)
    given = (x, y, steps.first_weights((28, 28, 1), 10, 0), torch.zeros((2, 2, 3), dtype=torch.int32))
    monkeypatch.setattr(steps, "conv_pool_input", lambda *_: 1 / 0)
    assert steps.ready(*given, size=2, ways=("unfused",), half=False) is None
    assert "ZeroDivisionError" in capsys.readouterr().out
    monkeypatch.setattr(steps, "conv_pool_input", lambda w, g, where, side: torch.ones(2, 3, side, side, 16))
    assert steps.ready(*given, size=2, ways=("unfused",), half=False) is None
    assert "differ from plain training" in capsys.readouterr().out
