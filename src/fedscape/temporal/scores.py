"""Scores of units under the broadcast discriminant: their means and scatter, and what clients send of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.temporal.calibration import posterior
from fedscape.temporal.gaussians import segment_means
from fedscape.types import Array, Arrays, Tensor

FAR = 12.0  # at which mean scores are clipped: log-odds of a branch, or standard deviations of clients
FAR_PRIVATELY = 4.0  # the same where noise grows with it


def scales_beside(clip: float) -> dict[str, float]:
    """Scales for a release under which what FedClock sends beside the network has at most half of the clip.

    With `features="branches"` every array has a known bound: one, or `FAR_PRIVATELY`.

    >>> round(scales_beside(2.0)["near"], 2)
    3.16
    """
    far = dict.fromkeys(("score_pairs", "score_rows"), FAR_PRIVATELY**2) | {"score_first": FAR_PRIVATELY}
    names = ("present", "clues", "clue_pairs", "near", *far, "score_right", "score_several", "score_thin")
    factor = 2 * float(np.sqrt(len(names))) / clip
    return {name: factor * far.get(name, 1.0) for name in names}


class UnitScores(NamedTuple):
    """Mean scores [units, q], scatter of rows about them [units, q, q], and which units have two rows or more."""

    means: Array
    rows: Array
    several: Array


def unit_scores(each: Tensor, offsets: Tensor, far: float = FAR) -> UnitScores:
    """Scores of units of rows, clipped at `far`, from the scores of rows [rows, q] and offsets."""
    means, n, q = segment_means(each, offsets), offsets.diff(), each.shape[1]
    pairs = segment_means((each[:, :, None] * each[:, None, :]).flatten(1), offsets).reshape(-1, q, q)
    several = n > 1
    scale = (several * n / (n - 1).clamp(min=1))[:, None, None]
    scatter = (pairs - means[:, :, None] * means[:, None, :]) * scale
    return UnitScores(
        means.clamp(-far, far).cpu().numpy(), scatter.clamp(-(far**2), far**2).cpu().numpy(), several.cpu().numpy()
    )


def score_statistics(state: Arrays, each: Tensor, offsets: Tensor, near: Array, far: float = FAR) -> Arrays:
    """Statistics of clients' scores for `ScoreSums`, by the mode `near` [clients, K] of each."""
    (scores, rows, several), sizes = unit_scores(each, offsets, far), offsets.diff().cpu().numpy()
    right = posterior(state, scores, sizes).argmax(axis=1) == near.argmax(axis=1)
    return {
        "score_first": near[:, :, None] * scores[:, None, :],
        "score_pairs": near[:, :, None, None] * (scores[:, :, None] * scores[:, None, :])[:, None],
        "score_right": near * right[:, None],
        "score_rows": near[:, :, None, None] * rows[:, None],
        "score_several": near * several[:, None],
        "score_thin": near / np.maximum(sizes, 1)[:, None],
    }
