"""Who gains by joining: distances against closed forms, gains that are there and that are not, weights."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

from fedscape import DataError, Federation
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.studies import collaboration
from fedscape.studies.collaboration import aggregation_weights, expected_gain, gaussian_distances, gaussian_profiles


def sites(flipped: tuple[bool, ...], rows: int = 60, seed: int = 0) -> Federation:
    """Sites whose labels mean the same, or the opposite."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(flipped) * rows, 8))
    y = (x @ np.linspace(1, -1, 8) + 0.3 * rng.normal(size=len(x)) > 0).astype(int)
    y = np.where(np.repeat(flipped, rows), 1 - y, y)
    ids = [f"site {i}" for i in range(len(flipped))]
    return Federation({"x": x, "y": y}, np.arange(0, len(x) + 1, rows), ids=ids)


def step() -> LocalSGD:
    return LocalSGD(models.linear(8, 2), cross_entropy, lr=0.3, epochs=1, batch_size=10)


def test_the_distance_is_that_of_two_gaussians():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(40, 3)), rng.normal(size=(50, 3)) * [1, 2, 3] + 1
    squares, variance = gaussian_distances(Federation({"x": np.concatenate([a, b])}, [0, 40, 90]))
    s, t = np.cov(a.T), np.cov(b.T)
    oracle = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(s + t - 2 * np.real(sqrtm(sqrtm(s) @ t @ sqrtm(s))))
    assert squares[0, 1] == pytest.approx(oracle - np.trace(s) / 40 - np.trace(t) / 50, rel=1e-9)
    assert variance == pytest.approx((40 * np.trace(s) + 50 * np.trace(t)) / 90)


def test_clients_of_one_law_are_no_further_apart_where_they_are_small():
    rng = np.random.default_rng(0)
    near = []
    for _ in range(200):
        fed = Federation({"x": rng.normal(size=(40, 1))}, [0, 20, 40])
        x = fed["x"].reshape(2, 20)
        raw = (x[0].mean() - x[1].mean()) ** 2 - x.var(axis=1, ddof=1).sum() / 20
        near.append(raw)
    assert abs(np.mean(near)) < 5 * np.std(near) / np.sqrt(200)  # before it is cut at 0: what is taken off is right


def test_sites_that_disagree_are_told_to_stay_alone_and_small_ones_that_agree_to_join():
    apart = collaboration(sites((False, True), rows=150), local=step(), rounds=15)
    assert set(apart.verdicts().values()) == {"stays alone"}
    alike = collaboration(sites((False,) * 6, rows=30), local=step(), rounds=15, pairs=False)
    assert sum(row["value"] for row in alike.together) / 6 > 0.02
    assert "stays alone" not in alike.verdicts().values()


def test_pairs_say_who_helps_whom():
    study = collaboration(sites((False, False, True), rows=80), local=step(), rounds=15)
    gain = {(row["client"], row["with"]): row for row in study.gains}
    assert len(gain) == 6
    assert gain["site 0", "site 1"]["value"] > gain["site 0", "site 2"]["high"]
    assert gain["site 2", "site 0"]["high"] < 0


def test_weights_are_rows_for_clients_that_are_alike_and_none_for_those_that_are_not():
    same = aggregation_weights(np.zeros((3, 3)), np.array([10, 20, 30]), 1.0)
    np.testing.assert_allclose(same, np.tile([1 / 6, 2 / 6, 3 / 6], (3, 1)))
    far = aggregation_weights(1e9 * (1 - np.eye(3)), np.array([10, 20, 30]), 1.0)
    np.testing.assert_allclose(far, np.eye(3), atol=1e-6)
    study = collaboration(sites((False, True)).with_column("x", np.repeat([0.0, 50.0], 60)[:, None] + np.ones(8)))
    assert study.select("site 1", most=1) == ["site 1"]


@pytest.mark.parametrize("apart", [0.0, 0.3, 1.0, 2.0])
def test_what_profiles_expect_is_what_pooling_does_and_its_interval_covers_it(apart):
    """Three clients of known laws: the gain is known, and estimated again and again."""
    rng, sizes = np.random.default_rng(3), np.array([30, 50, 80])
    places = np.array([[0.0, 0.0], [apart, 0.0], [0.0, -apart]])
    scales = np.array([1.0, 1.5, 0.5])
    share = sizes / sizes.sum()
    b = share @ places - places[0]
    alone, pooled = 2 * scales[0] ** 2 / 30, (share**2 * 2 * scales**2 / sizes).sum() + b @ b
    truth, found = 1 - pooled / alone, []
    for _ in range(400):
        x = np.concatenate([rng.normal(p, s, (n, 2)) for p, s, n in zip(places, scales, sizes, strict=True)])
        profiles = gaussian_profiles(Federation({"x": x}, np.concatenate([[0], np.cumsum(sizes)])))
        found.append(expected_gain(profiles, 0, [0, 1, 2]))
    covered = np.mean([row["low"] <= truth <= row["high"] for row in found])
    assert covered > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 400)
    if apart >= 1.0:  # else |b|^2 is cut at 0
        values = np.array([row["value"] for row in found])
        assert abs(values.mean() - truth) < 5 * values.std() / np.sqrt(400)
    sure = np.mean([row["high"] < 0 or row["low"] > 0 for row in found])
    assert sure > 0.9 or apart < 2.0


def test_groups_are_compared_by_profiles_and_by_training():
    fed = sites((False, False, False, True), rows=60)
    study = collaboration(fed, local=step(), rounds=10, pairs=False, groups=[["site 0", "site 1", "site 2"]])
    assert [(row["client"], row["with"]) for row in study.gains] == [
        ("site 0", "site 1, site 2"), ("site 1", "site 0, site 2"), ("site 2", "site 0, site 1"),
    ]  # fmt: skip
    assert len(study.expected) == 3 + 4
    assert study.gains[0]["value"] > study.together[0]["value"]  # without the one that disagrees
    alone = collaboration(fed, groups=[["site 0", "site 1", "site 2"]], pairs=False)
    assert alone.expected == study.expected
    for group in (["site 0"], ["site 0", "site 0"], ["site 0", "elsewhere"]):
        with pytest.raises(DataError, match="groups must each have two clients or more, all different and known"):
            collaboration(fed, groups=[group])


def test_bad_federations_are_refused():
    with pytest.raises(DataError, match="from 2 to 40 clients"):
        collaboration(sites((False,)))
    with pytest.raises(DataError, match="every client must have at least 2 rows, but 1 has 1"):
        collaboration(Federation({"x": np.ones((3, 1))}, [0, 2, 3]))
    with pytest.raises(DataError, match="client must be one of site 0, site 1, not 'x'"):
        collaboration(sites((False, True))).best("x")
