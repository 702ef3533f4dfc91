from __future__ import annotations

import json
import math
import subprocess
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from fedscape import All, Federation, FixedSize, Gaussian, Histogram, Laplace, Ledger, Poisson, PrivacyError, rounds
from fedscape.privacy.accounting import epsilon_of

CENTRAL = ("client", "add-remove", "central")


def entry(multiplier=1.0, sampler=None, kind=Gaussian):
    privacy = kind(clip=1.0, multiplier=multiplier) if kind is Gaussian else kind(clip=1.0, epsilon=1 / multiplier)
    return privacy.entries(All() if sampler is None else sampler, 1000)["sum"]


@pytest.mark.parametrize("seed", range(2))
def test_totals_equal_dp_accounting_on_random_schedules(seed):
    """Poisson and full participation: privacy loss distributions, composed here one event after the other."""
    rng = np.random.default_rng(seed)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    ledger = Ledger(delta=1e-5)
    for number in range(4):
        multiplier, rate, rounds_ = float(rng.uniform(0.8, 4)), float(rng.uniform(0.01, 1)), int(rng.integers(1, 6))
        gauss = rng.random() < 0.6
        bare = dp_accounting.GaussianDpEvent(multiplier) if gauss else dp_accounting.LaplaceDpEvent(multiplier)
        sampled = rng.random() < 0.7
        what = entry(multiplier, Poisson(rate) if sampled else All(), Gaussian if gauss else Laplace)
        ledger.reserve(f"run {number}", {"sum": what}, rounds_)
        for t in range(rounds_):
            ledger.release(f"run {number}", t, "sum", "d")
            accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, bare) if sampled else bare)
    assert ledger.spent()[CENTRAL] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.7, 40.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_gaussian_releases_of_everyone_cost_what_the_privacy_loss_says_and_never_less(multiplier, delta):
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), 3))
    found = epsilon_of([(entry(multiplier), 3)], delta)
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=1e-3, abs=1e-6)
    x, step = np.linspace(-60, 60, 2_000_001, retstep=True)  # in standard deviations
    one, other = (np.exp(-((x - m) ** 2) / 2) / np.sqrt(2 * np.pi) for m in (np.sqrt(3) / multiplier, 0.0))
    assert step * np.maximum(one - np.exp(found) * other, 0.0).sum() <= delta * (1 + 1e-6)


def test_fixed_size_is_accounted_under_replace_one_with_twice_the_sensitivity():
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 50, dp_accounting.GaussianDpEvent(4.0 / 2))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 12))
    what = entry(4.0, FixedSize(50))
    assert what["relation"] == "replace-one"
    assert epsilon_of([(what, 12)], 1e-6) == pytest.approx(accountant.get_epsilon(1e-6))


def test_any_other_sampler_counts_as_everyone():
    class Night:
        def draw(self, clients, key):
            return np.arange(3)

    assert entry(2.0, Night()) == entry(2.0, All())
    assert entry(2.0, Poisson(1.0)) == entry(2.0, All())


def test_local_noise_counts_in_full_for_each_client():
    what = Gaussian(clip=1.0, multiplier=2.0, place="local").entries(Poisson(0.01), 1000)["sum"]
    assert (what["place"], what["relation"], what["sampling"]) == ("local", "replace-one", {"kind": "all"})
    plain = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    plain.compose(dp_accounting.GaussianDpEvent(1.0))
    assert epsilon_of([(what, 1)], 1e-6) == pytest.approx(plain.get_epsilon(1e-6), rel=1e-6)


def test_pure_epsilons_add_up_and_gaussian_has_none():
    assert epsilon_of([(entry(4.0, kind=Laplace), 6)], 0.0) == pytest.approx(1.5)
    amplified = epsilon_of([(entry(1.0, Poisson(0.1), Laplace), 2)], 0.0)
    assert amplified == pytest.approx(2 * math.log1p(0.1 * math.expm1(1.0)))
    assert epsilon_of([(entry(4.0), 1)], 0.0) == math.inf
    assert epsilon_of([], 1e-6) == 0


