"""Do boosted trees by sums predict as well as libraries of one place, what do they send, and what does privacy cost?

XGBoost and LightGBM take part where they can be imported. FedAvg trains a linear model and a network on ranks of the
same columns. A private fit is by rows, at delta 1e-6.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from fedscape import GLM, All, BoostedTrees, FedAvg, Federation, FixedSize, Gaussian, Local, LocalSGD, calibrate, rounds
from fedscape.core.history import History
from fedscape.learning import cross_entropy, models
from fedscape.methods import Options
from fedscape.methods import train as fit
from fedscape.statistics.quantiles import quantiles_of
from table import arguments, half_width, report

DATA = Path(os.environ.get("FEDSCAPE_DATA", "../shared/data"))
DELTA = 1e-6


def hearts() -> Federation:
    """Heart disease, yes or no, in four hospitals."""
    import pandas as pd

    rows = pd.read_csv(DATA / "hospitals" / "heart_disease.csv")
    x = rows.drop(columns=["hospital", "target"]).to_numpy(dtype=float)
    y = (rows.target > 0).to_numpy().astype(np.int32)
    return Federation.from_arrays({"x": x, "y": y}, clients=rows.hospital.astype(str), names={"y": ("no", "yes")})


def census(n: int, seed: int) -> Federation:
    """Whether a person earns more than 50,000 dollars (ACSIncome); clients are regions."""
    import pyarrow.parquet as pq

    rows = pq.read_table(DATA / "acs_pums" / "acs_pums_2024_st01-29.parquet").to_pandas()
    rows = rows[(rows.AGEP > 16) & (rows.PINCP > 100) & (rows.WKHP > 0)].sample(n, random_state=seed).sort_index()
    x = rows[["AGEP", "SEX", "RAC1P", "SCHL", "MAR", "COW", "OCCP", "WKHP"]].to_numpy(dtype=float)
    y = (rows.PINCP > 50_000).to_numpy().astype(np.int32)
    who = (rows.ST.astype(int) * 100_000 + rows.PUMA).to_numpy()
    return Federation.from_arrays({"x": x, "y": y}, clients=who, names={"y": ("less", "more")})


def flights(n: int, seed: int) -> Federation:
    """Whether a flight arrives more than a quarter of an hour late, from what is known before; clients are planes."""
    import pyarrow.parquet as pq

    rows = pq.read_table(DATA / "nycflights13" / "flights.parquet").to_pandas().sample(n, random_state=seed)
    codes = {name: rows[name].cat.codes for name in ("carrier", "origin", "dest")}
    names = ("month", "day", "hour", "distance", "seats", "plane_year")
    x = np.column_stack([*codes.values(), *(rows[name] for name in names)]).astype(float)
    y = (rows.arr_delay > 15).to_numpy().astype(np.int32)
    who = rows.tailnum.astype(str).to_numpy()
    return Federation.from_arrays({"x": x, "y": y}, clients=who, names={"y": ("on time", "late")})


def retail(n: int, seed: int) -> Federation:
    """Which of the 40 commonest products, from quantity, price, hour and weekday; clients are customers."""
    import pyarrow.parquet as pq

    lines = pq.read_table(DATA / "online_retail" / "online_retail_ii.parquet").to_pandas()
    lines = lines[lines.customer.notna()]
    common = lines.stock_code.value_counts().index[:40]
    lines = lines[lines.stock_code.isin(common)]
    lines = lines.sample(min(n, len(lines)), random_state=seed)
    x = np.column_stack([lines.quantity, lines.price, lines.time.dt.hour, lines.time.dt.day_of_week]).astype(float)
    code = {product: i for i, product in enumerate(common)}
    y = lines.stock_code.map(code).to_numpy().astype(np.int32)
    who = lines.customer.astype(int).to_numpy()
    return Federation.from_arrays({"x": x, "y": y}, clients=who, names={"y": tuple(map(str, common))})


def scores(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy and log loss."""
    own = np.maximum(p[np.arange(len(y)), y], 1e-15)
    return float((p.argmax(axis=1) == y).mean()), float(-np.log(own).mean())


def peers(n_trees: int, classes: int, seed: int) -> dict[str, Callable[..., np.ndarray]]:
    """Probabilities of test rows, by name of the library."""

    def of(model: Any) -> Callable[..., np.ndarray]:
        return lambda x, y, z: model.fit(x, y).predict_proba(z)

    how = {"n_estimators": n_trees, "learning_rate": 0.1, "n_jobs": 1, "random_state": seed}
    models = {
        "scikit-learn": of(HistGradientBoostingClassifier(max_iter=n_trees, early_stopping=False, random_state=seed))
    }
    try:
        import xgboost

        models["XGBoost"] = of(xgboost.XGBClassifier(tree_method="hist", max_depth=5, **how))
    except ImportError:
        pass
    try:
        import lightgbm

        models["LightGBM"] = of(lightgbm.LGBMClassifier(verbose=-1, **how))
    except ImportError:
        pass
    return models


