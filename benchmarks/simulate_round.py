"""What does a round of `simulate_training.py` cost on this machine, by which way, and in which kernels?

    python benchmarks/simulate_round.py --data FOLDER       # as written by simulate_training.py --prepare

Ways, sizes of chunks and products in turn, seconds of a round after one that is not timed; on a GPU the longest kernels
of a step of the first way. No further way is begun after --limit seconds. Random images of few clients by --quick.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch

from simulate_steps import Chunk
from simulate_training import Experiment
from table import arguments, report

LABELLED = "true;conditional;mixture;iid;mixture of all 3,597"  # all kinds but those by cells
VARIANTS = [  # way, most models of a chunk, products
    ("kernels", 8192, "tf32"), ("kernels", 1024, "tf32"), ("kernels", 8192, "bf16"), ("unfused", 1024, "tf32"),
    ("plain", 8192, "tf32"), ("compiled", 512, "tf32"),
]  # fmt: skip


def main() -> None:
    args = arguments(__doc__, data="", only="femnist_same", kinds=LABELLED, rounds=3, cohort=20, batch=10, limit=45.0)
    began, device = time.perf_counter(), "cuda" if torch.cuda.is_available() else "cpu"
    if args.quick:
        args.cohort, args.rounds, args.kinds = 2, 1, "all"
    torch.set_float32_matmul_precision("high")
    data, made = given(args) if args.data else made_up()
    lines = []
    for way, size, products in VARIANTS if device == "cuda" else [("unfused", 16, "tf32"), ("plain", 16, "tf32")]:
        if time.perf_counter() - began > args.limit:
            break
        chosen = Namespace(**{**vars(args), "way": way, "chunk": size, "products": products})
        experiment = Experiment(args.only, data, made, chosen, device)
        if way != "plain" and experiment.chunk is None:
            continue
        times = [seconds(experiment, index) for index in range(args.rounds + 1)]
        line = {"way": way, "chunk": size, "products": products, "seconds of a round": statistics.median(times[1:])}
        lines.append({**line, "least": min(times[1:]), "first": times[0]})
        print(f"{time.perf_counter() - began:.0f} s: {lines[-1]}", flush=True)
        if device == "cuda" and experiment.chunk and len(lines) in (1, 4):
            profile(experiment.chunk)
        del experiment
        if device == "cuda":
            torch.cuda.empty_cache()
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    report("simulate_round", lines, note=f"{args.only}, cohort {args.cohort}, {where}")


def given(args: Namespace) -> tuple[dict, dict]:
    folder = Path(args.data)
    with np.load(folder / f"{args.only.split('_')[0]}_data.npz") as data, np.load(folder / f"{args.only}.npz") as made:
        return dict(data), dict(made)


def made_up() -> tuple[dict, dict]:
    """Noise for two kinds of clients, six clients of 5 to 30 rows each."""
    rng = np.random.default_rng(0)
    offsets, made = np.cumsum([0, 5, 10, 15, 20, 25, 30]), {"test": np.arange(10)}
    for key in ("true|0", "true|1", "iid|0"):
        made[f"{key}|rows"], made[f"{key}|offsets"] = rng.permutation(offsets[-1]), offsets
    x = rng.integers(0, 256, (offsets[-1], 28, 28), dtype=np.uint8)
    return {"x": x, "y": np.arange(offsets[-1]) % 62}, made


def seconds(experiment: Experiment, index: int) -> float:
    """Of one round, with the drawing of the next, as `simulate_training.train` does it."""
    drawn, begin = experiment.draw(index), time.perf_counter()
    experiment.round(drawn)
    experiment.draw(index + 1)
    if experiment.x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def profile(chunk: Chunk, steps: int = 20) -> None:
    """Print what a full step of a chunk takes by the clock, and its longest kernels, in microseconds."""
    chunk.t.zero_()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    chunk.run(np.full(chunk.size, steps))
    torch.cuda.synchronize()
    took = (time.perf_counter() - begin) / steps
    chunk.t.zero_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            chunk.step(chunk.size)
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in kernels) / steps
    print(f"  a step of {chunk.size} models: {1e6 * took:.0f} us, in kernels {total:.0f} us")
    for e in kernels[:14]:
        print(f"  {e.self_device_time_total / steps:8.1f} us {e.count / steps:5.1f} x {e.key[:90]}", flush=True)


if __name__ == "__main__":
    main()
