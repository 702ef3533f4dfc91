"""Assign rows to simulated clients: check feasibility, then choose indices, and copy data on request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import group_rows, offsets_of, rows_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import codes_by_name, positions
from fedscape.errors import DataError
from fedscape.simulate.columns import Column, codes_of
from fedscape.simulate.deal import deal, shuffle_groups, words
from fedscape.simulate.recipes import Recipe
from fedscape.types import Array

Policy = Literal["refuse", "replace", "scale", "independent"]
POLICIES = ("refuse", "replace", "scale", "independent")


@dataclass(frozen=True, eq=False)
class Feasibility:
    """Whether each category has enough rows, known before any row is dealt.

    `available` and `needed` [C] count rows; `names` are the names of the categories.

    >>> print(Feasibility(np.array([5, 9]), np.array([8, 9]), ("a", "b"), "refuse"))
    1 of 2 categories are short: 'a' has 5 rows, the plan needs 8 (refused)
    """

    available: Array
    needed: Array
    names: tuple[str, ...] | None
    policy: Policy

    @property
    def short(self) -> Array:
        """The categories that have too few rows for disjoint clients, the worst first."""
        ratio = self.needed / np.maximum(self.available, 0.5)
        scarce = np.flatnonzero(self.needed > self.available)
        return np.asarray(scarce[np.argsort(-ratio[scarce], kind="stable")])

    @property
    def factor(self) -> float:
        """The factor on all sizes under policy "scale", set by the worst category."""
        wanted = self.needed > 0
        return float(min(1.0, (self.available[wanted] / self.needed[wanted]).min(initial=1.0)))

    @property
    def possible(self) -> bool:
        """Whether the plan is feasible under this policy."""
        if self.policy == "refuse":
            return not len(self.short)
        return not ((self.available == 0) & (self.needed > 0)).any()

    def __str__(self) -> str:
        if not len(self.short):
            return f"enough rows: {int(self.needed.sum()):,} needed of {int(self.available.sum()):,}"
        how = {
            "refuse": "refused",
            "replace": "drawn with replacement between clients",
            "scale": f"all clients scaled by {self.factor:.3g}",
            "independent": "every client drawn on its own",
        }[self.policy]
        worst = [
            f"{self._name(j)} has {int(self.available[j]):,} rows, the plan needs {int(self.needed[j]):,}"
            for j in self.short[:3].tolist()
        ]
        more = ", ..." if len(self.short) > 3 else ""
        return f"{len(self.short)} of {len(self.needed)} categories are short: {'; '.join(worst)}{more} ({how})"

    def _name(self, category: int) -> str:
        return f"category {category}" if self.names is None else repr(self.names[category])

    def check(self) -> None:
        """Refuse a plan that is not feasible."""
        if self.possible:
            return
        if self.policy != "refuse":
            lost = int(np.flatnonzero((self.available == 0) & (self.needed > 0))[0])
            raise DataError(
                f"{self._name(lost)} has no rows, the plan needs {int(self.needed[lost]):,}: nothing can replace "
                "them; give a proxy that has some, or a recipe without this category"
            )
        raise DataError(
            f"{self}: ask for fewer clients, or pass policy='replace' (clients share rows of these categories), "
            "'scale' (all clients shrink alike) or 'independent' (every client draws from all rows)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The rows of the proxy for each simulated client: indices, no copy of the data.

    Client i has the rows `rows[offsets[i]:offsets[i + 1]]` of `proxy`. `histograms` [clients, C] counts its modelled
    categories (a single column of sizes if the recipe ignores categories).

    >>> fed = Federation({"y": [0, 0, 1, 1]}, [0, 4])
    >>> from fedscape.simulate import ConditionallyIID
    >>> made = plan(ConditionallyIID([[1, 1], [1, 1]]), fed, column="y")
    >>> made.federation().counts("y").tolist(), made
    ([[1, 1], [1, 1]], Plan(2 clients, 4 rows of 4))
    """

    proxy: Federation
    rows: Array
    offsets: Array
    histograms: Array
    feasibility: Feasibility

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Array:
        """The number of rows of each client."""
        return np.diff(self.offsets)

    def indices(self, client: int) -> Array:
        """The rows of one client."""
        return np.asarray(self.rows[self.offsets[client] : self.offsets[client + 1]])

    def federation(self, clients: npt.ArrayLike | slice | None = None) -> Federation:
        """The simulated clients with their data; select some by position, mask or slice. Ids are positions."""
        everyone = slice(None) if clients is None else clients
        where = everyone if isinstance(everyone, slice) else positions(everyone, len(self))
        chosen, offsets = rows_of(self.offsets, where)
        rows = self.rows[chosen]
        columns = {name: values[rows] for name, values in self.proxy.columns.items()}
        return Federation(columns, offsets, np.arange(len(self))[where], names=self.proxy.names)

    def __repr__(self) -> str:
        return f"Plan({len(self):,} clients, {len(self.rows):,} rows of {self.proxy.n_rows:,})"


