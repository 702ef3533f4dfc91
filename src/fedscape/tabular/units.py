"""The unit in which a GLM's target is summed, and how far one row can then move the sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.errors import DataError
from fedscape.tabular.families import Family
from fedscape.types import Array

_STEEPEST = 0.2239  # the most that mu (1 - mu) |eta| can be


class TargetUnit(NamedTuple):
    """A target in units of its range: (y - shift) / size.

    `slope` and `level` undo it for coefficients: they are multiplied by the one, the other is added to the intercept.
    `spread` undoes it for deviances, `curvature` for the information. `low` and `high` are where linear predictors are
    cut, so that no mean leaves the range. `weight` and `response` bound W and W z of a row; None where nothing does.
    """

    shift: float = 0.0
    size: float = 1.0
    slope: float = 1.0
    level: float = 0.0
    spread: float = 1.0
    curvature: float = 1.0
    low: float = -np.inf
    high: float = np.inf
    weight: float | None = None
    response: float | None = None

    def of(self, y: Array) -> Array:
        """Targets in this unit."""
        return y if self.shift == 0 and self.size == 1 else np.asarray((y - self.shift) / self.size)

    def within(self, eta: Array) -> Array:
        """Linear predictors whose means lie in the range; one that is no number becomes an end or 0."""
        if np.isinf(self.low) and np.isinf(self.high):
            return eta
        return np.asarray(np.clip(np.nan_to_num(eta), self.low, self.high))


def target_unit(family: Family, ends: tuple[float, float] | None, *, intercept: bool, target: str = "y") -> TargetUnit:
    """The unit for this law and range; without a range, or for a log link without an intercept, its own.

    A Poisson target is in units of its greatest value, so that mu <= 1: then mu (log mu - 1) + y lies in [-1, 1]. A
    gamma target is in units of the geometric mean of both ends, r the ratio of an end to it. Then W is one, and
    log mu + y / mu - 1 is largest for mu = 1 / r, y = r.

    >>> from fedscape.tabular.families import family_of
    >>> target_unit(family_of("poisson"), (0.0, 50.0), intercept=True).size
    50.0
    """
    if family.name == "logistic":
        return TargetUnit(weight=0.25, response=1.0 + _STEEPEST)
    if ends is None or (family.name != "gaussian" and not intercept):
        return TargetUnit()
    low, high = ends
    if family.name == "gaussian":
        half = (high - low) / 2
        return TargetUnit((low + high) / 2, half, half, (low + high) / 2, half**2, weight=1.0, response=1.0)
    if low < 0 or (family.name == "gamma" and not low > 0):
        least = "above 0" if family.name == "gamma" else "0 or more"
        raise DataError(f"the range of {target!r} must begin {least} for a {family.name} law, not at {low:g}")
    if family.name == "poisson":
        level = float(np.log(high))
        return TargetUnit(0.0, high, 1.0, level, high, high, -np.inf, 0.0, weight=1.0, response=1.0)
    middle, ratio = float(np.sqrt(low * high)), float(np.sqrt(high / low))
    far = float(np.log(ratio))
    most = max(far, ratio**2 - 1 - far)
    return TargetUnit(0.0, middle, 1.0, float(np.log(middle)), low=-far, high=far, weight=1.0, response=most)
