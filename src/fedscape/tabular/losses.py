"""Losses of boosted trees, with gradients on a grid so that sums are exact in any order."""

from __future__ import annotations

import numpy as np

from fedscape.errors import DataError
from fedscape.types import Array

LOSSES = ("squared", "logistic", "softmax", "poisson")
GRID = 2.0**-24  # of gradients, in units of the loss: float64 adds its multiples exactly up to 2**29
_MOST = 2.0**14  # largest gradient, in units
_FAR = 30.0


def check_loss(loss: str) -> None:
    """Refuse an unknown loss."""
    if loss not in LOSSES:
        raise DataError(f"loss must be one of {', '.join(LOSSES)}, not {loss!r}")


def on_grid(values: Array) -> Array:
    """Round to the grid.

    >>> float(on_grid(np.array([0.1]))[0] * 2**24)
    1677722.0
    """
    return np.asarray(np.rint(np.clip(values, -_MOST, _MOST) / GRID) * GRID)


def derivatives(loss: str, y: Array, margin: Array, unit: float) -> tuple[Array, Array]:
    """First and second derivative of each row's loss by its margins [rows, outputs], in units, on the grid."""
    g, h = gradients(loss, y, margin)
    return on_grid(g / unit), (h if loss == "squared" else on_grid(h / unit))


def gradients(loss: str, y: Array, margin: Array) -> tuple[Array, Array]:
    """First and second derivative of each row's loss by its margins [rows, outputs].

    >>> [part.tolist() for part in gradients("squared", np.array([3.0]), np.array([[1.0]]))]
    [[[-2.0]], [[1.0]]]
    """
    if loss == "squared":
        return margin - y[:, None], np.ones_like(margin)
    if loss == "poisson":
        mean = np.exp(np.clip(margin, -_FAR, _FAR))
        return mean - y[:, None], mean
    p = probabilities(loss, margin)
    if loss == "logistic":
        return p[:, 1:] - y[:, None], p[:, 1:] * (1 - p[:, 1:])
    own = y.astype(np.int64)[:, None] == np.arange(margin.shape[1])
    return p - own, p * (1 - p)


def row_losses(loss: str, y: Array, margin: Array) -> Array:
    """The loss of each row, up to a term that depends on its target only."""
    if loss == "squared":
        return np.asarray((margin[:, 0] - y) ** 2 / 2)
    if loss == "logistic":
        return np.asarray(np.logaddexp(0, margin[:, 0]) - y * margin[:, 0])
    if loss == "softmax":
        top = margin.max(axis=1)
        own = np.take_along_axis(margin, y.astype(np.int64)[:, None], axis=1)[:, 0]
        return np.asarray(np.log(np.exp(margin - top[:, None]).sum(axis=1)) + top - own)
    return np.asarray(np.exp(np.clip(margin[:, 0], -_FAR, _FAR)) - y * margin[:, 0])


def probabilities(loss: str, margin: Array) -> Array:
    """Class probabilities [rows, classes] from margins [rows, outputs]."""
    if loss == "logistic":
        p = 1 / (1 + np.exp(-np.clip(margin[:, 0], -_FAR, _FAR)))
        return np.column_stack([1 - p, p])
    shifted = np.exp(margin - margin.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def bounds(loss: str) -> tuple[float, float] | None:
    """Largest gradient and curvature of a row; None if unbounded, as for losses on numbers."""
    return (1.0, 0.25) if loss in ("logistic", "softmax") else None
