"""Boosted trees by sums, against boosting in one place and scikit-learn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_boosting import boost
from plain_xgboost import margins

from fedscape import BoostedTrees, DataError, Federation, Gaussian, Key, Ledger, Local, Poisson, PrivacyError, rounds
from fedscape.core.estimator import Fit
from fedscape.errors import CheckpointError
from fedscape.tabular.binning import Bins, binned, code_rows, code_rows_twin
from fedscape.tabular.growing import TreeRounds
from fedscape.tabular.losses import gradients
from fedscape.tabular.splits import add_histograms, descend, rows_in_slots
from fedscape.tabular.xgboost_json import model_of


def table(n: int = 600, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (n, 3)).round(1)
    x[rng.random((n, 3)) < 0.1] = np.nan
    kind = rng.integers(0, 5, n)
    signal = np.nan_to_num(x[:, 0]) + np.isin(kind, [1, 3]) - 0.5 * np.isnan(x[:, 1]) + rng.normal(0, 0.3, n)
    return {
        "x": x,
        "kind": kind.astype(np.int32),
        "squared": 40 * signal,
        "logistic": (signal > 0.5).astype(int),
        "softmax": np.digitize(signal, [-0.3, 0.7]),
        "poisson": rng.poisson(np.exp(0.5 * signal)),
    }


def dealt(columns: dict[str, np.ndarray], clients: int) -> Federation:
    n = len(columns["x"])
    offsets = np.linspace(0, n, clients + 1).astype(int)
    return Federation(columns, offsets, names={"kind": tuple("abcde")})


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax", "poisson"])
@pytest.mark.parametrize("clients", [1, 7, 600])
def test_any_split_into_clients_is_boosting_in_one_place(loss, clients):
    columns = table()
    trees = BoostedTrees(4, depth=3, bins=16, loss=loss, learning_rate=0.3, monotone={"x": 1})
    trees.fit(dealt(columns, clients), features=["x", "kind"], target=loss)
    forest = trees.forest_
    x = np.column_stack([columns["x"], columns["kind"]])
    spread = np.std(columns[loss])
    unit = {"squared": 2.0 ** np.ceil(np.log2(spread)), "poisson": 2.0 ** np.ceil(np.log2(columns[loss].mean()))}
    margin = boost(
        binned(x, forest.bins),
        columns[loss].astype(float),
        loss=loss,
        base=forest.base,
        unit=unit.get(loss, 1.0),
        n_trees=4,
        depth=3,
        rate=0.3,
        l2=1.0,
        least=1.0,
        missing=forest.bins.width,
        n_bins=forest.bins.n_bins,
        categories=forest.bins.categories > 0,
        monotone=[1, 1, 1, 0],
    )
    np.testing.assert_allclose(forest.margins(x), margin, rtol=1e-9, atol=1e-9)


def test_the_forest_is_the_same_to_the_byte_for_any_clients_threads_and_order():
    columns = table()
    forests = [
        BoostedTrees(3, depth=3, held_out=0.2).fit(where, features=["x", "kind"], target="logistic").forest_
        for where in (
            Local(dealt(columns, 20), threads=1),
            Local(dealt(columns, 20), threads=4),
            dealt(columns, 20).take(np.random.default_rng(0).permutation(20)),
        )
    ]
    for forest in forests[1:]:
        for name in ("feature", "left", "value"):
            assert getattr(forest, name).tobytes() == getattr(forests[0], name).tobytes()


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_parallel_trees_take_the_rounds_of_one_and_see_their_own_rows(loss):
    columns = table()
    how = {"depth": 3, "bins": 16, "loss": loss, "learning_rate": 0.5, "features": ["x", "kind"], "target": loss}
    fed = dealt(columns, 7)
    one, many = BoostedTrees(3, **how).fit(fed), BoostedTrees(12, parallel=4, subsample=0.6, **how).fit(fed)
    assert len(many.history_) <= len(one.history_)
    forest, outputs = many.forest_, len(many.forest_.base)
    assert forest.feature.shape[:2] == (12, outputs)
    codes = binned(np.column_stack([columns["x"], columns["kind"]]).astype(float), forest.bins)
    y, margin = columns[loss].astype(float), np.repeat(forest.base[None], 600, axis=0)
    for step in range(3):
        g, h = gradients(loss, y, margin)
        added = np.zeros_like(margin)
        for j in range(4):
            own = Key(0, step, f"rows of parallel tree {j}").uniform_rows(fed) < 0.6
            assert 250 < own.sum() < 470
            for k in range(outputs):
                node = np.zeros(600, dtype=np.int16)
                descend(codes, node, forest.feature[4 * step + j, k], forest.left[4 * step + j, k], 3)
                value = forest.value[4 * step + j, k]
                for leaf in np.unique(node[own]):
                    rows = own & (node == leaf)
                    newton = -g[rows, k].sum() / (h[rows, k].sum() + 1.0)
                    np.testing.assert_allclose(value[leaf], 0.5 * newton / 4, rtol=1e-4, atol=1e-6)
                added[:, k] += value[node]
        margin = margin + added
    np.testing.assert_allclose(forest.margins(np.column_stack([columns["x"], columns["kind"]])), margin, rtol=1e-9)
    with pytest.raises(DataError, match="below 1 for parallel trees"):
        BoostedTrees(4, parallel=2).fit(fed, features="x", target=loss)


def test_a_client_that_missed_rounds_goes_through_the_forest_again():
    computation, fed = TreeRounds.examples()[1]
    always = [r.state for r in rounds(computation, fed, n_rounds=4)][-1]
    sometimes = [r.state for r in rounds(computation, fed, n_rounds=4, sampler=Poisson(0.7))][-1]
    assert not np.array_equal(always["value"], sometimes["value"])
    reply = Local(fed)
    for r in rounds(computation, reply, n_rounds=3, sampler=Poisson(0.5), seed=1):
        state = r.state
    everyone = np.arange(len(fed))
    with_kept = reply.run(computation, state, everyone, Key(1, 3)).total["histograms"]
    fresh = Local(fed).run(computation, state, everyone, Key(1, 3)).total["histograms"]
    np.testing.assert_array_equal(with_kept, fresh)


def test_with_a_sampler_both_children_of_a_split_are_sent():
    fed = dealt(table(), 30)
    how = {"depth": 3, "features": ["x", "kind"], "target": "logistic"}
    trees = BoostedTrees(3, **how).fit(fed, sampler=Poisson(0.5))
    by_hand = BoostedTrees(3, **how)
    begun = by_hand._begin(Fit(sampler=Poisson(0.5), progress=False))
    work = by_hand.growing(Local(fed), begun, subtract=False)
    state = [r.state for r in rounds(work, fed, n_rounds=9, sampler=Poisson(0.5), seed=0, measure=0)][-1]
    np.testing.assert_array_equal(trees.forest_.value, state["value"])


def test_accuracy_is_that_of_scikit_learn():
    from sklearn.ensemble import HistGradientBoostingClassifier

    train, test = table(6_000, 1), table(6_000, 2)
    x, z = (np.column_stack([t["x"], t["kind"]]) for t in (train, test))
    peer = HistGradientBoostingClassifier(categorical_features=[3], max_iter=60, early_stopping=False).fit(
        x, train["softmax"]
    )
    trees = BoostedTrees(60).fit(dealt(train, 50), features=["x", "kind"], target="softmax")
    mine, theirs = (trees.predict(z) == test["softmax"]).mean(), peer.score(z, test["softmax"])
    assert mine > theirs - 5 * np.sqrt(0.25 / 6_000)


def test_a_monotone_feature_is_monotone():
    columns = table(2_000)
    trees = BoostedTrees(30, monotone={"x": -1}).fit(dealt(columns, 9), features="x", target="squared")
    for value in (-1.0, 0.0, np.nan):
        grid = np.column_stack([np.linspace(-3, 3, 200), np.full(200, value), np.full(200, 0.2)])
        assert (np.diff(trees.predict(grid)) <= 1e-12).all()


def test_held_out_rows_stop_the_growth():
    rng = np.random.default_rng(3)
    columns = {"x": rng.normal(size=(500, 3)), "y": rng.normal(size=500)}
    trees = BoostedTrees(60, held_out=0.3, patience=3).fit(Federation(columns, [0, 200, 500]))
    assert trees.n_trees_ < 20
    assert len(trees.history_) < 60 * 5


def test_kernels_do_as_plain_numpy():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 3)).round(1)
    x[::7, 0], x[:, 2] = np.nan, rng.integers(-1, 6, 300)
    edges, categories = np.sort(rng.normal(size=(3, 5)).round(1), axis=1), np.array([0, 0, 4])
    fast, plain = np.zeros((300, 3), dtype=np.uint8), np.zeros((300, 3), dtype=np.uint8)
    code_rows(x, edges, categories, 6, fast)
    code_rows_twin(x, edges, categories, 6, plain)
    np.testing.assert_array_equal(fast, plain)
    g, h = rng.integers(-9, 9, 300) / 8, rng.integers(0, 9, 300) / 8
    nodes, slot_of = rng.integers(1, 7, 300).astype(np.int16), np.array([1, -2, 0, -1], dtype=np.int32)
    owner, used = rng.integers(0, 2, 300), rng.random(300) < 0.8
    for near in (True, False):
        rows, slots = rows_in_slots(nodes, 3, slot_of, owner, 2, used, near)
        assert (np.diff(rows if near else slots) >= 0).all()
        hist, by_hand = np.zeros((4, 3, 7, 2)), np.zeros((4, 3, 7, 2))
        add_histograms(fast, rows, slots, g, h, hist)
        for row in np.flatnonzero(used & (nodes >= 3)):
            if slot_of[nodes[row] - 3] >= 0:
                for f in range(3):
                    by_hand[2 * owner[row] + slot_of[nodes[row] - 3], f, fast[row, f]] += g[row], h[row]
        np.testing.assert_array_equal(hist, by_hand)
    bits = rng.integers(0, 256, (3, 32)).astype(np.uint8)
    feature, node = np.array([1, -1, 2], dtype=np.int32), np.zeros(300, dtype=np.int16)
    descend(fast, node, feature, bits, 2)
    for row in range(300):
        at = 0
        while at < 3 and feature[at] >= 0:
            code = fast[row, feature[at]]
            at = 2 * at + (1 if np.unpackbits(bits[at], bitorder="little")[code] else 2)
        assert node[row] == at


def test_saved_and_loaded_it_predicts_the_same(tmp_path):
    columns = table()
    trees = BoostedTrees(5).fit(dealt(columns, 3), features=["x", "kind"], target="softmax")
    trees.save(tmp_path / "trees.json")
    again = BoostedTrees.load(tmp_path / "trees.json")
    x = np.column_stack([columns["x"], columns["kind"]])
    np.testing.assert_array_equal(trees.predict_proba(x), again.predict_proba(x))
    np.testing.assert_array_equal(trees.predict(dealt(columns, 5)), again.predict(x))
    said = json.loads((tmp_path / "trees.json").read_text())
    said["trees"][0][0]["feature"][0] = 99
    (tmp_path / "bad.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match="holds no boosted trees"):
        BoostedTrees.load(tmp_path / "bad.json")


def test_xgboost_reads_what_is_written_for_it():
    """The file holds models of `save_xgboost` and what XGBoost 3.2.0 predicts with them, on rows with missing values:
    Booster().load_model(...).predict(DMatrix(x, feature_types=..., enable_categorical=True), output_margin=True)."""
    frozen = json.loads(Path(__file__).with_name("xgboost_margins.json").read_text())
    x = np.array(frozen["x"], dtype=np.float32)
    for loss in ("softmax", "poisson"):
        np.testing.assert_array_equal(
            margins(frozen[loss]["model"], x), np.array(frozen[loss]["margins"], dtype=np.float32)
        )


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax", "poisson"])
def test_a_forest_written_for_xgboost_has_the_same_leaves(loss, tmp_path):
    columns = table(500)
    columns["x"] = columns["x"].astype(np.float32).astype(float)
    trees = BoostedTrees(4, depth=4, loss=loss).fit(dealt(columns, 5), features=["x", "kind"], target=loss)
    trees.save_xgboost(tmp_path / "model.json")
    x = np.column_stack([columns["x"], columns["kind"]])
    forest, outputs = trees.forest_, len(trees.forest_.base)
    mine = np.repeat(forest.base.astype(np.float32)[None], len(x), axis=0)
    for t in range(4):
        alone = replace(forest, feature=forest.feature[t : t + 1], left=forest.left[t : t + 1], base=np.zeros(outputs))
        mine += replace(alone, value=forest.value[t : t + 1]).margins(x).astype(np.float32)
    np.testing.assert_array_equal(margins((tmp_path / "model.json").read_text(), x), mine)
    broken = forest.left.copy()
    broken[0, 0, 0] = 0xAA
    if not forest.bins.categories[forest.feature[0, 0, 0]]:
        with pytest.raises(DataError, match="is no threshold"):
            model_of(replace(forest, left=broken))


def test_a_private_fit_learns_and_is_in_the_ledger():
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, (20_000, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    fed, ledger = Federation({"x": x, "y": y}, np.arange(0, 20_001, 100), names={"y": ("no", "yes")}), Ledger()
    trees = BoostedTrees(4, depth=3, bins=8, learning_rate=0.5, least_weight=50.0, ranges={"x": (-1, 1)})
    privacy = Gaussian(clip=2.0, multiplier=8.0, unit="row", noise_seed=2)
    trees.fit(fed, privacy=privacy, ledger=ledger)
    assert (trees.predict(x) == y).mean() > 0.9
    releases = sum(line["kind"] == "release" for line in ledger.entries())
    assert releases == len(trees.history_) <= trees.n_releases()


def test_no_row_moves_the_sums_by_more_than_its_bound():
    rng = np.random.default_rng(7)
    fed = Federation({"x": rng.normal(size=(200, 3)), "y": rng.integers(0, 3, 200)}, np.arange(201))
    edges = np.tile(np.linspace(-1, 1, 5), (3, 1))
    computation = TreeRounds(edges, loss="softmax", base=(0.0, 3.0, -3.0), depth=2, subtract=False)
    sent, _ = computation.step(computation.start(0), fed, None)
    rows = sent["histograms"].reshape(200, -1)
    assert np.linalg.norm(rows, axis=1).max() <= computation.row_bound({}, 2, fed)
    assert np.abs(rows).sum(axis=1).max() <= computation.row_bound({}, 1, fed)
    assert TreeRounds(edges, loss="squared").row_bound({}, 2, fed) is None  # a number may lie anywhere


def test_what_is_refused():
    fed = dealt(table(), 4)
    with pytest.raises(PrivacyError, match="needs ranges"):
        BoostedTrees(2).fit(fed, features="x", target="squared", privacy=Gaussian(clip=1.0, multiplier=1.0))
    with pytest.raises(PrivacyError, match="no private loss"):
        BoostedTrees(2, held_out=0.1).fit(fed, target="logistic", privacy=Gaussian(clip=1.0, multiplier=1.0))
    by_row = Gaussian(clip=9.0, multiplier=1.0, unit="row")
    with pytest.raises(PrivacyError, match="one row moves the draw of all others"):
        BoostedTrees(2, subsample=0.5).fit(fed, features="x", target="logistic", privacy=by_row)
    with pytest.raises(DataError, match="loss must be one of"):
        BoostedTrees(2, loss="hinge").fit(fed, target="logistic")
    with pytest.raises(DataError, match="monotone must give"):
        BoostedTrees(2, monotone={"kind": 1}).fit(fed, features=["x", "kind"], target="logistic")
    with pytest.raises(DataError, match="features per row"):
        BoostedTrees(2).fit(fed, features="x", target="logistic").predict([[1.0]])
    with pytest.raises(DataError, match="which is not a count"):
        BoostedTrees(2, loss="poisson").fit(fed, features="x", target="squared")
    assert Bins(np.zeros((1, 2)), np.array([0])).width == 3


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_forest_of_missing_and_infinite_values_can_be_read_again(odd, tmp_path):
    """Edges are finite numbers: a column that is all missing, or has many infinite values, had edges at infinity."""
    x, y = np.random.default_rng(0).normal(size=(300, 2)), np.arange(300) % 2
    x[:, 1] = np.where(np.isnan(odd) | (x[:, 1] > -1), odd, x[:, 1])
    trees = BoostedTrees(3).fit(Federation({"x": x, "y": y}, np.arange(0, 301, 30)))
    trees.save(tmp_path / "trees.json")
    assert np.array_equal(BoostedTrees.load(tmp_path / "trees.json").predict_proba(x), trees.predict_proba(x))
    trees.save_xgboost(tmp_path / "xgboost.json")
    assert "Infinity" not in (tmp_path / "xgboost.json").read_text()


def test_what_no_tree_can_use_is_refused_in_one_line():
    fed = Federation(
        {"x": np.zeros((4, 0)), "z": np.arange(4.0), "y": [0, 1, 0, 1], "far": [1.0, 1e200, 3, 4]}, [0, 2, 4]
    )
    with pytest.raises(DataError, match="no number a row"):
        BoostedTrees(2).fit(fed, features="x")
    with pytest.raises(DataError, match="1e\\+200 in row 1, which is not a number below 1e100"):
        BoostedTrees(2).fit(fed, features="z", target="far")
    with pytest.raises(DataError, match="ranges must be a dictionary"):
        BoostedTrees(2, ranges=(0, 1)).fit(fed, features="z")
