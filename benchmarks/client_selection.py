"""Does asking clients near the whole more often reach FedAvg's accuracy in fewer rounds? (sketch paper, Figures 2, 5)

Uniform sampling of K from L = 3K active clients against Algorithm 3 with four weightings: ours (distances by their root
mean square), the paper's Frobenius norm, its code's mean row norm, and the sum-only coin. The same seed has the same
clients and first weights. Reported, with 95% t intervals over seeds: the accuracy on test rows over the last quarter of
the rounds and over all rounds, the differences to uniform sampling paired by seed, and after how many rounds uniform
sampling's accuracy of the last quarter is first reached (the median over seeds; never counts as infinite).
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

import fedscape as fs
from fedscape.datasets.generators import sketch_dirichlet, sketch_dirichlet_uniform, sketch_uneven
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, evaluate, models
from fedscape.sketches import KeyedCoin, NearTheWhole, OwnWeights, distance
from table import arguments, mean_and_half, report

WAYS = ("uniform", "ours", "frobenius", "row norm", "sum-only")


def federation(rows: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> fs.Federation:
    offsets = np.concatenate(([0], np.cumsum([len(r) for r in rows])))
    every = np.concatenate(rows)
    return fs.Federation({"x": x[every], "y": y[every]}, offsets)


def shards(y: np.ndarray, n: int, seed: int) -> list[np.ndarray]:
    """Two runs of the rows sorted by class for each client."""
    rng = np.random.default_rng(seed)
    order = np.argsort(y[mixed := rng.permutation(len(y))], kind="stable")
    parts = np.array_split(mixed[order], 2 * n)
    deal = rng.permutation(2 * n)
    return [np.concatenate((parts[a], parts[b])) for a, b in deal.reshape(n, 2)]


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


def setting(name: str, seed: int, quick: bool, device: str) -> dict:
    adam = {"optimiser": "adam", "batch_size": 32, "device": device}
    if name in ("mnist dirichlet", "mnist dirichlet + uniform") and not quick:
        x, y, test = images("mnist", 6000, seed)
        split = sketch_dirichlet if name == "mnist dirichlet" else sketch_dirichlet_uniform
        local = LocalSGD(models.mlp(784, 512, 10), cross_entropy, lr=1e-3, epochs=5, early_stopping=0.0, **adam)
        return {"train": federation(split(y, 30, seed=seed), x, y), "test": test, "local": local, "k": 3, "rounds": 60}
    if name == "cifar10 shards":
        x, y, test = images("cifar10", 10_000, seed)
        local = LocalSGD(models.mlp(3072, 128, 10), cross_entropy, lr=3e-4, epochs=1, **adam)  # more forgets
        return {"train": federation(shards(y, 100, seed), x, y), "test": test, "local": local, "k": 2, "rounds": 200}
    if name == "cifar10 uneven":  # as FedShare's: clients differ by size alone
        x, y, test = images("cifar10", 50_000, seed)
        net = models.lenet5((3, 32, 32), 10)
        local = LocalSGD(net, cross_entropy, lr=1e-3, epochs=2, **adam)
        return {"train": federation(sketch_uneven(len(y), seed=seed), x, y), "test": test, "local": local, "k": 2,
                "rounds": 60}  # fmt: skip
    if name == "femnist":
        train, held = first_rows(writers("femnist"), 80).split(test=0.2, seed=seed)
        local = LocalSGD(models.lenet5((1, 28, 28), 62), cross_entropy, lr=1e-3, epochs=5, early_stopping=0.0, **adam)
        return {"train": train, "test": held, "local": local, "k": 10, "rounds": 60}
    if name == "shakespeare":
        fed = fs.datasets.load("shakespeare-mini")
        fed = fed.where((np.arange(fed.n_rows) - np.repeat(fed.offsets[:-1], fed.sizes)) % 20 == 0)
        train, held = fed.split(test=0.2, seed=seed)
        local = LocalSGD(bag_of_last(8), cross_entropy, lr=5e-3, epochs=2, **adam)
        return {"train": train, "test": held, "local": local, "k": 3, "rounds": 40, "family": "minhash"}
    train, held = writers("femnist-mini").split(test=0.2, seed=seed)
    local = LocalSGD(models.linear(784, 62), cross_entropy, lr=1e-2, epochs=1, **adam)
    return {"train": train, "test": held, "local": local, "k": 3, "rounds": 15}


def bag_of_last(length: int):
    """The last characters, embedded side by side, to the next: stands in for the paper's LSTM on a CPU."""
    import torch
    from torch import nn

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.hidden, self.out = nn.Embedding(80, 8), nn.Linear(8 * length, 64), nn.Linear(64, 80)

        def forward(self, x):
            return self.out(torch.relu(self.hidden(self.embed(x[:, -length:].long()).flatten(1))))

    torch.manual_seed(0)
    return Last()


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


