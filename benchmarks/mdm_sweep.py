"""Does training on simulated clients tell the accuracy on the true ones under every hyper-parameter setting?

Section 4.2, Figures 5, 6 and 14 to 22 of the MDM paper. CIFAR-10: its nine settings of Table 1, 20 of its 80
hyper-parameter settings (batch size x epochs x rate; `--whole high-2` takes all 80 for that one), cohorts of 50.
FEMNIST: its 12 settings (epochs x rate, batches of 10), cohorts of 50, the server with the same writers' rows or with
those of others. Smaller than the paper: a network of one hidden layer on the first principal components of the pixels,
--rounds instead of 1,500, 1,000 clients (CIFAR-10), a third of the rows of 360 writers. Beside the mean difference over
the settings stands the noise floor: true against true with other seeds. Curves over settings go to
results/mdm_sweep_NAME.svg. `--only cifar10`, `femnist`; with `--keep FOLDER` each experiment that ends is a file there
and is not run again; `--workers` processes; `--settings A,B` runs some and shows all that are kept; `--name N` goes
into the result's name.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from fedscape import Federation, MixtureOfDirichletMultinomials, datasets
from fedscape.datasets.generators import mdm_table1
from fedscape.simulate import ConditionallyIID, FromMixture, FullyIID, Labels, plan
from fedscape.simulate.training import compare_training
from paper_figures import drawn
from table import RESULTS, arguments, report

SETTINGS = tuple(f"{level}-{k}" for level in ("low", "medium", "high") for k in (1, 2, 3))
RATES = (0.005, 0.01, 0.05, 0.1, 0.5)
WHOLE = [(b, e, r) for b in (10, 15, 20, 25) for e in (1, 2, 5, 10) for r in RATES]
PART = [way for way in WHOLE if way[0] in (10, 25) and way[1] in (1, 5)]
WRITERS = [(10, e, r) for e in (1, 2, 5, 10) for r in RATES[:3]]
COMPONENTS, HIDDEN, COHORT = 64, 32, 50

Array = np.ndarray
Plans = dict[str, list[tuple[Array, Array]]]  # kind of clients -> (rows, offsets) of each seed


@njit(cache=True)
def fedavg(x, y, rows, offsets, cohorts, batch, epochs, rate, rng, w1, b1, w2, b2):  # type: ignore[no-untyped-def]
    """FedAvg in place: plain SGD of a network with one hidden layer, clients weighted by their rows."""
    for t in range(len(cohorts)):
        s1, t1, s2, t2 = np.zeros_like(w1), np.zeros_like(b1), np.zeros_like(w2), np.zeros_like(b2)
        every = 0
        for client in cohorts[t]:
            mine = rows[offsets[client] : offsets[client + 1]].copy()
            v1, a1, v2, a2 = w1.copy(), b1.copy(), w2.copy(), b2.copy()
            for _ in range(epochs):
                rng.shuffle(mine)
                for begin in range(0, len(mine), batch):
                    some = mine[begin : begin + batch]
                    step, seen = np.float32(rate / len(some)), x[some]  # [batch, D]
                    hidden = np.dot(seen, v1)  # [batch, H]
                    for i in range(len(some)):
                        for j in range(len(a1)):
                            hidden[i, j] = max(hidden[i, j] + a1[j], np.float32(0))
                    out = np.dot(hidden, v2)  # [batch, C]: then the gradient at the logits, times the step
                    for i in range(len(some)):
                        out[i] += a2
                        out[i] = np.exp(out[i] - out[i].max())
                        out[i] *= step / out[i].sum()
                        out[i, y[some[i]]] -= step
                    back = np.dot(out, v2.T)  # [batch, H]
                    for i in range(len(some)):
                        a2 -= out[i]
                        for j in range(len(a1)):
                            back[i, j] = back[i, j] if hidden[i, j] > 0 else np.float32(0)
                        a1 -= back[i]
                    v2 -= np.dot(hidden.T, out)
                    v1 -= np.dot(seen.T, back)
            share = np.float32(len(mine))
            every += len(mine)
            s1 += share * v1
            t1 += share * a1
            s2 += share * v2
            t2 += share * a2
        part = np.float32(1 / every)
        w1[:], b1[:], w2[:], b2[:] = part * s1, part * t1, part * s2, part * t2


def accuracy(way: tuple, data: tuple[Array, Array], plan_: tuple, test: tuple[Array, Array], n_rounds: int, seed: int):
    """Test accuracy after FedAvg under one setting (batch, epochs, rate)."""
    (x, y), (rows, offsets), rng = data, plan_, np.random.default_rng(seed)
    n, c = len(offsets) - 1, int(y.max()) + 1
    cohorts = np.stack([rng.permutation(n)[:COHORT] for _ in range(n_rounds)])
    first = np.random.default_rng(0)  # weights: the same in all runs, which low rates hardly leave
    w1 = (first.standard_normal((x.shape[1], HIDDEN)) * np.sqrt(2 / x.shape[1])).astype(np.float32)
    w2 = (first.standard_normal((HIDDEN, c)) * np.sqrt(2 / HIDDEN)).astype(np.float32)
    b1, b2 = np.zeros(HIDDEN, np.float32), np.zeros(c, np.float32)
    batch, epochs, rate = way
    fedavg(x, y, rows, offsets, cohorts, batch, epochs, rate, rng, w1, b1, w2, b2)
    with np.errstate(all="ignore"):  # a rate that diverges guesses
        said = np.nan_to_num(np.maximum(test[0] @ w1 + b1, 0) @ w2 + b2).argmax(axis=1)
    return float((said == test[1]).mean())


def principal(x: Array) -> Array:
    """The first principal components, the first with spread 1."""
    flat = x.reshape(len(x), -1).astype(np.float32) / 255
    flat -= flat.mean(axis=0)
    some = flat[:: max(len(flat) // 10_000, 1)]
    values, vectors = np.linalg.eigh(some.T @ some / len(some))
    return np.ascontiguousarray(flat @ vectors[:, : -COMPONENTS - 1 : -1] / np.sqrt(values[-1]), dtype=np.float32)


def cut(recipe: Any, server: Federation, n: int | None, classes: int, seed: int) -> tuple[Array, Array]:
    made = plan(recipe, server, n_clients=n, column=Labels("y", classes), seed=seed, policy="replace")
    return server["row"][made.rows].astype(np.int64), made.offsets.astype(np.int64)


@cache
def pictures(quick: bool, keep: str) -> tuple[Array, Array, Array]:
    """Principal components, classes and 1 for test of the images of CIFAR-10."""
    if quick:
        x, y = np.random.default_rng(0).integers(0, 255, (3000, 8, 8), dtype=np.uint8), np.arange(3000) % 10
        return principal(x), y, np.arange(3000) >= 2500

    def make() -> dict[str, Array]:
        fed = datasets.load("cifar10")
        return {"z": principal(fed["x"]), "y": fed["y"].astype(np.int64), "split": fed["split"]}

    return tuple(kept(keep, "cifar10 data", make).values())  # type: ignore[return-value]


def cifar10(setting: str, quick: bool, seeds: int, keep: str) -> tuple:
    z, y, split = pictures(quick, keep)
    train, test = np.flatnonzero(split == 0), np.flatnonzero(split == 1)
    test = np.random.default_rng(0).permutation(test)[:5000]
    proxy = Federation({"y": y[train], "row": train}, [0, len(train)])
    n = 100 if quick else 1000
    counts = mdm_table1(setting, n, n=20, seed=1)[0].counts("y")
    fitted = MixtureOfDirichletMultinomials(int(setting[-1]), n_init=8, sizes="histogram").fit(counts, progress=False)
    true = cut(ConditionallyIID(counts), proxy, None, 10, 0)
    plans: Plans = {
        "true": [true] * 2 * seeds,
        "MDM": [cut(FromMixture(fitted), proxy, n, 10, 100 + s) for s in range(seeds)],
        "IID": [cut(FullyIID(20), proxy, n, 10, 100 + s) for s in range(seeds)],
    }
    return (z, y), plans, (z[test], y[test])


def femnist(server: str, quick: bool, seeds: int, keep: str) -> tuple:
    fed = datasets.load("femnist-mini" if quick else "femnist")
    fed = fed.where(np.random.default_rng(0).random(fed.n_rows) < (0.2 if quick else 1 / 3))
    z, y = principal(fed["x"]), fed["y"].astype(np.int64)
    train, test = fed.with_column("row", np.arange(fed.n_rows)).split(test=0.2, seed=0)
    half = int(np.searchsorted(np.cumsum(train.sizes), train.n_rows / 2))
    true, proxy = (
        (train, train) if server == "same writers" else (train.take(slice(0, half)), train.take(slice(half, None)))
    )
    counts, n = true.counts("y", 62), len(true)
    fitted = MixtureOfDirichletMultinomials(3).fit(counts, progress=False)
    own = (true["row"].astype(np.int64), true.offsets.astype(np.int64))
    plans: Plans = {
        "true": [own] * 2 * seeds,
        "conditionally IID": [cut(ConditionallyIID(counts), proxy, None, 62, s) for s in range(seeds)],
        "MDM": [cut(FromMixture(fitted), proxy, n, 62, s) for s in range(seeds)],
        "IID": [cut(FullyIID(true.sizes), proxy, n, 62, s) for s in range(seeds)],
    }
    rows = np.random.default_rng(0).permutation(test.take(np.isin(test.ids, true.ids))["row"])[:5000]
    return (z, y), plans, (z[rows], y[rows])


def sweep(name: str, grid: list, make: Callable[[], tuple], n_rounds: int, seed: int, workers: int) -> dict[str, Array]:
    """Accuracies {kind: [settings, seeds]}."""
    data, plans, test = make()
    cells = [
        (way, kind, s, 1000 * (seed + 1) + 100 * index + s)
        for index, (kind, each) in enumerate(plans.items())
        for way in grid
        for s in range(len(each))
    ]
    _SHARED.update(data=data, plans=plans, test=test, n_rounds=n_rounds)
    began = time.perf_counter()
    if workers:
        how = {
            "mp_context": multiprocessing.get_context("spawn"),
            "initializer": share,
            "initargs": (_SHARED,),
        }
        with ProcessPoolExecutor(workers, **how) as pool:  # type: ignore[arg-type]
            values = list(pool.map(one, cells))
    else:
        values = [one(cell) for cell in cells]
    print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    found = {kind: [v for v, cell in zip(values, cells, strict=True) if cell[1] == kind] for kind in plans}
    return {kind: np.array(each).reshape(len(grid), -1) for kind, each in found.items()}


_SHARED: dict[str, Any] = {}  # of an experiment, in each process


def share(values: dict[str, Any]) -> None:
    _SHARED.update(values)


def one(cell: tuple) -> float:
    way, kind, index, seed = cell
    plan_ = _SHARED["plans"][kind][index]
    return accuracy(way, _SHARED["data"], plan_, _SHARED["test"], _SHARED["n_rounds"], seed)


def less_than_iid(found: dict[str, Array], kind: str) -> str:
    """How much smaller the mean difference from the true clients is than that of IID clients, over the same settings.

    A 95% bootstrap interval over settings and seeds.
    """
    rng, drawn = np.random.default_rng(0), []
    whole = [found[name] for name in ("true", "IID", kind)]

    def gain(true: Array, iid: Array, other: Array) -> float:
        means = [a.mean(axis=1) for a in (true, iid, other)]
        return float(100 * (np.abs(means[1] - means[0]).mean() - np.abs(means[2] - means[0]).mean()))

    for _ in range(1000):
        settings = rng.integers(0, len(whole[0]), len(whole[0]))
        drawn.append(gain(*(a[np.ix_(settings, rng.integers(0, a.shape[1], a.shape[1]))] for a in whole)))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{gain(*whole):.2f} [{low:.2f}, {high:.2f}]"


def lines(name: str, found: dict[str, Array]) -> list[dict[str, Any]]:
    compared = compare_training(found["true"], {k: v for k, v in found.items() if k != "true"})
    made = []
    for kind, about in compared.items():
        low, high = about.difference_interval
        above = float(np.mean(found[kind].mean(axis=1) > found["true"].mean(axis=1)))
        made.append(
            {
                "clients": name,
                "simulated": kind,
                "difference, points": f"{100 * about.difference:.2f} [{100 * low:.2f}, {100 * high:.2f}]",
                "floor": f"{100 * about.floor:.2f}",
                "excess over the floor": f"{100 * about.excess:.2f} "
                f"[{100 * about.excess_interval[0]:.2f}, {100 * about.excess_interval[1]:.2f}]",
                "accuracy (true)": f"{100 * found[kind].mean():.1f} ({100 * found['true'].mean():.1f})",
                "less than IID": less_than_iid(found, kind) if kind != "IID" else "",
                "settings above true": f"{100 * above:.0f}%",
                "tau (of the floor)": f"{about.tau:.2f} ({about.tau_floor:.2f})",
            }
        )
    return made


def kept(keep: str, name: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """What the folder has under this name, or what is made now, and then put there."""
    path = Path(keep) / f"{name}.npz"
    if not keep or not path.exists():
        made = make()
        if keep:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, **made)
        return made
    with np.load(path) as file:
        return dict(file)


def shown(data: str, name: str, grid: list, found: dict[str, Array], folder: Path) -> list[dict[str, Any]]:
    """The accuracies of every setting; their curves go to a file."""
    means = {kind: 100 * values.mean(axis=1) for kind, values in found.items()}
    order = np.argsort(means["true"])
    curves = {kind: (range(len(grid)), values[order]) for kind, values in means.items()}
    axes = {"xlabel": "setting, in the order of the true clients' accuracy", "ylabel": "accuracy, %"}
    title = f"mdm_sweep_{data}_{name.replace(' ', '_').replace('-', '_')}"
    drawn(title, f"{data}, {name}", curves, folder=folder, **axes)
    about = [{"clients": name, "batch": batch, "epochs": epochs, "rate": rate} for batch, epochs, rate in grid]
    return [{**a, **{kind: round(float(v[i]), 2) for kind, v in means.items()}} for i, a in enumerate(about)]


def main() -> None:
    args = arguments(__doc__, only="", settings="", keep="", whole="", name="", rounds=50, seeds=3, workers=0)
    folder = RESULTS / "quick" if args.quick else RESULTS
    seeds, n_rounds = (1, 2) if args.quick else (args.seeds, args.rounds)
    if args.quick:  # few writers lack some characters altogether
        args.settings = "high-2,same writers"
    for data, (make, names) in EXPERIMENTS.items():
        if args.only not in ("", data):
            continue
        rows, each, ways = [], [], {}
        for name in names:
            grid = WRITERS if data == "femnist" else WHOLE if name == args.whole else PART
            grid, title = grid[::7] if args.quick else grid, f"{data} {name}"
            if (
                args.settings
                and name not in args.settings.split(",")
                and not (Path(args.keep) / f"{title}.npz").exists()
            ):
                continue
            run = partial(
                sweep, name, grid, partial(make, name, args.quick, seeds, args.keep), n_rounds, args.seed, args.workers
            )
            found = kept(args.keep, title, run)
            rows += lines(name, found)
            each += shown(data, name, grid, found, folder)
            ways[name] = len(grid)
        note = f"settings: {', '.join(f'{n} of {name}' for name, n in ways.items())}; {n_rounds} rounds, "
        note += f"cohorts of {COHORT}, {seeds} seeds (true: {2 * seeds})"
        title = "_".join(filter(None, ("mdm_sweep", data, args.name)))
        report(title, rows, note=f"{note}; bootstrap intervals over settings and seeds")
        report(f"{title}_settings", each, note=f"accuracy in percent, means over seeds; {note}")


EXPERIMENTS = {"cifar10": (cifar10, SETTINGS), "femnist": (femnist, ("same writers", "other writers"))}


if __name__ == "__main__":
    main()
