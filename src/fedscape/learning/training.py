"""Two ways to train the clients of a group: one after the other, or all at once; the numbers agree to rounding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from fedscape.errors import DataError
from fedscape.federation import Federation
from fedscape.learning.layers import Module, dropout_keys, keyed_layers
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import Tensor, checked_loss
from fedscape.learning.optimisers import Rates, new_memory, update
from fedscape.learning.plan import Plan, Rows, groups, make_plan
from fedscape.ragged import rows_of
from fedscape.random import Array, Key

Tensors = dict[str, Tensor]

_RANDOM = (
    "model draws random numbers outside of torch.nn.Dropout, which no client can repeat: use torch.nn.Dropout layers"
)


class Work(NamedTuple):
    """The data rows of a group of clients, which of them each takes when, and each one's key for a dropout layer.

    A row of work is one training: a client, or in a sweep a client under one of the settings.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None
    plan: Plan
    dropout: Callable[[str, int], Array]  # (path of the layer, step) -> [rows, 2]


def deltas(local: LocalSGD, start: Tensors, clients: Federation, key: Key) -> Iterator[tuple[Array, Tensors]]:
    """Train all clients, group by group: positions of the clients, and how far each moves each parameter."""
    rates = Rates(local.rate(key.round), local.proximal)
    for positions in groups(clients.sizes, local.timing, most=local.chunk):
        yield positions, train(local, start, work_of(local, clients, positions, key), rates)


def work_of(local: LocalSGD, clients: Federation, positions: Array, key: Key) -> Work:
    """The work of these clients, which must be in falling order of size."""
    rows, offsets = rows_of(clients.offsets, positions)
    members = Rows(clients.keys[positions], offsets)
    return Work(
        local.inputs(clients, rows),
        local.targets(clients, rows),
        local.sample_weights(clients, rows),
        make_plan(members, key, local.timing),
        lambda path, step: dropout_keys(key, members, path, step),
    )


def train(local: LocalSGD, start: Tensors, work: Work, rates: Rates) -> Tensors:
    """How far each row of work moves each parameter: {name: [rows, ...]}.

    Parameters
    ----------
    local
        How to train.
    start
        Where to begin, {name: [1 or rows, ...]}.
    work
        The rows of a group.
    rates
        Learning rate and proximal weight, for all rows or for each.
    """
    with one_thread(), local.borrowed() as module:
        keys = {path: _keys_of_steps(work, path) for path, _ in keyed_layers(module)}
        run = _sequential if local.chosen == "sequential" else _vmapped
        return run(local, module, start, work, keys, rates)


def _keys_of_steps(work: Work, path: str) -> Tensor:
    """The keys of one dropout layer: [steps, rows, 2]."""
    steps = range(work.plan.counts.shape[1])
    return torch.from_numpy(np.stack([work.dropout(path, t) for t in steps])).to(work.y.device)


# -- one after the other -----------------------------------------------------------------------------------------------


def _sequential(local: LocalSGD, module: Module, start: Tensors, work: Work, keys: Tensors, rates: Rates) -> Tensors:
    named = dict(module.named_parameters())
    params = [named[name] for name in local.names]
    rows = len(work.plan.rows)
    out = {name: torch.empty((rows, *named[name].shape), dtype=p.dtype, device=p.device) for name, p in named.items()}
    for row in range(rows):
        first = [start[name][row if len(start[name]) > 1 else 0] for name in local.names]
        with torch.no_grad():
            torch._foreach_copy_(params, first)
        _steps_of_one(local, module, first, work, keys, row, rates.row(row))
        with torch.no_grad():
            for name, p, begin in zip(local.names, params, first, strict=True):
                torch.sub(p, begin, out=out[name][row])
    return {name: out[name] for name in local.names}


def _steps_of_one(
    local: LocalSGD, module: Module, first: list[Tensor], work: Work, keys: Tensors, row: int, rates: Rates
) -> None:
    named, random_layers = dict(module.named_parameters()), list(keyed_layers(module))
    params = [named[name] for name in local.names]
    memory = new_memory(local, params)
    index = torch.from_numpy(work.plan.rows[row]).to(work.y.device)
    for t, count in enumerate(work.plan.counts[row].tolist()):
        if count == 0:
            break
        for path, layer in random_layers:
            layer.key.copy_(keys[path][t, row])
        batch = index[t, :count]
        losses = checked_loss(local.loss, _forward(module, work.x[batch]), work.y[batch])
        weighted = losses if work.weights is None else losses * work.weights[batch]
        grads = torch.autograd.grad(weighted.sum() / count, params, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            update(local, params, list(grads), first, memory, t + 1, rates)


def _forward(module: Module, x: Tensor) -> Tensor:
    """The output; at the first call it is made sure that nothing was drawn from the global generator."""
    if getattr(module, "_keyed", False):
        return module(x)
    before = torch.default_generator.get_state()
    output = module(x)
    if not torch.equal(before, torch.default_generator.get_state()):
        torch.default_generator.set_state(before)
        raise DataError(_RANDOM)
    module._keyed = True
    return output


# -- all at once -------------------------------------------------------------------------------------------------------


def _vmapped(local: LocalSGD, module: Module, start: Tensors, work: Work, keys: Tensors, rates: Rates) -> Tensors:
    plan, names = work.plan, local.names
    rows = len(plan.rows)
    params = {name: start[name].expand(rows, *start[name].shape[1:]).clone() for name in names}
    memory = new_memory(local, list(params.values()))
    gradient = vmap(grad(_batch_loss(local, module)))
    index = torch.from_numpy(plan.rows).to(work.y.device)
    counts = torch.from_numpy(plan.counts).to(work.y.device)
    for t in range(plan.counts.shape[1]):
        end, width = plan.active(t)  # clients are in falling order of size: those that still train come first
        batch, number = index[:end, t, :width], counts[:end, t, None]
        share = (torch.arange(width, device=number.device) < number).to(local.dtype) / number
        if work.weights is not None:
            share = share * work.weights[batch]
        part = {name: p[:end] for name, p in params.items()}
        random = {f"{path}.key": k[t, :end] for path, k in keys.items()}
        try:
            grads = gradient(part, random, work.x[batch], work.y[batch], share)
        except RuntimeError as error:
            raise DataError(_RANDOM) if "random operation" in str(error) else error from None
        begin = [start[name][:end] for name in names]
        now = [part[name] for name in names]
        update(local, now, [grads[name] for name in names], begin, memory.rows(end), t + 1, rates.rows(end))
    return {name: params[name].sub_(start[name]) for name in names}


def _batch_loss(local: LocalSGD, module: Module) -> Callable[[Tensors, Tensors, Tensor, Tensor, Tensor], Tensor]:
    def batch_loss(params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        output = functional_call(module, (params, random), (x,))
        return (checked_loss(local.loss, output, y) * share).sum()

    return batch_loss


# -- one thread per block ----------------------------------------------------------------------------------------------


class _Threads:
    """Torch's threads while blocks run: one; the number from before comes back with the last block."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.before = 1

    def enter(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.before = _of_new_thread()
            self.inside += 1
            torch.set_num_threads(1)

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            torch.set_num_threads(self.before)


_THREADS = _Threads()


def _of_new_thread() -> int:
    """How many threads torch gives a new thread: what `torch.set_num_threads` sets for all but those that exist.

    This thread's own number says nothing, because the engine may have limited it already.
    """
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in this thread: the engine runs whole blocks side by side.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    _THREADS.enter()
    try:
        yield
    finally:
        _THREADS.leave()
