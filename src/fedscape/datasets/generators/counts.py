"""Clients whose histograms follow a mixture of Dirichlet-multinomials (the MDM paper)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedscape.core.federation import Federation
from fedscape.core.random import TINIEST, Key, dirichlet
from fedscape.core.validate import check_whole
from fedscape.datasets.generators.draws import check_sizes, pick
from fedscape.errors import DataError
from fedscape.types import Array

BLOCK = 1024  # clients per generator; blocks are drawn whole: no client depends on how many follow

_MEDIUM = (0.1, 0.2, 0.6, 1.0, 2.0, 0.1, 1.0, 2.0, 0.5, 0.5)
_MEDIUM_2 = (2.5, 2.6, 2.7, 2.8, 3.0, 2.5, 2.0, 3.0, 1.0, 0.9)
_MEDIUM_3 = (5.0, 4.0, 5.0, 1.0, 1.0, 1.0, 5.0, 4.0, 5.0, 1.0)
_HIGH = (0.1, 0.2, 0.15, 0.18, 0.1, 0.05, 0.08, 0.4, 0.2, 0.12)
_HIGH_2 = (2.5, 2.6, 2.0, 3.2, 1.5, 0.9, 0.8, 1.3, 3.1, 2.4)
_HIGH_3 = (5.0, 5.0, 0.2, 0.2, 3.1, 3.0, 3.2, 0.8, 0.9, 5.0)

TABLE_1: dict[str, tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]] = {  # (weights, concentrations)
    "low-1": ((1.0,), ((1.0,) * 10,)),
    "low-2": ((0.5, 0.5), ((0.5,) * 10, (2.5,) * 10)),
    "low-3": ((0.333, 0.334, 0.333), ((2.5,) * 10, (0.5,) * 10, (1.1,) * 10)),  # the third row is not in the paper
    "medium-1": ((1.0,), (_MEDIUM,)),
    "medium-2": ((0.4, 0.6), (_MEDIUM, _MEDIUM_2)),
    "medium-3": ((0.5, 0.2, 0.3), (_MEDIUM_3, _MEDIUM, _MEDIUM_2)),
    "high-1": ((1.0,), (_HIGH,)),
    "high-2": ((0.1, 0.9), (_HIGH, _HIGH_2)),
    "high-3": ((0.8, 0.05, 0.15), (_HIGH_3, _HIGH, _HIGH_2)),
}


def dirichlet_multinomial(
    n_clients: int,
    *,
    weights: npt.ArrayLike,
    concentrations: npt.ArrayLike,
    sizes: npt.ArrayLike,
    seed: int = 0,
) -> tuple[Federation, dict[str, Array]]:
    """Draw clients from a mixture of Dirichlet-multinomials.

    Client i draws a component z_i ~ Categorical(tau), shares p_i ~ Dir(alpha_{z_i}) and counts c_i ~ Mult(n_i, p_i)
    (MDM paper, eq. 1 and 3). A client depends on the seed, its position and the sizes of the clients before it, not on
    how many follow: the first clients of a larger federation are those of a smaller one. A million clients of ten
    categories take seconds.

    Parameters
    ----------
    n_clients
        Number of clients.
    weights
        tau: the weight of each component [K], sum 1.
    concentrations
        alpha: [K, C], above 0.
    sizes
        n_i: one for all clients, or one per client.
    seed
        The seed.

    Returns
    -------
    A Federation with one row per client, the counts in column "y" [C], and the ground truth: component [clients],
    weights [K], concentrations [K, C].

    >>> fed, truth = dirichlet_multinomial(3, weights=[1.0], concentrations=[[5.0, 1.0]], sizes=10)
    >>> fed.counts("y").sum(axis=1).tolist(), truth["component"].tolist()
    ([10, 10, 10], [0, 0, 0])
    """
    n = check_whole("n_clients", n_clients, least=0)
    tau, alpha = _parameters(weights, concentrations)
    size = check_sizes("sizes", sizes, n)
    counts = np.empty((n, alpha.shape[1]), dtype=np.int32)  # [clients, C]
    component = np.empty(n, dtype=np.int32)
    key = Key(seed, purpose="dirichlet multinomial")
    for begin in range(0, n, BLOCK):
        rng, part = key.generator(begin // BLOCK), slice(begin, min(begin + BLOCK, n))
        drawn = pick(rng, tau, BLOCK)
        shares = dirichlet(rng, alpha[drawn])[: part.stop - begin]  # [block, C]
        component[part] = drawn[: part.stop - begin]
        counts[part] = rng.multinomial(size[part], shares)
    truth = {"component": component, "weights": tau, "concentrations": alpha}
    return Federation({"y": counts}, np.arange(n + 1)), truth


def _parameters(weights: npt.ArrayLike, concentrations: npt.ArrayLike) -> tuple[Array, Array]:
    tau, alpha = np.array(weights, dtype=float), np.array(concentrations, dtype=float)
    if alpha.ndim != 2 or alpha.size == 0 or tau.shape != alpha.shape[:1]:
        raise DataError(
            f"concentrations must be [components, categories] and weights [components], "
            f"not {list(alpha.shape)} and {list(tau.shape)}"
        )
    if not (np.isfinite(alpha) & (alpha >= TINIEST)).all():
        raise DataError(f"concentrations must be finite and at least {TINIEST}; the smallest is {alpha.min()}")
    if not ((tau >= 0).all() and abs(tau.sum() - 1) < 1e-9):
        raise DataError(f"weights must be at least 0 and sum to 1, not to {tau.sum()}: divide them by their sum")
    return tau, alpha


def mdm_table1(
    setting: str, n_clients: int = 1000, *, n: npt.ArrayLike = 20, seed: int = 0
) -> tuple[Federation, dict[str, Array]]:
    """Draw clients from one of the nine settings of the MDM paper's Table 1: C = 10, one to three components.

    The paper prints two rows of concentrations for the three weights of low-3. The third row here, all 1.1, comes from
    the authors' public script (its own low-3 is 1.0, 0.8, 1.1). The printed rows and weights are kept.

    Parameters
    ----------
    setting
        low-1, low-2, low-3, medium-1, medium-2, medium-3, high-1, high-2 or high-3.
    n_clients
        Number of clients; the paper's cohorts have 1,000.
    n
        The size of every client, or one per client; the authors' script has 20.
    seed
        The seed.

    Returns
    -------
    As `dirichlet_multinomial`.

    >>> fed, truth = mdm_table1("medium-2", 100)
    >>> fed.counts("y").shape, truth["weights"].tolist()
    ((100, 10), [0.4, 0.6])
    """
    if setting not in TABLE_1:
        raise DataError(f"setting must be one of {', '.join(TABLE_1)}, not {setting!r}")
    weights, concentrations = TABLE_1[setting]
    return dirichlet_multinomial(n_clients, weights=weights, concentrations=concentrations, sizes=n, seed=seed)


def mdm_a2(n_clients: int = 1000, *, seed: int = 0) -> tuple[Federation, dict[str, Array]]:
    """Draw clients as in the MDM paper's Appendix A.2, which chooses K: three components, n = 100, C = 5.

    Parameters
    ----------
    n_clients
        Number of clients; the paper has 100, 200 and 1,000.
    seed
        The seed.

    Returns
    -------
    As `dirichlet_multinomial`.

    >>> mdm_a2(10)[0].counts("y").sum(axis=1).tolist() == [100] * 10
    True
    """
    concentrations = [[0.1, 0.2, 0.1, 0.3, 0.1], [1.0, 4.0, 1.0, 2.0, 0.5], [10.0, 5.0, 3.0, 2.0, 30.0]]
    return dirichlet_multinomial(
        n_clients, weights=[0.2, 0.5, 0.3], concentrations=concentrations, sizes=100, seed=seed
    )
