"""A local step of many clients as one program, on a GPU a CUDA graph; by torch's compiler if it is asked for.

benchmarks/fast_paths.py, rows "recorded step" (3.8 times) and "recorded round" (1.2, an MLP).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from fedscape.learning.batches import Batch
from fedscape.learning.fast import sums
from fedscape.learning.fast.admission import foldable
from fedscape.learning.fast.agreement import ROUGH, agree, same_lengths
from fedscape.learning.fast.conv import runs_kernels
from fedscape.learning.fast.gradients import Counted, FoldedGradient, in_one_batch, member, once_used, unfactored
from fedscape.learning.fast.layout import is_smaller, rows_like, shortened, take_turns
from fedscape.learning.fast.lowrank import FEW, Factors, Trail
from fedscape.learning.fast.moving import moving
from fedscape.learning.fast.own_steps import own_steps
from fedscape.learning.fast.recording import Recorded, clones, new_pool, records
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import by_client
from fedscape.learning.optimisers import Rates, new_memory, update
from fedscape.types import Tensor, Tensors

MANY = 4_000  # operations of a step from which compiling takes minutes: a network that is unrolled over time, say
STEPS = 64  # of a round that is recorded as a whole
ROUNDS = 8  # of different shapes that are
_NUMBERS = itertools.count()


Step = Callable[[Batch, Tensor, Tensor, Tensor], Tensor]


def compiles(local: LocalSGD) -> bool:
    """Whether torch's compiler makes the programs: it takes seconds to minutes, and is asked for."""
    return local.strategy == "compiled"


