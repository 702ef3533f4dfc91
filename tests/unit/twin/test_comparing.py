"""Fidelity: calibrated where laws are the same, and against laws that differ in one aspect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_twin import planted

from fedscape import DataError, Federation, Key
from fedscape.twin import fidelity, fit, foretell, from_table, resampled, sessions
from fedscape.twin.comparing import ASPECTS, features, hours_of_day, observed_like
from fedscape.twin.events import DAY

RUNS = 200


def log_of(twin, n: int, seed: int, days: float = 7.0) -> Federation:
    return twin.sample(n, Key(seed)).sessions(0.0, days * DAY)


def test_p_values_of_equal_laws_are_uniform():
    """The level is right at 5% and at 30%, and the mean is a half: 200 pairs of logs, five standard errors."""
    twin = planted()
    p = np.array([[getattr(f, name).p for name in ASPECTS]
                  for f in (fidelity(log_of(twin, 40, 2 * r), log_of(twin, 40, 2 * r + 1), draws=99, seed=r)
                            for r in range(RUNS))])  # fmt: skip
    for level in (0.05, 0.3):
        spread = 5 * np.sqrt(level * (1 - level) / RUNS)
        assert (np.abs((p <= level).mean(axis=0) - level) < spread).all(), (level, (p <= level).mean(axis=0))
    assert (np.abs(p.mean(axis=0) - 0.5) < 5 * np.sqrt(1 / 12 / RUNS)).all()


def test_the_error_of_a_fit_widens_what_is_found_by_chance():
    """By the root of the variances' ratio: 1 / 20 of the fit beside 1 / 40 + 1 / 40."""
    logs = log_of(planted(), 40, 0), log_of(planted(), 40, 1)
    exact, fitted = (fidelity(*logs, fitted_to=n, draws=99) for n in (None, 20))
    for aspect in ASPECTS:
        a, b = getattr(exact, aspect), getattr(fitted, aspect)
        assert (b.value, b.alike) == (a.value, pytest.approx(np.sqrt(2) * a.alike))
        assert b.p >= a.p
    with pytest.raises(DataError, match="fitted_to must be"):
        fidelity(*logs, fitted_to=0)


@pytest.mark.parametrize(
    ("change", "aspect"),
    [
        (lambda a: {"daily": np.roll(a["daily"], 6, axis=1)}, "arrivals"),
        (lambda a: {"ends": 1.5 * a["ends"]}, "lengths"),
        (lambda a: {"daily": 0.6 * a["daily"]}, "returns"),
        (lambda a: {"shape": 0.1 * a["shape"]}, "devices"),
        (lambda a: {"ends": 1.5 * a["ends"]}, "presence"),
    ],
)
def test_another_law_is_told_apart_by_its_aspect(change, aspect):
    twin = planted()
    other = replace(twin, arrays={**twin.arrays, **change(twin.arrays)})
    assert getattr(fidelity(log_of(twin, 600, 1), log_of(other, 600, 2)), aspect).p < 0.01


def test_what_a_log_does_not_see_is_missing_in_both():
    """Spans of a fifth of the time would be taken for shorter gaps, were the simulated log not cut alike."""
    twin, rng = planted(), np.random.default_rng(0)
    table = np.where(rng.random((300, 14)) < 0.4, 0, -1)
    table[:, 0] = 0
    spans = from_table(table, step_minutes=720)
    true = observed_like(log_of(twin, 300, 1), spans, rng)
    assert fidelity(true, log_of(twin, 300, 2)).p > 0.01
    seen = features(true)["presence"][:, 24:].sum()
    assert seen == pytest.approx((table == 0).sum() * 12)


def test_hours_of_day_add_up_to_durations():
    rng = np.random.default_rng(1)
    start = rng.uniform(-2 * DAY, 5 * DAY, 50)
    end = start + rng.exponential(DAY, 50)
    hours = hours_of_day(start, end, np.arange(50), 50)
    np.testing.assert_allclose(hours.sum(axis=1), (end - start) / 3600)
    grid = np.arange(-2 * DAY, 20 * DAY, 60.0) + 30
    for i in range(5):
        inside = grid[(grid >= start[i]) & (grid < end[i])]
        np.testing.assert_allclose(
            hours[i], np.bincount((inside // 3600 % 24).astype(int), minlength=24) / 60, atol=0.04
        )


def test_a_twin_foretells_devices_of_its_law_within_its_intervals():
    true = planted()
    train, test = log_of(true, 200, 1), log_of(true, 300, 2)
    exact = foretell(true, test, draws=60)
    assert min(f.covered for f in exact.values()) > 0.8
    twins = [fit(resampled(train, Key(s)), n_kinds=2, n_init=1, rounds=24) for s in range(5)]
    several = foretell(twins, test, draws=60)
    for name, forecast in several.items():  # the error of the fit is in the intervals of several twins
        assert (forecast.high - forecast.low).mean() > 1.1 * (exact[name].high - exact[name].low).mean()
    false = replace(true, arrays={**true.arrays, "daily": np.roll(true.arrays["daily"], 6, axis=1)})
    assert foretell(false, test, draws=40)["arrivals by hour"].covered < 0.5


def test_few_devices_are_refused():
    log = sessions(["a"], [0.0], [1.0], window=(0.0, 9.0))
    with pytest.raises(DataError, match="needs 20 devices of each, got 1 and 1"):
        fidelity(log, log)


def test_logs_that_cannot_be_compared_are_refused():
    log = log_of(planted(), 40, 1)
    with pytest.raises(DataError, match="must lie in the same time"):
        fidelity(log, planted().sample(40, Key(2)).sessions(30 * DAY, 37 * DAY))
    with pytest.raises(DataError, match="the true log has no session"):
        fidelity(log.where(log["watch"] == 1), log)
    with pytest.raises(DataError, match="draws must be a whole number"):
        fidelity(log, log, draws=0)
    for twins, options in (([], {}), ([planted()], {"level": 2})):
        with pytest.raises(DataError, match="foretell needs a twin"):
            foretell(twins, log, **options)
