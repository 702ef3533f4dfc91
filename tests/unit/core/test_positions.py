"""Clients are found by their ids: where ids rise by search, otherwise in a table."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation


@pytest.mark.parametrize(
    "ids",
    [np.array([-7, 0, 3, 2**62]), np.array(["", "a", "aa", "é", "中"]), np.array([5, 1, 9]), np.array(["b", "a"])],
)
def test_every_client_is_found_and_no_other(ids):
    fed = Federation({}, [0] * (len(ids) + 1), ids=ids)
    wanted = np.random.default_rng(0).integers(0, len(ids), 20)
    assert fed.positions(ids[wanted]).tolist() == wanted.tolist()
    assert fed.positions(list(ids[wanted])).tolist() == wanted.tolist()
    assert ("_index" in vars(fed)) == (fed.order is not None)  # no table of all ids where it is not needed
    strangers = [4, -(2**62), 2**63 - 1] if ids.dtype.kind == "i" else ["zz", "aaa", "中中"]
    for stranger in strangers:
        with pytest.raises(DataError, match="there is no client"):
            fed.positions([ids[0], stranger])
    with pytest.raises(DataError, match="there is no client"):
        fed.positions(["7" if ids.dtype.kind == "i" else 7])


def test_nobody_is_nobody():
    assert Federation({}, [0]).positions([]).tolist() == []
    with pytest.raises(DataError, match="there is no client 1"):
        Federation({}, [0]).positions([1])
