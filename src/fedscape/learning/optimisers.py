"""One local step of many parameters at once: SGD with momentum, and Adam; early stopping after an epoch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from fedscape.learning.local import LocalSGD
from fedscape.types import Tensor

Rate = float | Tensor  # one for all, or one for each row of a group


class Rates(NamedTuple):
    """The numbers that may differ from one row of work to the next."""

    lr: Rate
    proximal: Rate

    def rows(self, end: int) -> Rates:
        """Those of the first rows."""
        return Rates(*(r[:end] if isinstance(r, torch.Tensor) else r for r in self))

    def spread(self, clients: int, *, like: Tensor) -> Rates:
        """Each as one number for each client; those beyond the last are zero."""
        rates = []
        for rate in self:
            wide = like.new_zeros(clients)
            wide[: len(rate) if isinstance(rate, torch.Tensor) else clients] = rate
            rates.append(wide)
        return Rates(*rates)

    def only(self, which: Tensor) -> Rates:
        """Of the first clients, those that are marked; the others do not move."""
        first = self.rows(len(which))
        return first._replace(lr=first.lr * which)

    def row(self, place: int) -> Rates:
        """Those of one row."""
        return Rates(*(float(r[place]) if isinstance(r, torch.Tensor) else r for r in self))


class Memory(NamedTuple):
    """What an optimiser remembers between the steps of one round: one list of tensors for each of its moments."""

    moments: tuple[list[Tensor], ...]

    def rows(self, end: int) -> Memory:
        """That of the first rows."""
        return Memory(tuple([m[:end] for m in moment] for moment in self.moments))


def new_memory(local: LocalSGD, params: list[Tensor]) -> Memory:
    """An optimiser that remembers nothing yet."""
    number = 2 if local.optimiser == "adam" else int(local.momentum > 0)
    return Memory(tuple([torch.zeros_like(p) for p in params] for _ in range(number)))


def update(
    local: LocalSGD,
    params: list[Tensor],
    grads: list[Tensor],
    start: list[Tensor],
    memory: Memory,
    step: int | Tensor,
    rates: Rates,
) -> None:
    """Move the parameters, in place, as torch.optim.SGD and torch.optim.Adam would; steps count from 1."""
    if not params:
        return
    if local.weight_decay:
        grads = torch._foreach_add(grads, params, alpha=local.weight_decay)
    if isinstance(rates.proximal, torch.Tensor) or rates.proximal > 0:
        away = torch._foreach_sub(params, start)
        grads = _plus(grads, away, rates.proximal)
    if local.optimiser == "adam":
        _adam(local, params, grads, memory, step, rates.lr)
        return
    if local.momentum:
        (velocity,) = memory.moments
        torch._foreach_mul_(velocity, local.momentum)
        torch._foreach_add_(velocity, grads)
        grads = velocity
    _move(params, grads, rates.lr)


def _adam(
    local: LocalSGD, params: list[Tensor], grads: list[Tensor], memory: Memory, step: int | Tensor, lr: Rate
) -> None:
    first, second = memory.moments
    torch._foreach_lerp_(first, grads, 1 - local.betas[0])
    torch._foreach_mul_(second, local.betas[1])
    torch._foreach_addcmul_(second, grads, grads, 1 - local.betas[1])
    size = torch._foreach_sqrt(second)
    torch._foreach_div_(size, _seen(local.betas[1], step) ** 0.5)
    torch._foreach_add_(size, local.epsilon)
    _move(params, torch._foreach_div(first, size), lr / _seen(local.betas[0], step))


def _seen(beta: float, step: int | Tensor) -> float | Tensor:
    """1 - beta^step; of a tensor without the difference, which in float32 leaves four digits for a beta near 1."""
    return 1 - beta**step if beta == 0 or isinstance(step, int) else -torch.expm1(step * math.log(beta))


def _move(params: list[Tensor], updates: list[Tensor], rate: Rate) -> None:
    if isinstance(rate, torch.Tensor) and rate.is_cuda:  # in one pass over the weights
        torch._foreach_addcmul_(params, updates, _per_row(rate, params), -1.0)
    elif isinstance(rate, torch.Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(updates, _per_row(rate, params)))
    else:
        torch._foreach_add_(params, updates, alpha=-rate)


def _plus(grads: list[Tensor], away: list[Tensor], rate: Rate) -> list[Tensor]:
    if isinstance(rate, torch.Tensor):
        away, rate = torch._foreach_mul(away, _per_row(rate, grads)), 1.0
    summed: list[Tensor] = torch._foreach_add(grads, away, alpha=rate)
    return summed


def _per_row(rate: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [rate.reshape(-1, *[1] * (p.ndim - 1)) for p in like]


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
