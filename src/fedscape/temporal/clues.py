"""Statistics of a client: label shares, and features that do not age (fixed random maps of the inputs)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedscape.core.arrays import segment_sum_twin
from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.local import LocalSGD
from fedscape.learning.trainer import trainer_of
from fedscape.temporal.regression import packed_pairs
from fedscape.types import Array, Tensor

_MANY = 32  # with more inputs, projections ignore the mean, which is the background of an image
_KEY = Key(0, purpose="projections")


def projected(inputs: Tensor, n: int, *, scaled: bool = False) -> Tensor:
    """n fixed random features of each row, float64: rectified projections of numbers, random waves of codes.

    Images and tables are flattened. Unless rows are `scaled`, as images are, a number x becomes sign(x) log(1 + |x|),
    to keep one column from dominating the others. For sequences of codes, such as texts, each feature is the mean over
    positions of cos(w code + b): a random number for every code, for any vocabulary.

    >>> projected(torch.eye(3)[:2], 4).shape, projected(torch.zeros(2, 5, dtype=torch.int64), 4).shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """
    flat = inputs.flatten(1) if inputs.ndim > 1 else inputs[:, None]
    if inputs.dtype.is_floating_point:
        weights = torch.from_numpy(_matrix(flat.shape[1], n)).to(flat.device, flat.dtype)
        flat = flat if scaled else flat.abs().log1p().copysign(flat)
        return torch.relu(flat @ weights).to(torch.float64)
    turns = torch.from_numpy(_waves(n)).to(flat.device)
    angles = flat.to(torch.float64)[:, :, None] * turns[0] + turns[1]
    return torch.cos(angles).mean(dim=1)


def fixed_features(local: LocalSGD, clients: Federation, n: int) -> Tensor:
    """n fixed random features of each row of these clients: [rows, n]."""
    x = trainer_of(local).column(clients, local.features, slice(None))
    return projected(local.inputs(x), n, scaled=x.dtype == torch.uint8)


def means_of(features: Tensor, offsets: Array) -> Array:
    """Means over each client's rows, zero where there are none, on the host: [clients, d]."""
    return segment_sum_twin(features.cpu().numpy(), offsets) / np.maximum(np.diff(offsets), 1)[:, None]


def fixed_means(local: LocalSGD, clients: Federation, n: int, most: int | None) -> Array | None:
    """Means of n fixed features over a number of rows of each client, at most `most`; None for none."""
    if n == 0:
        return None
    looked = clients.where(looked_at(clients, 0.0, most)[0])
    return means_of(fixed_features(local, looked, n), looked.offsets)


def clues_of(
    by: str, clients: Federation, means: Array | None, target: str, n_classes: int, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """What is regressed on the clock `by` labels, features or both; and the upper triangle of its products."""
    if by == "labels" or means is None:
        return label_products(clients, target, n_classes, dtype)
    clues = means if by == "features" else np.concatenate([label_roots(clients, target, n_classes), means], axis=1)
    return clues, packed_pairs(clues)


def label_roots(clients: Federation, target: str, n_classes: int) -> Array:
    """Square roots of each client's label shares, [clients, classes]: a variance-stabilising transform.

    >>> label_roots(Federation({"y": [0, 0, 0, 1]}, [0, 4]), "y", 2).round(3).tolist()
    [[0.866, 0.5]]
    """
    y, n = clients[target].astype(np.int64), len(clients)
    if len(y) and not (y.min() >= 0 and y.max() < n_classes):
        raise DataError(f"the column {target!r} must hold classes 0 to {n_classes - 1}, not {y.min()} to {y.max()}")
    counts = np.bincount(clients.client_of_row * n_classes + y, minlength=n * n_classes).reshape(n, n_classes)
    return np.asarray(np.sqrt(counts / np.maximum(clients.sizes, 1)[:, None]))


def label_products(clients: Federation, target: str, n_classes: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """`label_roots`, and the upper triangle of their products [clients, classes (classes + 1) / 2], compiled.

    >>> fed = Federation({"y": [0, 0, 0, 1]}, [0, 4])
    >>> label_products(fed, "y", 2, np.dtype(float))[1].round(3).tolist()
    [[0.75, 0.433, 0.25]]
    """
    n = len(clients)
    roots, pairs = np.zeros((n, n_classes)), np.empty((n, n_classes * (n_classes + 1) // 2), dtype)
    if not _add_products(clients[target].astype(np.int64), clients.offsets, roots, pairs):
        return label_roots(clients, target, n_classes), pairs  # raises: it says which classes there are
    return roots, pairs


@kernel
def _add_products(y: Array, offsets: Array, roots: Array, pairs: Array) -> bool:
    """Fill both; false if a class is out of range."""
    classes = roots.shape[1]
    for client in range(len(roots)):
        for row in range(offsets[client], offsets[client + 1]):
            if y[row] < 0 or y[row] >= classes:
                return False
            roots[client, y[row]] += 1
        n, at = max(offsets[client + 1] - offsets[client], 1), 0
        for i in range(classes):
            roots[client, i] = math.sqrt(roots[client, i] / n)
        for i in range(classes):
            for j in range(i, classes):
                pairs[client, at] = roots[client, i] * roots[client, j]
                at += 1
    return True


def looked_at(clients: Federation, held: float, most: int | None) -> tuple[Array, Array]:
    """Which rows a client looks at, and which it leaves out of training: [rows] each.

    It looks at the rows that it leaves out, a share `held` of all, evenly spaced. A client too small for one such row
    looks at rows that it trains on. At most `most` rows are looked at.

    >>> looked, out = looked_at(Federation({"y": np.arange(10)}, [0, 8, 10]), 0.25, 1)
    >>> np.flatnonzero(looked).tolist(), np.flatnonzero(out).tolist()
    ([7, 9], [7])
    """
    sizes, owner = clients.sizes, clients.client_of_row
    few = sizes if most is None else np.minimum(sizes, most)
    wanted = np.minimum((held * sizes).astype(np.int64), few)
    number, size = np.where(wanted > 0, wanted, few)[owner], sizes[owner]
    begin = (np.arange(len(owner)) - clients.offsets[:-1][owner]) * number
    looked = (begin + number) // size > begin // size  # evenly spaced
    return looked, looked & (wanted > 0)[owner]


@lru_cache(maxsize=8)
def _matrix(d: int, n: int) -> Array:
    weights: Array = _KEY.generator().standard_normal((d, n)) / np.sqrt(max(d, 1))
    return weights - weights.mean(axis=0) if d > _MANY else weights


@lru_cache(maxsize=8)
def _waves(n: int) -> Array:
    return _KEY.to("waves").generator().uniform(0, 2 * np.pi, (2, n))
