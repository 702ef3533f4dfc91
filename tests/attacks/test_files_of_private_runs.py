"""Somebody with an account on the same machine: what a private run leaves is for its owner alone."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from shell import ok

from fedscape import (
    Federation,
    Gaussian,
    Histogram,
    LatentClassRegression,
    Ledger,
    MixtureOfDirichletMultinomials,
    choose_components,
    rounds,
    study,
)
from fedscape.core.history import History
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.deploy.files import SERVER
from fedscape.engines.flower import LocalGrid, Terms, client_app
from fedscape.sketches import files as sketches
from fedscape.studies import Study
from fedscape.tabular import BoostedTrees

PRIVACY = Gaussian(clip=1.5, multiplier=1.0)
OWNER, EVERYONE = 0o600, 0o644


@pytest.fixture(autouse=True)
def usual_mask():
    """New files are for everyone to read unless something says otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return {stat.S_IMODE(path.stat().st_mode) for path in files}


def people(n: int = 30) -> Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 20 * n)
    return Federation({"y": y, "x": rng.normal(size=(20 * n, 2)) + y[:, None]}, np.arange(0, 20 * n + 1, 20))


@pytest.mark.parametrize(("epsilon", "mode"), [(1.0, OWNER), (None, EVERYONE)])
def test_a_study(epsilon, mode, tmp_path):
    about = {"names": ["a", "b", "c"], "rounds": 1, "seeds": 1, "progress": False}
    study(people(), column="y", features=["x"], epsilon=epsilon, **about).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "seconds.json", "report.html", "tables"}
    assert modes(tmp_path) == {mode}
    (tmp_path / "report.html").unlink()
    Study.load(tmp_path).render_into(tmp_path)
    assert modes(tmp_path) == {mode}


@pytest.mark.parametrize(("privacy", "mode"), [(PRIVACY, OWNER), (None, EVERYONE)])
def test_a_population(privacy, mode, tmp_path):
    mixture = MixtureOfDirichletMultinomials(1, n_init=1, rounds=1, n_categories=3)
    mixture.fit(people(), column="y", privacy=privacy, progress=False)
    mixture.save(tmp_path / "first.json")
    mixture.history_.save(tmp_path / "history.csv")
    again = MixtureOfDirichletMultinomials.load(tmp_path / "first.json")
    again.save(tmp_path / "second.json")
    again.history_.save(tmp_path / "history.parquet")
    assert len(list(tmp_path.iterdir())) == 6
    assert modes(tmp_path) == {mode}


def test_a_population_whose_rounds_were_run_before(tmp_path):
    how = {"privacy": PRIVACY, "ledger": Ledger(tmp_path / "ledger.jsonl"), "checkpoint": tmp_path / "fit"}
    for name in ("first.json", "second.json"):
        mixture = MixtureOfDirichletMultinomials(1, n_init=1, rounds=1, n_categories=3)
        mixture.fit(people(), column="y", progress=False, **how).save(tmp_path / name)
    assert modes(tmp_path) == {OWNER}


def test_a_chosen_population(tmp_path):
    mixture = MixtureOfDirichletMultinomials(n_init=1, rounds=1, n_categories=3)
    how = {"candidates": (1, 2), "privacy": PRIVACY, "measure_privacy": PRIVACY, "progress": False}
    choice = choose_components(mixture, people(200), column="y", **how)
    choice.model.save(tmp_path / "chosen.json")
    choice.history.save(tmp_path / "history.csv")
    assert modes(tmp_path) == {OWNER}


@pytest.mark.parametrize(("privacy", "mode"), [(Gaussian(clip=1.0, multiplier=1.0), OWNER), (None, EVERYONE)])
def test_a_regression(privacy, mode, tmp_path):
    fed, _ = hlcr_synthetic(40, entities=3, events=10, features=2, components=2, sigma=0.5, delta=1.5, seed=1)
    ranges = {"x": (-3.0, 3.0), "y": (-6.0, 6.0)}
    model = LatentClassRegression(1, ranges=ranges, rounds=1, sigma=1.0, delta=1.0, beta=2.0)
    model.fit(fed, privacy=privacy, progress=False).save(tmp_path / "first.json")
    LatentClassRegression.load(tmp_path / "first.json").save(tmp_path / "second.json")
    assert modes(tmp_path) == {mode}


