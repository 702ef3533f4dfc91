"""Classes of entities, and predictions of their next events (Theorem 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import all_valid
from fedscape.errors import DataError
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.em import Share
from fedscape.mixtures.latent_class.kernels import settle_shares
from fedscape.mixtures.latent_class.prior import prior_shares
from fedscape.mixtures.latent_class.rounds import ClassAssignment, example
from fedscape.mixtures.latent_class.table import Groups, Table, groups_of
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.mixtures.latent_class.files import Draw
    from fedscape.mixtures.latent_class.model import LatentClassRegression

PASSES = 10  # of expected labels; they converge in fewer


class Places(NamedTuple):
    """The classes of the entities of some agents."""

    ids: Array  # [agents]
    offsets: Array  # [agents + 1]
    codes: Array  # [entities]
    names: tuple[str, ...] | None  # of the codes, where entities are texts
    shares: Array  # [entities, K]
    labels: Array  # [entities]: the last drawn, -1 for none

    def counts(self, by: Array) -> Array:
        """How many entities of each class every agent has, by shares or labels: [agents, K]."""
        owner = np.repeat(np.arange(len(self.ids)), np.diff(self.offsets))
        out = np.zeros((len(self.ids), by.shape[1]))
        np.add.at(out, owner, by)
        return out


def place(work: ClassAssignment, state: Arrays, clients: Federation) -> Places:
    """The probabilities of each entity's class given its events, eq. (1), with expected instead of drawn labels."""
    ready, parts = work.prepare(state), []
    for some in clients.batches(256):
        labelled = work.label(ready, some)
        shares = np.zeros((len(labelled.old), work.n_components))
        numbers = (float(state["held"]), float(state["alpha"]), float(state["beta"]))
        settle_shares(
            labelled.log_density, labelled.groups.offsets, labelled.old, state["sums"][:, -1], *numbers, PASSES, shares
        )
        parts.append((np.diff(labelled.groups.offsets), labelled.groups.codes, shares, labelled.old))
    empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, work.n_components)), np.zeros(0, np.int64))
    sizes, codes, shares, old = (np.concatenate(each) for each in zip(*(parts or [empty]), strict=True))
    names = None if work.table.entity is None else clients.names.get(work.table.entity)
    offsets = offsets_of(sizes)
    return Places(clients.ids, offsets, codes, names, shares, old)


def all_drawn(places: Places, seed: int) -> Places:
    """The places with a label for every entity: those of agents that never took part are drawn from their shares."""
    none = places.labels < 0
    uniform = Key(seed, purpose="lcr labels of a prediction").generator().random(len(none))
    drawn = (places.shares.cumsum(axis=1) < uniform[:, None]).sum(axis=1).clip(max=places.shares.shape[1] - 1)
    return places._replace(labels=np.where(none, drawn, places.labels))


def shares_of(places: Places | None, clients: Federation, groups: Groups, entity: str | None, prior: Array, beta: float,
              *, drawn: bool = False) -> Array:  # fmt: skip
    """The class probabilities of entities: as placed if known, by the agent's counts if new, psi for a new agent."""
    k = len(prior)
    if places is None or not len(places.ids):
        return np.tile(prior, (len(groups.codes), 1))
    by = np.eye(k)[places.labels] if drawn else places.shares
    where = {v: i for i, v in enumerate(places.ids.tolist())}
    agent = np.array([where.get(v, -1) for v in clients.ids.tolist()], dtype=np.int64)
    counts = places.counts(by)
    own = np.where(agent[:, None] >= 0, counts[agent], 0.0)
    fresh = (own + beta * prior) / (own.sum(axis=1, keepdims=True) + beta)  # [agents, K]
    if drawn:
        fresh = np.eye(k)[fresh.argmax(axis=1)]
    owner = np.repeat(np.arange(len(clients)), np.diff(groups.offsets))
    out: Array = fresh[owner]
    if entity is None:  # every event is its own entity, and so a new one
        return out
    entity_rows = _found(places, agent[owner], _codes(places, clients, groups, entity))
    out[entity_rows >= 0] = by[entity_rows[entity_rows >= 0]]
    return out


