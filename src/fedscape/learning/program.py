"""A local step of many clients as one program: gradients and update compiled together, on a GPU recorded."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedscape.learning.folded import FEW, FoldedLinear, agree, folded
from fedscape.learning.layers import Module, trainable_copy
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import Tensor, checked_loss
from fedscape.learning.optimisers import Rates, new_memory, update

Tensors = dict[str, Tensor]

MANY = 4_000  # operations of a step from which compiling takes minutes: a network that is unrolled over time, say
ROUGH = 0.3  # how far gradients of shorter products may be from those of long ones, as a share of their length
_NUMBERS = itertools.count()


class Batch(NamedTuple):
    """What one local step takes: rows [clients, batch, ...], targets, the share of each row, and keys of dropout."""

    x: Tensor
    y: Tensor
    share: Tensor
    random: Tensors


class Factors(NamedTuple):
    """The gradient of many clients' weight matrices, unmade: gradients of the outputs [clients, rows, out] and rows."""

    up: Tensor
    rows: Tensor

    def product(self) -> Tensor:
        """The gradient itself, [clients, out, features]."""
        return self.up.transpose(1, 2) @ self.rows

    def descend(self, weight: Tensor, lr: Tensor) -> None:
        """Move the weights by minus the rate of each client times the gradient, which is never written down."""
        weight.baddbmm_((self.up * lr[:, None, None]).transpose(1, 2), self.rows, alpha=-1)


Gradients = dict[str, Tensor | Factors]
Gradient = Callable[[Tensors, Tensors, Tensor, Tensor, Tensor], tuple[Gradients, Tensor]]


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
        made = functional_call(module, with_params, (local.inputs(x),)) if with_params else module(local.inputs(x))
    return made.to(local.dtype)


