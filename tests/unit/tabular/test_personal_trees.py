"""Trees of each client's own, against loops in plain NumPy, and on clients that differ."""

from __future__ import annotations

import numpy as np
import pytest
from plain_boosting import boost

from fedscape import BoostedTrees, DataError, Federation, Gaussian, Ledger, Local, PrivacyError, SecureSum
from fedscape.tabular import PersonalTrees
from fedscape.tabular.binning import binned
from fedscape.tabular.losses import gradients
from fedscape.tabular.personal_trees import PersonalLosses


def clients(n: int = 12, rows: int = 80, seed: int = 0, shift: float = 2.0) -> Federation:
    """Clients with a rule in common, and a level and a class boundary of their own."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(n), rows)
    x = rng.normal(size=(n * rows, 3)).round(2)
    own = rng.normal(0, shift, n)[who]
    y = x[:, 0] * 2 + own + rng.normal(0, 0.3, len(who))
    label = (x[:, 0] + own / 2 > 0).astype(np.int32)
    return Federation.from_arrays({"x": x, "y": y, "label": label, "count": np.abs(y).astype(int)}, clients=who)


@pytest.mark.parametrize(("loss", "target"), [("squared", "y"), ("logistic", "label"), ("poisson", "count")])
def test_leaves_are_fitted_again_as_by_hand(loss, target):
    fed = clients(3, 40)
    trees = BoostedTrees(4, depth=3, loss=loss, learning_rate=0.3).fit(fed, target=target)
    forest, strength = trees.forest_, 5.0
    own = PersonalTrees(trees, strengths=(strength,))
    own.strength_ = strength
    margins = own.margins(fed, train=fed)
    for i in range(3):
        client = fed.take([i])
        codes, y = binned(client["x"], forest.bins), client[target].astype(float)
        margin = np.full((40, 1), forest.base[0])
        for t in range(4):
            g, h = gradients(loss, y, margin)
            leaf = np.array([_leaf(forest.feature[t, 0], forest.left[t, 0], row) for row in codes])
            for at in np.unique(leaf):
                rows = leaf == at
                value = strength * forest.value[t, 0, at] - 0.3 * g[rows, 0].sum()
                margin[rows, 0] += value / (strength + h[rows, 0].sum())
        np.testing.assert_allclose(margins[fed.offsets[i] : fed.offsets[i + 1]], margin, rtol=1e-9)


def _leaf(feature, left, row) -> int:
    at = 0
    while at < len(feature) and feature[at] >= 0:
        at = 2 * at + (1 if np.unpackbits(left[at], bitorder="little")[row[feature[at]]] else 2)
    return at


def test_trees_of_a_client_are_boosting_in_one_place():
    fed = clients(2, 60)
    edges = np.tile(np.linspace(-2, 2, 9), (3, 1))
    nothing = [np.full((1, 1, 1), -1), np.zeros((1, 1, 1, 32)), np.zeros((1, 1, 3))]
    work = PersonalLosses(edges, *nothing, form="trees", n_trees=3, depth=2, learning_rate=0.4)
    margins = work.margins(fed, np.ones(120, dtype=bool), 2.0)
    for i in range(2):
        client = fed.take([i])
        by_hand = boost(
            binned(client["x"], _bins(edges)),
            client["y"],
            loss="squared",
            base=np.zeros(1),
            unit=1.0,
            n_trees=3,
            depth=2,
            rate=0.4,
            l2=2.0,
            least=1e-3,
            missing=10,
            n_bins=np.full(3, 10),
            categories=np.zeros(3, dtype=bool),
            monotone=[0, 0, 0],
        )
        np.testing.assert_allclose(margins[60 * i : 60 * i + 60], by_hand, rtol=1e-5, atol=1e-6)  # no grid here


def _bins(edges):
    from fedscape.tabular.binning import Bins

    return Bins(edges, np.zeros(3, dtype=np.int64))


@pytest.mark.parametrize("form", ["leaves", "trees"])
@pytest.mark.parametrize(("loss", "target"), [("squared", "y"), ("logistic", "label")])
def test_clients_that_differ_gain_and_new_ones_too(form, loss, target):
    fed, new = clients(), clients(6, 160, seed=5)
    train, test = new.split(test=0.5, seed=0)
    trees = BoostedTrees(30, depth=3, loss=loss).fit(fed, target=target)
    own = PersonalTrees(trees, form=form).fit(fed)
    assert own.losses_[1:].min() < 0.8 * own.losses_[0]
    assert own.strength_ < np.inf
    assert own.improved_ > 0.8
    common = trees.predict(test)
    personal = own.predict(test, train=train)
    if loss == "squared":
        assert np.mean((personal - test["y"]) ** 2) < 0.5 * np.mean((common - test["y"]) ** 2)
    else:
        assert (personal == test["label"]).mean() > (common == test["label"]).mean() + 0.05
        np.testing.assert_allclose(own.accuracies_[0], (trees.predict(fed) == fed["label"]).mean(), atol=0.1)
    np.testing.assert_array_equal(own.predict(test), common)  # without rows of theirs
    few = train.take([0, 3])
    np.testing.assert_array_equal(own.predict(test.take([1]), train=few), common[test.client_of_row == 1])


def test_alike_clients_keep_the_common_forest_or_lose_nothing():
    fed = clients(20, 40, shift=0.0)
    trees = BoostedTrees(30, depth=3, loss="squared").fit(fed)
    own = PersonalTrees(trees, strengths=(1.0, 1e3)).fit(fed)
    assert own.losses_.min() == own.losses_[[np.inf, 1.0, 1e3].index(own.strength_)]
    assert own.losses_[2] < own.losses_[1]  # a weak pull overfits


def test_only_losses_leave_through_secure_sums_and_the_ledger():
    fed, ledger = clients(), Ledger()
    trees = BoostedTrees(5, loss="squared").fit(fed)
    plain = PersonalTrees(trees).fit(fed)
    secure = SecureSum(colluders=0.0, dropouts=0.0, bounds=2.0**20)
    masked = PersonalTrees(trees).fit(Local(fed, secure=secure))
    np.testing.assert_allclose(masked.losses_, plain.losses_, rtol=1e-6)
    assert masked.strength_ == plain.strength_
    noisy = PersonalTrees(trees).fit(fed, privacy=Gaussian(clip=200.0, multiplier=0.1, noise_seed=1), ledger=ledger)
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 1
    assert noisy.losses_.shape == plain.losses_.shape
    with pytest.raises(PrivacyError, match="use unit='client'"):
        PersonalTrees(trees).fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0, unit="row"))


def test_what_is_refused():
    fed = clients(3, 20)
    trees = BoostedTrees(2, loss="squared").fit(fed)
    with pytest.raises(DataError, match="form must be one of leaves, trees"):
        PersonalTrees(trees, form="roots").fit(fed)
    with pytest.raises(DataError, match="strengths must be positive"):
        PersonalTrees(trees, strengths=()).fit(fed)
    with pytest.raises(DataError, match="held_out must be between"):
        PersonalTrees(trees, held_out=0.0).fit(fed)
