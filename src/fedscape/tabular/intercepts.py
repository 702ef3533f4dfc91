"""A GLM with a random intercept per client: the marginal likelihood by Laplace's approximation, from sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.tabular.design import Columns, Rows
from fedscape.tabular.families import Family, family_of
from fedscape.tabular.glm import GLM
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.core.engine import Engine
    from fedscape.core.estimator import Fit

_INNER = 50  # most Newton steps to the mode of a client's intercept
_DIFFERENCE = 1e-3  # step of the finite differences, in units of a parameter's error
_LEAST = -9.0  # log of a standard deviation that counts as 0


class RandomIntercepts(Computation):
    """Newton's method on the marginal likelihood of a GLM with a normal intercept for each client.

    The parameters are the coefficients, the logarithm of the intercepts' standard deviation and, for "gaussian", that
    of the residual variance. A client finds the mode of its own intercept and sends its log-likelihood by Laplace's
    approximation with the exact gradient, at the current point and a few around it. Finite differences of the summed
    gradients give the curvature.

    Parameters
    ----------
    family
        "gaussian", "logistic" or "poisson".
    features, target, offset, weights, intercept
        As for `GLM`.
    initial
        Initial parameters, [parameters].
    scale
        Approximate standard error of each parameter, [parameters].
    """

    name = "glm-random-intercepts"
    block_clients = 512

    def __init__(
        self,
        family: str,
        *,
        features: str | Sequence[str] = "x",
        target: str = "y",
        offset: str | None = None,
        weights: str | None = None,
        intercept: bool = True,
        initial: npt.ArrayLike = (),
        scale: npt.ArrayLike = (),
    ) -> None:
        self.family = family
        self.features = features
        self.target = target
        self.offset = offset
        self.weights = weights
        self.intercept = intercept
        self.initial = initial
        self.scale = scale

    def start(self, seed: int) -> Arrays:
        if self.family not in ("gaussian", "logistic", "poisson"):
            raise DataError(f"random intercepts need family gaussian, logistic or poisson, not {self.family!r}")
        at, scale = np.asarray(self.initial, dtype=float), np.asarray(self.scale, dtype=float)
        if not at.size or at.shape != scale.shape:
            raise DataError(f"initial and scale must have the same length, got {at.shape} and {scale.shape}")
        return self._points(at) | {
            "server.best": at,
            "server.log_likelihood": np.full((), -1e300),
            "server.curvature": -np.diag(scale**-2.0),
            "server.move": np.zeros_like(at),
        }

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        names = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        columns = Columns(names, self.target, self.offset, self.weights, self.intercept, None)
        rows = columns.rows(clients, family_of(self.family))
        parts = [laplace(self.family, rows, clients, point) for point in state["points"]]
        return {
            "log_likelihood": np.stack([part[0] for part in parts], axis=1),
            "gradient": np.stack([part[1] for part in parts], axis=1),
        }, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        at = state["points"][0]
        best = float(state["server.log_likelihood"])
        if total["log_likelihood"][0] < best - 1e-9 * abs(best):  # step halving
            move = state["server.move"] / 2
            return {**state, **self._points(state["server.best"] + move), "server.move": move}
        gradient = total["gradient"]
        width = 2 * _DIFFERENCE * np.asarray(self.scale, dtype=float)
        p = len(at)
        curvature = (gradient[1 : p + 1] - gradient[p + 1 :]) / width[:, None]
        curvature = (curvature + curvature.T) / 2
        move = ascent(curvature, gradient[0], np.asarray(self.scale, dtype=float))
        return self._points(at + move) | {
            "server.best": at,
            "server.log_likelihood": np.asarray(total["log_likelihood"][0]),
            "server.curvature": curvature,
            "server.move": self._bounded(at + move) - at,
        }

    def _points(self, at: Array) -> Arrays:
        """The point and its neighbours on both sides along every parameter."""
        at = self._bounded(at)
        aside = np.diag(_DIFFERENCE * np.asarray(self.scale, dtype=float))
        return {"points": np.concatenate([at[None], at + aside, at - aside])}

    def _bounded(self, at: Array) -> Array:
        new, place = at.copy(), len(at) - (2 if self.family == "gaussian" else 1)
        new[place:] = np.clip(new[place:], _LEAST, -_LEAST)
        return new

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        shared = {name: value for name, value in self.get_params().items() if name not in ("initial", "scale")}
        return GLM(**shared).valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[RandomIntercepts, Federation]]:
        fed = GLM.examples()[0][1]
        at = np.array([0.4, -0.8, 0.1, -1.0])
        return [
            (cls("logistic", target="sick", initial=at, scale=np.full(4, 0.2)), fed),
            (cls("gaussian", initial=np.array([0.4, -0.8, 0.1, -1.0, 0.1]), scale=np.full(5, 0.2)), fed),
        ]


def ascent(curvature: Array, gradient: Array, scale: Array) -> Array:
    """Newton step of a maximisation, also where the Hessian is not negative definite; at most three errors long."""
    values, vectors = np.linalg.eigh(curvature * np.outer(scale, scale))
    step = scale * ((vectors / np.maximum(np.abs(values), 1e-6)) @ (vectors.T @ (gradient * scale)))
    length = float(np.sqrt(np.mean((step / scale) ** 2)))
    return np.asarray(step * min(1.0, 3.0 / max(length, 1e-300)))


def laplace(family: str, rows: Rows, clients: Federation, point: Array) -> tuple[Array, Array]:
    """Log-likelihood and gradient [clients, parameters] of each client with its intercept integrated out.

    With s = 1 / sd^2, the mode u of h(u) = sum log f - s u^2 / 2 and A = s + W(u), the approximation is
    h(u) - log(A / s) / 2 (Breslow and Clayton 1993, equation 5). The gradient includes the change of the mode.
    """
    p, law = rows.x.shape[1], family_of(family)
    s = float(np.exp(-2 * point[p]))
    phi = float(np.exp(point[p + 1])) if family == "gaussian" else 1.0
    fixed, owner = rows.x @ point[:p] + rows.offset, clients.client_of_row
    u = _modes(law, rows, clients, fixed, s, phi)
    eta = fixed + u[owner]
    mu, v = law.mean(eta), rows.weight * law.slope(eta) / phi
    residual = rows.weight * (rows.y - mu) / phi
    bend = {"gaussian": 0 * v, "logistic": v * (1 - 2 * mu), "poisson": v}[family]  # derivative of v by eta
    sums = clients.segment_sum(np.column_stack([_log_density(family, rows, eta, phi), v, bend]))
    logs, w, dw = sums.T
    vx, bx, rx = (clients.segment_sum(rows.x * part[:, None]) for part in (v, bend, residual))
    a = s + w
    value = logs - s * u**2 / 2 - np.log1p(w / s) / 2
    by_coefficients = rx - (bx - (dw / a)[:, None] * vx) / (2 * a)[:, None]
    by_s = -(u**2) / 2 + 1 / (2 * s) - (1 - dw * u / a) / (2 * a)
    parts = [by_coefficients, (-2 * s * by_s)[:, None]]
    if family == "gaussian":
        squares = clients.segment_sum(rows.weight * (rows.y - mu) ** 2)
        parts.append((squares / phi / 2 - clients.sizes / 2 + w / a / 2)[:, None])
    return value, np.concatenate(parts, axis=1)


def _modes(law: Family, rows: Rows, clients: Federation, fixed: Array, s: float, phi: float) -> Array:
    """Find the mode of each client's intercept by Newton's method with steps of at most 1."""
    u, owner = np.zeros(len(clients)), clients.client_of_row
    for _ in range(_INNER):
        eta = fixed + u[owner]
        pair = np.column_stack([rows.weight * (rows.y - law.mean(eta)), rows.weight * law.slope(eta)]) / phi
        up, down = clients.segment_sum(pair).T
        step = (up - s * u) / (s + down)
        u = u + np.clip(step, -1.0, 1.0)
        if np.abs(step).max(initial=0.0) < 1e-13:
            break
    return u


def own_intercepts(model: GLM, clients: Federation) -> Array:
    """The modes of these clients' intercepts at the model's coefficients, [clients]."""
    law = family_of(model.family)
    rows = model.columns().rows(clients, law)
    beta = np.append(model.coefficients_, [model.intercept_] * model.intercept)
    if not model.intercept_sd_:
        return np.zeros(len(clients))
    phi = model.residual_sd_**2 if model.family == "gaussian" else 1.0
    return _modes(law, rows, clients, rows.x @ beta + rows.offset, model.intercept_sd_**-2.0, phi)


def _log_density(family: str, rows: Rows, eta: Array, phi: float) -> Array:
    """Log-density of each row; for a binomial without the term that depends on its weight only."""
    if family == "gaussian":
        return np.asarray(-rows.weight * (rows.y - eta) ** 2 / (2 * phi) - np.log(2 * np.pi * phi) / 2)
    if family == "logistic":
        return np.asarray(rows.weight * (rows.y * eta - np.logaddexp(0, eta)))
    from scipy.special import gammaln

    return np.asarray(rows.weight * (rows.y * eta - np.exp(np.clip(eta, -30, 30)) - gammaln(rows.y + 1)))


def learn_intercepts(model: GLM, engine: Engine, how: Fit, coefficients: Array, covariance: Array) -> None:
    """Maximise the marginal likelihood, starting at the plain GLM, and write the estimates into the model."""
    if model.ranges is not None or model.l2 > 0:
        raise DataError("random intercepts take no ranges and need l2=0")
    gaussian = model.family == "gaussian"
    tails = [-1.0, float(np.log(max(model.dispersion_, 1e-12)))][: 1 + gaussian]
    if gaussian:
        tails[0] += tails[1] / 2
    scale = np.append(np.sqrt(np.diag(covariance)), [0.3, 0.1][: 1 + gaussian])
    shared = {n: v for n, v in model.get_params().items() if n in RandomIntercepts("gaussian").get_params()}
    work = RandomIntercepts(**shared, initial=np.append(coefficients, tails), scale=scale)
    state = model._run(
        work,
        engine,
        how.phase(".intercepts"),
        n_rounds=4 * model.rounds,
        measure=0,
        done=lambda old, new: bool(np.abs(new["server.move"] / scale).max() < max(model.tol, 1e-6)),
    )
    best, p = state["server.best"], len(coefficients)
    information = -state["server.curvature"]
    covariance = np.linalg.inv(information[:p, :p]) if gaussian else np.linalg.inv(information)[:p, :p]
    model.converged_ = bool(np.abs(state["server.move"] / scale).max() < max(model.tol, 1e-6))
    model.coefficients_, model.intercept_ = best[: p - model.intercept], float(best[p - 1]) if model.intercept else 0.0
    model.intercept_sd_ = float(np.exp(best[p])) if best[p] > _LEAST else 0.0
    if gaussian:
        model.residual_sd_ = float(np.exp(best[p + 1] / 2))
    model.log_likelihood_ = float(state["server.log_likelihood"])
    model.covariance_ = covariance
    model.standard_errors_ = np.sqrt(np.diag(covariance))
    model._test()
