"""What is each mend of the papers worth? The printed form beside the mended one, everything else the same.

Synthetic data at a size that one core does in minutes; medians (ranges) over seeds. FedTEM, FedTKM and SCSGD, which
train networks, are in `temporal.py` (methods "fedtem-printed", "fedtkm-constant", "scsgd-first-half"). `--only mdm`,
`cohorts`, `hlcr`, `hlcr_slow`, `slow`, `figure3b`, `figure3a`, `sketch`, `fedgmm` or `transformed` makes one table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import spearmanr

from fedscape import DistributionSketch, FixedSize, GaussianMixture, LatentClassRegression, Poisson
from fedscape.datasets.generators import gaussian_pair, hlcr_synthetic, mdm_table1
from fedscape.papers import (
    MENDS,
    Identity,
    PrintedMixture,
    PrintedRegression,
    cell_tvd,
    collision_volume,
    path_bound,
    path_tvd,
)
from fedscape.sketches import distance, normalise, tvd
from table import arguments, half_width, report

KNOWN = {"alpha": 16.0, "beta": 4.0, "delta": 1.0, "intercept": False, "standardise": False}


def shown(values: list[float], digits: int = 3) -> str:
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def error_of(a: np.ndarray, truth: np.ndarray) -> float:
    """|A - A*| / |A*|, components matched."""
    cost = (np.log(a[:, None] / truth[None]) ** 2).sum(axis=2)
    found, true = linear_sum_assignment(cost)
    return float(np.linalg.norm(a[found[np.argsort(true)]] - truth) / np.linalg.norm(truth))


def sized(seed: int) -> tuple[Any, np.ndarray]:
    """Two components alike in their categories' law but for its scale, of 5 to 15 and of 30 to 60 rows."""
    weights, alphas = np.array([0.5, 0.5]), np.array([[2.0, 3.0, 1.0, 4.0], [8.0, 3.0, 4.0, 1.0]])
    rng = np.random.default_rng(seed)
    laws = np.zeros((2, 61))
    laws[0, 5:16], laws[1, 30:61] = 1 / 11, 1 / 31
    component = rng.choice(2, 600, p=weights)
    n = np.array([rng.choice(61, p=laws[k]) for k in component])
    counts = np.stack([rng.multinomial(m, rng.dirichlet(alphas[k])) for m, k in zip(n, component, strict=True)])
    return counts, component


def mdm(seeds: range) -> None:
    """Eq. (6) and (9): how far the start is off, and what the fit makes of it."""
    rows = []
    for title, how in {
        "as printed, eq. (6) and (9)": {},
        "one law of sizes at first": {"first_sizes": "common"},
        "pooled moments": {"moments": "pooled"},
        "both mended": {"first_sizes": "common", "moments": "pooled"},
    }.items():
        row: dict[str, Any] = {"start": title}
        for n_rounds in (1, 5, 100):
            right = []
            for seed in seeds:
                counts, component = sized(seed)
                fitted = PrintedMixture(2, rounds=n_rounds, seed=seed, **how).fit(counts)
                hits = float(np.mean(fitted.predict(counts) == component))
                right.append(100 * max(hits, 1 - hits))
            row[f"two kinds of other sizes, {n_rounds} rounds: % right"] = shown(right, 1)
        scale, recovered = [], []
        for seed in seeds:
            fed, truth = mdm_table1("medium-1", 300, n=20, seed=seed)
            one = PrintedMixture(1, rounds=1, seed=seed, sizes=None, **how).fit(fed)
            scale.append(float(one.concentrations_.sum()))
            fed, truth = mdm_table1("medium-3", 1000, n=20, seed=seed)
            three = PrintedMixture(3, rounds=100, seed=seed, sizes=None, **how).fit(fed)
            recovered.append(error_of(three.concentrations_, truth["concentrations"]))
        row["medium-1, 300 clients: alpha_0 = 8 after a round"] = shown(scale, 2)
        row["medium-3: error of A, 100 rounds"] = shown(recovered)
        rows.append(row)
    report("as_printed_mdm", rows, note=f"median (range) of {len(seeds)} seeds from {seeds[0]}; all clients take part")


def cohorts(seeds: range) -> None:
    """Algorithm 2 on cohorts: the sums of a round alone, or averages over rounds."""
    rows = []
    for setting in ("medium-2", "medium-3", "high-2"):
        for title, average in (("as printed", None), ("averages over rounds", 0.7)):
            row: dict[str, Any] = {"setting": setting, "cohorts of 200 of 2,000": title}
            for n_rounds in (20, 100):
                each = []
                for seed in seeds:
                    fed, truth = mdm_table1(setting, 2000, n=20, seed=seed)
                    how = {"rounds": n_rounds, "sizes": None, "seed": seed, "average": average}
                    fitted = PrintedMixture(int(setting[-1]), **how).fit(fed, sampler=FixedSize(200), progress=False)
                    each.append(error_of(fitted.concentrations_, truth["concentrations"]))
                row[f"error of A, {n_rounds} rounds"] = shown(each)
            rows.append(row)
    report("as_printed_cohorts", rows, note=f"median (range) of {len(seeds)} seeds from {seeds[0]}, n = 20, one start")


