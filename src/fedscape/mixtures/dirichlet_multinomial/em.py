"""The rounds of EM for mixtures of Dirichlet-multinomials, many models in parallel.

The components of all models are concatenated, G in all: `models` holds the number of each. A state holds `weights`
[G], `mean` [G, C], `dispersion` [G] (1 / alpha_0) and `sizes` [G, bins], the size laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.mixtures.dirichlet_multinomial.kernels import (
    Counts,
    add_looked_up,
    add_shares,
    counts_of,
    stand_for_many,
    valid_counts,
)
from fedscape.mixtures.dirichlet_multinomial.likelihood import (
    COUNTS,
    TOTALS,
    Cells,
    Points,
    log_coefficient,
    rows_of_entries,
)
from fedscape.mixtures.dirichlet_multinomial.posterior import shares_and_likelihood, tables_of, with_tables
from fedscape.mixtures.dirichlet_multinomial.solvers import (
    Slopes,
    Tail,
    fixed_point_direction,
    maximise,
    moved,
    newton_direction,
)
from fedscape.mixtures.dirichlet_multinomial.start import example
from fedscape.mixtures.size_laws import FLOOR, Kind, background, bin_of, most_likely, size_edges
from fedscape.types import Array, Arrays, Kept

Solver = Literal["exact", "newton", "fixed_point"]

ALONE = 5  # rounds on cohorts before sums are averaged over rounds


class TailCountEM(Computation):
    """One EM round of many models: Algorithm 2, with the M-step of `solver`.

    Parameters
    ----------
    models
        The number of components of each model.
    reach
        The largest count of each category, then the largest total: [C + 1]. Larger ones are truncated to it.
    sizes
        The bins of the size laws; None ignores sizes.
    solver
        "exact": clients send tail counts, the server maximises Q. "newton": they send first and second derivatives,
        the server takes one step. "fixed_point": first derivatives and eq. (49).
    average
        For cohorts that change each round: from the sixth round on sums are averaged over rounds, with the step
        (t + 2)^-average; "newton" takes smaller steps instead.
    """

    name = "dm-em"

    block_clients = 128  # a client sends G numbers for each cell of counts
    total_clients = 2**14

    def __init__(
        self,
        models: tuple[int, ...],
        reach: Array,
        *,
        sizes: Kind | None = "bins",
        solver: Solver = "exact",
        average: float | None = None,
        column: str = "y",
        count: str | None = None,
    ) -> None:
        self.models = models
        self.reach = reach
        self.sizes = sizes
        self.solver = solver
        self.average = average
        self.column = column
        self.count = count
        self._ends = np.cumsum((0, *models))
        self._edges = None if sizes is None else size_edges(sizes, int(reach[-1]))
        self._cells = Cells.covering(reach[:-1], COUNTS), Cells.covering(reach[-1:], TOTALS)

    @property
    def size_edges(self) -> Array | None:
        """The edges of the size bins."""
        return self._edges

    def start(self, seed: int) -> Arrays:
        """Random means; `fit` starts from Algorithm 1 instead."""
        draws = Key(seed, purpose="mixture").generator()
        mean = draws.dirichlet(np.full(len(self.reach) - 1, 5.0), int(self._ends[-1]))
        return self.begin(mean, np.full(len(mean), 0.2))

    def begin(self, mean: Array, dispersion: Array, weights: Array | None = None, sizes: Array | None = None) -> Arrays:
        """The initial state for these components; by default with equal weights and one common size law."""
        equal = np.repeat(1 / np.array(self.models), self.models)
        bins = np.zeros(0) if self._edges is None else background(self._edges)
        return {
            "weights": equal if weights is None else weights,
            "mean": mean,
            "dispersion": dispersion,
            "sizes": np.tile(bins, (len(mean), 1)) if sizes is None else sizes,
            "gain": np.full(len(self.models), 1e9),
            "rounds": np.zeros((), dtype=np.int64),
        }

    def prepare(self, state: Arrays) -> Arrays:
        """Add the lookup tables to the state."""
        kinds = {"exact": (0,), "fixed_point": (0, 1), "newton": (0, 1, 2)}[self.solver]
        return with_tables(state, self.reach, self._edges, kinds)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return self._sums(state, clients, np.arange(len(clients)), len(clients)), {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        together = self._sums(state, clients, np.zeros(len(clients), dtype=np.int64), 1)
        return {name: values[0] for name, values in together.items()}

    def _sums(self, state: Arrays, clients: Federation, owner: Array, n: int) -> Arrays:
        counts = counts_of(clients, self.column, self.count, len(self.reach) - 1)
        shares = shares_and_likelihood(state, counts, self._ends, self.reach, self._edges)[0]
        nothing = np.zeros(len(owner), dtype=np.int64)
        g = int(self._ends[-1])
        sums: Arrays = {"shares": _added(shares, owner, nothing, (n, 1, g))[:, 0]}
        if self._edges is not None:
            bins = bin_of(counts.total, self._edges)
            sums["sizes"] = _added(shares, owner, bins, (n, len(self._edges) - 1, g))
        if self.solver == "exact":
            n_total = Counts(
                np.arange(len(owner) + 1), nothing.astype(np.int32), counts.total.astype(np.int32), counts.total
            )
            sums["tails"] = self._cells[0].tails(counts, shares, owner, n, g)
            sums["totals"] = self._cells[1].tails(n_total, shares, owner, n, g)
            return sums
        sums["first"], sums["first_total"] = looked_up(state, counts, shares, owner, n, self.reach, 1)
        if self.solver == "newton":
            sums["second"], sums["second_total"] = looked_up(state, counts, shares, owner, n, self.reach, 2)
        return sums

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        """The log-likelihood under each model, including the multinomial coefficient."""
        counts = counts_of(clients, self.column, self.count, len(self.reach) - 1)
        likelihood = shares_and_likelihood(state, counts, self._ends, self.reach, self._edges)[1]
        return {"log_likelihood": likelihood + log_coefficient(counts)[:, None]}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        if total["clients"] < 1:
            return dict(state)
        sums = {name: values / total["clients"] for name, values in total.items() if name != "clients"}
        running, rate = {}, 1.0
        if self.average is not None:
            t = int(state["rounds"]) - ALONE  # responsibilities of the first rounds are far off: discard them
            rate = (t + 2.0) ** -self.average if t >= 0 else 1.0
            # earlier derivatives were taken at other parameters: take smaller steps instead
            kept = [name for name in sums if self.solver != "newton" or not name.startswith(("first", "second"))]
            past = {name: state.get(f"server.running.{name}", 0.0) for name in kept}
            sums |= {name: rate * sums[name] + (1 - rate) * past[name] for name in kept}
            running = {f"server.running.{name}": sums[name] for name in kept}
        weights = self._weights(sums["shares"])
        sizes, rise = self._size_laws(state, sums)
        mean, dispersion, gain = self._components(state, sums, rate)
        with np.errstate(divide="ignore"):
            gain = gain + rise + np.maximum(sums["shares"], 0.0) * np.log(weights / state["weights"])
        return {
            "weights": weights,
            "mean": mean,
            "dispersion": dispersion,
            "sizes": sizes,
            "gain": np.add.reduceat(gain, self._ends[:-1]),
            "rounds": state["rounds"] + 1,
            **running,
        }

    def _weights(self, shares: Array) -> Array:
        """Eq. (17); a component without clients keeps a weight of 1e-12."""
        positive = np.maximum(shares, 1e-12)
        return np.asarray(positive / np.repeat(np.add.reduceat(positive, self._ends[:-1]), self.models))

    def _size_laws(self, state: Arrays, sums: Arrays) -> tuple[Array, Array]:
        """Eq. (18) above the floor, and the gain in Q."""
        if self._edges is None:
            return state["sizes"], np.zeros(len(state["weights"]))
        masses = sums["sizes"].T  # [G, bins]
        laws = most_likely(masses, FLOOR * background(self._edges))
        return laws, (np.maximum(masses, 0.0) * np.log(laws / state["sizes"])).sum(axis=1)

    def _components(self, state: Arrays, sums: Arrays, rate: float) -> tuple[Array, Array, Array]:
        """The M-step of means and dispersions, and the gain in Q (for a single step: the expected gain)."""
        mean, dispersion = state["mean"].T, state["dispersion"]
        if self.solver == "exact":
            points = Points.of(self._cells[0]), Points.of(self._cells[1])
            tail = Tail(points[0], points[0].weights(sums["tails"]), points[1], points[1].weights(sums["totals"]))
            new = maximise(tail, mean, dispersion)
            return new[0].T, new[1], tail.value(*new) - tail.value(mean, dispersion)
        first = np.maximum(sums["first"], 0.0)
        second = np.maximum(sums.get("second", first), 0.0)
        slopes = Slopes(first, second, sums["first_total"], sums.get("second_total", sums["first_total"]))
        if self.solver == "newton":  # Q is known only here: limit the step instead of a line search
            direction = rate * np.clip(newton_direction(mean, slopes), -1.5, 1.5)
        else:
            direction = fixed_point_direction(mean, slopes)
        new = moved(mean, dispersion, direction)
        return new[0].T, new[1], ((first - mean * slopes.first_total) * direction).sum(axis=0)

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        # A row with a count moves as many. A single one moves one tail count of its category and one of the total by at
        # most the responsibility, and the client from one size bin to another. But with several components it also
        # changes the client's responsibilities, by anything up to 1, and with them all its tail counts. There are as
        # many of these as rows: no bound holds for clients of any size. Nor for derivatives, which grow with the row's
        # rarity.
        many = stand_for_many(clients, self.column, self.count)
        if self.solver != "exact" or max(self.models) > 1 or many or not sound(state):
            return None
        bins = 0 if self._edges is None else 2
        return float(np.sqrt(len(self.models) * (2 + bins)) if norm == 2 else len(self.models) * (2 + bins))

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_counts(clients, self.column, self.count, len(self.reach) - 1)

    @classmethod
    def examples(cls) -> Sequence[tuple[TailCountEM, Federation]]:
        reach = np.array([128, 64, 32, 32, 320])
        return [
            (cls((2, 3), reach), example()),
            (cls((1,), reach, sizes="histogram"), example()),
            (cls((2,), reach, sizes=None, solver="newton"), example()),
            (cls((2,), reach, solver="fixed_point"), example()),
            (cls((2,), reach, average=0.7), example()),
        ]


def looked_up(
    state: Arrays, counts: Counts, shares: Array, owner: Array, n: int, reach: Array, kind: int
) -> tuple[Array, Array]:
    """Responsibilities times alpha^kind times differences of digamma (1) or trigamma (2): [n, C, G] and [n, G]."""
    tables = tables_of(state, reach, kind)
    g = len(state["weights"])
    out = np.zeros((n, len(reach) - 1, g))
    first, cap = rows_of_entries(counts, tables.first, tables.cap)
    add_looked_up(*counts[:3], shares, owner, first, cap, counts.stride, tables.rows, out)
    over, excess = tables.beyond(counts)
    if len(over):
        client = counts.client[over]
        np.add.at(out, (owner[client], counts.categories[over]), shares[client, :g] * excess)
    weighted = shares * tables.of_total(counts.total)
    total = _added(weighted, owner, np.zeros(len(owner), dtype=np.int64), (n, 1, g))
    return out * state["mean"].T ** kind, total[:, 0]


def _added(values: Array, owner: Array, row: Array, shape: tuple[int, int, int]) -> Array:
    out = np.zeros(shape)
    add_shares(values, owner, row, out)
    return out


def sound(state: Arrays) -> bool:
    """Whether all clients have a finite likelihood under this state; only then is the effect of a row known.

    >>> sound({name: np.ones(1) for name in ("weights", "mean", "dispersion", "sizes")})
    True
    """
    return all(bool(np.all((state[n] > 0) & np.isfinite(state[n]))) for n in ("weights", "mean", "dispersion", "sizes"))


def check_solver(solver: str) -> None:
    """Refuse an unknown solver."""
    if solver not in ("exact", "newton", "fixed_point"):
        raise DataError(f"solver must be 'exact', 'newton' or 'fixed_point', not {solver!r}")
