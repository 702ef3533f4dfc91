"""What a study says of a column of dates: do labels follow the clock, how long is the cycle, what does it cost?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.sampling import uniform_of
from fedscape.studies.prepare import Prepared, categories_of, features_of
from fedscape.types import Array, Arrays, HasKeys

_SLOTS = 336  # rounds of a training through time: two weeks of hours, or 48 weeks of days
_UNITS = {"hour": 1.0, "day": 24.0}  # how long a slot may be, in hours
_LEAST = 48  # slots with rows before a cycle is looked for
_SIGNIFICANCE = 0.01  # of a cycle by any of the units
_DRAWS = 399  # permutations behind a p-value
_COHORT = 20  # clients in a round
_INERTIA = 0.98  # of the mean network, as by default in FedClock
_PER_UNIT = 20  # rows of a client in a slot that train


@dataclass(frozen=True)
class Slots:
    """The rows of a window of time, by slot: `clients` are pairs of a slot and a client, `slot` [clients] is theirs."""

    clients: Federation
    slot: Array
    unit: str
    number: int


@dataclass(frozen=True, eq=False)
class InTurn:
    """A sampler that draws clients of the slot whose turn it is."""

    slot: Array
    order: Array
    size: int = _COHORT

    def draw(self, clients: HasKeys, key: Key) -> Array:
        members = np.flatnonzero(self.slot == self.order[key.round % len(self.order)])
        return np.sort(members[np.argsort(uniform_of(members, clients, key), kind="stable")[: self.size]])


def time_column(data: Prepared) -> str | None:
    """The first column of dates; None where there is none."""
    dates = (kind.name for kind in data.reading.columns if data.table[kind.name].dtype.kind == "M")
    return next(dates, None)


def study_clock(data: Prepared, *, seed: int) -> dict[str, Any] | None:
    """Look for a cycle in the labels by time, and train through it; None without dates, labels or enough time.

    The mean of clients' label shares in each slot is projected on the direction in which slots differ most.
    `read_clock` looks for a cycle in it, by hours and by days; no period is passed. Where there is one, one model is
    trained through time, one in shuffled time, and FedClock that knows only the period read.
    """
    from fedscape.temporal import read_clock

    column = time_column(data)
    if column is None or data.rows is None or not data.labels:
        return None
    looked = []
    for unit in _UNITS:
        slots = slots_of(data, column, unit, seed)
        if slots is not None:
            cycle = read_clock(
                _curve(slots, len(data.names)), draws=_DRAWS, significance=_SIGNIFICANCE / len(_UNITS), seed=seed
            )
            looked.append((cycle.p_value, -cycle.strength, slots, cycle))
    if not looked:
        return None
    _, _, slots, cycle = min(looked, key=lambda entry: entry[:2])
    section: dict[str, Any] = {"column": column, "unit": slots.unit, "slots": slots.number}
    section["p"] = min(1.0, len(_UNITS) * cycle.p_value)  # the smaller of several
    section |= {"period": cycle.period, "interval": None if cycle.interval is None else list(cycle.interval)}
    if cycle.period is not None and "x" in slots.clients:
        section["accuracy"] = _through_time(slots, cycle.period, seed)
    return section


def slots_of(data: Prepared, column: str, unit: str, seed: int) -> Slots | None:
    """The rows of the busiest window, cut into slots of this unit; None where too few slots have rows."""
    table, hours = data.table, _UNITS[unit]
    codes = categories_of(table, data.column, [], data.reading[data.column])[0]
    times = table[column].astype("datetime64[s]")
    dated = (codes >= 0) & ~np.isnat(times)
    seconds = np.where(dated, times.astype(np.int64), 0)
    at = seconds // int(3600 * hours)
    at = at - at[dated].min() if dated.any() else at
    number = int(at[dated].max()) + 1 if dated.any() else 0
    if number < _LEAST:
        return None
    rows = np.bincount(at[dated], minlength=number)
    sums = np.concatenate([[0], np.cumsum(rows)])
    width = min(number, _SLOTS)
    begin = int((sums[width:] - sums[:-width]).argmax())
    if (rows[begin : begin + width] > 0).sum() < _LEAST:
        return None
    inside = dated & (at >= begin) & (at < begin + width)
    client = np.arange(table.n_rows)[inside]
    order = client[np.lexsort((table.client_of_row[client], at[client]))]
    pair = np.stack([at[order] - begin, table.client_of_row[order]], axis=1)
    first = np.flatnonzero(np.concatenate([[True], (pair[1:] != pair[:-1]).any(axis=1)]))
    offsets = np.append(first, len(order))
    position = np.arange(len(order)) - np.repeat(first, np.diff(offsets))
    part = Federation({name: table[name][order] for name in table.columns}, offsets, names=table.names)
    some = part.with_column("y", codes[order].astype(np.int32)).where(position < _PER_UNIT)
    x = features_of(some, data.column, data.reading, [])[1]
    columns = {"y": some["y"]} if x is None else {"y": some["y"], "x": x}
    return Slots(Federation(columns, some.offsets), pair[first, 0], unit, width)


def _curve(slots: Slots, n_classes: int) -> Array:
    """One number a slot: clients' mean label roots along the direction in which slots differ most; NaN if empty."""
    counts = slots.clients.counts("y", max(n_classes, int(slots.clients["y"].max()) + 1))
    roots = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    clients = np.bincount(slots.slot, minlength=slots.number).astype(float)
    sums = np.zeros((slots.number, counts.shape[1]))
    np.add.at(sums, slots.slot, roots)
    some = clients > 0
    means = sums[some] / clients[some, None]
    away = (means - means.mean(axis=0)) * np.sqrt(clients[some])[:, None]
    main = np.linalg.svd(away, full_matrices=False)[2][0]
    out = np.full(slots.number, np.nan)
    out[some] = (means - means.mean(axis=0)) @ main
    return out


