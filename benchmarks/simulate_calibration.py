"""Do the tests of a simulator reject a true one at the nominal 5%, and false ones nearly always?

Truth: a mixture of three Dirichlet-multinomials (the concentrations of the MDM paper's appendix A.2) with sizes that
vary. In each run `--held-out` clients that no model was fitted to score themselves under six models (`self_score`,
sums alone), under three of them also with noise (epsilon 1, unit client); and a classifier compares them with as many
simulated clients (`fidelity`'s AUC). Counted is how often p < 0.05; the misfit is the median of the largest over the
statistics.
"""

from __future__ import annotations

import copy

import numpy as np

from fedscape import All, Federation, Gaussian, MixtureOfDirichletMultinomials, calibrate
from fedscape.datasets.generators import dirichlet_multinomial
from fedscape.mixtures.size_laws import SizeLaws
from fedscape.simulate import self_score
from fedscape.simulate.classifier import classify
from table import arguments, report

ALPHA = [[0.1, 0.2, 0.1, 0.3, 0.1], [1.0, 4.0, 1.0, 2.0, 0.5], [10.0, 5.0, 3.0, 2.0, 30.0]]


def fit(counts: np.ndarray, k: int) -> MixtureOfDirichletMultinomials:
    return MixtureOfDirichletMultinomials(k, rounds=20).fit(counts, progress=False)


def truth_of(seed: int) -> MixtureOfDirichletMultinomials:
    """A model of three components that is itself the truth."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(rng.lognormal(3.6, 0.5, 5000).astype(int), 1)
    fed, _ = dirichlet_multinomial(5000, weights=[0.2, 0.5, 0.3], concentrations=ALPHA, sizes=sizes, seed=seed)
    return fit(fed.counts("y"), 3)


def iid_of(model: MixtureOfDirichletMultinomials, counts: np.ndarray) -> MixtureOfDirichletMultinomials:
    plain = copy.copy(model)
    plain.concentrations_ = 1e10 * (counts.sum(axis=0) / counts.sum())[None]
    return plain


def longer_of(model: MixtureOfDirichletMultinomials, counts: np.ndarray) -> MixtureOfDirichletMultinomials:
    """The same with the law of sizes a quarter longer."""
    other = copy.copy(model)
    laws = model.size_laws_
    sizes = (1.25 * counts.sum(axis=1)).astype(int)
    number = np.histogram(sizes, laws.edges)[0].astype(float)
    other.size_laws_ = SizeLaws.fit(np.tile(number, (len(model.weights_), 1)), laws.edges)
    return other


def main() -> None:
    args = arguments(__doc__, runs=200, held_out=500, fitted=4000, draws=49)
    runs = 4 if args.quick else args.runs
    truth = truth_of(args.seed)
    noise = Gaussian(clip=np.sqrt(6.0), multiplier=calibrate(1.0, 1e-5, rounds=1, sampler=All()))
    found: dict[str, list] = {}
    for run in range(runs):
        train = truth.sample(args.fitted, seed=3 * run + 1)
        test = truth.sample(args.held_out, seed=3 * run + 2)
        clients = Federation({"y": test}, np.arange(len(test) + 1))
        one, three = fit(train, 1), fit(train, 3)
        models = {
            "the truth": truth,
            "fitted, K = 3": three,
            "IID": iid_of(one, train),
            "K = 1": one,
            "K = 2": fit(train, 2),
            "sizes a quarter longer": longer_of(three, train),
        }
        for name, model in models.items():
            score = self_score(model, clients, draws=args.draws, seed=run)
            noised = name in ("the truth", "fitted, K = 3", "IID")
            private = self_score(model, clients, draws=args.draws, seed=run, privacy=noise) if noised else None
            auc = classify(test, model.sample(len(test), seed=3 * run + 3), seed=run)
            largest = max(score.misfit, key=score.misfit.get)
            found.setdefault(name, []).append(
                (
                    score.p_all < 0.05,
                    np.nan if private is None else private.p_all < 0.05,
                    auc.p < 0.05,
                    score.misfit[largest],
                    auc.auc,
                    largest,
                )
            )
    rows = []
    for name, values in found.items():
        table = np.array([v[:5] for v in values], dtype=float)
        names = [v[5] for v in values]
        rows.append(
            {
                "model": name,
                "runs": runs,
                "self-scores reject": int(table[:, 0].sum()),
                "with noise": "-" if np.isnan(table[:, 1]).any() else int(table[:, 1].sum()),
                "classifier rejects": int(table[:, 2].sum()),
                "median misfit": float(np.median(table[:, 3])),
                "in": max(set(names), key=names.count),
                "median AUC": float(np.median(table[:, 4])),
            }
        )
    report(
        "simulate_calibration",
        rows,
        note=f"{args.held_out} clients held out, models fitted to {args.fitted:,} others; p < 0.05; at most 18 of 200 "
        "rejections are within the 99% range of a 5% test",
    )


if __name__ == "__main__":
    main()
