"""Do the tests of a simulator reject a true one at the nominal 5%, and false ones nearly always?

Truth: a mixture of three Dirichlet-multinomials (the concentrations of the MDM paper's appendix A.2) with sizes that
vary. In each run `--held-out` clients that no model was fitted to score themselves under six models (`self_score`,
sums alone), under two of them also with noise (epsilon 1, unit client); under three, a classifier compares half of them
with as many simulated clients (`fidelity`'s AUC). Counted is how often p < 0.05; the misfit is the median of the
largest over the statistics. `--first` lets several processes share the runs.
"""

from __future__ import annotations

import copy
import json

import numpy as np

from fedscape import All, Federation, Gaussian, MixtureOfDirichletMultinomials, calibrate
from fedscape.datasets.generators import dirichlet_multinomial
from fedscape.mixtures.size_laws import SizeLaws
from fedscape.simulate import self_score
from fedscape.simulate.classifier import classify
from table import RESULTS, arguments, report

ALPHA = [[0.1, 0.2, 0.1, 0.3, 0.1], [1.0, 4.0, 1.0, 2.0, 0.5], [10.0, 5.0, 3.0, 2.0, 30.0]]


def fit(counts: np.ndarray, k: int) -> MixtureOfDirichletMultinomials:
    return MixtureOfDirichletMultinomials(k, rounds=20).fit(counts, progress=False)


def truth_of(seed: int) -> MixtureOfDirichletMultinomials:
    """A model of three components that is itself the truth."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(rng.lognormal(3.6, 0.5, 5000).astype(int), 1)
    fed, _ = dirichlet_multinomial(5000, weights=[0.2, 0.5, 0.3], concentrations=ALPHA, sizes=sizes, seed=seed)
    made = fit(fed.counts("y"), 3)
    made.n_clients_ = 0  # no error of a fit to allow for
    return made


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


def one_run(run: int, truth: MixtureOfDirichletMultinomials, noise: Gaussian, args) -> dict[str, dict]:
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
    made = {}
    for name, model in models.items():
        score = self_score(model, clients, bins=10, draws=args.draws, seed=run)
        largest = max(score.misfit, key=score.misfit.get)
        made[name] = {"p": score.p_all, "misfit": score.misfit[largest], "in": largest}
        if name in ("the truth", "IID"):
            private = self_score(model, clients, bins=10, draws=args.draws, seed=run, privacy=noise)
            made[name]["private p"] = private.p_all
        if name in ("the truth", "fitted, K = 3", "K = 1"):
            some = test[: args.held_out // 2]
            verdict = classify(some, model.sample(len(some), seed=3 * run + 3), seed=run)
            made[name] |= {"classifier p": verdict.p, "auc": verdict.auc}
    return made


def main() -> None:
    args = arguments(__doc__, runs=200, first=0, held_out=1000, fitted=4000, draws=29)
    if args.quick:
        args.runs = 4
    truth = truth_of(args.seed)
    noise = Gaussian(clip=np.sqrt(6.0), multiplier=calibrate(1.0, 1e-5, rounds=1, sampler=All()))
    about = [args.seed, args.held_out, args.fitted, args.draws]
    RESULTS.mkdir(exist_ok=True)
    notes = RESULTS / "simulate_calibration_runs.jsonl"
    for run in range(args.first, args.first + args.runs):
        line = json.dumps({"about": about, "run": run, "models": one_run(run, truth, noise, args)})
        with notes.open("a") as file:  # several processes may each do a part
            file.write(line + "\n")
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    runs = {line["run"]: line["models"] for line in lines if line["about"] == about}
    rows = []
    for name in next(iter(runs.values())):
        found = [models[name] for models in runs.values()]
        names = [f["in"] for f in found]
        row = {"model": name, "runs": len(found), "self-scores reject": sum(f["p"] < 0.05 for f in found)}
        for said, key in (("with noise", "private p"), ("classifier rejects", "classifier p")):
            row[said] = sum(f[key] < 0.05 for f in found) if key in found[0] else "-"
        row |= {"median misfit": float(np.median([f["misfit"] for f in found])), "in": max(set(names), key=names.count)}
        row["median AUC"] = float(np.median([f["auc"] for f in found])) if "auc" in found[0] else "-"
        rows.append(row)
    report(
        "simulate_calibration",
        rows,
        note=f"{args.held_out:,} clients held out (the classifier sees half of them), models fitted to {args.fitted:,} "
        "others; p < 0.05; up to 18 of 200 rejections are within the 99% range of a 5% test",
    )


if __name__ == "__main__":
    main()
