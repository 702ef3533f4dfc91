"""Does the sketch distance follow the total variation distance, and at which rate? (sketch paper, Appendix C.1)

Pairs of 16-dimensional Gaussians of one covariance, whose TVD is 2 Phi(z / 2) - 1. First table: rank correlation of
each measure with the truth over pairs, and the mean absolute error of the measures that estimate it, by Monte Carlo
over fresh rows. Second: the error of a density query in R and N, private and not, beside Theorems 3.3 and 3.4.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

import fedscape as fs
from fedscape.datasets.generators import gaussian_pair
from fedscape.sketches import choose_rows, distance, noise_variance, normalise, query, tvd, tvd_lower_bound
from table import arguments, report

CHOICES = {
    "srp, 4 bits": {"bits": 4},
    "srp, 6 bits": {"bits": 6},
    "pstable, width 2": {"bits": 6, "family": "pstable", "width": 2.0},
    "pstable, width 8": {"bits": 6, "family": "pstable", "width": 8.0},
}


def pairs(n: int, rows: int, seed: int) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Rows of two laws, twice as many as are sketched, and the true distance, spread evenly over 0 to 0.95."""
    made = []
    for i, wanted in enumerate(np.linspace(0.0, 0.95, n)):
        fed, truth = gaussian_pair(2 * rows, tvd=float(wanted), seed=seed * 10_000 + i)
        made.append((fed["x"][: 2 * rows], fed["x"][2 * rows :], float(truth["tvd"])))
    return made


def correlations(n_pairs: int, rows: int, sketch_rows: int, seeds: int) -> list[dict]:
    table = []
    for name, options in CHOICES.items():
        found = {what: [] for what in ("raw", "debiased", "plug-in", "witness", "half L1")}
        ranks = {what: [] for what in found}
        for seed in range(seeds):
            all_ = {what: [] for what in found}
            truths = []
            for x, y, truth in pairs(n_pairs, rows, seed):
                centre = np.concatenate((x[:rows], y[:rows])).mean(axis=0)
                model = fs.DistributionSketch(sketch_rows, centre=centre, seed=seed, **options)
                p, q = normalise(model.count(x[:rows])), normalise(model.count(y[:rows]))
                estimate = tvd(model, p, q, points=(x[rows:], y[rows:]))
                all_["raw"].append(float(distance(p, q)))
                all_["debiased"].append(float(distance(p, q, sizes=(rows, rows), squared=True)))
                all_["plug-in"].append(estimate.plug_in)
                all_["witness"].append(estimate.witness)
                all_["half L1"].append(float(tvd_lower_bound(p, q)))
                truths.append(truth)
            for what, values in all_.items():
                ranks[what].append(spearmanr(values, truths).statistic)
                found[what].append(np.abs(np.array(values) - truths).mean())
        for what in found:
            error = 1.96 * np.std(ranks[what], ddof=1) / np.sqrt(seeds)
            row = {"family": name, "measure": what, "rank correlation": f"{np.mean(ranks[what]):.4f} ± {error:.4f}"}
            if what not in ("raw", "debiased"):
                row["mean absolute error"] = float(np.mean(found[what]))
            table.append(row)
    return table


def paper_pairs(n_pairs: int, rows: int, sketch_rows: int, seeds: int) -> dict:
    """As the paper has it: random means, no centring; most pairs are then almost disjoint."""
    ranks, beyond = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        model = fs.DistributionSketch(sketch_rows, bits=4, seed=seed)
        apart, truths = [], []
        for _ in range(n_pairs):
            mean = rng.normal(size=(2, 16))
            x, y = (rng.normal(m, 1.0, (rows, 16)) for m in mean)
            apart.append(float(distance(normalise(model.count(x)), normalise(model.count(y)))))
            truths.append(float(np.linalg.norm(mean[0] - mean[1])))  # TVD rises with it
        ranks.append(spearmanr(apart, truths).statistic)
        beyond.append(np.mean(np.array(truths) > 4))
    error = 1.96 * np.std(ranks, ddof=1) / np.sqrt(seeds)
    return {
        "family": "srp, 4 bits, not centred, means ~ N(0, I)",
        "measure": f"raw ({np.mean(beyond):.0%} of pairs have TVD > 0.954)",
        "rank correlation": f"{np.mean(ranks):.4f} ± {error:.4f}",
    }


