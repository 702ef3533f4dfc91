"""What a Cox regression asks of clients: sums over risk sets, event times, and how well rows are ordered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_finite, check_whole, valid_numbers
from fedscape.errors import DataError
from fedscape.types import Array, Arrays, Kept

MOST_TIMES = 2**20
_CLOSE = 1e-9  # of a gap of the grid: 0.57 is 57 times 0.01, which floating point numbers say is a little more
_ULPS = 2  # by which a time may be off; whole numbers up to 2**51 stay apart


class Rows(NamedTuple):
    """Features [rows, d], times and events of some rows."""

    x: Array
    time: Array
    event: Array


def survival_rows(clients: Federation, features: str | Sequence[str], time: str, event: str) -> Rows:
    """The columns of a survival model as numbers; what is no time or no event is refused.

    >>> survival_rows(Federation({"a": [1.0], "t": [3], "e": [True]}, [0, 1]), ["a"], "t", "e").event
    array([1.])
    """
    names = [features] if isinstance(features, str) else list(features)
    x = [check_finite(clients[n], n).reshape(clients.n_rows, int(np.prod(clients[n].shape[1:]))) for n in names]
    if not x:
        raise DataError("features must name a column at least, they name none")
    t, e = (np.asarray(check_finite(clients[n], n), dtype=np.float64) for n in (time, event))
    for name, values, bad, rule in ((time, t, t < 0, "times of at least 0"), (event, e, (e != 0) & (e != 1), "0 or 1")):
        if values.ndim != 1 or bad.any():
            first = int(np.flatnonzero(bad)[0]) if values.ndim == 1 else 0
            raise DataError(f"column {name!r} must hold {rule}, one a row, but row {first:,} holds {values[first]}")
    return Rows(np.concatenate(x, axis=1).astype(np.float64), t, e)


def valid_survival(clients: Federation, features: str | Sequence[str], time: str, event: str) -> Array:
    """Which rows `survival_rows` would take.

    >>> fed = Federation({"t": [3.0, -1.0, np.nan], "e": [1, 0, 0]}, [0, 3])
    >>> valid_survival(fed, "t", "t", "e").tolist()
    [True, False, False]
    """
    names = [features] if isinstance(features, str) else list(features)
    good = np.ones(clients.n_rows, dtype=bool)
    for mask in (valid_numbers(clients[n]) for n in (*names, time, event)):
        good &= True if mask is None else mask
    with np.errstate(invalid="ignore"):
        return np.asarray(good & (clients[time] >= 0) & np.isin(clients[event], (0, 1)))


def multiples(time: Array, resolution: float) -> tuple[Array, Array]:
    """How many whole resolutions each time has, and whether it lies between two multiples; rounding errors are none.

    >>> [part.tolist() for part in multiples(np.array([0.29, 0.57, 0.575]), 0.01)]
    [[29.0, 57.0, 57.0], [False, False, True]]
    """
    units = time / resolution
    nearest = np.round(units)
    between = np.abs(units - nearest) > np.maximum(_CLOSE, _ULPS * np.spacing(units))
    return np.where(between, np.floor(units), nearest), between


def intervals(time: Array, times: Array, width: float = 1.0) -> Array:
    """The interval of the grid that each time is in, -1 before the first.

    A time is the next one of the grid where that is nearer than the last one, and as far away as a billionth of the gap
    between the two, or as rounding errors. Before the first the gap is the next one, `width` where there is one time.

    >>> intervals(np.array([0.5, 1.0, 1.5, 2 - 1e-12]), np.array([1.0, 2.0])).tolist()
    [-1, 0, 0, 1]
    """
    last = np.searchsorted(times, time, side="right") - 1
    following = np.minimum(last + 1, len(times) - 1)
    gap = np.diff(times, prepend=times[0] - (times[1] - times[0] if len(times) > 1 else width))[following]
    away, since = times[following] - time, np.where(last >= 0, time - times[last], np.inf)
    near = np.maximum(_CLOSE * gap, _ULPS * np.spacing(times[following]))
    return np.where((away > 0) & (away < since) & (away <= near), following, last)


def risk_sums(
    rows: Rows, beta: Array, times: Array, owner: Array, n: int, *, efron: bool, width: float = 1.0
) -> Arrays:
    """For each of n owners and each interval of the grid: sums of w, w x and w x x' of its rows, and of its events.

    A row is in the interval of its time; added from the last interval down they are the sums over the risk sets.
    """
    interval = intervals(rows.time, times, width)
    early = (interval < 0) & (rows.event > 0)
    if early.any():
        bad = int(np.flatnonzero(early)[0])
        raise DataError(f"times must begin at or before every event, but row {bad:,} has one at {rows.time[bad]:g}, "
                        f"before {times[0]:g}: begin the grid earlier")  # fmt: skip
    inside = interval >= 0
    xb = rows.x @ beta
    weight = np.exp(xb)
    sums = _moments(rows.x, weight, owner, interval, inside, (n, len(times)), "risk")
    events = rows.event > 0
    ones = np.zeros((n, len(times)))
    np.add.at(ones, (owner[events], interval[events]), 1.0)
    sums |= {
        "events": ones,
        "events_x": _added(rows.x[events], owner[events], n),
        "events_xb": _added(xb[events], owner[events], n),
    }
    return sums | (_moments(rows.x, weight, owner, interval, events, (n, len(times)), "tied") if efron else {})


def _added(values: Array, owner: Array, n: int) -> Array:
    out = np.zeros((n, *values.shape[1:]))
    np.add.at(out, owner, values)
    return out


def _moments(
    x: Array, weight: Array, owner: Array, interval: Array, which: Array, shape: tuple[int, int], name: str
) -> Arrays:
    """Sums of w, w x and w x x' over the rows that are marked, by owner and interval."""
    cell = (owner * shape[1] + interval)[which]
    w, rows = weight[which], x[which]
    order = np.argsort(cell, kind="stable")
    d, cells = x.shape[1], shape[0] * shape[1]
    zero, one = np.bincount(cell, w, minlength=cells).astype(np.float64), np.zeros((cells, d))
    np.add.at(one, cell, w[:, None] * rows)
    two = np.zeros((cells, d, d))
    ends = np.searchsorted(cell[order], np.arange(cells + 1))
    for c in np.flatnonzero(np.diff(ends)):
        mine = order[ends[c] : ends[c + 1]]
        two[c] = (w[mine, None] * rows[mine]).T @ rows[mine]
    return {name: zero.reshape(shape), f"{name}_x": one.reshape(*shape, d), f"{name}_xx": two.reshape(*shape, d, d)}


