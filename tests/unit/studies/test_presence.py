"""The section on who is there: brute force, calibrated tests, and answers that claim only what is shown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from plain_twin import planted

from fedscape import Federation, Key
from fedscape.report.presence import presence as drawn
from fedscape.studies.budget import budget_of
from fedscape.studies.prepare import prepare
from fedscape.studies.presence import _rhythm, _who, log_of, study_presence
from fedscape.studies.presence_advice import advice
from fedscape.studies.schema_presence import Presence
from fedscape.studies.validate import misfit
from fedscape.twin import sessions
from fedscape.twin.events import DAY, HOUR

N = 60


def data_of(kind, seed: int = 0) -> Federation:
    """Rows whose labels go with the kind of the client."""
    rng, n = np.random.default_rng(seed), len(kind)
    y = rng.integers(0, 2, (n, 20)) + 2 * kind[:, None]
    centres = np.random.default_rng(9).normal(0, 1.2, (4, 6))
    x = (centres[y] + rng.normal(0, 1, (n, 20, 6))).astype(np.float32).reshape(-1, 6)
    return Federation({"x": x, "y": y.ravel()}, np.arange(0, 20 * n + 1, 20))


@pytest.fixture(scope="module")
def slow_kind():
    """Kind B takes ten times as long for its work, and is there by day; kind A by night."""
    devices = planted().sample(N, Key(1))
    log = devices.sessions(0.0, 5 * DAY)
    seconds = np.where(devices.kind == 1, 400.0, 40.0)[log.client_of_row]
    log = log.with_column("work", np.where(log["watch"] == 0, seconds, np.nan))
    data, notes = prepare(data_of(devices.kind)), []
    learned = {"true": [{"method": "fedavg", "lr": 0.4, "accuracy": {"value": 0.8}}]}
    where = log_of(data, log, 0.0, notes)
    budget = budget_of("30s", rounds=6, repeats=3)
    shares = np.eye(2)[devices.kind]
    section = study_presence(data, shares, where, notes, learned=learned, budget=budget, least=5, seed=0)
    return section, notes


def test_shares_by_hour_are_those_of_a_walk_minute_by_minute():
    log = planted().sample(12, Key(2)).sessions(0.0, 3 * DAY)
    found = _who(log, 1)
    minutes = np.arange(0, 3 * DAY, 60.0) + 30
    rows = log["watch"] == 0
    there = sum(((s <= minutes) & (minutes < e)).astype(int) for s, e in zip(log["start"][rows], log["end"][rows],
                                                                            strict=True))  # fmt: skip
    hour = (minutes // HOUR % 24).astype(int)
    for entry in found["hours"]:
        assert entry["value"] == pytest.approx(there[hour == entry["hour"]].mean() / 12, abs=0.01)
        assert entry["low"] <= entry["value"] <= entry["high"]
    assert found["at_once"] == pytest.approx(there.mean(), rel=0.01)


def test_hours_of_few_clients_are_withheld():
    log = sessions(np.arange(30), np.arange(30) * 3600.0, np.arange(30) * 3600.0 + 600, window=(0.0, 2 * DAY))
    assert all(entry["value"] is None for entry in _who(log, 5)["hours"])


def test_the_test_of_a_rhythm_is_calibrated():
    """Devices with hours of their own but no common ones: p is uniform; with a common wave it is small."""
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * (np.arange(24) + 0.5) / 24
    p = []
    for _ in range(300):
        own = 5 + 4 * np.cos(angle - rng.uniform(0, 2 * np.pi, (40, 1))) * rng.uniform(0, 1, (40, 1))
        p.append(_rhythm(own, np.full((40, 24), 10.0)))
    for level in (0.05, 0.3):
        assert np.mean(np.array(p) <= level) == pytest.approx(level, abs=5 * np.sqrt(level * (1 - level) / 300))
    assert _rhythm(5 + 2 * np.cos(angle) + rng.normal(0, 1, (40, 24)), np.full((40, 24), 10.0)) < 1e-6
    assert _rhythm(np.zeros((40, 24)), np.full((40, 24), 10.0)) is None


def test_a_slow_kind_is_found_with_its_interval(slow_kind):
    section, notes = slow_kind
    when, left_out, helps = advice(section)
    assert left_out["answer"] == "kind B"
    assert left_out["low"] < left_out["value"] < left_out["high"] < 1
    assert "of its fair share of reports" in left_out["text"]
    assert when["answer"] == "by the hour"
    assert "Kind A is there most at" in when["text"]
    assert helps["answer"] in ("yes", "no", "not shown")
    assert not notes
    assert not section["training"]["assumed"]


def test_the_section_fits_its_schema_and_is_drawn(slow_kind):
    section, _ = slow_kind
    again = json.loads(json.dumps(section, allow_nan=False))
    assert misfit(again, Presence) is None
    name, _, page = drawn({"presence": again})
    assert name == "presence"
    for text in (
        "Clients there by hour of the day",
        "How soon in virtual time",
        "Whom a deadline leaves out",
        "kind B",
    ):
        assert text in page
    assert drawn({}) is None


def test_answers_claim_only_what_intervals_show(slow_kind):
    section = json.loads(json.dumps(slow_kind[0]))
    training = section["training"]
    for part in training["parts"]:
        part["ratio"] = {"value": 0.5, "low": 0.2, "high": 1.01}
    training["asynchronous"] = {"answer": "no difference that these seeds show", "hours": 2.0, "low": None, "high": 9.0,
                                "at_least": False}  # fmt: skip
    section |= {"rhythm": 0.2, "kinds": {}}
    when, left_out, helps = advice(section)
    assert [item["answer"] for item in (when, left_out, helps)] == ["no rhythm shown", "not shown", "not shown"]
    training["asynchronous"] = {"answer": "yes", "hours": 2.0, "low": 1.5, "high": None, "at_least": True}
    assert "at least 2 hours sooner than synchronous rounds" in advice(section)[2]["text"]


def test_where_the_log_of_a_study_is_from():
    kind = np.arange(N) % 2
    fed, notes = data_of(kind), []
    data = prepare(fed)
    assert log_of(data, None, 0.0, notes) is None  # no dates
    other = sessions([f"phone {i}" for i in range(50)], np.arange(50.0), np.arange(50.0) + 60, window=(0.0, DAY))
    assert log_of(data, other, 0.0, notes).client is None
    assert "devices like them are drawn" in notes[-1]
    own = sessions(np.arange(40), np.arange(40.0), np.arange(40.0) + 60, window=(0.0, DAY))
    assert log_of(data, own, 0.0, notes).client.tolist() == list(range(40))
    assert "20 clients of 60 are not in the log" in notes[-1]
    days = np.datetime64("2024-03-01", "s") + np.arange(fed.n_rows).astype("timedelta64[m]") * 7
    dated = prepare(fed.with_column("when", days))
    rows = log_of(dated, None, 0.0, notes)
    assert rows.column == "when"
    assert rows.client.tolist() == list(range(N))
    whole = prepare(fed.with_column("when", days.astype("datetime64[D]").astype("datetime64[s]")))
    assert log_of(whole, None, 0.0, notes) is None  # dates without a time of day


def test_too_few_at_once_are_not_trained():
    data, notes = prepare(data_of(np.arange(N) % 2)), []
    log = sessions(np.arange(N), np.arange(N) * 3600.0, np.arange(N) * 3600.0 + 60, window=(0.0, 3 * DAY))
    where = log_of(data, log, 0.0, notes)
    budget = budget_of("30s", rounds=None, repeats=None)
    shares = np.eye(2)[np.arange(N) % 2]
    section = study_presence(data, shares, where, notes, learned={"true": []}, budget=budget, least=5, seed=0)
    assert "training" not in section
    assert "nothing was trained in virtual time" in notes[-1]
    assert len(advice(section)) == 1
