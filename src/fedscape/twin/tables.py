"""What a device's log says of its rates: how often something happened, and for how long it could have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.errors import DataError
from fedscape.twin.events import HOUR
from fedscape.types import Array

HOURS = 168  # of a week
#: Ages of an absence at which the rate of return changes, in hours.
AGES = (1.0, 4.0, 10.0, 26.0, 168.0)
#: Ages of a session at which its rate of ending changes, in hours.
LENGTHS = (1 / 12, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 18.0, 24.0)
#: The same where times are known to half an hour.
HALF_HOURS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 16.0, 24.0)
#: A step of the lengths shorter than this, in hours, is a moment: sessions end in it by a probability, not by a rate.
MOMENT = 2 / 3600
_COMMON = 0.2  # share of sessions with one length, to the second, from which that length gets a probability


def lengths_of(log: Federation, *, tick: float = 0.0) -> tuple[float, ...]:
    """Ages of a session at which its rate of ending changes, for this log: with a moment where many have one length.

    A single check-in is such a session: its length is that which `from_check_ins` gives it.

    >>> from fedscape.twin.events import sessions
    >>> log = sessions(range(9), np.arange(9.0), np.arange(9.0) + 600, window=(-1.0, 9999.0))
    >>> set(lengths_of(log)) - set(LENGTHS) == {599.001 / 3600, 600.001 / 3600}
    True
    """
    if tick >= 900:
        return HALF_HOURS
    session = log["watch"] == 0
    seconds = np.round((log["end"] - log["start"])[session]).astype(np.int64)
    values, counts = np.unique(seconds, return_counts=True)
    if tick > 0 or not len(values) or counts.max() < _COMMON * len(seconds) or values[counts.argmax()] < 2:
        return LENGTHS
    at = float(values[counts.argmax()])
    edges = (at - 0.999) / 3600, (at + 0.001) / 3600  # those that end then have lived through it, but for rounding
    apart = (length for length in LENGTHS if abs(length - at / 3600) > MOMENT)
    return tuple(sorted((*apart, *edges)))


class Tables(NamedTuple):
    """Occurrences and exposures (hours) of each device, by hour of the week (UTC) and age.

    `arrivals`, `absent`: [devices, 168, ages]; `ends`, `present`: [devices, 24 hours of the start, lengths].
    """

    arrivals: Array
    absent: Array
    ends: Array
    present: Array


def tabulate(log: Federation, *, tick: float, ages: Array, lengths: Array) -> Tables:
    """Count arrivals and ends of sessions, and the time at risk of each.

    Where times are known to a tick only, an event lies half a tick before its date.

    >>> from fedscape.twin.events import sessions
    >>> log = sessions(["a"], [7200.0], [9000.0], window=(0.0, 14400.0))
    >>> tables = tabulate(log, tick=0.0, ages=np.array(AGES), lengths=np.array(LENGTHS))
    >>> [float(table.sum()) for table in tables]
    [1.0, 3.5, 1.0, 0.5]
    """
    n = len(log)
    out = Tables(
        np.zeros((n, HOURS, len(ages) + 1)),
        np.zeros((n, HOURS, len(ages) + 1)),
        np.zeros((n, 24, len(lengths) + 1)),
        np.zeros((n, 24, len(lengths) + 1)),
    )
    start, end = (np.ascontiguousarray(log[name], dtype=np.float64) for name in ("start", "end"))
    if log.n_rows and not np.array_equal(np.lexsort((start, log.client_of_row)), np.arange(log.n_rows)):
        raise DataError("events must be in order of time: use the log that checked() returns")
    _tabulate(start, end, log["watch"].astype(np.int64), log.offsets, 0.5 * tick, ages * HOUR, lengths * HOUR, *out)
    return out


@kernel
def _tabulate(
    start: Array,
    end: Array,
    watch: Array,
    offsets: Array,
    early: float,
    ages: Array,
    lengths: Array,
    arrivals: Array,
    absent: Array,
    ends: Array,
    present: Array,
) -> None:
    """Walk the rows of each device; an absence is cut at whole hours and at ages, a session at lengths."""
    for i in range(len(offsets) - 1):
        begin, until, left = 0.0, -1.0e300, 0.0  # of the observed span; when the device went, -1e300 if unknown
        watching = False
        for row in range(offsets[i], offsets[i + 1] + 1):
            last = row == offsets[i + 1]
            session = not last and watch[row] == 0
            if watching:
                # the absence before this session, or up to the end of the span
                seen = session and start[row] > begin
                stop = start[row] if session else until
                risk = max(begin, stop - early) if seen else stop
                t = begin
                while t < risk:
                    age = len(ages) if left < -1.0e299 else 0
                    while age < len(ages) and t - left >= ages[age]:
                        age += 1
                    border = (np.floor(t / 3600.0) + 1.0) * 3600.0
                    if age < len(ages) and left + ages[age] < border:
                        border = left + ages[age]
                    if border <= t:
                        border = t + 1.0e-3
                    stop_here = min(border, risk)
                    absent[i, int(np.floor(t / 3600.0)) % 168, age] += (stop_here - t) / 3600.0
                    t = stop_here
                if seen:
                    age = len(ages) if left < -1.0e299 else 0
                    while age < len(ages) and risk - left >= ages[age]:
                        age += 1
                    arrivals[i, int(np.floor(risk / 3600.0)) % 168, age] += 1.0
                if session:
                    if seen:
                        hour = int(np.floor(start[row] / 3600.0)) % 24
                        ended = end[row] < until
                        length = end[row] - start[row] - (early if ended else 0.0)
                        length = max(length, 0.0)
                        t, b = 0.0, 0
                        while b < len(lengths) and length > lengths[b]:
                            present[i, hour, b] += (lengths[b] - t) / 3600.0
                            t = lengths[b]
                            b += 1
                        present[i, hour, b] += (length - t) / 3600.0
                        if ended:
                            ends[i, hour, b] += 1.0
                    begin, left = end[row], end[row]
            if not last and watch[row] == 1:
                begin, until, left, watching = start[row], end[row], -1.0e300, True
