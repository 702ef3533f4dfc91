"""What does each fast path of training bring? A round with it and without it, all else the same.

One row per path of `learning/fast` and task: milliseconds of a round with all paths, with this one switched off, and
their ratio. A path stays while one of its rows says 1.2 or more. Runs with and without a path take turns, and medians
are compared; on a CPU the ratio of processor time stands beside that of wall-clock time, because other work may fill
the machine. `--only` takes the rows whose names have this in them, `--task` those of a task, `--device cpu` or `cuda`
those of one device (by default both, where there is a GPU). Images are random: only times matter here.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import nn

import fedscape as fs
from fedscape.learning import Adapted, FedAvg, LocalSGD, cross_entropy, fast, models
from fedscape.learning.branches import BranchLoss, MeanOfBranches, MultiBranch
from fedscape.learning.fast import folded, forms, program, sequence_forms, sums, trainers
from fedscape.learning.trainer import Trainer
from table import arguments, report
from training_speed import clients_of

Patches = Callable[[], list[AbstractContextManager[Any]]]


class Path(NamedTuple):
    """One path: its task, how it is switched off, and what is off in both runs besides."""

    name: str
    task: str
    off: Patches
    both: Patches = list


def patch(owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(owner, name, value)


def no(*_: Any, **__: Any) -> bool:
    return False


def none(*_: Any, **__: Any) -> None:
    return None


def plain(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda function: function


def kernelless(kind: type) -> AbstractContextManager[Any]:
    """Layers of this form made by torch's own operations."""
    begin = kind.__init__

    def plain_init(self: Any, *arguments: Any, **named: Any) -> None:
        arguments = tuple(a._replace(kernels=False) if isinstance(a, forms.How) else a for a in arguments)
        begin(self, *arguments, **named)

    return patch(kind, "__init__", plain_init)


def unfolded() -> list[AbstractContextManager[Any]]:
    return [patch(program, "foldable", none)]


def no_sums() -> list[AbstractContextManager[Any]]:
    return [patch(program, "runs_kernels", no), patch(sums, "runs_kernels", no)]


def no_elementwise() -> list[AbstractContextManager[Any]]:
    """What a compiler would fuse: pooling with its rectifier, dropout, steps and sums."""
    return [kernelless(folded._Pool), kernelless(folded._Dropout), *no_sums()]


CPU = [
    Path("stack", "linear", lambda: [patch(trainers, "checked_stack", none)]),
    Path("stack", "mlp", lambda: [patch(trainers, "checked_stack", none)]),
    Path("stack", "small mlp", lambda: [patch(trainers, "checked_stack", none)]),
    Path("stack", "branches", lambda: [patch(trainers, "checked_stack", none)]),
    Path("stack", "mean of branches", lambda: [patch(trainers, "checked_stack", none)]),
    Path("fused linear", "cnn", lambda: [patch(fast, "pick", Trainer)]),
    Path("fused linear", "gelu", lambda: [patch(fast, "pick", Trainer)]),
    Path("fused linear", "wide gelu", lambda: [patch(fast, "pick", Trainer)]),
]
GPU = [  # a path has a row on each task it serves; those that compile longest come last
    *(
        Path(name, task, off)
        for task in ("mlp", "femnist", "cnn", "cnn, few rows")
        for name, off in (
            ("recorded round", lambda: [patch(program.Program, "whole", none)]),
            ("recorded step", lambda: [patch(program, "records", no), patch(trainers, "records", no)]),
            ("low-rank update", lambda: [patch(program, "is_smaller", no)]),
            ("low-rank gradient", lambda: [patch(program.Program, "_once", lambda *_: {})]),
            ("folded", unfolded),
        )
    ),
    *(
        Path(name, task, off)
        for name, task, off in (
            ("own steps", "resnet", lambda: [patch(program, "own_steps", lambda *_: {})]),
            ("own steps", "mobilenet", lambda: [patch(program, "own_steps", lambda *_: {})]),
            ("Triton norm", "resnet", lambda: [kernelless(folded._GroupNorm)]),
            ("Triton depthwise", "mobilenet", lambda: [kernelless(folded._Depthwise)]),
            ("Triton recurrence", "lstm", lambda: [kernelless(folded._Cells)]),
            ("Triton pooling", "cnn", lambda: [kernelless(folded._Pool)]),
            ("Triton dropout", "cnn, dropout", lambda: [kernelless(folded._Dropout)]),
            ("Triton sums", "resnet", no_sums),
            ("Triton pooling", "cnn, dropout", lambda: [kernelless(folded._Pool)]),
            ("Triton sums", "cnn, dropout", no_sums),
            ("Triton sums", "transformer", no_sums),
            (
                "Triton pooling and dropout",
                "cnn, dropout",
                lambda: [kernelless(folded._Pool), kernelless(folded._Dropout)],
            ),
            ("Triton pooling, dropout and sums", "cnn, dropout", no_elementwise),
            *(
                (name, task, lambda kind=kind: [kernelless(kind)])
                for task in ("transformer", "transformer, tf32")
                for name, kind in (
                    ("adapters in fewer passes", sequence_forms.FoldedLowRank),
                    ("Triton attention", sequence_forms.FoldedAttention),
                )
            ),
            ("Triton convolution", "resnet", lambda: [patch(folded, "can_convolve", no)]),
        )
    ),
    Path("Triton convolution", "femnist", lambda: [patch(folded, "can_convolve", no)]),
    Path("Triton convolution", "cnn", lambda: [patch(folded, "can_convolve", no)]),
    Path("product convolution", "small cnn", lambda: [patch(trainers, "_stand_in", none)], unfolded),
    Path("product convolution", "cnn", lambda: [patch(trainers, "_stand_in", none)], unfolded),
]


