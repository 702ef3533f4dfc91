"""Does the misfit of `fidelity` order simulators as training does?

FedAvg of a linear model under several settings, on true writers and on clients that simulators cut from the same rows,
all tested on the true writers' rows held out: `training` is the mean difference in accuracy over the settings, less
what other seeds of true clients make. Beside it the misfit, and the AUC of a classifier, which runs into its ceiling.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import kendalltau, spearmanr

from fedscape import FedAvg, FederatedKMeans, MixtureOfDirichletMultinomials, datasets, rounds
from fedscape.core.sampling import FixedSize
from fedscape.learning import LocalSGD, cross_entropy, evaluate, models
from fedscape.simulate import (
    Cells,
    ConditionallyIID,
    Dirichlet,
    FromMixture,
    FullyIID,
    Labels,
    fidelity,
    plan,
    with_codes,
)
from fedscape.studies import prepare
from fedscape.studies.tournament import directions
from table import arguments, report


def accuracies(clients, test, settings, seeds, n_rounds) -> np.ndarray:
    """[settings] mean accuracy over seeds of small cohorts, where skew between clients matters most."""
    made = np.zeros((len(settings), len(seeds)))
    width, n_classes = clients["x"].shape[1], clients.categories("y")
    for i, (lr, epochs) in enumerate(settings):
        local = LocalSGD(models.linear(width, n_classes, seed=0), cross_entropy, lr=lr, epochs=epochs, batch_size=16)
        for j, seed in enumerate(seeds):
            loop = rounds(FedAvg(local), clients, n_rounds=n_rounds, sampler=FixedSize(4), seed=seed, measure=0)
            *_, last = loop
            made[i, j] = np.nanmean(evaluate(local, last.state, test).accuracy)
    return made.mean(axis=1)


def main() -> None:
    given = arguments(__doc__, seeds=4, n_rounds=20)
    if given.quick:
        given.seeds, given.n_rounds = 1, 3
    fed = directions(prepare(datasets.load("femnist-mini")).rows)
    train, test = fed.split(test=0.25, seed=0)
    label = Labels("y", fed.categories("y"))
    kmeans = FederatedKMeans(8, rounds=15, n_init=1).fit(train.select(["x"]), progress=False)
    cells = [label, Cells(kmeans, 8)]
    coded, counts, n = with_codes(train, cells), train.counts("y"), len(train)
    recipes = {
        "mixture": (FromMixture(MixtureOfDirichletMultinomials(3).fit(counts, progress=False)), label),
        "conditional": (ConditionallyIID(counts), label),
        "conditional, codes of features": (ConditionallyIID(coded.counts("code")), cells),
        "IID": (FullyIID(train.sizes), label),
        "Dirichlet 10": (Dirichlet(10.0, sizes=train.sizes), label),
        "Dirichlet 1": (Dirichlet(1.0, sizes=train.sizes), label),
        "Dirichlet 0.1": (Dirichlet(0.1, sizes=train.sizes), label),
    }
    settings = [(0.1, 1), (0.1, 5), (0.5, 1), (0.5, 5)]
    seeds = range(given.seeds)
    true = accuracies(train, test, settings, seeds, given.n_rounds)
    floor = float(np.abs(true - accuracies(train, test, settings, [100 + s for s in seeds], given.n_rounds)).mean())
    rows = []
    for name, (recipe, column) in recipes.items():
        number = None if name.startswith("conditional") else n
        sim = plan(recipe, train, n_clients=number, column=column, seed=given.seed, policy="replace").federation()
        off = np.abs(true - accuracies(sim, test, settings, seeds, given.n_rounds)).mean()
        about = fidelity(train, sim, features="x", draws=40, seed=given.seed)
        misfit = about.misfit
        rows.append(
            {
                "simulator": name,
                "training, points off": round(100 * float(off), 1),
                "misfit": f"{misfit.value:.3f} [{misfit.low:.3f}, {misfit.high:.3f}]",
                "misfit of labels alone": round(fidelity(train, sim, draws=2).misfit.value, 3),
                "AUC": round(about.auc.value, 3),
                "_": misfit.value,
            }
        )
        print(rows[-1], flush=True)
    rows.sort(key=lambda row: row["training, points off"])
    values = [row.pop("_") for row in rows]
    off = [row["training, points off"] for row in rows]
    labels = [row["misfit of labels alone"] for row in rows]
    note = (
        f"noise floor of training {100 * floor:.1f} points; rank correlation with training: misfit Kendall "
        f"{kendalltau(values, off).statistic:.2f}, Spearman {spearmanr(values, off).statistic:.2f}; of labels alone "
        f"Kendall {kendalltau(labels, off).statistic:.2f}; AUC Kendall "
        f"{kendalltau([row['AUC'] for row in rows], off).statistic:.2f}"
    )
    report("simulate_order", rows, note=note)


if __name__ == "__main__":
    main()