def clients(
    recipe: Recipe,
    proxy: Any,
    *,
    n_clients: int | None = None,
    column: Column = "y",
    seed: int = 0,
    policy: Policy = "refuse",
) -> Federation:
    """Simulate clients from pooled data: `plan(...)` and its `federation()`.

    Parameters
    ----------
    recipe
        FullyIID, ConditionallyIID, FromMixture, Dirichlet, Shards, Quantity, Pathological or Shifted.
    proxy
        The server's rows: a Federation (its clients are ignored), a mapping of arrays, a Hugging Face Dataset, an
        Arrow table or DataFrame, or the path of a Parquet file.
    n_clients
        Number of clients; recipes built from true clients take theirs by default.
    column
        The modelled column: a name, a code (`Binned`, `Cells`, `SignCodes`, `Labels`), or several crossed. Categories
        are matched by name if recipe and proxy both have names, else by number.
    seed
        The same seed gives the same clients.
    policy
        What to do if a category has too few rows for disjoint clients: "refuse"; "replace", clients share rows of that
        category only; "scale" all clients down by one factor. With "independent" every client draws from all rows in
        any case: its rows depend only on the seed, its position and its histogram. No client has a row twice while
        unused rows remain.

    >>> fed = Federation({"y": [0] * 50 + [1] * 50}, [0, 100])
    >>> from fedscape.simulate import Dirichlet
    >>> clients(Dirichlet(0.5), fed, n_clients=10, column="y", seed=0).n_rows
    100
    """
    return plan(recipe, proxy, n_clients=n_clients, column=column, seed=seed, policy=policy).federation()


def feasibility(
    recipe: Recipe,
    proxy: Any,
    *,
    n_clients: int | None = None,
    column: Column = "y",
    seed: int = 0,
    policy: Policy = "refuse",
) -> Feasibility:
    """Check whether there are enough rows, without dealing any. The parameters are those of `clients`.

    >>> from fedscape.simulate import FullyIID
    >>> print(feasibility(FullyIID(60), {"y": [0] * 100}, n_clients=2))
    1 of 1 categories are short: 'any' has 100 rows, the plan needs 120 (refused)
    """
    return _Draft.of(recipe, proxy, n_clients, column, seed, policy).feasibility


def plan(
    recipe: Recipe,
    proxy: Any,
    *,
    n_clients: int | None = None,
    column: Column = "y",
    seed: int = 0,
    policy: Policy = "refuse",
) -> Plan:
    """Assign rows to the simulated clients. The parameters are those of `clients`.

    >>> from fedscape.simulate import FullyIID
    >>> plan(FullyIID(5), {"y": [0] * 100}, n_clients=20).sizes.tolist() == [5] * 20
    True
    """
    draft = _Draft.of(recipe, proxy, n_clients, column, seed, policy)
    draft.feasibility.check()
    return draft.dealt()


@dataclass(frozen=True, eq=False)
class Stock:
    """The server's rows by category.

    Parameters
    ----------
    proxy, codes
        The rows, and the category of each.
    available, names
        The number of rows of each category, and the names of the categories.
    key
        Of everything that is drawn.
    """

    proxy: Federation
    codes: Array
    available: Array
    names: tuple[str, ...] | None
    key: Key

    @classmethod
    def of(cls, recipe: Recipe, proxy: Any, column: Column, seed: int) -> Stock:
        """Count the rows of each category, which recipe and proxy match by name where both have names."""
        key, data = Key(seed, purpose="simulated clients"), as_proxy(proxy)
        if hasattr(recipe, "prepare"):
            data, column = recipe.prepare(data, column, key)
        if recipe.by_category:
            values, number, names = codes_of(data, column)
            wanted = getattr(recipe, "category_names", None)
            if names is not None and wanted is not None:
                values, number, names = _by_name(values, names, wanted), len(wanted), tuple(wanted)
        else:
            values, number, names = np.zeros(data.n_rows, dtype=np.int64), 1, ("any",)
        return cls(data, values, np.bincount(values, minlength=number), None if names is None else tuple(names), key)

    def of_width(self, width: int) -> Stock:
        """The same with as many categories as the recipe knows; refused if there are rows of others."""
        number = len(self.available)
        if width < number and self.available[width:].any():
            raise DataError(
                f"the proxy has rows of {number} categories, the recipe knows {width}: drop the others with "
                "where(), or fit to data that have them"
            )
        available = np.zeros(width, dtype=np.int64)
        available[: min(width, number)] = self.available[:width]
        named = self.names if self.names is not None and len(self.names) == width else None
        return replace(self, available=available, names=named)

    def shuffled(self) -> tuple[Array, Array]:
        """All rows, category by category and shuffled within each, and where each category begins."""
        starts = offsets_of(self.available)
        order = group_rows(np.ascontiguousarray(self.codes, dtype=np.int64), starts[:-1].copy())
        shuffle_groups(order, starts, words(self.key.to("order of rows"), len(self.available)))
        return order, starts

    def deal(self, counts: Array, shared: Array, *, begin: int = 0) -> tuple[Array, Array]:
        """The rows of each client, flat, and their offsets; the first client has the position `begin`."""
        order, starts = self.shuffled()
        offsets = offsets_of(counts.sum(axis=1, dtype=np.int64))
        rows = np.empty(offsets[-1], dtype=np.int64)
        stamp = np.full(len(order), -1, dtype=np.int64)
        state = words(self.key.to("rows of clients"), begin + len(counts), begin=begin)
        deal(np.ascontiguousarray(counts, dtype=np.int32), order, starts, shared, state, stamp, offsets, rows)
        return rows, offsets


