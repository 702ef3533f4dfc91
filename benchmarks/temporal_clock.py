"""Can the hour be read from the training curve (FedTEM paper, Figure 1)?

FedAvg of one small network on digits (day) against letters (night) of the embedded writers; the accuracy of each
round's cohort before it trains is the curve. For smooth shifts and for the block-cyclic one: the period as `read_clock`
finds it. `--phones` reads it from the number of phones that are available in the trace of 723 phones.
`--figure FILE` draws the smooth and the block-cyclic curve.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedscape import FedAvg, Federation, LocalSGD, datasets, rounds
from fedscape.learning import cross_entropy, models, standardising
from fedscape.temporal import Shifting, by_mode, parse_curve, read_clock
from table import arguments, report


def curve_of(schedule: str, fed: Federation, modes: np.ndarray, args: argparse.Namespace) -> np.ndarray:
    """Accuracy of the cohort of each round, under the network it is sent."""
    network = standardising(models.mlp(784, 32, 62), fed)
    step = LocalSGD(network, cross_entropy, lr=0.1, epochs=1, batch_size=20)
    sampler = Shifting(modes, parse_curve(schedule), args.cohort)
    loop = rounds(FedAvg(step, initial="seed"), fed, n_rounds=args.rounds, sampler=sampler, seed=args.seed)
    return np.array([float(r.metrics["accuracy"]) for r in loop])


def draw(curves: dict[str, np.ndarray], period: int, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "fedscape"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(10, 3.4), sharey=True, layout="constrained")
    for axis, (name, values) in zip(axes, curves.items(), strict=True):
        axis.plot(100 * values, color="0.75", linewidth=0.8, label="one round")
        smooth = np.convolve(np.pad(values, 3, mode="edge"), np.ones(7) / 7, mode="valid")
        axis.plot(100 * smooth, color="#1f4e79", linewidth=1.6, label="mean of seven")
        for t in range(0, len(values), period):
            axis.axvline(t, color="#c55a11", linewidth=0.7, linestyle=":", label="a period begins" if t == 0 else None)
        axis.set(title=name, xlabel="round")
    axes[0].set_ylabel("accuracy of the cohort, %")
    axes[0].legend(frameon=False, loc="lower right", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


def main() -> None:
    options: dict[str, Any] = {"rounds": 384, "period": 64, "cohort": 10, "limit": 40, "figure": "", "phones": 0}
    args = arguments(__doc__, **options)
    if args.quick:
        args.rounds, args.period, args.cohort = 96, 24, 6
    torch.set_num_threads(1)
    lines = []
    if args.phones:
        fed = datasets.load("phones")
        found = read_clock((fed["available"].reshape(len(fed), -1) == 1).sum(axis=0))
        low, high = found.interval or (np.nan, np.nan)
        hours = {
            "true": "24 h",
            "period": f"{(found.period or np.nan) / 2:.2f} h",
            "95%": f"{low / 2:.2f} to {high / 2:.2f}",
        }
        lines.append({"curve": "phones available", **hours, "p": found.p_value})
    fed = datasets.load("femnist-mini")
    fed, modes = by_mode(fed, (fed["y"] >= 10).astype(np.int64))
    place = np.arange(fed.n_rows) - fed.offsets[:-1][fed.client_of_row]
    fed = fed.where(place < args.limit)
    kinds = [f"linear:p={p},T={args.period}" for p in (0.25, 1, 4)] + [f"blocks:T={args.period}", "steady"]
    curves = {kind: curve_of(kind, fed, modes, args) for kind in kinds}
    for kind, values in curves.items():
        found = read_clock(values)
        text = "no cycle" if found.period is None else f"{found.period:.1f}"
        between = "" if found.interval is None else f"{found.interval[0]:.1f} to {found.interval[1]:.1f}"
        true = "none" if kind == "steady" else str(args.period)
        lines.append({"curve": kind, "true": true, "period": text, "95%": between, "p": found.p_value})
    if args.figure:
        names = {"smooth shift (linear, p = 1)": kinds[1], "block-cyclic shift": kinds[3]}
        draw({name: curves[kind] for name, kind in names.items()}, args.period, Path(args.figure))
    report("temporal_clock", lines, note=f"{args.rounds} rounds, cohorts of {args.cohort}, seed {args.seed}")


if __name__ == "__main__":
    main()
