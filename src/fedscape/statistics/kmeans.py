"""k-means by sums: no client's row becomes a centre."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import offsets_of
from fedscape.core.engine import Engine
from fedscape.core.estimator import Estimator, Fit, check_n_init, reading
from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.core.random import Key
from fedscape.core.validate import valid_numbers
from fedscape.errors import DataError, PrivacyError
from fedscape.statistics.moments import Moments, features
from fedscape.types import Array, Arrays, Kept


class FederatedKMeans(Estimator):
    """Lloyd's algorithm over all clients' rows, from several starts in parallel.

    Starts are drawn from the normal law with the federation's mean and covariance (`Moments`, two rounds): no row
    leaves its client. All starts run in the same rounds; one more round measures them and the best is kept. Under
    privacy that needs `measure_privacy`; a single start, the default there, does not.

    Parameters
    ----------
    n_clusters
        Number of centres.
    column
        Numbers of any trailing shape; they are flattened to d features.
    n_init
        Number of parallel starts; by default 4, and 1 under privacy (recorded in `history_.notes`).
    rounds
        Maximum number of rounds after the two of `Moments`.
    tol
        Stop when no centre moved by more than this share of the data's standard deviation.
    init
        Starts [n_init, n_clusters, d] to use instead.
    bound
        Longer rows are scaled to this norm, which bounds what one row can change.

    Learns `centres_` [n_clusters, d], `sizes_` (rows per centre), `inertia_` (mean over clients of the sum of squared
    distances; NaN if not measured) and `moments_`.

    >>> fed = Federation({"x": [[0.0], [0.1], [9.0], [9.1]]}, [0, 2, 4])
    >>> FederatedKMeans(2).fit(fed).centres_.round(2).tolist()
    [[0.05], [9.05]]
    """

    name = "k-means"

    block_clients = 128  # a client sends n_init x n_clusters x d numbers

    def __init__(
        self,
        n_clusters: int,
        *,
        column: str = "x",
        n_init: int | None = None,
        rounds: int = 50,
        tol: float = 1e-4,
        init: npt.ArrayLike | None = None,
        bound: float | None = None,
        seed: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.column = column
        self.n_init = n_init
        self.rounds = rounds
        self.tol = tol
        self.init = init
        self.bound = bound
        self.seed = seed

    def start(self, seed: int) -> Arrays:
        if self.init is None:
            raise DataError(
                "FederatedKMeans needs starts: call fit(), which draws them, or give init=[starts, clusters, d]"
            )
        centres = np.array(self.init, dtype=float)
        if centres.ndim != 3 or centres.shape[1] != self.n_clusters or not np.isfinite(centres).all():
            raise DataError(f"init must be finite numbers [starts, {self.n_clusters}, d], got shape {centres.shape}")
        return {"centres": centres, "sizes": np.zeros(centres.shape[:2])}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return self._sums(state, clients, clients.client_of_row, len(clients)), {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        together = self._sums(state, clients, np.zeros(clients.n_rows, dtype=np.int64), 1)
        return {name: values[0] for name, values in together.items()}

    def _sums(self, state: Arrays, clients: Federation, owner: Array, n: int) -> Arrays:
        x = features(clients, self.column, self.bound)
        centres = state["centres"]
        labels = nearest(x, centres)[0]
        sums, sizes = np.zeros((n, *centres.shape)), np.zeros((n, *centres.shape[:2]), dtype=np.int64)
        add_by_label(np.ascontiguousarray(x), owner, labels, sums, sizes)
        return {"sums": sums, "sizes": sizes}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        """Sum of squared distances to the nearest centre, for each start."""
        return {
            "inertia": clients.segment_sum(nearest(features(clients, self.column, self.bound), state["centres"])[1])
        }

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        sizes = total["sizes"][..., None]
        centres = np.where(sizes > 0, total["sums"] / np.maximum(sizes, 1), state["centres"])  # an empty one stays
        return {"centres": centres, "sizes": total["sizes"].astype(float)}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        if self.bound is None:
            return None
        starts, _, d = state["centres"].shape
        return float(np.sqrt(starts * (1 + self.bound**2)) if norm == 2 else starts * (1 + np.sqrt(d) * self.bound))

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_numbers(clients[self.column])

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        work = reading(self, column)
        check_n_init(self.n_init)
        how.check_scales("n_rows", "first", "second", "sums", "sizes")
        self.moments_ = Moments(column=work.column, bound=self.bound)
        self.moments_.history_ = self.history_
        self.moments_._fit(engine, None, how.phase(".moments").sending("n_rows", "first", "second"))
        spread = float(np.sqrt(max(np.trace(np.atleast_2d(self.moments_.covariance_)), 0.0)))

        def settled(old: Arrays, new: Arrays) -> bool:
            return bool(np.abs(old["centres"] - new["centres"]).max() <= self.tol * spread)

        how, starts = how.sending("sums", "sizes"), self._starts(how)
        blind = how.privacy is not None and how.measure_privacy is None
        if blind and len(starts["centres"]) > 1:
            raise PrivacyError("starts are compared by measuring them: give measure_privacy, or use n_init=1")
        state = self._run(
            work, engine, how, n_rounds=self.rounds, seed=self.seed, state=starts, done=settled, measure=0
        )
        best, self.inertia_ = 0, float("nan")
        if not blind:
            state = {
                **self._run(work, engine, how.phase(".final"), n_rounds=1, state=state),
                "centres": state["centres"],
            }
            inertia = [self.history_[f"inertia.{i}"][-1] for i in range(len(state["centres"]))]
            best, self.inertia_ = int(np.argmin(inertia)), float(min(inertia))
        order = np.lexsort(state["centres"][best].T[::-1])  # sort by the first feature
        self.centres_, self.sizes_ = state["centres"][best][order], state["sizes"][best][order]

    def _starts(self, how: Fit) -> Arrays:
        if self.init is not None:
            return self.start(self.seed)
        if self.n_clusters < 1:
            raise DataError(f"n_clusters must be at least 1, not {self.n_clusters}")
        mean, covariance = self.moments_.mean_, self.moments_.covariance_
        values, vectors = np.linalg.eigh(covariance)
        noise = Key(self.seed, purpose="k-means starts").generator()
        draws = noise.standard_normal((self._n_starts(self.n_init, how), self.n_clusters, len(mean)))
        centres = mean + draws * np.sqrt(np.maximum(values, 0)) @ vectors.T
        return {"centres": centres, "sizes": np.zeros(centres.shape[:2])}

    def predict(self, x: npt.ArrayLike) -> Array:
        """The nearest centre of each row.

        >>> fed = Federation({"x": [[0.0], [9.0]]}, [0, 2])
        >>> FederatedKMeans(2).fit(fed).predict([[8.0], [1.0]]).tolist()
        [1, 0]
        """
        self._check_fitted("centres_")
        rows = np.asarray(x, dtype=float)
        return nearest(rows.reshape(len(rows), int(np.prod(rows.shape[1:]))), self.centres_[None])[0][:, 0]

    @classmethod
    def examples(cls) -> Sequence[tuple[FederatedKMeans, Federation]]:
        rng = np.random.default_rng(2)
        offsets = offsets_of(rng.integers(0, 7, 25))
        x = rng.normal(0, 1, (offsets[-1], 2)) + 6 * rng.integers(0, 3, (offsets[-1], 1))
        init, fed = rng.normal(6, 6, (2, 3, 2)), Federation({"x": x}, offsets)
        return [(cls(3, init=init), fed), (cls(3, init=init, bound=10.0), fed)]


def nearest(x: Array, centres: Array) -> tuple[Array, Array]:
    """The nearest centre of each row for each start, and the squared distance to it: both [rows, starts]."""
    starts, clusters, d = centres.shape
    flat = centres.reshape(starts * clusters, d)
    distance = (flat**2).sum(axis=1) - 2 * x @ flat.T  # without the row's own square, the same for all centres
    distance = distance.reshape(len(x), starts, clusters)
    labels = distance.argmin(axis=2)
    least = np.take_along_axis(distance, labels[..., None], axis=2)[..., 0] + (x**2).sum(axis=1, keepdims=True)
    return labels, np.maximum(least, 0.0)


@kernel
def add_by_label(x: Array, owner: Array, labels: Array, sums: Array, sizes: Array) -> None:
    """sums[owner, start, label] += x and sizes[owner, start, label] += 1, row by row."""
    for row in range(x.shape[0]):
        client = owner[row]
        for start in range(labels.shape[1]):
            label = labels[row, start]
            sizes[client, start, label] += 1
            for j in range(x.shape[1]):
                sums[client, start, label, j] += x[row, j]


def add_by_label_twin(x: Array, owner: Array, labels: Array, sums: Array, sizes: Array) -> None:
    """The plain NumPy twin of `add_by_label`."""
    starts = np.arange(labels.shape[1])
    for row, client in enumerate(owner):
        sums[client, starts, labels[row]] += x[row]
        sizes[client, starts, labels[row]] += 1
