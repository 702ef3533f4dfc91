"""Participation bias: planted, found, sized and mended; and where mending only adds variance."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation, Gaussian, Histogram, Key, rounds
from fedscape.sketches import DistributionSketch
from fedscape.sketches.distribution import ClientSketches
from fedscape.twin import (
    InverseProbability,
    Probabilities,
    Synchronous,
    always,
    chances,
    participation,
    schedule,
    train,
)

N, SLOW = 400, 100  # devices, and those of them that are slow


def timetable(seed: int, n_updates: int = 60):
    """A round ends with the fastest two thirds, of which fewer are slow."""
    seconds = np.where(np.arange(N) < SLOW, 100.0, 60.0)
    devices = always(N, key=Key(seed)).with_speed(seconds, within=0.5)
    protocol = Synchronous(40, over=1.5, deadline=600.0)
    return schedule(devices, protocol, days=5, n_updates=n_updates, key=Key(seed))


def kinds() -> np.ndarray:
    return (np.arange(N) >= SLOW).astype(int)


def test_planted_bias_is_found_and_sized():
    table = timetable(0)
    slow, fast = participation(table, kinds())
    share = table.used[:SLOW].sum() / table.used.sum()
    assert slow.share == pytest.approx(share)
    assert slow.ratio_high < 0.9 < 1 < fast.ratio_low
    assert slow.ratio == pytest.approx(4 * share)


def test_intervals_of_shares_cover_the_share_of_many_runs():
    shares = [participation(timetable(s, 10), kinds())[0] for s in range(60)]
    truth = np.mean([p.share for p in shares])
    covered = np.mean([p.share_low <= truth <= p.share_high for p in shares])
    assert covered >= 0.95 - 5 * np.sqrt(0.95 * 0.05 / 60)


def test_intervals_of_a_nearly_absent_kind_still_cover():
    """Eight devices of 400 that nearly never make it: mostly no report at all, and the interval is no point."""
    kind, runs = (np.arange(N) >= 8).astype(int), 80
    parts = []
    for seed in range(runs):
        devices = always(N, key=Key(seed)).with_speed(np.where(kind == 0, 190.0, 60.0), within=0.5)
        protocol = Synchronous(40, over=1.5, deadline=600.0)
        parts.append(participation(schedule(devices, protocol, days=5, n_updates=4, key=Key(seed)), kind)[0])
    truth = np.mean([p.share for p in parts])
    assert 0 < truth < 0.004  # of a fair 0.02
    assert sum(p.share == 0 for p in parts) > 10
    assert all(p.share_high > 0 for p in parts)
    covered = np.mean([p.share_low <= truth <= p.share_high for p in parts])
    assert covered >= 0.95 - 5 * np.sqrt(0.95 * 0.05 / runs)
    assert all(p.rare for p in parts)


def test_kinds_that_weights_cannot_mend_are_named():
    odds = Probabilities(np.array([1.2, 0.3, 0.05, 0.0]), most=10.0)
    assert odds.beyond() == [2, 3]
    assert odds.weights(np.eye(4)).tolist() == pytest.approx([1 / 1.2, 1 / 0.3, 10.0, 10.0])


def test_the_gap_of_a_metric_is_found_with_its_interval():
    rng = np.random.default_rng(0)
    metric = np.where(kinds() == 0, 0.6, 0.8) + rng.normal(0, 0.1, N)
    slow, fast = participation(timetable(0), kinds(), metric=metric)
    assert slow.gap == pytest.approx(metric[:SLOW].mean() - metric.mean())
    assert slow.gap_high < 0 < fast.gap_low


def biased(seed: int, *, related: bool, weighted: bool) -> float:
    """The share of label 1 that a mean over reports gives; 1 is the label of slow devices if labels are related."""
    slow = kinds() == 0
    labels = slow.astype(int) if related else np.random.default_rng(seed).permutation(slow.astype(int))
    odds = chances(timetable(1000, 1500), kinds())
    weight = odds.weights(np.eye(2)[kinds()])
    fed = Federation({"y": labels, "weight": weight}, np.arange(N + 1))
    computation = InverseProbability(Histogram(2)) if weighted else Histogram(2)
    total = np.zeros(2)
    for update in train(computation, fed, timetable(seed), seed=seed):
        total += update.state["counts"]
    return float(total[1] / total.sum())


def test_weights_mend_what_is_related_and_only_add_variance_where_nothing_is():
    truth, runs = SLOW / N, 12
    plain = np.array([biased(s, related=True, weighted=False) for s in range(runs)])
    mended = np.array([biased(s, related=True, weighted=True) for s in range(runs)])
    assert plain.mean() + 5 * plain.std() / np.sqrt(runs) < truth - 0.02  # slow devices are left out
    assert mended.mean() == pytest.approx(truth, abs=5 * mended.std(ddof=1) / np.sqrt(runs))
    odds, shares = chances(timetable(1000, 1500), kinds()), np.eye(2)[kinds()]
    assert odds.effective(shares, timetable(3)) < 0.95  # reports that the weights leave, of 1
    assert Probabilities(np.ones(2)).effective(shares, timetable(3)) == pytest.approx(1.0)


def test_weights_are_capped_and_bad_ones_refused():
    assert Probabilities(np.array([1e-6]), most=5.0).weights([[1.0]]).tolist() == [5.0]
    fed = Federation({"y": [0, 1], "weight": [1.0, 100.0]}, [0, 1, 2])
    state = next(rounds(InverseProbability(Histogram(2), most=4.0), fed, n_rounds=1)).state
    assert state["counts"].tolist() == [1.0, 4.0]
    with pytest.raises(DataError, match="must hold weights of at least 0"):
        next(rounds(InverseProbability(Histogram(2)), fed.with_column("weight", [-1.0, 1.0]), n_rounds=1))
    with pytest.raises(DataError, match="most must be at least 1"):
        InverseProbability(Histogram(2), most=0.5)
    revealing = next(c for c, _ in ClientSketches.examples())
    with pytest.raises(DataError, match="reveals rows"):
        InverseProbability(revealing)
    assert not DistributionSketch.reveals


def test_a_private_weighted_sum_stays_within_its_clip():
    fed = Federation({"y": [0, 1], "weight": [1.0, 9.0]}, [0, 1, 2])
    privacy = Gaussian(clip=1.0, multiplier=1e-6, noise_seed=0)
    state = next(rounds(InverseProbability(Histogram(2)), fed, n_rounds=1, privacy=privacy)).state
    assert state["counts"].max() < 1.0  # a row of (0, 9, weight 9) has length 12.7


def test_kinds_must_fit_the_timetable():
    with pytest.raises(DataError, match="one for each of the 400 devices"):
        participation(timetable(0, 3), [0, 1])
    with pytest.raises(DataError, match="kinds must be whole numbers"):
        participation(timetable(0, 3), np.full(400, np.nan))
    for wrong in (np.full(400, -1), np.full(400, 3)):
        with pytest.raises(DataError, match="kinds must be codes from 0 on, below n_kinds"):
            chances(timetable(0, 3), wrong, n_kinds=2)
    with pytest.raises(DataError, match="shares must be"):
        chances(timetable(0, 3), np.zeros(400, dtype=int)).weights(np.ones((3, 5)))
