"""The M-step: from sums over clients to new means and dispersions, all components at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.mixtures.dirichlet_multinomial.likelihood import LEAST, MEAN_FLOOR, MOST, Points
from fedscape.types import Array

STEPS = 60  # maximum number of Newton steps on the server; they cost no round
SCALES = LEAST ** (1 - np.arange(1, 33) / 33)  # dispersions to try when a component leaves the multinomial limit


class Slopes(NamedTuple):
    """Derivatives of one component's Q, in units that stay finite in the multinomial limit.

    With A_j = sum_i w_i (psi(c_ij + a_j) - psi(a_j)), eq. (13): `first` = a_j A_j, `second` = -a_j^2 A_j', and
    `first_total`, `second_total` likewise of B, eq. (14). dQ/d log a_j = first_j - m_j first_total.
    """

    first: Array  # [C, G]
    second: Array  # [C, G]
    first_total: Array  # [G]
    second_total: Array  # [G]


class Tail(NamedTuple):
    """Q of each component as a function of its parameters, from tail counts."""

    points: Points
    weights: Array  # [points, G]
    totals: Points
    total_weights: Array  # [points of the total, G]

    def only(self, g: Array) -> Tail:
        return Tail(self.points, self.weights[:, g], self.totals, self.total_weights[:, g])

    def value(self, mean: Array, dispersion: Array) -> Array:
        """sum_ju T_j(u) log(m_j + u r) - sum_u N(u) log(1 + u r); mean [C, G], dispersion [G]."""
        x = mean[self.points.category] + self.points.at[:, None] * dispersion
        below = np.log1p(self.totals.at[:, None] * dispersion)
        return np.asarray((self.weights * np.log(x)).sum(axis=0) - (self.total_weights * below).sum(axis=0))

    def slopes(self, mean: Array, dispersion: Array) -> Slopes:
        m = mean[self.points.category]
        ratio = m / (m + self.points.at[:, None] * dispersion)
        share = self.weights * ratio
        below = 1 / (1 + self.totals.at[:, None] * dispersion)
        total = self.total_weights * below
        begin = self.points.begin
        return Slopes(
            np.add.reduceat(share, begin, axis=0),
            np.add.reduceat(share * ratio, begin, axis=0),
            total.sum(axis=0),
            (total * below).sum(axis=0),
        )

    def rise_at_limit(self, mean: Array) -> Array:
        """dQ/dr at r = 0: positive if the data are more spread than the multinomial law."""
        up = self.weights * (self.points.at[:, None] / mean[self.points.category])
        return np.asarray(up.sum(axis=0) - (self.total_weights * self.totals.at[:, None]).sum(axis=0))


def fixed_point_direction(mean: Array, slopes: Slopes) -> Array:
    """The change of log alpha in eq. (49): alpha_j <- alpha_j A_j / B; an unseen category goes to the floor."""
    below = np.maximum(mean * slopes.first_total, 1e-30)
    return np.asarray(np.log(np.maximum(slopes.first, 1e-60) / below))


def newton_direction(mean: Array, slopes: Slopes, *, floor: float = 0.0) -> Array:
    """The Newton step of alpha relative to alpha; the fixed-point step if Q is not concave in alpha.

    The Hessian is diagonal plus rank one: -diag(second) + second_total m m'. Means at the floor that would fall below
    it stay fixed, and the others move as if those were known.
    """
    gradient = slopes.first - mean * slopes.first_total
    held = (mean <= floor) & (gradient < 0)
    curved = (slopes.second > 1e-30) & ~held
    inverse = np.where(curved, 1 / np.where(curved, slopes.second, 1.0), 0.0)
    rest = 1 - slopes.second_total * (mean**2 * inverse).sum(axis=0)
    concave = rest > 1e-9
    along = slopes.second_total * (mean * gradient * inverse).sum(axis=0) / np.where(concave, rest, 1.0)
    step = np.where(curved, inverse * (gradient + mean * along), -3.0)
    step = np.where(concave, np.clip(step, -3.0, 3.0), np.clip(fixed_point_direction(mean, slopes), -3.0, 3.0))
    return np.where(held, 0.0, step)


def moved(mean: Array, dispersion: Array, step: Array) -> tuple[Array, Array]:
    """Mean and dispersion after a change of log alpha by `step`; only the scale is limited, not entries of alpha."""
    grown = mean * np.exp(step)
    scale = grown.sum(axis=0)
    return floored(grown / scale), np.clip(dispersion / scale, LEAST, MOST)


def floored(mean: Array) -> Array:
    """Means [C, G] that sum to one with no entry below the floor (up to rounding)."""
    mean = np.maximum(mean, MEAN_FLOOR)
    return np.asarray(mean / mean.sum(axis=0))


def maximise(tail: Tail, mean: Array, dispersion: Array, *, tolerance: float = 1e-9) -> tuple[Array, Array]:
    """Maximise Q from these parameters: Newton's method with a line search, and the multinomial limit."""
    unseen = np.add.reduceat(tail.weights, tail.points.begin, axis=0) <= 1e-30
    mean, dispersion = moved(mean, dispersion, np.where(unseen, np.log(MEAN_FLOOR), 0.0))
    dispersion = leave_limit(tail, mean, dispersion)
    mass = np.maximum(tail.total_weights[0], 1e-12)  # of clients with at least one row
    active = np.flatnonzero(tail.total_weights[0] > 1e-12)
    for _ in range(STEPS):
        if not len(active):
            break
        part = tail.only(active)
        new = climb(part, mean[:, active], dispersion[active])
        mean[:, active], dispersion[active], gain = new
        active = active[gain > tolerance * mass[active]]
    return at_limit(tail, mean, dispersion)


