"""Latent class regression of binary targets: a logistic or probit regression per class.

The density of an entity's events then has no closed form. Coefficients have a normal law about the mode (Laplace),
each event's probability is averaged over that law, and agents send the sums of a Fisher scoring step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from scipy.special import expit, log_expit, log_ndtr

from fedscape.core.arrays import segment_sum_twin
from fedscape.core.federation import Federation
from fedscape.core.validate import all_valid
from fedscape.errors import DataError
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.kernels import add_events, width
from fedscape.mixtures.latent_class.rounds import ClassAssignment, Labelled, example, old_labels
from fedscape.mixtures.latent_class.table import Table, groups_of
from fedscape.types import Array, Arrays

LEAST = 1e-3  # weight of an event: any weight has the same fixed point, and near zero steps would diverge


class Logistic(ClassAssignment):
    """One round for targets of 0 and 1, log odds w_k . x: labels by the events' probabilities, then Fisher scoring.

    An event's probability in class k is expit(w . x / sqrt(1 + pi v / 8)), where v = x' H x is the variance of w . x
    (MacKay). For the events of class k agents send X' W X, X' (W X w + y - p), with p = expit(w . x) and W = p (1 - p).
    These are D and c of a ridge regression with the next w as its solution. Parameters and state are those of
    `ClassAssignment`, with sigma 1 and gamma a number.
    """

    name = "lcr-logistic"

    binary: ClassVar[bool] = True

    def prepare(self, state: Arrays) -> Arrays:
        classes = classes_of(opened(state["sums"], self.n_features), 1.0, state["spread"])
        return {**state, "mean": classes.mean, "covariance": classes.covariance}

    def label(self, state: Arrays, clients: Federation) -> Labelled:
        events = self.table.rows(clients)
        groups = groups_of(events, self.table.entity)
        z, yes = self.table.standardised(events, state), self.answers(events)
        each = self.log_chances(*projected(z, state["mean"], state["covariance"]), yes)
        log_density = segment_sum_twin(each[groups.order], groups.starts)
        sums = np.zeros((len(groups.codes), width(self.n_features)))
        return Labelled(groups, sums, old_labels(clients, groups), log_density)

    def weighed(self, state: Arrays, clients: Federation, labelled: Labelled, labels: Array) -> Array:
        events = self.table.rows(clients)
        z, yes = self.table.standardised(events, state), self.answers(events)
        at = (z * state["mean"][labels[labelled.groups.of_event]]).sum(axis=1)
        weight, gradient = self.scoring(at, yes)
        root = np.sqrt(np.maximum(weight, LEAST))
        x, y = z * root[:, None], root * at + gradient / root
        none = np.zeros(self.n_features + 1)
        add_events(x, y, labelled.groups.order, labelled.groups.starts, none, np.ones(self.n_features), labelled.sums)
        return labelled.sums

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        y = clients[self.table.target]
        return all_valid(super().valid_rows(state, clients), (y == 0) | (y == 1))

    def answers(self, events: Federation) -> Array:
        """The target, which must be 0 or 1."""
        y = self.table.y(events)
        wrong = (y != 0) & (y != 1)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"the target {self.table.target!r} must be 0 or 1 for a probit or logistic link, not {y[row]:g} in row "
                f"{row:,}: use link='identity' for numbers"
            )
        return y > 0

    def log_chances(self, mean: Array, variance: Array, yes: Array) -> Array:
        """The log probability of each event's target in each class, [events, K], for normal w . x."""
        return np.asarray(log_expit(np.where(yes[:, None], 1, -1) * mean / np.sqrt(1 + np.pi * variance / 8)))

    def scoring(self, at: Array, yes: Array) -> tuple[Array, Array]:
        """The information of each event about w . x at this point, and the derivative of its log probability."""
        p = expit(at)
        return p * (1 - p), yes - p

    @classmethod
    def examples(cls) -> Sequence[tuple[ClassAssignment, Federation]]:
        fed = answered(example())
        rows = Table(entity=None, intercept=False)
        return [
            (cls(Table(), 3, 2, sigma=1.0, gamma=1.0, n_agents=len(fed)), fed),
            (cls(rows, 2, 2, sigma=1.0, delta=2.0, gamma=0.5), fed),
        ]


class Probit(Logistic):
    """The same with probability Phi(w . x); its average over the law of w is exact: Phi(w . x / sqrt(1 + v))."""

    name = "lcr-probit"

    def log_chances(self, mean: Array, variance: Array, yes: Array) -> Array:
        return np.asarray(log_ndtr(np.where(yes[:, None], 1, -1) * mean / np.sqrt(1 + variance)))

    def scoring(self, at: Array, yes: Array) -> tuple[Array, Array]:
        at = np.clip(at, -1e4, 1e4)  # further out, density and tail agree to rounding
        turned = np.where(yes, at, -at)
        log_density = -0.5 * at**2 - 0.5 * np.log(2 * np.pi)
        gradient = np.where(yes, 1, -1) * np.exp(log_density - log_ndtr(turned))
        return np.exp(2 * log_density - log_ndtr(at) - log_ndtr(-at)), gradient


def projected(z: Array, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Mean and variance of w . x for each event and class: [events, K] both."""
    return z @ mean.T, np.stack([np.einsum("nf,nf->n", z @ h, z) for h in covariance], axis=1)


def answered(fed: Federation) -> Federation:
    """Binarise the target at its middle."""
    return fed.with_column("y", (fed["y"] > np.median(fed["y"])).astype(float))
