"""A whole model for every client: trained alone, fine-tuned at the end, or kept near a common one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number, check_whole
from fedscape.errors import DataError
from fedscape.learning.evaluation import valid_rows
from fedscape.learning.fedavg import FedAvg
from fedscape.learning.layers import initialised
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.server import Mean, Rule
from fedscape.learning.trainer import Trainer, trainer_of
from fedscape.personal.fedem import small_example
from fedscape.personal.shared import (
    COMMON_MODEL,
    common_model,
    each_own_log_probs,
    measured,
    own_models,
    spread,
    trained_alone,
    weighted,
    weighted_sums,
)
from fedscape.types import Array, Arrays, Kept, Tensors

_MEAN = Mean()


class LocalOnly(Computation):
    """Every client trains its own model on its rows, from the broadcast one; it sends only its number of rows.

    The baseline "Local". From a trained model it is fine-tuning, the second half of FedAvg+ (Jiang et al. 2019):
    `rounds(LocalOnly(step), engine, state=last, n_rounds=1)`.

    Parameters
    ----------
    local
        How a client trains.
    initial
        "given": start from the model's own weights. "seed": draw them from the run's seed, the same for all.

    >>> from fedscape import rounds
    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> [float(r.metrics["accuracy"]) for r in rounds(LocalOnly(step), fed, n_rounds=9)][-1]
    1.0
    """

    name = "local-only"

    block_rows = 2**14

    def __init__(self, local: LocalSGD, *, initial: str = "given") -> None:
        self.local = local
        self.initial = initial
        check_local(local, initial)

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it depends on the model
        """Number of clients trained side by side."""
        return trainer_of(self.local).chunk

    @property
    def trainer(self) -> Trainer:
        """The trainer of the device, which may prefetch."""
        return trainer_of(self.local)

    @property
    def newcomers(self) -> str | None:
        """What a client without a kept model gets: nothing, if clients trained from scratch."""
        return None if self.initial == "seed" else f"{COMMON_MODEL} before it was tuned"

    def start(self, seed: int) -> Arrays:
        model = self.local.model if self.initial == "given" else initialised(self.local.model, seed)
        return {**{f"model.{n}": p for n, p in self.local.parameters(model).items()}, "rows": np.zeros(())}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return {"rows": clients.sizes}, self.adapt(state, clients, key)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {**state, "rows": np.asarray(total["rows"], dtype=float)}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p(class | x) of each row under its client's own model: [rows, classes]."""
        return each_own_log_probs(self.local, own_models(self.local, state, clients), clients)

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """Train the model of each client for one more round on its own rows."""
        new = trained_alone(self.local, own_models(self.local, state, clients), clients, key)
        return trainer_of(self.local).left({f"model.{n}": p for n, p in new.items()})

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[LocalOnly, Federation]]:
        fed, one, two = small_example()
        return [(cls(one), fed), (cls(two, initial="seed"), fed)]


