"""Baselines for FedTEM and FedTKM on the same network: other ways to choose the branch of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch.nn import functional

from fedscape.core.arrays import segment_sum_twin
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.validate import valid_numbers
from fedscape.errors import DataError
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Adam, Rule
from fedscape.learning.trainer import trainer_of
from fedscape.personal.fedem import logs, normalised
from fedscape.temporal.branched import MEAN, Branched, Seen
from fedscape.temporal.curves import Curve, Linear
from fedscape.temporal.fedtem import small_example
from fedscape.types import Array, Arrays, Kept, Tensor

_LINEAR = Linear()


class MinLoss(Branched):
    """IFCA on branches: a client trains the branch with the smallest loss on its labelled rows (Ghosh et al. 2020).

    Test clients have no labels: they take the most certain branch, by the KL divergence from the uniform distribution.

    Parameters
    ----------
    local, strength, smoothing, server, weighting, initial
        As for FedTEM; the paper uses label smoothing here too.

    >>> fed, step, _ = small_example()  # twelve clients, two branches
    >>> MinLoss(step).reveals
    ()
    """

    name = "min-loss"

    def choose(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept]:
        fits = segment_sum_twin(_fits(self, state, clients), clients.offsets)
        return np.eye(self.n_modes)[fits.argmax(axis=1)][clients.client_of_row], {}

    def evidence(self, state: Arrays, rows: Seen) -> Tensor:
        return certainty_of_outputs(rows.outputs)

    @classmethod
    def examples(cls) -> Sequence[tuple[MinLoss, Federation]]:
        fed, one, two = small_example()
        return [(cls(one), fed), (cls(two, server=Adam()), fed)]


class SemiCyclic(Branched):
    """Semi-cyclic SGD on branches: the branch of a round is that of the hour (Eichner et al. 2019).

    Test clients take the most certain branch, as in MinLoss. The other branch is not trained.

    Parameters
    ----------
    local
        How a client trains.
    schedule
        The branch of a round is the mode with the largest share. With a curve of equation (3) that is one branch for
        the half of the day around the peak. `Blocks(T)` is the first half of each period, counted in rounds.
    server, weighting, initial
        As for FedAvg.

    >>> fed, step, _ = small_example()  # twelve clients, two branches
    >>> [SemiCyclic(step, Linear(8)).choose({}, fed, Key(0, t))[0][0].tolist() for t in (0, 4)]
    [[1.0, 0.0], [0.0, 1.0]]
    """

    name = "semi-cyclic"

    def __init__(
        self,
        local: LocalSGD,
        schedule: Curve = _LINEAR,
        *,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(local, strength=0.0, smoothing=0.0, server=server, weighting=weighting, initial=initial)
        self.schedule = schedule

    def choose(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept]:
        branch = int(self.schedule.shares(key.round).argmax())
        return np.repeat(np.eye(self.n_modes)[branch : branch + 1], clients.n_rows, axis=0), {}

    def evidence(self, state: Arrays, rows: Seen) -> Tensor:
        return certainty_of_outputs(rows.outputs)

    @classmethod
    def examples(cls) -> Sequence[tuple[SemiCyclic, Federation]]:
        fed, one, _ = small_example()
        return [(cls(one, Linear(4)), fed)]


class BranchFedEM(Branched):
    """FedEM on branches: every client mixes the branches with its own weights, fitted to the losses (Marfoq 2021).

    Clients keep their weights from round to round. Test clients fit theirs by EM on *labelled* test rows. No other
    method sees test labels: keep that in mind when you compare results.

    Parameters
    ----------
    local
        How a client trains.
    iterations
        EM iterations for a test client.
    server, weighting, initial
        As for FedAvg.

    >>> fed, step, _ = small_example()  # twelve clients, two branches
    >>> BranchFedEM(step).strength
    0.0
    """

    name = "branch-fedem"

    def __init__(
        self,
        local: LocalSGD,
        *,
        iterations: int = 20,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(local, strength=0.0, smoothing=0.0, server=server, weighting=weighting, initial=initial)
        self.iterations = iterations
        if iterations < 1:
            raise DataError(f"iterations must be at least 1, not {iterations}")

    def choose(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept]:
        own = kept_rows(clients, "shares", np.full(self.n_modes, 1 / self.n_modes))
        shares = normalised(_fits(self, state, clients) + logs(own)[clients.client_of_row])
        rows = clients.sizes[:, None]
        mass = segment_sum_twin(shares, clients.offsets)
        return shares, {"shares": np.where(rows > 0, mass / np.maximum(rows, 1), own)}

    def _shares_of_units(self, state: Arrays, rows: Seen, clients: Federation, unit: str, batch: int) -> Tensor:
        offsets = self.offsets_of_units(clients, unit, batch).cpu().numpy()
        fits, owner = _fits_of(self, rows, clients), np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        own = np.full((len(offsets) - 1, self.n_modes), 1 / self.n_modes)
        for _ in range(self.iterations):
            own = segment_sum_twin(normalised(fits + logs(own)[owner]), offsets)
            own = own / np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
        return self.double(own[owner])

    @classmethod
    def examples(cls) -> Sequence[tuple[BranchFedEM, Federation]]:
        fed, one, two = small_example()
        return [(cls(one), fed), (cls(two, iterations=3), fed)]


class NearestCentre(Branched):
    """Every row takes the branch of the centre nearest to its raw features, in training and in tests.

    Centres come from T-shot k-means (`LocalCentres`, which reveals the centres of clients) or, from sums alone, from
    `FederatedKMeans` over the same rounds.

    Parameters
    ----------
    local
        How a client trains.
    centres
        [K, d], in the units of the stored features, flattened.
    strength, smoothing, server, weighting, initial
        As for FedTEM.

    >>> fed, step, _ = small_example()  # twelve clients, two branches
    >>> two = Federation({"x": [[0.0, 1, 0, 0], [5.0, 5, 5, 5]]}, [0, 2])
    >>> NearestCentre(step, [[0] * 4, [5] * 4]).choose({}, two, Key(0))[0].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    name = "nearest-centre"

    def __init__(
        self,
        local: LocalSGD,
        centres: npt.ArrayLike,
        *,
        strength: float = 0.0,
        smoothing: float = 0.0,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(
            local, strength=strength, smoothing=smoothing, server=server, weighting=weighting, initial=initial
        )
        self.centres = centres
        array = np.asarray(centres, dtype=float)
        if array.ndim != 2 or len(array) != self.n_modes or not np.isfinite(array).all():
            raise DataError(f"centres must be finite numbers [{self.n_modes}, d], not of shape {array.shape}")

    def choose(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept]:
        return np.eye(self.n_modes)[self._nearest(clients)], {}

    def _nearest(self, clients: Federation) -> Array:
        x = clients[self.local.features]
        x = x.reshape(len(x), int(np.prod(x.shape[1:]))).astype(np.float64)
        centres = np.asarray(self.centres, dtype=float)
        return np.asarray((x @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1))

    def _shares_of_units(self, state: Arrays, rows: Seen, clients: Federation, unit: str, batch: int) -> Tensor:
        self.offsets_of_units(clients, unit, batch)
        return self.double(np.eye(self.n_modes)[self._nearest(clients)])  # always row by row

    @classmethod
    def examples(cls) -> Sequence[tuple[NearestCentre, Federation]]:
        fed, one, _ = small_example()
        return [(cls(one, [[0, 0, 0, 0], [2, 2, 2, 2]]), fed)]


class LocalCentres(Computation):
    """k-means centres of each client's raw rows, collected over a period: T-shot k-means (Dennis et al. 2021).

    The server sees the centres of each client; after the rounds `centres_of` clusters them. The paper's form of
    one-shot k-means collects for a whole period, to see both modes.

    Parameters
    ----------
    n_centres
        Centres per client; a client with fewer rows repeats its last one.
    column
        The features, flattened.
    iterations
        Iterations of Lloyd's algorithm on the client, from rows drawn by its key.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": [[0.0], [1.0], [9.0]]}, [0, 2, 3])
    >>> work = LocalCentres(1)
    >>> state = [r.state for r in rounds(work, fed, n_rounds=1, allow=work.reveals)][-1]
    >>> centres_of(state, 2).tolist()
    [[0.5], [9.0]]
    """

    name = "local-centres"

    reveals: ClassVar[tuple[str, ...]] = ("centres", "rows")
    block_clients = 64

    def __init__(self, n_centres: int = 2, *, column: str = "x", iterations: int = 10) -> None:
        self.n_centres = n_centres
        self.column = column
        self.iterations = iterations
        if n_centres < 1 or iterations < 1:
            raise DataError(f"n_centres and iterations must be at least 1, not {n_centres} and {iterations}")

    def start(self, seed: int) -> Arrays:
        return {"server.centres": np.zeros((0, 0)), "server.rows": np.zeros(0)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        x = clients[self.column]
        x = x.reshape(len(x), int(np.prod(x.shape[1:]))).astype(np.float64)
        centres = np.zeros((len(clients), self.n_centres, x.shape[1]))
        rows = np.zeros((len(clients), self.n_centres))
        for i, rng in enumerate(key.to("centres").of(clients)):
            mine = x[clients.offsets[i] : clients.offsets[i + 1]]
            if len(mine):
                centres[i], rows[i] = lloyd(mine, np.ones(len(mine)), self.n_centres, rng, self.iterations)
        return {"centres": centres, "rows": rows}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        d = total["centres"].shape[2]
        before = state["server.centres"].reshape(-1, d)
        flat, rows = total["centres"].reshape(-1, d), total["rows"].reshape(-1)
        some = rows > 0
        return {
            "server.centres": np.concatenate([before, flat[some]]),
            "server.rows": np.concatenate([state["server.rows"], rows[some]]),
        }

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_numbers(clients[self.column])

    @classmethod
    def examples(cls) -> Sequence[tuple[LocalCentres, Federation]]:
        fed, _, _ = small_example()
        return [(cls(2, iterations=3), fed)]


def centres_of(state: Arrays, n_modes: int, *, seed: int = 0, starts: int = 10) -> Array:
    """Cluster the centres that clients revealed, by k-means weighted by rows: [K, d], sorted by the first coordinate.

    The best of several starts is returned.
    """
    points, weight = state["server.centres"], state["server.rows"]
    if len(points) < n_modes:
        raise DataError(f"{n_modes} centres cannot be found among the {len(points)} that clients sent: run more rounds")
    best, least = np.zeros((0, 0)), np.inf
    for s in range(starts):
        centres, _ = lloyd(points, weight, n_modes, Key(seed, s, "centres").generator(), 50)
        away = ((points[:, None, :] - centres) ** 2).sum(axis=2).min(axis=1) @ weight
        if away < least:
            best, least = centres, away
    return best[np.argsort(best[:, 0], kind="stable")]


def lloyd(x: Array, weight: Array, k: int, rng: np.random.Generator, iterations: int) -> tuple[Array, Array]:
    """Weighted k-means of a few rows: centres [k, d] and the weight of each; an empty centre does not move."""
    centres = x[np.resize(rng.permutation(len(x)), k)].copy()
    mass = np.zeros(k)
    for _ in range(iterations):
        near = (x @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1)
        mass = np.bincount(near, weights=weight, minlength=k).astype(float)
        for j in np.flatnonzero(mass):
            mine = near == j
            centres[j] = weight[mine] @ x[mine] / mass[j]
    return centres, mass


def certainty_of_outputs(outputs: Tensor) -> Tensor:
    """KL divergence of each branch's prediction from the uniform distribution: [rows, K]; larger is more certain.

    >>> import torch
    >>> certainty_of_outputs(torch.tensor([[[0.0, 0.0], [0.0, 99.0]]])).numpy().round(3)
    array([[0.   , 0.693]], dtype=float32)
    """
    logs_ = functional.log_softmax(outputs, dim=-1)
    return (logs_.exp() * logs_).sum(dim=-1) + float(np.log(outputs.shape[-1]))


def _fits(method: Branched, state: Arrays, clients: Federation) -> Array:
    """log p(y | x) of each row under each branch: [rows, K]."""
    return _fits_of(method, method.see(state, clients, outputs=True), clients)


def _fits_of(method: Branched, rows: Seen, clients: Federation) -> Array:
    y = trainer_of(method.local).targets(clients)
    classes = y[:, None, None].expand(-1, method.n_modes, 1)
    return functional.log_softmax(rows.outputs, dim=-1).gather(2, classes)[:, :, 0].cpu().numpy()  # type: ignore[no-any-return]
