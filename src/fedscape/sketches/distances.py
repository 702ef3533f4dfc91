"""Distances between sketches, and the heterogeneity of a federation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError
from fedscape.statistics.jackknife import jackknife_interval
from fedscape.types import Array

_BLOCK = 1024


def sizes(counts: npt.ArrayLike) -> Array:
    """Rows of data behind each sketch's counts: the mean of its row sums, exact without noise.

    >>> sizes([[[2, 1], [0, 3]]])
    array([3.])
    """
    values = np.asarray(counts)
    return np.asarray(values.sum(axis=(-2, -1)) / max(values.shape[-2], 1))


def normalise(counts: npt.ArrayLike) -> Array:
    """Divide counts [..., rows, cells] by the number of rows of data; zeros stay zeros.

    Noisy counts are divided by the mean of their row sums, at least 1: the exact number is secret.

    >>> normalise([[2, 2], [1, 3]]).tolist()
    [[0.5, 0.5], [0.25, 0.75]]
    """
    values = np.asarray(counts)
    if values.ndim < 2:
        raise DataError(f"counts are [..., rows, cells], not of shape {values.shape}")
    return np.asarray(values / np.maximum(sizes(values), 1.0)[..., None, None])


def own_bias(sketches: Array, n: npt.ArrayLike, noise: npt.ArrayLike = 0.0) -> Array:
    """Expected bias of a squared distance to this sketch, from sampling and noise; NaN below two rows.

    For a sketch s of n rows of data: sum over rows r of (1 - |p_r|^2) / n, estimated by (1 - |s_r|^2) / (n - 1). With
    noise of variance v in a count, another v / n^2 for each cell, which is also subtracted from |s_r|^2.

    >>> own_bias(np.array([[0.5, 0.5]]), 2)
    array(0.5)
    """
    size, v = np.asarray(n, dtype=float), np.asarray(noise, dtype=float)
    rows, cells = sketches.shape[-2:]
    added = rows * cells * v / np.maximum(size, 1) ** 2
    square = np.einsum("...rb,...rb->...", sketches, sketches) - added
    return np.asarray(np.where(size >= 2, (rows - square) / np.maximum(size - 1, 1) + added, np.nan))


def distance(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    sizes: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    noise: npt.ArrayLike = 0.0,
    squared: bool = False,
) -> Array:
    """The Euclidean distance of normalised sketches [..., rows, cells] (Section 3.2.2), NaN for one without rows.

    A small client is far from everyone by sampling alone: in expectation sampling adds
    sum over r of (1 - |p_r|^2) / n_p + (1 - |q_r|^2) / n_q to the square. With `sizes` that bias is subtracted. The
    square is then unbiased for independent sketches, and below 0 half of the time if the laws are equal.

    Parameters
    ----------
    a, b
        Sketches; leading axes are broadcast.
    sizes
        Rows of data of each (n_a, n_b), for the debiased form; NaN for clients of fewer than two rows.
    noise
        Variance of the noise in a count, for private counts.
    squared
        Whether to return the square; the root of a debiased square below 0 is 0.

    >>> a, b = [[1.0, 0.0]], [[0.0, 1.0]]
    >>> float(distance(a, b, squared=True)), float(distance(a, b, sizes=(5, 5), squared=True))
    (2.0, 2.0)
    """
    p, q = _checked(a, b)
    square = ((p - q) ** 2).sum(axis=(-2, -1))
    if sizes is not None:
        square = square - own_bias(p, sizes[0], noise) - own_bias(q, sizes[1], noise)
    empty = ~p.any(axis=(-2, -1)) | ~q.any(axis=(-2, -1))
    return np.asarray(_root(np.where(empty, np.nan, square), squared))


def pairwise(
    sketches: npt.ArrayLike,
    others: npt.ArrayLike | None = None,
    *,
    sizes: npt.ArrayLike | None = None,
    other_sizes: npt.ArrayLike | None = None,
    noise: float = 0.0,
    squared: bool = False,
) -> Array:
    """All pairwise distances, [clients, others] float32, by blocked products; debiased if sizes are given.

    Without `others`, the sketches are compared with each other: the diagonal is 0.

    >>> pairwise([[[1.0, 0.0]], [[0.0, 1.0]]], squared=True).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    own = others is None
    p, q = _checked(sketches, sketches if others is None else others)
    if p.ndim != 3 or q.ndim != 3:
        raise DataError(f"pairs are made of sketches [clients, rows, cells], not {p.shape} and {q.shape}")
    if own:
        other_sizes = sizes
    middle = q.mean(axis=0) if len(q) else 0.0  # centring reduces cancellation
    flat_p, square_p = _flat(p, middle, sizes, noise)
    flat_q, square_q = (flat_p, square_p) if own else _flat(q, middle, other_sizes, noise)
    out = np.empty((len(p), len(q)), dtype=np.float32)
    for i in range(0, len(p), _BLOCK):
        for j in range(i if own else 0, len(q), _BLOCK):
            a, b = slice(i, i + _BLOCK), slice(j, j + _BLOCK)
            block = square_p[a, None] + square_q[None, b] - 2 * flat_p[a] @ flat_q[b].T
            out[a, b] = _root(block, squared)
            if own:
                out[b, a] = out[a, b].T
    if own:
        np.fill_diagonal(out, np.where(np.isnan(square_p), np.nan, 0.0))
    return out


