"""Does a temporal prior help where the population shifts from day to night and back (FedTEM paper, Figures 2 to 10)?

FEMNIST writers, digits against letters: each writer's digits are a client of the day, its letters one of the night; at
most 40 rows of each to train on. Test accuracy over the held-out rows of all clients, mean over five evaluations in the
last half period as the prior goes from night to day; branches chosen by mini-batches of 64 rows of one client, without
labels.
Tables: "femnist" (all methods, a dense network, eight periods of 64 rounds), "long" (the same with eight periods of
256 as in the paper), "ablation" (Figures 3 to 10), "cnn" (the paper's network, also with its 2,049 rounds), "cifar10"
(two groups of classes, 2-conv GroupNorm CNN, four periods of 256), "shakespeare" (comedies against tragedies, LSTM,
four periods of 64).

Cells are run by several processes in the order of their importance until the time is up; every one that ends is written
at once, and is not run again with the same `--out`. `--prepare FOLDER` writes the data as small files, `--data FOLDER`
reads them, `--collect FOLDER` makes the tables of what was written. `--only`, `--methods`, `--shifts` and `--seeds`
choose cells, names joined by commas, or by semicolons where a name has a comma. "-own" is the method with hours="own",
inertia=0.9. "fedtem-printed" has equation (10) as printed (scatter="within_clients"; "fedtem" has the variance of all
rows of a mode), "fedtkm-constant" the constant eta of Section 3.2 ("fedtkm" that of (27)), "scsgd-first-half" the
halves of the text ("scsgd" those around the prior's peak).
"powers" has the seven p of Figures 2 and 9 with a period of 64.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cells import share_programs
from fedscape import Federation, LocalSGD, datasets, rounds
from fedscape.learning import Adam, cross_entropy, models, standardising
from fedscape.methods import Options, make
from fedscape.papers import temporal_as_printed
from fedscape.temporal import (
    FedTEM,
    MultiBranch,
    Shifting,
    Steady,
    by_mode,
    collect_centres,
    evaluate,
    parse_curve,
    parse_prior,
)
from table import arguments, half_width, report

PRINTED = {"fedtem-printed": "fedtem", "fedtkm-constant": "fedtkm-constant", "scsgd-first-half": "scsgd"}
BRANCHED = {"ifca": "ifca-branches", "fedem": "fedem-branches"}  # short names here, full ones in the table
EVERY = (
    "no-shift vanilla fedtem-printed fedtkm-constant scsgd-first-half fedtem-own fedtkm-own fedtem fedtkm em-only ifca "
    "scsgd t-shot fedem fedtem-sums-own"
)
COMEDIES = (
    "allswell asyoulike comedy_errors lll measure merchant merry_wives midsummer much_ado taming twelfth two_gent"
)
TRAGEDIES = "coriolanus cleopatra timon julius_caesar macbeth hamlet romeo_juliet othello troilus titus lear"
SETS = ("femnist", "cifar10", "shakespeare")
#: Figure 2; those first of which "femnist" has nothing.
POWERS = [(kind, p) for p in ("0.1", "0.5", "2", "10") for kind in ("linear", "cosine")]
POWERS += [(kind, p) for kind in ("linear", "cosine") for p in ("0.25", "1", "4")]
LIMIT = 40  # rows that a client trains on
SCALED: dict[int, Any] = {}  # the dense network with the scale of the pixels, which takes a while to find


@dataclass(frozen=True)
class Cell:
    """One run: everything that it depends on."""

    table: str
    label: str
    method: str
    schedule: str
    seed: int = 0
    set: str = "femnist"
    model: str = "mlp"
    device: str = "cpu"
    rounds: int = 513
    period: int = 64
    prior: str = "linear"
    most: int = LIMIT
    units: tuple[str, ...] = ("batch",)
    how: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Clients of two modes, and their held-out rows."""

    train: Federation
    test: Federation
    modes: np.ndarray


