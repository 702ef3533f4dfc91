"""A study that sees dates: it finds the cycle without being told it, what the shift costs, and whether it is mended."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation
from fedscape.studies.clock import advice, study_clock
from fedscape.studies.prepare import prepare


def shop(*, cycle: bool, days: int = 14, seed: int = 0) -> Federation:
    """Clients whose rows of the night have other labels, told by other features, or the same all day."""
    rng, clients, each = np.random.default_rng(seed), 24, 12 * days
    hour = np.sort(rng.integers(0, 24 * days, (clients, each)), axis=1)
    share = 0.5 + 0.5 * np.cos(2 * np.pi * hour / 24) if cycle else np.full(hour.shape, 0.5)
    night = rng.random(hour.shape) < share
    a = rng.normal(size=hour.shape)
    y = 2 * night + ((a > 0) ^ night)
    time = np.datetime64("2024-03-01T00:00", "s") + (3600 * hour + 60).astype("timedelta64[s]")
    columns = {"time": time.ravel(), "a": a.ravel(), "b": (night + 0.6 * rng.normal(size=hour.shape)).ravel()}
    return Federation({**columns, "y": y.ravel()}, np.arange(0, clients * each + 1, each))


@pytest.fixture(scope="module")
def daily():
    return study_clock(prepare(shop(cycle=True)), seed=0)


def test_the_period_is_read_from_the_labels(daily):
    assert daily["unit"] == "hour"
    assert daily["period"] == pytest.approx(24, abs=1)
    low, high = daily["interval"]
    assert low < 24 < high
    assert daily["p"] < 0.01


def test_accuracies_and_the_verdict_are_told_in_a_sentence(daily):
    assert set(daily["accuracy"]) == {"through time", "mean network", "shuffled time", "FedClock", "verdict"}
    item = advice(daily)
    assert item["answer"] == "yes"
    assert "hours" in item["text"]
    for name in ("FedClock", "mean network"):
        assert f"{100 * daily['accuracy'][name]:.1f}% right" in item["text"]
    assert daily["accuracy"]["FedClock"] > daily["accuracy"]["through time"] - 0.02


def test_no_cycle_is_an_answer():
    section = study_clock(prepare(shop(cycle=False)), seed=0)
    assert section["period"] is None
    assert advice(section)["answer"] == "no"
    assert "accuracy" not in section


def test_without_dates_or_with_too_little_time_nothing_is_said():
    fed = shop(cycle=True)
    assert study_clock(prepare(fed.select(["a", "b", "y"])), seed=0) is None
    assert study_clock(prepare(shop(cycle=True, days=1)), seed=0) is None
