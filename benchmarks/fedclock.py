"""Do modes learned from the clock mend a population that shifts from day to night and back?

FedClock on the cells of `temporal.py`: FEMNIST, digits by day and letters by night, a dense network of 64 units,
cohorts of 10, 513 rounds of period 64 and 2,049 of period 256, linear and cosine curves of power 1/4, 1 and 4; CIFAR-10
(JPEG), two groups of classes, period 256, 1,025 rounds. The prior is linear with power 1 whatever the curve is. Beside
it: vanilla (one model), no shift, FedTKM in its own hours, and the ceiling: true modes known in training and test.
FedClock predicts by the mean of its networks over rounds; ", mean" are baselines that do so too.

Table "robust": a prior of wrong phase, period or power; only the period known; period read from a training curve. Table
"honest": no shift, and modes that nothing tells. Table "cost": a round beside FedAvg's, bytes up. "No rows held" is
FedClock that trains on all rows (`held=0`).

`--prepare FOLDER` writes the data as small files, `--data FOLDER` reads them. Cells run in `--workers` processes, the
most important first, for `--minutes`; each that ends is a line of `--out` and is not run again. `--only`, `--methods`,
`--labels` and `--seeds` choose cells, `--device cuda` is for those of CIFAR-10. numpy and torch are enough.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import temporal
from cells import Row, check_time, run_cells, share_programs
from fedscape import FedAvg, Federation, Key, Local, LocalSGD, rounds
from fedscape.learning import cross_entropy, models
from fedscape.methods import Options, make
from fedscape.temporal import (
    Cosine,
    FedClock,
    Harmonics,
    Linear,
    MultiBranch,
    Shifting,
    Steady,
    parse_curve,
    read_clock,
)
from fedscape.temporal.branched import Branched
from table import RESULTS, arguments, report

CUT = {"femnist": 10, "cifar10": 5}  # classes below are of the day
MAIN = ("fedclock", "vanilla", "no-shift", "true-modes", "fedtkm-own", "fedclock-features")
COLUMNS = {
    "vanilla": "vanilla", "no shift": "no-shift", "FedTKM, own hours": "fedtkm-own",
    "FedClock": "fedclock", "true modes": "true-modes",
}  # fmt: skip
ACCURACY = "accuracy per batch"
STEADY = "of the mean"  # accuracy by the network's mean over rounds, which FedClock predicts by
AVERAGED = ("vanilla", "no-shift", "true-modes")
JOBS: dict[str, temporal.Task] = {}
TURN = 4  # rounds: FedClock solves its regression in every fourth
WARM = 24  # rounds before a round is timed: FedClock has branches by then
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # Student's, by degrees of freedom


class TrueModes(Branched):
    """The ceiling: every row goes to the branch of its class's group, in training and in tests."""

    name = "true-modes"

    def __init__(self, local: Any, cut: int, *, server: Any, initial: str) -> None:
        super().__init__(local, strength=0.0, smoothing=0.0, server=server, initial=initial)
        self.cut = cut

    def choose(self, state: Any, clients: Federation, key: Any) -> Any:
        return np.eye(2)[(clients[self.local.target] >= self.cut).astype(int)], {}

    def _shares_of_units(self, state: Any, rows: Any, clients: Federation, unit: str, batch: int) -> Any:
        return self.double(np.eye(2)[(clients[self.local.target] >= self.cut).astype(int)])


# -- one cell ----------------------------------------------------------------------------------------------------------


def prior_of(text: str, period: float, job: Any, how: Row) -> Any:
    """linear, cosine, harmonics; phase/8 (late by a part of the period), period*1.1, power*4; read, read-harmonics."""
    kind, _, number = text.partition("/")
    if kind == "phase":
        return Linear(period, peak=period / float(number))
    kind, _, number = text.partition("*")
    if kind in ("period", "power"):
        return Linear(period * float(number)) if kind == "period" else Linear(period, float(number))
    if text.startswith("read"):
        found = read_clock(training_curve(job, how))
        how["read"] = repr(found)
        if found.period is None:
            return None
        return Harmonics(found.period) if text == "read-harmonics" else found.prior()
    return {"linear": Linear, "cosine": Cosine, "harmonics": Harmonics}[text](period)


