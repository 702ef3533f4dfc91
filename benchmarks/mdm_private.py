"""How much does privacy cost a mixture of Dirichlet-multinomials?

The embedded ACS regions by race (K=3) and FEMNIST writers by label (K=2): mean log-likelihood of held-out clients
(sizes left out) against epsilon at delta 1e-5, all releases counted, beside the fit without privacy, a single
Dirichlet-multinomial and IID clients; total variation between the population means of the private and the other fit;
adjusted Rand index of the two FEMNIST campaigns. Then the same against the clip, and for local noise and single rows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.stats import multinomial
from sklearn.metrics import adjusted_rand_score

from fedscape import All, Federation, Gaussian, calibrate, datasets
from fedscape.mixtures import MixtureOfDirichletMultinomials
from table import arguments, report

DELTA = 1e-5
DATA = {"acs-race": 3, "femnist-labels": 2}


@lru_cache
def multiplier(epsilon: float, releases: int) -> float:
    return calibrate(epsilon, DELTA, rounds=releases, sampler=All())


def split(fed: Federation, seed: int) -> tuple[Federation, Federation]:
    order = np.random.default_rng(seed).permutation(len(fed))
    fifth = len(order) // 5
    return fed.take(np.sort(order[fifth:])), fed.take(np.sort(order[:fifth]))


def population_mean(mixture: MixtureOfDirichletMultinomials) -> np.ndarray:
    return mixture.weights_ @ (mixture.concentrations_ / mixture.concentrations_.sum(axis=1, keepdims=True))


def campaigns(clients: Federation) -> list[bool]:
    return [int(writer[1:5]) >= 1500 for writer in clients.ids]


class Case:
    """One data set, split, and what is known of it without privacy."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.k = name, DATA[name]
        self.train, self.held_out = split(datasets.load(name), seed)
        self.best = MixtureOfDirichletMultinomials(self.k, seed=seed).fit(self.train, progress=False)

    def bounds(self, seed: int) -> list[dict[str, object]]:
        """The rows without privacy."""
        pooled = self.train["y"].sum(axis=0) + 0.5
        counts = self.held_out["y"]
        iid = float(multinomial.logpmf(counts, counts.sum(axis=1), pooled / pooled.sum()).mean())
        single = MixtureOfDirichletMultinomials(1, seed=seed).fit(self.train, progress=False)
        rows = [{"data": self.name, "model": "IID", "epsilon": "inf", "held-out": f"{iid:.2f}"}]
        for model, mixture in (("single DM", single), (f"MDM, K={self.k}", self.best)):
            rows.append({"data": self.name, "model": model, "epsilon": "inf", **self.judged([mixture])})
        return rows

    def judged(self, fits: list[MixtureOfDirichletMultinomials]) -> dict[str, object]:
        scores = [fit.score(self.held_out, sizes=False) for fit in fits]
        away = [np.abs(population_mean(fit) - population_mean(self.best)).sum() / 2 for fit in fits]
        row = {"held-out": spread(scores, 2), "TV of mean": spread(away, 4)}
        if self.name == "femnist-labels":
            truth = campaigns(self.held_out)
            row["ARI"] = spread(
                [adjusted_rand_score(truth, fit.predict(self.held_out, sizes=False)) for fit in fits], 3
            )
        return row

    def private(self, epsilon: float, *, clip: float, rounds: int, seeds: int, **how: str) -> dict[str, object]:
        fits, noise = [], 1e-3
        for seed in range(seeds):
            mixture = MixtureOfDirichletMultinomials(self.k, n_init=1, rounds=rounds, seed=seed)
            if np.isfinite(epsilon):
                noise = multiplier(epsilon, mixture.n_releases())
            if how.get("place") == "local":
                noise *= 2  # replacing a client moves its own arrays by twice the clip
            fits.append(mixture.fit(self.train, privacy=Gaussian(clip=clip, multiplier=noise, **how), progress=False))
        what = how.get("place") or how.get("unit") or "client"
        return {
            "data": self.name,
            "model": f"private, {what}",
            "epsilon": f"{epsilon:g}" if np.isfinite(epsilon) else "no noise",
            "clip": clip,
            "rounds": rounds,
            "noise": float(noise),
            **self.judged(fits),
        }


def spread(values: list[float], digits: int) -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{np.mean(values):.{digits}f} +- {np.std(values, ddof=1):.{digits}f}"


def main() -> None:
    args = arguments(__doc__, seeds=5)
    seeds = 2 if args.quick else args.seeds
    names = ["acs-race"] if args.quick else list(DATA)
    cases = [Case(name, args.seed) for name in names]
    rows = []
    for case in cases:
        rows += case.bounds(args.seed)
        for epsilon in (1.0, 8.0) if args.quick else (0.5, 1.0, 2.0, 4.0, 8.0, np.inf):
            rows.append(case.private(epsilon, clip=1.5, rounds=4, seeds=seeds))
    report("mdm_private", rows, note=f"delta {DELTA:g}; mean and standard deviation over {seeds} seeds")
    if args.quick:
        return
    rows = []
    for case in cases:
        for epsilon in (1.0, 8.0):
            rows += [case.private(epsilon, clip=c, rounds=4, seeds=3) for c in (0.5, 1.0, 1.5, 2.0, 3.0)]
            rows += [case.private(epsilon, clip=1.5, rounds=t, seeds=3) for t in (2, 8)]
    report("mdm_private_clip", rows, note=f"delta {DELTA:g}; mean and standard deviation over 3 seeds")
    rows = []
    for case in cases:
        rows += [case.private(e, clip=1.5, rounds=2, seeds=3, place="local") for e in (8.0, 32.0)]
        rows += [case.private(e, clip=2.2, rounds=4, seeds=3, unit="row") for e in (1.0, 8.0)]
    report("mdm_private_units", rows, note=f"delta {DELTA:g}; mean and standard deviation over 3 seeds")


if __name__ == "__main__":
    main()
