"""Sketches can be added: to the bit, whatever the rows and however they are cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedscape import DistributionSketch, Federation

ROWS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.uint8, np.int64]),
    st.tuples(st.integers(0, 12), st.integers(1, 4)),
    elements=st.integers(0, 200),
)
FAMILIES = st.sampled_from(["srp", "hadamard", "pstable"])


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    st.integers(0, 12),
    st.sampled_from(["srp", "hadamard", "pstable"]),
    st.integers(1, 6),
    st.integers(0, 2**64 - 1),
)
def test_the_sketch_of_a_and_b_is_the_sum_of_theirs(x, cut, family, bits, seed):
    sketch = DistributionSketch(9, bits=bits, family=family, seed=seed)
    cut = min(cut, len(x))
    assert np.array_equal(sketch.count(x[:cut]) + sketch.count(x[cut:]), sketch.count(x))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abc ", max_size=6), min_size=1, max_size=8), st.integers(0, 8), st.integers(1, 3))
def test_texts_can_be_added_too(texts, cut, shingle):
    sketch = DistributionSketch(9, family="minhash", column="s", shingle=shingle)
    cut = min(cut, len(texts))
    two = sketch.counts(Federation({"s": texts}, [0, cut, len(texts)]))
    assert np.array_equal(two.sum(axis=0), sketch.counts(Federation({"s": texts}, [0, len(texts)]))[0])
