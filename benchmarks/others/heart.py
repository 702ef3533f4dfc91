"""FLamby's Fed-Heart-Disease: four hospitals, a logistic regression, mean accuracy over the hospitals' test rows.

Their rule: slope, ca and thal dropped, incomplete rows dropped, label = target above 0; in each hospital 66/34 by
scikit-learn's train_test_split with random_state 43, stratified where both classes have more than two rows; cp and
restecg as indicators without the first; standardised in each hospital by its own training rows; batches of 4, 100 local
updates a round, 15 rounds, the rates of their result files. Two things they do not write down: a run with seed s begins
at the weights that torch draws with seed s (42 to 46), and the pooled model is trained on rows standardised together,
but tested on rows standardised by hospital. Batches are drawn by us, so runs are paired with theirs by first weights.

"FedAvg, as they draw" is a plain loop that also draws batches from torch's generator as a DataLoader does. It ends at
their accuracy in every hospital. Reads hospitals/heart_disease.csv in FEDSCAPE_DATA. Needs scikit-learn and pandas.
`--workers` processes share the seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pandas as pd
import torch
from board import data_folder
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedscape import FedAvg, Federation, LocalSGD
from fedscape.learning import Adagrad, Adam, Scaffold, Yogi, logistic
from fedscape.methods import Options, train
from fedscape.studies import collaboration
from table import arguments, half_width, report

SEEDS = range(42, 47)
PUBLISHED = {  # mean over the hospitals by seed, from their result files
    "FedAvg": (0.6915, 0.7198, 0.6427, 0.6943, 0.6765), "FedProx": (0.6915, 0.7198, 0.6427, 0.6943, 0.6765),
    "SCAFFOLD": (0.6891, 0.7198, 0.6427, 0.6919, 0.6765), "FedAdam": (0.7212, 0.7115, 0.7461, 0.7322, 0.7167),
    "FedYogi": (0.7240, 0.7194, 0.7513, 0.7350, 0.7271), "FedAdagrad": (0.7240, 0.7194, 0.7513, 0.7350, 0.7271),
    "pooled": (0.7391, 0.7343, 0.7367, 0.7343, 0.7319), "each alone": (0.7628, 0.7483, 0.6939, 0.7372, 0.7072),
}  # fmt: skip
FEDAVG = (  # test patients that their FedAvg gets right, by seed and hospital
    (79, 62, 11, 28), (75, 66, 12, 30), (77, 67, 8, 26), (76, 60, 12, 28), (73, 65, 9, 32),
)  # fmt: skip


def rows_of_hospitals() -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """Name, training and test rows of each hospital, as measured; in the order of the table."""
    table = (
        pd.read_csv(data_folder() / "hospitals" / "heart_disease.csv").drop(columns=["slope", "ca", "thal"]).dropna()
    )
    y = (table["target"] > 0).astype(int).to_numpy()
    x = pd.get_dummies(table.drop(columns=["hospital", "target"]), columns=["cp", "restecg"], drop_first=True)
    x = x.to_numpy(dtype=np.float64)
    for name in table["hospital"].unique():
        mine = np.flatnonzero(table["hospital"] == name)
        counts = np.bincount(y[mine], minlength=2)
        learn, test = train_test_split(
            np.arange(len(mine)), test_size=1 - 0.66, train_size=0.66, random_state=43,
            stratify=y[mine] if (counts > 2).all() else None,
        )  # fmt: skip
        learn, test = mine[np.sort(learn)], mine[np.sort(test)]
        yield name, (x[learn], y[learn]), (x[test], y[test])


def hospitals() -> tuple[Federation, Federation, Federation]:
    """Training and test rows of the hospitals, each standardised by its training rows; all training rows together."""
    names, learn, test = zip(*rows_of_hospitals(), strict=True)
    laws = [law(x) for x, _ in learn]
    together = np.concatenate([x for x, _ in learn])
    made = []
    for parts in (learn, test):
        offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in parts])])
        x = np.concatenate([(x - mean) / scale for (x, _), (mean, scale) in zip(parts, laws, strict=True)])
        made.append(Federation({"x": x, "y": np.concatenate([y for _, y in parts])}, offsets, ids=names))
    mean, scale = law(together)
    pooled = Federation({"x": (together - mean) / scale, "y": made[0]["y"]}, [0, len(together)])
    return made[0], made[1], pooled


def law(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the columns; 1 for a constant column."""
    scale = x.std(axis=0, ddof=1)
    return x.mean(axis=0), np.where(scale > 0, scale, 1.0)


