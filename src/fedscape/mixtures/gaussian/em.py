"""The rounds of EM for Gaussian mixtures, several starts in parallel.

A state holds `weights` [S, K], `means` [S, K, d], `covariances` [S, ...] in the structure of the covariance, and
`gain` [S], the last round's gain in expected log-likelihood per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedscape.core.arrays import offsets_of, segment_sum_twin
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.schedule import one_library_thread
from fedscape.core.validate import all_finite, check_finite, valid_numbers
from fedscape.errors import DataError
from fedscape.mixtures.gaussian.covariances import Covariance, Diagonal, Full, Moments, Spherical, Tied
from fedscape.mixtures.gaussian.kernels import squares
from fedscape.mixtures.numbers import numbers_of
from fedscape.statistics.moments import shortened
from fedscape.types import Array, Arrays, Kept

Scatter = Literal["all", "within_clients"]
Weighting = Literal["rows", "clients"]

_LOST = 1e-10  # a component with less than this share of all rows keeps its parameters
_NUMBERS = 2**16  # rows and responsibilities per part: they stay in cache


class GaussianRounds(Computation):
    """One EM round: Algorithm 2 of FedGMM with lossless sums.

    With r the responsibility of a component for a row, clients send sum r, sum r (x - m) and sum r (x - m)(x - m)'
    about the broadcast mean m. The new mean and covariance are those of the pooled rows: with everyone taking part this
    is central EM.

    Parameters
    ----------
    weights, means, covariances
        Initial values: [S, K], [S, K, d] and [S, ...].
    covariance
        The covariance structure.
    regularisation
        Added to every variance, which keeps it above zero.
    shared_weights
        Whether all clients have the same weights; otherwise each keeps its own, initialised with the common ones.
    scatter
        "all": about the common mean. "within_clients": about each client's own mean, the paper's average of local
        covariances, which ignores the distance between clients' means.
    weighting
        "rows": a client counts by its number of rows. "clients": all count equally.
    bound
        Longer rows are scaled to this norm; sums are then sent in units of it.
    noise
        Standard deviations of the noise on `shares` and on `second`; what noise alone could produce is ignored.
    """

    name = "gm-em"

    block_clients = 128  # a client sends K d x d numbers
    block_rows = 2**14

    def __init__(
        self,
        weights: Array,
        means: Array,
        covariances: Array,
        *,
        covariance: Covariance,
        regularisation: float = 1e-6,
        shared_weights: bool = False,
        scatter: Scatter = "all",
        weighting: Weighting = "rows",
        bound: float | None = None,
        noise: tuple[float, float] = (0.0, 0.0),
        column: str = "x",
    ) -> None:
        self.weights = weights
        self.means = means
        self.covariances = covariances
        self.covariance = covariance
        self.regularisation = regularisation
        self.shared_weights = shared_weights
        self.scatter = scatter
        self.weighting = weighting
        self.bound = bound
        self.noise = noise
        self.column = column

    def start(self, seed: int) -> Arrays:
        gain = np.full(len(self.weights), 1e9)
        return {"weights": self.weights, "means": self.means, "covariances": self.covariances, "gain": gain}

    def prepare(self, state: Arrays) -> Arrays:
        """Add the whitening factors and the constants of the densities to the state."""
        _, k, d = state["means"].shape
        factor = self.covariance.factor(state["covariances"])
        constant = -0.5 * (self.covariance.log_det(factor, k, d) + d * np.log(2 * np.pi))
        return {**state, "factor": self.covariance.whitener(factor, k, d), "constant": constant}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        own = self._own_weights(state, clients)
        sums = self._sums(state, clients, clients.offsets, own)
        rows = clients.sizes[:, None, None]
        kept = {} if own is None else {"shares": np.where(rows > 0, sums["shares"] / np.maximum(rows, 1), own)}
        if self.scatter == "within_clients":
            mass = np.maximum(sums["shares"], 1e-300)
            shift = sums["first"] / mass[..., None]  # of the client's own mean
            sums["second"] = np.stack(
                [s - self.covariance.lift(m, a) for s, m, a in zip(sums["second"], mass, shift, strict=True)]
            )
        if self.weighting == "clients":
            each = 1 / np.maximum(clients.sizes, 1)
            sums = {name: v * each.reshape(-1, *[1] * (v.ndim - 1)) for name, v in sums.items()}
        unit = self.bound or 1.0
        return {"shares": sums["shares"], "first": sums["first"] / unit, "second": sums["second"] / unit**2}, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        if not self.shared_weights or self.scatter != "all" or self.weighting != "rows":
            return None
        sums = self._sums(state, clients, np.array([0, clients.n_rows]), None)
        unit = self.bound or 1.0
        return {"shares": sums["shares"][0], "first": sums["first"][0] / unit, "second": sums["second"][0] / unit**2}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        """The log-likelihood of all rows of a client, for each start, and its number of rows."""
        out = np.zeros((clients.n_rows, len(state["weights"])))
        for part in expectations(self, state, clients, self._own_weights(state, clients)):
            out[part.begin : part.end] = part.log_likelihood.T
        return {"log_likelihood": segment_sum_twin(out, clients.offsets), "rows": clients.sizes}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        with one_library_thread():  # small matrices: BLAS threads wait for each other
            return self._updated(state, total)

    def _updated(self, state: Arrays, total: Arrays) -> Arrays:
        unit = self.bound or 1.0
        mass, first, second = total["shares"], total["first"] * unit, total["second"] * unit**2
        every = np.maximum(mass, 0.0).sum(axis=-1, keepdims=True)
        occupied = mass > np.maximum(_LOST * every, max(5 * self.noise[0], 1e-12))
        mass = np.where(occupied, mass, 0.0)
        shift = np.where(occupied[..., None], first / np.where(occupied, mass, 1.0)[..., None], 0.0)
        about_new = second if self.scatter == "within_clients" else second - self.covariance.lift(mass, shift)
        means = self._bounded(state["means"] + shift)
        covariances = self.covariance.estimate(
            mass, about_new, state["covariances"], self.regularisation, self.noise[1] * unit**2
        )
        weights = np.maximum(mass, 1e-12 * every)
        weights = np.where(
            every > 0, weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300), state["weights"]
        )
        new = {"weights": weights, "means": means, "covariances": covariances}
        return {**new, "gain": self._gain(state, new, mass, second, about_new)}

    def _gain(self, state: Arrays, new: Arrays, mass: Array, before: Array, after: Array) -> Array:
        """The gain of this round in Q, the expected log-likelihood given the responsibilities, per row."""
        _, k, d = new["means"].shape
        value = []
        for now, scatter in ((state, before), (new, after)):
            factor = self.covariance.factor(now["covariances"])
            inside = np.log(np.maximum(now["weights"], 1e-300)) - 0.5 * self.covariance.log_det(factor, k, d)
            quadratic = self.covariance.quadratic(factor, scatter, d)
            value.append((mass * inside).sum(axis=-1) - 0.5 * quadratic)
        return np.asarray((value[1] - value[0]) / np.maximum(mass.sum(axis=-1), 1e-12))

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        # With client weights, the next responsibilities depend on all rows of a client: one row's effect has no bound.
        if self.bound is None or not self.shared_weights or self.scatter != "all" or self.weighting != "rows":
            return None
        starts, _, d = state["means"].shape
        r = 1 + float(np.linalg.norm(state["means"], axis=-1).max()) / self.bound  # of a row about a mean, in bounds
        one = np.sqrt(1 + r**2 + r**4) if norm == 2 else 1 + np.sqrt(d) * r + d * r**2
        return float(np.sqrt(starts) * one if norm == 2 else starts * one)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_numbers(clients[self.column])

    def _own_weights(self, state: Arrays, clients: Federation) -> Array | None:
        """The weights of each client, [clients, S, K]; None if they are shared."""
        return None if self.shared_weights else kept_rows(clients, "shares", state["weights"])

    def _bounded(self, means: Array) -> Array:
        if self.bound is None:
            return means
        length = np.linalg.norm(means, axis=-1, keepdims=True)
        return np.asarray(means * np.minimum(1.0, self.bound / np.maximum(length, 1e-300)))

    def _sums(self, state: Arrays, clients: Federation, offsets: Array, own: Array | None) -> Arrays:
        """Sums over the rows between these offsets: {name: [len(offsets) - 1, S, ...]}."""
        sums = self.no_sums(state, len(offsets) - 1)
        for part in expectations(self, state, clients, own):
            add_moments(self.covariance, state["means"], sums, offsets, part)
        return sums

    def no_sums(self, state: Arrays, n: int) -> Arrays:
        """Zero sums for n clients without rows."""
        starts, k, d = state["means"].shape
        second = np.zeros((n, starts, *self.covariance.shape(k, d)))
        return {"shares": np.zeros((n, starts, k)), "first": np.zeros((n, starts, k, d)), "second": second}

    @classmethod
    def examples(cls) -> Sequence[tuple[GaussianRounds, Federation]]:
        rng = np.random.default_rng(8)
        sizes = rng.integers(0, 14, 24)
        offsets = offsets_of(sizes)
        x = rng.normal(0, 1, (offsets[-1], 2)) * [1.0, 2.0] + 5 * rng.integers(0, 2, (offsets[-1], 1))
        fed = Federation({"x": x}, offsets)
        means, weights = rng.normal(2.5, 2.0, (2, 2, 2)), np.full((2, 2), 0.5)

        def example(covariance: Covariance, **options: object) -> tuple[GaussianRounds, Federation]:
            spread = np.stack([covariance.of(6 * np.eye(2), 2)] * 2)
            return cls(weights, means, spread, covariance=covariance, **options), fed  # type: ignore[arg-type]

        return [
            example(Full(), shared_weights=True),
            example(Full()),
            example(Diagonal(), shared_weights=True, bound=20.0),
            example(Spherical(), weighting="clients", bound=20.0),
            example(Tied()),
            example(Tied(), shared_weights=True),
            example(Full(), shared_weights=True, bound=5.0),
            example(Tied(), shared_weights=True, bound=5.0),
            example(Spherical(), shared_weights=True, bound=5.0),
        ]


class GaussianScore(GaussianRounds):
    """One round that scores each start: `server.score` [S], the mean log-likelihood over rows.

    With weighting="clients" it is the mean over clients of their means.
    """

    name = "gm-score"

    def start(self, seed: int) -> Arrays:
        return {**super().start(seed), "server.score": np.zeros(len(self.weights))}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sent = super().measure(state, clients)
        if self.weighting == "clients":
            each = np.maximum(clients.sizes, 1)
            sent = {"log_likelihood": sent["log_likelihood"] / each[:, None], "rows": (clients.sizes > 0).astype(int)}
        return sent, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        return None

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {**state, "server.score": total["log_likelihood"] / max(float(total["rows"]), 1.0)}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        return None  # the log-likelihood of a row is unbounded


class Part(NamedTuple):
    """Consecutive rows with their responsibilities and log-likelihoods."""

    begin: int
    end: int
    rows: Array  # [n, d]
    shares: Array  # [S, K, n]
    log_likelihood: Array  # [S, n]


def expectations(work: GaussianRounds, state: Arrays, clients: Federation, own: Array | None) -> Iterator[Part]:
    """The E-step, (E) without labels, in parts that stay in cache."""
    log_weights = logs(state["weights"])[..., None]
    owner = None if own is None else clients.client_of_row
    log_own = None if own is None else logs(own)
    for begin, end, rows in parts(work, state, clients):
        if log_own is not None and owner is not None:
            log_weights = log_own[owner[begin:end]].transpose(1, 2, 0)
        each = log_densities(state, rows)
        each += log_weights
        yield Part(begin, end, rows, *normalised(each))


def parts(work: GaussianRounds, state: Arrays, clients: Federation) -> Iterator[tuple[int, int, Array]]:
    """The first and last row of each part, and its rows [n, d]."""
    values = numbers_of(clients, work.column)
    starts, k, d = state["means"].shape
    values = values.reshape(len(values), int(np.prod(values.shape[1:])))
    if values.shape[1] != d and len(values):
        raise DataError(f"column {work.column!r} has {values.shape[1]} features, the mixture has {d}")
    size = int(min(max(_NUMBERS // max(starts * k, d), 16), 4096))
    for begin in range(0, len(values), size):
        x = rows_of_block(values, begin, begin + size, work.column, work.bound)
        yield begin, begin + len(x), x


def log_densities(state: Arrays, rows: Array) -> Array:
    """log N(x; mean, covariance) of rows [n, d] under a prepared state: [S, K, n]."""
    means, factor = state["means"], state["factor"]
    starts, k, d = means.shape
    each = squares(rows, means.reshape(-1, d), factor.reshape(starts * k, *factor.shape[2:]))
    each *= -0.5
    each += state["constant"].reshape(-1, 1)
    return each.reshape(starts, k, len(rows))


def add_moments(covariance: Covariance, means: Array, sums: Arrays, offsets: Array, part: Part) -> None:
    """Add the moments of a part about these means to the sums of the clients between these offsets."""
    one, last = np.searchsorted(offsets, (part.begin, part.end - 1), side="right") - 1
    bounds = np.clip(offsets[one : last + 2], part.begin, part.end) - part.begin
    block = Moments(*(sums[name][one : last + 1] for name in Moments._fields))
    covariance.add_moments(part.rows, means, part.shares, bounds, block)


def normalised(each: Array) -> tuple[Array, Array]:
    """Responsibilities and log-likelihoods from log joint densities [S, K, n]."""
    top = each.max(axis=1, keepdims=True)
    shares = np.exp(np.subtract(each, top, out=each), out=each)
    added = shares.sum(axis=1, keepdims=True)
    shares /= added
    return shares, (np.log(added) + top)[:, 0]


def rows_of_block(values: Array, begin: int, end: int, column: str, bound: float | None) -> Array:
    """These rows as float64, scaled down to the bound; a non-finite value is refused, with its row."""
    x = values[begin:end].astype(np.float64, copy=False) if values.dtype.kind in "biuf" else values[begin:end]
    if x.dtype.kind != "f" or not all_finite(x):
        check_finite(values, column)
    if bound is None:
        return x
    return shortened(x, bound)


def logs(weights: Array) -> Array:
    """Logarithms; minus infinity at zero, without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(weights)
