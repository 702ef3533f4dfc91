"""pFedFDA: features are Gaussian given the class; clients mix their own estimate of that with the common one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number
from fedscape.errors import DataError
from fedscape.learning.local import LocalSGD
from fedscape.learning.trainer import trainer_of
from fedscape.personal.features import last_linear, with_embedding
from fedscape.personal.fedem import small_example
from fedscape.personal.fedper import FedPer
from fedscape.personal.shared import class_column, class_counts, common_model, weighted
from fedscape.types import Array, Arrays, Kept, Tensors

BETAS = np.linspace(0.0, 1.0, 6)
_PRIOR = 1e-4  # prior of a class of which a client has no row


class Law(NamedTuple):
    """Distribution of the features given the class: means [classes, d], one covariance [d, d]."""

    means: Array
    covariance: Array

    def head(self, prior: Array, ridge: float) -> tuple[Array, Array]:
        """Weights and biases of the linear layer that is Bayes' rule here, with a ridge on the covariance."""
        weight = np.linalg.solve(self.covariance + ridge * np.eye(len(self.covariance)), self.means.T).T
        return weight, np.log(prior) - 0.5 * np.einsum("cd,cd->c", self.means, weight)

    def mixed(self, own: Law, beta: float) -> Law:
        """Interpolate between this distribution (0) and another (1)."""
        return Law(*(beta * mine + (1 - beta) * common for common, mine in zip(self, own, strict=True)))


class PFedFDA(FedPer):
    """The head is linear discriminant analysis of the features: McLaughlin and Su 2024.

    Given its class a row's features are Gaussian, with one covariance for all classes. Clients send, for each class,
    the number and the sum of their rows' features under the broadcast body, and the scatter, all about the broadcast
    means. The server's new means and covariance are then exactly those of the pooled rows. A client derives a head from
    these and its own class shares, trains the body under it, and sends the body's move. After the rounds (`adapt`) its
    own head comes from a mixture of its own estimate, with weight beta, and the common one. beta is the best of six
    values in twofold cross-validation on its rows. Only sums are sent, so all of it can be clipped and noised.

    The paper takes features while clients train, averages clients' estimates and finds beta by L-BFGS; under one body
    the sums lose nothing.

    A new client gets the common distribution at once, and with labelled rows its own mixture without a gradient step.

    Parameters
    ----------
    local
        How a client trains the body; the last layer must be linear, with a bias.
    initial
        "given" or "seed". The first means are the rows of the last layer's weights, the first covariance is zero.
    ridge
        Added to the diagonal of a covariance before a head is computed from it. It bounds the weights however far the
        features shrink. The authors' code adds 1.

    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> sorted(PFedFDA(step).start(0))[:3]
    ['covariance', 'means', 'model.1.bias']
    """

    name = "pfedfda"
    newcomers: ClassVar[str | None] = "the common law of the features"

    def __init__(self, local: LocalSGD, *, initial: str = "given", ridge: float = 1.0) -> None:
        super().__init__(local, initial=initial)
        self.ridge = ridge
        if not check_number("ridge", ridge) > 0:
            raise DataError(f"ridge must be above 0, not {ridge}")
        layer = last_linear(local.model)
        trained = layer.bias is not None and layer.weight.requires_grad and layer.bias.requires_grad
        if not trained or len(self.head_names) != 2 or local.names[-2:] != tuple(self.head_names):
            raise DataError(
                f"the last layer must be linear, with a weight and a bias that are trained, for PFedFDA, not "
                f"{self.head_names}"
            )

    def start(self, seed: int) -> Arrays:
        state = super().start(seed)
        means = np.asarray(state[f"model.{self.head_names[0]}"], dtype=np.float64)
        return self._with_head({**state, "means": means, "covariance": np.zeros((means.shape[1],) * 2)})

    def _with_head(self, state: Arrays) -> Arrays:
        """The state with the last layer of the common distribution, for clients without kept arrays."""
        n_classes = len(state["means"])
        head = Law(state["means"], state["covariance"]).head(np.full(n_classes, 1 / n_classes), self.ridge)
        return {**state, **{f"model.{n}": v.astype(state[f"model.{n}"].dtype)
                            for n, v in zip(self.head_names, head, strict=True)}}  # fmt: skip

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        counts = class_counts(self.local, clients, len(state["means"]))
        sums, moves = self._sums(state, clients, counts), self._moves(state, clients, key, counts)
        return {**weighted(moves, clients.sizes), "weight": clients.sizes, "rows": counts, **sums}, {}

    total = Computation.total  # type: ignore[assignment]  # FedPer's does not sum the scatter

    def _features(self, state: Arrays, clients: Federation) -> tuple[Array, Array]:
        y = class_column(self.local, clients).astype(np.int64)
        return with_embedding(clients, self.local, state)["z"] if len(y) else np.zeros((0, len(state["covariance"]))), y

    def _moves(self, state: Arrays, clients: Federation, key: Key, counts: Array) -> Tensors:
        """Each client's move of the body under the head of the common distribution and its own class shares."""
        names, law = self.head_names, Law(state["means"], state["covariance"])
        body = {n: p for n, p in common_model(self.local, state).items() if n not in names}
        each = [law.head(prior, self.ridge) for prior in _priors(counts)]
        if not each:
            return {}
        heads = {n: trainer_of(self.local).sent(v) for n, v in self._stacked(state, each).items()}
        return self._body_moves(body, heads, clients, key)

    def _stacked(self, state: Arrays, each: list[tuple[Array, Array]]) -> Arrays:
        """Clients' heads under the names and in the dtype of the model: [clients, ...]."""
        parts = zip(self.head_names, zip(*each, strict=True), strict=True)
        return {n: np.stack(values).astype(state[f"model.{n}"].dtype) for n, values in parts}

    def _sums(self, state: Arrays, clients: Federation, counts: Array) -> Arrays:
        """Sums and scatter of each client's features, about the broadcast means."""
        (z, y), (n_classes, d), ends = self._features(state, clients), state["means"].shape, clients.offsets
        about = z - state["means"][y]
        sums = np.zeros((len(clients), n_classes, d))
        np.add.at(sums, (np.repeat(np.arange(len(clients)), clients.sizes), y), about)
        scatter = [about[ends[i] : ends[i + 1]].T @ about[ends[i] : ends[i + 1]] for i in range(len(clients))]
        return {"sums": sums, "scatter": np.stack(scatter) if scatter else np.zeros((0, d, d))}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        if total["weight"] < 1:
            return state
        rows = np.maximum(np.asarray(total["rows"], dtype=np.float64), 0.0)
        away = np.where(rows[:, None] >= 1, total["sums"] / np.maximum(rows, 1)[:, None], 0.0)
        within = total["scatter"] - np.einsum("c,cd,ce->de", rows, away, away)
        values, vectors = np.linalg.eigh((within + within.T) / 2 / max(rows.sum(), 1.0))
        covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T  # noise can make it indefinite
        moved = super().update(state, total, key)
        return self._with_head({**moved, "means": state["means"] + away, "covariance": covariance})

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """Each client's head from its own distribution and the common one, in closed form."""
        law, each = Law(state["means"], state["covariance"]), []
        priors = _priors(class_counts(self.local, clients, len(law.means)))
        z, y = self._features(state, clients)
        for i, (prior, rng) in enumerate(zip(priors, key.of(clients), strict=True)):
            rows = slice(int(clients.offsets[i]), int(clients.offsets[i + 1]))
            own = _best_law(law, z[rows], y[rows], prior, self.ridge, rng)
            each.append(own.head(prior, self.ridge))
        return {f"model.{n}": v for n, v in self._stacked(state, each).items()} if each else {}

    @classmethod
    def examples(cls) -> Sequence[tuple[PFedFDA, Federation]]:
        fed, _, two = small_example()
        return [(cls(two), fed), (cls(replace(two, strategy="vmap"), initial="seed"), fed)]


