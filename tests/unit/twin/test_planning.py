"""Plans: times to a target that can be computed by hand, who is left out, and whether asynchronous training helps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedscape import DataError, Federation, Histogram
from fedscape.twin import FedAsync, FedBuff, Synchronous, always, candidates, events_of, follow, plan, schedule
from fedscape.twin.planning import Plan, Row, interval

N = 20


class Counter(Histogram):
    """Counts the reports that it has had: accuracy is a known function of their number."""

    name = "counter"

    def update(self, state, total, key):
        return {"counts": state["counts"] + total["counts"]}


def data() -> tuple[Counter, Federation]:
    return Counter(1), Federation({"y": np.zeros(N, dtype=int)}, np.arange(N + 1))


def judge(state):
    """A hundredth of the reports so far, for each client."""
    return np.full(N, float(state["counts"][0]) / 100), np.ones(N)


def test_time_to_target_is_that_of_the_reports():
    """Ten reports every 600 s: 0.5 is reached after 3000 s, at the next of the moments at which it is looked."""
    computation, fed = data()
    table = schedule(always(N).with_speed(600.0), Synchronous(10), days=1 / 6)
    course = follow(computation, fed, table, judge, target=0.5, points=16)  # every quarter of an hour
    assert course.to_target == pytest.approx(1.0)
    np.testing.assert_allclose(course.accuracy, [0.1, 0.3, 0.4, 0.6])


def test_a_plan_orders_protocols_and_finds_who_is_left_out():
    computation, fed = data()
    seconds = np.where(np.arange(N) < 5, 3000.0, 300.0)
    answer = plan(
        computation, fed, lambda seed: always(N).with_speed(seconds), judge, candidates([8], [600.0, None]),
        target=0.6, days=1, points=96, kinds=lambda devices: (devices.seconds > 600).astype(int),
    )  # fmt: skip
    hours = [row.mean for row in answer.rows]
    assert hours == sorted(hours)
    assert math.isfinite(hours[-1])
    slow = next(part for part in answer.parts if part.kind == 1)
    assert (slow.share, slow.never) == (0.0, 1.0)  # none of them comes before the deadline
    waiting = next(row for row in answer.rows if row.protocol == Synchronous(8))
    assert waiting.mean > answer.best.mean
    assert answer.table()["asynchronous"]["answer"] in ("yes", "no", "no difference that these seeds show")


def row(protocol, *hours):
    return Row(protocol, hours, 0.5, 1.0, 0.0, 0.0, ())


def asked(synchronous, asynchronous, *more):
    """The answer for these hours by seed; `more` are hours of further asynchronous protocols."""
    rows = [row(Synchronous(4), *synchronous), row(FedBuff(concurrency=4), *asynchronous)]
    rows += [row(FedAsync(concurrency=4, alpha=0.1 + 0.1 * i), *hours) for i, hours in enumerate(more)]
    rows.sort(key=lambda r: (r.mean, -r.accuracy))
    return Plan(0.5, tuple(rows), (), Synchronous(4), 24.0).asynchronous()


def test_does_it_help_is_answered_with_an_interval_or_not_at_all():
    found = asked((3.0, 3.1, 2.9), (2.0, 2.0, 2.0))
    assert (found["answer"], found["hours"]) == ("yes", pytest.approx(1.0))
    assert found["low"] == pytest.approx(1.0 - interval(np.array([1.0, 1.1, 0.9])))
    found = asked((2.0, 2.0, 2.0), (3.0, 3.1, 2.9))
    assert (found["answer"], found["hours"]) == ("no", pytest.approx(-1.0))
    assert found["low"] < found["hours"] < found["high"] < 0
    assert asked((2.0, 3.0, 2.5), (2.1, 2.8, 2.5))["answer"] == "no difference that these seeds show"
    inf = math.inf
    assert asked((inf, inf, inf), (inf, inf, inf))["answer"] == "not known: no run reached the target"
    only = Plan(0.5, (row(Synchronous(4), 1.0),), (), Synchronous(4), 24.0).asynchronous()
    assert only["answer"].startswith("not known: the plan has no asynchronous")
    assert math.isnan(interval(np.array([1.0])))
    with pytest.raises(DataError, match="at least one protocol"):
        plan(*data(), lambda seed: always(N), judge, [], target=0.5, days=1)


def test_runs_that_never_reach_the_target_are_bounds():
    """Asynchronous ones reach it at 2 h, the synchronous one not within 24 h: at least 22 h sooner."""
    found = asked((math.inf,) * 3, (2.0, 2.1, 1.9))
    assert (found["answer"], found["at_least"], found["high"]) == ("yes", True, math.inf)
    assert found["hours"] == pytest.approx(22.0)
    some = asked((3.0, 3.0, 3.0), (2.0, math.inf, 2.0))
    assert some["answer"] == "no difference that these seeds show"


def test_the_best_of_several_needs_a_wider_margin():
    """The level holds for the best of six alike: how often one is called sooner, five standard errors."""
    rng, runs, wrong = np.random.default_rng(0), 400, 0
    for _ in range(runs):
        hours = rng.normal(5.0, 1.0, (7, 5))
        wrong += asked(hours[0], hours[1], *hours[2:])["answer"] == "yes"
    assert wrong / runs < 0.025 + 5 * np.sqrt(0.025 * 0.975 / runs)


def test_protocols_are_capped_by_reports_and_not_by_updates():
    computation, fed = data()
    answer = plan(computation, fed, lambda seed: always(N).with_speed(60.0), judge, candidates([8], [None]), target=9.0,
                  days=1, n_reports=80, seeds=(0,))  # fmt: skip
    reports = {type(r.protocol).__name__: len(r.courses[0].timetable.clients) for r in answer.rows}
    assert reports["Synchronous"] == reports["FedBuff"] == reports["FedAsync"] == 80


def test_logs_of_three_forms_are_read():
    log, tick = events_of(Federation({"available": [0, 1, 0, -1], "time": np.arange(4) * 1800.0}, [0, 4]))
    assert (tick, log["end"].tolist()) == (1800.0, [5400.0, 3600.0])
    texts = Federation.from_arrays({"start": ["2024-01-01T00:00"], "end": ["2024-01-01T01:00"]}, clients=["a"])
    log, tick = events_of(texts)
    assert (tick, (log["end"] - log["start"]).tolist()) == (0.0, [3600.0, 3600.0])
    with pytest.raises(DataError, match="a log of devices has the columns start and end"):
        events_of(Federation({"x": [1.0]}, [0, 1]))
