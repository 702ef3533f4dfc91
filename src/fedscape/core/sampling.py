"""Who takes part in a round: a function of (seed, round, client), never of the order of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.types import Array, HasKeys


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
        return np.flatnonzero(key.uniform(clients) < self.rate)


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
        if self.size > n:
            raise DataError(
                f"a cohort of {self.size:,} cannot be drawn from {n:,} clients: use a smaller size or All()"
            )
        return np.sort(np.argsort(key.uniform(clients), kind="stable")[: self.size])


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
        aside = Key(self.seed, purpose="validation clients").uniform(clients) < self.share
        drawn = self.sampler.draw(clients, key)
        part: Array = drawn[aside[drawn] == self.inside]
        return part  # it may be empty: an error would tell how many clients there are
