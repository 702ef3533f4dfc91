"""Ways to train a group of clients: one after the other, all at once, by a program; they agree to rounding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch

from fedscape.core.federation import Federation
from fedscape.core.random import Array, Key
from fedscape.errors import DataError
from fedscape.learning.batches import Feed, Work, keys_of, padded_to, room_for, rounded, works_of
from fedscape.learning.fast.program import Program, records
from fedscape.learning.fast.scripted import train_stack
from fedscape.learning.gradients import Tensors, by_client, output_of, precise
from fedscape.learning.layers import Module, keyed_layers, self_moving
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import Tensor, checked_loss
from fedscape.learning.optimisers import Rates, new_memory, update
from fedscape.learning.stopping import Stop, StopRows

_COMPILING = threading.Lock()  # torch compiles one function at a time, and a GPU takes its work from one thread as well

_RANDOM = (
    "model draws random numbers outside of torch.nn.Dropout, which no client can repeat: use torch.nn.Dropout layers"
)


def deltas(
    local: LocalSGD, start: Tensors, clients: Federation, key: Key, *, weights: Array | None = None
) -> Iterator[tuple[Array, Tensors]]:
    """Train all clients, group by group: positions of the clients, and how far each moves each parameter.

    With `weights`, one for each client, the weighted sums over the group instead, where the program makes them.
    """
    rates = Rates(local.rate(key.round), local.proximal)
    for positions, work in works_of(local, clients, key):
        yield positions, train(local, start, work, rates, weights=None if weights is None else weights[positions])


def train(
    local: LocalSGD,
    start: Tensors,
    work: Work,
    rates: Rates,
    anchor: Tensors | None = None,
    *,
    weights: Array | None = None,
    still: Collection[str] = (),
    look: Callable[[int, Module], None] | None = None,
) -> Tensors:
    """How far each row of work moves each parameter: {name: [rows, ...]}, or with weights the sum of that as float64.

    Sums are taken in float64, but for those that a program makes of a `Trail`: these are products in the model's type.

    Parameters
    ----------
    local
        How to train.
    start
        Where to begin, {name: [1, kinds or rows, ...]}: rows of work take them by turns.
    work
        The rows of a group.
    rates
        Learning rate and proximal weight, for all rows or for each.
    anchor
        What the proximal weight pulls to, like `start`; by default where training begins.
    weights
        One for each row of work: the sum over rows, so weighted, is wanted and not the rows. As [clients, kinds], where
        a client has a row of each kind, sums over clients: {name: [kinds, ...]}.
    still
        Parameters that stay as they are, on each row its own.
    look
        Where rows train one after the other, called with the row and the module that it has just trained.
    """
    rows = len(work.plan.rows)
    if local.chosen != "compiled" or still:
        start, anchor = each_start(start, rows), None if anchor is None else each_start(anchor, rows)
    to = start if anchor is None else anchor
    if local.chosen == "scripted":
        several = weights is not None and weights.ndim == 2
        how: Any = {"weights": None if several else weights, "still": still}
        with one_thread():
            moved = train_stack(local, start, to, work.data, work.plan, rates, **how)
        if moved is not None and weights is not None and several:
            return {n: weighted_sum(p, weights) for n, p in moved.items()}
        if moved is not None:
            return moved
    one_by_one = _COMPILING if local.fallback == "compiled" else nullcontext()
    here = torch.cuda.device(local.device) if local.on_gpu else one_thread()
    with here, one_by_one, precise(local), local.borrowed("train") as module, known_classes(local):
        if local.fallback == "compiled" and not still:
            return _programmed(local, module, start, to, work, rates, weights)
        given, alone = (start, to, work, rates), local.fallback == "sequential" and not still
        made = _sequential(local, module, *given, look) if alone else _side_by_side(local, module, *given, still)
        return made if weights is None else {n: weighted_sum(moved, weights) for n, moved in made.items()}


def each_start(params: Tensors, rows: int) -> Tensors:
    """Where each row of work begins, of several kinds by turns; as given where all begin at one place."""
    several = {n for n, p in params.items() if 1 < len(p) < rows}
    return {n: p.repeat(rows // len(p), *[1] * (p.ndim - 1)) if n in several else p for n, p in params.items()}


def weighted_sum(rows: Tensor, weights: Array, *, onto: Tensor | None = None) -> Tensor:
    """The rows times their weights, summed in float64; onto a sum that there is, in place."""
    if weights.ndim == 2:  # [clients, kinds]: a sum for each kind
        each = rows.unflatten(0, weights.shape)
        return torch.stack([weighted_sum(each[:, k], weights[:, k]) for k in range(weights.shape[1])])
    if 0 < len(rows) <= 8:  # large models come a few at a time: no copy of all in the wider type
        for row, factor in zip(rows, weights.tolist(), strict=True):
            wide = row.to(torch.float64, copy=onto is None)  # without a copy it is slower
            onto = wide.mul_(factor) if onto is None else onto.add_(wide, alpha=factor)
        return cast(Tensor, onto)
    factors = torch.as_tensor(weights, device=rows.device, dtype=torch.float64)
    total = (factors @ rows.reshape(len(rows), -1).to(torch.float64)).reshape(rows.shape[1:])
    return total if onto is None else onto.add_(total)


# -- one after the other -----------------------------------------------------------------------------------------------


def _sequential(
    local: LocalSGD,
    module: Module,
    start: Tensors,
    anchor: Tensors,
    work: Work,
    rates: Rates,
    look: Callable[[int, Module], None] | None,
) -> Tensors:
    named, keys = dict(module.named_parameters()), keys_of(local, work)
    params = [named[name] for name in local.names]
    rows = len(work.plan.rows)
    out = {name: torch.empty((rows, *p.shape), dtype=p.dtype, device=p.device) for name, p in named.items()}
    for row in range(rows):
        first, to = (
            {name: at[name][row if len(at[name]) > 1 else 0] for name in local.names} for at in (start, anchor)
        )
        with torch.no_grad():
            torch._foreach_copy_(params, list(first.values()))
        _steps_of_one(local, module, to, work, {path: k[:, row] for path, k in keys.items()}, row, rates.row(row))
        with torch.no_grad():
            for p, (name, begin) in zip(params, first.items(), strict=True):
                torch.sub(p, begin, out=out[name][row])
            if look is not None:
                look(row, module)
    return {name: out[name] for name in local.names}


def _steps_of_one(
    local: LocalSGD, module: Module, anchor: Tensors, work: Work, keys: Tensors, row: int, rates: Rates
) -> None:
    data, random_layers = work.data, list(keyed_layers(module))
    index = torch.from_numpy(work.plan.rows[row]).to(data.y.device)
    counts = work.plan.counts[row].tolist()

    def loss_of(t: int) -> Tensor:
        for path, layer in random_layers:
            layer.key.copy_(keys[path][t])
        batch = index[t, : counts[t]]
        losses = checked_loss(local.loss, output_of(local, module, data.x[batch]), data.y[batch])
        return (losses if data.weights is None else losses * data.weights[batch]).sum() / counts[t]

    with _self_moving(local, module, rates, lambda: loss_of(0).backward()) as moving:
        named = {n: p for n, p in module.named_parameters() if n in anchor and id(p) not in moving}
        params, to = list(named.values()), [anchor[name] for name in named]
        memory = new_memory(local, params)
        stop = Stop(local, counts)
        for t in range(len(stop.counts)):
            loss = loss_of(t)
            grads = _gradients(loss, params, bool(moving))
            with torch.no_grad():
                update(local, params, grads, to, memory, t + 1, rates)
            if stop.after(t, loss.detach()):
                break


def _gradients(loss: Tensor, params: list[Tensor], moving: bool) -> list[Tensor]:
    if not moving:
        return list(torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True))
    loss.backward()  # reaches the layers that move by themselves, too
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    for p in params:
        p.grad = None
    return grads


@contextmanager
def _self_moving(
    local: LocalSGD, module: Module, rates: Rates, backward: Callable[[], None]
) -> Iterator[frozenset[int]]:
    """Within it linear layers move their own weights, where plain SGD allows it; the ids of those weights."""
    if not hasattr(module, "_moving"):
        module._moving = self_moving(module, _drawing_nothing(backward))
    plain = local.optimiser == "sgd" and not local.momentum and rates.proximal == 0
    layers = module._moving if plain else []
    for layer in layers:
        layer.rate, layer.keep = rates.lr, 1 - rates.lr * local.weight_decay
    try:
        yield frozenset(id(p) for layer in layers for p in layer.parameters())
    finally:
        for layer in layers:
            layer.rate = None


def _drawing_nothing(run: Callable[[], None]) -> Callable[[], None]:
    """The same, made sure that nothing is drawn from the global generator."""

    def checked() -> None:
        before = torch.default_generator.get_state()
        run()
        if not torch.equal(before, torch.default_generator.get_state()):
            torch.default_generator.set_state(before)
            raise DataError(_RANDOM)

    return checked


# -- all at once -------------------------------------------------------------------------------------------------------


def _side_by_side(
    local: LocalSGD,
    module: Module,
    start: Tensors,
    anchor: Tensors,
    work: Work,
    rates: Rates,
    still: Collection[str],
) -> Tensors:
    plan, names, rows = work.plan, local.names, len(work.plan.rows)
    params = {name: start[name].expand(rows, *start[name].shape[1:]).clone() for name in names}
    moving = [name for name in names if name not in still]
    memory = new_memory(local, [params[name] for name in moving])
    gradient, feed = by_client(local, module), Feed(local, work, padded=False)
    stop = StopRows(local, feed.counts)
    for t in range(plan.counts.shape[1]):
        end, width = plan.active(t)  # clients are in falling order of size: those that still train come first
        batch = feed.batch(t, end, width)
        part = {name: p[:end] for name, p in params.items()}
        try:
            grads, loss = gradient(part, batch.random, batch.x, batch.y, batch.share)
        except RuntimeError as error:
            raise DataError(_RANDOM) if "random operation" in str(error) else error from None
        now, steps, to = ([at[name][:end] for name in moving] for at in (part, grads, anchor))
        update(local, now, steps, to, memory.rows(end), t + 1, stop.slowed(rates.rows(end), end))
        stop.after(t, loss)
    return {name: params[name].sub_(start[name]) for name in names}


def _programmed(
    local: LocalSGD,
    module: Module,
    start: Tensors,
    anchor: Tensors,
    work: Work,
    rates: Rates,
    weights: Array | None,
) -> Tensors:
    """The same by a compiled program; where clients differ in size, padded so that few shapes need one."""
    plan, names, rows = work.plan, local.names, len(work.plan.rows)
    kinds = 1 if weights is None else rows // len(weights)
    feed = work.feed if work.feed is not None else Feed(local, work, kinds=kinds)
    ragged, room, wide = feed.ragged, feed.room, feed.wide
    pulled = isinstance(rates.proximal, torch.Tensor) or rates.proximal > 0
    to = {n: anchor[n] for n in names} if pulled else None
    steps, shared_start = plan.counts.shape[1], rows > 1 and all(len(start[n]) in (1, kinds) for n in names)
    program = _program_for(local, module, to, shared=weights is not None and shared_start)
    places = room_for(steps * wide, ragged=ragged)
    begun = {n: start[n] for n in names}
    stop, rates = StopRows(local, feed.counts), rates.spread(room, like=feed.shares)
    weigh = None if weights is None else local.sent(weights.astype(np.float64))
    if weigh is not None and program.shared:
        weigh = padded_to(weigh, room // kinds)  # those behind stay where they begin: few sizes, few programs
        if records(local) and to is None and not ragged and local.early_stopping is None:
            program.make_ready(begun, to, room, places)
            made = program.whole(begun, feed.all(), rates, weigh)
            if made is not None:
                return made
    program.begin(begun, to, room, places)
    for t in range(steps):
        end = rounded(plan.active(t)[0], rows, kinds) if ragged else rows
        going = rates.rows(end) if not ragged else rates.only(feed.counts[:end, t] > 0)
        try:
            loss = program.step(feed.batch(t, end, wide), t + 1, stop.slowed(going, end))
        except RuntimeError as error:
            raise DataError(_RANDOM) if "random operation" in str(error) else error from None
        stop.after(t, loss)
    if weigh is not None:
        return program.summed(begun, weigh)
    begun = each_start(begun, rows)
    return {name: program.params[name][:rows] - begun[name] for name in names}


def _program_for(local: LocalSGD, module: Module, anchor: Tensors | None, *, shared: bool) -> Program:
    """The module's program for this kind of pull: methods that train with and without one need not compile again."""
    kind = (0 if anchor is None else min(len(next(iter(anchor.values()))), 2), shared)
    if not hasattr(module, "_programs"):
        module._programs = {}
    programs = cast(dict[tuple[int, bool], Program], module._programs)
    if kind not in programs:
        programs[kind] = Program(local, module, shared=shared)
    return programs[kind]