def curve(way: str, about: dict, seed: int, every: int) -> np.ndarray:
    """Pooled test accuracy after every so many rounds."""
    local: LocalSGD = about["local"]
    who = sampler(way, about)
    seen = []
    engine = fs.Local(about["train"], threads=1)
    for r in fs.rounds(
        FedAvg(replace(local), initial="seed"), engine, n_rounds=about["rounds"], sampler=who, seed=seed, measure=0
    ):
        if (r.index + 1) % every == 0:
            seen.append(evaluate(local, r.state, about["test"], threads=1).summary()["accuracy_pooled"])
    return np.array(seen)


def rows_of_chosen(way: str, about: dict, rounds: int = 300) -> float:
    """How many rows the clients of a round have, relative to all clients."""
    train, who = about["train"], sampler(way, about)
    chosen = np.concatenate([np.asarray(who.draw(train, fs.Key(0, r))) for r in range(rounds)])
    return float(train.sizes[chosen].mean() / train.sizes.mean())


def table_of(name: str, seeds: int, args) -> list[dict]:
    every, ways = 2, args.ways.split(",")
    curves: dict[str, list[np.ndarray]] = {way: [] for way in ways}
    sizes: dict[str, list[float]] = {way: [] for way in ways}
    for seed in range(seeds):
        about = setting(name, args.seed + seed, args.quick, args.device)
        for way in ways:
            curves[way].append(curve(way, about, args.seed + seed, every))
            sizes[way].append(rows_of_chosen(way, about))
    last = max(1, len(curves["uniform"][0]) // 4)
    goals = [c[-last:].mean() for c in curves["uniform"]]
    rows = []
    for way in ways:
        reached = [
            int(np.argmax(c >= goal)) * every + every if (c >= goal).any() else np.inf
            for c, goal in zip(curves[way], goals, strict=True)
        ]
        late = [float(c[-last:].mean()) for c in curves[way]]
        rows.append(
            {
                "data": name,
                "clients by": way,
                "accuracy, last quarter": mean_and_half(late),
                "difference": mean_and_half([a - b for a, b in zip(late, goals, strict=True)]),
                "all rounds": mean_and_half([float(c.mean()) for c in curves[way]]),
                "all rounds, difference": mean_and_half(
                    [float((c - u).mean()) for c, u in zip(curves[way], curves["uniform"], strict=True)]
                ),
                "rounds to uniform's": float(np.median(reached)) if np.isfinite(np.median(reached)) else "never",
                "rows of the chosen over all clients'": mean_and_half(sizes[way]),
                "reached in": f"{int(np.isfinite(reached).sum())} of {seeds}",
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    args = arguments(__doc__, device="cpu", seeds=5, data="", ways=",".join(WAYS))
    names = ["femnist-mini"] if args.quick else ["mnist dirichlet", "mnist dirichlet + uniform", "femnist"]
    if not args.quick:
        names += ["shakespeare", "cifar10 shards", "cifar10 uneven"]
    if args.data:
        names = args.data.split(",")
    began, rows = time.perf_counter(), []
    for name in names:
        rows += table_of(name, 3 if args.quick else args.seeds, args)
    seeds = 3 if args.quick else args.seeds
    note = f"K clients of L = 3K active; {seeds} seeds, 95% intervals; {time.perf_counter() - began:.0f} s"
    name = "_".join(["client_selection", *args.data.replace("+", "and").replace(",", " ").split()])
    report(name, rows, note=note)


if __name__ == "__main__":
    main()
