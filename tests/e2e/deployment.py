"""A real deployment for tests: a SuperLink and SuperNodes as processes on loopback, started by the written scripts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedscape import Federation
from fedscape.deploy.init import init


def population(n: int = 60, seed: int = 0) -> Federation:
    """Clients of two kinds with three categories."""
    rng = np.random.default_rng(seed)
    kinds = np.where(rng.random(n)[:, None] < 0.5, [8.0, 2.0, 1.0], [1.0, 2.0, 8.0])
    counts = np.stack([rng.multinomial(30, rng.dirichlet(alpha)) for alpha in kinds])
    return Federation({"y": counts}, np.arange(n + 1))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(true: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.2)
    return found


class Deployment:
    """Start, use and stop a deployment; `with Deployment(folder) as d`."""

    def __init__(self, folder: Path, *, nodes: int = 3, fed: Federation | None = None, **how: Any) -> None:
        self.folder, self.nodes = folder, nodes
        self.fed = population() if fed is None else fed
        self.port, self.ports = free_port(), [free_port() for _ in range(nodes)]
        init(folder, nodes=nodes, port=self.port, days=2, **how)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        switches = {
            "FLWR_HOME": str(folder / "flower" / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }
        self.env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **switches}
        self.running: list[subprocess.Popen[bytes]] = []
        self.superlink: subprocess.Popen[bytes] | None = None
        self.supernodes: list[subprocess.Popen[bytes]] = []
        for i in range(nodes):
            self.fed.take(np.arange(i, len(self.fed), nodes)).save(folder / f"data-{i}")

    def __enter__(self) -> Deployment:
        try:
            self.start_superlink()
            self.call("./register.sh")
            for i in range(self.nodes):
                self.start_node(i)
            self.wait_online(self.nodes)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def spawn(self, *call: str, log: str) -> subprocess.Popen[bytes]:
        """A process in a group of its own, so that all of it can be stopped."""
        with open(self.folder / f"{log}.log", "ab") as out:
            started = subprocess.Popen(
                call, cwd=self.folder, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        self.running.append(started)
        return started

    def start_superlink(self) -> None:
        self.superlink = self.spawn("./superlink.sh", log="superlink")
        context = ssl.create_default_context(cafile=str(self.folder / "certificates" / "ca.crt"))

        def healthy() -> bool:
            try:
                url = f"https://127.0.0.1:{self.port}/health"
                with urllib.request.urlopen(url, context=context, timeout=2) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        until(healthy, 60, "the SuperLink")

    def start_node(self, i: int, *, key: str | None = None, ca: str | None = None) -> subprocess.Popen[bytes]:
        """By the script; with another key or CA, which are faults, by Flower's own command and without repetition."""
        if key is None and ca is None:
            text = (self.folder / "supernode.sh").read_text()
            script = self.folder / f"supernode-{i}.sh"  # free ports instead of 9100 and on
            script.write_text(text.replace('"$((9100 + number))"', str(self.ports[i])))
            script.chmod(0o755)
            node = self.spawn(f"./supernode-{i}.sh", str(i), str(self.folder / f"data-{i}"), log=f"node-{i}")
            self.supernodes.append(node)
            return node
        return self.spawn(
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--root-certificates", ca or str(self.folder / "certificates" / "ca.crt")),
            *("--auth-supernode-private-key", key or str(self.folder / "keys" / f"node-{i}")),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            log="refused",
        )

    def call(self, *call: str, seconds: float = 120) -> str:
        done = subprocess.run(call, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, (call, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def flwr(self, *arguments: str) -> Any:
        return json.loads(self.call("flwr", *arguments, "--format", "json"))

    def wait_online(self, number: int, seconds: float = 90) -> None:
        def online() -> bool:
            listed = self.flwr("supernode", "list", "deployment")["nodes"]
            return sum(node["status"] == "online" for node in listed) >= number

        until(online, seconds, f"{number} nodes online")

    def start_run(self, out: Path, settings: str = "") -> subprocess.Popen[bytes]:
        """`run.sh`, which ends when the run ends."""
        return self.spawn("./run.sh", str(out), settings, log="run")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        for process in reversed(self.running):
            for how, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
                if process.poll() is None:
                    try:
                        os.killpg(process.pid, how)
                        process.wait(seconds)
                    except (ProcessLookupError, subprocess.TimeoutExpired):
                        continue
            # a SuperLink's or node's helpers may outlive their parent for some seconds
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
