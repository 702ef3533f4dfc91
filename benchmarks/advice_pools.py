"""Is the advice right on federations that nothing was tuned on? Ten more, six of them cut from real data.

Each is a pool of clients in two halves. A seed draws clients of the first half and has the tournament of a study; what
every method is worth is found on the second half, by trainings of three times the rounds at the rate and the start that
are best on 20 further rows of each client, judged on still others. Of sites, which are the same in both, the rows are
halved. The stages of a budget are those of a smaller one and more, so one run says what each budget advises.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

import shards
from advice import played
from advice_unseen import regret_of, worths_of
from fedscape import Federation, datasets
from fedscape.studies import tournament as learn
from fedscape.studies.budget import BUDGETS, budget_of
from fedscape.studies.judged import BASELINES
from fedscape.studies.sites import are_sites
from table import report

RATES, LONG, MORE, TRUE_CLIENTS = (0.1, 0.4, 1.6), 60, 80, 100
CHOOSING = 20  # further rows of a client that choose rate and start
Pool = dict[str, np.ndarray]  # x, y, client of each row


@dataclass(frozen=True)
class Cut:
    """A federation to be drawn from a pool: how many clients, how many rows of each."""

    pool: Callable[[], Pool]
    clients: int
    rows: int
    fits: str

    @property
    def sites(self) -> bool:
        return are_sites(self.clients, None)


# -- pools of real data ------------------------------------------------------------------------------------------------


def census(*, shuffled: bool) -> Pool:
    """Income in three classes from age, schooling, hours and family, by region; shuffled: inside each region."""
    fed = datasets.load("acs")
    names = ("AGEP", "SCHL", "WKHP", "SEX", "MAR")
    income = np.asarray(fed["PINCP"], dtype=float)
    known = np.isfinite(income) & np.all([np.isfinite(np.asarray(fed[n], dtype=float)) for n in names], axis=0)
    x = np.stack([np.asarray(fed[n], dtype=float)[known] for n in names], axis=1)
    x = np.column_stack([x, x[:, 0] ** 2 / 100, x[:, 3] * x[:, 2]])
    y = np.searchsorted(np.quantile(income[known], [1 / 3, 2 / 3]), income[known])
    client = fed.client_of_row[known]
    if shuffled:
        order = np.argsort(client + np.random.default_rng(5).random(len(client)), kind="stable")
        y = y[order]  # rows are sorted by client: labels move inside each
    return {"x": (x - x.mean(axis=0)) / x.std(axis=0), "y": y, "client": client}


def leading(x: np.ndarray, n: int) -> np.ndarray:
    """Pixels on their leading directions."""
    x = x.reshape(len(x), -1).astype(np.float32) / 255
    x -= x.mean(axis=0)
    _, vectors = np.linalg.eigh(x[:20_000].T @ x[:20_000])
    return x @ vectors[:, ::-1][:, :n]


def digits_by_writer() -> Pool:
    fed = datasets.load("femnist")
    some = fed["y"] < 10
    return {"x": leading(fed["x"][some], 24), "y": fed["y"][some], "client": fed.client_of_row[some]}


def turned(rows: int = 200) -> Pool:
    """Clients hold their camera in one of four ways."""
    fed = datasets.load("mnist")
    client = np.arange(fed.n_rows) // rows
    order = np.random.default_rng(1).permutation(fed.n_rows)
    x, y, way = fed["x"][order], fed["y"][order], np.random.default_rng(2).integers(0, 4, client.max() + 1)[client]
    for k in (1, 2, 3):
        x[way == k] = np.rot90(x[way == k], k, axes=(1, 2))
    return {"x": leading(x, 20), "y": y, "client": client}


def dealt(concentration: float = 0.3, rows: int = 180) -> Pool:
    """CIFAR-10, each client with its own shares of the classes."""
    fed, rng = datasets.load("cifar10"), np.random.default_rng(3)
    left = [list(rng.permutation(np.flatnonzero(fed["y"] == c))) for c in range(10)]
    mine, client = [], []
    for i in range(240):
        for c, n in enumerate(rng.multinomial(rows, rng.dirichlet(np.full(10, concentration)))):
            mine += [left[c].pop() for _ in range(min(n, len(left[c])))]
        client += [i] * (len(mine) - len(client))
    return {"x": leading(fed["x"][mine], 20), "y": fed["y"][mine], "client": np.array(client)}


def late_flights() -> Pool:
    fed = datasets.load("flights")
    names = ("hour", "month", "distance", "air_time", "seats", "plane_year")
    x = np.stack([np.asarray(fed[n], dtype=float) for n in names], axis=1)
    known = np.isfinite(x).all(axis=1) & (fed.sizes[fed.client_of_row] > 1500)
    x = np.column_stack([x[known], (x[known][:, 0] - 12) ** 2, (x[known][:, 1] - 6) ** 2])
    return {
        "x": (x - x.mean(axis=0)) / x.std(axis=0),
        "y": (fed["arr_delay"][known] > 0).astype(int),
        "client": fed.client_of_row[known],
    }


# -- pools of laws -----------------------------------------------------------------------------------------------------


def drawn(law: Callable, clients: int, width: int, classes: int, seed: int, rows: int = 180) -> Pool:
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), rows)
    x = rng.normal(size=(len(client), width))
    logits = law(rng, x, client, width, classes)
    return {"x": x, "y": (logits + rng.gumbel(size=logits.shape)).argmax(axis=1), "client": client}


def slopes(rng, x, client, width, classes):
    """Every client's slopes are near common ones."""
    common = rng.normal(size=(width, classes)) * 1.2
    own = common + 0.5 * rng.normal(size=(client.max() + 1, width, classes))
    return np.einsum("rd,rdc->rc", x, own[client])


