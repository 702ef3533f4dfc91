"""Are boosted trees by sums as good and as quick as scikit-learn's on pooled rows?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

from fedscape import BoostedTrees, Federation
from table import arguments, report

DATA = Path(os.environ.get("FEDSCAPE_DATA", "../shared/data"))


def retail(most: int) -> tuple[Federation, Federation]:
    """Which of the 40 commonest products, from quantity, price, hour and weekday; a fifth of customers apart."""
    import pyarrow.parquet as pq

    lines = pq.read_table(DATA / "online_retail" / "online_retail_ii.parquet").to_pandas()
    lines = lines[lines.customer.notna()]
    common = lines.stock_code.value_counts().index[:40]
    lines = lines[lines.stock_code.isin(common)].iloc[:most]
    x = np.column_stack([lines.quantity, lines.price, lines.time.dt.hour, lines.time.dt.day_of_week]).astype(float)
    code = {product: i for i, product in enumerate(common)}
    y = lines.stock_code.map(code).to_numpy().astype(np.int32)
    who = lines.customer.astype(int).to_numpy()
    fed = Federation.from_arrays({"x": x, "y": y}, clients=who, names={"y": tuple(map(str, common))})
    return fed.split_clients(test=0.2, seed=0)


def hearts(seed: int) -> tuple[Federation, Federation]:
    """Heart disease, yes or no, in four hospitals, missing values as they are; a fifth of each one's rows apart."""
    import pandas as pd

    rows = pd.read_csv(DATA / "hospitals" / "heart_disease.csv")
    x = rows.drop(columns=["hospital", "target"]).to_numpy(dtype=float)
    y = (rows.target > 0).to_numpy().astype(int)
    return Federation.from_arrays({"x": x, "y": y}, clients=rows.hospital.astype(str)).split(test=0.2, seed=seed)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Seconds by the clock, and of all cores: the latter say more where others use the machine."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - begun, "cpu seconds": time.process_time() - used}


def compared(
    name: str,
    train: Federation,
    test: Federation,
    n_trees: int,
    *,
    line: bool = False,
    speed: bool = False,
    alone: bool = False,
) -> list[dict[str, Any]]:
    about = {"data": name, "clients": len(train), "rows": train.n_rows, "trees": n_trees}
    trees = BoostedTrees(n_trees)
    seconds = timed(lambda: trees.fit(train))
    cost = {"rounds": len(trees.history_), "MB up": float(np.sum(trees.history_["bytes_up"])) / 1e6}
    accuracy = float((trees.predict(test["x"]) == test["y"]).mean())
    rows = [{**about, "model": "BoostedTrees", "accuracy": accuracy, **seconds, **cost}]
    if alone:
        return rows
    peer = HistGradientBoostingClassifier(max_iter=n_trees, early_stopping=False)
    seconds = timed(lambda: peer.fit(train["x"], train["y"]))
    rows.append({**about, "model": "scikit-learn, pooled", "accuracy": peer.score(test["x"], test["y"]), **seconds})
    if speed:
        rows += [
            {**about, "model": f"{peer}, pooled", **found} for peer, found in elsewhere(train, test, n_trees).items()
        ]
    if line:
        ranked = make_pipeline(QuantileTransformer(), LogisticRegression(max_iter=300)).fit(train["x"], train["y"])
        rows.append({**about, "model": "pooled logistic on ranks", "accuracy": ranked.score(test["x"], test["y"])})
    return rows


def elsewhere(train: Federation, test: Federation, n_trees: int) -> dict[str, dict[str, float]]:
    """Accuracy and seconds of XGBoost and LightGBM, where they can be imported."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "2"))
    models: dict[str, Any] = {}
    try:
        import xgboost

        how = {"n_estimators": n_trees, "learning_rate": 0.1, "n_jobs": threads}
        models["XGBoost"] = xgboost.XGBClassifier(tree_method="hist", max_depth=5, **how)
        import lightgbm

        models["LightGBM"] = lightgbm.LGBMClassifier(verbose=-1, **how)
    except ImportError:
        pass
    found = {}
    for name, model in models.items():
        seconds = timed(lambda model=model: model.fit(train["x"], train["y"]))  # type: ignore[misc]
        found[name] = {"accuracy": float((model.predict(test["x"]) == test["y"]).mean()), **seconds}
    return found


def made_up(n_rows: int, clients: int, seed: int) -> tuple[Federation, Federation]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (n_rows, 30))
    y = (x[:, :5].sum(axis=1) + x[:, 5] * x[:, 6] + rng.normal(0, 1, n_rows) > 0).astype(int)
    offsets = np.linspace(0, n_rows, clients + 1).astype(int)
    few = min(n_rows, 20_000)
    return Federation({"x": x, "y": y}, offsets), Federation({"x": x[:few], "y": y[:few]}, [0, few])


def main() -> None:
    args = arguments(__doc__, rows=1_000_000, trees=100, only="all")
    n_rows, n_trees = (20_000, 5) if args.quick else (args.rows, args.trees)
    warm = made_up(2_000, 2, 0)
    BoostedTrees(1).fit(warm[0])  # compiled loops are loaded
    rows: list[dict[str, Any]] = []
    if DATA.exists() and args.only == "all":
        rows += compared("heart disease", *hearts(args.seed), 10 if args.quick else 50)
        rows += compared(
            "online retail", *retail(5_000 if args.quick else 10**7), 3 if args.quick else 60, line=not args.quick
        )
    for clients in (1, 1_000) if args.quick else (1, 1_000, 100_000):
        rows += compared(
            f"made up, 30 features, {clients:,} clients",
            *made_up(n_rows, clients, args.seed),
            n_trees,
            speed=clients == 1,
            alone=clients > 1,
        )
    report(
        "boosted_trees" if args.only == "all" else f"boosted_trees_{args.only}",
        rows,
        note="Accuracy on held-out rows; of made-up rows, on 20,000 of those trained on.",
    )


if __name__ == "__main__":
    main()
