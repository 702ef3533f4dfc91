"""Does a twin foretell other devices, rank protocols as the true trace does, mend who is left out? How fast is it?

`--only halves`: 723 phones (five days, half-hours), a twin of one half against the other half, and the two halves
against each other. `--only calibration`: how often fidelity rejects what has one law. `--only private`: what noise
leaves of a twin. `--only retail`: Online Retail II, customers as a stand-in for users, as halves. `--only protocols`:
five settings of four protocols on FEMNIST writers, each with a phone of the held-out half, in virtual time; accuracy
over time with the twin of the other half and with the true trace, `--seeds` of them; Kendall's tau of the rankings.
`--only bias`: slow devices have other labels; found, sized, mended by inverse probabilities, beside q-FedAvg.
`--only speed`: a million devices, 30 days.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import fedscape as fs
from fedscape import Federation, Key
from fedscape.twin.comparing import ASPECTS, observed_like
from fedscape.twin.events import DAY
from table import arguments, half_width, report


def phones():
    log, tick = fs.twin.events_of(fs.datasets.load("phones"))
    return log, tick


def texts(found: fs.twin.TwinFidelity) -> dict[str, str]:
    """The aspects as text."""
    measures = {aspect: getattr(found, aspect) for aspect in ASPECTS}
    return {a: f"{m.value:.3f} (alike {m.alike:.3f}), p {m.p:.2f}" for a, m in measures.items()}


def foretold(name: str, train: Federation, test: Federation, kinds: int, args, **how) -> dict:
    """A twin of `train` against `test`: misfit with p-values, and coverage of 95% intervals with the fit's error."""
    begin, end = float(test["start"].min()), float(test["end"].max())
    settings = {"n_kinds": kinds, "n_init": 1 if args.quick else 3, "rounds": 30 if args.quick else 90, **how}
    n_refits = 4 if args.quick else 10 if len(train) < 400 else 6
    twin = fs.twin.fit(train, **settings)
    drawn = twin.sample(4 * len(test), Key(args.seed)).sessions(begin, end)
    found = fs.twin.fidelity(test, drawn, fitted_to=len(train))
    refits = [fs.twin.fit(fs.twin.resampled(train, Key(s)), **{**settings, "n_init": 1}) for s in range(n_refits)]
    covered = fs.twin.foretell(refits, test, draws=40 if args.quick else 20 * n_refits, seed=args.seed)
    return {
        "what": name, "fitted / tested": f"{len(train)} / {len(test)}", "kinds": kinds,
        "held-out log-likelihood": round(twin.score(test), 3),
        **texts(found),
        **{f"{n} covered": f"{f.covered:.0%}" for n, f in covered.items()},
    }  # fmt: skip


def halves(args) -> list[dict]:
    log, tick = phones()
    train, test = log.split_clients(test=0.5, seed=args.seed)
    alike = fs.twin.fidelity(test, train)
    values = texts(alike)
    rows = [{"what": "phones: half against half", "fitted / tested": f"{len(train)} / {len(test)}", **values}]
    for kinds in (1,) if args.quick else (1, 2, 4):
        rows.append(foretold("phones: twin of one half", train, test, kinds, args, tick=tick))
    return rows


def calibration(args) -> list[dict]:
    """How often fidelity rejects at 5% what has one law: two draws of it, and a twin fitted to one draw and another.

    The law is a twin of all phones, over their five days, seen through the spans in which phones were observed.
    """
    log, tick = phones()
    law = fs.twin.fit(log, n_kinds=1, tick=tick, n_init=1)
    begin, end = float(log["start"].min()), float(log["end"].max())
    rows, draws = [], 10 if args.quick else args.draws
    for n in (40, 361):
        p: dict[str, list] = {}
        for r in range(draws):
            seen, rng = log.take(np.sort(Key(r).generator().permutation(len(log))[:n])), Key(r, 1).generator()
            a, b = (
                observed_like(law.sample(n, Key(args.seed, 2 * r + which)).sessions(begin, end), seen, rng)
                for which in (0, 1)
            )
            drawn = fs.twin.fit(a, n_kinds=1, tick=tick, n_init=1, rounds=60).sample(4 * n, Key(r, 2))
            simulated = drawn.sessions(begin, end)
            for what, other, fitted_to in (
                (f"two draws of {n}", a, None),
                (f"a twin of {n}, taken as exact, and {n} others", simulated, None),
                (f"a twin of {n}, fitted_to={n}, and {n} others", simulated, n),
            ):
                found = fs.twin.fidelity(b, other, fitted_to=fitted_to, draws=99, seed=r)
                p.setdefault(what, []).append([getattr(found, aspect).p for aspect in ASPECTS] + [found.p])
        for what, values in p.items():
            rejected = (np.array(values) <= 0.05).mean(axis=0)
            named = dict(zip([*ASPECTS, "all five"], [f"{share:.1%}" for share in rejected], strict=True))
            rows.append({"compared": what, "draws": draws, **named})
    return rows


