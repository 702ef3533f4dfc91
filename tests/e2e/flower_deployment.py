"""A real deployment, as .ci/run starts it after the suite: TLS, node authentication, three nodes on loopback.

A private fit of the population with masked sums, a simulated population, and nodes that must be refused. Noise that can
be foretold lets the fit be compared with the same one in this process. Two minutes on two cores.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request

import pytest
from deployment import Deployment, free_port, until

from fedscape import All, Gaussian, Ledger, Local, MixtureOfDirichletMultinomials, calibrate, datasets
from fedscape.deploy.init import check
from fedscape.deploy.keys import add, revoke, write_certificates, write_keys
from fedscape.deploy.node import log_of


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flower") / "deployment"
    prepared = Deployment(folder, secure=True)
    server = folder / "app" / "deployed" / "server.py"
    server.write_text(server.read_text().replace("multiplier=noise)", "multiplier=noise, noise_seed=5)"))
    with prepared as running:
        yield running


def test_a_private_fit_and_a_simulated_population_over_tls_with_node_authentication(deployed):
    out = deployed.folder / "out"
    port = free_port()
    run = deployed.start_run(out, f"categories=3 rounds=1 clients=200 metrics-port={port}")
    until(lambda: served(port, "/health") == "ok\n" or run.poll() is not None, 120, "the health address")
    refused = start_refused(deployed)
    assert run.wait(500) == 0, deployed.log("run")
    result = json.loads((out / "result.json").read_text())
    assert len(result["rounds"]) == 3
    assert all(abs(r["clients"] - 60) < 50 for r in result["rounds"])  # the number itself is noised
    assert result["troubles"] == []
    assert 3.9 < Ledger(out / "ledger.jsonl").spent()["client", "add-remove", "central"] <= 4.0
    fitted, wanted = MixtureOfDirichletMultinomials.load(out / "population.json"), local_fit(deployed.fed)
    assert fitted.weights_.tobytes() == wanted.weights_.tobytes()
    assert fitted.concentrations_.tobytes() == wanted.concentrations_.tobytes()
    drawn = datasets.read(str(out / "clients.parquet"), client="client")
    assert len(drawn) == 200
    for i in range(3):  # each node has written down for itself what left it, and for whom
        entries = [e["entry"] for e in Ledger(deployed.folder / f"nodes/{i}/ledger.jsonl").entries() if "entry" in e]
        assert {entry["note"] for entry in entries} == {"protected only by the server, which sees masked sums"}
        asked = [line["asked"] for line in log_of(deployed.folder / "nodes" / str(i)) if line["outcome"] == "answered"]
        assert len(asked) == 3 * 3  # keys, sum and masks of three rounds
        assert asked.count("secure sum: share") == asked.count("secure sum: unmask") == 3
    for text, process in refused.items():
        assert process.wait(120) != 0
        assert text in deployed.log("refused"), text


def served(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as said:
            return str(said.read().decode())
    except OSError:
        return ""


def local_fit(fed) -> MixtureOfDirichletMultinomials:
    """What the deployed server does, with all clients in this process."""
    population = MixtureOfDirichletMultinomials(2, n_init=1, rounds=1, column="y", n_categories=3)
    noise = calibrate(4.0, 1e-6, rounds=population.n_releases(), sampler=All())
    privacy = Gaussian(clip=1.5, multiplier=noise, noise_seed=5)
    return population.fit(Local(fed, min_clients=10), privacy=privacy, progress=False)


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


def test_registering_twice_and_a_node_that_comes_and_goes(deployed):
    said = deployed.call("./register.sh")
    assert said.count("is registered\n") == 3
    added = add(deployed.folder)["node"]
    assert f"keys/node-{added}.pub is registered now" in deployed.call("./register.sh")
    revoke(deployed.folder, added)
    deployed.call("./register.sh")
    assert not list((deployed.folder / "keys").glob("*.old-id"))
    statuses = [node["status"] for node in deployed.flwr("supernode", "list", "deployment")["nodes"]]
    assert sorted(statuses) == ["online", "online", "online", "unregistered"]
