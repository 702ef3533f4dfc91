"""How far the accuracy of guessing varies: which class is the commonest is chance where several nearly are."""

from __future__ import annotations

import numpy as np

from fedscape.core.random import Key
from fedscape.types import Array

_DRAWS = 200


def of_folds(folds: Array) -> tuple[Array, Array]:
    """Rows of each client that the two baselines hit when each fold is guessed from the others: two of [clients].

    `folds` [folds, clients, C] are counts of classes. The first baseline is the commonest class of all, the second
    that of each client.

    >>> [hits.tolist() for hits in of_folds(np.array([[[2, 0]], [[1, 1]]]))]
    [[3], [3]]
    """
    common, own = np.zeros(folds.shape[1], dtype=np.int64), np.zeros(folds.shape[1], dtype=np.int64)
    every, clients = folds.sum(axis=0), np.arange(folds.shape[1])
    for fold in folds:
        counts = every - fold
        together = counts.sum(axis=0)
        common += fold[:, together.argmax()]
        own += fold[clients, (counts + together / (together.sum() + 1)).argmax(axis=1)]
    return common, own


def further_variance(folds: Array, *, sites: bool, seed: int) -> dict[str, float]:
    """How much more the mean accuracy of each baseline varies than clients (of sites: rows) explain.

    Clients are redrawn, of sites the rows of each fold: where two classes are nearly as common, another draw has
    another commonest class, and what is guessed falls behind what is held out.

    >>> sure = np.array([[[90, 10]] * 30] * 4)
    >>> [round(v, 9) for v in further_variance(sure, sites=False, seed=0).values()]
    [0.0, 0.0]
    """
    rng = Key(seed, purpose="commonest classes").generator()
    tests = folds.sum(axis=(0, 2))
    folds, tests = folds[:, tests > 0], tests[tests > 0]
    n, drawn = len(tests), []
    shares = folds.sum(axis=0) / tests[:, None]
    for _ in range(_DRAWS):
        if sites:
            resampled, size = rng.multinomial(folds.sum(axis=2), shares), tests
        else:
            who = rng.integers(0, n, n)
            resampled, size = folds[:, who], tests[who]
        drawn.append([float((hits / size).mean()) for hits in of_folds(resampled)])
    variances = {}
    for i, name in enumerate(("commonest", "own-commonest")):
        share = of_folds(folds)[i] / tests
        expected = (share * (1 - share) / tests).sum() / n**2 if sites else share.var(ddof=1) / n if n > 1 else 0.0
        variances[name] = max(float(np.var([draw[i] for draw in drawn], ddof=1)) - float(expected), 0.0)
    return variances
