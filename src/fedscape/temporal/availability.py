"""Who is available when: samplers that follow a curve or a trace, drop-out in mid-round, and dates for rounds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.sampling import Sampler, uniform_of
from fedscape.errors import DataError
from fedscape.temporal.curves import Curve
from fedscape.types import Array, HasKeys

_DAY = 24 * 60.0


@dataclass(frozen=True)
class Clock:
    """Virtual time: when a round takes place.

    Parameters
    ----------
    start
        The date of round 0.
    minutes
        Minutes from one round to the next.

    >>> Clock("2024-03-01T06:00", minutes=90).date(4)
    np.datetime64('2024-03-01T12:00:00')
    """

    start: str = "2024-01-01T00:00"
    minutes: float = 30.0

    def __post_init__(self) -> None:
        try:
            np.datetime64(self.start, "s")
        except ValueError:
            raise DataError(f"start must be a date such as 2024-03-01T06:00, not {self.start!r}") from None
        if not 0 < self.minutes < np.inf:
            raise DataError(f"minutes must be a positive number, not {self.minutes}")

    def date(self, index: int) -> np.datetime64:
        """The date of this round."""
        return np.datetime64(self.start, "s") + np.timedelta64(round(60 * self.minutes * index), "s")

    def hour(self, index: int) -> float:
        """The hour of the day of this round, 0 to 24."""
        date = self.date(index)
        return float((date - date.astype("datetime64[D]")) / np.timedelta64(1, "s")) / 3600


@dataclass(frozen=True, eq=False)
class Shifting:
    """Cohorts drawn by mode: round t has a share of clients of mode k that a curve sets, equation (2).

    The number of clients per mode is drawn first, then the clients, without replacement. A mode with too few clients
    gives all of them, and the cohort is smaller. Under privacy the modes of clients count as public. Removing one
    client puts another into the cohort, so a round is accounted for as a replacement, without amplification.

    Parameters
    ----------
    modes
        The mode of every client of the federation: [clients], 0 to K - 1.
    curve
        The shares of the modes as a function of the round.
    size
        Clients in a round.
    clock
        Dates of rounds; by default a period is a day that begins at the first round.
    parts
        How many of the clients may be parts of one, as `by_mode` makes them. A private run protects all of them
        together: they may be in one cohort, so the noise is accounted for as this much smaller.

    >>> from fedscape.temporal.curves import Blocks
    >>> fed = Federation({}, [0] * 9)
    >>> day = Shifting([0, 0, 0, 0, 1, 1, 1, 1], Blocks(4), 2)
    >>> bool((day.draw(fed, Key(0, 1)) < 4).all()), bool((day.draw(fed, Key(0, 2)) >= 4).all()), str(day.date(2))
    (True, True, '2024-01-01T12:00:00')
    """

    modes: npt.ArrayLike = field(repr=False)
    curve: Curve
    size: int
    clock: Clock | None = None
    parts: int = 1
    digest: str = field(init=False, default="")

    #: Adding or removing a client moves another in or out: the accountant treats a round as a replacement.
    exchanges = True

    def __post_init__(self) -> None:
        modes = np.asarray(self.modes)
        if modes.ndim != 1 or modes.dtype.kind not in "iu" or (modes.size and modes.min() < 0):
            raise DataError(f"modes must be whole numbers of at least 0, one a client, not {modes.dtype}{modes.shape}")
        if modes.size and modes.max() >= self.curve.n_modes:
            raise DataError(f"modes go up to {modes.max()}, but the curve has {self.curve.n_modes}: {self.curve}")
        if self.size < 1:
            raise DataError(f"the size of a cohort must be at least 1, not {self.size}")
        if self.parts < 1:
            raise DataError(f"parts must be at least 1, not {self.parts}")
        object.__setattr__(self, "modes", modes)
        object.__setattr__(self, "digest", hashlib.sha256(modes.astype(np.int64).tobytes()).hexdigest()[:12])

    def draw(self, clients: HasKeys, key: Key) -> Array:
        modes = np.asarray(self.modes)
        if len(modes) != len(clients.keys):
            raise DataError(f"there are {len(clients.keys):,} clients, but modes of {len(modes):,}: give one a client")
        shares = self.curve.shares(key.round)
        wanted = key.to("cohort modes").generator().multinomial(self.size, shares)
        return first_of_each(key.uniform(clients), modes, wanted)

    def date(self, index: int) -> np.datetime64:
        """When this round takes place."""
        period = getattr(self.curve, "period", 256.0)
        return (Clock(minutes=_DAY / period) if self.clock is None else self.clock).date(index)


def first_of_each(order: Array, modes: Array, wanted: Array) -> Array:
    """The `wanted[k]` clients of mode k with the smallest number, as rising positions.

    >>> first_of_each(np.array([0.3, 0.1, 0.2, 0.4]), np.array([0, 0, 1, 1]), [1, 1]).tolist()
    [1, 2]
    """
    chosen = []
    for k, number in enumerate(wanted):
        members = np.flatnonzero(modes == k)
        chosen.append(members[np.argsort(order[members], kind="stable")[:number]])
    return np.sort(np.concatenate(chosen))


@dataclass(frozen=True, eq=False)
class Trace:
    """Clients available according to a table. After the last slot it starts over.

    Parameters
    ----------
    available
        [clients, slots]: 1 where the client is available, 0 where it is not, -1 where unknown (counts as 0).
    size
        Cap on the cohort, drawn at random from the available clients; None takes all of them.
    step_minutes
        The length of a slot.
    clock
        Dates of rounds. Its start is the first slot. By default a round lasts one slot.

    >>> trace = Trace([[1, 0, 1], [0, 0, 1]])
    >>> [trace.draw(Federation({}, [0, 0, 0]), Key(0, t)).tolist() for t in range(4)]
    [[0], [], [0, 1], [0]]
    """

    available: npt.ArrayLike = field(repr=False)
    size: int | None = None
    step_minutes: float = 30.0
    clock: Clock | None = None
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        table = np.asarray(self.available)
        if table.ndim != 2 or table.shape[1] == 0 or not np.isin(table, (-1, 0, 1)).all():
            raise DataError(f"available must be 1, 0 or -1 (not known), [clients, slots], not of shape {table.shape}")
        if (self.size is not None and self.size < 1) or not self.step_minutes > 0:
            raise DataError(f"size and step_minutes must be positive, not {self.size} and {self.step_minutes}")
        object.__setattr__(self, "available", table)
        object.__setattr__(self, "digest", hashlib.sha256((table == 1).tobytes()).hexdigest()[:12])

    @classmethod
    def of_phones(cls, fed: Federation, n_clients: int, *, seed: int = 0, size: int | None = None) -> Trace:
        """Assign each of n_clients clients a random phone of the data set "phones" and follow its trace."""
        slots = int(fed.sizes.max(initial=0))
        if "available" not in fed or (fed.sizes != slots).any():
            raise DataError("a trace needs a column 'available' with the same number of rows, by time, in every client")
        table = fed["available"].reshape(len(fed), slots)
        order = Key(seed, purpose="phones").generator().permutation(len(fed))
        step = float((fed["time"][1] - fed["time"][0]) / np.timedelta64(1, "m")) if "time" in fed else 30.0
        start = str(fed["time"][0]) if "time" in fed else Clock().start
        return cls(table[np.resize(order, n_clients)], size, step, Clock(start, step))

    @property
    def exchanges(self) -> bool:
        """Whether adding or removing one client moves another in or out of the cohort."""
        return self.size is not None

    @cached_property
    def _here(self) -> Array:
        return np.asarray(np.asarray(self.available) == 1)

    def draw(self, clients: HasKeys, key: Key) -> Array:
        if len(self._here) != len(clients.keys):
            raise DataError(f"there are {len(clients.keys):,} clients, but the trace has {len(self._here):,} rows")
        minutes = self.step_minutes if self.clock is None else self.clock.minutes
        slot = int(key.round * minutes / self.step_minutes + 1e-9) % self._here.shape[1]  # 3 x 0.7 / 0.7 is below 3
        members = np.flatnonzero(self._here[:, slot])
        if self.size is None:
            return members
        return np.sort(members[np.argsort(uniform_of(members, clients, key), kind="stable")[: self.size]])

    def date(self, index: int) -> np.datetime64:
        """When this round takes place."""
        return (Clock(minutes=self.step_minutes) if self.clock is None else self.clock).date(index)


@dataclass(frozen=True)
class Dropping:
    """A sampler whose clients drop out during a round, each with the same probability: they never report.

    Parameters
    ----------
    sampler
        Draws the clients that begin a round.
    rate
        The probability that a client drops out.

    >>> from fedscape import All
    >>> bool(0 < len(Dropping(All(), 0.5).draw(Federation({}, [0] * 101), Key(0))) < 100)
    True
    """

    sampler: Sampler
    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise DataError(f"the rate of drop-out must be at least 0 and below 1, not {self.rate}")

    def draw(self, clients: HasKeys, key: Key) -> Array:
        cohort = self.sampler.draw(clients, key)
        return np.asarray(cohort[uniform_of(cohort, clients, key.to("drop-out")) >= self.rate])

    def date(self, index: int) -> np.datetime64:
        """Date of this round; without a clock, rounds are half an hour apart."""
        return (
            self.sampler.date(index) if isinstance(self.sampler, Shifting | Trace | Dropping) else Clock().date(index)
        )


def by_mode(fed: Federation, mode_of_row: npt.ArrayLike) -> tuple[Federation, Array]:
    """Split clients by mode: each new client has rows of one mode. Return them and the mode of each.

    A client "a" with rows of several modes becomes several clients ("a/0", "a/1", ...), as writers of digits and of
    letters do in the paper. Under privacy with unit "client" each of these is protected on its own, unless the sampler
    says that K of them are one: `Shifting(..., parts=K)` accounts for all K together.

    Parameters
    ----------
    fed
        The clients.
    mode_of_row
        [rows], 0 to K - 1.

    >>> cut, modes = by_mode(Federation({"y": [0, 7, 8]}, [0, 2, 3], ids=["a", "b"]), [0, 1, 1])
    >>> cut.ids.tolist(), modes.tolist(), cut.sizes.tolist()
    (['a/0', 'a/1', 'b/1'], [0, 1, 1], [1, 1, 1])
    """
    mode = np.asarray(mode_of_row)
    if mode.shape != (fed.n_rows,) or mode.dtype.kind not in "iub" or (mode.size and int(mode.min()) < 0):
        raise DataError(f"mode_of_row must be whole numbers of at least 0, one for each of the {fed.n_rows:,} rows")
    client = fed.client_of_row
    order = np.lexsort((mode, client))
    pair = np.stack([client[order], mode[order].astype(np.int64)], axis=1)
    new = np.concatenate(([True], (pair[1:] != pair[:-1]).any(axis=1))) if len(pair) else np.zeros(0, dtype=bool)
    first = np.flatnonzero(new)
    columns = {name: values[order] for name, values in fed.columns.items()}
    ids = [f"{fed.ids[c]}/{k}" for c, k in pair[first].tolist()]
    return Federation(columns, np.append(first, fed.n_rows), ids=ids, names=fed.names), pair[first, 1]
