"""The rows of a regression on nested data: agents are clients, entities their groups, events their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import all_valid, check_finite, valid_numbers
from fedscape.errors import DataError
from fedscape.mixtures.latent_class.basis import parse_basis
from fedscape.mixtures.latent_class.kernels import add_events, width
from fedscape.mixtures.numbers import numbers_of
from fedscape.types import Array, Arrays


@dataclass(frozen=True)
class Table:
    """The feature, target and entity columns, and how to compute features from them.

    `entity` None makes every event its own entity. `ranges` are the smallest and largest value of each feature column,
    then of the target, to which values are clipped; none if empty. `held_out` is a share of the events, a function of
    `split_seed` and the event's position only; `part` selects the others ("train"), these ("test") or all. With a
    `basis` the features are its functions of the columns, which are first standardised by `basis_centre` and
    `basis_scale`.
    """

    features: tuple[str, ...] = ("x",)
    target: str = "y"
    entity: str | None = "entity"
    intercept: bool = True
    ranges: tuple[tuple[float, float], ...] = ()
    held_out: float = 0.0
    split_seed: int = 0
    part: str = "all"
    basis: str = ""
    basis_centre: tuple[float, ...] = ()
    basis_scale: tuple[float, ...] = ()

    def rows(self, clients: Federation) -> Federation:
        """The clients with the events of this part."""
        if self.part == "all":
            return clients
        test = Key(self.split_seed, purpose="held-out events").uniform_rows(clients) < self.held_out
        return clients.where(test if self.part == "test" else ~test)

    def x(self, clients: Federation) -> Array:
        """The features [events, f]: the columns, or the functions of a basis."""
        parts = []
        for i, name in enumerate(self.features):
            values = check_finite(numbers_of(clients, name), name)
            if self.ranges:
                values = np.clip(values, *self.ranges[i])
            parts.append(values.reshape(len(values), int(np.prod(values.shape[1:]))))
        x = np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))
        if not self.basis:
            return x
        if x.shape[1] != len(self.basis_scale):
            raise DataError(f"the features have {x.shape[1]} numbers an event, the basis has {len(self.basis_scale)}")
        z = (x - np.array(self.basis_centre)) / np.array(self.basis_scale)
        return np.ascontiguousarray(parse_basis(self.basis).expand(z))

    def y(self, clients: Federation) -> Array:
        """The target [events]."""
        values = check_finite(numbers_of(clients, self.target), self.target)
        if values.ndim != 1:
            raise DataError(f"the target {self.target!r} must be one number an event, not {list(values.shape[1:])}")
        return np.ascontiguousarray(np.clip(values, *self.ranges[-1]) if self.ranges else values)

    def valid_rows(self, clients: Federation) -> Array | None:
        """Which events have numbers for features and target, and an entity."""
        masks = [valid_numbers(clients[name]) for name in (*self.features, self.target)]
        entity = self.entity is not None and self.entity in clients.names
        return all_valid(*masks, clients[str(self.entity)] >= 0 if entity else None)

    def ends(self, clients: Federation | None, numbers: int | None = None) -> tuple[Array, Array]:
        """The smallest and largest value of each feature and of the target, both [f + 1].

        Without clients a column is taken for one number, or a single one for all numbers but the target's.
        """
        low, high = (np.array([ends[i] for ends in self.ranges], dtype=float) for i in (0, 1))
        sizes = [1 if clients is None else int(np.prod(clients[name].shape[1:])) for name in self.features]
        if clients is None and numbers is not None and len(sizes) == 1:
            sizes = [numbers - 1]
        return np.repeat(low, [*sizes, 1]), np.repeat(high, [*sizes, 1])

    def units(self, clients: Federation | None) -> tuple[Array, Array]:
        """Centre and half width of the ranges, both [f + 1]: standardised features are within -1 and 1."""
        low, high = self.ends(clients)
        if self.intercept:
            return (low + high) / 2, (high - low) / 2
        return np.zeros_like(low), np.maximum(np.abs(low), np.abs(high))

    def standardised(self, clients: Federation, state: Arrays) -> Array:
        """The features minus the state's centre, divided by its scale, with a column of ones for an intercept."""
        x, scale = self.x(clients), state["scale"]
        if x.shape[1] != len(scale):
            raise DataError(f"the features have {x.shape[1]} numbers an event, the model has {len(scale)}")
        z = (x - state["centre"][:-1]) / scale
        return np.column_stack([z, np.ones(len(z))]) if self.intercept else z

    def names(self, clients: Federation) -> tuple[str, ...]:
        """The names of the features; those of a two-dimensional column are numbered."""
        listed = []
        for name in self.features:
            shape = clients[name].shape[1:]
            listed += [name] if not shape else [f"{name}.{i}" for i in range(int(np.prod(shape)))]
        return parse_basis(self.basis).names(listed) if self.basis else tuple(listed)


class Groups(NamedTuple):
    """The entities of some agents: agent i owns `offsets[i]:offsets[i + 1]` of them."""

    offsets: Array  # [agents + 1]
    codes: Array  # [entities], ascending within an agent
    order: Array  # [events]: sorts the events by entity
    starts: Array  # [entities + 1]: where each entity begins in that order

    @property
    def of_event(self) -> Array:
        """The entity of each event, in the events' own order."""
        out = np.empty(len(self.order), dtype=np.int64)
        out[self.order] = np.repeat(np.arange(len(self.codes)), np.diff(self.starts))
        return out


def groups_of(clients: Federation, entity: str | None) -> Groups:
    """Group the events of each agent by entity."""
    n = clients.n_rows
    if entity is None:
        position = np.arange(n) - np.repeat(clients.offsets[:-1], clients.sizes)
        return Groups(clients.offsets, position, np.arange(n), np.arange(n + 1))
    codes = clients[entity]
    if codes.ndim != 1 or codes.dtype.kind not in "biu":
        raise DataError(
            f"the entity column {entity!r} must hold one whole number or text an event, "
            f"not {codes.dtype}{list(codes.shape[1:])}"
        )
    if entity in clients.names and n and int(codes.min()) < 0:
        row = int(np.argmin(codes))
        raise DataError(f"the entity column {entity!r} has no value in row {row:,}: drop such rows with where()")
    agent = clients.client_of_row
    order = np.arange(n)
    change = agent[1:] != agent[:-1]
    if not np.all(change | (codes[1:] >= codes[:-1])):
        order = np.lexsort((codes, agent))
        codes = codes[order]  # rows of an agent are contiguous already, and stay so
    first = np.concatenate(([True], change | (codes[1:] != codes[:-1])))[:n]
    starts = np.append(np.flatnonzero(first), n)
    offsets = np.searchsorted(starts[:-1], clients.offsets)
    return Groups(offsets.astype(np.int64), codes[starts[:-1]].astype(np.int64), order, starts)


def sums_of(table: Table, clients: Federation, groups: Groups, state: Arrays) -> Array:
    """The sums of each entity's events about the broadcast centre: [entities, P + F + 2]."""
    x, y = table.x(clients), table.y(clients)
    centre, scale = state["centre"], state["scale"]
    if x.shape[1] != len(scale):
        raise DataError(f"the features have {x.shape[1]} numbers an event, the model has {len(scale)}")
    out = np.zeros((len(groups.codes), width(x.shape[1] + table.intercept)))
    add_events(x, y, groups.order, groups.starts, centre, scale, out)
    return out
