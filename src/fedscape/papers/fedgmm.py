"""Parts of the FedGMM paper (Wu et al.): covariances fixed to the identity, and half of all rows transformed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_categories
from fedscape.errors import DataError
from fedscape.mixtures.gaussian.covariances import Spherical
from fedscape.simulate.shifted import turned
from fedscape.types import Array


@dataclass(frozen=True)
class Identity(Spherical):
    """Sigma = I in every component, as in Theorem 1 and Appendix B: the covariance is not learned.

    >>> from fedscape import GaussianMixture
    >>> GaussianMixture(1, covariance=Identity()).fit(Federation({"x": [[0.0], [9.0]]}, [0, 2])).covariances_
    array([1.])
    """

    def n_parameters(self, k: int, d: int) -> int:
        return 0

    def estimate(self, mass: Array, scatter: Array, old: Array, floor: float, noise: float = 0.0) -> Array:
        return np.ones_like(old)

    def of(self, matrix: Array, k: int) -> Array:
        return np.ones(k)


def half_transformed(
    federation: Federation, *, share: float = 0.5, column: str = "y", features: str = "x", seed: int = 0
) -> Federation:
    """Section 4.1: T(x) and P_A(y) on a random half of all rows, whichever client has them; clients stay the same.

    The benchmark's images draw a share for each client from Beta(0.4, 0.4) instead: clients then differ in how much is
    transformed. `simulate.Shifted` deals the transformed rows to new clients.

    Parameters
    ----------
    federation
        Clients with square images and labels.
    share
        The share of all rows to transform.
    column, features
        The columns of labels and of images.
    seed
        Seed of the rows and the permutation.

    >>> fed = Federation({"x": np.zeros((8, 2, 2), np.uint8), "y": [0, 1] * 4}, [0, 3, 8])
    >>> half_transformed(fed)["shift"].sum()
    np.int64(4)
    """
    if not 0 <= share <= 1:
        raise DataError(f"share must be from 0 to 1, not {share}")
    rng = Key(seed, purpose="half transformed").generator()
    moved = np.zeros(federation.n_rows, dtype=np.int8)
    moved[rng.permutation(federation.n_rows)[: round(share * federation.n_rows)]] = 1
    number, chosen = federation.categories(column), moved == 1
    labels = check_categories(federation[column], number, column)
    x = federation[features].copy()
    x[chosen] = turned(x[chosen])
    y = np.where(chosen, rng.permutation(number)[labels], labels).astype(federation[column].dtype)
    names = federation.names.get(column)
    shifted = federation.with_column(features, x).with_column(column, y, names=names)
    return shifted.with_column("shift", moved)
