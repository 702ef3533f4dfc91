"""What does a round of FedClock, FedTEM or FedTKM cost beside a round of FedAvg on the same network?

The network with two branches of the FedTEM paper on 28 x 28 images, clients of equal size, one epoch of batches of 20:
FedAvg trains the mean of both branches; FedTEM and FedTKM look at all rows once before training and once after,
FedClock at some before. Images of the night are half as bright and have other labels, so that FedClock has branches. By
turns of four rounds in one process, one thread, after warming up; medians of the ratios of one turn, and their range.
Processor time on a CPU, time on a GPU.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from fedscape import Federation, Local, LocalSGD, rounds
from fedscape.learning import cross_entropy, models
from fedscape.methods import Options, make
from fedscape.temporal import Linear, MultiBranch, Shifting
from table import arguments, report

METHODS = ("vanilla", "fedclock", "fedtem", "fedtem-sums", "fedtkm")
TURN = 4  # rounds: FedClock solves its regression in every fourth
WARM = 24  # rounds before a round is timed: FedClock has branches by then
NETWORKS = {"cnn": lambda: models.cnn((1, 28, 28), 62, dropout=False), "mlp 64": lambda: models.mlp(784, 64, 62)}


def main() -> None:
    options = {"networks": ",".join(NETWORKS), "methods": ",".join(METHODS), "name": "temporal_round"}
    args = arguments(__doc__, clients=10, rows="100", repeats=5, device="cpu", **options)
    args.clients, args.rows, args.repeats = (3, "40", 3) if args.quick else (args.clients, args.rows, args.repeats)
    torch.set_num_threads(1)
    lines = []
    for rows in map(int, args.rows.split(",")):
        for name in args.networks.split(","):
            took = times(name, rows, args)
            for m, seconds in took.items():
                ratio = np.divide(seconds, took["vanilla"])  # of one turn: what else runs on the machine is alike in it
                line = {"network": name, "rows": rows, "method": m, "ms a round": 1000 * float(np.median(seconds))}
                ratios = f"{ratio.min():.2f} to {ratio.max():.2f}"
                lines.append({**line, "x FedAvg": f"{np.median(ratio):.2f}", "range": ratios, "device": args.device})
    note = f"{args.clients} clients, one thread, medians of {args.repeats} turns of {TURN} rounds"
    report(args.name, lines, note=note)


def times(name: str, rows: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a round of each method, turn by turn."""
    rng, population = np.random.default_rng(args.seed), 4 * args.clients
    modes, n = np.arange(population) % 2, population * rows
    night = np.repeat(modes, rows)
    images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) // (1 + night[:, None, None])
    data = {"x": images.astype(np.uint8), "y": rng.integers(0, 31, n) + 31 * night}
    fed = Federation(data, np.arange(0, n + 1, rows))
    gpu = {"precision": "tf32"} if args.device != "cpu" else {}
    how = {"lr": 0.03, "epochs": 1, "batch_size": 20, "device": args.device, **gpu}
    step = LocalSGD(MultiBranch(NETWORKS[name]()), cross_entropy, **how)
    curve = Linear(8)
    methods = {m: make(m, step, Options(prior=curve)) for m in args.methods.split(",")}
    sampler, turns = Shifting(modes, curve, args.clients), args.repeats + WARM // TURN
    loops = {
        m: rounds(w, Local(fed, threads=1), n_rounds=TURN * turns, sampler=sampler, measure=0, allow=w.reveals)
        for m, w in methods.items()
    }
    took: dict[str, list[float]] = {m: [] for m in methods}
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    for turn in range(turns):
        for m, loop in loops.items():
            began = clock()
            for _ in range(TURN):
                last = next(loop)
            took[m] += [(clock() - began) / TURN] if turn >= WARM // TURN else []
            if m == "fedclock" and turn == WARM // TURN and not args.quick and not last.state["branching"]:
                raise RuntimeError(f"what is timed has no branches: {methods[m].verdict(last.state)}")
    return took


if __name__ == "__main__":
    main()
