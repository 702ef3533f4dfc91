"""FedGMM: the joint distribution of features and labels of a client is a mixture; only its weights are the client's.

Wu et al., "Personalized Federated Learning under Mixture of Distributions"; algorithm and equation numbers are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.learning.local import LocalSGD
from fedscape.mixtures.gaussian.covariances import Full
from fedscape.mixtures.gaussian.em import GaussianRounds, Part, add_moments, log_densities, parts
from fedscape.mixtures.gaussian.model import GaussianMixture
from fedscape.personal.features import projected
from fedscape.personal.fedem import Expectation, FedEM, log_sum, logs, normalised, proportions, small_example
from fedscape.personal.shared import each_model, forward, moved_models, stacked, start_models, sums_over_rows
from fedscape.types import Array, Arrays, Kept

_GAUSSIAN = ("means", "covariances")
_PROJECTION = ("projection.mean", "projection.directions")


class Densities(NamedTuple):
    """Log densities of each row under the components."""

    x: Array  # log N(x; mu_m1, Sigma_m1), [rows, M1]
    y: Array | None  # log p_m2(y | x), [rows, M2]; None without labels


_UNFITTED = "mixture must be a fitted GaussianMixture: GaussianMixture(3).fit(federation)"


class FedGMM(FedEM):
    """p_c(x, y) = sum over m1, m2 of pi_c(m1, m2) N(x; mu_m1, Sigma_m1) p_m2(y | x): Algorithm 1.

    Clients send sums of moments about the broadcast means, and the moves of the M2 learners, each trained with its
    responsibilities as sample weights. With these sums the Gaussians are those of all rows pooled, unlike the paper's
    average of local covariances. Each client keeps its pi_c [M1, M2].

    The Gaussians start from a fitted `GaussianMixture`, which also names their column: the features, a projection
    (`with_projection`), or an embedding (`with_embedding`). The weights start with most of the mass of Gaussian m1 at
    learner m1 modulo M2: learners specialise from the first round.

    The state holds `model.<parameter>` [M2, ...], `means`, `covariances` and `weights` [M1, M2], the shares over all
    rows of the last cohort, which is footnote 3 normalised.

    Parameters
    ----------
    local
        How a client trains a learner.
    mixture
        A fitted GaussianMixture with scatter="all" and weighting="rows": M1 components. On a Flower node it need not be
        fitted: the server sends its start. Its `bound` and `regularisation` apply here too.
    n_learners
        M2.
    coupling
        The share of a Gaussian's weight that starts at its own learner; 1 / M2 starts without preference.
    warm
        Number of rounds in which the E-step ignores labels. Untrained learners split rows at random, and then end in a
        poor optimum in which they contradict each other on the same rows.
    initial
        "seed": draw every learner. "given": all start as copies of the model.
    projection
        Mean [d] and directions [d, n] of the features. The Gaussians are then over the features along these directions
        and the log norm of the rest, as in `with_projection` with residual=True. It is part of the state.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> gaussians = GaussianMixture(2, regularisation=0.1).fit(fed)
    >>> [r.state["weights"].shape for r in rounds(FedGMM(step, gaussians, 2), fed, n_rounds=1)]
    [(2, 2)]
    """

    name = "fedgmm"
    newcomers: ClassVar[str | None] = "the learners mixed by what its features say, with the weights of all clients"

    def __init__(
        self,
        local: LocalSGD,
        mixture: GaussianMixture,
        n_learners: int = 3,
        *,
        coupling: float = 0.9,
        warm: int = 3,
        initial: str = "seed",
        projection: tuple[Array, Array] | None = None,
    ) -> None:
        super().__init__(local, n_learners, weighting="shares", initial=initial)
        self.projection = projection
        self.mixture = mixture
        self.coupling = coupling
        self.warm = warm
        if not isinstance(mixture, GaussianMixture):
            raise DataError(_UNFITTED)
        if mixture.scatter != "all" or mixture.weighting != "rows":
            raise DataError(
                "FedGMM counts all rows alike, about the common means: mixture must have scatter='all' and "
                f"weighting='rows', not {mixture.scatter!r} and {mixture.weighting!r}"
            )
        if not isinstance(coupling, int | float | np.number) or not 0 < coupling <= 1:
            raise DataError(f"coupling must be a number above 0 and at most 1, not {coupling!r}")
        check_whole("warm", warm, least=0)

    @property
    def rounds_of_gaussians(self) -> GaussianRounds:
        """The Gaussian part as its own computation; its first state is the fitted mixture."""
        m = self.mixture
        if not hasattr(m, "means_"):  # on a node: the server sends them
            return m._rounds(np.ones((1, m.n_components)), np.empty((1, 0)), np.empty((1, 0)), m.column)
        return m._rounds(m.weights_[None], m.means_[None], m.covariances_[None], m.column)

    def start(self, seed: int) -> Arrays:
        m1, m2 = self.mixture.n_components, self.n_learners
        if not hasattr(self.mixture, "means_"):
            raise DataError(_UNFITTED)
        models = start_models(self.local, m2, seed, initial=self.initial)
        at = np.full((m1, m2), (1 - self.coupling) / max(m2 - 1, 1))
        at[np.arange(m1), np.arange(m1) % m2] = self.coupling if m2 > 1 else 1.0
        at /= at.sum(axis=1, keepdims=True)
        weights = self.mixture.weights_[:, None] * at
        gaussians = {"means": self.mixture.means_, "covariances": self.mixture.covariances_}
        if self.projection is not None:
            gaussians |= dict(zip(_PROJECTION, self.projection, strict=True))
        return {**models, **gaussians, "weights": weights / weights.sum(), "rounds": np.zeros((), dtype=np.int64)}

    def prepare(self, state: Arrays) -> Arrays:
        """The state with whitening matrices and the constants of the densities."""
        prepared = self.rounds_of_gaussians.prepare({n: state[n][None] for n in _GAUSSIAN})
        return {**state, "factor": prepared["factor"], "constant": prepared["constant"]}

    # -- training ------------------------------------------------------------------------------------------------------

    def densities(self, state: Arrays, clients: Federation, *, labels: bool = True) -> Densities:
        """Log densities of each row under every Gaussian and every learner."""
        work, ready = self.rounds_of_gaussians, self._ready(state)
        x = np.empty((clients.n_rows, self.mixture.n_components))
        for begin, end, rows in parts(work, ready, self._gaussian_rows(state, clients)):
            x[begin:end] = log_densities(ready, rows)[0].T
        return Densities(x, self._fits(state, clients) if labels else None)

    def _gaussian_rows(self, state: Arrays, clients: Federation) -> Federation:
        """The rows as input of the Gaussians: the clients' own, or their projection."""
        if _PROJECTION[0] not in state:
            return clients
        mean, directions = (state[name] for name in _PROJECTION)
        projection = projected(clients[self.local.features], mean, directions, residual=True)
        return Federation({self.mixture.column: projection}, clients.offsets, clients.ids)

    def _ready(self, state: Arrays) -> Arrays:
        if "factor" not in state:
            state = self.prepare(state)
        return {"means": state["means"][None], "factor": state["factor"], "constant": state["constant"]}

    def shares(self, densities: Densities, own: Array, clients: Federation) -> Array:
        """Responsibilities q(m1, m2) of each row, (E): [rows, M1, M2]; without labels, pi_c(m2 | m1) times q(m1)."""
        each = logs(own)[clients.client_of_row] + densities.x[:, :, None]
        return normalised(each if densities.y is None else each + densities.y[:, None, :])

    def expect(self, state: Arrays, clients: Federation) -> Expectation:
        own = kept_rows(clients, "shares", state["weights"])
        q = self.shares(self.densities(state, clients, labels=int(state["rounds"]) >= self.warm), own, clients)
        mass, rows = sums_over_rows(q, clients), clients.sizes[:, None, None]
        kept = {"shares": np.where(rows > 0, mass / np.maximum(rows, 1), own)}
        work, ready = self.rounds_of_gaussians, self._ready(state)
        sums = work.no_sums(ready, len(clients))
        of_gaussians = np.ascontiguousarray(q.sum(axis=2).T)[None]  # [1, M1, rows]
        for begin, end, rows_here in parts(work, ready, self._gaussian_rows(state, clients)):
            part = Part(begin, end, rows_here, of_gaussians[..., begin:end], np.empty(0))
            add_moments(work.covariance, ready["means"], sums, clients.offsets, part)
        unit = self.mixture.bound or 1.0  # the Gaussian rounds take sums in this unit
        sent = {"mass": mass, "first": sums["first"][:, 0] / unit, "second": sums["second"][:, 0] / unit**2}
        return Expectation(q.sum(axis=1), sent, kept)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        work = self.rounds_of_gaussians
        sums = {"shares": total["mass"].sum(axis=1), "first": total["first"], "second": total["second"]}
        old = {"weights": state["weights"].sum(axis=1), **{n: state[n] for n in _GAUSSIAN}}
        new = work.update({n: v[None] for n, v in old.items()}, {n: v[None] for n, v in sums.items()}, key)
        models = moved_models(state, total, total["weight"])
        weights = proportions(total["mass"], state["weights"])
        same = {name: state[name] for name in _PROJECTION if name in state}
        gaussians = {n: new[n][0] for n in _GAUSSIAN}
        return {**models, **gaussians, **same, "weights": weights, "rounds": state["rounds"] + 1}

    # -- prediction ----------------------------------------------------------------------------------------------------

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p_c(class | x) of each row, equation (3) with the logarithm of pi_c: [rows, classes]."""
        each = self._weighted(state, clients)
        learners = log_sum(each, axis=1) - log_sum(each, axis=(1, 2))[:, None]  # log p_c(m2 | x)
        models = each_model(stacked(self.local, state))
        log_p = forward(self.local, models, clients, slice(0, clients.n_rows), loss=False)
        return log_sum(log_p + learners[..., None], axis=1)

    def _weighted(self, state: Arrays, clients: Federation) -> Array:
        """log pi_c(m1, m2) N(x; mu_m1, Sigma_m1): [rows, M1, M2]."""
        own = kept_rows(clients, "shares", state["weights"])
        densities = self.densities(state, clients, labels=False)
        return np.asarray(logs(own)[clients.client_of_row] + densities.x[:, :, None])

    def log_prob_x(self, state: Arrays, clients: Federation) -> Array:
        """log p_c(x) of each row; under the common weights for clients that keep none."""
        return log_sum(self._weighted(state, clients), axis=(1, 2))

    def log_prob_y_given_x(self, state: Arrays, clients: Federation) -> Array:
        """log p_c(y | x) of each labelled row."""
        return self.log_prob_joint(state, clients) - self.log_prob_x(state, clients)

    def log_prob_joint(self, state: Arrays, clients: Federation) -> Array:
        """log p_c(x, y) of each labelled row."""
        fits = self._fits(state, clients)
        return log_sum(self._weighted(state, clients) + fits[:, None, :], axis=(1, 2))

    def adapt(self, state: Arrays, clients: Federation, key: Key, *, rounds: int = 20) -> Kept:
        """The shares of new clients with all components fixed: from labelled rows, or from features alone.

        From features alone a client learns its share of each Gaussian; the learner of a Gaussian stays as in the
        common weights. Either way the client runs `rounds` EM steps, by default 20.
        """
        densities = self.densities(state, clients, labels=self.local.target in clients)
        own, rows = kept_rows(clients, "shares", state["weights"]), clients.sizes[:, None, None]
        common = state["weights"] / np.maximum(state["weights"].sum(axis=1, keepdims=True), 1e-300)
        for _ in range(rounds):
            mass = sums_over_rows(self.shares(densities, own, clients), clients)
            if densities.y is None:
                mass = mass.sum(axis=2, keepdims=True) * common
            own = np.where(rows > 0, mass / np.maximum(rows, 1), own)
        return {"shares": own}

    def digest(self) -> str:
        """The digest of the parameters and of the first Gaussians."""
        return f"{super().digest()}.{self.rounds_of_gaussians.digest()}"

    @classmethod
    def examples(cls) -> Sequence[tuple[Any, Federation]]:
        fed, one, two = small_example()
        mixture = GaussianMixture(2, covariance=Full(), regularisation=0.05, rounds=3).fit(fed)
        bounded = GaussianMixture(2, regularisation=0.05, rounds=3, bound=2.5).fit(fed)
        basis = (fed["x"].mean(axis=0), np.linalg.qr(np.arange(8.0).reshape(4, 2) % 3)[0])
        projection = Federation({"z": projected(fed["x"], *basis, residual=True)}, fed.offsets, fed.ids)
        along = GaussianMixture(2, column="z", regularisation=0.05, rounds=3).fit(projection)
        return [
            (cls(one, along, 2, warm=0, projection=basis), fed),
            (cls(one, mixture, 2, warm=1), fed),
            (cls(two, mixture, 3, coupling=1 / 3, warm=0), fed),
            (cls(one, bounded, 2, warm=0), fed),
        ]
