"""Clients score themselves under the model; the server learns only a histogram of the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, as_engine
from fedscape.core.federation import Federation
from fedscape.core.random import Key, dirichlet
from fedscape.core.rounds import rounds
from fedscape.core.validate import valid_categories
from fedscape.errors import DataError, PrivacyError, TooFewClients
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.privacy.release import noise_sd, noise_shares
from fedscape.types import Array, Arrays, Kept

STATISTICS = ("likelihood", "distance", "support", "direction_1", "direction_2", "size")
_MODEL = ("weights", "concentrations", "size_edges", "size_probabilities")


class SelfScores(Computation):
    """Each client ranks itself among clients it draws from the model: a randomised probability-integral transform.

    For a statistic T of a client with counts c and n rows, the client draws B clients of n rows from the model. It
    sends u = (#{T_b < T(c)} + U (1 + #{T_b = T(c)})) / (B + 1) as a 1 in one of `bins` bins. If the model is true, u is
    uniform for any T and n. The statistics: the likelihood given n, the distance to the model's mean shares, the number
    of categories, and the position along the two directions in which the model's clients differ most. For the size, u
    comes from the model's size law. The likelihood's bin is sent for the component that explains the client best. A
    client thus sends six ones: an L2 norm of sqrt(6).

    Parameters
    ----------
    population
        A fitted MixtureOfDirichletMultinomials.
    bins
        Bins of equal width.
    draws
        B.
    column
        One category per row, or count vectors.

    >>> from fedscape import MixtureOfDirichletMultinomials
    >>> mdm = MixtureOfDirichletMultinomials().fit([[3, 1], [2, 2], [0, 4]])
    >>> scores = SelfScores(mdm, bins=4)
    >>> r = next(rounds(scores, Federation({"y": [[1, 3], [2, 2]]}, [0, 1, 2]), n_rounds=1))
    >>> r.state["size"].sum()
    np.float64(2.0)
    """

    name = "self-scores"

    def __init__(self, population: Any, *, bins: int = 20, draws: int = 99, column: str = "y") -> None:
        self.population = population
        self.bins = bins
        self.draws = draws
        self.column = column
        if bins < 2 or draws < 1:
            raise DataError(f"bins must be at least 2 and draws at least 1, not {bins} and {draws}")

    def start(self, seed: int) -> Arrays:
        model = self.population
        model._check_fitted("weights_")
        laws = model.size_laws_
        state = {
            "weights": np.array(model.weights_ / model.weights_.sum()),
            "concentrations": np.array(model.concentrations_),
            "size_edges": np.zeros(1) if laws is None else laws.edges.astype(float),
            "size_probabilities": np.zeros((len(model.weights_), 0)) if laws is None else np.array(laws.probabilities),
        }
        return {**state, **{name: np.zeros(self._shape(name, state)) for name in STATISTICS}}

    def _shape(self, statistic: str, state: Arrays) -> tuple[int, ...]:
        return (len(state["weights"]), self.bins) if statistic == "likelihood" else (self.bins,)

    def prepare(self, state: Arrays) -> Arrays:
        alpha, weights = state["concentrations"], state["weights"]
        total = alpha.sum(axis=1, keepdims=True)
        mean = alpha / total  # [K, C]
        pool = weights @ mean
        second = np.einsum("k,ki,kj->ij", weights * (total / (total + 1))[:, 0], mean, mean)
        covariance = second + np.diag(weights @ (mean / (total + 1))) - np.outer(pool, pool)
        directions = np.linalg.eigh(covariance)[1][:, ::-1][:, :2]  # [C, 2]
        if directions.shape[1] < 2:
            directions = np.pad(directions, ((0, 0), (0, 1)))
        return {**state, "pool": pool, "directions": directions}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        own = clients.counts(self.column, state["concentrations"].shape[1]).astype(np.int64)
        log_weights = _component_given_size(state, own.sum(axis=1))  # [clients, K]
        counts = np.empty((len(own), 1 + self.draws, own.shape[1]), dtype=np.int64)  # a client, then its draws
        luck = np.empty((len(own), len(STATISTICS)))
        for i, rng in enumerate(key.to("self scores").of(clients)):
            counts[i, 0], counts[i, 1:] = own[i], self._drawn(state, own[i].sum(), log_weights[i], rng)
            luck[i] = rng.random(len(STATISTICS))
        statistics, best = _statistics(state, counts, log_weights)
        scores = {name: _rank(values, luck[:, s]) for s, (name, values) in enumerate(statistics.items())}
        scores["size"] = _size_rank(state, own.sum(axis=1), luck[:, -1])
        sent = {name: np.zeros((len(own), *self._shape(name, state)), dtype=np.int64) for name in STATISTICS}
        everyone = np.arange(len(own))
        for name, u in scores.items():
            bin_ = np.minimum((u * self.bins).astype(np.int64), self.bins - 1)
            sent[name][(everyone, best, bin_) if name == "likelihood" else (everyone, bin_)] = 1
        return sent, {}

    def _drawn(self, state: Arrays, n: int, log_weights: Array, rng: np.random.Generator) -> Array:
        ends = np.cumsum(np.exp(log_weights - log_weights.max()))
        component = np.searchsorted(ends, rng.random(self.draws) * ends[-1], side="right")
        return rng.multinomial(n, dirichlet(rng, state["concentrations"][component]))

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        model = {name: state[name] for name in _MODEL}
        return {**model, **{name: np.asarray(total[name], dtype=float) for name in STATISTICS}}

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_categories(clients[self.column], state["concentrations"].shape[1])

    @classmethod
    def examples(cls) -> Sequence[tuple[SelfScores, Federation]]:
        from fedscape.mixtures import MixtureOfDirichletMultinomials

        rng = np.random.default_rng(5)
        sizes = rng.integers(0, 12, 40)
        counts = rng.multinomial(sizes, rng.dirichlet([1.0, 2.0, 0.5], 40))
        pairs = []
        for k, law in ((2, "bins"), (1, None)):
            model = MixtureOfDirichletMultinomials(k, sizes=law, rounds=5, n_init=1)  # type: ignore[arg-type]
            model.fit(counts, progress=False)
            pairs.append((cls(model, bins=5, draws=9), Federation({"y": counts}, np.arange(41))))
        return pairs


def _component_given_size(state: Arrays, sizes: Array) -> Array:
    """log P(component, size) up to a constant: [clients, K]."""
    from fedscape.mixtures.size_laws import bin_of, log_density

    logarithm = np.broadcast_to(np.log(state["weights"]), (len(sizes), len(state["weights"]))).copy()
    if state["size_probabilities"].shape[1]:
        edges = state["size_edges"].astype(np.int64)
        logarithm += log_density(state["size_probabilities"], edges)[bin_of(sizes, edges)]
    return logarithm


def _statistics(state: Arrays, counts: Array, log_weights: Array) -> tuple[Arrays, Array]:
    """Statistics of the clients and their draws, [clients, 1 + draws] each, and each client's most likely component."""
    shape, alpha = counts.shape[:2], state["concentrations"]
    flat = counts.reshape(-1, counts.shape[2])
    joint = _log_dirichlet_multinomial(flat, alpha).reshape(*shape, len(alpha)) + log_weights[:, None]
    top = joint.max(axis=2)
    shares = flat / np.maximum(flat.sum(axis=1, keepdims=True), 1)
    along = (shares @ state["directions"]).reshape(*shape, 2)
    statistics = {
        "likelihood": top + np.log(np.exp(joint - top[:, :, None]).sum(axis=2)),
        "distance": np.abs(shares - state["pool"]).sum(axis=1).reshape(shape),
        "support": (flat > 0).sum(axis=1).reshape(shape),
        "direction_1": along[:, :, 0],
        "direction_2": along[:, :, 1],
    }
    return statistics, np.asarray(joint[:, 0].argmax(axis=1))


def _size_rank(state: Arrays, n: Array, luck: Array) -> Array:
    """P(N < n) + U P(N = n); U if the model has no size law."""
    if not state["size_probabilities"].shape[1]:
        return luck
    law, edges = state["weights"] @ state["size_probabilities"], state["size_edges"]
    before = np.concatenate(([0.0], np.cumsum(law)))
    bin_ = np.searchsorted(edges, n, side="right") - 1
    return np.asarray(before[bin_] + law[bin_] * (n - edges[bin_] + luck) / np.diff(edges)[bin_])


def _log_dirichlet_multinomial(counts: Array, alpha: Array) -> Array:
    """log p(c | n, alpha_k) with its coefficient: [clients, K]. Expanded for a huge alpha, where logs cancel."""
    from scipy.special import gammaln

    n, total = counts.sum(axis=1), alpha.sum(axis=1)
    out = (gammaln(n + 1) - gammaln(counts + 1).sum(axis=1))[:, None] - _log_rising(n[:, None], total)
    for k, row in enumerate(alpha):
        out[:, k] += _log_rising(counts, row).sum(axis=1)
    return np.asarray(out)


def _log_rising(count: Array, a: Array) -> Array:
    """log Gamma(a + count) - log Gamma(a)."""
    from scipy.special import gammaln

    exact = gammaln(a + count) - gammaln(a)
    return np.asarray(np.where(a > 1e7, count * np.log(a) + count * (count - 1.0) / (2 * a), exact))


def _rank(values: Array, luck: Array) -> Array:
    """Rank of the first entry in each row, ties broken at random: uniform if all have one law."""
    rest, first = values[:, 1:], values[:, :1]
    return np.asarray(((rest < first).sum(axis=1) + luck * (1 + (rest == first).sum(axis=1))) / values.shape[1])


@dataclass(frozen=True, eq=False)
class SelfScore:
    """The result of `self_score`: how far the scores of each statistic are from uniform.

    `misfit` is the total variation distance of the scores from uniform, less what chance and noise explain: the share
    of clients that would have to score differently. `interval` is its 95% interval, from that of the unbiased squared
    distance. The model itself was learned from `fitted` clients. Its error moves a histogram by at most n / fitted
    times what chance does, because the scores carry no more information on the parameters than the clients. The
    interval allows for that. `p` is the chi-square p-value; `p_all` is the smallest of them, times their number.
    `unlikely` [K] is the share of each component's clients with a likelihood below the 1 / bins quantile of the model's
    own: 1 / bins if represented, NaN if noise hides the component's clients.

    >>> flat = SelfScore({"size": np.full(10, 50.0)}, noise=0.0, components=np.full((1, 10), 50.0))
    >>> flat.misfit["size"], round(flat.p["size"], 3)
    (0.0, 1.0)
    """

    histograms: dict[str, Array]
    noise: float
    components: Array
    fitted: float = np.inf

    def __post_init__(self) -> None:
        for name, histogram in self.histograms.items():
            if not histogram.sum() > 0:
                raise DataError(
                    f"the histogram of {name} sums to {float(histogram.sum()):.4g}: no client was scored, or the noise "
                    "hides them all; ask more clients or lower the noise"
                )

    def _parts(self, name: str) -> tuple[Array, float, float, float]:
        """The histogram, its number of clients, its noise variance, and the factor on the variance of chance."""
        histogram = self.histograms[name]
        n = max(float(histogram.sum()), 1.0)
        noise = self.noise**2 * (len(self.components) if name == "likelihood" else 1)
        return histogram, n, noise, 1 + n / self.fitted

    def _square(self, name: str) -> tuple[float, float]:
        """The unbiased squared L2 distance to equal shares, and its standard deviation."""
        histogram, n, noise, factor = self._parts(name)
        bins = len(histogram)
        share = np.maximum(histogram, 0.0) / max(float(np.maximum(histogram, 0.0).sum()), 1.0)
        off = (histogram - histogram.mean()) / n
        chance = (np.diag(share) - np.outer(share, share)) / n
        spread = factor * chance + noise / n**2 * (np.eye(bins) - 1 / bins)
        variance = 4 * off @ spread @ off + 2 * np.sum(spread**2)
        return float(off @ off - np.trace(spread)), float(np.sqrt(max(variance, 0.0)))

    def _length(self, name: str, square: float) -> float:
        """Convert a squared distance to a total variation distance, with their ratio in this histogram."""
        histogram, n, _, _ = self._parts(name)
        off = (histogram - histogram.mean()) / n
        longest = float(np.sqrt(off @ off))
        scale = 0.5 * float(np.abs(off).sum()) / longest if longest > 0 else 0.5 * np.sqrt(len(off))
        return float(min(scale * np.sqrt(max(square, 0.0)), 1.0))

    @property
    def misfit(self) -> dict[str, float]:
        return {name: self._length(name, self._square(name)[0]) for name in self.histograms}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        intervals = {}
        for name in self.histograms:
            value, spread = self._square(name)
            intervals[name] = self._length(name, value - 1.96 * spread), self._length(name, value + 1.96 * spread)
        return intervals

    @property
    def p(self) -> dict[str, float]:
        from scipy.special import chdtrc

        p_values = {}
        for name, histogram in self.histograms.items():
            _, n, noise, factor = self._parts(name)
            off = histogram - histogram.mean()
            p_values[name] = float(chdtrc(len(histogram) - 1, off @ off / (factor * n / len(histogram) + noise)))
        return p_values

    @property
    def p_all(self) -> float:
        return min(1.0, len(self.histograms) * min(self.p.values()))

    @property
    def unlikely(self) -> Array:
        clients = self.components.sum(axis=1)
        hidden = clients < 4 * self.noise * np.sqrt(self.components.shape[1])
        share = np.clip(self.components[:, 0] / np.maximum(clients, 1.0), 0.0, 1.0)
        return np.where(hidden, np.nan, share)

    def table(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return {
            "misfit": self.misfit,
            "interval": {name: list(pair) for name, pair in self.interval.items()},
            "unlikely": [None if np.isnan(u) else round(float(u), 4) for u in self.unlikely],
            "p": self.p,
            "p_all": self.p_all,
        }

    def __str__(self) -> str:
        lines = []
        for name, value in sorted(self.misfit.items(), key=lambda item: -item[1]):
            low, high = self.interval[name]
            lines.append(f"{name}: misfit {value:.3f} [{low:.3f}, {high:.3f}], p = {self.p[name]:.2g}")
        expected = 1 / self.components.shape[1]
        for k, share in enumerate(self.unlikely):
            if share > 2 * expected:
                lines.append(f"not represented: {share:.1%} of component {k}'s clients, {expected:.1%} expected")
        return "\n".join(lines)


def self_score(
    population: Any,
    data: Engine | Federation,
    *,
    column: str = "y",
    bins: int = 20,
    draws: int = 99,
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    seed: int = 0,
) -> SelfScore:
    """Score how well a fitted population represents held-out clients, from one sum over them.

    Parameters
    ----------
    population
        A fitted MixtureOfDirichletMultinomials.
    data
        Held-out clients, as a Federation or an Engine.
    column
        One category per row, or count vectors.
    bins, draws
        As for `SelfScores`.
    privacy
        How the histogram is noised. Gaussian(clip=2.45, ...) and Laplace(clip=6, ...) clip no client; less is refused.
    ledger
        Where the release is booked.
    seed
        Determines the clients' own draws.

    >>> from fedscape import MixtureOfDirichletMultinomials
    >>> counts = np.random.default_rng(0).multinomial(20, np.random.default_rng(0).dirichlet([2, 3], 300))
    >>> mdm = MixtureOfDirichletMultinomials(sizes=None).fit(counts[:200])
    >>> self_score(mdm, Federation({"y": counts[200:]}, np.arange(101))).p_all > 1e-6
    True
    """
    work = SelfScores(population, bins=bins, draws=draws, column=column)
    engine = as_engine(data)
    if privacy is not None:
        _check_clip(privacy)
    loop = rounds(work, engine, n_rounds=1, seed=seed, privacy=privacy, ledger=ledger, measure=0)
    done = next(loop)
    loop.close()
    if done.abandoned:
        raise TooFewClients("too few clients reported, and nothing was scored: lower min_clients or wait for more")
    state = done.state
    shares, enough = noise_shares(privacy, engine, done.clients)
    noise = noise_sd(privacy, "likelihood", clients=shares, min_clients=enough, whole=True)
    wanted = [name for name in STATISTICS if name != "size" or state["size_probabilities"].shape[1]]
    histograms = {name: state[name].sum(axis=0) if name == "likelihood" else state[name] for name in wanted}
    return SelfScore(histograms, float(noise), state["likelihood"], float(population.n_clients_ or np.inf))


def _check_clip(privacy: Privacy) -> None:
    """Refuse a clip that would shrink six ones."""
    need = len(STATISTICS) ** (1 / privacy.norm)
    if privacy.scales or privacy.unit != "client":
        raise PrivacyError("self_score sends ones, all alike, and one set a client: use unit='client' and no scales")
    if privacy.first_clip < need * (1 - 1e-12):
        raise PrivacyError(
            f"a client sends six ones, of norm {need:.4g}, which clip={privacy.first_clip:.4g} would shrink: "
            f"use clip={np.ceil(100 * need) / 100:.4g}"
        )
