"""Several chains of labels in parallel: convergence, and intervals that include the variation of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedscape.core.arrays import Ragged
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.mixtures.latent_class.central import Chain
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.rounds import ClassAssignment
from fedscape.types import Array, Arrays, Kept

T = TypeVar("T")
LEVEL = 0.95  # of the intervals


class Chains(Computation):
    """Several chains in the same rounds, each with its own draws and labels.

    State: that of chain i under `i.`, and the trace of each round under `server.`: `mean` and `variance` of the
    coefficients in the columns' own units [rounds, chains, K, F], and `evidence` [rounds, chains].

    Parameters
    ----------
    work
        The rounds.
    n_chains
        Number of chains.
    n_rounds
        Number of traced rounds.
    """

    name = "lcr-chains"

    def __init__(self, work: ClassAssignment, n_chains: int, n_rounds: int) -> None:
        self.work = work
        self.n_chains = n_chains
        self.n_rounds = n_rounds

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # as many numbers in a block as one chain has
        """Fewer for more chains."""
        return max(1, self.work.block_clients // self.n_chains)

    def start(self, seed: int) -> Arrays:
        return self.begin(self.work.start(seed))

    def begin(self, state: Arrays) -> Arrays:
        """Start all chains from this state."""
        shape = (self.n_rounds, self.n_chains, self.work.n_components, self.work.n_features)
        trace = {"mean": np.zeros(shape), "variance": np.zeros(shape), "evidence": np.zeros(shape[:2])}
        return {**joined([state] * self.n_chains), **{f"server.{name}": v for name, v in trace.items()}}

    def prepare(self, state: Arrays) -> Arrays:
        return joined([self.work.prepare(one) for one in self.each(state)])

    def each(self, state: Arrays) -> list[Arrays]:
        """The chains' states."""
        return [part(state, i) for i in range(self.n_chains)]

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sent, kept = [], []
        for i, mine in enumerate(self.each(state)):
            one, left = self.work.step(mine, clients.with_kept(part(clients.kept, i)), key.to(f"chain {i}"))
            sent.append(one)
            kept.append(left)
        return joined(sent), joined(kept)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        reported = {"clients": total["clients"]}
        new = [self.work.update(mine, {**part(total, i), **reported}, key) for i, mine in enumerate(self.each(state))]
        trace = {name: np.array(values) for name, values in state.items() if name.startswith("server.")}
        draw = int(new[0]["rounds"]) - 1
        if draw < self.n_rounds:
            draws = traced(self.work, new)
            for name, values in draws._asdict().items():
                trace[f"server.{name}"][draw] = values
        return {**joined(new), **trace}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.work.valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[Chains, Federation]]:
        (first, fed), *_, (last, _) = ClassAssignment.examples()
        return [(cls(first, 2, 3), fed), (cls(last, 3, 2), fed)]


class Trace(NamedTuple):
    """The trace of chains, [chains, ...] of one round or [rounds, chains, ...] of several."""

    mean: Array  # [..., K, F]: coefficients in the columns' own units, the intercept last
    variance: Array  # [..., K, F]
    evidence: Array  # [...]: log p(targets | labels)


class Learned(NamedTuple):
    """The end of a chain."""

    state: Arrays
    labels: Ragged | None


class Agreement(NamedTuple):
    """Convergence of the chains, and their joint estimates."""

    best: int  # the chain with the most likely targets; with a link, the one nearest the others
    r_hat: Array  # [K, F]
    intervals: Array  # [K, F, 2]


def sample(
    work: ClassAssignment, state: Arrays, federation: Federation, *, exact: bool, seed: int, chains: int, n: int
) -> tuple[list[Learned], Trace]:
    """Run n sweeps of central chains; return the end of each, and the trace of all."""
    ends, traces = [], []
    for number in range(chains):
        chain = Chain(work, state, federation, exact=exact, seed=seed, number=number)
        states = list(chain.sweeps(n))
        traces.append([traced(work, [one]) for one in states] if chains > 1 else [traced(work, states[-1:])])
        ends.append(Learned(states[-1], Ragged(chain.labels.astype(np.int32), chain.groups.offsets)))
    columns = (np.array([[row[f][0] for row in rows] for rows in traces]) for f in range(3))  # [chains, sweeps, ...]
    return ends, Trace(*(values.swapaxes(0, 1) for values in columns))


