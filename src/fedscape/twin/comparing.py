"""How alike two logs of devices are, and what a twin foretells: sizes of the misfit with intervals, then p-values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.simulate.fidelity import Measure
from fedscape.twin.dates import shown
from fedscape.twin.events import HOUR, checked
from fedscape.twin.model import Twin
from fedscape.types import Array

#: Edges of session lengths and return times, in hours.
BINS = np.geomspace(1 / 60, 240.0, 60)
#: Edges of the share of time that a device is available.
SHARES = np.linspace(0.0, 1.0, 51)
ASPECTS = ("arrivals", "presence", "lengths", "returns", "devices")


@dataclass(frozen=True, eq=False)
class TwinFidelity:
    """The result of `fidelity`: five aspects, each 0 if the laws are the same. Devices are resampled and exchanged.

    `arrivals` and `presence`: difference of the curves by hour of the day, as a share of the true level. `lengths` and
    `returns`: Wasserstein distance between the laws of sessions and of gaps, in factors of e. `devices`: Wasserstein
    distance between the laws of the share of time that a device is available.
    """

    arrivals: Measure
    presence: Measure
    lengths: Measure
    returns: Measure
    devices: Measure

    @property
    def p(self) -> float:
        """The p-value of all five together (Bonferroni)."""
        return float(min(1.0, len(ASPECTS) * min(getattr(self, name).p for name in ASPECTS)))

    def table(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {**{name: asdict(getattr(self, name)) for name in ASPECTS}, "p": self.p}

    def __str__(self) -> str:
        return "\n".join(f"{name}: {getattr(self, name)}" for name in ASPECTS)


def fidelity(
    true: Federation,
    simulated: Federation,
    *,
    fitted_to: int | None = None,
    draws: int = 400,
    most: int = 5000,
    seed: int = 0,
) -> TwinFidelity:
    """Compare the logs of true and simulated devices, which lie in the same time.

    Simulated devices that were observed all the time are looked at through the observed spans of true ones, drawn at
    random: what a log does not see is missing in both. P-values are of permutations of devices; their sessions stay
    together.

    Parameters
    ----------
    true, simulated
        Events; the simulated ones of `Devices.sessions` over the whole time of the true ones.
    fitted_to
        How many devices the twin was fitted to that simulated. Its laws are as wrong as so few devices make them, and
        what is found by chance is widened accordingly: as if each law had been taken from these devices as it stands.
        None takes the simulated law as exact.
    draws
        Permutations, and bootstrap draws for the intervals.
    most
        Devices of each, at most.

    >>> from fedscape.twin import sessions
    >>> rng = np.random.default_rng(0)
    >>> logs = [sessions(np.arange(90), s := rng.uniform(0, 8e4, 90), s + 3e3, window=(0, 86400)) for _ in range(2)]
    >>> fidelity(*logs).p > 0.01
    True
    """
    rng = Key(seed, purpose="twin fidelity").generator()
    logs = [_some(checked(log), most, rng) for log in (true, simulated)]
    check_whole("draws", draws, least=1)
    if min(len(log) for log in logs) < 20:
        raise DataError(f"fidelity compares laws and needs 20 devices of each, got {len(true)} and {len(simulated)}")
    if logs[1]["watch"].sum() == len(logs[1]):  # one span each
        _check_same_time(*logs)
        logs[1] = observed_like(logs[1], logs[0], rng)
    if (logs[0]["watch"] == 1).all():
        raise DataError("the true log has no session: there is nothing to compare with")
    a, b = (features(log) for log in logs)
    measures, wider = {}, _wider(len(logs[0]), len(logs[1]), fitted_to)
    for name, statistic in STATISTICS.items():
        measures[name] = _tested(a[name], b[name], statistic, rng, draws, wider)
    return TwinFidelity(**measures)


def _wider(true: int, simulated: int, fitted_to: int | None) -> float:
    """How much larger differences by chance are with the error of a fit in them: every statistic is one of degree 1.

    >>> _wider(100, 100, 50), _wider(100, 100, None)
    (1.4142135623730951, 1.0)
    """
    if fitted_to is None:
        return 1.0
    check_whole("fitted_to", fitted_to, least=1)
    return float(np.sqrt(1 + (1 / fitted_to) / (1 / true + 1 / simulated)))


def _check_same_time(true: Federation, simulated: Federation) -> None:
    """Refuse a simulated log that begins after, or ends before, the half of the time that the true one has."""
    (a, b), (c, d) = ((float(log["start"].min()), float(log["end"].max())) for log in (true, simulated))
    if min(b, d) - max(a, c) < 0.5 * (b - a):
        raise DataError(
            f"the two logs must lie in the same time, not {shown(a)} to {shown(b)} and {shown(c)} to {shown(d)}: "
            "simulate with sessions(begin, end) of the true one"
        )


def _some(log: Federation, most: int, rng: np.random.Generator) -> Federation:
    return log if len(log) <= most else log.take(np.sort(rng.permutation(len(log))[:most]))


def observed_like(log: Federation, other: Federation, rng: np.random.Generator) -> Federation:
    """The log as if each device had been observed in the spans of a random device of another log."""
    order = np.resize(rng.permutation(len(other)), len(log))
    owner, start, end, watch = [], [], [], []
    for i in range(len(log)):
        own = slice(log.offsets[i], log.offsets[i + 1])
        view = slice(other.offsets[order[i]], other.offsets[order[i] + 1])
        seen = other["watch"][view] == 1
        session = log["watch"][own] == 0
        a, b = other["start"][view][seen], other["end"][view][seen]
        s, e = log["start"][own][session], log["end"][own][session]
        low, high = np.maximum(s[:, None], a), np.minimum(e[:, None], b)
        inside = low < high
        start += [a, low[inside]]
        end += [b, high[inside]]
        watch += [np.ones(len(a), dtype=np.int8), np.zeros(int(inside.sum()), dtype=np.int8)]
        owner.append(np.full(len(a) + int(inside.sum()), i))
    columns = {n: np.concatenate(v) for n, v in (("start", start), ("end", end), ("watch", watch))}
    return checked(Federation.from_arrays(columns, np.concatenate(owner), ids=np.arange(len(log))))


def features(log: Federation) -> dict[str, Array]:
    """What each device adds to the sums that the aspects compare: {aspect: [devices, ...]}."""
    n, owner, watch = len(log), log.client_of_row, log["watch"] == 1
    observed = hours_of_day(log["start"][watch], log["end"][watch], owner[watch], n)
    s, e, who = log["start"][~watch], log["end"][~watch], owner[~watch]
    present = hours_of_day(s, e, who, n)
    span = np.maximum.accumulate(np.where(watch, np.arange(log.n_rows), -1))[~watch]
    begun, ended = s > log["start"][span], e < log["end"][span]
    arrivals = np.zeros((n, 24))
    np.add.at(arrivals, (who[begun], (s[begun] // HOUR % 24).astype(int)), 1.0)
    whole = begun & ended
    pair = (np.diff(who) == 0) & (np.diff(span) == 0)
    share = present.sum(axis=1) / np.maximum(observed.sum(axis=1), 1e-9)
    below = (share[:, None] <= SHARES) * (observed.sum(axis=1) > 0)[:, None]
    return {
        "arrivals": np.concatenate([arrivals, observed], axis=1),
        "presence": np.concatenate([present, observed], axis=1),
        "lengths": _counted(who[whole], ((e - s) / HOUR)[whole], n),
        "returns": _counted(who[1:][pair], ((s[1:] - e[:-1]) / HOUR)[pair], n),
        "devices": below.astype(float),
    }


def hours_of_day(start: Array, end: Array, owner: Array, n: int) -> Array:
    """Hours of intervals in each hour of the day: [n, 24].

    >>> hours_of_day(np.array([1800.0]), np.array([9000.0]), np.array([0]), 1)[0, :4].tolist()
    [0.5, 1.0, 0.5, 0.0]
    """
    edges = np.arange(25) * HOUR

    def before(t: Array) -> Array:
        """Hours before t in each hour of the day, [intervals, 24]."""
        days = np.floor(t / (24 * HOUR))
        rest = (t - days * 24 * HOUR)[:, None]
        return np.asarray(days[:, None] + np.clip(rest - edges[:-1], 0.0, HOUR) / HOUR)

    out = np.zeros((n, 24))
    np.add.at(out, owner, before(end) - before(start))
    return out


def _counted(owner: Array, hours: Array, n: int) -> Array:
    """How many of a device's durations are at most as long as each edge; the last column counts all."""
    counts = np.zeros((n, len(BINS) + 1))
    np.add.at(counts, (owner, np.searchsorted(BINS, hours, side="left")), 1.0)
    return np.asarray(np.cumsum(counts, axis=1))


