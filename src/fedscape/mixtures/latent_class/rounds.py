"""The rounds of federated latent class regression: survey the columns, then draw labels and add up (Algorithm 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from fedscape.core.arrays import Ragged, offsets_of, rows_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.mixtures.latent_class.classes import FLOOR, for_agents, learned, opened, sound
from fedscape.mixtures.latent_class.kernels import add_by_class, add_log_densities, draw_labels, width
from fedscape.mixtures.latent_class.prior import learned_prior, prior_shares, tables_of
from fedscape.mixtures.latent_class.table import Groups, Table, groups_of, sums_of
from fedscape.types import Array, Arrays, Kept

NO_HIERARCHY = 1e9  # a beta beside which an agent's own labels do not count
PURE = 0.3  # of the events: the classes by which noise is learned in early rounds


class Survey(Computation):
    """Means and standard deviations of features and target, in two rounds as in `Moments`; how many events there are.

    State: `centre` and `deviation` [f + 1] (target last), `events`.
    """

    name = "lcr-survey"

    def __init__(self, table: Table) -> None:
        self.table = table

    def start(self, seed: int) -> Arrays:
        return {"centre": np.zeros(0), "deviation": np.zeros(0), "events": np.zeros(())}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        events = self.table.rows(clients)
        both = np.column_stack([self.table.x(events), self.table.y(events)])
        both = both - state["centre"] if state["centre"].size else both
        sent = {"events": events.sizes, "first": events.segment_sum(both), "second": events.segment_sum(both**2)}
        return sent, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = np.maximum(total["events"], 1.0)
        shift = total["first"] / n
        variance = np.maximum(total["second"] / n - shift**2, 0.0)
        centre = state["centre"] + shift if state["centre"].size else shift
        return {"centre": centre, "deviation": np.sqrt(variance), "events": total["events"] * 1.0}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.table.valid_rows(clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[Survey, Federation]]:
        return [(cls(Table()), example()), (cls(Table(held_out=0.3, part="train")), example())]


class Labelled(NamedTuple):
    """What a step makes of a block of agents before it draws: entities, their sums, old labels, densities."""

    groups: Groups
    sums: Array  # [entities, P + F + 2]
    old: Array  # [entities], -1 where there is no label
    log_density: Array  # [entities, K]


class ClassAssignment(Computation):
    """One round of FedHLCR: agents draw labels for all their entities, keep them, and send the sums of each class.

    Agents are sent the classes' sums, from which follow H and c (Theorem 2) and the counts N^(k) that eq. (2) needs.
    They draw z_ij by eq. (1), with all entities' densities from the block form of Theorem 1.

    Parameters
    ----------
    table
        Which columns to read.
    n_features
        F, the intercept included.
    n_components
        K.
    gamma
        The weight of a round's sums against those before (line 16). None keeps the sum of every agent's latest
        contribution: agents send by how much theirs changed.
    n_agents
        With gamma: sums of a cohort are scaled up to this number of agents; None leaves them.
    alpha, beta
        Of the labels' prior; None has the server learn them, from the expected table counts that agents then send.
    share
        With gamma: instead, sums are divided by this share of the agents, known before anyone reports.
    noise
        Standard deviation of privacy's noise in each number of the sums: what it could have made is taken for nothing.
    sigma, delta
        Standard deviations of noise and coefficients; None has the server learn them from the sums.
    warm
        For this many rounds a given sigma is only the least that the noise can be, which is learned: labels drawn with
        less noise than the classes leave as yet would freeze where they are.
    early
        Up to this round, the first apart, a noise that is learned is that of the purest classes, which hold a third
        of the events: classes in which two kinds of entities still are would have it so large that they stay together.

    An entity's own events are taken out of its class before its label is drawn where they are in there whole: without
    gamma, and with gamma = 1 after rounds in which all agents took part.

    State: `sums` [K, P + F + 3] (X'X, X'y, y'y, events, entities), `noise` (sigma^2), `spread` [F] (delta^2), `centre`
    [f + 1], `scale` [f], `alpha`, `beta`, `rounds`, `held` (1 where own events can be taken out).
    """

    name = "lcr-assign"

    block_clients = 32  # an agent sends K x (P + F + 3) numbers
    certain: ClassVar[bool] = False  # whether coefficients are taken at their mean
    uniform_first: bool = True  # whether labels of the first round are uniform, whatever beta is
    binary: ClassVar[bool] = False  # whether targets are 0 and 1, and forecasts their probabilities

    def __init__(
        self,
        table: Table,
        n_features: int,
        n_components: int,
        *,
        alpha: float | None = 1.0,
        beta: float | None = 1.0,
        sigma: float | None = None,
        delta: float | None = None,
        gamma: float | None = None,
        n_agents: int | None = None,
        share: float | None = None,
        warm: int = 0,
        early: int = 0,
        noise: float = 0.0,
    ) -> None:
        self.table = table
        self.n_features = n_features
        self.n_components = n_components
        self.alpha = alpha
        self.beta = beta
        self.sigma = sigma
        self.delta = delta
        self.gamma = gamma
        self.n_agents = n_agents
        self.share = share
        self.warm = warm
        self.early = early
        self.noise = noise

    def start(self, seed: int) -> Arrays:
        f = self.n_features - self.table.intercept
        return self.begin(np.zeros(f + 1), np.ones(f), deviation=1.0)

    def begin(self, centre: Array, scale: Array, *, deviation: float) -> Arrays:
        """The first state, where the target has this standard deviation: classes without data."""
        sigma = self.sigma if self.sigma is not None and not self.warm else deviation / 2
        delta = deviation if self.delta is None else self.delta
        return {
            "sums": np.zeros((self.n_components, width(self.n_features) + 1)),
            "noise": np.asarray(max(sigma, 1e-150) ** 2),
            "spread": np.full(self.n_features, max(delta, 1e-150) ** 2),
            "least": np.asarray(max(FLOOR * deviation**2, 1e-300)),
            "alpha": np.asarray(1.0 if self.alpha is None else float(self.alpha)),
            "beta": np.asarray(1.0 if self.beta is None else float(self.beta)),
            "centre": centre,
            "scale": scale,
            "unit": np.asarray(self.table.units(None)[1][-1] if self.table.ranges else 1.0),
            "rounds": np.zeros(()),
            "held": np.zeros(()),
        }

    def prepare(self, state: Arrays) -> Arrays:
        return for_agents(state, self.n_features)

    def label(self, state: Arrays, clients: Federation) -> Labelled:
        """Group the events, add them up, and weigh each entity against each class."""
        events = self.table.rows(clients)
        groups = groups_of(events, self.table.entity)
        sums = sums_of(self.table, events, groups, state)
        old = old_labels(clients, groups)
        return Labelled(groups, sums, old, densities(state, sums, old if state["held"] > 0 else np.full_like(old, -1)))

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        labelled = self.label(state, clients)
        groups, old = labelled.groups, labelled.old
        labels, shares = np.empty(len(old), dtype=np.int64), np.empty((len(old), self.n_components))
        uniform = key.uniform_rows(Keyed(clients.keys, groups.offsets))
        held, alpha, beta = (float(state[name]) for name in ("held", "alpha", "beta"))
        if self.uniform_first and state["rounds"] == 0:
            # as in Algorithm 2, all classes alike: agents' own laws would lump entities together
            beta = NO_HIERARCHY
        counts = state["sums"][:, -1]
        draw_labels(labelled.log_density, groups.offsets, old, counts, held, alpha, beta, uniform, labels, shares)
        moved = one_hot(labels, self.n_components)
        if self.gamma is None:
            moved -= one_hot(old, self.n_components)
        out = np.zeros((len(clients), *state["sums"].shape))
        add_by_class(self.weighed(state, clients, labelled, labels), groups.offsets, moved, out)
        sent = {"sums": out / self.in_units(state)}
        if self.learns_prior:
            sent["tables"] = tables_of(labels, groups.offsets, prior_shares(state), float(state["beta"]))
        return sent, {"labels": Ragged(labels.astype(np.int32), groups.offsets)}

    def in_units(self, state: Arrays) -> Array:
        """The units in which sums are sent: targets count in half their range, so that no event is above 1."""
        p, f, unit = width(self.n_features) - self.n_features - 2, self.n_features, float(state["unit"])
        return np.concatenate([np.ones(p), np.full(f, unit), [unit**2, 1.0, 1.0]])

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """With one class an event adds its own products, of which the ranges bound each; its entity may be new.

        With several, one event may change all labels of its agent, and all it sends. Where some events are held out,
        one more may change which of the others are.
        """
        bounded = self.table.ranges and self.table.part == "all" and not (self.binary or self.learns_prior)
        if not bounded or self.n_components > 1 or self.gamma is None:
            return None
        low, high = self.table.ends(clients, len(state["centre"]))
        furthest = np.maximum(np.abs(low - state["centre"]), np.abs(high - state["centre"]))
        x, y = furthest[:-1] / np.abs(state["scale"]), furthest[-1] / abs(float(state["unit"]))
        x = np.append(x, 1.0) if self.table.intercept else x
        products = np.outer(x, x)[np.triu_indices(len(x))]
        return float(np.linalg.norm(np.concatenate([products, x * y, [y * y, 1.0, 1.0]]), ord=norm))

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.table.valid_rows(clients)

    @property
    def learns_prior(self) -> bool:
        """Whether alpha or beta is learned."""
        return self.alpha is None or self.beta is None

    def weighed(self, state: Arrays, clients: Federation, labelled: Labelled, labels: Array) -> Array:
        """The sums of each entity's events as the class of its label takes them: [entities, P + F + 2]."""
        return labelled.sums

    def log_chances(self, mean: Array, variance: Array, yes: Array) -> Array:
        """For targets of 0 and 1: the log probability of each event's answer in each class."""
        raise TypeError(f"{type(self).__name__} is for targets that are numbers")

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        units = self.in_units(state)
        new, held = total["sums"] * units, 1.0
        everyone = self.n_agents is None or bool(total["clients"] == self.n_agents)
        scale = 1.0 if everyone or self.n_agents is None else self.n_agents / max(float(total["clients"]), 1.0)
        if self.share is not None:
            everyone, scale = False, 1 / self.share  # clipped and noised, nobody's own events are in there whole
        if self.gamma is None:
            new = state["sums"] + new
        else:
            rate = 1.0 if state["rounds"] == 0 else self.gamma
            new = (1 - rate) * state["sums"] + rate * scale * new
            held = float(rate == 1 and everyone)
        blur = scale * self.noise
        new = sound(new, self.n_features, 2 * np.sqrt(self.n_features) * blur)  # no eigenvalue of such noise is larger
        least = float(state["least"])
        if blur:  # noise can hide residuals altogether
            events = max(float(new[:, -2].sum()), 1.0)
            least = max(least, 2 * blur * float(state["unit"]) ** 2 * np.sqrt(self.n_components) / events)
        warm = bool(state["rounds"] < self.warm)
        noise, spread = learned(
            opened(new, self.n_features),
            float(state["noise"]),
            state["spread"],
            sigma=self.sigma is None or warm,
            delta=self.delta is None,
            slopes=self.n_features - self.table.intercept,
            least=least,
            steps=200 if self.n_components == 1 else 5,
            certain=self.certain,
            part=PURE if self.sigma is None and 0 < state["rounds"] < self.early else 1.0,
        )
        if self.sigma is not None:
            noise = max(noise, self.sigma**2) if warm else self.sigma**2
        changed = {"sums": new, "noise": np.asarray(noise), "spread": spread}
        if self.learns_prior:
            alpha, beta = learned_prior(total["tables"], scale, float(state["alpha"]), float(state["beta"]))
            changed["alpha"] = np.asarray(alpha) if self.alpha is None else state["alpha"]
            changed["beta"] = np.asarray(beta) if self.beta is None else state["beta"]
        return {**state, **changed, "rounds": state["rounds"] + 1, "held": np.asarray(held)}

    @classmethod
    def examples(cls) -> Sequence[tuple[ClassAssignment, Federation]]:
        fed, table = example(), Table()
        without = Table(entity=None, intercept=False)
        return [
            (cls(table, 3, 3), fed),
            (cls(table, 3, 5, gamma=1.0, n_agents=len(fed), sigma=0.5, delta=1.0), fed),
            (cls(without, 2, 2, gamma=0.5, sigma=0.4, warm=2), fed),
            (cls(Table(held_out=0.3, part="train"), 3, 1), fed),
            (cls(table, 3, 4, gamma=0.5, n_agents=len(fed), early=3), fed),
            (cls(table, 3, 3, gamma=0.5, n_agents=len(fed), alpha=None, beta=None), fed),
            (cls(Table(ranges=((-2.0, 2.0), (-5.0, 5.0))), 3, 1, gamma=0.5, share=0.5, noise=0.1), fed),
        ]


class Keyed(NamedTuple):
    """What `Key.uniform_rows` needs to give each entity its own number."""

    keys: Array
    offsets: Array


def densities(state: Arrays, sums: Array, own: Array) -> Array:
    """log p(y_ij | class) [entities, K], own events taken out of the class `own`."""
    out = np.zeros((len(sums), len(state["mean"])))
    weight = 1 / float(state["noise"])
    add_log_densities(sums, own, state["precision"], state["mean"], state["pivot"], weight, state["floor"], out)
    return out


def old_labels(clients: Federation, groups: Groups) -> Array:
    """The labels that agents kept, -1 where an agent has none or its entities are others than then."""
    n, kept = len(groups.codes), clients.kept.get("labels")
    old = np.full(n, -1, dtype=np.int64)
    if kept is None or not len(kept.flat):
        return old
    if np.array_equal(kept.offsets, groups.offsets):
        return kept.flat.astype(np.int64)
    same = np.flatnonzero(kept.lengths == np.diff(groups.offsets))
    entities = rows_of(groups.offsets, same)[0]
    old[entities] = kept.take(same).flat
    return old


def one_hot(labels: Array, n: int) -> Array:
    """[entities, n] with a one at the label; nothing for -1."""
    out = np.zeros((len(labels), n))
    out[np.arange(len(labels))[labels >= 0], labels[labels >= 0]] = 1.0
    return out


def check_parameters(n_components: int, **positive: float | None) -> None:
    """Refuse numbers that no such model has."""
    if n_components < 1:
        raise DataError(f"n_components must be at least 1, not {n_components}")
    for name, value in positive.items():
        if value is not None and not 0 < value < np.inf:
            raise DataError(f"{name} must be a positive number, not {value}")


def example() -> Federation:
    """A few agents with entities of two kinds, one agent without events, entities out of order."""
    rng = np.random.default_rng(5)
    sizes = np.concatenate(([0, 40, 1], rng.integers(2, 30, 17)))
    n = int(sizes.sum())
    entity, x = rng.integers(0, 5, n), rng.normal(0, 1, (n, 2))
    y = 1 + np.where(entity % 2 == 0, 2.0, -2.0) * x[:, 0] + rng.normal(0, 0.5, n)
    offsets = offsets_of(sizes)
    return Federation({"x": x, "y": y, "entity": entity}, offsets, ids=[f"a{i:02d}" for i in range(len(sizes))])
