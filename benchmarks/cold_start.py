"""Which model suits a new client without labels? (sketch paper, Table 1 and Figure 3)

Half of the clients are warm: they train a global model by FedAvg and tune it on their own rows. The other half are cold
and show unlabelled rows only; their labels are used to judge. For each cold client: the global model, the personal
model of the nearest warm client (the paper's distance, ours debiased, ours with abstention at alpha = 0.05), the model
of the nearest component (sums alone), of a random warm client, and the best of all warm clients, which needs labels.
Accuracy is the mean over clients, with 95% intervals over seeds.

Seeds are cells, `--workers` at a time until `--limit` seconds are over; with the same `--out FILE` the rest goes on,
and `--merge FILES` makes the tables of what is there. `--device cuda` for the LSTM of "shakespeare". With `--states
FOLDER` the trained global models are kept there, so that a cell that was cut off goes on behind its training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import fedscape as fs
from cells import Row, check_time, read, run_cells, share_programs
from client_selection import by_adam, federation, first_rows, images, roles, writers
from fedscape.core.arrays import segment_sum_twin
from fedscape.datasets.generators import sketch_by_class
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, models
from fedscape.personal.cold_start import ColdStart, NearestComponent
from fedscape.personal.shared import each_model, forward, stacked
from table import arguments, mean_and_half, report

KEYS, NOTE = ("data", "seed", "device"), "accuracy, mean over clients; 95% t intervals over seeds"
JUDGED = 40  # rows of a cold client, drawn at random, on which all models are judged


def setting(name: str, seed: int, device: str) -> dict:
    adam = by_adam(device)
    srp = fs.DistributionSketch(200, bits=6, centre="mean", seed=1)
    if name.startswith("mnist"):
        x, y, _ = images("mnist", 60_000, seed)
        fed = federation(sketch_by_class(y, 100, twins=name.endswith("twins"), seed=seed), x, y)
        warm = np.arange(50) if name.endswith("twins") else np.sort(np.random.default_rng(seed).permutation(100)[:50])
        local = LocalSGD(models.mlp(784, 512, 10), cross_entropy, lr=1e-3, epochs=5, **{**adam, "batch_size": 10})
        return {"fed": fed, "warm": warm, "local": local, "k": 10, "rounds": 100, "sketch": srp, "components": 15}
    if name == "shakespeare":
        fed = roles()
        warm = np.sort(np.random.default_rng(seed).permutation(len(fed))[:20])
        local = LocalSGD(models.char_lstm(), cross_entropy, lr=2e-3, epochs=1, **adam)
        sketch = fs.DistributionSketch(200, bits=6, family="minhash", shingle=3, seed=1)
        return {"fed": fed, "warm": warm, "local": local, "k": 3, "rounds": 150, "sketch": sketch, "components": 3}
    fed = first_rows(writers(name), 100)
    warm = np.sort(np.random.default_rng(seed).permutation(len(fed))[: len(fed) // 2])
    local = LocalSGD(models.lenet5((1, 28, 28), 62), cross_entropy, lr=1e-3, epochs=2, **adam)
    k, rounds = (50, 200) if name == "femnist" else (5, 10)
    return {"fed": fed, "warm": warm, "local": local, "k": k, "rounds": rounds, "sketch": srp, "components": 6}


def shuffled(fed: fs.Federation, seed: int) -> fs.Federation:
    """The rows of each client in random order: writers begin with the digits."""
    order = np.lexsort((np.random.default_rng(seed).random(fed.n_rows), fed.client_of_row))
    return fs.Federation({name: fed[name][order] for name in ("x", "y")}, fed.offsets, fed.ids)


def tuned(local: LocalSGD, state: dict, clients: fs.Federation, seed: int) -> list[dict]:
    """Each client's own model: the global one, tuned on its rows."""
    own = [dict(state) for _ in range(len(clients))]
    longer = replace(local, epochs=10)
    share_programs(longer, repr(local.model))
    work = FedAvg(longer, weighting="equal")
    for begin in range(0, len(clients), 16):
        part = slice(begin, begin + 16)
        sent, _ = work.step(state, clients.take(part), fs.Key(seed, 10_000))
        for i in range(len(sent[next(iter(sent))])):
            for name, rows in sent.items():
                of = name.replace("delta.", "model.")
                own[begin + i][of] = state[of] + rows[i]
    return own


def trained(
    local: LocalSGD, state: dict | None, clients: fs.Federation, k: int, n: int, seed: int, until: float
) -> dict:
    engine = fs.Local(clients, threads=1)
    share_programs(local, repr(local.model))
    work = FedAvg(local, initial="given" if state else "seed")
    sampler = fs.FixedSize(min(k, len(clients)))
    loop = fs.rounds(work, engine, n_rounds=n, sampler=sampler, seed=seed, state=state, measure=0)
    for _ in loop:
        check_time(until)
    return dict(loop.state)


