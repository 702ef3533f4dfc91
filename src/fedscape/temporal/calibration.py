"""Calibration of a discriminant: a Gaussian distribution of its scores, learned from clients not yet used to fit it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedscape.types import Array, Arrays

SHARE_LEFT = 0.05  # least share of the scatter of clients that is left for a client with very many rows
_ABOVE = 0.2  # how far features must get from chance (0) to always right (1)
_SMOOTH = 0.8  # the weight of earlier rounds in the modes' current shares
_SLOW = 30.0  # clients of a round whose scores move those of all modes by half of the difference
_FEWEST = 6.0  # clients of each mode before the scores are used


class ScoreSums(NamedTuple):
    """Sums of clients' scores u [q], q = K - 1, under the broadcast discriminant, by the mode of the client.

    `mass` [K] clients, `first` [K, q] scores, `pairs` [K, q, q] their products, `right` [K] clients whose scores choose
    their own mode. `rows` [K, q, q] is the scatter of a client's rows about its mean, `several` [K] the clients with at
    least two rows, and `thin` [K] the sum of 1 / rows.
    """

    mass: Array
    first: Array
    pairs: Array
    right: Array
    rows: Array
    several: Array
    thin: Array

    @classmethod
    def empty(cls, k: int) -> ScoreSums:
        """Sums over no clients."""
        q, none = k - 1, np.zeros(k)
        return cls(none, np.zeros((k, q)), np.zeros((k, q, q)), none, np.zeros((k, q, q)), none, none)

    def plus(self, fresh: ScoreSums, kept: Array) -> ScoreSums:
        """Add the sums of a round; a mode keeps a share `kept` [K] of its earlier sums.

        A network that leans to the modes that are there shifts the scores of all modes alike. So first the means of all
        modes move together, also of those that are absent, by part of what the clients seen differ from them.

        >>> one = ScoreSums(np.ones(2), np.array([[1.0], [-1.0]]), *ScoreSums.empty(2)[2:])
        >>> seen = ScoreSums(np.array([30.0, 0.0]), np.array([[90.0], [0.0]]), *ScoreSums.empty(2)[2:])
        >>> one.plus(seen, np.ones(2)).first.tolist()
        [[92.0], [0.0]]
        """
        before, some = self, fresh.mass > 0
        if self.mass.min() > 0 and some.any():
            away = fresh.first - fresh.mass[:, None] * self.first / self.mass[:, None]
            before = self.shifted(away[some].sum(axis=0) / (fresh.mass.sum() + _SLOW))
        old = [values * kept.reshape(-1, *[1] * (values.ndim - 1)) for values in before]
        return ScoreSums(*(earlier + now for earlier, now in zip(old, fresh, strict=True)))

    def shifted(self, by: Array) -> ScoreSums:
        """The sums if all scores had been larger by this: [q]."""
        cross, mass = by[:, None] * self.first[:, None, :], self.mass[:, None, None]
        pairs = self.pairs + cross + cross.swapaxes(1, 2) + mass * np.outer(by, by)
        return self._replace(first=self.first + self.mass[:, None] * by, pairs=pairs)

    def law(self, state: Arrays, *, pooled: bool = False) -> Arrays:
        """The distribution of the scores as broadcast state; unchanged from `state` where clients are too few.

        With `pooled` all modes have one scatter: then noise on it does not move the cut between them.
        """
        if self.mass.min() < _FEWEST:
            return {n: state[n] for n in ("score_means", "score_scatter", "score_rows", "score_thin")}
        mass = self.mass[:, None, None]
        means = self.first / mass[:, 0]
        law = {
            "score_scatter": self.pairs / mass - means[:, :, None] * means[:, None, :],
            "score_rows": self.rows / np.maximum(self.several, 1.0)[:, None, None],
            "score_thin": np.clip(self.thin / self.mass, 0.0, 1.0),
        }
        if pooled:
            law = {name: np.broadcast_to(values.mean(axis=0), values.shape).copy() for name, values in law.items()}
        return {"score_means": means, **law}

    @property
    def agreement(self) -> Array:
        """The share of each mode's clients whose features choose that mode: [K]; zero while clients are too few."""
        if self.mass.min() < _FEWEST:
            return np.zeros(len(self.mass))
        return np.asarray(np.clip(self.right / self.mass, 0.0, 1.0))


