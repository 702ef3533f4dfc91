"""Is the advice of a study right, and does it stand still? Ten federations with known answers, several seeds each.

Each seed draws other clients of a federation's law and has the tournament of a study and its advice. What every method
is worth is found apart: trained anew on other clients of the same law, tested on many rows of each. `within a point`
counts the seeds whose advice lies at most one point behind the best there, `same` those that agree with the most
frequent advice, and `covered` the intervals of gains over FedAvg that hold the gain found.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from fedscape import Federation
from fedscape.studies import tournament as learn
from fedscape.studies.budget import BUDGETS, Budget, Limits, budget_of
from fedscape.studies.choose import ORDER, climbing
from fedscape.studies.judged import BASELINES, Judged
from fedscape.studies.staged import Stage, staged
from table import RESULTS, report

CLIENTS, CLASSES, WIDTH, TEST = 30, 4, 8, 120


def rule(rng, n=1):
    return rng.normal(size=(n, WIDTH, CLASSES)) * 1.5


def labels(rng, x, weights):
    """One label a row from the linear rule of the row, [rows, WIDTH, CLASSES]."""
    logits = np.einsum("rd,rdc->rc", x, weights) * 1.5
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def alike(rng, owner, world):
    x = rng.normal(size=(len(owner), WIDTH))
    return x, labels(rng, x, rule(world)[np.zeros(len(owner), int)])


def clusters(number):
    def make(rng, owner, world):
        x = rng.normal(size=(len(owner), WIDTH))
        return x, labels(rng, x, rule(world, number)[owner % number])

    return make


def own_rules(near):
    """Every client has a rule of its own, near a common one or far from it."""

    def make(rng, owner, world):
        x = rng.normal(size=(len(owner), WIDTH))
        mine = near * rule(world)[0] + (1 - near) * rule(rng, CLIENTS)
        return x, labels(rng, x, mine[owner])

    return make


def mixed(rng, owner, world):
    """Rows follow one of three rules, in shares that are the client's own (FedEM's law)."""
    x = rng.normal(size=(len(owner), WIDTH))
    shares = rng.dirichlet(np.full(3, 0.3), CLIENTS)
    which = (rng.random(len(owner))[:, None] > np.cumsum(shares, axis=1)[owner]).sum(axis=1)
    return x, labels(rng, x, rule(world, 3)[np.minimum(which, 2)])


def places(rng, owner, world):
    """Each of three places in feature space has its own rule; clients visit places differently (FedGMM's law)."""
    centres, rules = 3.0 * world.normal(size=(3, WIDTH)), rule(world, 3)
    shares = rng.dirichlet(np.full(3, 0.4), CLIENTS)
    which = np.minimum((rng.random(len(owner))[:, None] > np.cumsum(shares, axis=1)[owner]).sum(axis=1), 2)
    x = rng.normal(size=(len(owner), WIDTH))
    return x + centres[which], labels(rng, x, rules[which])


def skewed(strength):
    """One rule, but clients have few of the classes."""

    def make(rng, owner, world):
        means = 1.2 * world.normal(size=(CLASSES, WIDTH))
        shares = rng.dirichlet(np.full(CLASSES, strength), CLIENTS)
        y = np.minimum((rng.random(len(owner))[:, None] > np.cumsum(shares, axis=1)[owner]).sum(axis=1), CLASSES - 1)
        return means[y] + 1.5 * rng.normal(size=(len(owner), WIDTH)), y

    return make


WORLDS = {  # name: (law, training and test rows of a client in the study, methods that fit the law)
    "alike, 60 rows": (alike, 60, ("fedavg",)),
    "alike, 15 rows": (alike, 15, ("fedavg",)),
    "two clusters": (clusters(2), 60, ("ifca", "fedem")),
    "three clusters": (clusters(3), 60, ("ifca", "fedem")),
    "rules of their own, 200 rows": (own_rules(0.0), 200, ("local", "fedavg+")),
    "rules near a common one": (own_rules(0.7), 60, ("fedavg+",)),
    "shares of three rules": (mixed, 60, ("fedem", "fedgmm")),
    "places with rules": (places, 60, ("fedgmm",)),
    "few classes each": (skewed(0.2), 60, ("fedavg+", "fedgmm", "fedem")),
    "mild class skew": (skewed(2.0), 60, ("fedavg",)),
}


def federation(make, rows: int, seed: int, world: int) -> Federation:
    """Clients of a law: `world` says the rules that all federations of this law share, `seed` who the clients are."""
    owner = np.repeat(np.arange(CLIENTS), rows)
    x, y = make(np.random.default_rng([seed, world]), owner, np.random.default_rng(world))
    names = {"y": [str(c) for c in range(CLASSES)]}
    return Federation({"x": x, "y": y.astype(np.int32)}, np.arange(0, len(y) + 1, rows), names=names)


def truth(task: tuple[str, int, Budget]) -> dict[str, float]:
    """The accuracy of every method on other clients of a law, tested on many rows of each."""
    name, again, budget = task
    make, rows, _ = WORLDS[name]
    folds = 4 if rows >= 8 else 2
    trained = round(rows * (1 - 1 / folds))
    whole = learn.directions(federation(make, trained + TEST, 1000 + again, list(WORLDS).index(name)))
    first = np.arange(whole.n_rows) % (trained + TEST) < trained
    clients = learn.Clients(whole.where(first), whole.where(~first))
    owner, right = clients.test.client_of_row, clients.test["y"]
    found = {n: float(np.mean(said == right)) for n, said in learn.guesses(clients).items()}
    for method in learn.ENTRANTS:
        limits, seed = budget.stages[0], 77 + again
        lr, start = learn.tuned(method, clients, seed=seed, n_rounds=max(1, limits.rounds // 3))
        n_rounds = max(limits.longest for limits in budget.stages)
        done = learn.trained(method, clients.train, lr=lr, seed=start, n_rounds=n_rounds)
        found[method] = float(np.mean(done.predict(clients.test) == right))
    assert len(owner) == CLIENTS * TEST  # as many rows of each: the mean over rows is that over clients
    return found


def advice(task: tuple[str, int, Budget]) -> dict:
    """What a study advises for one draw of clients: the steps of its tournament, without the other sections."""
    name, seed, budget = task
    make, rows, _ = WORLDS[name]
    began = time.perf_counter()
    fed = learn.directions(federation(make, rows, seed, list(WORLDS).index(name)))
    last = played(fed, budget, seed=seed, sites=False)[-1]
    judged, choice = last.judged, last.choice
    gains = {m: judged.difference(m, "fedavg") for m in last.used if m != "fedavg"}
    losses = {m: judged.difference(choice.best, m) for m in last.used}
    return {
        "federation": name, "seed": seed, "advised": choice.advised, "best": choice.best, "gains": gains,
        "losses": losses, "s": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def played(fed: Federation, budget: Budget, *, seed: int, sites: bool) -> list[Stage[Judged]]:
    """The stages of a study's tournament."""
    memory: learn.Memory = {}

    def play(rows: Federation, limits: Limits, those: dict[str, int]) -> tuple[Judged, dict[str, list[learn.Tuned]]]:
        methods = {m: those[m] for m in learn.ENTRANTS if m in those}
        return learn.tournament(
            rows, limits, seed=seed, sites=sites, methods=methods, memory=memory, say=lambda _: None
        )

    return staged(fed, budget, play, order=ORDER, common="fedavg", seed=seed, climbs=climbing)


def row_of(name: str, runs: list[dict], worth: dict[str, float]) -> dict:
    """One federation: what is best, what was advised, how often that was right and the same."""
    best = max(learn.ENTRANTS, key=lambda m: worth[m])
    guess = max(worth[b] for b in BASELINES)
    regret = [worth[best] - (guess if run["advised"] is None else worth[run["advised"]]) for run in runs]
    advised = Counter(run["advised"] or "none" for run in runs)
    covered = [
        gain["low"] <= worth[m] - worth["fedavg"] <= gain["high"] for run in runs for m, gain in run["gains"].items()
    ]
    return {
        "federation": name,
        "made for": "/".join(WORLDS[name][2]),
        "best": f"{best} {100 * worth[best]:.1f}%",
        "guessing": f"{100 * guess:.1f}%",
        "advised": ", ".join(f"{m} {n}" for m, n in advised.most_common()),
        "within a point": sum(r <= 0.01 for r in regret),
        "same": advised.most_common(1)[0][1],
        "largest regret, points": round(100 * max(regret), 1),
        "gains covered": f"{sum(covered)} of {len(covered)}",
        "s": round(float(np.mean([run["s"] for run in runs])), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two federations, two seeds")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--truths", type=int, default=12, help="other draws that say what a method is worth")
    parser.add_argument("--budget", default="30s", choices=list(BUDGETS))
    parser.add_argument("--worlds", default="", help="numbers of federations with commas between; all by default")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    budget = budget_of(given.budget)
    names = list(WORLDS)
    if given.worlds:
        names = [names[int(i)] for i in given.worlds.split(",")]
    if given.quick:
        names, given.seeds, given.truths = [names[0], names[2]], 2, 1
    tasks = [(name, seed, budget) for name in names for seed in range(given.seeds)]
    truths = [(name, again, budget) for name in names for again in range(given.truths)]
    if given.workers > 1:
        with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
            found, worths = list(pool.map(advice, tasks)), list(pool.map(truth, truths))
    else:
        found, worths = [advice(task) for task in tasks], [truth(task) for task in truths]
    rows = []
    worth = {}
    for name in names:
        mine = [w for w, task in zip(worths, truths, strict=True) if task[0] == name]
        worth[name] = {m: float(np.mean([w[m] for w in mine])) for m in mine[0]}
        rows.append(row_of(name, [run for run in found if run["federation"] == name], worth[name]))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "advice_runs.json").write_text(json.dumps({"runs": found, "worth": worth}, default=float))
    near, total = sum(row["within a point"] for row in rows), len(found)
    steady = sum(row["same"] >= 0.8 * given.seeds for row in rows)
    note = f"within one point of the best: {near} of {total}; the same in 8 of 10 seeds: {steady} of {len(rows)}"
    report("advice", rows, note=f"budget {budget.name}; {note}")


if __name__ == "__main__":
    main()
