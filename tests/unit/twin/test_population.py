"""The fit of a twin: closed forms, recovery of planted kinds, privacy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_twin import planted
from scipy.stats import multivariate_normal, nbinom

from fedscape import DataError, Federation, Gaussian, Key, Ledger
from fedscape.errors import CheckpointError
from fedscape.twin import DevicePopulation, Twin, fidelity, fit, load, sessions
from fedscape.twin.events import DAY, HOUR
from fedscape.twin.laws import activity_posterior, lognormal_posterior, moments, rates
from fedscape.twin.tables import LENGTHS

WINDOW = 21 * DAY


def log_of(devices, seed: int = 0):
    """Sessions with the columns that a log of true work has."""
    rng, plain = np.random.default_rng(seed), devices.sessions(0.0, WINDOW)
    rows = np.flatnonzero(plain["watch"] == 0)
    who = plain.client_of_row[rows]
    moved = rng.lognormal(14, 0.3, len(rows))
    columns = {
        "work": devices.seconds[who] * np.exp(rng.normal(0, devices.within[who])),
        "bytes": moved,
        "transfer": moved / devices.bandwidth[who],
        "finished": (rng.random(len(rows)) < devices.finish[who]).astype(int),
        "data": devices.data[who],
    }
    window = (0.0, WINDOW)
    return sessions(who, plain["start"][rows], plain["end"][rows], window=window, ids=plain.ids, columns=columns)


def in_order(twin: Twin) -> dict:
    """Arrays with the kind of long sessions first."""
    order = np.argsort(twin.arrays["ends"].mean(axis=(1, 2)))
    return {name: values[order] for name, values in twin.arrays.items()}


def test_arrivals_are_negative_binomial_given_what_is_expected():
    shape, expected = 1.7, 2.4
    number = np.arange(6.0)[:, None, None]
    mine = activity_posterior(number, np.full((6, 1, 1), expected), np.array([shape])).log_likelihood[:, 0, 0]
    theirs = nbinom(shape, shape / (shape + expected)).logpmf(np.arange(6))
    factor = np.arange(6) * np.log(expected) - np.array([np.log(float(np.prod(np.arange(1, n + 1)))) for n in range(6)])
    np.testing.assert_allclose(mine + factor, theirs, rtol=1e-12)


def test_speeds_have_the_likelihood_of_a_normal_with_an_effect_of_the_device():
    y, law = np.array([1.0, 2.5, 0.3]), np.array([[0.7, 1.3, 0.6], [0.0, 0.2, 2.0]])
    sums = np.array([[len(y), y.sum(), (y**2).sum()]])
    for k, (mean, between, within) in enumerate(law):
        covariance = within**2 * np.eye(3) + between**2
        theirs = multivariate_normal(np.full(3, mean), covariance).logpdf(y)
        assert lognormal_posterior(sums, law)[0][0, k] == pytest.approx(theirs, rel=1e-12)


def test_one_kind_of_even_rates_has_the_rates_of_counting():
    """Without rhythm, frailty and kinds the maximum is occurrences over exposure."""
    devices = planted(
        weights=np.array([[1.0], [0.0]]), daily=np.full((2, 24), 0.1), weekly=np.ones((2, 7)),
        recency=np.ones((2, 3)), shape=np.full(2, 400.0),
    ).sample(300, Key(1))  # fmt: skip
    log = devices.sessions(0.0, WINDOW)
    length = (log["end"] - log["start"])[log["watch"] == 0].sum() / HOUR
    ended = ((log["watch"] == 0) & (log["start"] > 0) & (log["end"] < WINDOW)).sum()
    twin = fit(log, n_kinds=1, lengths=(0.5,), ages=(1.0,), rounds=40, smoothing=0.0)
    rate = rates(twin.arrays["daily"], twin.arrays["weekly"], twin.arrays["recency"]).mean()
    assert rate == pytest.approx(0.1, abs=5 * 0.1 / np.sqrt(ended))
    assert twin.arrays["ends"].mean() == pytest.approx(ended / length, rel=0.1)


def test_planted_kinds_are_found_again():
    true = planted()
    devices = true.sample(800, Key(3))
    twin = fit(log_of(devices), n_kinds=2, n_init=2, rounds=60, ages=true.ages)
    mine, theirs = in_order(twin), true.arrays
    n = np.array([0.4, 0.6]) * 800
    np.testing.assert_allclose(mine["weights"][:, 0], theirs["weights"][:, 0], atol=5 * np.sqrt(0.24 / 800))
    np.testing.assert_allclose(mine["finished"], theirs["finished"], atol=0.02)
    np.testing.assert_allclose(mine["data"], theirs["data"], atol=5 * 0.5 / np.sqrt(n.min()))
    for name in ("work", "bandwidth"):
        np.testing.assert_allclose(mine[name][:, 0], theirs[name][:, 0], atol=5 * 0.5 / np.sqrt(n.min()))
        np.testing.assert_allclose(mine[name][:, 1], theirs[name][:, 1], rtol=0.15)
    np.testing.assert_allclose(mine["work"][:, 2], theirs["work"][:, 2], rtol=0.15)
    np.testing.assert_allclose(mine["shape"], theirs["shape"], rtol=0.5)
    np.testing.assert_allclose(mine["recency"][:, 0], theirs["recency"][:, 0], rtol=0.2)
    np.testing.assert_allclose(mine["weekly"][1, 5:].mean() / mine["weekly"][1, :5].mean(), 0.5 / 1.2, rtol=0.1)
    np.testing.assert_allclose(np.log(mine["daily"] / theirs["daily"]), 0.0, atol=0.7)  # rare hours are noisy
    correct = twin.kinds(log_of(devices)).argmax(axis=1)
    order = np.argsort(twin.arrays["ends"].mean(axis=(1, 2)))
    assert (order[devices.kind] == correct).mean() > 0.95


def test_sessions_of_one_length_are_a_moment_with_its_probability():
    """Seven of ten sessions last exactly ten minutes; the others go on, exponentially."""
    rng, n = np.random.default_rng(0), 1600
    start = rng.uniform(1000, 6 * DAY, n)
    single = rng.random(n) < 0.7
    log = sessions(
        np.arange(n), start, start + 600 + np.where(single, 0, rng.exponential(3000, n)), window=(0, 7 * DAY)
    )
    train, test = log.split_clients(test=0.5, seed=0)
    twin = fit(train, n_kinds=1, n_init=1, rounds=15)
    at = next(i for i, width in enumerate(moments(twin.lengths)) if np.isfinite(width))
    share = -np.expm1(-twin.arrays["ends"][0, :, at] * moments(twin.lengths)[at])
    np.testing.assert_allclose(share, 0.7, atol=5 * np.sqrt(0.21 / (n / 8)))
    drawn = twin.sample(len(test), Key(1)).sessions(0.0, 7 * DAY)
    length = (drawn["end"] - drawn["start"])[(drawn["watch"] == 0) & (drawn["end"] < 7 * DAY) & (drawn["start"] > 0)]
    assert (np.abs(length - 600) < 1).mean() == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / (n / 4)))
    assert fidelity(test, drawn, draws=99).lengths.p > 0.01
    without = (
        fit(train, n_kinds=1, n_init=1, rounds=15, lengths=LENGTHS).sample(len(test), Key(1)).sessions(0.0, 7 * DAY)
    )
    assert fidelity(test, without, draws=99).lengths.p < 0.02


def test_a_twin_whose_rates_do_not_fit_its_ages_is_refused():
    with pytest.raises(DataError, match="has one rate more of each"):
        replace(planted(), ages=(1.0,)).sample(3, Key(0))


def test_time_zones_are_found_up_to_a_common_shift():
    one = planted(weights=np.array([[1.0], [1e-9]]))
    true = replace(one, arrays={**one.arrays, "weights": np.array([[0.7, 0.3], [0.0, 0.0]])}, zones=(0, 8))
    devices = true.sample(400, Key(2))
    twin = fit(devices.sessions(0.0, WINDOW), n_kinds=1, zones=(0, 8), n_init=3, rounds=60)
    share = twin.arrays["weights"][0]
    assert max(share) == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / 400))
    ahead = twin.population().posteriors(dict(twin.arrays), devices.sessions(0.0, WINDOW))[0][:, 0].argmax(axis=1)
    assert max((ahead == (devices.zone > 0)).mean(), (ahead != (devices.zone > 0)).mean()) > 0.95


def test_the_twin_samples_kinds_of_data_with_their_devices():
    true = planted()
    drawn = true.sample(4000, Key(5))
    assert (drawn.data[drawn.kind == 0] == 0).mean() == pytest.approx(0.9, abs=5 * 0.3 / np.sqrt(1500))
    asked = true.sample(4000, Key(6), data=np.zeros(4000, dtype=int))
    assert (asked.kind == 0).mean() == pytest.approx(0.36 / (0.36 + 0.12), abs=5 * 0.5 / np.sqrt(4000))
    with pytest.raises(DataError, match="one kind of data for each of the 3 devices"):
        true.sample(3, Key(0), data=[0, 1, 2])


def with_work(devices, days: float, seed: int):
    """The log of devices of `planted`, with seconds of work of each session and the kind of data."""
    log, rng = devices.sessions(0.0, days * DAY), np.random.default_rng(seed)
    owner = log.client_of_row
    work = np.exp(np.log(devices.seconds)[owner] + 0.2 * rng.standard_normal(log.n_rows))
    return log.with_column("work", work).with_column("data", devices.data[owner])


@pytest.mark.parametrize("seed", range(3))
def test_kinds_that_differ_in_speed_alone_are_found(seed):
    """Every other device, or one of four, is five times as slow and comes as the others do: two starts find which."""
    rng = np.random.default_rng(seed)
    start = np.cumsum(20 + rng.exponential(28_000, (60, 15)), axis=1).ravel()
    for every, unit in ((2, 1.0), (2, 30.0), (4, 1.0)):
        slow = np.arange(60) % every == 0
        work = unit * np.where(np.repeat(slow, 15), 5.0, 1.0) * rng.lognormal(0, 0.2, 900)
        log = sessions(np.repeat(np.arange(60), 15), start, start + 10, columns={"work": work})
        kind = fit(log, n_kinds=2, n_init=2).kinds(log).argmax(axis=1)
        assert len(set(zip(kind.tolist(), slow.tolist(), strict=True))) == 2


def test_devices_drawn_given_their_logs_are_like_them():
    """Kinds and speeds are found again; activities are calibrated among those that came often, and among the others."""
    twin, devices = planted(), planted().sample(1500, Key(8))
    log = with_work(devices, 7, 0)
    again = twin.sample_like(log, Key(9))
    assert (again.kind == devices.kind).mean() > 0.97
    assert np.corrcoef(np.log(again.seconds), np.log(devices.seconds))[0, 1] > 0.97
    assert (again.data == devices.data).all()
    arrivals = log.segment_sum((log["watch"] == 0).astype(float))
    for often in (True, False):
        some = (arrivals > np.median(arrivals)) == often
        gap = again.activity[some] - devices.activity[some]
        assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(some.sum())
        assert abs(again.activity[some].mean() - 1) > 0.1  # the log has told something
    assert np.array_equal(twin.sample_like(log, Key(9)).seconds, again.seconds)


def test_devices_without_rows_are_drawn_as_any():
    twin, log = planted(), with_work(planted().sample(3, Key(8)), 7, 0)
    empty = Federation({n: v[:0] for n, v in log.columns.items()}, np.zeros(4001, dtype=np.int64))
    drawn = twin.sample_like(empty, Key(1))
    assert drawn.kind.mean() == pytest.approx(0.6, abs=5 * 0.5 / np.sqrt(4000))
    assert np.log(drawn.seconds)[drawn.kind == 0].mean() == pytest.approx(4.0, abs=5 * 0.5 / np.sqrt(1500))
    assert drawn.activity[drawn.kind == 0].mean() == pytest.approx(1.0, abs=5 * 0.5 / np.sqrt(1500))
    assert drawn.data[drawn.kind == 0].mean() == pytest.approx(0.1, abs=5 * 0.3 / np.sqrt(1500))


def test_kinds_of_data_that_are_unknown_of_some_devices_may_be_floats():
    """A column with gaps is one of floats; a device without a kind goes with all."""
    column = {"data": np.array([0.0, 1.0, np.nan])}
    log = sessions([0, 1, 2], [0.0, 5.0, 9.0], [3.0, 8.0, 11.0], window=(0.0, 1e5), columns=column)
    twin = fit(log, n_kinds=1, n_init=1, rounds=3)
    assert twin.arrays["data"].shape == (1, 2)
    assert twin.kinds(log).shape == (3, 1)
    with pytest.raises(DataError, match="one kind of data for each of the 2 devices"):
        twin.sample(2, Key(0), data=[0.0, np.nan])


def test_a_private_fit_is_written_down_and_near():
    devices, ledger = planted().sample(3000, Key(4)), Ledger()
    log = devices.sessions(0.0, 7 * DAY)
    privacy = Gaussian(clip=30.0, multiplier=0.5, noise_seed=1)
    private = fit(log, n_kinds=2, lengths=(1.0, 4.0), rounds=30, privacy=privacy, ledger=ledger)
    assert private.private
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 30
    mine, theirs = in_order(private), planted().arrays
    np.testing.assert_allclose(mine["ends"][:, :, :2].mean(axis=(1, 2)), [0.2, 2.0], rtol=0.25)
    np.testing.assert_allclose(mine["weights"][:, 0], theirs["weights"][:, 0], atol=0.12)


def test_a_saved_twin_draws_the_same_devices(tmp_path):
    true = planted()
    true.save(tmp_path / "twin.json")
    again = load(tmp_path / "twin.json")
    a, b = (twin.sample(50, Key(7)).sessions(0.0, 3 * DAY) for twin in (true, again))
    assert a["start"].tobytes() == b["start"].tobytes()
    (tmp_path / "twin.npz").write_bytes(b"")
    with pytest.raises(CheckpointError, match="does not belong to"):
        load(tmp_path / "twin.json")


def test_bad_settings_are_refused():
    log = sessions(["a"], [10.0], [20.0], window=(0.0, 100.0))
    with pytest.raises(DataError, match="n_kinds must be"):
        fit(log, n_kinds=0)
    with pytest.raises(DataError, match="lengths must rise"):
        fit(log, lengths=(2.0, 1.0))
    with pytest.raises(DataError, match="extras must be of"):
        DevicePopulation(1, extras=("mood",)).start(0)
    for wrong, message in (
        ({"tick": float("nan")}, "tick must be"), ({"smoothing": -1.0}, "smoothing must be"), ({"rounds": 0}, "rounds"),
        ({"n_init": 0}, "n_init must be"), ({"zones": (5.5,)}, "zones must be whole hours"),
        ({"ages": (float("nan"),)}, "ages must rise"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            fit(log, **wrong)
    with pytest.raises(DataError, match="must be declared: give n_data"):
        fit(log.with_column("data", [-1, 0]), privacy=Gaussian(clip=1.0, multiplier=1.0))
