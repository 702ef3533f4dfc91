"""Does a temporal prior help where the population shifts from day to night and back (FedTEM paper, Figures 2 to 10)?

FEMNIST writers, digits against letters: each writer's digits are a client of the day, its letters one of the night. All
methods on one network, the same rounds, the same cohorts' law; test accuracy over all rows of a fifth of every client,
mean over the last evaluations as in the paper, branches chosen by mini-batches of 64 rows of one client, no labels.
`--set cifar10` splits the classes in two groups, `--set shakespeare` comedies against the rest (LSTM).

`--ablation batch|smoothing|choice|period|single|size|prior` gives the small tables of the paper's other figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedscape import Federation, LocalSGD, datasets, rounds
from fedscape.learning import Adam, Mean, cross_entropy, models, standardising
from fedscape.temporal import (
    METHODS,
    FedTEM,
    MultiBranch,
    Shifting,
    Steady,
    by_mode,
    collect_centres,
    evaluate,
    method_for,
    parse_curve,
    parse_prior,
)
from table import arguments, report

EVERY = "no-shift vanilla single scsgd t-shot ifca fedem em-only fedtkm fedtem-sums fedtem"
COMEDIES = "allswell asyoulikeit comedy_errors lll measure merchant merry_wives midsummer much_ado taming twelfth_night"


@dataclass(frozen=True)
class Task:
    """Clients of two modes, their held-out rows, and how they train."""

    train: Federation
    test: Federation
    modes: np.ndarray
    local: LocalSGD
    server: Any


def load(name: str, quick: bool) -> tuple[Federation, np.ndarray]:
    """Clients of one mode each, and their modes."""
    if name == "femnist":
        fed = datasets.load("femnist-mini" if quick else "femnist")
        return by_mode(fed, (fed["y"] >= 10).astype(np.int64))
    if name == "cifar10":
        data = datasets.load("cifar10")
        data = data.where(data["split"] == 0)
        rng, mode = np.random.default_rng(0), (data["y"] >= 5).astype(np.int64)
        owner = np.empty(data.n_rows, dtype=np.int64)
        for k in (0, 1):  # 250 clients of each group, labels by Dirichlet 1 over its five classes
            rows = np.flatnonzero(mode == k)
            shares = rng.dirichlet(np.ones(250), 5)
            for c in range(5):
                mine = rng.permutation(rows[data["y"][rows] == 5 * k + c])
                owner[mine] = 250 * k + np.searchsorted(np.cumsum(shares[c]), (np.arange(len(mine)) + 0.5) / len(mine))
        fed = Federation.from_arrays({"x": data["x"], "y": data["y"]}, clients=np.minimum(owner, 499))
        return fed, (fed.ids >= 250).astype(np.int64)
    fed = datasets.load("shakespeare-mini" if quick else "shakespeare")
    fed = fed.take(np.flatnonzero(fed.sizes > 0))
    plays = COMEDIES.split()
    return fed, np.array([int(not any(str(i).lower().startswith(p) for p in plays)) for i in fed.ids])


def network(args: Any, fed: Federation) -> MultiBranch:
    if args.set == "cifar10":
        return MultiBranch(models.cnn((3, 32, 32), 10, dropout=False))
    if args.set == "shakespeare":
        lstm = models.char_lstm(fed.categories("y"), hidden=args.hidden)
        lstm.out = torch.nn.Linear(args.hidden, 96)
        return MultiBranch(torch.nn.Sequential(lstm, torch.nn.Linear(96, fed.categories("y"))), "0.out")
    if args.model == "cnn":
        return MultiBranch(models.cnn((1, 28, 28), 62, dropout=False))
    return MultiBranch(standardising(models.mlp(784, args.hidden, 62), fed))


def task(args: Any, seed: int, most: int = 0) -> Task:
    fed, modes = load(args.set, args.quick)
    if most:
        place = np.arange(fed.n_rows) - fed.offsets[:-1][fed.client_of_row]
        fed = fed.where(place < most)
    train, test = fed.split(test=0.2, seed=0)
    if args.limit:  # rows that a client trains on, as the paper's 512 on Stack Overflow
        place = np.arange(train.n_rows) - train.offsets[:-1][train.client_of_row]
        train = train.where(place < args.limit)
    local = LocalSGD(
        network(args, train), cross_entropy, lr=args.lr, epochs=1, batch_size=args.batch_size, device=args.device
    )
    adam = Adam(args.server_lr, beta2=0.999, epsilon=1e-4, correction="bias")
    return Task(train, test, modes, local, adam if args.server_lr else Mean())


def run(job: Task, name: str, args: Any, seed: int, *, schedule: str, prior: str = "", **how: Any) -> dict[str, float]:
    """Accuracy in percent: the mean over the last evaluations, and of the two modes at the end."""
    unit, curve = how.pop("unit", "batch"), parse_curve(schedule)
    period = float(getattr(curve, "period", args.period))
    sampler = Shifting(job.modes, Steady(2) if name.startswith("no-shift") else curve, args.cohort)
    kind = {"no-shift": "vanilla", "no-shift-single": "single"}.get(name, name)
    belief = parse_prior(prior or args.prior, period)
    shared = {"server": job.server, "initial": "seed", **how}
    smooth = {"strength": args.strength, "smoothing": args.smoothing}
    if kind == "t-shot":
        collect = {"n_rounds": int(period), "sampler": sampler, "seed": seed, "column": "x"}
        shared["centres"] = collect_centres(job.train.take(slice(None)), 2, **collect)
    if kind in METHODS and not (set(how) & {"choice", "pick"}):
        method = method_for(kind, job.local, belief, **{**smooth, **shared})
    else:
        method = FedTEM(job.local, belief, **{**smooth, **shared})
    began, scores, last = time.perf_counter(), [], {}
    marks = {args.rounds - 1 - i * args.every for i in range(args.tests)}
    for r in rounds(
        method, job.train, n_rounds=args.rounds, sampler=sampler, seed=seed, measure=0, allow=method.reveals
    ):
        if r.index in marks:
            found = evaluate(method, r.state, job.test, unit=unit)
            scores.append(found.summary()["accuracy_pooled"])
            right = np.nan_to_num(found.accuracy) * found.rows
            last = {f"mode{k}": right[job.modes == k].sum() / found.rows[job.modes == k].sum() for k in (0, 1)}
            if hasattr(method, "branches_of"):
                chosen = method.branches_of(r.state, job.test, unit=unit)
                same = np.mean(chosen == job.modes[job.test.client_of_row])
                last["branch"] = max(same, 1 - same)
    took = time.perf_counter() - began
    return {"accuracy": 100 * float(np.mean(scores)), "seconds": took, **{n: 100 * float(v) for n, v in last.items()}}


def cells(args: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(label, method, options) of every line of the table."""
    T, p1 = args.period, f"linear:p=1,T={args.period}"
    if not args.ablation:
        for kind in args.schedule.split(","):
            for p in args.p.split(","):
                for name in args.methods.split():
                    yield f"{kind} p={p}", name, {"schedule": f"{kind}:p={p},T={T}"}
    elif args.ablation == "batch":
        for name in ("fedtem", "fedtkm", "ifca"):
            for unit in ("sample", "batch", "client"):
                yield f"per {unit}", name, {"schedule": p1, "unit": unit}
    elif args.ablation == "smoothing":
        for strength, smoothing in ((0.0, 0.0), (0.1, 0.5), (0.5, 0.1), (0.5, 0.5), (1.0, 0.0)):
            yield f"lambda={strength} epsilon={smoothing}", "fedtem", {
                "schedule": p1, "strength": strength, "smoothing": smoothing,
            }  # fmt: skip
    elif args.ablation == "choice":
        for choice in ("mle", "posterior"):
            for pick in ("greedy", "sampled"):
                yield f"{choice} {pick}", "fedtem", {"schedule": p1, "choice": choice, "pick": pick}
    elif args.ablation == "period":
        for period in (16, 64, 256):
            for p in (0.25, 1, 4):
                yield f"T={period} p={p}", "fedtem", {"schedule": f"linear:p={p},T={period}"}
    elif args.ablation == "single":
        for name in ("vanilla", "single", "no-shift", "no-shift-single"):
            yield "linear p=1", name, {"schedule": p1}
    elif args.ablation == "size":
        for most in (10, 30, 0):
            for name in ("vanilla", "no-shift", "fedtem"):
                yield f"at most {most or 'all'} rows", name, {"schedule": f"cosine:p=1,T={T}", "most": most}
    elif args.ablation == "prior":
        for kind in ("linear", "cosine"):
            for prior in ("none", "linear", "cosine", "soft"):
                yield f"{kind} p=1, prior {prior}", "fedtem", {"schedule": f"{kind}:p=1,T={T}", "prior": prior}
    else:
        raise SystemExit(f"no ablation {args.ablation!r}: batch, smoothing, choice, period, single, size or prior")


