"""What does a client send, receive, keep and compute in a round, by method; and what is that for 10^6 and 10^8 clients?

Settings are those of use: 62 categories, 32 features, 20 rows a client, images of 28 x 28 for training. Bytes are
those of the replies of a real run; time is CPU time of one thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fedscape import (
    DistributionSketch,
    FederatedKMeans,
    Federation,
    GaussianMixture,
    Histogram,
    Key,
    LatentClassRegression,
    Local,
    MixtureOfDirichletMultinomials,
    Moments,
    learning,
    personal,
    rounds,
)
from fedscape.core.blocks import broadcast
from fedscape.core.rounds import frozen
from fedscape.mixtures import Diagonal, Full
from table import arguments, report

CATEGORIES, FEATURES, ROWS, CORES = 62, 32, 20, 32


def population(n: int, seed: int) -> Federation:
    """Clients of 20 rows: categories and 32 features of three kinds, four entities."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(rng.integers(0, 3, n), ROWS)
    shares = rng.dirichlet(np.full(CATEGORIES, 0.5), 3)
    y = np.array([rng.choice(CATEGORIES, p=shares[k]) for k in kind]).astype(np.uint8)
    x = (rng.normal(size=(n * ROWS, FEATURES)) + 2 * rng.normal(size=(3, FEATURES))[kind]).astype(np.float32)
    columns = {"y": y, "x": x, "target": x[:, 0] + rng.normal(size=len(x)), "entity": np.arange(len(x)) % 4}
    return Federation(columns, np.arange(0, n * ROWS + 1, ROWS))


def images(n: int, seed: int) -> Federation:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n * ROWS, 28, 28), dtype=np.uint8)
    return Federation({"x": x, "y": rng.integers(0, CATEGORIES, n * ROWS)}, np.arange(0, n * ROWS + 1, ROWS))


def fits(seed: int) -> dict[str, Callable[[Local], object]]:
    """Estimators, each fitted to an engine."""
    mdm = MixtureOfDirichletMultinomials(3, n_init=1, rounds=5, tol=0.0, seed=seed)
    newton = MixtureOfDirichletMultinomials(3, n_init=1, rounds=5, tol=0.0, solver="newton", seed=seed)
    return {
        "Histogram, 62": lambda e: Histogram(CATEGORIES).fit(e, progress=False),
        "Moments, d 32": lambda e: Moments().fit(e, column="x", progress=False),
        "FederatedKMeans, 10 x 32": lambda e: FederatedKMeans(10, seed=seed).fit(e, progress=False),
        "DistributionSketch, 200 x 16": lambda e: DistributionSketch(200, bits=4, seed=seed).fit(e, progress=False),
        "MDM exact, K 3, C 62": lambda e: mdm.fit(e, progress=False),
        "MDM newton, K 3, C 62": lambda e: newton.fit(e, progress=False),
        "GaussianMixture diagonal, K 3": lambda e: _mixture(Diagonal(), seed).fit(e, progress=False),
        "GaussianMixture full, K 3": lambda e: _mixture(Full(), seed).fit(e, progress=False),
        "LatentClassRegression, K 4": lambda e: LatentClassRegression(4, rounds=5, seed=seed).fit(
            e, features="x", target="target", entity="entity", progress=False
        ),
    }


def _mixture(covariance: Diagonal | Full, seed: int) -> GaussianMixture:
    return GaussianMixture(3, covariance=covariance, column="x", n_init=1, rounds=5, tol=0.0, seed=seed)


def trainings(seed: int) -> dict[str, object]:
    """Computations that train a network of one hidden layer, or the convolutional one."""
    how = {"lr": 0.05, "epochs": 1, "batch_size": 10}
    mlp = learning.LocalSGD(learning.models.mlp(784, 64, CATEGORIES), learning.cross_entropy, **how)
    cnn = learning.LocalSGD(learning.models.cnn(n_classes=CATEGORIES), learning.cross_entropy, **how)
    made = {f"FedAvg, {step.n_parameters:,} weights": learning.FedAvg(step) for step in (mlp, cnn)}
    made["IFCA, 3 x mlp"] = personal.IFCA(mlp, 3)
    made["FedEM, 3 x mlp"] = personal.FedEM(mlp, 3)
    made["Ditto, mlp"] = personal.Ditto(mlp)
    made["PFedMe, mlp"] = personal.PFedMe(mlp)
    made["FedRep, mlp"] = personal.FedRep(mlp)
    made["ClusteredFL, mlp"] = personal.ClusteredFL(mlp)
    return made


