"""Does asking clients near the whole more often reach FedAvg's accuracy in fewer rounds? (sketch paper, Figures 2, 5)

Uniform sampling of K from L = 3K active clients against Algorithm 3 with four weightings: ours (distances by their root
mean square), the paper's Frobenius norm, its code's mean row norm, and the sum-only coin. The same seed has the same
clients and first weights. Reported, with 95% t intervals over seeds: the accuracy on test rows over the last quarter of
the rounds and over all rounds, the differences to uniform sampling paired by seed, and after how many rounds uniform
sampling's accuracy of the last quarter is first reached (the median over seeds; never counts as infinite).

Runs are cells, `--workers` at a time until `--limit` seconds are over; with the same `--out FILE` the rest goes on, and
`--merge FILES` makes the tables of what is there. `--device cuda` for the LSTM of "shakespeare".
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import fedscape as fs
from cells import Row, check_time, read, run_cells, share_programs
from fedscape.datasets.generators import sketch_dirichlet, sketch_dirichlet_uniform, sketch_uneven
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, evaluate, models
from fedscape.learning.fast import program
from fedscape.sketches import KeyedCoin, NearTheWhole, OwnWeights, distance
from table import arguments, mean_and_half, report

WAYS = ("uniform", "ours", "frobenius", "row norm", "sum-only")
DATA = ("mnist dirichlet", "mnist dirichlet + uniform", "femnist", "shakespeare", "cifar10 uneven")
EVERY = 2  # rounds between evaluations


def federation(rows: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> fs.Federation:
    offsets = np.concatenate(([0], np.cumsum([len(r) for r in rows])))
    every = np.concatenate(rows)
    return fs.Federation({"x": x[every], "y": y[every]}, offsets)


def images(name: str, most: int, seed: int) -> tuple[np.ndarray, np.ndarray, fs.Federation]:
    """Training rows (at most so many, drawn at random) and a fifth of the test rows as one client."""
    fed = fs.datasets.load(name)
    train = np.random.default_rng(seed).permutation(np.flatnonzero(fed["split"] == 0))[:most]
    test = np.flatnonzero(fed["split"] == 1)[::5]
    x, y = fed["x"], fed["y"].astype(np.int64)
    return x[train], y[train], fs.Federation({"x": x[test], "y": y[test]}, [0, len(test)])


def writers(name: str) -> fs.Federation:
    """Ink on nothing instead of ink on white paper, which networks learn from far more slowly."""
    fed = fs.datasets.load(name)
    return fed.with_column("x", 255 - fed["x"])


def first_rows(fed: fs.Federation, n: int) -> fs.Federation:
    return fed.where(np.arange(fed.n_rows) - np.repeat(fed.offsets[:-1], fed.sizes) < n)


def roles() -> fs.Federation:
    """The roles of three plays: of every tenth place the 40 characters before it, and the next."""
    fed = fs.datasets.load("shakespeare-mini")
    fed = fed.where((np.arange(fed.n_rows) - np.repeat(fed.offsets[:-1], fed.sizes)) % 10 == 0)
    return fed.with_column("x", np.ascontiguousarray(fed["x"][:, 40:]))


def by_adam(device: str) -> dict:
    program.MANY = 0  # clients of many sizes: gradients are recorded on a GPU as they are, not compiled
    precision = {"precision": "tf32"} if device == "cuda" else {}
    return {"optimiser": "adam", "batch_size": 32, "device": device, **precision}


def setting(name: str, seed: int, quick: bool, device: str) -> dict:
    adam = by_adam(device)
    if name in ("mnist dirichlet", "mnist dirichlet + uniform") and not quick:
        x, y, test = images("mnist", 6000, seed)
        split = sketch_dirichlet if name == "mnist dirichlet" else sketch_dirichlet_uniform
        local = LocalSGD(models.mlp(784, 512, 10), cross_entropy, lr=1e-3, epochs=5, early_stopping=0.0, **adam)
        return {"train": federation(split(y, 30, seed=seed), x, y), "test": test, "local": local, "k": 3, "rounds": 60}
    if name == "cifar10 uneven":  # as FedShare's: clients differ by size alone
        x, y, test = images("cifar10", 50_000, seed)
        net = models.lenet5((3, 32, 32), 10)
        local = LocalSGD(net, cross_entropy, lr=1e-3, epochs=2, **adam)
        return {"train": federation(sketch_uneven(len(y), seed=seed), x, y), "test": test, "local": local, "k": 2,
                "rounds": 60}  # fmt: skip
    if name == "femnist":
        train, held = first_rows(writers("femnist"), 80).split(test=0.2, seed=seed)
        local = LocalSGD(models.lenet5((1, 28, 28), 62), cross_entropy, lr=1e-3, epochs=5, early_stopping=0.0, **adam)
        return {"train": train, "test": held, "local": local, "k": 10, "rounds": 200}
    if name == "shakespeare":
        train, held = roles().split(test=0.2, seed=seed)
        local = LocalSGD(models.char_lstm(), cross_entropy, lr=2e-3, epochs=1, **adam)
        return {
            "train": train,
            "test": first_rows(held, 60),
            "local": local,
            "k": 3,
            "rounds": 150,
            "family": "minhash",
        }
    train, held = writers("femnist-mini").split(test=0.2, seed=seed)
    local = LocalSGD(models.linear(784, 62), cross_entropy, lr=1e-2, epochs=1, **adam)
    return {"train": train, "test": held, "local": local, "k": 3, "rounds": 15}


def sketched(about: dict) -> tuple[fs.DistributionSketch, np.ndarray]:
    """The sketch of the training clients, made once for all ways, and their distances to the whole."""
    if "sketch" not in about:
        family = about.get("family", "srp")
        shingle = {"shingle": 2} if family == "minhash" else {"centre": "mean"}
        sketch = fs.DistributionSketch(200, bits=6, family=family, seed=1, **shingle).fit(
            about["train"], progress=False
        )
        about["sketch"] = sketch, distance(sketch.transform(about["train"]), sketch.total_)
    return about["sketch"]


def sampler(way: str, about: dict) -> fs.Sampler:
    k = about["k"]
    if way == "uniform":
        return fs.FixedSize(k)
    sketch, apart = sketched(about)
    if way == "ours":
        return NearTheWhole(apart, size=k)
    if way == "frobenius":
        return NearTheWhole(apart, size=k, scale=1.0)
    if way == "row norm":
        return NearTheWhole(apart / np.sqrt(200), size=k, scale=1.0)
    engine = fs.Local(about["train"])
    *_, last = fs.rounds(OwnWeights(sketch, sketch.total_), engine, n_rounds=2)
    return KeyedCoin(engine.kept()["weight"].flat, total=float(last.state["weight"]), size=k)


def curve(way: str, about: dict, seed: int, every: int, until: float) -> np.ndarray:
    """Pooled test accuracy after every so many rounds."""
    local: LocalSGD = about["local"]
    who = sampler(way, about)
    seen = []
    share_programs(local, about["data"])
    how = {"n_rounds": about["rounds"], "sampler": who, "seed": seed, "measure": 0}
    for r in fs.rounds(FedAvg(local, initial="seed"), fs.Local(about["train"], threads=1), **how):
        check_time(until)
        if (r.index + 1) % every == 0:
            seen.append(evaluate(local, r.state, about["test"], threads=1).summary()["accuracy_pooled"])
    return np.array(seen)


def rows_of_chosen(way: str, about: dict, rounds: int = 300) -> float:
    """How many rows the clients of a round have, relative to all clients."""
    train, who = about["train"], sampler(way, about)
    chosen = np.concatenate([np.asarray(who.draw(train, fs.Key(0, r))) for r in range(rounds)])
    return float(train.sizes[chosen].mean() / train.sizes.mean())


def work(cell: Row, until: float) -> list[Row]:
    about = {"data": cell["data"], **setting(cell["data"], cell["seed"], cell["quick"], cell["device"])}
    seen = curve(cell["way"], about, cell["seed"], EVERY, until)
    return [{**cell, "accuracy": seen.tolist(), "rows": rows_of_chosen(cell["way"], about)}]


def table_of(name: str, found: list[Row]) -> list[Row]:
    """A line a way of sampling, over the seeds that uniform sampling has too."""
    curves: dict[str, dict[int, Row]] = {}
    for row in (r for r in found if r["data"] == name and "accuracy" in r):
        curves.setdefault(row["way"], {})[row["seed"]] = row
    base = {seed: np.array(row["accuracy"]) for seed, row in curves.get("uniform", {}).items()}
    lines = []
    for way in (way for way in WAYS if way in curves):
        mine = {s: np.array(row["accuracy"]) for s, row in curves[way].items() if s in base}
        if not mine:
            continue
        last = max(1, len(next(iter(mine.values()))) // 4)
        goals = {s: float(base[s][-last:].mean()) for s in mine}
        reached = [
            int(np.argmax(c >= goals[s])) * EVERY + EVERY if (c >= goals[s]).any() else np.inf for s, c in mine.items()
        ]
        late = {s: float(c[-last:].mean()) for s, c in mine.items()}
        line: Row = {"data": name, "clients by": way, "seeds": len(mine)}
        line["accuracy, last quarter"] = mean_and_half(list(late.values()))
        line["difference"] = mean_and_half([late[s] - goals[s] for s in mine])
        line["all rounds"] = mean_and_half([float(c.mean()) for c in mine.values()])
        line["all rounds, difference"] = mean_and_half([float((c - base[s]).mean()) for s, c in mine.items()])
        line["rounds to uniform's"] = float(np.median(reached)) if np.isfinite(np.median(reached)) else "never"
        line["rows of the chosen over all clients'"] = mean_and_half([curves[way][s]["rows"] for s in mine])
        line["reached in"] = f"{int(np.isfinite(reached).sum())} of {len(mine)}"
        lines.append(line)
    return lines


def plan(rows: list[Row], args) -> list[Row]:
    """All ways of a seed before the next seed."""
    names = ["femnist-mini"] if args.quick else args.data.split(",") if args.data else list(DATA)
    about = {"device": args.device, "quick": args.quick}
    seeds = range(args.seed, args.seed + (3 if args.quick else args.seeds))
    return [
        {"data": name, "way": way, "seed": s, **about} for name in names for s in seeds for way in args.ways.split(",")
    ]


def main() -> None:
    options: Row = {"workers": 0, "limit": 1e9, "out": "", "merge": ""}
    args = arguments(__doc__, device="cpu", seeds=5, data="", ways=",".join(WAYS), **options)
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or str(Path(folder) / "cells.jsonl")
        how = {"out": out, "workers": args.workers, "limit": args.limit}
        rows = read(args.merge) if args.merge else run_cells(partial(plan, args=args), work, **how)
    for name in dict.fromkeys(row["data"] for row in rows):
        if lines := table_of(name, rows):
            title = "_".join(["client_selection", *name.replace("+", "and").replace("-", " ").split()])
            report(title, lines, note="K clients of L = 3K active; 95% t intervals over seeds, differences paired")


if __name__ == "__main__":
    main()
