"""The rounds of a private fit: few numbers per client, each bounded or whitened; one clip suits all data.

Tail counts are no use here: there are hundreds, each with noise. A private fit sends only what an estimate needs:
first the positions of clients (`Outline`), then their differences (`DifferenceMoments`), then scores (`ScoreAscent`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import psi

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.mixtures.dirichlet_multinomial.em import looked_up, sound
from fedscape.mixtures.dirichlet_multinomial.kernels import counts_of, stand_for_many, valid_counts
from fedscape.mixtures.dirichlet_multinomial.posterior import shares_and_likelihood, with_tables
from fedscape.mixtures.dirichlet_multinomial.start import example, shares_of
from fedscape.mixtures.size_laws import FLOOR, Kind, SizeLaws, background, bin_of, most_likely, size_edges
from fedscape.types import Array, Arrays, Kept

REACH = 1024  # of tables; larger counts are computed one by one. Of the fine size bins: four times that
TIGHTEST, WIDEST = 1e-5, 1e2  # dispersions
LOWEST = 1e-5  # mean of a category
MOST_CATEGORIES = 512  # there is a sum for each pair of categories
DRAWN = 4096  # clients drawn from the model to estimate the variance of scores
SHARES = 0.4  # norm of responsibilities and of sizes beside scores of norm one: a sixth of the squared norm each


def public_reach(n_categories: int) -> Array:
    """Limits of tables and bins that do not depend on clients: [C + 1]."""
    return np.append(np.full(n_categories, REACH), 4 * REACH).astype(np.int64)


class Outline(Computation):
    """The mean position of clients, h = (sqrt(c_j / n))_j, which has norm one, and their size law.

    Each of the two arrays has at most norm one per client; divided by sqrt(2), so do both together.
    """

    name = "dm-outline"

    def __init__(self, n_categories: int, *, sizes: Kind = "bins", column: str = "y", count: str | None = None) -> None:
        self.n_categories = n_categories
        self.sizes = sizes
        self.column = column
        self.count = count
        self._edges = size_edges(sizes, 4 * REACH)

    def start(self, seed: int) -> Arrays:
        return {}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        counts = counts_of(clients, self.column, self.count, self.n_categories)
        bins = np.zeros((len(clients), len(self._edges) - 1))
        bins[np.arange(len(clients)), bin_of(counts.total, self._edges)] = np.sqrt(0.5)
        return {"position": np.sqrt(0.5 * shares_of(counts, self.n_categories)), "size": bins}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = np.maximum(total["clients"], 1.0)
        centre = np.maximum(total["position"] * np.sqrt(2) / n, 0.0)
        centre = np.maximum(centre, np.sqrt(LOWEST))
        centre = centre / max(float(np.sqrt((centre**2).sum())), 1.0)
        law = laws(total["size"][None] * np.sqrt(2) / n, self._edges)[0]
        return {"centre": centre, "law": law, "clients": np.asarray(n, dtype=float)}

    def in_sight(self, law: Array, noise: float) -> Array:
        """Restrict the law to the bins that stand out from this noise, plus one more on either side.

        Noise puts a little mass into every bin up to 2**31, and a thousandth there makes the mean size a million.
        """
        visible = np.flatnonzero(law > noise) if (law > noise).any() else np.array([law.argmax()])
        bins = np.arange(len(law))
        near = (bins >= visible[0] - 1) & (bins <= visible[-1] + 1)
        return np.asarray(most_likely(np.where(near, law, 0.0)[None], FLOOR * background(self._edges))[0])

    def inverse(self, law: Array) -> float:
        """The mean of 1 / (1 + n)."""
        middle = np.sqrt((self._edges[:-1] + 1.0) * self._edges[1:])  # of 1 + n in each bin
        return float((law / middle).sum())

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        # Positions have norm one and no negative numbers, so two are at most sqrt(2) apart; so are two bins.
        return float(np.sqrt(2) if norm == 2 else np.sqrt(self.n_categories) + np.sqrt(2))  # L1 <= sqrt(C) L2

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_counts(clients, self.column, self.count, self.n_categories)

    @classmethod
    def examples(cls) -> Sequence[tuple[Outline, Federation]]:
        return [(cls(4), example())]


class DifferenceMoments(Computation):
    """The second moment of g = h - centre, scaled down to a norm known from the centre.

    Positions have norm one: the mean of |g|^2 is 1 - |centre|^2, and g is scaled down to sqrt(2) times its root.
    Clients send the upper triangle of g g' / length^2, with off-diagonal entries times sqrt(2): at most norm one.
    """

    name = "dm-differences"

    block_clients = 128  # a client sends C (C + 1) / 2 numbers

    def __init__(self, n_categories: int, *, column: str = "y", count: str | None = None) -> None:
        self.n_categories = n_categories
        self.column = column
        self.count = count

    def start(self, seed: int) -> Arrays:
        return {"centre": np.full(self.n_categories, 0.9 / np.sqrt(self.n_categories))}

    def _length(self, state: Arrays) -> float:
        return float(np.sqrt(2 * max(1 - float((state["centre"] ** 2).sum()), 1e-3)))

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        counts = counts_of(clients, self.column, self.count, self.n_categories)
        filled = (counts.total > 0)[:, None]
        g = np.where(filled, np.sqrt(shares_of(counts, self.n_categories)) - state["centre"], 0.0) / self._length(state)
        g = shortened(g, 1.0)
        i, j = np.triu_indices(self.n_categories)
        return {"second": g[:, i] * g[:, j] * np.where(i == j, 1.0, np.sqrt(2))}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        i, j = np.triu_indices(self.n_categories)
        square = np.zeros((self.n_categories, self.n_categories))
        square[i, j] = total["second"] * self._length(state) ** 2 / np.maximum(total["clients"], 1.0)
        square[i, j] /= np.where(i == j, 1.0, np.sqrt(2))
        return {"centre": state["centre"], "second": square + np.triu(square, 1).T}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        # The inner product of g g' and f f' is (g . f)^2, not negative: two of norm one are at most sqrt(2) apart.
        entries = self.n_categories * (self.n_categories + 1) / 2
        return float(np.sqrt(2) if norm == 2 else np.sqrt(2 * entries))

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_counts(clients, self.column, self.count, self.n_categories)

    @classmethod
    def examples(cls) -> Sequence[tuple[DifferenceMoments, Federation]]:
        return [(cls(4), example())]


class ScoreAscent(Computation):
    """Scores of many models, whitened by the models' own expectation; a step of Fisher scoring per round.

    The score of component k is s_j = w_k (a_j A_j - m_j B), the derivative of the client's log-likelihood by log a_j,
    with A and B of eq. (13) and (14). The server draws clients from component k. It thus knows the covariance I_k of
    these scores without any data, and broadcasts (tau_k I_k + damping)^-1/2. Whitened scores of all D numbers, divided
    by sqrt(D), have a mean square of at most one if the model holds: a clip near one suits any data. The sum,
    multiplied by the same matrix, is the step of log alpha.

    Parameters
    ----------
    models
        The number of components of each model.
    reach
        Largest counts in the lookup tables: [C + 1].
    sizes
        The bins of the size laws; None ignores sizes.
    rounds
        Number of rounds: steps shrink from the middle on, which averages the noise.
    noise
        Standard deviation of the noise on a mean of whitened scores; damping is proportional to its square.
    longest
        Scores of a client are scaled down to this many times their typical norm.
    """

    name = "dm-score-ascent"

    block_clients = 256

    def __init__(
        self,
        models: tuple[int, ...],
        reach: Array,
        *,
        sizes: Kind | None = "bins",
        rounds: int = 5,
        noise: float = 0.0,
        longest: float = 3.0,
        column: str = "y",
        count: str | None = None,
    ) -> None:
        self.models = models
        self.reach = reach
        self.sizes = sizes
        self.rounds = rounds
        self.noise = noise
        self.longest = longest
        self.column = column
        self.count = count
        self._ends = np.cumsum((0, *models))
        self._edges = None if sizes is None else size_edges(sizes, int(reach[-1]))
        self._all_sizes = size_edges(sizes or "bins", int(reach[-1]))
        self._unit = SHARES / np.sqrt(len(models))  # maximum norm of the responsibilities of all models

    @property
    def size_edges(self) -> Array | None:
        """The edges of the size bins."""
        return self._edges

    def start(self, seed: int) -> Arrays:
        """Random means; a fit starts from `Outline` and `DifferenceMoments` instead."""
        draws = Key(seed, purpose="mixture").generator()
        mean = draws.dirichlet(np.full(len(self.reach) - 1, 5.0), int(self._ends[-1]))
        return self.begin(mean, np.full(len(mean), 0.2), background(self._all_sizes))

    def begin(self, mean: Array, dispersion: Array, law: Array, *, weights: Array | None = None) -> Arrays:
        """The initial state for these components; `law` [bins] is the size law of all clients."""
        equal = np.repeat(1 / np.array(self.models), self.models)
        state = {
            "weights": equal if weights is None else weights,
            "mean": bounded(mean),
            "dispersion": np.clip(dispersion, TIGHTEST, WIDEST),
            "sizes": np.tile(law if self._edges is not None else np.zeros(0), (len(mean), 1)),
            "law": law,
            "rounds": np.zeros((), dtype=np.int64),
        }
        return {**state, "whitener": self._whitener(state)}

    def _whitener(self, state: Arrays) -> Array:
        """(tau_k I_k + damping)^-1/2 of each component: [G, C, C], from clients drawn from the model."""
        rng = Key(0, int(state["rounds"]), "clients of the model").generator()
        law = SizeLaws(self._all_sizes, state["sizes"] if self._edges is not None else state["law"][None])
        damping = (2 * self.noise) ** 2 + 1e-6  # noise moves no log alpha by more than about a half
        factors = []
        for k, (weight, mean, r) in enumerate(zip(state["weights"], state["mean"], state["dispersion"], strict=True)):
            n = np.minimum(law.sample(np.full(DRAWN, k if self._edges is not None else 0), rng), 2**20)
            scores = drawn_scores(mean, r, n, rng)
            values, vectors = np.linalg.eigh(weight * (scores.T @ scores) / len(n))
            factors.append((vectors / np.sqrt(np.maximum(values, 0.0) + damping)) @ vectors.T)
        return np.array(factors)

    def prepare(self, state: Arrays) -> Arrays:
        return with_tables(state, self.reach, self._edges, (0, 1))

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        counts = counts_of(clients, self.column, self.count, len(self.reach) - 1)
        shares = shares_and_likelihood(state, counts, self._ends, self.reach, self._edges)[0]
        g = int(self._ends[-1])
        first, total = looked_up(state, counts, shares, np.arange(len(clients)), len(clients), self.reach, 1)
        score = first.transpose(0, 2, 1) - state["mean"] * total[:, :, None]  # [clients, G, C]
        score = np.einsum("gij,ngj->ngi", state["whitener"], score).reshape(len(clients), -1)
        sent: Arrays = {
            "score": shortened(score / np.sqrt(score.shape[1]), self.longest),
            "shares": shares[:, :g] * self._unit,
        }
        if self._edges is not None:
            sizes = np.zeros((len(clients), len(self._edges) - 1, g))
            sizes[np.arange(len(clients)), bin_of(counts.total, self._edges)] = sent["shares"]
            sent["sizes"] = sizes
        return sent, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = max(float(total["clients"]), 1.0)
        t = int(state["rounds"])
        late = t - self.rounds // 2
        rate = 1.0 if late < 1 else 1.0 / (late + 1)
        score = total["score"].reshape(state["mean"].shape) * np.sqrt(state["mean"].size) / n
        change = np.einsum("gij,gj->gi", state["whitener"], score)
        scaled = (state["mean"] * change).sum(axis=1, keepdims=True)  # limited apart: near the multinomial limit it is
        change = np.clip(change - scaled, -1.5, 1.5) + np.clip(scaled, -1.5, 1.5)  # vague and would drown the means
        grown = state["mean"] * np.exp(rate * change)
        scale = grown.sum(axis=1)
        shares = np.maximum(total["shares"] / self._unit / n, 1e-3)
        shares /= np.repeat(np.add.reduceat(shares, self._ends[:-1]), self.models)
        sizes = state["sizes"]
        if self._edges is not None:
            visible = state["law"] > 1.01 * FLOOR * background(self._edges)  # only noise elsewhere
            fresh_law = laws(np.where(visible, total["sizes"].T / self._unit / n, 0.0), self._edges)
            sizes = (1 - rate) * sizes + rate * fresh_law
        new = {
            "weights": (1 - rate) * state["weights"] + rate * shares,
            "mean": bounded(grown / scale[:, None]),
            "dispersion": np.clip(state["dispersion"] / scale, TIGHTEST, WIDEST),
            "sizes": sizes,
            "law": state["law"],
            "rounds": state["rounds"] + 1,
        }
        return {**new, "whitener": self._whitener(new)}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """How far one more row can move the contribution of a client.

        A row may change the client's responsibilities from one component to another, and with them everything. All that
        holds is that scores have norm at most `longest`, and two differ by at most twice that. Also, responsibilities
        sum to one, and two differ by at most sqrt(2) (in L1: 2), in any bin. A row with a count (ready counts, or a
        count column) can do all of this even with one component. From no row of its category to a thousand the score
        moves by a_j (psi(a_j + 1000) - psi(a_j)), which no number of rows bounds.

        With one component and one category per row, responsibilities do not change, and a row of category j moves the
        score by a e_j - b m with a and b between 0 and 1. The reason: a_j A_j grows by a_j / (a_j + c_j) and a_0 B by
        a_0 / (a_0 + n), both between 0 and 1 for positive alpha. Its whitened norm is convex in (a, b), and largest in
        a corner of the square. Scaling down moves no two points further apart.
        """
        dimension = state["mean"].size
        score = 2 * self.longest
        one = max(self.models) == 1 and not stand_for_many(clients, self.column, self.count) and sound(state)
        if one:
            score = min(score, self._corner(state) / np.sqrt(dimension))
        moved = (0 if one else 1) + (0 if self._edges is None else 1)
        if norm == 2:
            return float(np.sqrt(score**2 + moved * 2 * SHARES**2))
        return float(score * np.sqrt(dimension) + moved * 2 * SHARES * np.sqrt(len(self.models)))

    def _corner(self, state: Arrays) -> float:
        """The largest move of whitened scores of all one-component models: a row has the same category in all."""
        own = state["whitener"]  # [G, C, C], column j is W e_j
        middle = np.einsum("gij,gj->gi", own, state["mean"])[:, :, None]
        corners = np.stack((own, np.broadcast_to(middle, own.shape), own - middle))
        return float(np.sqrt((corners**2).sum(axis=2).max(axis=0).sum(axis=0).max()))

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_counts(clients, self.column, self.count, len(self.reach) - 1)

    @classmethod
    def examples(cls) -> Sequence[tuple[ScoreAscent, Federation]]:
        reach = np.array([128, 64, 32, 32, 320])
        return [
            (cls((2, 3), reach), example()),
            (cls((1,), reach, sizes=None), example()),
            (cls((1, 1), reach, count="y"), example()),
        ]


def drawn_scores(mean: Array, dispersion: float, n: Array, rng: np.random.Generator) -> Array:
    """Scores by log alpha of clients of these sizes, drawn from one component: [clients, C]."""
    alpha = mean / dispersion
    p = rng.standard_gamma(alpha, (len(n), len(alpha))) + 1e-300
    counts = rng.multinomial(n, p / p.sum(axis=1, keepdims=True))
    total = (psi(n + alpha.sum()) - psi(alpha.sum())) * alpha.sum()
    return np.asarray(alpha * (psi(counts + alpha) - psi(alpha)) - mean * total[:, None])


def starts(
    models: tuple[int, ...], centre: Array, second: Array | None, inverse: float, seed: int
) -> tuple[Array, Array]:
    """Means [G, C] and dispersions [G] of components placed around the centre, where clients differ most.

    The components of a model are the corners of a regular simplex, randomly rotated, in its K - 1 main directions. The
    square root of a share has about a quarter of the variance 1 / n + 1 / alpha_0, which gives the scale; `inverse` is
    the mean of 1 / (1 + n).
    """
    spread = max(1 - float((centre**2).sum()), 1e-4)
    values, vectors = np.linalg.eigh(np.zeros((len(centre), len(centre))) if second is None else second)
    values, vectors = np.maximum(values[::-1] - inverse / 4, 1e-4), vectors[:, ::-1]
    components: list[tuple[Array, Array]] = []
    for number, k in enumerate(models):
        q = min(k - 1, len(centre))
        simplex = np.linalg.svd(np.eye(k) - 1 / k)[0][:, :q] * np.sqrt(k)  # corners of unit covariance: [K, q]
        turn = np.linalg.qr(Key(seed, number, "mixture corners").generator().standard_normal((q, q)))[0]
        corners = simplex @ turn * np.sqrt(values[:q])
        mean = bounded(np.maximum(centre + corners @ vectors[:, :q].T, 0.0) ** 2)
        left = max(spread - float((corners**2).sum()) / k, 0.1 * spread)
        used = np.maximum((mean > 2 * LOWEST).sum(axis=1) - 1, 1)
        components.append((mean, np.clip(4 * left / used - inverse, 1e-3, 1.0)))
    return np.concatenate([mean for mean, _ in components]), np.concatenate([r for _, r in components])


def shortened(rows: Array, longest: float) -> Array:
    """Scale rows [clients, ...] to at most this L2 norm."""
    length = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    return np.asarray(rows * (longest / np.maximum(length, longest)))


def bounded(mean: Array) -> Array:
    """Means [G, C] that sum to one, none below `LOWEST` (up to rounding)."""
    mean = np.maximum(mean, LOWEST)
    return np.asarray(mean / mean.sum(axis=1, keepdims=True))


def laws(noisy: Array, edges: Array) -> Array:
    """Size laws [K, bins] from noisy numbers: the nearest nonnegative ones, above the floor."""
    mass = np.maximum(noisy.sum(axis=1, keepdims=True), 1e-3)
    falling = -np.sort(-noisy, axis=1)
    level = (np.cumsum(falling, axis=1) - mass) / np.arange(1, noisy.shape[1] + 1)
    last = np.maximum((falling > level).sum(axis=1) - 1, 0)
    nearest = np.maximum(noisy - np.take_along_axis(level, last[:, None], axis=1), 0.0)
    return most_likely(nearest, FLOOR * background(edges))