def training_curve(job: Any, how: Row) -> np.ndarray:
    """Accuracy by round of one model trained on the same cohorts, as it is before each round."""
    cell = temporal.Cell("", "", "vanilla", how["schedule"], set=how["set"])
    local, server, _ = temporal.training(cell, job.train)
    method = make("vanilla", local, Options(server=server, initial="seed"))
    sampler = Shifting(job.modes, parse_curve(how["schedule"]), 10)
    loop = rounds(method, job.train, n_rounds=how["rounds"], sampler=sampler, seed=how["seed"] + 1000)
    return np.array([float(r.metrics["accuracy"]) for r in loop])


def method_of(how: Row, job: Any, local: Any, server: Any, smooth: Any) -> Any:
    kind, given = how["method"], {"server": server, "initial": "seed"}
    if kind in ("vanilla", "no-shift"):
        return make("vanilla", local, Options(**given))
    if kind == "true-modes":
        return TrueModes(local, CUT[how["set"]], **given)
    if kind == "fedtkm-own":
        own = {"prior": Linear(how["period"]), "hours": "own", "inertia": 0.9}
        return make("fedtkm", local, Options(**given, **smooth, **own))
    settings = json.loads(how.get("settings", "{}"))
    if kind == "fedclock-features":
        settings["by"] = "features"
    return FedClock(local, prior_of(how["prior"], how["period"], job, how), **given, **settings)


def task(name: str, data: str, quick: bool) -> Any:
    if name not in JOBS:
        JOBS[name] = temporal.load(name, quick=quick, folder=data)
    return JOBS[name]


