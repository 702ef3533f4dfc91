"""Simulated clients beyond memory: each is drawn on its own, so cores or machines write them shard by shard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.schedule import cores
from fedscape.errors import DataError
from fedscape.formats.files import Name, new_folder
from fedscape.formats.folder import INDEX, Growing, seal_of, write_index
from fedscape.formats.gather import Layout, Written
from fedscape.formats.sharded import write_sharded
from fedscape.formats.shuffle import Tasks, Threads
from fedscape.formats.spill import Kind
from fedscape.simulate.columns import Column
from fedscape.simulate.partition import Feasibility, Stock
from fedscape.simulate.recipes import BLOCK, FromMixture, Recipe
from fedscape.types import Array

SHARD = 16 * BLOCK  # clients; the folder is the same for any number of cores and machines
_ROWS = 2**18  # rows written at a time


@dataclass(frozen=True)
class _Part:
    """The clients `begin` to `end`, the folder of their shard, and the number of rows in the shards before it."""

    begin: int
    end: int
    folder: Path
    before: int | None


def write_clients(
    recipe: Recipe,
    proxy: Any,
    path: Name,
    *,
    n_clients: int,
    column: Column = "y",
    seed: int = 0,
    overwrite: bool = False,
    tasks: Tasks | None = None,
) -> Feasibility:
    """Simulate clients under policy "independent" into fedscape's own folder; no step holds the rows of all.

    The clients are those of `clients(..., policy="independent")`: a function of the seed, the position and the
    population.

    Parameters
    ----------
    recipe
        `FromMixture`: its clients do not depend on one another.
    proxy, column, seed
        As for `clients`; every task holds the proxy.
    path, overwrite
        The folder to create, and whether to replace one of this kind.
    n_clients
        Number of clients.
    tasks
        Where the work is done; by default on one thread per core.
    """
    if not isinstance(recipe, FromMixture):
        raise DataError(f"clients of {type(recipe).__name__} depend on one another: use FromMixture, or clients()")
    if n_clients < 1:
        raise DataError(f"n_clients must be at least 1, not {n_clients}")
    tasks = Threads(cores()) if tasks is None else tasks
    stock = Stock.of(recipe, proxy, column, seed)
    stock = stock.of_width(recipe.draw_range(0, 1, stock.key).shape[1])
    work = _Work(recipe, stock)
    ranges = [(begin, min(begin + SHARD, n_clients)) for begin in range(0, n_clients, SHARD)]
    needed = tasks.map(work.needed, ranges)
    feasible = Feasibility(stock.available, np.sum(needed, axis=0), stock.names, "independent")
    feasible.check()
    before = np.cumsum([0, *(int(each.sum()) for each in needed)]).tolist()
    with new_folder(path, overwrite=overwrite, mark=INDEX) as draft:
        alone = len(ranges) == 1
        parts = [
            _Part(begin, end, draft if alone else draft / f"part-{i:05d}", None if alone else before[i])
            for i, (begin, end) in enumerate(ranges)
        ]
        shards = tasks.map(work.write, parts)
        if not alone:
            write_sharded(draft, shards, work.layout())
    return feasible


@dataclass(frozen=True, eq=False)
class _Work:
    """What every task needs: the recipe and the server's rows."""

    recipe: FromMixture
    stock: Stock

    def layout(self) -> Layout:
        proxy = self.stock.proxy
        kinds = {name: Kind(values.dtype.str, values.shape[1:]) for name, values in proxy.columns.items()}
        return Layout("the simulated clients", False, kinds, proxy.names)

    def needed(self, some: tuple[int, int]) -> Array:
        """The number of rows of each category that these clients need."""
        return np.asarray(self.recipe.draw_range(*some, self.stock.key).sum(axis=0, dtype=np.int64))

    def write(self, part: _Part) -> Written:
        """Deal the rows of the clients of a shard, and write it."""
        counts = self.recipe.draw_range(part.begin, part.end, self.stock.key)
        rows, offsets = self.stock.deal(counts, np.full(counts.shape[1], True), begin=part.begin)
        part.folder.mkdir(exist_ok=True)
        described = [self._column(name, rows, part, number) for number, name in enumerate(self.stock.proxy.columns)]
        write_index(part.folder, described, np.arange(part.begin, part.end), offsets, self.stock.proxy.names)
        return Written(part.folder.name, part.end - part.begin, len(rows), str(seal_of(part.folder)))

    def _column(self, name: str, rows: Array, part: _Part, number: int) -> dict[str, Any]:
        values = self.stock.proxy.columns[name]
        file = Growing(part.folder / f"column-{number}.npy", len(rows), before=part.before)
        for begin in range(0, len(rows) or 1, _ROWS):  # without rows, too: the file must say its type
            file.append(values[rows[begin : begin + _ROWS]], name)
        return {"name": name, **file.close()}