def careless(rng, x, client, width, classes):
    """One rule; three clients of ten label at random."""
    good = rng.random(client.max() + 1) > 0.3
    return (x @ rng.normal(size=(width, classes)) * 1.5) * good[client, None]


def rare_kind(rng, x, client, width, classes):
    """One client of eight follows another rule."""
    rules = rng.normal(size=(2, width, classes)) * 1.5
    kind = (rng.random(client.max() + 1) < 0.125).astype(int)
    return np.einsum("rd,rdc->rc", x, rules[kind[client]])


def two_groups(rng, x, client, width, classes):
    """Sites of two groups, each with its rule."""
    return np.einsum("rd,rdc->rc", x, (rng.normal(size=(2, width, classes)) * 1.2)[client % 2])


CUTS = {
    "150 census regions x 40, income": Cut(lambda: census(shuffled=False), 150, 40, "fedavg"),
    "150 census regions x 40, labels shuffled": Cut(lambda: census(shuffled=True), 150, 40, "none"),
    "120 writers x 40, digits": Cut(digits_by_writer, 120, 40, "?"),
    "160 cameras x 40, four ways to hold them": Cut(turned, 160, 40, "ifca"),
    "100 clients x 60, CIFAR-10 by Dirichlet 0.3": Cut(dealt, 100, 60, "fedavg+/local"),
    "airlines x 300, late or not (sites)": Cut(late_flights, 12, 300, "?"),
    "240 clients x 25, slopes near common ones": Cut(lambda: drawn(slopes, 480, 6, 3, 11), 240, 25, "fedavg+"),
    "240 clients x 30, three of ten careless": Cut(lambda: drawn(careless, 480, 8, 3, 12), 240, 30, "fedavg"),
    "240 clients x 30, one of eight of a rare kind": Cut(lambda: drawn(rare_kind, 480, 6, 3, 13), 240, 30, "ifca"),
    "10 sites x 150, two groups": Cut(lambda: drawn(two_groups, 10, 8, 3, 14, 2_400), 10, 150, "ifca"),
}
NAMES = list(CUTS)


