"""FLamby's Fed-Heart-Disease: four hospitals, a logistic regression, mean accuracy over the hospitals' test rows.

Their rule: slope, ca and thal dropped, incomplete rows dropped, label = target above 0; in each hospital 66/34 by
scikit-learn's train_test_split with random_state 43, stratified where both classes have more than two rows; cp and
restecg as indicators without the first; standardised in each hospital by its own training rows; batches of 4, 100 local
updates a round, 15 rounds, their rates. Seeds draw the first weights and the batches. Reads hospitals/heart_disease.csv
in FEDSCAPE_DATA. Needs scikit-learn and pandas. `--workers` processes share the seeds.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pandas as pd
from board import data_folder
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import nn

from fedscape import FedAvg, Federation, LocalSGD
from fedscape.learning import Adagrad, Adam, Scaffold, Yogi, logistic
from fedscape.methods import train
from fedscape.studies import collaboration
from table import arguments, half_width, report

PUBLISHED = {
    "FedAvg": (0.685, 0.028), "FedProx": (0.685, 0.028), "SCAFFOLD": (0.684, 0.028), "FedAdam": (0.726, 0.014),
    "FedYogi": (0.731, 0.013), "FedAdagrad": (0.731, 0.013), "pooled": (0.735, 0.003), "each alone": (0.730, 0.029),
}  # fmt: skip
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def hospitals() -> tuple[Federation, Federation]:
    """Training and test rows of the four hospitals."""
    table = (
        pd.read_csv(data_folder() / "hospitals" / "heart_disease.csv").drop(columns=["slope", "ca", "thal"]).dropna()
    )
    y = (table["target"] > 0).astype(int).to_numpy()
    x = pd.get_dummies(table.drop(columns=["hospital", "target"]), columns=["cp", "restecg"], drop_first=True)
    x = x.to_numpy(dtype=np.float64)
    names = list(table["hospital"].unique())
    parts: list[tuple[list, list]] = [([], []), ([], [])]
    for name in names:
        mine = np.flatnonzero(table["hospital"] == name)
        counts = np.bincount(y[mine], minlength=2)
        rows = train_test_split(
            np.arange(len(mine)), test_size=1 - 0.66, train_size=0.66, random_state=43,
            stratify=y[mine] if (counts > 2).all() else None,
        )  # fmt: skip
        mean, scale = x[mine[rows[0]]].mean(axis=0), x[mine[rows[0]]].std(axis=0, ddof=1)
        for part, chosen in zip(parts, rows, strict=True):
            part[0].append((x[mine[chosen]] - mean) / np.where(scale > 0, scale, 1.0))
            part[1].append(y[mine[chosen]])
    made = []
    for xs, ys in parts:
        offsets = np.concatenate([[0], np.cumsum([len(v) for v in ys])])
        made.append(Federation({"x": np.concatenate(xs), "y": np.concatenate(ys)}, offsets, ids=names))
    return made[0], made[1]


def step(lr: float, **how: object) -> LocalSGD:
    model = nn.Linear(13, 1).double()
    return LocalSGD(model, logistic, **{"lr": lr, "steps": 100, "batch_size": 4, **how})


def methods(rounds: int) -> dict[str, tuple[object, int]]:
    """Theirs with their settings, then ours: a computation, or a name for `train` with how a client trains."""
    yogi, adam = (kind(0.01, beta2=0.999, epsilon=1e-8) for kind in (Yogi, Adam))
    return {
        "FedAvg": (FedAvg(step(0.001), initial="seed"), rounds),
        "FedProx": (FedAvg(step(0.001, proximal=0.01), initial="seed"), rounds),
        "SCAFFOLD": (Scaffold(step(0.001), initial="seed"), rounds),
        "FedAdam": (FedAvg(step(0.01), server=adam, initial="seed"), rounds),
        "FedYogi": (FedAvg(step(0.003162), server=yogi, initial="seed"), rounds),
        "FedAdagrad": (
            FedAvg(step(0.0001), server=Adagrad(10.0, beta1=0.9, epsilon=1e-8), initial="seed"), rounds,
        ),
        "FedAvg, rate 0.1": (FedAvg(step(0.1), initial="seed"), rounds),
        "Ditto, rate 0.1": (("ditto", step(0.1)), rounds),
        "FedAvg fine-tuned, rate 0.1": (("fedavg+", step(0.1, steps=20)), rounds),
    }  # fmt: skip


def accuracy(seed: int, rounds: int) -> dict[str, list[float]]:
    """Test accuracy in each hospital, by method."""
    learners, test = hospitals()
    found = {}
    for name, (method, n) in methods(rounds).items():
        made, local = method if isinstance(method, tuple) else (method, method.local)  # type: ignore[attr-defined]
        model = train(made, local, learners, n_rounds=n, seed=seed)
        found[name] = model.evaluate(test).accuracy.tolist()
    adam = step(0.001, steps=None, epochs=50, optimiser="adam")
    pooled = Federation({n: learners[n] for n in "xy"}, [0, learners.n_rows])
    state = train(FedAvg(adam, initial="seed"), adam, pooled, n_rounds=1, seed=seed)
    found["pooled"] = state.evaluate(test).accuracy.tolist()
    found["each alone"] = train("local", adam, learners, n_rounds=1, seed=seed).evaluate(test).accuracy.tolist()
    return found


def exact() -> list[float]:
    """Logistic regression of the pooled rows, to convergence: where FedAvg with a small rate goes in the end."""
    learners, test = hospitals()
    fit = LogisticRegression(C=1e6, max_iter=5000).fit(learners["x"], learners["y"])
    ends = zip(test.offsets[:-1], test.offsets[1:], strict=True)
    return [float(fit.score(test["x"][a:b], test["y"][a:b])) for a, b in ends]


def main() -> None:
    given = arguments(__doc__, workers=1, seeds=5, rounds=15)
    seeds, rounds = (1, 3) if given.quick else (given.seeds, given.rounds)
    work = partial(accuracy, rounds=rounds)
    if given.workers > 1:
        with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
            runs = list(pool.map(work, range(seeds)))
    else:
        runs = [work(seed) for seed in range(seeds)]
    runs = [{**run, "pooled, exact": exact()} for run in runs]
    names = hospitals()[1].ids.tolist()
    rows = []
    for name in runs[0]:
        each = np.array([run[name] for run in runs])  # [seeds, hospitals]
        means = each.mean(axis=1)
        published = PUBLISHED.get(name)
        row = {
            "method": name,
            "published": "" if published is None else f"{published[0]:.3f} (sd {published[1]:.3f})",
            "ours": f"{means.mean():.3f}",
            "sd": f"{means.std(ddof=1):.3f}" if seeds > 1 else "",
            "± 95%": f"{half_width(means.tolist()):.3f}" if seeds > 1 else "",
        }
        rows.append(row | {h: f"{v:.3f}" for h, v in zip(names, each.mean(axis=0), strict=True)})
    study = collaboration(hospitals()[0], local=step(0.1, steps=20), rounds=rounds, seeds=seeds)
    gains = ", ".join(f"{g['client']} {100 * g['value']:+.1f} ({100 * g['low']:+.1f} to {100 * g['high']:+.1f})"
                      for g in study.together)  # fmt: skip
    sizes = hospitals()[1].sizes.tolist()
    note = f"{seeds} seeds, {rounds} rounds; test rows {dict(zip(names, sizes, strict=True))}."
    note += f" What each hospital gains in points by joining one model for all: {gains}; verdicts: {study.verdicts()}."
    report("others_heart", rows, note=note)


if __name__ == "__main__":
    main()