def measured(name: str, engine: Local, run: Callable[[], list[tuple[int, int]]]) -> dict:
    """One method: the largest round's bytes, what is kept, and CPU time of a round, the first run left out."""
    run()
    began = time.process_time()
    sizes = run()
    took = time.process_time() - began
    n = len(engine.clients.keys)
    kept = sum(ragged.flat.nbytes for ragged in engine.kept().values()) / n
    return {
        "method": name,
        "rounds": len(sizes),
        "bytes down": max(down for down, _ in sizes),
        "bytes up": max(up for _, up in sizes),
        "bytes up, all rounds": sum(up for _, up in sizes),
        "bytes kept": kept,
        "us per client": took / len(sizes) / n * 1e6,
    }


def fitted(fit: Callable[[Local], object], engine: Local) -> list[tuple[int, int]]:
    history = fit(engine).history_
    return list(zip(history["bytes_down"], history["bytes_up"], strict=True))


def trained(method: object, engine: Local) -> list[tuple[int, int]]:
    """The same; bytes up are those of a client alone, because sums of float32 that are made at once are float64."""
    sizes = [r.bytes_down for r in rounds(method, engine, n_rounds=2, allow=method.reveals, measure=0)]
    one, state = engine.federation.take([0]), method.prepare(broadcast(frozen(method.start(0))))
    sent, _ = method.step(state, one, Key(0))
    return [(down, sum(values.nbytes for values in sent.values())) for down in sizes]


def scaled(row: dict) -> dict:
    """The same for a million and a hundred million clients in every round."""
    traffic, seconds = row["bytes down"] + row["bytes up"], row["us per client"] / 1e6
    return {
        "method": row["method"],
        "GB per round, 10^6": traffic * 1e6 / 1e9,
        "s per round, 10^6": seconds * 1e6 / CORES,
        "TB per round, 10^8": traffic * 1e8 / 1e12,
        "s per round, 10^8": seconds * 1e8 / CORES,
        "machines for a minute, 10^8": int(np.ceil(seconds * 1e8 / CORES / 60)),
        "kept, 10^8, TB": row["bytes kept"] * 1e8 / 1e12,
    }


def main() -> None:
    args = arguments(__doc__, clients=4000, trainers=200)
    n, m = (400, 24) if args.quick else (args.clients, args.trainers)
    engine, rows = Local(population(n, args.seed), threads=1), []
    for name, fit in fits(args.seed).items():
        rows.append(measured(name, engine, lambda fit=fit: fitted(fit, engine)))
    small = learning.LocalSGD(
        learning.models.linear(FEATURES, CATEGORIES), learning.cross_entropy, lr=0.05, epochs=1, batch_size=10
    )
    gmm = personal.FedGMM(small, _mixture(Diagonal(), args.seed).fit(engine, progress=False), 3)
    rows.append(measured("FedGMM, 3 x 3, d 32, linear", engine, lambda: trained(gmm, engine)))
    engine = Local(images(m, args.seed), threads=1)
    for name, method in trainings(args.seed).items():
        if args.quick and method.local.n_parameters > 100_000:
            continue  # half a minute
        rows.append(measured(name, engine, lambda method=method: trained(method, engine)))
    note = f"{n:,} clients of {ROWS} rows, {m} for training; the largest round counts; CPU time of one thread"
    report("engine_bytes", rows, note=note)
    print()
    note = f"all clients in every round; machines of {CORES} cores like the one measured"
    report("engine_scale", [scaled(row) for row in rows], note=note)


if __name__ == "__main__":
    main()
