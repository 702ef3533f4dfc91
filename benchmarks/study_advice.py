"""Is the advice of a study right? Ten federations whose best method is known by how they were made.

Each has the tournament of a study once, and its advice. The methods are then trained anew on other clients of the same
law, with other seeds and many rows to test on: `regret` is how far the method advised lies behind the best there, and
`covered` whether the interval of its gain over FedAvg holds the gain found there.
"""

from __future__ import annotations

import time

import numpy as np

from fedscape import Federation
from fedscape.studies import prepare
from fedscape.studies import tournament as learn
from fedscape.studies.advise import chosen, verdict
from table import arguments, report

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
    return Federation({"x": x, "y": y.astype(int)}, np.arange(0, len(y) + 1, rows))


def realised(make, rows: int, world: int, repeats: int, lr: float) -> dict[str, float]:
    """The accuracy of every method on other clients, tested on many rows of each."""
    found: dict[str, list[float]] = {name: [] for name in learn.ENTRANTS}
    for again in range(repeats):
        trained = round(rows * (1 - (0.25 if rows >= 8 else 0.5)))
        whole = learn.directions(federation(make, trained + TEST, 1000 + again, world))
        first = np.arange(whole.n_rows) % (trained + TEST) < trained
        clients = learn.Clients(whole.where(first), whole.where(~first))
        for name in found:
            found[name].append(float(np.nanmean(learn.trained(name, clients, lr=lr, seed=77 + again))))
    return {name: float(np.mean(values)) for name, values in found.items()}


def advice(fed: Federation, seed: int) -> tuple[list[dict], float]:
    """The table a study draws its advice from, and its learning rate: the same steps, without the other sections."""
    rows = learn.directions(prepare(fed, seed=seed).rows)
    clients = learn.Clients.of(learn.fewer_rows(rows, [], seed=seed), seed=seed)
    rate = learn.best_rate(clients, seed=seed)
    return learn.standing(learn.tournament(clients, lr=rate, seed=seed, say=lambda _: None), seed=seed), rate


def main() -> None:
    given = arguments(__doc__, repeats=3, first=0, last=len(WORLDS))
    names = list(WORLDS)[:1] + list(WORLDS)[2:3] if given.quick else list(WORLDS)[given.first : given.last]
    rows = []
    for name in names:
        make, size, fitting = WORLDS[name]
        world = 100 * given.seed + list(WORLDS).index(name)
        began = time.perf_counter()
        rows_of, rate = advice(federation(make, size, 0, world), given.seed)
        seconds = time.perf_counter() - began
        advised = chosen(rows_of)
        true = realised(make, size, world, 1 if given.quick else given.repeats, rate)
        best = max(true, key=lambda m: true[m])
        judged = (
            advised if advised["gain"] else max((r for r in rows_of if r["gain"]), key=lambda r: r["gain"]["value"])
        )
        gain = true[judged["method"]] - true["fedavg"]
        value, low, high = (100 * judged["gain"][k] for k in ("value", "low", "high"))
        said = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
        rows.append(
            {
                "federation": name,
                "made for": "/".join(fitting),
                "advised": advised["method"],
                "best": best,
                "regret, points": 100 * (true[best] - true[advised["method"]]),
                "gain said": said,
                "gain found": 100 * gain,
                "covered": bool(judged["gain"]["low"] <= gain <= judged["gain"]["high"]),
                "worth it": verdict(judged["gain"]),
                "s": round(seconds),
            }
        )
        print(rows[-1], flush=True)
    near = sum(row["regret, points"] <= 1 for row in rows)
    covered = sum(row["covered"] for row in rows)
    note = (
        f"within one point of the best: {near} of {len(rows)}; interval covers the gain found: {covered} of {len(rows)}"
    )
    report("study_advice", rows, note=note)


if __name__ == "__main__":
    main()