def neighbours(
    queries: npt.ArrayLike,
    sketches: npt.ArrayLike,
    *,
    k: int = 1,
    sizes: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    noise: float = 0.0,
) -> tuple[Array, Array]:
    """The k nearest sketches of each query and their squared distances, both [queries, k]; padded with -1 and NaN.

    Clients without rows have no neighbours and are nobody's. Debiased if the sizes (queries', sketches') are given.

    >>> neighbours([[[1.0, 0.0]]], [[[0.0, 1.0]], [[0.9, 0.1]]])[0].tolist()
    [[1]]
    """
    q, s = _checked(queries, sketches)
    if q.ndim != 3 or s.ndim != 3 or k < 1:
        raise DataError(f"neighbours needs sketches [clients, rows, cells] and k >= 1, got {q.shape}, {s.shape}, {k}")
    if len(s) == 0 or len(q) == 0:
        return np.full((len(q), k), -1), np.full((len(q), k), np.nan)
    mine, theirs = (None, None) if sizes is None else (np.asarray(n, dtype=float) for n in sizes)
    index, least = [], []
    for i in range(0, len(q), _BLOCK):
        n = None if mine is None else mine[i : i + _BLOCK]
        squares = pairwise(q[i : i + _BLOCK], s, sizes=n, other_sizes=theirs, noise=noise, squared=True)
        order = np.argsort(squares, axis=1, kind="stable")[:, :k]  # NaN last
        index.append(order)
        least.append(np.take_along_axis(squares, order, axis=1))
    nearest, squares = _padded(np.concatenate(index), k, -1), _padded(np.concatenate(least), k, np.nan)
    return np.where(np.isnan(squares), -1, nearest), squares


