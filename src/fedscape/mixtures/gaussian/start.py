"""Initial components of a Gaussian mixture, drawn from the law of all rows: no row leaves its client."""

from __future__ import annotations

import numpy as np

from fedscape.core.random import Key
from fedscape.mixtures.gaussian.covariances import Covariance
from fedscape.types import Array

_CANDIDATES = 16  # per component


def draw_means(mean: Array, matrix: Array, k: int, starts: int, seed: int) -> Array:
    """Draw means [S, K, d] spread over the normal law with this mean and covariance matrix.

    K of 16 K candidates are chosen, each with a probability proportional to its squared distance from those chosen
    before (the k-means++ rule). Every second start draws candidates only in the K - 1 leading directions: components of
    one spherical covariance have their means there.
    """
    values, vectors = np.linalg.eigh(matrix)
    spread = np.sqrt(np.maximum(values, 0.0))
    rng = Key(seed, purpose="gaussian starts").generator()
    out = np.empty((starts, k, len(mean)))
    for s in range(starts):
        scale = spread.copy()
        if s % 2 == 0 and k > 1:
            scale[: max(len(mean) - (k - 1), 0)] = 0.0  # eigenvalues ascend
        candidates = rng.standard_normal((_CANDIDATES * k, len(mean))) * scale @ vectors.T
        out[s] = mean + candidates[_far_apart(candidates, k, rng)]
    return out


def _far_apart(candidates: Array, k: int, rng: np.random.Generator) -> list[int]:
    chosen = [0]
    distance = np.full(len(candidates), np.inf)
    for _ in range(k - 1):
        distance = np.minimum(distance, ((candidates - candidates[chosen[-1]]) ** 2).sum(axis=1))
        total = distance.sum()
        chosen.append(int(rng.choice(len(candidates), p=distance / total)) if total > 0 else len(chosen))
    return chosen


def spread_of(covariance: Covariance, matrix: Array, means: Array, floor: float) -> Array:
    """Initial covariances [S, ...]: the covariance of all rows minus the spread of the means.

    At least a twentieth of the total remains in every direction.
    """
    values, vectors = np.linalg.eigh(matrix)
    spreads = []
    for mean in means:
        centred = mean - mean.mean(axis=0)
        left = np.diagonal(vectors.T @ (matrix - centred.T @ centred / len(mean)) @ vectors)
        kept = np.maximum(np.maximum(left, values / 20), 0.0) + floor
        spreads.append(covariance.of((vectors * kept) @ vectors.T, len(mean)))
    return np.stack(spreads)