def _through_time(slots: Slots, period: float, seed: int) -> dict[str, float | str]:
    """Accuracy on held-out rows: trained through time, in shuffled time, and by FedClock; what FedClock says.

    "mean network" is the training through time whose networks are averaged over rounds, which FedClock does too.
    """
    from fedscape.core.rounds import rounds
    from fedscape.learning import LocalSGD, cross_entropy, models
    from fedscape.methods import Options, make
    from fedscape.temporal import FedClock, Harmonics, MultiBranch

    train, test = slots.clients.split(test=0.25, seed=seed)
    classes, turn = int(slots.clients["y"].max()) + 1, np.arange(slots.number)
    net = models.mlp(train["x"].shape[1], 32, classes)
    step = LocalSGD(MultiBranch(net, seed=seed), cross_entropy, lr=0.1, epochs=1, batch_size=10)
    shuffled = Key(seed, purpose="shuffled time").generator().permutation(slots.number)
    plans = {
        "through time": (make("vanilla", step, Options()), turn),
        "shuffled time": (make("vanilla", step, Options()), shuffled),
        "FedClock": (FedClock(step, Harmonics(period)), turn),
    }
    out, test = dict[str, float | str](), test.take(np.flatnonzero(test.sizes > 0))
    for name, (method, order) in plans.items():
        loop = rounds(method, train, n_rounds=slots.number, sampler=InTurn(slots.slot, order), seed=seed, measure=0)
        out[name], of_mean, state = _accuracy(method, loop, test, slots.number, period)
        if name == "through time":
            out["mean network"] = of_mean
        if isinstance(method, FedClock):
            out["verdict"] = str(method.verdict(state))
    return out


def _accuracy(method: Any, loop: Any, test: Federation, n: int, period: float) -> tuple[float, float, Any]:
    """Mean accuracy at four times of the last period, by the network and by its mean over rounds; the last state."""
    from fedscape.temporal import evaluate
    from fedscape.temporal.mean_network import first_mean, next_mean, with_mean

    marks, right = {n - 1 - int(period * i / 4) for i in range(4)}, []
    mean: Arrays = {}
    for r in loop:
        mean = next_mean(method.local, {**r.state, **(mean or first_mean(r.state))}, r.state, _INERTIA, r.index)
        if r.index in marks:
            states = (r.state, with_mean({**r.state, **mean}))
            right.append(
                [float(evaluate(method, state, test, unit="client").summary()["accuracy_pooled"]) for state in states]
            )
    plain, of_mean = np.mean(right, axis=0)
    return float(plain), float(of_mean), r.state


def advice(section: dict[str, Any]) -> dict[str, Any]:
    """The answer of a study to the question of time."""
    question = f"Do labels follow the clock (column {section['column']!r})?"
    item = {"question": question, "value": section["p"], "low": None, "high": None}
    if section["period"] is None:
        text = f"No cycle is seen in {section['slots']} {section['unit']}s (p = {section['p']:.2g})."
        return {**item, "answer": "no", "text": text}
    low, high = section["interval"]
    text = f"Yes: every {section['period']:.4g} {section['unit']}s [{low:.4g}, {high:.4g}] (p = {section['p']:.2g})."
    if "accuracy" in section:
        accuracy = section["accuracy"]
        cost, gain = (accuracy[name] - accuracy["through time"] for name in ("shuffled time", "FedClock"))
        text += (
            f" Training through time is {100 * accuracy['through time']:.1f}% right, in shuffled time "
            f"{100 * accuracy['shuffled time']:.1f}%: the shift costs {100 * cost:.1f} points. FedClock is "
            f"{100 * accuracy['FedClock']:.1f}% right and "
        )
        text += f"has {100 * gain:+.1f} points over the first ({accuracy['verdict']}). "
        text += f"It predicts by the mean of its networks; that alone is {100 * accuracy['mean network']:.1f}% right. "
        text += "Each is one training: these differences have no interval, and nothing is advised by them."
    return {**item, "answer": "yes", "text": text}
