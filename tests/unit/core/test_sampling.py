from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from fedscape import All, DataError, Federation, FixedSize, Key, Poisson, Sampler
from fedscape.core.sampling import Side
from fedscape.temporal.availability import Dropping


def clients(n: int) -> Federation:
    return Federation({}, [0] * (n + 1), ids=[f"c{i}" for i in range(n)])


@pytest.mark.parametrize("sampler", [All(), Poisson(0.3), FixedSize(7)])
def test_a_cohort_is_a_rising_function_of_the_key(sampler):
    fed = clients(40)
    assert isinstance(sampler, Sampler)
    cohort = sampler.draw(fed, Key(1, 2))
    assert (np.diff(cohort) > 0).all()
    assert cohort.tolist() == sampler.draw(fed, Key(1, 2)).tolist()


@pytest.mark.parametrize("sampler", [Poisson(0.3), FixedSize(7)])
def test_who_is_drawn_does_not_depend_on_the_order_of_clients(sampler):
    fed = clients(40)
    mixed = fed.take(np.random.default_rng(0).permutation(40))
    drawn = set(fed.ids[sampler.draw(fed, Key(9, 4))])
    assert drawn == set(mixed.ids[sampler.draw(mixed, Key(9, 4))])


def test_poisson_draws_each_client_at_its_rate():
    fed = clients(50)
    seen = sum(np.bincount(Poisson(0.2).draw(fed, Key(0, t)), minlength=50) for t in range(2_000))
    expected = 2_000 * 0.2
    chi = ((seen - expected) ** 2 / (expected * 0.8)).sum()
    assert stats.chi2.sf(chi, 50) > 1e-6
    sizes = [len(Poisson(0.2).draw(fed, Key(0, t))) for t in range(2_000)]
    assert abs(np.mean(sizes) - 10) < 5 * np.sqrt(8 / 2_000)
    assert abs(np.var(sizes) / 8 - 1) < 5 * np.sqrt(2 / 2_000)


def test_fixed_size_draws_each_pair_equally_often():
    fed = clients(6)
    pairs = [tuple(FixedSize(2).draw(fed, Key(3, t))) for t in range(3_000)]
    seen = np.unique(pairs, axis=0, return_counts=True)[1]
    assert len(seen) == 15
    assert stats.chisquare(seen).pvalue > 1e-6


def test_bad_samplers_are_refused():
    with pytest.raises(DataError, match="rate of Poisson sampling must be above 0 and at most 1, not 0"):
        Poisson(0)
    with pytest.raises(DataError, match="size of a cohort must be at least 1"):
        FixedSize(0)
    with pytest.raises(DataError, match="a cohort of 9 cannot be drawn from 3 clients"):
        FixedSize(9).draw(clients(3), Key(0))


def test_cohorts_are_drawn_without_a_number_for_every_client():
    ids = np.arange(10, 10**6 + 10)
    ids.flags.writeable = False
    fed = Federation.trusted({}, np.zeros(len(ids) + 1, dtype=np.int64), ids, {})
    samplers = {
        "poisson": Poisson(1e-3),
        "fixed": FixedSize(500),
        "aside": Side(FixedSize(500), 0.5, 3, inside=False),
        "dropping": Dropping(FixedSize(500), 0.5),
    }
    for name, sampler in samplers.items():
        sampler.draw(fed, Key(0))
        tracemalloc.start()
        cohort = sampler.draw(fed, Key(1))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < len(ids) * 4, name  # eight bytes a client would be twice that
        numbers = Key(1).uniform(fed)
        drawn = np.flatnonzero(numbers < 1e-3) if name == "poisson" else np.sort(np.argsort(numbers)[:500])
        if name == "aside":
            drawn = drawn[Key(3, purpose="validation clients").uniform(fed)[drawn] >= 0.5]
        if name == "dropping":
            drawn = drawn[Key(1).to("drop-out").uniform(fed)[drawn] >= 0.5]
        np.testing.assert_array_equal(cohort, drawn)