def by_client(local: LocalSGD, module: Module) -> Gradient:
    """Gradients and losses of a batch of each client, whatever the model does."""

    def batch_loss(params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        return (checked_loss(local.loss, output_of(local, module, x, params, random), y) * share).sum()

    return vmap(grad_and_value(batch_loss))  # type: ignore[no-any-return]


def in_one_batch(
    local: LocalSGD,
    module: Module,
    compiled: Callable[[Any], Any] = lambda f: f,
    *,
    probes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Gradient:
    """The same of a `folded` model: the sum over clients has each client's gradient in its own weights.

    `probes` has the paths of linear layers whose weights' gradients are wanted as factors, with the shapes of their
    outputs, see `thin_layers`.
    """
    frozen = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    layers = {path: module.get_submodule(path) for path in probes}

    def loss_of_all(params: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> tuple[Any, ...]:
        same = {n: p.expand(len(share), *p.shape) for n, p in frozen.items()}
        output = functional_call(module, (same, params, random), (local.inputs(x.flatten(0, 1)),)).to(local.dtype)
        rows = checked_loss(local.loss, output, y.flatten(0, 1))
        each = (rows.reshape(share.shape) * share).sum(dim=1)
        return each.sum(), each.detach(), [layer.rows for layer in layers.values()]

    forward = compiled(loss_of_all)

    def gradient(params: Tensors, *batch: Any) -> tuple[Gradients, Tensor]:
        thin = {_member(path, "weight"): _member(path, "probe") for path in probes}
        leaves = {n: p.detach().requires_grad_() for n, p in params.items() if n not in thin}
        fixed = {n: params[n].detach() for n in thin}
        like = next(iter(params.values()))
        zeros = {_member(path, "probe"): like.new_zeros(shape).requires_grad_() for path, shape in probes.items()}
        with torch.enable_grad(), _watched(layers.values()):
            total, each, given = forward({**leaves, **fixed, **zeros}, *batch)
        wanted = {**leaves, **zeros}
        grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True, materialize_grads=True)
        found = dict(zip(wanted, grads, strict=True))
        rows = dict(zip(thin, given, strict=True))
        return {n: Factors(found[thin[n]], rows[n]) if n in thin else found[n] for n in params}, each

    return gradient


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@contextmanager
def _watched(layers: Collection[Any]) -> Iterator[None]:
    for layer in layers:
        layer.watched = True
    try:
        yield
    finally:
        for layer in layers:
            layer.watched, layer.rows = False, None


def thin_layers(local: LocalSGD, twin: Module, given: tuple[Any, ...]) -> dict[str, tuple[int, ...]]:
    """The linear layers of a folded model that one step uses once, on few rows, and the shapes of their outputs.

    The gradient of such a weight matrix is a product of two thin ones, and larger than both.
    """
    seen: dict[str, list[tuple[int, ...]]] = {}
    layers = {path: m for path, m in twin.named_modules() if isinstance(m, FoldedLinear) and m.weight.requires_grad}
    hooks = []
    for path, layer in layers.items():

        def look(_: Any, __: Any, made: Tensor, path: str = path) -> None:
            seen.setdefault(path, []).append((len(given[-1]), made[..., 0].numel() // len(given[-1]), made.shape[-1]))

        hooks.append(layer.register_forward_hook(look))
    try:
        in_one_batch(local, twin)(*given)
    finally:
        for hook in hooks:
            hook.remove()
    return {path: shapes[0] for path, shapes in seen.items() if len(shapes) == 1 and shapes[0][1] < FEW}


class Recorded:
    """A program on a GPU, recorded at its first call and replayed from then on: the host launches copies only."""

    def __init__(self, program: Callable[..., Any], moved: list[Tensor], pool: Any) -> None:
        self.program = program
        self.moved = moved  # what the program changes in place
        self.pool = pool  # memory to work in, which others that never run at the same time work in as well
        self.graph: Any = None

    def __call__(self, *given: Tensor) -> Any:
        """What the program makes of these; it is overwritten by the next call of any program of this pool."""
        if self.graph is None:
            self._record(given)
        for held, values in zip(self.held, given, strict=True):
            held.copy_(values)
        self.graph.replay()
        return self.made

    def _record(self, given: tuple[Tensor, ...]) -> None:
        self.held = [values.clone() for values in given]
        before = [values.clone() for values in self.moved]
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):  # compiles, and lets libraries take their memory
                self.program(*self.held)
        torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()
        if self.moved:
            torch._foreach_copy_(self.moved, before)
        del before
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.pool):
            self.made = self.program(*self.held)


@functools.cache
def _summing() -> Callable[..., Tensors]:
    def summed(now: Tensors, start: Tensors, weights: Tensor) -> Tensors:
        each = {n: now[n].to(weights.dtype) - start[n].to(weights.dtype) for n in now}
        return {n: (moved * weights.reshape(-1, *[1] * (moved.ndim - 1))).sum(dim=0) for n, moved in each.items()}

    return torch.compile(summed, dynamic=True)  # type: ignore[no-any-return]  # reads weights once, copies nothing


class Program:
    """The local steps of one model: weights and optimiser memory in place, one compiled program for each shape.

    One Program is for training without a pull, with a pull to one place for all clients, or to a place of each: another
    is needed for another kind.

    Whether the model may be folded is found out on the first batch of several clients (empty ones may be among them):
    its gradients must be those of client by client. A batch of one client alone is never folded.
    """

    def __init__(self, local: LocalSGD, module: Module) -> None:
        self.local = local
        self.module = module
        self.twin: Module | None = None
        self.chosen = False
        self.room = 0
        self.known: dict[tuple[Any, ...], Callable[[Batch, Tensor, Tensor, Tensor], Tensor]] = {}
        self.sums: dict[int, Recorded] = {}

    def begin(self, start: Tensors, anchor: Tensors | None, room: int) -> None:
        """Put clients where training begins, at most `room`; `anchor` is where a proximal weight pulls to, if any."""
        if room > self.room:
            self._make_room(start, anchor, room)
        for name, p in self.params.items():
            p[: room if len(start[name]) == 1 else len(start[name])] = start[name]
            if anchor is not None:
                self.anchor[name][: len(anchor[name])] = anchor[name]
        for moment in self.memory.moments:
            torch._foreach_zero_(moment)

    def _make_room(self, start: Tensors, anchor: Tensors | None, room: int) -> None:
        def like(at: Tensors, rows: int) -> Tensors:
            return {n: p.new_zeros((rows, *p.shape[1:])) for n, p in at.items()}

        self.known.clear()  # programs know where the weights are
        self.sums.clear()
        self.pool = torch.cuda.graph_pool_handle() if self.local.on_gpu else None
        self.room, self.params = room, like(start, room)
        self.anchor = {} if anchor is None else like(anchor, 1 if len(next(iter(anchor.values()))) == 1 else room)
        self.memory = new_memory(self.local, list(self.params.values()))

    def step(self, batch: Batch, number: int, rates: Rates) -> Tensor:
        """One step of the first clients, as many as the batch has; their losses. Rates are [clients]."""
        kind = tuple((values.shape, values.dtype) for values in (batch.x, batch.y))
        made = self.known.get(kind)
        if made is None:
            made = self.known[kind] = self._made(batch)
        lr, proximal = (rate for rate in rates)
        return made(batch, lr, proximal, batch.share.new_full((), number))

    def summed(self, start: Tensors, weights: Tensor) -> Tensors:
        """The sum over the first clients of how far each has moved, times its weight, in the type of the weights."""
        now = {n: p[: len(weights)] for n, p in self.params.items()}
        begun = [start[n] for n in now]
        if not self.local.on_gpu or any(len(at) > 1 for at in begun):
            return _summing()(now, {n: start[n] for n in now}, weights)
        known = self.sums.get(len(weights))
        if known is None:

            def total(weights: Tensor, *first: Tensor) -> list[Tensor]:
                return list(_summing()(now, dict(zip(now, first, strict=True)), weights).values())

            known = self.sums[len(weights)] = Recorded(total, [], self.pool)
        return {n: made.clone() for n, made in zip(now, known(weights, *begun), strict=True)}

    def _made(self, batch: Batch) -> Callable[[Batch, Tensor, Tensor, Tensor], Tensor]:
        clients, local = len(batch.y), self.local
        params = {n: p[:clients] for n, p in self.params.items()}
        anchor = [a[:clients] for a in self.anchor.values()]
        memory = self.memory.rows(clients)
        if not self.chosen and clients > 1:
            self.twin, self.chosen = self._foldable(params, batch), True
        alone = _alone(f"program_{next(_NUMBERS)}")
        gradient = self._trusted(params, batch, alone)

        def move(grads: Tensors, lr: Tensor, proximal: Tensor, number: Tensor) -> None:
            now, rates = [params[n] for n in grads], Rates(lr, proximal if anchor else 0.0)
            update(local, now, list(grads.values()), anchor, memory, number, rates)

        move = alone(move)

        def program(batch: Batch, lr: Tensor, *numbers: Tensor) -> Tensor:
            grads, loss = gradient(params, batch.random, batch.x, batch.y, batch.share)
            move({n: g for n, g in grads.items() if not isinstance(g, Factors)}, lr, *numbers)
            for name, factors in grads.items():
                if isinstance(factors, Factors):
                    factors.descend(params[name], lr)
            return loss

        if not local.on_gpu:
            return program
        layers = list(batch.random)

        def flat(x: Tensor, y: Tensor, share: Tensor, *rest: Tensor) -> Tensor:
            keys = dict(zip(layers, rest, strict=False))
            return program(Batch(x, y, share, keys), *rest[len(keys) :])

        moved = [*params.values(), *(m for moment in memory.moments for m in moment)]
        known = Recorded(flat, moved, self.pool)
        return lambda batch, *numbers: known(batch.x, batch.y, batch.share, *batch.random.values(), *numbers)

    def _foldable(self, params: Tensors, batch: Batch) -> Module | None:
        """The folded model, if it gives the gradients of client by client on this batch, in the model's own type."""
        local, given = self.local, (params, batch.random, batch.x, batch.y, batch.share)
        exact = replace(local, precision="exact")
        with precise(exact):
            want, _ = by_client(exact, self.module)(*given)  # its errors are readable
            twin, found = _tried(exact, given)
            if twin is None or not agree(want, found):
                return None
        if local.precision == "exact":
            return twin
        quick, found = _tried(local, given)
        return quick if quick is not None and agree(want, found, ROUGH) else twin

    def _trusted(self, params: Tensors, batch: Batch, compiled: Callable[[Any], Any]) -> Gradient:
        """The compiled gradient, or the plain one where a compiler has made something else of it."""
        local, given = self.local, (params, batch.random, batch.x, batch.y, batch.share)
        if self.twin is None or len(batch.y) == 1:
            plain = by_client(local, self.module)
            made: Gradient = compiled(plain)
        else:
            plain = in_one_batch(local, self.twin)
            alone = local.optimiser == "sgd" and not (local.momentum or local.weight_decay or self.anchor)
            probes = thin_layers(local, self.twin, given) if alone else {}
            made = in_one_batch(local, self.twin, compiled, probes=probes)
        with _Counted() as operations:
            want = _whole(plain(*given)[0])
        if operations.number > MANY:
            return plain
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of how it traces an autograd.Function
            found = _whole(made(*given)[0])
        return made if agree(want, found, 1e-3 if local.precision == "exact" else ROUGH) else plain


class _Counted(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operations that are done within it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.number += 1
        return function(*arguments, **(named or {}))


def _whole(grads: Gradients) -> Tensors:
    return {n: g.product() if isinstance(g, Factors) else g for n, g in grads.items()}


def _tried(local: LocalSGD, given: tuple[Any, ...]) -> tuple[Module | None, Tensors]:
    """The folded model and its gradients of this batch; no model where it has no such form or does not take them."""
    twin = folded(trainable_copy(local.model, "vmap"), local.precision)
    if twin is None:
        return None, {}
    try:
        return twin, in_one_batch(local, twin.to(local.device))(*given)[0]
    except Exception:  # whatever a model says of a shape or a type that only a client by itself has
        return None, {}


def _alone(name: str) -> Callable[[Any], Any]:
    """Compile under a name of its own: torch counts how often a code object was compiled and gives up after a few."""

    def compiled(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            return function(*arguments)

        call.__code__ = call.__code__.replace(co_name=f"{function.__name__}_{name}")
        return torch.compile(call, dynamic=False)

    return compiled
