"""Does FedGMM reach Bayes on the paper's synthetic data (Table 2), and how far are the other methods?

Per client: weights ~ Dirichlet(0.4) over three Gaussians N(mu_m, I) in 32 dimensions, mu ~ U[-1, 1]; the label of a row
of Gaussian m is 1{(x - mu_m)'v_m > 0} with v_m = mu_{m+1} - mu_m. All methods: a linear learner, local Adam, one epoch
of batches of 64 a round, the same number of rounds; accuracy on a fifth of each client's rows, mean over clients. Each
method's rate is the best of three on a federation drawn from a seed of its own, with 95% t intervals over the others.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.stats import t as student

from fedscape import Federation, FixedSize, Local
from fedscape.learning import CosineDecay, LocalSGD, cross_entropy, models
from fedscape.personal import make_fedgmm, train
from table import arguments, report

D, M = 32, 3
RATES = (0.03, 0.1, 0.3)
TUNE = 10_000  # the seed of the federation that rates are chosen on


def draw(seed: int, clients: int, rows: int, kind: str = "gaussian") -> tuple[Federation, np.ndarray]:
    """The federation, and the accuracy-optimal prediction of each row by someone who knows all laws."""
    rng = np.random.default_rng(seed)
    mu = rng.uniform(-1, 1, (M, D))
    v = np.roll(mu, -1, axis=0) - mu
    shares = rng.dirichlet(np.full(M, 0.4), clients)
    z = np.concatenate([rng.choice(M, rows, p=p) for p in shares])
    x, log_density = noise(kind, mu, z, rng)
    y = (((x - mu[z]) * v[z]).sum(axis=1) > 0).astype(np.int64)
    owner = np.repeat(np.arange(clients), rows)
    each = log_density + np.log(shares + 1e-300)[owner]
    each = np.exp(each - each.max(axis=1, keepdims=True))
    yes = np.stack([((x - mu[m]) @ v[m]) > 0 for m in range(M)], axis=1)
    best = (each * yes).sum(axis=1) > (each * ~yes).sum(axis=1)
    fed = Federation({"x": x.astype(np.float32), "y": y, "best": best.astype(np.int8)}, np.arange(clients + 1) * rows)
    return fed, mu


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
    x = mu[z] + rng.standard_normal((n, D))
    return x, np.stack([-0.5 * ((x - m) ** 2).sum(axis=1) for m in mu], axis=1)


def accuracy(method: str, fed: Federation, test: Federation, rounds: int, lr: float, seed: int, **sizes: int) -> float:
    """Mean over clients of the accuracy of a method trained to the end."""
    step = LocalSGD(
        models.linear(D, 2),
        cross_entropy,
        lr=lr,
        epochs=1,
        batch_size=64,
        optimiser="adam",
        schedule=CosineDecay(rounds),
    )
    engine = Local(fed)
    made: object = method
    if method == "fedgmm":
        sampler = FixedSize(min(60, len(fed)))
        made = make_fedgmm(step, engine, seed, sampler=sampler, n_rounds=15, **sizes)
    done = train(made, step, engine, n_rounds=rounds, seed=seed)
    return float(done.evaluate(test).summary()["accuracy_of_clients"])


def best_rate(method: str, args, sizes: dict[str, int]) -> float:
    fed, held = draw(TUNE, args.clients, args.rows, args.kind)[0].split(test=0.2, seed=TUNE)
    found = {lr: accuracy(method, fed, held, args.rounds, lr, TUNE, **sizes) for lr in RATES}
    print(f"# {method}: {', '.join(f'{lr:g} {a:.4f}' for lr, a in found.items())}", flush=True)
    return max(found, key=lambda lr: found[lr])


def main() -> None:
    args = arguments(
        __doc__, clients=300, rows=3000, rounds=12, seeds=3, lr=0.0, methods="all", kind="gaussian", sizes="3x3"
    )
    if args.quick:
        args.clients, args.rows, args.rounds, args.seeds, args.lr = 30, 800, 8, 1, args.lr or 0.3
    every = "local fedavg fedavg+ clustered ifca pfedme ditto fedem fedgmm"
    methods = every.split() if args.methods == "all" else args.methods.split(",")
    gaussians, learners = (int(v) for v in args.sizes.split("x"))
    rows: list[dict[str, object]] = []
    found: dict[str, list[float]] = {}
    of_method = {m: {"gaussians": gaussians, "learners": learners} if m == "fedgmm" else {} for m in methods}
    rates = {m: args.lr or best_rate(m, args, of_method[m]) for m in methods}
    for seed in range(args.seed, args.seed + args.seeds):
        fed, _ = draw(seed, args.clients, args.rows, args.kind)
        fed, test = fed.split(test=0.2, seed=seed)
        right = test.segment_sum((test["best"] == test["y"]).astype(float)) / test.sizes
        found.setdefault("bayes", []).append(float(right.mean()))
        for method in methods:
            began = time.perf_counter()
            sizes = of_method[method]
            found.setdefault(method, []).append(accuracy(method, fed, test, args.rounds, rates[method], seed, **sizes))
            print(f"# seed {seed} {method} {found[method][-1]:.4f} ({time.perf_counter() - began:.0f} s)", flush=True)
    for method, values in found.items():
        wide = student.ppf(0.975, max(1, len(values) - 1)) / np.sqrt(len(values))
        spread = wide * np.std(values, ddof=1) if len(values) > 1 else float("nan")
        row: dict[str, object] = {
            "method": method,
            "rate": rates.get(method, ""),
            "accuracy": f"{100 * np.mean(values):.2f}",
        }
        row |= {"+/- (95%)": f"{100 * spread:.2f}", "worst seed": f"{100 * min(values):.2f}"}
        near = sum(b - a <= 0.015 for a, b in zip(values, found["bayes"], strict=True))
        rows.append({**row, "within 1.5 of Bayes": f"{near} of {len(values)}"})
    note = (
        f"{args.kind}, {args.clients} clients x {args.rows:,} rows, Dirichlet 0.4, {args.rounds} rounds, Adam, "
        f"seeds {args.seed} to {args.seed + args.seeds - 1}, M1 x M2 = {args.sizes}"
    )
    report(f"fedgmm_synthetic_{args.kind}_{args.sizes}", rows, note=note)


if __name__ == "__main__":
    main()
