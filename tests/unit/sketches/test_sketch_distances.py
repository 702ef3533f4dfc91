"""Distances of sketches: their bias, bounds, blocked products, and heterogeneity in one number."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, DistributionSketch, Federation, Laplace
from fedscape.sketches import (
    choose_rows,
    distance,
    heterogeneity,
    neighbours,
    noise_variance,
    normalise,
    pairwise,
    tvd_lower_bound,
)

SKETCH = DistributionSketch(60, bits=3, seed=2)


def laws(k, d=4, seed=0):
    return np.random.default_rng(seed).normal(0, 0.7, (k, d))


def draw(mean, n, rng):
    return rng.normal(mean, 1.0, (n, len(mean)))


def clients(means, sizes, seed=0):
    rng = np.random.default_rng(seed)
    x = np.concatenate([draw(m, n, rng) for m, n in zip(means, sizes, strict=True)])
    return Federation({"x": x}, np.concatenate(([0], np.cumsum(sizes))))


def test_the_distance_is_the_frobenius_norm():
    a, b = np.random.default_rng(0).random((2, 7, 5, 4))
    assert np.allclose(distance(a, b), [np.linalg.norm(p - q) for p, q in zip(a, b, strict=True)])
    assert np.allclose(distance(a, b, squared=True), distance(a, b) ** 2)


def test_the_squared_distance_of_small_clients_is_biased_as_stated_and_debiased_it_is_not():
    rng = np.random.default_rng(1)
    (p, q), trials = laws(2), 400
    big = [normalise(SKETCH.count(draw(mean, 200_000, rng))) for mean in (p, q)]
    truth = float(distance(*big, squared=True))
    for n, m in ((5, 8), (40, 5)):
        raw, fair = [], []
        for _ in range(trials):
            a, b = normalise(SKETCH.count(draw(p, n, rng))), normalise(SKETCH.count(draw(q, m, rng)))
            raw.append(float(distance(a, b, squared=True)))
            fair.append(float(distance(a, b, sizes=(n, m), squared=True)))
        added = sum((1 - (s**2).sum(axis=1)).sum() / k for s, k in zip(big, (n, m), strict=True))
        assert abs(np.mean(raw) - truth - added) < 5 * np.std(raw) / np.sqrt(trials)
        assert abs(np.mean(fair) - truth) < 5 * np.std(fair) / np.sqrt(trials)
        assert np.mean(raw) > truth + 10 * np.std(raw) / np.sqrt(trials)


def test_the_noise_of_private_sketches_is_taken_out():
    rng = np.random.default_rng(2)
    privacy = Laplace(clip=6.0, epsilon=0.5, unit="row", place="local")
    sketch, n, m = DistributionSketch(6, bits=3), 300, 500
    fed = clients(np.tile([[0.0, 0.0], [0.8, 0.0]], (m, 1)), [n] * 2 * m, seed=3)
    truth = [normalise(sketch.count(draw(np.array(mean), 200_000, rng))) for mean in ([0.0, 0.0], [0.8, 0.0])]
    noisy = sketch.transform(fed, privacy=privacy)
    fair = distance(noisy[::2], noisy[1::2], sizes=(n, n), noise=noise_variance(privacy), squared=True)
    error = fair.std() / np.sqrt(m)
    assert abs(fair.mean() - float(distance(*truth, squared=True))) < 5 * error
    assert distance(noisy[::2], noisy[1::2], squared=True).mean() > fair.mean() + 20 * error


def test_choose_rows_knows_the_variance_of_a_noisy_distance():
    rng = np.random.default_rng(3)
    rows, cells, scale, square, trials = 20, 8, 0.05, 0.1, 4000
    apart = np.zeros((rows, cells))
    apart[:, :2] = np.sqrt(square / 2) * np.array([1, -1])
    noise = rng.laplace(0, scale, (trials, rows, cells)) - rng.laplace(0, scale, (trials, rows, cells))
    found = ((apart + noise) ** 2).sum(axis=(1, 2)) / (rows * square)
    v = 2 * scale**2
    law = 8 * v / (rows * square) + 14 * cells * v**2 / (rows * square**2)
    assert found.var() == pytest.approx(law, rel=0.15)
    assert choose_rows(500, epsilon=1.0) <= 20


def test_half_the_l1_distance_of_a_row_never_exceeds_the_tvd_of_the_data():
    rng = np.random.default_rng(4)
    points = rng.normal(size=(6, 3))
    for _ in range(50):
        a, b = rng.multinomial(30, rng.dirichlet(np.ones(6)), 2)
        tvd = np.abs(a - b).sum() / 2 / 30
        s = [SKETCH.count(np.repeat(points, n, axis=0)) / 30 for n in (a, b)]
        assert tvd_lower_bound(*s) <= tvd + 1e-9


def test_pairs_by_blocks_equal_pairs_one_by_one(monkeypatch):
    monkeypatch.setattr("fedscape.sketches.distances._BLOCK", 4)
    sizes = np.array([3, 9, 0, 1, 20, 5, 7, 2, 30, 11])
    s = SKETCH.transform(clients(laws(10), sizes))
    for given in (None, sizes):
        both = None if given is None else (given[:, None], given[None, :])
        slow = distance(s[:, None], s[None, :], sizes=both, squared=True)
        fast = pairwise(s, sizes=given, squared=True)
        off = ~np.eye(10, dtype=bool)
        assert np.allclose(fast[off], slow[off], atol=1e-4, equal_nan=True)
        assert np.array_equal(fast, fast.T, equal_nan=True)
        assert np.nan_to_num(np.diag(fast)).max() == 0
    assert np.isnan(pairwise(s)[2]).all()  # no rows, no distance
    assert not np.isnan(pairwise(s)[3, 4])
    assert np.isnan(pairwise(s, sizes=sizes)[3, 4])  # one row: no debiased one
    two = pairwise(s[:3], s[3:], sizes=sizes[:3], other_sizes=sizes[3:], squared=True)
    assert np.allclose(two, pairwise(s, sizes=sizes, squared=True)[:3, 3:], equal_nan=True, atol=1e-4)


def test_neighbours_are_the_nearest_and_the_empty_have_none():
    sizes = np.array([0, 40, 40, 40, 40])
    s = SKETCH.transform(clients(laws(5, seed=1), sizes))
    index, squares = neighbours(s, s[:3], k=4)
    full = pairwise(s, s[:3], squared=True)
    assert index[0].tolist() == [-1] * 4
    for i in range(1, 5):
        want = sorted([1, 2], key=lambda j: full[i, j])
        assert index[i].tolist() == [*want, -1, -1]
        assert np.allclose(squares[i, :2], np.sort(full[i, 1:]), atol=1e-5)
    assert neighbours(s[:2], s[:0])[0].tolist() == [[-1], [-1]]


def test_a_small_twin_is_nearer_than_a_large_stranger_only_when_debiased():
    means = np.zeros((2, 4))
    means[1, 0] = 0.35
    raw, fair = 0, 0
    for seed in range(60):
        fed = clients(means[[0, 0, 1]], [2000, 12, 2000], seed=seed)  # the query, its small twin, a large stranger
        s = SKETCH.transform(fed)
        raw += neighbours(s[:1], s[1:])[0][0, 0] == 0
        fair += neighbours(s[:1], s[1:], sizes=(fed.sizes[:1], fed.sizes[1:]))[0][0, 0] == 0
    assert raw == 0
    assert fair > 20


def test_heterogeneity_is_zero_for_iid_clients_of_any_sizes_and_its_reference_is_met():
    values, ratio = [], []
    for seed in range(40):
        sizes = np.random.default_rng(seed).integers(2, 60, 40)
        fed = clients(np.zeros((40, 4)), sizes, seed=seed)
        found = heterogeneity(SKETCH.transform(fed), sizes)
        values.append(found.value)
        ratio.append(found.distance**2 / found.iid**2)
    assert abs(np.mean(values)) < 5 * np.std(values) / np.sqrt(40)
    assert abs(np.mean(ratio) - 1) < 5 * np.std(ratio) / np.sqrt(40)


def test_the_iid_reference_is_the_mean_over_shuffles():
    sizes = np.array([3, 5, 9, 30])
    x = np.random.default_rng(0).normal(size=(sizes.sum(), 4))
    offsets, squares = np.concatenate(([0], np.cumsum(sizes))), []
    for seed in range(400):
        mixed = Federation({"x": x[np.random.default_rng(seed).permutation(len(x))]}, offsets)
        found = heterogeneity(SKETCH.transform(mixed), sizes)
        squares.append(found.distance**2)
    assert abs(np.mean(squares) - found.iid**2) < 5 * np.std(squares) / np.sqrt(400)


def test_heterogeneity_is_one_for_clients_that_are_points_and_its_interval_covers_the_truth():
    s = np.eye(5)[:, None, :]
    assert heterogeneity(s, [10] * 5).value == pytest.approx(1.0)
    means = laws(2000, seed=5)
    wide = heterogeneity(SKETCH.transform(clients(means, [200] * 2000)), np.full(2000, 200))
    covered = 0
    for seed in range(60):
        chosen = means[np.random.default_rng(seed).choice(2000, 60, replace=False)]
        found = heterogeneity(SKETCH.transform(clients(chosen, [30] * 60, seed=seed)), [30] * 60)
        covered += found.low <= wide.value <= found.high
    assert covered >= 48  # 57 expected; five standard errors


def test_clients_with_fewer_than_two_rows_are_left_out_of_heterogeneity():
    sizes = np.array([0, 1, 10, 10, 10])
    s = SKETCH.transform(clients(laws(5), sizes))
    assert heterogeneity(s, sizes).clients == 3
    assert heterogeneity(s, sizes) == heterogeneity(s[2:], sizes[2:])


BAD = {
    "same rows, bits, family and seed": lambda: distance(np.ones((2, 3)), np.ones((2, 4))),
    "at least two clients with two or more rows": lambda: heterogeneity(np.ones((2, 1, 1)), [1, 5]),
    "a size each": lambda: heterogeneity(np.ones((2, 1, 1)), [5]),
    "pairs are made of": lambda: pairwise(np.ones((2, 2))),
    "k >= 1": lambda: neighbours(np.ones((1, 2, 2)), np.ones((1, 2, 2)), k=0),
    "counts are": lambda: normalise([1, 2]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_with_a_reason(message):
    with pytest.raises(DataError, match=message):
        BAD[message]()
