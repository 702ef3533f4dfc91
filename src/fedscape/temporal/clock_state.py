"""FedClock's part of the state: sums, discriminants and the distribution of scores under their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.temporal.calibration import ScoreSums
from fedscape.temporal.regression import Groups, Moments
from fedscape.types import Arrays

if TYPE_CHECKING:
    from fedscape.temporal.fedclock import FedClock

#: Names of FedClock's sums on the server begin so; those of the server's rule do not.
OWN = tuple(f"server.{name}" for name in ("clue_", "round_", "score_", "feature_", "shares", "last"))
_GROUPS = {
    "means": "feature_means",
    "mass": "server.feature_mass",
    "scatter": "server.feature_scatter",
    "clients": "server.feature_clients",
}


def first_clock(method: FedClock) -> Arrays:
    """The state before the first round, but for the network and the prior."""
    k, q, m, d, p = (
        method.n_modes, method.n_modes - 1, method.n_features, method.n_clues, len(method.covariates.constant)
    )  # fmt: skip
    fitted = {
        "score_weights": np.zeros((q, m)),
        "score_offsets": np.zeros(q),
        **stored_groups(Groups.empty(k, m)),
    }
    return {
        "clue_weights": np.zeros((k, d)),
        "clue_offsets": np.zeros(k),
        "score_means": np.zeros((k, q)),
        "score_scatter": np.zeros((k, q, q)),
        "score_rows": np.zeros((k, q, q)),
        "score_thin": np.zeros(k),
        **{name: np.asarray(0.0) for name in ("trusted", "branching", "rounds", "server.clue_count")},
        "p_value": np.asarray(1.0),
        "agreement": np.zeros(k),
        **stored("server.clue_", Moments.empty(p, d)),
        **stored("server.round_", Moments.empty(p, d)),
        **stored("server.score_", ScoreSums.empty(k)),
        **({"mode_shares": np.full(k, 1 / k)} if method.by_branches else fitted),
    }


def stored(prefix: str, parts: Any) -> Arrays:
    """The arrays of a named tuple under this prefix."""
    return {prefix + name: np.asarray(values) for name, values in parts._asdict().items()}


def stored_groups(groups: Groups) -> Arrays:
    """The groups under their names in the state."""
    return {_GROUPS[name]: np.asarray(values) for name, values in groups._asdict().items()}


def moments_in(state: Arrays, prefix: str) -> Moments:
    """The moments that are stored under this prefix."""
    return Moments(**{name: np.asarray(state[prefix + name]) for name in Moments._fields})


def groups_in(state: Arrays) -> Groups:
    """The groups of a state."""
    return Groups(**{name: state[_GROUPS[name]] for name in Groups._fields})


def scores_in(state: Arrays) -> ScoreSums:
    """The sums of scores of a state."""
    return ScoreSums(**{name: state[f"server.score_{name}"] for name in ScoreSums._fields})
