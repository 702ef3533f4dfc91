"""Standardising by quantiles: those of NumPy, far values without effect, and every look at the data in the ledger."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, FederatedKMeans, Federation, Gaussian, Ledger, Moments, PrivacyError
from fedscape.statistics import Scaling


def table(n: int = 4_000, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(40, 12, n), rng.lognormal(2, 1, n)])
    x[7, 1] = 80_995.0
    x[11, 0] = np.nan
    return Federation({"x": x, "z": rng.normal(size=n), "same": np.full(n, 3.0)}, np.arange(0, n + 1, 10))


def test_quantiles_scale_and_far_values_do_not():
    fed = table()
    scaling = Scaling(column=("x", "z", "same")).fit(fed)
    x = np.column_stack([fed["x"], fed["z"], fed["same"]])
    low, first, middle, third, high = np.nanquantile(x, [0.005, 0.25, 0.5, 0.75, 0.995], axis=0, method="inverted_cdf")
    np.testing.assert_array_equal(scaling.centre_, middle)
    np.testing.assert_allclose(scaling.scale_, (third - first) / 1.3489795)
    np.testing.assert_array_equal([scaling.low_, scaling.high_], [low, high])
    scaled = scaling.transform(fed)
    assert abs(np.nanstd(scaled["x"][:, 0]) - 1) < 0.1
    assert np.isnan(scaled["x"][11, 0])
    np.testing.assert_array_equal(scaled["same"], 0.0)
    assert scaled["z"].shape == fed["z"].shape
    lengths = np.sqrt(np.nansum(np.column_stack([scaled["x"], scaled["z"]]) ** 2, axis=1))
    assert lengths.max() <= scaling.bound() * (1 + 1e-12)
    mostly = Federation({"x": [0.0] * 90 + [7.0] * 10}, [0, 100])  # quartiles are alike, ends are not
    assert Scaling().fit(mostly).scale_[0] > 0


def test_a_private_path_has_every_look_at_the_data_in_its_ledger():
    fed, ledger = table(20_000), Ledger()
    fed = fed.where(np.isfinite(fed["x"]).all(axis=1))
    scaling = Scaling(ranges=[(0, 100), (0, 1_000)], resolution=0.5)
    privacy = Gaussian(clip=1.5, multiplier=6.0, unit="row", noise_seed=4)
    scaling.fit(fed, privacy=privacy, ledger=ledger)
    assert sum(line["kind"] == "release" for line in ledger.entries()) == scaling.n_releases()
    plain = Scaling().fit(fed)
    np.testing.assert_allclose(scaling.centre_, plain.centre_, atol=2.0)
    np.testing.assert_allclose(scaling.scale_, plain.scale_, rtol=0.3)
    scaled, before = scaling.transform(fed), len(ledger.entries())
    clip = float(np.sqrt(1 + scaling.bound() ** 2 + scaling.bound() ** 4)) * (1 + 1e-9)
    more = Gaussian(clip=clip, multiplier=2.0, unit="row", noise_seed=5)
    moments = Moments(bound=scaling.bound(), rounds=1).fit(scaled, privacy=more, ledger=ledger)
    np.testing.assert_allclose(moments.mean_, scaled["x"].mean(axis=0), atol=0.2)
    wide = Gaussian(clip=2 * clip, multiplier=2.0, unit="row", noise_seed=5)
    FederatedKMeans(2, bound=scaling.bound(), rounds=1).fit(scaled, privacy=wide, ledger=ledger)
    releases = [line for line in ledger.entries()[before:] if line["kind"] == "release"]
    assert len(releases) >= 2
    assert all(epsilon > 0 for epsilon in ledger.spent().values())


def test_what_is_refused():
    fed = table(100)
    with pytest.raises(PrivacyError, match="need ranges"):
        Scaling().fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0))
    with pytest.raises(PrivacyError, match="needs ranges"):
        Scaling().n_releases()
    with pytest.raises(DataError, match="cut must be a share below"):
        Scaling(cut=(0.3, 0.9)).fit(fed)
    with pytest.raises(DataError, match="features a row"):
        Scaling().fit(fed, column="z").transform(fed.with_column("z", fed["x"]))


def test_columns_of_infinite_values_have_no_scale():
    fed = Federation({"x": np.where(np.arange(50) < 10, np.inf, np.arange(50.0))}, [0, 25, 50])
    with pytest.raises(DataError, match="too many infinite or huge values to have a scale"):
        Scaling().fit(fed)