def first_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(13, 1)


def as_they_draw(seed: int, rounds: int, *, lr: float = 0.001) -> list[float]:
    """FedAvg in a plain loop: first weights and the order of rows from torch's generator, both with this seed."""
    learners, test, _ = hospitals()
    model = first_model(seed)
    parts = [slice(a, b) for a, b in zip(learners.offsets[:-1], learners.offsets[1:], strict=True)]
    x, y = torch.tensor(learners["x"], dtype=torch.float32), torch.tensor(learners["y"], dtype=torch.float32)[:, None]
    loaders = [DataLoader(TensorDataset(x[part], y[part]), batch_size=4, shuffle=True) for part in parts]
    batches = [iter(loader) for loader in loaders]
    torch.manual_seed(seed)
    for _ in range(rounds):
        ends = []
        for i, loader in enumerate(loaders):
            own = copy.deepcopy(model)
            moving = torch.optim.SGD(own.parameters(), lr)
            for _ in range(100):
                batch = next(batches[i], None)
                if batch is None:
                    batches[i] = iter(loader)
                    batch = next(batches[i])
                moving.zero_grad()
                nn.functional.binary_cross_entropy(torch.sigmoid(own(batch[0])), batch[1]).backward()
                moving.step()
            ends.append(own.state_dict())
        shares = learners.sizes / learners.n_rows
        mean = {n: sum(float(s) * end[n] for s, end in zip(shares, ends, strict=True)) for n in ends[0]}
        model.load_state_dict(mean)
    with torch.no_grad():
        said = model(torch.tensor(test["x"], dtype=torch.float32)).ravel().numpy() > 0
    right = said == test["y"]
    return [float(right[a:b].mean()) for a, b in zip(test.offsets[:-1], test.offsets[1:], strict=True)]


def step(lr: float, seed: int = 42, **how: object) -> LocalSGD:
    model = first_model(seed).double()
    return LocalSGD(model, logistic, **{"lr": lr, "steps": 100, "batch_size": 4, **how})


def methods(seed: int) -> dict[str, object]:
    """Theirs with their settings, then ours: a computation, or a name for `train` with how a client trains."""
    yogi, adam = (kind(0.01, beta2=0.999, epsilon=1e-8) for kind in (Yogi, Adam))
    adagrad = Adagrad(0.316228, beta1=0.9, epsilon=1e-8)
    return {
        "FedAvg": FedAvg(step(0.001, seed)),
        "FedProx": FedAvg(step(0.001, seed, proximal=0.01)),
        "SCAFFOLD": Scaffold(step(0.001, seed)),
        "FedAdam": FedAvg(step(0.01, seed), server=adam),
        "FedYogi": FedAvg(step(0.003162, seed), server=yogi),
        "FedAdagrad": FedAvg(step(0.003162, seed), server=adagrad),
        "FedAvg, rate 0.1": FedAvg(step(0.1, seed)),
        "Ditto, rate 0.1": ("ditto", step(0.1, seed)),
        "FedAvg fine-tuned, rate 0.1": ("fedavg+", step(0.1, seed, steps=20)),
    }


