"""FedTEM: a Gaussian mixture of features tells day from night, guided by a temporal prior (Zhu et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.branches import MultiBranch
from fedscape.learning.layers import initialised
from fedscape.learning.local import LocalSGD
from fedscape.learning.losses import cross_entropy
from fedscape.learning.server import Adam, Rule
from fedscape.temporal.branched import MEAN, Branched, Seen
from fedscape.temporal.curves import Linear, Zones
from fedscape.temporal.gaussians import (
    blended,
    log_densities,
    log_posteriors,
    log_shares,
    mode_parameters,
    segment_means,
    sums,
)
from fedscape.temporal.priors import (
    Prior,
    Soft,
    assign,
    certainty,
    check_hours,
    check_prior,
    expected_shares,
    first_prior,
    in_hours,
)
from fedscape.types import Array, Arrays, Kept, Tensor

_LINEAR = Linear()


class GaussianBranches(Branched):
    """Shared part of both forms of FedTEM: branches by a diagonal Gaussian mixture of the features."""

    name = "gaussian-branches"

    looks_back = True

    def __init__(
        self,
        local: LocalSGD,
        prior: Prior | None = _LINEAR,
        *,
        strength: float = 0.5,
        smoothing: float = 0.1,
        choice: str = "mle",
        pick: str = "greedy",
        memory: float = 0.99,
        hours: str = "all",
        inertia: float = 0.0,
        floor: float = 1e-3,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(
            local, strength=strength, smoothing=smoothing, server=server, weighting=weighting, initial=initial
        )
        self.prior = prior
        self.choice = choice
        self.pick = pick
        self.memory = memory
        self.floor = floor
        self.hours = hours
        self.inertia = inertia
        check_prior(prior, self.n_modes)
        check_hours(hours, prior)
        if choice not in ("mle", "posterior") or pick not in ("greedy", "sampled"):
            raise DataError(f"choice must be 'mle' or 'posterior', pick 'greedy' or 'sampled': {choice!r}, {pick!r}")
        if not (0 <= memory < 1 and 0 <= inertia < 1 and floor > 0):
            raise DataError(
                f"memory and inertia must be from 0 to below 1, floor above 0: {memory}, {inertia}, {floor}"
            )

    def modes(self, seed: int) -> Arrays:
        k, d = self.n_modes, self.local.model.n_features
        means = 0.1 * Key(seed, purpose="modes").generator().standard_normal((k, d))
        law = {"means": means, "variances": np.ones((k, d)), "weights": np.full(k, 1 / k)}
        return {**law, "server.mass": np.zeros(k), **first_prior(k)}

    def choose(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept]:
        shares = self._client_shares(state, self.see(state, clients).features, self.offsets(clients), state["weights"])
        if self.pick == "greedy":
            branch = shares.argmax(dim=1).cpu().numpy()
        else:
            chances = functional.softmax(shares, dim=1).cumsum(dim=1).cpu().numpy()
            branch = (key.to("branch").uniform(clients)[:, None] > chances[:, :-1]).sum(axis=1)
        return np.eye(self.n_modes)[branch][clients.client_of_row], {}

    def _client_shares(self, state: Arrays, features: Tensor, offsets: Tensor, weights: Array) -> Tensor:
        """Log shares of the modes for each unit: its MLE, equation (5), or its posterior, equation (22)."""
        densities, prior = self._densities(state, features), self.double(weights)
        if self.choice == "mle":
            return log_shares(log_posteriors(densities, prior), offsets)
        return torch.log_softmax(sums(densities, offsets) + prior.log(), dim=1)

    def _densities(self, state: Arrays, features: Tensor) -> Tensor:
        return log_densities(features, self.double(state["means"]), self.double(state["variances"]))

    def evidence(self, state: Arrays, rows: Seen) -> Tensor:
        densities = self._densities(state, rows.features)
        if self.choice == "posterior":
            return densities
        uniform = self.double(np.full(self.n_modes, 1 / self.n_modes))  # ignores the hours of training
        return log_posteriors(densities, uniform).exp()

    def _running(self, state: Arrays, mass: Array) -> Array:
        """The running prior of training (A.4, without the factor that makes the printed one vanish)."""
        mass = np.maximum(mass, 0.0)
        if mass.sum() < 1e-9:
            return state["weights"]
        blend = self.memory * state["weights"] + (1 - self.memory) * mass / mass.sum()
        return np.asarray(np.maximum(blend, 1e-12) / np.maximum(blend, 1e-12).sum())

    @classmethod
    def examples(cls) -> Sequence[tuple[Branched, Federation]]:
        return []


class FedTEM(GaussianBranches):
    """Federated EM with a temporal prior: algorithm 1. The server sees each client's shares, mean and variance.

    A client finds the mode of its rows under the broadcast mixture (5) and trains that branch by (4). It sends the
    mean, variance and shares (9) of the features under the network it has trained. The prior says how many clients the
    first mode gets: the server takes those with the highest shares of it, and updates the mixture (10). A mode without
    clients keeps its parameters. `FedTEMBySums` needs sums alone.

    The state holds `model.<parameter>`, `means` and `variances` [K, d], `weights` [K] (the running prior of training).
    Metrics: `loss` and `accuracy` under the branch that each client chooses without labels, and `with_rows`.

    Parameters
    ----------
    local
        How a client trains; the model is a MultiBranch, the loss cross entropy.
    prior
        A curve, `Soft`, or None: then every client counts towards its most likely mode ("EM only").
    strength, smoothing
        lambda and epsilon of equation (4).
    choice
        "mle": equation (5). "posterior": equation (22).
    pick
        "greedy": the branch with the largest share. "sampled": a branch drawn from the shares, in training.
    memory
        beta of the running prior.
    hours
        When a mode's mean and variance are learned. "all": in every round with clients of that mode, as in (10).
        "own": in rounds in which the prior expects more than an equal share of it, weighted by the excess; combine it
        with some inertia. With (10) a single client replaces a mode in the hours in which it is rare. Where writers
        differ more than modes do, modes are then lost even from a true start.
    inertia
        The share of the mass of earlier rounds that stays in a mode's mean and variance. 0 is (10): one client
        assigned to the wrong mode can replace it.
    floor
        The smallest variance.
    scatter
        "all": the variance of all rows of a mode. "within_clients": (10) as printed.
    server, weighting, initial
        As for FedAvg.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 2, 4])
    >>> step = LocalSGD(MultiBranch(nn.Linear(4, 2)), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> method = FedTEM(step, Linear(4))
    >>> loss = [float(r.metrics["loss"]) for r in rounds(method, fed, n_rounds=9, allow=method.reveals)]
    >>> loss[-1] < loss[0]
    True
    """

    name = "fedtem"

    reveals: ClassVar[tuple[str, ...]] = ("log_share", "mean", "variance", "rows")

    def __init__(
        self,
        local: LocalSGD,
        prior: Prior | None = _LINEAR,
        *,
        strength: float = 0.5,
        smoothing: float = 0.1,
        choice: str = "mle",
        pick: str = "greedy",
        memory: float = 0.99,
        hours: str = "all",
        inertia: float = 0.0,
        floor: float = 1e-3,
        scatter: str = "all",
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(
            local, prior, strength=strength, smoothing=smoothing, choice=choice, pick=pick, memory=memory,
            hours=hours, inertia=inertia, floor=floor, server=server, weighting=weighting, initial=initial,
        )  # fmt: skip
        self.scatter = scatter
        if scatter not in ("all", "within_clients"):
            raise DataError(f"scatter must be 'all' or 'within_clients', not {scatter!r}")

    def look_back(self, state: Arrays, features: Tensor, offsets: Tensor) -> Arrays:
        posteriors = log_posteriors(self._densities(state, features), self.double(state["weights"]))
        mean = segment_means(features, offsets)
        owner = torch.repeat_interleave(torch.arange(len(mean), device=mean.device), offsets.diff())
        variance = segment_means((features - mean[owner]) ** 2, offsets)
        statistics = {
            "log_share": log_shares(posteriors, offsets),
            "mean": mean,
            "variance": variance,
            "rows": offsets.diff(),
            "likely": likely_rows(posteriors, offsets),
        }
        return {name: values.cpu().numpy() for name, values in statistics.items()}

    def learn(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        some = total["rows"] > 0
        shares, remembered = expected_shares(self.prior, state, key, total["likely"])
        if not some.any():
            return remembered
        modes = assign(total["log_share"][some], None if self.prior is None else shares)
        before = (np.array(state["means"]), np.array(state["variances"]))
        rows, mean, variance = (total[name][some] for name in ("rows", "mean", "variance"))
        means, variances, mass = mode_parameters(modes, rows, mean, variance, before, scatter=self.scatter)
        fresh, weight = mass, in_hours(self.hours, shares)
        now, left = (means, variances), self.inertia**weight
        means, variances, mass = blended(before, now, state["server.mass"], weight * fresh, left)
        mixture = {
            "means": means,
            "variances": np.maximum(variances, self.floor),
            "weights": self._running(state, fresh),
            "server.mass": mass,
        }
        return {**mixture, **remembered}

    @classmethod
    def examples(cls) -> Sequence[tuple[FedTEM, Federation]]:
        fed, one, two = small_example()
        return [
            (cls(one, Linear(4)), fed),
            (cls(two, Soft(4), choice="posterior", pick="sampled", scatter="within_clients"), fed),
            (cls(three_branches(two), Zones(6), server=Adam(), initial="seed"), fed),
            (cls(one, None, weighting="equal"), fed),
        ]


class FedTEMBySums(GaussianBranches):
    """FedTEM from sums alone: a broadcast threshold on a client's share replaces the server's ranking.

    u_k are a client's shares on a scale that does not saturate: the arsinh of the log share less the mean over modes.
    Each client counts towards the mode argmax_k u_k - threshold_k. For that mode it sends its rows and the first two
    moments of its features about the broadcast mean. The server moves the thresholds until the number of clients per
    mode matches the prior, by quantile tracking: threshold_k += rate certainty (seen share - expected share). For two
    modes this is one threshold on the share.

    Parameters
    ----------
    local, prior, strength, smoothing, choice, pick, memory, hours, inertia, floor, server, weighting, initial
        As for FedTEM; with weighting="equal", for privacy, every client counts as one instead of its rows.
    rate
        How fast the thresholds follow; equation (27) makes it smaller where the prior is uncertain.
    noise
        Under privacy, the standard deviation of the noise on the number of clients of a mode, `noise_sd(privacy,
        "near", clients=cohort)`. A mode is then updated only if its number of clients is above 3 standard deviations
        of the noise, and its mean moves at most as far as the means are apart.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 2, 4])
    >>> step = LocalSGD(MultiBranch(nn.Linear(4, 2)), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> len(list(rounds(FedTEMBySums(step, Linear(4)), fed, n_rounds=3)))
    3
    """

    name = "fedtem-by-sums"

    def __init__(
        self,
        local: LocalSGD,
        prior: Prior | None = _LINEAR,
        *,
        strength: float = 0.5,
        smoothing: float = 0.1,
        choice: str = "mle",
        pick: str = "greedy",
        memory: float = 0.99,
        hours: str = "all",
        inertia: float = 0.0,
        floor: float = 1e-3,
        rate: float = 1.0,
        noise: float = 0.0,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(
            local, prior, strength=strength, smoothing=smoothing, choice=choice, pick=pick, memory=memory,
            hours=hours, inertia=inertia, floor=floor, server=server, weighting=weighting, initial=initial,
        )  # fmt: skip
        self.rate = rate
        self.noise = noise
        if not (0 <= rate < np.inf and 0 <= noise < np.inf):
            raise DataError(f"rate and noise must be at least 0, not {rate} and {noise}")

    def modes(self, seed: int) -> Arrays:
        return {**super().modes(seed), "thresholds": np.zeros(self.n_modes)}

    def look_back(self, state: Arrays, features: Tensor, offsets: Tensor) -> Arrays:
        posteriors = log_posteriors(self._densities(state, features), self.double(state["weights"]))
        shares = log_shares(posteriors, offsets)
        u = torch.asinh(shares - shares.mean(dim=1, keepdim=True)) - self.double(state["thresholds"])
        mode = u.argmax(dim=1)
        near = functional.one_hot(mode, self.n_modes) * (offsets.diff() > 0)[:, None]
        owner = torch.repeat_interleave(torch.arange(len(mode), device=mode.device), offsets.diff())
        away = features - self.double(state["means"])[mode[owner]]
        add = sums if self.weighting == "samples" else segment_means
        mine = near[:, :, None]
        statistics = {
            "near": near,
            "first": add(away, offsets)[:, None, :] * mine,
            "second": add(away**2, offsets)[:, None, :] * mine,
            "likely": likely_rows(posteriors, offsets) if self.weighting == "samples" else near,
        }
        if self.weighting == "samples":
            statistics["mass"] = near * offsets.diff()[:, None]
        return {name: values.cpu().numpy() for name, values in statistics.items()}

    def learn(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        shares, remembered = expected_shares(self.prior, state, key, total["likely"])
        near = np.maximum(total["near"], 0.0)
        mass = np.maximum(total["mass"], 0.0) if self.weighting == "samples" else near
        fresh = told(mass, self.noise)
        over = np.where(fresh > 0, mass, 1.0)[:, None]
        move = total["first"] / over
        before = (state["means"], state["variances"])
        now = (
            state["means"] + held(move, state["means"], self.noise),
            np.maximum(total["second"] / over - move**2, 0.0),
        )
        weight = in_hours(self.hours, shares)
        means, variances, kept = blended(before, now, state["server.mass"], weight * fresh, self.inertia**weight)
        fresh_state = {
            "means": means,
            "variances": np.maximum(variances, self.floor),
            "weights": self._running(state, fresh),
            "thresholds": state["thresholds"],
            "server.mass": kept,
        }
        if self.prior is not None and told(near.sum(), self.noise) > 0:
            off = self.rate * certainty(shares) * (near / near.sum() - shares)
            fresh_state["thresholds"] = state["thresholds"] + np.where(np.arange(len(off)) > 0, off, 0.0)
        return {**fresh_state, **remembered}

    @classmethod
    def examples(cls) -> Sequence[tuple[FedTEMBySums, Federation]]:
        fed, one, two = small_example()
        return [
            (cls(one, Linear(4)), fed),
            (cls(three_branches(two), Zones(6), weighting="equal"), fed),
            (cls(two, Soft(4), server=Adam(), noise=0.5), fed),
        ]


def told(mass: Array, noise: float) -> Array:
    """The mass of each mode, zero unless it is at least one and clearly above noise of this standard deviation.

    >>> told(np.array([0.4, 5.0, 40.0]), noise=10.0).tolist()
    [0.0, 0.0, 40.0]
    """
    return np.asarray(np.where(mass >= max(1.0, 3 * noise), mass, 0.0))


def held(move: Array, centres: Array, noise: float) -> Array:
    """Moves [K, d] under noise, shortened to the distance between the centres; without noise unchanged.

    >>> held(np.array([[9.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 0.0], [3.0, 0.0]]), noise=1.0).tolist()
    [[3.0, 0.0], [0.0, 1.0]]
    """
    if noise == 0:
        return move
    apart = float(np.linalg.norm(centres[:, None] - centres[None], axis=2).max())
    return np.asarray(move * np.minimum(1.0, apart / np.maximum(np.linalg.norm(move, axis=1), 1e-300))[:, None])


def likely_rows(posteriors: Tensor, offsets: Tensor) -> Tensor:
    """How many rows of each client have their highest posterior for each mode: [clients, K]."""
    hits = functional.one_hot(posteriors.argmax(dim=1), posteriors.shape[1])
    return sums(hits.to(torch.float64), offsets)


def small_example() -> tuple[Federation, LocalSGD, LocalSGD]:
    """Clients with a few rows in two modes, and two ways to train two branches, for the contract tests."""
    rng = np.random.default_rng(9)
    offsets = offsets_of(rng.integers(0, 9, 12))
    owner = np.repeat(np.arange(12), np.diff(offsets))
    x = rng.normal(size=(offsets[-1], 4)) + 2 * (owner % 2)[:, None]
    fed = Federation({"x": x, "y": rng.integers(0, 3, offsets[-1])}, offsets)
    linear = MultiBranch(initialised(nn.Linear(4, 3, dtype=torch.float64), 0))
    deep = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(torch.float64)
    one = LocalSGD(linear, cross_entropy, lr=0.3, epochs=2, batch_size=3)
    two = LocalSGD(
        MultiBranch(initialised(deep, 1), "2"), cross_entropy, lr=0.1, steps=3, batch_size=4, strategy="sequential"
    )
    return fed, one, two


def three_branches(local: LocalSGD) -> LocalSGD:
    """The same training of a small network with three branches."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.25), nn.Linear(5, 3)).to(torch.float64)
    return replace(local, model=MultiBranch(initialised(model, 2), "3", 3), strategy="vmap")
