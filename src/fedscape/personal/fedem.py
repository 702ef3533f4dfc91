"""Several learners for all, and mixing weights per client: FedEM, and IFCA, where a client uses one learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays, valid_rows
from fedscape.learning.layers import initialised
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.losses import cross_entropy
from fedscape.learning.trainer import trainer_of
from fedscape.personal.shared import (
    each_model,
    forward,
    measured,
    moved_models,
    stacked,
    start_models,
    sums_over_rows,
    trained,
)
from fedscape.types import Array, Arrays, Kept


class Expectation(NamedTuple):
    """Result of a client's E-step, before it trains."""

    weights: Array  # of each row for each learner, [rows, M]
    sent: Arrays
    kept: Arrays


class FedEM(Computation):
    """The distribution of a client is a mixture of M learners: p_c(y | x) = sum_m pi_c(m) p_m(y | x), equation (2).

    Marfoq et al. 2021. In the E-step each client computes the responsibilities of the learners for its rows. It keeps
    their mean as its pi_c, and trains every learner with the responsibilities as sample weights. The server moves each
    learner by the weighted mean of the clients' moves. Only the client sees pi_c.

    The state holds `model.<parameter>` [M, ...] and `weights` [M], the shares over all rows of the last cohort. New
    clients start from them. Metrics: `loss` and `accuracy` under each client's own mixture, and `with_rows`.

    Parameters
    ----------
    local
        How a client trains.
    n_learners
        M.
    weighting
        The weight of a client's move: "samples" (its rows, as in the paper) or "shares" (its rows times pi_c(m)).
    initial
        "seed": draw every learner. "given": all start as copies of the model, and then stay identical.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> loss = [float(r.metrics["loss"]) for r in rounds(FedEM(step, 2), fed, n_rounds=9)]
    >>> loss[-1] < loss[0]
    True
    """

    name = "fedem"
    newcomers: ClassVar[str | None] = "the learners mixed by their shares of all clients"

    block_rows = 2**14

    def __init__(
        self, local: LocalSGD, n_learners: int = 3, *, weighting: str = "samples", initial: str = "seed"
    ) -> None:
        self.local = local
        self.n_learners = n_learners
        self.weighting = weighting
        self.initial = initial
        check_local(local, initial)
        check_whole("n_learners", n_learners, least=1)
        if weighting not in ("samples", "shares"):
            raise DataError(f"weighting must be 'samples' or 'shares', not {weighting!r}")

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it depends on the model
        """Number of clients trained side by side."""
        return max(1, trainer_of(self.local).chunk // self.n_learners)

    def start(self, seed: int) -> Arrays:
        models = start_models(self.local, self.n_learners, seed, initial=self.initial)
        return {**models, "weights": np.full(self.n_learners, 1 / self.n_learners)}

    # -- training ------------------------------------------------------------------------------------------------------

    def expect(self, state: Arrays, clients: Federation) -> Expectation:
        """E-step: responsibilities of the learners for each row, q(m) proportional to pi_c(m) p_m(y | x)."""
        own = kept_rows(clients, "shares", state["weights"])  # [clients, M]
        fits = self._fits(state, clients)
        shares = normalised(fits + logs(own)[clients.client_of_row])
        mass = sums_over_rows(shares, clients)
        rows = clients.sizes[:, None]
        kept = {"shares": np.where(rows > 0, mass / np.maximum(rows, 1), own)}
        return Expectation(shares, {"mass": mass}, kept)

    def _fits(self, state: Arrays, clients: Federation) -> Array:
        """log p_m(y | x) of each row under each learner, up to a constant: minus the loss."""
        models = each_model(stacked(self.local, state))
        return forward(self.local, models, clients, slice(0, clients.n_rows), loss=True)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        e_step, starts = self.expect(state, clients), stacked(self.local, state)
        weight = self._weight(e_step, clients)
        params = model_arrays(state)
        sent = {f"delta.{n}": np.zeros((len(clients), *p.shape), dtype=p.dtype) for n, p in params.items()}
        for positions, moved in trained(self.local, starts, clients, e_step.weights, key):
            for name, rows in moved.items():
                sent[f"delta.{name}"][positions] = rows.mul_(_like(weight[positions], rows)).cpu().numpy()
        return {**sent, "weight": weight, **e_step.sent}, e_step.kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | tuple[Arrays, Kept] | None:
        return None if torch.device(self.local.device).type == "cpu" else self.sums(state, clients, key)

    def sums(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        """Sums of what these clients send, in float64 on the training device, and the arrays they keep."""
        e_step, starts = self.expect(state, clients), stacked(self.local, state)
        weight = self._weight(e_step, clients)
        sums = {f"delta.{n}": torch.zeros(p.shape, dtype=torch.float64, device=p.device) for n, p in starts.items()}
        for _, moved in trained(self.local, starts, clients, e_step.weights, key, counts=weight):
            for name, total in moved.items():
                sums[f"delta.{name}"] += total
        added = {n: v.cpu().numpy() for n, v in sums.items()}
        others = {n: v.sum(axis=0) for n, v in {"weight": weight, **e_step.sent}.items()}
        return {**added, **others}, e_step.kept

    def _weight(self, e_step: Expectation, clients: Federation) -> Array:
        """The weight of each client's move of each learner: [clients, M]."""
        if self.weighting == "samples":
            return np.repeat(clients.sizes[:, None].astype(float), self.n_learners, axis=1)
        return sums_over_rows(e_step.weights, clients)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {**moved_models(state, total, total["weight"]), "weights": proportions(total["mass"], state["weights"])}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    # -- prediction ----------------------------------------------------------------------------------------------------

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p_c(class | x) of each row, equation (2): [rows, classes]."""
        own = kept_rows(clients, "shares", state["weights"])
        models = each_model(stacked(self.local, state))
        each = forward(self.local, models, clients, slice(0, clients.n_rows), loss=False)  # [rows, M, classes]
        return log_sum(each + logs(own)[clients.client_of_row][..., None], axis=1)

    def adapt(self, state: Arrays, clients: Federation, key: Key, *, rounds: int = 20) -> Kept:
        """The shares of new clients, from their labelled rows, with the learners fixed.

        The client runs `rounds` EM steps, by default 20; with few rows they may not have converged.
        """
        if self.local.target not in clients:
            raise DataError(
                f"{type(self).__name__} learns a client's shares from labels, but there is no column "
                f"{self.local.target!r}: use FedGMM, which can do with features alone"
            )
        own = kept_rows(clients, "shares", state["weights"])
        fits, owner, rows = self._fits(state, clients), clients.client_of_row, clients.sizes[:, None]
        for _ in range(rounds):
            mass = sums_over_rows(normalised(fits + logs(own)[owner]), clients)
            own = np.where(rows > 0, mass / np.maximum(rows, 1), own)
        return {"shares": own}

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[FedEM, Federation]]:
        fed, one, two = small_example()
        return [(cls(one, 2), fed), (cls(two, 3, weighting="shares"), fed)]


class IFCA(FedEM):
    """Every client belongs to one of M learners, the one that fits its rows best: Ghosh et al. 2020, algorithm 1.

    A client moves that learner alone and sends zeros for the others. A sum over several clients hides its choice from
    the server, a sum over one client does not.

    Parameters
    ----------
    local, n_learners, initial
        As for FedEM.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> len(list(rounds(IFCA(step, 2), fed, n_rounds=3)))
    3
    """

    name = "ifca"

    def __init__(self, local: LocalSGD, n_learners: int = 3, *, initial: str = "seed") -> None:
        super().__init__(local, n_learners, weighting="shares", initial=initial)

    def expect(self, state: Arrays, clients: Federation) -> Expectation:
        fits = sums_over_rows(self._fits(state, clients), clients)
        chosen = np.eye(self.n_learners)[fits.argmax(axis=1)]
        some = clients.sizes[:, None] > 0
        kept = {"shares": np.where(some, chosen, kept_rows(clients, "shares", state["weights"]))}
        return Expectation(chosen[clients.client_of_row], {"mass": chosen * clients.sizes[:, None]}, kept)

    def adapt(self, state: Arrays, clients: Federation, key: Key, *, rounds: int = 1) -> Kept:
        """The learner that fits a new client's labelled rows best; one step is enough, `rounds` is ignored."""
        return self.expect(state, clients).kept

    @classmethod
    def examples(cls) -> Sequence[tuple[IFCA, Federation]]:
        fed, one, _ = small_example()
        return [(cls(one, 2), fed)]


def small_example() -> tuple[Federation, LocalSGD, LocalSGD]:
    """Clients with a few rows, and two ways to train, for the contract tests."""
    rng = np.random.default_rng(5)
    offsets = offsets_of(rng.integers(0, 9, 12))
    x = rng.normal(size=(offsets[-1], 4)) + 2 * rng.integers(0, 2, (offsets[-1], 1))
    fed = Federation({"x": x, "y": rng.integers(0, 3, offsets[-1])}, offsets)
    linear = initialised(nn.Linear(4, 3, dtype=torch.float64), 0)
    deep = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(torch.float64)
    one = LocalSGD(linear, cross_entropy, lr=0.3, epochs=2, batch_size=3)
    two = LocalSGD(initialised(deep, 1), cross_entropy, lr=0.1, steps=3, batch_size=4, strategy="sequential")
    return fed, one, two


def logs(weights: Array) -> Array:
    """Logarithms; minus infinity for zero, without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(weights)


def log_sum(values: Array, axis: int | tuple[int, ...]) -> Array:
    """log of the sum of exponentials."""
    top = values.max(axis=axis, keepdims=True, initial=-1e300)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - top).sum(axis=axis)) + top.squeeze(axis))


def normalised(values: Array) -> Array:
    """Exponentials that add to one along all axes but the first."""
    axes = tuple(range(1, values.ndim))
    shares = np.exp(values - values.max(axis=axes, keepdims=True, initial=-1e300))
    return np.asarray(shares / shares.sum(axis=axes, keepdims=True))


def proportions(mass: Array, otherwise: Array) -> Array:
    """Masses normalised to one; `otherwise` where there is no mass."""
    positive = np.maximum(mass, 0.0)
    return positive / positive.sum() if positive.sum() > 1e-9 else otherwise


def _like(weight: Array, rows: torch.Tensor) -> torch.Tensor:
    tensor = torch.from_numpy(weight).to(rows.device, rows.dtype)
    return tensor.reshape(*tensor.shape, *[1] * (rows.ndim - 2))
