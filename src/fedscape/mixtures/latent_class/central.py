"""Hierarchical latent class regression with all data in one place: collapsed Gibbs sampling (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.mixtures.latent_class.classes import for_agents
from fedscape.mixtures.latent_class.kernels import add_by_class, count_tables, sweep_labels
from fedscape.mixtures.latent_class.prior import prior_shares, tables_of
from fedscape.mixtures.latent_class.rounds import ClassAssignment, one_hot
from fedscape.mixtures.latent_class.table import Groups, groups_of, sums_of
from fedscape.types import Array, Arrays


class Chain:
    """A Gibbs chain over the labels of all entities; `sweeps` yields the state after each sweep.

    Parameters
    ----------
    work
        The model: table, alpha, beta, sigma and delta; its gamma does not matter.
    state
        The initial state of `work`, which holds the standardisation of the features.
    federation
        All agents.
    exact
        False: eq. (2). True: psi is drawn too, from Dir(alpha / K + table counts), which samples the model itself;
        eq. (2) is an approximation.
    number
        The number of this chain among several of the same seed.
    """

    def __init__(
        self, work: ClassAssignment, state: Arrays, federation: Federation, *, exact: bool, seed: int, number: int = 0
    ) -> None:
        self.work = ClassAssignment(
            **{**work.get_params(), "gamma": 1.0, "n_agents": None}
        )  # all agents in every sweep
        name = f" {number}" if number else ""
        self.exact, self.key = exact, Key(seed, purpose=f"hlcr sweep{name}")
        events = work.table.rows(federation)
        self.groups: Groups = groups_of(events, work.table.entity)
        self.sums: Array = sums_of(work.table, events, self.groups, state)
        k, n = work.n_components, len(self.groups.codes)
        self.labels: Array = Key(seed, purpose=f"hlcr labels{name}").generator().integers(0, k, n)
        self.psi: Array = np.full(k, 1 / k if exact else -1.0)
        self.state = self._counted(state)

    def _counted(self, state: Arrays) -> Arrays:
        total = np.zeros((1, *state["sums"].shape))
        hot = one_hot(self.labels, self.work.n_components)
        add_by_class(self.sums, np.array([0, len(self.labels)]), hot, total)
        return {**state, "sums": total[0], "held": np.asarray(1.0)}

    def sweep(self, index: int) -> Arrays:
        """Draw every label once, then psi, sigma and delta unless given."""
        work, state = self.work, self.state
        rng = self.key.at(index).generator()
        ready, total = for_agents(state, work.n_features), np.array(state["sums"])
        changed = {name: np.array(ready[name]) for name in ("precision", "mean", "pivot")}
        numbers = (float(state["alpha"]), float(state["beta"]))
        sweep_labels(
            self.sums,
            self.groups.offsets,
            self.labels,
            total,
            changed["precision"],
            changed["mean"],
            changed["pivot"],
            float(state["noise"]),
            ready["floor"],
            self.psi,
            *numbers,
            rng.random(len(self.labels)),
        )
        if self.exact:
            self.psi = self._law(rng)
        fresh = self._counted(state)["sums"]  # summed afresh: updates within a sweep leave rounding errors
        sums = {"sums": fresh / work.in_units(state), "clients": np.asarray(1)}
        if work.learns_prior:
            psi = self.psi if self.exact else prior_shares({**state, "sums": fresh})
            sums["tables"] = tables_of(self.labels, self.groups.offsets, psi, float(state["beta"])).sum(axis=0)
        self.state = work.update(state, sums, Key(0))
        return self.state

    def _law(self, rng: np.random.Generator) -> Array:
        tables = np.zeros(self.work.n_components)
        uniform = rng.random(len(self.labels))
        count_tables(self.labels, self.groups.offsets, self.psi, float(self.state["beta"]), uniform, tables)
        drawn = rng.standard_gamma(tables + float(self.state["alpha"]) / self.work.n_components)
        drawn = np.maximum(drawn, 1e-300)
        return np.asarray(drawn / drawn.sum())

    def sweeps(self, n: int) -> Iterator[Arrays]:
        """The states after n sweeps."""
        return (self.sweep(index) for index in range(n))
