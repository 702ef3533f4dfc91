"""Agents, their entities and their events, with a latent regression per entity (the FedHLCR paper)."""

from __future__ import annotations

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key, dirichlet
from fedscape.core.validate import check_whole
from fedscape.datasets.generators.draws import check_positive, pick
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
    seed: int = 0,
) -> tuple[Federation, dict[str, Array]]:
    """Draw agents, entities and events from the hierarchical latent class regression of the FedHLCR paper (Figure 2).

    w_k ~ N(0, delta^2 I) for each component; psi ~ Dir(alpha (1/K, ..., 1/K)); theta_i ~ Dir(beta psi) for each agent;
    z_ij ~ Categorical(theta_i) for each of its entities; y_ijn ~ N(w_{z_ij} . x_ijn, sigma^2) for each event. The
    clients are the agents. The paper leaves F, alpha, beta, delta and the law of x open; here x ~ N(0, I). Every agent
    has the same number of entities and every entity the same number of events; the paper gives only their means. An
    agent depends only on the seed and its position, not on the other agents.

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
    seed
        The seed.

    Returns
    -------
    A Federation with the columns x [F], y and entity (0 to entities - 1, counted within the agent), and the ground
    truth: coefficients [K, F], psi [K], theta [agents, K], z [agents, entities].

    >>> fed, truth = hlcr_synthetic(3, entities=2, events=5)
    >>> fed, truth["z"].shape
    (Federation(3 clients, 30 rows, x float64[8], y float64, entity int32), (3, 2))
    """
    n = check_whole("n_agents", n_agents, least=0)
    n_entities, n_events = check_whole("entities", entities, least=1), check_whole("events", events, least=0)
    k, f = check_whole("components", components, least=1), check_whole("features", features, least=1)
    noise, per_agent = check_positive("sigma", sigma), n_entities * n_events
    key = Key(seed, purpose="hlcr synthetic")
    rng = key.to("hlcr components").generator()
    coefficients = check_positive("delta", delta) * rng.standard_normal((k, f))  # [K, F]
    psi = dirichlet(rng, np.full(k, check_positive("alpha", alpha) / k))
    spread = check_positive("beta", beta) * psi
    theta, z = np.empty((n, k)), np.empty((n, n_entities), dtype=np.int32)
    x, y = np.empty((n, per_agent, f)), np.empty((n, per_agent))
    for agent in range(n):
        rng = key.generator(agent)
        theta[agent] = dirichlet(rng, spread)
        z[agent] = pick(rng, theta[agent], n_entities)
        x[agent] = rng.standard_normal((per_agent, f))
        of_row = coefficients[np.repeat(z[agent], n_events)]  # [rows, F]
        y[agent] = (x[agent] * of_row).sum(axis=1) + noise * rng.standard_normal(per_agent)
    entity = np.tile(np.repeat(np.arange(n_entities, dtype=np.int32), n_events), n)
    columns: dict[str, Array] = {"x": x.reshape(-1, f), "y": y.reshape(-1), "entity": entity}
    truth = {"coefficients": coefficients, "psi": psi, "theta": theta, "z": z}
    return Federation(columns, np.arange(n + 1) * per_agent), truth
