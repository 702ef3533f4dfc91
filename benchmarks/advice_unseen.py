"""Is the advice right where nothing was tuned? Ten federations of other sizes and kinds than those of advice.py.

The ten of series 0 showed that the first rule of the advice was too timid (65 of 100), and the rule was changed. So the
federations that nothing was tuned on are those of `--series 1` and further: other rules, classes and widths. From
series 1 on the ten laws are the same, and series 3 has the sizes of series 1. Each was looked at before the next ran.
Each has a law that says which method it is made for. What every method is worth is found by long independent trainings:
other clients of the law (of sites: other rows of the same sites), five times the rounds of a study, the rate and the
start that are best on 4,000 more rows, tested on many rows. By two starts (`--starts`) IFCA and FedEM may both be seen
in the worse of two optima, which are five points apart: `--starts 5` is for that. Where labels have no rule that can be
learned the answer is known exactly: guessing cannot be beaten. `--budget` is the largest one; smaller ones are its
first stages.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import shards
from advice import played
from fedscape import Federation
from fedscape.studies import tournament as learn
from fedscape.studies.budget import BUDGETS, budget_of
from fedscape.studies.judged import BASELINES
from fedscape.studies.sites import are_sites
from fedscape.studies.staged import about_stage
from table import report

RATES, LONG, MOST = (0.03, 0.1, 0.3, 1.0, 3.0), 100, 120
Law = Callable[["World", np.random.Generator, np.random.Generator, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class World:
    """A law of clients: how many there are, the rows of each (the median, where sizes differ), and what fits it."""

    law: Law
    clients: int
    rows: int
    classes: int
    width: int
    fits: tuple[str, ...]
    uneven: float = 0.0  # standard deviation of the logarithm of sizes

    @property
    def sites(self) -> bool:
        return are_sites(self.clients, None)


def picked(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def of_shares(rng: np.random.Generator, shares: np.ndarray) -> np.ndarray:
    return np.minimum((rng.random(len(shares))[:, None] > np.cumsum(shares, axis=1)).sum(axis=1), shares.shape[1] - 1)


def weights(w: World, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rules whose logits have a standard deviation of about 4, however wide the rows are."""
    return rng.normal(size=(*shape, w.width, w.classes)) * 4 / np.sqrt(w.width)


def heavy_tails(w, rng, world, owner):
    """One rule for all, features with Student's tails of three degrees of freedom, classes of unlike frequency."""
    x = rng.standard_t(3, size=(len(owner), w.width)) / np.sqrt(3)
    return x, picked(rng, x @ weights(w, world) + np.linspace(3, 0, w.classes))


def shifted(w, rng, world, owner):
    """One rule for all; every client has its own mean of the features."""
    where = 1.5 * rng.normal(size=(owner.max() + 1, w.width))
    x = rng.normal(size=(len(owner), w.width)) + where[owner]
    return x, picked(rng, x @ weights(w, world))


def relabelled(groups):
    """Groups of clients name the classes differently: a permutation of the labels of one rule."""

    def law(w, rng, world, owner):
        x = rng.normal(size=(len(owner), w.width))
        orders = np.stack([world.permutation(w.classes) for _ in range(groups)])
        group = rng.integers(0, groups, owner.max() + 1)
        return x, orders[group[owner], picked(rng, x @ weights(w, world))]

    return law


def own_intercepts(w, rng, world, owner):
    """Common slopes; every client has intercepts of its own, so that it prefers some of the classes."""
    x = rng.normal(size=(len(owner), w.width))
    mine = 3.0 * rng.normal(size=(owner.max() + 1, w.classes))
    return x, picked(rng, x @ weights(w, world) + mine[owner])


def site_rules(w, rng, world, owner):
    """Every site has a rule that shares nothing with the others; the rules stay when rows are drawn anew."""
    x = rng.normal(size=(len(owner), w.width))
    return x, picked(rng, np.einsum("rd,rdc->rc", x, weights(w, world, w.clients)[owner]))


def site_shifts(w, rng, world, owner):
    """One rule; the sites' features have other means and scales, as machines have."""
    where, scale = world.normal(size=(w.clients, w.width)), world.uniform(0.5, 1.5, (w.clients, 1))
    x = rng.normal(size=(len(owner), w.width)) * scale[owner] + where[owner]
    return x, picked(rng, x @ weights(w, world))


