"""The prior of the labels: psi of eq. (2), and estimates of alpha and beta from labels."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma

from fedscape.types import Array, Arrays

RATE = 0.01  # of the exponential priors on alpha and beta: evenly shared labels would make beta infinite
STEPS = 200


def prior_shares(state: Arrays) -> Array:
    """psi of eq. (2): (N^(k) + alpha / K) / (sum N + alpha)."""
    counts, alpha = state["sums"][:, -1], float(state["alpha"])
    return np.asarray((counts + alpha / len(counts)) / (counts.sum() + alpha))


def tables_of(labels: Array, offsets: Array, psi: Array, beta: float) -> Array:
    """An agent's statistics for alpha and beta: [agents, K + 1].

    The first K numbers are the expected table counts, the labels drawn from psi and not from the agent's own labels
    (Antoniak): beta psi_k (digamma(beta psi_k + n_k) - digamma(beta psi_k)). The last is digamma(beta + n) -
    digamma(beta).
    """
    counts = np.zeros((len(offsets) - 1, len(psi)))
    np.add.at(counts, (np.repeat(np.arange(len(counts)), np.diff(offsets)), labels), 1.0)
    fresh = np.maximum(beta * psi, 1e-12)
    tables = fresh * (digamma(fresh + counts) - digamma(fresh))
    n = counts.sum(axis=1)
    return np.column_stack([tables, digamma(beta + n) - digamma(beta)])


def learned_prior(total: Array, scale: float, alpha: float, beta: float) -> tuple[float, float]:
    """Update alpha and beta, given the sum of `tables_of` over a cohort, 1 / `scale` of all agents.

    Beta takes one step of Minka's fixed point: the table counts over the sum of digamma(beta + n) - digamma(beta).
    Alpha is the fixed point for the table counts of all agents, which are one draw of a Dirichlet-multinomial with
    alpha / K.
    """
    tables = np.maximum(total[:-1], 0.0)
    if tables.sum() <= 0:
        return alpha, beta
    beta = float(tables.sum() / (max(float(total[-1]), 0.0) + RATE / scale))
    tables, k = tables * scale, len(tables)
    for _ in range(STEPS if k > 1 else 0):
        each = float((digamma(tables + alpha / k) - digamma(alpha / k)).sum()) / k
        alpha = max(alpha * each / float(digamma(tables.sum() + alpha) - digamma(alpha) + RATE), 1e-6)
    return alpha, min(max(beta, 1e-6), 1e6)
