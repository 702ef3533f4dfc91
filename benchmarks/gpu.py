"""What does a round of training cost on a GPU, and how far is that from what the machine could do?

`--only` takes rounds (milliseconds a round of six networks, by strategy and precision, with the operations and bytes
that their layers need and the time in which the machine could do them), first (seconds of the first round in a new
process, by `--products tf32,bf16`), long (1,500 rounds on CIFAR-10: seconds and accuracy), sweep (36 settings as one
run against one), peers (pfl-research and Flower's simulation), profile (the longest kernels) or roofline (kernels of
large networks by what they do, beside their least bytes and operations); `--task` names networks
of rounds or the cohort of a sweep, `--products` a precision, `--strategy` a strategy. `--first` is a file that
`--only first --out` made, for a column of rounds. CIFAR-10 is JPEG-compressed here; random images stand in where there
is none. Every row is printed and written as it comes, also to the file `--out`, whose rows of earlier runs are reported
too. `precision.py` has the accuracy of shorter numbers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import fedscape as fs
from by_flower import by_flower
from fedscape.learning import Adapted, FedAvg, LocalSGD, cross_entropy, evaluate, grid, models, sweep
from table import arguments, report_each
from training_gpu import cifar
from training_speed import by_pfl

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
FAST = ("recorded", "compiled")
PRECISIONS = ("bf16", "tf32", "exact")
#: What most rows are about comes first: a run may be stopped.
WAYS = [("recorded", "bf16"), ("recorded", "tf32"), ("sequential", "exact"), ("recorded", "exact")]
MORE = [("vmap", "exact"), *(("compiled", precision) for precision in PRECISIONS[1:])]  # of the first network alone
SQUARES = (8192, 16384) if CUDA else (64,)


def main() -> None:
    args = arguments(__doc__, only="rounds", task="", products="", strategy="", out="", first="", repeats=80)
    run = {"rounds": round_times, "first": first_rounds, "long": long_runs, "sweep": sweeps, "peers": peers,
           "profile": profiles, "roofline": rooflines}[args.only]  # fmt: skip
    note = f"{torch.cuda.get_device_name() if CUDA else 'no GPU'}, torch {torch.__version__}"
    report_each(f"gpu_{args.only}", run(args), note=note, out=args.out)


def tasks(quick: bool) -> dict[str, tuple[fs.Federation, Any, int, int]]:
    """Clients, model, cohort and batch size; random images and texts of the right shapes."""
    rng, n = np.random.default_rng(0), 10 if quick else 1_000

    def of(shape: tuple[int, ...], classes: int, rows: int, high: int = 256) -> fs.Federation:
        x = rng.integers(0, high, (n * rows, *shape), dtype=np.uint8)
        return fs.Federation({"x": x, "y": rng.integers(0, classes, n * rows)}, np.arange(0, n * rows + 1, rows))

    every = {
        "CNN 32 x 32 x 3, 50 x 50": (of((32, 32, 3), 10, 50), models.cnn((3, 32, 32), 10, dropout=False), 50, 10),
        "CNN 28 x 28, 62 classes, 20 x 100": (of((28, 28), 62, 100), models.cnn(dropout=False), 20, 20),
        "LSTM 80 characters, 20 x 40": (of((80,), 80, 40, 80), models.char_lstm(), 20, 10),
        "ResNet-18 GN, 10 x 50": (of((32, 32, 3), 10, 50), models.resnet18(), 10, 10),
        "MobileNetV2 GN, 10 x 50": (of((32, 32, 3), 10, 50), models.mobilenet_v2(), 10, 10),
        "transformer 4 x 256, LoRA 8, 20 x 40": (of((80,), 80, 40, 80), adapted(), 20, 10),
    }
    return {name: (fed, model, 2, batch) for name, (fed, model, _, batch) in every.items()} if quick else every


def adapted() -> Any:
    """Four layers of attention, 256 wide, with adapters of rank 8 in all linear layers."""
    return Adapted(models.transformer(80, width=256, layers=4, heads=4), rank=8)


def least(local: LocalSGD, fed: fs.Federation, cohort: int, precision: str) -> tuple[float, float]:
    """Bytes and operations (a multiply-add is two) of the products of a round, each layer being one pass.

    Weights that are trained, each step: read forward, read for the gradient of the inputs, read and written by the
    update; once more written at the start and read at the end. Frozen ones are read forward and for the gradient of the
    inputs, once a step for all clients. Activations of layers with weights: inputs read and outputs written forward,
    gradients of outputs and inputs read backward and those of the inputs written. What needs no gradient is left out.
    Norms, pools and the like are thought of as parts of the layers before them.
    """
    steps, batch = int(local.timing.all_steps(fed.sizes[:1])[0]), local.batch_size
    moved, products, backward = 0, 0, 0

    def look(layer: Any, given: Any, made: torch.Tensor) -> None:
        nonlocal moved, products, backward
        trained, passed = layer.weight.requires_grad, given[0].requires_grad
        inputs, outputs = given[0].numel(), made.numel()
        moved += inputs + outputs + outputs * (trained or passed) + inputs * (trained + passed)
        product = 2 * (outputs // layer.weight.shape[0]) * layer.weight.numel()
        products += product
        backward += product * (trained + passed)

    model = local.model.cpu()
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    hooks = [m.register_forward_hook(look) for m in layers]
    with FlopCounterMode(display=False) as counter:
        model(local.inputs(torch.tensor(fed["x"][:batch])))
    for hook in hooks:
        hook.remove()
    others = counter.get_total_flops() - products  # of attention and adapters: two operands, each with a gradient
    width = 2 if precision == "bf16" else 4
    frozen = sum(p.numel() for p in model.parameters()) - local.n_parameters
    weights = 4 * local.n_parameters * (4 * steps + 2)
    size = cohort * (weights + steps * width * moved) + 2 * steps * width * frozen
    return size, float(cohort * steps * (products + backward + 3 * others))


def first_rounds(args: Any) -> Iterator[dict[str, Any]]:
    """Seconds of the first round of each network, one after the other in this process.

    A process that finds no kernels (a new FEDSCAPE_PROGRAMS) makes them. Some serve the networks after it, too.
    """
    for name, (fed, model, cohort, batch) in tasks(args.quick).items():
        for precision in (args.products or ("bf16" if CUDA else "exact")).split(","):
            if any(part in name for part in args.task.split(",")):
                local = LocalSGD(model, cross_entropy, lr=0.01, epochs=1, batch_size=batch, device=DEVICE)
                local = replace(local, strategy=args.strategy or "auto", precision=precision)
                yield {"task": name, "products": precision, "s": seconds(FedAvg(local), fed, cohort, 1)[0]}


def round_times(args: Any) -> Iterator[dict[str, Any]]:
    """Median ms of a round, everything in it, from drawing the cohort to the new weights in host memory.

    Of the second half of the rounds: a process draws its first numbers without compiled loops.
    """
    first = [json.loads(line) for line in Path(args.first).read_text().splitlines()] if args.first else []
    without = {(line["task"], line["products"]): line["s"] for line in first}
    copied, multiplied = bandwidth(), {p: product_rate(p) for p in (PRECISIONS if CUDA else ("exact",))}
    every = tasks(args.quick)
    rows = [(name, way) for way in WAYS for name in every if way in WAYS[:2] or name.startswith("CNN")]
    rows += [(next(iter(every)), way) for way in MORE]
    rows += [(name, way) for way in WAYS[:1:-1] for name in every if not name.startswith("CNN")]
    for name, (strategy, precision) in rows:
        if not CUDA and (precision != "exact" or strategy not in ("sequential", "vmap")):
            continue
        if args.task not in name or args.products not in precision or args.strategy not in strategy:
            continue
        fed, model, cohort, batch = every[name]
        local = LocalSGD(model, cross_entropy, lr=0.01, epochs=1, batch_size=batch, device=DEVICE)
        local = replace(local, strategy=strategy, precision=precision)
        few = 2 if args.quick else 3 if strategy == "sequential" else args.repeats
        times = seconds(FedAvg(local), fed, cohort, few)
        line: dict[str, Any] = {"task": name, "strategy": strategy, "products": precision}
        made = without.get((name, precision), "") if strategy == "recorded" else ""
        line |= {"first s, no kernels": made, "first s": times[0], "ms": 1000 * statistics.median(times[few // 2 :])}
        if CUDA:
            line["ms in kernels"] = kernels(FedAvg(local), fed, cohort) if strategy in FAST else ""
        size, operations = least(local, fed, cohort, precision)
        line |= {"TFLOP": operations / 1e12, "GB": size / 1e9}
        by = {"ms by operations": operations / multiplied[precision] * 1000, "ms by bytes": size / copied * 1000}
        line |= {**by, "TFLOP/s of the machine": multiplied[precision] / 1e12, "TB/s of the machine": copied / 1e12}
        if line.get("ms in kernels"):
            line["kernels / roofline"] = line["ms in kernels"] / max(by.values())
        yield line


def seconds(method: FedAvg, fed: fs.Federation, cohort: int, number: int) -> list[float]:
    engine = fs.Local(fed, threads=1)
    return [r.seconds for r in fs.rounds(method, engine, n_rounds=number, sampler=fs.FixedSize(cohort), measure=0)]


def bandwidth() -> float:
    """Bytes a second of a large copy on the device, read and written."""
    if not CUDA:
        return 1e10
    from triton.testing import do_bench

    a = torch.empty(2**29, device=DEVICE)
    b = torch.rand(2**29, device=DEVICE)
    return float(2 * 4 * 2**29 / (do_bench(lambda: a.copy_(b), return_mode="median") / 1000))


def product_rate(precision: str) -> float:
    """Operations a second of a large product of matrices by torch, in this precision: the best of some sizes."""
    if not CUDA:
        return 1e11
    from triton.testing import do_bench

    kind, rates = torch.bfloat16 if precision == "bf16" else torch.float32, []
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    for n in SQUARES:
        a, b = (torch.randn(n, n, device=DEVICE).to(kind) for _ in range(2))
        rates.append(2 * n**3 / (do_bench(partial(torch.matmul, a, b), return_mode="median") / 1000))
    torch.backends.cuda.matmul.allow_tf32 = before
    return float(max(rates))


def kernels(method: FedAvg, fed: fs.Federation, cohort: int) -> float:
    """Milliseconds of a round in which the device works, summed over its kernels and copies."""
    return sum(time for _, time in by_kernel(method, fed, cohort))


def by_kernel(method: FedAvg, fed: fs.Federation, cohort: int) -> list[tuple[str, float]]:
    """The kernels and copies of a round with their milliseconds, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        seconds(method, fed, cohort, 5)
    times = [(e.key, float(e.self_device_time_total) / 5 / 1000) for e in found.key_averages()]
    return sorted(times, key=lambda pair: -pair[1])


