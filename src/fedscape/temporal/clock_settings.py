"""Checks of FedClock's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedscape.errors import DataError
from fedscape.temporal.covariates import Harmonics
from fedscape.temporal.curves import Linear
from fedscape.temporal.priors import check_prior

if TYPE_CHECKING:
    from fedscape.temporal.fedclock import FedClock

_KINDS = ("labels", "features", "both")
_FEATURES = ("branches", "fixed", "network", "both")


def check_settings(method: FedClock) -> None:
    """Refuse settings that make no sense."""
    if method.context is not None and method.prior not in (None, Linear()):
        raise DataError("give a prior or a context, not both: the context is what rounds are regressed on")
    if method.by not in _KINDS or method.features not in _FEATURES:
        raise DataError(
            f"by must be one of {_KINDS} and features one of {_FEATURES}, not {method.by!r} and {method.features!r}"
        )
    if not isinstance(method.prior, Harmonics) and method.context is None:
        check_prior(method.prior, method.n_modes)
    counts = (method.projections, method.rows, method.classes)
    if method.projections < 1 or any(n is not None and n < 2 for n in counts[1:]):
        raise DataError(f"projections must be at least 1, rows and classes at least 2 or None, not {counts}")
    if not (0 <= method.held < 1 and 0 <= method.inertia < 1):
        raise DataError(f"held and inertia must be at least 0 and below 1, not {method.held} and {method.inertia}")
    shares = (method.memory, method.abstain, method.significance)
    if not (min(method.memory, method.significance) > 0 and method.abstain >= 0 and max(shares) <= 1):
        raise DataError(f"memory and significance must be above 0 and at most 1, abstain from 0 to 1, not {shares}")
    positive = (method.ridge, method.noise, method.contrast)
    if not all(0 <= value < np.inf for value in positive):
        raise DataError(f"ridge, noise and contrast must be at least 0, not {positive}")


def is_bounded(method: FedClock) -> bool:
    """Whether everything sent beside the network has a known bound: label shares and log-odds alone."""
    return method.by_branches and method.by == "labels"


def check_bounded(method: FedClock) -> None:
    """Refuse a method that sends statistics without a known bound."""
    if not is_bounded(method):
        raise DataError(
            "under knows bounds of labels and log-odds alone: take by='labels' and features='branches', or give the "
            f"release its scales= yourself, not by={method.by!r} and features={method.features!r}"
        )
