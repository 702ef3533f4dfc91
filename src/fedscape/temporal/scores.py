"""Scores of units under the broadcast discriminant: their means and scatter, and what clients send of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.learning.device import shared
from fedscape.temporal.calibration import posterior
from fedscape.temporal.gaussians import segment_means
from fedscape.types import Array, Arrays, Tensor

_FAR = 8.0  # standard deviations of clients at which scores are clipped


class UnitScores(NamedTuple):
    """Mean scores [units, q], scatter of rows about them [units, q, q], and which units have two rows or more."""

    means: Array
    rows: Array
    several: Array


def unit_scores(state: Arrays, features: Tensor, offsets: Tensor) -> UnitScores:
    """Scores of units of rows with these features [rows, d] and offsets, by `score_weights` and `score_offsets`."""
    weights, centre = (shared(np.asarray(state[n])).to(features) for n in ("score_weights", "score_offsets"))
    each = features @ weights.T - centre
    means, n, q = segment_means(each, offsets), offsets.diff(), each.shape[1]
    pairs = segment_means((each[:, :, None] * each[:, None, :]).flatten(1), offsets).reshape(-1, q, q)
    several = n > 1
    scale = (several * n / (n - 1).clamp(min=1))[:, None, None]
    scatter = (pairs - means[:, :, None] * means[:, None, :]) * scale
    return UnitScores(means.clamp(-_FAR, _FAR).cpu().numpy(), scatter.cpu().numpy(), several.cpu().numpy())


def score_statistics(state: Arrays, features: Tensor, offsets: Tensor, near: Array) -> Arrays:
    """Statistics of clients' scores for `ScoreSums`, by the mode `near` [clients, K] of each."""
    (scores, rows, several), sizes = unit_scores(state, features, offsets), offsets.diff().cpu().numpy()
    right = posterior(state, scores, sizes).argmax(axis=1) == near.argmax(axis=1)
    return {
        "score_first": near[:, :, None] * scores[:, None, :],
        "score_pairs": near[:, :, None, None] * (scores[:, :, None] * scores[:, None, :])[:, None],
        "score_right": near * right[:, None],
        "score_rows": near[:, :, None, None] * rows[:, None],
        "score_several": near * several[:, None],
        "score_thin": near / np.maximum(sizes, 1)[:, None],
    }
