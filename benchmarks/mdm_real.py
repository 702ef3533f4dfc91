"""What does the mixture of Dirichlet-multinomials say about real clients, and do its clients look like them?

FEMNIST writers: rounds to the best likelihood by solver, and whether K=2 finds the two collection campaigns. ACS
regions by race and by income, K = 1, 3, 5, 7: held-out log-likelihood against IID clients. For each, pictures of true,
simulated and IID clients by t-SNE (Figures 3, 4, 11, 12, 13) and the AUC of a classifier that tells true clients from
simulated ones: 0.5 is perfect. `--pictures 250` draws the pictures alone, of 250 clients of each kind.
"""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from sklearn.model_selection import cross_val_predict

from fedscape import datasets
from fedscape.mixtures import MixtureOfDirichletMultinomials
from table import RESULTS, arguments, report


def features(counts: np.ndarray) -> np.ndarray:
    """What the classifier and t-SNE see: square roots of shares, and the size."""
    n = counts.sum(axis=1, keepdims=True)
    return np.hstack((np.sqrt(counts / np.maximum(n, 1)), 0.1 * np.log1p(n)))


def auc(true: np.ndarray, other: np.ndarray, seed: int) -> float:
    """How well a classifier tells the two apart, by five-fold cross-validation."""
    x = np.vstack((features(true), features(other)))
    y = np.repeat([0, 1], [len(true), len(other)])
    shuffled = np.random.default_rng(seed).permutation(len(y))
    classifier = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    guess = cross_val_predict(classifier, x[shuffled], y[shuffled], cv=5, method="predict_proba")[:, 1]
    return float(roc_auc_score(y[shuffled], guess))


def iid_clients(counts: np.ndarray, seed: int) -> np.ndarray:
    """Clients of the same sizes whose rows all come from the pooled histogram."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(counts.sum(axis=1), counts.sum(axis=0) / counts.sum())


def picture(name: str, columns: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], most: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(columns), figsize=(5 * len(columns), 5), squeeze=False)
    for axis, (title, kinds) in zip(axes[0], columns.items(), strict=True):
        some = [counts[np.random.default_rng(0).permutation(len(counts))[:most]] for counts in kinds]
        at = TSNE(random_state=0, init="pca").fit_transform(features(np.vstack(some)))
        ends = np.cumsum([0, *(len(s) for s in some)])
        for i, (label, colour) in enumerate((("true", "tab:green"), ("MDM", "tab:red"), ("IID", "tab:blue"))):
            axis.scatter(*at[ends[i] : ends[i + 1]].T, s=3, c=colour, label=label)
        axis.set_title(title)
    axes[0, 0].legend()
    figure.tight_layout()
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"mdm_real_{name}.png", dpi=60)
    plt.close(figure)


def pictures(most: int) -> None:
    """Figures 3, 4 and 11 to 13 alone."""
    for name, data, numbers in (
        ("femnist", "femnist-labels", (2, 3)),
        ("race", "acs-race", (1, 3, 5, 7)),
        ("income", "acs-income", (1, 3, 5, 7)),
    ):
        fed = datasets.load(data)
        counts, columns = fed.counts("y"), {}
        for k in numbers:
            drawn = MixtureOfDirichletMultinomials(k, rounds=30).fit(fed, progress=False).sample(len(fed), seed=0)
            columns[f"{name}, K={k}"] = (counts, drawn, iid_clients(counts, 0))
        picture(name, columns, most)


def rounds_to_best(history, best: float) -> str:
    """Rounds of EM until any start is within 0.05 nat of the best."""
    names = [c for c in history.columns if c.startswith("log_likelihood")]
    measured = [max(row[n] for n in names) for row in history if row.get(names[0]) is not None]
    reached = [r for r, value in enumerate(measured) if value > best - 0.05]
    return str(reached[0]) if reached else f"> {len(measured) - 1}"


def femnist(seeds: int, most: int) -> None:
    fed = datasets.load("femnist-labels")
    counts = fed.counts("y")
    campaign = np.array([int(writer[1:5]) >= 1500 for writer in fed.ids])
    rows, pictures, best = [], {}, {}
    for k in (2, 3):
        tried = [
            MixtureOfDirichletMultinomials(k, rounds=60, tol=1e-7, seed=s, n_init=8).fit(fed, progress=False)
            for s in range(seeds)
        ]
        best[k] = max(m.log_likelihood_ for m in tried)
    for k in (2, 3):
        for solver in ("exact", "newton", "fixed_point"):
            for seed in range(seeds if solver == "exact" else 1):
                mixture = MixtureOfDirichletMultinomials(k, solver=solver, rounds=40, seed=seed, n_init=8)
                mixture.fit(fed, progress=False)
                drawn = mixture.sample(len(fed), seed=seed)
                rows.append(
                    {
                        "K": k,
                        "solver": solver,
                        "seed": seed,
                        "log-likelihood": mixture.log_likelihood_,
                        "EM rounds to within 0.05": rounds_to_best(mixture.history_, best[k]),
                        "ARI with campaigns": adjusted_rand_score(campaign, mixture.predict(fed)),
                        "weights": " ".join(f"{w:.3f}" for w in mixture.weights_),
                        "alpha_0": " ".join(f"{a:.3g}" for a in mixture.concentrations_.sum(axis=1)),
                        "AUC": auc(counts, drawn, seed),
                        "AUC of IID": auc(counts, iid_clients(counts, seed), seed),
                    }
                )
                if solver == "exact" and seed == 0:
                    pictures[f"FEMNIST, K={k}"] = (counts, drawn, iid_clients(counts, 0))
    picture("femnist", pictures, most)
    report("mdm_real_femnist", rows, note="beside the rounds of EM a fit has one that surveys and one that starts")


def census(name: str, most: int, numbers: tuple[int, ...]) -> list[dict]:
    fed = datasets.load(f"acs-{name}")
    counts = fed.counts("y")
    train, test = fed.split_clients(test=0.2, seed=0)
    pooled = train.counts("y").sum(axis=0) + 0.5
    rows, pictures = [], {}
    for k in numbers:
        mixture = MixtureOfDirichletMultinomials(k, rounds=60).fit(train, progress=False)
        drawn = mixture.sample(len(fed), seed=0)
        pictures[f"{name}, K={k}"] = (counts, drawn, iid_clients(counts, 0))
        rows.append(
            {
                "column": name,
                "model": f"K={k}",
                "held-out log-likelihood": mixture.score(test, sizes=False),
                "AUC": auc(counts, drawn, 0),
            }
        )
    plain = MixtureOfDirichletMultinomials(1).fit(train, progress=False)
    plain.concentrations_ = 1e10 * (pooled / pooled.sum())[None]
    score = plain.score(test, sizes=False)
    rows.append(
        {
            "column": name,
            "model": "IID",
            "held-out log-likelihood": score,
            "AUC": auc(counts, iid_clients(counts, 0), 0),
        }
    )
    picture(name, pictures, most)
    return rows


def main() -> None:
    args = arguments(__doc__, seeds=5, pictures=0)
    if args.pictures:
        pictures(args.pictures)
        return
    most = 300 if args.quick else 1000
    femnist(1 if args.quick else args.seeds, most)
    print()
    numbers = (1, 3) if args.quick else (1, 3, 5, 7)
    rows = [row for name in ("race", "income") for row in census(name, most, numbers)]
    report("mdm_real_census", rows, note="held out: a fifth of the regions; sizes left out of the likelihood")


if __name__ == "__main__":
    main()