def fold(fed: Any, events: int) -> tuple[Any, Any]:
    test = np.arange(fed.n_rows) % events % 5 == 0
    return fed.where(~test), fed.where(test)


def mse(reg: Any, sigma: float, seed: int, *, share: float | None, events: int = 10, **data: Any) -> float:
    fed, _ = hlcr_synthetic(128, events=events, sigma=sigma, seed=seed, **data)
    train, test = fold(fed, events)
    reg.fit(train, sampler=None if share is None else Poisson(share), progress=False)
    return float(np.mean((reg.predict(test) - test["y"]) ** 2) / sigma**2)


def hlcr(seeds: range, n_rounds: int = 20, gamma: float = 0.5) -> None:
    """Each mend of Algorithm 3 alone, all agents and 15% of them."""
    rows = []
    settings: dict[str, tuple[str, ...]] = {"as printed": ()}
    settings |= {f"with {name}": (name,) for name in MENDS} | {"all four": MENDS}
    for title, mended in settings.items():
        row: dict[str, Any] = {"Algorithm 3": title}
        for sigma in (1.0, 0.3):
            for share in (None, 0.15):
                how = {**KNOWN, "sigma": sigma, "gamma": gamma, "rounds": n_rounds, "mended": mended}
                each = [mse(PrintedRegression(16, **how, seed=seed), sigma, seed, share=share) for seed in seeds]
                row[f"sigma {sigma:g}, {'all' if share is None else '15%'}"] = shown(each, 2)
        rows.append(row)
    name = "as_printed_hlcr" if gamma == 0.5 else "as_printed_hlcr_slow"
    note = f"MSE / sigma^2 at (16, 10), gamma {gamma}, one fold, {n_rounds} rounds, median (range) of {len(seeds)}"
    report(name, rows, note=f"{note} seeds from {seeds[0]}")


def figure3b(seeds: range, gammas: tuple[float, ...], n_rounds: int = 20) -> None:
    """Figure 3 (b): 15% of agents, by gamma, as printed and by the toolkit."""
    rows = []
    for gamma in gammas:
        row: dict[str, Any] = {"gamma": gamma}
        for sigma in (1.0, 0.3):
            for title, make in (("as printed", PrintedRegression), ("fedscape", LatentClassRegression)):
                each = [
                    mse(make(16, **KNOWN, sigma=sigma, gamma=gamma, rounds=n_rounds, seed=s), sigma, s, share=0.15)
                    for s in seeds
                ]
                row[f"sigma {sigma:g}, {title}"] = shown(each, 2)
        rows.append(row)
    note = f"MSE / sigma^2 at (16, 10), 15% of agents, one fold, {n_rounds} rounds, median (range)"
    report("as_printed_figure3b", rows, note=f"{note} of {len(seeds)} seeds from {seeds[0]}")


def slow(seeds: range, n_rounds: int) -> None:
    """gamma = 0.2, sigma = 0.3, 15% of agents: which correction costs rounds, and why scaled sums do.

    Scaled sums weigh more against the prior, and classes become narrower. "Narrow alone" scales the prior's precision
    by as much, so coefficients are those of the printed form and only the width is that of scaled sums.
    """
    settings: dict[str, Any] = {"as printed": {}}
    settings |= {f"with {name}": {"mended": (name,)} for name in MENDS}
    settings |= {"all four": {"mended": MENDS}}
    settings |= {"with cohorts, narrow alone": {"mended": ("cohorts",), "delta": 0.15**0.5}}
    found = {}
    for title, about in settings.items():
        how = {**KNOWN, "sigma": 0.3, "gamma": 0.2, "rounds": n_rounds, **about}
        found[title] = [mse(PrintedRegression(16, **how, seed=seed), 0.3, seed, share=0.15) for seed in seeds]
    how = {**KNOWN, "sigma": 0.3, "gamma": 0.2, "rounds": n_rounds}
    found["fedscape"] = [mse(LatentClassRegression(16, **how, seed=seed), 0.3, seed, share=0.15) for seed in seeds]
    rows = []
    for title, each in found.items():
        ratio = np.log(np.array(each) / np.array(found["as printed"]))
        half = half_width(ratio.tolist())
        low, mean, high = np.exp([ratio.mean() - half, ratio.mean(), ratio.mean() + half])
        row = {"Algorithm 3": title, "MSE / sigma^2": shown(each, 2)}
        rows.append(row | {"over as printed": "" if title == "as printed" else f"{mean:.2f} [{low:.2f}, {high:.2f}]"})
    note = f"gamma 0.2, sigma 0.3, 15% of agents, (16, 10), one fold, {n_rounds} rounds, {len(seeds)} seeds from "
    note += f"{seeds[0]}; median (range); geometric mean of the ratio with a paired 95% t interval"
    report("as_printed_hlcr_gamma", rows, note=note)


