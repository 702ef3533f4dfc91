"""Clustered federated learning: the server splits clients whose updates point in different directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number, check_whole
from fedscape.errors import DataError
from fedscape.learning.domain import valid_rows
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.trainer import trainer_of
from fedscape.personal.fedem import small_example
from fedscape.personal.shared import (
    each_model,
    each_own_log_probs,
    forward,
    log_probs_of,
    measured,
    stacked,
    start_models,
    sums_over_rows,
    trained_alone,
    weighted,
    weighted_sums,
)
from fedscape.types import Array, Arrays, Kept


class ClusteredFL(Computation):
    """Clients begin as one cluster; one whose mean update is small while its clients' are not is cut in two.

    Sattler et al. 2020. The halves come from the cosines of updates by complete linkage, as public implementations have
    it (the paper's algorithm 1 asks for the least largest cosine across); at least four clients must move, and a half
    has at least two. For that the server must see, client by client, `update`: the whole move with projection=None, or
    by default only a seeded random projection of it to 256 numbers (a count sketch: each weight's move is added, with a
    random sign, to one of them), whose cosines are the same to about 0.06. The moves themselves are summed cluster by
    cluster. Clients keep the number of their cluster. One that was not there when its cluster was cut, or came later,
    takes in every round the cluster whose model fits its labelled rows best: from a sum over several clients the server
    does not see which.

    The state holds `model.<parameter>` [clusters, ...], `open` (how many are in use) and each client's own cluster.

    Parameters
    ----------
    local
        How a client trains.
    n_clusters
        At most so many.
    projection
        How many numbers of the projected update the server sees; None shows it the whole.
    small, large
        A cluster is cut when the length of its mean update is below `small` times, and its longest update above `large`
        times, the mean length of its updates.
    wait
        Rounds before the first cut and between cuts.
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
        """As many clients as are trained side by side."""
        return max(1, trainer_of(self.local).chunk // self.n_clusters)

    def start(self, seed: int) -> Arrays:
        one = start_models(self.local, 1, seed, initial=self.initial)
        models = {n: np.repeat(v, self.n_clusters, axis=0) for n, v in one.items()}
        whole = np.zeros(0, dtype=np.int64)
        own = {"of_client.ids": whole, "of_client.cluster": whole}
        return {**models, "open": np.asarray(1), "server.since": np.asarray(0), **own}

    def _told(self, state: Arrays, clients: Federation) -> Array:
        """The cluster that the server knows each client to be in, -1 where it knows none."""
        if "of_client.known" in state:
            return np.where(state["of_client.known"], state["of_client.cluster"], -1)
        if "of_client.ids" not in state:
            return np.full(len(clients), -1)
        place = dict(zip(state["of_client.ids"].tolist(), state["of_client.cluster"].tolist(), strict=True))
        return np.array([place.get(v, -1) for v in clients.ids.tolist()], dtype=np.int64)

    def _cluster(self, state: Arrays, clients: Federation) -> Array:
        """Each client's cluster: what the server says, else what it kept, else the first."""
        kept, cluster = clients.kept.get("cluster"), np.zeros(len(clients), dtype=np.int64)
        if kept is not None:
            cluster[kept.lengths > 0] = kept.flat
        told = self._told(state, clients)
        return np.minimum(np.where(told < 0, cluster, told), int(state["open"]) - 1)

    def _to_train(self, state: Arrays, clients: Federation) -> Array:
        """The same, but a client of which the server knows no cluster takes the one that fits its rows best now."""
        cluster, free = self._cluster(state, clients), np.flatnonzero(self.undecided(state, clients))
        if len(free):
            cluster[free] = self._best(state, clients.take(free))
        return cluster

    def undecided(self, state: Arrays, clients: Federation) -> Array:
        """Which clients were not there when their cluster was cut, or came later."""
        return (self._told(state, clients) < 0) & (int(state["open"]) > 1) & (clients.sizes > 0)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._trained(state, clients, key)
        return {**weighted(moves, weight), "weight": weight, "update": self._projected(moves)}, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._trained(state, clients, key)
        sums = {**weighted_sums(moves, weight), "weight": weight.sum(axis=0)}
        return {**sums, "update": self._projected(moves)}, kept

    def _trained(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Array, Kept]:
        """Each client's move, what it counts in each cluster [clients, clusters], and what it keeps."""
        cluster, params = self._to_train(state, clients), model_arrays(state)
        begin = {n: p[cluster] for n, p in params.items()}
        moves = trained_alone(self.local, begin, clients, key)
        for n, m in moves.items():
            m -= begin[n]
        return moves, np.eye(self.n_clusters)[cluster] * clients.sizes[:, None], {"cluster": cluster}

    def _projected(self, moves: Arrays) -> Array:
        """What the server sees: every move as one row, of which each number is added to or taken from one of a few."""
        rows = [m.reshape(len(m), -1) for m in moves.values()]
        width = sum(r.shape[1] for r in rows)
        if self.projection is None or self.projection >= width:
            return np.concatenate(rows, axis=1, dtype=np.float64)
        rng = Key(0, purpose="projection").generator()
        place, sign = rng.integers(self.projection, size=width), rng.choice([-1.0, 1.0], size=width)
        each = (sign * np.concatenate([r[i] for r in rows]) for i in range(len(rows[0])))
        return np.stack([np.bincount(place, row, minlength=self.projection) for row in each])

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        weight = total["weight"]
        new: Arrays = {}
        for name, params in model_arrays(state).items():
            over = weight.reshape(-1, *[1] * (params.ndim - 1))
            move = np.where(over > 0, total[f"delta.{name}"] / np.maximum(over, 1e-12), 0.0)
            new[f"model.{name}"] = (params + move).astype(params.dtype)
        since, opened = int(state["server.since"]) + 1, int(state["open"])
        ids, cluster = self._known(state, total["ids"])
        if since >= self.wait and opened < self.n_clusters:
            seen = np.flatnonzero(np.isin(ids, total["ids"]))
            rows = total["update"][np.argsort(total["ids"], kind="stable")]
            for c in range(opened):
                members = seen[cluster[seen] == c]
                away = self._cut(rows[cluster[seen] == c])
                if away is not None:
                    absent = np.setdiff1d(np.flatnonzero(cluster == c), members)
                    cluster[members[away]], cluster[absent] = opened, -1
                    for name in model_arrays(state):
                        new[f"model.{name}"][opened] = new[f"model.{name}"][c]
                    opened, since = opened + 1, 0
                    break
        own = {"of_client.ids": ids, "of_client.cluster": cluster}
        return {**new, "open": np.asarray(opened), "server.since": np.asarray(since), **own}

    def _known(self, state: Arrays, seen: Array) -> tuple[Array, Array]:
        """All clients seen so far, in order, and their clusters; who comes after a cut has none that is known."""
        ids, cluster = state["of_client.ids"], state["of_client.cluster"]
        new = seen if len(ids) == 0 else seen[~np.isin(seen, ids)]
        ids = new if len(ids) == 0 else np.concatenate([ids, new])
        cluster = np.concatenate([cluster, np.full(len(new), 0 if int(state["open"]) == 1 else -1)])
        order = np.argsort(ids, kind="stable")
        return ids[order], cluster[order]

    def _cut(self, rows: Array) -> Array | None:
        """Which of the clients go to the new cluster; None where the cluster stays whole."""
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
        own = {n: p[cluster] for n, p in model_arrays(state).items()}
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
    """Two groups so that clients of one are alike: complete linkage from the cosines, 0 or 1 for each client.

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
        near[i] = near[:, i] = np.minimum(near[i], near[j])  # the farthest pair of the two groups
        near[i, i] = -np.inf
        alive.remove(j)
    label = np.zeros(len(cosines), dtype=np.int64)
    if len(alive) == 2:
        label[groups[alive[1]]] = 1
    return label
