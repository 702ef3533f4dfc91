"""Heterogeneity between sites beyond chance: Cochran's Q, I2 and tau2, from sums over the sites."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError
from fedscape.types import Array, Arrays


class Heterogeneity(NamedTuple):
    """Pooled estimates of several sites, and how they differ; one entry per coefficient.

    `q` is Cochran's Q on `sites` - 1 degrees of freedom with its `p_value`. `i2` is the share of the variance between
    sites that is not chance (Higgins and Thompson 2002), `tau2` that variance (DerSimonian and Laird 1986). `fixed` and
    `random` are the pooled estimates without and with it, `fixed_error` and `random_error` their standard errors. The
    random-effects pair needs the variances again at this `tau2`, and is NaN if only sums are available.
    """

    sites: int
    q: Array
    p_value: Array
    i2: Array
    tau2: Array
    fixed: Array
    fixed_error: Array
    random: Array
    random_error: Array


def sums_of_sites(estimates: npt.ArrayLike, variances: npt.ArrayLike) -> Arrays:
    """The contribution of each site, one row each: weights 1 / variance, their squares, and first two moments."""
    y, weight = np.asarray(estimates, dtype=float), 1.0 / np.asarray(variances, dtype=float)
    return {"weight": weight, "weight2": weight**2, "first": weight * y, "second": weight * y**2}


def from_sums(total: Arrays, sites: int) -> Heterogeneity:
    """The closed form, from the sums of `sums_of_sites` over sites.

    >>> one, other = sums_of_sites([0.0], [1.0]), sums_of_sites([4.0], [1.0])
    >>> found = from_sums({name: one[name] + other[name] for name in one}, 2)
    >>> found.q.tolist(), found.i2.tolist(), found.tau2.tolist()
    ([8.0], [0.875], [7.0])
    """
    from scipy.special import gammaincc

    if sites < 2:
        raise DataError(f"heterogeneity is of at least two sites with an estimate, not {sites}")
    weight = np.asarray(total["weight"], dtype=float)
    mean = total["first"] / weight
    q = np.maximum(total["second"] - weight * mean**2, 0.0)
    freedom = sites - 1
    spread = weight - total["weight2"] / weight
    tau2 = np.maximum(q - freedom, 0.0) / spread
    i2 = np.maximum(1 - freedom / np.maximum(q, 1e-300), 0.0)
    unknown = np.full_like(mean, np.nan)
    p_value = gammaincc(freedom / 2, q / 2)
    return Heterogeneity(sites, q, p_value, i2, tau2, mean, weight**-0.5, unknown, unknown)


def heterogeneity(estimates: npt.ArrayLike, variances: npt.ArrayLike) -> Heterogeneity:
    """Heterogeneity from the estimates [sites, ...] and their variances, with the pooled estimate under tau2.

    >>> found = heterogeneity([0.0, 4.0], [1.0, 1.0])
    >>> float(found.tau2), float(found.random), float(found.random_error)
    (7.0, 2.0, 2.0)
    """
    y, v = np.asarray(estimates, dtype=float), np.asarray(variances, dtype=float)
    if y.shape != v.shape or not y.ndim or not (np.isfinite(y).all() and (v > 0).all()):
        raise DataError(f"estimates {y.shape} need as many positive variances, {v.shape}, a row for each site")
    summary = from_sums({name: rows.sum(axis=0) for name, rows in sums_of_sites(y, v).items()}, len(y))
    weight = 1 / (v + summary.tau2)
    pooled = (weight * y).sum(axis=0) / weight.sum(axis=0)
    return summary._replace(random=pooled, random_error=weight.sum(axis=0) ** -0.5)
