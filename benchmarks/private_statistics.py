"""What do private sums cost in accuracy? Histogram, Moments and FederatedKMeans at several budgets."""

from __future__ import annotations

from functools import cache

import numpy as np

from fedscape import All, FederatedKMeans, Federation, Gaussian, Histogram, Laplace, Moments, calibrate, datasets
from table import arguments, report

DELTA = 1e-5


@cache
def multiplier_for(epsilon: float, rounds: int) -> float:
    return calibrate(epsilon, DELTA, rounds=rounds, sampler=All())


def groups(n_clients: int, seed: int) -> Federation:
    """Clients of 5 to 40 rows in the unit disc, from four groups that clients use unequally."""
    rng = np.random.default_rng(seed)
    middle = np.array([[0.6, 0.0], [-0.6, 0.1], [0.1, 0.6], [0.0, -0.6]])
    sizes = rng.integers(5, 41, n_clients)
    owner = np.repeat(np.arange(n_clients), sizes)
    uses = rng.dirichlet(np.full(4, 0.5), n_clients).cumsum(axis=1)
    which = (rng.random(len(owner))[:, None] > uses[owner]).sum(axis=1).clip(0, 3)
    x = middle[which] + 0.12 * rng.normal(size=(len(owner), 2))
    return Federation({"x": x}, np.concatenate(([0], np.cumsum(sizes))))


@cache
def people() -> Federation:
    """The regions with a row for each person: in the data a region is one row of counts."""
    counts = datasets.load("acs-race").counts("y", 9)
    rows = np.repeat(np.tile(np.arange(9), len(counts)), counts.reshape(-1))
    return Federation({"y": rows}, np.concatenate(([0], np.cumsum(counts.sum(axis=1)))))


def histogram(epsilon: float | None, unit: str) -> float:
    fed = datasets.load("acs-race") if unit == "client" else people()
    exact = Histogram(9).fit(fed).shares_
    if epsilon is None:
        return 0.0
    privacy = Gaussian(clip=1500.0, multiplier=multiplier_for(epsilon, 1), unit="client")
    if unit == "row":
        privacy = Laplace(clip=1.0, epsilon=epsilon, unit="row")
    return float(np.abs(Histogram(9).fit(fed, privacy=privacy).shares_ - exact).sum() / 2)


def moments(epsilon: float | None, fed: Federation) -> float:
    exact = Moments().fit(fed)
    if epsilon is None:
        return 0.0
    privacy = Gaussian(
        clip=1.7,
        multiplier=multiplier_for(epsilon, 2),
        scales={"n_rows": 40.0, "first": 20.0, "second": 20.0},
    )
    private = Moments(bound=1.0).fit(fed, privacy=privacy)
    return float(np.abs(private.mean_ - exact.mean_).max() / np.sqrt(np.trace(exact.covariance_)))


def kmeans(epsilon: float | None, fed: Federation, seed: int) -> float:
    how = {}
    if epsilon is not None:
        multiplier = multiplier_for(epsilon, 2 + 6)
        scales = {"n_rows": 40.0, "first": 20.0, "second": 20.0, "sums": 15.0, "sizes": 20.0}
        how = {"privacy": Gaussian(clip=1.7, multiplier=multiplier, scales=scales)}
    model = FederatedKMeans(4, n_init=1, rounds=6, tol=0.0, bound=1.0, seed=seed).fit(fed, **how)
    best = ((fed["x"][:, None] - model.centres_[None]) ** 2).sum(axis=2).min(axis=1).mean()
    return float(best / (fed["x"] - fed["x"].mean(axis=0)).var(axis=0).sum())


def main() -> None:
    args = arguments(__doc__, seeds=5)
    seeds = 1 if args.quick else args.seeds
    fed = groups(2000 if args.quick else 20_000, args.seed)
    rows = []
    for epsilon in (1.0, None) if args.quick else (0.5, 1.0, 2.0, 4.0, 8.0, None):
        results = {
            "Histogram, client: TV error": [histogram(epsilon, "client") for _ in range(seeds)],
            "Histogram, row: TV error": [histogram(epsilon, "row") for _ in range(seeds)],
            "Moments, client: mean error / sd": [moments(epsilon, fed) for _ in range(seeds)],
            "k-means, client: inertia / variance": [kmeans(epsilon, fed, seed) for seed in range(seeds)],
        }
        row = {name: f"{np.mean(v):.5f} ± {np.std(v):.5f}" for name, v in results.items()}
        rows.append({"epsilon": "none" if epsilon is None else epsilon, **row})
    note = (
        f"delta {DELTA:g}, mean ± sd over {seeds} runs; Histogram: 2,462 census regions, 9 categories; Moments and "
        f"k-means: {len(fed):,} clients of 5 to 40 rows, rows cut to length 1; k-means: one start, 6 rounds after "
        "Moments"
    )
    report("private_statistics", rows, note=note)


if __name__ == "__main__":
    main()
