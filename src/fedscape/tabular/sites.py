"""How much the clients' own coefficients of a GLM differ: by sums, or site by site where that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.engine import as_engine
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import rounds as run_rounds
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.statistics.heterogeneity import Heterogeneity, from_sums, heterogeneity, sums_of_sites
from fedscape.tabular.design import Rows, solve
from fedscape.tabular.families import family_of
from fedscape.tabular.glm import GLM
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.core.engine import Engine

_Z = 1.959963984540054  # of 95% intervals


class OwnFits(Computation):
    """Each client fits a GLM to its own rows, and sends what heterogeneity is made of: weights and moments.

    A state with `tau2` has it added to every variance: the sums of the random-effects estimate.
    """

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
            fitted = own_fit(model, Rows(*(part[a:b] for part in rows)), self.iterations)
            if fitted is not None:
                sent["sites"][i] = 1
                estimates, variances = fitted
                for name, values in sums_of_sites(estimates, variances + state.get("tau2", 0.0)).items():
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
    pearson = float((rows.weight * (model._target_unit().of(rows.y) - mu) ** 2 / family.variance(mu)).sum())
    variances = np.diag(np.linalg.inv(information)) * (pearson / (n - p) if family.scaled else 1.0)
    return (beta, variances) if (variances > 1e-24).all() and np.isfinite(beta).all() else None


class SiteFits(OwnFits):
    """Each client's own coefficients and their variances, revealed to the server client by client."""

    name = "glm-site-fits"
    reveals = ("estimates", "variances")

    def start(self, seed: int) -> Arrays:
        check_whole("iterations", self.iterations, least=1)
        return {"server.estimates": np.zeros((0, 0)), "server.variances": np.zeros((0, 0)), "server.ids": np.zeros(0)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        model = self.model()
        rows = model.columns().rows(clients, family_of(self.family))
        sent: Arrays = {name: np.zeros((len(clients), rows.x.shape[1])) for name in self.reveals}
        for i, (a, b) in enumerate(pairwise(clients.offsets)):
            fitted = own_fit(model, Rows(*(part[a:b] for part in rows)), self.iterations)
            if fitted is not None:
                sent["estimates"][i], sent["variances"][i] = fitted
        return sent, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {f"server.{name}": total[name] for name in (*self.reveals, "ids")}

    @classmethod
    def examples(cls) -> Sequence[tuple[SiteFits, Federation]]:
        return [(cls("gaussian"), GLM.examples()[0][1])]


def learn_heterogeneity(model: GLM, data: Engine | Federation) -> Heterogeneity:
    """Two rounds in which clients fit the model to their own rows: the second knows how far sites differ."""
    work = OwnFits(**_shared(model))
    one = next(run_rounds(work, data, n_rounds=1, measure=0)).state
    summary = from_sums(one, int(one["sites"]))
    two = next(run_rounds(work, data, n_rounds=1, measure=0, state={"tau2": summary.tau2})).state
    return summary._replace(random=two["first"] / two["weight"], random_error=two["weight"] ** -0.5)


def site_rows(model: GLM, data: Engine | Federation, coefficient: str, allow: Sequence[str]) -> dict[str, Any]:
    """A forest plot's numbers: the coefficient of each site that has one, and the pooled ones."""
    engine = as_engine(data)
    names = model.columns().names(engine.clients) if isinstance(engine.clients, Federation) else model.feature_names_
    if coefficient not in names:
        raise DataError(f"there is no coefficient {coefficient!r}: there are {', '.join(names)}")
    place, work = names.index(coefficient), SiteFits(**_shared(model))
    state = next(run_rounds(work, engine, n_rounds=1, measure=0, allow=allow)).state
    estimates, variances = (state[f"server.{name}"][:, place] for name in work.reveals)
    estimated = variances > 0
    about = heterogeneity(estimates[estimated], variances[estimated])
    sites = zip(
        state["server.ids"][estimated].tolist(), estimates[estimated], np.sqrt(variances[estimated]), strict=True
    )
    return {
        "coefficient": coefficient,
        "rows": [{"site": str(site), **_interval(value, error)} for site, value, error in sites],
        "fixed": _interval(about.fixed, about.fixed_error),
        "random": _interval(about.random, about.random_error),
        "without": int((~estimated).sum()),
        **{name: float(getattr(about, name)) for name in ("q", "p_value", "i2", "tau2")},
    }


def _interval(value: Any, error: Any) -> dict[str, float]:
    return {"value": float(value), "low": float(value - _Z * error), "high": float(value + _Z * error)}


def _shared(model: GLM) -> dict[str, Any]:
    return {name: value for name, value in model.get_params().items() if name in OwnFits().get_params()}
