"""Code may move; what it computes may not, unless a commit says so and writes frozen.json anew."""

from __future__ import annotations

import json

import computations
import frozen
import numpy as np
import pytest

FROZEN = json.loads(frozen.FILE.read_text())
CASES = [pytest.param(work, fed, name, id=name) for name, work, fed in computations.examples()]


def assert_frozen(arrays: dict, name: str) -> None:
    assert name in FROZEN, f"{name} is new: python tests/contract/frozen.py freezes it"
    now = {array: frozen.summary(values) for array, values in arrays.items()}
    assert set(now) == set(FROZEN[name])
    for array, numbers in now.items():
        assert frozen.alike(numbers, FROZEN[name][array]), f"{array} of {name}: {numbers}, was {FROZEN[name][array]}"


@pytest.mark.parametrize(("computation", "fed", "name"), CASES)
def test_a_computation_ends_where_it_did(computation, fed, name):
    state = frozen.final_state(computation, fed, threads=1)
    assert_frozen(state, name)
    threads = frozen.final_state(computation, fed, threads=4)
    assert all(np.array_equal(threads[array], values) for array, values in state.items())


def test_whole_fits_and_a_study_end_where_they_did():
    for name, arrays in frozen.fits().items():
        assert_frozen(arrays, name)


def test_a_change_of_one_in_a_million_is_noticed():
    values = np.random.default_rng(0).normal(size=50)
    assert not frozen.alike(frozen.summary(values * (1 + 1e-6)), frozen.summary(values))
    assert frozen.alike(frozen.summary(values * (1 + 1e-13)), frozen.summary(values))
    assert not frozen.alike(frozen.summary(values[::-1].copy()), frozen.summary(values))