def _codes(places: Places, clients: Federation, groups: Groups, entity: str) -> Array:
    """Translate the entities' codes to those of the places; -1 for an unknown text."""
    names = clients.names.get(entity)
    if (names is None) != (places.names is None):
        raise DataError(f"the entity column {entity!r} holds texts in one Federation and numbers in the other")
    if names is None or places.names is None or names == places.names:
        return groups.codes
    code_of = {name: code for code, name in enumerate(places.names)}
    return np.array([code_of.get(name, -1) for name in names], dtype=np.int64)[groups.codes]


def _found(places: Places, agent: Array, codes: Array) -> Array:
    """The position of each (agent, code) among the places, -1 if absent."""
    values = np.unique(places.codes)
    if not len(values):
        return np.full(len(codes), -1, dtype=np.int64)
    rank = np.searchsorted(values, codes).clip(max=len(values) - 1)
    matched = (agent >= 0) & (values[rank] == codes)
    owner = np.repeat(np.arange(len(places.ids)), np.diff(places.offsets))
    have = owner * len(values) + np.searchsorted(values, places.codes)  # ascending: agents in order, codes within
    want = np.where(matched, agent * len(values) + rank, -1)
    at = np.searchsorted(have, want).clip(max=len(have) - 1)
    return np.where(matched & (have[at] == want), at, -1)


class Forecast(NamedTuple):
    """The law of each event's target under each class: mean and variance, [events, K] both."""

    mean: Array
    variance: Array
    binary: bool  # whether targets are 0 and 1; otherwise they are normal


def forecast(work: ClassAssignment, state: Arrays, clients: Federation) -> Forecast:
    """c' H x and sigma^2 + x' H x for each event and class (Theorem 2); with a link the probability of a 1."""
    designs, noise = work.designs(state, clients), float(state["noise"])
    classes = classes_of(opened(state["sums"], work.n_features), noise, state["spread"])
    mean = np.stack([z @ w for z, w in zip(designs, classes.mean, strict=True)], axis=1)
    each = [np.einsum("nf,nf->n", z @ h, z) for z, h in zip(designs, classes.covariance, strict=True)]
    variance = np.stack(each, axis=1)
    if work.binary:
        chance = np.exp(work.log_chances(mean, variance, np.ones(len(mean), dtype=bool)))
        return Forecast(chance, chance * (1 - chance), True)
    return Forecast(mean + state["centre"][-1], noise + variance, False)


def mixed(law: Forecast, shares: Array) -> tuple[Array, Array]:
    """Mean and variance of the mixture of the classes."""
    mean = (shares * law.mean).sum(axis=1)
    variance = (shares * (law.variance + (law.mean - mean[:, None]) ** 2)).sum(axis=1)
    return mean, variance


def log_density(law: Forecast, shares: Array, y: Array) -> Array:
    """log sum_k share_k p(y | k) of each event."""
    if law.binary:
        each = np.where(y[:, None] > 0, law.mean, 1 - law.mean)
        return np.asarray(np.log(np.maximum((shares * each).sum(axis=1), 1e-300)))
    each = -0.5 * (np.log(2 * np.pi * law.variance) + (y[:, None] - law.mean) ** 2 / law.variance)
    with np.errstate(divide="ignore"):
        each = each + np.log(shares)
    high = each.max(axis=1)
    return np.asarray(high + np.log(np.exp(each - high[:, None]).sum(axis=1)))