def profiles(args: Any) -> Iterator[dict[str, Any]]:
    """The longest kernels of a round of each network, in tf32 and bf16."""
    for task, (fed, model, cohort, batch) in tasks(args.quick).items():
        for precision in (p for p in (("tf32", "bf16") if CUDA else ("exact",)) if args.products in p):
            if args.task not in task:
                continue
            local = LocalSGD(model, cross_entropy, lr=0.01, epochs=1, batch_size=batch, device=DEVICE)
            local = replace(local, precision=precision, strategy=args.strategy or "auto")
            seconds(FedAvg(local), fed, cohort, 3)  # recorded
            for name, took in by_kernel(FedAvg(local), fed, cohort)[:25]:
                yield {"task": task, "products": precision, "kernel": name[:80], "ms": took}


#: What kernels do, by parts of their names: the first that fits.
KINDS = {
    "norms": ("_norm",),
    "depthwise convolutions": ("_depthwise",),
    "products": ("_convolve", "_to_images", "_to_weights", "gemm", "nvjet", "cutlass"),
    "copies between host and device": ("HtoD", "DtoH"),
    "steps of SGD and sums of moves": ("_descend", "_summed"),
}


def kind_of(kernel: str) -> str:
    """What a kernel does."""
    return next((kind for kind, parts in KINDS.items() if any(part in kernel for part in parts)), "other passes")


