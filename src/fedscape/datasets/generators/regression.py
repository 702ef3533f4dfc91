"""Agents, their entities and their events, with a latent regression per entity (the FedHLCR paper)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key, dirichlet
from fedscape.core.validate import check_whole
from fedscape.datasets.generators.draws import check_positive, pick
from fedscape.errors import DataError
from fedscape.types import Array


def hlcr_synthetic(
    n_agents: int = 128,
    *,
    entities: int = 16,
    events: int = 10,
    features: int = 8,
    components: int = 16,
    sigma: float = 1.0,
    delta: float = 1.0,
    alpha: float = 16.0,
    beta: float = 4.0,
    numbers: Literal["exact", "poisson"] = "exact",
    seed: int = 0,
) -> tuple[Federation, dict[str, Array]]:
    """Draw agents, entities and events from the hierarchical latent class regression of the FedHLCR paper (Figure 2).

    w_k ~ N(0, delta^2 I) for each component; psi ~ Dir(alpha (1/K, ..., 1/K)); theta_i ~ Dir(beta psi) for each agent;
    z_ij ~ Categorical(theta_i) for each of its entities; y_ijn ~ N(w_{z_ij} . x_ijn, sigma^2) for each event. The
    clients are the agents. The paper leaves F, alpha, beta, delta and the law of x open; here x ~ N(0, I). It gives
    only the mean numbers of entities and events. An agent depends only on the seed and its position.

    Parameters
    ----------
    n_agents
        Number of agents.
    entities
        Entities of each agent (the paper's N_*).
    events
        Events of each entity (the paper's N_**).
    features
        F.
    components
        K.
    sigma
        Standard deviation of the noise.
    delta
        Standard deviation of the coefficients.
    alpha
        Concentration of psi.
    beta
        Concentration of theta about psi.
    numbers
        "exact": all agents have as many entities, and all entities as many events. "poisson": 1 + Poisson(mean - 1) of
        each, so `entities` and `events` (at least 1) are means, as in the paper.
    seed
        The seed.

    Returns
    -------
    A Federation with the columns x [F], y and entity (0 to entities - 1, counted within the agent), and the ground
    truth: coefficients [K, F], psi [K], theta [agents, K], z [agents, entities] (-1 beyond an agent's last).

    >>> fed, truth = hlcr_synthetic(3, entities=2, events=5)
    >>> fed, truth["z"].shape
    (Federation(3 clients, 30 rows, x float64[8], y float64, entity int32), (3, 2))
    """
    n, drawn = check_whole("n_agents", n_agents, least=0), check_numbers(numbers)
    n_entities = check_whole("entities", entities, least=1)
    n_events = check_whole("events", events, least=1 if drawn else 0)
    k, f = check_whole("components", components, least=1), check_whole("features", features, least=1)
    noise = check_positive("sigma", sigma)
    key = Key(seed, purpose="hlcr synthetic")
    rng = key.to("hlcr components").generator()
    coefficients = check_positive("delta", delta) * rng.standard_normal((k, f))  # [K, F]
    psi = dirichlet(rng, np.full(k, check_positive("alpha", alpha) / k))
    spread = check_positive("beta", beta) * psi
    theta, labels = np.empty((n, k)), []
    x, y, entity = [np.empty((0, f))], [np.empty(0)], [np.empty(0, dtype=np.int32)]
    for agent in range(n):
        rng = key.generator(agent)
        theta[agent] = dirichlet(rng, spread)
        sizes = np.full(n_entities, n_events)
        if drawn:
            sizes = 1 + rng.poisson(n_events - 1, 1 + rng.poisson(n_entities - 1))
        labels.append(pick(rng, theta[agent], len(sizes)))
        x.append(rng.standard_normal((int(sizes.sum()), f)))
        of_row = coefficients[np.repeat(labels[-1], sizes)]  # [rows, F]
        y.append((x[-1] * of_row).sum(axis=1) + noise * rng.standard_normal(len(of_row)))
        entity.append(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))
    z = np.full((n, max((len(own) for own in labels), default=n_entities)), -1, dtype=np.int32)
    for agent, own in enumerate(labels):
        z[agent, : len(own)] = own
    columns: dict[str, Array] = {"x": np.concatenate(x), "y": np.concatenate(y), "entity": np.concatenate(entity)}
    truth = {"coefficients": coefficients, "psi": psi, "theta": theta, "z": z}
    return Federation(columns, offsets_of([len(own) for own in y[1:]])), truth


def check_numbers(numbers: str) -> bool:
    """Whether numbers of entities and events are drawn."""
    if numbers not in ("exact", "poisson"):
        raise DataError(f"numbers must be 'exact' or 'poisson', not {numbers!r}")
    return numbers == "poisson"
