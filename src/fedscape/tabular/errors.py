"""Rounds after the coefficients of a GLM: its errors, and how much clients differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import rounds as run_rounds
from fedscape.core.validate import check_whole
from fedscape.statistics.heterogeneity import Heterogeneity, from_sums, sums_of_sites
from fedscape.tabular.design import Ranges, Rows
from fedscape.tabular.families import family_of
from fedscape.tabular.glm import GLM, solve
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.core.engine import Engine


class GLMErrors(Computation):
    """Deviance, information and the clients' scores at given coefficients: what standard errors are made of."""

    name = "glm-errors"
    block_clients = 128

    def __init__(
        self,
        family: str = "gaussian",
        *,
        features: str | Sequence[str] = "x",
        target: str = "y",
        offset: str | None = None,
        weights: str | None = None,
        intercept: bool = True,
        ranges: Ranges | None = None,
    ) -> None:
        self.family = family
        self.features = features
        self.target = target
        self.offset = offset
        self.weights = weights
        self.intercept = intercept
        self.ranges = ranges

    def model(self) -> GLM:
        """The GLM whose errors these are."""
        return GLM(**self.get_params())

    def start(self, seed: int) -> Arrays:
        return {"coefficients": np.zeros(0)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        model, family = self.model(), family_of(self.family)
        rows = model.columns().rows(clients, family)
        beta = state["coefficients"] if state["coefficients"].size else np.zeros(rows.x.shape[1])
        y = model._unit_target(rows.y)
        eta = rows.x @ beta + rows.offset
        mu = family.mean(eta)
        slope, variance = family.slope(eta), family.variance(mu)
        score = clients.segment_sum(rows.x * (rows.weight * slope / variance * (y - mu))[:, None])
        wx = rows.x * (rows.weight * slope**2 / variance)[:, None]
        observed = wx * (y / mu)[:, None] if self.family == "gamma" else wx  # other links are canonical
        cuts = list(pairwise(clients.offsets))
        return {
            "information": np.array([wx[a:b].T @ rows.x[a:b] for a, b in cuts]),
            "observed": np.array([observed[a:b].T @ rows.x[a:b] for a, b in cuts]),
            "outer": score[:, :, None] * score[:, None, :],
            "deviance": clients.segment_sum(rows.weight * family.deviance(y, mu)),
            "pearson": clients.segment_sum(rows.weight * (y - mu) ** 2 / variance),
            "rows": clients.sizes,
            "groups": (clients.sizes > 0).astype(np.int64),
        }, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        beta = state["coefficients"] if state["coefficients"].size else np.zeros(len(total["information"]))
        return {"coefficients": beta, **{name: v for name, v in total.items() if name != "clients"}}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.model().valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[GLMErrors, Federation]]:
        fed = GLM.examples()[0][1]
        return [(cls("poisson", target="visits", offset="exposure"), fed), (cls("gaussian", weights="weight"), fed)]


class OwnFits(Computation):
    """Each client fits a GLM to its own rows, and sends what heterogeneity is made of: weights and moments."""

    name = "glm-own-fits"
    block_clients = 128

    def __init__(
        self,
        family: str = "gaussian",
        *,
        features: str | Sequence[str] = "x",
        target: str = "y",
        offset: str | None = None,
        weights: str | None = None,
        intercept: bool = True,
        iterations: int = 25,
    ) -> None:
        self.family = family
        self.features = features
        self.target = target
        self.offset = offset
        self.weights = weights
        self.intercept = intercept
        self.iterations = iterations

    def model(self) -> GLM:
        """The GLM that clients fit."""
        return GLM(**{name: value for name, value in self.get_params().items() if name != "iterations"})

    def start(self, seed: int) -> Arrays:
        check_whole("iterations", self.iterations, least=1)
        return {}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        model = self.model()
        rows = model.columns().rows(clients, family_of(self.family))
        p = rows.x.shape[1]
        sent: Arrays = {name: np.zeros((len(clients), p)) for name in ("weight", "weight2", "first", "second")}
        sent["sites"] = np.zeros(len(clients), dtype=np.int64)
        for i, (a, b) in enumerate(pairwise(clients.offsets)):
            found = own_fit(model, Rows(*(part[a:b] for part in rows)), self.iterations)
            if found is not None:
                sent["sites"][i] = 1
                for name, values in sums_of_sites(*found).items():
                    sent[name][i] = values
        return sent, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {name: values for name, values in total.items() if name != "clients"}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.model().valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[OwnFits, Federation]]:
        fed = GLM.examples()[0][1]
        return [(cls("gaussian"), fed), (cls("poisson", target="visits", offset="exposure"), fed)]


def own_fit(model: GLM, rows: Rows, iterations: int) -> tuple[Array, Array] | None:
    """The coefficients of these rows and their variances; None where they do not determine them."""
    n, p = rows.x.shape
    if n <= p:
        return None
    family, beta = family_of(model.family), np.zeros(0)
    for _ in range(iterations):
        weight, response = model._working(rows, beta)
        information = (rows.x * weight[:, None]).T @ rows.x
        new = solve(information, rows.x.T @ response)
        step = new - (beta if beta.size else 0)
        beta = new
        if step @ information @ step <= 1e-16:
            break
    else:
        return None  # as where a feature separates the classes
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))
    if np.linalg.cond(information / np.outer(size, size)) > 1e10:
        return None
    mu = family.mean(rows.x @ beta + rows.offset)
    pearson = float((rows.weight * (model._unit_target(rows.y) - mu) ** 2 / family.variance(mu)).sum())
    variances = np.diag(np.linalg.inv(information)) * (pearson / (n - p) if family.scaled else 1.0)
    return (beta, variances) if (variances > 1e-24).all() and np.isfinite(beta).all() else None


def learn_heterogeneity(model: GLM, data: Engine | Federation) -> Heterogeneity:
    """One round in which clients fit the model to their own rows."""
    shared = {n: v for n, v in model.get_params().items() if n in OwnFits().get_params()}
    state = next(run_rounds(OwnFits(**shared), data, n_rounds=1, measure=0)).state
    return from_sums(state, int(state["sites"]))