@contextmanager
def known_classes(local: LocalSGD) -> Iterator[None]:
    """Within it a class without an output, or a code without an embedding, is a DataError that names the column."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if "index out of range in self" in str(error):  # as torch says of embeddings
            raise DataError(f"the column {local.features!r} holds a code that the model has no embedding of") from None
        if "out of bounds" not in str(error):
            raise
        said = str(error).splitlines()[0]
        raise DataError(f"the column {local.target!r} holds a class that the model has no output for: {said}") from None


# -- one thread per block ----------------------------------------------------------------------------------------------


class _Threads(threading.local):
    """Torch's threads while blocks run: one; the number from before comes back where a thread leaves its last block."""

    lock = threading.Lock()
    inside = 0  # threads that are in a block
    before = 1

    def __init__(self) -> None:
        self.depth = 0  # of this thread

    def enter(self) -> None:
        self.depth += 1
        if self.depth > 1:
            return
        with _Threads.lock:
            if _Threads.inside == 0:
                _Threads.before = _of_new_thread()
            _Threads.inside += 1
            torch.set_num_threads(1)

    def leave(self) -> None:
        self.depth -= 1
        if self.depth:
            return
        with _Threads.lock:
            _Threads.inside -= 1
            torch.set_num_threads(_Threads.before)


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
