"""What does a round of FedGMM cost beside M2 rounds of FedAvg, which train as many networks?

Both on the same clients and network, turn by turn in one process; the median of the ratios counts.
"""

from __future__ import annotations

import statistics

import numpy as np

from fedscape import Federation, GaussianMixture, Local, rounds
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, models
from fedscape.personal import FedGMM
from table import arguments, report


def main() -> None:
    args = arguments(__doc__, clients=50, rows=100, repeats=5, learners=3, device="cpu", threads=1)
    if args.quick:
        args.clients, args.rows, args.repeats = 4, 60, 3
    rng = np.random.default_rng(args.seed)
    n = args.clients * args.rows
    x = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
    columns = {"x": x, "y": rng.integers(0, 62, n), "z": rng.normal(size=(n, 48))}
    fed = Federation(columns, np.arange(args.clients + 1) * args.rows)
    mixture = GaussianMixture(3, column="z", rounds=2, n_init=1).fit(fed, progress=False)
    rows = []
    for batch in (20, 100):
        step = LocalSGD(models.cnn(), cross_entropy, lr=0.03, epochs=1, batch_size=batch, device=args.device)
        both = {"fedavg": FedAvg(step), "fedgmm": FedGMM(step, mixture, args.learners)}
        count = args.repeats + 1
        loops = {
            name: rounds(method, Local(fed, threads=args.threads), n_rounds=count, measure=0)
            for name, method in both.items()
        }
        seconds = [{name: next(loop).seconds for name, loop in loops.items()} for _ in range(count)][1:]
        ratio = statistics.median(s["fedgmm"] / (args.learners * s["fedavg"]) for s in seconds)
        mean = {f"{name}, s": statistics.median(s[name] for s in seconds) for name in both}
        rows.append({"batch": batch, **mean, f"fedgmm / ({args.learners} x fedavg)": ratio})
    note = f"{args.clients} clients x {args.rows} rows of 28 x 28, 2-conv CNN, {args.device}, 3 Gaussians on 48 numbers"
    report("fedgmm_round", rows, note=note)


if __name__ == "__main__":
    main()
