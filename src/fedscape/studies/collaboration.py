"""Should these clients train together? What each gains by joining, with intervals, and weights from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.validate import check_finite, check_whole
from fedscape.errors import DataError
from fedscape.studies.intervals import Interval, plain
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning.local import LocalSGD

_Z = 1.959964
_MOST = 40  # clients; beyond this there are too many pairs to train


@dataclass(frozen=True)
class Collaboration:
    """What clients gain by training together.

    `distances` [clients, clients] are squared Gaussian 2-Wasserstein distances between clients' features, debiased for
    their sizes. `weights` [clients, clients] has in row i the weights of all clients' rows for client i; each row sums
    to 1. `expected` has what profiles alone say a client gains in a pair, in a group that was asked for, and with all:
    the share of the squared error of its mean features that pooling takes away, below 0 where it adds.

    `gains` has the gain in accuracy by training, for every ordered pair and each client of a group that was asked for;
    `together` has that of each client when all join. Each gain has `value`, `low` and `high`: a 95% interval, over test
    rows and seeds where it is of a training.

    >>> Collaboration(("a", "b"), np.zeros((2, 2)), np.full((2, 2), 0.5), [], []).best("a")
    'b'
    """

    clients: tuple[str, ...]
    distances: Array
    weights: Array
    gains: list[dict[str, Any]]
    together: list[dict[str, Any]]
    expected: list[dict[str, Any]] = field(default_factory=list)

    def best(self, client: str) -> str | None:
        """The other client whose rows have the largest weight for this one."""
        others = [name for name in self.select(client, most=len(self.clients)) if name != client]
        return others[0] if others else None

    def select(self, client: str, *, most: int) -> list[str]:
        """The clients whose rows have the largest weights for this one, at most `most`, itself included."""
        check_whole("most", most, least=1)
        if client not in self.clients:
            raise DataError(f"client must be one of {', '.join(self.clients)}, not {client!r}")
        order = np.argsort(-self.weights[self.clients.index(client)], kind="stable")
        return [self.clients[i] for i in order[:most]]

    def verdicts(self) -> dict[str, str]:
        """For each client: "joins", "stays alone" or "not sure", by the interval of what it gains when all join."""
        verdicts = {}
        for row in self.together:
            sure = row["low"] is not None and (row["low"] > 0 or row["high"] < 0)
            verdicts[row["client"]] = "not sure" if not sure else "joins" if row["low"] > 0 else "stays alone"
        return verdicts


def collaboration(
    fed: Federation,
    *,
    column: str = "x",
    target: str = "y",
    local: LocalSGD | None = None,
    rounds: int = 20,
    seeds: int = 3,
    test: float = 0.3,
    pairs: bool = True,
    groups: Sequence[Sequence[Any]] = (),
    seed: int = 0,
) -> Collaboration:
    """For clients that are sites: what each gains when another, or all, train with it.

    From profiles alone: each client sends the mean and the covariance of its features. The distance d_ij of two
    clients is that of the Gaussians with these moments. The weight of client j for client i is in proportion to n_j /
    (1 + n_j d_ij / v), with n_j rows and v the mean variance of a row. Rows of a client like i count fully; those of
    an unlike one count no more than v / d_ij rows do. The best linear estimate of i's mean has these weights. What a
    client may expect of a common model is told by its simplest one, the mean of the features: `expected_gain`.

    From a short training (with `local`): every client holds out a share of its rows. Models trained by it alone, by
    each pair, and by all are compared on these rows, seed by seed. The gain is the difference in accuracy.

    The profiles are revealed client by client, and the trainings are of named groups. Use this for sites that consider
    an agreement, not for private devices.

    Parameters
    ----------
    fed
        The clients, a few dozens at most.
    column, target
        Features and classes.
    local
        How a client trains; None compares profiles only.
    rounds, seeds
        Rounds of each training, and number of trainings.
    test
        Share of each client's rows to hold out.
    pairs
        Whether to train pairs too, besides all together.
    groups
        Further groups to compare, each of two ids of clients or more.
    seed
        Seed of splits and trainings.

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(m, 1.0, (50, 2)) for m in (0, 0, 9)])
    >>> study = collaboration(Federation({"x": x}, [0, 50, 100, 150], ids=["a", "b", "c"]))
    >>> study.best("a"), study.weights[0].round(2).tolist()
    ('b', [0.5, 0.5, 0.0])
    """
    check_whole("rounds", rounds, least=1)
    check_whole("seeds", seeds, least=1)
    if len(fed) < 2 or (local is not None and pairs and len(fed) > _MOST):
        raise DataError(f"fed must have from 2 to {_MOST} clients with rows to compare pairs, it has {len(fed):,}")
    names = tuple(str(v) for v in fed.ids.tolist())
    everyone = list(range(len(fed)))
    named = _members(fed, groups) + [[i, j] for i in everyone for j in everyone[i + 1 :] if pairs and len(fed) > 2]
    profiles = gaussian_profiles(fed, column)
    distances, variance = _distances(profiles)
    weights = aggregation_weights(distances, fed.sizes, variance)
    expected = [
        {"client": names[i], "with": _called(names, members, i), **expected_gain(profiles, i, members)}
        for members in [*named, everyone]
        for i in members
    ]
    if local is None:
        return Collaboration(names, distances, weights, [], [], expected)
    trained = [[i] for i in everyone] + [everyone, *named]
    hits = [_hits(fed, trained, local, rounds, test, seed + s, target) for s in range(seeds)]
    together = [{"client": names[i], **_gain(hits, i, i, len(fed))} for i in everyone]
    gains = [
        {"client": names[i], "with": _called(names, members, i), **_gain(hits, i, i, g)}
        for g, members in enumerate(trained)
        if g > len(fed) or (len(fed) == 2 and g == len(fed))
        for i in members
    ]
    return Collaboration(names, distances, weights, gains, together, expected)


def _members(fed: Federation, groups: Sequence[Sequence[Any]]) -> list[list[int]]:
    """The positions of the clients of each group."""
    position = {str(v): i for i, v in enumerate(fed.ids.tolist())}
    members = []
    for group in groups:
        unknown = [str(v) for v in group if str(v) not in position]
        if unknown or len({str(v) for v in group}) < max(2, len(group)):
            raise DataError(f"groups must each have two clients or more, all different and known, not {list(group)}")
        members.append([position[str(v)] for v in group])
    return members


def _called(names: Sequence[str], members: Sequence[int], client: int) -> str:
    return ", ".join(names[j] for j in members if j != client)


class Profile(NamedTuple):
    """What a client sends of its features: rows, mean [d] and covariance [d, d]."""

    rows: int
    mean: Array
    covariance: Array


def gaussian_profiles(fed: Federation, column: str = "x") -> list[Profile]:
    """Rows, mean and covariance of each client's features; refuse a client with fewer than 2 rows.

    >>> gaussian_profiles(Federation({"x": [[0.0], [2.0]]}, [0, 2]))[0].mean.tolist()
    [1.0]
    """
    values = check_finite(fed[column], column)
    x = values.reshape(len(values), int(np.prod(values.shape[1:]))).astype(np.float64)
    if (fed.sizes < 2).any():
        few = int(np.flatnonzero(fed.sizes < 2)[0])
        raise DataError(f"every client must have at least 2 rows, but {fed.ids[few]!s} has {fed.sizes[few]}")
    parts = [x[a:b] for a, b in zip(fed.offsets[:-1], fed.offsets[1:], strict=True)]
    return [Profile(len(part), part.mean(axis=0), np.atleast_2d(np.cov(part.T))) for part in parts]


def expected_gain(profiles: Sequence[Profile], client: int, members: Sequence[int]) -> Interval:
    """The share of the squared error of a client's mean that pooling the rows of these members takes away.

    Alone the error is tr(S_i) / n_i. Pooled it is the sum of a_j^2 tr(S_j) / n_j plus |b|^2, with a_j the member's
    share of the rows and b how far the pooled mean lies from the client's own. |b|^2 is debiased, at least 0. The
    interval adds up what |b|^2 and the tr(S_j) are uncertain by for Gaussian rows; the variance of |b|^2 is 2 tr(C^2) +
    4 b' C b, C being the covariance of b. A client whose rows are all the same has None.

    >>> near, far = (gaussian_profiles(Federation({"x": [0.0, 2.0, c, c + 2.0]}, [0, 2, 4])) for c in (0.0, 9.0))
    >>> [expected_gain(profiles, 0, [0, 1])["value"] for profiles in (near, far)]
    [0.5, -19.25]
    """
    total = sum(profiles[j].rows for j in members)
    share = {j: profiles[j].rows / total for j in members}
    own, others = profiles[client], [j for j in members if j != client]
    alone = float(np.trace(own.covariance)) / own.rows
    if not alone > 0:
        return {"value": None, "low": None, "high": None}
    away = np.sum([share[j] * (profiles[j].mean - own.mean) for j in others], axis=0)
    spread = (1 - share[client]) ** 2 * own.covariance / own.rows
    spread = spread + sum(share[j] ** 2 * profiles[j].covariance / profiles[j].rows for j in others)
    square = float(away @ away - np.trace(spread))
    noise = float(np.sum(spread * spread))
    variance = 2 * noise + 4 * max(float(away @ spread @ away) - noise, 0.0)
    reach = _Z * np.sqrt(variance)
    parts = {j: share[j] ** 2 / profiles[j].rows for j in members}
    pooled = sum(part * float(np.trace(profiles[j].covariance)) for j, part in parts.items())
    value, low, high = (1 - (pooled + max(b, 0.0)) / alone for b in (square, square + reach, square - reach))
    slopes = {j: part - (j == client) * (1 - value) / own.rows for j, part in parts.items()}  # of the errors by tr(S_j)
    variance = sum((slopes[j] / alone) ** 2 * _variance_of_trace(profiles[j]) for j in members)
    low, high = (value + sign * np.hypot(end - value, _Z * np.sqrt(variance)) for sign, end in ((-1, low), (1, high)))
    interval: Interval = plain({"value": value, "low": low, "high": high})
    return interval


def _variance_of_trace(profile: Profile) -> float:
    return 2 * float(np.sum(profile.covariance**2)) / (profile.rows - 1)


def gaussian_distances(fed: Federation, column: str = "x") -> tuple[Array, float]:
    """Squared 2-Wasserstein distances between Gaussians with the clients' moments, and the mean variance of a row.

    |m_i - m_j|^2 + tr(S_i + S_j - 2 (S_i^1/2 S_j S_i^1/2)^1/2), less the sampling variance of the means, tr(S_i) / n_i
    and tr(S_j) / n_j, so that small clients do not look far apart; at least 0. The sampling variance of the covariances
    is not subtracted: with fewer rows than features, small clients still look farther apart than they are.

    >>> x = np.array([[0.0], [2.0], [3.0], [5.0]])
    >>> gaussian_distances(Federation({"x": x}, [0, 2, 4]))[0].tolist()  # 9, less 2 / 2 + 2 / 2
    [[0.0, 7.0], [7.0, 0.0]]
    """
    return _distances(gaussian_profiles(fed, column))


def _distances(profiles: Sequence[Profile]) -> tuple[Array, float]:
    sizes, means, spreads = (list(values) for values in zip(*profiles, strict=True))
    roots, traces = [_root(s) for s in spreads], np.array([np.trace(s) for s in spreads])
    n = len(profiles)
    squares = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1, n):
            cross = np.sqrt(np.maximum(np.linalg.eigvalsh(roots[i] @ spreads[j] @ roots[i]), 0.0)).sum()
            apart = ((means[i] - means[j]) ** 2).sum() + max(traces[i] + traces[j] - 2 * cross, 0.0)
            noise = traces[i] / sizes[i] + traces[j] / sizes[j]
            squares[i, j] = squares[j, i] = max(apart - noise, 0.0)
    return squares, float(np.average(traces, weights=sizes))


def aggregation_weights(distances: Array, sizes: Array, variance: float) -> Array:
    """Weights of each client's rows for each client: n_j / (1 + n_j d_ij / v), each row normalised to 1.

    >>> aggregation_weights(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([10, 10]), 10.0).round(3).tolist()
    [[0.667, 0.333], [0.333, 0.667]]
    """
    n = np.asarray(sizes, dtype=np.float64)[None, :]
    raw = n / (1 + n * distances / max(variance, 1e-300))
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def _root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def _hits(
    fed: Federation, groups: list[list[int]], local: LocalSGD, rounds: int, test: float, seed: int, target: str
) -> list[dict[int, Array]]:
    """Whether the model of each group classifies each held-out row of its members correctly."""
    from fedscape.methods import train

    learners, judges = fed.split(test=test, seed=seed)
    if (judges.sizes == 0).any() or (learners.sizes == 0).any():
        few = fed.ids[int(np.argmin(np.minimum(judges.sizes, learners.sizes)))]
        raise DataError(f"every client needs rows to train and to test on, {few!s} lacks one of them: raise test")
    hits = []
    for members in groups:
        model = train("fedavg", local, learners.take(members), n_rounds=rounds, seed=seed)
        mine: dict[int, Array] = {}
        for i in members:
            rows = judges.take([i])
            mine[i] = np.asarray(model.predict(rows) == rows[target], dtype=np.float64)
        hits.append(mine)
    return hits


def _gain(hits: list[list[dict[int, Array]]], client: int, alone: int, group: int) -> Interval:
    """Mean gain in accuracy of a client over the seeds, with an interval over rows and seeds.

    Each seed holds out other rows of the same client, so seeds are not independent. The variance is that of one seed's
    rows, or that between seeds if larger.
    """
    from scipy.stats import norm

    each = [seed[group][client] - seed[alone][client] for seed in hits]
    means = np.array([d.mean() for d in each])
    rows = float(np.mean([d.var(ddof=1) / len(d) if len(d) > 1 else np.inf for d in each]))
    between = float(means.var(ddof=1)) if len(means) > 1 else 0.0
    reach = float(norm.ppf(0.975)) * np.sqrt(max(rows, between))
    value = float(means.mean())
    interval: Interval = plain({"value": value, "low": value - reach, "high": value + reach})
    return interval
