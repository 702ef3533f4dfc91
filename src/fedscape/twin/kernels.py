"""Sessions of devices, and the event queue of training in virtual time: serial kernels.

A device's sessions are a function of its own stream of random numbers, so they do not depend on the protocol. Each
device has one pending event, its next arrival or departure. The queue is a wheel of buckets of equal width, each a
linked list; the bucket at hand is a binary heap, so that events come in exact order of time and then of device. An
event costs O(log of the bucket's size), and memory does not depend on the number of days.
"""

from __future__ import annotations

import numpy as np

from fedscape.core.kernel import kernel
from fedscape.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)

#: Columns of the parameters of a run, by position in `about`.
BEGIN, HORIZON, WIDTH, DOWN, UP, DEADLINE = 0, 1, 2, 3, 4, 5
#: Protocols.
SYNCHRONOUS, PERIODIC, BUFFERED = 0, 1, 2
#: Columns of what the queue knows of a device, one cache line: numbers, the bits of its stream, whole numbers. A device
#: is present while its next event is the end of its session, `WHEN` = `UNTIL`. `SPOT`: where it is among the idle ones.
WHEN, UNTIL, ZONE, ACTIVITY, STREAM, NUMBER, SPOT, FOLLOWING = 0, 1, 2, 3, 4, 5, 6, 7
#: Counters of a run.
DISPATCHED, REPORTED, USED, LEFT, FAILED, LATE, EVENTS, ABANDONED = 0, 1, 2, 3, 4, 5, 6, 7


