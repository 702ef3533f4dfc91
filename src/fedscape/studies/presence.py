"""What a study says of times: who is there when, who a deadline leaves out, whether asynchronous training helps."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import plural
from fedscape.studies.budget import Budget
from fedscape.studies.dates import times_of
from fedscape.studies.intervals import plain
from fedscape.studies.prepare import Prepared
from fedscape.studies.virtual_time import FITTED, Log, fitted_twin, some_devices, trained
from fedscape.types import Array

HOUR, DAY = 3600.0, 86400.0
_GAP, _LINGER = 30.0, 10.0  # minutes: rows closer than this are one session, which ends so long after its last row
_TESTABLE = 40  # devices below which a twin is not tested
_LEAST_AT_ONCE = 3.0  # devices there at once, below which nothing is trained in virtual time


def log_of(data: Prepared, events: Federation | None, tick: float, notes: list[str]) -> Log | None:
    """The log of a study: the one that was passed, or rows with a time of day as check-ins; None without either."""
    from fedscape.twin import from_check_ins
    from fedscape.twin.events import checked

    names = [str(name) for name in data.table.ids]
    if events is not None:
        position = {name: i for i, name in enumerate(names)}
        own = np.array([position.get(str(name), -1) for name in events.ids])
        if (own >= 0).sum() < 0.5 * min(len(events), len(names)):
            notes.append("The devices of the log are not the clients: devices like them are drawn from a twin.")
            return Log(checked(events), tick, None, None)
        matched = np.flatnonzero(own >= 0)
        if (missing := len(names) - len(matched)) > 0:
            notes.append(f"{plural(missing, 'client')} of {len(names):,} are not in the log of times.")
        return Log(checked(events.take(matched)), tick, None, own[matched])
    column = next((kind.name for kind in data.reading.columns if kind.kind == "date"), None)
    times = None if column is None else times_of(data.table[column], data.table.names.get(column))
    if times is None:
        return None
    valid = ~np.isnat(times)
    if not valid.any() or (times[valid] == times[valid].astype("datetime64[h]")).all():
        return None  # to the day, or to the hour: no check-ins
    who = data.table.client_of_row[valid]
    log = from_check_ins(who, times[valid], gap_minutes=_GAP, least_minutes=_LINGER)
    return Log(log, 0.0, column, np.asarray(log.ids))


def study_presence(
    data: Prepared,
    shares: Array,
    log: Log,
    notes: list[str],
    *,
    learned: dict[str, Any] | None,
    budget: Budget,
    least: int,
    seed: int,
) -> dict[str, Any]:
    """Who is there by hour, with a test of the rhythm; if enough are there at once, who a deadline leaves out.

    The last part trains FedAvg in virtual time by three protocols, on the log itself or on devices of its twin. It
    needs `learned`, the section of the tournament, for the learning rate and the accuracy to reach.
    """
    section: dict[str, Any] = {"column": log.column, "devices": len(log.events), **_who(log.events, least)}
    if log.client is not None:
        section["kinds"] = _of_kinds(log.events, shares[log.client].argmax(axis=1), least)
    section["twin"] = _tested(log, seed)
    at_once = section["at_once"] * (1.0 if log.client is not None else len(data.counts) / len(log.events))
    if at_once < _LEAST_AT_ONCE:
        notes.append(f"On average {at_once:.2g} devices are there at once: nothing was trained in virtual time.")
    elif learned is not None and data.rows is not None:
        section["training"] = trained(data, shares, log, learned, budget, at_once, least, seed)
    return plain(section)  # type: ignore[no-any-return]


def _who(log: Federation, least: int) -> dict[str, Any]:
    """Share of devices there by hour of the day, with intervals over devices, and a test of whether hours differ."""
    from fedscape.twin.comparing import features

    sums = features(log)["presence"]
    present, observed = sums[:, :24], sums[:, 24:]
    span = float(log["end"].max() - log["start"].min())
    hours: list[dict[str, Any]] = []
    for hour in range(24):
        ratio, error = _ratio(present[:, hour], observed[:, hour])
        few = 0 < (present[:, hour] > 0).sum() < least
        interval = {"value": ratio, "low": max(ratio - 1.96 * error, 0.0), "high": min(ratio + 1.96 * error, 1.0)}
        hours.append({"hour": hour, **({"value": None, "low": None, "high": None} if few else interval)})
    session = log["watch"] == 0
    length = (log["end"] - log["start"])[session] / HOUR
    owner = log.client_of_row[session]
    mean, error = _ratio(np.bincount(owner, length, len(log)), np.bincount(owner, minlength=len(log)).astype(float))
    listed = [entry for entry in hours if entry["value"] is not None]
    return {
        "sessions": int(session.sum()),
        "days": span / DAY,
        "at_once": float(present.sum() / max(observed.sum(), 1e-9) * len(log)),
        "length": {"value": mean, "low": max(mean - 1.96 * error, 0.0), "high": mean + 1.96 * error},
        "hours": hours,
        "rhythm": _rhythm(present, observed),
        "most": max(listed, key=lambda entry: float(entry["value"]))["hour"] if listed else None,
        "fewest": min(listed, key=lambda entry: float(entry["value"]))["hour"] if listed else None,
    }


def _of_kinds(log: Federation, kind: Array, least: int) -> dict[str, dict[str, Any]]:
    """Share of the clients of each kind there by hour of the day, None where few ever are, and the test of rhythm."""
    from fedscape.twin.comparing import features

    sums, out = features(log)["presence"], dict[str, dict[str, Any]]()
    for k in np.unique(kind[kind >= 0]).tolist():
        own = sums[kind == k]
        present, observed = own[:, :24].sum(axis=0), own[:, 24:].sum(axis=0)
        few = ((own[:, :24] > 0).sum(axis=0) < least) & (present > 0) | (len(own) < least)
        if few.all():
            continue
        share = [None if hide else float(t / max(s, 1e-9)) for hide, t, s in zip(few, present, observed, strict=True)]
        out[chr(ord("A") + k)] = {"shares": share, "rhythm": _rhythm(own[:, :24], own[:, 24:])}
    for entry in out.values():  # simultaneous
        entry["rhythm"] = None if entry["rhythm"] is None else min(1.0, len(out) * entry["rhythm"])
    return out


def _ratio(above: Array, below: Array) -> tuple[float, float]:
    """A ratio of two sums over devices, and its standard error by the delta method."""
    total = float(below.sum())
    if total <= 0:
        return 0.0, 0.0
    value = float(above.sum()) / total
    return value, float(np.sqrt(((above - value * below) ** 2).sum())) / total


def _rhythm(present: Array, observed: Array) -> float | None:
    """P-value of the hypothesis that hours of the day do not matter: Hotelling's test of the first daily wave."""
    from scipy.special import fdtrc

    n, share = len(present), float(present.sum()) / max(float(observed.sum()), 1e-9)
    angle = 2 * np.pi * (np.arange(24) + 0.5) / 24
    away = (present - share * observed) @ np.stack([np.cos(angle), np.sin(angle)], axis=1)  # [devices, 2]
    covariance = np.cov(away.T) if n > 3 else np.zeros((2, 2))
    if np.linalg.matrix_rank(covariance) < 2:
        return None
    mean = away.mean(axis=0)
    squared = n * float(mean @ np.linalg.solve(covariance, mean))
    return float(fdtrc(2, n - 2, (n - 2) / (2 * (n - 1)) * squared))


def _tested(log: Log, seed: int) -> dict[str, Any] | None:
    """A twin of half of the devices against the other half; None for few devices."""
    from fedscape.twin import fidelity
    from fedscape.twin.comparing import ASPECTS

    some = log.events.take(some_devices(len(log.events), FITTED, seed))
    if len(some) < _TESTABLE:
        return None
    train, test = some.split_clients(test=0.5, seed=seed)
    begin, end = float(some["start"].min()), float(some["end"].max())
    drawn = fitted_twin(train, log.tick, seed).sample(2 * len(test), Key(seed)).sessions(begin, end)
    compared = fidelity(test, drawn, fitted_to=len(train), draws=199, seed=seed)
    worst = min(ASPECTS, key=lambda aspect: float(getattr(compared, aspect).p))
    return {"fitted": len(train), "tested": len(test), "p": compared.p, "worst": worst}
