"""Who worked when: the timetable of a protocol on a population of devices, and what it cost."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.twin.dates import FAR
from fedscape.twin.devices import Devices, stream_seeds
from fedscape.twin.events import DAY
from fedscape.twin.kernels import (
    ABANDONED,
    ACTIVITY,
    DISPATCHED,
    EVENTS,
    FAILED,
    LATE,
    LEFT,
    REPORTED,
    STREAM,
    USED,
    ZONE,
)
from fedscape.twin.protocols import ServerProtocol
from fedscape.twin.queue import run_protocol
from fedscape.types import Array, HasKeys

MOST_UPDATES = 10**8  # of a timetable, whose memory is taken ahead


@dataclass(frozen=True)
class Cost:
    """What a timetable cost.

    `device_hours` that devices worked, `wasted_hours` of them for work that was never used, `bytes_down`, `bytes_up`,
    and `server_hours` of virtual time. `dispatched` tasks; of them `left` in mid-task, `failed`, came `late`, `used`.

    >>> round(Cost(2.0, 0.5, 10, 10, 1.0, 4, 1, 0, 0, 3).wasted_hours, 1)
    0.5
    """

    device_hours: float
    wasted_hours: float
    bytes_down: int
    bytes_up: int
    server_hours: float
    dispatched: int
    left: int
    failed: int
    late: int
    used: int


@dataclass(frozen=True, eq=False)
class Timetable:
    """The updates of a server in virtual time: what `schedule` returns.

    It depends on clients' rows by `units` alone: with units a device it is refused under privacy, because one client
    with more work moves all cohorts after it. Logs that devices follow count as public there, as those of `Trace`.

    `times` [updates] are seconds since a Monday at midnight, `begin` is when the run began; the reports of update u are
    `clients[stops[u]:stops[u + 1]]`, with the version that each began from in `bases`. `selected`, `used` and `busy`
    [devices]: how often each device began and was used, and how many seconds it worked.

    It is a Sampler: a synchronous timetable also runs on any engine, privately too: `rounds(..., sampler=timetable)`.

    >>> from fedscape.twin import Synchronous, always
    >>> table = schedule(always(4), Synchronous(2), days=1, n_updates=3)
    >>> table.times.tolist(), len(table.cohort(0))
    ([1.0, 2.0, 3.0], 2)
    """

    protocol: ServerProtocol
    begin: float
    horizon: float
    times: Array = field(repr=False)
    stops: Array = field(repr=False)
    clients: Array = field(repr=False)
    bases: Array = field(repr=False)
    selected: Array = field(repr=False)
    used: Array = field(repr=False)
    busy: Array = field(repr=False)
    counts: Array = field(repr=False)
    payload: tuple[float, float] = (0.0, 0.0)
    useful: float = 0.0  # seconds of work that was used
    reads_data: bool = False  # whether each device has units of its own, such as its rows

    #: A device that is missing is replaced by another: privacy accounts for a round as a replacement.
    exchanges = True

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        digest = hashlib.sha256()
        for values in (self.times, self.stops, self.clients, self.bases):
            digest.update(np.ascontiguousarray(values).tobytes())
        return f"Timetable({self.protocol!r}, {len(self):,} updates, sha256 {digest.hexdigest()[:16]})"

    def cohort(self, update: int) -> Array:
        """The devices whose reports are in this update, rising."""
        return np.sort(self.clients[self.stops[update] : self.stops[update + 1]])

    def groups(self, update: int) -> list[tuple[int, Array]]:
        """The same by the version that they began from: (version, devices), versions rising."""
        part = slice(self.stops[update], self.stops[update + 1])
        who, base = self.clients[part], self.bases[part]
        return [(int(version), np.sort(who[base == version])) for version in np.unique(base)]

    def draw(self, clients: HasKeys, key: Key) -> Array:
        """The cohort of the round of this key."""
        if self.protocol.stale:
            raise DataError(f"{type(self.protocol).__name__} adds up reports of several versions: use twin.train")
        if len(clients.keys) != len(self.used):
            raise DataError(f"there are {len(clients.keys):,} clients, but a timetable of {len(self.used):,} devices")
        if key.round >= len(self):
            raise DataError(
                f"the timetable has {len(self):,} rounds and ends before round {key.round:,}: run more days"
            )
        return self.cohort(key.round)

    def date(self, index: int) -> np.datetime64:
        """When this round ended."""
        return np.datetime64("1970-01-05T00:00:00", "s") + np.timedelta64(round(float(self.times[index])), "s")

    @property
    def events(self) -> int:
        """Events that the queue handled: arrivals, departures, reports, deadlines."""
        return int(self.counts[EVENTS])

    @property
    def abandoned(self) -> int:
        """Rounds that ended without a report."""
        return int(self.counts[ABANDONED])

    def cost(self) -> Cost:
        """What it cost, up to the last event."""
        counts = [int(c) for c in self.counts]
        hours = float(self.busy.sum()) / 3600
        end = float(self.times[-1]) if len(self) else self.horizon
        return Cost(
            device_hours=hours,
            wasted_hours=hours - self.useful / 3600,
            bytes_down=round(counts[DISPATCHED] * self.payload[0]),
            bytes_up=round(counts[REPORTED] * self.payload[1]),
            server_hours=(end - self.begin) / 3600,
            dispatched=counts[DISPATCHED],
            left=counts[LEFT],
            failed=counts[FAILED],
            late=counts[LATE],
            used=counts[USED],
        )


def schedule(
    devices: Devices,
    protocol: ServerProtocol,
    *,
    days: float,
    begin: float = 0.0,
    n_updates: int = 10_000,
    units: npt.ArrayLike = 1.0,
    payload: tuple[float, float] = (0.0, 0.0),
    key: Key | None = None,
) -> Timetable:
    """Run a protocol on devices in virtual time, without any training: exact, and the same for the same key.

    Parameters
    ----------
    devices
        Of `Twin.sample` or `Devices.of_trace`.
    protocol
        `Synchronous`, `SemiAsynchronous`, `FedBuff` or `FedAsync`.
    days, begin, n_updates
        How long, from when (seconds since a Monday at midnight), and updates of the server at most.
    units
        Units of work of a task, one number or one a device: rows times epochs, where speeds are seconds a row.
    payload
        Bytes down and up of a task.
    key
        What selection is a function of; sessions and speeds are functions of the devices' own key.

    >>> from fedscape.twin import FedBuff, always
    >>> len(schedule(always(9), FedBuff(concurrency=3, buffer=2), days=1, n_updates=5))
    5
    """
    if check_whole("n_updates", n_updates, least=1) > MOST_UPDATES:
        raise DataError(f"n_updates must be at most {MOST_UPDATES:,}, not {n_updates:,}")
    n, horizon = len(devices), begin + days * DAY
    code, size, wanted, deadline = protocol.loop
    own_units = np.ndim(units) > 0
    work = _checked_work(devices, units)
    if not n or not 0 < days < np.inf or not abs(begin) < FAR:
        raise DataError(f"a schedule needs devices, days and when it begins, not {n}, {days} and {begin}")
    if not (np.isfinite(payload).all() and min(payload) >= 0):
        raise DataError(f"payloads must be at least 0 bytes, not {payload}")
    if max(wanted, size) > n:
        raise DataError(f"{type(protocol).__name__} needs {max(wanted, size):,} devices at once, but there are {n:,}")
    most = min(n_updates * min(max(size, wanted), n), 2**31 - 1)
    server = stream_seeds((Key(0) if key is None else key).to("selection"), 1)[0]
    width, slots = _wheel(n, days * DAY)
    times, stops = np.zeros(n_updates), np.zeros(n_updates + 1, dtype=np.int64)
    clients, bases = np.zeros(most, dtype=np.int32), np.zeros(most, dtype=np.int32)
    selected, used, busy = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32), np.zeros(n)
    counts, useful = np.zeros(8, dtype=np.int64), np.zeros(1)
    about = np.array([begin, horizon, width, payload[0], payload[1], deadline])
    slab = np.zeros((n, 8))
    bits = slab.view(np.uint64)
    slab[:, ZONE], slab[:, ACTIVITY], bits[:, STREAM] = devices.zone, devices.activity, devices.streams
    speeds: list[Any] = [
        np.ascontiguousarray(getattr(devices, v), dtype=float) for v in ("seconds", "within", "bandwidth", "finish")
    ]
    arguments: list[Any] = [
        code, size, wanted, about, float(devices.warm), server, np.full(slots, -1, dtype=np.int32), slab, bits,
        slab.view(np.int64), devices.kind.astype(np.int64), work, *speeds, devices.task_streams, times, stops, clients,
        bases, selected, used, busy, useful, counts, *devices.arguments(),
    ]  # fmt: skip
    updates = run_protocol(*arguments)
    rows = int(stops[updates])
    return Timetable(
        protocol, begin, horizon, times[:updates], stops[: updates + 1], clients[:rows].copy(), bases[:rows].copy(),
        selected, used, busy, counts, payload, float(useful[0]), own_units,
    )  # fmt: skip


def _checked_work(devices: Devices, units: npt.ArrayLike) -> Array:
    """Units of work of each device; refuse numbers with which no task ever ends."""
    n, work = len(devices), np.asarray(units, dtype=float)
    if work.shape not in ((), (1,), (n,)):
        raise DataError(f"units must be one number, or one for each of the {n:,} devices, not of shape {work.shape}")
    work = np.ascontiguousarray(np.broadcast_to(work, n))
    took = work * devices.seconds
    if not ((took > 0) & (took < np.inf) & (devices.bandwidth > 0)).all():
        raise DataError("units of work, seconds a unit and bandwidth must be above 0 and finite")
    if not ((devices.within >= 0) & (devices.within < np.inf) & (devices.finish >= 0) & (devices.finish <= 1)).all():
        raise DataError("within must be at least 0, and finish a probability")
    return work


def _wheel(n: int, length: float) -> tuple[float, int]:
    """Width in seconds and number of the buckets: about a hundred events in each, in memory that days do not change."""
    width = max(100 * DAY / (2 * n), 1.0)
    return width, int(min(max(length / width, 2), 2**17)) + 2
