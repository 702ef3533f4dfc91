"""The command line on Ray: the same results as without it, and one-line errors."""

from __future__ import annotations

import json
import os

import pytest
from shell import ok, refused

from fedscape import MixtureOfDirichletMultinomials
from fedscape.engines.ray.cluster import surroundings
from fedscape.sketches.files import load


@pytest.fixture(scope="module")
def address():
    """Where a cluster runs already: to start one for each command takes longer than the commands."""
    import ray

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with surroundings():
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level=40, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def test_fit_on_ray_gives_the_population_of_local(tmp_path):
    how = ["fit", "acs-race", "--components", "2", "--rounds", 4, "--quiet", "--json"]
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    expected = json.loads(ok(*how, "--out", here / "population.json"))
    assert json.loads(ok(*how, "--out", there / "population.json", "--engine", "ray", "--workers", 2)) == expected
    a, b = (MixtureOfDirichletMultinomials.load(folder / "population.json") for folder in (here, there))
    assert a.concentrations_.tobytes() == b.concentrations_.tobytes()
    assert a.weights_.tobytes() == b.weights_.tobytes()


def test_a_study_a_description_sketches_and_fidelity_on_ray_are_those_of_local(address, tmp_path):
    ray = ("--engine", "ray", "--workers", 2, "--address", address)
    results, sketches, compared, described = [], [], [], []
    for name, how in (("here", ()), ("there", ray)):
        ok("study", "acs-race", "--out", tmp_path / name, "--quiet", "--json", *how)
        results.append((tmp_path / name / "result.json").read_bytes())
        built = ("sketch", "build", "acs-mini", "--column", "AGEP", "--rows", 8, "--out", tmp_path / f"{name}.sketch")
        ok(*built, "--json", *how)
        sketches.append(load(tmp_path / f"{name}.sketch").counts.tobytes())
        described.append(ok("describe", "acs-mini", "--column", "race", "--json", *how))
        compared.append(
            ok("fidelity", "acs-mini", "acs-mini", "--column", "race", "--features", "AGEP", "--json", *how)
        )
    assert results[0] == results[1]
    assert sketches[0] == sketches[1]
    assert compared[0] == compared[1]
    assert described[0] == described[1]


def test_engines_that_do_not_exist_or_do_not_answer_are_one_line():
    assert "--engine must be local or ray, not 'spark'" in refused(2, "fit", "acs-race", "--engine", "spark")
    assert "need --engine ray" in refused(2, "fit", "acs-race", "--workers", 2)
    said = refused(1, "fit", "acs-race", "--engine", "ray", "--address", "auto", HOME="/nowhere")
    assert said.startswith("fedscape: a token is needed for the Ray cluster at 'auto'")
    assert said.count("\n") == 1
    gone = ("train", "femnist-mini", "--model", "linear", "--engine", "ray", "--address", "127.0.0.1:1")
    assert "no Ray cluster answers at '127.0.0.1:1'" in refused(1, *gone)
