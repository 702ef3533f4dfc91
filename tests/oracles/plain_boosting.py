"""Boosting in one place, as plainly as it can be said: the oracle of `BoostedTrees`, with the same bins and grid."""

from __future__ import annotations

import numpy as np

GRID = 2.0**-24


def gradients(loss: str, y: np.ndarray, margin: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
    if loss == "squared":
        g, h = (margin - y[:, None]) / unit, np.ones_like(margin)
    elif loss == "logistic":
        p = 1 / (1 + np.exp(-margin))
        g, h = p - y[:, None], p * (1 - p)
    elif loss == "softmax":
        p = np.exp(margin) / np.exp(margin).sum(axis=1, keepdims=True)
        g, h = p - (y[:, None] == np.arange(margin.shape[1])), p * (1 - p)
    else:
        g, h = (np.exp(margin) - y[:, None]) / unit, np.exp(margin) / unit
    return np.rint(g / GRID) * GRID, np.rint(h / GRID) * GRID


def boost(codes, y, *, loss, base, unit, n_trees, depth, rate, l2, least, missing, n_bins, categories, monotone):
    """Margins [rows, outputs] after all trees; every split is found by trying all of them, row by row."""
    margin = np.repeat(np.asarray(base, dtype=float)[None], len(codes), axis=0)
    for _ in range(n_trees):
        g, h = gradients(loss, y, margin, unit)
        scale = rate * (unit if loss == "squared" else 1.0)
        moves = [
            grow(codes, g[:, k], h[:, k], depth, l2, least, missing, n_bins, categories, monotone)
            for k in range(margin.shape[1])
        ]
        margin = margin + scale * np.stack(moves, axis=1)
    return margin


def grow(codes, g, h, depth, l2, least, missing, n_bins, categories, monotone, low=-np.inf, high=np.inf):
    """The value of each row's leaf."""

    def value(rows: np.ndarray) -> float:
        return float(np.clip(-g[rows].sum() / (h[rows].sum() + l2), low, high))

    def score(rows: np.ndarray) -> float:
        v = value(rows)
        return -(g[rows].sum() * v + (h[rows].sum() + l2) * v * v / 2)

    everyone = np.ones(len(codes), dtype=bool)
    best, chosen, feature = 1e-12, None, -1
    for f in list(np.flatnonzero(~categories)) + list(np.flatnonzero(categories)):
        for left in candidates(codes[:, f], g, h, missing, n_bins[f], bool(categories[f])):
            if h[left].sum() < least or h[~left].sum() < least:
                continue
            if monotone[f] * (value(~left) - value(left)) < 0:
                continue
            gain = score(left) + score(~left) - score(everyone)
            if gain > best:
                best, chosen, feature = gain, left, f
    if chosen is None or depth == 0:
        return np.full(len(codes), value(everyone))
    out = np.empty(len(codes))
    middle = (value(chosen) + value(~chosen)) / 2
    for rows, side in ((chosen, 0), (~chosen, 1)):
        ends = [low, high]
        if monotone[feature]:
            ends[1 if (monotone[feature] > 0) == (side == 0) else 0] = middle
        own = [codes[rows], g[rows], h[rows]]
        out[rows] = (
            value(rows)
            if depth == 1
            else grow(*own, depth - 1, l2, least, missing, n_bins, categories, monotone, *ends)
        )
    return out


def candidates(code, g, h, missing, n_bins, is_category):
    """Sets of rows that may go left."""
    if is_category:
        cells = [(g[code == c].sum(), h[code == c].sum(), c) for c in range(missing + 1)]
        order = [c for _, c in sorted((a / (b + 1.0), c) for a, b, c in cells if b > 0)]
        for i in range(1, len(order)):
            yield np.isin(code, order[:i])
        return
    gap = code == missing
    for b in range(n_bins):
        yield (code <= b) & ~gap
    if gap.any():
        for b in range(n_bins - 1):
            yield (code <= b) | gap
