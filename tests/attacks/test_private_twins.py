"""A private twin: one log changes nothing that is said, no name or size leaves, and weights stay in the clip."""

from __future__ import annotations

import numpy as np
import pytest
from blind import outcome as followed
from test_private_fits import outcome

from fedscape import Federation, Gaussian, Histogram, Ledger, rounds
from fedscape.twin import DevicePopulation, InverseProbability, chances, fit, schedule, sessions
from fedscape.twin.devices import always
from fedscape.twin.protocols import Synchronous

N = 60
PRIVACY = Gaussian(clip=30.0, multiplier=2.0)


def log_of(change=None) -> Federation:
    """Ten sessions a device; `change` spoils one of them, or one device."""
    rng = np.random.default_rng(0)
    begin = np.sort(rng.uniform(0, 5.5e5, (N, 10)), axis=1)
    begin += 4000 * np.arange(10)
    columns = {"work": rng.lognormal(3, 1, 10 * N), "data": np.repeat(np.arange(N) % 2, 10)}
    start = begin.ravel()
    fed = sessions(np.repeat(np.arange(N), 10), start, start + 1000, window=(0.0, 7e5), columns=columns)
    if change is None:
        return fed
    row = int(np.flatnonzero((fed.client_of_row == 7) & (fed["watch"] == 0))[2])
    column, value = change
    values = fed[column].astype(float if column != "data" else np.int64).copy()
    values[row] = value
    return fed.with_column(column, values)


CHANGES = [
    *[("start", value) for value in (np.nan, np.inf, -np.inf, -1e300, 1e300, 6.9e5, -5.0, 9.9e10)],
    *[("end", value) for value in (np.nan, np.inf, -1.0, 1e300, 6.9e5, 9.9e10)],
    *[("work", value) for value in (np.nan, np.inf, -1.0, 0.0, 1e300)],
    *[("data", value) for value in (-7, 2, 10**12)],
    ("watch", 3.0),
    ("watch", np.nan),
]


def fitted(fed, ledger=None):
    return fit(fed, n_kinds=2, n_data=2, rounds=2, privacy=PRIVACY, ledger=ledger, lengths=(0.5, 2.0), ages=(1.0,))


@pytest.fixture(scope="module")
def sound():
    return outcome(fitted, log_of())


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_one_devices_log_changes_nothing_that_is_said(change, sound):
    assert outcome(fitted, log_of(change)) == sound == ()


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_no_number_of_a_twin_follows_a_log_but_by_its_releases(change, monkeypatch):
    twins = [followed(monkeypatch, lambda log=log: fitted(log, Ledger())) for log in (log_of(), log_of(change))]
    assert twins[0] == twins[1]
    assert twins[0][0][0] == "Twin"


def test_neither_shapes_nor_the_ledger_follow_rows():
    """An empty device, a spoiled one and ten times the events: the same arrays, the same entries."""
    fed, shapes, entries = log_of(), [], []
    start, columns = np.tile(np.arange(100) * 6000.0, N), {"work": np.ones(100 * N), "data": np.zeros(100 * N, int)}
    crowded = sessions(np.repeat(np.arange(N), 100), start, start + 600, window=(0.0, 7e5), columns=columns)
    for log in (fed, fed.where(fed.client_of_row != 5), log_of(("end", np.nan)), crowded):
        ledger = Ledger()
        twin = fitted(log, ledger)
        shapes.append({name: values.shape for name, values in twin.arrays.items()})
        entries.append([(e["kind"], e.get("epsilon"), e.get("unit")) for e in ledger.entries()])
        assert (twin.zones, twin.ages, twin.lengths, twin.private) == ((0,), (1.0,), (0.5, 2.0), True)
        assert np.isnan(twin.log_likelihood)
    assert all(s == shapes[0] for s in shapes)
    assert all(e == entries[0] for e in entries)


def test_a_common_length_is_no_edge_of_a_private_twin():
    """Without privacy a length that many sessions share becomes an edge of the state, exact to a millisecond."""
    fed = log_of()
    assert any(abs(length * 3600 - 1000) < 1 for length in fit(fed, n_kinds=1, n_init=1, rounds=2).lengths)
    private = fit(fed, n_kinds=1, n_data=2, rounds=1, privacy=PRIVACY)
    assert not any(abs(length * 3600 - 1000) < 1 for length in private.lengths)


def test_a_window_that_depends_on_all_rows_is_refused():
    with pytest.raises(ValueError, match="the time that was observed must be declared"):
        fitted(log_of().select(["start", "end", "work", "data"]))


class Watched(DevicePopulation):
    """A population whose server keeps what it sees."""

    name = "watched-devices"

    def update(self, state, total, key):
        self.total = {name: np.array(values) for name, values in total.items()}
        return super().update(state, total, key)


def test_a_device_moves_the_sum_by_no_more_than_the_clip():
    quiet, totals = Gaussian(clip=1.0, multiplier=1e-9, noise_seed=0), []
    for log in (log_of(), log_of().where(log_of().client_of_row != 7)):
        watched = Watched(1, n_data=2, lengths=(0.5,), ages=(1.0,), extras=("work",))
        next(rounds(watched, log, n_rounds=1, privacy=quiet))
        totals.append(watched.total)
    moved = [((totals[0][name] - totals[1][name]) ** 2).sum() for name in totals[0] if name != "clients"]
    assert 0.5 < np.sqrt(sum(moved)) <= 1.0 + 1e-6


WEIGHTS = [np.nan, np.inf, -1.0, 1e300, 10.0]


def weighted(value=None) -> Federation:
    weight = np.full(N, 2.0)
    if value is not None:
        weight[7] = value
    return Federation({"y": np.arange(N) % 2, "weight": weight}, np.arange(N + 1))


def counted(fed, ledger=None):
    done = next(rounds(InverseProbability(Histogram(2)), fed, n_rounds=1, privacy=PRIVACY, ledger=ledger))
    return done.state


@pytest.mark.parametrize("value", WEIGHTS)
def test_one_weight_changes_nothing_that_is_said(value):
    assert outcome(counted, weighted(value)) == outcome(counted, weighted()) == ()


@pytest.mark.parametrize("value", WEIGHTS)
def test_one_weight_moves_the_sum_by_no_more_than_the_clip(value):
    quiet = Gaussian(clip=1.0, multiplier=1e-9, noise_seed=0)
    sums = [
        next(rounds(InverseProbability(Histogram(2)), fed, n_rounds=1, privacy=quiet)).state["counts"]
        for fed in (weighted(value), weighted(value).where(np.arange(N) != 7))
    ]
    assert np.linalg.norm(sums[0] - sums[1]) <= 1.0 + 1e-6


def test_weights_are_booked_with_the_sum_and_chances_cost_nothing():
    ledger = Ledger()
    counted(weighted(), ledger)
    assert sum(entry["kind"] == "release" for entry in ledger.entries()) == 1
    before = len(ledger.entries())
    chances(schedule(always(N), Synchronous(4), days=1, n_updates=9), np.arange(N) % 2)  # sees no log at all
    assert len(ledger.entries()) == before
