"""Two clients with a known distance (the sketch paper)."""

from __future__ import annotations

from math import erf, isfinite, sqrt
from statistics import NormalDist

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.types import Array


def gaussian_pair(
    n_rows: int = 1000, *, z: float | None = None, tvd: float | None = None, dimension: int = 16, seed: int = 0
) -> tuple[Federation, dict[str, Array]]:
    """Draw two Gaussian clients with one covariance and a known total variation distance.

    TVD = 2 Phi(z / 2) - 1 with z = sqrt((mu_1 - mu_2)' C^-1 (mu_1 - mu_2)). The sketch paper's appendix draws two such
    clients, but prints 2 Phi(z) - 1 by mistake. Here C = I, mu_1 ~ N(0, I), and mu_2 lies z away in a random direction.
    A row depends only on the seed and its position: a longer client begins with the rows of a shorter one.

    Parameters
    ----------
    n_rows
        Rows of each client.
    z
        The distance of the means; or else
    tvd
        the total variation distance, at least 0 and below 1.
    dimension
        Dimension of x.
    seed
        The seed.

    Returns
    -------
    A Federation of clients 0 and 1 with the column x [dimension], and the ground truth: means [2, dimension], z, tvd.

    >>> fed, truth = gaussian_pair(100, z=1.0)
    >>> fed, round(float(truth["tvd"]), 4)
    (Federation(2 clients, 200 rows, x float64[16]), 0.3829)
    """
    rows, d = check_whole("n_rows", n_rows, least=0), check_whole("dimension", dimension, least=1)
    distance = _distance(z, tvd)
    rng = Key(seed, purpose="gaussian pair means").generator()
    first, direction = rng.standard_normal(d), rng.standard_normal(d)
    means = np.stack([first, first + distance * direction / np.linalg.norm(direction)])  # [2, d]
    key = Key(seed, purpose="gaussian pair")
    x = np.concatenate([mean + key.generator(client).standard_normal((rows, d)) for client, mean in enumerate(means)])
    truth = {"means": means, "z": np.array(distance), "tvd": np.array(erf(distance / sqrt(8.0)))}
    return Federation({"x": x}, [0, rows, 2 * rows]), truth


def _distance(z: float | None, tvd: float | None) -> float:
    if (z is None) == (tvd is None):
        raise DataError(f"gaussian_pair needs z or tvd, one of them: got z={z!r} and tvd={tvd!r}")
    if z is not None:
        if not (isfinite(z) and z >= 0):
            raise DataError(f"z must be a finite number of at least 0, not {z!r}")
        return float(z)
    if tvd is None or not 0 <= tvd < 1:
        raise DataError(f"tvd must be at least 0 and below 1, not {tvd!r}")
    return 2.0 * NormalDist().inv_cdf((1.0 + tvd) / 2.0)