def newton_sums(rows: Rows, beta: Array, owner: Array, n: int, *, efron: bool) -> Arrays:
    """Each owner's own log-likelihood, score and information, compared with its own rows only.

    And `q` = U' I^-1 U with its rank as `freedom`: how far its own coefficients are from these.
    """
    d = rows.x.shape[1]
    names = {"log_likelihood": (), "score": (d,), "information": (d, d), "events": (), "q": (), "freedom": ()}
    out = {name: np.zeros((n, *shape)) for name, shape in names.items()}
    for i in range(n):
        mine = Rows(*(column[owner == i] for column in rows))
        value, score, information = _likelihood(mine, beta, efron=efron)
        values, vectors = np.linalg.eigh(information)
        good = values > 1e-8 * max(float(values.max(initial=0.0)), 1e-300)
        along = vectors[:, good].T @ score
        out["log_likelihood"][i], out["score"][i], out["information"][i] = value, score, information
        out["events"][i], out["freedom"][i] = mine.event.sum(), good.sum() if mine.event.any() else 0
        out["q"][i] = (along**2 / values[good]).sum() if mine.event.any() else 0.0
    return out


def _likelihood(rows: Rows, beta: Array, *, efron: bool) -> tuple[float, Array, Array]:
    """The log partial likelihood of one stratum, its gradient and minus its second derivative."""
    d = len(beta)
    value, score, information = 0.0, np.zeros(d), np.zeros((d, d))
    xb = rows.x @ beta
    weight = np.exp(xb)
    for t in np.unique(rows.time[rows.event > 0]):
        risk, tied = rows.time >= t, (rows.time == t) & (rows.event > 0)
        count = int(tied.sum())
        value, score = value + xb[tied].sum(), score + rows.x[tied].sum(axis=0)
        for k in range(count):
            w = weight * risk - (k / count if efron else 0.0) * weight * tied
            a0, a1 = w.sum(), w @ rows.x
            value, score = value - np.log(a0), score - a1 / a0
            information += (w[:, None] * rows.x).T @ rows.x / a0 - np.outer(a1, a1) / a0**2
    return value, score, information


class TimeScale(Computation):
    """How many binary digits the times of events have, in units of the resolution: a histogram of 64.

    With `strict` clients also send how many of their events lie between two multiples of the resolution.

    >>> from fedscape import rounds
    >>> fed = Federation({"time": [1.0, 5.0], "event": [1, 1]}, [0, 1, 2])
    >>> np.flatnonzero(next(rounds(TimeScale(), fed, n_rounds=1)).state["digits"]).tolist()
    [1, 3]
    """

    name = "cox-time-scale"

    def __init__(
        self, *, time: str = "time", event: str = "event", resolution: float = 1.0, strict: bool = False
    ) -> None:
        self.time = time
        self.event = event
        self.resolution = resolution
        self.strict = strict

    def start(self, seed: int) -> Arrays:
        return {"digits": np.zeros(64), **({"between": np.zeros(())} if self.strict else {})}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        rows = survival_rows(clients, self.time, self.time, self.event)
        units, between = multiples(rows.time, self.resolution)
        digits = np.minimum(np.ceil(np.log2(units + 1)), 63).astype(np.int64)
        owner = np.repeat(np.arange(len(clients)), clients.sizes)
        out = np.zeros((len(clients), 64), dtype=np.int64)
        np.add.at(out, (owner, digits), (rows.event > 0).astype(np.int64))
        if not self.strict:
            return {"digits": out}, {}
        number = np.bincount(owner, (rows.event > 0) & between, minlength=len(clients))
        return {"digits": out, "between": number.astype(np.int64)}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {name: np.asarray(total[name], dtype=np.float64) for name in state}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_survival(clients, self.time, self.time, self.event)

    @classmethod
    def examples(cls) -> Sequence[tuple[TimeScale, Federation]]:
        return [(cls(), _example()), (cls(resolution=0.5), _example()), (cls(strict=True), _example())]