def private(args) -> list[dict]:
    """What is left of a twin with each device protected, at delta 1e-6: fitted to devices of a known law."""
    log, tick = phones()
    law = fs.twin.fit(log, n_kinds=1, tick=tick, n_init=1)
    begin, end = float(log["start"].min()), float(log["end"].max())
    test = law.sample(300 if args.quick else 2000, Key(99)).sessions(begin, end)
    rows = []
    for n in (361,) if args.quick else (361, 5_000):
        train = law.sample(n, Key(args.seed + 1)).sessions(begin, end)
        for epsilon in (None, 1.0, 8.0):
            how = {"n_init": 1, "rounds": 60}
            if epsilon is not None:
                noise = fs.calibrate(epsilon, 1e-6, rounds=6, sampler=fs.All())
                how = {"rounds": 6, "privacy": fs.Gaussian(clip=30.0, multiplier=noise)}
            twin = fs.twin.fit(train, n_kinds=1, tick=tick, **how)
            drawn = twin.sample(len(test), Key(5)).sessions(begin, end)
            found = fs.twin.fidelity(test, drawn, draws=99, seed=args.seed)
            row = {"fitted to": n, "epsilon": "no noise" if epsilon is None else epsilon}
            row["held-out log-likelihood"] = round(twin.score(test), 2)
            measures = {aspect: getattr(found, aspect) for aspect in ASPECTS}
            rows.append({**row, **{a: f"{m.value:.3f} (alike {m.alike:.3f})" for a, m in measures.items()}})
    return rows


def retail(args) -> list[dict]:
    import pyarrow.parquet as pq

    path = Path(os.environ["FEDSCAPE_DATA"]) / "online_retail" / "online_retail_ii.parquet"
    frame = pq.read_table(path, columns=["invoice", "customer", "time"]).to_pandas().dropna()
    frame = frame.drop_duplicates("invoice").astype({"customer": np.int64})
    known = np.unique(frame.customer[frame.time < "2011-09-01"])  # also those who do not come again
    known = np.sort(Key(args.seed).generator().permutation(known)[: 400 if args.quick else 1000])
    frame = frame[(frame.time >= "2011-09-01") & frame.customer.isin(known)]
    log = fs.twin.from_check_ins(frame.customer, frame.time, gap_minutes=60, least_minutes=10, ids=known)
    train, test = log.split_clients(test=0.5, seed=args.seed)
    return [foretold("customers: twin of one half", train, test, k, args) for k in ((2,) if args.quick else (1, 2))]


def femnist(n: int, seed: int):
    """Writers, a linear model on standardised pixels, FedAvg, and a judge on rows held out."""
    from fedscape.learning import FedAvg, LocalSGD, cross_entropy
    from fedscape.learning.evaluation import evaluate
    from fedscape.learning.run import model_for, standardising

    name = "femnist-mini" if n <= 30 else "femnist"
    fed = fs.datasets.load(name)
    fed = fed.take(np.sort(Key(seed, purpose="writers").generator().permutation(len(fed))[:n]))
    train, test = fed.split(test=0.2, seed=seed)
    model = standardising(model_for("linear", train, seed=0), train)
    local = LocalSGD(model, cross_entropy, lr=0.003, epochs=1, batch_size=20)

    def judge(state):
        found = evaluate(local, state, test)
        return found.accuracy, found.rows

    return FedAvg(local), train, judge, local


SOURCES = ("twin", "twin with the trace's gaps", "trace")
SETTINGS = ("synchronous, no deadline", "synchronous, 1.5x, 300 s", "semi-asynchronous, 600 s", "FedBuff", "FedAsync")


