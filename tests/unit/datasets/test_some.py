"""A federation that is too large is looked at in part, and how large the part is does not depend on the federation."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, datasets
from fedscape.datasets import some


def test_a_small_federation_stays_whole():
    fed = datasets.load("acs-race")
    assert some.some_rows(fed, seed=0) == (fed, None)


def test_of_many_clients_some_are_read_with_all_their_rows(monkeypatch):
    monkeypatch.setattr(some, "MOST_ROWS", 3_000)
    monkeypatch.setattr(some, "_CHUNK", 4_096)
    sizes = np.random.default_rng(0).integers(0, 5, 30_000)
    fed = Federation({"y": np.arange(sizes.sum())}, np.concatenate(([0], np.cumsum(sizes))))
    part, remark = some.some_rows(fed, seed=1)
    rate = 3_000 / fed.n_rows
    assert abs(len(part) - rate * 30_000) < 5 * np.sqrt(rate * 30_000)
    whole = fed.take(fed.positions(part.ids))
    assert part["y"].tolist() == whole["y"].tolist()
    assert f"{len(part):,} clients are looked at" in remark
    again = fed.take(np.random.default_rng(2).permutation(30_000))  # the seed and the client decide, not the order
    assert sorted(some.some_rows(again, seed=1)[0].ids.tolist()) == part.ids.tolist()
    assert some.some_rows(fed, seed=2)[0].ids.tolist() != part.ids.tolist()


def test_of_few_clients_all_stay_with_some_rows(monkeypatch):
    monkeypatch.setattr(some, "MOST_ROWS", 4_000)
    monkeypatch.setattr(some, "_CHUNK", 1_000)
    fed = Federation({"y": np.arange(40_000)}, [0, 30_000, 30_000, 40_000], ids=["a", "b", "c"])
    part, remark = some.some_rows(fed, seed=0)
    assert part.ids.tolist() == ["a", "b", "c"]
    assert abs(part.n_rows - 4_000) < 5 * np.sqrt(4_000)
    assert (np.diff(part["y"]) > 0).all()
    assert part.client("c")["y"].min() >= 30_000
    assert "chosen by the seed inside each client" in remark


@pytest.mark.parametrize("sample", [None, 0])
def test_a_table_says_that_it_was_read_in_part(monkeypatch, sample, tmp_path):
    monkeypatch.setattr(some, "MOST_ROWS", 500)
    datasets.load("femnist-labels").save(tmp_path / "saved")
    fed, reading = datasets.read_table(tmp_path / "saved", sample=sample)
    said = [finding for finding in reading.findings if finding.kind == "sample"]
    assert (len(said), fed.n_rows < 1_000) == ((0, False) if sample is None else (1, True))


def test_wide_rows_are_counted_in_bytes(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(30_000, 64))
    fed = Federation({"x": rows}, np.arange(0, 30_001, 2))
    assert some.some_rows(fed, seed=0)[1] is None
    monkeypatch.setattr(some, "MOST_BYTES", 64 * 8 * 3_000)
    part, remark = some.some_rows(fed, seed=0)
    assert abs(part.n_rows - 3_000) < 5 * np.sqrt(2 * 3_000)  # clients of two rows, Poisson
    assert "are looked at" in remark
