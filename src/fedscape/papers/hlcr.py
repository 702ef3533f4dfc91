"""Algorithm 3 of FedHLCR as printed (Yang et al.), with each correction optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.mixtures.latent_class.model import LatentClassRegression
from fedscape.mixtures.latent_class.rounds import ClassAssignment, Survey, example
from fedscape.mixtures.latent_class.table import Table
from fedscape.types import Array, Arrays, Kept

#: The toolkit's corrections, in the order of Algorithm 3.
MENDS = ("first round", "own events", "counts", "cohorts")


def with_event(inverse: Array, b: Array, x: Array, y: float, sigma: float) -> tuple[Array, Array]:
    """Eq. (8): A^-1 and b of a class with an event (x, y) added, by Sherman and Morrison.

    >>> with_event(np.eye(1), np.zeros(1), np.ones(1), 2.0, 1.0)
    (array([[0.5]]), array([2.]))
    """
    move = inverse @ x
    return inverse - np.outer(move, move) / (sigma**2 + x @ move), b + x * y / sigma**2


def without_event(inverse: Array, b: Array, x: Array, y: float, sigma: float) -> tuple[Array, Array]:
    """Eq. (9): A^-1 and b of a class with an event (x, y) taken out; the paper prints b^-1 on the left side.

    >>> without_event(*with_event(np.eye(1), np.zeros(1), np.ones(1), 2.0, 1.0), np.ones(1), 2.0, 1.0)
    (array([[1.]]), array([0.]))
    """
    move = inverse @ x
    return inverse + np.outer(move, move) / (sigma**2 - x @ move), b - x * y / sigma**2


def sequential_density(
    inverse: Array, b: Array, x: Array, y: Array, sigma: float, *, mended: tuple[str, ...] = ("variance", "order")
) -> float:
    """Theorem 1 event by event, as in Algorithm 1: the log density of an entity's events under one class.

    Parameters
    ----------
    inverse, b
        A^-1 [F, F] and b [F] of the class without the entity.
    x, y
        The entity's events, [n, F] and [n].
    sigma
        Standard deviation of the noise.
    mended
        "variance": sigma^2 + x' A^-1 x, eq. (27), not eq. (4), which divides by sigma^2. "order": an event's density
        precedes its own update. () is as printed, and then no density.

    >>> round(sequential_density(np.eye(1), np.zeros(1), np.ones((1, 1)), np.zeros(1), 1.0), 6)  # N(0; 0, 2)
    -1.265512
    """
    total = 0.0
    for row, target in zip(x, y, strict=True):
        after = with_event(inverse, b, row, float(target), sigma)
        used = (inverse, b) if "order" in mended else after
        spread = float(row @ used[0] @ row)
        variance = sigma**2 + (spread if "variance" in mended else spread / sigma**2)
        total -= 0.5 * (np.log(2 * np.pi * variance) + (target - used[1] @ used[0] @ row) ** 2 / variance)
        inverse, b = after
    return float(total)


class PrintedAssignment(ClassAssignment):
    """A round of Algorithm 3 as printed.

    Labels of the first round follow the agents' own laws, eq. (2). An entity's own events stay in its class. Line 11
    does not send N^(k), so eq. (2) uses an agent's own counts only. Sums of a cohort are not scaled.

    Parameters
    ----------
    table, n_features, n_components, alpha, beta, sigma, delta, gamma, n_agents
        As for ClassAssignment.
    uniform_first
        Whether labels of the first round are uniform.
    remove_own
        Whether own events are removed where possible.
    share_counts
        Whether agents get N^(k).
    """

    name = "lcr-assign-printed"

    def __init__(
        self,
        table: Table,
        n_features: int,
        n_components: int,
        *,
        alpha: float | None = 1.0,
        beta: float | None = 1.0,
        sigma: float | None = None,
        delta: float | None = None,
        gamma: float | None = 0.5,
        n_agents: int | None = None,
        uniform_first: bool = False,
        remove_own: bool = False,
        share_counts: bool = False,
    ) -> None:
        super().__init__(
            table, n_features, n_components, alpha=alpha, beta=beta, sigma=sigma, delta=delta, gamma=gamma,
            n_agents=n_agents,
        )  # fmt: skip
        self.uniform_first = uniform_first
        self.remove_own = remove_own
        self.share_counts = share_counts

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        heard = dict(state)
        if not self.remove_own:
            heard["held"] = np.zeros(())
        if not self.share_counts:
            sums = np.array(state["sums"])
            sums[:, -1] = 0.0
            heard["sums"] = sums
        return super().step(heard, clients, key)

    @classmethod
    def examples(cls) -> Sequence[tuple[ClassAssignment, Federation]]:
        fed, table = example(), Table()
        mended = cls(table, 3, 3, sigma=0.5, delta=1.0, gamma=1.0, n_agents=len(fed), remove_own=True)
        return [(cls(table, 3, 3, sigma=0.5, delta=1.0, gamma=0.75), fed), (mended, fed)]


class PrintedRegression(LatentClassRegression):
    """`LatentClassRegression` by Algorithm 3 as printed; `mended` names the corrections to apply.

    sigma and delta are fixed from the first round on.

    Parameters
    ----------
    n_components, alpha, beta, delta, sigma, rounds, features, target, entity, intercept, standardise, seed
        As for LatentClassRegression.
    gamma
        The learning rate of line 16.
    mended
        Names of MENDS. "first round": uniform labels. "own events": removed if the server's sums contain all of them.
        "counts": agents get N^(k). "cohorts": sums of a cohort are scaled up to all agents.

    >>> from fedscape import datasets
    >>> fed, truth = datasets.generators.hlcr_synthetic(20, entities=4, events=12, features=2, components=2, seed=1)
    >>> PrintedRegression(2, gamma=0.75, intercept=False).fit(fed).coefficients_.shape
    (2, 2)
    """

    name = "latent-class-regression-printed"

    def __init__(
        self,
        n_components: int = 4,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        delta: float = 1.0,
        sigma: float = 1.0,
        gamma: float = 0.2,
        rounds: int = 20,
        mended: tuple[str, ...] = (),
        intercept: bool = True,
        standardise: bool = False,
        features: str | Sequence[str] = "x",
        target: str = "y",
        entity: str | None = "entity",
        seed: int = 0,
    ) -> None:
        super().__init__(
            n_components, alpha=alpha, beta=beta, delta=delta, sigma=sigma, gamma=gamma, rounds=rounds,
            intercept=intercept, standardise=standardise, features=features, target=target, entity=entity, seed=seed,
        )  # fmt: skip
        self.mended = mended

    def _check(self) -> None:
        super()._check()
        unknown = sorted(set(self.mended) - set(MENDS))
        if unknown:
            raise DataError(f"mended must hold names of {', '.join(MENDS)}, not {unknown[0]!r}")

    def _work(self, table: Table, k: int, n_features: int, n_agents: int, how: Any) -> ClassAssignment:
        if how.privacy is not None:
            raise DataError("the printed form has no privacy: use LatentClassRegression")
        return PrintedAssignment(
            table, n_features, k, alpha=self.alpha, beta=self.beta, sigma=self.sigma, delta=self.delta,
            gamma=None if self.gamma is None or isinstance(self.gamma, str) else self.gamma,
            n_agents=n_agents if "cohorts" in self.mended else None,
            uniform_first="first round" in self.mended,
            remove_own="own events" in self.mended,
            share_counts="counts" in self.mended,
        )  # fmt: skip

    @classmethod
    def examples(cls) -> Sequence[tuple[Computation, Federation]]:
        return [*Survey.examples()[:1], *PrintedAssignment.examples()]
