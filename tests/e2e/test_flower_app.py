"""The template of a Flower App runs over real messages, and learns what one place learns."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedscape as fs
from fedscape import datasets

pytest.importorskip("flwr")
FOLDER = Path(__file__).parents[2] / "examples" / "flower_app"
APP = tomllib.loads((FOLDER / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(where.split(":")[0]) for name, where in APP["components"].items()}
    for name in [name for name in sys.modules if name.split(".")[0] == "kinds"]:
        del sys.modules[name]


def test_the_template_learns_the_mixture_of_all_clients(parts, tmp_path, monkeypatch, capsys):
    from flwr.app import Context, RecordDict

    from fedscape.engines.flower import LocalGrid

    monkeypatch.chdir(tmp_path)
    config = {**APP["config"], "rounds": 3, "out": "population.json"}
    nodes = [{"partition-id": i, "num-partitions": config["nodes"]} for i in range(config["nodes"])]
    grid = LocalGrid(parts["clientapp"].app, nodes)
    server = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    parts["serverapp"].app(grid, server)
    assert "shares of the kinds" in capsys.readouterr().out
    learned = fs.MixtureOfDirichletMultinomials.load("population.json")
    alone = fs.MixtureOfDirichletMultinomials(2, n_init=1, rounds=3, column="y", n_categories=62, seed=0)
    alone.fit(datasets.load("femnist-labels"), progress=False)
    np.testing.assert_allclose(learned.weights_, alone.weights_, rtol=1e-6)
    np.testing.assert_allclose(learned.concentrations_, alone.concentrations_, rtol=1e-5)


def test_every_part_that_the_template_names_is_there(parts):
    for name, where in APP["components"].items():
        assert hasattr(parts[name], where.split(":")[1])
