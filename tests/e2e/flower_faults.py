"""Real processes that die: run by hand, `pytest tests/e2e/flower_faults.py`; about ten minutes, most of them waiting.

Clients keep a growing list and send its sum, so that a step lost or taken twice shows in the result, which is compared
with a run in one process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from deployment import Deployment, until

from fedscape import Federation, Local, rounds
from fedscape.core import checkpoint
from fedscape.deploy import init as deploy
from fedscape.deploy.keys import write_certificates
from fedscape.deploy.node import change_terms
from fedscape.types import Array

WORK = """
import numpy as np

from fedscape import Computation
from fedscape.core.arrays import Ragged


class Remember(Computation):
    def start(self, seed):
        return {"past": np.zeros(())}

    def step(self, state, clients, key):
        seen = clients.kept.get("seen", Ragged(np.empty(0), np.zeros(len(clients) + 1, dtype=np.int64)))
        draws = key.uniform(clients)
        parts = [np.append(seen.flat[a:b], d) for a, b, d in zip(seen.offsets[:-1], seen.offsets[1:], draws)]
        ends = np.concatenate(([0], np.cumsum([len(p) for p in parts])))
        return {"sum": np.array([p.sum() for p in parts])}, {"seen": Ragged(np.concatenate(parts), ends)}

    def update(self, state, total, key):
        return {"past": state["past"] + total["sum"]}
"""

SERVER = """
import json
from pathlib import Path

import fedscape as fs
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from deployed.work import Remember

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    engine = fs.Flower(grid, nodes=3, min_clients=10, timeout=context.run_config["timeout"], attempts=1)
    with open(out / "rounds.txt", "a") as table:
        for r in fs.rounds(Remember(), engine, n_rounds=context.run_config["rounds"], resume=out / "run.ckpt"):
            table.write(json.dumps([r.index, r.clients, dict(r.faults)]) + "\\n")
            table.flush()
            r.save(out / "run.ckpt")
