"""When a client has learned what it can: the loss of an epoch beside that of the epoch before."""

from __future__ import annotations

import torch

from fedscape.learning.local import LocalSGD
from fedscape.learning.optimisers import Rates
from fedscape.types import Tensor


class Stop:
    """Of one client: after an epoch whose mean loss is not `early_stopping` below the one before, it stops."""

    def __init__(self, local: LocalSGD, counts: list[int]) -> None:
        self.least = local.early_stopping
        self.counts = [count for count in counts if count]
        self.epoch = len(self.counts) // (local.epochs or 1)  # steps of one
        self.before, self.now = float("inf"), 0.0

    def after(self, step: int, loss: Tensor) -> bool:
        """Whether this step was the last."""
        if self.least is None:
            return False
        self.now += float(loss) * self.counts[step]
        if (step + 1) % self.epoch:
            return False
        mean, self.now = self.now / sum(self.counts[: self.epoch]), 0.0
        stop = self.before - mean < self.least
        self.before = mean
        return stop


class StopRows:
    """The same for clients side by side: those that stopped move no more."""

    def __init__(self, local: LocalSGD, counts: Tensor) -> None:
        self.least = local.early_stopping
        if self.least is not None:
            self.epoch = ((counts > 0).sum(dim=1) // (local.epochs or 1)).clamp(min=1)  # [rows]
            self.counts, self.size = counts, (counts.sum(dim=1) // (local.epochs or 1)).clamp(min=1)
            self.going = torch.ones(len(counts), dtype=local.dtype, device=counts.device)
            self.before, self.now = torch.full_like(self.going, float("inf")), torch.zeros_like(self.going)

    def slowed(self, rates: Rates, end: int) -> Rates:
        """The rates of the first rows: zero for those that stopped."""
        return rates if self.least is None else rates._replace(lr=self.going[:end] * rates.lr)

    def after(self, step: int, loss: Tensor) -> None:
        """Take note of the losses of this step's rows."""
        if self.least is None:
            return
        end = len(loss)
        self.now[:end] += loss * self.counts[:end, step]
        ended = (step + 1) % self.epoch[:end] == 0
        mean = self.now[:end] / self.size[:end]
        worse = ended & (self.before[:end] - mean < self.least)
        self.going[:end] *= ~worse
        self.before[:end] = torch.where(ended, mean, self.before[:end])
        self.now[:end] *= ~ended
