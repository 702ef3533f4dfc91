"""How long is a round over Flower, and how many bytes does a client send? In one process, and in a real deployment."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedscape import Computation, FederatedKMeans, Federation, Flower, Histogram, Local, Moments, rounds
from fedscape.engines.flower import LocalGrid, client_app, wire
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.private import DifferenceMoments, Outline, ScoreAscent, public_reach
from fedscape.mixtures.gaussian.covariances import Full
from fedscape.mixtures.gaussian.em import GaussianRounds
from fedscape.sketches import DistributionSketch
from table import arguments, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
from deployment import Deployment

ROUNDS = """
import json
from pathlib import Path

import fedscape as fs
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out = Path(str(context.run_config["out"]))
    engine = fs.Flower(grid, nodes=context.run_config["nodes"])
    loop = fs.rounds(fs.Histogram(3), engine, n_rounds=context.run_config["rounds"])
    (out / "seconds.json").write_text(json.dumps([[r.seconds, r.clients] for r in loop]))
"""


def population(n: int, seed: int) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.poisson(20, n))))
    y = rng.integers(0, 62, offsets[-1], dtype=np.int32)
    return Federation({"y": y, "x": rng.normal(size=(len(y), 8))}, offsets)


def methods() -> dict[str, Computation]:
    """One round of each method at a usual size: 62 categories, 8 features, 3 components."""
    weights, means = np.full((1, 3), 1 / 3), np.random.default_rng(0).normal(size=(1, 3, 8))
    made: dict[str, Computation] = {
        "Histogram(62)": Histogram(62),
        "Moments, 8 features": Moments(),
        "FederatedKMeans(10), 8 features, one start": FederatedKMeans(
            10, n_init=1, init=np.random.default_rng(0).normal(size=(1, 10, 8))
        ),
        "MDM, 3 components, exact": TailCountEM((3,), np.append(np.full(62, 16), 64)),
        "MDM, 3 components, newton": TailCountEM((3,), np.append(np.full(62, 16), 64), solver="newton"),
        "private MDM, outline": Outline(62),
        "private MDM, differences": DifferenceMoments(62),
        "private MDM, scores, 3 components": ScoreAscent((3,), public_reach(62)),
        "GaussianMixture, 3 components, 8 features": GaussianRounds(
            weights, means, np.stack([np.stack([np.eye(8)] * 3)]), covariance=Full()
        ),
        "DistributionSketch(200, bits=4)": DistributionSketch(200),
    }
    from torch import nn

    from fedscape.learning import FedAvg, LocalSGD, cross_entropy

    step = LocalSGD(nn.Linear(8, 62), cross_entropy, lr=0.1, epochs=1, batch_size=10)
    made["FedAvg, linear model of 558 parameters"] = FedAvg(step)
    return made


class Counting(LocalGrid):
    """Counts the bytes of messages."""

    bytes_down = bytes_up = 0

    def deliver(self, message: Any) -> list[Any]:
        replies = super().deliver(message)
        Counting.bytes_down += len(wire.disclose(message.content, 2**40))
        Counting.bytes_up += len(wire.disclose(replies[0].content, 2**40))
        return replies


def engine_of(fed: Federation, nodes: int, folder: str, own: tuple[Computation, ...]) -> Flower:
    app = client_app(
        lambda context: fed.take(np.arange(context.node_id - 1, len(fed), nodes)),
        folder=lambda context: f"{folder}/{context.node_id}",
        computations=own,
    )
    return Flower(Counting(app, [{}] * nodes), timeout=600, poll=0.001)


def bytes_of_methods(nodes: int, seed: int) -> list[dict[str, Any]]:
    """What a message of each method weighs, for nodes of one client; arrays and their envelope."""
    fed, rows = population(nodes, seed), []
    for name, computation in methods().items():
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(fed, nodes, folder, (computation,) if "FedAvg" in name else ())
            Counting.bytes_down = Counting.bytes_up = 0
            done = list(rounds(computation, engine, n_rounds=2, measure=0))[-1]
            rows.append(
                {
                    "method": name,
                    "bytes down": done.bytes_down,
                    "bytes up": done.bytes_up,
                    "message down": round(Counting.bytes_down / (2 * nodes)),
                    "message up": round(Counting.bytes_up / (2 * nodes)),
                }
            )
    return rows


def in_process(clients: int, nodes: int, seed: int, n_rounds: int) -> list[dict[str, Any]]:
    """Seconds per round of a Grid in this process: messages, checks, files on disk, no network."""
    fed, rows = population(clients, seed), []
    for name in ("Histogram(62)", "MDM, 3 components, exact"):
        computation = methods()[name]
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(fed, nodes, folder, ())
            there = [r.seconds for r in rounds(computation, engine, n_rounds=n_rounds, measure=0)][1:]
        here = [r.seconds for r in rounds(computation, Local(fed, threads=1), n_rounds=n_rounds, measure=0)][1:]
        took = statistics.median(there)
        rows.append(
            {
                "method": name,
                "clients": clients,
                "nodes": nodes,
                "s per round": took,
                "ms per node": took / nodes * 1e3,
                "s per round, Local": statistics.median(here),
            }
        )
    return rows


def deployed(nodes: int, seed: int, n_rounds: int) -> dict[str, Any]:
    """Seconds per round of a real deployment with TLS and node authentication."""
    with tempfile.TemporaryDirectory() as folder:
        running = Deployment(Path(folder) / "d", nodes=nodes)
        (running.folder / "app" / "deployed" / "server.py").write_text(ROUNDS)
        client = running.folder / "app" / "deployed" / "client.py"
        client.write_text(client.read_text().replace("unnoised=0", ""))
        started = time.perf_counter()
        with running:
            up = time.perf_counter() - started
            run = running.start_run(running.folder / "out", f"rounds={n_rounds}")
            if run.wait(560):
                raise SystemExit(running.log("run"))
            seconds = json.loads((running.folder / "out" / "seconds.json").read_text())
    times = [s for s, clients in seconds if clients == 60]
    return {
        "nodes": nodes,
        "rounds": len(times),
        "s until all are online": up,
        "s per round, median": statistics.median(times),
        "least": min(times),
        "most": max(times),
    }


PROCESS = """
import contextlib, json, sys, time
times = [time.process_time()]
import flwr.app, flwr.clientapp
times.append(time.process_time())
import fedscape.engines.flower
times.append(time.process_time())
import numpy as np
from fedscape import Federation, Key, Local
from fedscape.core.kernel import uncompiled
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
times.append(time.process_time())
fed = Federation({"y": np.arange(400) % 10}, np.arange(0, 401, 20))
work = TailCountEM((3,), np.append(np.full(10, 16), 64))
with uncompiled() if sys.argv[1] == "plain Python" else contextlib.nullcontext():
    Local(fed, threads=1).run(work, work.start(0), np.arange(20), Key(0))