def figure3a(seeds: range) -> None:
    """Figure 3 (a): K = 4, 8, 16, 32 true and fitted classes, as printed and by the toolkit."""
    rows = []
    for k in (4, 8, 16, 32):
        for title, make in (("as printed", PrintedRegression), ("fedscape", LatentClassRegression)):
            row: dict[str, Any] = {"K": k, "form": title}
            for entities, events in ((4, 5), (16, 10)):
                for sigma in (1.0, 0.3):
                    data = {"events": events, "entities": entities, "components": k}
                    how = {**KNOWN, "sigma": sigma, "gamma": 0.5, "rounds": 20}
                    each = [mse(make(k, **how, seed=s), sigma, s, share=None, **data) for s in seeds]
                    row[f"N* {entities}, N** {events}, sigma {sigma:g}"] = shown(each, 2)
            rows.append(row)
    note = f"MSE / sigma^2, one fold, 20 rounds, gamma 0.5, median (range) of {len(seeds)} seeds from {seeds[0]}"
    report("as_printed_figure3a", rows, note=note)


def sketch(seeds: range, n_pairs: int) -> None:
    """Figure 4: the estimate through cells and lambda(A) beside the distance and the toolkit's estimate."""
    rows: list[dict[str, Any]] = []
    for n_rows, bits in ((1, 4), (4, 4), (200, 4)):
        found: dict[str, list[list[float]]] = {}
        truths = []
        for seed in seeds:
            each: dict[str, list[float]] = {}
            truth = []
            for i, wanted in enumerate(np.linspace(0.0, 0.95, n_pairs)):
                pair, known = gaussian_pair(2000, tvd=float(wanted), seed=1000 * seed + i)
                x, y = pair["x"][:2000], pair["x"][2000:]
                model = DistributionSketch(n_rows, bits=bits, centre=known["means"].mean(axis=0), seed=seed)
                p, q = normalise(model.count(x[:1000])), normalise(model.count(y[:1000]))
                both = np.concatenate((x[:1000], y[:1000]))
                radius = float(np.linalg.norm(both - known["means"].mean(axis=0), axis=1).max())
                ball = collision_volume(bits, 16, radius=radius, rows=n_rows)
                unit = collision_volume(bits, 16, radius=1.0, rows=n_rows)
                each.setdefault("cells, lambda over the data's ball", []).append(
                    cell_tvd(model, p, q, both, volume=ball)
                )
                each.setdefault("cells, lambda over the unit ball", []).append(cell_tvd(model, p, q, both, volume=unit))
                each.setdefault("cells, volume 1", []).append(cell_tvd(model, p, q, both, volume=1.0))
                each.setdefault("L1 bound as printed", []).append(path_bound(p, q))
                if n_rows <= 4:
                    each.setdefault("paths as printed", []).append(path_tvd(p, q))
                    each.setdefault("paths mended", []).append(path_tvd(p, q, mended=True))
                each.setdefault("Frobenius norm", []).append(float(distance(p, q)))
                estimate = tvd(model, p, q, points=(x[1000:], y[1000:]))
                each.setdefault("plug-in", []).append(estimate.plug_in)
                each.setdefault("witness (fedscape)", []).append(estimate.witness)
                truth.append(float(known["tvd"]))
            for name, values in each.items():
                found.setdefault(name, []).append(values)
            truths.append(truth)
        for name, values in found.items():
            ranks = [float(spearmanr(v, t).statistic) for v, t in zip(values, truths, strict=True)]
            off = [float(np.abs(np.array(v) - t).mean()) for v, t in zip(values, truths, strict=True)]
            row = {"R": n_rows, "bits": bits, "estimate": name, "rank correlation": shown(ranks)}
            rows.append({**row, "mean absolute error": f"{np.median(off):.3g} ({min(off):.3g} to {max(off):.3g})"})
    note = f"{n_pairs} pairs of Gaussians in 16 dimensions, TVD 0 to 0.95, N = 1,000; median (range) of {len(seeds)}"
    report("as_printed_sketch", rows, note=f"{note} seeds from {seeds[0]}")


