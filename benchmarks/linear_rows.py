"""Do the linear rows of a study's tournament come within two points of pooled logistic regression?

Columns of the studied tables, read, scaled and dealt into folds as `fedscape study` does; rates are tuned on rows held
out of the training rows. Accuracy is the mean over clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from fedscape import Federation
from fedscape.studies import tournament
from fedscape.studies.budget import BUDGETS, ROWS_EACH
from fedscape.studies.prepare import prepare
from fedscape.studies.staged import clients_of_stage, fewer_rows
from table import arguments, half_width, report
from trees_peers import DATA, census, flights, hearts, retail

COLUMNS = {
    "heart disease": (hearts, None),
    "census": (census, ("age", "sex", "race", "school", "marital", "worker", "job", "hours")),
    "flights": (flights, None),
    "online retail": (retail, ("quantity", "price", "hour", "weekday")),
}


def table(name: str, n: int, seed: int) -> Federation:
    """The rows with a column for each feature."""
    make, names = COLUMNS[name]
    fed = hearts() if make is hearts else make(n, seed)
    names = names or [f"c{i}" for i in range(fed["x"].shape[1])]
    columns = {column: fed["x"][:, i] for i, column in enumerate(names)} | {"y": fed["y"]}
    return Federation(columns, fed.offsets, fed.ids, names={"y": fed.names["y"]})


def accuracy(classes: np.ndarray, rows: Federation) -> float:
    """The mean over clients."""
    have = rows.sizes > 0
    return float((rows.segment_sum((classes == rows["y"]).astype(float))[have] / rows.sizes[have]).mean())


def plain(clients: tournament.Clients, seed: int, n_rounds: int) -> Any:
    """FedAvg as it was: batches of 32 rows, the mean of the moves."""
    steady, tournament._STEADY = tournament._STEADY, ()
    try:
        lr, start = tournament.tuned("fedavg", clients, seed=seed, n_rounds=max(1, n_rounds // 3))
        return tournament.trained("fedavg", clients.train, lr=lr, seed=start, n_rounds=n_rounds)
    finally:
        tournament._STEADY = steady


def compared(name: str, n: int, seed: int, repeats: int) -> dict[str, float]:
    """Mean accuracies over the folds of one draw of clients."""
    limits, found = BUDGETS["30s"].stages[-1], {}
    rows = tournament.directions(prepare(table(name, n, seed), column="y", seed=seed).rows, table=True)
    who = clients_of_stage(rows, limits, each=ROWS_EACH, seed=seed)
    true = fewer_rows(rows.take(who), most=limits.rows, seed=seed)
    for repeat in range(repeats):
        clients = tournament.held_out(true, repeat=repeat, seed=seed)
        train, test = clients.train, clients.test
        pooled = LogisticRegression(max_iter=3000).fit(train["u"], train["y"])
        scores = {"pooled logistic regression": accuracy(pooled.predict(test["u"]), test)}
        for method in ("fedavg", "glm"):
            lr, start = tournament.tuned(
                method, clients, seed=seed, n_rounds=tournament.tuning_rounds(method, clients, limits.rounds)
            )
            model = tournament.trained(method, train, lr=lr, seed=start, n_rounds=limits.rounds)
            scores["FedAvg" if method == "fedavg" else "GLM"] = accuracy(model.predict(test), test)
        scores["FedAvg, small batches, no momentum"] = accuracy(plain(clients, seed, limits.rounds).predict(test), test)
        for key, value in scores.items():
            found.setdefault(key, []).append(value)
    return {key: float(np.mean(values)) for key, values in found.items()}


def main() -> None:
    args = arguments(__doc__, seeds=5, rows=30_000, begin=0, only="")
    n, seeds, repeats = (3_000, 2, 1) if args.quick else (args.rows, args.seeds, 4)
    lines: list[dict[str, Any]] = []
    for name in COLUMNS if DATA.exists() else ():
        if args.only not in ("", name):
            continue
        found = []
        for seed in range(args.begin, args.begin + seeds):
            found.append(compared(name, n, seed, repeats))
            print(f"{name}, draw {seed}: {found[-1]}", flush=True)
        for model in found[0]:
            values = [each[model] for each in found]
            behind = [each["pooled logistic regression"] - each[model] for each in found]
            line = {"data": name, "model": model, "accuracy": float(np.mean(values)), "±": half_width(values)}
            lines.append(
                line | {"behind pooled, points": 100 * float(np.mean(behind)), "± points": 100 * half_width(behind)}
            )
    report(
        f"linear_rows_{args.only.split(' ')[0]}" if args.only else "linear_rows",
        lines,
        note=f"{seeds} draws of clients, {repeats} folds each; ± is half of a 95% interval.",
    )


if __name__ == "__main__":
    main()