times.append(time.process_time())
print(json.dumps(list(np.diff(times))))
"""


def process() -> list[dict[str, Any]]:
    """CPU seconds of a node's process, which lives for one message: imports, and an MDM step of 20 clients."""
    names = ("Flower", "fedscape", "mixtures, with SciPy", "the step")
    rows = []
    for how in ("plain Python", "Numba, cached"):
        call = [sys.executable, "-W", "ignore", "-c", PROCESS, how]
        runs = [json.loads(subprocess.run(call, capture_output=True, check=True).stdout) for _ in range(4)][1:]
        rows.append(
            {"step by": how, **dict(zip(names, (float(np.median(t)) for t in zip(*runs, strict=True)), strict=True))}
        )
    return rows


def main() -> None:
    args = arguments(__doc__, parts="bytes,process,in_process,deployed", deployments="3,8")
    parts = ("bytes", "process", "in_process") if args.quick else args.parts.split(",")
    if "bytes" in parts:
        report("flower_bytes", bytes_of_methods(12, args.seed), note="per client and round\n")
    if "process" in parts:
        report("flower_process", process(), note="CPU seconds, median of three\n")
    if "in_process" in parts:
        sizes = [(100, 20)] if args.quick else [(1000, 1000), (1000, 10)]
        rows = [row for clients, nodes in sizes for row in in_process(clients, nodes, args.seed, 4)]
        report("flower_in_process", rows, note="about 20 rows a client\n")
    if "deployed" in parts:
        rows = [deployed(int(nodes), args.seed, 6) for nodes in args.deployments.split(",")]
        report("flower_rounds", rows, note="Histogram(3) over 60 clients, TLS and node authentication on loopback")


if __name__ == "__main__":
    main()