def main() -> None:
    options: dict[str, Any] = {
        "set": "femnist", "model": "mlp", "hidden": 64, "rounds": 2049, "period": 256, "cohort": 10, "lr": 10**-1.5,
        "server_lr": 10**-2.5, "batch_size": 20, "limit": 0, "seeds": 3, "p": "0.25,1,4", "schedule": "linear,cosine",
        "prior": "linear", "methods": EVERY, "strength": 0.5, "smoothing": 0.1, "every": 32, "tests": 5,
        "ablation": "", "device": "cpu", "out": "",
    }  # fmt: skip
    args = arguments(__doc__, **options)
    if args.quick:
        args.rounds, args.period, args.seeds, args.p, args.schedule = 24, 8, 1, "1", "cosine"
        args.hidden, args.every, args.tests, args.limit = 16, 4, 2, 40
    torch.set_num_threads(1)
    lines, jobs = [], {}
    for label, name, how in cells(args):
        most = how.pop("most", 0)
        jobs[most] = jobs.get(most) or task(args, 0, most)
        found = [run(jobs[most], name, args, seed, **dict(how)) for seed in range(args.seeds)]
        values = [f["accuracy"] for f in found]
        half = 4.30 if len(values) == 3 else 12.7 if len(values) == 2 else 1.96  # Student's t
        half = half * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
        row = {"shift": label, "method": name, "accuracy": f"{np.mean(values):.2f}", "+/- (95%)": f"{half:.2f}"}
        for part, title in (("mode0", "day"), ("mode1", "night"), ("branch", "right branch")):
            known = [f[part] for f in found if part in f]
            row[title] = f"{np.mean(known):.1f}" if known else ""
        lines.append({**row, "s/round": f"{np.mean([f['seconds'] for f in found]) / args.rounds:.3f}"})
        print(" | ".join(str(v) for v in lines[-1].values()), flush=True)
    net = next(iter(jobs.values())).local.model
    note = f"branch: {net.extra_bytes:,} bytes, {100 * net.overhead:.2f}% of the network; {args.seeds} seeds"
    report("temporal" + (f"_{args.ablation}" if args.ablation else "") + args.out, lines, note=note)


if __name__ == "__main__":
    main()