def joined(parts: Sequence[Mapping[str, T]]) -> dict[str, T]:
    """Merge the arrays of several chains under prefixed names."""
    return {f"{i}.{name}": values for i, one in enumerate(parts) for name, values in one.items()}


def part(arrays: Mapping[str, T], i: int) -> dict[str, T]:
    """The arrays of one chain."""
    mark = f"{i}."
    return {name[len(mark) :]: values for name, values in arrays.items() if name.startswith(mark)}


def units(work: ClassAssignment, state: Arrays) -> tuple[Array, Array]:
    """Convert coefficients of standardised features to the columns' own units: w -> A w + b, the intercept last."""
    scale, centre = state["scale"], state["centre"]
    turn = np.eye(work.n_features)  # hidden units, if there are any, have no other unit
    each = np.arange(len(scale))
    turn[each, each] = 1 / scale
    shift = np.zeros(len(turn))
    if work.table.intercept:
        turn[-1, : len(scale)] = -centre[:-1] / scale
        shift[-1] = centre[-1]
    return turn, shift


def traced(work: ClassAssignment, states: Sequence[Arrays]) -> Trace:
    """The trace of one round of several chains."""
    rows = []
    for state in states:
        law = classes_of(opened(state["sums"], work.n_features), float(state["noise"]), state["spread"])
        turn, shift = units(work, state)
        variance = np.einsum("ij,kjl,il->ki", turn, law.covariance, turn)
        rows.append((law.mean @ turn.T + shift, variance, log_evidence(work, state)))
    return Trace(*(np.array(column) for column in zip(*rows, strict=True)))


def log_evidence(work: ClassAssignment, state: Arrays) -> float:
    """log p(targets | labels), with coefficients integrated out; 0 with a link, where sums do not determine it."""
    if work.binary:
        return 0.0
    sums, noise, spread = opened(state["sums"], work.n_features), float(state["noise"]), state["spread"]
    law = classes_of(sums, noise, spread)
    fitted = np.einsum("kf,kf->k", law.mean, sums.first) / noise
    inside = np.linalg.slogdet(law.precision)[1] + np.log(spread).sum()
    each = -sums.events * np.log(2 * np.pi * noise) - inside - (sums.square / noise - fitted)
    return float(0.5 * each.sum())


def agreement(work: ClassAssignment, state: Arrays, trace: Trace, seed: int) -> Agreement:
    """Match the classes of all chains, then compare coefficient draws after the first half of the rounds."""
    late = Trace(*(values[len(values) // 2 :] for values in trace))
    turn, shift = units(work, state)
    back = np.linalg.solve(turn, (late.mean - shift)[..., None])[..., 0]  # standardised again, for comparison
    best = nearest_others(back[-1]) if work.binary else int(np.argmax(late.evidence.mean(axis=0)))
    noise = Key(seed, purpose="hlcr draws").generator().standard_normal(late.mean.shape)
    draws = late.mean + np.sqrt(late.variance) * noise
    for t, c in np.ndindex(draws.shape[:2]):
        draws[t, c] = draws[t, c][matched(back[-1, best], back[t, c])[0]]
    ends = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=(0, 1))
    return Agreement(best, split_r_hat(draws.swapaxes(0, 1)), np.moveaxis(ends, 0, -1))


def matched(one: Array, other: Array) -> tuple[Array, float]:
    """Match the classes of `other` [K, F] to those of `one`, and return the remaining squared distance."""
    far = ((one[:, None] - other[None]) ** 2).sum(axis=-1)  # [K of one, K of the other]
    rows, columns = linear_sum_assignment(far)
    return columns, float(far[rows, columns].sum())


def nearest_others(chains: Array) -> int:
    """The chain with coefficients [chains, K, F] nearest to all others, classes matched.

    >>> nearest_others(np.array([[[5.0], [0.0]], [[1.0], [0.0]], [[0.0], [1.5]]]))
    2
    """
    return int(np.argmin([sum(np.sqrt(matched(one, other)[1]) for other in chains) for one in chains]))


def split_r_hat(draws: Array) -> Array:
    """Gelman and Rubin's split R-hat from draws [chains, n, ...]; near 1 if chains agree."""
    half = draws.shape[1] // 2
    if half < 2:
        return np.full(draws.shape[2:], np.nan)
    halves = np.concatenate([draws[:, :half], draws[:, -half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    return np.asarray(np.sqrt((half - 1) / half + between / np.maximum(within, 1e-300)))
