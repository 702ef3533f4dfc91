"""Models of tables whose clients live on Flower nodes, plain and through masked sums: what Local gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import fedscape as fs
from fedscape.errors import DataError
from fedscape.tabular import PersonalTrees, TreeAttributions

_spec = importlib.util.spec_from_file_location("nodes", Path(__file__).with_name("nodes.py"))
nodes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nodes)

WHERE = {"plain": None, "secure": fs.SecureSum(dropouts=0.34, colluders=0.0, bounds=2.0**24), "two": fs.TwoServers()}
everywhere = pytest.mark.parametrize("secure", WHERE)


def table() -> fs.Federation:
    rng = np.random.default_rng(2)
    n = 240
    x = rng.normal(size=(n, 2)).round(2)
    x[rng.random((n, 2)) < 0.1] = np.nan
    kind = rng.integers(0, 3, n).astype(np.int32)
    signal = np.nan_to_num(x[:, 0]) + (kind == 1) + rng.normal(0, 0.3, n)
    columns = {
        "x": x,
        "z": rng.uniform(-1, 1, (n, 2)),
        "kind": kind,
        "sick": (signal > 0.4).astype(np.int32),
        "ill": (signal > 0.4).astype(float),
        "visits": rng.poisson(np.exp(0.3 * signal)).astype(float),
    }
    names = {"kind": ("a", "b", "c"), "sick": ("no", "yes")}
    return fs.Federation(columns, np.arange(0, n + 1, 20), ids=[f"c{i:02d}" for i in range(12)], names=names)


def remote(fed: fs.Federation, folder: Path, secure: str) -> fs.Flower:
    return nodes.engine_of(fed, folder, nodes=6, secure=WHERE[secure], timeout=5.0)


@everywhere
def test_boosted_trees_are_the_same_to_the_bit(secure, tmp_path):
    fed = table()
    how = {"n_trees": 3, "depth": 3, "bins": 16, "features": ["x", "kind"], "target": "sick"}
    here = fs.BoostedTrees(**how, held_out=0.2).fit(fed)
    with pytest.raises(DataError, match="the server holds no rows"):
        fs.BoostedTrees(**how).fit(remote(fed, tmp_path / "refused", secure))
    categories = {name: fed.names[name] for name in ("kind", "sick")}
    engine = remote(fed, tmp_path / "nodes", secure)
    there = fs.BoostedTrees(**how, held_out=0.2, categories=categories).fit(engine)
    assert engine.troubles == []
    for name in ("feature", "left", "value"):  # gradients lie on a grid that masks keep
        assert getattr(there.forest_, name).tobytes() == getattr(here.forest_, name).tobytes(), name
    assert there.forest_.names == here.forest_.names
    assert there.forest_.categories == here.forest_.categories
    np.testing.assert_array_equal(there.predict(fed), here.predict(fed))
    mine, theirs = (PersonalTrees(here, strengths=(4.0,)).fit(where) for where in (fed, engine))
    np.testing.assert_allclose(theirs.losses_, mine.losses_, rtol=1e-6)
    mine, theirs = (TreeAttributions(here).fit(where) for where in (fed, engine))
    np.testing.assert_array_equal(theirs.counts_, mine.counts_)
    np.testing.assert_allclose(theirs.by_kind(engine).size, mine.by_kind(fed).size, rtol=1e-6)


@everywhere
def test_glms_quantiles_and_heavy_hitters_are_those_of_local(secure, tmp_path):
    fed = table()
    engine = remote(fed, tmp_path, secure)
    for family, target in (("logistic", "ill"), ("poisson", "visits")):
        mine, theirs = (fs.GLM(family, features="z", target=target).fit(where) for where in (fed, engine))
        np.testing.assert_allclose(theirs.coefficients_, mine.coefficients_, rtol=1e-6)
        np.testing.assert_allclose(theirs.standard_errors_, mine.standard_errors_, rtol=1e-6)
        np.testing.assert_allclose(theirs.robust_errors_, mine.robust_errors_, rtol=1e-6)
    mine, theirs = (fs.Quantiles([0.1, 0.5, 0.9]).fit(where) for where in (fed, engine))
    np.testing.assert_array_equal(theirs.quantiles_, mine.quantiles_)
    mine, theirs = (fs.HeavyHitters(3, column="kind", length=2).fit(where) for where in (fed, engine))
    assert (theirs.names_, theirs.counts_.tolist()) == (mine.names_, mine.counts_.tolist())
    assert engine.troubles == []
