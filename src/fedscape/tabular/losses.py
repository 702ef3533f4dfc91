"""Losses of boosted trees, with gradients on a grid so that sums are exact in any order."""

from __future__ import annotations

import numpy as np

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.types import Array

LOSSES = ("squared", "logistic", "softmax", "poisson")
GRID = 2.0**-24  # of gradients, in units of the loss: float64 adds its multiples exactly up to 2**29
_MOST = 2.0**14  # largest gradient, in units
_FAR = 30.0
FAR = 1e100  # targets from here on have sums of squares that floats do not hold


def check_loss(loss: str) -> None:
    """Refuse an unknown loss."""
    if loss not in LOSSES:
        raise DataError(f"loss must be one of {', '.join(LOSSES)}, not {loss!r}")


def on_grid(values: Array) -> Array:
    """Round to the grid.

    >>> float(on_grid(np.array([0.1]))[0] * 2**24)
    1677722.0
    """
    rounded = np.clip(values, -_MOST, _MOST)
    rounded /= GRID
    np.rint(rounded, out=rounded)
    rounded *= GRID
    return np.asarray(rounded)


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
    if loss == "logistic":
        p = _sigmoid(margin)
        return p - y[:, None], p * (1 - p)
    p = probabilities(loss, margin)
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
        p = _sigmoid(margin[:, 0])
        return np.column_stack([1 - p, p])
    shifted = np.exp(margin - margin.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _sigmoid(margin: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(margin, -_FAR, _FAR))))


def bounds(loss: str) -> tuple[float, float] | None:
    """Largest gradient and curvature of a row; None if unbounded, as for losses on numbers."""
    return (1.0, 0.25) if loss in ("logistic", "softmax") else None


def target_values(clients: Federation, target: str, loss: str, outputs: int) -> Array:
    """The target as numbers; refuse values outside the domain of the loss."""
    values = clients[target]
    valid = valid_targets(values, loss, outputs)
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise DataError(f"the target {target!r} must be one number or class per row, not {values.dtype}")
    if valid is not None and not valid.all():
        row = int(np.argmin(valid))
        what = {"poisson": "a count", "squared": "a number below 1e100"}.get(loss, "a declared class")
        raise DataError(f"the target {target!r} is {values[row]} in row {row:,}, which is not {what}: drop such rows")
    return values.astype(np.float64)


def valid_targets(values: Array, loss: str, outputs: int) -> Array | None:
    """Which rows have a target in the domain of the loss."""
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        return None
    y = values.astype(np.float64)
    if loss in ("squared", "poisson"):
        return np.asarray((np.abs(y) < FAR) & ((y >= 0) | (loss == "squared")))
    return np.asarray((y >= 0) & (y < max(outputs, 2)) & (y == np.floor(y)))