def tvd_lower_bound(a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
    """The maximum half L1 distance between rows of two sketches: a lower bound on the TVD of the two sets of rows.

    Each row of a sketch is a function of the data, and a function cannot increase the TVD. The bound is on the
    distance of the *data* (the empirical laws); small samples of one law differ too.

    >>> float(tvd_lower_bound([[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.7, 0.3]]))
    0.3
    """
    p, q = _checked(a, b)
    return np.asarray(np.abs(p - q).sum(axis=-1).max(axis=-1) / 2).round(12)


@dataclass(frozen=True)
class Heterogeneity:
    """How much the clients of a federation differ.

    `value` is the share of the collision distance between clients: 0 if they are alike, 1 if each is a single point.
    `low` and `high` are its 95% interval over clients. `distance` is the root mean squared distance of the clients to
    the pooled rows, per row of the sketch; `iid` is its expectation for clients of these sizes drawn from the pooled
    rows. `clients` is the number of clients with enough rows.

    >>> heterogeneity(np.tile([[[0.5, 0.5]]], (4, 1, 1)), [50] * 4).value < 0
    True
    """

    value: float
    low: float
    high: float
    distance: float
    iid: float
    clients: int


def heterogeneity(sketches: npt.ArrayLike, sizes: npt.ArrayLike, *, noise: float = 0.0) -> Heterogeneity:
    """Measure the heterogeneity of a federation, with its interval and its IID reference.

    Let w be the probability that two rows of data of one client share a code, b that two of different clients do. Both
    are estimated without bias, with equal weight per client. The value is (w - b) / (1 - b): in population genetics,
    where codes are alleles, it is the fixation index. Twice w - b is the mean squared distance of two clients' laws.
    The interval is a jackknife over clients (Student's t, corrected for skewness); it does not end below 0, which the
    true value never is. The IID reference is exact:
    E|s_i - s|^2 = (1 - |s_r|^2) (N - n_i) / (n_i (N - 1)) for n_i of the N rows drawn without replacement.

    Parameters
    ----------
    sketches
        Normalised, [clients, rows, cells]; clients with fewer than two rows of data are skipped.
    sizes
        Rows of data per client.
    noise
        Variance of the noise in a count, for private counts.

    >>> rng = np.random.default_rng(0)
    >>> made = rng.multinomial(100, [0.5, 0.5], size=(300, 1)) / 100
    >>> bool(abs(heterogeneity(made, [100] * 300).value) < 0.01)
    True
    """
    s, n = np.asarray(sketches, dtype=float), np.asarray(sizes, dtype=float)
    if s.ndim != 3 or n.shape != s.shape[:1]:
        raise DataError(f"heterogeneity needs sketches [clients, rows, cells] and a size each: {s.shape}, {n.shape}")
    s, n = s[n >= 2], n[n >= 2]
    m, rows, cells = s.shape
    if m < 2:
        raise DataError(f"heterogeneity needs at least two clients with two or more rows, there are {m}")
    added = rows * cells * noise / n**2
    square = np.einsum("irb,irb->i", s, s) - added  # of each client's sketch, noise subtracted
    within = (n * square / rows - 1) / (n - 1)
    total = s.sum(axis=0)
    crossed = np.einsum("irb,rb->i", s, total) - square - added  # with the sum of all others
    between = crossed.sum() / rows / (m * (m - 1))
    value = _fixation(within.mean(), between)
    if m > 2:
        without = _fixation(
            (within.sum() - within) / (m - 1), (crossed.sum() - 2 * crossed) / rows / ((m - 1) * (m - 2))
        )
        low, high = jackknife_interval(float(value), without)
    else:
        low, high = -np.inf, np.inf
    pool = np.einsum("i,irb->rb", n, s) / n.sum()
    apart = ((s - pool) ** 2).sum(axis=(1, 2)).mean() / rows
    expected = (1 - (pool**2).sum() / rows) * ((n.sum() - n) / (n * max(n.sum() - 1, 1))).mean() + added.mean() / rows
    return Heterogeneity(
        value=float(value),
        low=low,
        high=max(high, 0.0),
        distance=float(np.sqrt(apart)),
        iid=float(np.sqrt(max(expected, 0.0))),
        clients=m,
    )


def _fixation(within: Array, between: Array) -> Array:
    return np.asarray((within - between) / np.maximum(1 - between, 1e-12))


def _checked(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Array, Array]:
    p, q = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if p.ndim < 2 or q.ndim < 2 or p.shape[-2:] != q.shape[-2:]:
        raise DataError(
            f"sketches are [..., rows, cells] of the same rows and cells, not {p.shape} and {q.shape}: make both with "
            "the same rows, bits, family and seed"
        )
    return p, q


def _flat(s: Array, middle: Array | float, n: npt.ArrayLike | None, noise: float) -> tuple[Array, Array]:
    """Flatten sketches about a common middle, with their debiased squares; NaN without rows."""
    flat = (s - middle).reshape(len(s), int(np.prod(s.shape[1:])))
    square = np.einsum("ij,ij->i", flat, flat)
    if n is not None:
        square = square - own_bias(s, n, noise)
    return flat, np.where(s.any(axis=(1, 2)), square, np.nan)


def _root(square: Array, squared: bool) -> Array:
    return square if squared else np.sqrt(np.maximum(square, 0.0))


def _padded(values: Array, k: int, fill: float) -> Array:
    return np.pad(values, ((0, 0), (0, k - values.shape[1])), constant_values=fill)