def posterior(state: Arrays, scores: Array, rows: Array) -> Array:
    """P(mode | mean score of some rows) for equally likely modes: [units, K] from scores [units, q] and rows [units].

    The mean score of n rows of a client is normal about the mean of its mode. Its scatter is the scatter of clients,
    less the average contribution of a client's rows, plus the scatter of rows over n.

    >>> one = np.ones((2, 1, 1))
    >>> law = {"score_means": np.array([[1.0], [-1.0]]), "score_scatter": one, "score_rows": one,
    ...        "score_thin": np.full(2, 0.5)}
    >>> posterior(law, np.array([[1.0], [1.0]]), np.array([2, 1])).round(2).tolist()
    [[0.88, 0.12], [0.79, 0.21]]
    """
    means, scatter = (np.asarray(state[n], dtype=float) for n in ("score_means", "score_scatter"))
    k, q = means.shape
    chances = np.full((len(scores), k), 1 / k)
    size = float(np.trace(scatter.sum(axis=0))) / (k * q)
    for n in np.unique(rows[rows > 0]) if size > 0 else ():
        added = state["score_rows"] * (1 / n - np.asarray(state["score_thin"]))[:, None, None]
        whole = scatter + added
        values, vectors = (whole[:, 0], np.ones_like(whole)) if q == 1 else np.linalg.eigh(whole)
        values = np.maximum(values, SHARE_LEFT * size)  # [K, q]
        away = np.einsum("ukq,kqr->ukr", scores[rows == n][:, None, :] - means, vectors)
        logs = -0.5 * ((away**2 / values).sum(axis=2) + np.log(values).sum(axis=1))
        logs -= logs.max(axis=1, keepdims=True)
        chances[rows == n] = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    return chances


def abstaining(chances: Array, least: float) -> Array:
    """Mode probabilities, replaced by equal ones where the largest is below `least`.

    >>> abstaining(np.array([[0.9, 0.1], [0.55, 0.45]]), 0.6).tolist()
    [[0.9, 0.1], [0.5, 0.5]]
    """
    sure = chances.max(axis=1, keepdims=True) >= least
    return np.asarray(np.where(sure, chances, 1 / chances.shape[1]))


def features_suffice(agreement: Array) -> bool:
    """Whether features predict the mode of enough clients of each mode.

    >>> features_suffice(np.array([0.7, 0.7])), features_suffice(np.array([0.6, 0.55]))
    (True, False)
    """
    return bool(agreement.mean() > (1 + _ABOVE * (len(agreement) - 1)) / len(agreement))


def recent_shares(shares: Array, near: Array) -> Array:
    """The modes' shares of late, after a round with `near` [K] clients of each; unchanged by a round without any.

    >>> recent_shares(np.array([0.5, 0.5]), np.array([0.0, 10.0])).tolist()
    [0.4, 0.6]
    """
    near = np.maximum(near, 0.0)
    return np.asarray(_SMOOTH * shares + (1 - _SMOOTH) * near / near.sum() if near.sum() > 0 else shares)


@dataclass(frozen=True)
class Verdict:
    """Outcome of FedClock: whether statistics follow the clock, whether features predict the mode, whether it branches.

    `p_value` tests that clients' statistics do not depend on the clock, over `rounds` rounds. `agreement` is the share
    of each mode's clients whose features alone chose that mode, in rounds before the discriminant learned from them.
    `significant` is the test alone; `trusted` asks besides that modes are apart by more than the regression's noise.

    >>> print(Verdict(True, 1e-9, 64.0, (0.98, 0.96), "labels"))
    branches: labels follow the clock (p = 1e-09, 64 rounds), and features find the mode of 98%, 96% of clients
    """

    branching: bool
    p_value: float
    rounds: float
    agreement: tuple[float, ...]
    by: str
    trusted: bool = True
    significant: bool = True

    @classmethod
    def of(cls, state: Arrays, by: str, significance: float) -> Verdict:
        """The verdict that a state of FedClock holds, for this threshold of the p-value."""
        agreement = tuple(float(share) for share in state["agreement"])
        branching, trusted = (bool(state[n] > 0) for n in ("branching", "trusted"))
        p_value = float(state["p_value"])
        return cls(branching, p_value, float(state["rounds"]), agreement, by, trusted, p_value < significance)

    def __str__(self) -> str:
        what = {"both": "labels and features"}.get(self.by, self.by)
        about = f"(p = {self.p_value:.2g}, {self.rounds:.0f} rounds)"
        percentages = ", ".join(f"{100 * share:.0f}%" for share in self.agreement)
        if not self.trusted:
            other = "" if self.by == "both" else "; try by='both'"
            if self.significant:
                return f"one model for all: {what} follow the clock {about}, but modes are not clearly apart{other}"
            return f"one model for all: {what} do not clearly follow the clock {about}{other}"
        if not self.branching:
            return (
                f"one model for all: {what} follow the clock {about}, but features find the mode of only {percentages}"
            )
        return f"branches: {what} follow the clock {about}, and features find the mode of {percentages} of clients"
