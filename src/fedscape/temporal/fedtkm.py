"""FedTKM: k-means of feature means with a distance factor that follows a temporal prior, from sums alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Adam, Rule
from fedscape.temporal.branched import MEAN, Branched, Seen
from fedscape.temporal.curves import Linear, Zones
from fedscape.temporal.fedtem import held, small_example, three_branches, told
from fedscape.temporal.gaussians import segment_means
from fedscape.temporal.priors import (
    Prior,
    Soft,
    certainty,
    check_hours,
    check_prior,
    expected_shares,
    first_prior,
    in_hours,
)
from fedscape.types import Array, Arrays, Kept, Tensor

_LINEAR = Linear()


class FedTKM(Branched):
    """Federated k-means with a temporal prior: algorithm 2. The server sees sums only.

    A client belongs to the mode with the nearest centre on average; distances to centre k are multiplied by alpha_k
    (11). It trains that branch by (4), and chooses its mode again under the network it has trained. It sends a one for
    that mode, its rows, and the offset of its feature mean from that centre. The server moves the centres by the mean
    offset (12). It adapts the factors until the clients per mode match the prior (13): alpha_k *= exp(eta (seen share
    - expected share)), with alpha_1 = 1 and eta = rate x certainty of the prior (27). A mode without clients keeps its
    centre.

    The state holds `model.<parameter>`, `centres` [K, d] and `factors` [K]. Metrics as for FedTEM.

    Parameters
    ----------
    local
        How a client trains; the model is a MultiBranch, the loss cross entropy.
    prior
        A curve, `Soft`, or None: plain k-means.
    rate
        eta_max of equation (27).
    hours
        When a centre is learned: "all" is (12), "own" only while the prior expects more than an equal share of its
        mode, as for FedTEM.
    inertia
        The share of the mass of earlier rounds that stays in a centre; 0 is (12).
    strength, smoothing
        lambda and epsilon of equation (4).
    noise
        Under privacy, the standard deviation of the noise on the number of clients of a mode, as for `FedTEMBySums`.
    server, weighting, initial
        As for FedAvg. With weighting="equal", for privacy, every client counts as one instead of its rows.

    >>> import fedscape as fs
    >>> from fedscape.learning import cross_entropy, models
    >>> fed = fs.Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 2, 4])
    >>> net = fs.temporal.MultiBranch(models.linear(4, 2))
    >>> step = fs.LocalSGD(net, cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> [r.state["factors"].round(2).tolist() for r in fs.rounds(FedTKM(step, Linear(4)), fed, n_rounds=1)]
    [[1.0, 1.11]]
    """

    name = "fedtkm"

    looks_back = True

    def __init__(
        self,
        local: LocalSGD,
        prior: Prior | None = _LINEAR,
        *,
        rate: float = 0.2,
        hours: str = "all",
        inertia: float = 0.0,
        noise: float = 0.0,
        strength: float = 0.5,
        smoothing: float = 0.1,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(
            local, strength=strength, smoothing=smoothing, server=server, weighting=weighting, initial=initial
        )
        self.prior = prior
        self.rate = rate
        self.hours = hours
        self.inertia = inertia
        self.noise = noise
        check_prior(prior, self.n_modes)
        check_hours(hours, prior)
        if not (0 <= rate < np.inf and 0 <= noise < np.inf and 0 <= inertia < 1):
            raise DataError(
                f"rate and noise must be at least 0 and inertia from 0 to below 1, not {rate}, {noise} and {inertia}"
            )

    def modes(self, seed: int) -> Arrays:
        k, d = self.n_modes, self.local.model.n_features
        centres = 0.1 * Key(seed, purpose="modes").generator().standard_normal((k, d))
        return {"centres": centres, "factors": np.ones(k), "server.mass": np.zeros(k), **first_prior(k)}

    def _distances(self, state: Arrays, features: Tensor) -> Tensor:
        """alpha_k |f - c_k| of each row: [rows, K]."""
        away = torch.linalg.vector_norm(features[:, None, :] - self.double(state["centres"]), dim=2)
        return away * self.double(state["factors"])

    def evidence(self, state: Arrays, rows: Seen) -> Tensor:
        return -self._distances(state, rows.features)

    def choose(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept]:
        rows = self.see(state, clients)
        shares = self.branch_shares(self.evidence(state, rows), self.offsets(clients))
        return shares.cpu().numpy()[clients.client_of_row], {}

    def look_back(self, state: Arrays, features: Tensor, offsets: Tensor) -> Arrays:
        mode = segment_means(self._distances(state, features), offsets).argmin(dim=1)
        near = functional.one_hot(mode, self.n_modes) * (offsets.diff() > 0)[:, None]
        away = segment_means(features, offsets) - self.double(state["centres"])[mode]
        weight = offsets.diff() if self.weighting == "samples" else torch.ones_like(mode)
        mass = near * weight[:, None]
        sums = {"near": near, "away": away[:, None, :] * mass[:, :, None]}
        if self.weighting == "samples":
            sums["mass"] = mass
        return {name: values.cpu().numpy() for name, values in sums.items()}

    def eta(self, shares: Array) -> float:
        """Step size of (13) if the prior expects these shares: `rate` times its certainty (27)."""
        return self.rate * certainty(shares)

    def learn(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        near = np.maximum(total["near"], 0.0)
        mass = np.maximum(total["mass"], 0.0) if self.weighting == "samples" else near
        fresh = told(mass, self.noise)
        shares, remembered = expected_shares(self.prior, state, key, near)
        weight = in_hours(self.hours, shares)
        now = weight * fresh
        kept = np.where(now > 0, self.inertia**weight * state["server.mass"] + now, state["server.mass"])
        part = np.where(now > 0, weight / np.maximum(kept, 1e-300), 0.0)
        move = held(part[:, None] * total["away"], state["centres"], self.noise)
        factors = np.array(state["factors"], dtype=float)
        if self.prior is not None and told(near.sum(), self.noise) > 0:
            factors[1:] *= np.exp(self.eta(shares) * (near / near.sum() - shares))[1:]
        return {"centres": state["centres"] + move, "factors": factors, "server.mass": kept, **remembered}

    @classmethod
    def examples(cls) -> Sequence[tuple[FedTKM, Federation]]:
        fed, one, two = small_example()
        return [
            (cls(one, Linear(4)), fed),
            (cls(two, Soft(4), weighting="equal", server=Adam()), fed),
            (cls(three_branches(two), Zones(6), noise=0.5), fed),
            (cls(one, None), fed),
        ]
