"""Scores of units under the broadcast discriminant: their means and scatter, and what clients send of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from fedscape.core.arrays import segment_sum_twin
from fedscape.core.kernel import kernel
from fedscape.learning.branches import branch_evidence
from fedscape.temporal.calibration import SHARE_LEFT, posterior
from fedscape.types import Array, Arrays, Tensor

_LAW = ("score_means", "score_scatter", "score_rows", "score_thin")
#: What is sent of scores, and its axes behind [clients, K].
_SENT = (
    ("score_first", 1), ("score_pairs", 2), ("score_right", 0), ("score_rows", 2), ("score_several", 0),
    ("score_thin", 0),
)  # fmt: skip
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


def unit_scores(each: Array, offsets: Array, far: float = FAR) -> UnitScores:
    """Scores of units of rows, clipped at `far`, from the scores of rows [rows, q] and offsets."""
    n, q = np.diff(offsets)[:, None], each.shape[1]
    pairs = (each[:, :, None] * each[:, None, :]).reshape(-1, q * q)
    sums = segment_sum_twin(np.concatenate([each, pairs], axis=1), offsets) / np.maximum(n, 1)
    means, several = sums[:, :q], n[:, 0] > 1
    scatter = sums[:, q:].reshape(-1, q, q) - means[:, :, None] * means[:, None, :]
    scatter *= (several[:, None] * n / np.maximum(n - 1, 1))[:, :, None]
    return UnitScores(np.clip(means, -far, far), np.clip(scatter, -(far**2), far**2), several)


def score_statistics(state: Arrays, each: Array, offsets: Array, near: Array, far: float = FAR) -> Arrays:
    """Statistics of clients' scores for `ScoreSums`, by the mode `near` [clients, K] of each."""
    (scores, rows, several), sizes = unit_scores(each, offsets, far), np.diff(offsets)
    right = posterior(state, scores, sizes).argmax(axis=1) == near.argmax(axis=1)
    return {
        "score_first": near[:, :, None] * scores[:, None, :],
        "score_pairs": near[:, :, None, None] * (scores[:, :, None] * scores[:, None, :])[:, None],
        "score_right": near * right[:, None],
        "score_rows": near[:, :, None, None] * rows[:, None],
        "score_several": near * several[:, None],
        "score_thin": near / np.maximum(sizes, 1)[:, None],
    }


def branch_statistics(state: Arrays, outputs: Tensor, offsets: Array, near: Array, far: float = FAR) -> Arrays:
    """`score_statistics` of the branches' log-odds, from outputs [rows, K, classes]; compiled for two modes."""
    if near.shape[1] != 2:
        return score_statistics(state, branch_evidence(outputs.to(torch.float64)).cpu().numpy(), offsets, near, far)
    law = np.array([state[name].ravel() for name in _LAW], dtype=float)
    least = SHARE_LEFT * 0.5 * float(law[1].sum())
    out = np.zeros((6, len(near), 2))
    _of_two_modes(outputs.cpu().numpy(), offsets, near.argmax(axis=1), law, least, far, out)
    out *= near
    return {name: values.reshape(len(near), 2, *[1] * axes) for (name, axes), values in zip(_SENT, out, strict=True)}


@kernel
def _of_two_modes(
    outputs: Array, offsets: Array, mode: Array, law: Array, least: float, far: float, out: Array
) -> None:
    """Of each client mean score, its square, whether it finds the mode, variance of rows, several rows, 1 / rows."""
    for client in range(len(mode)):
        n = offsets[client + 1] - offsets[client]
        total, square = 0.0, 0.0
        for row in range(offsets[client], offsets[client + 1]):
            score = _log_sum_exp(outputs[row, 0]) - _log_sum_exp(outputs[row, 1])
            total += score
            square += score * score
        plain = total / max(n, 1)
        mean, variance = min(max(plain, -far), far), 0.0
        if n > 1:
            variance = min(max((square / n - plain * plain) * n / (n - 1), -far * far), far * far)
        nearest, best = 0, -np.inf
        if n > 0 and least > 0:
            for k in range(2):
                spread = max(law[1, k] + law[2, k] * (1 / n - law[3, k]), least)
                density = -0.5 * ((mean - law[0, k]) ** 2 / spread + math.log(spread))
                if density > best:
                    nearest, best = k, density
        out[0, client] = mean
        out[1, client] = mean * mean
        out[2, client] = 1.0 if nearest == mode[client] else 0.0
        out[3, client] = variance
        out[4, client] = 1.0 if n > 1 else 0.0
        out[5, client] = 1 / max(n, 1)


@kernel
def _log_sum_exp(values: Array) -> float:
    top, total = float(values.max()), 0.0
    for value in values:
        total += math.exp(value - top)
    return top + math.log(total)
