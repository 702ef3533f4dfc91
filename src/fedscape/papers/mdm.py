"""Algorithms 1 and 2 of the MDM paper as printed (Scott and Cahill): eq. (6), eq. (9), cohorts without averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedscape.core.computation import Computation
from fedscape.core.estimator import Fit
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.kernels import counts_of
from fedscape.mixtures.dirichlet_multinomial.model import MixtureOfDirichletMultinomials
from fedscape.mixtures.dirichlet_multinomial.solvers import floored
from fedscape.mixtures.dirichlet_multinomial.source import Source
from fedscape.mixtures.dirichlet_multinomial.start import StartingPoints, example, matched, shares_of
from fedscape.mixtures.size_laws import FLOOR, background, bin_of, most_likely
from fedscape.types import Array, Arrays, Kept

_SENT = ("square", "sizes")


class PrintedStart(StartingPoints):
    """Algorithm 1 with all its messages: beside the moments, Q of the first category and the histograms E of sizes.

    Parameters
    ----------
    models, n_categories, column, count
        As for StartingPoints; components are assigned at random.
    edges
        The bin edges of the sizes, [bins + 1].
    """

    name = "dm-start-printed"

    def __init__(
        self,
        models: tuple[int, ...],
        n_categories: int,
        edges: Array,
        *,
        column: str = "y",
        count: str | None = None,
    ) -> None:
        super().__init__(models, n_categories, random=True, column=column, count=count)
        self.edges = edges

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sent, kept = super().step(state, clients, key)
        counts = counts_of(clients, self.column, self.count, self.n_categories)
        first = shares_of(counts, self.n_categories)[:, :1]
        at = bin_of(counts.total, self.edges)[:, None] == np.arange(len(self.edges) - 1)
        sizes = sent["members"][:, :, None] * at[:, None, :]
        return {**sent, "square": sent["members"] * first**2, "sizes": sizes}, kept

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {**super().update(state, total, key), **{name: total[name] for name in _SENT}}

    @classmethod
    def examples(cls) -> Sequence[tuple[StartingPoints, Federation]]:
        return [(cls((2,), 4, np.array([0, 1, 4, 16, 1024])), example())]


def moments_of_the_first_category(state: Arrays) -> tuple[Array, Array]:
    """Means [G, C] and dispersions [G] by eq. (9), from the first category: alpha_0 = (P_1 - Q_1) / (Q_1 - P_1^2).

    Where that is not a positive number (no members, or members that do not differ in that category), the paper has no
    case; the dispersion is 1 there.

    >>> state = {"members": np.array([4.0]), "first": np.array([[2.0, 2.0]]), "square": np.array([1.25])}
    >>> mean, dispersion = moments_of_the_first_category(state)  # P = 1/2, Q = 5/16: alpha_0 = 3
    >>> mean.tolist(), round(float(1 / dispersion[0]), 6)
    ([[0.5, 0.5]], 3.0)
    """
    m = np.maximum(state["members"], 1.0)
    p, q = state["first"] / m[:, None], state["square"] / m
    mean = np.where(state["first"].sum(axis=1, keepdims=True) > 0, p, 1 / p.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        dispersion = (q - p[:, 0] ** 2) / (p[:, 0] - q)
    sound = np.isfinite(dispersion) & (dispersion > 0)
    return floored(mean.T).T, np.where(sound, np.clip(dispersion, 1e-4, 1e3), 1.0)


def nmse(estimate: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Eq. (50), which the paper calls a normalised mean squared error: the root of the sum of squared relative errors.

    Despite its name it is not a mean, and grows with the number of entries. Both need the same order of components.

    >>> round(nmse([1.1, 2.0], [1.0, 2.0]), 6)
    0.1
    """
    a, b = np.asarray(estimate, dtype=float), np.asarray(truth, dtype=float)
    if a.shape != b.shape:
        raise DataError(f"estimate and truth must have one shape, not {list(a.shape)} and {list(b.shape)}")
    if not b.all():
        raise DataError("truth must have no zeros: errors are relative to it")
    return float(np.sqrt((((a - b) / b) ** 2).sum()))


class PrintedMixture(MixtureOfDirichletMultinomials):
    """`MixtureOfDirichletMultinomials` fitted by Algorithms 1 and 2 as printed, with each correction optional.

    One random start; the size distributions of eq. (6); eq. (9) on the first category; eq. (49) in each of exactly
    `rounds` rounds; on cohorts the sums of one round only. Two cases that the paper does not cover stay as in the
    toolkit: sizes and categories that nobody has keep a tiny share. Without it one round ends in NaN.

    Parameters
    ----------
    n_components
        K.
    rounds
        T.
    moments
        "printed": eq. (9). "pooled": summed over categories, without the multinomial noise, as in the toolkit.
    first_sizes
        "joined": eq. (6). "common": one size distribution for all components, as the toolkit starts.
    average
        None: cohorts as printed. A number: averages over rounds from the sixth on, as in the toolkit.
    sizes
        "histogram" is the paper's; None leaves out the size distribution.
    column, count, n_categories, seed
        As for MixtureOfDirichletMultinomials.

    >>> counts = np.array([[9, 1], [8, 2], [1, 9], [2, 8], [9, 1], [1, 9]])
    >>> PrintedMixture(2, rounds=5).fit(counts).n_rounds_
    5
    """

    name = "mixture-of-dirichlet-multinomials-printed"

    def __init__(
        self,
        n_components: int = 1,
        *,
        rounds: int = 100,
        moments: Literal["printed", "pooled"] = "printed",
        first_sizes: Literal["joined", "common"] = "joined",
        average: float | None = None,
        sizes: Literal["bins", "histogram"] | None = "histogram",
        column: str = "y",
        count: str | None = None,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            n_components, solver="fixed_point", n_init=1, rounds=rounds, tol=-np.inf, init="random", sizes=sizes,
            average=average, column=column, count=count, n_categories=n_categories, seed=seed,
        )  # fmt: skip
        self.moments = moments
        self.first_sizes = first_sizes

    def _check(self) -> None:
        super()._check()
        if self.moments not in ("printed", "pooled") or self.first_sizes not in ("joined", "common"):
            raise DataError(
                "moments must be 'printed' or 'pooled', first_sizes 'joined' or 'common': "
                f"{self.moments!r}, {self.first_sizes!r}"
            )

    def _first_state(self, work: TailCountEM, starts: Arrays, source: Source, how: Fit) -> Arrays:
        edges = work.size_edges
        bins = np.array([0, 2**31]) if edges is None else edges
        start = PrintedStart(work.models, source.n_categories, bins, column=source.column, count=source.times)
        begin = {"anchors": starts["anchors"]}
        joined = self._run(start, source.engine, how.phase(".start"), n_rounds=1, seed=self.seed, state=begin)
        pooled = self.moments == "pooled"
        mean, dispersion = matched(joined, starts["mean"]) if pooled else moments_of_the_first_category(joined)
        if edges is None or self.first_sizes == "common":
            return work.begin(mean, dispersion)
        return work.begin(mean, dispersion, sizes=most_likely(joined["sizes"] * 1.0, FLOOR * background(edges)))

    @classmethod
    def examples(cls) -> Sequence[tuple[Computation, Federation]]:
        return PrintedStart.examples()
