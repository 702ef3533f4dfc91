"""PFLlib's board: 20 clients with two classes each, or dealt by Dirichlet 0.1; 75/25; a small CNN; accuracy by method.

Their setting: two 5x5 convolutions of 32 and 64 with pooling, a hidden layer of 512, batches of 10, one epoch a round,
rate 0.005, all clients in every round, accuracy over all clients' test rows, best of the rounds. FedBABU tunes for ten
epochs at the end, FedDBE has kappa 50, GPFL lambda 0.01 and mu 0.1. FedALA is judged where a round begins: the common
body and the mixed last layer. Theirs are the 70,000 images of Fashion-MNIST and up to 2,000 rounds; here are its 10,000
test images and MNIST complete, and `--rounds`. So compare the order of methods, not the level. `--width` is that of the
first convolution, the others in proportion; `--steps` ends a round of a client after as many batches.

`--data FOLDER` (or FEDSCAPE_DATA) holds mnist/ and fashion_mnist/ as idx files; NumPy, SciPy and torch are enough.
Cells run in `--workers` processes, on `--device`, until `--limit` seconds are over; a run that goes on skips what
`--out` has.
"""

from __future__ import annotations

import os
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from board import Split, by_classes, by_dirichlet, data_folder, dealt, images, reach
from torch import nn

from cells import Row, check_time, run_cells
from fedscape import Federation, Key, LocalSGD
from fedscape.core.blocks import as_ragged
from fedscape.learning import Evaluation, cross_entropy, training
from fedscape.learning.layers import drawing
from fedscape.methods import Course, Options
from fedscape.personal import FedDBE
from fedscape.personal.shared import evaluation, with_kept_of
from fedscape.types import Arrays
from table import RESULTS, arguments, report

PUBLISHED = {  # Fashion-MNIST, two classes a client, Dirichlet 0.1
    "fedavg": (80.4, 85.9), "fedper": (99.47, 97.44), "fedrep": (99.56, 97.56), "fedbabu": (99.41, 97.46),
    "fedala": (99.57, 97.66), "feddbe": (99.74, 97.69), "gpfl": (99.85, 97.81),
}  # fmt: skip
KAPPAS = {"feddbe": 50.0, "feddbe-5": 5.0}  # what the board was made with; and as much less as `--lr 0.05` is more
METHODS = "fedavg fedper fedrep fedbabu fedala feddbe gpfl pfedfda ditto fedavg+ local scaffold"
SETS, PARTS = ("fashion_mnist", "mnist"), ("classes", "dirichlet")


def network(width: int = 32) -> nn.Module:
    with drawing(0):
        return nn.Sequential(
            nn.Conv2d(1, width, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 5), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * width, 16 * width), nn.ReLU(), nn.Linear(16 * width, 10),
        )  # fmt: skip


