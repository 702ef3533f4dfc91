"""What does a round of FedTEM, or of FedTKM, cost beside a round of FedAvg on the same network?

The network with two branches of the FedTEM paper on 28 x 28 images, clients of equal size, one epoch of batches of 20:
FedAvg trains the mean of both branches; the others look at all rows once before training and once after. By turns in
one process, one thread, medians over turns.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from fedscape import Federation, Local, LocalSGD, rounds
from fedscape.learning import cross_entropy, models
from fedscape.methods import Options, make
from fedscape.temporal import Linear, MultiBranch
from table import arguments, report

METHODS = ("vanilla", "fedtem", "fedtem-sums", "fedtkm")


def main() -> None:
    args = arguments(__doc__, clients=10, rows=100, repeats=5, device="cpu")
    if args.quick:
        args.clients, args.rows, args.repeats = 3, 40, 3
    torch.set_num_threads(1)
    rng, n = np.random.default_rng(args.seed), args.clients * args.rows
    images = {"x": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), "y": rng.integers(0, 62, n)}
    fed = Federation(images, np.arange(0, n + 1, args.rows))
    lines = []
    for name, net in (("cnn", models.cnn((1, 28, 28), 62, dropout=False)), ("mlp 64", models.mlp(784, 64, 62))):
        step = LocalSGD(MultiBranch(net), cross_entropy, lr=0.03, epochs=1, batch_size=20, device=args.device)
        methods = {m: make(m, step, Options(prior=Linear(64))) for m in METHODS}
        loops = {
            m: rounds(w, Local(fed, threads=1), n_rounds=args.repeats + 1, measure=0, allow=w.reveals)
            for m, w in methods.items()
        }
        took: dict[str, list[float]] = {m: [] for m in METHODS}
        for index in range(args.repeats + 1):
            for m, loop in loops.items():
                began = time.process_time() if args.device == "cpu" else time.perf_counter()
                next(loop)
                ended = time.process_time() if args.device == "cpu" else time.perf_counter()
                took[m] += [ended - began] if index else []  # the first one warms up
        for m, seconds in took.items():
            ratio = np.divide(seconds, took["vanilla"])  # of one turn: what else runs on the machine is alike in it
            line = {"network": name, "method": m, "s a round": float(np.median(seconds))}
            lines.append(
                {**line, "x FedAvg": float(np.median(ratio)), "range": f"{ratio.min():.2f} to {ratio.max():.2f}"}
            )
    report("temporal_round", lines, note=f"{args.clients} clients x {args.rows} rows, medians of {args.repeats}")


if __name__ == "__main__":
    main()
