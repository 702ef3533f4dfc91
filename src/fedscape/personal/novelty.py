"""Novelty of rows and clients: scores, their accuracy, and a threshold with a known rate of false alarms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.personal.personalised import Personalised
from fedscape.personal.shared import sums_over_rows
from fedscape.types import Array

SCORES = ("log_prob_x", "log_prob_y_given_x", "log_prob_joint", "typicality", "confidence")


@dataclass(frozen=True)
class Novelty:
    """A novelty score of rows; high means new.

    Parameters
    ----------
    model
        The trained model. FedGMM has all scores; other methods have "confidence" and "log_prob_y_given_x".
    score
        "log_prob_x", "log_prob_joint": minus the log density. "log_prob_y_given_x": minus the log probability of the
        label. "typicality": the distance of log p(x) from its median on known rows, in either direction; a density can
        be too high as well as too low. "confidence": minus the largest class probability, the baseline for methods
        without a density of x.
    median
        The median of log p(x) on known rows, for "typicality"; `fitted` computes it.

    >>> auroc([0.1, 0.2, 0.9], [False, False, True])
    1.0
    """

    model: Personalised
    score: str = "log_prob_x"
    median: float = 0.0

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise DataError(f"score must be one of {', '.join(SCORES)}, not {self.score!r}")

    def fitted(self, known: Federation) -> Novelty:
        """The same with the median of log p(x) on these known rows."""
        if self.score != "typicality":
            return self
        return Novelty(self.model, self.score, float(np.median(self.model.log_prob_x(known))))

    def rows(self, data: Federation) -> Array:
        """The score of each row; rows of an unknown client are scored with the common weights.

        Scores that use labels refuse a class that the model does not know: no score applies to it.
        """
        if self.score == "confidence":
            return np.asarray(-self.model.predict_proba(data).max(axis=1))
        if self.score == "typicality":
            return np.abs(self.model.log_prob_x(data) - self.median)
        if self.score == "log_prob_y_given_x":
            self.model.check_classes(data)
        log_density: Array = getattr(self.model, self.score)(data)
        return -log_density

    def clients(self, data: Federation) -> Array:
        """The score of each client, the mean over its rows; NaN for a client without rows."""
        with np.errstate(invalid="ignore"):
            return np.asarray(sums_over_rows(self.rows(data), data) / data.sizes)


@dataclass(frozen=True)
class Alarm:
    """A threshold on a novelty score, with a guaranteed rate of false alarms.

    Split conformal: with n scores of known rows not used in training, and the rate a, the threshold is the
    ceil((n + 1)(1 - a))-th smallest of them. A new row like the known ones is above it with probability at most a, for
    any distribution (Vovk et al. 2005). Rows of one client are alike: the guarantee is for rows drawn at random from
    the clients of the calibration. For clients, pass one score per client.

    >>> alarm = Alarm.calibrated(np.arange(99.0), rate=0.1)
    >>> alarm.threshold, alarm.raised([89.0, 89.5]).tolist()
    (89.0, [False, True])
    """

    threshold: float
    rate: float
    n: int

    @classmethod
    def calibrated(cls, known: npt.ArrayLike, *, rate: float = 0.05) -> Alarm:
        """Calibrate on scores of known rows that were not used in training."""
        scores = np.sort(np.asarray(known, dtype=float))
        if not 0 < rate < 1:
            raise DataError(f"rate must be between 0 and 1, not {rate}")
        if not np.isfinite(scores).all():
            raise DataError("known scores must be finite: leave out clients without rows")
        rank = int(np.ceil((len(scores) + 1) * (1 - rate)))
        if rank > len(scores):
            raise DataError(
                f"{len(scores)} known scores cannot promise a rate of {rate}: at least {int(np.ceil(1 / rate)) - 1} can"
            )
        return cls(float(scores[rank - 1]), rate, len(scores))

    def raised(self, scores: npt.ArrayLike) -> Array:
        """Mask of the scores above the threshold."""
        return np.asarray(scores, dtype=float) > self.threshold


def auroc(scores: npt.ArrayLike, new: npt.ArrayLike) -> float:
    """The probability that a new row scores above a known one; ties count half.

    >>> auroc([1.0, 2.0, 2.0, 3.0], [False, True, False, True])
    0.875
    """
    values, positive = _checked(scores, new)
    _, group, number = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(number) - (number - 1) / 2)[group]  # mean rank of ties
    p, n = positive.sum(), (~positive).sum()
    return float((rank[positive].sum() - p * (p + 1) / 2) / (p * n))


def average_precision(scores: npt.ArrayLike, new: npt.ArrayLike) -> float:
    """The mean precision over the new rows, as the threshold decreases.

    >>> round(average_precision([1.0, 2.0, 3.0], [True, False, True]), 4)
    0.8333
    """
    hits, alarms = _curve(scores, new)
    return float((np.diff(np.concatenate(([0], hits))) * hits / alarms).sum() / hits[-1])


def max_f1(scores: npt.ArrayLike, new: npt.ArrayLike) -> float:
    """The largest F1 over all thresholds; the threshold is chosen on the same rows, so it is an upper bound.

    >>> max_f1([1.0, 2.0, 3.0], [False, True, True])
    1.0
    """
    hits, alarms = _curve(scores, new)
    return float((2 * hits / (alarms + hits[-1])).max())


def _checked(scores: npt.ArrayLike, new: npt.ArrayLike) -> tuple[Array, Array]:
    values, positive = np.asarray(scores, dtype=float), np.asarray(new, dtype=bool)
    if values.shape != positive.shape or values.ndim != 1 or not np.isfinite(values).all():
        raise DataError(
            f"scores must be finite and as many as the labels, got {values.shape} and {positive.shape}: one each"
        )
    if positive.all() or not positive.any():
        raise DataError("there must be new rows and known ones to tell apart, got only one kind")
    return values, positive


def _curve(scores: npt.ArrayLike, new: npt.ArrayLike) -> tuple[Array, Array]:
    """Numbers of new rows and of all rows at or above each threshold, from the highest."""
    values, positive = _checked(scores, new)
    order = np.argsort(-values, kind="stable")
    last = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))  # one entry per group of ties
    return np.cumsum(positive[order])[last].astype(float), last + 1.0
