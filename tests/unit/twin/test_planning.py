"""Plans: times to a target that can be computed by hand, who is left out, and whether asynchronous training helps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedscape import DataError, Federation, Histogram
from fedscape.twin import Synchronous, always, candidates, events_of, follow, plan, schedule
from fedscape.twin.planning import Plan, interval

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


def test_does_it_help_is_answered_with_an_interval_or_not_at_all():
    def asked(*gain):
        return Plan(0.5, (), (), Synchronous(1), gain).asynchronous()["answer"]

    assert asked(1.0, 1.1, 0.9) == "yes"
    assert asked(-1.0, -1.1, -0.9) == "no"
    assert asked(1.0, -1.0, 0.1) == "no difference that these seeds show"
    assert asked(1.0, math.nan) == "not known: not all runs reached the target"
    assert math.isnan(interval(np.array([1.0])))
    with pytest.raises(DataError, match="at least one protocol"):
        plan(*data(), lambda seed: always(N), judge, [], target=0.5, days=1)


def test_logs_of_three_forms_are_read():
    log, tick = events_of(Federation({"available": [0, 1, 0, -1], "time": np.arange(4) * 1800.0}, [0, 4]))
    assert (tick, log["end"].tolist()) == (1800.0, [5400.0, 3600.0])
    texts = Federation.from_arrays({"start": ["2024-01-01T00:00"], "end": ["2024-01-01T01:00"]}, clients=["a"])
    log, tick = events_of(texts)
    assert (tick, (log["end"] - log["start"]).tolist()) == (0.0, [3600.0, 3600.0])
    with pytest.raises(DataError, match="a log of devices has the columns start and end"):
        events_of(Federation({"x": [1.0]}, [0, 1]))
