"""The total variation distance through cells, paths and lambda(A)."""

from __future__ import annotations

from itertools import product
from math import pi

import numpy as np
import pytest

import fedscape as fs
from fedscape.papers import cell_tvd, collision_volume, path_bound, path_tvd
from fedscape.sketches import normalise


@pytest.mark.parametrize(("bits", "rows", "dimension"), [(1, 1, 2), (4, 1, 3), (2, 3, 5)])
def test_lambda_is_the_collision_probability_integrated_over_the_ball(bits, rows, dimension):
    rng = np.random.default_rng(0)
    n = 200_000
    x = rng.normal(size=(n, dimension))  # directions: the angle is all that counts
    theta = np.arccos(np.clip(x[:, 0] / np.linalg.norm(x, axis=1), -1, 1))
    values = (1 - theta / pi) ** (bits * rows)
    ball = {2: pi * 4, 3: 4 / 3 * pi * 8, 5: 8 / 15 * pi**2 * 32}[dimension]  # radius 2
    error = 5 * ball * values.std() / np.sqrt(n)
    assert abs(collision_volume(bits, dimension, radius=2.0, rows=rows) - ball * values.mean()) < error


def test_lambda_is_the_expected_volume_of_a_bucket():
    """One row of two bits in the plane: the share of the disc in the bucket of a point, over hash functions."""
    rng = np.random.default_rng(1)
    angles = rng.uniform(0, 2 * pi, 4000)
    disc = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    share = []
    for seed in range(300):
        codes = fs.DistributionSketch(1, bits=2, seed=seed).codes(np.concatenate(([[1.0, 0.0]], disc)))[:, 0]
        share.append(np.mean(codes[1:] == codes[0]))
    expected = collision_volume(2, 2) / pi
    assert abs(np.mean(share) - expected) < 5 * np.std(share) / np.sqrt(300) + 0.01


def laws(rows, bits, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(2**bits), rows), rng.dirichlet(np.ones(2**bits), rows)


def test_paths_are_all_paths_and_their_bound_holds():
    a, b = laws(3, 2)
    change = a - b
    every = [abs(change[0, i] + change[1, j] + change[2, k]) for i, j, k in product(range(4), repeat=3)]
    assert path_tvd(a, b) == pytest.approx(sum(every) / 4**3)
    assert path_tvd(a, b) <= path_bound(a, b)
    assert path_bound(a, b) == pytest.approx(np.abs(change).sum() / 4)


def test_one_row_mended_is_the_tvd_of_two_histograms_and_printed_is_not():
    a, b = laws(1, 3)
    truth = np.abs(a - b).sum() / 2
    assert path_tvd(a, b, mended=True) == pytest.approx(truth)
    assert path_tvd(a, b) == pytest.approx(truth * 2 / 8)


def test_the_bound_is_not_the_frobenius_norm():
    a, b = np.full((1000, 64), 1.0), np.zeros((1000, 64))
    assert path_bound(a, b) == pytest.approx(1000)
    assert np.linalg.norm(a - b) == pytest.approx(253, abs=0.1)  # four times less: no upper bound


def test_cells_of_one_row_are_buckets_and_the_volume_is_a_factor():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(500, 4)), rng.normal(1.0, 1.0, (500, 4))
    model = fs.DistributionSketch(1, bits=3, seed=0)
    p, q = normalise(model.count(x)), normalise(model.count(y))
    both = np.concatenate((x, y))
    one = cell_tvd(model, p, q, both, volume=1.0)
    assert one == pytest.approx(np.abs(p - q).sum() / 2)
    assert cell_tvd(model, p, q, both, volume=7.0) == pytest.approx(7 * one)


def test_wrong_sizes_are_refused():
    with pytest.raises(fs.errors.DataError, match="16\\^9 paths are more than 1,000,000"):
        path_tvd(np.zeros((9, 16)), np.zeros((9, 16)))
    with pytest.raises(fs.errors.DataError, match="dimension must be at least 2"):
        collision_volume(1, 1)
    with pytest.raises(fs.errors.DataError, match="the sketches must have 2 rows"):
        cell_tvd(fs.DistributionSketch(2, bits=1), np.zeros((3, 2)), np.zeros((3, 2)), np.ones((1, 2)), volume=1.0)
