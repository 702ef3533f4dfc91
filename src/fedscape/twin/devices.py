"""Devices, each with its sessions, its speed and its bandwidth: drawn from a twin, or true ones with their trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.twin.events import DAY, checked
from fedscape.twin.kernels import draw_sessions
from fedscape.types import Array


@dataclass(frozen=True, eq=False)
class Laws:
    """The laws that sessions are drawn from, as kernels read them.

    `rhythm` [kinds, 169]: arrivals cumulated over the hours of a week; `recency` [kinds, ages]; `ends` [kinds, parts,
    lengths] a second; `ages` and `lengths` in seconds; `tick` in seconds.
    """

    rhythm: Array
    recency: Array
    ages: Array
    ends: Array
    lengths: Array
    tick: float


_NO_LAWS = Laws(np.zeros((1, 169)), np.ones((1, 1)), np.zeros(0), np.ones((1, 1, 1)), np.zeros(0), 0.0)


@dataclass(frozen=True, eq=False)
class Devices:
    """A population of devices. `Twin.sample` draws one; `Devices.of_trace` follows a log.

    `kind`, `zone` (seconds ahead), `activity`: who comes when. `seconds` a unit of work, `within`, its spread from task
    to task on a log scale, `bandwidth` in bytes a second, `finish`, the probability that a task that could end does.
    `data` is the kind of the device's data, -1 where unknown.

    >>> log = Federation({"start": [0.0, 60.0], "end": [30.0, 90.0]}, [0, 1, 2], ids=["a", "b"])
    >>> Devices.of_trace(log).sessions(0.0, 100.0)["end"].tolist()
    [100.0, 30.0, 100.0, 90.0]
    """

    kind: Array
    zone: Array
    activity: Array
    seconds: Array
    within: Array
    bandwidth: Array
    finish: Array
    data: Array
    streams: Array = field(repr=False)
    task_streams: Array = field(repr=False)
    laws: Laws = field(repr=False, default=_NO_LAWS)
    trace: Array = field(repr=False, default_factory=lambda: np.zeros((0, 2)))
    offsets: Array = field(repr=False, default_factory=lambda: np.zeros(1, dtype=np.int64))
    #: Seconds before the begin of a simulation at which all devices are absent, so that the start does not matter.
    warm: float = DAY

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def of_trace(cls, log: Federation, *, kind: npt.ArrayLike | None = None, key: Key | None = None) -> Devices:
        """True devices: available as their log says, and never after its end.

        Parameters
        ----------
        log
            Events as `sessions` and `from_table` make them.
        kind
            The kind of each device, if it is known.
        key
            What their tasks' random numbers come from.
        """
        log = checked(log)
        rows = np.flatnonzero((log["watch"] == 0) & (log["end"] > log["start"]))
        trace = np.stack([log["start"][rows], log["end"][rows]], axis=1)
        sizes = np.bincount(log.client_of_row[rows], minlength=len(log))
        devices = plain(len(log), Key(0) if key is None else key)
        kinds = devices.kind if kind is None else np.asarray(kind, dtype=np.int64)
        return replace(devices, trace=np.ascontiguousarray(trace), offsets=offsets_of(sizes), kind=kinds)

    def with_speed(
        self,
        seconds: npt.ArrayLike,
        *,
        within: float = 0.0,
        bandwidth: npt.ArrayLike = 1e6,
        finish: npt.ArrayLike = 1.0,
    ) -> Devices:
        """The same devices with these speeds, where the log knows none: one number for all, or one a device."""
        numbers = {"seconds": seconds, "bandwidth": bandwidth, "finish": finish, "within": within}
        wide: dict[str, Any] = {
            name: np.ascontiguousarray(np.broadcast_to(np.asarray(values, float), len(self)))
            for name, values in numbers.items()
        }
        return replace(self, **wide)

    def take(self, devices: npt.ArrayLike) -> Devices:
        """These devices, by position, in this order; one may be taken twice, and then behaves the same."""
        at = np.asarray(devices)
        if len(self.offsets) > 1:
            sizes = np.diff(self.offsets)[at]
            rows = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in at] or [at])
            parts: dict[str, Any] = {"trace": self.trace[rows], "offsets": offsets_of(sizes)}
        else:
            parts = {}
        names = (
            "kind",
            "zone",
            "activity",
            "seconds",
            "within",
            "bandwidth",
            "finish",
            "data",
            "streams",
            "task_streams",
        )
        return replace(self, **{name: getattr(self, name)[at] for name in names}, **parts)

    def arguments(self) -> tuple[Any, ...]:
        """The trace and the laws, as kernels that draw sessions take them."""
        laws = self.laws
        return (
            self.trace,
            self.offsets,
            laws.rhythm,
            laws.recency,
            laws.ages,
            laws.ends,
            laws.lengths,
            float(laws.tick),
        )

    def sessions(self, begin: float, end: float) -> Federation:
        """The devices' sessions between two times, in seconds since a Monday at midnight, as events.

        A protocol that begins at the same time meets the same sessions.
        """
        if not begin < end:
            raise DataError(f"the end must lie after the begin, not {begin:g} and {end:g}")
        out, sizes = np.zeros((4 * len(self) + 16, 2)), np.zeros(len(self), dtype=np.int64)
        who = (self.kind, self.zone, self.activity, self.streams)
        total = draw_sessions(float(begin), float(end), self.warm, out, sizes, *who, *self.arguments())
        if total > len(out):
            out, sizes = np.zeros((total, 2)), np.zeros_like(sizes)
            draw_sessions(float(begin), float(end), self.warm, out, sizes, *who, *self.arguments())
        n, owner = len(self), np.concatenate((np.arange(len(self)), np.repeat(np.arange(len(self)), sizes)))
        columns = {
            "start": np.concatenate((np.full(n, float(begin)), out[:total, 0])),
            "end": np.concatenate((np.full(n, float(end)), out[:total, 1])),
            "watch": np.repeat(np.array([1, 0], dtype=np.int8), [n, total]),
        }
        return checked(Federation.from_arrays(columns, owner, ids=np.arange(n)))


def plain(n: int, key: Key) -> Devices:
    """Devices without laws: one kind, a second a unit of work, a megabyte a second, no failures."""
    ones, zeros = np.ones(n), np.zeros(n)
    return Devices(
        kind=np.zeros(n, dtype=np.int64),
        zone=zeros,
        activity=ones,
        seconds=ones,
        within=zeros,
        bandwidth=np.full(n, 1e6),
        finish=ones,
        data=np.full(n, -1),
        streams=stream_seeds(key.to("sessions"), n),
        task_streams=stream_seeds(key.to("tasks"), n),
    )


def always(n: int, *, key: Key | None = None) -> Devices:
    """Devices that are always there: what a simulation without a twin assumes.

    >>> always(3).sessions(0.0, 10.0)["end"].tolist()
    [10.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    """
    trace = np.tile(np.array([[-np.inf, np.inf]]), (n, 1))
    return replace(plain(n, Key(0) if key is None else key), trace=trace, offsets=np.arange(n + 1))


def stream_seeds(key: Key, n: int) -> Array:
    """A 64-bit seed for each device's own stream."""
    return key.generator().integers(0, 2**64, n, dtype=np.uint64)
