"""Statistics of a client: label shares, and features that do not age (fixed random maps of the inputs)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.local import LocalSGD
from fedscape.learning.trainer import trainer_of
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


def looked_at(clients: Federation, held: float, most: int | None) -> tuple[Array, Array]:
    """Which rows a client looks at, and which it leaves out of training: [rows] each.

    It looks at the rows that it leaves out, a share `held` of all, evenly spaced. A client too small for one such row
    looks at rows that it trains on. At most `most` rows are looked at.

    >>> looked, out = looked_at(Federation({"y": np.arange(10)}, [0, 8, 10]), 0.25, 1)
    >>> np.flatnonzero(looked).tolist(), np.flatnonzero(out).tolist()
    ([7, 9], [7])
    """
    few = clients.sizes if most is None else np.minimum(clients.sizes, most)
    wanted = np.minimum((held * clients.sizes).astype(np.int64), few)
    looked = _evenly(clients, np.where(wanted > 0, wanted, few))
    return looked, looked & (wanted > 0)[clients.client_of_row]


def _evenly(clients: Federation, wanted: Array) -> Array:
    """Which rows are the evenly spaced `wanted` [clients] ones of each client: [rows]."""
    position = np.arange(clients.n_rows) - clients.offsets[:-1][clients.client_of_row]
    size, number = clients.sizes[clients.client_of_row], wanted[clients.client_of_row]
    return np.asarray((position + 1) * number // size > position * number // size)


@lru_cache(maxsize=8)
def _matrix(d: int, n: int) -> Array:
    weights: Array = _KEY.generator().standard_normal((d, n)) / np.sqrt(max(d, 1))
    return weights - weights.mean(axis=0) if d > _MANY else weights


@lru_cache(maxsize=8)
def _waves(n: int) -> Array:
    return _KEY.to("waves").generator().uniform(0, 2 * np.pi, (2, n))
