"""The event loop of training in virtual time: serial kernels, the same for all protocols."""

from __future__ import annotations

import numpy as np

from fedscape.core.kernel import kernel
from fedscape.twin.kernels import (
    ABANDONED,
    ACTIVITY,
    BEGIN,
    BUFFERED,
    DEADLINE,
    DISPATCHED,
    DOWN,
    EVENTS,
    FAILED,
    FOLLOWING,
    HORIZON,
    LATE,
    LEFT,
    NUMBER,
    PERIODIC,
    REPORTED,
    SPOT,
    STREAM,
    SYNCHRONOUS,
    UNTIL,
    UP,
    USED,
    WHEN,
    WIDTH,
    ZONE,
    duration,
    heap_pop,
    heap_push,
    next_session,
    set_idle,
    uniform,
    unset_idle,
    wheel_put,
)
from fedscape.types import Array

#: The trace and the laws of sessions, as `next_session` takes them.
Laws = tuple[Array, Array, Array, Array, Array, Array, Array, float]
TRIES = (
    32  # draws of a device that does not have the current version yet, before a slot stays free until the next event
)


@kernel
def seat(
    begin: float, warm: float, slab: Array, bits: Array, whole: Array, kind: Array, idle: Array, laws: Laws
) -> int:
    """Give each device the session at hand or its next one, at the begin of a run; how many are idle."""
    n_idle = 0
    for i in range(len(idle)):
        k, z, g, stream = kind[i], slab[i, ZONE], slab[i, ACTIVITY], bits[i, STREAM]
        whole[i, SPOT] = -1
        start, end = next_session(i, begin - warm, 0, k, z, g, stream, *laws)
        number = 0
        while end <= begin:
            number += 1
            start, end = next_session(i, end, number, k, z, g, stream, *laws)
        whole[i, NUMBER] = number * 256 + k
        slab[i, UNTIL], slab[i, WHEN] = end, start
        if start <= begin:
            slab[i, WHEN] = end
            n_idle = set_idle(i, idle, whole, n_idle)
    return n_idle


@kernel
def turn_wheel(
    about: Array, slab: Array, whole: Array, heads: Array, heap_times: Array, heap_who: Array, current: int
) -> tuple[int, int]:
    """Turn the wheel to the next bucket that has events, and put them on the empty heap: its size, and the bucket."""
    n_heap, last = 0, int((about[HORIZON] - about[BEGIN]) / about[WIDTH]) + 1
    while n_heap == 0 and current <= last:
        i = heads[current % len(heads)]
        heads[current % len(heads)] = -1
        while i >= 0:
            after = whole[i, FOLLOWING]
            bucket = int((slab[i, WHEN] - about[BEGIN]) / about[WIDTH])
            if bucket > current:
                wheel_put(heads, whole, i, bucket, current)
            else:
                n_heap = heap_push(heap_times, heap_who, n_heap, slab[i, WHEN], i)
            i = after
        if n_heap == 0:
            current += 1
    return n_heap, current


@kernel
def outcome_of(
    i: int, task: int, now: float, about: Array, slab: Array, units: Array, seconds: Array, within: Array,
    bandwidth: Array, finish: Array, task_streams: Array,
) -> tuple[float, int]:  # fmt: skip
    """When a task that begins now ends, and how: it reports, fails, or its device leaves first."""
    done = now + duration(i, task, about[DOWN], about[UP], units, seconds, within, bandwidth, task_streams)
    if done > slab[i, UNTIL]:
        return slab[i, UNTIL], LEFT
    if uniform(task_streams[i], np.uint64(3 * task + 2)) > finish[i]:
        return done, FAILED
    return done, REPORTED


@kernel
def call_off(
    who: Array, now: float, began: Array, busy: Array, working: Array, slab: Array, whole: Array, idle: Array,
    n_idle: int,
) -> int:  # fmt: skip
    """End the tasks under way at a deadline; devices that are still there are idle again. How many are idle."""
    for i in np.sort(who):
        working[i] = False
        busy[i] += now - began[i]
        if slab[i, UNTIL] > now:
            n_idle = set_idle(i, idle, whole, n_idle)
    return n_idle


