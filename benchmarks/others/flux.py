"""The shifts of FLUX: groups of clients that differ in p(x), p(y), p(y | x) or p(x | y); unseen clients, no labels.

Four groups of clients on MNIST or Fashion-MNIST. "features": images turned by 0, 90, 180 or 270 degrees. "labels": four
sets of five classes each. "concept": labels moved on by 0, 2, 4 or 6. "conditional": the images of two or three classes
inverted, others in each group. A client has `--rows` images. Some clients are unseen: they are served from their images
alone. With "drift" every client has the data of the next group in the second half of the rounds.

A second table asks how often Profiles abstain that know three of the groups: of new clients of these, at the stated
rate, and of clients of the fourth. It fits 100 clients of each group and trains nothing.

`--data FOLDER` (or FEDSCAPE_DATA) holds mnist/ and fashion_mnist/ as idx files; NumPy, SciPy and torch are enough.
Cells run in `--workers` processes, on `--device`, until `--limit` seconds are over; a run that goes on skips what
`--out` has.
"""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from board import data_folder, images, reach

from cells import Row, check_time, run_cells
from fedscape import Federation, LocalSGD, rounds
from fedscape.learning import cross_entropy, models
from fedscape.methods import Course, Options
from fedscape.personal import IFCA, ProfiledFL, Profiles
from table import RESULTS, arguments, report

SETS, SHIFTS = ("mnist", "fashion_mnist"), ("features", "labels", "concept", "conditional")
METHODS = "fedavg ifca fedgmm profiles profiles-labels"
GROUPS = 4
SUBSETS = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (0, 2, 4, 6, 8), (1, 3, 5, 7, 9))
INVERTED = ((0, 1), (2, 3, 4), (5, 6), (7, 8, 9))


