"""The two passes of EM over rows: squared distances to the means, and weighted moments.

A pass is one call without the GIL over tiles that stay in cache. Many short NumPy calls would pass the GIL back and
forth, and two threads would be no faster than one. The plain twins agree to rounding. C counts the components of all
starts; a factor or scatter is a matrix, or a vector if features are independent.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from itertools import pairwise

import numpy as np

from fedscape.core.kernel import compiles, kernel
from fedscape.core.validate import read_only
from fedscape.types import Array

_LARGE = 2**14  # sizes from which a compiled loop is worth its import
_TILE = 120  # rows per tile; not a power of two, where columns would collide in the cache


@cache
def _compiled() -> bool:
    return find_spec("numba") is not None  # a training machine may have only NumPy and torch


def squares(x: Array, means: Array, factor: Array) -> Array:
    """|factor (x - mean)|^2 of rows x [n, d], for means [C, d] and factors [C, d, d] or [C, d]: [C, n]."""
    if means.size * len(x) < _LARGE or not compiles() or not _compiled():
        return squares_twin(x, means, factor)
    out = np.empty((len(means), len(x)))
    loop = _squares if factor.ndim == 3 else _squares_alone
    loop(_plain(x), _plain(means), _plain(factor), out, _TILE)
    return out


def add_moments(
    x: Array, means: Array, shares: Array, bounds: Array, *, mass: Array, first: Array, second: Array
) -> None:
    """Add to each client its sums of r, r (x - mean) and r (x - mean)(x - mean)'.

    Client i has the rows from bounds[i] to bounds[i + 1] of x [n, d]. The responsibilities r are [C, n]. The sums: mass
    is [clients, C], first [clients, C, d]. The last, second, is [clients, G, d, d] if C / G consecutive components
    share one sum, or [clients, C, d] for the diagonal only.
    """
    if means.size * len(x) < _LARGE or not compiles() or not _compiled():
        add_moments_twin(x, means, shares, bounds, mass=mass, first=first, second=second)
        return
    loop = _add_moments if second.ndim == 4 else _add_moments_alone
    loop(_plain(x), _plain(means), _plain(shares), _plain(bounds), mass, first, second, _TILE)


def _plain(values: Array) -> Array:
    """One memory layout and dtype: a kernel is then compiled once."""
    return read_only(np.ascontiguousarray(values))


def squares_twin(x: Array, means: Array, factor: Array) -> Array:
    """The plain NumPy twin of `squares`."""
    rows = x.T - means[..., None]  # [C, d, n]
    white = np.matmul(factor, rows) if factor.ndim == 3 else rows * factor[..., None]
    return np.asarray(np.einsum("cdn,cdn->cn", white, white))


def add_moments_twin(
    x: Array, means: Array, shares: Array, bounds: Array, *, mass: Array, first: Array, second: Array
) -> None:
    """The plain NumPy twin of `add_moments`."""
    for i, (begin, end) in enumerate(pairwise(bounds)):
        rows, r = x[begin:end].T - means[..., None], shares[:, begin:end]
        mass[i] += r.sum(axis=-1)
        first[i] += np.matmul(rows, r[..., None])[..., 0]
        rows *= np.sqrt(r)[:, None]
        if second.ndim == 4:
            each = np.matmul(rows, rows.swapaxes(-1, -2))
            second[i] += each.reshape(len(second[i]), -1, *each.shape[1:]).sum(axis=1)
        else:
            second[i] += np.einsum("cdn,cdn->cd", rows, rows)


@kernel
def _squares(x: Array, means: Array, factor: Array, out: Array, tile: int) -> None:
    n, d = x.shape
    space = np.empty((3, d * tile))
    for begin in range(0, n, tile):
        t = min(tile, n - begin)
        turned = space[0, : d * t].reshape(d, t)
        rows = space[1, : d * t].reshape(d, t)
        white = space[2, : d * t].reshape(d, t)
        for j in range(t):
            for i in range(d):
                turned[i, j] = x[begin + j, i]
        for c in range(means.shape[0]):
            for i in range(d):
                mean = means[c, i]
                for j in range(t):
                    rows[i, j] = turned[i, j] - mean
            np.dot(factor[c], rows, white)
            length = out[c, begin : begin + t]
            length[:] = 0.0
            for i in range(d):
                for j in range(t):
                    length[j] += white[i, j] * white[i, j]


@kernel
def _squares_alone(x: Array, means: Array, factor: Array, out: Array, tile: int) -> None:
    n, d = x.shape
    space = np.empty(d * tile)
    for begin in range(0, n, tile):
        t = min(tile, n - begin)
        turned = space[: d * t].reshape(d, t)
        for j in range(t):
            for i in range(d):
                turned[i, j] = x[begin + j, i]
        for c in range(means.shape[0]):
            length = out[c, begin : begin + t]
            length[:] = 0.0
            for i in range(d):
                mean, scale = means[c, i], factor[c, i]
                for j in range(t):
                    white = (turned[i, j] - mean) * scale
                    length[j] += white * white


@kernel
def _add_moments(
    x: Array, means: Array, shares: Array, bounds: Array, mass: Array, first: Array, second: Array, tile: int
) -> None:
    d, per = x.shape[1], means.shape[0] // second.shape[1]
    space, product = np.empty(d * tile), np.empty((d, d))
    for client in range(len(bounds) - 1):
        for begin in range(bounds[client], bounds[client + 1], tile):
            t = min(tile, bounds[client + 1] - begin)
            rows = space[: d * t].reshape(t, d)
            for c in range(means.shape[0]):
                mean, away = means[c], first[client, c]
                for j in range(t):
                    r = shares[c, begin + j]
                    root = np.sqrt(r)
                    mass[client, c] += r
                    for i in range(d):
                        row = (x[begin + j, i] - mean[i]) * root
                        rows[j, i] = row
                        away[i] += row * root
                np.dot(rows.T, rows, product)
                scatter = second[client, c // per]
                for i in range(d):
                    for j in range(d):
                        scatter[i, j] += product[i, j]


@kernel
def _add_moments_alone(
    x: Array, means: Array, shares: Array, bounds: Array, mass: Array, first: Array, second: Array, tile: int
) -> None:
    d = x.shape[1]
    for client in range(len(bounds) - 1):
        for begin in range(bounds[client], bounds[client + 1], tile):  # rows stay in cache for all components
            for c in range(means.shape[0]):
                mean, away, scatter = means[c], first[client, c], second[client, c]
                for j in range(begin, min(begin + tile, bounds[client + 1])):
                    r = shares[c, j]
                    mass[client, c] += r
                    for i in range(d):
                        row = x[j, i] - mean[i]
                        away[i] += row * r
                        scatter[i] += row * row * r
