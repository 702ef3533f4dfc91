"""Classes that are small networks: a hidden layer of its own in every class, learned in the same rounds.

The output of a class is linear in its hidden units. Given these, agents send the sums of a regression as before. The
hidden layers move along a gradient, which is a sum over events too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedscape.core.blocks import as_ragged
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.mixtures.latent_class.basis import hidden_units
from fedscape.mixtures.latent_class.kernels import add_events, add_log_densities, width
from fedscape.mixtures.latent_class.rounds import ClassAssignment, Labelled, example, old_labels
from fedscape.mixtures.latent_class.table import Table, groups_of
from fedscape.types import Array, Arrays, Kept

FIRST = 5  # rounds before hidden layers move: until then labels are still mostly drawn at random
RATE = 0.05  # of Adam, the largest step of a weight in a round
_DECAY = (0.9, 0.999)


class Networks(ClassAssignment):
    """A round of FedHLCR whose classes are networks: w_k . (x, tanh(V_k (x, 1)), 1), with V_k learned.

    Densities, labels and output weights are those of `ClassAssignment` on the features of each class. Beside the sums,
    agents send the gradient of their events' squared error by V_k, at the mean of w_k. The server takes a step of Adam.
    Own events stay in their class: it was summed with other hidden units.

    Parameters
    ----------
    table, n_components, alpha, beta, sigma, delta, gamma, n_agents, share, warm, early, noise
        As for ClassAssignment; gamma is a number.
    n_features
        F: the features, the hidden units and the intercept.
    hidden
        Number of hidden units of a class.
    seed
        Seed of the first hidden weights, the same for all classes.
    rounds
        Number of rounds: steps fall to 0 along a cosine, so that the last sums fit the last hidden units.
    rate
        The largest step.

    State, beside that of `ClassAssignment`: `inner` [K, f + 1, hidden] (V_k, offsets last), `moments` [2, K, f + 1,
    hidden] (of Adam).
    """

    name = "lcr-networks"

    def __init__(
        self,
        table: Table,
        n_features: int,
        n_components: int,
        *,
        hidden: int = 16,
        seed: int = 0,
        rounds: int = 20,
        rate: float = RATE,
        alpha: float | None = 1.0,
        beta: float | None = 1.0,
        sigma: float | None = None,
        delta: float | None = None,
        gamma: float | None = 0.5,
        n_agents: int | None = None,
        share: float | None = None,
        warm: int = 0,
        early: int = 0,
        noise: float = 0.0,
    ) -> None:
        super().__init__(
            table, n_features, n_components, alpha=alpha, beta=beta, sigma=sigma, delta=delta, gamma=gamma,
            n_agents=n_agents, share=share, warm=warm, early=early, noise=noise,
        )  # fmt: skip
        self.hidden = hidden
        self.seed = seed
        self.rounds = rounds
        self.rate = rate

    def start(self, seed: int) -> Arrays:
        f = self.n_features - self.table.intercept - self.hidden
        return self.begin(np.zeros(f + 1), np.ones(f), deviation=1.0)

    def begin(self, centre: Array, scale: Array, *, deviation: float) -> Arrays:
        inner = np.vstack(hidden_units(self.hidden, len(scale), self.seed))
        inner = np.tile(inner, (self.n_components, 1, 1))
        moments = np.zeros((2, *inner.shape))
        return {**super().begin(centre, scale, deviation=deviation), "inner": inner, "moments": moments}

    def designs(self, state: Arrays, clients: Federation) -> Sequence[Array]:
        z = self.table.standardised(clients, state)
        f = len(state["scale"])
        full = np.column_stack([z[:, :f], np.ones(len(z))])
        return [np.column_stack([z[:, :f], np.tanh(full @ inner), z[:, f:]]) for inner in state["inner"]]

    def label(self, state: Arrays, clients: Federation) -> Labelled:
        events = self.table.rows(clients)
        groups = groups_of(events, self.table.entity)
        y, inside = self.table.y(events), self.n_features - self.table.intercept
        centre = np.append(np.zeros(inside), state["centre"][-1])
        sums = np.zeros((self.n_components, len(groups.codes), width(self.n_features)))
        log_density = np.zeros((len(groups.codes), self.n_components))
        own, weight = np.full(len(groups.codes), -1, dtype=np.int64), 1 / float(state["noise"])
        for k, design in enumerate(self.designs(state, events)):
            x = np.ascontiguousarray(design[:, :inside])
            add_events(x, y, groups.order, groups.starts, centre, np.ones(inside), sums[k])
            precision, mean, pivot = (state[name][k : k + 1] for name in ("precision", "mean", "pivot"))
            column = np.zeros((len(groups.codes), 1))
            add_log_densities(sums[k], own, precision, mean, pivot, weight, state["floor"], column)
            log_density[:, k] = column[:, 0]
        return Labelled(groups, sums, old_labels(clients, groups), log_density)

    def weighed(self, state: Arrays, clients: Federation, labelled: Labelled, labels: Array) -> Array:
        return labelled.sums[labels, np.arange(len(labels))]

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sent, kept = super().step(state, clients, key)
        return {
            **sent,
            "inner": self.gradient(state, clients, np.asarray(as_ragged(kept, len(clients))["labels"].flat)),
        }, kept

    def gradient(self, state: Arrays, clients: Federation, labels: Array) -> Array:
        """Minus half the derivative of the squared error of each agent's events by V_k: [agents, K, f + 1, hidden]."""
        events = self.table.rows(clients)
        kind = labels[groups_of(events, self.table.entity).of_event]
        y, f = self.table.y(events) - state["centre"][-1], len(state["scale"])
        out = np.zeros((len(clients), *state["inner"].shape))
        for k, design in enumerate(self.designs(state, events)):
            units = design[:, f : f + self.hidden]
            left = np.where(kind == k, y - design @ state["mean"][k], 0.0)
            back = left[:, None] * state["mean"][k, f : f + self.hidden] * (1 - units**2)
            full = np.column_stack([design[:, :f], np.ones(len(design))])
            for i in range(len(clients)):
                mine = slice(events.offsets[i], events.offsets[i + 1])
                out[i, k] = full[mine].T @ back[mine]
        return out

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        new = super().update(state, total, key)
        t = int(state["rounds"]) - FIRST
        if t < 0 or not total["sums"].any():
            return new
        gradient = total["inner"]
        first, second = (d * m + (1 - d) * g for d, m, g in zip(_DECAY, state["moments"],
                                                                (gradient, gradient**2), strict=True))  # fmt: skip
        upright, wide = first / (1 - _DECAY[0] ** (t + 1)), second / (1 - _DECAY[1] ** (t + 1))
        far = min(t / max(self.rounds - FIRST - 1, 1), 1.0)
        step = self.rate * (1 + np.cos(np.pi * far)) / 2
        moved = state["inner"] + step * upright / (np.sqrt(wide) + 1e-300)
        return {**new, "inner": moved, "moments": np.stack([first, second])}

    @classmethod
    def examples(cls) -> Sequence[tuple[ClassAssignment, Federation]]:
        fed = example()
        without = Table(entity=None, intercept=False)
        return [
            (cls(Table(), 2 + 3 + 1, 2, hidden=3, gamma=0.5, n_agents=len(fed)), fed),
            (cls(without, 2 + 2, 1, hidden=2, gamma=1.0, sigma=0.5, rounds=8), fed),
        ]
