"""Noise must never repeat on other data: the difference of two outputs would be exact."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, Gaussian, Histogram, Laplace, Ledger, Local, rounds


def people(first: int) -> Federation:
    """Forty clients of one row each; the first client's value may change."""
    values = np.arange(40) % 4
    values[0] = first
    return Federation({"y": values}, np.arange(41))


def run(fed: Federation, checkpoint, ledger: Ledger, privacy, engine=None) -> np.ndarray:
    loop = rounds(Histogram(4), engine or Local(fed), n_rounds=1, privacy=privacy, ledger=ledger, resume=checkpoint)
    return next(loop).state["counts"]


def releases(ledger: Ledger) -> int:
    return sum(line["kind"] == "release" for line in ledger.entries())


MECHANISMS = [
    Gaussian(clip=1.0, multiplier=3.0),
    Gaussian(clip=1.0, multiplier=3.0, unit="row"),
    Laplace(clip=1.0, epsilon=0.5),
    Gaussian(clip=1.0, multiplier=3.0, place="distributed"),
    Gaussian(clip=1.0, multiplier=3.0, place="local"),
]


@pytest.mark.parametrize("privacy", MECHANISMS, ids=lambda p: f"{type(p).__name__}-{p.unit}-{p.place}")
def test_changed_values_meet_fresh_noise_and_a_new_entry(privacy, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    before = run(people(0), tmp_path / "run.ckpt", ledger, privacy)
    assert releases(ledger) == 1
    after = run(people(1), tmp_path / "run.ckpt", ledger, privacy)  # the checkpoint of the start, other values
    assert releases(ledger) == 2
    difference = after - before
    assert not np.allclose(difference, [-1, 1, 0, 0], atol=1e-6)
    assert (difference[2:] != 0).any()  # with the same noise the numbers of the others would not move


@pytest.mark.parametrize("privacy", MECHANISMS, ids=lambda p: f"{type(p).__name__}-{p.unit}-{p.place}")
def test_the_same_values_are_the_same_release(privacy, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    before = run(people(0), tmp_path / "run.ckpt", ledger, privacy)
    after = run(people(0), tmp_path / "run.ckpt", ledger, privacy)
    assert np.array_equal(before, after)
    assert releases(ledger) == 1


def test_a_new_entry_is_refused_where_the_budget_is_spent(tmp_path):
    from fedscape import PrivacyError

    privacy = Laplace(clip=1.0, epsilon=0.5)
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=0.7, delta=0.0)
    run(people(0), tmp_path / "run.ckpt", ledger, privacy)
    with pytest.raises(PrivacyError, match="beyond the budget"):
        run(people(1), tmp_path / "run.ckpt", ledger, privacy)


def test_an_array_that_did_not_change_meets_fresh_noise_beside_one_that_did(tmp_path):
    """Otherwise its equal value would show that it did not change."""

    class Two(Histogram):
        def step(self, state, clients, key):
            counts = clients.counts("y", 4)
            return {"counts": counts, "rows": counts.sum(axis=1)}, {}

        def total(self, state, clients, key):
            return None

        def update(self, state, total, key):
            return {"counts": total["counts"], "rows": total["rows"]}

        def start(self, seed):
            return {"counts": np.zeros(4), "rows": np.zeros(())}

    for place in ("central", "local"):
        privacy, ledger, seen = Gaussian(clip=2.0, multiplier=3.0, place=place), Ledger(), []
        for first in (0, 1):
            checkpoint = tmp_path / f"{place}.ckpt"
            loop = rounds(Two(4), people(first), n_rounds=1, privacy=privacy, ledger=ledger, resume=checkpoint)
            seen.append(float(next(loop).state["rows"]))
        assert seen[0] != seen[1]


def test_the_ledger_does_not_tell_who_took_part(tmp_path):
    """A digest that anyone can compute is a test for each guess of the cohort."""
    ledgers = []
    for _ in range(2):
        ledger = Ledger()
        next(rounds(Histogram(4), people(0), n_rounds=1, privacy=Gaussian(clip=1.0, multiplier=3.0), ledger=ledger))
        ledgers.append([line["digest"] for line in ledger.entries() if line["kind"] == "release"])
    assert ledgers[0] != ledgers[1]  # of the same computation, cohort, state and round, under two secrets


def test_noise_in_other_parts_is_other_noise(tmp_path):
    """The same draws at another scale are mostly the same noise: two releases, and no accountant expects them equal."""
    privacy, ledger, equal = Gaussian(clip=1.0, multiplier=3.0, place="distributed"), Ledger(), 0
    fed = Federation({"y": np.arange(6) % 4}, np.arange(7))
    for i in range(20):
        seen = [run(fed, tmp_path / str(i), ledger, privacy, Local(fed, min_clients=parts))[0] for parts in (5, 6)]
        equal += seen[0] == seen[1]
    assert equal == 0
    assert releases(ledger) == 40