@cache
def halves(number: int) -> tuple[Federation, Federation]:
    """The pool of a federation in two halves: of clients, or of the rows of every site."""
    cut = CUTS[NAMES[number]]
    pool = cut.pool()
    rng = np.random.default_rng([number, 77])
    if cut.sites:
        first = rng.random(len(pool["y"])) < 0.5
    else:
        first = (rng.random(pool["client"].max() + 1) < 0.5)[pool["client"]]
    made = []
    for some in (first, ~first):
        order = np.argsort(pool["client"][some] + rng.random(some.sum()), kind="stable")
        _, sizes = np.unique(pool["client"][some], return_counts=True)
        x, y = pool["x"][some][order], pool["y"][some][order]
        columns = {"x": x.astype(np.float32), "y": y.astype(np.int32)}
        names = {"y": [str(c) for c in range(int(pool["y"].max()) + 1)]}
        made.append(Federation(columns, np.concatenate(([0], np.cumsum(sizes))), names=names))
    return made[0], made[1]


def cut_from(half: Federation, clients: int, rows: int, least: int, seed: int, *, sites: bool) -> Federation:
    """Some clients of a half with at least so many rows, and so many rows of each: all clients of a few sites."""
    rng = np.random.default_rng([seed, 9])
    able = np.flatnonzero(half.sizes >= least)
    who = able if sites else np.sort(rng.permutation(able)[:clients])
    some = half.take(who)
    order = np.argsort(some.client_of_row + rng.random(some.n_rows), kind="stable")
    kept = np.zeros(some.n_rows, dtype=bool)
    kept[order[np.arange(some.n_rows) - some.offsets[some.client_of_row] < rows]] = True
    return some.where(kept)


