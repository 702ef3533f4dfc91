"""Which rows a network can be trained on: numbers that its type holds, classes that it has an output for."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedscape.core.federation import Federation
from fedscape.core.validate import all_valid
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import cross_entropy
from fedscape.learning.trainer import trainer_of
from fedscape.types import Array


def valid_rows(local: LocalSGD, clients: Federation) -> Array | None:
    """Which rows have features, a target and a weight that training takes; None where all have.

    >>> fed = Federation({"x": [[0.0], [np.nan], [1.0]], "y": [0, 1, 7]}, [0, 3])
    >>> valid_rows(LocalSGD(nn.Linear(1, 2), cross_entropy, lr=0.1, epochs=1, batch_size=1), fed).tolist()
    [True, False, False]
    """
    x, y = clients[local.features], clients[local.target]
    weights = None if local.weights is None else clients[local.weights]
    return all_valid(
        _held(x, local),
        _embedded(x, local),
        _held(y, local),
        _classes(y, x, local),
        None if weights is None else np.isfinite(weights) & (weights >= 0),
    )


def _held(values: Array, local: LocalSGD) -> Array | None:
    """Rows whose numbers are finite in the network's type."""
    if values.dtype.kind != "f":
        return None
    inside = np.abs(values) <= torch.finfo(local.dtype).max
    return np.asarray(inside.reshape(len(values), int(np.prod(values.shape[1:]))).all(axis=1))


def _embedded(x: Array, local: LocalSGD) -> Array | None:
    """Rows whose codes all have an embedding."""
    layers = [layer for layer in local.model.modules() if isinstance(layer, nn.Embedding)]
    if x.dtype.kind not in "biu" or len(layers) != 1:
        return None
    inside = (x >= 0) & (x < layers[0].num_embeddings)
    return np.asarray(inside.reshape(len(x), int(np.prod(x.shape[1:]))).all(axis=1))


def _classes(y: Array, x: Array, local: LocalSGD) -> Array | None:
    """Rows whose class the network has an output for, where the loss is one of classes."""
    of_classes = local.loss is cross_entropy or isinstance(local.loss, nn.CrossEntropyLoss)
    if not of_classes or y.dtype.kind not in "biu" or y.ndim != 1 or not len(x):
        return None
    with torch.no_grad(), trainer_of(local).borrowed() as module:
        module.eval()
        output = module(local.inputs(torch.zeros((1, *x.shape[1:]), dtype=torch.from_numpy(x[:0].copy()).dtype)))
        module.train()
    return np.asarray((y >= 0) & (y < output.shape[-1]))  # the last axis: several branches come before it
