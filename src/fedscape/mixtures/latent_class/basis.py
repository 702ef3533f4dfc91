"""Nonlinear classes that stay linear in their parameters: basis functions replace the features.

Every client computes the same functions, and agents send the same sums of more columns. A basis is a text:

- "hinges" or "hinges:-1,0,1": each feature and max(0, feature - knot), a broken line;
- "polynomials:3": each feature and its powers up to that one, Hermite's, which are orthogonal for normal features;
- "layer:16" or "layer:16,seed=1": the features and 16 hidden units tanh(w . x + b) with fixed random weights: a network
  with one hidden layer, with output weights per class;
- "network:16" or "network:16,seed=1": each class has such a layer of its own, which is learned (`networks.py`). Its
  functions are not the same for all classes, so it is no basis of a table.

Features are first standardised by the mean and deviation of all events: knots are in standard deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import hermite_e

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.types import Array

KINDS = ("hinges", "polynomials", "layer", "network")
_KNOTS = (-1.0, 0.0, 1.0)
_REACH = 6.0  # standard deviations: outside, powers continue as straight lines and do not explode


class Basis(NamedTuple):
    """A parsed basis: its kind, knots, and the degree or the number of hidden units."""

    kind: str
    knots: tuple[float, ...] = ()
    number: int = 0
    seed: int = 0

    def expand(self, z: Array) -> Array:
        """The functions of standardised features [events, f]: [events, F]."""
        if self.kind == "hinges":
            return np.concatenate([z, *(np.maximum(z - knot, 0.0) for knot in self.knots)], axis=1)
        if self.kind == "polynomials":
            inside = np.clip(z, -_REACH, _REACH)
            powers = [hermite_e.hermeval(inside, np.eye(self.number + 1)[p]) for p in range(2, self.number + 1)]
            return np.concatenate([z, *powers], axis=1)
        weights, offsets = hidden_units(self.number, z.shape[1], self.seed)
        return np.concatenate([z, np.tanh(z @ weights + offsets)], axis=1)

    def names(self, features: Sequence[str]) -> tuple[str, ...]:
        """The names of the functions, in order."""
        if self.kind == "hinges":
            more = [f"{name} above {knot:g} sd" for knot in self.knots for name in features]
        elif self.kind == "polynomials":
            more = [f"{name}, degree {p}" for p in range(2, self.number + 1) for name in features]
        else:
            more = [f"unit {i}" for i in range(self.number)]
        return (*features, *more)


@lru_cache(maxsize=32)
def hidden_units(units: int, features: int, seed: int) -> tuple[Array, Array]:
    """Random weights [features, units] and offsets [units] of a hidden layer on standardised features."""
    rng = Key(seed, purpose="hidden units").generator()
    weights = rng.standard_normal((features, units)) * 1.5 / np.sqrt(features)
    return weights, rng.uniform(-2.0, 2.0, units)


@lru_cache(maxsize=32)
def parse_basis(text: str) -> Basis:
    """Parse a basis from its text.

    >>> parse_basis("hinges:-1,1").expand(np.array([[2.0]])).tolist()
    [[2.0, 3.0, 1.0]]
    """
    kind, _, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    try:
        if kind == "hinges":
            knots = tuple(float(part) for part in parts) or _KNOTS
            if not np.isfinite(knots).all() or len(set(knots)) < len(knots):
                raise ValueError
            return Basis(kind, knots=knots)
        if kind == "polynomials" and len(parts) == 1 and 2 <= int(parts[0]) <= 9:
            return Basis(kind, number=int(parts[0]))
        if kind in ("layer", "network") and parts and int(parts[0]) >= 1:
            seed = int(parts[1].removeprefix("seed=")) if len(parts) > 1 else 0
            return Basis(kind, number=int(parts[0]), seed=seed)
        raise ValueError
    except ValueError:
        raise DataError(
            f"basis must be 'hinges', 'hinges:-1,0,1' (knots), 'polynomials:3' (degree 2 to 9), 'layer:16' or "
            f"'network:16' (units), "
            f"not {text!r}"
        ) from None
