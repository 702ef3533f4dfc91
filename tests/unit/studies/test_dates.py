"""The time axis of a study: periods, what is withheld, and dates written in several ways."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation
from fedscape.studies.dates import over_time, times_of
from fedscape.studies.prepare import prepare


def dated(days, y, offsets, **more):
    when = np.datetime64("2024-01-01") + np.asarray(days).astype("timedelta64[D]")
    return Federation({"y": np.asarray(y), "when": when, **more}, np.asarray(offsets))


def section(fed, *, least=1, shares=None):
    notes: list[str] = []
    kinds = np.ones((len(fed), 1)) if shares is None else shares
    return over_time(prepare(fed), kinds, notes, least=least), notes


def test_rows_clients_and_shares_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 30, 12)
    offsets = np.append(0, np.cumsum(sizes))
    n = int(offsets[-1])
    fed = dated(rng.integers(0, 700, n), rng.integers(0, 3, n), offsets)
    about, _ = section(fed)
    assert about["period"] == "month"
    months = fed["when"].astype("datetime64[M]")
    for i, start in enumerate(about["starts"]):
        inside = months == np.datetime64(start, "M")
        assert about["rows"][i] == inside.sum()
        assert about["clients"][i] == len(np.unique(fed.client_of_row[inside]))
        for curve in about["categories"]:
            share = (fed["y"][inside] == int(curve["name"])).mean() if inside.any() else None
            assert curve["shares"][i] == (None if share is None else pytest.approx(share, abs=1e-6))
    assert sum(about["rows"]) == n


@pytest.mark.parametrize(
    ("days", "period"), [(1, "hour"), (20, "day"), (300, "week"), (1500, "month"), (5000, "quarter"), (9000, "year")]
)
def test_the_period_is_the_shortest_that_gives_at_most_sixty(days, period):
    about, _ = section(dated(np.linspace(0, days, 40).round(), [0, 1] * 20, np.arange(0, 41, 4)))
    assert about["period"] == period
    assert len(about["starts"]) <= 60
    assert about["starts"] == sorted(about["starts"])


def test_weeks_start_on_a_monday():
    about, _ = section(dated(np.arange(0, 200, 5), [0, 1] * 20, np.arange(0, 41, 4)))
    assert about["period"] == "week"
    assert {np.datetime64(start).astype(object).weekday() for start in about["starts"]} == {0}


def test_periods_of_few_clients_are_withheld_and_said():
    fed = dated([*range(0, 200, 5), 300], [0, 1] * 20 + [0], [*range(0, 37, 4), 41])
    about, notes = section(fed, least=5)
    assert about["withheld"] == len([c for c in about["clients"] if c is None]) > 0
    assert all(c is None or c == 0 or c >= 5 for c in about["clients"])
    assert all(about["rows"][i] is None for i, c in enumerate(about["clients"]) if c is None)
    assert all(
        curve["shares"][i] is None for curve in about["categories"] for i, c in enumerate(about["clients"]) if c is None
    )
    assert any("left out of the time axis" in note for note in notes)


def test_a_withheld_kind_cannot_be_had_by_subtraction():
    kind = np.array([0] * 9 + [1] * 6 + [2] * 2)
    fed = dated(np.tile([0, 40], 17), [0, 1] * 17, np.arange(0, 35, 2))
    about, _ = section(fed, least=5, shares=np.eye(3)[kind])
    known = [i for i, n in enumerate(about["clients"]) if n]
    assert known
    for i in known:
        assert (about["kinds"]["A"][i], about["kinds"]["B"][i], about["kinds"]["C"][i]) == (9, None, None)


def test_dates_that_can_be_read_in_two_ways_are_not_guessed():
    assert times_of(np.array([0, 1]), ["01/02/2024", "03/04/2024"]) is None
    assert times_of(np.array([0, 1]), ["2024/2/1", "30.2.2024"]) is None  # no such day
    read = times_of(np.array([0, 1, -1]), ["2024-2-1 7:05", "2024-02-02"])
    assert read.astype(str).tolist() == ["2024-02-01T07:05:00", "2024-02-02T00:00:00", "NaT"]
    texts = Federation(
        {"y": [0, 1] * 6, "when": np.array([f"{d:02d}/02/2024" for d in range(1, 13)])}, np.arange(0, 13, 2)
    )
    about, notes = section(texts)
    assert about is None
    assert any("more than one way" in note for note in notes)


def test_a_number_above_12_tells_whether_dates_with_slashes_begin_with_the_day():
    both = np.array([0, 1])
    assert times_of(both, ["31/01/2024 7:05", "01/02/2024"]).astype("datetime64[D]").astype(str).tolist() == [
        "2024-01-31",
        "2024-02-01",
    ]
    assert times_of(both, ["1/31/2024", "2/1/2024"]).astype(str).tolist() == [
        "2024-01-31T00:00:00",
        "2024-02-01T00:00:00",
    ]
    assert times_of(both, ["31/01/2024", "01/31/2024"]) is None  # both orders


def test_data_without_dates_have_no_time_axis():
    assert section(Federation({"y": [0, 1] * 6}, np.arange(0, 13, 2))) == (None, [])
