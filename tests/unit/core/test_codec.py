"""The one codec of files and messages."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscape.core import codec
from fedscape.errors import CheckpointError

LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
NESTED = st.recursive(LEAVES, lambda s: st.lists(s, max_size=3) | st.lists(s, max_size=3).map(tuple), max_leaves=12)


@given(NESTED)
def test_parameters_come_back_with_their_types(value):
    if depth(value) > 8:
        with pytest.raises(ValueError, match="neither a number nor a text nor an array"):
            codec.decode(codec.encode(value))
        return
    again = codec.decode(codec.encode(value))
    assert repr(again) == repr(value)


def depth(value) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list | tuple) else 0


@pytest.mark.parametrize("dtype", ["b1", "<i4", ">f8", "<U3", "f2"])
def test_arrays_come_back_to_the_byte(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    again = codec.decode(codec.encode(values))
    assert again.dtype == values.dtype
    assert again.tobytes() == values.tobytes()


TEXT = base64.b64encode(bytes(8)).decode()


@pytest.mark.parametrize(
    "array",
    [
        ["<f8", [2**60], TEXT],  # a size that is declared and not there
        ["<f8", [2], TEXT],
        ["<f8", [-1], TEXT],
        ["<f8", [1.0], TEXT],
        ["|O", [1], TEXT],
        ["<U99999999999", [1], TEXT],
        ["<f8", [1], "!" + TEXT[1:]],
        ["<f8", [1]],
        7,
    ],
)
def test_an_array_that_is_not_what_it_says_is_refused(array):
    with pytest.raises(ValueError, match=r"^an array whose size and shape disagree$"):
        codec.decode({"array": array})


def test_parameters_that_are_nested_too_deep_or_are_code_are_refused():
    deep: object = 1
    for _ in range(10):
        deep = [deep]
    with pytest.raises(ValueError, match="neither a number nor a text nor an array"):
        codec.decode(codec.encode(deep))
    with pytest.raises(TypeError, match="a function is neither a number"):
        codec.encode(depth)
    with pytest.raises(ValueError, match="neither a number"):
        codec.decode({"part": "full"})


def test_bytes_that_were_changed_anywhere_are_refused():
    blob = codec.pack({"x": np.arange(40)}, {"round": 3})
    for i in np.linspace(0, len(blob) - 1, 30).astype(int).tolist():
        torn = blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1 :]
        with pytest.raises(CheckpointError, match=r"not a fedscape checkpoint|torn or damaged"):
            codec.unpack(torn)