# -- data --------------------------------------------------------------------------------------------------------------


def load(name: str, *, quick: bool, folder: str = "") -> Task:
    """Clients of one mode each, from the small files or from the data sets."""
    if folder:
        with np.load(Path(folder) / f"{name}.npz") as file:
            made = {part: {c: file[f"{part}_{c}"] for c in ("x", "y", "offsets")} for part in ("train", "test")}
            parts = [Federation({"x": p["x"], "y": p["y"].astype(int)}, p["offsets"]) for p in made.values()]
            return Task(*parts, file["modes"])
    return {"femnist": femnist, "cifar10": cifar, "shakespeare": shakespeare}[name](quick)


def cut(train: Federation, test: Federation, modes: np.ndarray) -> Task:
    some = np.flatnonzero((train.sizes >= 8) & (test.sizes > 0))
    return Task(first_rows(train.take(some), LIMIT), test.take(some), modes[some])


def first_rows(fed: Federation, most: int) -> Federation:
    return fed.where(np.arange(fed.n_rows) - fed.offsets[:-1][fed.client_of_row] < most)


def femnist(quick: bool) -> Task:
    fed = datasets.load("femnist-mini" if quick else "femnist")
    fed, modes = by_mode(fed, (fed["y"] >= 10).astype(np.int64))
    return cut(*fed.split(test=0.2, seed=0), modes)


def cifar(quick: bool) -> Task:
    """Centre crops of 24 x 24 as in the paper's code; 80 clients of 40 images a group, labels by Dirichlet 1."""
    data, rng, picked = datasets.load("cifar10"), np.random.default_rng(0), []
    y = np.asarray(data["y"]).astype(np.int64)
    for split, clients, rows in ((0, 80, 40), (1, 80, 10)):
        left = [list(rng.permutation(np.flatnonzero((data["split"] == split) & (y == c)))) for c in range(10)]
        taken = []
        for client in range(2 * clients):
            group = client // clients
            law = rng.dirichlet(np.ones(5)) if split == 0 else np.full(5, 0.2)
            taken += [left[5 * group + c].pop() for c in rng.choice(5, rows, p=law)]
        picked.append((np.array(taken), np.arange(0, 2 * clients * rows + 1, rows)))
    crops = [np.moveaxis(data["x"][rows][:, 4:28, 4:28], 3, 1) for rows, _ in picked]
    made = [Federation({"x": x, "y": y[r]}, ends) for x, (r, ends) in zip(crops, picked, strict=True)]
    return Task(*made, np.repeat([0, 1], 80))


def shakespeare(quick: bool) -> Task:
    """The last 40 characters before each; 50 places spread over what a role says."""
    fed = datasets.load("shakespeare-mini" if quick else "shakespeare")
    play = np.array([str(i).split("/")[0].lower() for i in fed.ids])
    kinds = [np.array([p.startswith(tuple(plays.split())) for p in play]) for plays in (COMEDIES, TRAGEDIES)]
    roles = np.flatnonzero((kinds[0] | kinds[1]) & (fed.sizes >= 100))
    rng, places = np.random.default_rng(0), []
    for role in roles:
        spread = np.linspace(fed.offsets[role], fed.offsets[role + 1] - 1, 50).astype(np.int64)
        places.append(rng.permutation(spread))
    at, modes = np.stack(places), np.where(kinds[0][roles], 0, 1)
    rows = [at[:, :40].reshape(-1), at[:, 40:].reshape(-1)]
    made = [Federation({"x": fed["x"][r][:, 40:], "y": fed["y"][r].astype(int)}, np.arange(len(roles) + 1) * n)
            for r, n in zip(rows, (40, 10), strict=True)]  # fmt: skip
    return Task(*made, modes)


