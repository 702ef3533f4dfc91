"""The clock read from a curve: the true period within its interval, and no cycle where there is none."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedscape import DataError, datasets
from fedscape.temporal import Blocks, Cosine, Cycle, Linear, read_clock


def curve(q, n: int, *, noise: float = 0.05, seed: int = 0, likeness: float = 0.3) -> np.ndarray:
    """A training curve: it rises, swings with q, and neighbouring rounds are alike."""
    rng = np.random.default_rng(seed)
    shocks, left = rng.normal(0, noise, n), np.zeros(n)
    for t in range(1, n):
        left[t] = likeness * left[t - 1] + shocks[t]
    t = np.arange(n)
    return 0.8 - 0.5 * np.exp(-t / (n / 8)) + 0.1 * np.array([q.shares(u)[0] for u in t]) + left


@pytest.mark.parametrize("kind", [Linear, Cosine])
@pytest.mark.parametrize("p", [0.25, 1.0, 4.0])
def test_the_period_is_within_five_percent_whatever_the_shape(kind, p):
    cycle = read_clock(curve(kind(64, p), 513))
    assert cycle.period == pytest.approx(64, rel=0.05)
    assert cycle.interval[0] <= 64 <= cycle.interval[1]
    turn = min(cycle.peak, 64 - cycle.peak)
    assert turn < 9  # the peak is at round 0 of a period
    if p == 1:
        assert cycle.valley == pytest.approx(32, abs=7)


def test_block_cyclic_curves_have_their_period_too():
    assert read_clock(curve(Blocks(50), 400)).period == pytest.approx(50, rel=0.05)


def test_intervals_cover_the_period_and_no_cycle_is_an_answer():
    inside = silent = 0
    for seed in range(20):
        cycle = read_clock(curve(Linear(40), 260, noise=0.03, seed=seed), seed=seed)
        inside += cycle.period is not None and cycle.interval[0] <= 40 <= cycle.interval[1]
        silent += read_clock(walk(seed), seed=seed).period is None
    assert inside >= 20 * 0.95 - 5 * np.sqrt(20 * 0.95 * 0.05)
    assert silent >= 20 * 0.99 - 5 * np.sqrt(20 * 0.99 * 0.01)


def walk(seed: int) -> np.ndarray:
    """Noise that wanders, without any period."""
    rng, y = np.random.default_rng(1000 + seed), np.zeros(260)
    for t in range(1, 260):
        y[t] = 0.8 * y[t - 1] + rng.normal()
    return y


def test_rounds_without_a_number_are_left_out():
    y = curve(Linear(40), 400)
    y[::7] = np.nan
    y[100:130] = np.nan
    assert read_clock(y).period == pytest.approx(40, rel=0.05)


def test_a_prior_is_made_of_what_was_read():
    cycle = Cycle(48.0, (47.0, 49.0), 8.0, 26.0, 0.005, 0.5)
    for kind in ("linear", "cosine"):
        prior = cycle.prior(kind)
        assert (prior(8), prior(8 + 48)) == pytest.approx((1, 1))
        assert prior(26) == pytest.approx(0, abs=1e-12)
    assert repr(cycle) == "Cycle(period 48 [47, 49], peak 8, valley 26, p = 0.005)"
    with pytest.raises(DataError, match="no cycle to make a prior of"):
        Cycle(None, None, None, None, 0.4, 0.0).prior()
    with pytest.raises(DataError, match="kind must be"):
        cycle.prior("soft")


def test_what_is_no_curve_is_refused():
    for values in (np.zeros(5), np.zeros((40, 2)), np.r_[np.ones(40), np.inf]):
        with pytest.raises(DataError, match="values must be at least 24 finite numbers"):
            read_clock(values)
    assert read_clock(np.ones(60)).period is None


@pytest.mark.parametrize(("draws", "significance"), [(99, 0.009), (19, 0.01), (199, 0.0), (199, 1.0)])
def test_a_significance_that_no_p_value_can_reach_is_refused(draws, significance):
    t = np.arange(100)
    with pytest.raises(DataError, match=r"significance must be between 0 and 1, and at least 1 / \(draws \+ 1\)"):
        read_clock(np.cos(2 * np.pi * t / 20), draws=draws, significance=significance)


def test_a_clear_cycle_reaches_the_smallest_significance_there_is():
    curve = np.cos(2 * np.pi * np.arange(100) / 20) + np.random.default_rng(0).normal(0, 0.1, 100)
    for draws in (19, 49, 99):
        assert read_clock(curve, draws=draws, significance=1 / (draws + 1)).period == pytest.approx(20, abs=1)


@pytest.mark.skipif("FEDSCAPE_DATA" not in os.environ, reason="needs the phones' trace")
def test_on_the_phones_trace_the_interval_covers_a_day():
    fed = datasets.load("phones")
    table = fed["available"].reshape(len(fed), -1)
    cycle = read_clock((table == 1).sum(axis=0))
    assert cycle.interval[0] / 2 <= 24 <= cycle.interval[1] / 2  # slots of half an hour
    assert 23 < cycle.period / 2 < 25
