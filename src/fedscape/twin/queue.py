"""The event loop of training in virtual time: one serial kernel for all protocols."""

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

TRIES = (
    32  # draws of a device that does not have the current version yet, before a slot stays free until the next event
)


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
    n, slots = len(selected), len(heads)
    begin, horizon, width = about[BEGIN], about[HORIZON], about[WIDTH]
    working, outcome = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int8)
    version, tasks, began = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int32), np.zeros(n)
    idle, n_idle = np.zeros(n, dtype=np.int32), 0
    heap_times, heap_who, n_heap = np.empty(n), np.empty(n, dtype=np.int32), 0
    most = min(n, wanted)
    task_times, task_who, n_tasks = np.empty(most), np.empty(most, dtype=np.int32), 0
    waiting, waiting_base, waiting_seconds = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32), np.empty(n)
    n_waiting, draws, current, updates, rows = 0, np.uint64(0), 0, 0, 0
    last_bucket = int((horizon - begin) / width) + 1
    for i in range(n):
        k, z, g, stream = kind[i], slab[i, ZONE], slab[i, ACTIVITY], bits[i, STREAM]
        whole[i, SPOT] = -1
        start, end = next_session(
            i, begin - warm, 0, k, z, g, stream, trace, offsets, rhythm, recency, ages, ends, lengths, tick
        )
        number = 0
        while end <= begin:
            number += 1
            start, end = next_session(
                i, end, number, k, z, g, stream, trace, offsets, rhythm, recency, ages, ends, lengths, tick
            )
        whole[i, NUMBER] = number * 256 + k
        slab[i, UNTIL], slab[i, WHEN] = end, start
        if start <= begin:
            slab[i, WHEN] = end
            n_idle = set_idle(i, idle, whole, n_idle)
        if slab[i, WHEN] < horizon:
            wheel_put(heads, whole, i, int((slab[i, WHEN] - begin) / width), current)
    now, running = begin, False
    timer = begin if protocol == PERIODIC else np.inf
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
            done = now + duration(i, tasks[i], about[DOWN], about[UP], units, seconds, within, bandwidth, task_streams)
            outcome[i] = REPORTED
            if done > slab[i, UNTIL]:
                outcome[i], done = LEFT, slab[i, UNTIL]
            elif uniform(task_streams[i], np.uint64(3 * tasks[i] + 2)) > finish[i]:
                outcome[i] = FAILED
            tasks[i] += 1
            selected[i] += 1
            counts[DISPATCHED] += 1
            n_tasks = heap_push(task_times, task_who, n_tasks, done, i)
            budget -= 1
            tries = 0
        # -- the next event --------------------------------------------------------------------------------------------
        while n_heap == 0 and current <= last_bucket:
            i = heads[current % slots]
            heads[current % slots] = -1
            while i >= 0:
                after = whole[i, FOLLOWING]
                bucket = int((slab[i, WHEN] - begin) / width)
                if bucket > current:
                    wheel_put(heads, whole, i, bucket, current)
                else:
                    n_heap = heap_push(heap_times, heap_who, n_heap, slab[i, WHEN], i)
                i = after
            if n_heap == 0:
                current += 1
        device_time = heap_times[0] if n_heap > 0 else np.inf
        task_time = task_times[0] if n_tasks > 0 else np.inf
        now = min(device_time, task_time, timer)
        if not now < horizon:
            now = horizon
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
                for i in np.sort(task_who[:n_tasks]):
                    working[i] = False
                    busy[i] += now - began[i]
                    counts[LATE] += 1
                    if slab[i, UNTIL] > now:
                        n_idle = set_idle(i, idle, whole, n_idle)
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
