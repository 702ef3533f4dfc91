"""Over Flower too a secret number of clients is compared with `min_clients` after its noise, and the ledger knows."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, FixedSize, Flower, Gaussian, Histogram, Ledger, rounds
from fedscape.engines.flower import LocalGrid, client_app


def engine(folder, n_clients: int) -> Flower:
    fed = Federation({"y": np.arange(n_clients) % 3}, np.arange(n_clients + 1))
    return Flower(LocalGrid(client_app(lambda context: fed, folder=folder), [{}]), min_clients=10, poll=0.001)


def abandoned(folder, n_clients: int, ledger: Ledger | None = None, **how) -> int:
    privacy = Gaussian(clip=1.0, multiplier=20.0)
    loop = rounds(Histogram(3), engine(folder, n_clients), n_rounds=30, privacy=privacy, ledger=ledger, **how)
    return sum(r.abandoned for r in loop)


def test_one_client_more_does_not_decide_whether_a_round_is_abandoned(tmp_path):
    """With the exact number all rounds of 9 clients were abandoned and none of 10, and no ledger had a line of it."""
    ledger = Ledger()
    assert 0 < abandoned(tmp_path / "9", 9, ledger) < 30
    assert 0 < abandoned(tmp_path / "10", 10) < 30
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 30


@pytest.mark.parametrize(("size", "number"), [(9, 30), (10, 0)])
def test_a_number_that_is_public_decides_exactly(size, number, tmp_path):
    assert abandoned(tmp_path, 12, sampler=FixedSize(size)) == number
