"""Training in virtual time inside a study: three protocols, and who reports before a deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.studies import tournament as learning
from fedscape.studies.budget import Budget
from fedscape.studies.prepare import Prepared
from fedscape.studies.staged import fewer_rows
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.twin import Devices, Part, Twin
    from fedscape.twin.planning import Row
    from fedscape.twin.protocols import ServerProtocol

HOUR, DAY = 3600.0, 86400.0
_LARGEST = 10  # cohort
_MINUTE = 60.0  # seconds of an average client's task, where the log has no work
SHARE = 0.95  # of FedAvg's accuracy in the tournament: the target
_LONGEST = 14.0  # days of rounds in which it is counted who reports
FITTED = 400  # devices that a twin is fitted to, at most


@dataclass(frozen=True, eq=False)
class Log:
    """Sessions of devices, and where they are from. `column` holds the dates if rows are taken as check-ins.

    `client` [devices] is the client that a device belongs to, if the log is of the study's own clients.
    """

    events: Federation
    tick: float
    column: str | None
    client: Array | None


def fitted_twin(log: Federation, tick: float, seed: int) -> Twin:
    from fedscape.twin import fit

    return fit(log, n_kinds=1, tick=tick, n_init=1, rounds=40, seed=seed)


def some_devices(n: int, most: int, seed: int) -> Array:
    return np.sort(Key(seed, purpose="devices of a study").generator().permutation(n)[:most])


def trained(
    data: Prepared, shares: Array, log: Log, learned: dict[str, Any], budget: Budget, at_once: float, least: int,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """FedAvg by three protocols in virtual time, each several times from another hour of the log."""
    from fedscape.learning.evaluation import evaluate
    from fedscape.learning.server import Mean
    from fedscape.personal.methods import Common
    from fedscape.twin import FedBuff, Synchronous, participation, payload_of, plan, schedule

    assert data.rows is not None
    rates = {row["method"]: row for row in learned["true"]}["fedavg"]
    table = all(data.table[name].ndim == 1 for name in data.features)
    rows = learning.directions(data.rows, table=table)
    who = np.arange(len(rows)) if log.client is None else log.client
    caps = budget.stages[0]  # three protocols by several runs: as much as the first stage of a tournament
    rows = fewer_rows(rows.take(who), most=caps.rows, seed=seed)
    clients = learning.held_out(rows, repeat=0, seed=seed)
    local = learning.way(clients.train, seed=seed, lr=rates["lr"])
    server = learning.rule("fedavg", clients.train) or Mean()
    computation, kind = Common(local, initial="seed", server=server), shares[who].argmax(axis=1)

    def judge(state: dict[str, Array]) -> tuple[Array, Array]:
        judged = evaluate(local, state, clients.test)
        rows_of = (judged.rows > 0).astype(float)  # a mean over clients, as in the tournament
        return np.asarray(judged.accuracy), rows_of

    devices, assumed = _devices(log, len(who), seed)
    units = np.maximum(clients.train.sizes, 1) / max(float(clients.train.sizes.mean()), 1.0)
    size = int(np.clip(at_once / 3, 1, min(_LARGEST, len(who) // 2)))
    deadline = float(np.round(2 * np.median(units * devices(0).seconds), 1))
    protocols: list[ServerProtocol] = [
        Synchronous(size),
        Synchronous(size, over=1.3, deadline=deadline),
        FedBuff(concurrency=size, buffer=max(size // 4, 1)),
    ]
    begin = float(log.events["start"].min())
    days = float(np.clip(4 * caps.rounds * deadline, 2 * HOUR, DAY)) / DAY
    target = SHARE * rates["accuracy"]["value"]
    answer = plan(
        computation, clients.train, devices, judge, protocols, target=target, days=days,
        begin=begin, units=units, payload=payload_of(computation, clients.train),
        seeds=range(max(caps.repeats, 3)), n_reports=2 * caps.rounds * size, points=96,
    )  # fmt: skip
    late = next(row for row in answer.rows if row.protocol == protocols[1])
    whole = min(float(log.events["end"].max() - log.events["start"].min()) / DAY, _LONGEST)
    timetable = schedule(devices(-1), protocols[1], days=whole, begin=begin, units=units, key=Key(seed))
    parts = participation(timetable, kind, metric=late.courses[0].of_clients, comparisons=len(np.unique(kind)))
    return {
        "of": "the log" if log.client is not None else "a twin of the log",
        "assumed": assumed,
        "size": size,
        "deadline": deadline,
        "target": target,
        "runs": max(caps.repeats, 3),
        "protocols": [_protocol(row) for row in answer.rows],
        "days": whole,
        "parts": [_part(part) for part in parts if part.devices >= least],
        "asynchronous": answer.asynchronous(),
    }


def _devices(log: Log, n: int, seed: int) -> tuple[Callable[[int], Devices], bool]:
    """The devices of each run, and whether their speed is assumed: equally fast, a minute for an average client."""
    from fedscape.twin import Devices

    if log.client is None:
        twin = fitted_twin(log.events.take(some_devices(len(log.events), FITTED, seed)), log.tick, seed)
        assumed = "work" not in twin.arrays

        def sampled(run: int) -> Devices:
            drawn = twin.sample(n, Key(seed, run, "presence"))
            return drawn.with_speed(_MINUTE) if assumed else drawn

        return sampled, assumed
    true, span = Devices.of_trace(log.events), float(log.events["end"].max() - log.events["start"].min())
    speed = _speeds(log.events)

    def later(run: int) -> Devices:
        """The log from a random hour on, at least a day before its end; run -1 is the log from its begin."""
        if run < 0:
            return replace(true, seconds=speed)
        by = HOUR * float(np.floor(Key(seed, run, "presence").generator().uniform(0, max(span - DAY, 0.0)) / HOUR))
        return replace(true, trace=true.trace - by, seconds=speed)

    return later, "work" not in log.events


def _speeds(log: Federation) -> Array:
    """Median seconds a unit of work of each device; of all where it has none, a minute where no device has."""
    if "work" not in log:
        return np.full(len(log), _MINUTE)
    units = log["units"] if "units" in log else np.ones(log.n_rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        pace = np.where((log["watch"] == 0) & (units > 0) & (log["work"] > 0), log["work"] / units, np.nan)
    every = float(np.nanmedian(pace)) if np.isfinite(pace).any() else _MINUTE
    own = [pace[log.offsets[i] : log.offsets[i + 1]] for i in range(len(log))]
    return np.array([np.nanmedian(p) if np.isfinite(p).any() else every for p in own])


def _protocol(row: Row) -> dict[str, Any]:
    """One protocol: mean hours to the target over runs with their interval; None if some run did not reach it."""
    from fedscape.twin.planning import interval

    deadline = getattr(row.protocol, "deadline", None)
    called = {"FedBuff": "asynchronous (FedBuff)", "Synchronous": "synchronous"}[type(row.protocol).__name__]
    half, reached = interval(np.array(row.hours)), int(np.isfinite(row.hours).sum())
    return {
        "name": called if deadline is None else f"{called}, deadline",
        "reached": reached,
        "hours": {"value": row.mean, "low": max(row.mean - half, 0.0), "high": row.mean + half},
        "device_hours": row.device_hours,
        "wasted_hours": row.wasted_hours,
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "kind": chr(ord("A") + part.kind),
        "clients": part.devices,
        "never": part.never,
        "rare": part.rare,
        "ratio": {"value": part.ratio, "low": part.ratio_low, "high": part.ratio_high},
        "gap": {"value": part.gap, "low": part.gap_low, "high": part.gap_high},
    }
