"""The round after the coefficients of a GLM: what its errors are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.tabular.design import Ranges
from fedscape.tabular.families import family_of
from fedscape.tabular.glm import GLM
from fedscape.types import Array, Arrays, Kept


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
        unit = model._target_unit()
        y, eta = unit.of(rows.y), unit.within(rows.x @ beta + rows.offset / unit.slope)
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
