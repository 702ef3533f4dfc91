"""FedClock where more is real: phones, privacy, the paper's CNN, Shakespeare.

Table "phones": clients are FEMNIST writers on the trace of 723 phones, a round for each half-hour, ten days. A phone
that is free at night has letters, by day digits, in between either. Nobody says the period: `read_clock` reads it from
the training curve of one model. "no shift" draws from the phones that are free without regard to the hour's labels.

Table "private": FEMNIST of 14 x 14 pixels, a network of 32 units, cohorts of 100. Real noise for the 100 clients, and,
marked "as of 10,000", a hundredth of the noise of a cohort a hundred times as large. Such a run is a simulation.

Table "cnn": the paper's CNN on FEMNIST, eight periods of 64 rounds, with `--device cuda` on a GPU. Table "shakespeare":
comedies against tragedies, an LSTM, four periods of 32 rounds, far fewer than in the paper.

`--only`, `--methods` and `--seeds` choose cells; each that ends is a line of `--out` and is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedclock
import temporal
from cells import Row, run_cells, share_programs
from fedscape import Gaussian, Ledger, LocalSGD, calibrate, datasets, rounds
from fedscape.learning import cross_entropy, models
from fedscape.methods import Options, make
from fedscape.temporal import (
    FedClock,
    Harmonics,
    Linear,
    MultiBranch,
    Shifting,
    Steady,
    Trace,
    parse_curve,
    read_clock,
)
from table import RESULTS, arguments, report

DAYS = 10
SLOTS = 48  # half-hours of a day
DELTA = 1e-6
LARGER = 100  # how much larger the cohort is whose noise is simulated


# -- phones ------------------------------------------------------------------------------------------------------------


def free_phones(modes: np.ndarray, seed: int, *, shift: bool) -> Trace:
    """Which client is there in which half-hour: the k-th client of each mode are two sides of one phone."""
    phones, rng = datasets.load("phones"), np.random.default_rng(seed)
    order = rng.permutation(len(phones))
    free = (phones["available"].reshape(len(phones), -1) == 1)[order, : 5 * SLOTS]
    hour = np.arange(free.shape[1]) * 24 / SLOTS
    night = rng.random(free.shape) < ((1 + np.cos(2 * np.pi * (hour - 2) / 24)) / 2 if shift else 0.5)
    table = np.zeros((len(modes), free.shape[1]), dtype=np.int8)
    for k in (0, 1):
        mine = np.flatnonzero(modes == k)
        of = np.arange(len(mine)) % len(phones)
        table[mine] = free[of] & (night[of] == k)
    return Trace(table, size=10)


def on_phones(cell: Row, until: float, *, quick: bool, data: str, device: str) -> Row:
    job = fedclock.task("femnist", data, quick)
    local, server, _ = temporal.training(temporal.Cell("", "", "", ""), job.train)
    n = (2 if quick else DAYS) * SLOTS
    sampler = free_phones(job.modes, cell["seed"], shift=cell["method"] != "no-shift")
    read = None
    if cell["method"] == "fedclock":  # nothing but the curve of one model is known
        vanilla = make("vanilla", local, Options(server=server, initial="seed"))
        loop = rounds(vanilla, job.train, n_rounds=n, sampler=sampler, seed=cell["seed"])
        read = read_clock(np.array([float(r.metrics.get("accuracy", np.nan)) for r in loop]))
        prior = None if read.period is None else Harmonics(read.period)
        method: Any = FedClock(local, prior or Harmonics(n / 2), server=server, initial="seed")
    else:
        how: Row = {**cell, "set": "femnist", "prior": "linear", "period": SLOTS}
        method = fedclock.method_of(how, job, local, server, {})
    loop = rounds(method, job.train, n_rounds=n, sampler=sampler, seed=cell["seed"], measure=0)
    out, r = fedclock.followed(method, loop, job, {n - 1 - i * SLOTS // 8 for i in range(5)}, until)
    if isinstance(method, FedClock):
        out["right branch"] = max(out["right branch"], 100 - out["right branch"])  # which end is the first is arbitrary
        out |= {"verdict": str(method.verdict(r.state)), "read": repr(read)}
    return out


# -- privacy -----------------------------------------------------------------------------------------------------------


def privately(cell: Row, until: float, *, quick: bool, data: str, device: str) -> Row:
    job = fedclock.task("femnist", data, quick)
    small = {part: getattr(job, part) for part in ("train", "test")}
    for part, fed in small.items():
        x = fed["x"].reshape(fed.n_rows, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(fed.n_rows, -1) / 255 - 0.8
        small[part] = fed.with_column("x", x.astype(np.float32))
    job = replace(job, **small)
    net = MultiBranch(models.mlp(196, 32, 62))
    local = LocalSGD(net, cross_entropy, lr=0.1, epochs=2, batch_size=10)
    period, n = (16, 33) if quick else (32, 129)
    curve = Steady(2) if cell["method"] == "no-shift" else Linear(period)
    sampler, clip = Shifting(job.modes, curve, 100, parts=2), 1.0
    options = Options(weighting="equal", initial="seed")
    name = "vanilla" if cell["method"] == "no-shift" else cell["method"]
    method: Any = make(name, local, replace(options, prior=Linear(period)))
    epsilon, how = cell["epsilon"], {}
    if epsilon:
        multiplier = calibrate(epsilon, DELTA, rounds=n, sampler=sampler, n_clients=len(job.train))
        larger = LARGER if cell["label"].endswith("as of 10,000") else 1
        seeded = {"noise_seed": cell["seed"]} if larger > 1 else {}  # marks the ledger NOT PRIVATE
        privacy: Any = Gaussian(clip=clip, multiplier=multiplier / larger, **seeded)
        method, privacy = method.under(privacy) if isinstance(method, FedClock) else (method, privacy)
        how = {"privacy": privacy, "ledger": Ledger(delta=DELTA)}
    loop = rounds(method, job.train, n_rounds=n, sampler=sampler, seed=cell["seed"], measure=0, **how)
    out, r = fedclock.followed(method, loop, job, {n - 1 - i * period // 8 for i in range(5)}, until)
    if how:
        out["spent"] = {" ".join(map(str, group)): float(e) for group, e in how["ledger"].spent().items()}
    if isinstance(method, FedClock):
        out["verdict"] = str(method.verdict(r.state))
    return out


# -- larger networks ---------------------------------------------------------------------------------------------------


def network(cell: Row, until: float, *, quick: bool, data: str, device: str) -> Row:
    """The cells of `temporal.py`; Shakespeare with fewer rounds."""
    kind = "shakespeare" if cell["table"] == "shakespeare" else "femnist"
    job, where = fedclock.task(kind, data, quick), device if kind == "femnist" else "cpu"
    local, server, _ = temporal.training(temporal.Cell("", "", "", "", set=kind, model="cnn", device=where), job.train)
    period, n = (8, 17) if quick else (cell["period"], cell["rounds"])
    how: Row = {**cell, "set": kind, "prior": "linear", "period": period}
    method = fedclock.method_of(how, job, local, server, {})
    trains = getattr(method, "_trainer", method.local)
    share_programs(trains, (kind, repr(trains.model), repr(trains.loss)))
    curve = Steady(2) if cell["method"] == "no-shift" else parse_curve(f"linear:p={cell['p']},T={period}")
    loop = rounds(method, job.train, n_rounds=n, sampler=Shifting(job.modes, curve, 10), seed=cell["seed"], measure=0)
    began = time.perf_counter()
    out, r = fedclock.followed(method, told(loop, cell), job, {n - 1 - i * period // 8 for i in range(5)}, until)
    out["ms a round"] = 1000 * (time.perf_counter() - began) / n
    return {**out, **({"verdict": str(method.verdict(r.state))} if isinstance(method, FedClock) else {})}


def told(loop: Iterator[Any], cell: Row) -> Iterator[Any]:
    """The rounds; says how long they took so far, after 16, 32, 64, ... of them."""
    began = time.perf_counter()
    for r in loop:
        n = r.index + 1
        if n >= 16 and n & (n - 1) == 0:
            took = time.perf_counter() - began
            print(
                f"# {cell['table']} {cell['method']} {cell['label']} {cell['seed']}: {n} rounds in {took:.1f} s",
                flush=True,
            )
        yield r


# -- all cells ---------------------------------------------------------------------------------------------------------


def work(cell: Row, until: float, *, quick: bool, data: str, device: str) -> list[Row]:
    torch.set_num_threads(1)
    began = time.process_time()
    kind = {"phones": on_phones, "private": privately}.get(cell["table"], network)
    return [
        {**cell, **kind(cell, until, quick=quick, data=data, device=device), "seconds": time.process_time() - began}
    ]


def plan_of(args: Any) -> list[Row]:
    cells: list[Row] = []
    for seed in range(1 if args.quick else 3):
        for name in ("fedclock", "vanilla", "no-shift", "true-modes"):
            cells.append({"table": "phones", "label": "ten days", "method": name, "seed": seed})
    for label in ("as of 10,000", "100 clients"):
        for epsilon in (0, 8, 2) if label == "as of 10,000" else (8,):
            for name in ("fedclock", "vanilla", "no-shift"):
                text = f"epsilon {epsilon}, noise {label}" if epsilon else "not private"
                cells.append({"table": "private", "label": text, "method": name, "seed": 0, "epsilon": epsilon})
    for seed in range(1 if args.quick else 3):
        for p in ("1", "4"):
            for name in ("fedclock", "vanilla", "no-shift", "true-modes"):
                if (p, name) != ("4", "no-shift"):
                    how = {"method": name, "seed": seed, "p": p, "period": 64, "rounds": 513}
                    cells.append({"table": "cnn", "label": f"T=64 linear p={p}", **how})
    for seed in range(1 if args.quick else 3):
        for name in ("fedclock", "vanilla", "no-shift"):
            how = {"method": name, "seed": seed, "p": "1", "period": 32, "rounds": 129}
            cells.append({"table": "shakespeare", "label": "T=32 linear p=1", **how})
    return cells


def tables(rows: list[Row]) -> dict[str, list[Row]]:
    lines: dict[str, list[Row]] = {}
    keys = dict.fromkeys((r["table"], r["label"], r["method"]) for r in rows if "error" not in r)
    for table, label, method in keys:
        mine = [r for r in rows if (r["table"], r["label"], r["method"]) == (table, label, method)]
        line: Row = {"setting": label, "method": method, "seeds": len(mine)}
        line |= {
            "accuracy": fedclock._mean(mine, fedclock.ACCURACY),
            "by the mean network": fedclock._mean(mine, fedclock.STEADY),
            "right branch": fedclock._mean(mine, "right branch"),
        }
        if table in ("cnn", "shakespeare", "phones") and method == "fedclock":
            line |= _differences(mine, [r for r in rows if r["table"] == table and "error" not in r])
        line |= {n: mine[0].get(n, "") for n in ("verdict", "read", "spent")}
        lines.setdefault(table, []).append(line)
    for each in lines.values():
        names = list(dict.fromkeys(name for line in each for name in line))
        each[:] = [{name: line.get(name, "") for name in names} for line in each]
    return {table: fedclock.filled(rows) for table, rows in lines.items()}


def _differences(clock: list[Row], rows: list[Row]) -> Row:
    """FedClock less baselines by the same mean, paired by seed; no shift is the same under all curves."""
    out = {}
    for m in fedclock.AVERAGED:
        other = {
            r["seed"]: r for r in rows if r["method"] == m and (m == "no-shift" or r["label"] == clock[0]["label"])
        }
        less = [{"": r[fedclock.ACCURACY] - other[r["seed"]][fedclock.STEADY]} for r in clock if r["seed"] in other]
        out[f"minus {m.replace('-', ' ')}"] = fedclock._mean(less, "", "+")
    return out


def main() -> None:
    args = arguments(
        __doc__, out="", minutes=30.0, only="", methods="", labels="", seeds=0, data="", device="cpu", workers=1
    )
    out = args.out or str(Path(RESULTS) / ("fedclock_more_quick.jsonl" if args.quick else "fedclock_more.jsonl"))
    cells = fedclock.chosen(plan_of(args), args)
    rows = run_cells(
        lambda _: cells,
        partial(work, quick=args.quick, data=args.data, device=args.device),
        out=out,
        workers=0 if args.workers <= 1 else args.workers,
        limit=60 * args.minutes,
    )
    for name, lines in tables(rows).items():
        print(f"\n{name}")
        mine = [r for r in rows if r["table"] == name and "error" not in r]
        report(
            f"fedclock_{name}",
            lines,
            cells=mine,
            note="one thread; accuracy and right branch in %, mean ± 95% over seeds",
        )


if __name__ == "__main__":
    main()