def task_of(name: str, quick: bool, device: str, seed: int) -> tuple[fs.Federation, LocalSGD]:
    """Clients and how they train: the tasks of training_speed.py and training_gpu.py."""
    part = 5 if quick else 1
    how: dict[str, Any] = {"lr": 0.05, "epochs": 1, "batch_size": 10, "device": device}
    if device == "cuda":
        how["precision"] = "bf16" if name in ("resnet", "mobilenet", "lstm", "transformer") else "tf32"
    torch.manual_seed(seed)
    if name in ("resnet", "mobilenet"):
        model = models.resnet18() if name == "resnet" else models.mobilenet_v2()
        return clients_of(10 // part, 50, (3, 32, 32), 10, seed), LocalSGD(model, cross_entropy, **how)
    if name == "lstm" or name.startswith("transformer"):
        codes = np.random.default_rng(seed).integers(0, 80, (20 // part * 40, 80))
        fed = fs.Federation({"x": codes, "y": codes[:, 0]}, np.arange(0, len(codes) + 1, 40))
        model = models.char_lstm() if name == "lstm" else Adapted(models.transformer(80, width=256, layers=4), rank=8)
        return fed, LocalSGD(model, cross_entropy, **how)
    if name in ("cnn", "cnn, few rows", "cnn, dropout"):
        clients = (50 // part, 10 if name == "cnn, few rows" else 50) if device == "cuda" else (10 // part, 50)
        model = models.cnn((3, 32, 32), 10, dropout=name == "cnn, dropout")
        return clients_of(*clients, (3, 32, 32), 10, seed), LocalSGD(model, cross_entropy, **how)
    if name == "femnist":
        model = models.cnn((1, 28, 28), 62, dropout=False)
        return clients_of(50 // part, 50, (1, 28, 28), 62, seed), LocalSGD(model, cross_entropy, **how)
    if name == "mlp" and device == "cuda":
        return clients_of(50 // part, 50, (784,), 10, seed), LocalSGD(models.mlp(), cross_entropy, **how)
    if name == "small cnn":
        return clients_of(20, 50, (1, 28, 28), 10, seed), LocalSGD(models.lenet5(), cross_entropy, **how)
    wide = {
        "linear": (500, 20, models.linear(784, 10)),
        "mlp": (10, 600, models.mlp()),
        "small mlp": (200, 20, models.mlp(784, 64, 10)),
        "wide gelu": (10, 100, nn.Sequential(nn.Linear(784, 2048), nn.GELU(), nn.Linear(2048, 10))),
        "gelu": (10, 300, nn.Sequential(nn.Linear(784, 512), nn.GELU(), nn.Linear(512, 10))),
    }
    if "branches" in name:
        net, fed = MultiBranch(models.mlp(784, 64, 62)), clients_of(50 // part, 40, (784,), 62, seed)
        if name == "mean of branches":
            return fed, LocalSGD(MeanOfBranches(net), cross_entropy, **how)
        coded = np.concatenate([fed["y"][:, None], np.full((fed.n_rows, 6), 0.5)], axis=1)
        return fed.with_column("y", coded.astype(np.float32)), LocalSGD(net, BranchLoss(0.0, 0.0), **how)
    n, rows, model = wide[name]
    return clients_of(n // part, rows, (784,), 10, seed), LocalSGD(model, cross_entropy, **how)


class Run:
    """Rounds of one way, some at a time; the first ones, which compile and record, are not counted."""

    def __init__(self, local: LocalSGD, fed: fs.Federation, patches: Patches, warm: int) -> None:
        self.patches = patches
        self.local = replace(local)  # a trainer of its own, with programs of its own
        self.rounds = fs.rounds(FedAvg(self.local), fs.Local(fed, threads=2), n_rounds=10_000, measure=0)
        self.wall: list[float] = []
        self.processor: list[float] = []
        began = time.perf_counter()
        self.more(warm)
        self.warm_up = time.perf_counter() - began
        self.wall.clear()
        self.processor.clear()

    def more(self, n: int) -> None:
        with ExitStack() as stack:
            for context in self.patches():
                stack.enter_context(context)
            for _ in range(n):
                self._wait()
                wall, processor = time.perf_counter(), time.process_time()
                next(self.rounds)
                self._wait()
                self.wall.append(time.perf_counter() - wall)
                self.processor.append(time.process_time() - processor)

    def _wait(self) -> None:
        if self.local.on_gpu:
            torch.cuda.synchronize()


def measured(paths: list[Path], device: str, args: Any) -> Iterator[dict[str, Any]]:
    """One row per path; runs with all paths on are shared by the rows of one task."""
    warm, turns, each = (4, 4, 5) if device == "cuda" else (1, 2 if args.quick else 15, 1)
    ready: dict[tuple[str, Patches], tuple[fs.Federation, LocalSGD, Run]] = {}
    for path in paths:
        if args.only not in path.name or args.task not in path.task:
            continue
        key = (path.task, path.both)
        if key not in ready:
            fed, local = task_of(path.task, args.quick, device, args.seed)
            ready[key] = (fed, local, Run(local, fed, path.both, warm))
        fed, local, on = ready[key]
        on.wall.clear()
        on.processor.clear()
        off = Run(local, fed, lambda path=path: [*path.both(), *path.off()], warm)
        for _ in range(turns):
            on.more(each)
            off.more(each)
        with_it, without = statistics.median(on.wall), statistics.median(off.wall)
        line = {
            "path": path.name,
            "device": device,
            "task": f"{path.task}, {len(fed)} x {int(fed.sizes[0])}",
            "ms with": 1e3 * with_it,
            "ms without": 1e3 * without,
            "ratio": without / with_it,
            "ratio of processor time": statistics.median(off.processor) / statistics.median(on.processor),
            "s to warm up with": on.warm_up,
            "s to warm up without": off.warm_up,
        }
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()}, flush=True)
        yield line


def main() -> None:
    args = arguments(__doc__, only="", task="", device="")
    lines: list[dict[str, Any]] = []
    if args.device in ("", "cpu"):
        lines += measured(CPU, "cpu", args)
    if args.device in ("", "cuda") and torch.cuda.is_available():
        with contextlib.suppress(KeyboardInterrupt):  # what was measured is reported
            lines += measured(GPU, "cuda", args)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    report("fast_paths", lines, note=f"torch {torch.__version__}, {where}; medians of rounds that take turns")


if __name__ == "__main__":
    main()