@cache
def clients(name: str, part: str, seed: int, most: int, folder: str) -> Split:
    x, y = images(name, Path(folder))
    x, y = (x[-most:], y[-most:]) if most else (x, y)
    rng, least = np.random.default_rng(seed), min(40, len(y) // 100)
    rows = by_classes(y, 20, 2, rng) if part == "classes" else by_dirichlet(y, 20, 0.1, rng, least=least)
    return dealt(x, y, rows, rng)


def work(
    cell: Row, until: float, *, device: str, most: int, folder: str, strategy: str = "auto", kappa: float = 0.0
) -> list[Row]:
    """Accuracy over all test rows, now and then: the best and the last."""
    learners, test = clients(cell["set"], cell["part"], cell["seed"], most, folder)
    long = {"epochs": 1} if cell["steps"] == 0 else {"steps": cell["steps"]}
    step = LocalSGD(
        network(cell["width"]), cross_entropy, lr=cell["lr"], batch_size=10, device=device, strategy=strategy, **long
    )
    options = Options(initial="seed", seed=cell["seed"])
    if cell["method"] in KAPPAS:
        method: Any = FedDBE(step, kappa=kappa or KAPPAS[cell["method"]], initial="seed")
    else:
        method = cell["method"]
    course = Course(method, step, learners, options, tune=10 if method == "fedbabu" else 1)
    found, began, made = [], time.perf_counter(), course.computation
    judge = partial(mixed, course, learners, cell["seed"]) if method == "fedala" else course.judge
    often = cell["rounds"] if course.tune is not None else max(1, cell["rounds"] // 4)  # tuning is long
    for _, judged, _ in training(
        made, course.engine, test=test, n_rounds=cell["rounds"], every=often, seed=cell["seed"],
        judge=judge, allow=made.reveals,
    ):  # fmt: skip
        found += [] if judged is None else [judged.summary()["accuracy_pooled"]]
        check_time(until)
    seconds = (time.perf_counter() - began) / cell["rounds"]
    return [{**cell, "best": max(found), "last": found[-1], "seconds a round": seconds}]


def mixed(course: Course, learners: Federation, seed: int, state: Arrays, test: Federation) -> Evaluation:
    """Clients under the models that they would begin the next round with."""
    method, kept = course.computation, course.engine.kept()
    clients = with_kept_of(learners, learners.ids, kept)
    begin, _ = method._mixed(state, clients, Key(seed, round=10**6))
    models = as_ragged({f"model.{n}": p.cpu().numpy().copy() for n, p in begin.items()}, len(learners))
    return evaluation(method, dict(state), with_kept_of(test, learners.ids, models))


def table(rows: list[Row]) -> list[Row]:
    """One line a method and deal: mean and interval over seeds, its place, and the published number.

    How far it is behind the first is paired by seed, as methods of a seed have the same clients.
    """
    made = []
    for name in SETS:
        for part in PARTS:
            groups: dict[str, list[Row]] = {}
            for row in rows:
                if (row["set"], row["part"]) == (name, part) and "best" in row:
                    groups.setdefault(row["method"], []).append(row)
            each = {m: {r["seed"]: 100 * r["best"] for r in group} for m, group in groups.items()}
            best = {m: list(of_seed.values()) for m, of_seed in each.items()}
            first = max(best, key=lambda m: np.mean(best[m]), default="")
            for place, m in enumerate(sorted(best, key=lambda m: -np.mean(best[m])), start=1):
                line: dict[str, Any] = {"set": name, "deal": part, "place": place, "method": m}
                line |= {"best": f"{np.mean(best[m]):.2f}", "± 95%": reach(best[m], ".2f")}
                behind = [each[first][s] - v for s, v in each[m].items() if s in each[first]]
                line |= {"behind": f"{np.mean(behind):.2f}", "± 95%, behind": reach(behind, ".2f")}
                line |= {"last": f"{100 * np.mean([r['last'] for r in groups[m]]):.2f}", "seeds": len(best[m])}
                line["s a round"] = f"{np.mean([r['seconds a round'] for r in groups[m]]):.2f}"
                known = PUBLISHED.get(m) if name == "fashion_mnist" else None
                made.append(line | {"published": "" if known is None else known[PARTS.index(part)]})
    return made


def main() -> None:
    given = arguments(
        __doc__, workers=0, seeds=3, rounds=200, lr=0.005, device="cpu", strategy="auto", data="", limit=1e9,
        sets=" ".join(SETS), parts=" ".join(PARTS), methods=METHODS, width=32, steps=0,
        out=str(RESULTS / "others_pfllib.jsonl"),
    )  # fmt: skip
    folder, most = given.data or os.fspath(data_folder()), 1_000 if given.quick else 0
    seeds, rounds = (1, 2) if given.quick else (given.seeds, given.rounds)
    sets = ["fashion_mnist"] if given.quick else given.sets.split()
    cells = [
        {"set": name, "part": part, "method": method, "seed": seed, "rounds": rounds, "lr": given.lr, "most": most,
         "width": 8 if given.quick else given.width, "steps": given.steps}
        for seed in range(given.seed, given.seed + seeds)
        for name in sets
        for part in given.parts.split()
        for method in given.methods.split()
    ]  # fmt: skip
    out = given.out + (".quick" if given.quick else "")
    if given.quick:
        Path(out).unlink(missing_ok=True)
    do = partial(work, device=given.device, most=most, folder=folder, strategy=given.strategy)
    rows = run_cells(lambda rows: cells, do, out=out, workers=given.workers, limit=given.limit)
    failed = {row["method"]: row["error"] for row in rows if "error" in row}
    name = "_".join(["others_pfllib", *(sets if len(sets) == 1 else [])])
    report(name, table(rows), note=f"{rounds} rounds; failed: {failed or 'none'}")


if __name__ == "__main__":
    main()
