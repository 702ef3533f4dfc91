"""How fast are simulated clients cut, and does every recipe end with exact counts?

A million clients of 50 rows from a million proxy rows, as row indices; then the settings on which splitters that retry
until every client is large enough do not end (alpha 0.01, 500 clients, 100 classes). Every recipe: whether the counts
are exact, whether clients are disjoint, and the chi-square p-value that every proxy row is drawn alike.
"""

from __future__ import annotations

import resource
import time

import numpy as np
from scipy import stats

from fedscape import Federation, Key, MixtureOfDirichletMultinomials
from fedscape.datasets.generators import dirichlet_multinomial
from fedscape.simulate import ConditionallyIID, Dirichlet, FromMixture, FullyIID, Pathological, Quantity, Shards, plan
from table import arguments, report


def mixture(categories: int, sizes: int, seed: int) -> MixtureOfDirichletMultinomials:
    rng = np.random.default_rng(seed)
    alpha = rng.gamma(1.0, 1.0, (3, categories)) + 0.05
    fed, _ = dirichlet_multinomial(2000, weights=[0.5, 0.3, 0.2], concentrations=alpha, sizes=sizes, seed=seed)
    return MixtureOfDirichletMultinomials(3, rounds=10, seed=seed).fit(fed, progress=False)


def line(name: str, recipe, data: Federation, n: int | None, policy: str, seed: int) -> dict:
    began = time.perf_counter()
    made = plan(recipe, data, n_clients=n, column="y", seed=seed, policy=policy)
    seconds = time.perf_counter() - began
    seen = np.bincount(made.rows, minlength=data.n_rows)
    if recipe.by_category:
        owner = np.repeat(np.arange(len(made)), made.sizes)
        number = made.histograms.shape[1]
        exact = True
        for begin in range(0, len(made), 65536):
            part = slice(int(made.offsets[begin]), int(made.offsets[min(begin + 65536, len(made))]))
            cell = (owner[part] - begin) * number + data["y"][made.rows[part]]
            wanted = made.histograms[begin : begin + 65536]
            exact &= bool(np.array_equal(np.bincount(cell, minlength=wanted.size).reshape(wanted.shape), wanted))
    else:
        exact = bool(np.array_equal(made.sizes, made.histograms[:, 0]))
    expected = made.histograms.sum(axis=0) / np.maximum(made.feasibility.available, 1)
    each = expected[data["y"]] if recipe.by_category else np.full(data.n_rows, expected[0])
    apart = seen.max() <= 1
    chi = "-" if apart else float(stats.chi2.sf(((seen - each) ** 2 / each).sum(), data.n_rows - len(expected)))
    return {
        "recipe": name,
        "clients": len(made),
        "rows": len(made.rows),
        "policy": policy,
        "seconds": seconds,
        "exact counts": exact,
        "disjoint": bool(apart),
        "chi-square p": chi,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    args = arguments(__doc__, clients=1_000_000)
    n, rows = (20_000, 20_000) if args.quick else (args.clients, 1_000_000)
    rng = np.random.default_rng(args.seed)
    data = Federation({"y": rng.integers(0, 10, rows)}, [0, rows])
    small = Federation({"y": np.repeat(np.arange(10), 10)}, [0, 100])
    plan(FullyIID(5), small, n_clients=10)  # compile
    model = mixture(10, 50, args.seed)
    lines = [
        line("FullyIID, 50 rows", FullyIID(50), data, n, "independent", args.seed),
        line("FromMixture, 50 rows", FromMixture(model, sizes=50), data, n, "independent", args.seed),
        line("Dirichlet(0.3), 50 rows", Dirichlet(0.3, sizes=50), data, n, "independent", args.seed),
        line("FullyIID, 1 row", FullyIID(1), data, n, "refuse", args.seed),
    ]
    hard = Federation({"y": rng.permutation(np.repeat(np.arange(100), 500))}, [0, 50_000])
    histograms = Dirichlet(0.05).draw(np.full(100, 500), 500, Key(args.seed))
    for name, recipe in {
        "Dirichlet(0.01)": Dirichlet(0.01),
        "Dirichlet(0.01), least 10": Dirichlet(0.01, least=10),
        "Dirichlet(1e-6), least 10": Dirichlet(1e-6, least=10),
        "Shards(2)": Shards(2),
        "Pathological(2)": Pathological(2),
        "Quantity(0.01), least 10": Quantity(0.01, least=10),
        "ConditionallyIID": ConditionallyIID(histograms),
    }.items():
        lines.append(line(name, recipe, hard, None if name == "ConditionallyIID" else 500, "refuse", args.seed))
    for name, recipe in {
        "ConditionallyIID": ConditionallyIID(np.maximum(histograms, 1)),
        "Dirichlet(0.3), 100 rows": Dirichlet(0.3, sizes=100),
        "FullyIID, 200 rows": FullyIID(200),
        "FromMixture": FromMixture(mixture(100, 200, args.seed)),
    }.items():
        lines.append(line(name, recipe, hard, 5_000, "independent", args.seed))
    report("simulate_speed", lines, note="indices only; one thread; the peak is of the whole process so far")


if __name__ == "__main__":
    main()