def work(cell: Row, until: float, *, data: str, quick: bool, device: str) -> list[Row]:
    """Accuracy and right branches in percent, means over five evaluations in the last half period."""
    torch.set_num_threads(1)
    how = dict(cell)
    if how["table"] == "cost":
        return [{**cell, **cost(how)}]
    job = task(how["set"], data, quick)
    where = device if how["set"] == "cifar10" else "cpu"
    modes = job.modes
    if how["label"] == "modes at random":  # halves of the clients that differ in nothing
        modes = np.random.default_rng(how["seed"]).permutation(modes)
    local, server, smooth = temporal.training(temporal.Cell("", "", "", "", set=how["set"], device=where), job.train)
    method = method_of(how, job, local, server, smooth)
    trains = getattr(method, "_trainer", method.local)
    share_programs(trains, (how["set"], repr(trains.model), repr(trains.loss)))
    steady = how["method"] == "no-shift" or how["schedule"] == "steady"
    sampler = Shifting(modes, Steady(2) if steady else parse_curve(how["schedule"]), 10)
    began, step = time.perf_counter(), max(how["period"] // 8, 1)
    loop = rounds(method, job.train, n_rounds=how["rounds"], sampler=sampler, seed=how["seed"], measure=0)
    marks = {how["rounds"] - 1 - i * step for i in range(5)}
    out, r = followed(method, loop, replace(job, modes=modes), marks, until)
    took = time.perf_counter() - began
    if isinstance(method, FedClock):
        if "harmonics" in how["prior"] or how["prior"] == "read":  # which mode is called the first is arbitrary
            out["right branch"] = max(out["right branch"], 100 - out["right branch"])
        verdict = method.verdict(r.state)
        out |= {"verdict": str(verdict), "branching": verdict.branching, "read": how.get("read", "")}
    return [{**cell, **out, "ms a round": 1000 * took / how["rounds"]}]


def followed(method: Any, loop: Any, job: Any, marks: set[int], until: float) -> tuple[Row, Any]:
    """Scores in percent, means over these rounds, and the last round.

    A baseline is scored by FedClock's mean of its networks over rounds, too.
    """
    found, of_mean, mean = {}, {}, {}
    for r in loop:
        check_time(until)
        if not isinstance(method, FedClock):
            mean = mean_of_rounds(mean, r)
        if r.index in marks:
            temporal.scores(method, r.state, job, ("batch",), found)
            if mean:
                temporal.scores(method, {**r.state, **mean}, job, ("batch",), of_mean)
    out: Row = {n: 100 * float(np.mean(v)) for n, v in found.items()}
    return (out | {STEADY: 100 * float(np.mean(of_mean[ACCURACY]))} if mean else out), r


def mean_of_rounds(mean: dict[str, np.ndarray], r: Any, inertia: float = 0.98) -> dict[str, np.ndarray]:
    """The network's mean over rounds, as FedClock has it."""
    kept = min(inertia, (r.index + 1) / (r.index + 10)) if mean else 0.0
    arrays = {n: np.asarray(v) for n, v in r.state.items() if n.startswith("model.")}
    return {n: (kept * mean.get(n, 0.0) + (1 - kept) * v).astype(v.dtype) for n, v in arrays.items()}


# -- what a round costs ------------------------------------------------------------------------------------------------


def cost(how: Row) -> Row:
    """Seconds and bytes up of a round beside FedAvg's on the same network, by turns in one thread; medians."""
    rng, clients, rows = np.random.default_rng(0), 40, how["rows"]
    n, modes, curve = clients * rows, np.arange(clients) % 2, Linear(8)
    night = np.repeat(modes, rows)
    x = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) // (1 + night[:, None, None])
    y = rng.integers(0, 31, n) + 31 * night
    fed = Federation({"x": x.astype(np.uint8), "y": y}, np.arange(0, n + 1, rows))
    net = models.cnn((1, 28, 28), 62, dropout=False) if how["method"] == "cnn" else models.mlp(784, 64, 62)
    step = LocalSGD(MultiBranch(net), cross_entropy, lr=0.03, epochs=1, batch_size=20)
    methods: dict[str, FedAvg] = {
        m: make(m, step, Options(prior=curve)) for m in ("vanilla", "fedclock", "fedtem", "fedtkm")
    }
    methods["fedclock, 20 rows"] = FedClock(step, curve, rows=20)
    methods["fedavg, no branches"] = FedAvg(replace(step, model=net))
    took: dict[str, list[float]] = {m: [] for m in methods}
    turns, sampler = how["repeats"] + WARM // TURN, Shifting(modes, curve, 10)
    loops = {
        m: rounds(w, Local(fed, threads=1), n_rounds=TURN * turns, sampler=sampler, measure=0, allow=w.reveals)
        for m, w in methods.items()
    }
    for turn in range(turns):
        for m, loop in loops.items():
            began = time.process_time()
            for _ in range(TURN):
                last = next(loop)
            took[m] += [(time.process_time() - began) / TURN] if turn >= WARM // TURN else []
            if m == "fedclock" and turn == WARM // TURN and not last.state["branching"]:
                raise RuntimeError(f"what is timed has no branches: {methods[m].verdict(last.state)}")
    sizes = {}
    for m, w in methods.items():
        sent = w.step(w.start(0), fed.take(slice(0, 1)), Key(0, 0))[0]
        sizes[m] = sum(np.asarray(v).nbytes for v in sent.values())
    return {
        f"{m}: {what}": float(value)
        for m in methods
        for what, value in (
            ("x FedAvg", np.median(np.divide(took[m], took["vanilla"]))),
            ("ms", 1000 * np.median(took[m])),
            ("bytes up", sizes[m] / sizes["vanilla"]),
        )
    }


# -- all cells ---------------------------------------------------------------------------------------------------------