def ranks(train: Federation, test: Federation) -> tuple[Federation, Federation]:
    """Features as ranks among the training rows, from -1 to 1; 0 where missing."""
    shares = np.linspace(0, 1, 257)
    cuts = quantiles_of(train["x"], shares.tolist())

    def ranked(fed: Federation) -> Federation:
        columns = [2 * np.interp(fed["x"][:, f], cuts[:, f], shares) - 1 for f in range(cuts.shape[1])]
        return fed.with_column("x", np.nan_to_num(np.column_stack(columns)).astype(np.float32))

    return ranked(train), ranked(test)


def trained(train: Federation, test: Federation, kind: str, n_rounds: int, seed: int) -> dict[str, Any]:
    """FedAvg on ranks: accuracy, loss, and what clients sent."""
    import torch

    train, test = ranks(train, test)
    d, classes = train["x"].shape[1], len(train.names["y"])
    model = models.linear(d, classes, seed=seed) if kind == "linear" else models.mlp(d, 64, classes, seed=seed)
    work, history = FedAvg(LocalSGD(model, cross_entropy, lr=0.3, epochs=2, batch_size=20)), History()
    for r in rounds(work, train, n_rounds=n_rounds, sampler=FixedSize(min(50, len(train))), seed=seed, measure=0):
        history.add(r)
        state = r.state
    names = dict(model.named_parameters())
    weights = {name: torch.tensor(np.array(state[f"model.{name}"]), dtype=torch.float32) for name in names}
    with torch.no_grad():
        p = torch.softmax(torch.func.functional_call(model, weights, torch.tensor(np.array(test["x"]))), dim=1).numpy()
    accuracy, loss = scores(p, test["y"])
    return {"accuracy": accuracy, "loss": loss, **cost(history)}


def cost(history: History) -> dict[str, float]:
    return {"rounds": len(history), "MB up a client": float(np.sum(history["bytes_up"])) / 1e6}


def compared(name: str, fed: Federation, n_trees: int, seed: int) -> list[dict[str, Any]]:
    """One split of rows: every model's scores."""
    train, test = fed.split(test=0.25, seed=seed)
    about = {"data": name, "clients": len(train), "rows": train.n_rows, "seed": seed}
    begun = time.process_time()
    trees = BoostedTrees(n_trees, seed=seed).fit(Local(train, threads=1))
    seconds = time.process_time() - begun
    accuracy, loss = scores(trees.predict_proba(test), test["y"])
    found = {"accuracy": accuracy, "loss": loss, "CPU s": seconds}
    rows = [{**about, "model": "BoostedTrees", **found, **cost(trees.history_)}]
    for peer, predict in peers(n_trees, len(train.names["y"]), seed).items():
        begun = time.process_time()
        p = predict(train["x"], train["y"], test["x"])
        seconds = time.process_time() - begun
        accuracy, loss = scores(p, test["y"])
        rows.append({**about, "model": f"{peer}, pooled", "accuracy": accuracy, "loss": loss, "CPU s": seconds})
    for kind in ("linear", "network"):
        rows.append({**about, "model": f"FedAvg, {kind}", **trained(train, test, kind, 100, seed)})
    return rows


def private(fed: Federation, epsilon: float, seed: int) -> list[dict[str, Any]]:
    """Trees and a logistic GLM by rows, with ranges that a codebook has."""
    train, test = fed.split(test=0.25, seed=seed)
    low, high = np.zeros(8), np.array([99.0, 2, 9, 24, 5, 9, 9999, 99])
    unit = {"x": lambda each: (each["x"] - low) / high * 2 - 1}
    train, test = (each.with_column("x", unit["x"](each)) for each in (train, test))
    about = {"data": "census, private", "clients": len(train), "rows": train.n_rows, "seed": seed}
    trees = BoostedTrees(8, depth=3, bins=16, learning_rate=0.4, least_weight=100.0, ranges={"x": (-1, 1)}, seed=seed)
    clip = float(np.sqrt(8) * np.hypot(1, 0.25))
    multiplier = calibrate(epsilon, DELTA, rounds=trees.n_releases(), sampler=All())
    trees.fit(train, privacy=Gaussian(clip=clip, multiplier=multiplier, unit="row", noise_seed=seed))
    accuracy, loss = scores(trees.predict_proba(test), test["y"])
    rows = [{**about, "model": f"BoostedTrees, epsilon {epsilon:g}", "accuracy": accuracy, "loss": loss}]
    rows[0] |= {"rounds": len(trees.history_)}
    plain = train.select(["x"]).with_column("y", train["y"].astype(float))
    glm = GLM("logistic", ranges={"x": (-1, 1)}, rounds=4, l2=1.0)
    multiplier = calibrate(epsilon, DELTA, rounds=4, sampler=All())
    clip = float(glm.row_bound({"coefficients": np.zeros(0)}, 2, plain) or 0.0)
    glm.fit(plain, privacy=Gaussian(clip=clip, multiplier=multiplier, unit="row", noise_seed=seed))
    mean = glm.predict(test["x"])
    accuracy, loss = scores(np.column_stack([1 - mean, mean]), test["y"])
    rows.append(
        {**about, "model": f"logistic GLM, epsilon {epsilon:g}", "accuracy": accuracy, "loss": loss, "rounds": 4}
    )
    return rows