def shifted(x: np.ndarray, y: np.ndarray, shift: str, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as a group has them."""
    if shift == "features":
        return np.rot90(x, group, axes=(1, 2)), y
    if shift == "labels":
        inside = np.isin(y, SUBSETS[group])
        return x[inside], y[inside]
    if shift == "concept":
        return x, (y + 2 * group) % 10
    return np.where(np.isin(y, INVERTED[group])[:, None, None], 255 - x, x), y


@cache
def groups(
    name: str, shift: str, seed: int, n: int, size: int, folder: str
) -> tuple[Federation, Federation, Federation]:
    """Clients that train, the same with the data of the next group, and unseen ones."""
    x, y = images(name, Path(folder))
    x = x[:, 0]
    rng = np.random.default_rng(seed)
    learn, new = GROUPS * n, GROUPS * max(1, n // 4)
    order = rng.permutation(len(y))
    pool, rest = np.split(order, [int(0.75 * len(y))])  # no image of an unseen client is one that anybody trained on
    made = []
    for count, step, label, source in ((learn, 0, "c", pool), (learn, 1, "c", pool), (new, 0, "new", rest)):
        parts = []
        for i in range(count):
            rows = rng.choice(source, 3 * size, replace=False)
            one = shifted(x[rows], y[rows], shift, (i + step) % GROUPS)
            parts.append([column[:size] for column in one])
        offsets = np.concatenate([[0], np.cumsum([len(part[1]) for part in parts])])
        columns = {"x": np.concatenate([p[0] for p in parts]), "y": np.concatenate([p[1] for p in parts])}
        made.append(Federation(columns, offsets, ids=[f"{label}{i}" for i in range(count)]))
    return made[0], made[1], made[2]


def computation(method: str, step: LocalSGD, fed: Federation, seed: int) -> Any:
    if method.startswith("profiles"):
        target = "y" if method == "profiles-labels" else None
        return ProfiledFL(step, Profiles(target=target, most=8, seed=seed).fit(fed), initial="seed")
    return IFCA(step, GROUPS) if method == "ifca" else method


def work(cell: Row, until: float, *, device: str, net: str, folder: str) -> list[Row]:
    """Mean accuracy of unseen clients, and of those that trained on the rows they trained on.

    FedGMM learns its weights for unseen clients from their images; ProfiledFL does so by itself; others cannot.
    """
    first, second, new = groups(cell["set"], cell["shift"], cell["seed"], cell["n"], cell["size"], folder)
    model = models.mlp(784, 64, 10) if net == "mlp" else models.lenet5()
    step = LocalSGD(model, cross_entropy, lr=cell["lr"], epochs=1, batch_size=10, device=device)
    half = cell["rounds"] // 2
    phases = [(first, half), (second, cell["rounds"] - half)] if cell["drift"] else [(first, cell["rounds"])]
    made, state = computation(cell["method"], step, first, cell["seed"]), None
    for fed, n in phases:
        course = Course(made, step, fed, Options(initial="seed", seed=cell["seed"]))
        made = course.computation
        with rounds(
            made, course.engine, n_rounds=n, seed=cell["seed"], measure=0, state=state, allow=made.reveals
        ) as loop:
            for _ in loop:
                check_time(until)
            state = loop.state
    end, fed = course.end(state), phases[-1][0]
    served = end.adapt(Federation({"x": new["x"]}, new.offsets, new.ids)) if cell["method"] == "fedgmm" else end
    found = {"known": end.evaluate(fed).accuracy.mean(), "unseen": served.evaluate(new).accuracy.mean()}
    if isinstance(made, ProfiledFL):
        profiles = made.profiles
        found |= {"groups": profiles.n_groups_, "abstain": float(profiles.abstains(new).mean())}
    return [{**cell, **found}]


def abstentions(seed: int, folder: str, quick: bool) -> list[Row]:
    """How often profiles of three groups abstain: stated, of new clients of these groups, of those of the fourth."""
    n, size, found = (20, 60, []) if quick else (100, 100, [])
    for shift in SHIFTS[:1] if quick else SHIFTS:
        known, _, new = groups("mnist", shift, seed, n, size, folder)
        fourth = np.arange(len(new)) % GROUPS == GROUPS - 1
        known = known.take(np.flatnonzero(np.arange(len(known)) % GROUPS < GROUPS - 1))
        for alpha in (0.05, 0.2):
            profiles = Profiles(most=8, alpha=alpha, seed=seed).fit(known)
            said = profiles.abstains(new)
            row = {"shift": shift, "stated": alpha, "belong": said[~fourth].mean(), "strangers": said[fourth].mean()}
            found.append(row | {"groups": profiles.n_groups_, "new": int((~fourth).sum())})
    return found


def rates(rows: list[Row]) -> list[Row]:
    """One line a shift and stated rate: what was met, over the seeds."""
    made = []
    for shift, stated in dict.fromkeys((r["shift"], r["stated"]) for r in rows):
        group = [r for r in rows if (r["shift"], r["stated"]) == (shift, stated)]
        line = {"shift": shift, "stated": f"{100 * stated:.0f}%", "groups": ", ".join(str(r["groups"]) for r in group)}
        for name in ("belong", "strangers"):
            values = [100 * r[name] for r in group]
            line |= {name: f"{np.mean(values):.1f}%", f"± 95%, {name}": reach(values, ".1f")}
        made.append(line | {"new clients a seed": group[0]["new"], "seeds": len(group)})
    return made


def table(rows: list[Row]) -> list[Row]:
    """One line a shift and method; how far profiles are ahead is paired by seed, as they have the same clients."""
    lines: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        if "unseen" in row:
            lines.setdefault((row["set"], row["shift"], row["drift"], row["method"]), {})[row["seed"]] = row
    made = []
    for (*where, method), group in sorted(lines.items(), key=lambda item: [str(v) for v in item[0]]):
        unseen = [100 * r["unseen"] for r in group.values()]
        line = dict(zip(("set", "shift", "drift"), where, strict=True))
        line |= {"method": method, "unseen": f"{np.mean(unseen):.1f}", "± 95%": reach(unseen, ".1f")}
        line["known"] = f"{100 * np.mean([r['known'] for r in group.values()]):.1f}"
        ours = lines.get((*where, "profiles"), {})
        ahead = [100 * (ours[seed]["unseen"] - r["unseen"]) for seed, r in group.items() if seed in ours]
        if ahead and not method.startswith("profiles"):
            line |= {"profiles ahead": f"{np.mean(ahead):.1f}", "± 95%, ahead": reach(ahead, ".1f")}
        if method.startswith("profiles"):
            line |= {"groups": ", ".join(str(r["groups"]) for r in group.values())}
            line["abstain"] = f"{100 * np.mean([r['abstain'] for r in group.values()]):.0f}%"
        made.append(line | {"seeds": len(group)})
    return made


def main() -> None:
    given = arguments(
        __doc__, workers=0, seeds=3, rounds=60, lr=0.05, device="cpu", data="", limit=1e9, clients=10, rows=200,
        net="lenet5", methods=METHODS, sets=" ".join(SETS), drift="0 1", out=str(RESULTS / "others_flux.jsonl"),
    )  # fmt: skip
    folder = given.data or os.fspath(data_folder())
    seeds, n_rounds, size = (1, 4, 60) if given.quick else (given.seeds, given.rounds, given.rows)
    sets = ["fashion_mnist"] if given.quick else given.sets.split()
    cells = [
        {"set": name, "shift": shift, "drift": drift, "method": method, "seed": seed, "rounds": n_rounds,
         "lr": given.lr, "n": given.clients, "size": size, "net": "mlp" if given.quick else given.net}
        for seed in range(given.seed, given.seed + seeds)
        for drift in ([0] if given.quick else [int(v) for v in given.drift.split()])
        for name in sets
        for shift in SHIFTS
        for method in given.methods.split()
    ]  # fmt: skip
    out = given.out + (".quick" if given.quick else "")
    if given.quick:
        Path(out).unlink(missing_ok=True)
    do = partial(work, device=given.device, net="mlp" if given.quick else given.net, folder=folder)
    rows = run_cells(lambda rows: cells, do, out=out, workers=given.workers, limit=given.limit)
    failed = {row["method"]: row["error"] for row in rows if "error" in row}
    name = "_".join(["others_flux", *(sets if len(sets) == 1 else [])])
    report(name, table(rows), note=f"{n_rounds} rounds; failed: {failed or 'none'}")
    if "mnist" not in sets and not given.quick:
        return
    judged = [row for seed in range(given.seed, given.seed + seeds) for row in abstentions(seed, folder, given.quick)]
    report("others_flux_abstention", rates(judged))


if __name__ == "__main__":
    main()