def climb(tail: Tail, mean: Array, dispersion: Array) -> tuple[Array, Array, Array]:
    """One Newton step with a line search; if Q does not rise, a fixed-point step, which always does."""
    slopes, before = tail.slopes(mean, dispersion), tail.value(mean, dispersion)
    best, at, gain = mean.copy(), dispersion.copy(), np.zeros(len(dispersion))
    direction = newton_direction(mean, slopes, floor=1.001 * MEAN_FLOOR)  # rounding may leave one slightly off it
    todo = np.arange(len(dispersion))
    for length in (1.0, 0.5, 0.25, 0.0625, 0.0):
        step = length * direction[:, todo] if length else fixed_point_direction(mean, slopes)[:, todo]
        m, r = moved(mean[:, todo], dispersion[todo], step)
        rise = tail.only(todo).value(m, r) - before[todo]
        better = rise > 0
        best[:, todo[better]], at[todo[better]], gain[todo[better]] = m[:, better], r[better], rise[better]
        todo = todo[~better]
        if not len(todo):
            break
    return best, at, gain


def leave_limit(tail: Tail, mean: Array, dispersion: Array) -> Array:
    """A dispersion from a grid, for components near the multinomial limit where spread would help."""
    dispersion = dispersion.copy()
    stuck = np.flatnonzero((dispersion < 1e-6) & (tail.rise_at_limit(mean) > 0))
    if len(stuck):
        part, m = tail.only(stuck), mean[:, stuck]
        values = np.array([part.value(m, np.full(len(stuck), r)) for r in SCALES])
        dispersion[stuck] = SCALES[values.argmax(axis=0)]
    return dispersion


def at_limit(tail: Tail, mean: Array, dispersion: Array) -> tuple[Array, Array]:
    """The multinomial law with the pooled mean, if at least as likely."""
    pooled = np.add.reduceat(tail.weights, tail.points.begin, axis=0)
    mass = pooled.sum(axis=0)
    pooled = floored(pooled / np.where(mass > 0, mass, 1.0))
    limit = np.full(len(dispersion), LEAST)
    better = (mass > 0) & (tail.value(pooled, limit) >= tail.value(mean, dispersion))
    return np.where(better, pooled, mean), np.where(better, limit, dispersion)