def worth(task: list) -> dict:
    """The accuracy of a method on the other half, after a long training."""
    number, again, method = task
    cut, began = CUTS[NAMES[number]], time.process_time()
    trained, more = round(0.75 * cut.rows), max(MORE, 4000 // TRUE_CLIENTS * 10 if cut.sites else MORE)
    whole = cut_from(halves(number)[1], TRUE_CLIENTS, trained + more, trained + 40, 500 + again, sites=cut.sites)
    whole = learn.directions(whole)
    at = np.arange(whole.n_rows) - whole.offsets[:-1][whole.client_of_row]
    chosen, judging = (at >= trained) & (at < trained + CHOOSING), at >= trained + CHOOSING
    fit, choose_on, judge = whole.where(at < trained), whole.where(chosen), whole.where(judging)
    weight = 1 / judge.sizes[judge.client_of_row] / (judge.sizes > 0).sum()  # clients weigh the same
    if method == "guess":
        said = learn.guesses(learn.Clients(fit, judge))
        return {"worth": {name: float(weight @ (s == judge["y"])) for name, s in said.items()}, "s": 0.0}
    starts = (500 + again, 900 + again) if method in ("ifca", "fedem", "fedgmm") else (500 + again,)
    done = [learn.trained(method, fit, lr=lr, seed=s, n_rounds=LONG) for lr in RATES for s in starts]
    best = max(done, key=lambda model: float(np.mean(model.predict(choose_on) == choose_on["y"])))
    value = float(weight @ (best.predict(judge) == judge["y"]))
    return {"worth": {method: value}, "s": round(time.process_time() - began, 1)}


def advice(task: list) -> dict:
    """What a study advises after each stage for one draw: its tournament, without the other sections."""
    number, seed, name = task
    cut, began = CUTS[NAMES[number]], time.process_time()
    fed = cut_from(halves(number)[0], cut.clients, cut.rows, cut.rows, seed, sites=cut.sites)
    fed = learn.directions(fed)

    stages = [
        {
            "clients": len(stage.who), "rows": stage.rows.n_rows, "methods": list(stage.used),
            "advised": stage.choice.advised, "best": stage.choice.best, "tied": list(stage.choice.tied),
            "simplest": stage.choice.simplest, "settled": stage.settled, "means": stage.judged.means,
            "limits": [stage.limits.clients, stage.limits.rows],
        }
        for stage in played(fed, budget_of(name), seed=seed, sites=cut.sites)
    ]  # fmt: skip
    return {"stages": stages, "s": round(time.process_time() - began, 1)}


def at_budget(run: dict, name: str) -> dict:
    """The last stage that this budget has."""
    allowed = [[limits.clients, limits.rows] for limits in BUDGETS[name].stages]
    return [stage for stage in run["stages"] if stage["limits"] in allowed][-1]


def row_of(number: int, runs: list[dict], each: dict[str, list[float]], budget: str) -> dict:
    known = {m: float(np.mean(values)) for m, values in each.items()}
    best, last = max(known, key=lambda m: known[m]), [at_budget(run, budget) for run in runs]
    regret = [regret_of(stage["advised"], known) for stage in last]
    advised = Counter(stage["advised"] or "none" for stage in last)
    near = [m for m in known if known[m] >= known[best] - 0.01 and m != best]
    return {
        "federation": NAMES[number],
        "best": f"{best} {100 * known[best]:.1f}%",
        "within a point of it": ", ".join(near) or "none",
        "FedAvg, Local, guessing": " ".join(
            f"{100 * v:.1f}%" for v in (known["fedavg"], known["local"], max(known[b] for b in BASELINES))
        ),
        "advised": ", ".join(f"{m} {n}" for m, n in advised.most_common()),
        "within a point": f"{sum(r <= 1 for r in regret)} of {len(runs)}",
        "same": f"{advised.most_common(1)[0][1]} of {len(runs)}",
        "largest regret, points": round(max(regret), 1),
        "settled": sum(stage["settled"] for stage in last),
        "CPU s": round(float(np.mean([run["s"] for run in runs])), 1),
    }


def budget_rows(runs: list[dict], worths: dict[int, dict[str, list[float]]]) -> list[dict]:
    """Regret after each stage of the same draws: does more budget make the advice worse?"""
    rows, before = [], None
    for stages in range(1, 5):
        last = [run["stages"][min(stages, len(run["stages"])) - 1] for run in runs]
        known = [{m: float(np.mean(v)) for m, v in worths[run["task"][0]].items()} for run in runs]
        values = np.array([regret_of(stage["advised"], k) for stage, k in zip(last, known, strict=True)])
        went_on = sum(len(run["stages"]) >= stages for run in runs)
        if stages > 1 and not went_on:
            break
        rows.append(
            {
                "stages at most": stages,
                "draws that had it": f"{went_on} of {len(runs)}",
                "within a point": int((values <= 1).sum()),
                "mean regret, points": round(float(values.mean()), 2),
                "largest": round(float(values.max()), 1),
                "worse than with less, by over a point": 0 if before is None else int((values > before + 1).sum()),
                "better, by over a point": 0 if before is None else int((values < before - 1).sum()),
            }
        )
        before = values
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two federations, one seed, one long training each")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--truths", type=int, default=3, help="long independent trainings of each method")
    parser.add_argument("--budget", default="30s", choices=list(BUDGETS))
    parser.add_argument("--cuts", default="", help="numbers of federations with commas between; all by default")
    shards.add_arguments(parser)
    given = parser.parse_args()
    numbers = [int(i) for i in given.cuts.split(",")] if given.cuts else list(range(len(NAMES)))
    if given.quick:
        numbers, given.seeds, given.truths, given.out = [7, 9], 1, 1, given.out / "quick"
    methods = ["guess", *learn.ENTRANTS]
    runs = shards.run(
        "advice_pools_runs", advice, [[n, s, given.budget] for s in range(given.seeds) for n in numbers], given
    )
    worths = worths_of(
        shards.run(
            "advice_pools_worth",
            worth,
            [[n, t, m] for t in range(given.truths) for n in numbers for m in methods],
            given,
        )
    )
    whole = [n for n in numbers if len(worths.get(n, {})) == len(methods) + 1]
    runs = [run for run in runs if run["task"][0] in whole]
    rows = [row_of(n, mine, worths[n], given.budget) for n in whole if (mine := [r for r in runs if r["task"][0] == n])]
    if not rows:
        return
    near = sum(int(row["within a point"].split()[0]) for row in rows)
    steady = sum(share_of(row["same"]) >= 0.8 for row in rows)
    note = f"within one point of the best: {near} of {len(runs)}; the same in 8 of 10 seeds: {steady} of {len(rows)}"
    report("advice_pools", rows, note=f"{note}; budget {given.budget}")
    report("advice_pools_stages", budget_rows(runs, worths))


def share_of(text: str) -> float:
    """Part of a whole, of "8 of 10"."""
    part, whole = text.split(" of ")
    return int(part) / int(whole)


if __name__ == "__main__":
    main()
