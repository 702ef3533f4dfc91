"""How fast and how true are the simulators of FedScale and APPFL beside virtual time, on the same events?

They take part where they can be imported: `pip install --target FOLDER --no-deps fedscale appfl`, FOLDER on PYTHONPATH.
APPFL 1.12's asynchronous driver runs with server and clients that do not train: only its event loop is timed. All
devices are always there, since it has no availability, and all work at any time, so that no choice is left: both must
give the same times of reports. FedScale 1.0's ClientManager and client clocks follow the phone trace, in rounds
with its own rule: those there at the end of their task, the first 100 of 130 (20 of 26 with 723 phones). Its aggregator
also needs wandb.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedscape as fs
from fedscape import Key
from table import arguments, report

ROUNDS_S = 600.0  # between two rounds of FedScale's rule, where it finds nobody


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    return run(), time.process_time() - begin


class Server:
    """What APPFL's driver asks of a server: it counts the reports."""

    def __init__(self, reports: int) -> None:
        self.reports, self.number = reports, 0
        self.scheduler = self

    def get_num_global_epochs(self) -> int:
        return self.number

    def training_finished(self) -> bool:
        return self.number >= self.reports

    def get_parameters(self, **_: Any) -> dict[str, Any]:
        return {}

    def global_update(self, **_: Any) -> dict[str, Any]:
        self.number += 1
        return {}


class Client:
    """What APPFL's driver asks of a client: one step, no training."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_id(self) -> str:
        return self.name

    def load_parameters(self, _: object) -> None:
        return None

    def train(self) -> None:
        return None

    def get_parameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"current_local_steps": 1, "compute_second_per_step": 1.0}


def appfl(n: int, reports: int, at_work: int) -> tuple[np.ndarray, float]:
    """Times of reports of APPFL's asynchronous driver, and CPU seconds of its loop."""
    from appfl.vsim import AsyncSimDriver, ClientProfile

    quiet = logging.getLogger("appfl of a benchmark")
    quiet.disabled = True
    pace = speeds(n)
    clients = [Client(str(i)) for i in range(n)]
    profiles = {str(i): ClientProfile(compute_factor=float(pace[i]), bandwidth=0.0) for i in range(n)}
    driver = AsyncSimDriver(Server(reports), clients, profiles, at_work, quiet, base_step_time=1.0)
    _, seconds = timed(driver.run)
    return np.array([row["vtime"] for row in driver.history]), seconds


def ours(n: int, reports: int, at_work: int) -> tuple[np.ndarray, float]:
    devices = fs.twin.always(n).with_speed(speeds(n))
    protocol = fs.twin.FedAsync(concurrency=at_work)
    table, seconds = timed(lambda: fs.twin.schedule(devices, protocol, days=3650, n_updates=reports))
    return table.times, seconds


def speeds(n: int) -> np.ndarray:
    return 60 * np.exp(0.5 * Key(0, purpose="speeds").generator().standard_normal(n))