def _priors(counts: Array) -> Array:
    """Each client's class shares, never zero: [clients, classes]; equal without rows."""
    rows, n_classes = counts.sum(axis=1, keepdims=True), counts.shape[1]
    shares = np.where(rows > 0, counts / np.maximum(rows, 1), 1 / n_classes)
    return np.asarray((shares + _PRIOR) / (1 + n_classes * _PRIOR))


def _estimate(common: Law, z: Array, y: Array) -> Law:
    """A client's own distribution; the common mean for a class with fewer than two rows."""
    counts = np.bincount(y, minlength=len(common.means)).astype(np.float64)
    sums = np.zeros_like(common.means)
    np.add.at(sums, y, z)
    means = np.where(counts[:, None] >= 2, sums / np.maximum(counts, 1)[:, None], common.means)
    about = z - means[y]
    return Law(means, about.T @ about / max(len(z) - 1, 1))


def _best_law(common: Law, z: Array, y: Array, prior: Array, ridge: float, rng: np.random.Generator) -> Law:
    """Mix the common distribution with the client's own by beta, from twofold cross-validation."""
    if len(y) < 4:
        return common
    order = rng.permutation(len(y))
    halves = [order[: len(y) // 2], order[len(y) // 2 :]]
    loss = np.zeros(len(BETAS))
    for learn, judge in (halves, halves[::-1]):
        own = _estimate(common, z[learn], y[learn])
        for k, beta in enumerate(BETAS):
            weight, bias = common.mixed(own, beta).head(prior, ridge)
            scores = z[judge] @ weight.T + bias
            scores -= scores.max(axis=1, keepdims=True)
            loss[k] += np.sum(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(judge)), y[judge]])
    return common.mixed(_estimate(common, z, y), float(BETAS[loss.argmin()]))