class Program:
    """The local steps of one model: weights and optimiser memory in place, one compiled program for each shape.

    One Program is for training without a pull, with a pull to one place for all clients, or to a place of each: another
    is needed for another kind.

    Whether the model may be folded is tested on the first batch of several clients (empty ones may be among them):
    its gradients must be those of client by client. A batch of one client alone is never folded.

    A `shared` Program is for clients that start from few distinct weights and of which only sums are needed. A linear
    layer that is larger than the low-rank factors of a client's rows then has a `Trail`, not weights per client. That
    depends on the layer and on the number of rows alone, so that a round is the same whatever came before it.
    """

    def __init__(self, local: LocalSGD, module: Module, *, shared: bool = False) -> None:
        self.local = local
        self.module = module
        self.shared = shared
        self.twin: Module | None = None
        self.chosen = False
        self.room, self.places = 0, 0
        self.compiled: dict[tuple[Any, ...], Step] = {}
        self.plain: dict[tuple[Any, ...], Step] = {}  # the same before they are recorded
        self.sums: dict[tuple[Any, ...], Recorded] = {}
        self.adding: dict[tuple[Any, ...], Callable[..., Tensors]] = {}
        self.wholes: dict[tuple[Any, ...], Recorded] = {}
        self.seen: set[tuple[Any, ...]] = set()  # rounds that were made step by step
        self.thin: frozenset[str] | None = None  # weights that may have a trail
        self.params: Tensors = {}  # of each client
        self.common: Tensors = {}  # where clients began, of the weights that have a trail
        self.trails: dict[str, Trail] = {}
        self.moved: dict[str, list[str]] | None = None  # the layers that may take their own step, and their parameters
        self.moves: dict[tuple[Any, ...], dict[str, list[str]]] = {}  # those that do, for each kind of batch
        self.short: Tensors = {}  # weights of those in the type of products

    def begin(self, start: Tensors, anchor: Tensors | None, room: int, places: int = 0) -> None:
        """Set the weights of at most `room` clients to the rows of `start`, round-robin.

        `anchor` is where a proximal weight pulls to, if any, and `places` how many rows a client takes in all steps.
        """
        self.make_ready(start, anchor, room, places)
        self._lay_out(start, anchor)

    def make_ready(self, start: Tensors, anchor: Tensors | None, room: int, places: int = 0) -> None:
        """Allocate the buffers for such a start, without filling them."""
        self.begun, self.places = (start, anchor, room, places), places
        traced = [n for n in self.thin or () if is_smaller(places, start[n])]
        if room > self.room:
            self._make_room(start, anchor, room)
        for name in traced:
            self._make_trail(name, start[name])
        self.traced = {name: self.trails[name].part(self.room, places) for name in traced}
        for name in start:
            if name not in self.traced and name not in self.params:
                self.params[name] = rows_like(self.twin, start[name], self.room, name)
        for name in shortened(self.twin, self.moved or (), self.local.precision):
            if name not in self.short:
                self.short[name] = torch.empty_like(self.params[name], dtype=torch.bfloat16)

    def _lay_out(self, start: Tensors, anchor: Tensors | None) -> None:
        room = self.begun[2]
        for name, at in start.items():
            if name in self.traced:
                self.common[name].copy_(at)
                torch._foreach_zero_(list(self.traced[name]))
            else:
                take_turns(self.params[name][:room], at)
                if name in self.short:
                    take_turns(self.short[name][:room], at)
        for name, to in (anchor or {}).items():
            take_turns(self.anchor[name] if len(self.anchor[name]) == 1 else self.anchor[name][:room], to)
        for moment in self.memory.moments:
            torch._foreach_zero_(moment)

    def _make_room(self, start: Tensors, anchor: Tensors | None, room: int) -> None:
        def like(at: Tensors, rows: int) -> Tensors:
            return {n: rows_like(self.twin, p, rows, n) for n, p in at.items()}

        self._forget()
        self.room, self.params, self.trails, self.short = room, {}, {}, {}
        self.anchor = {} if anchor is None else like(anchor, 1 if len(next(iter(anchor.values()))) == 1 else room)
        self.memory = new_memory(self.local, [rows_like(self.twin, p, room, n) for n, p in start.items()])

    def _make_trail(self, name: str, start: Tensor) -> None:
        if name not in self.trails or self.places > self.trails[name].up.shape[1]:
            shapes = ((self.room, self.places, width) for width in start.shape[1:])
            self.trails[name] = Trail(*map(start.new_zeros, shapes))
            self._forget()
        if name not in self.common or self.common[name].shape != start.shape:
            self.common[name] = start.clone()
            self._forget()

    def _forget(self) -> None:
        for programs in (self.compiled, self.plain, self.sums, self.wholes):
            programs.clear()  # programs know where the weights are
        self.pool = new_pool() if self.local.on_gpu else None

    def _kind(self, *arrays: Tensor | tuple[Any, Any]) -> tuple[Any, ...]:
        shapes = ((tuple(a.shape), a.dtype) if isinstance(a, torch.Tensor) else a for a in arrays)
        return (self.places if self.traced else 0, *shapes)

    def step(self, batch: Batch, number: int, rates: Rates) -> Tensor:
        """One step of the first clients, as many as the batch has; their losses. Rates are [clients]."""
        compiled_step = self.compiled.get(self._kind(batch.x, batch.y))
        if compiled_step is None:
            plain = self._build(batch)  # decides which layers have trails
            kind = self._kind(batch.x, batch.y)
            compiled_step = self.compiled[kind] = self._recorded(plain, batch) if records(self.local) else plain
            self.plain[kind] = plain
        lr, proximal = (rate for rate in rates)
        return compiled_step(batch, lr, proximal, batch.share.new_full((), number))

    def whole(self, start: Tensors, batches: Batch, rates: Rates, weights: Tensor) -> Tensors | None:
        """All steps of a round without a pull, and the sums, as one recorded program; None where there is none yet.

        `batches` has what `step` takes of all steps, [steps, clients, ...]. A round of new shapes is to be made by
        `begin`, `step` and `summed`, and recorded when it comes again.
        """
        steps, names, layers = len(batches.y), list(start), list(batches.random)
        one = self._kind(*((tuple(v.shape[1:]), v.dtype) for v in batches[:2]))
        kind = (one, steps, tuple(weights.shape), *(len(p) for p in start.values()))
        step, recorded = self.plain.get(one), self.wholes.get(kind)
        if recorded is None:
            repeated, full = kind in self.seen, len(self.wholes) == ROUNDS
            self.seen.add(kind)
            if step is None or steps > STEPS or full or not repeated:
                return None
            total = self._total(names, tuple(weights.shape))

            def run(x: Tensor, y: Tensor, shares: Tensor, *rest: Tensor) -> list[Tensor]:
                lr, proximal, weights, *others = rest
                keys, first = others[: len(layers)], dict(zip(names, others[len(layers) :], strict=True))
                self._lay_out(first, None)
                for t in range(steps):
                    batch = Batch(x[t], y[t], shares[t], {n: k[t] for n, k in zip(layers, keys, strict=True)})
                    step(batch, lr, proximal, shares.new_full((), t + 1))
                return total(weights, *first.values())

            recorded = self.wholes[kind] = Recorded(run, [], self.pool)
        sums = recorded(*batches[:3], *rates, weights, *batches.random.values(), *start.values())
        return clones(dict(zip(names, sums, strict=True)))

    def summed(self, start: Tensors, weights: Tensor) -> Tensors:
        """The sum over the first clients of how far each has moved, times its weight, in the type of the weights.

        With weights [clients, kinds], rows being the kinds of one client after those of another, it is [kinds, ...].
        """
        total, begun = self._total(start, weights.shape), list(start.values())
        if not records(self.local) or any(len(at) == weights.numel() > 1 for at in begun):
            return dict(zip(start, total(weights, *begun), strict=True))
        kind = self._kind((tuple(weights.shape), None))
        recorded = self.sums.get(kind)
        if recorded is None:
            recorded = self.sums[kind] = Recorded(total, [], self.pool)
        return clones(dict(zip(start, recorded(weights, *begun), strict=True)))

    def _total(self, names: Collection[str], shape: tuple[int, ...]) -> Callable[..., list[Tensor]]:
        """From weights of this shape and where clients began, by these names, the sums of `summed` in their order."""
        rows, traced, names = math.prod(shape), self.traced, list(names)
        now = {n: self.params[n][:rows] for n in names if n not in traced}
        kind = (len(shape), *now)
        if kind not in self.adding:  # reads weights once, copies nothing
            many = (
                _alone(f"sum_{next(_NUMBERS)}", dynamic=True)(sums.of_moves) if compiles(self.local) else sums.of_moves
            )
            self.adding[kind] = many if not all(map(runs_kernels, now.values())) else sums.of_moves_by_kernel
        add = self.adding[kind]

        def total(weights: Tensor, *first: Tensor) -> list[Tensor]:
            begun = dict(zip(names, first, strict=True))
            sums = add(now, {n: begun[n] for n in now}, weights) if now else {}
            sums |= {n: trail.part(rows).summed(weights) for n, trail in traced.items()}
            return [sums[n] for n in names]

        return total

    def _weights(self, clients: int) -> Tensors:
        """The materialised weights of the first clients."""
        weights = {}
        for name in self.begun[0]:
            if name in self.traced:
                moved, common = self.traced[name].part(clients).moved(), self.common[name]
                weights[name] = (moved.unflatten(0, (-1, len(common))) + common).flatten(0, 1)
            else:
                weights[name] = self.params[name][:clients]
        return weights

    def _start_again(self) -> None:
        """Lay weights out anew, as this is the first step: with channels last, or with trails."""
        self.room = 0
        self.begin(*self.begun)

    def _build(self, batch: Batch) -> Step:
        clients, local = len(batch.y), self.local
        whole = self._weights(clients)
        if not self.chosen and clients > 1:
            self.twin, self.chosen = foldable(local, self.module, whole, batch), True
            self._start_again()
        once = self._once(whole, batch)
        if self.shared and self.thin is None and clients > 1:
            rows = batch.y.shape[1]
            self.thin = frozenset(member(path, "weight") for path, shape in once.items() if shape[1] == rows)
            self._start_again()
        whole = self._weights(clients)  # as they lie in memory now
        if self.moved is None and clients > 1:
            self.moved = self.moves[self._kind(batch.x, batch.y)[1:]] = self._self_moving(whole, batch)
            self._start_again()
            whole = self._weights(clients)
        mine = self._moved_by_themselves(whole, batch)
        traced = {n: trail.part(clients) for n, trail in self.traced.items()}
        probes = {path: shape for path, shape in once.items() if shape[1] < FEW or member(path, "weight") in traced}
        params = {n: self.common[n] if n in traced else self.params[n][:clients] for n in whole}
        anchor = [a[:clients] for a in self.anchor.values()]
        memory = self.memory.rows(clients)
        alone = _alone(f"program_{next(_NUMBERS)}") if compiles(local) else _as_it_is
        layers = [self.twin.get_submodule(path) for path in mine] if self.twin is not None else []
        moved = {n for names in mine.values() for n in names}
        gradient = self._trusted(whole, params, batch, alone, probes, traced, moved)

        plain_sgd = self._steps_are_plain and not compiles(local)

        def move(grads: Tensors, lr: Tensor, proximal: Tensor, number: Tensor) -> None:
            if plain_sgd and all(sums.lie_alike(params[n], g) for n, g in grads.items()):
                for n, g in grads.items():
                    sums.descend(params[n], g, lr)
                return
            now, rates = [params[n] for n in grads], Rates(lr, proximal if anchor else 0.0)
            update(local, now, list(grads.values()), anchor, memory, number, rates)

        move = alone(move)

        def program(batch: Batch, lr: Tensor, proximal: Tensor, number: Tensor) -> Tensor:
            with moving(layers, lr):
                grads, loss = gradient(params, batch.random, batch.x, batch.y, batch.share)
            move({n: g for n, g in grads.items() if not isinstance(g, Factors)}, lr, proximal, number)
            for name, short in self.short.items():
                if name not in moved:  # its layer moves by itself with batches of another kind
                    short[:clients].copy_(params[name])
            for name, factors in grads.items():
                if isinstance(factors, Factors) and name in traced:
                    traced[name].add(factors, lr, number)
                elif isinstance(factors, Factors):
                    factors.descend(params[name], lr)
            return loss

        return program

    def _recorded(self, program: Step, batch: Batch) -> Step:
        layers, clients = list(batch.random), len(batch.y)

        def flat(x: Tensor, y: Tensor, share: Tensor, *rest: Tensor) -> Tensor:
            keys, numbers = dict(zip(layers, rest, strict=False)), rest[len(layers) :]
            return program(Batch(x, y, share, keys), *numbers)

        moved = [self.params[n][:clients] for n in self.begun[0] if n not in self.traced]
        moved += [short[:clients] for short in self.short.values()]
        moved += [m for moment in self.memory.rows(clients).moments for m in moment]
        moved += [v for trail in self.traced.values() for v in trail]
        recorded = Recorded(flat, moved, self.pool)
        return lambda batch, *numbers: recorded(batch.x, batch.y, batch.share, *batch.random.values(), *numbers)

    @property
    def _steps_are_plain(self) -> bool:
        """Whether a step is SGD and nothing else."""
        return self.local.optimiser == "sgd" and not (self.local.momentum or self.local.weight_decay or self.anchor)

    def _self_moving(self, whole: Tensors, batch: Batch) -> dict[str, list[str]]:
        """Layers that take their own step, and their parameters: in plain SGD alone."""
        if self.twin is None or not self._steps_are_plain or compiles(self.local):
            return {}
        return own_steps(self.local, self.twin, whole, batch)

    def _moved_by_themselves(self, whole: Tensors, batch: Batch) -> dict[str, list[str]]:
        """Those that do with batches of this kind: kernels take other paths for other shapes."""
        if not self.moved or len(batch.y) == 1:
            return {}
        kind = self._kind(batch.x, batch.y)[1:]
        if kind not in self.moves:
            able = self._self_moving(whole, batch)
            self.moves[kind] = {path: names for path, names in self.moved.items() if path in able}
        return self.moves[kind]

    def _once(self, whole: Tensors, batch: Batch) -> dict[str, tuple[int, ...]]:
        """Linear layers whose gradients may stay low-rank factors."""
        local = self.local
        if self.twin is None or len(batch.y) == 1 or not self._steps_are_plain:
            return {}
        return once_used(local, self.twin, (whole, batch.random, batch.x, batch.y, batch.share))

    def _by_client(self) -> FoldedGradient:
        """The gradient of clients one by one, which takes weights in their own order of memory only."""
        each = by_client(self.local, self.module)
        return lambda params, *batch: each({n: p.contiguous() for n, p in params.items()}, *batch)

    def _trusted(
        self,
        whole: Tensors,
        params: Tensors,
        batch: Batch,
        compiled: Callable[[Any], Any],
        probes: Mapping[str, tuple[int, ...]],
        trails: Mapping[str, Trail],
        moved: Collection[str],
    ) -> FoldedGradient:
        """The gradient; the compiled one if it is asked for, unless the compiler fails or it disagrees."""
        local, inputs = self.local, (batch.random, batch.x, batch.y, batch.share)
        if self.twin is None or len(batch.y) == 1:
            want_of = self._by_client()
            if not compiles(local):
                return want_of
            plain, quick = want_of, compiled(want_of)
        else:
            by_path = {path: trails[name] for path in probes if (name := member(path, "weight")) in trails}
            want_of = in_one_batch(local, self.twin)
            shorts = {member(n.rpartition(".")[0], "short"): p[: len(batch.y)] for n, p in self.short.items()}
            thin = in_one_batch(local, self.twin, probes=probes, trails=by_path, moved=moved, shorts=shorts)
            if not compiles(local):
                return thin
            plain = thin if by_path else want_of
            quick = in_one_batch(local, self.twin, compiled, probes=probes, trails=by_path)
        with Counted() as operations:
            want = unfactored(want_of(whole, *inputs)[0])
        if operations.number > MANY:
            return plain
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, on tracing an autograd.Function
                grads = unfactored(quick(params, *inputs)[0])
        except Exception:  # the eager gradient has just run: whatever is raised here comes from the compiler
            return plain
        if local.precision == "exact":
            return quick if agree(want, grads) else plain
        return quick if agree(want, grads, ROUGH) and same_lengths(want, grads) else plain


def _as_it_is(function: Any) -> Any:
    return function


def _alone(name: str, *, dynamic: bool = False) -> Callable[[Any], Any]:
    """Compile under a name of its own: torch counts how often a code object was compiled and gives up after a few."""

    def compiled(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            return function(*arguments)

        call.__code__ = call.__code__.replace(co_name=f"{function.__name__}_{name}")
        return torch.compile(call, dynamic=dynamic)

    return compiled
