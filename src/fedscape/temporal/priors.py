"""Temporal priors: the shares of the modes that the server expects in a round, and the modes it assigns to clients.

Any curve is a prior; `Soft` assumes only the peak and the valley (appendix A.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.temporal.curves import Cosine, Curve, Linear, parse_curve
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.temporal.covariates import Harmonics


@dataclass(frozen=True)
class Soft:
    """One at the peak, zero at the valley, only monotone in between: equations (25) and (26).

    In between, the share is the observed one of the cohort, as long as it moves in the right direction. The observed
    share is over the rows of the whole cohort: how many have the higher posterior for the first mode. (26) as printed
    has no case for t mod T = 0; here, as in equation (3), that is the peak.

    >>> soft = Soft(8)
    >>> soft.follow(1, before=1.0, seen=0.7), soft.follow(2, before=0.7, seen=0.9), soft.follow(4, before=0.7, seen=0.9)
    (0.7, 0.7, 0.0)
    """

    period: float = 256.0

    def __post_init__(self) -> None:
        if not 2 <= self.period < np.inf:
            raise DataError(f"period must be at least 2 rounds, not {self.period}")

    @property
    def n_modes(self) -> int:
        return 2

    def follow(self, t: float, *, before: float, seen: float, last: float | None = None) -> float:
        """The share in round t, after `before` in round `last` (by default the previous one)."""
        at = t % self.period
        falling = at < self.period / 2
        if at < 1:
            return 1.0
        if 0 <= at - self.period / 2 < 1:
            return 0.0
        last = t - 1 if last is None else last
        begin = t - at if falling else t - at + self.period / 2
        if last < begin:  # the rounds at the turning point were abandoned
            before = 1.0 if falling else 0.0
        return float(min(before, seen) if falling else max(before, seen))


Prior = Curve | Soft


def expected(prior: Prior | None, t: int, *, before: Array, seen: float, last: int) -> Array:
    """The shares that the prior expects in round t: [K]; without a prior, the last observed ones."""
    if prior is None:
        return before
    if isinstance(prior, Soft):
        q = prior.follow(t, before=float(before[0]), seen=seen, last=last)
        return np.array([q, 1 - q])
    return np.asarray(prior.shares(t), dtype=float)


def certainty(shares: Array) -> float:
    """Certainty of a prior: 1 at a peak, 0 where all shares are equal; for two modes 2 |1/2 - q|, equation (27).

    >>> round(certainty(np.array([0.9, 0.1])), 3)
    0.8
    """
    k = len(shares)
    return float((k * shares.max() - 1) / (k - 1)) if k > 1 else 1.0


def check_prior(prior: Prior | None, n_modes: int) -> None:
    """Refuse what gives no shares of modes, and a prior whose number of modes differs from the network's branches."""
    if not (prior is None or isinstance(prior, Soft) or callable(getattr(prior, "shares", None))):
        raise DataError(
            f"prior must be a curve of shares such as Linear(256), Soft or None (Harmonics is for FedClock alone), not "
            f"{prior!r}"
        )
    if prior is not None and prior.n_modes != n_modes:
        raise DataError(f"the prior has {prior.n_modes} modes, but the network {n_modes} branches: {prior}")


def check_hours(hours: str, prior: Prior | None) -> None:
    """Refuse an unknown value of `hours`, and "own" without a prior."""
    if hours not in ("all", "own"):
        raise DataError(f"hours must be 'all' or 'own', not {hours!r}")
    if hours == "own" and prior is None:
        raise DataError("hours='own' needs a prior, which tells when the hours of a mode are: give one or hours='all'")


def in_hours(hours: str, shares: Array) -> Array:
    """The weight of a round for each mode's parameters: [K]; one, or the excess of its share over an equal one.

    >>> in_hours("own", np.array([0.9, 0.1])).round(3).tolist(), in_hours("all", np.array([0.9, 0.1])).tolist()
    ([0.8, 0.0], [1.0, 1.0])
    """
    k = len(shares)
    return np.ones(k) if hours == "all" else np.asarray(np.maximum(k * shares - 1, 0.0) / (k - 1))


def first_prior(n_modes: int) -> Arrays:
    """The prior's part of the state before the first round: expected shares, and the last round."""
    return {"server.shares": np.full(n_modes, 1 / n_modes), "server.last": np.asarray(-1)}


def expected_shares(prior: Prior | None, state: Arrays, key: Key, seen: Array) -> tuple[Array, Arrays]:
    """The shares that the prior expects in this round, and the state that the server keeps of it.

    `seen` are rows (or clients) by their likely mode: equation (25) over the whole cohort. Noise may make numbers
    negative; they count as zero.
    """
    seen = np.maximum(seen, 0.0)
    t = key.round
    ratio = float(seen[0] / seen.sum()) if seen.sum() > 0 else float(state["server.shares"][0])
    shares = expected(prior, t, before=state["server.shares"], seen=ratio, last=int(state["server.last"]))
    return shares, {"server.shares": shares, "server.last": np.asarray(t)}


def counts_of_modes(shares: Array, m: int) -> Array:
    """Number of clients per mode, of m; for two modes floor(q m + 1/2) and the rest.

    >>> counts_of_modes(np.array([0.25, 0.75]), 10)
    array([3, 7])
    """
    ends = np.floor(np.cumsum(shares) * m + 0.5 + 1e-9)
    ends[-1] = m
    return np.diff(np.concatenate(([0.0], np.minimum(ends, m)))).astype(np.int64)


def assign(log_share: Array, shares: Array | None) -> Array:
    """The mode of each client from the logarithms of its shares [clients, K] and the expected shares of the modes.

    For two modes the floor(q m + 1/2) clients with the highest share of the first mode are assigned to it (before
    equation 10). For more modes, the assignment maximises the sum of the log shares under the given counts; for two
    modes that is the same. Without expected shares every client gets its most likely mode ("EM only", appendix A.5).
    Ties go by the order of the clients.

    >>> assign(np.log([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.array([0.33, 0.67])).tolist()
    [0, 1, 1]
    """
    if shares is None:
        return np.asarray(log_share.argmax(axis=1))
    n, k = log_share.shape
    counts = counts_of_modes(shares, n)
    if k == 2:
        order = np.argsort(-(log_share[:, 0] - log_share[:, 1]), kind="stable")
        modes = np.ones(n, dtype=np.int64)
        modes[order[: counts[0]]] = 0
        return modes
    from scipy.optimize import linear_sum_assignment

    seats = np.repeat(np.arange(k), counts)
    _, seat = linear_sum_assignment(-log_share[:, seats])
    return np.asarray(seats[seat])


def parse_prior(text: str, period: float) -> Prior | Harmonics | None:
    """Read a prior as on the command line: linear, cosine, soft, harmonics, none, or a schedule with its numbers.

    >>> parse_prior("linear", 64), parse_prior("soft", 64), parse_prior("none", 64)
    (Linear(period=64, p=1.0, peak=0.0, valley=None), Soft(period=64), None)
    """
    from fedscape.temporal.covariates import Harmonics

    plain: dict[str, Callable[[float], Prior | Harmonics]] = {
        "linear": Linear, "cosine": Cosine, "soft": Soft, "harmonics": Harmonics,
    }  # fmt: skip
    if text in plain:
        return plain[text](period)
    return None if text == "none" else parse_curve(text)
