"""The E-step: responsibilities of the components for each client, and log-likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedscape.errors import DataError
from fedscape.mixtures.dirichlet_multinomial.kernels import Counts, counts_of, posterior, posterior_twin
from fedscape.mixtures.dirichlet_multinomial.likelihood import Tables, log_coefficient, rows_of_entries
from fedscape.mixtures.size_laws import bin_of, log_density
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.mixtures.dirichlet_multinomial.model import MixtureOfDirichletMultinomials
    from fedscape.mixtures.dirichlet_multinomial.source import Source

_PARTS = ("first", "cap", "rows", "total")


def with_tables(state: Arrays, reach: Array, edges: Array | None, kinds: Sequence[int] = (0,)) -> Arrays:
    """Add the E-step's lookup tables to the state: tables of these kinds, and values that depend only on the total."""
    tabled = dict(state)
    for kind in kinds:
        tables = Tables.build(state["mean"], state["dispersion"], reach, kind)
        tabled |= {f"table.{kind}.{name}": getattr(tables, name) for name in _PARTS}
    totals = np.arange(len(tabled["table.0.total"]))
    tabled["table.by_total"] = _by_total(state, totals, tables_of(tabled, reach), edges)
    return tabled


def tables_of(state: Arrays, reach: Array, kind: int = 0) -> Tables:
    """The tables of a state, cached or built."""
    if f"table.{kind}.rows" not in state:
        return Tables.build(state["mean"], state["dispersion"], reach, kind)
    parts = {name: state[f"table.{kind}.{name}"] for name in _PARTS}
    return Tables(mean=state["mean"], dispersion=state["dispersion"], kind=kind, **parts)


def shares_and_likelihood(
    state: Arrays, counts: Counts, models: Array, reach: Array, edges: Array | None
) -> tuple[Array, Array]:
    """The E-step: responsibilities, eq. (12), and each model's log-likelihood without the coefficient.

    Responsibilities are [clients, G], padded with zeros to a multiple of four; likelihoods [clients, models].
    """
    if "table.by_total" not in state:
        state = with_tables(state, reach, edges)
    tables, by_total = tables_of(state, reach), state["table.by_total"]
    shares = np.empty((len(counts.total), by_total.shape[1]))
    likelihood = np.empty((len(shares), len(models) - 1))
    first, cap = rows_of_entries(counts, tables.first, tables.cap)
    above = posterior(
        counts.offsets, counts.number, counts.total, first, cap, counts.stride, tables.rows, by_total, models,
        shares, likelihood,
    )  # fmt: skip
    if above:
        g = int(models[-1])
        who = (counts.total >= len(tables.total)).nonzero()[0]
        who = np.union1d(who, counts.client[counts.number > tables.cap[counts.categories]])
        large = joint(state, counts.only(who), tables, edges)[:, :g]
        shares[who, :g], likelihood[who] = posterior_twin(large, models)
    return shares, likelihood


def joint(state: Arrays, counts: Counts, tables: Tables, edges: Array | None) -> Array:
    """log tau_g + log p(c, n | g) without the multinomial coefficient, in plain NumPy and for counts of any size."""
    logarithm = _by_total(state, counts.total, tables, edges)
    j = counts.categories
    np.add.at(logarithm, counts.client, tables.rows[tables.first[j] + np.minimum(counts.number, tables.cap[j])])
    over, excess = tables.beyond(counts)
    np.add.at(logarithm[:, : excess.shape[1]], counts.client[over], excess)
    return logarithm


def _by_total(state: Arrays, totals: Array, tables: Tables, edges: Array | None) -> Array:
    """The part of the log joint that depends only on the client's total: [totals, G and padding]."""
    out = -tables.of_total(totals)
    g = len(state["weights"])
    out[:, :g] += np.log(state["weights"])
    if edges is not None:
        out[:, :g] += log_density(state["sizes"], edges)[bin_of(totals, edges)]
    return out


def posterior_of(mixture: MixtureOfDirichletMultinomials, source: Source, sizes: bool) -> list[tuple[Array, Array]]:
    """Responsibilities [clients, K] and log-likelihoods [clients] of all clients, a few thousand at a time."""
    if source.n_categories != mixture.concentrations_.shape[1]:
        raise DataError(
            f"the data have {source.n_categories} categories, the mixture was fitted to "
            f"{mixture.concentrations_.shape[1]}: pass counts of these, or n_categories="
        )
    edges = mixture.size_laws_.edges if sizes and mixture.size_laws_ is not None else None
    models, out = np.array([0, len(mixture.weights_)]), []
    state = with_tables(state_of(mixture), mixture.reach_, edges)
    for part in source.clients.batches(4096):
        counts = counts_of(part, source.column, source.times, source.n_categories)
        shares, likelihood = shares_and_likelihood(state, counts, models, mixture.reach_, edges)
        out.append((shares[:, : len(mixture.weights_)], likelihood[:, 0] + log_coefficient(counts)))
    return out or [(np.empty((0, len(mixture.weights_))), np.empty(0))]


def state_of(mixture: MixtureOfDirichletMultinomials) -> Arrays:
    """The parameters of a fitted mixture as a state to broadcast."""
    scale = mixture.concentrations_.sum(axis=1)
    bins = np.zeros((len(scale), 0)) if mixture.size_laws_ is None else mixture.size_laws_.probabilities
    state = {
        "weights": mixture.weights_,
        "mean": mixture.concentrations_ / scale[:, None],
        "dispersion": 1 / scale,
        "sizes": bins,
    }
    for values in state.values():
        values.flags.writeable = False
    return state