def plan_of(args: Any) -> list[Row]:
    """The most important first."""
    cells: list[Row] = []

    def add(
        table: str, label: str, method: str, schedule: str, seed: int, period: int, rounds: int, **more: Any
    ) -> None:
        how = {"set": "femnist", "prior": "linear", **more}
        cells.append({"table": table, "label": label, "method": method, "schedule": schedule, "seed": seed,
                      "period": period, "rounds": rounds, **how})  # fmt: skip

    if args.quick:
        for name in ("fedclock", "vanilla", "true-modes", "fedclock-features"):
            add("main", "T=16 linear p=1", name, "linear:p=1,T=16", 0, 16, 65)
        add("robust", "prior harmonics", "fedclock", "linear:p=1,T=16", 0, 16, 65, prior="harmonics")
        add("honest", "no shift", "fedclock", "steady", 0, 16, 65)
        cells.append({"table": "cost", "label": "a round", "method": "mlp 64", "rows": 20, "repeats": 3, "seed": 0})
        return cells
    for network in ("mlp 64", "cnn"):
        repeats = 25 if network == "mlp 64" else 3
        cells.append(
            {"table": "cost", "label": "a round", "method": network, "rows": 40, "repeats": repeats, "seed": 0}
        )
    for seed in range(3):
        for period, n in ((256, 2049), (64, 513)):
            for kind in ("linear", "cosine"):
                for p in ("1", "4", "0.25"):
                    for name in MAIN:
                        if name != "no-shift" or (kind, p) == ("linear", "1"):
                            label = f"T={period} {kind} p={p}"
                            add("main", label, name, f"{kind}:p={p},T={period}", seed, period, n)
        for p in ("1", "4"):
            for name in MAIN:
                if name != "no-shift" or p == "1":
                    schedule = f"linear:p={p},T=256"
                    add("cifar10", f"linear p={p}", name, schedule, seed, 256, 1025, set="cifar10")
            none = {"settings": '{"held": 0.0}', "set": "cifar10"}
            add("cifar10", f"linear p={p}, no rows held", "fedclock", f"linear:p={p},T=256", seed, 256, 1025, **none)
        for prior in ("phase/8", "phase/4", "period*1.1", "period*0.9", "power*4", "power*0.25", "cosine", "harmonics",
                      "read", "read-harmonics"):  # fmt: skip
            add("robust", f"prior {prior}", "fedclock", "linear:p=1,T=64", seed, 64, 513, prior=prior)
        add("honest", "no shift", "fedclock", "steady", seed, 64, 513)
        add("honest", "no shift", "vanilla", "steady", seed, 64, 513)
        for name in ("fedclock", "vanilla"):
            add("honest", "modes at random", name, "linear:p=1,T=64", seed, 64, 513)
    return cells


def chosen(cells: list[Row], args: Any) -> list[Row]:
    asked = {"table": args.only, "method": args.methods, "label": args.labels}
    for part, names in ((part, names.split(",")) for part, names in asked.items() if names):
        cells = [c for c in cells if c[part] in names]
    return [c for c in cells if c["seed"] < (args.seeds or 99)]


def tables(rows: list[Row]) -> dict[str, list[Row]]:
    """A line for each setting and method: mean over seeds and Student's half width."""
    lines: dict[str, list[Row]] = {}
    good = [r for r in rows if "error" not in r]
    for r in (r for r in rows if "error" in r):
        print(f"failed: {r['table']} {r['label']} {r['method']} {r['seed']}: {r['error']}")
    order = {
        c: i
        for i, c in enumerate(dict.fromkeys((r["table"], r["label"], r["method"]) for r in sorted(good, key=_order)))
    }
    for table, label, method in order:
        mine = [r for r in good if (r["table"], r["label"], r["method"]) == (table, label, method)]
        line: Row = {"setting": label, "method": method, "seeds": len(mine)}
        if table == "cost":
            each: dict[str, Row] = {}
            for who, what in (name.split(": ") for name in mine[0] if ": " in name):
                each.setdefault(who, {"network": method, "method": who})[what] = f"{mine[0][f'{who}: {what}']:.3f}"
            lines.setdefault(table, []).extend(each.values())
            continue
        if (table, method) == ("main", "fedclock-features"):
            scores = {"accuracy": _mean(mine, ACCURACY), "right branch": _mean(mine, "right branch")}
            lines.setdefault("features", []).append({"curve": label, "seeds": len(mine), **scores})
            continue
        line |= {"accuracy": _mean(mine, ACCURACY), "by the mean network": _mean(mine, STEADY)}
        line["right branch"] = _mean(mine, "right branch")
        line["says"] = mine[0].get("verdict", "") if table in ("honest", "robust") else ""
        lines.setdefault(table, []).append(line)
    lines = {table: filled(rows) if table != "cost" else rows for table, rows in lines.items()}
    if "main" in lines:
        rows = [r for r in good if r["table"] == "main" and r["method"] != "fedclock-features"]
        lines["main"], lines["asked"] = side_by_side(rows)
    return lines