def noise(w, rng, world, owner):
    """Labels without any rule, in unlike shares: nothing can be learned."""
    shares = np.tile(np.linspace(2, 1, w.classes) / np.linspace(2, 1, w.classes).sum(), (len(owner), 1))
    return rng.normal(size=(len(owner), w.width)), of_shares(rng, shares)


def habits(w, rng, world, owner):
    """Labels follow from the client alone: its commonest class is the best answer, and features say nothing."""
    mine = rng.dirichlet(np.full(w.classes, 0.3), owner.max() + 1)
    return rng.normal(size=(len(owner), w.width)), of_shares(rng, mine[owner])


def two_experts(w, rng, world, owner):
    """Rows follow one of two rules, in shares of the client's own, and most clients are mostly one of them."""
    x = rng.normal(size=(len(owner), w.width))
    second = rng.random(len(owner)) < rng.beta(0.3, 0.3, owner.max() + 1)[owner]
    return x, picked(rng, np.einsum("rd,rdc->rc", x, weights(w, world, 2)[second.astype(int)]))


def skewed(w, rng, world, owner):
    """Classes have means; clients have few of the classes."""
    means = 1.5 * world.normal(size=(w.classes, w.width))
    y = of_shares(rng, rng.dirichlet(np.full(w.classes, 0.3), owner.max() + 1)[owner])
    return means[y] + 1.5 * rng.normal(size=(len(owner), w.width)), y


WORLDS = {
    "400 clients of 12 rows, heavy tails": World(heavy_tails, 400, 12, 2, 12, ("fedavg",)),
    "80 clients of 50 rows, shifted features": World(shifted, 80, 50, 3, 10, ("fedavg",), uneven=0.4),
    "100 clients of 60 rows, 4 namings of 6 classes": World(relabelled(4), 100, 60, 6, 10, ("ifca", "fedem")),
    "150 clients of 40 rows, own intercepts": World(own_intercepts, 150, 40, 3, 8, ("fedavg+",), uneven=0.4),
    "6 sites of 300 rows, rules of their own": World(site_rules, 6, 300, 2, 10, ("local",)),
    "8 sites of 100 rows, one rule, other machines": World(site_shifts, 8, 100, 3, 10, ("fedavg",)),
    "60 clients of 40 rows, noise": World(noise, 60, 40, 3, 6, ("none",)),
    "60 clients of 40 rows, habits": World(habits, 60, 40, 4, 6, ("none",)),
    "300 clients of 50 rows, two experts": World(two_experts, 300, 50, 3, 8, ("ifca", "fedem"), uneven=0.3),
    "1,000 clients of 30 rows, few of 8 classes": World(skewed, 1000, 30, 8, 12, ("fedavg+", "local"), uneven=0.5),
}
NAMES = list(WORLDS)


def world(number: int) -> World:
    """A federation by its number. From 10 on a law has other rules, sizes, classes and widths than ten before."""
    w, series = WORLDS[NAMES[number % 10]], number // 10
    if not series:
        return w
    clients = w.clients + (series if w.sites else round((0.25 if series % 2 else -0.25) * w.clients))
    rows = max(8, round(w.rows * (1.3 if series % 2 else 0.8)))
    return replace(w, clients=clients, rows=rows, classes=w.classes + series % 2, width=w.width + 3 * series)


def called(number: int) -> str:
    if number < 10:
        return NAMES[number]
    w, law = world(number), NAMES[number % 10].partition(", ")[2]
    return f"{w.clients:,} {'sites' if w.sites else 'clients'} of {w.rows} rows, {law} ({w.classes} classes)"


def federation(number: int, seed: int, clients: int, rows: np.ndarray) -> Federation:
    w = world(number)
    owner = np.repeat(np.arange(clients), rows)
    x, y = w.law(w, np.random.default_rng([seed, number, 5]), np.random.default_rng([number, 17]), owner)
    names = {"y": [str(c) for c in range(w.classes)]}
    return Federation({"x": x, "y": y.astype(np.int32)}, np.concatenate(([0], np.cumsum(rows))), names=names)


def sizes(w: World, seed: int, clients: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 3])
    return np.maximum(np.round(w.rows * np.exp(w.uneven * rng.normal(size=clients))), 4).astype(int)


