"""How near does latent class regression come to the noise on SynthHLCR, and what do cohorts and gamma do to it?

The paper leaves F, alpha, beta and delta open: here F = 8, delta = 1, alpha = 16, beta = 4, K = 16, 128 agents. Two
tables: held-out MSE / sigma^2 by five-fold cross-validation over events, by method; and after 10, 20 and 40 rounds with
15%, 50% and all of the agents in each, by gamma (Figure 3). `--only methods` or `gamma` makes one of them, `--methods
"ridge;central"` some rows of the first.
"""

from __future__ import annotations

import numpy as np

from fedscape import LatentClassRegression, Poisson
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.mixtures.latent_class.rounds import ClassAssignment
from table import arguments, report

MODEL = {"alpha": 16.0, "beta": 4.0, "delta": 1.0, "intercept": False, "standardise": False}


class OwnKept(ClassAssignment):
    """Algorithm 3 as printed: an entity's own events stay in its class, sigma is known from the first round on."""

    def step(self, state, clients, key):
        return super().step({**state, "held": np.zeros(())}, clients, key)


class CountsUnshared(ClassAssignment):
    """The counts N^(k) do not reach the agents, as in the paper's Algorithm 3."""

    def step(self, state, clients, key):
        sums = np.array(state["sums"])
        sums[:, -1] = 0.0
        return super().step({**state, "sums": sums}, clients, key)


class Variant(LatentClassRegression):
    """The same estimator with rounds of another kind."""

    kind: type[ClassAssignment] = ClassAssignment

    def _work(self, *place):
        params = super()._work(*place).get_params()
        return self.kind(**{**params, "warm": 0 if self.kind is OwnKept else params["warm"]})


def variant(kind, *args, **settings):
    made = type("Variant", (Variant,), {"kind": kind, "__init__": LatentClassRegression.__init__})
    return made(*args, **settings)


def error(reg, train, test, sigma, *, sampler=None, classes="shares"):
    reg.fit(train, sampler=sampler, progress=False)
    return float(np.mean((reg.predict(test, classes=classes) - test["y"]) ** 2) / sigma**2)


def folds(fed, events, n):
    place = np.arange(fed.n_rows) % events
    for fold in range(n):
        test = place % 5 == fold
        yield fed.where(~test), fed.where(test)


def methods(sigma, seed):
    known = {**MODEL, "sigma": sigma, "rounds": 20, "seed": seed}
    learned = {**known, "sigma": None, "delta": None}
    return {
        "ridge": (LatentClassRegression(1, **known), {}),
        "LCR (EM)": (LatentClassRegression(16, **known, method="em"), {}),
        "federated": (LatentClassRegression(16, **known), {}),
        "federated, latest": (LatentClassRegression(16, **known, gamma="latest"), {}),
        "label drawn": (LatentClassRegression(16, **known), {"classes": "drawn"}),
        "sigma, delta learned": (LatentClassRegression(16, **learned), {}),
        "as printed": (variant(OwnKept, 16, **known, gamma=1.0), {"classes": "drawn"}),
        "counts not shared": (variant(CountsUnshared, 16, **known, gamma=1.0), {}),
        "central": (LatentClassRegression(16, **known, method="central"), {}),
        "central, exact prior": (LatentClassRegression(16, **known, method="central-exact"), {}),
        "15%": (LatentClassRegression(16, **known), {"sampler": Poisson(0.15)}),
        "15%, latest": (LatentClassRegression(16, **known, gamma="latest"), {"sampler": Poisson(0.15)}),
    }


def by_method(seeds: range, n_folds: int, settings, wanted: str = "") -> None:
    rows = []
    for entities, events, sigma in settings:
        found: dict[str, list[float]] = {}
        for seed in seeds:
            fed, truth = hlcr_synthetic(128, entities=entities, events=events, sigma=sigma, seed=seed)
            w = truth["coefficients"][np.repeat(truth["z"].ravel(), events)]
            found.setdefault("truth", []).append(
                float(np.mean((fed["y"] - (fed["x"] * w).sum(axis=1)) ** 2) / sigma**2)
            )
            for name, (reg, how) in methods(sigma, seed).items():
                if wanted and name not in wanted.split(";"):
                    continue
                each = [error(reg, train, test, sigma, **how) for train, test in folds(fed, events, n_folds)]
                found.setdefault(name, []).append(float(np.mean(each)))
        shown = {n: f"{np.median(v):.3f} ({min(v):.2f} to {max(v):.2f})" for n, v in found.items()}
        rows.append({"N*, N**, sigma": f"{entities}, {events}, {sigma:g}", **shown})
    turned = [{"method": name, **{row["N*, N**, sigma"]: row[name] for row in rows}} for name in list(rows[0])[1:]]
    note = f"MSE / sigma^2: median (range) of {len(seeds)} seeds, each the mean of {n_folds} of 5 folds; 20 rounds"
    report("hlcr_synthetic_methods", turned, note=note)


def by_gamma(seeds: range, rounds: tuple[int, ...], rates: tuple[float, ...]) -> None:
    rows = []
    for sigma in (1.0, 0.3):
        for rate in rates:
            for gamma in (0.1, 0.2, 0.5, 0.75, 1.0, "latest"):
                row = {"sigma": sigma, "agents in a round": rate, "gamma": gamma}
                for n in rounds:
                    each = []
                    for seed in seeds:
                        fed, _ = hlcr_synthetic(128, sigma=sigma, seed=seed)
                        train, test = next(folds(fed, 10, 1))
                        reg = LatentClassRegression(16, **MODEL, sigma=sigma, gamma=gamma, rounds=n, seed=seed)
                        each.append(error(reg, train, test, sigma, sampler=Poisson(rate)))
                    row[f"{n} rounds"] = f"{np.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
                rows.append(row)
    report(
        "hlcr_synthetic_gamma", rows, note=f"MSE / sigma^2 at (16, 10), one fold, median (range) of {len(seeds)} seeds"
    )


def main() -> None:
    args = arguments(__doc__, seeds=5, only="", methods="")
    seeds = range(args.seed, args.seed + args.seeds)
    if args.quick:
        by_method(seeds[:1], 1, [(4, 5, 1.0)])
        by_gamma(seeds[:1], (10,), (0.15,))
        return
    if args.only in ("", "methods"):
        by_method(seeds, 5, [(16, 10, 1.0), (16, 10, 0.3), (4, 5, 1.0), (4, 5, 0.3)], args.methods)
        print()
    if args.only in ("", "gamma"):
        by_gamma(seeds, (10, 20, 40), (0.15, 0.5, 1.0))


if __name__ == "__main__":
    main()
