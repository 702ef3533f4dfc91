"""Does the mixture of Dirichlet-multinomials find the law that clients were drawn from, and the number of its kinds?

Three tables: the nine settings of Table 1 fitted to 1,000 clients; the paper's own protocol (a fresh cohort of 1,000 in
each of 100 rounds), error of A and tau against rounds; and the choice of K in Appendix A.2. Low-3, of which the paper
prints two rows, has the third row of the authors' script, all 1.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedscape import rounds
from fedscape.datasets.generators.counts import TABLE_1, mdm_a2, mdm_table1
from fedscape.mixtures import MixtureOfDirichletMultinomials, choose_components
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.start import StartingPoints, Survey, matched, with_broad
from fedscape.papers import nmse
from table import RESULTS, arguments, report

SHOWN = (1, 3, 10, 30, 100)


@dataclass(frozen=True)
class Fresh:
    """Another cohort each round: the next `size` clients."""

    size: int

    def draw(self, clients, key):
        return (key.round * self.size + np.arange(self.size)) % len(clients.keys)


def truth_as_mixture(truth, like):
    mixture = MixtureOfDirichletMultinomials(len(truth["weights"]), sizes=None)
    mixture.weights_, mixture.concentrations_ = np.array(truth["weights"]), np.array(truth["concentrations"])
    mixture.size_laws_, mixture.reach_ = None, like.reach_
    return mixture


def fits(seeds: int, settings: list[str], sizes: tuple[int, ...]) -> None:
    rows = []
    for n in sizes:
        for setting in settings:
            gains, gaps, took = [], [], []
            for seed in range(seeds):
                fed, truth = mdm_table1(setting, 1000, n=n, seed=seed)
                fresh, _ = mdm_table1(setting, 5000, n=n, seed=10_000 + seed)
                mixture = MixtureOfDirichletMultinomials(int(setting[-1]), sizes=None, rounds=100, tol=1e-6, seed=seed)
                mixture.fit(fed, progress=False)
                true = truth_as_mixture(truth, mixture)
                gains.append(mixture.score(fed) - true.score(fed))
                gaps.append((true.score(fresh) - mixture.score(fresh)) / (2.5 * mixture.n_parameters_ / 2000))
                took.append(mixture.n_rounds_)
            rows.append(
                {
                    "setting": setting,
                    "n": n,
                    "train >= truth": f"{sum(g >= 0 for g in gains)} of {seeds}",
                    "held-out gap <= 2.5 p/2M": f"{sum(g <= 1 for g in gaps)} of {seeds}",
                    "least gain": min(gains),
                    "largest gap / bound": max(gaps),
                    "rounds of EM, median": float(np.median(took)),
                }
            )
    report("mdm_recovery_fits", rows, note="four starts, at most 100 rounds, tol 1e-6, sizes left out")


def errors(state, model, ends, truth):
    """Eq. (50) and the ratio of norms, for A and tau, components matched by the Hungarian method."""
    part = slice(ends[model], ends[model + 1])
    a, tau = state["mean"][part] / state["dispersion"][part, None], state["weights"][part]
    a_true, tau_true = truth["concentrations"], truth["weights"]
    cost = (np.log(a[:, None] / a_true[None]) ** 2).sum(axis=2)
    found, true = linear_sum_assignment(cost)
    a, tau = a[found[np.argsort(true)]], tau[found[np.argsort(true)]]
    eq50 = [nmse(x, y) for x, y in ((a, a_true), (tau, tau_true))]
    ratio = [float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in ((a, a_true), (tau, tau_true))]
    return eq50 + ratio


def path(setting: str, n: int, seed: int, variant: str, n_rounds: int) -> np.ndarray:
    """Errors after each round of the model that is most likely in the last one: [rounds, 4]."""
    fed, truth = mdm_table1(setting, 1000 * n_rounds, n=n, seed=seed)
    paper = variant == "paper"
    k = int(setting[-1])
    models = (k,) * (1 if paper or k == 1 else 4)
    cohort = Fresh(1000)
    found = next(rounds(Survey(models, 10), fed, n_rounds=1, sampler=cohort, seed=seed)).state
    start = StartingPoints(models, 10, random=paper)
    state = {"anchors": found["anchors"]}
    joined = next(rounds(start, fed, n_rounds=1, sampler=cohort, seed=seed, state=state)).state
    mean, dispersion = matched(joined, found["mean"])
    if not paper:
        with_broad(mean, dispersion, joined, found["mean"], models)
    solver = "fixed_point" if paper else variant
    work = TailCountEM(models, np.array(found["reach"]), sizes=None, solver=solver, average=None if paper else 0.7)
    seen, likelihood = [], []
    for r in rounds(work, fed, n_rounds=n_rounds, sampler=cohort, seed=seed, state=work.begin(mean, dispersion)):
        seen.append(r.state)
        likelihood.append(r.metrics["log_likelihood"])
    best = int(np.mean(likelihood[-10:], axis=0).argmax())
    ends = np.cumsum((0, *models))
    return np.array([errors(state, best, ends, truth) for state in seen])


def protocol(seeds: int, settings: list[str], sizes: tuple[int, ...], n_rounds: int) -> None:
    rows, curves = [], {}
    for n in sizes:
        for setting in settings:
            for variant in ("exact", "newton", "fixed_point", "paper"):
                paths = np.median([path(setting, n, seed, variant, n_rounds) for seed in range(seeds)], axis=0)
                curves[setting, n, variant] = paths
                row = {"setting": setting, "n": n, "solver": variant}
                for r in (r for r in SHOWN if r <= n_rounds):
                    row[f"A, {r}"], row[f"tau, {r}"] = paths[r - 1, 2], paths[r - 1, 3]
                row["A by eq. 50, last"], row["tau by eq. 50, last"] = paths[-1, 0], paths[-1, 1]
                rows.append(row)
    draw(curves, sizes)
    note = (
        f"ratio of norms |A - A*| / |A*| and of tau after so many rounds, median of {seeds} seeds; exact, newton and "
        "fixed_point: four spread starts, running averages; paper: Algorithm 1 and 2 as printed, one start"
    )
    report("mdm_recovery_rounds", rows, note=note)


def draw(curves, sizes) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    settings = list(dict.fromkeys(setting for setting, _, _ in curves))
    for n in sizes:
        figure, axes = plt.subplots(2, len(settings), figsize=(3 * len(settings), 5), squeeze=False)
        for (setting, size, variant), paths in curves.items():
            if size != n:
                continue
            for axis, column in zip(axes[:, settings.index(setting)], (2, 3), strict=True):
                axis.loglog(np.arange(1, len(paths) + 1), np.maximum(paths[:, column], 1e-4), label=variant)
                axis.set_title(f"{'A' if column == 2 else 'tau'}, {setting}, n={n}", fontsize=8)
        axes[0, 0].legend(fontsize=7)
        figure.tight_layout()
        RESULTS.mkdir(exist_ok=True)
        figure.savefig(RESULTS / f"mdm_recovery_n{n}.png", dpi=100)
        plt.close(figure)


def components(seeds: int, numbers: tuple[int, ...]) -> None:
    rows = []
    for m in numbers:
        chosen, halved, scores = [], [], []
        for seed in range(seeds):
            fed, fresh = mdm_a2(m, seed=seed)[0], mdm_a2(1000, seed=10_000 + seed)[0]
            mixture = MixtureOfDirichletMultinomials(sizes=None, rounds=60, tol=1e-5, seed=seed)
            choice = choose_components(mixture, fed, validation=fresh, progress=False)
            chosen.append(choice.n_components)
            scores.append(choice.scores)
            halved.append(choose_components(mixture, fed, test=0.2, progress=False).n_components)
        row = {
            "M": m,
            "K = 3, 1,000 fresh": f"{chosen.count(3)} of {seeds}",
            "K = 3, 20% split": f"{halved.count(3)} of {seeds}",
        }
        rows.append({**row, **{f"score K={k}": s for k, s in zip(range(1, 7), np.mean(scores, axis=0), strict=True)}})
    report("mdm_recovery_components", rows, note="scores: mean log-likelihood of fresh clients, sizes left out")


def main() -> None:
    args = arguments(__doc__, seeds=10)
    settings = ["low-2", "medium-2", "high-3"] if args.quick else list(TABLE_1)
    seeds = min(args.seeds, 2) if args.quick else args.seeds
    fits(seeds, settings, (100,) if args.quick else (20, 100))
    print()
    components(seeds, (200,) if args.quick else (100, 200, 1000))
    print()
    protocol(
        1 if args.quick else min(seeds, 3), settings, (20,) if args.quick else (20, 100), 20 if args.quick else 100
    )


if __name__ == "__main__":
    main()
