"""Curves, priors and server assignment against tables worked out by hand; samplers against their law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import gamma

from fedscape import All, DataError, Federation, FixedSize, Gaussian, Key, Ledger, Moments, Poisson, calibrate, rounds
from fedscape.temporal.availability import Clock, Dropping, Shifting, Trace, by_mode
from fedscape.temporal.curves import Blocks, Cosine, Linear, Steady, Zones, parse_curve
from fedscape.temporal.priors import Soft, assign, certainty, counts_of_modes, expected, parse_prior

PS = (0.1, 0.25, 0.5, 1, 2, 4, 10)


# -- curves ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "table"),
    [
        (Linear(8), [1, 0.75, 0.5, 0.25, 0, 0.25, 0.5, 0.75, 1]),
        (Linear(8, 2), [1, 0.5625, 0.25, 0.0625, 0, 0.0625, 0.25, 0.5625, 1]),
        (Cosine(8), [1, 0.853553, 0.5, 0.146447, 0, 0.146447, 0.5, 0.853553, 1]),
        (Cosine(8, 0.5), [1, 0.923880, 0.707107, 0.382683, 0, 0.382683, 0.707107, 0.923880, 1]),
    ],
)
def test_curves_at_every_round_of_a_period_as_by_hand(curve, table):
    np.testing.assert_allclose([curve(t) for t in range(9)], table, atol=1e-6)
    np.testing.assert_allclose([curve.shares(t)[1] for t in range(9)], 1 - np.array(table), atol=1e-6)
    assert curve(8 * 1000 + 3) == pytest.approx(curve(3))


@pytest.mark.parametrize("p", PS)
def test_mean_of_q_over_a_period_is_the_closed_form(p):
    t = (np.arange(100_000) + 0.5) / 100_000 * 256
    assert np.mean([Linear(256, p)(u) for u in t[::10]]) == pytest.approx(1 / (p + 1), abs=1e-3)
    known = gamma(p + 0.5) / (np.sqrt(np.pi) * gamma(p + 1))
    assert np.mean([Cosine(256, p)(u) for u in t[::10]]) == pytest.approx(known, abs=1e-3)


def test_peak_and_valley_may_lie_anywhere():
    curve = Linear(10, peak=2, valley=5)
    np.testing.assert_allclose([curve(t) for t in (2, 3, 5, 12, 8.5)], [1, 2 / 3, 0, 1, 0.5], atol=1e-12)
    assert Cosine(10, peak=2, valley=5)(5) == pytest.approx(0, abs=1e-12)


def test_blocks_switch_at_once_and_no_shift_never():
    assert [int(Blocks(6).shares(t)[0]) for t in range(8)] == [1, 1, 1, 0, 0, 0, 1, 1]
    assert [int(Blocks(6, 3).shares(t).argmax()) for t in range(7)] == [0, 0, 1, 1, 2, 2, 0]
    np.testing.assert_allclose(Steady(2, (1, 3)).shares(5), [0.25, 0.75])


def test_three_zones_are_one_curve_a_third_of_a_day_apart():
    zones = Zones(12, 3)
    for t in range(24):
        np.testing.assert_allclose(zones.shares(t), np.roll(zones.shares(t + 4), -1), atol=1e-12)
        assert zones.shares(t).sum() == pytest.approx(1)
    np.testing.assert_allclose(zones.shares(0), [2 / 3, 1 / 6, 1 / 6], atol=1e-12)


def test_a_schedule_is_read_as_it_is_written_and_refused_by_name():
    assert parse_curve("cosine:p=0.25,T=64") == Cosine(64, 0.25)
    assert parse_curve("blocks:T=8,K=3") == Blocks(8, 3)
    assert parse_prior("cosine", 9) == Cosine(9)
    assert parse_prior("linear:T=7", 9) == Linear(7)
    for text, said in (
        ("wave:T=3", "must begin with one of linear"),
        ("linear:q=3", "takes T, p, peak, valley, not 'q'"),
        ("linear:p=x", "p must be a number, not 'x'"),
        ("linear:T=-4", "period and p must be positive"),
    ):
        with pytest.raises(DataError, match=said):
            parse_curve(text)


# -- priors and assignment ---------------------------------------------------------------------------------------------


def test_the_soft_prior_against_a_table_by_hand():
    soft, q, made = Soft(8), np.array([0.5, 0.5]), []
    seen = [0.3, 0.9, 0.95, 0.4, 0.6, 0.2, 0.1, 0.7, 0.0]
    for t, s in enumerate(seen):
        q = expected(soft, t, before=q, seen=s, last=t - 1)
        made.append(q[0])
    #       peak  down  no     down valley up  no   up   peak
    assert made == [1, 0.9, 0.9, 0.4, 0, 0.2, 0.2, 0.7, 1]


def test_a_soft_prior_begins_anew_when_the_turning_round_was_abandoned():
    assert Soft(8).follow(9, before=0.2, seen=0.9, last=7) == 0.9  # not min(0.2, ...): round 8 was the peak
    assert Soft(8).follow(6, before=0.8, seen=0.1, last=3) == 0.1


@pytest.mark.parametrize(
    ("q", "m", "first"),
    [(1, 10, 10), (0, 10, 0), (0.5, 5, 3), (0.25, 10, 3), (0.24, 10, 2), (0.65, 10, 7), (0.04, 9, 0)],
)
def test_the_first_mode_gets_floor_of_q_m_and_a_half(q, m, first):
    assert counts_of_modes(np.array([q, 1 - q]), m).tolist() == [first, m - first]


def test_assignment_takes_the_highest_shares_and_an_empty_mode_is_possible():
    shares = np.log([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5], [0.6, 0.4]])
    table = {1.0: [0, 0, 0, 0], 0.5: [1, 0, 1, 0], 0.25: [1, 0, 1, 1], 0.1: [1, 1, 1, 1], 0.0: [1, 1, 1, 1]}
    for q, modes in table.items():
        assert assign(shares, np.array([q, 1 - q])).tolist() == modes
    assert assign(shares, None).tolist() == [1, 0, 0, 0]


def test_shares_that_round_to_one_are_still_ranked():
    odds = np.array([900.0, 2000.0, 800.0])
    logs = np.stack([np.zeros(3), -odds], axis=1)  # as shares, all would be exactly 1
    assert assign(logs, np.array([1 / 3, 2 / 3])).tolist() == [1, 0, 1]


def test_assignment_to_three_modes_is_the_best_of_all_with_these_counts():
    rng = np.random.default_rng(0)
    logs = np.log(rng.dirichlet(np.ones(3), 6))
    shares = np.array([0.5, 0.2, 0.3])
    made = assign(logs, shares)
    counts = counts_of_modes(shares, 6)
    assert np.bincount(made, minlength=3).tolist() == counts.tolist()
    every = (
        m for m in itertools.product(range(3), repeat=6) if np.bincount(m, minlength=3).tolist() == counts.tolist()
    )
    best = max(sum(logs[i, k] for i, k in enumerate(m)) for m in every)
    assert logs[np.arange(6), made].sum() == pytest.approx(best)


def test_certainty_is_that_of_equation_27_for_two_modes():
    for q in (0, 0.2, 0.5, 0.9, 1):
        assert certainty(np.array([q, 1 - q])) == pytest.approx(2 * abs(0.5 - q))
    assert certainty(np.full(3, 1 / 3)) == pytest.approx(0)


# -- samplers ----------------------------------------------------------------------------------------------------------


def clients(n: int) -> Federation:
    return Federation({}, [0] * (n + 1))


def test_a_cohort_has_the_curve_s_share_of_each_mode():
    modes = np.repeat([0, 1], 60)
    sampler = Shifting(modes, Cosine(16, 0.5), 10)
    for t in (0, 3, 6, 8):
        q = Cosine(16, 0.5)(t)
        drawn = [sampler.draw(clients(120), Key(s, t)) for s in range(400)]
        first = np.array([(modes[c] == 0).sum() for c in drawn])
        assert all(len(c) == 10 and (np.diff(c) > 0).all() for c in drawn)
        assert abs(first.mean() - 10 * q) <= 5 * np.sqrt(10 * q * (1 - q) / 400) + 1e-12
        if 0 < q < 1:  # binomial, not fixed counts
            assert abs(first.var() - 10 * q * (1 - q)) < 5 * 10 * q * (1 - q) * np.sqrt(2 / 400) + 0.2


def test_members_of_a_mode_are_drawn_alike():
    sampler = Shifting(np.repeat([0, 1], 10), Steady(2), 6)
    times = np.bincount(np.concatenate([sampler.draw(clients(20), Key(s, 1)) for s in range(2000)]), minlength=20)
    assert np.abs(times - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


def test_a_draw_is_a_function_of_seed_and_round_and_a_small_mode_gives_all_it_has():
    sampler = Shifting([0, 0, 0, 1], Steady(2, (0, 1)), 3)
    assert sampler.draw(clients(4), Key(0, 5)).tolist() == [3]
    wide = Shifting(np.repeat([0, 1], 50), Linear(8), 9)
    assert wide.draw(clients(100), Key(3, 5)).tolist() == wide.draw(clients(100), Key(3, 5)).tolist()
    assert wide.draw(clients(100), Key(3, 5)).tolist() != wide.draw(clients(100), Key(3, 6)).tolist()


def test_samplers_refuse_what_does_not_fit():
    with pytest.raises(DataError, match="modes go up to 2, but the curve has 2"):
        Shifting([0, 2], Linear(8), 1)
    with pytest.raises(DataError, match="modes must be whole numbers"):
        Shifting([0.5], Linear(8), 1)
    with pytest.raises(DataError, match="there are 3 clients, but modes of 2"):
        Shifting([0, 1], Linear(8), 1).draw(clients(3), Key(0))
    with pytest.raises(DataError, match="available must be 1, 0 or -1"):
        Trace([[2, 0]])
    with pytest.raises(DataError, match="there are 3 clients, but the trace has 1 rows"):
        Trace([[1, 0]]).draw(clients(3), Key(0))
    with pytest.raises(DataError, match="rate of drop-out"):
        Dropping(All(), 1.0)


def test_a_trace_is_followed_slot_by_slot_and_unknown_is_away():
    trace = Trace([[1, 0, -1, 1], [1, 1, 0, -1], [0, 1, 1, 1]], clock=Clock("2020-01-29", minutes=15))
    drawn = [trace.draw(clients(3), Key(0, t)).tolist() for t in range(9)]
    assert drawn == [[0, 1], [0, 1], [1, 2], [1, 2], [2], [2], [0, 2], [0, 2], [0, 1]]
    assert str(trace.date(5)) == "2020-01-29T01:15:00"
    one = Trace([[1], [1], [1]], size=1)
    seen = np.bincount([int(one.draw(clients(3), Key(s))[0]) for s in range(600)], minlength=3)
    assert np.abs(seen - 200).max() < 5 * np.sqrt(600 * 2 / 9)


def test_a_trace_of_phones_is_dealt_to_any_number_of_clients():
    time = np.tile(np.datetime64("2020-01-29T00:00", "m") + np.arange(4) * np.timedelta64(30, "m"), 3)
    phones = Federation(
        {"available": np.array([1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1], np.int8), "time": time}, [0, 4, 8, 12]
    )
    trace = Trace.of_phones(phones, 7, seed=1)
    there = np.stack([np.isin(np.arange(7), trace.draw(clients(7), Key(0, t))) for t in range(4)], axis=1)
    kinds = {tuple(row) for row in there.astype(int).tolist()}
    assert kinds == {(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 1)}
    assert str(trace.date(2)) == "2020-01-29T01:00:00"


def test_drop_out_thins_any_sampler_and_an_empty_round_is_abandoned():
    kept = [len(Dropping(FixedSize(50), 0.3).draw(clients(200), Key(s))) for s in range(200)]
    assert abs(np.mean(kept) - 35) < 5 * np.sqrt(50 * 0.21 / 200)
    trace = Trace([[1, 0], [1, 0]])
    fed = Federation({"x": [1.0, 2.0]}, [0, 1, 2])
    assert [r.abandoned for r in rounds(Moments(), fed, n_rounds=4, sampler=trace)] == [False, True, False, True]


def test_a_simulated_day_has_dates():
    day = Shifting([0, 1], Linear(48), 1, clock=Clock("2024-05-01T06:00", minutes=30))
    assert str(day.date(3)) == "2024-05-01T07:30:00"
    assert Clock("2024-05-01T06:00", minutes=30).hour(3) == 7.5
    assert str(Dropping(day, 0.1).date(3)) == "2024-05-01T07:30:00"
    with pytest.raises(DataError, match="start must be a date"):
        Clock("noon")


@pytest.mark.parametrize("minutes", [0.1, 0.3, 0.7, 1.1, 30.0])
def test_a_round_a_slot_is_the_slot_of_its_number_whatever_its_minutes(minutes):
    trace = Trace(np.eye(50, dtype=int), step_minutes=minutes, clock=Clock(minutes=minutes))
    fed = Federation({}, [0] * 51)
    assert [trace.draw(fed, Key(0, t)).tolist() for t in range(100)] == [[t % 50] for t in range(100)]


def test_rows_of_several_modes_become_several_clients():
    fed = Federation({"y": [3, 12, 4, 40, 41]}, [0, 3, 3, 5], ids=["a", "none", "b"])
    cut, modes = by_mode(fed, np.searchsorted([10, 36], fed["y"], side="right"))
    assert cut.ids.tolist() == ["a/0", "a/1", "b/2"]
    assert modes.tolist() == [0, 1, 2]
    assert [cut.client(i)["y"].tolist() for i in cut.ids] == [[3, 4], [12], [40, 41]]
    with pytest.raises(DataError, match="one for each of the 5 rows"):
        by_mode(fed, [0, 1])


# -- what the accountant makes of them ---------------------------------------------------------------------------------


def test_schedules_are_booked_at_rate_one_and_fixed_sizes_as_exchanges():
    privacy = Gaussian(clip=1.0, multiplier=2.0)
    shifting = privacy.entries(Shifting([0, 1], Linear(8), 1), 2)["sum"]
    assert (shifting["sampling"], shifting["relation"], shifting["multiplier"]) == ({"kind": "all"}, "replace-one", 1.0)
    everyone = privacy.entries(Trace([[1, 0]]), 1)["sum"]
    assert (everyone["sampling"], everyone["relation"], everyone["multiplier"]) == ({"kind": "all"}, "add-remove", 2.0)
    assert privacy.entries(Trace([[1, 0]], size=1), 1)["sum"]["relation"] == "replace-one"
    assert privacy.entries(Dropping(FixedSize(2), 0.1), 9)["sum"]["relation"] == "replace-one"
    assert privacy.entries(Dropping(Poisson(0.1), 0.1), 9)["sum"]["relation"] == "add-remove"


def test_a_private_run_on_a_schedule_is_in_the_ledger_round_by_round():
    fed = Federation({"x": np.ones(8)}, np.arange(9))
    ledger = Ledger()
    sampler = Shifting(np.repeat([0, 1], 4), Linear(4), 2)
    private = {"privacy": Gaussian(clip=1.0, multiplier=1.0), "ledger": ledger}
    assert len(list(rounds(Moments(), fed, n_rounds=3, sampler=sampler, **private))) == 3
    assert sum(e["kind"] == "release" for e in ledger.entries()) == 3
    assert list(ledger.spent()) == [("client", "replace-one", "central")]


def test_parts_of_one_client_are_accounted_for_together():
    """A client cut into two is in a cohort twice: replacing it moves a sum of clipped vectors by four clips."""
    fed, modes = by_mode(Federation({"x": [1.0, 1.0, 0.5, 0.5]}, [0, 2, 4]), [0, 1, 0, 1])
    other, _ = by_mode(Federation({"x": [-1.0, -1.0, 0.5, 0.5]}, [0, 2, 4]), [0, 1, 0, 1])
    moved = abs(float(fed["x"].sum() - other["x"].sum()))  # every value is a vector of the length of one clip or less
    privacy = Gaussian(clip=1.0, multiplier=8.0)
    booked = privacy.entries(Shifting(modes, Steady(2), 4, parts=2), 4)["sum"]["multiplier"]
    assert booked == 8.0 / moved == 2.0
    assert privacy.entries(Shifting(modes, Steady(2), 4), 4)["sum"]["multiplier"] == 4.0
    whole, cut = (
        calibrate(2.0, 1e-5, rounds=5, sampler=Shifting(modes, Steady(2), 4, parts=parts)) for parts in (1, 2)
    )
    assert cut == pytest.approx(2 * whole, rel=0.01)
    with pytest.raises(DataError, match="parts must be at least 1, not 0"):
        Shifting(modes, Steady(2), 4, parts=0)