def _curves(a: Array, b: Array) -> Array:
    """The mean difference of two rates by hour, over the level of the first: sums [..., 48] twice."""
    rate = [x[..., :24] / np.maximum(x[..., 24:], 1e-9) for x in (a, b)]
    return np.asarray(np.abs(rate[0] - rate[1]).mean(axis=-1) / np.maximum(rate[0].mean(axis=-1), 1e-12))


def _laws(a: Array, b: Array) -> Array:
    """The area between two cumulative distribution functions over log hours."""
    share = [x[..., :-1] / np.maximum(x[..., -1:], 1.0) for x in (a, b)]
    return np.asarray(np.abs(share[0] - share[1])[..., :-1] @ np.diff(np.log(BINS)))


def _shares(a: Array, b: Array) -> Array:
    """The area between two cumulative distribution functions over shares of time."""
    share = [x / np.maximum(x[..., -1:], 1.0) for x in (a, b)]
    return np.asarray(np.abs(share[0] - share[1])[..., :-1] @ np.diff(SHARES))


Statistic = Callable[[Array, Array], Array]
STATISTICS: dict[str, Statistic] = {
    "arrivals": _curves,
    "presence": _curves,
    "lengths": _laws,
    "returns": _laws,
    "devices": _shares,
}


def _tested(a: Array, b: Array, statistic: Statistic, rng: np.random.Generator, draws: int, wider: float) -> Measure:
    """The statistic of two sums over devices; a reflected bootstrap interval, mean and tail under permutations."""
    both = np.concatenate((a, b))
    value = float(statistic(a.sum(axis=0), b.sum(axis=0)))
    order = rng.permuted(np.tile(np.arange(len(both)) < len(a), (draws, 1)), axis=1).astype(float)
    first = order @ both
    null = wider * statistic(first, both.sum(axis=0) - first)
    again = [rng.multinomial(len(x), np.full(len(x), 1 / len(x)), size=draws) @ x for x in (a, b)]
    low, high = np.quantile(statistic(again[0], again[1]), [0.025, 0.975])
    p = float((1 + (null >= value - 1e-12).sum()) / (draws + 1))
    begin = max(2 * value - float(high), 0.0) if p <= 0.05 else 0.0
    return Measure(value, begin, max(2 * value - float(low), value), float(null.mean()), p)