class EventTimes(Computation):
    """How many events of all clients fall on each multiple of the resolution.

    >>> from fedscape import rounds
    >>> fed = Federation({"time": [1.0, 3.0], "event": [1, 0]}, [0, 1, 2])
    >>> next(rounds(EventTimes(4), fed, n_rounds=1)).state["counts"].tolist()
    [0.0, 1.0, 0.0, 0.0]
    """

    name = "cox-event-times"

    block_clients = 16  # a client sends one number for each time

    def __init__(
        self, n_times: int = 1024, *, time: str = "time", event: str = "event", resolution: float = 1.0
    ) -> None:
        self.n_times = n_times
        self.time = time
        self.event = event
        self.resolution = resolution
        check_whole("n_times", n_times, least=1)
        if n_times > MOST_TIMES:
            raise DataError(
                f"times reach {n_times:,} units of {resolution:g}, more than the {MOST_TIMES:,} that are counted: "
                "use a larger resolution, or give times="
            )

    def start(self, seed: int) -> Arrays:
        return {"counts": np.zeros(self.n_times)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        rows = survival_rows(clients, self.time, self.time, self.event)
        interval = multiples(rows.time, self.resolution)[0].astype(np.int64)
        owner, events = np.repeat(np.arange(len(clients)), clients.sizes), (rows.event > 0) & (interval < self.n_times)
        out = np.zeros((len(clients), self.n_times), dtype=np.int64)
        np.add.at(out, (owner[events], interval[events]), 1)
        return {"counts": out}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {"counts": np.asarray(total["counts"], dtype=np.float64)}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_survival(clients, self.time, self.time, self.event)

    @classmethod
    def examples(cls) -> Sequence[tuple[EventTimes, Federation]]:
        return [(cls(16), _example())]


class Concordance(Computation):
    """How often, of two rows of one client of which one had its event first, that one has the higher risk.

    Ties of risk count half (Harrell's C). The state holds the sums: `right` and `pairs`, and over clients that have a
    pair `index` and `judged`.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": [[1.0], [0.0]], "time": [1, 2], "event": [1, 1]}, [0, 2])
    >>> next(rounds(Concordance(np.ones(1)), fed, n_rounds=1)).state["index"].item()
    1.0
    """

    name = "cox-concordance"

    def __init__(
        self, coefficients: Array, *, features: str | Sequence[str] = "x", time: str = "time", event: str = "event"
    ) -> None:
        self.coefficients = coefficients
        self.features = features
        self.time = time
        self.event = event

    def start(self, seed: int) -> Arrays:
        return {name: np.zeros(()) for name in ("right", "pairs", "index", "judged")}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        rows = survival_rows(clients, self.features, self.time, self.event)
        risk = rows.x @ self.coefficients
        right, pairs = np.zeros(len(clients)), np.zeros(len(clients))
        for i in range(len(clients)):
            mine = slice(int(clients.offsets[i]), int(clients.offsets[i + 1]))
            right[i], pairs[i] = concordant(risk[mine], rows.time[mine], rows.event[mine])
        some = pairs > 0
        index = np.where(some, right / np.maximum(pairs, 1), 0.0)
        return {"right": right, "pairs": pairs, "index": index, "judged": some.astype(np.int64)}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {name: np.asarray(total[name], dtype=np.float64) for name in state}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_survival(clients, self.features, self.time, self.event)

    @classmethod
    def examples(cls) -> Sequence[tuple[Concordance, Federation]]:
        return [(cls(np.array([0.5, -1.0])), _example())]


def concordant(risk: Array, time: Array, event: Array) -> tuple[float, int]:
    """Pairs ordered rightly, ties of risk counting half, and pairs that can be compared.

    A pair can be compared where the earlier of the two had its event, or where at one time one had it and one left.

    >>> concordant(np.array([3.0, 2.0, 1.0]), np.array([1, 2, 3]), np.array([1, 0, 1]))
    (2.0, 2)
    """
    right, pairs = 0.0, 0
    for i in np.flatnonzero(event > 0):
        later = (time > time[i]) | ((time == time[i]) & (event == 0))
        right += float((risk[i] > risk[later]).sum()) + 0.5 * float((risk[i] == risk[later]).sum())
        pairs += int(later.sum())
    return right, pairs


def _example() -> Federation:
    rng = np.random.default_rng(6)
    offsets = offsets_of(rng.integers(0, 9, 14))
    n = offsets[-1]
    return Federation(
        {"x": rng.normal(size=(n, 2)), "time": rng.integers(1, 12, n), "event": rng.integers(0, 2, n)}, offsets
    )
