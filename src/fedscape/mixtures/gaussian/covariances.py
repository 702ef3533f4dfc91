"""The covariance structures of a component: full, diagonal, spherical, or tied.

Arrays have a leading axis of starts, S, then K components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedscape.errors import DataError
from fedscape.mixtures.gaussian.kernels import add_moments
from fedscape.types import Array


class Moments(NamedTuple):
    """Sums per client: responsibilities [clients, S, K], deviations [clients, S, K, d], and their scatter."""

    shares: Array
    first: Array
    second: Array


class Covariance(Protocol):
    """A covariance structure: its storage, the sums that clients send, and the estimate of the server."""

    def shape(self, k: int, d: int) -> tuple[int, ...]:
        """The shape of the covariances of k components of d features."""
        ...

    def n_parameters(self, k: int, d: int) -> int:
        """The number of free parameters."""
        ...

    def factor(self, covariances: Array) -> Array:
        """The factor that whitens deviations."""
        ...

    def log_det(self, factor: Array, k: int, d: int) -> Array:
        """log |covariance| of each component: [S, K]."""
        ...

    def whitener(self, factor: Array, k: int, d: int) -> Array:
        """The factor of every component: [S, K, d, d], or [S, K, d] if features are independent."""
        ...

    def add_moments(self, x: Array, means: Array, shares: Array, bounds: Array, sums: Moments) -> None:
        """Add the moments of rows x [n, d] with responsibilities [S, K, n] about the means to their clients' sums.

        Client i has the rows from bounds[i] to bounds[i + 1].
        """
        ...

    def lift(self, mass: Array, shift: Array) -> Array:
        """The scatter about the old mean of this mass at the new mean: the correction of the scatter for the shift."""
        ...

    def estimate(self, mass: Array, scatter: Array, old: Array, floor: float, noise: float = 0.0) -> Array:
        """Covariances from the scatter about the new mean, plus `floor` in every direction.

        With noise of this standard deviation on the scatter, no variance is set below what noise alone could produce.
        """
        ...

    def quadratic(self, factor: Array, scatter: Array, d: int) -> Array:
        """Sum of squared norms of the scatter after whitening: [S]."""
        ...

    def matrices(self, covariances: Array, k: int, d: int) -> Array:
        """The covariances of one start as matrices [K, d, d]."""
        ...

    def of(self, matrix: Array, k: int) -> Array:
        """Convert one matrix [d, d] to this structure, for all k components."""
        ...


@dataclass(frozen=True)
class Full:
    """One covariance matrix per component: K d (d + 1) / 2 numbers.

    >>> Full().shape(3, 2)
    (3, 2, 2)
    """

    def shape(self, k: int, d: int) -> tuple[int, ...]:
        return k, d, d

    def n_parameters(self, k: int, d: int) -> int:
        return k * d * (d + 1) // 2

    def factor(self, covariances: Array) -> Array:
        return _white(covariances)

    def log_det(self, factor: Array, k: int, d: int) -> Array:
        return np.asarray(-2 * np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1))

    def whitener(self, factor: Array, k: int, d: int) -> Array:
        return factor

    def add_moments(self, x: Array, means: Array, shares: Array, bounds: Array, sums: Moments) -> None:
        _add(x, means, shares, bounds, sums, sums.second.reshape(len(sums.second), -1, *[x.shape[1]] * 2))

    def lift(self, mass: Array, shift: Array) -> Array:
        return np.asarray(mass[..., None, None] * shift[..., :, None] * shift[..., None, :])

    def estimate(self, mass: Array, scatter: Array, old: Array, floor: float, noise: float = 0.0) -> Array:
        occupied = mass > 0
        over = np.where(occupied, mass, 1.0)[..., None]
        least = noise * np.sqrt(2 * scatter.shape[-1]) / over  # the largest eigenvalue of such a noise matrix
        return np.where(occupied[..., None, None], _above(scatter / over[..., None], least, floor), old)

    def quadratic(self, factor: Array, scatter: Array, d: int) -> Array:
        return np.asarray((np.matmul(factor.swapaxes(-1, -2), factor) * scatter).sum(axis=(-3, -2, -1)))

    def matrices(self, covariances: Array, k: int, d: int) -> Array:
        return covariances

    def of(self, matrix: Array, k: int) -> Array:
        return np.broadcast_to(matrix, (k, *matrix.shape)).copy()


@dataclass(frozen=True)
class Diagonal:
    """d variances per component; features are independent within it.

    >>> Diagonal().shape(3, 2)
    (3, 2)
    """

    def shape(self, k: int, d: int) -> tuple[int, ...]:
        return k, d

    def n_parameters(self, k: int, d: int) -> int:
        return k * d

    def factor(self, covariances: Array) -> Array:
        return np.asarray(1 / np.sqrt(covariances))

    def log_det(self, factor: Array, k: int, d: int) -> Array:
        return np.asarray(-2 * np.log(factor).sum(axis=-1))

    def whitener(self, factor: Array, k: int, d: int) -> Array:
        return factor

    def add_moments(self, x: Array, means: Array, shares: Array, bounds: Array, sums: Moments) -> None:
        _add(x, means, shares, bounds, sums, sums.second.reshape(len(sums.second), -1, x.shape[1]))

    def lift(self, mass: Array, shift: Array) -> Array:
        return np.asarray(mass[..., None] * shift**2)

    def estimate(self, mass: Array, scatter: Array, old: Array, floor: float, noise: float = 0.0) -> Array:
        occupied = mass[..., None] > 0
        over = np.where(occupied, mass[..., None], 1.0)
        return np.where(occupied, np.maximum(scatter, 2 * noise) / over + floor, old)

    def quadratic(self, factor: Array, scatter: Array, d: int) -> Array:
        return np.asarray((factor**2 * scatter).sum(axis=(-2, -1)))

    def matrices(self, covariances: Array, k: int, d: int) -> Array:
        return covariances[:, :, None] * np.eye(d)

    def of(self, matrix: Array, k: int) -> Array:
        return np.broadcast_to(np.diagonal(matrix), (k, len(matrix))).copy()


@dataclass(frozen=True)
class Spherical:
    """One variance per component, the same in all directions.

    >>> Spherical().shape(3, 2)
    (3,)
    """

    def shape(self, k: int, d: int) -> tuple[int, ...]:
        return (k,)

    def n_parameters(self, k: int, d: int) -> int:
        return k

    def factor(self, covariances: Array) -> Array:
        return np.asarray(1 / np.sqrt(covariances))

    def log_det(self, factor: Array, k: int, d: int) -> Array:
        return np.asarray(-2 * d * np.log(factor))

    def whitener(self, factor: Array, k: int, d: int) -> Array:
        return np.repeat(factor[..., None], d, axis=-1)

    def add_moments(self, x: Array, means: Array, shares: Array, bounds: Array, sums: Moments) -> None:
        each = np.zeros_like(sums.first)
        _add(x, means, shares, bounds, sums, each.reshape(len(each), -1, x.shape[1]))
        sums.second[:] += each.mean(axis=-1)

    def lift(self, mass: Array, shift: Array) -> Array:
        return np.asarray(mass * (shift**2).mean(axis=-1))

    def estimate(self, mass: Array, scatter: Array, old: Array, floor: float, noise: float = 0.0) -> Array:
        occupied = mass > 0
        return np.where(occupied, np.maximum(scatter, 2 * noise) / np.where(occupied, mass, 1.0) + floor, old)

    def quadratic(self, factor: Array, scatter: Array, d: int) -> Array:
        return np.asarray(d * (factor**2 * scatter).sum(axis=-1))

    def matrices(self, covariances: Array, k: int, d: int) -> Array:
        return covariances[:, None, None] * np.eye(d)

    def of(self, matrix: Array, k: int) -> Array:
        return np.full(k, np.trace(matrix) / len(matrix))


@dataclass(frozen=True)
class Tied:
    """One covariance matrix for all components.

    >>> Tied().shape(3, 2)
    (2, 2)
    """

    def shape(self, k: int, d: int) -> tuple[int, ...]:
        return d, d

    def n_parameters(self, k: int, d: int) -> int:
        return d * (d + 1) // 2

    def factor(self, covariances: Array) -> Array:
        return _white(covariances)

    def log_det(self, factor: Array, k: int, d: int) -> Array:
        one = -2 * np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
        return np.asarray(np.repeat(one[..., None], k, axis=-1))

    def whitener(self, factor: Array, k: int, d: int) -> Array:
        return np.repeat(factor[:, None], k, axis=1)

    def add_moments(self, x: Array, means: Array, shares: Array, bounds: Array, sums: Moments) -> None:
        _add(x, means, shares, bounds, sums, sums.second.reshape(len(sums.second), -1, *[x.shape[1]] * 2))

    def lift(self, mass: Array, shift: Array) -> Array:
        return np.asarray(np.matmul((mass[..., None] * shift).swapaxes(-1, -2), shift))

    def estimate(self, mass: Array, scatter: Array, old: Array, floor: float, noise: float = 0.0) -> Array:
        every = np.maximum(mass, 0.0).sum(axis=-1)[..., None]
        over = np.where(every > 0, every, 1.0)
        least = noise * np.sqrt(2 * scatter.shape[-1]) / over
        return np.where(every[..., None] > 0, _above(scatter / over[..., None], least, floor), old)

    def quadratic(self, factor: Array, scatter: Array, d: int) -> Array:
        return np.asarray((np.matmul(factor.swapaxes(-1, -2), factor) * scatter).sum(axis=(-2, -1)))

    def matrices(self, covariances: Array, k: int, d: int) -> Array:
        return np.broadcast_to(covariances, (k, d, d)).copy()

    def of(self, matrix: Array, k: int) -> Array:
        return matrix.copy()


def check_covariance(covariance: object) -> None:
    """Refuse an object that is not a covariance structure."""
    if not isinstance(covariance, Full | Diagonal | Spherical | Tied):
        raise DataError(
            f"covariance must be Full(), Diagonal(), Spherical() or Tied() of fedscape.mixtures, not {covariance!r}"
        )


def check_covariances(covariance: Covariance, values: Array, k: int, d: int) -> None:
    """Refuse covariances of a wrong shape, not finite, or not positive definite."""
    if values.shape != covariance.shape(k, d):
        raise DataError(f"covariances_init must have the shape {covariance.shape(k, d)}, not {values.shape}")
    finite = bool(np.isfinite(values).all())
    least = float(np.linalg.eigvalsh(covariance.matrices(values, k, d)).min()) if finite else float("nan")
    if not least > 0:
        raise DataError(
            f"covariances_init must be finite and positive in every direction; the least variance is {least:.3g}: "
            "add something to the diagonal"
        )


def _add(x: Array, means: Array, shares: Array, bounds: Array, sums: Moments, second: Array) -> None:
    """`add_moments` with the axes of starts and components flattened."""
    n, d = x.shape
    mass, first = sums.shares.reshape(len(second), -1), sums.first.reshape(len(second), -1, d)
    add_moments(x, means.reshape(-1, d), shares.reshape(-1, n), bounds, mass=mass, first=first, second=second)


def _white(covariances: Array) -> Array:
    """F with F'F = 1 / covariance: F @ rows are white."""
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariances)))


def _mirrored(matrices: Array) -> Array:
    return np.asarray(matrices.swapaxes(-1, -2))


def _above(matrices: Array, least: Array, floor: float) -> Array:
    """The nearest matrices with no eigenvalue below `least` (noise and rounding make such), plus the floor."""
    matrices = (matrices + _mirrored(matrices)) / 2
    values, vectors = np.linalg.eigh(matrices)
    least = np.maximum(least, 1e-13 * np.maximum(values[..., -1:], 0.0))  # smaller ones are rounding error
    if (values < least).any():
        matrices = np.matmul(vectors * np.maximum(values, least)[..., None, :], _mirrored(vectors))
    return np.asarray(matrices + floor * np.eye(matrices.shape[-1]))