def prepare(folder: Path, sets: tuple[str, ...] = SETS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in sets:
        job = load(name, quick=False)
        parts = {"train": job.train, "test": job.test}
        arrays = {f"{part}_{c}": fed[c] for part, fed in parts.items() for c in ("x", "y")}
        ends = {f"{part}_offsets": fed.offsets for part, fed in parts.items()}
        np.savez_compressed(folder / f"{name}.npz", modes=job.modes, **arrays, **ends)
        size = (folder / f"{name}.npz").stat().st_size
        print(f"{name}: {len(job.train)} clients, {job.train.n_rows} + {job.test.n_rows} rows, {size:,} bytes")


# -- one cell ----------------------------------------------------------------------------------------------------------


def network(cell: Cell, fed: Federation) -> MultiBranch:
    if cell.set == "cifar10":
        convs = (nn.Conv2d(3, 32, 3), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2))
        more = (nn.Conv2d(32, 64, 3), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        return MultiBranch(nn.Sequential(*convs, *more, nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)))
    if cell.set == "shakespeare":
        lstm = models.char_lstm(80, hidden=64, layers=1)
        lstm.out = nn.Linear(64, 32)  # the branch: a projection before the output
        return MultiBranch(nn.Sequential(lstm, nn.Linear(32, 80)), "0.out")
    if cell.model == "cnn":
        return MultiBranch(models.cnn((1, 28, 28), 62, dropout=False))
    if cell.most not in SCALED:
        SCALED[cell.most] = standardising(models.mlp(784, 64, 62), fed)
    return MultiBranch(SCALED[cell.most])


def training(cell: Cell, fed: Federation) -> tuple[LocalSGD, Adam, dict[str, float]]:
    """Rates of Table 2; for the dense network, which trains for fewer rounds, three times the server's."""
    lr, server, smooth = 10**-1.5, 10**-2.5, {"strength": 0.5, "smoothing": 0.1}
    if cell.set == "shakespeare":
        lr, server, smooth = 10**-0.5, 0.01, {"strength": 0.25, "smoothing": 0.0}
    elif cell.set == "cifar10":
        smooth = {"strength": 0.1, "smoothing": 0.5}
    elif cell.model == "mlp":
        server = 0.01
    gpu = {"precision": "tf32"} if cell.device == "cuda" else {}
    how = {"lr": lr, "epochs": 1, "batch_size": 20, "device": cell.device, **gpu}
    adam = Adam(server, beta2=0.999, epsilon=1e-4, correction="bias")
    return LocalSGD(network(cell, fed), cross_entropy, **how), adam, smooth


