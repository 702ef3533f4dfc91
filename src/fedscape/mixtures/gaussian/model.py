"""Gaussian mixtures of the rows of all clients: central EM by sums, no row leaves its client.

Wu et al., "Personalized Federated Learning under Mixture of Distributions" (FedGMM); algorithm and equation numbers are
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import segment_sum_twin
from fedscape.core.computation import Computation
from fedscape.core.engine import Engine
from fedscape.core.estimator import Estimator, Fit, check_n_init
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import frozen
from fedscape.core.sampling import All
from fedscape.errors import DataError, PrivacyError
from fedscape.mixtures.gaussian.covariances import Covariance, Full, Tied, check_covariance, check_covariances
from fedscape.mixtures.gaussian.em import GaussianRounds, GaussianScore, Part, Scatter, Weighting, expectations
from fedscape.mixtures.gaussian.start import draw_means, spread_of
from fedscape.privacy.mechanisms import AdaptiveClip, Privacy
from fedscape.privacy.release import noise_sd
from fedscape.types import Array

Rows = Federation | npt.ArrayLike

_SENT = ("shares", "first", "second")
_FULL = Full()


class GaussianMixture(Estimator):
    """A density of rows: p(x) = sum_k pi(k) N(x; mu_k, Sigma_k), Algorithm 2.

    For each component, clients send the sums of its responsibilities and of the first and second moments about the
    broadcast mean. That is as many numbers as the paper's local means and covariances, and lossless. With everyone
    taking part, `shared_weights=True` is EM on the pooled rows; otherwise it is EM with separate weights per client.
    `scatter="within_clients"` is the paper's average of local covariances, for comparison.

    A fit begins with two rounds (one if private) with a single component, which compute the moments of all rows; starts
    are drawn from these. All starts run in the same rounds, one more round measures them, and the most likely is kept.

    Under privacy pass `bound`, which bounds the effect of a row, and for unit="client" also weighting="clients". Then
    the contribution of a client has at most the norm sqrt(1 + 4 + 16) per start, and a clip of 4.6 clips nothing. There
    is one start unless `n_init` is set; several are compared with `measure_privacy`.

    Parameters
    ----------
    n_components
        K.
    covariance
        Full(), Diagonal(), Spherical() or Tied() of `fedscape.mixtures`.
    means_init, weights_init, covariances_init
        Initial values, [K, d], [K] and in the structure of the covariance; missing ones are drawn. With means there is
        one start, and components keep their order.
    regularisation
        Added to every variance: no component can collapse to a point.
    shared_weights
        Whether all clients have the same weights pi; otherwise each keeps its own.
    n_init
        Number of parallel starts; by default 4, and 1 under privacy (recorded in `history_.notes`).
    rounds
        Maximum number of rounds after the two of the moments.
    tol
        Stop when no start gains more than this in a round, in nats per row (not with a sampler).
    scatter
        "all", or "within_clients": the covariances of the paper, without the scatter between clients' means.
    weighting
        "rows": clients count by their rows. "clients": all count equally.
    bound
        Longer rows are scaled to this norm.
    n_features
        d, needed if the clients' data are remote and no means are given.
    column
        Numbers of any trailing shape; they are flattened to d features. May be memory-mapped.

    Learns `means_` [K, d], `covariances_`, `weights_` [K], `log_likelihood_`, `n_rounds_` and `history_`. The weights
    are in descending order; they are the pooled ones if clients keep their own. The log-likelihood is a mean over rows.
    It is NaN if not measured, or if a sampler drew nobody to measure it: then the first start is kept.

    >>> fed = Federation({"x": [[0.0], [0.2], [9.0], [9.2], [9.1]]}, [0, 2, 5])
    >>> GaussianMixture(2).fit(fed).means_.round(2).tolist()
    [[9.1], [0.1]]
    """

    name = "gaussian-mixture"

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance: Covariance = _FULL,
        means_init: npt.ArrayLike | None = None,
        weights_init: npt.ArrayLike | None = None,
        covariances_init: npt.ArrayLike | None = None,
        regularisation: float = 1e-6,
        shared_weights: bool = False,
        n_init: int | None = None,
        rounds: int = 50,
        tol: float = 1e-4,
        scatter: Scatter = "all",
        weighting: Weighting = "rows",
        bound: float | None = None,
        n_features: int | None = None,
        column: str = "x",
        seed: int = 0,
    ) -> None:
        self.n_components = n_components
        self.covariance = covariance
        self.means_init = means_init
        self.weights_init = weights_init
        self.covariances_init = covariances_init
        self.regularisation = regularisation
        self.shared_weights = shared_weights
        self.n_init = n_init
        self.rounds = rounds
        self.tol = tol
        self.scatter = scatter
        self.weighting = weighting
        self.bound = bound
        self.n_features = n_features
        self.column = column
        self.seed = seed

    # -- learning ------------------------------------------------------------------------------------------------------

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        self._check()
        how.check_scales(*_SENT)
        if how.privacy is not None and isinstance(how.privacy.clip, AdaptiveClip):
            raise PrivacyError(
                "clip must be a number: variances are kept above the noise, which an AdaptiveClip would move in every "
                "round; with bound and weighting='clients' 4.6 clips nothing"
            )
        blind = how.privacy is not None and how.measure_privacy is None
        alone = self.n_components == 1 or self.means_init is not None
        starts = 1 if alone else self._n_starts(self.n_init, how)
        if blind and starts > 1:
            raise PrivacyError("starts are compared by measuring them: give measure_privacy, or use n_init=1")
        work = self._first(engine, column or self.column, how, starts)
        before = len(self.history_)
        full = how.sampler is None or isinstance(how.sampler, All)
        state = self._run(
            work,
            engine,
            how,
            n_rounds=self.rounds,
            seed=self.seed,
            done=(lambda old, new: bool(np.abs(new["gain"]).max() <= self.tol)) if full else None,
            measure=0,
        )
        self.n_rounds_ = len(self.history_) - before
        best, self.log_likelihood_ = 0, float("nan")
        if not blind:
            judge = GaussianScore(**work.get_params())
            judging = replace(how.phase(".final"), privacy=how.measure_privacy, measure_privacy=None)
            judging = replace(judging, ledger=None) if judging.privacy is None else judging
            unknown = {**state, "server.score": np.full(starts, np.nan)}  # if no client is drawn to score
            judged = self._run(
                judge, engine, judging, n_rounds=1, seed=self.seed, state=unknown, carry=True, needed=False
            )
            score = judged["server.score"]
            if not np.isnan(score).all():
                best, self.log_likelihood_ = int(np.argmax(score)), float(score.max())
        order = np.arange(self.n_components)
        if self.means_init is None:
            order = np.argsort(-state["weights"][best], kind="stable")
        self.weights_, self.means_ = state["weights"][best][order], state["means"][best][order]
        covariances = state["covariances"][best]
        self.covariances_ = covariances if isinstance(self.covariance, Tied) else covariances[order]

    def n_releases(self) -> int:
        """The number of releases of a private fit, without comparing starts: `rounds` of `calibrate`.

        >>> GaussianMixture(3, rounds=10).n_releases()
        11
        """
        has_start = self.means_init is not None and self.covariances_init is not None
        return self.rounds + (0 if has_start else 1)

    def _first(self, engine: Engine, column: str, how: Fit, starts: int) -> GaussianRounds:
        """The EM rounds with their initial state; missing values are drawn from the moments of all rows."""
        k, d = self.n_components, self._features(engine, column, how)
        weights = np.full((starts, k), 1 / k) if self.weights_init is None else self._given_weights()[None]
        means = None if self.means_init is None else self._given_means(d)[None]
        covariances = None
        if self.covariances_init is not None:
            covariances = np.array(self.covariances_init, dtype=float)
            check_covariances(self.covariance, covariances, k, d)
            covariances = np.stack([covariances] * starts)
        if means is None or covariances is None:
            mean, matrix = self._moments(engine, column, how, d)
            if means is None:
                means = draw_means(mean, matrix, k, starts, self.seed)
            if covariances is None:
                covariances = spread_of(self.covariance, matrix, means, self.regularisation)
        weights = np.repeat(weights, starts // len(weights), axis=0)
        return self._rounds(weights, means, covariances, column, how.privacy)

    def _rounds(
        self, weights: Array, means: Array, covariances: Array, column: str, privacy: Privacy | None = None
    ) -> GaussianRounds:
        return GaussianRounds(
            weights,
            means,
            covariances,
            covariance=self.covariance,
            regularisation=self.regularisation,
            shared_weights=self.shared_weights,
            scatter=self.scatter,
            weighting=self.weighting,
            bound=self.bound,
            noise=(noise_sd(privacy, "shares"), noise_sd(privacy, "second")),
            column=column,
        )

    def _moments(self, engine: Engine, column: str, how: Fit, d: int) -> tuple[Array, Array]:
        """Mean and covariance matrix of all rows: rounds with a single component."""
        form = Full() if isinstance(self.covariance, Tied) else self.covariance
        spread = form.of(np.eye(d), 1)[None]
        one = self._rounds(np.ones((1, 1)), np.zeros((1, 1, d)), spread, column, how.privacy)
        one.set_params(covariance=form, shared_weights=True, scatter="all")
        number = 2 if how.privacy is None else 1
        state = self._run(one, engine, how.phase(".moments"), n_rounds=number, seed=self.seed, measure=0)
        return state["means"][0, 0], form.matrices(state["covariances"][0], 1, d)[0]

    def _features(self, engine: Engine, column: str, how: Fit) -> int:
        clients = engine.clients
        if isinstance(clients, Federation):
            if clients.n_rows == 0 and how.privacy is None:  # under privacy their number is a secret
                raise DataError("the clients must have rows to fit a mixture to, there are none")
            return int(np.prod(clients[column].shape[1:]))
        if self.means_init is not None:
            return int(np.asarray(self.means_init).shape[-1])
        if self.n_features is None:
            raise DataError("n_features must be given where the clients' data cannot be looked at: pass n_features=")
        return self.n_features

    def _given_weights(self) -> Array:
        weights = np.array(self.weights_init, dtype=float)
        if weights.shape != (self.n_components,) or not (weights >= 0).all() or abs(weights.sum() - 1) > 1e-6:
            raise DataError(
                f"weights_init must be {self.n_components} numbers of at least 0 that add to 1, not {weights!r}"
            )
        return weights

    def _given_means(self, d: int) -> Array:
        means = np.array(self.means_init, dtype=float)
        if means.shape != (self.n_components, d) or not np.isfinite(means).all():
            raise DataError(f"means_init must be finite numbers [{self.n_components}, {d}], got shape {means.shape}")
        return means

    def _check(self) -> None:
        check_covariance(self.covariance)
        check_n_init(self.n_init)
        if self.n_components < 1 or self.rounds < 1:
            raise DataError(f"n_components and rounds must be at least 1, got {self.n_components} and {self.rounds}")
        if not 0 < self.regularisation < np.inf:
            raise DataError(f"regularisation must be positive to keep variances above zero, not {self.regularisation}")
        if self.scatter not in ("all", "within_clients") or self.weighting not in ("rows", "clients"):
            raise DataError(
                "scatter must be 'all' or 'within_clients' and weighting 'rows' or 'clients', "
                f"not {self.scatter!r} and {self.weighting!r}"
            )
        if self.bound is not None and not self.bound > 0:
            raise DataError(f"bound must be positive, not {self.bound}")

    # -- asking --------------------------------------------------------------------------------------------------------

    def _parts(self, data: Rows, weights: npt.ArrayLike | None) -> Iterator[Part]:
        self._check_fitted("means_")
        fed = data
        if not isinstance(fed, Federation):
            values = np.asarray(data)
            fed = Federation({self.column: values}, np.array([0, len(values)]))
        own = np.asarray(self.weights_ if weights is None else weights, dtype=float)
        own = np.broadcast_to(own, (len(fed), self.n_components))[:, None]
        work = self._rounds(self.weights_[None], self.means_[None], self.covariances_[None], self.column)
        return expectations(work, work.prepare(frozen(work.start(0))), fed, own)

    def score_samples(self, data: Rows, *, weights: npt.ArrayLike | None = None) -> Array:
        """log p(x) of each row.

        Parameters
        ----------
        data
            Rows [n, d], or a Federation; read in blocks.
        weights
            Instead of `weights_`: [K], or one row per client of a Federation.

        >>> gmm = GaussianMixture().fit(Federation({"x": [[-1.0], [1.0]]}, [0, 1, 2]))
        >>> gmm.score_samples([[0.0]]).round(3).tolist()
        [-0.919]
        """
        likelihoods = [part.log_likelihood[0] for part in self._parts(data, weights)]
        return np.concatenate(likelihoods) if likelihoods else np.empty(0)

    def score(self, data: Rows, *, weights: npt.ArrayLike | None = None) -> float:
        """The mean over rows of log p(x).

        >>> gmm = GaussianMixture().fit(Federation({"x": [[-1.0], [1.0]]}, [0, 1, 2]))
        >>> round(gmm.score([[0.0], [0.0]]), 3)
        -0.919
        """
        return float(self.score_samples(data, weights=weights).mean())

    def predict_proba(self, data: Rows, *, weights: npt.ArrayLike | None = None) -> Array:
        """The responsibility of each component for each row: [rows, K].

        >>> gmm = GaussianMixture().fit(Federation({"x": [[-1.0], [1.0]]}, [0, 1, 2]))
        >>> gmm.predict_proba([[0.0]])
        array([[1.]])
        """
        responsibilities = [part.shares[0].T for part in self._parts(data, weights)]
        return np.concatenate(responsibilities) if responsibilities else np.empty((0, self.n_components))

    def predict(self, data: Rows, *, weights: npt.ArrayLike | None = None) -> Array:
        """The component with the largest responsibility for each row.

        >>> gmm = GaussianMixture().fit(Federation({"x": [[-1.0], [1.0]]}, [0, 1, 2]))
        >>> gmm.predict([[0.0]])
        array([0])
        """
        return np.asarray(self.predict_proba(data, weights=weights).argmax(axis=1))

    def client_weights(self, data: Federation, *, rounds: int = 50) -> Array:
        """Estimate the weights pi_c of each client from its own rows, with fixed components: [clients, K].

        A client without rows gets `weights_`.

        >>> fed = Federation({"x": [[0.0], [0.2], [9.0], [9.2], [9.1]]}, [0, 2, 5])
        >>> GaussianMixture(2).fit(fed).client_weights(fed).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        self._check_fitted("means_")
        weights = np.broadcast_to(self.weights_, (len(data), self.n_components))
        rows = np.maximum(data.sizes, 1)[:, None]
        for _ in range(rounds):
            shares = segment_sum_twin(self.predict_proba(data, weights=weights), data.offsets)
            weights = np.where(data.sizes[:, None] > 0, shares / rows, self.weights_)
        return weights

    def sample(self, n: int, *, seed: int = 0) -> Array:
        """Draw new rows [n, d] from the pooled law.

        >>> gmm = GaussianMixture().fit(Federation({"x": [[-1.0], [1.0]]}, [0, 1, 2]))
        >>> gmm.sample(3).shape
        (3, 1)
        """
        self._check_fitted("means_")
        rng = Key(seed, purpose="gaussian sample").generator()
        component = rng.choice(self.n_components, n, p=self.weights_ / self.weights_.sum())
        lower = np.linalg.cholesky(self._matrices())
        noise = rng.standard_normal((n, self.means_.shape[1]))
        return np.asarray(self.means_[component] + np.einsum("nij,nj->ni", lower[component], noise))

    def _matrices(self) -> Array:
        return self.covariance.matrices(self.covariances_, *self.means_.shape)

    @property
    def n_parameters_(self) -> int:
        """The number of free parameters, with shared weights: K - 1, K d, and those of the covariances."""
        self._check_fitted("means_")
        return int(self.n_components - 1 + self.means_.size + self.covariance.n_parameters(*self.means_.shape))

    def aic(self, data: Rows) -> float:
        """Akaike's criterion under the shared weights: smaller is better.

        >>> gmm = GaussianMixture().fit(Federation({"x": [[-1.0], [1.0]]}, [0, 1, 2]))
        >>> round(gmm.aic([[0.0]]), 3)
        5.838
        """
        return float(2 * self.n_parameters_ - 2 * self.score_samples(data).sum())

    def bic(self, data: Rows) -> float:
        """The Bayesian information criterion under the shared weights: smaller is better.

        >>> gmm = GaussianMixture().fit(Federation({"x": [[-1.0], [1.0]]}, [0, 1, 2]))
        >>> round(gmm.bic([[0.0]]), 3)
        1.838
        """
        scores = self.score_samples(data)
        return float(self.n_parameters_ * np.log(max(len(scores), 1)) - 2 * scores.sum())

    @classmethod
    def examples(cls) -> Sequence[tuple[Computation, Federation]]:
        return [*GaussianRounds.examples(), *GaussianScore.examples()]
