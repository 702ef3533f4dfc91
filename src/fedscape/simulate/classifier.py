"""A classifier that tells true from simulated clients by their histograms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedscape.core.random import Key
from fedscape.core.schedule import one_library_thread
from fedscape.types import Array

_PENALTIES = (1.0, 10.0, 100.0)
_WAVES = 96  # random cosine features, for what is not linear
_LEADING = 8  # leading directions of the square-root shares


def features(counts: Array, seed: int = 0) -> Array:
    """Standardised features of each client for the classifier: [clients, features], mean 0 and spread 1.

    Square roots of its shares, log size, distance to the pooled histogram, entropy, number of categories and largest
    share. Then random cosines (Rahimi and Recht 2007) of these and of the leading directions of the roots. The cosines
    catch clients that differ in spread and not in mean.
    """
    n = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(n, 1)
    pool = shares[n[:, 0] > 0].mean(axis=0) if n.any() else shares[0]
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1)
    about = np.column_stack(
        [
            np.log1p(n[:, 0]),
            np.abs(shares - pool).sum(axis=1) / 2,
            entropy,
            np.log1p((counts > 0).sum(axis=1)),
            shares.max(axis=1),
        ]
    )
    roots = np.sqrt(shares)
    roots = roots - roots.mean(axis=0)
    core = _standard(np.column_stack([about, _leading(roots)]))
    rng = Key(seed, purpose="classifier waves").generator()
    width = np.repeat([0.5, 1.5], _WAVES // 2) / np.sqrt(core.shape[1]) * 2
    angles = core @ (rng.standard_normal((core.shape[1], _WAVES)) * width) + rng.uniform(0, 2 * np.pi, _WAVES)
    linear = roots if roots.shape[1] <= 256 else np.empty((len(roots), 0))
    return _standard(np.column_stack([core, core**2, linear, np.cos(angles)]))


def _leading(x: Array) -> Array:
    """Project onto the directions of largest spread."""
    if max(x.shape) <= 512 or x.shape[1] <= 2 * _LEADING or len(x) <= 2 * _LEADING:
        left, values, _ = np.linalg.svd(x, full_matrices=False)
        return np.asarray(left[:, :_LEADING] * values[:_LEADING])
    from scipy.sparse.linalg import svds

    left, values, _ = svds(x, k=_LEADING, v0=np.ones(min(x.shape)))
    return np.asarray((left * values)[:, ::-1])


def _standard(x: Array) -> Array:
    spread = x.std(axis=0)
    return np.asarray((x - x.mean(axis=0)) / np.where(spread > 1e-12, spread, 1.0))


@dataclass(frozen=True)
class Verdict:
    """The result of the classifier: AUC, its standard error and p-value, and a probability per client.

    `of_true` and `of_simulated` are out-of-fold probabilities that a client is true, with both kinds equally common.
    Clients that are common in only one population are near 1 or 0.
    """

    auc: float
    error: float
    p: float
    of_true: Array
    of_simulated: Array


def classify(true: Array, simulated: Array, *, seed: int = 0, folds: int = 5) -> Verdict:
    """Cross-validate a penalised logistic regression that tells true from simulated clients.

    The AUC is computed within each fold, where the classifier is fixed, and averaged. Under equal laws a fold's AUC has
    mean 1/2 and the variance of the Mann-Whitney statistic; otherwise DeLong's (1988). Folds share training clients, so
    their mean varies more than that of independent folds: by the variance of a fold times 1 / folds + 1 / (folds - 1)
    (Nadeau and Bengio 2003).

    >>> rng = np.random.default_rng(0)
    >>> alike = classify(rng.multinomial(20, [0.5, 0.5], 100), rng.multinomial(20, [0.5, 0.5], 100))
    >>> bool(abs(alike.auc - 0.5) < 0.2)
    True
    """
    x = features(np.concatenate((true, simulated)), seed)
    y = np.repeat([1.0, 0.0], [len(true), len(simulated)])
    rng = Key(seed, purpose="classifier folds").generator()
    fold = np.concatenate([rng.permutation(np.arange(len(part)) % folds) for part in (true, simulated)])
    guess, curves, variances, chance = np.empty(len(y)), [], [], []
    for f in range(folds):
        test = fold == f
        with one_library_thread():  # small matrices: on a busy machine BLAS threads wait for each other
            guess[test] = _predict(x[~test], y[~test], x[test], fold[~test] == (f + 1) % folds)
        a, b = guess[test & (y == 1)], guess[test & (y == 0)]
        auc, variance = _area(a, b)
        curves.append(auc)
        variances.append(variance)
        chance.append((len(a) + len(b) + 1) / (12 * len(a) * len(b)))
    auc = float(np.mean(curves))
    shared = 1 / folds + 1 / (folds - 1)
    z, error = (auc - 0.5) / np.sqrt(np.mean(chance) * shared), np.sqrt(np.mean(variances) * shared)
    return Verdict(auc, float(error), _upper(float(z)), guess[: len(true)], guess[len(true) :])


def _predict(x: Array, y: Array, at: Array, inner: Array) -> Array:
    """Predict probabilities at new points; the penalty is tuned on a part of the training points."""
    losses = []
    for penalty in _PENALTIES:
        p = np.clip(_Logistic(x[~inner], y[~inner], penalty)(x[inner]), 1e-9, 1 - 1e-9)
        weight = _balance(y[inner])
        losses.append(-(weight * (y[inner] * np.log(p) + (1 - y[inner]) * np.log(1 - p))).sum())
    return _Logistic(x, y, _PENALTIES[int(np.argmin(losses))])(at)


def _balance(y: Array) -> Array:
    """Weights with mean one that make both kinds equally common."""
    ones = max(float(y.sum()), 1.0)
    zeros = max(len(y) - ones, 1.0)
    return np.where(y == 1, len(y) / (2 * ones), len(y) / (2 * zeros))


class _Logistic:
    """Penalised logistic regression by damped Newton steps."""

    def __init__(self, x: Array, y: Array, penalty: float) -> None:
        design, weight = np.column_stack([x, np.ones(len(x))]), _balance(y)
        ridge = np.full(design.shape[1], penalty)
        ridge[-1] = 1e-6
        self.beta = np.zeros(design.shape[1])

        def loss(beta: Array) -> float:
            line = design @ beta
            return float(weight @ (np.logaddexp(0, line) - y * line) + 0.5 * ridge @ beta**2)

        now = loss(self.beta)
        for _ in range(25):
            p = 1 / (1 + np.exp(-np.clip(design @ self.beta, -500, 500)))
            gradient = design.T @ (weight * (p - y)) + ridge * self.beta
            curvature = (design * (weight * p * (1 - p))[:, None]).T @ design + np.diag(ridge)
            step = np.linalg.solve(curvature, gradient)
            length = 1.0
            while (new := loss(self.beta - length * step)) > now and length > 1e-4:
                length /= 2
            self.beta = self.beta - length * step
            if now - new < 1e-4 * max(abs(now), 1.0):
                break
            now = new

    def __call__(self, x: Array) -> Array:
        line = x @ self.beta[:-1] + self.beta[-1]
        return np.asarray(1 / (1 + np.exp(-np.clip(line, -500, 500))))


def _area(a: Array, b: Array) -> tuple[float, float]:
    """P(value of a > value of b) and its variance (DeLong, DeLong and Clarke-Pearson 1988)."""
    ordered_a, ordered_b = np.sort(a), np.sort(b)
    over = (np.searchsorted(ordered_b, a, "left") + np.searchsorted(ordered_b, a, "right")) / (2 * len(b))
    under = 1 - (np.searchsorted(ordered_a, b, "left") + np.searchsorted(ordered_a, b, "right")) / (2 * len(a))
    return float(over.mean()), float(over.var(ddof=1) / len(a) + under.var(ddof=1) / len(b))


def _upper(z: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(-z))
