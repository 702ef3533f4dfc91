"""The two passes over deviations that NumPy's broadcasting makes slow; both ways give the same bytes."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np

from fedscape.kernel import kernel
from fedscape.random import Array

_LARGE = 2**14  # numbers from which a compiled loop is worth its import


@cache
def _compiled() -> bool:
    return find_spec("numba") is not None  # a machine for training has NumPy and torch alone


def deviate(x: Array, means: Array, out: Array) -> Array:
    """x [d, n] minus each mean [..., d], into out [..., d, n]."""
    if out.size < _LARGE or not _compiled():
        return deviate_twin(x, means, out)
    d, n = x.shape
    _deviate(x, means.reshape(-1, d), out.reshape(-1, d, n))
    return out


def weigh(rows: Array, weights: Array) -> None:
    """Multiply rows [..., d, n] by weights [..., n], in place."""
    if rows.size < _LARGE or not _compiled():
        weigh_twin(rows, weights)
        return
    d, n = rows.shape[-2:]
    _weigh(rows.reshape(-1, d, n), weights.reshape(-1, n))


def deviate_twin(x: Array, means: Array, out: Array) -> Array:
    """The plain NumPy twin of `deviate`."""
    return np.subtract(x, means[..., None], out=out)


def weigh_twin(rows: Array, weights: Array) -> None:
    """The plain NumPy twin of `weigh`."""
    np.multiply(rows, weights[..., None, :], out=rows)


@kernel
def _deviate(x: Array, means: Array, out: Array) -> None:
    for k in range(means.shape[0]):
        for i in range(x.shape[0]):
            mean = means[k, i]
            for j in range(x.shape[1]):
                out[k, i, j] = x[i, j] - mean


@kernel
def _weigh(rows: Array, weights: Array) -> None:
    for k in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            for j in range(rows.shape[2]):
                rows[k, i, j] *= weights[k, j]
