"""Inputs for the Gaussians of FedGMM in place of the features: a projection or an embedding of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.learning.export import module_of
from fedscape.learning.layers import Module, drawing
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import one_thread, precise
from fedscape.learning.trainer import trainer_of
from fedscape.statistics.moments import Moments
from fedscape.types import Array, Tensor

BATCH = 512  # rows whose inputs stay in the cache: convolutions of 2,048 take nearly twice as long a row


def principal_directions(moments: Moments, n: int) -> tuple[Array, Array]:
    """Mean [d] and the n leading directions [d, n] of fitted Moments: PCA from two sums, without pooling rows.

    >>> moments = Moments().fit(Federation({"x": [[0.0, 0.0], [4.0, 0.1], [8.0, 0.0]]}, [0, 1, 3]))
    >>> np.abs(principal_directions(moments, 1)[1]).round(1).tolist()
    [[1.0], [0.0]]
    """
    moments._check_fitted("mean_")
    if not 1 <= n <= len(moments.mean_):
        raise DataError(f"n must be from 1 to the {len(moments.mean_)} features, not {n}")
    _, vectors = np.linalg.eigh(moments.covariance_)  # in ascending order of the eigenvalues
    return moments.mean_, vectors[:, ::-1][:, :n]


def with_projection(
    fed: Federation, moments: Moments, n: int, *, residual: bool = False, name: str = "z"
) -> Federation:
    """Add a column of the n principal components of the rows; every client computes its own.

    Parameters
    ----------
    fed
        The rows.
    moments
        Fitted to the rows of the clients that train.
    n
        Number of components.
    residual
        Whether to add the norm of the part outside the components, on a log scale, as one more feature.
    name
        Name of the new column.

    >>> fed = Federation({"x": [[0.0, 0.0], [4.0, 0.1], [8.0, 0.0]]}, [0, 1, 3])
    >>> with_projection(fed, Moments().fit(fed), 1)["z"].shape
    (3, 1)
    """
    basis = principal_directions(moments, n)
    return fed.with_column(name, projected(fed[moments.column], *basis, residual=residual))


def projected(values: Array, mean: Array, directions: Array, *, residual: bool = False) -> Array:
    """Project rows [rows, ...] about a mean [d] on directions [d, n]: [rows, n], plus one column with `residual`.

    >>> projected(np.array([[3.0, 4.0]]), np.zeros(2), np.eye(2)[:, :1]).tolist()
    [[3.0]]
    """
    n = directions.shape[1]
    out = np.empty((len(values), n + residual))
    for begin in range(0, len(values), BATCH):
        part = values[begin : begin + BATCH]
        away = part.reshape(len(part), -1) - mean
        out[begin : begin + BATCH, :n] = inside = away @ directions
        if residual:
            rest = np.linalg.norm(away - inside @ directions.T, axis=1)
            out[begin : begin + BATCH, n] = np.log(rest + 1e-6)
    return out


def with_embedding(fed: Federation, local: LocalSGD, state: Any, *, name: str = "z") -> Federation:
    """Add a column with the input of the last linear layer of a trained network.

    Parameters
    ----------
    fed
        The rows; every client computes its own.
    local
        Has the model and the column.
    state
        A state with `model.<parameter>` arrays, for instance FedAvg's last.
    name
        Name of the new column.

    >>> from fedscape.learning import cross_entropy, models
    >>> local = LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> state = {f"model.{n}": p for n, p in local.parameters().items()}
    >>> with_embedding(Federation({"x": np.eye(4)}, [0, 4]), local, state)["z"].shape
    (4, 8)
    """
    trainer = trainer_of(local)
    begins = range(0, max(fed.n_rows, 1), BATCH)
    parts = embedded(local, state, (trainer.column(fed, local.features, slice(b, b + BATCH)) for b in begins))
    return fed.with_column(name, np.concatenate([part.cpu().numpy() for part in parts]).astype(np.float64))


def embedded(local: LocalSGD, state: Any, rows: Iterable[Tensor]) -> Iterator[Tensor]:
    """The inputs of the last linear layer, [rows, d], for each part of some rows as they are stored."""
    module = module_of(local.model, state).to(local.device)
    captured: list[Tensor] = []
    handle = last_linear(module).register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0].detach()))
    for part in rows:
        with one_thread(), precise(local), torch.no_grad():
            module(local.inputs(part))
        yield captured.pop().flatten(1)
    handle.remove()


def last_linear(module: Module) -> Module:
    """The last linear layer of a model: its inputs are the features, its outputs the classes."""
    layers = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    if not layers:
        raise DataError("the model has no linear layer whose input could be an embedding")
    return layers[-1]


def with_last(model: Module, kind: type, what: str, **settings: Any) -> Module:
    """A copy of the model whose last linear layer is of this kind, a subclass of Linear, with the same weights.

    Others that the layer has are drawn from a fixed seed.
    """
    if not last_linear(model).weight.requires_grad:
        raise DataError(f"the last linear layer gets {what}, and its weights must be trained, but they are frozen")
    twin = torch.nn.Sequential(copy.deepcopy(model))
    old = last_linear(twin)
    with drawing(0):
        new = kind(old.in_features, old.out_features, bias=old.bias is not None, **settings).to(old.weight)
    with torch.no_grad():
        new.weight.copy_(old.weight)
        if old.bias is not None:
            new.bias.copy_(old.bias)
    for parent in twin.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)
    return twin[0]
