"""What do the first things that a new customer buys say about the next ones?

Customers of a shop are clients; a row is an item and its kind of goods. From the counts of known customers a mixture
learns kinds of customers, by sums. A customer who comes later shows one basket; the mixture says what comes next. With
FEDSCAPE_DATA set to a folder that has online_retail/, the shop is Online Retail II, else one made here.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import fedscape as fs

GOODS = ["CHRISTMAS", "BAG", "LUNCH", "CAKE", "LIGHT", "CARD", "MUG", "HEART", ""]
MADE = [[8, 1, 1, 1, 4, 4, 1, 2, 4], [1, 8, 6, 3, 1, 1, 1, 1, 4], [1, 1, 1, 1, 3, 1, 3, 8, 4]]


def shop() -> tuple[np.ndarray, np.ndarray]:
    """Counts of known customers, and of new ones before and after their first basket: [customers, goods]."""
    path = Path(os.environ.get("FEDSCAPE_DATA", "")) / "online_retail" / "online_retail_ii.parquet"
    if not path.exists():
        rng = np.random.default_rng(0)
        tastes = np.array(MADE, dtype=float)[rng.integers(0, 3, 600)]
        likes = [rng.dirichlet(taste / 3) for taste in tastes]
        baskets = np.array([[rng.multinomial(rng.integers(3, 20), like) for like in likes] for _ in range(2)])
        return baskets.sum(axis=0)[:400], baskets[:, 400:]
    import pandas as pd

    lines = pd.read_parquet(path, columns=["customer", "invoice", "time", "description"]).dropna()
    lines = lines[~lines["invoice"].astype(str).str.startswith("C")].sort_values("time", kind="stable")
    lines["y"] = [next(k for k, word in enumerate(GOODS) if word in t) for t in lines["description"].astype(str)]
    begin = lines.groupby("customer")["time"].transform("min") >= "2010-12-01"
    first = lines.groupby("customer")["invoice"].transform("first") == lines["invoice"]
    old = pd.crosstab(*(lines.loc[~begin & (lines["time"] < "2010-12-01"), c] for c in ("customer", "y")))
    seen, later = (pd.crosstab(*(lines.loc[begin & part, c] for c in ("customer", "y"))) for part in (first, ~first))
    return old.to_numpy(), np.array([t.loc[later.index].to_numpy() for t in (seen, later)])


def main() -> None:
    known, (seen, later) = shop()
    mixture = fs.MixtureOfDirichletMultinomials(n_init=2, seed=0)
    kinds = fs.choose_components(mixture, known, candidates=(1, 2, 3, 4), progress=False).model
    for share, alpha in zip(kinds.weights_, kinds.concentrations_, strict=True):
        most = [f"{GOODS[c] or 'other'} {alpha[c] / alpha.sum():.0%}" for c in np.argsort(-alpha)[:4]]
        print(f"{share:.0%} of customers buy", ", ".join(most))
    mine = kinds.predict_proba(seen, sizes=False)[:, :, None]
    alpha, n = kinds.concentrations_[None], seen.sum(axis=1)[:, None, None]
    guess = (mine * (alpha + seen[:, None]) / (alpha.sum(axis=2, keepdims=True) + n)).sum(axis=1)
    saved = (later * np.log2(guess / (known.sum(axis=0) / known.sum()))).sum(axis=1) / later.sum(axis=1)
    half = 1.96 * saved.std() / len(saved) ** 0.5
    print(
        f"{len(saved)} new customers: the first basket saves {saved.mean():.3f} ± {half:.3f} bits for each later line"
    )


if __name__ == "__main__":
    main()
