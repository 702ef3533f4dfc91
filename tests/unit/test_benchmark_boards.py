"""The boards of others: clients are dealt what the published rule says."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.parametrize(("n_clients", "per_client"), [(20, 2), (10, 1), (20, 5)])
def test_clients_have_as_many_classes_as_the_board_says(
    monkeypatch: pytest.MonkeyPatch, n_clients: int, per_client: int
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "others"))
    board = import_module("board")
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    rows = board.by_classes(y, n_clients, per_client, np.random.default_rng(1))
    assert [len(set(y[mine])) for mine in rows] == [per_client] * n_clients
    assert sorted(np.concatenate(rows)) == list(range(len(y)))