class HeldOutLikelihood(Computation):
    """The log-likelihood of held-out events under several fitted models, and the differences between models by agent.

    Agents classify their entities by the events of the part "train" and score those of the part "test". One round;
    clients send only sums: scores [models], events, products of the scores of models [models, models].

    Parameters
    ----------
    works
        The models' computations, reading the part "train".
    states
        Their states.
    """

    name = "lcr-judge"

    block_clients = 32

    def __init__(self, works: Sequence[ClassAssignment]) -> None:
        self.works = tuple(works)

    def start(self, seed: int) -> Arrays:
        states = [work.start(seed) for work in self.works]
        return self.begin(states)

    def begin(self, states: Sequence[Arrays]) -> Arrays:
        """The state that holds all models' states."""
        m = len(self.works)
        joined = {f"{i}.{name}": values for i, state in enumerate(states) for name, values in state.items()}
        return {**joined, "scores": np.zeros(m), "products": np.zeros((m, m)), "events": np.zeros(())}

    def scores(self, state: Arrays, clients: Federation) -> tuple[Array, Array]:
        """The log-likelihood of each agent's held-out events under each model, and their number."""
        columns = []
        for i, work in enumerate(self.works):
            mine = {name[len(f"{i}.") :]: values for name, values in state.items() if name.startswith(f"{i}.")}
            test = Table(**{**vars(work.table), "part": "test"}).rows(clients)
            places = place(work, {**mine, "held": np.zeros(())}, clients)
            groups = groups_of(test, work.table.entity)
            prior, beta = prior_shares(mine), float(mine["beta"])
            shares = shares_of(places, test, groups, work.table.entity, prior, beta)[groups.of_event]
            law = forecast(work, mine, test)
            columns.append(test.segment_sum(log_density(law, shares, work.table.y(test))))
        return np.column_stack(columns), test.sizes

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        scores, events = self.scores(state, clients)
        return {"scores": scores, "products": np.einsum("ai,aj->aij", scores, scores), "events": events}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        sums = {name: np.asarray(total[name], dtype=float) for name in ("scores", "products", "events")}
        return {**state, **sums, "agents": np.asarray(float(total["clients"]))}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return all_valid(*(work.valid_rows(state, clients) for work in self.works))

    @classmethod
    def examples(cls) -> Sequence[tuple[HeldOutLikelihood, Federation]]:
        table = Table(held_out=0.3, part="train")
        return [(cls([ClassAssignment(table, 3, 1), ClassAssignment(table, 3, 2)]), example())]


def compared(candidates: Sequence[int], done: Arrays) -> list[dict[str, float]]:
    """Mean held-out log-likelihood per event of each candidate, its gap to the best, and the error of the gap."""
    scores, products, n = done["scores"], done["products"], float(done["events"])
    best, agents = int(np.argmax(scores)), float(done["agents"])
    rows = []
    for i, k in enumerate(candidates):
        squared = products[best, best] + products[i, i] - 2 * products[best, i]  # of agents' differences
        behind = float(scores[best] - scores[i])
        error = np.sqrt(max(float(squared) - behind**2 / agents, 0.0)) / n
        rows.append({"components": k, "score": float(scores[i]) / n, "behind": behind / n, "error": float(error)})
    return rows


def forecast_of(
    model: LatentClassRegression, data: Federation, history: Federation | None, classes: str
) -> tuple[Forecast, Array]:
    """The law of each event under the classes of all chains together, and the classes' probabilities."""
    model._check_fitted("coefficients_")
    draws = model._draws[:1] if classes == "drawn" else model._draws
    shares = [shares_of_events(model, draw, data, history, classes) / len(draws) for draw in draws]
    laws = [forecast(model._placing, draw.state, data) for draw in draws]
    mean = np.concatenate([law.mean for law in laws], axis=1)
    variance = np.concatenate([law.variance for law in laws], axis=1)
    return Forecast(mean, variance, model._placing.binary), np.concatenate(shares, axis=1)


def shares_of_events(
    model: LatentClassRegression, draw: Draw, data: Federation, history: Federation | None, classes: str
) -> Array:
    """The probability of each class for each event's entity."""
    if classes not in ("shares", "drawn"):
        raise DataError(f"classes must be 'shares' or 'drawn', not {classes!r}")
    work, (state, places) = model._placing, draw
    if history is not None:
        places = place(_all(work), {**state, "held": np.zeros(())}, history)
    drawn = classes == "drawn"
    if drawn:
        if places is None:
            raise DataError("classes='drawn' needs the labels of a fit in this process, or history")
        places = all_drawn(places, model.seed)
    entity = work.table.entity
    if entity is not None and entity not in data:
        raise DataError(f"there is no entity column {entity!r} in the data: the columns are {', '.join(data.columns)}")
    groups = groups_of(data, entity)
    prior, beta = prior_shares(state), float(state["beta"])
    return shares_of(places, data, groups, entity, prior, beta, drawn=drawn)[groups.of_event]


def placing(work: ClassAssignment) -> ClassAssignment:
    """The computation that classifies entities: for EM, the one with the same classes and integrated coefficients."""
    return ClassAssignment(**work.get_params()) if isinstance(work, Share) else work


def _all(work: ClassAssignment) -> ClassAssignment:
    """The same computation on all events, whatever part the fit read."""
    return type(work)(**{**work.get_params(), "table": replace(work.table, part="all")})
