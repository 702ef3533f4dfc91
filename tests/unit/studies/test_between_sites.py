"""Heterogeneity of a few sites: the jackknife by brute force, and intervals that hold the truth of these very sites."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation
from fedscape.sketches import DistributionSketch, heterogeneity
from fedscape.studies.between_sites import interval_over_rows, label_parts, sketch_parts
from fedscape.studies.measure import measure
from fedscape.studies.prepare import prepare

SHARES = np.array([[0.6, 0.3, 0.1], [0.4, 0.4, 0.2], [0.2, 0.3, 0.5], [0.5, 0.4, 0.1]])


def value_of(counts: np.ndarray) -> float:
    sizes = counts.sum(axis=2).mean(axis=1)
    return float(heterogeneity(counts / sizes[:, None, None], sizes).value)


def by_brute_force(counts: np.ndarray, parts: list) -> float:
    """The jackknife's variance, with the whole number computed anew for everything left out."""
    variance = 0.0
    for i, (left_out, number) in enumerate(parts):
        values = []
        for part, often in zip(left_out, number, strict=True):
            fewer = counts.astype(float).copy()
            fewer[i] -= part
            values += [value_of(fewer)] * int(often)
        variance += (len(values) - 1) / len(values) * ((np.array(values) - np.mean(values)) ** 2).sum()
    return variance


def test_labels_are_left_out_row_by_row():
    counts = np.array([[12, 5, 3], [4, 9, 0], [1, 1, 6]])
    parts, whole = label_parts(counts), counts[:, None, :]
    value = value_of(whole)
    low, high = interval_over_rows(whole, parts, value)
    from scipy.stats import t

    reach = t.ppf(0.975, counts.sum() - 3) * np.sqrt(by_brute_force(whole, parts))
    assert (low, high) == pytest.approx((value - reach, value + reach))


def test_sketched_rows_are_left_out_in_groups():
    rng = np.random.default_rng(0)
    rows = Federation({"x": rng.normal(size=(90, 3)) + np.repeat([0, 0.5, 1], 30)[:, None]}, [0, 30, 60, 90])
    sketch = DistributionSketch(8, bits=2, column="x", seed=0).fit(rows, progress=False)
    whole = sketch.transform(rows) * 30
    parts = sketch_parts(rows, sketch, seed=1)
    for i, (groups, number) in enumerate(parts):
        np.testing.assert_allclose(groups.sum(axis=0), whole[i])  # every row is in one group
        assert number.sum() == 20
    low, high = interval_over_rows(whole, parts, value_of(whole))
    from scipy.stats import t

    assert high - low == pytest.approx(2 * t.ppf(0.975, 57) * np.sqrt(by_brute_force(whole, parts)))


@pytest.mark.parametrize("shares", [SHARES, np.tile(SHARES[0], (4, 1))], ids=["apart", "alike"])
def test_intervals_hold_the_heterogeneity_of_these_sites(shares):
    between = ((shares.sum(axis=0) ** 2).sum() - (shares**2).sum()) / 12
    truth = float(((shares**2).sum() / 4 - between) / (1 - between))
    rng, held, claimed = np.random.default_rng(5), [], []
    for _ in range(400):
        counts = rng.multinomial([300, 120, 60, 40], shares)
        low, high = interval_over_rows(counts[:, None, :], label_parts(counts), value_of(counts[:, None, :]))
        held.append(low <= truth + 1e-12 and truth <= high + 1e-12)
        claimed.append(low > 0)
    assert np.mean(held) > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 400)
    assert np.mean(claimed) > 0.8 if truth > 0.01 else np.mean(claimed) < 0.025 + 5 * np.sqrt(0.025 / 400)


def test_a_study_of_four_sites_knows_their_sizes_and_that_they_differ():
    """The interval over four clients said nothing: they are all there are."""
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.choice(3, 150, p=p) for p in SHARES]).astype(np.int32)
    fed = Federation({"x": rng.normal(size=(600, 2)), "y": y}, [0, 150, 300, 450, 600], names={"y": list("abc")})
    sites, devices = (measure(prepare(fed, seed=0), seed=0, sites=few) for few in (True, False))
    assert devices["labels"]["low"] < 0 < sites["labels"]["low"]
    assert sites["labels"]["value"] == devices["labels"]["value"]
    assert sites["features"]["high"] - sites["features"]["low"] > 0
    assert (sites["quantity"]["low"], sites["quantity"]["high"]) == (None, None)
    assert devices["quantity"]["low"] is not None
