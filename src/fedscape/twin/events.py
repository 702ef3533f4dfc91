"""Logs of who was available when: sessions within the spans in which a device was observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.twin.dates import FAR, MONDAY, seconds, shown
from fedscape.types import Array

HOUR, DAY = 3600.0, 86400.0
#: What a session may also say: seconds of work, units of that work, bytes moved, seconds that took, whether it ended
#: well (1 or 0), and the kind of the device's data (a code, the same in all its rows). Unknown is NaN or -1; of the
#: first four also 0.
OPTIONAL = ("work", "units", "bytes", "transfer", "finished", "data")
MOST_KINDS = 1000  # of data: codes of kinds are small numbers


def sessions(
    clients: npt.ArrayLike,
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    window: tuple[Any, Any] | None = None,
    ids: npt.ArrayLike | None = None,
    columns: Mapping[str, npt.ArrayLike] | None = None,
) -> Federation:
    """Events from a list of sessions: when each device came and went.

    A row of the result is a session (`watch` is 0) or a span in which the device was observed (`watch` is 1). Times are
    seconds since a Monday at midnight, UTC. A session that begins or ends with its span is cut off there: its true
    begin or end was not observed.

    Parameters
    ----------
    clients, start, end
        The device of each session, and its two dates (or seconds since a Monday at midnight).
    window
        From when to when all devices were observed; by default from the first start to the last end.
    ids
        All devices, where some had no session.
    columns
        Further columns of the sessions: `work`, `units`, `bytes`, `transfer`, `finished`, `data`.

    >>> log = sessions(["a", "b"], [0.0, 60.0], [30.0, 90.0], window=(0.0, 3600.0))
    >>> log["watch"].tolist(), log["end"].tolist()
    ([1, 0, 1, 0], [3600.0, 30.0, 3600.0, 90.0])
    """
    begin, finish = seconds(start, "start"), seconds(end, "end")
    who = np.asarray(clients)
    if who.ndim != 1 or not len(who) == len(begin) == len(finish):
        raise DataError(f"clients, start and end must be equally long, not {who.size}, {len(begin)}, {len(finish)}")
    if window is None and not len(begin):
        raise DataError("there is no session, so the time that was observed must be given: window=(from, to)")
    if (finish < begin).any():
        row = int(np.flatnonzero(finish < begin)[0])
        raise DataError(
            f"a session must end after it starts: that of device {who[row]!s} at {shown(begin[row])} does not"
        )
    span = (begin.min(), finish.max()) if window is None else _window(window)
    if not span[0] < span[1]:
        raise DataError(f"window must end after it begins, not {span[0]:g} to {span[1]:g} seconds")
    everyone = np.unique(who) if ids is None else np.asarray(ids)
    who = who if len(who) else everyone[:0]
    watched = np.full(len(everyone), 1, dtype=np.int8)
    extra = {name: np.asarray(values) for name, values in (columns or {}).items()}
    _check_columns(extra, len(begin))
    rows: dict[str, Array] = {
        "start": np.concatenate((np.full(len(everyone), span[0]), np.clip(begin, *span))),
        "end": np.concatenate((np.full(len(everyone), span[1]), np.clip(finish, *span))),
        "watch": np.concatenate((watched, np.zeros(len(begin), dtype=np.int8))),
    }
    for name, values in extra.items():
        unknown = -1 if values.dtype.kind in "iub" else np.nan
        kind = np.int64 if values.dtype.kind in "iub" else np.float64
        rows[name] = np.concatenate((np.full(len(everyone), unknown, dtype=kind), values.astype(kind)))
    owner = np.concatenate((everyone, who))
    within = (finish > span[0]) & (begin < span[1])
    if ids is None and len(begin) and not within.any():  # a device alone may have none in its window, and names itself
        raise DataError(
            f"no session lies in the window from {shown(span[0])} to {shown(span[1])}: is its clock another?"
        )
    inside = np.concatenate((np.ones(len(everyone), dtype=bool), within))
    rows = {name: values[inside] for name, values in rows.items()}
    return checked(Federation.from_arrays(rows, owner[inside], ids=everyone))


def from_table(available: npt.ArrayLike, *, step_minutes: float = 30.0, start: str = "1970-01-05T00:00") -> Federation:
    """Events from a table of slots: 1 available, 0 not, -1 unknown (not observed).

    >>> log = from_table([[0, 1, 1, 0, -1, 0]], step_minutes=30)
    >>> list(zip(log["watch"].tolist(), (log["start"] / 1800).tolist(), (log["end"] / 1800).tolist()))
    [(1, 0.0, 4.0), (0, 1.0, 3.0), (1, 5.0, 6.0)]
    """
    table = np.asarray(available)
    if table.ndim != 2 or table.dtype.kind not in "biuf" or not np.isin(table, (-1, 0, 1)).all():
        raise DataError(f"a table of slots must hold 1, 0 or -1, [devices, slots], not the shape {table.shape}")
    origin, step = float(seconds([start], "start")[0]), 60.0 * step_minutes
    if not 0 < step < FAR:
        raise DataError(f"step_minutes must be above 0, not {step_minutes}")
    rows = [_runs(table >= 0), _runs(table == 1)]
    owner, begin, end = (np.concatenate([part[i] for part in rows]) for i in range(3))
    watch = np.repeat(np.array([1, 0], dtype=np.int8), [len(part[0]) for part in rows])
    columns: dict[str, Array] = {"start": origin + step * begin, "end": origin + step * end, "watch": watch}
    return checked(Federation.from_arrays(columns, owner, ids=np.arange(len(table))))


def from_check_ins(
    clients: npt.ArrayLike,
    times: npt.ArrayLike,
    *,
    gap_minutes: float = 30.0,
    least_minutes: float = 1.0,
    window: tuple[Any, Any] | None = None,
    ids: npt.ArrayLike | None = None,
) -> Federation:
    """Events from check-ins: those at most `gap_minutes` apart make one session, the last of which ends a little later.

    Parameters
    ----------
    clients, times
        Who checked in, and when.
    gap_minutes
        A longer silence ends a session.
    least_minutes
        How long a device stays after its last check-in.
    window, ids
        As for `sessions`.

    >>> log = from_check_ins(["a", "a", "a"], [0.0, 600.0, 9000.0], window=(-1.0, 9999.0))
    >>> log["start"].tolist(), log["end"].tolist()
    ([-1.0, 0.0, 9000.0], [9999.0, 660.0, 9060.0])
    """
    who, when = np.asarray(clients), seconds(times, "times")
    who = who if who.size else np.zeros(0, dtype=np.int64)
    if len(who) != len(when):
        raise DataError(f"clients and times must be equally long, not {len(who)} and {len(when)}")
    if not 0 < least_minutes <= gap_minutes < np.inf:
        raise DataError(
            f"least_minutes must be above 0 and at most gap_minutes, not {least_minutes:g} beside {gap_minutes:g}"
        )
    if who.dtype.kind not in "iuU":
        raise DataError(f"clients must be whole numbers or texts, not {who.dtype}")
    names, code = np.unique(who, return_inverse=True)
    order = np.lexsort((when, code))
    code, when = code[order], when[order]
    apart = (np.diff(code) != 0) | (np.diff(when) > 60 * gap_minutes)
    new = np.flatnonzero(np.concatenate(([True], apart))) if len(when) else np.zeros(0, dtype=np.int64)
    last = np.append(new[1:], len(when)) - 1 if len(when) else new
    span = window
    if span is None and len(when):
        span = (float(when.min()), float(when.max()) + 60 * least_minutes)
    return sessions(names[code[new]], when[new], when[last] + 60 * least_minutes, window=span, ids=ids)


def checked(log: Federation) -> Federation:
    """Events in order of time, as `fit` reads them; refuse sessions that overlap or lie outside of what was observed.

    A log without the column `watch` is taken as observed from its first start to its last end.

    >>> checked(Federation({"start": [5.0, 0.0], "end": [6.0, 1.0]}, [0, 2]))["start"].tolist()
    [0.0, 0.0, 5.0]
    """
    for name in ("start", "end"):
        log = log.with_column(name, seconds(log[name], name))
    _check_columns({name: log[name] for name in OPTIONAL if name in log}, log.n_rows)
    if "watch" not in log:
        extra = {name: log[name] for name in OPTIONAL if name in log}
        return sessions(log.ids[log.client_of_row], log["start"], log["end"], ids=log.ids, columns=extra)
    start, end, watch, owner = log["start"], log["end"], log["watch"], log.client_of_row
    if not np.isin(watch, (0, 1)).all():
        raise DataError("the column 'watch' must be 1 for an observed span and 0 for a session")
    if (end < start).any():
        row = int(np.flatnonzero(end < start)[0])
        raise DataError(f"a session must end after it starts: row {row:,} is from {start[row]:g} to {end[row]:g}")
    order = np.lexsort((1 - watch, start, owner))
    log = Federation({n: v[order] for n, v in log.columns.items()}, log.offsets, log.ids, names=log.names)
    for what, rows in (("observed spans", log["watch"] == 1), ("sessions", log["watch"] == 0)):
        who, a, b = (values[rows] for values in (log.client_of_row, log["start"], log["end"]))
        overlap = np.flatnonzero((np.diff(who) == 0) & (a[1:] < b[:-1]))
        if len(overlap):
            where = log.ids[who[overlap[0]]]
            at = shown(a[overlap[0] + 1])
            raise DataError(f"{what} of device {where!s} overlap at {at}: join them to one")
    _check_observed(log)
    return log


def sound_only(log: Federation) -> Federation:
    """The log with the rows of devices that `checked` would refuse left out: a private fit must not say which.

    The time that was observed must be in it: that of a log without `watch` would depend on all rows.

    >>> fed = Federation({"start": [0.0, 5.0], "end": [9.0, 4.0], "watch": [1, 0]}, [0, 2])
    >>> sound_only(fed).sizes.tolist()
    [0]
    """
    if "watch" not in log:
        raise DataError("under privacy the time that was observed must be declared: sessions(..., window=(from, to))")
    start, end, watch = (np.asarray(log[name], dtype=float) for name in ("start", "end", "watch"))
    with np.errstate(invalid="ignore"):
        good = (np.abs(start) < FAR) & (np.abs(end) < FAR) & (end >= start) & np.isin(watch, (0, 1))
    log = _without(log, log.client_of_row[~good])
    order = np.lexsort((1 - log["watch"], log["start"], log.client_of_row))
    log = Federation({n: v[order] for n, v in log.columns.items()}, log.offsets, log.ids, names=log.names)
    bad = [log.client_of_row[_outside(log)]]
    for rows in (log["watch"] == 1, log["watch"] == 0):
        who, a, b = (values[rows] for values in (log.client_of_row, log["start"], log["end"]))
        bad.append(who[1:][(np.diff(who) == 0) & (a[1:] < b[:-1])])
    return _without(log, np.concatenate(bad))


def _without(log: Federation, devices: Array) -> Federation:
    return log.where(~np.isin(log.client_of_row, devices)) if len(devices) else log


def events_of(table: Federation) -> tuple[Federation, float]:
    """Events of a table of any of three forms, and the tick of its clock in seconds.

    `start` and `end` are sessions; `available` (1, 0, -1) and `time` are slots, as in the data set "phones"; `time`
    alone is check-ins. Dates may be texts.

    >>> log, tick = events_of(Federation({"time": [0.0, 600.0]}, [0, 2]))
    >>> len(log), tick
    (1, 0.0)
    """
    if table.n_rows == 0:
        raise DataError("the log has no rows: it needs at least one session")
    for name in OPTIONAL:
        if name in table and name in table.names and name != "data":
            table = _numbers(table, name)
    for name in ("start", "end", "time"):
        if name in table and name in table.names:
            dates = np.asarray(table.names[name])[table[name]]
            table = table.select([n for n in table.columns if n != name]).with_column(name, seconds(dates, name))
    if "start" in table and "end" in table:
        columns = [n for n in ("start", "end", "watch", *OPTIONAL) if n in table]
        return checked(table.select(columns)), 0.0
    if "available" in table and "time" in table:
        return _slots(table)
    if "time" in table:
        return from_check_ins(table.ids[table.client_of_row], table["time"], ids=table.ids), 0.0
    raise DataError(
        f"a log of devices has the columns start and end, or available and time, or time; this one has "
        f"{', '.join(table.columns)}"
    )


def _slots(table: Federation) -> tuple[Federation, float]:
    """Events of slots, and how long a slot is: all devices have the same ones, evenly apart."""
    slots = int(table.sizes.max(initial=0))
    if slots < 2 or (table.sizes != slots).any():
        raise DataError("slots need the same number of rows, by time, for every device")
    when = seconds(table["time"], "time").reshape(len(table), slots)
    steps = np.diff(when[0])
    if not steps[0] > 0 or (np.abs(steps - steps[0]) > 1e-3).any() or (when != when[0]).any():
        raise DataError("slots must be evenly apart, in order of time, and the same for every device")
    begin = MONDAY + np.timedelta64(round(1000 * float(when[0, 0])), "ms")
    states = table["available"].reshape(len(table), slots)
    return from_table(states, step_minutes=float(steps[0]) / 60, start=str(begin)), float(steps[0])


def _window(window: tuple[Any, Any]) -> tuple[float, float]:
    if len(window) != 2:
        raise DataError(f"window must be two times, from and to, not {len(window)}")
    begin, end = (float(seconds([time], "window")[0]) for time in window)
    return begin, end


def _outside(log: Federation) -> Array:
    """Whether a row is a session that no observed span contains."""
    watch = log["watch"] == 1
    last = np.maximum.accumulate(np.where(watch, np.arange(log.n_rows), -1))
    return np.asarray((last < log.offsets[log.client_of_row]) | (log["end"] > log["end"][np.maximum(last, 0)]))


def _numbers(table: Federation, name: str) -> Federation:
    """The texts of an optional column as numbers: yes and no of `finished`; others are refused."""
    words = {"yes": 1, "true": 1, "no": 0, "false": 0}
    texts = [str(text).strip().lower() for text in table.names[name]]
    unknown = [text for text in texts if text not in words]
    if name != "finished" or unknown:
        wanted = "1, 0, yes or no" if name == "finished" else "numbers"
        raise DataError(f"the column {name!r} must hold {wanted}, not {(unknown or texts)[0]!r}")
    values, code = np.array([words[text] for text in texts] + [-1]), table[name]  # -1, unknown, takes the last
    return table.select([n for n in table.columns if n != name]).with_column(name, values[code])


def _check_observed(log: Federation) -> None:
    """Refuse a session that no observed span contains."""
    outside = _outside(log)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise DataError(
            f"the session of device {log.ids[log.client_of_row[row]]!s} from {shown(log['start'][row])} to "
            f"{shown(log['end'][row])} lies outside of its observed spans: give them as rows with watch = 1"
        )


def _check_columns(columns: Mapping[str, Array], rows: int) -> None:
    for name, values in columns.items():
        if name not in OPTIONAL:
            raise DataError(f"sessions have no column {name!r}: they may have {', '.join(OPTIONAL)}")
        if len(values) != rows:
            raise DataError(f"the column {name!r} has {len(values):,} rows, there are {rows:,} sessions")
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise DataError(f"the column {name!r} must hold a number a session, not {values.dtype}")
        wanted, good = _wanted(name, values)
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise DataError(
                f"the column {name!r} must hold {wanted}; NaN or -1 where unknown; row {row:,} has {values[row]:g}"
            )
    if ("bytes" in columns) != ("transfer" in columns):
        raise DataError("bandwidth needs both columns, 'bytes' and 'transfer' (seconds): give both or none")


def _wanted(name: str, values: Array) -> tuple[str, Array]:
    """What an optional column may hold, and where it does."""
    unknown = np.isnan(values) | (values == -1)
    if name == "finished":
        return "1 or 0", unknown | np.isin(values, (0, 1))
    if name == "data":
        code = (values >= 0) & (values < MOST_KINDS) & (np.floor(values) == values)
        return f"codes from 0 to {MOST_KINDS - 1}", unknown | code
    return "finite numbers of at least 0", unknown | ((values >= 0) & (values < np.inf))


def _runs(where: Array) -> tuple[Array, Array, Array]:
    """Runs of True of each row: the row, where each begins, and where it ends."""
    padded = np.pad(where.astype(np.int8), ((0, 0), (1, 1)))
    change = np.diff(padded, axis=1)
    owner, begin = np.nonzero(change == 1)
    return owner, begin, np.nonzero(change == -1)[1]