def worth(task: list) -> dict:
    """The accuracy of a method on other clients of a law (of sites: on other rows), after a long training."""
    number, again, method, *starts = task
    w, began = world(number), time.perf_counter()
    n = min(w.clients, MOST)
    trained = np.maximum(np.round(sizes(w, 1000 + again, n) * 0.75), 2).astype(int)
    more = np.full(n, max(30, 4000 // n))  # rows that choose the rate, and as many again that judge
    whole = learn.directions(federation(number, 1000 + again, n, trained + 2 * more))
    at = np.arange(whole.n_rows) - whole.offsets[:-1][whole.client_of_row]
    share = at - trained[whole.client_of_row]
    fit, choose_on, judge = (whole.where(c) for c in (share < 0, (share >= 0) & (share < more[0]), share >= more[0]))
    if method == "guess":
        said = learn.guesses(learn.Clients(fit, judge))
        return {"worth": {name: float(np.mean(s == judge["y"])) for name, s in said.items()}, "s": 0.0}

    def run(lr: float, start: int) -> tuple[float, float, Any]:
        done = learn.trained(method, fit, lr=lr, seed=500 + 400 * start + again, n_rounds=LONG)
        return float(np.mean(done.predict(choose_on) == choose_on["y"])), lr, done

    number_of = (starts or [2])[0] if method in ("ifca", "fedem", "fedgmm") else 1
    done = [run(lr, start) for lr in RATES for start in range(min(number_of, 2))]
    done += [run(max(done, key=lambda d: d[0])[1], start) for start in range(2, number_of)]  # further starts: one rate
    best = max(done, key=lambda d: d[0])[2]
    value = float(np.mean(best.predict(judge) == judge["y"]))
    return {"worth": {method: value}, "s": round(time.perf_counter() - began, 1)}


def advice(task: list) -> dict:
    """What a study advises after each stage for one draw: its tournament, without the other sections."""
    number, seed, name = task
    w, began, ladder = world(number), time.perf_counter(), budget_of(name).stages
    fed = learn.directions(federation(number, seed, w.clients, sizes(w, seed, w.clients)))
    stages = [
        {
            **about_stage(stage), "stage": ladder.index(stage.limits) + 1, "best": stage.choice.best,
            "tied": list(stage.choice.tied), "means": stage.judged.means, "climbing": stage.climbing,
            "lengths": {m: learn.typical(used).rounds for m, used in stage.used.items()},
            "gains": {m: stage.judged.difference(m, "fedavg") for m in stage.used if m != "fedavg"},
        }
        for stage in played(fed, budget_of(name), seed=seed, sites=w.sites)
    ]  # fmt: skip
    return {"stages": stages, "s": round(time.perf_counter() - began, 1)}


def at_budget(run: dict, name: str) -> dict:
    """The last stage that this budget has: a larger budget begins as a smaller one does."""
    return [stage for stage in run["stages"] if stage["stage"] <= len(budget_of(name).stages)][-1]


def worths_of(lines: list[dict]) -> dict[int, dict[str, list[float]]]:
    """By federation and method: the accuracies of all long trainings."""
    made: dict[int, dict[str, list[float]]] = {}
    for line in lines:
        for method, value in line["worth"].items():
            made.setdefault(line["task"][0], {}).setdefault(method, []).append(value)
    return made


def regret_of(advised: str | None, known: dict[str, float]) -> float:
    """By how many points the advice is behind the best; no method advised has what guessing has."""
    mine = max(known[b] for b in BASELINES) if advised is None else known[advised]
    return 100 * (max(known.values()) - mine)


def row_of(number: int, runs: list[dict], each: dict[str, list[float]], budget: str) -> dict:
    known = {m: float(np.mean(values)) for m, values in each.items()}
    best, last = max(known, key=lambda m: known[m]), [at_budget(run, budget) for run in runs]
    regret = [regret_of(stage["advised"], known) for stage in last]
    advised = Counter(stage["advised"] or "none" for stage in last)
    return {
        "federation": called(number),
        "made for": "/".join(world(number).fits),
        "best": f"{best} {100 * known[best]:.1f}%",
        "FedAvg, Local, guessing": " ".join(
            f"{100 * v:.1f}%" for v in (known["fedavg"], known["local"], max(known[b] for b in BASELINES))
        ),
        "advised": ", ".join(f"{m} {n}" for m, n in advised.most_common()),
        "within a point": sum(r <= 1 for r in regret),
        "same": advised.most_common(1)[0][1],
        "largest regret, points": round(max(regret), 1),
        "said to be settled": sum(stage["settled"] for stage in last),
    }


def budget_rows(runs: list[dict], worths: dict[int, dict[str, list[float]]], budgets: list[str]) -> list[dict]:
    """Regret by budget on the same draws, and how often more budget made the advice worse."""
    rows, before = [], None
    for name in budgets:
        known = [{m: float(np.mean(values)) for m, values in worths[run["task"][0]].items()} for run in runs]
        last = [at_budget(run, name) for run in runs]
        values = np.array([regret_of(stage["advised"], k) for stage, k in zip(last, known, strict=True)])
        before = values if before is None else before
        of: dict[int, Counter[str | None]] = {}
        for run, stage in zip(runs, last, strict=True):
            of.setdefault(run["task"][0], Counter())[stage["advised"]] += 1
        steady = sum(advised.most_common(1)[0][1] >= 0.8 * advised.total() for advised in of.values())
        rows.append(
            {
                "budget": name,
                "draws": len(runs),
                "within a point": int((values <= 1).sum()),
                "federations with the same advice in 80% of the draws": f"{steady} of {len(of)}",
                "mean regret, points": round(float(values.mean()), 2),
                "largest": round(float(values.max()), 1),
                "worse than with less, by over a point": int((values > before + 1).sum()),
                "better, by over a point": int((values < before - 1).sum()),
                "said to be settled": sum(stage["settled"] for stage in last),
            }
        )
        before = values
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two federations, two seeds, one long training each")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--truths", type=int, default=6, help="long independent trainings of each method")
    parser.add_argument("--starts", type=int, default=2, help="starts of a method with several models, the best counts")
    parser.add_argument("--budget", default="30s", choices=list(BUDGETS), help="the largest; smaller ones begin it")
    parser.add_argument("--worlds", default="", help="numbers of federations with commas between; all by default")
    parser.add_argument("--series", type=int, default=0, help="0: as listed; 1, 2, ...: other rules and sizes")
    parser.add_argument("--suffix", default="", help="end of the names of the tables")
    shards.add_arguments(parser)
    given = parser.parse_args()
    numbers = [int(i) for i in given.worlds.split(",")] if given.worlds else list(range(len(NAMES)))
    numbers = [10 * given.series + i for i in numbers]
    if given.quick:
        numbers, given.seeds, given.truths, given.out = [1, 6], 2, 1, given.out / "quick"
    tasks = [[n, s, given.budget] for s in range(given.first, given.first + given.seeds) for n in numbers]
    methods = ["guess", *learn.ENTRANTS]
    starts = [] if given.starts == 2 else [given.starts]  # as lines have it that are older than the option
    truths = [[n, t, m, *starts] for m in reversed(methods) for n in numbers for t in range(given.truths)]
    worths = worths_of(shards.run("advice_unseen_worth", worth, truths, given))
    runs = shards.run("advice_unseen_runs", advice, tasks, given)
    whole = [n for n in numbers if len(worths.get(n, {})) == len(methods) + 1]
    of = {n: [run for run in runs if run["task"][0] == n] for n in whole}
    rows = [row_of(n, mine, worths[n], given.budget) for n, mine in of.items() if mine]
    near, steady = sum(row["within a point"] for row in rows), sum(row["same"] >= 0.8 * given.seeds for row in rows)
    note = f"within one point of the best: {near} of {len(runs)}; "
    note += f"the same in at least 80% of the seeds: {steady} of {len(rows)}; budget {given.budget}"
    name = f"advice_unseen_{given.series}" if given.series else "advice_unseen"
    report(f"{name}{given.suffix}", rows, note=note)
    budgets = list(BUDGETS)[: list(BUDGETS).index(given.budget) + 1]
    if len(budgets) > 1:
        report(f"advice_budgets_{given.series}{given.suffix}", budget_rows(runs, worths, budgets))


if __name__ == "__main__":
    main()