def test_different_units_relations_and_places_are_never_added():
    ledger = Ledger(delta=1e-5)
    kinds = [
        Gaussian(clip=1.0, multiplier=2.0).entries(All(), 10)["sum"],
        Gaussian(clip=1.0, multiplier=2.0).entries(FixedSize(5), 10)["sum"],
        Gaussian(clip=1.0, multiplier=2.0, unit="row").entries(All(), 10)["sum"],
        Gaussian(clip=1.0, multiplier=2.0, place="local").entries(All(), 10)["sum"],
    ]
    for number, what in enumerate(kinds):
        ledger.reserve(str(number), {"sum": what}, 1)
        ledger.release(str(number), 0, "sum", "d")
    assert len(ledger.spent()) == 4


def test_a_run_beyond_the_budget_is_refused_before_anything_is_released(tmp_path):
    fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    ledger = Ledger(tmp_path / "l", epsilon=2.0, delta=1e-5)
    how = {"privacy": Gaussian(clip=1.0, multiplier=4.0), "ledger": ledger}
    with pytest.raises(PrivacyError, match=r"would reach epsilon .* beyond the budget of 2; nothing was released"):
        rounds(Histogram(2), fed, n_rounds=50, **how)
    assert [e["kind"] for e in ledger.entries()] == ["open"]
    assert len(list(rounds(Histogram(2), fed, n_rounds=2, **how))) == 2
    assert 0 < ledger.spent()[CENTRAL] <= 2.0


def test_what_is_not_used_is_handed_back():
    fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    ledger = Ledger(epsilon=5.0, delta=1e-5)
    with rounds(Histogram(2), fed, n_rounds=10, privacy=Gaussian(clip=1.0, multiplier=5.0), ledger=ledger) as loop:
        next(loop)
        assert ledger.reserved()[CENTRAL] > ledger.spent()[CENTRAL]
    assert ledger.reserved() == ledger.spent()
    one = epsilon_of([(entry(5.0), 1)], 1e-5)
    assert ledger.spent()[CENTRAL] == pytest.approx(one)


def test_a_release_is_on_disk_before_it_happens(tmp_path):
    path, seen = tmp_path / "l", []

    class Watch(Histogram):
        def update(self, state, total, key):
            seen.append([json.loads(line)["kind"] for line in path.read_text().splitlines()])
            return super().update(state, total, key)

    fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    how = {"privacy": Gaussian(clip=1.0, multiplier=1.0), "ledger": Ledger(path)}
    for _ in rounds(Watch(2), fed, n_rounds=2, **how):
        pass
    assert seen[0] == ["open", "reserve", "release"]
    assert seen[1] == ["open", "reserve", "release", "release"]


def test_the_same_release_counts_once_and_a_changed_one_again():
    ledger = Ledger(delta=1e-5)
    ledger.reserve("r", {"sum": entry(2.0)}, 1)
    for digest in ("same", "same", "other"):
        ledger.release("r", 0, "sum", digest)
    assert ledger.spent()[CENTRAL] == pytest.approx(epsilon_of([(entry(2.0), 2)], 1e-5))
    with pytest.raises(PrivacyError, match="has reserved nothing"):
        ledger.release("unknown", 0, "sum", "d")


def test_a_resumed_run_at_the_edge_of_its_budget_is_not_refused(tmp_path):
    """The round that was written down but not saved is the same release again: it needs no second share."""
    fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    budget = epsilon_of([(entry(5.0), 4)], 1e-5) * 1.0001
    how = {"n_rounds": 4, "privacy": Gaussian(clip=1.0, multiplier=5.0)}
    loop = rounds(Histogram(2), fed, ledger=Ledger(tmp_path / "l", epsilon=budget, delta=1e-5), **how)
    next(loop).save(tmp_path / "run")
    next(loop), next(loop)  # written down, not saved
    again = rounds(Histogram(2), fed, ledger=Ledger(tmp_path / "l"), resume=tmp_path / "run", **how)
    assert [r.index for r in again] == [1, 2, 3]
    assert Ledger(tmp_path / "l").spent()[CENTRAL] <= budget