def global_model(path: Path | None, train: Callable[[], dict]) -> dict:
    """The trained model: from its file if it is there, else trained and written there."""
    if path is not None and path.exists():
        with np.load(path) as file:
            return dict(file)
    state = train()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez(part, **state)
        part.replace(path)
    return state


def accuracies(local: LocalSGD, states: list[dict], clients: fs.Federation) -> np.ndarray:
    """The accuracy of each model on each client, NaN for a client without rows: [models, clients]."""
    found = []
    for begin in range(0, len(states), 30):
        part = states[begin : begin + 30]
        models = each_model(stacked(local, {n: np.stack([s[n] for s in part]) for n in part[0] if n[:6] == "model."}))
        logs = forward(local, models, clients, slice(0, clients.n_rows), loss=False)  # [rows, models, classes]
        right = segment_sum_twin((logs.argmax(axis=2) == clients["y"][:, None]).astype(float), clients.offsets)
        with np.errstate(invalid="ignore"):
            found.append((right / clients.sizes[:, None]).T)
    return np.concatenate(found)


def one(name: str, seed: int, device: str, states: str, until: float) -> dict[str, float]:
    about = setting(name, seed, device)
    fed, local, chosen = about["fed"], about["local"], about["warm"]
    cold = fed.take(np.setdiff1d(np.arange(len(fed)), chosen))
    warm, held = fed.take(chosen).split(test=0.2, seed=seed)
    path = Path(states) / f"{name.replace(' ', '_')}_{device}_{seed}.npz" if states else None
    state = global_model(path, lambda: trained(local, None, warm, about["k"], about["rounds"], seed, until))
    own = tuned(local, state, warm, seed)

    judged = first_rows(shuffled(cold, seed), JUDGED)
    by_model = accuracies(local, own, judged)  # [warm, cold]
    (global_,), (on_held,) = (accuracies(local, [state], clients) for clients in (judged, held))
    sketch = about["sketch"].fit(warm, progress=False)
    raw = ColdStart(sketch, alpha=0.0, debias=False).fit(warm).match(cold).index
    found = ColdStart(sketch).fit(warm).match(cold)
    columns = np.arange(len(cold))

    parts = NearestComponent(sketch, about["components"], seed=seed).fit(warm)
    mine = parts.match(cold)
    by_part = np.tile(global_, (about["components"], 1))
    for k in range(about["components"]):
        members = np.flatnonzero(parts.labels_ == k)
        if len(members):
            there = trained(local, state, warm.take(members), about["k"], 5, seed, until)
            by_part[k] = accuracies(local, [there], judged)[0]
    pick = np.random.default_rng(seed).integers(0, len(own), len(cold))
    return {
        "warm global": np.nanmean(on_held),
        "warm local": np.nanmean(np.diagonal(accuracies(local, own, held))),
        "cold global": global_.mean(),
        "neighbour, paper's": by_model[raw, columns].mean(),
        "neighbour, debiased": by_model[found.nearest, columns].mean(),
        "with abstention": np.where(found.index >= 0, by_model[found.nearest, columns], global_).mean(),
        "abstained": float((found.index < 0).mean()),
        "component (sums)": by_part[mine, columns].mean(),
        "raw match among the 3 largest": float(np.isin(raw, np.argsort(-warm.sizes)[:3]).mean()),
        "random": by_model[pick, columns].mean(),
        "best": by_model.max(axis=0).mean(),
    }


def work(cell: Row, until: float, states: str) -> list[Row]:
    return [{**cell, **one(cell["data"], cell["seed"], cell["device"], states, until)}]


def plan(rows: list[Row], args) -> list[Row]:
    names = ["femnist-mini"] if args.quick else ["mnist by class, twins", "mnist by class", "femnist", "shakespeare"]
    names = args.data.split(";") if args.data else names
    seeds = range(args.seed, args.seed + (3 if args.quick else args.seeds))
    return [{"data": name, "seed": seed, "device": args.device} for name in names for seed in seeds]


def main() -> None:
    options: Row = {"workers": 0, "limit": 1e9, "out": "", "merge": "", "states": ""}
    args = arguments(__doc__, device="cpu", seeds=5, data="", **options)
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or str(Path(folder) / "cells.jsonl")
        how = {"out": out, "workers": args.workers, "limit": args.limit}
        do = partial(work, states=args.states)
        rows = read(args.merge) if args.merge else run_cells(partial(plan, args=args), do, **how)
    rows = [row for row in rows if "best" in row]
    for name in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == name]
        about = {"data": name, "seeds": len(mine)}
        line = {**about, **{what: mean_and_half([r[what] for r in mine]) for what in mine[0] if what not in KEYS}}
        for which in ("paper's", "debiased"):
            gains = [r[f"neighbour, {which}"] - r["cold global"] for r in mine]
            line[f"neighbour, {which}, less cold global"] = mean_and_half(gains)
        report("_".join(["cold_start", *name.replace(",", " ").replace("-", " ").split()]), [line], note=NOTE)


if __name__ == "__main__":
    main()
