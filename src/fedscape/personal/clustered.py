"""Clustered federated learning: the server splits clients whose updates point in different directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedscape.core.blocks import on_host
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number, check_whole
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays, valid_rows
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.trainer import trainer_of
from fedscape.personal.fedem import small_example
from fedscape.personal.shared import (
    common_model,
    each_model,
    each_own_log_probs,
    forward,
    log_probs_of,
    measured,
    moved_from,
    stacked,
    start_models,
    sums_over_rows,
    weighted,
    weighted_sums,
)
from fedscape.types import Array, Arrays, Kept, Tensors


class ClusteredFL(Computation):
    """Clients begin as one cluster. A cluster is split when its mean update is small but its clients' updates are not.

    Sattler et al. 2020. The halves come from the cosines of updates by complete linkage, as in public implementations
    (the paper's algorithm 1 minimises the largest cosine across). At least four clients must move, and a half has at
    least two. For that the server must see the `update` of each client: the whole move with projection=None, or by
    default only a seeded random projection of it to 256 numbers. The projection is a count sketch: each weight's move
    is added, with a random sign, to one of the numbers. Its cosines agree to about 0.06. The moves themselves are
    summed cluster by cluster.

    Clients keep the number of their cluster. A client that was absent when its cluster was split, or joined later,
    takes in every round the cluster whose model fits its labelled rows best. The server does not see its choice in a
    sum over several clients.

    The state holds `model.<parameter>` [clusters, ...], `open` (the number in use) and each client's own cluster.

    Parameters
    ----------
    local
        How a client trains.
    n_clusters
        The largest number of clusters.
    projection
        Size of the projected update that the server sees; None shows it the whole update.
    small, large
        A cluster is split when the norm of its mean update is below `small` times, and its largest update norm above
        `large` times, the mean norm of its updates.
    wait
        Rounds before the first split and between splits.
    initial
        As for FedAvg.

    >>> from fedscape import rounds
    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> [int(r.state["open"]) for r in rounds(ClusteredFL(step, 2), fed, n_rounds=2, allow=("update",))]
    [1, 1]
    """

    name = "clustered-fl"
    newcomers: ClassVar[str | None] = "the model of the first cluster"

    reveals: ClassVar[tuple[str, ...]] = ("update",)
    block_rows = 2**14

    def __init__(
        self,
        local: LocalSGD,
        n_clusters: int = 3,
        *,
        projection: int | None = 256,
        small: float = 0.4,
        large: float = 1.0,
        wait: int = 10,
        initial: str = "given",
    ) -> None:
        self.local = local
        self.n_clusters = n_clusters
        self.projection = projection
        self.small = small
        self.large = large
        self.wait = wait
        self.initial = initial
        check_local(local, initial)
        check_whole("n_clusters", n_clusters, least=1)
        check_whole("wait", wait, least=1)
        if projection is not None:
            check_whole("projection", projection, least=1)
        if not (check_number("small", small) >= 0 and check_number("large", large) >= 0):
            raise DataError(f"small and large must be at least 0, not {small} and {large}")

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it depends on the model
        """Number of clients trained side by side."""
        return max(1, trainer_of(self.local).chunk // self.n_clusters)

    def start(self, seed: int) -> Arrays:
        one = start_models(self.local, 1, seed, initial=self.initial)
        models = {n: np.repeat(v, self.n_clusters, axis=0) for n, v in one.items()}
        whole = np.zeros(0, dtype=np.int64)
        own = {"of_client.ids": whole, "of_client.cluster": whole}
        return {**models, "open": np.asarray(1), "server.since": np.asarray(0), **own}

    def _assigned(self, state: Arrays, clients: Federation) -> Array:
        """The cluster of each client as the server knows it, -1 where unknown."""
        if "of_client.known" in state:
            return np.where(state["of_client.known"], state["of_client.cluster"], -1)
        if "of_client.ids" not in state:
            return np.full(len(clients), -1)
        cluster_of = dict(zip(state["of_client.ids"].tolist(), state["of_client.cluster"].tolist(), strict=True))
        return np.array([cluster_of.get(v, -1) for v in clients.ids.tolist()], dtype=np.int64)

    def _cluster(self, state: Arrays, clients: Federation) -> Array:
        """The cluster of each client: the server's, else the one it kept, else the first."""
        kept, cluster = clients.kept.get("cluster"), np.zeros(len(clients), dtype=np.int64)
        if kept is not None:
            cluster[kept.lengths > 0] = kept.flat
        server_cluster = self._assigned(state, clients)
        return np.minimum(np.where(server_cluster < 0, cluster, server_cluster), int(state["open"]) - 1)

    def _to_train(self, state: Arrays, clients: Federation) -> Array:
        """The same, but a client whose cluster is unknown to the server takes the one that fits its rows best."""
        cluster, free = self._cluster(state, clients), np.flatnonzero(self.undecided(state, clients))
        if len(free):
            cluster[free] = self._best(state, clients.take(free))
        return cluster

    def undecided(self, state: Arrays, clients: Federation) -> Array:
        """Mask of the clients that were absent when their cluster was split, or joined later."""
        return (self._assigned(state, clients) < 0) & (int(state["open"]) > 1) & (clients.sizes > 0)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._trained(state, clients, key)
        return {**weighted(moves, weight), "weight": weight, "update": self._projected(moves)}, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._trained(state, clients, key)
        sums = {**on_host(weighted_sums(moves, weight)), "weight": weight.sum(axis=0)}
        return {**sums, "update": self._projected(moves)}, kept

    def _trained(self, state: Arrays, clients: Federation, key: Key) -> tuple[Tensors, Array, Kept]:
        """The move of each client, its weight in each cluster [clients, clusters], and the arrays it keeps."""
        cluster = self._to_train(state, clients)
        moves = moved_from(self.local, state, cluster, clients, key)
        return moves, np.eye(self.n_clusters)[cluster] * clients.sizes[:, None], {"cluster": cluster}

    def _projected(self, moves: Tensors) -> Array:
        """Count sketch of each move, [clients, numbers]: each weight's move is added, with a sign, to one number."""
        rows = [m.reshape(len(m), -1) for m in on_host(moves).values()]
        width = sum(r.shape[1] for r in rows)
        if self.projection is None or self.projection >= width:
            return np.concatenate(rows, axis=1, dtype=np.float64)
        rng = Key(0, purpose="projection").generator()
        bucket, sign = rng.integers(self.projection, size=width), rng.choice([-1.0, 1.0], size=width)
        each = (sign * np.concatenate([r[i] for r in rows]) for i in range(len(rows[0])))
        return np.stack([np.bincount(bucket, row, minlength=self.projection) for row in each])

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        weight = total["weight"]
        new: Arrays = {}
        for name, params in model_arrays(state).items():
            over = weight.reshape(-1, *[1] * (params.ndim - 1))
            move = np.where(over > 0, total[f"delta.{name}"] / np.maximum(over, 1e-12), 0.0)
            new[f"model.{name}"] = (params + move).astype(params.dtype)
        since, opened = int(state["server.since"]) + 1, int(state["open"])
        ids, cluster = self._all_clients(state, total["ids"])
        if since >= self.wait and opened < self.n_clusters:
            positions = np.flatnonzero(np.isin(ids, total["ids"]))
            rows = total["update"][np.argsort(total["ids"], kind="stable")]
            for c in range(opened):
                members = positions[cluster[positions] == c]
                away = self._cut(rows[cluster[positions] == c])
                if away is not None:
                    absent = np.setdiff1d(np.flatnonzero(cluster == c), members)
                    cluster[members[away]], cluster[absent] = opened, -1
                    for name in model_arrays(state):
                        new[f"model.{name}"][opened] = new[f"model.{name}"][c]
                    opened, since = opened + 1, 0
                    break
        own = {"of_client.ids": ids, "of_client.cluster": cluster}
        return {**new, "open": np.asarray(opened), "server.since": np.asarray(since), **own}

    def _all_clients(self, state: Arrays, cohort_ids: Array) -> tuple[Array, Array]:
        """All clients so far, in order, and their clusters; unknown for clients that join after a split."""
        ids, cluster = state["of_client.ids"], state["of_client.cluster"]
        new = cohort_ids if len(ids) == 0 else cohort_ids[~np.isin(cohort_ids, ids)]
        ids = new if len(ids) == 0 else np.concatenate([ids, new])
        cluster = np.concatenate([cluster, np.full(len(new), 0 if int(state["open"]) == 1 else -1)])
        order = np.argsort(ids, kind="stable")
        return ids[order], cluster[order]

    def _cut(self, rows: Array) -> Array | None:
        """Mask of the clients that move to the new cluster; None if the cluster is not split."""
        length = np.linalg.norm(rows, axis=1)
        some = length > 0
        if some.sum() < 4:
            return None
        mean = length[some].mean()
        if np.linalg.norm(rows[some].mean(axis=0)) > self.small * mean or length.max() < self.large * mean:
            return None
        unit = rows / np.maximum(length, 1e-300)[:, None]
        cosines = unit @ unit.T
        label = halves(cosines)
        return label == 1 if 1 < label.sum() < len(label) - 1 else None

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p(class | x) of each row under the model of its client's cluster: [rows, classes]."""
        cluster = self._cluster(state, clients)
        own = {n: p[trainer_of(self.local).sent(cluster)] for n, p in common_model(self.local, state).items()}
        return each_own_log_probs(self.local, own, clients)

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """The cluster whose model fits a new client's labelled rows best."""
        return {"cluster": self._best(state, clients)}

    def _best(self, state: Arrays, clients: Federation) -> Array:
        models = each_model(stacked(self.local, state))[: int(state["open"])]
        logs = forward(self.local, models, clients, slice(0, clients.n_rows), loss=False)  # [rows, open, classes]
        target = clients[self.local.target]
        fits = [sums_over_rows(log_probs_of(logs[:, c], target), clients) for c in range(len(models))]
        return np.asarray(np.argmax(fits, axis=0), dtype=np.int64)

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[ClusteredFL, Federation]]:
        fed, one, two = small_example()
        return [(cls(one, 2, wait=1, small=9.0, large=0.1), fed), (cls(two, 2, projection=None), fed)]


def halves(cosines: Array) -> Array:
    """Split clients into two groups of similar ones: complete linkage on the cosines, 0 or 1 for each client.

    >>> halves(np.array([[1, 0.9, -1], [0.9, 1, -0.8], [-1, -0.8, 1]])).tolist()
    [0, 0, 1]
    """
    groups = [[i] for i in range(len(cosines))]
    near = cosines.astype(float).copy()
    np.fill_diagonal(near, -np.inf)
    alive = list(range(len(cosines)))
    while len(alive) > 2:
        part = near[np.ix_(alive, alive)]
        a, b = divmod(int(part.argmax()), len(alive))
        i, j = alive[min(a, b)], alive[max(a, b)]
        groups[i] += groups[j]
        near[i] = near[:, i] = np.minimum(near[i], near[j])  # the least similar pair of the two groups
        near[i, i] = -np.inf
        alive.remove(j)
    label = np.zeros(len(cosines), dtype=np.int64)
    if len(alive) == 2:
        label[groups[alive[1]]] = 1
    return label
