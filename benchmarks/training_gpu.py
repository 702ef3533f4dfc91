"""Training on a GPU: do all paths agree, what does a round cost, what does a sweep save, and how well do models learn?

With CIFAR-10 (JPEG-compressed here, so accuracies are not those of the original) and FEMNIST from FEDSCAPE_DATA; random
images of the same shapes stand in for them where they are not there, and curves are then left out. `--only` takes
equality, rounds, sweep or curves, `--task` the tasks (or models) and `--method` the methods whose names have this in
them, `--types` the types of equality. The rows come from one run on one machine.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import fedscape as fs
from fedscape.errors import FedscapeError
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, evaluate, grid, models, sweep
from fedscape.learning.server import Adam
from table import arguments, report_each

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def main() -> None:
    args = arguments(__doc__, only="", task="", method="", rounds=0, seeds=3, types="float64,float32")
    parts = {"equality": equality, "rounds": round_times, "sweep": sweeps, "curves": curves}
    for name, run in parts.items():
        if args.only in ("", name):
            note = f"{torch.cuda.get_device_name() if CUDA else 'no GPU'}, torch {torch.__version__}"
            report_each(f"training_gpu_{name}", run(args), note=note)


def equality(args: Any) -> Iterator[dict[str, Any]]:
    """Three rounds by every strategy and by hand, for every reference model."""
    made = {
        "linear": (models.linear(784, 10), (784,)),
        "MLP 784-512-10": (models.mlp(), (784,)),
        "2-conv CNN": (models.cnn((3, 32, 32), 10), (3, 32, 32)),
        "LeNet-5": (models.lenet5(), (1, 28, 28)),
        "LSTM": (models.char_lstm(hidden=64), (20,)),
        "transformer": (models.transformer(80), (20,)),
        "ResNet-18 GN": (models.resnet18(width=32), (3, 32, 32)),
        "MobileNetV2 GN": (models.mobilenet_v2(width=0.5), (3, 32, 32)),
    }
    names = ["linear", "MLP 784-512-10", "LeNet-5"] if args.quick else list(made)
    strategies = ("sequential", "vmap", "recorded") if CUDA else ("sequential", "vmap")
    for name in (n for n in names if args.task in n):
        for dtype in (getattr(torch, kind) for kind in args.types.split(",")):
            model, shape = made[name]
            model = copy.deepcopy(model).to(dtype)
            codes = name in ("LSTM", "transformer")
            fed = random_clients([7, 7, 7], shape, 80 if codes else 10, codes=codes)
            local = LocalSGD(model, cross_entropy, lr=0.02, epochs=1, batch_size=4, device=DEVICE)
            plain = without_dropout(local)
            ends = {s: last_state(replace(plain, strategy=s), fed) for s in strategies}
            hand = by_hand(plain, fed)
            line: dict[str, Any] = {"model": name, "type": str(dtype).removeprefix("torch.")}
            for strategy, state in ends.items():
                line[strategy] = max(float(np.abs(state[n] - hand[n]).max()) for n in hand)
            yield line


def without_dropout(local: LocalSGD) -> LocalSGD:
    """Keyed dropout has no counterpart by hand; the test suite compares it between strategies."""
    model = copy.deepcopy(local.model)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    return replace(local, model=model)


def last_state(local: LocalSGD, fed: fs.Federation) -> dict[str, Any]:
    *_, last = fs.rounds(FedAvg(local), fs.Local(fed, threads=1), n_rounds=3, measure=0)
    return {n.removeprefix("model."): v for n, v in last.state.items()}


def by_hand(local: LocalSGD, fed: fs.Federation) -> dict[str, Any]:
    """A plain loop over clients with torch.optim, on the batches that fedscape draws."""
    from fedscape.learning.batches import Rows, make_plan

    server = copy.deepcopy(local.model).to(DEVICE)
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    for index in range(3):
        plan = make_plan(Rows(fed.keys, fed.offsets), fs.Key(0, index, "step"), local.timing)
        moves = []
        for i, size in enumerate(fed.sizes):
            model = copy.deepcopy(server)
            optimiser = torch.optim.SGD(model.parameters(), lr=local.lr)
            for rows, count in zip(plan.rows[i], plan.counts[i], strict=True):
                batch = rows[:count]
                x = local.inputs(torch.tensor(fed["x"][batch], device=DEVICE))
                optimiser.zero_grad()
                cross_entropy(model(x), torch.tensor(fed["y"][batch], device=DEVICE)).mean().backward()
                optimiser.step()
            pairs = zip(model.parameters(), server.parameters(), strict=True)
            moves.append([(p - q).detach().double() * float(size) for p, q in pairs])
        with torch.no_grad():
            for p, *own in zip(server.parameters(), *moves, strict=True):
                p.copy_((p.double() + sum(own) / fed.n_rows).to(p.dtype))
    torch.backends.cudnn.allow_tf32 = tf32
    return {n: p.detach().cpu().numpy() for n, p in server.named_parameters()}


def random_clients(sizes: list[int], shape: tuple[int, ...], n_classes: int, *, codes: bool = False) -> fs.Federation:
    rng, n = np.random.default_rng(0), sum(sizes)
    x = rng.integers(0, 80, (n, *shape)) if codes else rng.normal(size=(n, *shape))
    return fs.Federation({"x": x, "y": rng.integers(0, n_classes, n)}, np.concatenate(([0], np.cumsum(sizes))))


def cifar(seed: int) -> tuple[fs.Federation, fs.Federation | None]:
    """1,000 clients of 50 images each, drawn evenly, and the test images."""
    rng = np.random.default_rng(seed)
    try:
        whole = fs.datasets.load("cifar10")
    except FedscapeError as error:
        print(f"no CIFAR-10 ({error}): random images")
        x = rng.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
        return fs.Federation({"x": x, "y": rng.integers(0, 10, 50_000)}, np.arange(0, 50_001, 50)), None
    order = rng.permutation(np.flatnonzero(whole["split"] == 0))
    test = whole["split"] == 1
    clients = fs.Federation({"x": whole["x"][order], "y": whole["y"][order]}, np.arange(0, len(order) + 1, 50))
    return clients, fs.Federation({"x": whole["x"][test], "y": whole["y"][test]}, [0, int(test.sum())])


def round_times(args: Any) -> Iterator[dict[str, Any]]:
    """One round of the pfl-research benchmark: cohort 50 x 50 images, batch 10."""
    fed, _ = cifar(args.seed)
    n_rounds = args.rounds or (2 if args.quick else 30)
    model = models.cnn((3, 32, 32), 10, dropout=False)
    local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=10, device=DEVICE)
    ways = [
        ("sequential", "exact"),
        ("vmap", "exact"),
        ("compiled", "exact"),
        ("compiled", "tf32"),
        ("compiled", "bf16"),
    ]
    for strategy, precision in ways if CUDA else ways[:1]:
        times = []
        how = replace(local, strategy=strategy, precision=precision)
        sampler = fs.FixedSize(50 if not args.quick else 4)
        engine = fs.Local(fed, threads=1)
        few = 6 if strategy == "sequential" else n_rounds + 3
        for r in fs.rounds(FedAvg(how), engine, n_rounds=few, sampler=sampler, seed=args.seed, measure=0):
            times.append(r.seconds)
        yield {
            "strategy": strategy,
            "precision": precision,
            "first round s": times[0],
            "median ms": 1000 * statistics.median(times[3:] or times[1:]),
            "p90 ms": 1000 * float(np.quantile(times[3:] or times[1:], 0.9)),
        }


def sweeps(args: Any) -> Iterator[dict[str, Any]]:
    """12 learning rates x 3 seeds as one run against 36 runs (3 of which are timed)."""
    fed, _ = cifar(args.seed)
    cnn = LocalSGD(models.cnn((3, 32, 32), 10), cross_entropy, lr=1.0, epochs=1, batch_size=10, device=DEVICE)
    rng = np.random.default_rng(args.seed)
    flat = fs.Federation({"x": rng.normal(size=(6_000, 784)).astype("f4"), "y": rng.integers(0, 10, 6_000)},
                         np.arange(0, 6_001, 20))  # fmt: skip
    mlp = LocalSGD(models.mlp(hidden=64), cross_entropy, lr=1.0, epochs=1, batch_size=10)
    tasks = [("MLP 784-64-10, cohort 10 x 20, CPU", mlp, flat, 10)]
    if CUDA:
        cnn = replace(cnn, precision="tf32")
        tasks.append(("2-conv CNN, cohort 50 x 50, GPU, tf32", cnn, fed, 50))
    n_rounds = args.rounds or (2 if args.quick else 10)
    settings = grid(lr=np.geomspace(0.003, 0.3, 12).tolist(), seeds=[0, 1, 2])
    for name, local, data, cohort in tasks:
        how: dict[str, Any] = {"sampler": fs.FixedSize(cohort), "validation": data.take([0]), "initial": "seed"}
        sweep(local, data, settings, n_rounds=1, **how)  # compiled and warm
        sweep(local, data, settings[:1], n_rounds=1, **how)
        began = time.perf_counter()
        together = sweep(local, data, settings, n_rounds=n_rounds, **how)
        one_run = time.perf_counter() - began
        began = time.perf_counter()
        alone = [sweep(local, data, [s], n_rounds=n_rounds, **how)[0] for s in settings[:3]]
        each = (time.perf_counter() - began) / 3
        by_setting = {t.setting: t.loss for t in together}
        apart = max(abs(t.loss - by_setting[t.setting]) for t in alone)
        line = {"task": name, "rounds": n_rounds, "36 settings s": one_run, "one setting s": each}
        yield {
            **line,
            "36 runs / one sweep": 36 * each / one_run,
            "sweep / one run": one_run / each,
            "loss apart": apart,
        }


def curves(args: Any) -> Iterator[dict[str, Any]]:
    """Accuracy over rounds on held-out images, mean and range over seeds."""
    photographs, test = cifar(args.seed)
    letters = fs.datasets.load("femnist-mini" if args.quick else "femnist")
    tasks: list[tuple[str, Any, Any, int, int, list[int]]] = []
    if test is not None:
        images, marks = models.cnn((3, 32, 32), 10), [50, 100, 200, 400, 600]
        tasks.append(("CIFAR-10 (JPEG), 1,000 x 50", images, (photographs, test), 50, 600, marks))
    halves = letters.split(test=0.2, seed=args.seed)
    tasks.append(("FEMNIST, 360 writers", models.cnn(), halves, 20, 200, [25, 50, 100, 150, 200]))
    for name, model, (train, held_out), cohort, n_rounds, marks in [t for t in tasks if args.task in t[0]]:
        n_rounds, marks = (2, [1, 2]) if args.quick else (n_rounds, marks)
        step = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=10, device=DEVICE)
        step = replace(step, precision="tf32" if CUDA else "exact")
        small = replace(step, lr=0.03)
        methods = {
            "FedAvg": FedAvg(step, initial="seed"),
            "FedProx 0.1": FedAvg(replace(step, proximal=0.1), initial="seed"),
            "FedAdam": FedAvg(small, server=Adam(0.003, epsilon=1e-3), initial="seed"),
        }
        for method, computation in ((m, c) for m, c in methods.items() if args.method in m):
            began, found = time.perf_counter(), []
            for seed in range(args.seeds if not args.quick else 1):
                loop = fs.rounds(computation, fs.Local(train, threads=1), n_rounds=n_rounds,
                                 sampler=fs.FixedSize(min(cohort, len(train))), seed=seed, measure=0)  # fmt: skip
                found.append([evaluate(computation.local, r.state, held_out).summary()["accuracy_pooled"]
                              for r in loop if r.index + 1 in marks])  # fmt: skip
            seconds = (time.perf_counter() - began) / len(found)
            mean, low, high = (f(np.array(found), axis=0) for f in (np.mean, np.min, np.max))
            line = {"task": name, "method": method, "seeds": len(found), "s per run": seconds}
            yield {**line, **{f"round {m}": f"{100 * a:.1f} [{100 * b:.1f}, {100 * c:.1f}]"
                              for m, a, b, c in zip(marks, mean, low, high, strict=True)}}  # fmt: skip


if __name__ == "__main__":
    main()