@kernel
def run_protocol(
    protocol: int,
    size: int,
    wanted: int,
    about: Array,
    warm: float,
    server: np.uint64,
    heads: Array,
    slab: Array,
    bits: Array,
    whole: Array,
    kind: Array,
    units: Array,
    seconds: Array,
    within: Array,
    bandwidth: Array,
    finish: Array,
    task_streams: Array,
    times: Array,
    stops: Array,
    reported: Array,
    bases: Array,
    selected: Array,
    used: Array,
    busy: Array,
    useful: Array,
    counts: Array,
    trace: Array,
    offsets: Array,
    rhythm: Array,
    recency: Array,
    ages: Array,
    ends: Array,
    lengths: Array,
    tick: float,
) -> int:
    """Run a protocol until the horizon or until `times` is full; the number of updates of the server.

    Synchronous: `wanted` idle devices begin a round; it ends with `size` reports, at the deadline, or when none can
    come any more; late work is thrown away. Periodic: every deadline's length the server adds up what came in and hands
    out work until `wanted` devices are at it. Buffered: `wanted` devices are at work at any time; `size` reports make
    an update. Update u has the reports stops[u]:stops[u + 1], with the version that each began from in `bases`.

    `slab`, `bits` and `whole` are one array [devices, 8] seen as numbers, bits and whole numbers; see `kernels`.
    """
    n = len(selected)
    begin, horizon, width = about[BEGIN], about[HORIZON], about[WIDTH]
    laws = (trace, offsets, rhythm, recency, ages, ends, lengths, tick)
    working, outcome = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int8)
    version, tasks, began = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int32), np.zeros(n)
    idle = np.zeros(n, dtype=np.int32)
    heap_times, heap_who, n_heap = np.empty(n), np.empty(n, dtype=np.int32), 0
    most = min(n, wanted)
    task_times, task_who, n_tasks = np.empty(most), np.empty(most, dtype=np.int32), 0
    waiting, waiting_base, waiting_seconds = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32), np.empty(n)
    n_waiting, draws, current, updates, rows = 0, np.uint64(0), 0, 0, 0
    n_idle = seat(about[BEGIN], warm, slab, bits, whole, kind, idle, laws)
    for i in range(n):
        if slab[i, WHEN] < about[HORIZON]:
            wheel_put(heads, whole, i, int((slab[i, WHEN] - about[BEGIN]) / about[WIDTH]), 0)
    now, running = about[BEGIN], False
    timer = now if protocol == PERIODIC else np.inf
    while updates < len(times):
        # -- hand out work ---------------------------------------------------------------------------------------------
        budget = 0
        if protocol == SYNCHRONOUS and not running and n_idle >= wanted:
            budget, running, timer = wanted, True, now + about[DEADLINE]
        elif protocol == BUFFERED:
            budget = wanted - n_tasks
        elif protocol == PERIODIC and now >= timer:
            budget, timer = wanted - n_tasks, now + about[DEADLINE]
        tries = 0
        while budget > 0 and n_idle > 0 and tries < TRIES:
            draws += np.uint64(1)
            i = idle[min(int(uniform(server, draws) * n_idle), n_idle - 1)]
            if protocol != SYNCHRONOUS and version[i] == updates:
                tries += 1
                continue
            n_idle = unset_idle(i, idle, whole, n_idle)
            working[i], version[i], began[i] = True, updates, now
            done, outcome[i] = outcome_of(
                i, tasks[i], now, about, slab, units, seconds, within, bandwidth, finish, task_streams
            )
            tasks[i] += 1
            selected[i] += 1
            counts[DISPATCHED] += 1
            n_tasks = heap_push(task_times, task_who, n_tasks, done, i)
            budget -= 1
            tries = 0
        # -- the next event --------------------------------------------------------------------------------------------
        if n_heap == 0:
            n_heap, current = turn_wheel(about, slab, whole, heads, heap_times, heap_who, current)
        device_time = heap_times[0] if n_heap > 0 else np.inf
        task_time = task_times[0] if n_tasks > 0 else np.inf
        now = min(device_time, task_time, timer)
        if not now < about[HORIZON]:
            now = about[HORIZON]
            break
        counts[EVENTS] += 1
        if task_time <= now:
            i = task_who[0]
            n_tasks = heap_pop(task_times, task_who, n_tasks)
            working[i] = False
            busy[i] += now - began[i]
            if slab[i, WHEN] == slab[i, UNTIL] and slab[i, UNTIL] > now:
                n_idle = set_idle(i, idle, whole, n_idle)
            counts[outcome[i]] += 1
            if outcome[i] == REPORTED:
                waiting[n_waiting], waiting_base[n_waiting] = i, version[i]
                waiting_seconds[n_waiting] = now - began[i]
                n_waiting += 1
        elif device_time <= now:
            i = heap_who[0]
            n_heap = heap_pop(heap_times, heap_who, n_heap)
            end = slab[i, UNTIL]
            if slab[i, WHEN] < end:
                slab[i, WHEN] = end
                if not working[i]:
                    n_idle = set_idle(i, idle, whole, n_idle)
            else:
                if whole[i, SPOT] >= 0:
                    n_idle = unset_idle(i, idle, whole, n_idle)
                whole[i, NUMBER] += 256
                number, k = whole[i, NUMBER] // 256, whole[i, NUMBER] % 256
                z, g, stream = slab[i, ZONE], slab[i, ACTIVITY], bits[i, STREAM]
                slab[i, WHEN], slab[i, UNTIL] = next_session(
                    i, end, number, k, z, g, stream, trace, offsets, rhythm, recency, ages, ends, lengths, tick
                )
            if slab[i, WHEN] < horizon:
                bucket = int((slab[i, WHEN] - begin) / width)
                if bucket <= current:
                    n_heap = heap_push(heap_times, heap_who, n_heap, slab[i, WHEN], i)
                else:
                    wheel_put(heads, whole, i, bucket, current)
        # -- close a round ---------------------------------------------------------------------------------------------
        close = n_waiting == size and protocol != PERIODIC
        if protocol == SYNCHRONOUS and running:
            close = close or n_tasks == 0 or now >= timer
            if close:
                n_idle = call_off(task_who[:n_tasks], now, began, busy, working, slab, whole, idle, n_idle)
                counts[LATE] += n_tasks
                n_tasks, running, timer = 0, False, np.inf
                counts[ABANDONED] += 1 if n_waiting == 0 else 0
        elif protocol == PERIODIC:
            close = now >= timer
        if close and n_waiting > 0:
            if rows + n_waiting > len(reported):
                break
            for j in range(n_waiting):
                reported[rows + j], bases[rows + j] = waiting[j], waiting_base[j]
                used[waiting[j]] += 1
                useful[0] += waiting_seconds[j]
            rows += n_waiting
            counts[USED] += n_waiting
            times[updates] = now
            updates += 1
            stops[updates] = rows
            n_waiting = 0
    for j in range(n_tasks):
        busy[task_who[j]] += now - began[task_who[j]]
    return updates
