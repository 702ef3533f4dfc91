"""One-round computations on fixed models: comparisons and standard errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.private import shortened
from fedscape.mixtures.dirichlet_multinomial.start import example
from fedscape.mixtures.size_laws import Kind
from fedscape.types import Array, Arrays, Kept


class ModelComparison(Computation):
    """The log-likelihood of clients under fixed models, and its differences between models.

    Clients send their log-likelihood under each model, and the products of its differences to the first model: the
    input to standard errors of paired differences.
    """

    name = "dm-compare"

    def __init__(
        self,
        models: tuple[int, ...],
        reach: Array,
        *,
        sizes: Kind | None = "bins",
        column: str = "y",
        count: str | None = None,
    ) -> None:
        self.models = models
        self.reach = reach
        self.sizes = sizes
        self.column = column
        self.count = count
        self._like = TailCountEM(models, reach, sizes=sizes, column=column, count=count)

    def start(self, seed: int) -> Arrays:
        return self._like.start(seed)

    def prepare(self, state: Arrays) -> Arrays:
        return self._like.prepare(state)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        likelihood = self._like.measure(state, clients)["log_likelihood"]  # [clients, models]
        above = likelihood - likelihood[:, :1]
        return {"log_likelihood": likelihood, "products": above[:, :, None] * above[:, None, :]}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = np.maximum(total["clients"], 1)
        mean = total["log_likelihood"] / n
        above = mean - mean[0]
        covariance = total["products"] / n - above[:, None] * above
        spread = np.diag(covariance)
        variance = np.maximum(spread[:, None] + spread - 2 * covariance, 0.0)
        errors = np.sqrt(variance / np.maximum(n - 1, 1))  # of the mean difference of two models
        kept = {name: state[name] for name in ("weights", "mean", "dispersion", "sizes")}
        return {**kept, "log_likelihood": mean, "errors": errors, "clients": total["clients"]}

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self._like.valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[ModelComparison, Federation]]:
        return [(cls((1, 2, 3), np.array([128, 64, 32, 32, 320])), example())]


class PrivateComparison(Computation):
    """Differences in log-likelihood between models, as few bounded numbers, for a private fit.

    Clients send the deviation of each model from the mean of all, in nats, scaled down to the L2 norm `bound`. They
    also send the squares of that divided by `bound`: together a norm of at most sqrt(2) bound. With a single model they
    send the log-likelihood itself.

    Parameters
    ----------
    bound
        Maximum norm of the vector of differences, in nats.
    noise
        Standard deviation of the noise on a sum; included in the standard errors.
    """

    name = "dm-contrast"

    def __init__(
        self,
        models: tuple[int, ...],
        reach: Array,
        *,
        bound: float,
        noise: float = 0.0,
        sizes: Kind | None = "bins",
        column: str = "y",
        count: str | None = None,
    ) -> None:
        self.models = models
        self.reach = reach
        self.bound = bound
        self.noise = noise
        self.sizes = sizes
        self.column = column
        self.count = count
        self._like = TailCountEM(models, reach, sizes=sizes, column=column, count=count)

    def start(self, seed: int) -> Arrays:
        return self._like.start(seed)

    def prepare(self, state: Arrays) -> Arrays:
        return self._like.prepare(state)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        likelihood = self._like.measure(state, clients)["log_likelihood"]  # [clients, models]
        if len(self.models) == 1:
            return {"log_likelihood": likelihood}, {}
        above = shortened(likelihood - likelihood.mean(axis=1, keepdims=True), self.bound)
        return {"above": above, "squares": above**2 / self.bound}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = max(float(total["clients"]), 1.0)
        mean = total.get("above", total.get("log_likelihood", np.zeros(1))) / n
        spread = np.zeros(len(mean))
        if "squares" in total:
            spread = np.maximum(total["squares"] * self.bound / n - mean**2, 0.0)
        # the variance of a difference is at most twice that of both together, plus noise
        errors = np.sqrt(2 * (spread[:, None] + spread) / n + 2 * (self.noise / n) ** 2)
        np.fill_diagonal(errors, 0.0)
        kept = {name: state[name] for name in ("weights", "mean", "dispersion", "sizes")}
        return {**kept, "log_likelihood": mean, "errors": errors, "clients": np.asarray(n)}

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self._like.valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[PrivateComparison, Federation]]:
        reach = np.array([128, 64, 32, 32, 320])
        return [(cls((1, 2, 3), reach, bound=3.0), example()), (cls((2,), reach, bound=3.0), example())]


class Information(Computation):
    """The sum over clients of the outer product of the score, for standard errors of one model.

    The score has, for each component, w_k a_kj (psi(c_j + a_kj) - psi(a_kj) - psi(n + a_k0) + psi(a_k0)) for log a_kj,
    then w_k - tau_k for log tau_k.
    """

    name = "dm-information"

    block_clients = 64  # a client sends the square of (C + 1) K numbers

    def __init__(
        self,
        n_components: int,
        reach: Array,
        *,
        sizes: Kind | None = "bins",
        column: str = "y",
        count: str | None = None,
    ) -> None:
        self.n_components = n_components
        self.reach = reach
        self.sizes = sizes
        self.column = column
        self.count = count
        self._like = TailCountEM((n_components,), reach, sizes=sizes, solver="fixed_point", column=column, count=count)

    def start(self, seed: int) -> Arrays:
        return self._like.start(seed)

    def prepare(self, state: Arrays) -> Arrays:
        return self._like.prepare(state)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        score = self._scores(state, clients, key)
        return {"squares": score[:, :, None] * score[:, None, :]}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        score = self._scores(state, clients, key)
        return {"squares": score.T @ score}

    def _scores(self, state: Arrays, clients: Federation, key: Key) -> Array:
        sent, _ = self._like.step(state, clients, key)
        alpha = sent["first"] - state["mean"].T * sent["first_total"][:, None, :]  # [clients, C, K]
        weights = sent["shares"] - state["weights"]
        return np.concatenate((alpha.transpose(0, 2, 1).reshape(len(alpha), -1), weights), axis=1)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        squares = total["squares"]
        k = self.n_components
        free = squares.shape[0] - 1  # the weights sum to one: the last is not free
        scale = np.sqrt(np.maximum(np.diag(squares)[:free], 0.0))
        determined = scale > 1e-9 * np.sqrt(np.maximum(total["clients"], 1))
        errors = np.full(free, 1e300)
        jacobian = np.diag(state["weights"]) - np.outer(state["weights"], state["weights"])
        weights = np.zeros(k)
        if determined.any():
            inner = squares[:free, :free][np.ix_(determined, determined)] / np.outer(
                scale[determined], scale[determined]
            )
            covariance = np.linalg.pinv(inner, rcond=1e-12, hermitian=True) / np.outer(
                scale[determined], scale[determined]
            )
            errors[determined] = np.sqrt(np.maximum(np.diag(covariance), 0.0))
            free_weights = np.flatnonzero(determined) >= free - (k - 1)
            inside = covariance[np.ix_(free_weights, free_weights)]
            moved_by = jacobian[:, np.flatnonzero(determined)[free_weights] - (free - (k - 1))]
            weights = np.sqrt(np.maximum(np.diag(moved_by @ inside @ moved_by.T), 0.0))
        kept = {name: state[name] for name in ("weights", "mean", "dispersion", "sizes")}
        return {**kept, "errors": np.concatenate((errors[: free - (k - 1)], weights))}

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self._like.valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[Information, Federation]]:
        return [(cls(2, np.array([128, 64, 32, 32, 320])), example())]
