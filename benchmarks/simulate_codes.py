"""Do codes learned from the features get past the conditionally IID oracle?

FEMNIST writers against clients cut from all their rows: with the true label histograms (the paper's oracle), with the
true histograms of label x code, and from mixtures fitted to both. A client is represented by what its labels do not
say: the mean over its rows of 16 principal components less their mean for that label, which is the writer's hand. The
energy distance between the laws of these, without bias, is 0 for perfect clients; `mean handwriting` is the mean length
of that vector, the largest part of which is chance for a client without a hand of its own.
"""

from __future__ import annotations

import numpy as np

from fedscape import FederatedKMeans, Federation, MixtureOfDirichletMultinomials, datasets
from fedscape.simulate import (
    Cells,
    ConditionallyIID,
    FromMixture,
    FullyIID,
    Labels,
    SignCodes,
    fidelity,
    plan,
    with_codes,
)
from table import arguments, report


def hands(fed: Federation, components: int = 16) -> np.ndarray:
    """For each row the principal components of its image less their mean for its label: [rows, components]."""
    x = fed["x"].reshape(fed.n_rows, -1) / 255
    x = x - x.mean(axis=0)
    vectors = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :components]
    at = x @ vectors
    number = np.bincount(fed["y"], minlength=62)
    sums = np.stack([np.bincount(fed["y"], at[:, c], minlength=62) for c in range(components)], axis=1)
    at -= (sums / np.maximum(number, 1)[:, None])[fed["y"]]
    return at / at.std(axis=0)


def means(at: np.ndarray, rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    fed = Federation({"at": at[rows]}, offsets)
    return fed.segment_sum("at") / np.maximum(fed.sizes, 1)[:, None]


def main() -> None:
    args = arguments(__doc__)
    fed = datasets.load("femnist-mini" if args.quick else "femnist")
    at, label = hands(fed), Labels("y", 62)
    true = means(at, np.arange(fed.n_rows), fed.offsets)
    codes = {"label": label}
    for number in (4,) if args.quick else (4, 16, 64):
        model = FederatedKMeans(number, rounds=10, n_init=1, seed=args.seed).fit(fed, progress=False)
        codes[f"label x {number} k-means cells"] = [label, Cells(model, number)]
    codes["label x 16 sign codes"] = [label, SignCodes(4)]
    rows = []

    def line(name: str, recipe, column, n: int | None) -> None:
        made = plan(recipe, fed, n_clients=n, column=column, seed=args.seed, policy="replace")
        mine = means(at, made.rows, made.offsets)
        found = fidelity(fed, made.federation(), sketches=(true, mine), draws=100, seed=args.seed)
        rows.append(
            {
                "clients": name,
                "energy distance of hands": found.sketch.value,
                "95% interval": f"{found.sketch.low:.4f}, {found.sketch.high:.4f}",
                "mean handwriting": float(np.linalg.norm(mine, axis=1).mean()),
                "of the true": float(np.linalg.norm(true, axis=1).mean()),
            }
        )

    line("fully IID", FullyIID(fed.sizes), label, None)
    for name, column in codes.items():
        counts = with_codes(fed, column).counts("code")
        line(f"conditionally IID, {name}", ConditionallyIID(counts), column, None)
        if name in ("label", "label x 16 k-means cells", "label x 4 k-means cells"):
            mixture = MixtureOfDirichletMultinomials(3, seed=args.seed).fit(counts, progress=False)
            line(f"mixture, {name}", FromMixture(mixture), column, len(fed))
    report("simulate_codes", rows, note=f"{len(fed)} writers; 95% intervals over clients")


if __name__ == "__main__":
    main()
