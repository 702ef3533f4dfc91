"""Shapley values of a forest by all subsets of features, row by row."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np


def shapley(codes: np.ndarray, feature: np.ndarray, left: np.ndarray, value: np.ndarray, counts: np.ndarray):
    """[rows, features] for trees [trees, nodes] of one output; `counts` are of rows that pass each node."""
    n = codes.shape[1]
    phi = np.zeros(codes.shape)
    for i, row in enumerate(codes):
        for subset in (s for size in range(n) for s in combinations(range(n), size)):
            weight = factorial(len(subset)) * factorial(n - 1 - len(subset)) / factorial(n)
            without = worth(row, set(subset), feature, left, value, counts)
            for f in set(range(n)) - set(subset):
                phi[i, f] += weight * (worth(row, {*subset, f}, feature, left, value, counts) - without)
    return phi


def worth(row, known, feature, left, value, counts) -> float:
    """What the forest expects where these features are known, and others go with the rows."""

    def down(t: int, at: int) -> float:
        if at >= len(feature[t]) or feature[t][at] < 0:
            return value[t][at]
        one, other = 2 * at + 1, 2 * at + 2
        if feature[t][at] in known:
            return down(t, one if np.unpackbits(left[t][at], bitorder="little")[row[feature[t][at]]] else other)
        if not counts[t][at]:
            return (down(t, one) + down(t, other)) / 2
        return (counts[t][one] * down(t, one) + counts[t][other] * down(t, other)) / counts[t][at]

    return sum(down(t, 0) for t in range(len(feature)))