def accuracy(seed: int, rounds: int) -> dict[str, list[float]]:
    """Test accuracy in each hospital, by method."""
    learners, test, pooled = hospitals()
    found, given = {"FedAvg, as they draw": as_they_draw(seed, rounds)}, Options(initial="given")
    for name, method in methods(seed).items():
        made, local = method if isinstance(method, tuple) else (method, method.local)  # type: ignore[attr-defined]
        model = train(made, local, learners, n_rounds=rounds, seed=seed, options=given)
        found[name] = model.evaluate(test).accuracy.tolist()
    adam = step(0.001, seed, steps=None, epochs=50, optimiser="adam")
    found["pooled"] = train(FedAvg(adam), adam, pooled, n_rounds=1, seed=seed).evaluate(test).accuracy.tolist()
    same = Federation({n: learners[n] for n in "xy"}, pooled.offsets)
    alike = train(FedAvg(adam), adam, same, n_rounds=1, seed=seed)
    found["pooled, standardised by hospital"] = alike.evaluate(test).accuracy.tolist()
    alone = train("local", adam, learners, n_rounds=1, seed=seed, options=given)
    found["each alone"] = alone.evaluate(test).accuracy.tolist()
    return found


def exact() -> list[float]:
    """Logistic regression of the pooled rows, to convergence: where FedAvg with a small rate goes in the end."""
    learners, test, _ = hospitals()
    fit = LogisticRegression(C=1e6, max_iter=5000).fit(learners["x"], learners["y"])
    ends = zip(test.offsets[:-1], test.offsets[1:], strict=True)
    return [float(fit.score(test["x"][a:b], test["y"][a:b])) for a, b in ends]


def main() -> None:
    given = arguments(__doc__, workers=1, rounds=15)
    seeds, rounds = (SEEDS[:1], 3) if given.quick else (SEEDS, given.rounds)
    work = partial(accuracy, rounds=rounds)
    if given.workers > 1:
        with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
            runs = list(pool.map(work, seeds))
    else:
        runs = [work(seed) for seed in seeds]
    runs = [{**run, "pooled, exact": exact()} for run in runs]
    learners, test, _ = hospitals()
    names, sizes = test.ids.tolist(), test.sizes
    rows = []
    for name in runs[0]:
        each = np.array([run[name] for run in runs])  # [seeds, hospitals]
        means = each.mean(axis=1)
        row = {"method": name, "published": "", "ours": f"{means.mean():.3f}"}
        row["sd"] = f"{means.std(ddof=1):.3f}" if len(runs) > 1 else ""
        row |= {"ours - theirs, by seed": "", "± 95%": ""}
        known = PUBLISHED.get(name.removesuffix(", as they draw"))
        if known is not None:
            apart = means - known[: len(runs)]
            row["published"] = f"{np.mean(known):.3f} (sd {np.std(known, ddof=1):.3f})"
            row["ours - theirs, by seed"] = f"{apart.mean():+.4f}"
            row["± 95%"] = f"{half_width(apart.tolist()):.4f}" if len(runs) > 1 else ""
        rows.append(row | {h: f"{v:.3f}" for h, v in zip(names, each.mean(axis=0), strict=True)})
    study = collaboration(learners, local=step(0.1, steps=20), rounds=rounds, seeds=len(runs))
    gains = ", ".join(f"{g['client']} {100 * g['value']:+.1f} ({100 * g['low']:+.1f} to {100 * g['high']:+.1f})"
                      for g in study.together)  # fmt: skip
    theirs = np.array([np.rint(np.array(run["FedAvg, as they draw"]) * sizes) for run in runs])
    note = f"{len(runs)} seeds, {rounds} rounds; test rows {dict(zip(names, sizes.tolist(), strict=True))}."
    note += (
        f" As they draw, {int((theirs != FEDAVG[: len(runs)]).sum())} of {theirs.size} accuracies differ from theirs."
    )
    note += f" What each hospital gains in points by joining one model for all: {gains}; verdicts: {study.verdicts()}."
    report("others_heart", rows, note=note)


if __name__ == "__main__":
    main()