def rates(quick: bool, seeds: int) -> list[dict]:
    """Root mean square error of a mean query against the kernel density of the same rows."""
    table = []
    sizes = [(16, 2000), (64, 2000), (256, 2000), (1024, 2000)]
    sizes += [] if quick else [(64, 500), (64, 8000), (64, 32_000)]
    for rows, n in sizes:
        errors: dict[str, list[float]] = {what: [] for what in ("exact", "epsilon 1", "median")}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            x, q = rng.normal(0.3, 1.0, (n, 16)), rng.normal(0.3, 1.0, (20, 16))
            model = fs.DistributionSketch(rows, bits=3, seed=seed)
            fed = fs.Federation({"x": x}, [0, n])
            truth = np.array([model.collision(np.tile(row, (n, 1)), x).mean() for row in q])
            exact = normalise(model.count(x))
            noisy = fs.DistributionSketch(rows, bits=3, seed=seed).fit(
                fed, privacy=fs.Laplace(clip=float(rows), epsilon=1.0, unit="row"), progress=False
            )
            errors["exact"] += (query(model, exact, q) - truth).tolist()
            errors["median"] += (query(model, exact, q, rule="median") - truth).tolist()
            errors["epsilon 1"] += (query(model, noisy.total_, q) - truth).tolist()
        rms = {what: float(np.sqrt(np.mean(np.square(v)))) for what, v in errors.items()}
        noise = np.sqrt(noise_variance(fs.Laplace(clip=float(rows), epsilon=1.0, unit="row")) / rows) / n
        table.append(
            {
                "R": rows,
                "N": n,
                "error": rms["exact"],
                "error x sqrt(R)": rms["exact"] * np.sqrt(rows),
                "bias of the median": float(np.mean(errors["median"])),
                "error at epsilon 1": rms["epsilon 1"],
                "as predicted": float(np.hypot(rms["exact"], noise)),
            }
        )
    return table


def private_distances(seeds: int) -> list[dict]:
    """How well a private sketch tells z = 2 from z = 0, by rows of the sketch: N = 500, epsilon = 1."""
    table, n = [], 500
    for rows in (1, 4, 20, 100, 1000):
        privacy = fs.Laplace(clip=float(rows), epsilon=1.0, unit="row", place="local")
        found: dict[float, list[float]] = {0.0: [], 2.0: []}
        for z, values in found.items():
            for seed in range(seeds):
                fed, truth = gaussian_pair(n, z=z, seed=seed)
                centre = truth["means"].mean(axis=0)
                model = fs.DistributionSketch(rows, bits=4, centre=centre, seed=seed)
                p, q = model.transform(fed, privacy=privacy)
                noise = noise_variance(privacy)
                values.append(float(distance(p, q, sizes=(n, n), noise=noise, squared=True)) / rows)
        near, far = np.array(found[0.0]), np.array(found[2.0])
        wins = (far[:, None] > near[None, :]).mean()
        table.append(
            {
                "R": rows,
                "squared distance per row, z = 0": f"{near.mean():.3g} ± {near.std():.3g}",
                "z = 2": f"{far.mean():.3g} ± {far.std():.3g}",
                "P(z = 2 looks farther)": float(wins),
            }
        )
    return table


def main() -> None:
    args = arguments(__doc__)
    seeds, n_pairs = (2, 20) if args.quick else (5, 100)
    rows = correlations(n_pairs, 1000, 200 if args.quick else 500, seeds)
    rows.append(paper_pairs(n_pairs, 1000, 200 if args.quick else 500, seeds))
    note = f"{n_pairs} pairs, N = 1000, R = {200 if args.quick else 500}, {seeds} seeds, 95% intervals"
    report("sketch_tvd", rows, note=note)
    print()
    report(
        "sketch_rates", rates(args.quick, 3 if args.quick else 10), note="SRP, 3 bits, mean query, 20 queries a seed"
    )
    print()
    note = f"N = 500, epsilon = 1, add-remove; choose_rows says {choose_rows(500, epsilon=1.0)}; mean ± deviation"
    report("sketch_private", private_distances(10 if args.quick else 60), note=note)


if __name__ == "__main__":
    main()
