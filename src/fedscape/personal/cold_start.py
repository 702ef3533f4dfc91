"""Cold start: a model for a new client whose data have no labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError, NotFittedError
from fedscape.sketches.distances import normalise, pairwise, sizes
from fedscape.sketches.distribution import DistributionSketch
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.types import Array

M = TypeVar("M")


@dataclass(frozen=True)
class Match:
    """The warm client (or component) matched to each new client, and how certain the match is.

    `index` is -1 if nothing is near enough, `nearest` is the match without that rule, and `square` its squared
    distance. `p_value` is small if the new client is farther from everyone than warm clients are from one another. A
    client with a single row has a `p_value` of NaN: it gets the nearest match, and its square is not debiased.

    >>> Match(np.array([1, -1]), np.array([1, 0]), np.zeros(2), np.ones(2)).models(["a", "b"], fallback="global")
    ['b', 'global']
    """

    index: Array
    nearest: Array
    square: Array
    p_value: Array

    def models(self, models: Sequence[M], *, fallback: M) -> list[M]:
        """The model of each new client, from models of any type; `fallback` where the match abstains."""
        if len(models) and self.index.max(initial=-1) >= len(models):
            raise DataError(f"client {self.index.max()} was matched, but there are only {len(models)} models")
        return [models[i] if i >= 0 else fallback for i in self.index]


class ColdStart:
    """The personal model of the nearest warm client, by sketches of unlabelled data (sketch paper, Algorithm 2).

    The server sees every warm client's sketch. A new client sends its own, and gets the model of the warm client at
    the smallest squared distance. Distances are debiased: small clients are not far because they are small. The match
    abstains if the conformal p-value is below `alpha`. The p-value is the share of clients, including the new one, that
    are at least as far from their nearest other client. For a new client like the warm ones, abstaining has probability
    at most alpha. A client with one row cannot be debiased and never abstains; one without rows always does.

    Parameters
    ----------
    sketch
        The hash functions; fitted or ready to use.
    alpha
        How often a client that belongs may be rejected; 0 never abstains.
    debias
        Whether to subtract the sampling noise of small clients. Off, this is the paper's distance.
    noise
        The variance of the noise in a count, for clients that protect their counts.

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(m, 1.0, (50, 2)) for m in ([5, 0], [0, 5], [5, 0.0])])
    >>> fed = Federation({"x": x}, [0, 50, 100, 150])
    >>> cold = ColdStart(DistributionSketch(rows=50), alpha=0.0).fit(fed.take([0, 1]))
    >>> cold.match(fed.take([2])).index
    array([0])
    """

    def __init__(
        self, sketch: DistributionSketch, *, alpha: float = 0.05, debias: bool = True, noise: float = 0.0
    ) -> None:
        if not 0 <= alpha < 1:
            raise DataError(f"alpha must be at least 0 and below 1, not {alpha}")
        self.sketch = sketch
        self.alpha = alpha
        self.debias = debias
        self.noise = noise

    def fit(self, warm: Federation | npt.ArrayLike) -> ColdStart:
        """Fit to the warm clients, or to their counts from `DistributionSketch.counts`."""
        counts = self._counts(warm)
        self.sketches_, self.sizes_ = normalise(counts), sizes(counts)
        squares = self._squares(self.sketches_, self.sizes_)
        np.fill_diagonal(squares, np.nan)
        if (~np.isnan(squares)).sum() < 2:
            usable = int((self.sizes_ > (1 if self.debias else 0)).sum())
            raise DataError(f"a cold start needs at least two warm clients with two or more rows, there are {usable}")
        self.apart_ = _least(squares)  # distance of each warm client to its nearest other
        return self

    def match(self, new: Federation | npt.ArrayLike) -> Match:
        """The nearest warm client of each new client; counts are enough for the new clients too."""
        if not hasattr(self, "apart_"):
            raise NotFittedError("this ColdStart has no warm clients yet: call fit() first")
        counts = self._counts(new)
        sketches, n = normalise(counts), sizes(counts)
        squares = self._squares(sketches, n, others=True)  # [new, warm]
        own = _least(squares)
        finite = ~np.isnan(self.apart_)
        others = np.fmin(self.apart_[finite][None, :], squares[:, finite])  # the new one may be a warm client's nearest
        p = (1 + (others >= own[:, None]).sum(axis=1)) / (1 + finite.sum())
        single = np.isnan(own) & (n >= 0.5)  # noisy counts make fractional sizes
        # the term that cannot be subtracted is the same for every warm client: the nearest stays the nearest
        squares[single] = pairwise(
            sketches[single], self.sketches_, other_sizes=self.sizes_, noise=self.noise, squared=True
        )
        own = _least(squares)
        nearest = np.where(np.isnan(own), -1, np.argmin(np.where(np.isnan(squares), np.inf, squares), axis=1))
        p = np.where(np.isnan(own), 0.0, np.where(single, np.nan, p))
        return Match(np.where((p < self.alpha) | (nearest < 0), -1, nearest), nearest, own, p)

    def _counts(self, data: Federation | npt.ArrayLike) -> Array:
        return self.sketch.counts(data) if isinstance(data, Federation) else np.asarray(data)

    def _squares(self, s: Array, n: Array, *, others: bool = False) -> Array:
        if not others:
            return pairwise(s, sizes=n if self.debias else None, noise=self.noise, squared=True)
        mine, theirs = (n, self.sizes_) if self.debias else (None, None)
        return pairwise(s, self.sketches_, sizes=mine, other_sizes=theirs, noise=self.noise, squared=True)


class NearestComponent:
    """The same from sums alone: components of clients by k-means of their sketches, one model for each component.

    Each client projects its own sketch to a few numbers; the projection is shared. `FederatedKMeans` clusters these by
    sums. A client, warm or new, finds its component on its own: no sketch leaves it.

    Parameters
    ----------
    sketch
        The hash functions; fitted or ready to use.
    n_components
        Number of components; each has its own model, trained by its clients.
    dimension
        Size of the projected sketch; distances are kept to about 1 / sqrt(dimension).
    n_init, rounds, seed
        As in `FederatedKMeans`.

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(m, 1.0, (50, 2)) for m in ([5, 0], [0, 5], [5, 0.0])])
    >>> fed = Federation({"x": x}, [0, 50, 100, 150])
    >>> made = NearestComponent(DistributionSketch(rows=50), 2).fit(fed)
    >>> np.array_equal(made.labels_[0], made.labels_[2]), np.array_equal(made.labels_[0], made.labels_[1])
    (True, False)
    """

    def __init__(
        self,
        sketch: DistributionSketch,
        n_components: int,
        *,
        dimension: int = 48,
        n_init: int = 8,
        rounds: int = 50,
        seed: int = 0,
    ) -> None:
        if dimension < 1:
            raise DataError(f"dimension must be at least 1, not {dimension}")
        self.sketch = sketch
        self.n_components = n_components
        self.dimension = dimension
        self.n_init = n_init
        self.rounds = rounds
        self.seed = seed

    def fit(self, warm: Federation) -> NearestComponent:
        """Cluster the warm clients; learns `labels_`, each client's own component (-1 without rows)."""
        projected = self._projected(warm)
        self.means_ = FederatedKMeans(
            self.n_components, column="sketch", n_init=self.n_init, rounds=self.rounds, seed=self.seed
        ).fit(projected, progress=False)
        self.labels_ = self.match(warm)
        return self

    def match(self, new: Federation) -> Array:
        """The component of each client, -1 for one without rows."""
        if not hasattr(self, "means_"):
            raise NotFittedError("this NearestComponent has no components yet: call fit() first")
        projected = self._projected(new)
        component = np.full(len(new), -1)
        if projected.n_rows:
            component[projected.sizes > 0] = self.means_.predict(projected["sketch"])
        return component

    def _projected(self, clients: Federation) -> Federation:
        """Each client's projected sketch as one row; a client without rows has none."""
        counts = self.sketch.counts(clients)
        s = normalise(counts).reshape(len(clients), int(np.prod(counts.shape[1:])))
        key = Key(self.seed, purpose="sketch projection")
        directions = key.generator().standard_normal((s.shape[1], self.dimension)) / np.sqrt(self.dimension)
        nonempty = clients.sizes > 0
        return Federation({"sketch": (s @ directions)[nonempty]}, offsets_of(nonempty), clients.ids)


def _least(squares: Array) -> Array:
    """The smallest number of each row, NaN where there is none."""
    least = np.where(np.isnan(squares), np.inf, squares).min(axis=1, initial=np.inf)
    return np.where(np.isinf(least), np.nan, least)
