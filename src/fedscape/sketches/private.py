"""The number of rows of a private sketch, and its noise."""

from __future__ import annotations

import numpy as np

from fedscape.core.sampling import Sampler
from fedscape.errors import DataError
from fedscape.privacy.mechanisms import Privacy
from fedscape.privacy.release import noise_sd


def noise_variance(
    privacy: Privacy | None, *, clients: int = 1, min_clients: int = 1, sampler: Sampler | None = None
) -> float:
    """The variance of the noise in a count, for `distance`; the parameters are those of `noise_sd`.

    >>> from fedscape import Laplace
    >>> round(noise_variance(Laplace(clip=10.0, epsilon=1.0, unit="row")))
    200
    """
    sd = noise_sd(privacy, "counts", clients=clients, min_clients=min_clients, sampler=sampler, whole=True)
    return sd**2


def choose_rows(
    n_rows: float,
    *,
    epsilon: float,
    bits: int = 4,
    relation: str = "add-remove",
    separation: float = 0.05,
    spread: float = 0.6,
    most: int = 1000,
) -> int:
    """Choose the number of rows of a private sketch of n rows of data, for distances.

    A row of data touches every row of the sketch. R rows of the sketch thus need Laplace noise of scale R / epsilon in
    every count (2 R / epsilon if a row is replaced). For two such sketches at the squared distance R D^2 the debiased
    square has the relative variance
    spread^2 / R + 8 v / (R D^2) + 14 cells v^2 / (R D^4), v = 2 (R / (epsilon n))^2.
    The first term is the variance of the hash functions, which falls with R. The others are the noise, which rises like
    R and R^3.

    Parameters
    ----------
    n_rows
        Rows of data in each sketch.
    epsilon
        Epsilon of the release.
    bits
        The sketch has 2**bits cells per row.
    relation
        "add-remove" or "replace-one".
    separation
        D^2: the squared distance, per row of the sketch, to be distinguished from 0. The default is about that of two
        Gaussians at the total variation distance 0.7.
    spread
        Relative variation of that distance from row to row of the sketch.
    most
        Maximum number of rows.

    >>> choose_rows(500, epsilon=1.0), choose_rows(5000, epsilon=1.0)
    (11, 106)
    """
    if not (n_rows > 0 and epsilon > 0 and separation > 0 and spread >= 0 and most >= 1 and bits >= 1):
        raise DataError(
            f"n_rows, epsilon, separation, most and bits must be positive: {n_rows}, {epsilon}, {separation}, {most}, "
            f"{bits}"
        )
    if relation not in ("add-remove", "replace-one"):
        raise DataError(f"relation must be 'add-remove' or 'replace-one', not {relation!r}")
    rows = np.arange(1, most + 1)
    moved = rows * (2 if relation == "replace-one" else 1)
    v = 2 * (moved / (epsilon * n_rows)) ** 2
    variance = spread**2 / rows + 8 * v / (rows * separation) + 14 * 2**bits * v**2 / (rows * separation**2)
    return int(rows[np.argmin(variance)])