@dataclass(frozen=True, eq=False)
class Forecast:
    """A quantity of a log, and the interval that a twin foretells for it.

    >>> Forecast(np.array([3.0, 9.0]), np.array([2.0, 2.0]), np.array([4.0, 4.0])).covered
    0.5
    """

    value: Array
    low: Array
    high: Array

    @property
    def covered(self) -> float:
        """The share of the numbers that lie in their intervals."""
        return float(((self.low <= self.value) & (self.value <= self.high)).mean())


def resampled(log: Federation, key: Key) -> Federation:
    """As many devices of the log, drawn with replacement: a twin fitted to them differs as fits do.

    >>> from fedscape.twin import sessions
    >>> len(resampled(sessions(["a", "b"], [0.0, 5.0], [3.0, 8.0]), Key(1)))
    2
    """
    if not len(log):
        raise DataError("there are no devices to draw from")
    at = np.sort(key.generator().integers(0, len(log), len(log)))
    rows = np.concatenate([np.arange(log.offsets[i], log.offsets[i + 1]) for i in at])
    columns = {name: values[rows] for name, values in log.columns.items()}
    return Federation(columns, offsets_of(log.sizes[at]), names=log.names)


def foretell(
    twin: Twin | Sequence[Twin], log: Federation, *, draws: int = 200, level: float = 0.95, seed: int = 0
) -> dict[str, Forecast]:
    """What a twin foretells of devices that it was not fitted to, beside their log.

    Each draw samples as many devices, over the same time, seen through the same spans. Intervals are of single numbers.
    One twin is taken as exact. Several, each fitted to devices of `resampled`, take turns: their spread is the error of
    the fit.

    Parameters
    ----------
    twin
        Fitted to other devices; or several of them.
    log
        The devices to foretell.
    draws, level
        Populations that are drawn, and the level of the intervals.

    >>> from fedscape.twin import fit, sessions
    >>> log = sessions(np.arange(30), np.arange(30) * 2e3, np.arange(30) * 2e3 + 3e3, window=(-1e5, 2e5))
    >>> sorted(foretell(fit(log, n_kinds=1, rounds=6), log, draws=9))
    ['arrivals by hour', 'available by hour', 'lengths', 'returns']
    """
    log = checked(log)
    twins = [twin] if isinstance(twin, Twin) else list(twin)
    check_whole("draws", draws, least=1)
    if not twins or not log.n_rows or not 0 < level < 1:
        raise DataError(f"foretell needs a twin, a log and a level between 0 and 1, not {len(twins)} twins and {level}")
    begin, end = float(log["start"].min()), float(log["end"].max())
    rows: dict[str, list[Array]] = {}
    for draw in range(draws):
        key = Key(seed, draw, "foretell")
        drawn = twins[draw % len(twins)].sample(len(log), key).sessions(begin, end)
        for name, values in _quantities(observed_like(drawn, log, key.generator())).items():
            rows.setdefault(name, []).append(values)
    tail = (1 - level) / 2
    forecasts = {}
    for name, value in _quantities(log).items():
        low, high = np.nanquantile(np.stack(rows[name]), [tail, 1 - tail], axis=0)
        forecasts[name] = Forecast(value, low, high)
    return forecasts


def _quantities(log: Federation) -> dict[str, Array]:
    """Arrivals an hour and devices available, by hour of the day, as shares of those observed; shares of durations."""
    sums = {name: values.sum(axis=0) for name, values in features(log).items()}
    at = np.searchsorted(BINS, [0.6, 1.1, 2.1, 4.1, 8.1, 12.1])
    return {
        "arrivals by hour": sums["arrivals"][:24] / np.maximum(sums["arrivals"][24:], 1e-9),
        "available by hour": sums["presence"][:24] / np.maximum(sums["presence"][24:], 1e-9),
        "lengths": sums["lengths"][at] / max(sums["lengths"][-1], 1.0),
        "returns": sums["returns"][at] / max(sums["returns"][-1], 1.0),
    }