def rooflines(args: Any) -> Iterator[dict[str, Any]]:
    """Of large convolutional networks: what must be read, written and multiplied in a round, and what it takes.

    Bytes of products are their inputs, outputs and weights, each once forward and once for each of two gradients, with
    the step of the weights in the last; those of norms and depthwise convolutions their images alone. Rates are those
    of a large copy and a large product.
    """
    copied = bandwidth()
    for task, (fed, model, cohort, batch) in tasks(args.quick).items():
        if not any(name in task for name in ("ResNet", "MobileNet")) or args.task not in task:
            continue
        for precision in (p for p in (("tf32", "bf16") if CUDA else ("exact",)) if args.products in p):
            local = LocalSGD(model, cross_entropy, lr=0.01, epochs=1, batch_size=batch, device=DEVICE)
            local, rate = replace(local, precision=precision), product_rate(precision)
            work, took = least_by_kind(local, fed, cohort, precision), dict.fromkeys([*KINDS, "other passes"], 0.0)
            if CUDA:
                seconds(FedAvg(local), fed, cohort, 3)  # recorded
                for kernel, ms in by_kernel(FedAvg(local), fed, cohort):
                    took[kind_of(kernel)] += ms
            for kind, ms in took.items():
                size, operations = work.get(kind, (0.0, 0.0))
                line: dict[str, Any] = {"task": task, "products": precision, "kind": kind}
                line |= {"GB": size / 1e9 or "", "TFLOP": operations / 1e12 or ""}
                line["ms by bytes"] = 1000 * size / copied if size else ""
                line["ms by operations"] = 1000 * operations / rate if operations else ""
                yield {**line, "ms in kernels": ms}


