"""A timetable is a sampler: where the work of a task follows a client's rows, so does everybody's cohort after it."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, Gaussian, Histogram, PrivacyError, rounds
from fedscape.core.random import Key
from fedscape.twin import Synchronous, always, schedule, train

N, PRIVACY = 60, Gaussian(clip=1.0, multiplier=1.0)
FED = Federation({"y": np.arange(N) % 2}, np.arange(N + 1))


def timetable(units):
    return schedule(always(N), Synchronous(6), days=1, n_updates=40, units=units, key=Key(3))


def test_one_client_with_more_rows_moves_cohorts_of_others():
    """More than the one exchange that the ledger counts: so this may not be booked as such a sampler is."""
    sizes = np.random.default_rng(0).integers(5, 50, N)
    more = np.where(np.arange(N) == 7, 4000, sizes)
    one, other = timetable(sizes), timetable(more)
    apart = [len(set(one.cohort(t)) ^ set(other.cohort(t))) for t in range(min(len(one), len(other)))]
    assert max(apart) > 2


@pytest.mark.parametrize("units", [np.arange(1, N + 1), np.ones(N)], ids=["rows", "alike"])
def test_units_of_each_device_are_refused_under_privacy(units):
    """Also where all are alike: a refusal that looked at them would tell."""
    for run in (lambda: next(train(Histogram(2), FED, timetable(units), privacy=PRIVACY)),
                lambda: rounds(Histogram(2), FED, n_rounds=2, sampler=timetable(units), privacy=PRIVACY)):  # fmt: skip
        with pytest.raises(PrivacyError, match="Timetable chooses clients by their data"):
            run()
    assert next(train(Histogram(2), FED, timetable(units))).clients > 0


def test_one_number_of_units_is_booked_as_an_exchange():
    loop = rounds(Histogram(2), FED, n_rounds=2, sampler=timetable(3.0), privacy=PRIVACY)
    assert [r.clients for r in loop] == [6, 6]
    (entry,) = {e["entry"]["multiplier"] for e in loop.guard.ledger.entries() if e["kind"] == "reserve"}
    assert entry == 0.5
