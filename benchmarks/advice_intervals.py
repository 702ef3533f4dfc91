"""Do the intervals of a tournament hold? The whole tournament, trainings and tuning included, on many draws.

Each repeat draws a federation of one law anew and has the tournament of a study. An estimate is unbiased for what it
says it estimates (other clients of this law; other rows of these sites), so the truth is the mean over all repeats.
Its own error adds 1/repeats to the variance. 95% of the intervals should hold it: with 200 repeats 93% to 97% is what
1.3 standard errors allow, so a row says how many standard errors it is off, too.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import shards
from advice import CLASSES, labels, rule
from fedscape import Federation
from fedscape.studies import tournament as learn
from fedscape.studies.budget import Limits
from table import report

WIDTH = 8
SIZES = {  # clients: (rows of each, are they sites, budget)
    4: (120, True, Limits(60, 12_000, 12, 4)),
    30: (40, False, Limits(60, 12_000, 12, 4)),
    3000: (10, False, Limits(3_000, 30_000, 4, 4)),
}
SOME = ("fedavg", "fedavg+", "local")  # of 3,000 clients: the methods that train in time, at one rate


def drawn(clients: int, seed: int) -> Federation:
    """Clients whose rules are near a common one; of sites the rules stay and the rows are others."""
    rows, sites, _ = SIZES[clients]
    rng, world = np.random.default_rng([seed, clients]), np.random.default_rng(clients)
    of_clients = world if sites else rng
    common = rule(np.random.default_rng(99))[0]
    mine = 0.6 * common + 0.4 * rule(of_clients, clients)
    owner = np.repeat(np.arange(clients), rows)
    x = rng.normal(size=(len(owner), WIDTH))
    names = {"y": [str(c) for c in range(CLASSES)]}
    y = labels(rng, x, mine[owner])
    return Federation({"x": x, "y": y.astype(np.int32)}, np.arange(0, len(y) + 1, rows), names=names)


def repeat(task: list[int]) -> dict:
    """The intervals of one tournament: [value, low, high] by what they are about."""
    clients, seed = task
    _, sites, budget = SIZES[clients]
    began = time.perf_counter()
    fed = learn.directions(drawn(clients, seed))
    large = clients > 1000
    names = SOME if large else learn.ENTRANTS
    settings = dict.fromkeys(SOME, learn.Tuned(0.4, budget.rounds)) if large else None
    judged, _ = learn.tournament(
        fed, budget, seed=seed, sites=sites, settings=settings, methods=names, say=lambda _: None
    )
    made = {f"accuracy of {name}": judged.accuracy(name) for name in judged.hits}
    made |= {f"gain of {name} over FedAvg": judged.difference(name, "fedavg") for name in names if name != "fedavg"}
    made |= {f"lead of {name} over guessing": judged.difference(name, "own-commonest") for name in names}
    if sites:
        for name in names:
            made |= {f"{name} at site {i}": about for i, about in enumerate(judged.of_sites(name))}
            if name != "local":
                gains = judged.site_differences(name, "local")
                made |= {f"gain of site {i} by {name}": about for i, about in enumerate(gains)}
    about = {what: [a["value"], a["low"], a["high"]] for what, a in made.items()}
    return {"intervals": about, "s": round(time.perf_counter() - began, 1)}


GROUPS = {  # rows of the table: what their intervals are about
    "accuracy": "accuracy of a method, mean",
    "gain of a method": "gain over FedAvg, mean",
    "lead": "lead over guessing, mean",
    "at site": "accuracy of one site",
    "gain of site": "gain of one site by joining",
}


def group_of(what: str) -> str:
    if what.startswith("gain of site"):
        return "gain of site"
    return "at site" if "at site" in what else "gain of a method" if what.startswith("gain") else what.split()[0]


def rows_of(clients: int, lines: list[dict]) -> list[dict]:
    """Coverage by what the intervals are about; `least` and `most` are single methods or sites."""
    by_group: dict[str, dict[str, float]] = {}
    width: dict[str, list[float]] = {}
    for what in lines[0]["intervals"]:
        values, lows, highs = np.array([line["intervals"][what] for line in lines], dtype=float).T
        truth = values.mean()
        group = group_of(what)
        by_group.setdefault(group, {})[what] = float(((lows <= truth) & (truth <= highs)).mean())
        width.setdefault(group, []).append(float((highs - lows).mean() / (2 * 1.96 * values.std(ddof=1))))
    made, where = [], f"{clients:,} {'sites' if SIZES[clients][1] else 'clients'}"
    for group, each in by_group.items():
        share, error = float(np.mean(list(each.values()))), np.sqrt(0.95 * 0.05 / len(lines))
        least, most = (pick(each, key=lambda w: each[w]) for pick in (min, max))
        made.append(
            {
                "clients": where,
                "interval": GROUPS[group],
                "holds": f"{share:.1%}",
                "standard errors off": round((share - 0.95) / error, 1),
                "least": f"{each[least]:.1%} ({least})",
                "most": f"{each[most]:.1%} ({most})",
                "width over what is needed": round(float(np.mean(width[group])), 2),
                "repeats": len(lines),
            }
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four repeats of 4 sites and 30 clients")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--sizes", default="3000,30,4", help="how many clients, with commas between")
    shards.add_arguments(parser)
    given = parser.parse_args()
    if given.quick:
        given.sizes, given.repeats, given.out = "30,4", 4, given.out / "quick"
    sizes = [int(size) for size in given.sizes.split(",")]
    tasks = [[size, seed] for size in sizes for seed in range(given.repeats)]
    lines = shards.run("advice_intervals", repeat, tasks, given)
    rows = []
    for size in sorted(sizes):
        mine = [line for line in lines if line["task"][0] == size]
        rows += rows_of(size, mine) if len(mine) > 1 else []
    if rows:
        spent = sum(line["s"] for line in lines)
        report("advice_intervals", rows, note=f"{len(lines)} tournaments, {spent:.0f} s of one core in all")


if __name__ == "__main__":
    main()
