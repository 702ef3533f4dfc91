"""Low-rank updates of linear layers: input rows and output gradients in place of weight matrices.

benchmarks/fast_paths.py, rows "low-rank gradient" (1.30 times) and "low-rank update" (1.19).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedscape.types import Tensor

FEW = 64  # rows of a client below which a product is bound by reading its weights, which another type would only copy


class Factors(NamedTuple):
    """The gradient of many clients' weights as low-rank factors: output gradients [clients, rows, out] and rows.

    >>> Factors(torch.ones(1, 2, 1), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])).product().tolist()
    [[[4.0, 6.0]]]
    """

    up: Tensor
    rows: Tensor

    def product(self) -> Tensor:
        """The gradient itself, [clients, out, features]."""
        return self.up.transpose(1, 2) @ self.rows

    def descend(self, weight: Tensor, lr: Tensor) -> None:
        """SGD step with one rate per client, without materialising the gradient."""
        weight.baddbmm_((self.up * lr[:, None, None]).transpose(1, 2), self.rows, alpha=-1)


class Trail(NamedTuple):
    """The update of many clients' weight matrices as low-rank factors: input rows and output gradients of all steps.

    A matrix is where it began less up^T rows. As long as those rows are few they are smaller than the matrix, and all
    clients that began at one read the same.

    >>> trail = Trail(torch.zeros(1, 2, 1), torch.zeros(1, 2, 2))
    >>> trail.add(Factors(torch.ones(1, 1, 1), torch.tensor([[[3.0, 4.0]]])), torch.tensor([0.5]), torch.tensor(2))
    >>> trail.moved().tolist()
    [[[-1.5, -2.0]]]
    """

    up: Tensor  # [clients, places, out], gradients of the outputs times the rate
    rows: Tensor  # [clients, places, features]

    def part(self, clients: int, places: int | None = None) -> Trail:
        """The factors of the first clients and the first places."""
        return Trail(self.up[:clients, :places], self.rows[:clients, :places])

    def add(self, factors: Factors, lr: Tensor, number: Tensor) -> None:
        """Append the factors of this step, counted from 1."""
        width = factors.rows.shape[1]
        slots = (number.to(torch.int64) - 1) * width + torch.arange(width, device=number.device)
        self.up.index_copy_(1, slots, factors.up * lr[:, None, None])
        self.rows.index_copy_(1, slots, factors.rows)

    def moved(self) -> Tensor:
        """The update of each client, [clients, out, features]."""
        return -(self.up.transpose(1, 2) @ self.rows)

    def summed(self, weights: Tensor) -> Tensor:
        """The weighted sum of updates over clients; weights are [clients] or [clients, kinds], and give the dtype."""
        up, rows = (values.unflatten(0, weights.shape) for values in self)
        up = up * weights.to(up.dtype)[..., None, None]
        if weights.ndim == 2:
            up, rows = up.transpose(0, 1), rows.transpose(0, 1)
        return -(up.flatten(-3, -2).transpose(-1, -2) @ rows.flatten(-3, -2)).to(weights.dtype)


def by_turns(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows [clients, batch, features] times weights [kinds, out, features], assigned to clients round-robin.

    >>> by_turns(torch.ones(4, 1, 1), torch.tensor([[[2.0]], [[3.0]]])).flatten().tolist()
    [2.0, 3.0, 2.0, 3.0]
    """
    if len(weights) == 1:  # as one product, which a library may cut along the features
        return (rows.flatten(0, 1) @ weights[0].T).unflatten(0, rows.shape[:2])
    if len(weights) == len(rows):
        return rows @ weights.transpose(1, 2)
    mine = rows.unflatten(0, (-1, len(weights))).transpose(0, 1).flatten(1, 2)  # [kinds, clients of each x batch, ...]
    products = mine @ weights.transpose(1, 2)
    return products.unflatten(1, (-1, rows.shape[1])).transpose(0, 1).flatten(0, 1)
