"""Which protocol reaches an accuracy soonest, who is left out by it, and whether asynchronous training helps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.computation import Computation
from fedscape.core.engine import Engine
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.twin.bias import Part, participation
from fedscape.twin.devices import Devices
from fedscape.twin.protocols import FedAsync, FedBuff, SemiAsynchronous, ServerProtocol, Synchronous
from fedscape.twin.timetable import Timetable, schedule
from fedscape.twin.training import train
from fedscape.types import Array, Arrays

#: From a state to the accuracy of each client (NaN where it has no rows) and its number of rows.
Judge = Callable[[Arrays], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Course:
    """Accuracy along virtual time: of one protocol, with one seed.

    `accuracy` [points] is that of the last update before each of `hours`, pooled over rows; `of_clients` that of each
    client at the end. `to_target` is the first of `hours` with the accuracy asked for, infinite where there is none.

    >>> Course(np.array([1.0, 2.0]), np.array([0.2, 0.6]), math.inf, np.zeros(0), None).mean
    0.4
    """

    hours: Array
    accuracy: Array
    to_target: float
    of_clients: Array = field(repr=False)
    timetable: Timetable | None = field(repr=False)

    @property
    def mean(self) -> float:
        """The mean accuracy over the time: the area under the curve."""
        return float(np.mean(self.accuracy))


def follow(
    computation: Computation,
    engine: Engine | Federation,
    timetable: Timetable,
    judge: Judge,
    *,
    target: float = math.inf,
    points: int = 20,
    seed: int = 0,
) -> Course:
    """Train along a timetable and evaluate at `points` equal steps of virtual time; stop at the target.

    >>> from fedscape import Histogram
    >>> from fedscape.twin import Synchronous, always
    >>> fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    >>> table = schedule(always(2).with_speed(3600.0), Synchronous(2), days=0.5)
    >>> follow(Histogram(2), fed, table, lambda s: (s["counts"] / 3, s["counts"]), points=3).accuracy.round(2).tolist()
    [0.56, 0.56, 0.56]
    """
    hours = (timetable.horizon - timetable.begin) / 3600 * np.arange(1, points + 1) / points
    state = computation.start(seed)
    accuracy, reached = np.full(points, np.nan), math.inf
    of_clients, rows = judge(state)
    updates, upcoming = train(computation, engine, timetable, seed=seed), None
    for point, hour in enumerate(hours):
        changed = False
        while (upcoming := upcoming or next(updates, None)) is not None and upcoming.seconds <= 3600 * hour:
            state, upcoming, changed = upcoming.state, None, True
        if changed or point == 0:
            of_clients, rows = judge(state)
        accuracy[point] = _pooled(of_clients, rows)
        if accuracy[point] >= target:
            reached = float(hour)
            break
        if upcoming is None:  # the timetable ends here: nothing changes any more
            accuracy[point:] = accuracy[point]
            break
    last = int(np.flatnonzero(np.isfinite(accuracy))[-1]) + 1
    return Course(hours[:last], accuracy[:last], reached, of_clients, timetable)


def _pooled(of_clients: Array, rows: Array) -> float:
    use = np.isfinite(of_clients) & (rows > 0)
    return float(np.average(of_clients[use], weights=rows[use])) if use.any() else math.nan


@dataclass(frozen=True, eq=False)
class Row:
    """One protocol of a plan: hours to the target by seed, and means over seeds of what it costs."""

    protocol: ServerProtocol
    hours: tuple[float, ...]
    accuracy: float
    device_hours: float
    wasted_hours: float
    bytes_up: float
    courses: tuple[Course, ...] = field(repr=False)

    @property
    def mean(self) -> float:
        """Mean hours to the target; infinite if a seed did not reach it."""
        return float(np.mean(self.hours))


@dataclass(frozen=True, eq=False)
class Plan:
    """The answers of `plan`: rows in order, the soonest first.

    `parts` are of the best synchronous protocol with a deadline, or else of the best one: who is left out, and how the
    model does for them. `longest` is for how many hours each run was followed at most.

    >>> table = Plan(0.5, (), (), Synchronous(1), 24.0).table()
    >>> table["asynchronous"]["answer"]
    'not known: the plan has no asynchronous protocol, or no synchronous one'
    """

    target: float
    rows: tuple[Row, ...]
    parts: tuple[Part, ...]
    of_parts: ServerProtocol
    longest: float

    @property
    def best(self) -> Row:
        """The protocol that reaches the target soonest; if none does, the one with the highest accuracy."""
        return self.rows[0]

    def asynchronous(self) -> dict[str, Any]:
        """Whether asynchronous training helps here: hours gained, their 95% interval over seeds, and a word.

        The best asynchronous protocol is compared with each synchronous one, seed by seed, and must be sooner than all
        of them. It was chosen from several, so the intervals are simultaneous (Bonferroni). "No" asks the same of the
        best synchronous protocol. A run that did not reach the target counts as if it had at its end: the gain is then
        "at least" this much.
        """
        sides = [[row for row in self.rows if row.protocol.stale is stale] for stale in (False, True)]
        nothing = {"hours": math.nan, "low": math.nan, "high": math.nan, "at_least": False}
        if not all(sides):
            return {"answer": "not known: the plan has no asynchronous protocol, or no synchronous one", **nothing}
        out = self._sooner(sides[1][0], sides[0], len(sides[1]))
        if out["low"] > 0:
            return {"answer": "yes", **out}
        other = self._sooner(sides[0][0], sides[1], len(sides[0]))
        if other["low"] > 0:
            out |= {"hours": -other["hours"], "low": -other["high"], "high": -other["low"]}
            return {"answer": "no", **out, "at_least": other["at_least"]}
        if not np.isfinite([hours for row in self.rows for hours in row.hours]).any():
            return {"answer": "not known: no run reached the target", **nothing}
        return {"answer": "no difference that these seeds show", **out}

    def _sooner(self, row: Row, others: Sequence[Row], chosen_from: int) -> dict[str, Any]:
        """By how much this protocol is sooner than the one of the others with the lowest bound.

        Where it did not reach the target itself in some seed, nothing is known from below.
        """
        found: list[dict[str, Any]] = []
        for other in others:
            late = np.minimum(other.hours, self.longest)
            gain = late - np.minimum(row.hours, self.longest)
            half = interval(gain, comparisons=chosen_from)
            low = float(gain.mean()) - half
            if not np.isfinite(row.hours).all() or math.isnan(low):
                low = -math.inf
            at_least = not np.isfinite(other.hours).all()
            high = math.inf if at_least or math.isnan(half) else float(gain.mean()) + half
            found.append({"hours": float(gain.mean()), "low": low, "high": high, "at_least": at_least})
        return min(found, key=lambda entry: (entry["low"], entry["hours"]))

    def table(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        rows = [
            {
                "protocol": repr(row.protocol),
                "hours": list(row.hours),
                "mean_hours": row.mean,
                "half_width": interval(np.array(row.hours)),
                "accuracy": row.accuracy,
                "device_hours": row.device_hours,
                "wasted_hours": row.wasted_hours,
                "bytes_up": row.bytes_up,
            }
            for row in self.rows
        ]
        return {
            "target": self.target,
            "rows": rows,
            "parts_of": repr(self.of_parts),
            "parts": [asdict(part) for part in self.parts],
            "asynchronous": self.asynchronous(),
        }


def interval(values: Array, *, comparisons: int = 1) -> float:
    """Half of the 95% interval of a mean by Student's t; NaN for fewer than two finite values.

    With several comparisons it is one of as many simultaneous intervals.

    >>> round(interval(np.array([1.0, 2.0, 3.0])), 2)
    2.48
    """
    from scipy.special import stdtrit

    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    return float(stdtrit(len(values) - 1, 1 - 0.025 / comparisons) * values.std(ddof=1) / np.sqrt(len(values)))


def candidates(sizes: Sequence[int], deadlines: Sequence[float | None], *, over: float = 1.3) -> list[ServerProtocol]:
    """Protocols to choose from: synchronous ones of all sizes and deadlines, and three asynchronous ones of each size.

    >>> len(candidates([10, 20], [None, 600.0]))
    10
    """
    listed: list[ServerProtocol] = [
        Synchronous(size, over=1.0 if deadline is None else over, deadline=deadline)
        for size in sizes
        for deadline in deadlines
    ]
    period = min((d for d in deadlines if d is not None), default=600.0)
    for size in sizes:
        listed += [
            SemiAsynchronous(concurrency=size, period=period),
            FedBuff(concurrency=size, buffer=max(size // 4, 1)),
            FedAsync(concurrency=size),
        ]
    return listed


def plan(
    computation: Computation,
    engine: Engine | Federation,
    devices: Callable[[int], Devices],
    judge: Judge,
    protocols: Sequence[ServerProtocol],
    *,
    target: float,
    days: float,
    begin: float = 0.0,
    units: npt.ArrayLike = 1.0,
    payload: tuple[float, float] = (0.0, 0.0),
    seeds: Sequence[int] = (0, 1, 2),
    n_reports: int = 10_000,
    points: int = 40,
    kinds: Callable[[Devices], Array] | None = None,
) -> Plan:
    """Train by each protocol in virtual time, and answer which is soonest, who is left out, whether asynchronous helps.

    Parameters
    ----------
    computation, engine, judge
        What is trained, the clients, and how a state is judged on rows held out.
    devices
        The devices of a seed, one for each client: `lambda seed: twin.sample(len(fed), Key(seed))`.
    protocols
        Those to choose from; see `candidates`.
    target
        The accuracy to reach.
    days, begin, units, payload
        As for `schedule`.
    n_reports
        How many reports a run adds up at most: protocols differ in how many make an update.
    seeds, points
        Seeds of devices, selection and training; evaluations of a run.
    kinds
        The groups that may be left out; by default the kinds of devices.

    >>> from fedscape import Histogram
    >>> from fedscape.twin import always
    >>> fed, judge = Federation({"y": [0, 1]}, [0, 1, 2]), lambda state: (state["counts"] / 2, np.ones(2))
    >>> how = {"target": 0.5, "days": 1, "n_reports": 200}
    >>> answer = plan(Histogram(2), fed, lambda seed: always(2), judge, candidates([2], [None]), **how)
    >>> type(answer.best.protocol).__name__, answer.best.hours
    ('Synchronous', (0.6, 0.6, 0.6))
    """
    if not protocols or not seeds:
        raise DataError("a plan needs at least one protocol and one seed")
    rows = []
    populations = {seed: devices(seed) for seed in seeds}
    for protocol in protocols:
        courses = []
        for seed, population in populations.items():
            table = schedule(
                population, protocol, days=days, begin=begin, n_updates=max(n_reports // protocol.loop[1], 1),
                units=units, payload=payload, key=Key(seed),
            )  # fmt: skip
            courses.append(follow(computation, engine, table, judge, target=target, points=points, seed=seed))
        costs = [_cost_until(course) for course in courses]
        means = np.mean(costs, axis=0)
        hours = tuple(course.to_target for course in courses)
        accuracy = float(np.mean([course.accuracy[-1] for course in courses]))
        rows.append(Row(protocol, hours, accuracy, float(means[0]), float(means[1]), float(means[2]), tuple(courses)))
    rows.sort(key=lambda row: (row.mean, -row.accuracy))
    with_deadline = [row for row in rows if getattr(row.protocol, "deadline", None) is not None]
    subject = (with_deadline or rows)[0]
    population = populations[seeds[0]]
    groups = population.kind if kinds is None else kinds(population)
    table = schedule(population, subject.protocol, days=days, begin=begin, units=units, payload=payload,
                     key=Key(seeds[0]))  # fmt: skip
    parts = participation(table, groups, metric=subject.courses[0].of_clients)
    return Plan(target, tuple(rows), tuple(parts), subject.protocol, 24.0 * days)


def _cost_until(course: Course) -> tuple[float, float, float]:
    """Device-hours, wasted hours and bytes up of a run, in proportion to the updates up to its end."""
    table = course.timetable
    if table is None or not len(table):
        return 0.0, 0.0, 0.0
    cost, end = table.cost(), table.begin + 3600 * float(course.hours[-1])
    part = float((table.times <= end).mean())
    return part * cost.device_hours, part * cost.wasted_hours, part * cost.bytes_up