"""


class Fragile(Deployment):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        app = folder / "app" / "deployed"
        (app / "work.py").write_text(WORK)
        (app / "server.py").write_text(SERVER)
        text = (app / "client.py").read_text()
        text = text.replace("client_app(load)", "client_app(load, computations=(Remember(),))")
        for i in range(self.nodes):
            change_terms(folder / "nodes" / str(i), {}, clear=["unnoised"])
        (app / "client.py").write_text(f"from deployed.work import Remember\n{text}")
        self.out = folder / "out"

    def lines(self) -> list:
        path = self.out / "rounds.txt"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def process(self, name: str, *, of: int | None = None) -> int:
        """The id of a process that was started here, by its command, or 0."""
        listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
        table = {int(pid): (int(parent), args) for pid, parent, args in map(_three, listed.splitlines()[1:])}
        family = {p.pid for p in self.running} if of is None else {of}
        while more := {pid for pid, (parent, _) in table.items() if parent in family} - family:
            family |= more
        for pid in sorted(family & table.keys()):
            command = table[pid][1].split()
            if any(word.endswith(f"/{name}") or word == name for word in command[:2]):
                return pid
        return 0


def _three(line: str) -> list[str]:
    return line.split(None, 2)


class Listed:
    """A sampler with the cohort of each round written down."""

    def __init__(self, cohorts: list[Array]) -> None:
        self.cohorts = cohorts

    def draw(self, clients: object, key) -> Array:
        return self.cohorts[key.round]


def expected(fed: Federation, missing: dict[int, int], n_rounds: int) -> float:
    """The result where the clients of one node, `missing[round]`, were not heard in that round."""
    made: dict = {}
    exec(WORK, made)
    everyone = np.arange(len(fed))
    cohorts = [everyone if t not in missing else everyone[everyone % 3 != missing[t]] for t in range(n_rounds)]
    *_, last = rounds(made["Remember"](), Local(fed, threads=1), n_rounds=n_rounds, sampler=Listed(cohorts))
    return float(last.state["past"])


def result(out: Path) -> float:
    return float(checkpoint.read(out / "run.ckpt")[0]["state/past"])


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with Fragile(tmp_path_factory.mktemp("faults") / "deployment") as deployed:
        yield deployed


def test_a_server_killed_between_and_during_rounds_goes_on_to_the_right_answer(running):
    running.out = running.folder / "server"
    for stop in (1, 3):  # SIGKILL as soon as so many rounds are saved: the next one has been asked for or is about to
        run = running.start_run(running.out, "rounds=5")
        until(lambda stop=stop: len(running.lines()) >= stop, 240, f"{stop} rounds")
        time.sleep(0.0 if stop == 1 else 1.0)
        os.kill(until(lambda: running.process("flwr-serverapp"), 20, "a server"), signal.SIGKILL)
        assert run.wait(240) != 0  # the run is said to have failed
    assert running.start_run(running.out, "rounds=5").wait(400) == 0, running.log("run")
    seen = {line[0]: line[1] for line in running.lines()}
    assert seen == dict.fromkeys(range(5), 60)
    assert result(running.out) == pytest.approx(expected(running.fed, {}, 5), rel=1e-12)


def test_a_node_killed_in_a_round_is_left_out_and_comes_back_with_what_its_clients_kept(running):
    running.out = running.folder / "node"
    run = running.start_run(running.out, "rounds=14 timeout=30.0")
    until(lambda: len(running.lines()) >= 2, 240, "2 rounds")
    os.kill(running.process("flower-supernode", of=running.supernodes[1].pid), signal.SIGKILL)
    assert run.wait(560) == 0, running.log("run")
    lines = running.lines()
    lost = {line[0]: 1 for line in lines if line[1] == 40}
    assert lost, "the node was never missed"
    assert lines[-1][1] == 60, "the node never came back"
    assert result(running.out) == pytest.approx(expected(running.fed, lost, 14), rel=1e-12)


def test_a_node_that_stays_away_ends_in_an_honest_error_where_too_few_are_left(running):
    """With one client fewer than min_clients every round is abandoned, nothing is counted, and the run fails."""
    running.out = running.folder / "few"
    source = running.folder / "app" / "deployed" / "server.py"
    loop = SERVER.index("    with open(")
    fit = SERVER[:loop].replace("min_clients=10", "min_clients=61") + "    fs.Histogram(3).fit(engine)\n"
    source.write_text(fit)
    run = running.start_run(running.out, "rounds=2")
    assert run.wait(300) == 1
    assert "too few clients reported in every round of Histogram (min_clients is 61)" in running.log("run")
    source.write_text(SERVER.replace("nodes=3", "nodes=4, wait=5"))
    run = running.start_run(running.folder / "none", "rounds=2")
    assert run.wait(300) == 1
    assert "3 nodes are online after 5 s, 4 are needed" in running.log("run")


def test_an_expired_certificate_is_refused_by_every_node(tmp_path):
    deployed = Deployment(tmp_path / "d", nodes=1)
    for path in (deployed.folder / "certificates").glob("*.*"):
        path.unlink()
    real = deploy.datetime.datetime

    class Past(real):
        @classmethod
        def now(cls, tz=None):
            return real.now(tz) - deploy.datetime.timedelta(days=9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploy.datetime, "datetime", Past)
        write_certificates(deployed.folder / "certificates", ["127.0.0.1"], 3)
    try:
        deployed.spawn("./superlink.sh", log="superlink")
        until(lambda: "Uvicorn running" in deployed.log("superlink") or _listens(deployed.port), 60, "the SuperLink")
        node = deployed.start_node(0, ca=str(deployed.folder / "certificates" / "ca.crt"))
        assert node.wait(120) != 0
        assert "CERTIFICATE_VERIFY_FAILED" in deployed.log("refused")
        assert "expired" in deployed.log("refused")
    finally:
        deployed.stop()


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