class Ditto(FedAvg):
    """FedAvg, with an additional model per client that is pulled to the common one: Li et al. 2021, algorithm 1.

    Every step of the client's own v uses the gradient of its loss F plus strength (v - w), w being the broadcast
    model. With enough steps v approaches the minimum of F(v) + (strength / 2) |v - w|^2.

    Parameters
    ----------
    local, server, weighting, initial
        As for FedAvg; the proximal weight of `local` applies to the common model only.
    strength
        lambda: 0 is local training alone, a large value stays near the common model. Plain SGD diverges if lr times
        strength is above 2; keep it at most 1.

    >>> from fedscape import rounds
    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> [float(r.metrics["accuracy"]) for r in rounds(Ditto(step), fed, n_rounds=9)][-1]
    1.0
    """

    name = "ditto"
    newcomers: ClassVar[str | None] = COMMON_MODEL

    def __init__(
        self,
        local: LocalSGD,
        *,
        strength: float = 0.1,
        server: Rule = _MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(local, server=server, weighting=weighting, initial=initial)
        self.strength = strength
        if not 0 <= check_number("strength", strength) < np.inf:
            raise DataError(f"strength must be a number of at least 0, not {strength}")

    @property
    def trainer(self) -> Trainer:
        """The trainer of the device, which may prefetch."""
        return trainer_of(self.local)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return super().step(state, clients, key)[0], self.adapt(state, clients, key)

    def total(  # type: ignore[override]  # it keeps something
        self, state: Arrays, clients: Federation, key: Key
    ) -> tuple[Arrays, Kept] | None:
        sums = super().total(state, clients, key)
        return None if sums is None else (sums, self.adapt(state, clients, key))

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p(class | x) of each row under its client's own model: [rows, classes]."""
        return each_own_log_probs(self.local, own_models(self.local, state, clients), clients)

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """Train the model of each client for one more round on its own rows, pulled to the common one."""
        own, pull = own_models(self.local, state, clients), (self.strength, common_model(self.local, state))
        new = trained_alone(self.local, own, clients, key, pull=pull)
        return trainer_of(self.local).left({f"model.{n}": p for n, p in new.items()})

    @classmethod
    def examples(cls) -> Sequence[tuple[Ditto, Federation]]:
        fed, one, two = small_example()
        return [(cls(one), fed), (cls(two, strength=1.0, weighting="equal"), fed)]


class PFedMe(FedAvg):
    """Every client solves for a model near the common one, and moves the common one to it: T Dinh et al. 2020.

    `repeats` times, a client trains theta from its copy w of the common model with (strength / 2) |theta - w|^2 in the
    loss (equation 3). It then moves w to w + pull (theta - w), pull being the paper's eta lambda (algorithm 1, line 8).
    It keeps the last theta as its own model.

    Parameters
    ----------
    local, server, weighting, initial
        As for FedAvg; the proximal weight of `local` is replaced by `strength`.
    strength
        lambda.
    pull
        How far w moves towards theta, above 0 and at most 1.
    repeats
        R.

    >>> from fedscape import rounds
    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=0.5, epochs=1, batch_size=2)
    >>> len(list(rounds(PFedMe(step, strength=0.5), fed, n_rounds=2)))
    2
    """

    name = "pfedme"
    newcomers: ClassVar[str | None] = COMMON_MODEL

    def __init__(
        self,
        local: LocalSGD,
        *,
        strength: float = 1.0,
        pull: float = 0.5,
        repeats: int = 1,
        server: Rule = _MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(local, server=server, weighting=weighting, initial=initial)
        self.strength = strength
        self.pull = pull
        self.repeats = repeats
        check_whole("repeats", repeats, least=1)
        if not 0 <= check_number("strength", strength) < np.inf or not 0 < check_number("pull", pull) <= 1:
            raise DataError(f"strength must be at least 0, pull above 0 and at most 1: {strength}, {pull}")

    @property
    def trainer(self) -> Trainer | None:
        """The trainer of the device, which knows the batches of the next round if it makes one training."""
        return trainer_of(self.local) if self.repeats == 1 else None

    def _solve(self, state: Arrays, clients: Federation, key: Key) -> tuple[Tensors, Tensors]:
        """Each client's copy w of the common model, and its own theta."""
        theta = w = spread(common_model(self.local, state), clients)
        for r in range(self.repeats):
            rate = self.local.rate(key.round)
            repeat_key = key.at(key.round * self.repeats + r)
            theta = trained_alone(self.local, w, clients, repeat_key, rate=rate, pull=(self.strength, None))
            moves = {n: theta[n] - v for n, v in w.items()}
            for n, m in moves.items():  # in place: these are the largest arrays of a round
                m *= self.pull
                m += w[n]
            w = moves
        return w, theta

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._sent(state, clients, key)
        return {**weighted(moves, weight), **self._sent_weight(weight)}, kept

    def total(  # type: ignore[override]  # it keeps something
        self, state: Arrays, clients: Federation, key: Key
    ) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._sent(state, clients, key)
        return {**weighted_sums(moves, weight), **self._sent_weight(weight.sum())}, kept

    def _sent(self, state: Arrays, clients: Federation, key: Key) -> tuple[Tensors, Array, Kept]:
        """Each client's move of its copy of the common model, the weight of the move, and its own model."""
        moves, theta = self._solve(state, clients, key)
        for n, p in common_model(self.local, state).items():
            moves[n] -= p
        weight = clients.sizes if self.weighting == "samples" else np.ones(len(clients))
        return moves, weight, self._left(theta)

    def _left(self, theta: Tensors) -> Kept:
        return trainer_of(self.local).left({f"model.{n}": v for n, v in theta.items()})

    def _sent_weight(self, weight: Array) -> Arrays:
        return {"weight": weight} if self.weighting == "samples" else {}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p(class | x) of each row under its client's own model: [rows, classes]."""
        return each_own_log_probs(self.local, own_models(self.local, state, clients), clients)

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """The model of each client near the common one."""
        return self._left(self._solve(state, clients, key)[1])

    @classmethod
    def examples(cls) -> Sequence[tuple[PFedMe, Federation]]:
        fed, one, two = small_example()
        return [(cls(one), fed), (cls(two, strength=0.5, repeats=2, weighting="equal"), fed)]