def least_by_kind(local: LocalSGD, fed: fs.Federation, cohort: int, precision: str) -> dict[str, tuple[float, float]]:
    """Bytes and operations that the layers of each kind cannot do without, in all steps of a round."""
    steps, width = int(local.timing.all_steps(fed.sizes[:1])[0]), 2 if precision == "bf16" else 4
    size, operations = dict.fromkeys(KINDS, 0.0), 0.0

    def look(layer: Any, given: Any, made: torch.Tensor) -> None:
        nonlocal operations
        images = width * (sum(x.numel() for x in given) + made.numel())
        if isinstance(layer, torch.nn.GroupNorm):  # forward; back it reads three and writes one or two
            size["norms"] += images + width * (3 * made.numel() + sum(x.numel() for x in given))
        elif isinstance(layer, torch.nn.Conv2d) and layer.groups > 1:
            size["depthwise convolutions"] += 3 * images
        else:
            weights = layer.weight.numel()  # read twice as products want them, then read, moved and written as both
            size["products"] += 3 * images + weights * (2 * width + 8 + (width if width < 4 else 0))
            operations += 3 * 2 * made.numel() // layer.weight.shape[0] * weights

    kinds = (torch.nn.Conv2d, torch.nn.Linear, torch.nn.GroupNorm)
    hooks = [m.register_forward_hook(look) for m in local.model.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        local.model.cpu()(local.inputs(torch.from_numpy(fed["x"][: local.batch_size])))
    for hook in hooks:
        hook.remove()
    return {kind: (cohort * steps * n, cohort * steps * operations * (kind == "products")) for kind, n in size.items()}


def cnn(precision: str) -> LocalSGD:
    local = LocalSGD(models.cnn((3, 32, 32), 10), cross_entropy, lr=0.1, epochs=1, batch_size=10, device=DEVICE)
    return replace(local, precision=precision if CUDA else "exact")


def long_runs(args: Any) -> Iterator[dict[str, Any]]:
    """1,500 rounds, cohort 50 of 1,000 clients of 50 images, dropout, evaluated at the end."""
    train, test = cifar(args.seed)
    for precision in (p for p in ("tf32", "bf16") if args.products in p):
        method = FedAvg(cnn(precision), initial="seed")
        seconds(method, train, 50, 5)  # compiled
        began = time.perf_counter()
        number = 20 if args.quick else 1_500
        state = trained(method, train, number, seed=0)
        found = evaluate(method.local, state, train if test is None else test).summary()["accuracy_pooled"]
        yield {"products": precision, "rounds": number, "s": time.perf_counter() - began, "accuracy": 100 * found}


def trained(method: FedAvg, train: fs.Federation, number: int, *, seed: int) -> dict[str, np.ndarray]:
    """The last state; earlier ones are let go, or locked host memory is taken for every round."""
    how: dict[str, Any] = {"sampler": fs.FixedSize(50), "seed": seed, "measure": 0}
    loop = fs.rounds(method, fs.Local(train, threads=1), n_rounds=number, **how)
    deque(loop, maxlen=0)
    return loop.state


def sweeps(args: Any) -> Iterator[dict[str, Any]]:
    """12 learning rates x 3 seeds as one run against one setting alone."""
    train, _ = cifar(args.seed)
    settings = grid(lr=np.geomspace(0.003, 0.3, 12).tolist(), seeds=[0, 1, 2])
    number = 2 if args.quick else 200
    for cohort in (c for c in (5, 50) if args.task in ("", str(c))):
        how: dict[str, Any] = {"sampler": fs.FixedSize(cohort), "validation": train.take([0]), "initial": "seed"}
        local, took = cnn("tf32"), {}
        for name, tried in (("one", settings[:1]), ("all", settings)):
            for _ in range(2):  # the second counts: all is compiled, also the loops that draw numbers
                began = time.perf_counter()
                sweep(local, train, tried, n_rounds=number, **how)
                took[name] = (time.perf_counter() - began) / number
        one, every = 1000 * took["one"], 1000 * took["all"]
        line = {"cohort": cohort, "one setting, ms": one, "36 settings, ms": every}
        yield {**line, "sweep / one run": every / one, "36 runs / sweep": 36 * one / every}


def peers(args: Any) -> Iterator[dict[str, Any]]:
    """fedscape, pfl-research and Flower's simulation with the same clients, network and machine, all in the cohort.

    Median of the rounds after the first. Peers train as torch does by itself: convolutions may be tf32, other products
    are float32. Flower's clients run in one process, or in three that share the GPU.
    """
    every = tasks(args.quick)
    for name in (n for n in every if n.startswith(("CNN 32", "ResNet")) and args.task in n):
        fed, model, cohort, batch = every[name]
        part = fed.take(np.arange(cohort))
        images = part["x"].astype(np.float32).transpose(0, 3, 1, 2) / 255
        part = fs.Federation({"x": images, "y": part["y"].astype(np.int64)}, part.offsets)
        local = LocalSGD(model, cross_entropy, lr=0.01, epochs=1, batch_size=batch, device=DEVICE)
        for way, run in ways_of_training(local, part, 3 if args.quick else 6).items():
            if args.strategy not in way:
                continue
            began = time.perf_counter()
            try:
                times = run()
            except ImportError as error:
                yield {"task": name, "way": way, "ms": f"not installed ({error.name})"}
                continue
            line = {"task": name, "way": way, "first s": times[0], "ms": 1000 * statistics.median(times[1:])}
            yield {**line, "rounds": len(times), "s in all": time.perf_counter() - began}


def ways_of_training(local: LocalSGD, part: fs.Federation, number: int) -> dict[str, Callable[[], list[float]]]:
    """Seconds of each round by every system."""
    ways: dict[str, Callable[[], list[float]]] = {}
    for precision in PRECISIONS if CUDA else ("exact",):
        own = FedAvg(replace(local, precision=precision))
        ways[f"fedscape, {precision}"] = partial(seconds, own, part, len(part), 5 * number)
    one_by_one = FedAvg(replace(local, strategy="sequential"))
    ways["fedscape, sequential"] = partial(seconds, one_by_one, part, len(part), number)
    ways["pfl-research"] = lambda: by_pfl(local, part, number, 1)[0]
    ways["Flower, 1 process"] = lambda: by_flower(local, part, number, 1)[0]
    ways["Flower, 3 processes"] = lambda: by_flower(local, part, number, 3)[0]
    return ways


if __name__ == "__main__":
    main()
