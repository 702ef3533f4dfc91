"""Profiles: the right number of groups, a group's model for new clients without labels, abstention, drift, privacy."""

from __future__ import annotations

import numpy as np
import pytest

import fedscape as fs
from fedscape import DataError, Federation, NotFittedError, PrivacyError
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.methods import train
from fedscape.personal import ProfiledFL, Profiles

ROWS = 60


def kinds(n_clients: int, n_kinds: int, seed: int = 0, *, apart: float = 3.0) -> tuple[Federation, np.ndarray]:
    """Clients of a few kinds: features about other places, and in each kind another feature says the class."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n_clients) % n_kinds
    places = apart * np.eye(5)[:n_kinds]
    x = rng.normal(size=(n_clients * ROWS, 5)) + np.repeat(places[kind], ROWS, axis=0)
    mine = np.repeat(kind, ROWS)
    y = (x[np.arange(len(x)), (mine + 1) % 5] > places[mine, (mine + 1) % 5]).astype(int)
    y = np.where(mine % 2 == 0, y, 1 - y)
    ids = [f"{seed}/{i}" for i in range(n_clients)]
    return Federation({"x": x, "y": y}, np.arange(0, len(x) + 1, ROWS), ids=ids), kind


@pytest.mark.parametrize("n_kinds", [1, 2, 3, 4])
def test_the_number_of_groups_is_found_and_clients_are_in_them(n_kinds):
    fed, kind = kinds(40, n_kinds)
    profiles = Profiles(directions=4).fit(fed)
    assert profiles.n_groups_ == n_kinds
    groups = profiles.groups(fed)
    assert len({(g, k) for g, k in zip(groups, kind, strict=True)}) == n_kinds


def test_labels_tell_groups_apart_whose_features_are_the_same():
    fed, _ = kinds(40, 1)
    flipped = np.repeat(np.arange(40) % 2, ROWS)
    both = fed.with_column("y", np.where(flipped == 1, 1 - fed["y"], fed["y"]))
    assert Profiles(directions=4).fit(both).n_groups_ == 1
    profiles = Profiles(directions=4, target="y").fit(both)
    assert profiles.n_groups_ == 2
    groups = profiles.groups(both)
    assert (groups == groups[0]).tolist() == [i % 2 == 0 for i in range(40)]
    weights = profiles.weights(both)[~profiles.abstains(both)]
    assert np.abs(weights - profiles.shares_).max() < 0.25  # features do not say


def test_unseen_clients_without_labels_get_the_model_of_their_group():
    fed, _ = kinds(36, 3)
    new, _ = kinds(30, 3, seed=9)
    step = LocalSGD(models.linear(5, 2), cross_entropy, lr=0.3, epochs=2, batch_size=10)
    method = ProfiledFL(step, Profiles(directions=4).fit(fed), initial="seed")
    own = train(method, step, fed, n_rounds=10).evaluate(new).accuracy.mean()
    common = train("fedavg", step, fed, n_rounds=10).evaluate(new).accuracy.mean()
    assert own > 0.93
    assert own > common + 0.1


def test_one_group_is_fedavg():
    fed, _ = kinds(6, 1)
    step = LocalSGD(models.linear(5, 2), cross_entropy, lr=0.3, epochs=1, batch_size=10)
    ends = []
    for method in (ProfiledFL(step, Profiles(1, alpha=0.0).fit(fed)), fs.FedAvg(step)):
        *_, last = fs.rounds(method, fed, n_rounds=3)
        ends.append(last.state["model.1.weight"].reshape(2, 5))
    np.testing.assert_allclose(*ends, atol=1e-6)


def test_clients_that_belong_abstain_at_the_stated_rate_and_strangers_do():
    rates = []
    for seed in range(5):
        fed, _ = kinds(120, 3, seed=seed)
        new, _ = kinds(120, 3, seed=100 + seed)
        profiles = Profiles(3, directions=4, alpha=0.1, kept_out=0.5).fit(fed)
        rates.append(profiles.abstains(new).mean())
        strange = new.with_column("x", new["x"] + 5.0)
        assert profiles.abstains(strange).all()
        np.testing.assert_allclose(profiles.weights(strange), np.tile(profiles.shares_, (120, 1)))
    assert np.mean(rates) < 0.1 + 5 * np.sqrt(0.09 / 300)  # of 60 clients each that the threshold was found on


def test_a_client_whose_data_drift_changes_its_group():
    fed, kind = kinds(20, 2)
    profiles = Profiles(2, directions=4).fit(fed)
    step = LocalSGD(models.linear(5, 2), cross_entropy, lr=0.3, epochs=1, batch_size=10)
    method = ProfiledFL(step, profiles)
    before = method.step(method.start(0), fed, fs.Key(0))[1]["group"]
    after = method.step(method.start(0), fed.take(np.roll(np.arange(20), 1)), fs.Key(0))[1]["group"]
    assert (before == before[0]).tolist() == (kind == kind[0]).tolist()
    assert (after == np.roll(before, 1)).all()
    sent = method.step(method.start(0), fed, fs.Key(0))[0]
    assert method.reveals == ()
    assert sent["weight"].shape == (20, 2)


def test_private_profiles_are_in_the_ledger_and_still_tell_groups_apart():
    fed, kind = kinds(200, 2, apart=6.0)
    ledger = fs.Ledger(epsilon=100.0, delta=1e-4)
    privacy = fs.Gaussian(clip=40.0, multiplier=0.5, noise_seed=3)
    profiles = Profiles(2, directions=2, bound=10.0, alpha=0.0).fit(fed, privacy=privacy, ledger=ledger)
    assert max(ledger.spent().values()) > 0
    groups = profiles.groups(fed)
    agree = np.mean((groups == groups[0]) == (kind == kind[0]))
    assert agree > 0.9
    with pytest.raises(PrivacyError, match="need bound= and n_groups="):
        Profiles().fit(fed, privacy=privacy)


def test_one_row_a_client_and_rows_that_are_all_the_same_are_grouped_without_a_warning():
    one = Federation({"x": np.random.default_rng(0).normal(size=(9, 3))}, np.arange(10))
    same = Federation({"x": np.ones((40, 3))}, np.arange(0, 41, 4))
    for fed in (one, same):
        weights = Profiles(directions=2, alpha=0.0).fit(fed).weights(fed)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0)


def test_bad_settings_are_refused():
    with pytest.raises(DataError, match=r"alpha and kept_out must be at least 0 and below 1, not 1\.0"):
        Profiles(alpha=1.0)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        Profiles().weights(kinds(4, 1)[0])
