"""Losses per sample, and how often a prediction is right."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn import functional

from fedscape.errors import DataError
from fedscape.types import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Minus the log probability of each sample's class: outputs [batch, classes], targets [batch].

    >>> import torch
    >>> [round(v, 4) for v in cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).tolist()]
    [1.3863, 1.3863]
    """
    return functional.cross_entropy(output, target, reduction="none")


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """Minus the log probability of each sample's 0 or 1: outputs are log odds, [batch] or [batch, 1].

    >>> import torch
    >>> [round(v, 4) for v in logistic(torch.zeros(2, 1), torch.tensor([0, 1])).tolist()]
    [0.6931, 0.6931]
    """
    odds = output.reshape(len(output))
    return functional.binary_cross_entropy_with_logits(odds, target.to(odds.dtype), reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance of each sample's output to its target: [batch] or [batch, d].

    >>> import torch
    >>> squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])).tolist()
    [0.0, 2.0]
    """
    miss = output.reshape(len(output), -1) - target.reshape(len(output), -1).to(output.dtype)
    return miss.square().sum(dim=1) / 2


def checked_loss(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    """One number per sample, or a DataError that says what to change."""
    values = loss(output, target)
    if tuple(values.shape) != (len(target),):
        raise DataError(
            f"loss must give one number per sample, [{len(target)}], not the shape {list(values.shape)}: "
            "use reduction='none', or fedscape.learning.cross_entropy"
        )
    return values


def correct(output: Tensor, target: Tensor) -> Tensor | None:
    """Whether each sample's most likely class is its target; None where the targets are no classes.

    >>> import torch
    >>> correct(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1])).tolist()
    [True, False]
    """
    if target.dtype.is_floating_point or target.ndim != 1:
        return None
    if output.ndim == 2 and output.shape[1] > 1:
        return output.argmax(dim=1) == target
    return (output.reshape(len(output)) > 0) == (target > 0)
