"""Recipes: the histogram of each simulated client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedscape.core.random import Key, dirichlet
from fedscape.errors import DataError
from fedscape.types import Array

BLOCK = 4096  # clients per generator; blocks are drawn whole: no client depends on how many follow


class Recipe(Protocol):
    """The interface of a recipe: draws client histograms, given the number of rows of each category."""

    @property
    def by_category(self) -> bool:
        """Whether the recipe distinguishes categories; if False, rows are drawn uniformly and histograms are sizes."""

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        """Histograms [clients, C] for `available` [C] rows of each category."""


@dataclass(frozen=True, eq=False)
class FullyIID:
    """Clients with rows drawn uniformly from all rows: the baseline of the MDM paper, section 4.

    Parameters
    ----------
    sizes
        One size for all clients, or the sizes of the true clients, from which each simulated client draws one. Without
        `n_clients` there is one client of each size, in order.

    >>> FullyIID([3, 5]).draw(np.array([100]), None, Key(0)).tolist()
    [[3], [5]]
    """

    sizes: npt.ArrayLike
    by_category: ClassVar[bool] = False

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        law = np.atleast_1d(_whole("sizes", self.sizes))
        if law.ndim != 1 or len(law) == 0:
            raise DataError(f"sizes must be one number or one for each client, not an array {list(law.shape)}")
        if n_clients is None and np.ndim(self.sizes) == 1:
            return law[:, None].astype(np.int32)
        drawn = key.to("simulated sizes").generator().random(_number(n_clients))
        return law[(drawn * len(law)).astype(np.int64)][:, None].astype(np.int32)


@dataclass(frozen=True, eq=False)
class ConditionallyIID:
    """Clients with exactly the histograms of true ones, and rows drawn uniformly within each category.

    The oracle of the MDM paper, section 4: it needs every true client's histogram.

    Parameters
    ----------
    histograms
        [clients, C] integers. Without `n_clients` there is one client per histogram, in order; with it, that many are
        drawn from them.

    >>> ConditionallyIID([[2, 1], [0, 4]]).draw(np.array([10, 10]), None, Key(0)).tolist()
    [[2, 1], [0, 4]]
    """

    histograms: npt.ArrayLike
    by_category: ClassVar[bool] = True

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        counts = _whole("histograms", self.histograms)
        if counts.ndim != 2:
            raise DataError(f"histograms must be [clients, categories], not an array {list(counts.shape)}")
        if n_clients is not None and not len(counts):
            raise DataError(f"histograms are those of no client: {n_clients} cannot be drawn from them")
        if n_clients is not None:
            drawn = key.to("simulated histograms").generator().random(_number(n_clients))
            counts = counts[(drawn * len(counts)).astype(np.int64)]
        return counts.astype(np.int32)


@dataclass(frozen=True, eq=False)
class FromMixture:
    """Clients with histograms drawn from a fitted population: the method of the MDM paper.

    Client i is a function of the seed and i only, not of how many clients follow.

    Parameters
    ----------
    population
        A fitted MixtureOfDirichletMultinomials, or anything with its `sample(n, seed=, sizes=)`.
    sizes
        One size for all clients, instead of the population's size law.

    >>> from fedscape import MixtureOfDirichletMultinomials
    >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
    >>> FromMixture(mdm).draw(np.array([9, 9]), 4, Key(0)).sum(axis=1).tolist()
    [2, 2, 2, 2]
    """

    population: Any
    sizes: int | None = None
    by_category: ClassVar[bool] = True

    @property
    def category_names(self) -> tuple[str, ...] | None:
        """The names of the population's categories, if known; they are matched with the names of the proxy."""
        return getattr(self.population, "category_names_", None)

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        return self.draw_range(0, _number(n_clients), key)

    def draw_range(self, begin: int, end: int, key: Key) -> Array:
        """The histograms of some clients; `begin` is a multiple of BLOCK."""
        seeds, parts = key.to("simulated mixture"), []
        for block in range(begin // BLOCK, -(-end // BLOCK)):
            seed = int(seeds.generator(block).integers(2**63))
            parts.append(self.population.sample(BLOCK, seed=seed, sizes=self.sizes).astype(np.int32))
        return np.concatenate(parts)[: end - begin]


@dataclass(frozen=True, eq=False)
class Dirichlet:
    """Clients with label skew: the split of most federated benchmarks.

    Without `sizes` all rows are dealt. For each category, the clients' shares of its rows are drawn from
    Dir(alpha, ..., alpha) over the clients (Yurochkin et al. 2019), rounded without losing a row. With `sizes` each
    client draws its own shares from Dir(alpha) over the categories, and that many rows (Hsu et al. 2019). Nothing is
    retried: any alpha above zero and any number of clients takes one pass.

    Parameters
    ----------
    alpha
        The smaller, the more skewed: one number, or (with sizes) one per category.
    sizes
        Rows of each client: one number, or one per client.
    least
        Minimum number of rows per client. If the draw gives fewer, rows are moved from the largest clients.

    >>> counts = Dirichlet(0.01).draw(np.full(100, 500), 500, Key(0))
    >>> bool((counts.sum(axis=0) == 500).all())
    True
    """

    alpha: npt.ArrayLike
    sizes: npt.ArrayLike | None = None
    least: int = 0
    by_category: ClassVar[bool] = True

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        alpha = np.asarray(self.alpha, dtype=float)
        if not (np.isfinite(alpha) & (alpha > 0)).all():
            raise DataError(f"alpha must be above 0, not {self.alpha!r}")
        if alpha.ndim and (self.sizes is None or alpha.shape != available.shape):
            raise DataError(
                f"alpha must be one number, or with sizes= one for each of {len(available)} categories, not "
                f"{list(alpha.shape)} of them{' without sizes' if self.sizes is None else ''}"
            )
        if not len(available):
            raise DataError("the proxy has no rows, and no categories to draw from: pass one with rows")
        rng = key.to("simulated dirichlet").generator()
        if self.sizes is None:
            n = _number(n_clients)
            counts = np.stack([_rounded(dirichlet(rng, np.full(n, float(alpha))), r) for r in available], axis=1)
            return _lifted(counts, self.least, rng)
        sizes = _whole("sizes", self.sizes)
        sizes = np.broadcast_to(sizes, (_number(n_clients) if sizes.ndim == 0 else len(sizes),))
        shares = dirichlet(rng, np.broadcast_to(alpha, (len(sizes), len(available))))
        return _lifted(rng.multinomial(sizes, shares), self.least, rng)


@dataclass(frozen=True)
class Quantity:
    """Clients with quantity skew only: shares of all rows from Dir(alpha, ..., alpha) over the clients, labels uniform.

    Parameters
    ----------
    alpha
        The smaller, the more uneven.
    least
        Minimum number of rows per client.

    >>> int(Quantity(0.5, least=1).draw(np.array([100]), 10, Key(0)).sum())
    100
    """

    alpha: float
    least: int = 0
    by_category: ClassVar[bool] = False

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        if not 0 < self.alpha < np.inf:
            raise DataError(f"alpha must be above 0, not {self.alpha!r}")
        rng, n = key.to("simulated quantity").generator(), _number(n_clients)
        sizes = _rounded(dirichlet(rng, np.full(n, float(self.alpha))), int(available.sum()))
        return _lifted(sizes[:, None], self.least, rng)


@dataclass(frozen=True)
class Shards:
    """Rows sorted by category and cut into equal shards, a few dealt to each client (McMahan et al. 2017).

    Parameters
    ----------
    per_client
        Shards per client. Shards differ by at most one row, and all rows are dealt.

    >>> Shards(2).draw(np.array([40, 40]), 4, Key(0)).sum(axis=1).tolist()
    [20, 20, 20, 20]
    """

    per_client: int = 2
    by_category: ClassVar[bool] = True

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        n = _number(n_clients)
        if self.per_client < 1:
            raise DataError(f"per_client must be at least 1, not {self.per_client}")
        total, shards = int(available.sum()), n * self.per_client
        owner = key.to("simulated shards").generator().permutation(np.repeat(np.arange(n), self.per_client))
        shard_ends = (np.arange(1, shards + 1) * total) // shards
        category_ends = np.cumsum(available)
        ends = np.union1d(shard_ends, category_ends)  # pieces that lie in one shard and one category
        pieces = np.diff(ends, prepend=0)
        inside = ends - 1  # the last row of each piece
        counts = np.zeros((n, len(available)), dtype=np.int32)
        shard = np.searchsorted(shard_ends, inside, side="right")
        where = (owner[np.minimum(shard, shards - 1)], np.searchsorted(category_ends, inside, side="right"))
        some = pieces > 0
        np.add.at(counts, (where[0][some], where[1][some]), pieces[some])
        return counts


@dataclass(frozen=True)
class Pathological:
    """Clients with a few categories each; every category goes to nearly the same number of clients.

    Categories are dealt from shuffled decks, and no client gets one twice. The rows of a category are split evenly
    among its clients.

    Parameters
    ----------
    classes
        Number of categories per client.

    >>> (Pathological(2).draw(np.full(5, 100), 10, Key(0)) > 0).sum(axis=1).tolist()
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """

    classes: int = 2
    by_category: ClassVar[bool] = True

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        n, filled = _number(n_clients), np.flatnonzero(available)
        if not 1 <= self.classes <= len(filled):
            raise DataError(f"classes must be from 1 to the {len(filled)} that have rows, not {self.classes}")
        hands = _hands(n, self.classes, len(filled), key.to("simulated classes").generator())
        counts = np.zeros((n, len(available)), dtype=np.int32)
        for j, category in enumerate(filled):
            holders = np.flatnonzero((hands == j).any(axis=1))
            if len(holders):
                counts[holders, category] = _rounded(np.full(len(holders), 1 / len(holders)), int(available[category]))
        return counts


def _hands(n: int, each: int, number: int, rng: np.random.Generator) -> Array:
    """Deal `each` different cards of `number` to n players, from one shuffled deck after another: [n, each]."""
    cards = np.empty(n * each + number, dtype=np.int64)
    at = 0
    while at < n * each:
        deck = rng.permutation(number)
        held = cards[at - at % each : at]  # cards already in the incomplete hand
        repeated = np.isin(deck, held)
        cards[at : at + number] = np.concatenate((deck[~repeated], deck[repeated]))
        at += number
    return cards[: n * each].reshape(n, each)


def _rounded(shares: Array, total: int) -> Array:
    """Round shares to integers that sum to `total`: differences of rounded cumulative sums."""
    ends = np.floor(np.cumsum(shares) / max(float(shares.sum()), 1e-300) * total + 0.5).astype(np.int64)
    if len(ends):
        ends[-1] = total
    return np.diff(ends, prepend=0).astype(np.int32)


def _lifted(counts: Array, least: int, rng: np.random.Generator) -> Array:
    """Move rows until every client has `least`: the largest clients give, down to a common level."""
    sizes = counts.sum(axis=1, dtype=np.int64)
    need = np.maximum(least - sizes, 0)
    if least * len(sizes) > sizes.sum():
        raise DataError(
            f"least={least} asks for {least * len(sizes):,} rows for {len(sizes):,} clients, there are {sizes.sum():,}"
        )
    if not need.any():
        return counts.astype(np.int32)
    low, high = least, int(sizes.max())
    while low < high:  # find the lowest level where the surplus suffices
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= need.sum() else (low, level - 1)
    give = np.maximum(sizes - low, 0)
    givers = np.flatnonzero(give)
    give[givers[: give.sum() - need.sum()]] -= 1
    out, moved = counts.astype(np.int64), []
    for giver in np.flatnonzero(give):
        taken = rng.multivariate_hypergeometric(out[giver], give[giver])
        out[giver] -= taken
        moved.append(np.repeat(np.arange(counts.shape[1]), taken))
    np.add.at(out, (np.repeat(np.arange(len(sizes)), need), rng.permutation(np.concatenate(moved))), 1)
    return out.astype(np.int32)


def _number(n_clients: int | None) -> int:
    if n_clients is None or isinstance(n_clients, bool) or not isinstance(n_clients, int | np.integer) or n_clients < 1:
        raise DataError(f"n_clients must be a whole number of at least 1 for this recipe, not {n_clients!r}")
    return int(n_clients)


def _whole(name: str, numbers: npt.ArrayLike) -> Array:
    values = np.asarray(numbers)
    if values.dtype.kind == "f" and values.size and np.isfinite(values).all() and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    if values.dtype.kind not in "iu" or (values.size and (values.min() < 0 or values.max() >= 2**31)):
        raise DataError(f"{name} must be whole numbers from 0 on, got {np.array2string(values, threshold=4)}")
    return values.astype(np.int64)
