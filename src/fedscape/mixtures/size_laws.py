"""Size laws: the number of rows of a client, one law per component over bins of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError
from fedscape.types import Array

Kind = Literal["bins", "histogram"]

FLOOR = 1e-3  # the mass that is spread over all sizes
_LAST = 2**31


@dataclass(frozen=True)
class SizeLaws:
    """The law of a client's size n in each component: probabilities of bins, uniform within a bin.

    Every bin has at least the floor's share of a law that falls like 1/(1 + n) over all sizes below 2**31: an unseen
    size is unlikely, not impossible. The probabilities maximise the likelihood above this floor; without a floor they
    are pi of eq. (18). `edges` [bins + 1], `probabilities` [K, bins].

    >>> laws = SizeLaws.fit(np.array([[0.0, 3.0, 1.0]]), np.array([0, 1, 2, 2**31]))
    >>> laws.probabilities.round(3)
    array([[0.  , 0.75, 0.25]])
    >>> bool(laws.log_pmf([10_000]) > -40)
    True
    """

    edges: Array
    probabilities: Array

    @classmethod
    def fit(cls, weights: Array, edges: Array, *, floor: float = FLOOR) -> SizeLaws:
        """Fit the maximum likelihood laws above the floor to these weighted numbers of clients [K, bins]."""
        return cls(edges, most_likely(np.asarray(weights, dtype=float), floor * background(edges)))

    def log_pmf(self, sizes: npt.ArrayLike) -> Array:
        """Log probability of these sizes in each component: [clients, K].

        >>> SizeLaws(np.array([0, 1, 3]), np.array([[0.5, 0.5]])).log_pmf([0, 1]).round(3).tolist()
        [[-0.693], [-1.386]]
        """
        return np.asarray(log_density(self.probabilities, self.edges)[bin_of(sizes, self.edges)])

    def sample(self, components: npt.ArrayLike, rng: np.random.Generator) -> Array:
        """Draw one size for each of these components; bins without observations are skipped.

        >>> laws = SizeLaws(np.array([0, 5, 6]), np.array([[0.0, 1.0]]))
        >>> laws.sample([0, 0], np.random.default_rng(0)).tolist()
        [5, 5]
        """
        which = np.asarray(components)
        likely = self.probabilities > FLOOR * background(self.edges) * (1 + 1e-9)
        running = np.cumsum(np.where(likely, self.probabilities, 0.0), axis=1)
        draw = rng.random(len(which)) * running[which, -1]
        chosen = np.zeros(len(which), dtype=np.int64)
        for k in range(len(running)):
            mine = which == k
            chosen[mine] = np.searchsorted(running[k], draw[mine], side="right")
        return np.asarray(rng.integers(self.edges[chosen], self.edges[chosen + 1]))


def size_edges(kind: Kind, reach: int) -> Array:
    """The edges of the size bins, 0 to 2**31.

    "histogram" has a bin for each size up to `reach`, as in the paper; "bins" has one for each up to 16, then four per
    doubling. Above `reach` both have one per doubling.

    >>> size_edges("bins", 20)[14:20]
    array([14, 15, 16, 20, 23, 32])
    """
    if kind not in ("bins", "histogram"):
        raise DataError(f"sizes must be 'bins', 'histogram' or None, not {kind!r}")
    if kind == "histogram":
        inner = np.arange(reach + 2)
    else:
        steps = np.ceil(16 * 2 ** (np.arange(4 * 27) / 4)).astype(np.int64)
        inner = np.concatenate((np.arange(16), steps))
        inner = inner[: np.searchsorted(inner, reach, side="right") + 1]
    outer = 2 ** np.arange(32, dtype=np.int64)
    return np.concatenate((inner, outer[outer > inner[-1]])).astype(np.int64)


def bin_of(sizes: npt.ArrayLike, edges: Array) -> Array:
    """The bin of each size."""
    n = np.asarray(sizes)
    if n.size and (n.min() < 0 or n.max() >= _LAST):
        raise DataError(f"sizes must be from 0 to 2**31 - 1, got {n.min()} to {n.max()}")
    return np.searchsorted(edges, n, side="right") - 1


def log_density(probabilities: Array, edges: Array) -> Array:
    """Log probability of a single size in each bin: [bins, K]."""
    return np.asarray(np.log(probabilities).T - np.log(np.diff(edges))[:, None])


def background(edges: Array) -> Array:
    """The share of each bin in a law that falls like 1/(1 + n) up to 2**31."""
    return _background(tuple(edges.tolist()))


@lru_cache(maxsize=8)
def _background(edges: tuple[int, ...]) -> Array:
    mass = np.diff(np.log1p(np.array(edges, dtype=float)))
    return np.asarray(mass / mass.sum())


def most_likely(weights: Array, floor: Array) -> Array:
    """Maximise sum_b weights[k, b] log p_b over laws p >= floor: p_b = max(weights[k, b] / l, floor_b)."""
    weights = np.maximum(weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    weights = np.where(total > 0, weights, floor)  # a component without clients gets the background law
    low = np.zeros(weights.shape, dtype=bool)
    while True:
        free = np.where(low, 0.0, weights).sum(axis=1, keepdims=True)
        level = free / (1 - np.where(low, floor, 0.0).sum(axis=1, keepdims=True))
        new = low | (weights <= level * floor)
        if np.array_equal(new, low):
            return np.asarray(np.where(low, floor, weights / level))
        low = new
