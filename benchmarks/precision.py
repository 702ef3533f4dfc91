"""Does a network learn as well in tf32 or bf16 as in float32? Runs paired by seed on real data, with intervals.

For each seed all ways have the same cohorts, batches, dropout and first weights. "other order" is float32 again with
clients in groups, so that sums round differently: what this by itself does to an accuracy. Accuracies are of the last
state on rows that were not trained on, in float32 and percent; intervals are 95% t intervals of means over seeds.
Means of accuracies are over the seeds that all precisions have, differences over all pairs of a way and float32.
`--task` takes the tasks whose names have this in them, `--ways` some ways, `--seeds` how many seeds, `--begin` the
first. `--out` keeps each run in a file, `--summary` makes the tables of such files (split by commas) and trains
nothing. CIFAR-10 is JPEG-compressed here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

import fedscape as fs
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, evaluate, models
from table import arguments, half_width, report, report_each, rows_of, without_origin
from training_gpu import cifar

CUDA = torch.cuda.is_available()
WAYS = ("exact", "tf32", "bf16", "other order") if CUDA else ("exact", "other order")


class Task(NamedTuple):
    train: fs.Federation
    test: fs.Federation
    local: LocalSGD
    cohort: int
    rounds: int


def main() -> None:
    args = arguments(__doc__, task="", seeds=10, begin=0, ways=",".join(WAYS), out="", summary="")
    note = f"{torch.cuda.get_device_name() if CUDA else 'no GPU'}, torch {torch.__version__}"
    if not args.summary:
        report_each("gpu_precision_runs", runs(args), note=note, out=args.out)
        return
    lines = [line for file in args.summary.split(",") for line in rows_of(file)]
    report("gpu_precision_runs", without_origin(lines), cells=lines)
    report("gpu_precision", list(compared(lines)), cells=lines)


def runs(args: Any) -> Iterator[dict[str, Any]]:
    """One row for each seed, task and way."""
    every = {n: make for n, make in TASKS.items() if args.task in n}
    ready = {name: make(args.quick) for name, make in every.items()}
    for seed in range(args.begin, args.begin + (2 if args.quick else args.seeds)):
        for name, task in ready.items():
            for way in args.ways.split(","):
                began = time.perf_counter()
                found = 100 * accuracy(task, way, seed)
                line = {"task": name, "rounds": task.rounds, "cohort": task.cohort, "seed": seed, "way": way}
                yield {**line, "accuracy": found, "s": time.perf_counter() - began}


def accuracy(task: Task, way: str, seed: int) -> float:
    shorter = {} if way in ("exact", "other order") else {"precision": way}
    grouped = {"group_size": max(1, task.cohort // 2)} if way == "other order" else {}
    local = replace(task.local, **shorter, **grouped)
    how: dict[str, Any] = {"sampler": fs.FixedSize(task.cohort), "seed": seed, "measure": 0}
    loop = fs.rounds(FedAvg(local, initial="seed"), fs.Local(task.train, threads=1), n_rounds=task.rounds, **how)
    deque(loop, maxlen=0)
    return float(evaluate(task.local, loop.state, task.test).summary()["accuracy_pooled"])


def compared(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Means over the seeds that all precisions have, and of differences over those that a way shares with float32."""
    for name in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == name]
        by_way = {
            way: {line["seed"]: line["accuracy"] for line in own if line["way"] == way}
            for way in dict.fromkeys(line["way"] for line in own)
        }
        every = set.intersection(*(set(found) for way, found in by_way.items() if way != "other order"))
        for way, found in by_way.items():
            both = sorted(found.keys() & by_way["exact"].keys())
            line = {"task": name, "rounds": own[0]["rounds"], "way": way}
            fits = bool(every) and every <= found.keys()
            line["seeds of all"] = len(every) if fits else ""
            line["accuracy"] = shown([found[s] for s in sorted(every)]) if fits else ""
            apart = [found[s] - by_way["exact"][s] for s in both]
            line["pairs"] = "" if way == "exact" else len(both)
            yield {**line, "minus exact": "" if way == "exact" else shown(apart, sign="+")}


def shown(values: list[float], sign: str = "") -> str:
    half = f" ± {half_width(values):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.2f}{half}"


def trained(model: Any, *, lr: float, batch_size: int = 10) -> LocalSGD:
    return LocalSGD(model, cross_entropy, lr=lr, epochs=1, batch_size=batch_size, device="cuda" if CUDA else "cpu")


def photographs(quick: bool) -> Task:
    train, test = cifar(0)
    assert test is not None, "CIFAR-10 is not there"
    if quick:
        train, test = train.take(np.arange(8)), part(test, 200)
    return Task(train, test, trained(models.cnn((3, 32, 32), 10), lr=0.1), 4 if quick else 50, 2 if quick else 300)


def handwriting(quick: bool) -> Task:
    """Writers with at least 100 images, 80 of each for training: with one size a round is one program."""
    fed = fs.datasets.load("femnist-mini" if quick else "femnist")
    n, more = (16, 4) if quick else (80, 20)
    rng, writers = np.random.default_rng(0), np.flatnonzero(fed.sizes >= n + more)
    places = np.stack([fed.offsets[w] + rng.permutation(fed.sizes[w])[: n + more] for w in writers])
    train, test = clients_of(fed, places[:, :n]), clients_of(fed, places[:, n:])
    return Task(train, test, trained(models.cnn(), lr=0.1), 2 if quick else 20, 1 if quick else 150)


def plays(quick: bool) -> Task:
    """Roles with at least 100 characters; 40 places of each train, 10 are tested, by the 40 characters before."""
    fed = fs.datasets.load("shakespeare-mini" if quick else "shakespeare")
    rng, roles = np.random.default_rng(0), np.flatnonzero(fed.sizes >= 100)
    spread = [np.linspace(fed.offsets[r], fed.offsets[r + 1] - 1, 50).astype(np.int64) for r in roles]
    places = np.stack([rng.permutation(rows) for rows in spread])
    whole = clients_of(fed, places[:, :40]), clients_of(fed, places[:, 40:])
    train, test = (part.with_column("x", part["x"][:, -40:]).with_column("y", part["y"].astype(int)) for part in whole)
    return Task(
        train, test, replace(trained(models.char_lstm(), lr=0.003), optimiser="adam"), *((2, 1) if quick else (20, 150))
    )


def clients_of(fed: fs.Federation, places: np.ndarray) -> fs.Federation:
    """Clients with these rows [clients, rows]."""
    columns = {name: fed[name][places.reshape(-1)] for name in ("x", "y")}
    return fs.Federation(columns, np.arange(len(places) + 1) * places.shape[1])


def part(fed: fs.Federation, n: int) -> fs.Federation:
    return fs.Federation({"x": fed["x"][:n], "y": fed["y"][:n]}, [0, n])


TASKS = {
    "CNN, CIFAR-10": photographs,
    "CNN, FEMNIST": handwriting,
    "LSTM, Shakespeare": plays,
}


if __name__ == "__main__":
    main()
