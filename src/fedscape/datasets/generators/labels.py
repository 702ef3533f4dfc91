"""Clients with rows from shared components, and labels by component (the FedGMM paper)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key, dirichlet
from fedscape.core.validate import check_whole
from fedscape.datasets.generators.draws import check_positive, check_sizes, pick
from fedscape.errors import DataError
from fedscape.types import Array

LAWS = ("gaussian", "laplace", "beta")
_PURPOSE = "fedgmm synthetic"


def fedgmm_synthetic(
    n_clients: int = 300,
    n_rows: npt.ArrayLike = 3000,
    *,
    dimension: int = 32,
    components: int = 3,
    law: str = "gaussian",
    concentration: float = 0.4,
    deviation: float = 1.0,
    seed: int = 0,
) -> tuple[Federation, dict[str, Array]]:
    """Draw the synthetic clients of the FedGMM paper (Section 4.1, and Setting 1 of Table 3).

    Client c draws pi_c ~ Dir(0.4); each of its rows draws z ~ pi_c, x from component z, and y = 1{(x - mu_z) . v_z > 0}
    with v_m = mu_{m+1} - mu_m, cyclic. The coordinates of x are independent, by law:

    - gaussian: mu ~ U[-1, 1]^d, x ~ N(mu, I);
    - laplace: mu ~ U[-1, 1]^d, x Laplace about mu with variance 1, as the Gaussian (the paper gives no scale);
    - beta: x ~ Beta(a, b), a ~ Gamma(3), b ~ Gamma(5) for each coordinate (as in the authors' script; the paper gives
      none), mu = a / (a + b).

    The authors' script has covariance I / sqrt(d) and Laplace scale 1 / sqrt(d) instead: `deviation` d**-0.25 and
    sqrt(2 / d). A client depends only on the seed and its position, not on the other clients.

    Parameters
    ----------
    n_clients
        Number of clients: 300 in Table 2, 30 in Table 3.
    n_rows
        Rows of each client: one for all, or one per client.
    dimension
        d.
    components
        M, at least 2.
    law
        gaussian, laplace or beta.
    concentration
        Concentration of the Dirichlet of the shares.
    deviation
        Standard deviation of each coordinate about mu; beta has its own and takes only 1.
    seed
        The seed.

    Returns
    -------
    A Federation with the columns x [d] and y, and the ground truth. That is mu and v [M, d], shares [clients, M],
    component [rows], law and deviation [M], a and b [M, d] (NaN except for beta). `fedgmm_bayes` gives the best
    prediction of y.

    >>> fed, truth = fedgmm_synthetic(4, 10, dimension=5)
    >>> fed, truth["shares"].shape
    (Federation(4 clients, 40 rows, x float64[5], y int64), (4, 3))
    """
    n = check_whole("n_clients", n_clients, least=0)
    key = Key(seed, purpose=_PURPOSE)
    parts = _components(key, law, components, dimension, deviation)
    shares = _shares(key, n, components, concentration)
    return _draw(key, check_sizes("n_rows", n_rows, n), shares, parts)


def fedgmm_partial(
    n_clients: int = 30,
    n_rows: npt.ArrayLike = 3000,
    *,
    n_other: int = 10,
    law: str = "laplace",
    dimension: int = 32,
    components: int = 3,
    concentration: float = 0.4,
    deviation: float = 1.0,
    seed: int = 0,
) -> tuple[Federation, dict[str, Array]]:
    """Draw two populations: most clients Gaussian, the last ones of another law (FedGMM paper, Setting 2 of Table 3).

    Each population has M components of its own: 0 to M - 1 are the Gaussian ones, M to 2M - 1 the others. `shares` is
    zero for the components of the other population.

    Parameters
    ----------
    n_clients
        Number of clients in all.
    n_rows
        Rows of each client: one for all, or one per client.
    n_other
        Number of clients of the other law; they come last.
    law
        laplace or beta.
    dimension, components, concentration, deviation, seed
        As in `fedgmm_synthetic`.

    Returns
    -------
    As `fedgmm_synthetic`, with 2M components.

    >>> fed, truth = fedgmm_partial(3, 10, n_other=1, dimension=5)
    >>> (truth["shares"] > 0).astype(int).tolist()
    [[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    """
    n = check_whole("n_clients", n_clients, least=0)
    first_other = n - min(check_whole("n_other", n_other, least=0), n)
    key = Key(seed, purpose=_PURPOSE)
    gaussian = _components(key, "gaussian", components, dimension, deviation)
    other = _components(key.to("fedgmm other"), law, components, dimension, deviation)
    parts = {name: np.concatenate([gaussian[name], other[name]]) for name in gaussian}
    within = _shares(key, n, components, concentration)
    shares = np.zeros((n, 2 * components))
    shares[:first_other, :components] = within[:first_other]
    shares[first_other:, components:] = within[first_other:]
    return _draw(key, check_sizes("n_rows", n_rows, n), shares, parts)


def _components(key: Key, law: str, components: int, dimension: int, deviation: float) -> dict[str, Array]:
    if law not in LAWS:
        raise DataError(f"law must be one of {', '.join(LAWS)}, not {law!r}")
    if law == "beta" and deviation != 1.0:
        raise DataError(f"law='beta' has its own spread: leave deviation at 1.0, not {deviation!r}")
    shape = (check_whole("components", components, least=2), check_whole("dimension", dimension, least=1))
    rng = key.to(f"{key.purpose} components").generator()
    a = b = np.full(shape, np.nan)
    mu = rng.uniform(-1.0, 1.0, shape)
    if law == "beta":
        a, b = rng.standard_gamma(3.0, shape), rng.standard_gamma(5.0, shape)
        mu = a / (a + b)
    spread = np.full(components, check_positive("deviation", deviation))
    v = np.roll(mu, -1, axis=0) - mu
    return {"mu": mu, "v": v, "law": np.full(components, law, dtype="<U8"), "deviation": spread, "a": a, "b": b}


def _shares(key: Key, n_clients: int, components: int, concentration: float) -> Array:
    alpha = np.full(components, check_positive("concentration", concentration))
    of_shares = key.to(f"{key.purpose} shares")
    shares = [dirichlet(of_shares.generator(client), alpha) for client in range(n_clients)]
    return np.array(shares).reshape(n_clients, components)


def _draw(key: Key, sizes: Array, shares: Array, parts: dict[str, Array]) -> tuple[Federation, dict[str, Array]]:
    offsets = offsets_of(sizes)
    component = np.empty(offsets[-1], dtype=np.int32)
    x = np.empty((offsets[-1], parts["mu"].shape[1]))
    for client, (begin, end) in enumerate(pairwise(offsets)):
        rng = key.generator(client)
        component[begin:end] = pick(rng, shares[client], end - begin)
        for m in np.unique(component[begin:end]):
            rows = begin + np.flatnonzero(component[begin:end] == m)
            x[rows] = _sample(rng, len(rows), parts, m)
    y = np.einsum("rd,rd->r", x - parts["mu"][component], parts["v"][component]) > 0
    fed = Federation({"x": x, "y": y.astype(np.int64)}, offsets)
    return fed, {**parts, "shares": shares, "component": component}


def _sample(rng: np.random.Generator, n: int, parts: dict[str, Array], m: int) -> Array:
    """Draw n rows of component m: [n, d]."""
    mu: Array = parts["mu"][m]
    deviation, shape = float(parts["deviation"][m]), (n, len(mu))
    if parts["law"][m] == "gaussian":
        return mu + deviation * rng.standard_normal(shape)
    if parts["law"][m] == "laplace":
        return rng.laplace(mu, deviation / np.sqrt(2.0), shape)
    return rng.beta(parts["a"][m], parts["b"][m], shape)


def fedgmm_bayes(federation: Federation, truth: Mapping[str, Array]) -> Array:
    """The true P(y = 1 | x, client) of each row: sum over m of P(m | x, client) 1{(x - mu_m) . v_m > 0}.

    Rounding it gives the best possible prediction; no method has a higher expected accuracy.

    Parameters
    ----------
    federation, truth
        As returned by `fedgmm_synthetic` or `fedgmm_partial`; or fresh rows of the same clients.

    >>> fed, truth = fedgmm_synthetic(20, 100)
    >>> accuracy = ((fedgmm_bayes(fed, truth) > 0.5) == fed["y"]).mean()
    >>> bool(accuracy > 0.98)
    True
    """
    x, out = federation["x"], np.empty(federation.n_rows)
    with np.errstate(divide="ignore"):
        log_shares = np.log(truth["shares"])  # [clients, M], -inf where a client lacks a component
    for client, (begin, end) in enumerate(pairwise(federation.offsets)):
        rows = x[begin:end]
        log_joint = log_shares[client] + _log_density(rows, truth)  # [n, M]
        joint = np.exp(log_joint - log_joint.max(axis=1, keepdims=True, initial=-np.inf))
        labels = rows @ truth["v"].T > np.einsum("md,md->m", truth["mu"], truth["v"])  # [n, M]
        out[begin:end] = (joint * labels).sum(axis=1) / joint.sum(axis=1)
    return out


def _log_density(x: Array, truth: Mapping[str, Array]) -> Array:
    """log p(x | m): [n, M]."""
    from scipy.special import betaln

    out = np.empty((len(x), len(truth["mu"])))
    inside = ((x >= 0) & (x <= 1)).all(axis=1)
    unit = np.clip(x, 1e-300, 1 - 1e-16)
    for m, law in enumerate(truth["law"].tolist()):
        mu, deviation = truth["mu"][m], truth["deviation"][m]
        if law == "gaussian":
            each = -0.5 * ((x - mu) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))
        elif law == "laplace":
            each = -np.sqrt(2.0) * np.abs(x - mu) / deviation - np.log(deviation * np.sqrt(2.0))
        else:
            a, b = truth["a"][m], truth["b"][m]
            each = (a - 1) * np.log(unit) + (b - 1) * np.log1p(-unit) - betaln(a, b)
        out[:, m] = each.sum(axis=1)
        if law == "beta":
            out[~inside, m] = -np.inf
    return out