def run(cell: Cell, job: Task, *, until: float = float("inf")) -> dict[str, Any]:
    """Accuracy in percent: the mean over the evaluations, for each unit, and of the two modes."""
    train = first_rows(job.train, cell.most) if cell.most < LIMIT else job.train
    local, server, smooth = training(cell, train)
    curve, shift = parse_curve(cell.schedule), not cell.method.startswith("no-shift")
    sampler = Shifting(job.modes, curve if shift else Steady(2), 10)
    plain = {"no-shift": "vanilla", "no-shift-single": "single"}.get(cell.method, cell.method)
    own = {"hours": "own", "inertia": 0.9} if plain.endswith("-own") else {}
    given: dict[str, Any] = {"server": server, "initial": "seed", **smooth, **own, **cell.how}
    kind, belief = plain.removesuffix("-own"), parse_prior(cell.prior, cell.period)
    began = time.perf_counter()
    if kind == "t-shot":
        collect = {"n_rounds": cell.period, "sampler": sampler, "seed": cell.seed, "column": "x"}
        given["centres"] = collect_centres(train, 2, **collect)
    if kind in PRINTED:
        method = temporal_as_printed(PRINTED[kind], local, belief, **given)
    elif set(cell.how) & {"choice", "pick"}:
        method = FedTEM(local, belief, **given)
    else:
        method = make(BRANCHED.get(kind, kind), local, Options(prior=belief, **given))
    trainer = getattr(method, "_trainer", method.local)
    share_programs(trainer, (cell.set, cell.model, cell.most, repr(trainer.model), repr(trainer.loss)))
    found: dict[str, list[float]] = {}
    step = max(cell.period // 8, 1)
    marks = {cell.rounds - 1 - i * step for i in range(5)}
    how = {"n_rounds": cell.rounds, "sampler": sampler, "seed": cell.seed, "measure": 0, "allow": method.reveals}
    for r in rounds(method, train, **how):
        if time.time() > until:
            raise TimeoutError
        if r.index in marks:
            scores(method, r.state, job, cell.units, found)
    took = time.perf_counter() - began
    return {**{n: 100 * float(np.mean(v)) for n, v in found.items()}, "seconds": took}


def scores(method: Any, state: Any, job: Task, units: tuple[str, ...], found: dict[str, list[float]]) -> None:
    for unit in units:
        made = evaluate(method, state, job.test, unit=unit)
        right = np.nan_to_num(made.accuracy) * made.rows
        found.setdefault(f"accuracy per {unit}", []).append(right.sum() / made.rows.sum())
    for k, title in enumerate(("day", "night")):
        mine = job.modes == k
        found.setdefault(title, []).append(right[mine].sum() / made.rows[mine].sum())
    if hasattr(method, "branches_of"):
        chosen = method.branches_of(state, job.test, unit=units[-1])
        found.setdefault("right branch", []).append(np.mean(chosen == job.modes[job.test.client_of_row]))


# -- all cells ---------------------------------------------------------------------------------------------------------


def on_cpu() -> Iterator[Cell]:
    """The most important first."""
    for seed in range(3):
        yield from every_method("femnist", 64, seed)
        if seed == 0:
            yield from shakespeare_cells()
    for seed in range(3):
        yield from ablations(seed)
    for seed in range(3):
        yield from every_method("long", 256, seed, rounds=2049)
    for seed in range(3):
        yield from powers(seed)


def powers(seed: int) -> Iterator[Cell]:
    """The seven p of Figures 2 and 9: printed methods, and one branch where the curve is linear."""
    for kind, p in POWERS:
        for name in ("vanilla", "fedtem-printed", "fedtkm", *(["single"] if kind == "linear" else [])):
            yield Cell("powers", f"{kind} p={p}", name, f"{kind}:p={p},T=64", seed)
    for name in ("no-shift", "no-shift-single"):
        yield Cell("powers", "no shift", name, "linear:p=1,T=64", seed)


def every_method(table: str, period: int, seed: int, **how: Any) -> Iterator[Cell]:
    """All methods on all curves; no shift is the same on every one."""
    for p in ("1", "4", "0.25"):
        for kind in ("linear", "cosine"):
            for name in EVERY.split():
                if name != "no-shift" or (p, kind) == ("1", "linear"):
                    schedule = f"{kind}:p={p},T={period}"
                    yield Cell(table, f"{kind} p={p}", name, schedule, seed, period=period, **how)


def ablations(seed: int) -> Iterator[Cell]:
    """Figures 3 to 6 and 8 to 10, of FedTEM as printed."""
    one, p1 = "fedtem-printed", "linear:p=1,T=64"
    for shift, schedule in {"linear p=1": p1, "cosine p=1": "cosine:p=1,T=64"}.items():
        for prior in ("linear", "none", "cosine", "soft"):
            yield Cell("ablation", f"Figure 3: {shift}, prior {prior}", one, schedule, seed, prior=prior)
    for name in (one, "vanilla", "fedtkm"):
        yield Cell("ablation", "Figure 4: choice per", name, p1, seed, units=("sample", "client", "batch"))
    for strength, smoothing in ((0.0, 0.0), (0.1, 0.1), (0.5, 0.5)):
        how = {"strength": strength, "smoothing": smoothing}
        yield Cell("ablation", f"Figure 5: lambda={strength} epsilon={smoothing}", one, p1, seed, how=how)
    for choice, pick in (("mle", "sampled"), ("posterior", "greedy"), ("posterior", "sampled")):
        how = {"choice": choice, "pick": pick}
        yield Cell("ablation", f"Figure 6: {choice} {pick}", one, p1, seed, how=how)
    for name in ("single", "no-shift-single", "no-shift"):
        yield Cell("ablation", "Figure 9: branches", name, p1, seed)
    for p in ("0.25", "4"):
        for name in ("vanilla", "single"):
            yield Cell("ablation", f"Figure 9: branches, p={p}", name, f"linear:p={p},T=64", seed)
    for most in (10, 20, LIMIT):
        for name in ("vanilla", "no-shift", one):
            if most < LIMIT or name == "vanilla":
                label = f"Figure 10: at most {most} rows"
                yield Cell("ablation", label, name, "cosine:p=1,T=64", seed, most=most)
    for period in (16, 64, 128):
        for p in ("0.25", "1", "4"):
            if period != 64 or p != "1":
                label = f"Figure 8: T={period} p={p}"
                yield Cell("ablation", label, one, f"linear:p={p},T={period}", seed, period=period)


def on_gpu(device: str) -> Iterator[Cell]:
    """The most important first."""
    names = ("no-shift", "vanilla", "fedtkm-own", "fedtem-own", "fedtem-printed", "fedtkm", "fedtem-sums-own", "fedtem")
    big, images = (
        {"model": "cnn", "device": device},
        {"set": "cifar10", "device": device, "rounds": 1025, "period": 256},
    )
    for seed in range(3):
        for name in names:
            yield Cell("cnn", "linear p=1", name, "linear:p=1,T=64", seed, **big)
    for seed in (0, 1):
        for p in ("1", "4"):
            for name in ("no-shift", "vanilla", "fedtkm-own", "fedtem-own", "fedtem-printed", "fedtem"):
                if name != "no-shift" or p == "1":
                    yield Cell("cifar10", f"linear p={p}", name, f"linear:p={p},T=256", seed, **images)
    for seed in range(3):
        for name in ("no-shift", "vanilla", "fedtem-printed", "fedtkm"):
            how = {"rounds": 2049, "period": 256, **big}
            yield Cell("cnn long", "linear p=1", name, "linear:p=1,T=256", seed, **how)
    for name in names[2:]:
        yield Cell("cnn", "linear p=1 T=256", name, "linear:p=1,T=256", rounds=2049, period=256, **big)
    for p in ("4", "0.25"):
        for name in names[1:5]:
            yield Cell("cnn", f"linear p={p}", name, f"linear:p={p},T=64", **big)


def shakespeare_cells() -> Iterator[Cell]:
    for name in ("no-shift", "vanilla", "fedtkm-own", "fedtem-own", "fedtem"):
        yield Cell("shakespeare", "linear p=1", name, "linear:p=1,T=64", set="shakespeare", rounds=257)


def work(number: int, lists: list[list[Cell]], taken: Any, args: Any, until: float) -> None:
    """Take the next cell of the own list, then of the other, until there is none or the time is up."""
    torch.set_num_threads(1)
    jobs: dict[str, Task] = {}
    with (Path(args.out) / f"cells_{number}.jsonl").open("a") as file:
        for which in (0, 1) if number >= args.gpu_workers else (1, 0):
            while time.time() < until:
                with taken.get_lock():
                    index = taken[which]
                    taken[which] += 1
                if index >= len(lists[which]):
                    break
                cell = lists[which][index]
                jobs[cell.set] = jobs.get(cell.set) or load(cell.set, quick=args.quick, folder=args.data)
                try:
                    made = run(cell, jobs[cell.set], until=until)
                except TimeoutError:
                    return
                except Exception as error:  # the others are still of use
                    made = {"error": f"{type(error).__name__}: {error}"[:300]}
                file.write(json.dumps({**asdict(cell), **made}) + "\n")
                file.flush()


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """One line a method and setting: mean over seeds and Student's half width."""
    made: dict[str, list[dict[str, Any]]] = {}
    known = [r for r in rows if "error" not in r]
    keys = list(dict.fromkeys((r["table"], r["label"], r["method"]) for r in known))
    for key in keys:
        mine = [r for r in known if (r["table"], r["label"], r["method"]) == key]
        for unit in mine[0]["units"]:
            values = [r[f"accuracy per {unit}"] for r in mine]
            n = len(values)
            half = half_width(values)
            line: dict[str, Any] = {"shift": key[1], "method": key[2], "unit": unit, "seeds": n}
            line |= {"accuracy": f"{np.mean(values):.2f}", "+/- (95%)": f"{half:.2f}" if n > 1 else ""}
            for title in ("day", "night", "right branch"):
                part = [r[title] for r in mine if title in r]
                line[title] = f"{np.mean(part):.1f}" if part else ""
            line["ms a round"] = f"{1000 * np.mean([r['seconds'] for r in mine]) / mine[0]['rounds']:.0f}"
            made.setdefault(key[0], []).append(line)
    return made


def key(cell: Cell) -> str:
    return json.dumps({**asdict(cell), "units": list(cell.units)}, sort_keys=True)


def found(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("cells_*.jsonl")) for line in file.open()]


