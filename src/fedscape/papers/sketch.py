"""Section 3.2.2 and Appendix C.1 of the sketch paper (Liu et al.): the total variation distance through cells.

The paper writes TVD = 1/2 sum over cells A of |S_p(x) - S_q(x)| lambda(A), x any point of A. It then replaces the cells
by all B^R paths through the sketch, and the sum over paths by a bound. The toolkit uses `sketches.tvd`.
"""

from __future__ import annotations

from math import gamma, pi

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError
from fedscape.sketches.distribution import DistributionSketch
from fedscape.types import Array

MOST_PATHS = 10**6


def collision_volume(bits: int, dimension: int, *, radius: float = 1.0, rows: int = 1) -> float:
    """lambda(A) of Appendix C.1: the collision probability of sign projections integrated over the d-ball.

    This is the expected volume of the cell of a point, with cells cut by `rows` hash functions of `bits` bits. With
    theta the angle to the point, it is the integral of (1 - theta / pi)^(bits rows) over a ball about the origin.

    Parameters
    ----------
    bits
        Bits of a code.
    dimension
        d, at least 2.
    radius
        Radius of the ball.
    rows
        Number of sketch rows that cut the cells: the more rows, the smaller the cells.

    >>> round(collision_volume(1, 2) / np.pi, 6)  # one bit halves the disc
    0.5
    """
    from scipy.integrate import quad

    if dimension < 2 or bits < 1 or rows < 1 or not 0 < radius < np.inf:
        raise DataError(
            f"dimension must be at least 2, bits and rows at least 1, radius positive: {dimension}, {bits}, {rows}, "
            f"{radius}"
        )
    power, sines = bits * rows, dimension - 2
    kernel = quad(lambda t: (1 - t / pi) ** power * np.sin(t) ** sines, 0, pi, limit=200)[0]
    angles = quad(lambda t: np.sin(t) ** sines, 0, pi, limit=200)[0]
    ball = pi ** (dimension / 2) / gamma(dimension / 2 + 1) * radius**dimension
    return float(ball * kernel / angles)


def cell_tvd(
    model: DistributionSketch, a: npt.ArrayLike, b: npt.ArrayLike, x: npt.ArrayLike, *, volume: float
) -> float:
    """1/2 sum over the cells that rows x visit of |S_p - S_q| lambda(A), every cell of the same volume (Section 3.2.2).

    A cell is a path of codes through all rows of the sketch; S is the mean over the rows. As printed, S is the share of
    rows in a bucket and not a density: the result has the unit of `volume`, and is not a distance between 0 and 1. With
    `volume` = 1 and one row it is half the L1 distance of the two histograms over the visited buckets.

    Parameters
    ----------
    model
        The model whose hash functions built the sketches.
    a, b
        The two sketches, normalised.
    x
        Rows, [n, d]; cells without any of them are left out.
    volume
        lambda(A), for example from `collision_volume`.

    >>> model = DistributionSketch(rows=1, bits=2)
    >>> x, y = np.array([[1.0, 0.2]]), np.array([[-1.0, 0.3]])
    >>> cell_tvd(model, model.count(x), model.count(y), np.concatenate((x, y)), volume=1.0)
    1.0
    """
    codes = model.codes(np.asarray(x, dtype=float))
    paths = np.unique(codes, axis=0)
    change = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if change.ndim != 2 or change.shape[0] != paths.shape[1]:
        raise DataError(f"the sketches must have {paths.shape[1]} rows as the model makes them, not {change.shape}")
    differences = change[np.arange(change.shape[0]), paths].mean(axis=1)
    return float(np.abs(differences).sum() * volume / 2)


def path_tvd(a: npt.ArrayLike, b: npt.ArrayLike, *, mended: bool = False) -> float:
    """B^-R times the sum over all paths of |Delta_1 + ... + Delta_R| (Section 3.2.2), by enumeration of all paths.

    Parameters
    ----------
    a, b
        The two sketches, normalised, [R, B] with B^R at most a million.
    mended
        Multiply by B / (2 R): for R = 1 that is the TVD of the two histograms; as printed, their L1 distance over B.

    >>> path_tvd([[1.0, 0.0]], [[0.0, 1.0]]), path_tvd([[1.0, 0.0]], [[0.0, 1.0]], mended=True)
    (1.0, 1.0)
    """
    change = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    n_rows, n_codes = change.shape
    if float(n_codes) ** n_rows > MOST_PATHS:
        raise DataError(f"{n_codes}^{n_rows} paths are more than {MOST_PATHS:,}: take fewer rows or bits")
    sums = np.zeros(1)
    for row in change:
        sums = (sums[:, None] + row).ravel()
    printed = float(np.abs(sums).mean())
    return printed * n_codes / (2 * n_rows) if mended else printed


def path_bound(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The paper's Frobenius norm: the sum over paths with absolute values inside, (1 / B) |Delta|_1.

    >>> path_bound([[1.0, 0.0]], [[0.0, 1.0]])
    1.0
    """
    change: Array = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    return float(np.abs(change).sum() / change.shape[1])


def query_bound(rows: int, *, delta: float, n_rows: float = np.inf, epsilon: float = np.inf) -> float:
    """How far a query S(x) is from the kernel density, at most, with probability 1 - delta (proofs of D.1 and D.2).

    The square root of (1 / R + 2 R / (N epsilon)^2) 32 log(1 / delta); without privacy the second part is 0.

    Parameters
    ----------
    rows
        R.
    delta
        The probability of being farther off.
    n_rows
        N, the rows of data; needed with epsilon.
    epsilon
        Of the Laplace noise.

    >>> round(query_bound(100, delta=0.1), 4)
    0.8584
    """
    if rows < 1 or not 0 < delta < 1 or not (n_rows > 0 and epsilon > 0):
        raise DataError(
            f"rows, n_rows and epsilon must be positive, delta between 0 and 1: {rows}, {n_rows}, {epsilon}, {delta}"
        )
    noise = 2 * rows / (n_rows * epsilon) ** 2 if epsilon < np.inf else 0.0
    return float(np.sqrt((1 / rows + noise) * 32 * np.log(1 / delta)))


def query_rows(n_rows: float, *, epsilon: float) -> int:
    """R of the best rate for private queries (after Theorem 3.4): 1 / R + 2 R / (N epsilon)^2 is least.

    That is N epsilon / sqrt(2), linear in N as the paper says, and the bound falls as epsilon^(-1/2). For distances see
    `sketches.choose_rows`.

    >>> query_rows(1000, epsilon=1.0), query_rows(1000, epsilon=0.1)
    (707, 71)
    """
    if not (n_rows > 0 and epsilon > 0):
        raise DataError(f"n_rows and epsilon must be positive: {n_rows}, {epsilon}")
    return max(1, round(n_rows * epsilon / 2**0.5))