def side_by_side(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """A line for each curve, its methods beside each other, and whether what was asked holds.

    Differences are means over the seeds that both have, from baselines that predict by the mean of their networks too.
    Training without shift knows no curve: it has one run a period.
    """
    lines, asked, of_label = [], [], {}
    for r in rows:
        label = f"T={r['period']}" if r["method"] == "no-shift" else r["label"]
        of_label.setdefault((label, r["method"]), {})[r["seed"]] = r
    for label in dict.fromkeys(r["label"] for r in sorted(rows, key=_order)):
        of = {m: of_label.get((label.split()[0] if m == "no-shift" else label, m), {}) for m in MAIN}
        clock = of["fedclock"]
        line: Row = {"curve": label, "seeds": len(clock)}
        for name, m in COLUMNS.items():
            line[name] = _mean(list(of[m].values()), ACCURACY)
            if m in AVERAGED:
                line[f"{name}, mean"] = _mean(list(of[m].values()), STEADY)
        line["right branch"] = _mean(list(clock.values()), "right branch")
        less = {m: [{"": r[ACCURACY] - of[m][s][STEADY]} for s, r in clock.items() if s in of[m]] for m in AVERAGED}
        line |= {f"minus {m.replace('-', ' ')}": _mean(rows, "", "+") for m, rows in less.items()}
        lines.append(line)
        asked.append({
            "curve": label, "seeds": len(clock), "4 points over no shift": _reaches(less["no-shift"], "", 4),
            "97% right": _reaches(list(clock.values()), "right branch", 97),
            "within 2 points of true modes": _reaches(less["true-modes"], "", -2),
        })  # fmt: skip
    return filled(lines), asked


def filled(lines: list[Row]) -> list[Row]:
    """The lines without columns that are empty in all."""
    return [{name: line[name] for name in line if any(each[name] != "" for each in lines)} for line in lines]


def _reaches(rows: list[Row], name: str, least: float) -> str:
    if not rows:
        return ""
    return "yes" if np.mean([r[name] for r in rows]) >= least else "no"


def _order(row: Row) -> tuple[Any, ...]:
    return (row["table"], row["label"], row["method"], row["seed"])


def _mean(rows: list[Row], name: str, sign: str = "") -> str:
    values = [r[name] for r in rows if name in r]
    if not values:
        return ""
    n = len(values)
    half = T95.get(n - 1, 1.96) * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    return f"{np.mean(values):{sign}.1f}" + (f" ± {half:.1f}" if n > 1 else "")


def main() -> None:
    options: dict[str, Any] = {
        "device": "cpu",
        "prepare": "", "data": "", "out": "", "workers": 1, "minutes": 5.0, "only": "", "methods": "", "labels": "",
        "seeds": 0,
    }  # fmt: skip
    args = arguments(__doc__, **options)
    if args.prepare:
        temporal.prepare(Path(args.prepare), ("femnist", "cifar10"))
        return
    out = args.out or str(RESULTS / ("fedclock_quick.jsonl" if args.quick else "fedclock.jsonl"))
    cells = chosen(plan_of(args), args)
    workers = 0 if args.workers <= 1 else args.workers
    run = partial(work, data=args.data, quick=args.quick, device=args.device)
    rows = run_cells(lambda _: cells, run, out=out, workers=workers, limit=60 * args.minutes)
    for name, lines in tables(rows).items():
        print(f"\n{name}")
        mine = [r for r in rows if r["table"] == {"asked": "main", "features": "main"}.get(name, name)]
        mine = [r for r in mine if "error" not in r and (name == "features") == (r["method"] == "fedclock-features")]
        report(
            f"fedclock_{name}",
            lines,
            cells=mine,
            note="cohorts of 10, one thread a cell; accuracy in %, mean ± 95% over seeds",
        )


if __name__ == "__main__":
    main()
