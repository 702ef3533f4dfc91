"""Who takes part in a round: a function of (seed, round, client), never of the order of calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from fedscape.core.random import Key, client_keys
from fedscape.errors import DataError
from fedscape.types import Array, HasKeys

_CHUNK = 2**16  # clients whose numbers are drawn at a time


@runtime_checkable
class Sampler(Protocol):
    """Who takes part in the round of this key.

    A schedule (day and night, a trace) reads `key.round`. Poisson and FixedSize are known to the privacy accountant.
    Any other sampler is accounted for as if every client took part, which holds only if it does not look at their data.
    One that does sets `reads_data = True`, and is refused under privacy. One that would take another client where one
    is missing sets `exchanges = True`: a round then moves by two contributions, not one, and is accounted for so. One
    that wraps another has it under `sampler`, where both marks are looked for too.
    """

    def draw(self, clients: HasKeys, key: Key) -> Array:
        """The positions of the cohort, rising."""
        ...


def marked(sampler: object, mark: str) -> bool:
    """Whether a sampler, or one that it wraps, says so of itself: `mark` is "exchanges" or "reads_data".

    A sampler that wraps another holds it as `sampler`, and need not say again what that one says.

    >>> marked(FixedSize(3), "exchanges"), marked(All(), "exchanges")
    (True, False)
    """
    while sampler is not None and not getattr(sampler, mark, False):
        sampler = getattr(sampler, "sampler", None)
    return sampler is not None


def parts_of_client(sampler: object) -> int:
    """How many of the clients drawn may be parts of one: what a sampler, or one that it wraps, has as `parts`.

    >>> parts_of_client(All())
    1
    """
    most = 1
    while sampler is not None:
        most = max(most, int(getattr(sampler, "parts", 1)))
        sampler = getattr(sampler, "sampler", None)
    return most


@dataclass(frozen=True)
class All:
    """Every client takes part in every round.

    >>> from fedscape import Federation
    >>> All().draw(Federation({}, [0, 0, 0]), Key(0))
    array([0, 1])
    """

    def draw(self, clients: HasKeys, key: Key) -> Array:
        return np.arange(len(clients.keys))


@dataclass(frozen=True)
class Poisson:
    """Each client takes part with probability `rate`, independently.

    >>> from fedscape import Federation
    >>> bool(0 <= len(Poisson(0.5).draw(Federation({}, [0] * 11), Key(0))) <= 10)
    True
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise DataError(f"the rate of Poisson sampling must be above 0 and at most 1, not {self.rate}")

    def draw(self, clients: HasKeys, key: Key) -> Array:
        return chosen(self, _parts(self, clients, key, 1.0), len(clients.keys))


@dataclass(frozen=True)
class FixedSize:
    """This many clients take part, all sets of that size equally likely.

    >>> from fedscape import Federation
    >>> len(FixedSize(3).draw(Federation({}, [0] * 11), Key(0)))
    3
    """

    size: int

    #: One client less puts another in its place.
    exchanges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"the size of a cohort must be at least 1, not {self.size}")

    def draw(self, clients: HasKeys, key: Key) -> Array:
        n = len(clients.keys)
        check_size(self.size, n)
        parts = _parts(self, clients, key, bound(self, n))
        if sum(len(where) for where, _ in parts) < self.size:
            parts = _parts(self, clients, key, 1.0)
        return chosen(self, parts, n)


class _Keys:
    """Clients of which only the keys are known."""

    def __init__(self, keys: Array) -> None:
        self.keys = keys


def uniform_of(where: Array, clients: HasKeys, key: Key) -> Array:
    """The number of each of these clients, uniform between 0 and 1; numbers of the others are not drawn."""
    return key.uniform(_Keys(clients.keys[where]))


