"""The reference loop: gradients and local steps of one client after the other, or of a group of them under vmap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch.func import functional_call, grad_and_value, vmap

from fedscape.errors import DataError
from fedscape.learning.batches import Feed, Work, keys_of
from fedscape.learning.device import Device
from fedscape.learning.layers import Centre, Module, ShiftedLinear, keyed_layers, shifted_layer
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import checked_loss
from fedscape.learning.optimisers import Rates, Stop, StopRows, new_memory, update
from fedscape.types import Array, Tensor, Tensors

Gradient = Callable[[Tensors, Tensors, Tensor, Tensor, Tensor], tuple[Tensors, Tensor]]


@contextmanager
def precise(local: LocalSGD) -> Iterator[None]:
    """Within it products on a GPU are as exact as `local.precision` says."""
    if not local.on_gpu:
        yield
        return
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = local.precision != "exact"
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def output_of(local: LocalSGD, module: Module, x: Tensor, *with_params: Any) -> Tensor:
    """The model's output for rows as they are stored."""
    if local.precision != "bf16":
        return functional_call(module, with_params, (local.inputs(x),)) if with_params else module(local.inputs(x))
    with torch.autocast("cuda", torch.bfloat16):
        output = functional_call(module, with_params, (local.inputs(x),)) if with_params else module(local.inputs(x))
    return output.to(local.dtype)