def collect(folder: Path) -> None:
    lines = found(folder)
    for line in (r for r in lines if "error" in r):
        print(f"failed: {line['table']} {line['label']} {line['method']} {line['seed']}: {line['error']}")
    for name, rows in tables(sorted(lines, key=lambda r: (r["table"], r["label"]))).items():
        print(f"\n{name}")
        setting = next(r for r in lines if r["table"] == name)
        report(f"temporal_{name}", rows, note=f"{setting['rounds']} rounds, cohorts of 10, {setting['device']}")


def main() -> None:
    options: dict[str, Any] = {
        "prepare": "", "collect": "", "data": "", "out": "", "workers": 2, "gpu_workers": 0, "minutes": 5.0,
        "device": "cpu", "only": "", "methods": "", "shifts": "", "seeds": 0, "rounds": 0,
    }  # fmt: skip
    args = arguments(__doc__, **options)
    if args.prepare or args.collect:
        prepare(Path(args.prepare)) if args.prepare else collect(Path(args.collect))
        return
    lists = [list(on_cpu()), list(on_gpu(args.device))]
    if args.quick:
        names = ("no-shift", "vanilla", "fedtem", "fedtem-own", "fedtkm-own")
        lists = [[Cell("femnist", "linear p=1", n, "linear:p=1,T=16", rounds=33, period=16) for n in names], []]
        args.workers, args.minutes = 1, 0.9
    asked = {"table": args.only, "method": args.methods, "label": args.shifts}
    for part, names in ((part, names.split(";" if ";" in names else ",")) for part, names in asked.items() if names):
        lists = [[c for c in cells if getattr(c, part) in names] for cells in lists]
    if args.seeds:
        lists = [[c for c in cells if c.seed < args.seeds] for cells in lists]
    if args.rounds:  # to try it out
        lists = [[Cell(**{**asdict(c), "rounds": args.rounds}) for c in cells] for cells in lists]
    args.out = args.out or str(Path(__file__).with_name("results") / f"temporal_{os.getpid()}")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    done = {key(Cell(**{f.name: r[f.name] for f in fields(Cell)})) for r in found(Path(args.out)) if "error" not in r}
    lists = [[c for c in cells if key(c) not in done] for cells in lists]
    spawn, until = multiprocessing.get_context("spawn"), time.time() + 60 * args.minutes
    taken = spawn.Array("i", [0, 0])
    team = [spawn.Process(target=work, args=(i, lists, taken, args, until)) for i in range(args.workers)]
    for process in team:
        process.start()
    for process in team:
        process.join()
    collect(Path(args.out))


if __name__ == "__main__":
    main()