def fedgmm(seeds: range) -> None:
    """Algorithm 2: Sigma = I (Theorem 1), the printed average of covariances, and exact sums; held-out likelihood."""
    from fedscape import Federation

    rows = []
    for spread in (0.0, 1.0, 3.0):
        found: dict[str, list[float]] = {}
        for seed in seeds:
            rng = np.random.default_rng(seed)
            means = rng.choice([-4.0, 4.0], (60, 1)) * np.ones(2) + spread * rng.normal(size=(60, 2))
            x = np.repeat(means, 60, axis=0) + rng.normal(size=(3600, 2))
            fed = Federation({"x": x}, np.arange(0, 3601, 60))
            train, test = fed.split(test=0.3, seed=seed)
            for title, how in {
                "Sigma = I": {"covariance": Identity()},
                "averaged, as printed": {"scatter": "within_clients"},
                "exact (fedscape)": {},
            }.items():
                mixture = GaussianMixture(2, seed=seed, **how).fit(train, progress=False)
                found.setdefault(title, []).append(float(mixture.score(test)))
        rows.append({"scatter of clients' means": spread, **{n: shown(v) for n, v in found.items()}})
    note = f"nats a held-out row; 60 clients x 60 rows, two components; median (range) of {len(seeds)} seeds"
    report("as_printed_fedgmm", rows, note=f"{note} from {seeds[0]}")


def by_client(fed: Any, seed: int) -> Any:
    """T(x) and P_A(y) on a share of each client's rows drawn from Beta(0.4, 0.4), as `fedgmm_images.py` has it."""
    from fedscape.simulate.shifted import turned

    rng = np.random.default_rng(seed)
    chosen = rng.random(fed.n_rows) < rng.beta(0.4, 0.4, len(fed))[fed.client_of_row]
    x, y = fed["x"].copy(), np.array(fed["y"])
    x[chosen] = turned(x[chosen])
    y[chosen] = rng.permutation(62)[y[chosen]]
    return fed.with_column("x", x).with_column("y", y)


def transformed(seeds: range, n_rounds: int = 12) -> None:
    """FedGMM 4.1: half of all rows transformed, or a share of each client's; embedded handwriting, a linear learner."""
    from fedscape import LocalSGD, datasets
    from fedscape.learning import cross_entropy, models
    from fedscape.methods import train
    from fedscape.papers import half_transformed

    rows, writers = [], datasets.load("femnist-mini")
    for title, make in (("half of all rows", lambda f, s: half_transformed(f, seed=s)), ("Beta(0.4, 0.4)", by_client)):
        found: dict[str, list[float]] = {}
        for seed in seeds:
            fed = make(writers, seed)
            small = (fed["x"][:, ::2, ::2].reshape(fed.n_rows, -1) / 255).astype(np.float32)
            part, test = fed.with_column("x", small).split(test=0.2, seed=seed)
            step = LocalSGD(models.linear(196, 62), cross_entropy, lr=0.02, epochs=1, batch_size=32, optimiser="adam")
            for name in ("fedavg", "fedem", "fedgmm"):
                done = train(name, step, part, n_rounds=n_rounds, seed=seed)
                found.setdefault(name, []).append(100 * done.evaluate(test).summary()["accuracy_of_clients"])
        gain = [a - b for a, b in zip(found["fedgmm"], found["fedem"], strict=True)]
        rows.append(
            {"transformed": title, **{n: shown(v, 1) for n, v in found.items()}, "fedgmm - fedem": shown(gain, 1)}
        )
    note = f"accuracy in percent, mean over 30 writers, {n_rounds} rounds; median (range) of {len(seeds)} seeds"
    report("as_printed_transformed", rows, note=f"{note} from {seeds[0]}")


def main() -> None:
    args = arguments(__doc__, seeds=5, only="")
    seeds = range(args.seed, args.seed + (1 if args.quick else args.seeds))
    tables = {
        "mdm": lambda: mdm(seeds),
        "cohorts": lambda: cohorts(seeds),
        "hlcr": lambda: hlcr(seeds, 5 if args.quick else 20),
        "hlcr_slow": lambda: hlcr(seeds, 5 if args.quick else 20, 0.2),
        "slow": lambda: slow(seeds, 5 if args.quick else 20),
        "figure3b": lambda: figure3b(seeds, (0.75,) if args.quick else (0.1, 0.2, 0.5, 0.75, 1.0)),
        "figure3a": lambda: figure3a(seeds),
        "sketch": lambda: sketch(seeds, 5 if args.quick else 40),
        "fedgmm": lambda: fedgmm(seeds),
        "transformed": lambda: transformed(seeds, 3 if args.quick else 12),
    }
    for name, make in tables.items():
        if args.only in ("", name):
            make()
            print()


if __name__ == "__main__":
    main()