def private_clients(fed: Federation, epsilon: float, seed: int) -> list[dict[str, Any]]:
    """Trees, a logistic GLM and FedAvg of a linear model, each client protected, in as many rounds as suit each."""
    train, test = fed.split(test=0.25, seed=seed)
    high = np.array([99.0, 2, 9, 24, 5, 9, 9999, 99])
    train, test = (each.with_column("x", (each["x"] / high * 2 - 1).astype(np.float32)) for each in (train, test))
    about = {"data": "census, clients private", "clients": len(train), "rows": train.n_rows, "seed": seed}
    step = LocalSGD(models.linear(8, 2, seed=seed), cross_entropy, lr=0.3, epochs=2, batch_size=20)
    ends = {"x": (-1.0, 1.0)}
    cases: dict[str, tuple[str, Any, int, float]] = {
        "BoostedTrees": ("trees", Options(trees=3, learning_rate=0.4, ranges=ends), 15, 8.0),
        "logistic GLM": ("glm", Options(l2=1.0, ranges=ends), 4, 8.0),
        "FedAvg, linear": ("fedavg", Options(), 30, 1.0),
    }
    rows = []
    for name, (method, options, n_rounds, clip) in cases.items():
        multiplier = calibrate(epsilon, DELTA, rounds=n_rounds, sampler=All())
        privacy = Gaussian(clip=clip, multiplier=multiplier, noise_seed=seed)
        model = fit(method, step, train, n_rounds=n_rounds, seed=seed, options=options, privacy=privacy)
        accuracy, loss = scores(model.predict_proba(test), test["y"])
        line = {**about, "model": f"{name}, epsilon {epsilon:g}", "accuracy": accuracy, "loss": loss}
        rows.append(line | {"rounds": n_rounds})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, the half width of 95% intervals, and paired differences to BoostedTrees."""
    out = []
    keys = list(dict.fromkeys((row["data"], row["model"]) for row in rows))
    for data, model in keys:
        mine = [row for row in rows if (row["data"], row["model"]) == (data, model)]
        line: dict[str, Any] = {"data": data, "clients": mine[0]["clients"], "rows": mine[0]["rows"], "model": model}
        for name in ("accuracy", "loss"):
            values = [row[name] for row in mine]
            line |= {name: float(np.mean(values)), f"± {name}": half_width(values)}
        for name in ("CPU s", "rounds", "MB up a client"):
            if name in mine[0]:
                line[name] = float(np.mean([row[name] for row in mine]))
        out.append(line)
    return out


def main() -> None:
    args = arguments(__doc__, seeds=3, rows=30_000, only="all")
    n, seeds = (3_000, 2) if args.quick else (args.rows, args.seeds)
    rows: list[dict[str, Any]] = []
    if args.only == "clients":
        for seed in range(seeds):
            for epsilon in (1.0, 2.0, 4.0, 8.0):
                rows += private_clients(census(n, seed), epsilon, seed)
        report("trees_private_clients", summary(rows), note=f"{seeds} seeds; ± is half of a 95% interval over them.")
        return
    for seed in range(seeds if DATA.exists() else 0):
        rows += compared("heart disease", hearts(), 10 if args.quick else 50, seed)
        rows += compared("census", census(n, seed), 10 if args.quick else 60, seed)
        rows += compared("flights", flights(n, seed), 10 if args.quick else 60, seed)
        rows += compared("online retail", retail(n, seed), 3 if args.quick else 20, seed)
        for epsilon in (1.0, 8.0) if args.quick else (1.0, 2.0, 4.0, 8.0):
            rows += private(census(n, seed), epsilon, seed)
    report(
        "trees_peers", summary(rows), note=f"{seeds} seeds of rows and splits; ± is half of a 95% interval over them."
    )


if __name__ == "__main__":
    main()
