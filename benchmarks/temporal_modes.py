"""Why are the modes of FEMNIST, digits and letters, not found by the printed updates of FedTEM and FedTKM?

A network is trained without shift (IFCA's branches, 100 rounds) and then stands still, so that nothing but the updates
of the modes, (10) and (12), is at work. First, what the features of clients differ by; then how many test clients find
their own branch, mean and range over the last period, for updates in all hours and in a mode's own hours. "truth": the
means and variances begin at those of all digits and all letters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedscape import Federation, LocalSGD, datasets, rounds
from fedscape.learning import Adam, cross_entropy, models, standardising
from fedscape.methods import Options, make
from fedscape.temporal import FedTEM, FedTEMBySums, FedTKM, Linear, MultiBranch, Shifting, Steady, by_mode
from table import arguments, report

KINDS = {
    "FedTEM as printed": (FedTEM, {"scatter": "within_clients"}),
    "FedTEM, scatter of all rows": (FedTEM, {}),
    "FedTEM by sums": (FedTEMBySums, {}),
    "FedTKM": (FedTKM, {}),
}


def facts(features: np.ndarray, fed: Federation, modes: np.ndarray) -> str:
    """How far clients' mean features lie apart by mode, and otherwise."""
    some = fed.sizes >= 10
    means = np.add.reduceat(features, fed.offsets[:-1][fed.sizes > 0]) / fed.sizes[fed.sizes > 0, None]
    means, mode = means[some[fed.sizes > 0]], modes[some]
    centre = np.stack([means[mode == k].mean(axis=0) for k in (0, 1)])
    between, within = ((centre[0] - centre[1]) ** 2).sum(), ((means - centre[mode]) ** 2).sum(axis=1).mean()
    parts = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)
    found = [abs(np.corrcoef(parts[0][:, i], mode)[0, 1]) for i in range(3)]
    share = (parts[1] ** 2 / (parts[1] ** 2).sum())[:3]
    return (
        f"squared distance of the two centres {between:.1f}, scatter of clients about their centre {within:.1f}; "
        f"first three directions: share of the scatter {', '.join(f'{s:.2f}' for s in share)}, "
        f"correlation with the mode {', '.join(f'{c:.2f}' for c in found)}"
    )


def truth(state: dict[str, Any], features: np.ndarray, mode: np.ndarray) -> dict[str, Any]:
    mean = np.stack([features[mode == k].mean(axis=0) for k in (0, 1)])
    if "centres" in state:
        return {**state, "centres": mean}
    return {**state, "means": mean, "variances": np.stack([features[mode == k].var(axis=0) for k in (0, 1)])}


def main() -> None:
    args = arguments(__doc__, period=64, periods=2, limit=40, seeds=1)
    if args.quick:
        args.period, args.seeds = 8, 1
    torch.set_num_threads(1)
    fed = datasets.load("femnist-mini" if args.quick else "femnist")
    fed, modes = by_mode(fed, (fed["y"] >= 10).astype(np.int64))
    train, test = fed.split(test=0.2, seed=0)
    train = train.where(np.arange(train.n_rows) - train.offsets[:-1][train.client_of_row] < args.limit)
    net = MultiBranch(standardising(models.mlp(784, 64, 62), train))
    local = LocalSGD(net, cross_entropy, lr=10**-1.5, epochs=1, batch_size=20)
    adam = Adam(0.01, beta2=0.999, epsilon=1e-4, correction="bias")
    first = make("ifca-branches", local, Options(server=adam, initial="seed"))
    steady = {"n_rounds": 10 if args.quick else 100, "sampler": Shifting(modes, Steady(2), 10), "measure": 0}
    network = {n: v for n, v in [*rounds(first, train, **steady)][-1].state.items() if n.startswith("model.")}
    features = first.see(network, train).features.numpy()
    lines, own = [], {"hours": "own", "inertia": 0.9}
    for begin, how in (("truth", {}), ("random", {}), ("random", {"inertia": 0.9}), ("random", own)):
        for title, (kind, form) in KINDS.items():
            method, found = kind(replace(local, lr=0.0), Linear(args.period), **form, **how), []
            for seed in range(args.seeds):
                state = {**method.start(seed), **network}
                state = truth(state, features, modes[train.client_of_row]) if begin == "truth" else state
                run = {"n_rounds": args.periods * args.period + 1, "seed": seed, "measure": 0, "state": state}
                sampler = Shifting(modes, Linear(args.period), 10)
                for r in rounds(method, train, sampler=sampler, allow=method.reveals, **run):
                    if r.index >= (args.periods - 1) * args.period and r.index % max(args.period // 8, 1) == 0:
                        chosen = method.branches_of(r.state, test, unit="client")
                        found.append(np.mean(chosen == modes[test.client_of_row]))
            line = {"method": title, "start": begin, "hours": how.get("hours", "all"), "inertia": how.get("inertia", 0)}
            span = f"{100 * min(found):.0f} to {100 * max(found):.0f}"
            lines.append({**line, "right branch, %": f"{100 * np.mean(found):.0f}", "range": span})
    report("temporal_modes", lines, note=facts(features, train, modes))


if __name__ == "__main__":
    main()