@dataclass(frozen=True, eq=False)
class _Draft:
    """Drawn histograms and counted rows, before any row is dealt."""

    stock: Stock
    histograms: Array
    feasibility: Feasibility

    @classmethod
    def of(cls, recipe: Recipe, proxy: Any, n_clients: int | None, column: Column, seed: int, policy: Policy) -> _Draft:
        if policy not in POLICIES:
            raise DataError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
        if policy == "scale" and getattr(getattr(recipe, "recipe", recipe), "least", 0) > 0:
            raise DataError("policy='scale' shrinks clients below what least= promises: leave one of the two out")
        stock = Stock.of(recipe, proxy, column, seed)
        counts = recipe.draw(stock.available, n_clients, stock.key)
        stock = stock.of_width(counts.shape[1])
        needed = counts.sum(axis=0, dtype=np.int64)
        return cls(stock, counts, Feasibility(stock.available, needed, stock.names, policy))

    def dealt(self) -> Plan:
        feasible, counts = self.feasibility, self.histograms
        if feasible.policy == "scale" and feasible.factor < 1:
            counts = scaled(counts, feasible, self.stock.key.to("scaled").generator())
        shared = np.full(len(feasible.available), feasible.policy == "independent")
        if feasible.policy == "replace":
            shared = feasible.needed > feasible.available
        rows, offsets = self.stock.deal(counts, shared)
        return Plan(self.stock.proxy, rows, offsets, counts, feasible)


def _by_name(values: Array, names: Sequence[str], wanted: Sequence[str]) -> Array:
    """Recode the proxy's rows to the category numbers of the recipe."""
    codes = codes_by_name(values, names, wanted)
    if (codes < 0).any():
        code = int(values[codes < 0][0])
        what = names[code] if 0 <= code < len(names) else code
        raise DataError(
            f"the proxy has rows of {what!r}, a category the recipe does not know: drop them with where(), or fit to "
            "data that have it"
        )
    return codes


def scaled(counts: Array, feasibility: Feasibility, rng: np.random.Generator) -> Array:
    """Multiply all counts by the factor, rounded along the clients to keep each category within its rows."""
    out = np.empty_like(counts)
    for j in range(counts.shape[1]):
        running = np.cumsum(counts[:, j], dtype=np.float64) * feasibility.factor
        ends = np.floor(running + rng.random())
        out[:, j] = np.diff(np.minimum(ends, feasibility.available[j]), prepend=0)
    return out


def as_proxy(proxy: Any) -> Federation:
    """Convert rows of any kind to a Federation; its clients do not matter.

    >>> as_proxy({"y": [1, 2, 3]})
    Federation(1 client, 3 rows, y int64)
    """
    if isinstance(proxy, Federation):
        return proxy
    if isinstance(proxy, str | os.PathLike):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = os.fspath(proxy)
        if not os.path.exists(path):
            raise DataError(f"there is no Parquet file {path}")
        try:
            return Federation.from_clients([pq.read_table(path)])
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from None
    if hasattr(proxy, "add_column") and hasattr(proxy, "features"):
        from fedscape.formats import from_huggingface

        return from_huggingface(proxy.add_column("~client", np.zeros(len(proxy), dtype=np.int64)), client="~client")
    if isinstance(proxy, Mapping) or hasattr(proxy, "columns") or hasattr(proxy, "column_names"):
        return Federation.from_clients([proxy])
    raise DataError(f"proxy must be a Federation, columns, a table or a Parquet file, not {type(proxy).__name__}")
