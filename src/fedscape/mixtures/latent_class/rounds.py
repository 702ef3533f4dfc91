"""The rounds of federated latent class regression: survey the columns, then draw labels and sum (Algorithm 3)."""

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

NO_HIERARCHY = 1e9  # a beta so large that an agent's own labels do not count
PURE = 0.3  # of the events: the classes that determine the noise in early rounds


class Survey(Computation):
    """Means and standard deviations of features and target, in two rounds as in `Moments`, and the number of events.

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
    """A block of agents before the draw: entities, their sums, old labels, densities."""

    groups: Groups
    sums: Array  # [entities, P + F + 2]
    old: Array  # [entities], -1 without a label
    log_density: Array  # [entities, K]


class ClassAssignment(Computation):
    """One round of FedHLCR: agents draw labels for all their entities, keep them, and send the sums of each class.

    Agents receive the classes' sums, which determine H and c (Theorem 2) and the counts N^(k) of eq. (2). They draw
    z_ij by eq. (1), with all entities' densities from the block form of Theorem 1.

    Parameters
    ----------
    table
        The columns to read.
    n_features
        F, including the intercept.
    n_components
        K.
    gamma
        Weight of a round's sums against those before (line 16). None keeps the sum of every agent's latest
        contribution: agents send the change of theirs.
    n_agents
        With gamma: sums of a cohort are scaled up to this number of agents; None does not scale.
    alpha, beta
        Of the labels' prior. None lets the server learn them, from the expected table counts that agents then send.
    share
        With gamma: instead, sums are divided by this share of the agents, known in advance.
    noise
        Standard deviation of privacy's noise in each number of the sums; what noise alone could produce is ignored.
    sigma, delta
        Standard deviations of noise and coefficients; None lets the server learn them from the sums.
    warm
        For this many rounds a given sigma is only the minimum of the learned noise: labels drawn with less noise than
        the classes still have would freeze.
    early
        Up to this round, except in the first, learned noise is that of the purest classes, which hold a third of the
        events. Classes that still mix two kinds of entities would inflate it and stay mixed.

    An entity's own events are removed from its class before its label is drawn if they are fully in it: without gamma,
    and with gamma = 1 after rounds in which all agents took part.

    State: `sums` [K, P + F + 3] (X'X, X'y, y'y, events, entities), `noise` (sigma^2), `spread` [F] (delta^2), `centre`
    [f + 1], `scale` [f], `alpha`, `beta`, `rounds`, `held` (1 if own events can be removed).
    """

    name = "lcr-assign"

    block_clients = 32  # an agent sends K x (P + F + 3) numbers
    certain: ClassVar[bool] = False  # whether coefficients are taken at their mean
    uniform_first: bool = True  # whether the first labels are uniform, for any beta
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
        """The initial state for a target with this standard deviation: classes without data."""
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
        """Group the events, sum them, and score each entity under each class."""
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
            # as in Algorithm 2, classes are equally likely: agents' own laws would lump entities together
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
        """The units of the sums that are sent: targets count in half their range, which keeps events within 1."""
        p, f, unit = width(self.n_features) - self.n_features - 2, self.n_features, float(state["unit"])
        return np.concatenate([np.ones(p), np.full(f, unit), [unit**2, 1.0, 1.0]])

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """With one class an event adds its own products, each bounded by the ranges; its entity may be new.

        With several, one event may change all labels of its agent, and all it sends. With held-out events, one more may
        change which of the others are held out.
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

    def designs(self, state: Arrays, clients: Federation) -> Sequence[Array]:
        """What each class is linear in, [events, F]: here the same for all."""
        return [self.table.standardised(clients, state)] * self.n_components

    def weighed(self, state: Arrays, clients: Federation, labelled: Labelled, labels: Array) -> Array:
        """The sums of each entity's events, as needed by the class of its label: [entities, P + F + 2]."""
        return labelled.sums

    def log_chances(self, mean: Array, variance: Array, yes: Array) -> Array:
        """For targets of 0 and 1: the log probability of each event's target in each class."""
        raise TypeError(f"{type(self).__name__} is for targets that are numbers")

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        units = self.in_units(state)
        new, held = total["sums"] * units, 1.0
        everyone = self.n_agents is None or bool(total["clients"] == self.n_agents)
        scale = 1.0 if everyone or self.n_agents is None else self.n_agents / max(float(total["clients"]), 1.0)
        if self.share is not None:
            everyone, scale = False, 1 / self.share  # clipped and noised sums hold no agent's own events in full
        if self.gamma is None:
            new = state["sums"] + new
        else:
            rate = 1.0 if state["rounds"] == 0 else self.gamma
            new = (1 - rate) * state["sums"] + rate * scale * new
            held = float(rate == 1 and everyone)
        blur = scale * self.noise
        new = sound(new, self.n_features, 2 * np.sqrt(self.n_features) * blur)  # limit of its eigenvalues
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
    """The input of `Key.uniform_rows` that gives each entity its own number."""

    keys: Array
    offsets: Array


def densities(state: Arrays, sums: Array, own: Array) -> Array:
    """log p(y_ij | class) [entities, K], with own events removed from the class `own`."""
    out = np.zeros((len(sums), len(state["mean"])))
    weight = 1 / float(state["noise"])
    add_log_densities(sums, own, state["precision"], state["mean"], state["pivot"], weight, state["floor"], out)
    return out


def old_labels(clients: Federation, groups: Groups) -> Array:
    """The labels that agents kept, -1 if an agent has none or its entities have changed."""
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
    """[entities, n] with a one at the label; zeros for -1."""
    out = np.zeros((len(labels), n))
    out[np.arange(len(labels))[labels >= 0], labels[labels >= 0]] = 1.0
    return out


def check_parameters(n_components: int, **positive: float | None) -> None:
    """Refuse invalid parameters."""
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
