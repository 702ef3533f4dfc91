"""Densities of single rows from a sketch (Algorithm 4), and the total variation distance from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.sketches.distribution import DistributionSketch
from fedscape.types import Array

RULES = ("mean", "median-of-means", "median")


def query(
    model: DistributionSketch,
    sketch: npt.ArrayLike,
    x: Federation | npt.ArrayLike,
    *,
    rule: str = "mean",
    groups: int = 24,
) -> Array:
    """The density of each row of x under a sketch (Algorithm 4): the mean of k(x, x_i) over the sketched rows x_i.

    Parameters
    ----------
    model
        The model with the hash functions of the sketch.
    sketch
        Normalised, [rows, cells].
    x
        The rows to query.
    rule
        "mean" is unbiased. "median-of-means" is the rule of Theorem 3.3. "median", printed in Algorithm 4, does not
        converge to the density: the counts of a row are skewed.
    groups
        For "median-of-means": the number of means.

    >>> model = DistributionSketch(rows=500, bits=1)
    >>> made = model.count([[1.0, 0.0]])
    >>> bool(abs(query(model, made, [[0.0, 1.0]])[0] - 0.5) < 0.12)
    True
    """
    s = np.asarray(sketch, dtype=float)
    shape = model._ready()._shape()
    if s.shape != shape:
        raise DataError(f"the sketch must be one client's, {list(shape)} as the model makes it, not {list(s.shape)}")
    codes = model.codes(x)
    cells = s[np.arange(s.shape[0]), codes]  # [rows of x, rows of the sketch]
    if rule == "mean":
        return np.asarray(cells.mean(axis=1))
    if rule == "median":
        return np.asarray(np.median(cells, axis=1))
    if rule != "median-of-means" or not 1 <= groups <= s.shape[0]:
        raise DataError(f"rule must be one of {RULES} and groups from 1 to {s.shape[0]}, got {rule!r} and {groups}")
    parts = np.array_split(cells, groups, axis=1)
    return np.asarray(np.median([part.mean(axis=1) for part in parts], axis=0))


@dataclass(frozen=True)
class Tvd:
    """A total variation distance estimated by Monte Carlo, with standard errors.

    `plug_in` is the integral with the sketches' densities instead of the true ones. These are smooth, and it is too
    small for a wide kernel. `witness` is P(p > q) - Q(p > q) with the sketches' densities: on rows that the sketches
    have not seen, its expectation never exceeds the truth.

    >>> Tvd(0.3, 0.01, 0.35, 0.02).witness
    0.35
    """

    plug_in: float
    plug_in_error: float
    witness: float
    witness_error: float


def tvd(
    model: DistributionSketch,
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    points: tuple[Federation | npt.ArrayLike, Federation | npt.ArrayLike],
) -> Tvd:
    """Estimate the total variation distance of two sketched laws, by Monte Carlo over rows drawn from them.

    TVD = E|p(x) - q(x)| / (p(x) + q(x)) for x from either law with probability 1/2 (equation 3 with that measure): the
    volume of a bucket cancels. Also TVD >= P(p > q) - Q(p > q), with equality for the true densities. Standard errors
    cover the sampling of the points, not the error of the densities.

    Parameters
    ----------
    model
        The model with the hash functions of the sketches.
    a, b
        The two sketches, normalised.
    points
        Rows of the first law, and of the second; preferably rows that the sketches have not seen.

    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(0, 1, (4000, 2)), rng.normal([3.0, 0.0], 1, (4000, 2))
    >>> model = DistributionSketch(rows=400, bits=4, family="pstable", width=2.0)
    >>> p, q = model.count(x[:2000]) / 2000, model.count(y[:2000]) / 2000
    >>> round(tvd(model, p, q, points=(x[2000:], y[2000:])).witness, 1)  # truth 0.87
    0.9
    """
    share, won = [], []
    for x in points:
        p, q = query(model, a, x), query(model, b, x)
        if len(p) < 2:
            raise DataError(f"points needs at least two rows of each law, got {len(p)}")
        share.append(np.abs(p - q) / np.maximum(p + q, 1e-300))
        won.append((p > q) + 0.5 * (p == q))
    plug_in = sum(float(v.mean()) for v in share) / 2
    error = np.sqrt(sum(float(v.var(ddof=1)) / len(v) for v in share)) / 2
    witness_error = np.sqrt(sum(float(v.var(ddof=1)) / len(v) for v in won))
    return Tvd(plug_in, float(error), float(won[0].mean() - won[1].mean()), float(witness_error))
