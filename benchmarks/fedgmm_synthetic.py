"""Does FedGMM reach Bayes on the paper's synthetic data (Table 2), other laws (Table 3) and sizes (Figure 3)?

Per client: weights ~ Dirichlet(0.4) over three Gaussians N(mu_m, I) in 32 dimensions, mu ~ U[-1, 1]; the label of a row
of Gaussian m is 1{(x - mu_m)'v_m > 0} with v_m = mu_{m+1} - mu_m. All methods: a linear learner, local Adam, one epoch
of batches of 64 a round, the same number of rounds; accuracy on a fifth of each client's rows, mean over clients. Each
method's rate is the best of three on a federation of its own (seed 10,000, at most 100 clients).

Other laws have the same means and unit variances: Laplace, or Beta(2, 2) scaled; "partial": the last third of the
clients has the other law. "thirds": Gaussian, a third of the clients in each round. `--tables` takes 2, 3, figure and
thirds. Cells run in `--workers` processes until `--limit` seconds are over; `--merge FILES` prints tables of rows.
"""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import Any

import numpy as np

from cells import Row, check_time, percent, read, run_cells
from fedscape import Federation, FixedSize, Local, rounds
from fedscape.core.arrays import segment_sum_twin
from fedscape.learning import CosineDecay, LocalSGD, cross_entropy, models
from fedscape.methods import Course, Options
from fedscape.personal import LocalOnly, Personalised, make_fedgmm
from table import RESULTS, arguments, half_width, report

D, M = 32, 3
RATES = (0.1, 0.3, 0.03)
TUNE = 10_000  # the seed of the federation that rates are chosen on
BLOCK = 2**18  # rows trained side by side: they are short
METHODS_2 = ["fedgmm", "fedem", "fedavg", "local", "ifca", "pfedme", "ditto", "clustered", "fedprox"]
METHODS_3 = ["fedgmm", "fedem", "fedavg", "local", "clustered", "fedprox"]  # fedavg makes fedavg+, too
KINDS_3 = ("laplace", "beta", "laplace/partial", "beta/partial")
SIZES = [f"{m1}x{m2}" for m1 in range(1, 5) for m2 in range(1, 5)]


