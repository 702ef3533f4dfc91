"""The rounds before EM: a survey of the clients, and Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.mixtures.dirichlet_multinomial.kernels import Counts, counts_of, valid_counts
from fedscape.mixtures.dirichlet_multinomial.likelihood import LEAST
from fedscape.mixtures.dirichlet_multinomial.solvers import floored
from fedscape.types import Array, Arrays, Kept

#: Count levels that clients compare with: 1, 2, 3, 4, 6, 8, 12, ...
LEVELS = np.unique(np.concatenate((2 ** np.arange(31), 3 * 2 ** np.arange(29)))).astype(np.int64)
SIZE_WEIGHT = 0.3  # of log(1 + n) beside the square roots of a client's shares, which have norm one


class Survey(Computation):
    """A survey of all clients for the start: how large counts are, and how clients differ.

    A client is the point h = (sqrt(c_j / n))_j with 0.3 log(1 + n) appended. Clients send h, its square, h (h . u_g)
    for random directions u_g, and which levels their counts and totals exceed. The server thus gets the mean of h and
    its covariance times u_g: the directions along which clients differ most, without the covariance itself.
    """

    name = "dm-survey"

    block_clients = 128  # a client sends C levels of counts and G x C numbers

    def __init__(
        self, models: tuple[int, ...], n_categories: int, *, column: str = "y", count: str | None = None
    ) -> None:
        self.models = models
        self.n_categories = n_categories
        self.column = column
        self.count = count

    def start(self, seed: int) -> Arrays:
        directions = Key(seed, purpose="mixture starts").generator()
        return {"directions": directions.standard_normal((sum(self.models), self.n_categories + 1))}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        counts = counts_of(clients, self.column, self.count, self.n_categories)
        h = position(counts, self.n_categories)  # [clients, C + 1]
        filled = counts.total > 0
        return {
            "filled": filled.astype(np.int64),
            "first": h,
            "square": (h**2).sum(axis=1),
            "sketch": (h @ state["directions"].T)[:, :, None] * h[:, None, :],
            "mean": np.where(filled[:, None], shares_of(counts, self.n_categories), 0.0),
            "beyond": beyond(counts, self.n_categories),
        }, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = max(float(total["filled"]), 1.0)
        centre = total["first"] / n
        spread = max(float(total["square"]) / n - float(centre @ centre), 0.0)
        along = total["sketch"] / n - (state["directions"] @ centre)[:, None] * centre  # covariance times direction
        length = np.sqrt((along**2).sum(axis=1).mean())
        anchors = centre + along * (np.sqrt(spread) / length if length > 0 else 0.0)
        reach = np.append(LEVELS, 2**31 - 1)[(total["beyond"] > 0).sum(axis=1)]  # the first level that nobody exceeds
        mean = floored(np.maximum(total["mean"], 0.0)[:, None] / max(float(total["mean"].sum()), 1e-300))[:, 0]
        return {"directions": state["directions"], "anchors": anchors, "reach": reach, "mean": mean}

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_counts(clients, self.column, self.count, self.n_categories)

    @classmethod
    def examples(cls) -> Sequence[tuple[Survey, Federation]]:
        return [(cls((2,), 4), example())]


class StartingPoints(Computation):
    """Algorithm 1: each client joins one component of each model; components get the moments of their members.

    Clients join the component of the nearest anchor, or (`random=True`, as in the paper) a uniformly random one. They
    send it c / n, the sum of squares of c / n, and 1 / n: the moments are pooled over all categories.
    """

    name = "dm-start"

    block_clients = 128  # a client sends G x C numbers

    def __init__(
        self,
        models: tuple[int, ...],
        n_categories: int,
        *,
        random: bool = False,
        column: str = "y",
        count: str | None = None,
    ) -> None:
        self.models = models
        self.n_categories = n_categories
        self.random = random
        self.column = column
        self.count = count

    def start(self, seed: int) -> Arrays:
        draws = Key(seed, purpose="mixture anchors").generator()
        return {"anchors": np.sqrt(draws.dirichlet(np.ones(self.n_categories + 1), sum(self.models)))}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        counts = counts_of(clients, self.column, self.count, self.n_categories)
        joined = self._random(clients, key) if self.random else self._nearest(state["anchors"], counts)
        joined = joined * (counts.total > 0)[:, None]  # [clients, G]
        p = shares_of(counts, self.n_categories)
        return {
            "members": joined,
            "first": joined[:, :, None] * p[:, None, :],
            "second": joined * (p**2).sum(axis=1)[:, None],
            "inverse": joined / np.maximum(counts.total, 1)[:, None],
        }, {}

    def _random(self, clients: Federation, key: Key) -> Array:
        drawn = [
            np.arange(k) == np.floor(k * key.to(f"start {r}").uniform(clients))[:, None]
            for r, k in enumerate(self.models)
        ]
        return np.concatenate(drawn, axis=1).astype(np.int64)

    def _nearest(self, anchors: Array, counts: Counts) -> Array:
        near = position(counts, self.n_categories) @ anchors.T - (anchors**2).sum(axis=1) / 2  # [clients, G]
        ends = np.cumsum((0, *self.models))
        chosen = [near[:, a:b].argmax(axis=1)[:, None] == np.arange(b - a) for a, b in pairwise(ends)]
        return np.concatenate(chosen, axis=1).astype(np.int64)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {
            "anchors": state["anchors"],
            **{name: total[name] for name in ("members", "first", "second", "inverse")},
        }

    def coded_columns(self) -> Sequence[str]:
        return (self.column,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_counts(clients, self.column, self.count, self.n_categories)

    @classmethod
    def examples(cls) -> Sequence[tuple[StartingPoints, Federation]]:
        return [(cls((2, 3), 4), example()), (cls((2,), 4, random=True), example())]


def matched(state: Arrays, common: Array) -> tuple[Array, Array]:
    """Means [G, C] and dispersions [G] by moment matching with each component's members.

    alpha_0 is eq. (9) with numerator and denominator summed over the categories: S - sum_j P_j^2 is the variance and 1
    - S its bound, with S the mean of sum_j (c_j / n)^2 without its multinomial part: S = (S_seen - h) / (1 - h), h the
    mean of 1 / n. Means shrink towards the mean of all clients with the weight of one client. A category that a
    component never saw thus has a small share, and a component without members the common mean. If the variance is zero
    or less alpha_0 is 10,000; if all members have one row, which leaves no trace of it, alpha_0 is C.
    """
    m, h = np.maximum(state["members"], 0.0), state["inverse"] / np.maximum(state["members"], 1.0)
    mean = (np.maximum(state["first"], 0.0) + common) / (m + 1)[:, None]
    mean = floored(mean.T / np.maximum(mean.sum(axis=1), 1e-300)).T
    second_moment = state["second"] / np.maximum(m, 1.0)
    about = (state["first"] / np.maximum(m, 1.0)[:, None]) ** 2
    variance = (second_moment - about.sum(axis=1)) * m / np.maximum(m - 1, 1.0)
    spread = np.maximum((1 - second_moment) / np.maximum(1 - h, 1e-12), 0.0)  # 1 - S
    between = variance - h * spread
    with np.errstate(divide="ignore", invalid="ignore"):
        dispersion = np.where(between > 0, between / spread, LEAST)
    dispersion = np.clip(np.nan_to_num(dispersion, nan=1.0, posinf=1e3), 1e-4, 1e3)
    unknown = (m < 2) | (h > 1 - 1e-9)
    return mean, np.where(unknown, 1 / mean.shape[1], dispersion)


def with_broad(mean: Array, dispersion: Array, state: Arrays, common: Array, models: tuple[int, ...]) -> None:
    """In every second start, broaden the component with the fewest members, in place.

    It gets the mean of all clients and four times their dispersion, and attracts clients that fit nowhere else. A
    rare and diverse kind of client would otherwise be lost in the tails of the others.
    """
    pooled = {name: state[name].sum(axis=0, keepdims=True) for name in ("members", "first", "second", "inverse")}
    wide = 4 * matched(pooled, common)[1][0]
    ends = np.cumsum((0, *models))
    for number, (a, b) in enumerate(pairwise(ends)):
        if number % 2 and b - a > 1:
            fewest = a + int(np.argmin(state["members"][a:b]))
            mean[fewest], dispersion[fewest] = common, wide


def shares_of(counts: Counts, n_categories: int) -> Array:
    """c / n of each client, zero if n is zero: [clients, C]."""
    return np.asarray(counts.dense(n_categories) / np.maximum(counts.total, 1)[:, None])


def position(counts: Counts, n_categories: int) -> Array:
    """The position of a client: square roots of its shares (which stabilises the variance), and its size."""
    size = SIZE_WEIGHT * np.log1p(counts.total)
    return np.concatenate((np.sqrt(shares_of(counts, n_categories)), size[:, None]), axis=1)


def beyond(counts: Counts, n_categories: int) -> Array:
    """Whether each client's count of each category, and its total, exceeds each level: [clients, C + 1, levels]."""
    numbers = np.concatenate((counts.dense(n_categories), counts.total[:, None]), axis=1)
    return (numbers[:, :, None] > LEVELS).astype(np.uint8)


def example() -> Federation:
    """A few clients of two kinds, one without rows, one with a count in the hundreds."""
    rng = np.random.default_rng(3)
    sizes = np.concatenate(([0, 300, 1], rng.integers(0, 15, 33)))
    kinds = [rng.dirichlet((4.0, 1.0, 0.5, 0.5) if i % 2 else (0.3, 0.3, 2.0, 2.0)) for i in range(len(sizes))]
    y = np.concatenate([rng.choice(4, n, p=p) for n, p in zip(sizes, kinds, strict=True)])
    return Federation({"y": y}, offsets_of(sizes), ids=[f"c{i:02d}" for i in range(len(sizes))])
