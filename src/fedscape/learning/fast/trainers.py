"""The trainers of this package and their choice by settings."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import nn

from fedscape.learning.batches import Feed, Work, padded_to, room_for, rounded
from fedscape.learning.device import SMALL_MODEL
from fedscape.learning.fast.fused import FusedTrainer
from fedscape.learning.fast.products import ProductConv2d, stands_for_product
from fedscape.learning.fast.program import Program, compiles
from fedscape.learning.fast.recording import records
from fedscape.learning.fast.stack_steps import Stack, outputs_of_branches
from fedscape.learning.fast.stacks import checked_stack, train_stack
from fedscape.learning.layers import Centre, Module, is_plain, trainable_copy
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import Look, each_start, known_classes, no_random_operation, one_thread, summed
from fedscape.learning.optimisers import Rates, StopRows
from fedscape.learning.programs import keep_programs
from fedscape.learning.trainer import Draws, Trainer
from fedscape.types import Array, Tensor, Tensors

_COMPILING = threading.Lock()  # torch compiles one function at a time, and a GPU takes its work from one thread as well


def pick(local: LocalSGD) -> Trainer:
    """The trainer of these settings.

    "recorded" programs on a GPU ("compiled" if asked for), "stacked" for a stack of linear layers on a CPU (with SGD
    and no early stopping), else one client after the other with fused linear layers, or vmap.
    """
    if local.strategy in ("compiled", "recorded") or (local.strategy in ("auto", "stacked") and local.on_gpu):
        return ProgramTrainer(local)
    on_cpu = torch.device(local.device).type == "cpu"
    if on_cpu and local.strategy in ("auto", "stacked") and local.optimiser == "sgd" and local.early_stopping is None:
        stack = checked_stack(local.model, local.loss)
        if stack is not None:
            return StackTrainer(local, stack)
    return FusedTrainer(local)


class StackTrainer(FusedTrainer):
    """Trains stacks of linear layers with the gradient written out, a few clients at once.

    benchmarks/fast_paths.py, rows "stack".
    """

    def __init__(self, local: LocalSGD, stack: Stack) -> None:
        super().__init__(local)
        self.stack = stack
        self.frozen = [n for n, p in local.model.named_parameters() if not p.requires_grad]

    @property
    def strategy(self) -> str:
        return "stacked"

    @property
    def chunk(self) -> int:
        """One client of a large stack: its steps keep a thread busy, and threads then share clients evenly."""
        large = self.local.group_size is None and self.local.n_parameters > SMALL_MODEL
        return 1 if large else super().chunk

    def train(
        self,
        start: Tensors,
        work: Work,
        rates: Rates,
        anchor: Tensors | None = None,
        *,
        weights: Array | None = None,
        still: Collection[str] = (),
        drift: Tensors | None = None,
        centre: Centre | None = None,
        each: Collection[str] = (),
        look: Look | None = None,
    ) -> Tensors:
        rows = len(work.plan.rows)
        begin, to = each_start(start, rows), None if anchor is None else each_start(anchor, rows)
        several = weights is not None and weights.ndim == 2
        with one_thread():
            moved = train_stack(
                self.local,
                self.stack,
                begin,
                begin if to is None else to,
                work,
                rates,
                weights=None if several else weights,
                still=still,
                drift=drift,
                centre=centre,
                each=each,
            )
        if moved is None:  # rows or targets that the stack does not take: the model itself says why
            return super().train(
                start,
                work,
                rates,
                anchor,
                weights=weights,
                still=still,
                drift=drift,
                centre=centre,
                each=each,
                look=look,
            )
        return summed(moved, weights, each) if several and weights is not None else moved

    def outputs(self, params: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        fixed = {n: self.local.model.get_parameter(n).detach() for n in self.frozen}
        with self.on_device():
            quick = outputs_of_branches(self.stack, {**fixed, **params}, rows, self.local.dtype)
        return super().outputs(params, rows) if quick is None else quick


class ProgramTrainer(Trainer):
    """Trains by compiled programs, on a GPU recorded and replayed; owns the programs.

    benchmarks/fast_paths.py, the rows of the device "cuda".
    """

    def __init__(self, local: LocalSGD) -> None:
        super().__init__(local)
        keep_programs(
            torch.cuda.get_device_name(local.device) if local.on_gpu else torch.backends.cpu.get_cpu_capability()
        )
        self.programs: dict[tuple[int, bool], Program] = {}
        self._module: Module | None = None

    @property
    def strategy(self) -> str:
        return "compiled" if compiles(self.local) else "recorded"

    def fed(self, work: Work, draws: Draws | None) -> Work:
        return work._replace(feed=Feed(self, work, kinds=1 if draws is None else draws.kinds))

    def train(
        self,
        start: Tensors,
        work: Work,
        rates: Rates,
        anchor: Tensors | None = None,
        *,
        weights: Array | None = None,
        still: Collection[str] = (),
        drift: Tensors | None = None,
        centre: Centre | None = None,
        each: Collection[str] = (),
        look: Look | None = None,
    ) -> Tensors:
        with _COMPILING:
            if still or drift is not None or centre is not None or (each and _pulled(rates)):
                return super().train(
                    start,
                    work,
                    rates,
                    anchor,
                    weights=weights,
                    still=still,
                    drift=drift,
                    centre=centre,
                    each=each,
                    look=look,
                )
            try:
                with self.on_device(), known_classes(self.local):
                    return self._run(start, start if anchor is None else anchor, work, rates, weights, each)
            except BaseException:
                self.programs.clear()  # what failed is not used again
                raise

    def _run(
        self, start: Tensors, anchor: Tensors, work: Work, rates: Rates, weights: Array | None, each: Collection[str]
    ) -> Tensors:
        """Train by a compiled program; where clients differ in size, padded so that few shapes need one."""
        local, plan, rows = self.local, work.plan, len(work.plan.rows)
        kinds = 1 if weights is None else rows // len(weights)
        feed = work.feed if work.feed is not None else Feed(self, work, kinds=kinds)
        ragged, room, wide = feed.ragged, feed.room, feed.wide
        to = {n: anchor[n] for n in local.names} if _pulled(rates) else None
        begun = {n: start[n] for n in local.names}
        shared_start = rows > 1 and not each and all(len(p) in (1, kinds) for p in begun.values())
        program = self.program_for(to, shared=weights is not None and shared_start)
        steps = plan.counts.shape[1]
        places = room_for(steps * wide, ragged=ragged)
        stop, rates = StopRows(local, feed.counts), rates.spread(room, like=feed.shares)
        weigh = None if weights is None else self.sent(weights.astype(np.float64))
        if weigh is not None and program.shared:
            weigh = padded_to(weigh, room // kinds)  # those behind stay where they begin: few sizes, few programs
            if records(local) and to is None and not ragged and local.early_stopping is None:
                program.make_ready(begun, to, room, places)
                sums = program.whole(begun, feed.all(), rates, weigh)
                if sums is not None:
                    return sums
        program.begin(begun, to, room, places)
        for t in range(steps):
            end = rounded(plan.active(t)[0], rows, kinds) if ragged else rows
            going = rates.rows(end) if not ragged else rates.only(feed.counts[:end, t] > 0)
            with no_random_operation():
                loss = program.step(feed.batch(t, end, wide), t + 1, stop.slowed(going, end))
            stop.after(t, loss)
        sums = {} if weigh is None else program.summed(begun, weigh)
        first = each_start({n: p for n, p in begun.items() if weigh is None or n in each}, rows)
        return sums | {name: program.params[name][:rows] - at for name, at in first.items()}

    def program_for(self, anchor: Tensors | None, *, shared: bool) -> Program:
        """The program for this kind of proximal pull: methods that train with and without one compile once each."""
        kind = (0 if anchor is None else min(len(next(iter(anchor.values()))), 2), shared)
        if kind not in self.programs:
            if self._module is None:
                self._module = trainable_copy(self.local.model, _stand_in).to(self.local.device)
            self.programs[kind] = Program(self.local, self._module, shared=shared)
        return self.programs[kind]


def _pulled(rates: Rates) -> bool:
    return isinstance(rates.proximal, torch.Tensor) or rates.proximal > 0


def _stand_in(layer: Module) -> Module | None:
    return ProductConv2d(layer) if is_plain(layer, nn.Conv2d) and stands_for_product(layer) else None
