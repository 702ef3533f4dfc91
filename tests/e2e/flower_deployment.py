"""A real deployment, as .ci/run starts it after the suite: TLS, node authentication, three nodes on loopback.

A private fit of the population, a simulated population, and nodes that must be refused. About a minute on two cores.
"""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from deployment import Deployment

from fedscape import Ledger, MixtureOfDirichletMultinomials, datasets
from fedscape.deploy.init import check
from fedscape.deploy.keys import write_certificates, write_keys


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("flower") / "deployment") as running:
        yield running


def test_a_private_fit_and_a_simulated_population_over_tls_with_node_authentication(deployed):
    out = deployed.folder / "out"
    run = deployed.start_run(out, "categories=3 rounds=1 clients=200")
    refused = start_refused(deployed)
    assert run.wait(500) == 0, deployed.log("run")
    result = json.loads((out / "result.json").read_text())
    assert len(result["rounds"]) == 3
    assert all(abs(r["clients"] - 60) < 50 for r in result["rounds"])  # the number itself is noised
    assert result["troubles"] == []
    assert 3.9 < Ledger(out / "ledger.jsonl").spent()["client", "add-remove", "central"] <= 4.0
    fitted = MixtureOfDirichletMultinomials.load(out / "population.json")
    assert np.isclose(fitted.weights_.sum(), 1.0)
    drawn = datasets.read(str(out / "clients.parquet"), client="client")
    assert len(drawn) == 200
    for i in range(3):  # each node has written down for itself what left it, and for whom
        entries = [e["entry"] for e in Ledger(deployed.folder / f"nodes/{i}/ledger.jsonl").entries() if "entry" in e]
        assert {entry["note"] for entry in entries} == {"protected only by the server"}
    for text, process in refused.items():
        assert process.wait(120) != 0
        assert text in deployed.log("refused"), text


def start_refused(deployed) -> dict[str, subprocess.Popen]:
    """A node that is shown the certificate of another CA, and one whose key nobody registered."""
    other = deployed.folder / "other"
    other.mkdir()
    write_certificates(other, ["127.0.0.1"], 1)
    write_keys(other, [0])
    wrong = deployed.start_node(0, ca=str(other / "ca.crt"), key=str(other / "node-0"))
    wrong.wait(120)
    return {
        "CERTIFICATE_VERIFY_FAILED": wrong,
        "Failed to activate SuperNode": deployed.start_node(0, key=str(other / "node-0")),
    }


def test_the_deployment_has_no_gap_that_a_file_can_close(deployed):
    assert [finding.level for finding in check(deployed.folder) if finding.level == "error"] == []
