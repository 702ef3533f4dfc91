"""Covariates that the server knows before a round: shares of a prior, the phase of a cycle, any context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError
from fedscape.temporal.curves import Curve
from fedscape.temporal.regression import vertices
from fedscape.types import Array

_GRID = 48  # phases of a cycle that are tried
_FEWEST = 8.0  # clients of a level of a context before it can be a mode


class Covariates(Protocol):
    """Numbers known before a round. Their span contains a constant."""

    @property
    def constant(self) -> Array:
        """Weights [p] for which the weighted sum of the covariates is one in every round."""
        ...

    def row(self, t: int) -> Array:
        """The covariates of round t: [p]."""
        ...

    def loadings(self, coefficients: Array, metric: Array, gram: Array, n_modes: int) -> Array:
        """Covariates of a pure round of each mode, [K, p]: times the coefficients [p, d] they give the modes' means.

        `metric` [d, d] is the metric of the statistics; `gram` [p, p] says how often which covariates were observed.
        """
        ...


@dataclass(frozen=True)
class Shares:
    """The shares of the modes that a prior expects. A pure round has one mode only."""

    curve: Curve | None
    n_modes: int

    @property
    def constant(self) -> Array:
        return np.ones(self.n_modes)

    def row(self, t: int) -> Array:
        return np.asarray(np.full(self.n_modes, 1 / self.n_modes) if self.curve is None else self.curve.shares(t))

    def loadings(self, coefficients: Array, metric: Array, gram: Array, n_modes: int) -> Array:
        return np.eye(n_modes)


@dataclass(frozen=True)
class Harmonics:
    """A cycle with a known period and no known curve: cosine and sine of the phase.

    The modes are the corners of the fitted path: for two modes its two ends. They are the modes' means if each mode
    is alone once in a period, and lie between them otherwise.

    Parameters
    ----------
    period
        In rounds, such as `read_clock(values).period`.
    number
        How many harmonics; 2 or 3 for curves with sharp turns.

    >>> Harmonics(8).row(2).round(3).tolist()
    [1.0, 0.0, 1.0]
    """

    period: float = 256.0
    number: int = 1

    def __post_init__(self) -> None:
        if not (2 <= self.period < np.inf and self.number >= 1 and self.period >= 2 * self.number):
            raise DataError(
                f"period must be at least 2 rounds a harmonic, number at least 1, not {self.period} and {self.number}"
            )

    @property
    def constant(self) -> Array:
        return np.asarray(np.eye(1 + 2 * self.number)[0])

    def row(self, t: float) -> Array:
        """One, and cosine and sine of each harmonic."""
        angle = 2 * np.pi * t / self.period * np.arange(1, self.number + 1)
        return np.concatenate([[1.0], np.cos(angle), np.sin(angle)])

    def loadings(self, coefficients: Array, metric: Array, gram: Array, n_modes: int) -> Array:
        points = np.stack([self.row(t) for t in np.linspace(0, self.period, _GRID, endpoint=False)])
        return corners(points, coefficients, metric, n_modes)


@dataclass(frozen=True)
class Context:
    """A covariate of each round that the server knows: the hour, the weekday, a region, a version.

    Texts, whole numbers and booleans are levels; floating-point numbers, one column or several, are numbers. The modes
    are the corners of the region spanned by the means of the levels, or of the observed numbers.

    Parameters
    ----------
    values
        One entry for each round, each a tuple.
    levels
        Whether entries are levels.

    >>> Context.of(["eu", "us", "eu"]).row(1).tolist(), Context.of([0.0, 2.0]).row(1).tolist()
    ([0.0, 1.0], [1.0, 1.0])
    """

    values: tuple[tuple[float, ...], ...]
    levels: bool

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Context:
        """The context of rounds 0, 1, 2, ... from an array or a list."""
        array = np.asarray(values)
        if array.ndim not in (1, 2) or len(array) < 1 or array.dtype.kind not in "biufUS":
            raise DataError(
                f"context must hold a level or numbers for each round, [rounds] or [rounds, p], not {array.dtype} "
                f"of shape {array.shape}"
            )
        if array.dtype.kind != "f":
            if array.ndim == 2:
                raise DataError("levels of a context must be one a round: join columns of levels into one")
            codes = np.unique(array, return_inverse=True)[1]
            return cls(tuple((float(code),) for code in codes), True)
        if not np.isfinite(array).all():
            raise DataError(f"context must be finite, round {int(np.argwhere(~np.isfinite(array))[0][0])} is not")
        array = array.reshape(len(array), -1)
        spread = array.std(axis=0)
        scaled = (array - array.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        return cls(tuple(tuple(map(float, entry)) for entry in scaled), False)

    @property
    def _n_levels(self) -> int:
        return 1 + int(max(entry[0] for entry in self.values))

    @property
    def constant(self) -> Array:
        if self.levels:
            return np.ones(self._n_levels)
        return np.asarray(np.eye(1 + len(self.values[0]))[0])

    def row(self, t: int) -> Array:
        """Indicators of the level, or one and the numbers."""
        if t >= len(self.values):
            raise DataError(f"context has {len(self.values)} rounds and none for round {t}: give one for every round")
        if self.levels:
            return np.asarray(np.eye(self._n_levels)[int(self.values[t][0])])
        return np.array([1.0, *self.values[t]])

    def loadings(self, coefficients: Array, metric: Array, gram: Array, n_modes: int) -> Array:
        if self.levels:
            points = np.eye(self._n_levels)[np.diag(gram) >= _FEWEST]
        else:
            points = np.unique(np.stack([self.row(t) for t in range(len(self.values))]), axis=0)
            points = points[np.linspace(0, len(points) - 1, min(len(points), 512)).astype(int)]
        if not len(points):
            return np.tile(self.constant / self.constant.sum(), (n_modes, 1))
        return corners(points, coefficients, metric, n_modes)


def corners(points: Array, coefficients: Array, metric: Array, n_modes: int) -> Array:
    """The K of these covariates [points, p] whose fitted means are farthest apart: [K, p].

    >>> corners(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 3.0]]), np.eye(2), np.eye(2), 2).tolist()
    [[1.0, 3.0], [1.0, 0.0]]
    """
    root = np.linalg.cholesky(metric + 1e-12 * max(float(np.trace(metric)), 1e-300) * np.eye(len(metric)))
    means = points @ coefficients @ root
    away = means - means.mean(axis=0)
    main = np.linalg.svd(away, full_matrices=False)[2][: n_modes - 1]
    return np.asarray(points[vertices(away @ main.T, n_modes)])
