"""Latent class regression without agents' own laws, by EM: the classical mixture of regressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.kernels import add_by_class
from fedscape.mixtures.latent_class.rounds import ClassAssignment, Keyed, example, one_hot
from fedscape.mixtures.latent_class.table import Groups, Table, groups_of, sums_of
from fedscape.types import Array, Arrays, Kept


class Share(ClassAssignment):
    """One round of EM for sum_k pi_k N(y; X w_k, sigma^2): agents weight their entities and send weighted sums.

    The E-step takes the coefficients at their ridge estimate. Sums of squared residuals are linear in an entity's sums,
    and the E-step is one matrix product. In the first round entities get random classes. Parameters and state are those
    of `ClassAssignment`; nothing is kept.
    """

    name = "lcr-em"

    certain = True

    def prepare(self, state: Arrays) -> Arrays:
        sums, noise = opened(state["sums"], self.n_features), float(state["noise"])
        mean = classes_of(sums, noise, state["spread"]).mean
        outer = np.einsum("kf,kg->kfg", mean, mean)
        low = np.tril_indices(self.n_features)
        squared = outer[:, low[0], low[1]] * np.where(low[0] == low[1], 1.0, 2.0)
        log_two_pi = np.full((len(mean), 1), noise * np.log(2 * np.pi * noise))
        residual = np.concatenate([squared, -2 * mean, np.ones_like(log_two_pi), log_two_pi], axis=1)
        weights = np.maximum(sums.entities, 1e-12) / np.maximum(sums.entities.sum(), 1e-12)
        return {**state, "linear": -residual.T / (2 * noise), "log_weights": np.log(weights / weights.sum())}

    def _joint(self, state: Arrays, clients: Federation) -> tuple[Groups, Array, Array]:
        events = self.table.rows(clients)
        groups = groups_of(events, self.table.entity)
        sums = sums_of(self.table, events, groups, state)
        return groups, sums, state["log_weights"] + sums @ state["linear"]

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        groups, sums, joint = self._joint(state, clients)
        if state["rounds"] == 0:
            uniform = key.uniform_rows(Keyed(clients.keys, groups.offsets))
            shares = one_hot((uniform * self.n_components).astype(np.int64), self.n_components)
        else:
            shares = np.exp(joint - joint.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
        out = np.zeros((len(clients), *state["sums"].shape))
        add_by_class(sums, groups.offsets, shares, out)
        return {"sums": out / self.in_units(state)}, {}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        """The log-likelihood of each agent's events, without the coefficients' prior."""
        groups, _, joint = self._joint(state, clients)
        high = joint.max(axis=1, initial=-np.inf)
        each = np.log(np.exp(joint - high[:, None]).sum(axis=1)) + high
        owner = np.repeat(np.arange(len(clients)), np.diff(groups.offsets))
        sums = np.bincount(owner, each, minlength=len(clients))  # without rows bincount returns integers
        return {"mixture_log_likelihood": sums.astype(np.float64)}

    @classmethod
    def examples(cls) -> Sequence[tuple[Share, Federation]]:
        fed = example()
        rows = Table(entity=None, intercept=False)
        return [(cls(Table(), 3, 3, gamma=1.0), fed), (cls(rows, 2, 2, gamma=0.5, sigma=1.0, delta=2.0), fed)]
