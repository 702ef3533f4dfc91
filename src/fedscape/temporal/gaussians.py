"""A diagonal Gaussian mixture in the feature space of a network, in torch: the client side."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedscape.types import Array, Tensor


def log_densities(features: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """log N(f; mu_k, diag sigma_k^2) of each row: [rows, K].

    >>> one = torch.ones(1, 1)
    >>> round(float(log_densities(one, one, one)), 4)
    -0.9189
    """
    away = (features[:, None, :] - means) ** 2 / variances  # [rows, K, d]
    return -0.5 * (away.sum(dim=2) + variances.log().sum(dim=1) + features.shape[1] * math.log(2 * math.pi))


def log_posteriors(densities: Tensor, weights: Tensor) -> Tensor:
    """log P(z = k | x) of each row: equations (5) and (6), by the log-sum-exp of all modes."""
    return torch.log_softmax(densities + weights.log(), dim=1)


def log_shares(posteriors: Tensor, offsets: Tensor) -> Tensor:
    """log of the mean over each client's rows of P(z = k | x), the paper's MLE (5): [clients, K]; empty ones get 0.

    In logarithms: the shares of a client that is surely of one mode all round to zero or one.
    """
    lengths = offsets.diff()
    top = torch.segment_reduce(posteriors, "max", lengths=lengths, initial=-torch.inf)
    top = torch.where(lengths[:, None] > 0, top, torch.zeros((), dtype=top.dtype, device=top.device))
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    total = sums(torch.exp(posteriors - top[owner]), offsets)
    rows = lengths.clamp(min=1)[:, None].to(total.dtype)
    return torch.where(lengths[:, None] > 0, top + total.clamp(min=1e-300).log() - rows.log(), torch.zeros_like(top))


def sums(values: Tensor, offsets: Tensor) -> Tensor:
    """Sums over each client's rows, independent of the order in which the device adds: [clients, ...].

    >>> sums(torch.ones(3, 1), torch.tensor([0, 2, 2, 3])).tolist()
    [[2.0], [0.0], [1.0]]
    """
    if len(offsets) < 2:
        return values[:0]
    return torch.segment_reduce(values, "sum", lengths=offsets.diff(), initial=0)


def segment_means(values: Tensor, offsets: Tensor) -> Tensor:
    """Means over each client's rows, zero where there are none: [clients, ...]."""
    return sums(values, offsets) / offsets.diff().clamp(min=1)[:, None]


def mode_parameters(
    modes: Array, rows: Array, means: Array, variances: Array, before: tuple[Array, Array], *, scatter: str
) -> tuple[Array, Array, Array]:
    """Mean and variance of each mode from those of its clients, and its number of rows: equation (10).

    A mode without clients keeps its parameters. With scatter="all" the variance is that of all rows, by the law of
    total variance; "within_clients" is (10) as printed, which leaves out the scatter of the clients' means.

    >>> made = mode_parameters(np.array([0, 0]), np.array([1, 3]), np.array([[0.0], [4.0]]), np.ones((2, 1)),
    ...                        (np.zeros((2, 1)), np.ones((2, 1))), scatter="all")
    >>> made[0].tolist(), made[1].tolist(), made[2].tolist()
    ([[3.0], [0.0]], [[4.0], [1.0]], [4.0, 0.0])
    """
    mean, variance = np.array(before[0]), np.array(before[1])
    mass = np.bincount(modes, weights=rows, minlength=len(mean))
    for k in np.flatnonzero(mass):
        mine = modes == k
        weight = rows[mine, None] / mass[k]
        mean[k] = (weight * means[mine]).sum(axis=0)
        apart = (means[mine] - mean[k]) ** 2 if scatter == "all" else 0.0
        variance[k] = (weight * (variances[mine] + apart)).sum(axis=0)
    return mean, variance, mass


def blended(
    old: tuple[Array, ...], new: tuple[Array, ...], mass: Array, fresh: Array, inertia: float | Array
) -> tuple[Array, Array, Array]:
    """Combine old means and variances, at a decaying mass, with those of a round; return also the new mass.

    Parameters
    ----------
    old, new
        Means and variances [K, d]: old ones, and those of this round.
    mass, fresh
        The number of rows [K] behind each.
    inertia
        The share of the old mass that stays, for all modes or for each [K]; 0 drops it. A mode without fresh rows
        always keeps its parameters.

    >>> old, new = (np.array([[0.0]]), np.array([[1.0]])), (np.array([[3.0]]), np.array([[1.0]]))
    >>> [v.tolist() for v in blended(old, new, np.array([4.0]), np.array([1.0]), 0.5)]
    [[[1.0]], [[3.0]], [3.0]]
    """
    kept = inertia * mass
    share = (kept / np.maximum(kept + fresh, 1e-300))[:, None]
    share = np.where(fresh[:, None] > 0, share, 1.0)
    mean = share * old[0] + (1 - share) * new[0]
    variance = share * (old[1] + (old[0] - mean) ** 2) + (1 - share) * (new[1] + (new[0] - mean) ** 2)
    return mean, variance, np.where(fresh > 0, kept + fresh, mass)
