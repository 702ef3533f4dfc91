"""Modes by regression: means, scatter and discriminant of the modes from sums over rounds and clients.

In round t the mean of any statistic of the cohort is the mean over modes weighted by their shares, E[mean | t] =
sum_k s_k(t) mu_k. The modes' means are the coefficients of a linear regression on s(t). No clustering is needed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

import numpy as np

from fedscape.types import Array

_TINY = 1e-300
_ROUNDING = 1e-7  # of the trace: what clients send is in float32
_TIED = 1e-6  # of a length: differences below it are rounding
_FEW = 10  # the ridge doubles at this many clients per statistic
_MOST = 5  # up to this many modes all orders are tried


def pack(pairs: Array) -> Array:
    """The upper triangles of symmetric matrices [..., d, d] as vectors [..., d (d + 1) / 2].

    >>> pack(np.array([[1.0, 2.0], [2.0, 5.0]])).tolist()
    [1.0, 2.0, 5.0]
    """
    rows, columns = _triangle(pairs.shape[-1])
    return np.asarray(pairs[..., rows, columns])


def packed_pairs(rows: Array) -> Array:
    """`pack` of the products of each row [..., d] with itself.

    >>> packed_pairs(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0, 4.0]
    """
    first, second = _triangle(rows.shape[-1])
    return np.asarray(rows.take(first, axis=-1) * rows.take(second, axis=-1))


def unpack(packed: Array) -> Array:
    """The symmetric matrix with this upper triangle: [d, d].

    >>> unpack(np.array([1.0, 2.0, 5.0])).tolist()
    [[1.0, 2.0], [2.0, 5.0]]
    """
    d = (math.isqrt(8 * len(packed) + 1) - 1) // 2
    rows, columns = _triangle(d)
    whole = np.zeros((d, d))
    whole[rows, columns] = whole[columns, rows] = packed
    return whole


class Moments(NamedTuple):
    """Normal equations of clients' statistics z [d] on covariates a [p] of their rounds.

    `gram` is the sum over clients of a a', `cross` of a z', `pairs` of z z' (its upper triangle).
    """

    gram: Array
    cross: Array
    pairs: Array

    @classmethod
    def empty(cls, p: int, d: int) -> Moments:
        """Sums over no clients."""
        return cls(np.zeros((p, p)), np.zeros((p, d)), np.zeros(d * (d + 1) // 2))

    def plus(self, a: Array, count: float, total: Array, pairs: Array, memory: float = 1.0) -> Moments:
        """Add the sums of one more round; earlier rounds are multiplied by `memory`.

        >>> Moments.empty(1, 1).plus(np.ones(1), 3.0, np.array([6.0]), np.array([14.0])).coefficients().tolist()
        [[2.0]]
        """
        return Moments(
            memory * self.gram + count * np.outer(a, a),
            memory * self.cross + np.outer(a, total),
            memory * self.pairs + pairs,
        )

    def coefficients(self) -> Array:
        """The least-squares coefficients [p, d]; the minimum-norm solution if the covariates do not span yet."""
        return np.asarray(_inverse(self.gram) @ self.cross)

    def residual(self, count: float, coefficients: Array | None = None) -> Array:
        """Residual scatter of clients after the regression, [d, d]; positive semi-definite despite noise."""
        explained = self.cross.T @ (self.coefficients() if coefficients is None else coefficients)
        return nonnegative((unpack(self.pairs) - explained) / max(count, _TINY))


class Groups(NamedTuple):
    """Clients with known modes: means [K, d] and `mass` [K] of modes, and the pooled scatter of `clients` clients.

    `scatter` is the upper triangle of the sum of (z - mean of its mode)(z - mean of its mode)'.
    """

    means: Array
    mass: Array
    scatter: Array
    clients: Array

    @classmethod
    def empty(cls, k: int, d: int) -> Groups:
        """Nobody."""
        return cls(np.zeros((k, d)), np.zeros(k), np.zeros(d * (d + 1) // 2), np.zeros(()))

    def plus(
        self, near: Array, away: Array, pairs: Array, count: float, own: Array, memory: float, *, drift: float = 0.0
    ) -> Groups:
        """Add the clients of a round: `near` [K] of each mode, `away` [K, d] and `pairs` about the current means.

        A mode keeps a share `own` [K] of its earlier mass, the scatter a share `memory`; with both one it is exact.
        With `drift`, first all means move together by this share of the mean of `away`: a network that moves takes
        the features of all modes with it, also of those that are absent.

        >>> Groups.empty(1, 1).plus(np.array([2.0]), np.array([[6.0]]), np.array([20.0]), 2.0, np.ones(1), 1.0).scatter
        array([2.])
        """
        total = away[near > 0].sum(axis=0)
        shift = drift * total / max(float(near.sum()), _TINY) if self.mass.min() > 0 else np.zeros_like(total)
        away = away - near[:, None] * shift
        pairs = pairs - pack(np.outer(shift, total) + np.outer(total, shift) - near.sum() * np.outer(shift, shift))
        mass = own * self.mass + near
        move = np.where(near[:, None] > 0, away / np.maximum(mass, _TINY)[:, None], 0.0)
        scatter = memory * self.scatter + pairs - pack((move.T * mass) @ move)
        return Groups(self.means + shift + move, mass, scatter, np.asarray(memory * float(self.clients) + count))

    @property
    def known(self) -> bool:
        """Whether there are clients of every mode, and they differ."""
        return bool(self.mass.min() >= 2 and np.trace(unpack(self.scatter)) > 0)

    def within(self) -> Array:
        """The scatter of clients inside modes, [d, d]; noise may give it negative eigenvalues."""
        return unpack(self.scatter) / max(float(self.clients), _TINY)


class Discriminant(NamedTuple):
    """Linear scores of K modes: weights [K, d] and offsets [K]; the mode with the largest score is the likeliest."""

    weights: Array
    offsets: Array


def discriminant(means: Array, scatter: Array, *, ridge: float = 0.0) -> Discriminant:
    """Fisher's linear discriminant of modes with these means [K, d] and one scatter [d, d], modes equally likely.

    `ridge` is added to the scatter, in units of each statistic's own variance and of the median one. It keeps
    statistics that hardly vary from getting a large weight. Constant statistics are left out.

    >>> discriminant(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.eye(2)).weights.tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """
    weights = means @ metric_of(scatter, ridge)
    return Discriminant(weights, -0.5 * (weights * means).sum(axis=1))


def metric_of(scatter: Array, ridge: float = 0.0) -> Array:
    """The inverse of the scatter plus ridge, [d, d], zero for constant statistics.

    >>> metric_of(np.diag([1.0, 4.0, 0.0])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.25, 0.0], [0.0, 0.0, 0.0]]
    """
    variances = np.maximum(np.diag(scatter), 0.0)
    some = np.flatnonzero(variances > 1e-14 * max(float(variances.max(initial=0.0)), _TINY))
    if len(some) == 0:
        return np.zeros_like(scatter)
    own = variances[some]
    more = ridge * (own + np.median(own))
    inverse_sd = 1 / np.sqrt(own + more)
    unit = (scatter if len(some) == len(scatter) else scatter[np.ix_(some, some)]) * inverse_sd * inverse_sd[:, None]
    unit[np.diag_indices(len(some))] = 1.0  # its own variance and the ridge, in units of both
    metric = np.linalg.inv(unit) if ridge > 0 else _inverse(unit)
    metric *= inverse_sd * inverse_sd[:, None]
    if len(some) == len(scatter):
        return np.asarray(metric)
    whole = np.zeros_like(scatter)
    whole[np.ix_(some, some)] = metric
    return whole


def ridge_for(ridge: float, n: float, d: int) -> float:
    """The ridge for d statistics of n clients: larger for few clients."""
    return ridge * (1 + _FEW * d / max(n, 1.0))


def unit_discriminant(groups: Groups, *, ridge: float) -> Discriminant:
    """K - 1 scores of the modes, zero at the centre, with clients' variance one on average.

    >>> groups = Groups(np.array([[3.0], [-3.0]]), np.ones(2), np.array([2.0]), np.asarray(2.0))
    >>> unit_discriminant(groups, ridge=0.0).weights.tolist()
    [[1.0]]
    """
    within, centre = nonnegative(groups.within()), groups.means.mean(axis=0)
    weights = discriminant(groups.means - centre, within, ridge=ridge).weights[:-1]
    weights = weights / np.sqrt(max(float(np.mean(((weights @ within) * weights).sum(axis=1))), _TINY))
    return Discriminant(weights, weights @ centre)


def nonnegative(matrix: Array) -> Array:
    """The positive semi-definite matrix nearest to a symmetric one: noise may cause negative eigenvalues.

    >>> nonnegative(np.diag([1.0, -2.0])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    even = (matrix + matrix.T) / 2
    try:
        np.linalg.cholesky(even + _ROUNDING * np.abs(np.trace(even)) * np.eye(len(even)))
        return np.asarray(even)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(even)
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


class Significance(NamedTuple):
    """A test that covariates matter: the ratio F of explained to residual variance, its p-value, its rounds."""

    ratio: float
    p_value: float
    rounds: float


def significance(moments: Moments, constant: Array) -> Significance:
    """Test if the mean of a round depends on its covariates: Dempster's test, also for more statistics than rounds.

    `moments` are those of the rounds' mean statistics, one for each round. `constant` [p] are the weights for which
    the weighted sum of the covariates is one in every round. The scatter of rounds about the regression includes the
    noise of a release. Under the null the ratio of traces is nearly F with q kappa and v kappa degrees of freedom,
    kappa = tr(S)^2 / tr(S^2) (Dempster 1958).

    >>> rng, m = np.random.default_rng(0), Moments.empty(2, 3)
    >>> for t in range(40):
    ...     a, y = np.array([1.0, t % 2]), rng.normal(size=3) + 2 * (t % 2)
    ...     m = m.plus(a, 1.0, y, pack(np.outer(y, y)))
    >>> significance(m, np.array([1.0, 0.0])).p_value < 1e-6
    True
    """
    n = float(constant @ moments.gram @ constant)
    inverse = _inverse(moments.gram)
    rank = round(float(np.trace(inverse @ moments.gram)))
    freedom, q = n - rank, rank - 1
    if freedom < 3 or q < 1:
        return Significance(0.0, 1.0, n)
    mean = constant @ moments.cross / n
    second = unpack(moments.pairs)
    left = second - moments.cross.T @ inverse @ moments.cross
    around = second - n * np.outer(mean, mean)
    explained, rest = float(np.trace(around - left)), float(np.trace(left))
    if rest <= 1e-12 * max(float(np.trace(second)), _TINY):
        clear = explained > _ROUNDING * float(np.trace(second))  # statistics that are always the same explain nothing
        return Significance(math.inf, 0.0, n) if clear else Significance(0.0, 1.0, n)
    scatter = left / freedom
    square = float((scatter**2).sum()) - np.trace(scatter) ** 2 / freedom
    square = max(square * freedom**2 / ((freedom - 1) * (freedom + 2)), np.trace(scatter) ** 2 / len(mean))
    kappa = float(np.clip(np.trace(scatter) ** 2 / square, 1.0, len(mean)))
    ratio = max(explained, 0.0) / q / (rest / freedom)
    return Significance(ratio, tail_of_f(ratio, q * kappa, freedom * kappa), n)


def tail_of_f(value: float, above: float, below: float) -> float:
    """P(F > value) for F with these degrees of freedom, by Paulson's normal approximation of the cube root.

    >>> round(tail_of_f(4.0, 2.0, 40.0), 3)  # 0.026 exactly
    0.026
    """
    if not value > 0:
        return 1.0
    a, b, root = 2 / (9 * above), 2 / (9 * below), value ** (1 / 3)
    return 0.5 * math.erfc(((1 - b) * root - (1 - a)) / math.sqrt(2 * (b * root**2 + a)))


def contrast_noise(gram: Array, loadings: Array) -> Array:
    """Variances of the differences of modes in units of the clients' scatter: [K, K], for modes loadings [K, p]."""
    each = loadings @ _inverse(gram) @ loadings.T
    own = np.diag(each)
    return np.asarray(np.maximum(own[:, None] + own[None] - 2 * each, 0.0))


def are_apart(means: Array, metric: Array, noise: Array) -> bool:
    """Whether all modes are farther apart than noise alone explains.

    Squared distances of the means [K, d] in the metric [d, d] must be twice those expected from their variances [K, K].

    >>> are_apart(np.array([[0.0], [3.0]]), np.eye(1), np.ones((2, 2)))
    True
    """
    apart = means[:, None] - means[None]
    distance = (apart @ metric * apart).sum(axis=2)
    expected = noise * np.count_nonzero(np.diag(metric))
    other = ~np.eye(len(means), dtype=bool)
    return bool((distance[other] > np.maximum(2 * expected[other], 1e-9)).all())


def aligned(means: Array, weights: Array, offsets: Array) -> Array:
    """The order of the new means that matches them to the modes of the current discriminant: corners are unordered.

    >>> aligned(np.array([[-1.0], [2.0]]), np.array([[1.0], [-1.0]]), np.zeros(2)).tolist()
    [1, 0]
    """
    scores = means @ weights.T + offsets  # [new, mode]
    if len(means) > _MOST:
        from scipy.optimize import linear_sum_assignment

        return np.asarray(linear_sum_assignment(-scores.T)[1])
    orders = permutations(range(len(means)))
    return np.array(max(orders, key=lambda order: float(scores[list(order), range(len(means))].sum())))


def vertices(points: Array, n: int) -> Array:
    """Indices of n extreme points: the one farthest from the mean, then each time the farthest from those chosen.

    If every mode is nearly alone at some time, the modes are the corners of the region of the rounds' means.

    >>> vertices(np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0], [0.0, 3.0]]), 3).tolist()
    [1, 3, 0]
    """
    away = points - points.mean(axis=0)
    chosen = [_first_largest((away**2).sum(axis=1))]
    rest = points - points[chosen[0]]
    while len(chosen) < n:
        lengths = (rest**2).sum(axis=1)
        chosen.append(_first_largest(lengths))
        step = rest[chosen[-1]] / max(math.sqrt(float(lengths.max())), _TINY)
        rest = rest - np.outer(rest @ step, step)
    return np.array(chosen)


def _first_largest(lengths: Array) -> int:
    """The first of those that are largest to rounding: the two ends of a path are equally far from its middle."""
    return int((lengths >= (1 - _TIED) * lengths.max()).argmax())


@lru_cache(maxsize=8)
def _triangle(d: int) -> tuple[Array, Array]:
    return np.triu_indices(d)


def _inverse(matrix: Array) -> Array:
    """The pseudo-inverse of a symmetric matrix."""
    values, vectors = np.linalg.eigh(matrix)
    some = np.abs(values) > 1e-9 * np.abs(values).max(initial=0.0)
    return np.asarray((vectors[:, some] / values[some]) @ vectors[:, some].T)
