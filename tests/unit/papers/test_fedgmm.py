"""Sigma = I, and half of all rows transformed."""

from __future__ import annotations

import numpy as np
import pytest

import fedscape as fs
from fedscape.papers import Identity, half_transformed
from fedscape.simulate.shifted import turned


def lloyd_like_em(x, owner, means, weights, n_rounds):
    """Algorithm 2 with Sigma = I and weights of each client's own, pooled in one place; log-likelihoods before each."""
    seen = []
    for _ in range(n_rounds):
        log = np.log(weights[owner]) - ((x[:, None] - means) ** 2).sum(axis=2) / 2 - x.shape[1] / 2 * np.log(2 * np.pi)
        top = log.max(axis=1, keepdims=True)
        like = top[:, 0] + np.log(np.exp(log - top).sum(axis=1))
        seen.append(like.sum())
        q = np.exp(log - like[:, None])
        means = (q.T @ x) / q.sum(axis=0)[:, None]
        weights = np.stack([q[owner == c].mean(axis=0) for c in range(len(weights))])
    return means, seen


def federation(seed=0, clients=8, rows=50):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients * rows, 2)) + rng.choice([-3.0, 3.0], (clients * rows, 1))
    return fs.Federation({"x": x}, np.arange(0, clients * rows + 1, rows))


def test_sigma_fixed_to_the_identity_is_em_for_means_and_weights_alone():
    fed = federation()
    start = np.array([[-1.0, 0.0], [1.0, 0.5]])
    fitted = fs.GaussianMixture(
        2, covariance=Identity(), means_init=start, covariances_init=np.ones(2), rounds=12, tol=-1.0
    ).fit(fed)
    means, _ = lloyd_like_em(fed["x"], fed.client_of_row, start, np.full((8, 2), 0.5), 12)
    np.testing.assert_allclose(fitted.means_, means, rtol=1e-9)
    np.testing.assert_array_equal(fitted.covariances_, np.ones(2))


def test_half_of_all_rows_are_transformed_and_the_others_are_not():
    rng = np.random.default_rng(0)
    fed = fs.Federation(
        {"x": rng.integers(0, 256, (101, 3, 3)).astype(np.uint8), "y": rng.integers(0, 5, 101)}, [0, 40, 101]
    )
    made = half_transformed(fed, seed=3)
    moved = made["shift"] == 1
    assert moved.sum() == round(101 / 2)
    np.testing.assert_array_equal(made["x"][~moved], fed["x"][~moved])
    np.testing.assert_array_equal(made["x"][moved], turned(fed["x"][moved]))
    np.testing.assert_array_equal(made["y"][~moved], fed["y"][~moved])
    pairs = {(int(a), int(b)) for a, b in zip(fed["y"][moved], made["y"][moved], strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})  # one permutation
    np.testing.assert_array_equal(made.offsets, fed.offsets)
    for share in (-0.1, 1.5):
        with pytest.raises(fs.errors.DataError, match="share must be from 0 to 1"):
            half_transformed(fed, share=share)
