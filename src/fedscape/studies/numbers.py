"""The section numbers: which model of a number is advised, by how far each is off on rows held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_high
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.studies import tournament as learning
from fedscape.studies.budget import Budget, Limits
from fedscape.studies.choose import stability
from fedscape.studies.explain import watched
from fedscape.studies.intervals import FEW, plain
from fedscape.studies.judged_numbers import MEANS, JudgedNumbers
from fedscape.studies.linear_models import CALLED, SETTINGS, fitted
from fedscape.studies.prepare import Prepared
from fedscape.studies.sites import are_sites, joining
from fedscape.studies.staged import Stage, about_stage, left_out, notes_of, staged, tied
from fedscape.studies.stages import Stages
from fedscape.types import Array

ORDER = tuple(CALLED)  # the simplest first
COMMON = "linear"  # what clients fit together
_CHUNK = 8192

Say = Callable[[str], None]
Settings = dict[str, list[float]]  # of each model, one for each repeat


def numbers(
    data: Prepared,
    shares: Array,
    notes: list[str],
    progress: Stages,
    *,
    budget: Budget,
    sites: bool | None,
    show_clients: bool,
    seed: int,
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Every model in every repeat, its errors, and what is advised by the rule for classes."""
    assert data.rows is not None  # asked by the caller
    rows = learning.directions(data.rows)
    few = are_sites(len(data.counts), sites)
    say = progress.inside("learn", len(ORDER) * sum(limits.repeats for limits in budget.stages) + 1)

    def play(clients: Federation, limits: Limits, those: dict[str, int]) -> tuple[JudgedNumbers, Settings]:
        return tournament(clients, limits, seed=seed, sites=few, methods=tuple(those), say=say)

    played = staged(rows, budget, play, order=ORDER, common=COMMON, seed=seed)
    last = played[-1]
    notes += notes_of(rows, played, budget.name)
    who, true, judged, choice = last.who, last.rows, last.judged, last.choice
    together = max((m for m in ORDER if m != "local" and m in judged.hits), key=lambda name: judged.means[name])
    value = true["v"]
    section: dict[str, Any] = {
        "target": data.column,
        "clients": len(who),
        "sites": few,
        "test_rows": int(judged.rows_tested.sum()),
        "train_rows": true.n_rows - round(true.n_rows / judged.folds),
        "seeds": last.limits.repeats,
        "budget": budget.name,
        "capped": bool(left_out(rows, last)),
        "stages": [about_stage(stage) for stage in played],
        "inputs": int(rows["x"].shape[1]),
        "mean": float(value.mean()),
        "spread": float(np.sqrt(judged.spread)),
        "true": list({row["method"]: row for stage in played for row in standing(stage, seed=seed)}.values()),
        "advised": choice.advised,
        "best": choice.best,
        "tied": tied(played, ORDER),
        "simplest": choice.simplest,
        "over": {**choice.over, "method": choice.best, "baseline": MEANS[choice.baseline]},
        "stability": stability(judged, choice, order=ORDER, common=COMMON, seed=seed),
        "federated": judged.difference(together, "local", comparisons=len(ORDER) - 1),
        "federated_method": CALLED[together],
        "by_kind": _by_kind(judged, choice.advised or choice.best, shares[who], 1 if show_clients else FEW),
        "costs": costs(true, seed=seed),
    }
    if few:
        section["joining"] = _joining(judged, together, who, data, show_clients)
    return plain(section, 9), {"who": who, **{name: judged.clients[name] for name in judged.hits}}


def tournament(
    rows: Federation, limits: Limits, *, seed: int, say: Say, sites: bool = False, methods: Sequence[str] = ORDER
) -> tuple[JudgedNumbers, Settings]:
    """Every model in every repeat: how far it was off each row held out, and the settings that were chosen."""
    errors = {name: np.full((limits.repeats, rows.n_rows), np.nan) for name in (*methods, *MEANS)}
    used: Settings = {name: [] for name in methods}
    middle, scale = float(rows["v"].mean()), max(float(rows["v"].std()), 1e-300)
    rows = rows.with_column("at", np.arange(rows.n_rows)).with_column("v", (rows["v"] - middle) / scale)
    for repeat in range(limits.repeats):
        clients = learning.held_out(rows, repeat=repeat, seed=seed)
        at, truth = clients.test["at"], clients.test["v"]
        for name in methods:
            say(f"true clients: {CALLED[name]}")
            setting = tuned(name, clients.train, rounds=limits.rounds, seed=seed + repeat)
            used[name].append(setting)
            predict = fitted(name, clients.train, setting, rounds=limits.rounds, seed=seed + repeat)
            errors[name][repeat, at] = scale * (truth - predict(clients.test))
        for name, predicted in means(clients).items():
            errors[name][repeat, at] = scale * (truth - predicted)
    squares = np.bincount(rows.client_of_row, rows["v"] ** 2, len(rows)) / np.maximum(rows.sizes, 1)
    spread = scale**2 * max(float(squares[rows.sizes > 0].mean()), 1e-300)
    judged = JudgedNumbers(errors, rows.client_of_row, len(rows), learning.folds_for(rows), sites, None, spread=spread)
    return judged, used


