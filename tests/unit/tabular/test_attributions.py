"""Shapley values of boosted trees, against all subsets of features."""

from __future__ import annotations

import numpy as np
import pytest
from plain_shapley import shapley

from fedscape import BoostedTrees, DataError, Federation, Gaussian, Ledger, NotFittedError
from fedscape.tabular import TreeAttributions
from fedscape.tabular.attributions import AttributionSums, node_counts
from fedscape.tabular.binning import binned


def federation(n: int = 300, seed: int = 1) -> Federation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).round(1)
    x[rng.random((n, 3)) < 0.1] = np.nan
    colour = rng.integers(0, 3, n).astype(np.int32)
    signal = np.nan_to_num(x[:, 0]) * np.nan_to_num(x[:, 1]) + (colour == 1) + rng.normal(0, 0.2, n)
    group = np.repeat(np.arange(n // 20) % 2, 20).astype(np.int32)  # the second moves with another feature
    signal = np.where(group == 1, 3 * np.nan_to_num(x[:, 2]), signal)
    columns = {"x": x, "colour": colour, "y": signal, "label": np.digitize(signal, [-0.5, 0.8]), "group": group}
    names = {"colour": ("red", "green", "blue"), "group": ("a", "b")}
    return Federation(columns, np.arange(0, n + 1, 20), names=names)


@pytest.mark.parametrize(("target", "outputs"), [("y", 1), ("label", 3)])
def test_attributions_are_those_of_all_subsets(target, outputs):
    fed = federation()
    trees = BoostedTrees(3, depth=4, least_weight=0.1, bins=12).fit(fed, features=["x", "colour"], target=target)
    about, forest = TreeAttributions(trees).fit(fed), trees.forest_
    few = fed.take([0, 1])
    codes = binned(np.column_stack([few["x"], few["colour"]]).astype(float), forest.bins)
    phi = about.explain(few).reshape(len(codes), outputs, 4)
    every = node_counts(about.counts_)
    for k in range(outputs):
        by_hand = shapley(codes, forest.feature[:, k], forest.left[:, k], forest.value[:, k], every[:, k])
        np.testing.assert_allclose(phi[:, k], by_hand, rtol=1e-9, atol=1e-12)
    assert (forest.feature >= 0).sum() > 10 * outputs


def test_attributions_and_the_average_add_up_to_the_margin():
    fed = federation()
    trees = BoostedTrees(20, depth=5).fit(fed, features=["x", "colour"], target="y")
    about = TreeAttributions(trees).fit(fed)
    margin = trees.forest_.margins(trees._rows(fed))[:, 0]
    np.testing.assert_allclose(about.base_[0] + about.explain(fed).sum(axis=1), margin, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(about.base_[0], margin.mean(), rtol=1e-9)
    assert about.counts_.sum() == 20 * fed.n_rows


def test_kinds_of_clients_have_their_own_features():
    fed = federation(1_000)
    trees = BoostedTrees(20).fit(fed, features=["x", "colour", "group"], target="y")
    about = TreeAttributions(trees).fit(fed)
    kinds = about.by_kind(fed, "group")
    phi = about.explain(fed)
    for code, name in enumerate(("a", "b")):
        own = phi[fed["group"] == code]
        np.testing.assert_allclose(kinds.mean[code], own.mean(axis=0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(kinds.size[code], np.abs(own).mean(axis=0), rtol=1e-9)
        assert kinds.kinds[code] == name
    assert kinds.size[1, 2] > 2 * kinds.size[0, 2]
    assert kinds.features == ("x.0", "x.1", "x.2", "colour", "group")
    np.testing.assert_allclose(about.by_kind(fed).size[0], np.abs(phi).mean(axis=0), rtol=1e-9)


def test_private_counts_are_one_release_and_near_the_plain_ones():
    fed, ledger = federation(2_000), Ledger()
    fed = fed.declare("colour", fed.names["colour"])
    trees = BoostedTrees(4, depth=3).fit(fed, features=["x", "colour"], target="y")
    plain = TreeAttributions(trees).fit(fed)
    privacy = Gaussian(clip=2.0, multiplier=1.0, unit="row", noise_seed=3)  # four trees: the root of four
    noisy = TreeAttributions(trees).fit(fed, privacy=privacy, ledger=ledger)
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 1
    assert 0 < np.abs(noisy.counts_ - plain.counts_).max() < 5 * 2 * 3
    np.testing.assert_allclose(noisy.explain(fed), plain.explain(fed), atol=0.05 * np.abs(plain.explain(fed)).max())


def test_what_is_refused():
    fed = federation()
    with pytest.raises(NotFittedError):
        TreeAttributions(BoostedTrees(2)).fit(fed)
    with pytest.raises(NotFittedError):
        TreeAttributions(BoostedTrees(2).fit(fed)).explain(fed)
    work, fed = AttributionSums.examples()[0]
    broken = AttributionSums(**work.get_params() | {"feature": np.full((2, 1, 3), 9)})
    with pytest.raises(DataError, match="of no forest with these edges"):
        broken.step({}, fed, None)