def _parts(sampler: Sampler, clients: HasKeys, key: Key, below: float) -> list[tuple[Array, Array]]:
    """The candidates of ranges of clients, one range after the other: no number is held but theirs."""
    keys, parts = clients.keys, []
    for begin in range(0, max(1, len(keys)), _CHUNK):
        where = np.arange(begin, min(begin + _CHUNK, len(keys)))
        parts.append(candidates(sampler, keys[where], where, key, below=below))
    return parts


def in_parts(sampler: object) -> bool:
    """Whether a cohort can be drawn by parts: `candidates` of each part, then `chosen` among them.

    >>> in_parts(Poisson(0.5)), in_parts(All())
    (True, False)
    """
    return type(sampler) in (Poisson, FixedSize)


def candidates(sampler: Sampler, ids: Array, where: Array, key: Key, *, below: float = 1.0) -> tuple[Array, Array]:
    """Of some clients, those that may be in the cohort: their positions, rising, and numbers that decide among them.

    Only numbers less than `below` are returned; see `bound`.
    """
    numbers = key.uniform(_Keys(client_keys(ids)))
    order = np.argsort(where, kind="stable")
    where, numbers = where[order], numbers[order]
    if isinstance(sampler, Poisson):
        taken = np.flatnonzero(numbers < sampler.rate)
    elif isinstance(sampler, FixedSize):
        few = np.flatnonzero(numbers < below)
        taken = (
            few if len(few) <= sampler.size else np.sort(few[np.argsort(numbers[few], kind="stable")[: sampler.size]])
        )
    else:
        raise DataError(f"{type(sampler).__name__} does not draw by parts")
    return where[taken], numbers[taken]


def bound(sampler: Sampler, n_clients: int) -> float:
    """A number below which the whole cohort has its numbers in nearly every round; otherwise ask again with 1.

    >>> bound(FixedSize(100), 10_000), bound(FixedSize(100), 150), bound(Poisson(0.5), 9)
    (0.022, 1.0, 1.0)
    """
    if not isinstance(sampler, FixedSize):
        return 1.0
    return min(1.0, (sampler.size + 10 * math.sqrt(sampler.size) + 20) / max(1, n_clients))


def chosen(sampler: Sampler, parts: Sequence[tuple[Array, Array]], n_clients: int) -> Array:
    """The cohort among the candidates of all parts, as the sampler draws it from all clients.

    >>> from fedscape import Federation
    >>> key, ids = Key(3), np.arange(9)
    >>> parts = [candidates(FixedSize(4), ids[a:b], ids[a:b], key) for a, b in ((0, 5), (5, 9))]
    >>> bool((chosen(FixedSize(4), parts, 9) == FixedSize(4).draw(Federation({}, [0] * 10), key)).all())
    True
    """
    where, numbers = (np.concatenate(each) for each in zip(*parts, strict=True))
    if isinstance(sampler, FixedSize):
        check_size(sampler.size, n_clients)
        where = where[np.lexsort((where, numbers))[: sampler.size]]
    return np.sort(where)


def check_size(size: int, n: int) -> None:
    """Refuse a cohort that is larger than the number of clients."""
    if size > n:
        raise DataError(f"a cohort of {size:,} cannot be drawn from {n:,} clients: use a smaller size or All()")


@dataclass(frozen=True)
class Side:
    """The cohort of another sampler, without the clients set aside for validation, or only those (`inside`).

    >>> from fedscape import Federation
    >>> sides = [Side(All(), 0.5, 0, inside=inside).draw(Federation({}, [0] * 9), Key(0)) for inside in (False, True)]
    >>> sorted(np.concatenate(sides).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    sampler: Sampler
    share: float
    seed: int
    inside: bool

    def draw(self, clients: HasKeys, key: Key) -> Array:
        """The positions of the cohort, rising."""
        drawn = self.sampler.draw(clients, key)
        aside = uniform_of(drawn, clients, Key(self.seed, purpose="validation clients")) < self.share
        part: Array = drawn[aside == self.inside]
        return part  # it may be empty: an error would tell how many clients there are
