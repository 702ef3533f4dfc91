"""Logs in, and occurrences and exposures out."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from plain_twin import tables_by_steps

from fedscape import DataError, Federation
from fedscape.core.kernel import uncompiled
from fedscape.twin import from_check_ins, from_table, sessions
from fedscape.twin.events import checked, events_of, seconds
from fedscape.twin.tables import tabulate


def some_log(seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    table = np.repeat(rng.choice([-1, 0, 1], size=(6, 40), p=[0.1, 0.6, 0.3]), rng.integers(1, 6, 40), axis=1)
    return from_table(table, step_minutes=13, start="2024-02-29T21:10")


@pytest.mark.parametrize("tick", [0.0, 780.0])
def test_tables_count_what_a_walk_second_by_second_counts(tick):
    log, ages, lengths = some_log(), (0.4, 2.0), (0.5, 1.0, 2.5)
    fast = tabulate(log, tick=tick, ages=np.array(ages), lengths=np.array(lengths))
    slow = tables_by_steps(log, tick=tick, ages=ages, lengths=lengths, step=10.0)
    assert fast.arrivals.sum() > 10
    for name, mine, plain in zip(fast._fields, fast, slow, strict=True):
        np.testing.assert_allclose(mine, plain, atol=1e-9, err_msg=name)


def test_the_kernel_gives_what_plain_python_gives():
    log, edges = some_log(1), np.array([0.5, 2.0])
    compiled = tabulate(log, tick=60.0, ages=edges, lengths=edges)
    with uncompiled():
        plain = tabulate(log, tick=60.0, ages=edges, lengths=edges)
    for mine, other in zip(compiled, plain, strict=True):
        assert mine.tobytes() == other.tobytes()


def test_a_session_at_the_edge_of_a_span_is_cut_off():
    log = sessions(["a"], [0.0], [3600.0], window=(0.0, 7200.0))
    tables = tabulate(log, tick=0.0, ages=np.array([1.0]), lengths=np.array([1.0]))
    assert (tables.arrivals.sum(), tables.ends.sum(), tables.present.sum()) == (0.0, 0.0, 0.0)
    assert tables.absent.sum() == 1.0
    log = sessions(["a"], [3600.0], [7200.0], window=(0.0, 7200.0))
    tables = tabulate(log, tick=0.0, ages=np.array([1.0]), lengths=np.array([9.0]))
    assert (tables.arrivals.sum(), tables.ends.sum(), tables.present.sum()) == (1.0, 0.0, 1.0)


def test_check_ins_close_together_are_one_session():
    times = np.array(["2024-03-04T10:00", "2024-03-04T10:20", "2024-03-04T12:00"], dtype="datetime64[m]")
    log = from_check_ins(["u"] * 3, times, gap_minutes=30, least_minutes=5)
    assert ((log["end"] - log["start"])[log["watch"] == 0] / 60).tolist() == [25.0, 5.0]


def test_devices_without_sessions_are_observed_too():
    log = sessions(["a"], [10.0], [20.0], window=(0.0, 100.0), ids=["a", "b"])
    assert log.sizes.tolist() == [2, 1]


def test_dates_are_read_in_the_ways_they_are_written():
    for text in ("2024-02-05 08:30", "2024-02-05T08:30:00", "5.2.2024 08:30", "2024-02-05 10:30+02:00",
                 "2024-02-05T08:30Z", "2024-02-05 03:30:00-0500", "2024-02-05 08:30:00.000123"):  # fmt: skip
        assert seconds([text])[0] == seconds([np.datetime64("2024-02-05T08:30")])[0], text
    for date in (datetime(2024, 2, 5, 8, 30), datetime(2024, 2, 5, 8, 30, tzinfo=UTC)):
        assert seconds(np.array([date], dtype=object))[0] == seconds([np.datetime64("2024-02-05T08:30")])[0]
    with pytest.raises(DataError, match="with and without a time zone"):
        seconds(["2024-02-05 08:30Z", "2024-02-05 08:30"])
    with pytest.raises(DataError, match="not 'soon'"):
        seconds(["2024-02-05 08:30", "soon"])


def test_words_for_finished_are_read_and_others_refused():
    fed = Federation.from_arrays({"start": [0.0, 9.0], "end": [5.0, 12.0], "finished": ["yes", "No"]}, clients=[1, 1])
    log, _ = events_of(fed)
    assert log["finished"][log["watch"] == 0].tolist() == [1, 0]
    with pytest.raises(DataError, match="must hold 1, 0, yes or no, not 'maybe'"):
        events_of(Federation.from_arrays({"start": [0.0], "end": [5.0], "finished": ["maybe"]}, clients=[1]))
    with pytest.raises(DataError, match="'work' must hold numbers, not 'long'"):
        events_of(Federation.from_arrays({"start": [0.0], "end": [5.0], "work": ["long"]}, clients=[1]))
    with pytest.raises(DataError, match="the log has no rows"):
        events_of(Federation({"start": np.zeros(0), "end": np.zeros(0)}, [0]))


def slots(times) -> Federation:
    return Federation({"available": np.ones(len(times), dtype=int), "time": times}, [0, len(times)])


def test_devices_without_any_session_make_a_log():
    log = sessions([], [], [], window=(0.0, 99.0), ids=["a", "b"])
    assert (len(log), log["watch"].tolist()) == (2, [1, 1])
    assert len(sessions(["a"], [0.0], [1.0], window=(50.0, 99.0), ids=["a"])) == 1  # a device alone, away all the time


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sessions(["a", "a"], [0.0, 5.0], [9.0, 8.0]), "sessions of device a overlap at 5 s"),
        (lambda: sessions(["a", "b"], [5.0, 0.0], [1.0, 2.0]), "that of device a at 5 s does not"),
        (lambda: sessions(["a"], [1e300], [2e300]), "no time in seconds"),
        (lambda: sessions(["a"], [5.0], [1.0], window=(0.0, 9.0)), "must end after it starts"),
        (lambda: sessions(["a"], [0.0], [1.0], window=(9.0, 3.0)), "window must end after it begins"),
        (lambda: sessions(["a"], [0.0], [1.0], columns={"speed": [1.0]}), "sessions have no column 'speed'"),
        (lambda: sessions(["a"], [0.0], [1.0], columns={"bytes": [1.0]}), "both columns, 'bytes' and 'transfer'"),
        (lambda: sessions(["a"], ["noon"], [1.0]), "start must hold dates or seconds, not 'noon'"),
        (lambda: sessions(["a"], [np.nan], [1.0]), "start has 1 missing value: drop"),
        (lambda: sessions("a", 0.0, 1.0), "start must be a list of times"),
        (lambda: sessions(["a"], [0.0], [1.0], window=(1.0,)), "window must be two times"),
        (lambda: sessions(["a"], [0.0], [1.0], window=("2024-01-01", "2024-02-01")), "no session lies in the window"),
        (lambda: sessions(["a"], [0.0], [1.0], columns={"finished": [7]}), "'finished' must hold 1 or 0; NaN or -1"),
        (lambda: sessions(["a"], [0.0], [1.0], columns={"finished": ["yes"]}), "must hold a number a session"),
        (lambda: sessions(["a"], [0.0], [1.0], columns={"data": [0.5]}), "codes from 0 to 999; .* row 0 has 0.5"),
        (lambda: sessions(["a"], [0.0], [1.0], columns={"data": [10**7]}), "codes from 0 to 999"),
        (lambda: sessions(["a"], [0.0], [1.0], columns={"work": [np.inf]}), "'work' must hold finite numbers"),
        (lambda: from_table([[2]]), "a table of slots must hold 1, 0 or -1"),
        (lambda: from_table([[1]], step_minutes=0), "step_minutes must be above 0"),
        (lambda: from_table([[1]], start="noon"), "not 'noon'"),
        (lambda: from_check_ins(np.array(["a", None]), [0.0, 1.0]), "whole numbers or texts"),
        (lambda: from_check_ins(["a"], [0.0], gap_minutes=np.nan), "at most gap_minutes"),
        (lambda: events_of(slots([0.0, 1800.0, 9000.0])), "slots must be evenly apart"),
        (lambda: events_of(slots([3600.0, 1800.0, 0.0])), "slots must be evenly apart"),
        (
            lambda: checked(Federation({"start": [0.0, 5.0], "end": [4.0, 6.0], "watch": [1, 0]}, [0, 2])),
            "lies outside of its observed spans",
        ),
    ],
)
def test_bad_logs_are_refused_with_what_to_do(build, message):
    with pytest.raises(DataError, match=message):
        build()