def listed(size: int) -> list:
    """The protocols of `SETTINGS`."""
    return [
        fs.twin.Synchronous(size), fs.twin.Synchronous(size, over=1.5, deadline=300.0),
        fs.twin.SemiAsynchronous(concurrency=size, period=600.0), fs.twin.FedBuff(concurrency=size, buffer=size // 2),
        fs.twin.FedAsync(concurrency=size),
    ]  # fmt: skip


def populations(twin, test_log: Federation, n: int, seed: int) -> dict:
    """Devices by source: of the twin, of the twin where phones were observed, and true ones."""
    begin, end, rng = float(test_log["start"].min()), float(test_log["end"].max()), Key(seed, 1).generator()
    drawn, true = twin.sample(n, Key(seed)), test_log.take(slice(0, n))
    gaps = observed_like(drawn.sessions(begin, end), true, rng)
    return dict(zip(SOURCES, (drawn, fs.twin.Devices.of_trace(gaps), fs.twin.Devices.of_trace(true)), strict=True))


def protocols(args) -> list[dict]:
    log, tick = phones()
    train_log, test_log = log.split_clients(test=0.5, seed=args.seed)
    twin = fs.twin.fit(train_log, n_kinds=2, tick=tick, n_init=1 if args.quick else 3)
    n, size = (30, 2) if args.quick else (len(test_log), 8)
    curves = {}
    for seed in range(1 if args.quick else args.seeds):
        computation, fed, judge, _ = femnist(n, seed)
        payload = fs.twin.payload_of(computation, fed)
        speed = 120 * np.exp(Key(seed, purpose="speeds").generator().standard_normal(len(fed)))
        units = np.maximum(fed.sizes, 1) / fed.sizes.mean()
        where = populations(twin, test_log, len(fed), seed)
        for (name, protocol), (source, devices) in itertools.product(
            zip(SETTINGS, listed(size), strict=True), where.items()
        ):
            devices = replace(devices, seconds=speed, within=np.full(len(fed), 0.2))
            table = fs.twin.schedule(devices, protocol, days=0.5, begin=float(log["start"].min()), units=units,
                                     payload=payload, n_updates=30 if args.quick else 4000, key=Key(seed))  # fmt: skip
            course = fs.twin.follow(computation, fed, table, judge, points=6 if args.quick else 12, seed=seed)
            curves.setdefault((name, source), []).append(course)
            told = f"{len(table)} updates, mean {course.mean:.3f}, end {course.accuracy[-1]:.3f}"
            print(f"{name}, {source}, seed {seed}: {told}", flush=True)
    rows = []
    for name in SETTINGS:
        row = {"protocol": name}
        for source in SOURCES:
            values = [course.mean for course in curves[name, source]]
            hours = [course.hours[course.accuracy >= 0.4] for course in curves[name, source]]
            row[f"mean accuracy, {source}"] = f"{np.mean(values):.3f} ± {half_width(values):.3f}"
            row[f"hours to 0.4, {source}"] = ", ".join(f"{h[0]:.0f}" if len(h) else "inf" for h in hours)
        rows.append(row)
    rows += [{"protocol": agreement(source, curves)} for source in SOURCES[:2]]
    report("twin_curves", [curve_row(point, SETTINGS, curves) for point in range(len(courses_hours(curves)))])
    return rows


def agreement(source: str, curves: dict) -> str:
    """Kendall's tau of mean accuracies with this source and with the trace, by seed and with seeds resampled."""
    from scipy.stats import kendalltau

    a, b = (np.array([[course.mean for course in curves[name, s]] for name in SETTINGS]) for s in (source, "trace"))
    rng, seeds = np.random.default_rng(0), a.shape[1]
    again = [rng.integers(0, seeds, (2, seeds)) for _ in range(400)]
    draws = [kendalltau(a[:, i].mean(1), b[:, j].mean(1)).statistic for i, j in again]
    low, high = np.quantile(draws, [0.025, 0.975])
    by_seed = ", ".join(f"{kendalltau(a[:, s], b[:, s]).statistic:.2f}" for s in range(seeds))
    tau = kendalltau(a.mean(1), b.mean(1)).statistic
    return f"Kendall's tau of {source} {tau:.2f} [{low:.2f}, {high:.2f}] (seeds resampled); by seed {by_seed}"


def courses_hours(curves: dict) -> np.ndarray:
    """The hours at which all curves were judged."""
    return next(iter(curves.values()))[0].hours


def curve_row(point: int, names: Sequence[str], curves: dict) -> dict:
    """Mean accuracy at one time: of each protocol, along each of `SOURCES`."""
    row = {"hours": round(float(courses_hours(curves)[point]), 2)}
    for name in names:
        twin, gaps, trace = (np.mean([c.accuracy[point] for c in curves[name, source]]) for source in SOURCES)
        row[name] = f"{twin:.3f}, {gaps:.3f}, {trace:.3f}"
    return row


def bias(args) -> list[dict]:
    """Slow devices have the labels 5 to 9: accuracy of both kinds by method, with and without that relation."""
    from fedscape.learning import FedAvg, LocalSGD, QFedAvg, cross_entropy
    from fedscape.learning.evaluation import evaluate
    from fedscape.learning.models import linear

    n, per, seeds = 200, 30, 2 if args.quick else 5
    rows = []
    for related in (True, False):
        of_method: dict[str, list] = {}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            slow = np.arange(n) < n // 4
            group = slow if related else rng.permutation(slow)
            centres = np.random.default_rng(99).normal(0, 1.2, (10, 8))
            y = (rng.integers(0, 5, (n, per)) + 5 * group[:, None]).ravel()
            x = (centres[y] + rng.normal(0, 1, (n * per, 8))).astype(np.float32)
            fed = Federation({"x": x, "y": y}, np.arange(0, n * per + 1, per)).declare("y", [str(c) for c in range(10)])
            seconds = np.where(slow, 120.0, 60.0)
            protocol = fs.twin.Synchronous(20, over=1.5, deadline=300.0)

            def table(s, updates, seconds=seconds, protocol=protocol):
                devices = fs.twin.always(n, key=Key(s)).with_speed(seconds, within=0.5)
                return fs.twin.schedule(devices, protocol, days=9, n_updates=updates, key=Key(s))

            odds = fs.twin.chances(table(1000 + seed, 3000), slow.astype(int))
            weight = odds.weights(np.eye(2)[slow.astype(int)])
            fed = fed.with_column("weight", np.repeat(weight, per))
            train, test = fed.split(test=0.3, seed=seed)
            local = LocalSGD(linear(8, 10, seed=0), cross_entropy, lr=0.05, epochs=1, batch_size=10)
            methods = {
                "FedAvg, all equally fast": FedAvg(local),
                "FedAvg": FedAvg(local),
                "inverse probability": fs.twin.InverseProbability(FedAvg(local)),
                "q-FedAvg, q = 1": QFedAvg(local, q=1.0),
            }
            n_updates = 40 if args.quick else 150
            fair, left_out = table(seed, n_updates, np.full(n, 60.0)), table(seed, n_updates)
            for name, computation in methods.items():
                run = fair if name.endswith("fast") else left_out
                *_, last = fs.twin.train(computation, train, run, seed=seed)
                accuracy = evaluate(local, last.state, test).accuracy
                part = fs.twin.participation(run, slow.astype(int), metric=accuracy)[1]
                of_method.setdefault(name, []).append(
                    (
                        part.ratio,
                        part.gap,
                        accuracy[slow].mean(),
                        accuracy[~slow].mean(),
                        accuracy.mean(),
                        odds.effective(np.eye(2)[slow.astype(int)], run),
                    )
                )
        for name, numbers in of_method.items():
            columns = list(zip(*numbers, strict=True))
            text = [f"{np.mean(c):.3f} ± {half_width(c):.3f}" for c in columns]
            names = ["reports of slow ones, 1 is fair", "gap of slow ones", "accuracy, slow", "fast", "all"]
            row = {"slow devices have other labels": "yes" if related else "no", "method": name}
            row |= dict(zip(names, text, strict=False))
            rows.append({**row, "effective share of reports": text[5] if name.startswith("inverse") else ""})
    return rows


def speed(args) -> list[dict]:
    """Events a second of the queue, and peak memory, for 7, 30 and 90 days, one after the other in one process."""
    log, tick = phones()
    twin = replace(fs.twin.fit(log, n_kinds=2, tick=tick, n_init=1, rounds=30), tick=0.0)
    warm = twin.sample(40, Key(0)).with_speed(120.0)
    fs.twin.schedule(warm, fs.twin.Synchronous(1), days=1, n_updates=3)  # compiled
    n = 20_000 if args.quick else 1_000_000
    devices = twin.sample(n, Key(args.seed)).with_speed(120.0)
    rows = []
    for days in (7, 30) if args.quick else (7, 30, 90):
        wall, cpu = time.perf_counter(), time.process_time()
        table = fs.twin.schedule(
            devices, fs.twin.Synchronous(100, over=1.3, deadline=600.0), days=days, n_updates=70_000
        )
        took, work = time.perf_counter() - wall, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        row = {"devices": n, "days": days, "rounds": len(table), "events": table.events}
        row |= {"virtual days": round((table.times[-1] - table.begin) / DAY, 1), "CPU s": round(work, 1)}
        row |= {"wall s": round(took, 1), "us an event": round(1e6 * work / table.events, 2)}
        rows.append({**row, "peak memory, GB": round(memory, 2)})
    return rows


PARTS = {
    "halves": halves,
    "calibration": calibration,
    "private": private,
    "retail": retail,
    "protocols": protocols,
    "bias": bias,
    "speed": speed,
}

if __name__ == "__main__":
    options = arguments(__doc__, only="", seeds=3, draws=200)
    for name, part in PARTS.items():
        if options.only in ("", name):
            report(f"twin_{name}", part(options))