def asynchronous(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    reports = 500 if args.quick else 5000
    for n, at_work in ((100, 100), (1_000, 100), (10_000, 100), *(() if args.quick else ((100_000, 100),))):
        mine, seconds = ours(n, reports, at_work)
        row = {"events": "asynchronous, always there", "devices": n, "at work": at_work, "reports": reports}
        row |= {"fedscape, us a report": round(1e6 * seconds / reports, 1), "peer": "APPFL 1.12"}
        try:
            theirs, other = appfl(n, max(reports // (10 if n > 50_000 else 1), 1), at_work)
        except ImportError as error:
            rows.append({**row, "peer, us a report": f"not importable: {error}"})
            continue
        row |= {"peer, us a report": round(1e6 * other / len(theirs), 1)}
        row["ratio"] = round(other / len(theirs) / (seconds / reports), 1)
        if n == at_work:
            row["agrees"] = f"times of reports differ by {np.abs(mine[: len(theirs)] - theirs).max():.1e} s at most"
        rows.append(row)
    return rows


def manager_of(log: fs.Federation, n: int, seconds: np.ndarray) -> tuple[Any, float]:
    """FedScale's ClientManager on the trace, one client for each of n devices; the end of the trace."""
    from fedscale.cloud.client_manager import ClientManager

    logging.disable(logging.INFO)
    rows = log["watch"] == 0
    begin = float(log["start"].min())
    end = float(log["end"].max()) - begin
    trace = {}
    for i in range(len(log)):
        own = rows & (log.client_of_row == i)
        if own.any():
            active, inactive = log["start"][own] - begin, log["end"][own] - begin
            trace[i] = {"duration": end, "finish_time": end, "active": active.tolist(), "inactive": inactive.tolist()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.pkl"
        path.write_bytes(pickle.dumps(trace))
        args = argparse.Namespace(filter_less=0, filter_more=10**9, device_avail_file=str(path))
        manager = ClientManager("random", args)
    for i in range(n):
        speed = {"computation": 1000 * seconds[i] / 3, "communication": 1e12}
        manager.register_client(0, i, size=1, speed=speed)
    return manager, end


def fedscale_rounds(manager: Any, end: float, n_rounds: int, size: int, wanted: int) -> int:
    """Rounds by FedScale's rule; the number of reports."""
    clock, done, reports = 0.0, 0, 0
    while done < n_rounds and clock < end:
        cohort, times = manager.select_participants(wanted, cur_time=clock), []
        for client in cohort:
            cost = manager.get_completion_time(client, batch_size=1, local_steps=1, upload_size=0, download_size=0)
            duration = cost["computation"] + cost["communication"]
            if manager.isClientActive(client, clock + duration):
                times.append(duration)
        first = sorted(times)[:size]
        clock += first[-1] if first else ROUNDS_S
        done, reports = done + bool(first), reports + len(first)
    return reports


def wrong(manager: Any, log: fs.Federation, end: float, n: int) -> str:
    """How often FedScale's record of who is active differs from the trace, asked every 10 minutes and every 3 hours."""
    rows, begin = log["watch"] == 0, float(log["start"].min())
    shares = []
    for step in (600.0, 10_800.0):
        bad = asked = 0
        with_sessions = [i for i in range(len(log)) if (rows & (log.client_of_row == i)).any()][:n]
        for place, i in enumerate(with_sessions):
            own = rows & (log.client_of_row == i)
            a, b = log["start"][own] - begin, log["end"][own] - begin
            manager.client_metadata[str(place)].behavior_index = 0
            for t in np.arange(step / 2, end, step):
                bad += manager.isClientActive(place, t) != bool(((a <= t) & (t <= b)).any())
                asked += 1
        shares.append(bad / asked)
    return f"who is there is wrong {shares[0]:.1%} of the time asked every 10 minutes, {shares[1]:.1%} every 3 hours"


def synchronous(args: argparse.Namespace) -> list[dict[str, Any]]:
    log, _ = fs.twin.events_of(fs.datasets.load("phones"))
    with_sessions = np.unique(log.client_of_row[log["watch"] == 0])
    log = log.take(with_sessions)
    rows = []
    for n in (723, 10_000) if args.quick else (723, 10_000, 100_000):
        seconds = 120 * np.exp(0.5 * Key(0, purpose="speeds").generator().standard_normal(n))
        devices = fs.twin.Devices.of_trace(log).take(np.resize(np.arange(len(log)), n))
        devices = replace(devices, seconds=seconds)
        protocol = fs.twin.Synchronous(100 if n > 1000 else 20, over=1.3, deadline=600.0)
        days = float(log["end"].max() - log["start"].min()) / 86400
        table, own = timed(
            lambda d=devices, p=protocol, t=days: fs.twin.schedule(
                d, p, days=t, begin=float(log["start"].min()), n_updates=20_000
            )
        )
        row = {
            "events": "rounds on the phone trace",
            "devices": n,
            "at work": protocol.loop[2],
            "reports": len(table.clients),
        }
        row |= {"fedscape, us a report": round(1e6 * own / max(len(table.clients), 1), 1), "peer": "FedScale 1.0"}
        try:
            manager, end = manager_of(log, n, seconds)
        except ImportError as error:
            rows.append({**row, "peer, us a report": f"not importable: {error}"})
            continue
        n_rounds = 20 if args.quick or n > 50_000 else 100
        size, wanted = protocol.size, protocol.loop[2]
        reports, other = timed(lambda m=manager, e=end, r=n_rounds, s=size, w=wanted: fedscale_rounds(m, e, r, s, w))
        row |= {"peer, us a report": round(1e6 * other / max(reports, 1), 1)}
        row["ratio"] = round(other / max(reports, 1) / (own / max(len(table.clients), 1)), 1)
        if n == 723:
            row["agrees"] = wrong(manager, log, end, len(log))
        rows.append(row)
    return rows


if __name__ == "__main__":
    options = arguments(__doc__)
    ours(10, 10, 5)  # compiled
    report("twin_peers", [*asynchronous(options), *synchronous(options)])
