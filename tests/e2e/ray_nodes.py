"""Ray with several nodes on this machine: same bytes, a node killed in a round, nodes added. By hand, two minutes.

python -m pytest -n 0 tests/e2e/ray_nodes.py
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from shell import ok

import fedscape as fs
from fedscape.engines.ray.cluster import surroundings


@pytest.fixture
def cluster():
    """A head and three nodes with a core each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with surroundings():
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.nodes = [made.add_node(num_cpus=1) for _ in range(3)]
    yield made
    ray.shutdown()
    made.shutdown()


def files(folder):
    """What a command left behind, but times and commands."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if name.endswith((".safetensors", ".npz", "result.json"))}


@pytest.mark.parametrize("workers", [2, 4])
def test_commands_leave_the_same_bytes(cluster, tmp_path, workers):
    commands = {
        "fit": ("fit", "acs-race", "--components", 2, "--rounds", 3, "--json"),
        "sweep": ("sweep", "femnist-mini", "--model", "linear", "--rounds", 2, "--lr", "0.1,0.03", "--json"),
        "train": ("train", "femnist-mini", "--model", "linear", "--rounds", 2, "--json"),
        "study": ("study", "acs-race", "--json"),
    }
    for name, command in commands.items():
        outputs = []
        for where, how in (
            ("here", ()),
            ("there", ("--engine", "ray", "--address", cluster.address, "--workers", workers)),
        ):
            folder = tmp_path / where / name
            folder.parent.mkdir(exist_ok=True)
            out = ("--out", folder) if name in ("train", "study") else ()
            said = ok(*command, *out, "--quiet", *how)
            outputs.append(files(folder) if out else said)
        assert outputs[0]
        assert outputs[0] == outputs[1], name


def test_a_node_that_is_killed_in_a_round_and_nodes_that_join(cluster):
    rng = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(1, 9, 20_000))))
    fed = fs.Federation({"x": rng.normal(size=(offsets[-1], 4))}, offsets)

    def fitted(engine):
        model = fs.GaussianMixture(3, rounds=12, tol=0).fit(engine, column="x")  # clients keep their shares
        return [np.asarray(getattr(model, name)).tobytes() for name in ("means_", "weights_")]

    expected = fitted(fed)
    ray.init(address=cluster.address, logging_level=40, log_to_driver=False)
    with fs.Ray(fed) as engine:
        assert engine.workers == 4
        assert fitted(engine) == expected
        killer = threading.Timer(1.0, lambda: cluster.remove_node(cluster.nodes[0], allow_graceful=False))
        killer.start()
        assert fitted(engine) == expected
        killer.join()
        time.sleep(15)  # until Ray has noticed in any case
        assert fitted(engine) == expected
        assert len(engine._crew._guests) == 1
        with surroundings():
            for _ in range(3):
                cluster.add_node(num_cpus=1)
        time.sleep(5)
        assert fitted(engine) == expected
        assert engine.workers == 6
        assert engine._crew._guests == set()