@lru_cache(maxsize=1)
def draw(seed: int, clients: int, rows: int, kind: str) -> tuple[Federation, Federation, float]:
    """Rows to train on, rows to test on, and the accuracy there of someone who knows all laws."""
    rng = np.random.default_rng(seed)
    mu = rng.uniform(-1, 1, (M, D))
    v = np.roll(mu, -1, axis=0) - mu
    shares = rng.dirichlet(np.full(M, 0.4), clients)
    z = np.concatenate([rng.choice(M, rows, p=p) for p in shares])
    owner = np.repeat(np.arange(clients), rows)
    law, _, part = kind.partition("/")
    other = owner >= (2 * clients // 3 if part == "partial" else 0)
    x, log_density = np.empty((len(z), D), dtype=np.float32), np.empty((len(z), M))
    for name, here in (("gaussian", ~other), (law, other)):
        x[here], log_density[here] = noise(name, mu, z[here], rng)
    y = (np.einsum("nd,nd->n", x - mu[z], v[z]) > 0).astype(np.int64)
    each = log_density + np.log(shares + 1e-300)[owner]
    each = np.exp(each - each.max(axis=1, keepdims=True))
    yes = np.stack([((x - mu[m]) @ v[m]) > 0 for m in range(M)], axis=1)
    best = (each * yes).sum(axis=1) > (each * ~yes).sum(axis=1)
    fed = Federation({"x": x, "y": y, "best": best.astype(np.int8)}, np.arange(clients + 1) * rows)
    fed, test = fed.split(test=0.2, seed=seed)
    right = segment_sum_twin((test["best"] == test["y"]).astype(float), test.offsets) / test.sizes
    return fed, test, float(right.mean())


def noise(kind: str, mu: np.ndarray, z: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows about their means, of unit variance, and the log density of each under every component."""
    n = len(z)
    if kind == "laplace":
        x = mu[z] + rng.laplace(0, np.sqrt(0.5), (n, D))
        return x, np.stack([-np.abs(x - m).sum(axis=1) / np.sqrt(0.5) for m in mu], axis=1)
    if kind == "beta":  # Beta(2, 2), scaled to unit variance: bounded, so components may exclude a row for certain
        scale = np.sqrt(20.0)
        x = mu[z] + scale * (rng.beta(2, 2, (n, D)) - 0.5)
        inside = [(x - m) / scale + 0.5 for m in mu]
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = [np.where((u > 0) & (u < 1), np.log(np.abs(u * (1 - u))), -1e4).sum(axis=1) for u in inside]
        return x, np.stack(logs, axis=1)
    x = mu[z] + rng.standard_normal((n, D), dtype=np.float32)
    square = np.einsum("nd,nd->n", x, x)
    return x, np.stack([x @ m - 0.5 * (square + m @ m) for m in mu], axis=1)


def work(cell: Row, until: float) -> list[Row]:
    """Train one method to the end and test it; FedAvg also tuned, which is FedAvg+."""
    law = "gaussian" if cell["kind"] == "thirds" else cell["kind"]
    fed, test, bayes = draw(cell["seed"], cell["clients"], cell["rows"], law)
    began, method, seed = time.time(), cell["method"], cell["seed"]
    step = LocalSGD(
        models.linear(D, 2),
        cross_entropy,
        lr=cell["lr"],
        epochs=1,
        batch_size=64,
        optimiser="adam",
        proximal=0.1 if method == "fedprox" else 0.0,
        schedule=CosineDecay(cell["rounds"]),
    )
    engine = Local(fed, threads=1)
    if method == "fedgmm":
        gaussians, learners = (int(v) for v in cell["sizes"].split("x"))
        sampler = FixedSize(min(60, len(fed)))
        made: Any = make_fedgmm(
            step, engine, seed, sampler=sampler, n_rounds=15, gaussians=gaussians, learners=learners
        )
    else:
        made = Course(method, step, engine, Options(seed=seed, initial="seed")).computation
    made.block_rows = BLOCK
    sampler = FixedSize(len(fed) // 3) if cell["kind"] == "thirds" else None
    loop = rounds(made, engine, n_rounds=cell["rounds"], seed=seed, sampler=sampler, measure=0, allow=made.reveals)
    for _ in loop:
        check_time(until)
    done = Course(made, step, engine, Options(seed=seed)).end(loop.state)  # who was never drawn trains once
    found = [{**cell, **scored(done, test, bayes), "seconds": time.time() - began}]
    if method == "fedavg":
        begin = {**loop.state, "rows": np.zeros(())}
        tuned = Personalised(LocalOnly(step), begin, fed.ids, {}).adapt(fed, seed=seed)
        found.append({**cell, "method": "fedavg+", **scored(tuned, test, bayes), "seconds": time.time() - began})
    return found


def scored(model: Personalised, test: Federation, bayes: float) -> Row:
    return {"accuracy": model.evaluate(test).summary()["accuracy_of_clients"], "bayes": bayes}


def cell_of(table: Row, method: str, seed: int, lr: float, sizes: str = "3x3") -> Row:
    tuning = {"clients": min(table["clients"], 100)} if seed == TUNE else {}
    return {**table, **tuning, "method": method, "seed": seed, "lr": lr, "sizes": sizes if method == "fedgmm" else ""}


def best_rate(rows: list[Row], table: Row, method: str) -> float | None:
    """The rate with the best accuracy on the federation for tuning; None until all are there."""
    same = {k: v for k, v in table.items() if k != "clients"}
    mine = [r for r in rows if r["seed"] == TUNE and r["method"] == method and same.items() <= r.items()]
    tried = {r["lr"]: r.get("accuracy", -1.0) for r in mine if r["sizes"] in ("", "3x3")}
    return max(tried, key=lambda lr: tried[lr]) if len(tried) == len(RATES) else None


def plan(rows: list[Row], args: Any) -> list[Row]:
    """All cells that can be run: those of Table 2, then Table 3, then the sizes, then thirds."""
    cells: list[Row] = []
    for name, table, methods, seeds in tables(args):
        if name == "figure":
            lr = best_rate(rows, table, "fedgmm")
            every = [(s, size) for s in range(seeds) for size in SIZES]
            cells += [cell_of(table, "fedgmm", s, lr, size) for s, size in every] if lr else []
            continue
        kind = {**table, "kind": "gaussian"} if name == "thirds" else table
        cells += [] if name == "thirds" else [cell_of(table, m, TUNE, lr) for m in methods for lr in RATES]
        rates = {m: best_rate(rows, kind, m) for m in methods}
        every = [(m, s) for s in range(seeds) for m in methods]
        every.sort(key=lambda pair: pair[0] != "fedgmm")
        cells += [cell_of(table, m, s, rates[m]) for m, s in every if rates[m]]
        plus = best_rate(rows, kind, "fedavg+")  # the same cells as FedAvg's, unless its rate is another
        cells += [cell_of(table, "fedavg", s, plus) for s in range(seeds)] if plus else []
    return cells


def tables(args: Any) -> list[tuple[str, Row, list[str], int]]:
    """Name, setting, methods and number of seeds of each table that was asked for."""
    full: Row = {"kind": "gaussian", "clients": args.clients, "rows": args.rows, "rounds": args.rounds}
    few = {**full, "clients": min(30, args.clients), "rounds": args.rounds_few}
    methods = args.methods.split(",") if args.methods else None
    made = [("2", full, methods or METHODS_2, args.seeds)]
    made += [("3", {**few, "kind": kind}, methods or METHODS_3, min(5, args.seeds)) for kind in KINDS_3]
    made += [("figure", few, ["fedgmm"], min(3, args.seeds))]
    made += [("thirds", {**full, "kind": "thirds"}, methods or METHODS_3[:4], min(3, args.seeds))]
    return [each for each in made if each[0] in args.tables.split(",")]


def summary(rows: list[Row], args: Any) -> None:
    """Print each table and write it."""
    for name, table, _, _ in tables(args):
        here = [r for r in rows if table.items() <= r.items() and r["seed"] != TUNE and "accuracy" in r]
        kind = {**table, "kind": "gaussian"} if name == "thirds" else table
        rates = {m: best_rate(rows, kind, m) for m in {r["method"] for r in here}}
        here = [r for r in here if r["lr"] == rates[r["method"]]]
        if not here:
            continue
        sizes = sorted({r["sizes"] for r in here if r["method"] == "fedgmm"}) if name == "figure" else ["", "3x3"]
        groups = [[r for r in here if r["sizes"] == s] for s in sizes] if name == "figure" else []
        if name != "figure":
            here = [r for r in here if r["sizes"] in sizes]
            order = dict.fromkeys(sorted((r["method"] for r in here), key=lambda m: m))
            groups = [[r for r in here if r["method"] == m] for m in order]
            groups.sort(key=lambda g: -np.mean([r["accuracy"] for r in g]))
        lines = [] if name == "figure" else [line_of("bayes", list({r["seed"]: r for r in here}.values()), "bayes")]
        lines += [line_of(g[0]["sizes"] if name == "figure" else g[0]["method"], g, "accuracy") for g in groups if g]
        seeds = sorted({r["seed"] for r in here})
        setting = f"{table['clients']} clients x {table['rows']:,} rows, {table['rounds']} rounds"
        print(f"\n{'M1 x M2, ' if name == 'figure' else ''}{table['kind']}")
        note = f"{table['kind']}, {setting}, Dirichlet 0.4, Adam, seeds {seeds[0]} to {seeds[-1]}"
        report(f"fedgmm_synthetic_{name}_{table['kind'].replace('/', '_')}", lines, note=note)


def line_of(what: str, rows: list[Row], value: str) -> Row:
    values, bayes = [r[value] for r in rows], [r["bayes"] for r in rows]
    line: Row = {"method": what, "rate": rows[0]["lr"] if value == "accuracy" else ""}
    line |= {"accuracy": percent(values).split(" ")[0], "+/- (95%)": f"{100 * half_width(values):.2f}"}
    line |= {"worst seed": f"{100 * min(values):.2f}", "seeds": len(values)}
    near = sum(b - a <= 0.015 for a, b in zip(values, bayes, strict=True))
    seconds = float(np.mean([r["seconds"] for r in rows])) if value == "accuracy" else ""
    return {**line, "within 1.5 of Bayes": f"{near} of {len(values)}", "s per run": seconds}


def main() -> None:
    options: Row = {"clients": 300, "rows": 3000, "rounds": 12, "rounds_few": 12, "seeds": 10, "methods": ""}
    args = arguments(__doc__, **options, tables="2,3,figure,thirds", workers=0, limit=1e9, out="", merge="")
    if args.quick:
        args.clients, args.rows, args.rounds, args.rounds_few, args.seeds = 30, 400, 4, 4, 1
        args.methods, args.tables, args.limit = args.methods or "fedgmm,fedem,fedavg,local", "2", min(args.limit, 50)
    out = args.out or str(RESULTS / f"fedgmm_synthetic{'_quick' if args.quick else ''}.jsonl")
    if args.merge:
        summary(read(args.merge), args)
        return
    rows = run_cells(partial(plan, args=args), work, out=out, workers=args.workers, limit=args.limit)
    summary(rows, args)


if __name__ == "__main__":
    main()
