"""Plain twins of the kernels: the same laws and the same protocols, written to be read; and a planted population."""

from __future__ import annotations

import numpy as np

from fedscape.twin import Twin
from fedscape.twin.tables import LENGTHS


def planted(**changes) -> Twin:
    """Night phones with long sessions, and day phones with short ones."""
    hours = np.arange(24)
    daily = np.stack(
        [0.15 * np.exp(1.5 * np.cos((hours - 23) * np.pi / 12)), 0.2 * (1 + 0.8 * np.cos((hours - 13) / 4))]
    )
    arrays = {
        "weights": np.array([[0.4], [0.6]]),
        "daily": np.maximum(daily, 0.01),
        "weekly": np.array([[1.0] * 7, [1.2] * 5 + [0.5] * 2]),
        "recency": np.array([[0.5, 1.0, 1.0], [2.0, 1.0, 1.0]]),
        "shape": np.array([4.0, 2.0]),
        "ends": np.repeat([0.2, 2.0], 4 * (len(LENGTHS) + 1)).reshape(2, 4, -1),
        "work": np.array([[4.0, 0.5, 0.2], [2.0, 0.5, 0.2]]),
        "bandwidth": np.array([[13.0, 0.5, 0.2], [15.0, 0.5, 0.2]]),
        "finished": np.array([0.7, 0.95]),
        "data": np.array([[0.9, 0.1], [0.2, 0.8]]),
    }
    return Twin({**arrays, **changes}, ages=(1.0, 4.0))


def tables_by_steps(log, *, tick, ages, lengths, step=1.0):
    """Occurrences and exposures of `tabulate`, second by second."""
    n = len(log)
    arrivals, absent = np.zeros((n, 168, len(ages) + 1)), np.zeros((n, 168, len(ages) + 1))
    ends, present = np.zeros((n, 24, len(lengths) + 1)), np.zeros((n, 24, len(lengths) + 1))
    for i in range(n):
        rows = slice(log.offsets[i], log.offsets[i + 1])
        start, end, watch = log["start"][rows], log["end"][rows], log["watch"][rows]
        for a, b in zip(start[watch == 1], end[watch == 1], strict=True):
            inside = [(s, e) for s, e, w in zip(start, end, watch, strict=True) if w == 0 and a <= s and e <= b]
            edges = [a] + [t for pair in inside for t in pair] + [b]
            for j in range(len(inside) + 1):  # absences
                left = edges[2 * j] if j else -np.inf
                begin, stop = edges[2 * j], edges[2 * j + 1]
                seen = j < len(inside) and stop > a
                risk = max(begin, stop - tick / 2) if seen else stop
                for t in np.arange(begin, risk, step):
                    age = int(np.searchsorted(np.array(ages) * 3600, t - left, side="right"))
                    absent[i, int(t // 3600) % 168, age] += min(step, risk - t) / 3600
                if seen:
                    age = int(np.searchsorted(np.array(ages) * 3600, risk - left, side="right"))
                    arrivals[i, int(risk // 3600) % 168, age] += 1
            for s, e in inside:
                if s == a:
                    continue
                length = max(e - s - (tick / 2 if e < b else 0), 0)
                for t in np.arange(0, length, step):
                    b_ = int(np.searchsorted(np.array(lengths) * 3600, t, side="right"))
                    present[i, int(s // 3600) % 24, b_] += min(step, length - t) / 3600
                if e < b:
                    b_ = int(np.searchsorted(np.array(lengths) * 3600, length, side="left"))
                    ends[i, int(s // 3600) % 24, b_] += 1
    return arrivals, absent, ends, present


def protocol_by_lists(sessions, durations, code, size, wanted, deadline, *, begin, horizon, pick, n_updates):
    """The event loop with plain lists: look for the next event among all there are.

    `sessions[i]` are the (start, end) of device i, `durations(i, task)` how long its tasks last, `pick(idle)` chooses.
    Returns updates as (time, [(device, version), ...]).
    """
    n, idle = len(sessions), []
    events = sorted(
        (t, i, what, j)
        for i, own in enumerate(sessions)
        for j, pair in enumerate(own)
        for what, t in zip(("come", "go"), pair, strict=True)
        if begin < t < horizon
    )
    until = {}
    for i, own in enumerate(sessions):
        for s, e in own:
            if s <= begin < e:
                idle.append(i)
                until[i] = e
    tasks, version, number, waiting, updates = {}, {}, [0] * n, [], []
    now, running, timer = begin, False, (begin if code == 1 else np.inf)
    while len(updates) < n_updates:
        budget = 0
        if code == 0 and not running and len(idle) >= wanted:
            budget, running, timer = wanted, True, now + deadline
        elif code == 2:
            budget = wanted - len(tasks)
        elif code == 1 and now >= timer:
            budget, timer = wanted - len(tasks), now + deadline
        tries = 0
        while budget > 0 and idle and tries < 32:
            i = pick(idle)
            if code != 0 and version.get(i) == len(updates):
                tries += 1
                continue
            last = idle.pop()
            if last != i:
                idle[idle.index(i)] = last
            version[i] = len(updates)
            done = now + durations(i, number[i])
            number[i] += 1
            tasks[i] = (done, True) if done <= until[i] else (until[i], False)
            budget, tries = budget - 1, 0
        task = min(((t, i) for i, (t, _) in tasks.items()), default=(np.inf, -1))
        device = events[0][0] if events else np.inf
        now = min(task[0], device, timer)
        if not now < horizon:
            break
        if task[0] <= now:
            i = task[1]
            fine = tasks.pop(i)[1]
            if until.get(i, -np.inf) > now:
                idle.append(i)
            if fine:
                waiting.append((i, version[i]))
        elif device <= now:
            _, i, what, j = events.pop(0)
            if what == "come":
                until[i] = sessions[i][j][1]
                if i not in tasks:
                    idle.append(i)
            else:
                until.pop(i)
                if i in idle:
                    last = idle.pop()
                    if last != i:
                        idle[idle.index(i)] = last
        close = len(waiting) == size and code != 1
        if code == 0 and running:
            close = close or not tasks or now >= timer
            if close:
                idle += [i for i in sorted(tasks) if until.get(i, -np.inf) > now]
                tasks, running, timer = {}, False, np.inf
        elif code == 1:
            close = now >= timer
        if close and waiting:
            updates.append((now, waiting))
            waiting = []
    return updates