def tuned(method: str, train: Federation, *, rounds: int, seed: int) -> float:
    """The setting with the least squared error, mean over clients, on rows held out of those to train on."""
    fit, held = train.split(test=0.25, seed=seed + 1)
    settings = SETTINGS[method]
    if held.n_rows == 0:  # clients of one row to train on: nothing can be held out of them
        return settings[len(settings) // 2]
    weight = 1 / held.sizes[held.client_of_row]
    by = {}
    for setting in settings:
        predict = fitted(method, fit, setting, rounds=max(1, rounds // 2), seed=seed)
        by[setting] = float(weight @ (held["v"] - predict(held)) ** 2)
    return min(by, key=lambda setting: by[setting])


def means(clients: learning.Clients) -> dict[str, Array]:
    """What the baselines say of each row to test on: the mean of all rows to train on, and the client's own.

    >>> fed = Federation({"v": [1.0, 3.0, 8.0]}, [0, 2, 3])
    >>> {name: said.tolist() for name, said in means(learning.Clients(fed, fed)).items()}
    {'mean': [4.0, 4.0, 4.0], 'own-mean': [2.0, 2.0, 8.0]}
    """
    train, test = clients.train, clients.test
    middle = float(train["v"].mean())
    total = np.bincount(train.client_of_row, train["v"], len(train))
    own = np.where(train.sizes > 0, total / np.maximum(train.sizes, 1), middle)
    return {"mean": np.full(test.n_rows, middle), "own-mean": own[test.client_of_row]}


def standing(stage: Stage[JudgedNumbers], *, seed: int) -> list[dict[str, Any]]:
    """Every model and baseline: R2, errors in units of the target, gain over the common model, lead over means."""
    judged, used = stage.judged, stage.used
    base = max(MEANS, key=lambda name: judged.means[name])
    rows = []
    for name in judged.hits:
        row: dict[str, Any] = {
            "method": name,
            "called": MEANS.get(name) or CALLED[name],
            "baseline": name in MEANS,
            "r2": judged.accuracy(name),
            "together": judged.accuracy(name, comparisons=len(ORDER)),
            "rmse": judged.rmse(name),
            "mae": judged.mae(name),
            "worst": judged.worst(name, seed=seed),
            "gain": None,
            "over": None if name in MEANS else judged.difference(name, base, comparisons=len(ORDER)),
            "behind": judged.difference(stage.choice.best, name, comparisons=len(ORDER) - 1),
            "setting": median_high(used[name]) if name in used else None,
            "clients": len(stage.who),
        }
        if name in ORDER and name != COMMON:
            row["gain"] = judged.difference(name, COMMON, comparisons=len(ORDER) - 1)
            apart = judged.clients[name] - judged.clients[COMMON]
            row["better"] = float((apart[np.isfinite(apart)] > 0).mean())
        rows.append(row)
    return rows


def _by_kind(judged: JudgedNumbers, method: str, shares: Array, least: int) -> list[dict[str, Any]]:
    return [
        {"kind": f"kind {chr(ord('A') + k)}", "clients": n, **about}
        for k, n, about in judged.of_kinds(method, shares.argmax(axis=1))
        if n >= max(least, 1)
    ]


def _joining(judged: JudgedNumbers, method: str, who: Array, data: Prepared, show_clients: bool) -> dict[str, Any]:
    """Who gains by joining, as for classes: R2 of each site alone and with the best model that joins them."""
    gains = judged.clients[method] - judged.clients["local"]
    order = np.argsort(-np.nan_to_num(gains, nan=-np.inf), kind="stable")
    names = [str(name) for name in data.table.ids[who]]
    if not show_clients:
        rank = {int(c): i for i, c in enumerate(order)}
        names = [f"site {rank[c] + 1}" for c in range(len(names))]
    section = joining(judged, method, names, least=1 if show_clients else FEW, exact=show_clients)
    section["rows"].sort(key=lambda row: -row["gain"]["value"])
    return section | {"called": CALLED[method]}


def costs(rows: Federation, *, seed: int) -> list[dict[str, Any]]:
    """For each model: rounds, and bytes of the costliest round of a client."""
    from fedscape.core.engine import Engine

    few = rows.take(np.argsort(-rows.sizes, kind="stable")[:6])
    few = few.with_column("of_client", np.zeros(few.n_rows, dtype=np.int64))
    listed = []
    for name in ORDER:

        def run(engine: Engine, name: str = name) -> object:
            return fitted(name, few, SETTINGS[name][0], rounds=2, seed=seed, engine=engine)

        phases = watched(run, few) if name != "local" else []
        heaviest = max(phases, key=lambda phase: phase["bytes_up"], default={"bytes_up": 0, "bytes_down": 0})
        listed.append(
            {
                "method": name,
                "called": CALLED[name],
                "bytes_up": heaviest["bytes_up"],
                "bytes_down": heaviest["bytes_down"],
                "revealed": sorted({array for phase in phases for array in phase["reveals"]}),
            }
        )
    return listed
