"""Design matrix of a regression: features with an intercept, target, offset and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.validate import all_valid, check_finite, valid_numbers
from fedscape.errors import DataError
from fedscape.tabular.estimator import feature_names
from fedscape.tabular.families import Family
from fedscape.tabular.losses import FAR
from fedscape.types import Array

Ranges = Mapping[str, Sequence[float]]


class Rows(NamedTuple):
    """Design matrix [rows, p] with the intercept last; target, offset and weight [rows]."""

    x: Array
    y: Array
    offset: Array
    weight: Array


class Columns(NamedTuple):
    """Which columns are what; `ranges` bound features, target, offset and weights, and give units."""

    features: tuple[str, ...]
    target: str
    offset: str | None
    weights: str | None
    intercept: bool
    ranges: Ranges | None

    def rows(self, clients: Federation, family: Family) -> Rows:
        """Read the rows; refuse missing numbers and targets outside the support of the family."""
        x, y = self.x(clients), self.y(clients, classes=family.name == "logistic")
        bad = ~family.valid(y)
        if bad.any():
            row = int(np.argmax(bad))
            least = f"above {family.least:g}" if family.name == "gamma" else f"at least {family.least:g}"
            most = f" and at most {family.most:g}" if np.isfinite(family.most) else ""
            raise DataError(
                f"the target {self.target!r} is {y[row]:g} in row {row:,}, which no {family.name} law has: it must be "
                f"{least}{most}"
            )
        ones = np.ones(len(y))
        offset = 0 * ones if self.offset is None else self._ranged(clients, self.offset)
        weight = ones if self.weights is None else self._ranged(clients, self.weights)
        if weight.size and weight.min() < 0:
            row = int(np.argmin(weight))
            raise DataError(f"the weight {self.weights!r} is {weight[row]:g} in row {row:,}: weights are 0 or more")
        return Rows(x, y, offset, weight)

    def x(self, clients: Federation) -> Array:
        """The features in their units, and a column of ones for an intercept."""
        parts = []
        for name in self.features:
            values = self._numbers(clients, name)
            if self.ranges is not None:
                low, high = self.ends(name)
                values = (np.clip(values, low, high) - (low + high) / 2) / ((high - low) / 2)
            parts.append(values.reshape(len(values), int(np.prod(values.shape[1:]))))
        if self.intercept:
            parts.append(np.ones((clients.n_rows, 1)))
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def y(self, clients: Federation, *, classes: bool = False) -> Array:
        """The target, cut to its range where one is declared; of named classes their codes."""
        if classes and self.target in clients.names and clients[self.target].ndim == 1:
            return clients[self.target].astype(float)
        return self._ranged(clients, self.target)

    def _ranged(self, clients: Federation, name: str) -> Array:
        """A column of one number a row, cut to its range where one is declared."""
        values = self._numbers(clients, name)
        if values.ndim != 1:
            raise DataError(f"the column {name!r} must be one number a row, not {list(values.shape[1:])}")
        return np.clip(values, *self.ends(name)) if self.ranges and name in self.ranges else values

    def ends(self, name: str) -> tuple[float, float]:
        """The declared range of a column."""
        pair = range_of(self.ranges, name)
        if pair is None:
            raise DataError(f"ranges must name every feature, and {name!r} is not among them")
        low, high = (float(v) for v in pair)
        if not -np.inf < low < high < np.inf:
            raise DataError(f"the range of {name!r} must be a least and a greatest finite number, not {tuple(pair)!r}")
        return low, high

    def valid_rows(self, clients: Federation, family: Family) -> Array | None:
        """Which rows have all numbers, and a target in the support of the family."""
        extra = [name for name in (self.offset, self.weights) if name is not None]
        names = (*self.features, self.target, *extra)
        masks = [valid_numbers(clients[name]) for name in names]
        with np.errstate(invalid="ignore"):
            far = [np.abs(clients[name]) >= FAR for name in names if not self._bounded(name)]
            masks += [np.asarray(~mask.any(axis=tuple(range(1, mask.ndim)))) for mask in far]
            masks.append(family.valid(np.asarray(clients[self.target], dtype=float)))
            if self.weights is not None:
                masks.append(np.asarray(clients[self.weights] >= 0))
        return all_valid(*masks)

    def names(self, clients: Federation) -> tuple[str, ...]:
        """What the coefficients are called; those of a two-dimensional column are numbered."""
        names = feature_names(clients, self.features)
        return (*names, "intercept") if self.intercept else names

    def units(self, widths: Sequence[int]) -> tuple[Array, Array]:
        """Centre and half range of each feature, [features]: 0 and 1 without ranges."""
        if self.ranges is None:
            return np.zeros(sum(widths)), np.ones(sum(widths))
        low, high = np.array([self.ends(name) for name in self.features], dtype=float).reshape(-1, 2).T
        return np.repeat((low + high) / 2, widths), np.repeat((high - low) / 2, widths)

    def _bounded(self, name: str) -> bool:
        return self.ranges is not None and name in self.ranges

    def _numbers(self, clients: Federation, name: str) -> Array:
        if name in clients.names and clients[name].ndim == 1:
            raise DataError(f"the column {name!r} holds texts, not numbers: make indicator columns of it")
        values = check_finite(clients[name], name)
        if not self._bounded(name) and (far := np.abs(values) >= FAR).any():
            row = int(np.argwhere(far)[0, 0])
            raise DataError(
                f"column {name!r} holds {values[far][0]:g} in row {row:,}, too large to be squared: drop such rows, or "
                "take another unit"
            )
        return values


def range_of(ranges: Ranges | None, name: str) -> Sequence[float] | None:
    """The declared range of a column, None where it has none.

    >>> range_of({"age": (0, 120)}, "age"), range_of(None, "age")
    ((0, 120), None)
    """
    if ranges is not None and not isinstance(ranges, Mapping):
        raise DataError(f"ranges must be a dictionary {{column: (least, greatest)}}, not {ranges!r}")
    return (ranges or {}).get(name)


def solve(information: Array, score: Array) -> Array:
    """The coefficients, whatever noise did to the information: eigenvalues below a millionth of a millionth are none.

    Rows and columns are first brought to one scale, so that units of features do not matter.

    >>> solve(np.array([[4.0, 0.0], [0.0, 1e-6]]), np.array([4.0, 1e-6])).tolist()
    [1.0, 1.0]
    """
    size = np.sqrt(np.maximum(np.abs(np.diag(information)), 1e-300))
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    least = max(float(values[-1]) * 1e-13, 1e-300)
    inverse = np.where(values > least, 1 / np.where(values > least, values, 1.0), 0.0)
    return np.asarray((vectors * inverse) @ (vectors.T @ (score / size)) / size)
