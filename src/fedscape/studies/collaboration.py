"""Should these clients train together? What each gains by joining, with intervals, and weights from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.validate import check_finite, check_whole
from fedscape.errors import DataError
from fedscape.studies.intervals import Interval, plain
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning.local import LocalSGD

_MOST = 40  # clients; beyond this there are too many pairs to train


@dataclass(frozen=True)
class Collaboration:
    """What clients gain by training together.

    `distances` [clients, clients] are squared Gaussian 2-Wasserstein distances between clients' features, debiased for
    their sizes. `gains` has for every ordered pair the gain in accuracy of the first when the second joins it.
    `together` has the gain of each client when all join. Each gain has `value`, `low` and `high`: a 95% interval over
    test rows and seeds. `weights` [clients, clients] has in row i the weights of all clients' rows for client i; each
    row sums to 1.

    >>> Collaboration(("a", "b"), np.zeros((2, 2)), np.full((2, 2), 0.5), [], []).best("a")
    'b'
    """

    clients: tuple[str, ...]
    distances: Array
    weights: Array
    gains: list[dict[str, Any]]
    together: list[dict[str, Any]]

    def best(self, client: str) -> str | None:
        """The other client whose rows have the largest weight for this one."""
        if client not in self.clients:
            raise DataError(f"client must be one of {', '.join(self.clients)}, not {client!r}")
        mine = self.clients.index(client)
        others = [i for i in range(len(self.clients)) if i != mine]
        return self.clients[max(others, key=lambda i: self.weights[mine, i])] if others else None

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
    seed: int = 0,
) -> Collaboration:
    """For clients that are sites: what each gains when another, or all, train with it.

    From profiles alone: each client sends the mean and the covariance of its features. The distance d_ij of two
    clients is that of the Gaussians with these moments. The weight of client j for client i is in proportion to n_j /
    (1 + n_j d_ij / v), with n_j rows and v the mean variance of a row. Rows of a client like i count fully; those of
    an unlike one count no more than v / d_ij rows do. The best linear estimate of i's mean has these weights.

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
    distances, variance = gaussian_distances(fed, column)
    weights = aggregation_weights(distances, fed.sizes, variance)
    if local is None:
        return Collaboration(names, distances, weights, [], [])
    groups = [[i] for i in range(len(fed))] + [list(range(len(fed)))]
    if pairs and len(fed) > 2:
        groups += [[i, j] for i in range(len(fed)) for j in range(i + 1, len(fed))]
    hits = [_hits(fed, groups, local, rounds, test, seed + s, target) for s in range(seeds)]
    alone, everyone = range(len(fed)), len(fed)
    together = [{"client": names[i], **_gain(hits, i, i, everyone)} for i in alone]
    gains = []
    for g, members in enumerate(groups):
        if g > everyone or (len(fed) == 2 and g == everyone):
            pairs_of = [(members[0], members[1]), (members[1], members[0])]
            gains += [{"client": names[i], "with": names[j], **_gain(hits, i, i, g)} for i, j in pairs_of]
    return Collaboration(names, distances, weights, gains, together)


def gaussian_distances(fed: Federation, column: str = "x") -> tuple[Array, float]:
    """Squared 2-Wasserstein distances between Gaussians with the clients' moments, and the mean variance of a row.

    |m_i - m_j|^2 + tr(S_i + S_j - 2 (S_i^1/2 S_j S_i^1/2)^1/2), less the sampling variance of the means, tr(S_i) / n_i
    and tr(S_j) / n_j, so that small clients do not look far apart; at least 0. The sampling variance of the covariances
    is not subtracted: with fewer rows than features, small clients still look farther apart than they are.

    >>> x = np.array([[0.0], [2.0], [3.0], [5.0]])
    >>> gaussian_distances(Federation({"x": x}, [0, 2, 4]))[0].tolist()  # 9, less 2 / 2 + 2 / 2
    [[0.0, 7.0], [7.0, 0.0]]
    """
    values = check_finite(fed[column], column)
    x = values.reshape(len(values), int(np.prod(values.shape[1:]))).astype(np.float64)
    if (fed.sizes < 2).any():
        few = int(np.flatnonzero(fed.sizes < 2)[0])
        raise DataError(f"every client must have at least 2 rows, but {fed.ids[few]!s} has {fed.sizes[few]}")
    parts = [x[a:b] for a, b in zip(fed.offsets[:-1], fed.offsets[1:], strict=True)]
    means = np.stack([part.mean(axis=0) for part in parts])
    spreads = [np.atleast_2d(np.cov(part.T)) for part in parts]
    roots = [_root(s) for s in spreads]
    traces = np.array([np.trace(s) for s in spreads])
    n = len(parts)
    squares = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1, n):
            cross = np.sqrt(np.maximum(np.linalg.eigvalsh(roots[i] @ spreads[j] @ roots[i]), 0.0)).sum()
            apart = ((means[i] - means[j]) ** 2).sum() + max(traces[i] + traces[j] - 2 * cross, 0.0)
            noise = traces[i] / fed.sizes[i] + traces[j] / fed.sizes[j]
            squares[i, j] = squares[j, i] = max(apart - noise, 0.0)
    return squares, float(np.average(traces, weights=fed.sizes))


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


def selected(study: Collaboration, client: str, *, most: int) -> list[str]:
    """The clients whose rows have the largest weights for this one, at most `most`, itself included.

    >>> selected(Collaboration(("a", "b", "c"), np.zeros((3, 3)), np.eye(3) * 0.5 + 0.1, [], []), "b", most=1)
    ['b']
    """
    check_whole("most", most, least=1)
    order = np.argsort(-study.weights[study.clients.index(client)], kind="stable")
    return [study.clients[i] for i in order[:most]]