def test_damage_is_refused(tmp_path):
    path = tmp_path / "l"
    ledger = Ledger(path)
    ledger.reserve("r", {"sum": entry(2.0)}, 9)
    for t in range(5):
        ledger.release("r", t, "sum", "d")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    damaged = {
        "a line lost": b"".join(lines[:3] + lines[4:]),
        "a line twice": b"".join([*lines[:3], lines[2], *lines[3:]]),
        "a number changed": whole.replace(b'"round": 3', b'"round": 4'),
        "not JSON": b"hello\n" + whole,
        "another file": b"[1, 2]\n",
    }
    for what, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(PrivacyError, match="is damaged or missing"):
            Ledger(path)
        assert what
    path.write_bytes(whole[:-7])
    with pytest.raises(PrivacyError, match=r"last line of .* is torn"):
        Ledger(path)
    path.write_bytes(b"".join(lines[:4]))
    with pytest.raises(PrivacyError, match="has become shorter"):
        ledger.spent()


def test_a_ledger_older_than_its_checkpoint_is_refused(tmp_path):
    fed, path = Federation({"y": [0, 1, 1]}, [0, 1, 3]), tmp_path / "l"
    how = {"n_rounds": 4, "privacy": Gaussian(clip=1.0, multiplier=5.0)}
    loop = rounds(Histogram(2), fed, ledger=Ledger(path), **how)
    next(loop)
    old = path.read_bytes()
    next(loop).save(tmp_path / "run")
    path.write_bytes(old)
    with pytest.raises(PrivacyError, match="older than the checkpoint"):
        rounds(Histogram(2), fed, ledger=Ledger(path), resume=tmp_path / "run", **how)
    path.unlink()
    other = Ledger(path)
    other.reserve("x", {"sum": entry(2.0)}, 9)
    for t in range(5):
        other.release("x", t, "sum", "d")
    with pytest.raises(PrivacyError, match="this is another ledger"):
        rounds(Histogram(2), fed, ledger=Ledger(path), resume=tmp_path / "run", **how)


def test_two_processes_cannot_both_pass_the_budget(tmp_path):
    """Eight processes each want a share of which only three fit; exactly three get it."""
    budget = epsilon_of([(entry(3.0), 3)], 1e-5) * 1.001
    Ledger(tmp_path / "l", epsilon=budget, delta=1e-5)
    code = (
        "import sys, json; from fedscape import Ledger, PrivacyError\n"
        "entry = json.loads(sys.argv[2])\n"
        "try: Ledger(sys.argv[1]).reserve(sys.argv[3], {'sum': entry}, 1); print('got')\n"
        "except PrivacyError as e: print('refused' if 'beyond the budget' in str(e) else e)"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "l"), json.dumps(entry(3.0))]
    running = [subprocess.Popen([*arguments, str(i)], stdout=subprocess.PIPE, text=True) for i in range(6)]
    answers = sorted(p.communicate()[0].strip() for p in running)
    assert answers == ["got"] * 3 + ["refused"] * 3


def test_bad_budgets_and_files_get_one_clear_line(tmp_path):
    with pytest.raises(PrivacyError, match="epsilon must be a positive number, not 0"):
        Ledger(epsilon=0.0)
    with pytest.raises(PrivacyError, match="cannot be opened: No such file"):
        Ledger(tmp_path / "none" / "l")
    Ledger(tmp_path / "l", epsilon=1.0)
    with pytest.raises(PrivacyError, match="a budget is set once"):
        Ledger(tmp_path / "l", epsilon=9.0)
    assert Ledger(tmp_path / "l").epsilon == 1.0
    ledger = Ledger()
    ledger.reserve("r", {"sum": entry(2.0)}, 1)
    with pytest.raises(PrivacyError, match="with other parameters than before"):
        ledger.reserve("r", {"sum": entry(3.0)}, 5)
    assert len(ledger.entries()) == 2


def test_a_long_run_is_accounted_for_in_one_call():
    import time

    begin = time.process_time()  # not the clock: others may use the machine
    Ledger(epsilon=20.0, delta=1e-6).reserve("r", {"sum": entry(1.0, Poisson(0.01))}, 1500)
    assert time.process_time() - begin < 15