@kernel
def uniform(stream: np.uint64, counter: np.uint64) -> float:
    """Number `counter` of a stream, above 0 and at most 1 (SplitMix64, Steele et al. 2014)."""
    z = stream + (counter + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    z = z ^ (z >> _S31)
    return (np.float64(z >> _S11) + 1.0) * 2.0**-53


@kernel
def cumulated(t: float, zone: float, rhythm: Array) -> float:
    """Arrivals expected of the rhythm [169] (cumulated over the hours of a week) up to time t."""
    local = t + zone
    week = np.floor(local / 604800.0)
    within = local - week * 604800.0
    hour = min(int(within / 3600.0), 167)
    part = within / 3600.0 - hour
    return float(week * rhythm[168] + rhythm[hour] + part * (rhythm[hour + 1] - rhythm[hour]))


@kernel
def when_cumulated(number: float, zone: float, rhythm: Array) -> float:
    """The time at which this many arrivals are expected: the inverse of `cumulated`."""
    week = np.floor(number / rhythm[168])
    rest = number - week * rhythm[168]
    low, high = 0, 168  # rhythm[low] <= rest, and rest < rhythm[high] but for rounding
    while high - low > 1:
        middle = (low + high) // 2
        if rhythm[middle] <= rest:
            low = middle
        else:
            high = middle
    step = rhythm[low + 1] - rhythm[low]
    part = min((rest - rhythm[low]) / step, 1.0) if step > 0.0 else 0.0
    return float(week * 604800.0 + (low + part) * 3600.0 - zone)


@kernel
def next_arrival(
    left: float, budget: float, zone: float, rhythm: Array, recency: Array, ages: Array, tick: float
) -> float:
    """When a device that left at `left` comes back: the integral of its rate since then is `budget`."""
    t = left
    inside = False
    for a in range(len(ages)):
        until = left + ages[a]
        hazard = recency[a] * (cumulated(until, zone, rhythm) - cumulated(t, zone, rhythm))
        if budget < hazard:
            t = when_cumulated(cumulated(t, zone, rhythm) + budget / recency[a], zone, rhythm)
            inside = True
            break
        budget -= hazard
        t = until
    if not inside:
        t = when_cumulated(cumulated(t, zone, rhythm) + budget / recency[len(ages)], zone, rhythm)
    if tick > 0.0:
        t = left + max(np.ceil((t - left) / tick), 1.0) * tick
    return float(max(t, left))


@kernel
def stay(begin: float, budget: float, zone: float, ends: Array, lengths: Array, tick: float) -> float:
    """How long a session that begins now lasts: the integral of its rate of ending is `budget`."""
    local = begin + zone
    hour = int((local - np.floor(local / 86400.0) * 86400.0) / 3600.0)
    rate = ends[min(hour, 23) * ends.shape[0] // 24]
    t = 0.0
    inside = False
    for b in range(len(lengths)):
        hazard = rate[b] * (lengths[b] - t)
        if budget < hazard:
            t += budget / rate[b]
            inside = True
            break
        budget -= hazard
        t = lengths[b]
    if not inside:
        t += budget / rate[len(lengths)]
    if tick > 0.0:
        t = max(np.ceil(t / tick), 1.0) * tick
    return float(max(t, 1.0e-3))


@kernel
def next_session(
    i: int,
    left: float,
    number: int,
    k: int,
    zone: float,
    activity: float,
    stream: np.uint64,
    trace: Array,
    offsets: Array,
    rhythm: Array,
    recency: Array,
    ages: Array,
    ends: Array,
    lengths: Array,
    tick: float,
) -> tuple[float, float]:
    """Begin and end of session `number` of device i, which left at `left`: of its trace, or from the laws of kind k."""
    if len(offsets) > 1:
        row = offsets[i] + number
        if row >= offsets[i + 1]:
            return np.inf, np.inf
        return trace[row, 0], trace[row, 1]
    if rhythm[k, 168] <= 0.0:
        return np.inf, np.inf
    first = -np.log(uniform(stream, np.uint64(2 * number)))
    begin = next_arrival(left, first / activity, zone, rhythm[k], recency[k], ages, tick)
    second = -np.log(uniform(stream, np.uint64(2 * number + 1)))
    return begin, begin + stay(begin, second, zone, ends[k], lengths, tick)


@kernel
def draw_sessions(
    begin: float,
    end: float,
    warm: float,
    out: Array,
    sizes: Array,
    kind: Array,
    zone: Array,
    activity: Array,
    streams: Array,
    trace: Array,
    offsets: Array,
    rhythm: Array,
    recency: Array,
    ages: Array,
    ends: Array,
    lengths: Array,
    tick: float,
) -> int:
    """All sessions that overlap [begin, end), device by device, into `out` as far as it goes; how many there are."""
    total = 0
    for i in range(len(sizes)):
        left, number = begin - warm, 0
        k, z, g, stream = kind[i], zone[i], activity[i], streams[i]
        while True:
            start, until = next_session(
                i, left, number, k, z, g, stream, trace, offsets, rhythm, recency, ages, ends, lengths, tick
            )
            if not start < end:
                break
            if until > begin:
                if total < len(out):
                    out[total, 0], out[total, 1] = max(start, begin), min(until, end)
                total += 1
                sizes[i] += 1
            left = until
            number += 1
    return total


@kernel
def heap_push(times: Array, who: Array, size: int, time: float, device: int) -> int:
    """Put an event on a heap in order of time and then of device; the new size."""
    j = size
    while j > 0:
        up = (j - 1) // 2
        if times[up] < time or (times[up] == time and who[up] <= device):
            break
        times[j], who[j] = times[up], who[up]
        j = up
    times[j], who[j] = time, device
    return size + 1


@kernel
def heap_pop(times: Array, who: Array, size: int) -> int:
    """Take the first event off a heap, after it was read from position 0; the new size."""
    size -= 1
    time, device = times[size], who[size]
    j = 0
    while True:
        child = 2 * j + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (times[right] < times[child] or (times[right] == times[child] and who[right] < who[child])):
            child = right
        if time < times[child] or (time == times[child] and device <= who[child]):
            break
        times[j], who[j] = times[child], who[child]
        j = child
    times[j], who[j] = time, device
    return size


@kernel
def wheel_put(heads: Array, whole: Array, device: int, bucket: int, current: int) -> None:
    """Link a device into its bucket, or into the last one of the wheel if that is nearer."""
    slot = min(bucket, current + len(heads) - 1) % len(heads)
    whole[device, FOLLOWING] = heads[slot]
    heads[slot] = device


@kernel
def duration(
    i: int,
    task: int,
    down: float,
    up: float,
    units: Array,
    seconds: Array,
    within: Array,
    bandwidth: Array,
    streams: Array,
) -> float:
    """Seconds that task number `task` takes device i: down, work, up; the work varies from task to task."""
    work = units[i] * seconds[i]
    if within[i] > 0.0:
        a = uniform(streams[i], np.uint64(3 * task))
        b = uniform(streams[i], np.uint64(3 * task + 1))
        work *= np.exp(within[i] * np.sqrt(-2.0 * np.log(a)) * np.cos(2.0 * np.pi * b))
    return float(work + (down + up) / bandwidth[i])


@kernel
def set_idle(i: int, idle: Array, whole: Array, number: int) -> int:
    """Add a device to the idle ones; how many there are then."""
    idle[number] = i
    whole[i, SPOT] = number
    return number + 1


@kernel
def unset_idle(i: int, idle: Array, whole: Array, number: int) -> int:
    """Take a device out of the idle ones; how many there are then."""
    last, spot = idle[number - 1], whole[i, SPOT]
    idle[spot] = last
    whole[last, SPOT] = spot
    whole[i, SPOT] = -1
    return number - 1