@pytest.mark.parametrize(("privacy", "mode"), [(Gaussian(clip=5.0, multiplier=1.0), OWNER), (None, EVERYONE)])
def test_boosted_trees(privacy, mode, tmp_path):
    fed = Federation(
        {"x": np.arange(20.0) % 7, "y": np.arange(20) % 2}, np.arange(0, 21, 2), names={"y": ("no", "yes")}
    )
    trees = BoostedTrees(n_trees=1, depth=1, bins=4, ranges={"x": (0.0, 6.0)})
    trees.fit(fed, privacy=privacy, progress=False).save(tmp_path / "first.json")
    BoostedTrees.load(tmp_path / "first.json").save(tmp_path / "second.json")
    assert modes(tmp_path) == {mode}


@pytest.mark.parametrize(("epsilon", "mode"), [(1.0, OWNER), (None, EVERYONE)])
def test_sketches(epsilon, mode, tmp_path):
    options = {"rows": 3, "bits": 1, "column": "x", "centre": 0.0, "scale": 1.0}
    sketches.build(people(), tmp_path / "first", options, epsilon=epsilon)
    sketches.save(tmp_path / "second", sketches.load(tmp_path / "first"))
    assert modes(tmp_path) == {mode}


@pytest.mark.parametrize(("privacy", "mode"), [(PRIVACY, OWNER), (None, EVERYONE)])
def test_a_history_of_rounds(privacy, mode, tmp_path):
    history = History()
    for done in rounds(Histogram(3), people(), n_rounds=1, privacy=privacy, ledger=privacy and Ledger()):
        history.add(done)
    history.save(tmp_path / "history.csv")
    assert modes(tmp_path) == {mode}


@pytest.mark.parametrize(("epsilon", "mode"), [(8, OWNER), (None, EVERYONE)])
def test_a_training(epsilon, mode, tmp_path):
    people().save(tmp_path / "fed")
    how = ("--model", "linear", "--rounds", 1, "--cohort", 0, "--out", tmp_path / "run")
    private = () if epsilon is None else ("--epsilon", epsilon, "--delta", 1e-3, "--names", "0,1,2")
    ok("train", tmp_path / "fed", *how, *private)
    assert {"model.safetensors", "clients.csv", "table.json"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert modes(tmp_path / "run") - ({OWNER} if epsilon is None else set()) == {
        mode
    }  # one may hold clients' own models


def test_the_server_of_a_deployment(tmp_path, monkeypatch):
    logger = logging.getLogger("fedscape")  # the server makes it print
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))
    monkeypatch.setattr(logger, "level", logger.level)
    fed = people(40)
    nodes = client_app(
        lambda context: fed.take(np.arange(context.node_id - 1, len(fed), 2)),
        folder=lambda context: tmp_path / str(context.node_id),
        terms=Terms(),
    )
    config = {"out": str(tmp_path / "out"), "nodes": 2, "min-clients": 10, "timeout": 5.0, "column": "y"}
    config |= {"secure": False, "dropouts": 0.0, "colluders": 0.0, "metrics-port": 0}
    config |= {"categories": 3, "components": 1, "rounds": 1, "epsilon": 8.0, "delta": 1e-3, "clients": 20}
    config |= {"metrics-port": 0, "secure": False, "dropouts": 0.1, "colluders": 0.05}
    server: dict = {}
    exec(SERVER, server)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    server["app"](LocalGrid(nodes, [{}] * 2), context)
    assert json.loads((tmp_path / "out" / "result.json").read_text())["spent"]
    assert {"population.json", "clients.parquet"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert modes(tmp_path) == {OWNER}