def by_client(local: LocalSGD, module: Module) -> Gradient:
    """Gradients and losses of a batch of each client, whatever the model does."""

    def batch_loss(params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        return (checked_loss(local.loss, output_of(local, module, x, params, random), y) * share).sum()

    return vmap(grad_and_value(batch_loss))  # type: ignore[no-any-return]


def by_client_centred(local: LocalSGD, module: Module, centre: Centre, rows: int) -> Gradient:
    """The same with the term of a centre in the loss; it holds the running mean of each client."""
    layer, means = shifted_layer(module), centre.target.new_zeros((rows, len(centre.target)))

    def batch_loss(
        params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor]:
        output, z = _with_inputs(layer, lambda: output_of(local, module, x, params, random))
        mean = centre.moved(before, z, (share > 0).to(share.dtype))
        return (checked_loss(local.loss, output, y) * share).sum() + centre.loss(mean), mean

    each = vmap(grad_and_value(batch_loss, has_aux=True))

    def gradient(params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensors, Tensor]:
        grads, (loss, now) = each(params, random, x, y, share, means[: len(x)])
        means[: len(x)] = now.detach()
        return grads, loss

    return gradient


def _with_inputs(layer: ShiftedLinear, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What a model gives, and the inputs of this layer of it."""
    layer.seen = []
    try:
        output = run()
        return output, layer.seen[-1]
    finally:
        layer.seen = None


Look = Callable[[int, Module], None]

_RANDOM = (
    "model draws random numbers outside of torch.nn.Dropout, which no client can repeat: use torch.nn.Dropout layers"
)


def each_start(params: Tensors, rows: int) -> Tensors:
    """The start of each row of work, several kinds round-robin; unchanged where all rows share one start."""
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
    total = weighted_sums(rows, factors[None]).reshape(rows.shape[1:])
    return total if onto is None else onto.add_(total)


def weighted_sums(rows: Tensor, factors: Tensor) -> Tensor:
    """Sums of the rows [n, ...] times each line of factors [k, n], in float64: [k, numbers of a row].

    A few rows at a time are taken to the wider type, so that they stay in the cache.
    """
    flat = rows.reshape(len(rows), -1)
    if rows.device.type != "cpu":
        return factors @ flat.to(torch.float64)
    total, together = factors.new_zeros((len(factors), flat.shape[1])), max(4, 2**18 // max(flat.shape[1], 1))
    for part, mine in zip(flat.split(together), factors.split(together, dim=1), strict=True):
        total.addmm_(mine, part.to(torch.float64))
    return total


def summed(moved: Tensors, weights: Array, each: Collection[str] = ()) -> Tensors:
    """The weighted sums of the moves over rows; those of the parameters in `each` stay as they are."""
    return {n: p if n in each else weighted_sum(p, weights) for n, p in moved.items()}


# -- one after the other -----------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """The local steps of one client: its module, where a proximal weight pulls to, rates, and the loss of a step."""

    module: Module
    anchor: Tensors
    rates: Rates
    counts: list[int]  # rows of each step
    loss: Callable[[int], Tensor]


def sequential(
    device: Device,
    module: Module,
    start: Tensors,
    anchor: Tensors,
    work: Work,
    rates: Rates,
    *,
    drift: Tensors | None,
    look: Look | None,
    centre: Centre | None,
    descend: Callable[[LocalSGD, Steps], None],
) -> Tensors:
    """Train one row of work after the other; `descend` makes the steps of one, `look` sees each trained module."""
    local, named, keys = device.local, dict(module.named_parameters()), keys_of(device, work)
    params = [named[name] for name in local.names]
    rows = len(work.plan.rows)
    out = {n: p.new_empty((rows, *p.shape)) for n, p in zip(local.names, params, strict=True)}
    for row in range(rows):
        first, to = (
            {name: at[name][row if len(at[name]) > 1 else 0] for name in local.names} for at in (start, anchor)
        )
        with torch.no_grad():
            torch._foreach_copy_(params, list(first.values()))
        loss = loss_of_steps(local, module, work, {path: k[:, row] for path, k in keys.items()}, row, centre)
        own, counts = rates.row(row), work.plan.counts[row].tolist()
        pushed = [] if drift is None else [drift[name][row] for name in local.names]
        if pushed:
            loss = _pushing(loss, params, pushed, -float(own.lr))
        descend(local, Steps(module, to, own, counts, loss))
        with torch.no_grad():
            if pushed and any(counts):
                torch._foreach_add_(params, pushed, alpha=-float(own.lr))
            for p, (name, begin) in zip(params, first.items(), strict=True):
                torch.sub(p, begin, out=out[name][row])
            if look is not None:
                look(row, module)
    return out


def loss_of_steps(
    local: LocalSGD, module: Module, work: Work, keys: Tensors, row: int, centre: Centre | None = None
) -> Callable[[int], Tensor]:
    """The mean loss of a client's batch as a function of the step, dropout keyed for that step."""
    data, random_layers = work.data, list(keyed_layers(module))
    shifted = None if centre is None else shifted_layer(module)
    mean: list[Tensor] = []  # the running mean of the centre
    index = torch.from_numpy(work.plan.rows[row]).to(data.y.device)
    counts = work.plan.counts[row].tolist()

    def loss_of(t: int) -> Tensor:
        for path, layer in random_layers:
            layer.key.copy_(keys[path][t])
        batch = index[t, : counts[t]]
        weights = None if data.weights is None else data.weights[batch]
        if centre is None or shifted is None:
            losses = checked_loss(local.loss, output_of(local, module, data.x[batch]), data.y[batch])
            return (losses if weights is None else losses * weights).sum() / counts[t]
        output, z = _with_inputs(shifted, lambda: output_of(local, module, data.x[batch]))
        losses = checked_loss(local.loss, output, data.y[batch])
        real = torch.ones_like(losses) if weights is None else (weights > 0).to(losses.dtype)
        now = centre.moved(mean[-1] if t else torch.zeros_like(centre.target), z, real)
        mean[:] = [now.detach()]
        return (losses if weights is None else losses * weights).sum() / counts[t] + centre.loss(now)

    return loss_of


def _pushing(
    loss: Callable[[int], Tensor], params: list[Tensor], drift: list[Tensor], rate: float
) -> Callable[[int], Tensor]:
    """The loss of a step, before which the drift of the step before has moved the parameters."""

    def loss_of(t: int) -> Tensor:
        if t:
            with torch.no_grad():
                torch._foreach_add_(params, drift, alpha=rate)
        return loss(t)

    return loss_of


def descend(local: LocalSGD, steps: Steps) -> None:
    """Make the steps of one client: gradients by autograd, then the optimiser."""
    named = {n: p for n, p in steps.module.named_parameters() if n in steps.anchor}
    params, to = list(named.values()), [steps.anchor[name] for name in named]
    memory, stop = new_memory(local, params), Stop(local, steps.counts)
    for t in range(len(stop.counts)):
        loss = steps.loss(t)
        grads = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            update(local, params, list(grads), to, memory, t + 1, steps.rates)
        if stop.after(t, loss.detach()):
            break


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Refuse a model that draws from torch's global generator within it."""
    before = torch.default_generator.get_state()
    yield
    if not torch.equal(before, torch.default_generator.get_state()):
        torch.default_generator.set_state(before)
        raise DataError(_RANDOM)


@contextmanager
def no_random_operation() -> Iterator[None]:
    """Within it what vmap says of a random operation is a DataError."""
    try:
        yield
    except RuntimeError as error:
        raise DataError(_RANDOM) if "random operation" in str(error) else error from None


# -- all at once -------------------------------------------------------------------------------------------------------


def side_by_side(
    device: Device,
    module: Module,
    start: Tensors,
    anchor: Tensors,
    work: Work,
    rates: Rates,
    still: Collection[str],
    drift: Tensors | None,
    centre: Centre | None = None,
) -> Tensors:
    """Train all rows of work at once under vmap; parameters that are `still` stay."""
    local, plan, rows = device.local, work.plan, len(work.plan.rows)
    names = local.names
    params = {name: start[name].expand(rows, *start[name].shape[1:]).clone() for name in names}
    moving = [name for name in names if name not in still]
    memory = new_memory(local, [params[name] for name in moving])
    gradient = by_client(local, module) if centre is None else by_client_centred(local, module, centre, rows)
    feed = Feed(device, work, padded=False)
    stop = StopRows(local, feed.counts)
    for t in range(plan.counts.shape[1]):
        end, width = plan.active(t)  # clients are in falling order of size: those that still train come first
        batch = feed.batch(t, end, width)
        part = {name: p[:end] for name, p in params.items()}
        with no_random_operation():
            grads, loss = gradient(part, batch.random, batch.x, batch.y, batch.share)
        if drift is not None:
            grads = {name: g + drift[name][:end] for name, g in grads.items()}
        now, steps, to = ([at[name][:end] for name in moving] for at in (part, grads, anchor))
        update(local, now, steps, to, memory.rows(end), t + 1, stop.slowed(rates.rows(end), end))
        stop.after(t, loss)
    return {name: params[name].sub_(start[name]) for name in names}


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
        reason = str(error).splitlines()[0]
        raise DataError(
            f"the column {local.target!r} holds a class that the model has no output for: {reason}"
        ) from None


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
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return numbers[0]


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
