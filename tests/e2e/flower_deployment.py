"""A real deployment, as .ci/run starts it after the suite: TLS, node authentication, four nodes and a second server.

Two private fits of the population with masked sums, at the same time: one with the second server, one among the nodes,
of which one is killed in its last round. Noise that can be foretold lets both be compared with fits in this process.
Then nodes that must be refused, and nodes that come and go. Two to four minutes on two cores.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
from deployment import Deployment, free_port, until

from fedscape import All, Gaussian, Ledger, Local, MixtureOfDirichletMultinomials, calibrate, datasets
from fedscape.deploy.helper import write_helper
from fedscape.deploy.init import check
from fedscape.deploy.keys import add, revoke, write_certificates, write_keys
from fedscape.deploy.node import log_of

NODES = 4
VICTIM = 3
LAST = 2  # the round in which the victim is killed

# The victim's app kills its whole process group when it is asked for its sum: it has shared its keys then.
KILLED = """
    from pathlib import Path
    mark = Path(str(config["folder"])) / "die"
    if mark.exists():
        import os, signal
        os.killpg(int(mark.read_text()), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    root = tmp_path_factory.mktemp("flower")
    folder, second = root / "deployment", root / "second"
    port = free_port()
    write_helper(second, "127.0.0.1", port)
    prepared = Deployment(folder, nodes=NODES, helper=second / "helper.json")
    change(folder / "app/deployed/server.py", "multiplier=noise)", "multiplier=noise, noise_seed=5)")
    change(folder / "app/deployed/server.py", 'timeout=how["timeout"]', 'timeout=how["timeout"], attempts=1')
    change(
        folder / "app/deployed/client.py",
        "    config = context.node_config\n",
        "    config = context.node_config\n" + KILLED,
    )
    roster = str(folder / "roster.txt")
    prepared.spawn("fedscape", "deploy", "helper", str(second), "--port", str(port), "--roster", roster, log="helper")
    with prepared as running:
        yield running


def change(path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def fits(deployed):
    """Both fits, and the nodes that were refused meanwhile."""
    two, among = deployed.folder / "two", deployed.folder / "among"
    port = free_port()
    common = "categories=3 rounds=1 clients=200 timeout=25.0"
    runs = {
        "two": deployed.start_run(two, f"{common} metrics-port={port}"),
        "among": deployed.start_run(among, f'{common} helper="" dropouts=0.25 colluders=0.0'),
    }
    until(lambda: served(port, "/health") == "ok\n" or runs["two"].poll() is not None, 120, "the health address")
    refused = start_refused(deployed)
    assert runs["two"].wait(300) == 0, deployed.log("run")
    node = deployed.folder / "nodes" / str(VICTIM)
    until(lambda: asked(node).count("secure sum: share") == LAST + 1, 200, "the last round's keys")
    (node / "die").write_text(str(deployed.supernodes[VICTIM].pid))
    assert runs["among"].wait(300) == 0, deployed.log("run")
    return {"two": two, "among": among, "refused": refused}


def asked(node) -> list[str]:
    return (
        [line["asked"] for line in log_of(node) if line["outcome"] == "answered"]
        if (node / "log.jsonl").exists()
        else []
    )


def test_a_private_fit_with_a_second_server_has_the_bytes_of_local(deployed, fits):
    out = fits["two"]
    result = json.loads((out / "result.json").read_text())
    assert len(result["rounds"]) == 3
    assert all(abs(r["clients"] - 60) < 50 for r in result["rounds"])  # the number itself is noised
    assert result["troubles"] == []
    assert 3.9 < Ledger(out / "ledger.jsonl").spent()["client", "add-remove", "central"] <= 4.0
    check_same(out, fit(Local(deployed.fed, min_clients=10)))
    assert len(datasets.read(str(out / "clients.parquet"), client="client")) == 200
    assert len(list((deployed.folder.parent / "second" / "answered").iterdir())) == 3  # the helper answered each round


def test_a_node_killed_in_a_masked_round_leaves_the_bytes_of_local_without_it(deployed, fits):
    out = fits["among"]
    result = json.loads((out / "result.json").read_text())
    assert [r.get("missing", 0) for r in result["rounds"]] == [0, 0, 1]
    check_same(out, fit(Dropping(deployed.fed, min_clients=10)))
    assert deployed.supernodes[VICTIM].wait(20) != 0


def check_same(out, wanted: MixtureOfDirichletMultinomials) -> None:
    fitted = MixtureOfDirichletMultinomials.load(out / "population.json")
    assert fitted.weights_.tobytes() == wanted.weights_.tobytes()
    assert fitted.concentrations_.tobytes() == wanted.concentrations_.tobytes()


def fit(engine: Local) -> MixtureOfDirichletMultinomials:
    """What the deployed server does, with all clients in this process."""
    population = MixtureOfDirichletMultinomials(2, n_init=1, rounds=1, column="y", n_categories=3)
    noise = calibrate(4.0, 1e-6, rounds=population.n_releases(), sampler=All())
    privacy = Gaussian(clip=1.5, multiplier=noise, noise_seed=5)
    return population.fit(engine, privacy=privacy, progress=False)


class Dropping(Local):
    """All clients in this process; in the last round the victim's are absent. Nothing is masked."""

    asked = 0

    def run(self, computation, state, cohort, key, **how):
        self.asked += 1
        if self.asked <= LAST:
            return super().run(computation, state, cohort, key, **how)
        there = cohort[cohort % NODES != VICTIM]
        reply = super().run(computation, state, there, key, **how)
        absent = hashlib.sha256(self.clients.keys[np.sort(there)].tobytes()).hexdigest()
        return replace(reply, absent=absent)


def test_every_node_has_written_down_what_left_it(deployed, fits):
    for i in range(NODES):
        node = deployed.folder / "nodes" / str(i)
        entries = [e["entry"] for e in Ledger(node / "ledger.jsonl").entries() if "entry" in e]
        assert {entry["note"] for entry in entries} == {"protected only by the server, which sees masked sums"}
        lines = asked(node)
        rounds = LAST if i == VICTIM else LAST + 1
        assert lines.count("secure sum: share") == LAST + 1
        assert lines.count("secure sum: unmask") == rounds
        assert len(lines) == 3 + LAST + 1 + 2 * rounds  # two messages a round more than with a second server


def test_nodes_of_another_authority_or_without_registration_were_refused(deployed, fits):
    for text, process in fits["refused"].items():
        assert process.wait(120) != 0
        assert text in deployed.log("refused"), text


def served(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as said:
            return str(said.read().decode())
    except OSError:
        return ""


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


def test_registering_twice_and_a_node_that_comes_and_goes(deployed, fits):
    said = deployed.call("./register.sh")
    assert said.count("is registered\n") == NODES
    added = add(deployed.folder)["node"]
    assert f"keys/node-{added}.pub is registered now" in deployed.call("./register.sh")
    revoke(deployed.folder, added)
    deployed.call("./register.sh")
    assert not list((deployed.folder / "keys").glob("*.old-id"))
    statuses = [node["status"] for node in deployed.flwr("supernode", "list", "deployment")["nodes"]]
    assert statuses.count("unregistered") == 1
    assert statuses.count("online") in (NODES - 1, NODES)  # a SuperLink believes for a minute that a killed node lives
