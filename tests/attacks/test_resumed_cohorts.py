"""A round that is run again has the cohort it had: amplification by sampling counts once for all its releases."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from fedscape import All, Federation, FixedSize, Gaussian, Histogram, Ledger, Poisson, rounds
from fedscape.privacy.accounting import epsilon_of

CENTRAL = {"add-remove": ("client", "add-remove", "central"), "replace-one": ("client", "replace-one", "central")}


def resumed(path, sampler, values, n_rounds=1):
    """Run once, then again from the first checkpoint for each of these shifts of all values."""
    ledger = Ledger(delta=1e-5)
    for i, shift in enumerate(values):
        fed = Federation({"y": np.full(200, shift % 3)}, np.arange(201))  # no cohort has the same sum after a shift
        if i:
            shutil.copy(path / "kept", path / "run")
        how = {"sampler": sampler, "privacy": Gaussian(clip=1.0, multiplier=1.0), "ledger": ledger}
        loop = rounds(Histogram(3), fed, n_rounds=n_rounds, resume=path / "run", **how)
        if not i:
            shutil.copy(path / "run", path / "kept")
        list(loop)
    return ledger


@pytest.mark.parametrize("n_rounds", [1, 3])
def test_releases_of_one_cohort_after_a_resume_cost_at_least_what_one_sample_costs(tmp_path, n_rounds):
    ledger = resumed(tmp_path, Poisson(0.3), [0, 1, 2], n_rounds)
    entry = Gaussian(clip=1.0, multiplier=1.0).entries(Poisson(0.3), 200)["sum"]
    one_sample = epsilon_of([({**entry, "multiplier": 3**-0.5}, n_rounds)], 1e-5)
    assert epsilon_of([(entry, 3 * n_rounds)], 1e-5) < 0.97 * one_sample  # what was booked before
    assert ledger.spent()[CENTRAL["add-remove"]] >= one_sample


def test_fixed_size_cohorts_too(tmp_path):
    ledger = resumed(tmp_path, FixedSize(20), [0, 1, 2])
    entry = Gaussian(clip=1.0, multiplier=1.0).entries(FixedSize(20), 200)["sum"]
    one_sample = epsilon_of([({**entry, "multiplier": entry["multiplier"] * 3**-0.5}, 1)], 1e-5)
    assert ledger.spent()[CENTRAL["replace-one"]] >= one_sample


def test_the_same_release_again_costs_nothing(tmp_path):
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    once = resumed(tmp_path / "a", Poisson(0.3), [0]).spent()
    assert resumed(tmp_path / "b", Poisson(0.3), [0, 0, 3]).spent() == once
    twice = resumed(tmp_path / "c", Poisson(0.3), [0, 1, 0, 1])
    kinds = [line["kind"] for line in twice.entries()]
    assert kinds.count("release") == 2


def test_without_sampling_nothing_changes(tmp_path):
    ledger = resumed(tmp_path, All(), [0, 1])
    names = {line["mechanism"] for line in ledger.entries() if line["kind"] == "release"}
    assert names == {"sum"}
