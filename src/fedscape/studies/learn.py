"""The section learn: the tournament on simulated and true clients, and further numbers for the advice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.errors import plural
from fedscape.methods import METHODS, Columns, Options, train
from fedscape.methods.tabular import DEPTH, rounds_for
from fedscape.simulate import FromMixture
from fedscape.studies import tournament as learning
from fedscape.studies.advise import DEVICE
from fedscape.studies.budget import Budget, Limits
from fedscape.studies.choose import Choice, choose, climbing, stability
from fedscape.studies.explain import watched
from fedscape.studies.fidelity import clients_of
from fedscape.studies.intervals import FEW, around, plain
from fedscape.studies.judged import BASELINES, Judged
from fedscape.studies.prepare import Prepared
from fedscape.studies.sites import are_sites, joining
from fedscape.studies.staged import Stage, about_stage, fewer_rows, left_out, notes_of, staged, tied
from fedscape.studies.stages import Stages
from fedscape.studies.standing import standing
from fedscape.studies.tournament import Tuned
from fedscape.types import Array

_LEAST_LEARNERS = 4
_CALLED = {**{name: method.title for name, method in METHODS.items()}, **BASELINES}


def why_not(data: Prepared) -> str | None:
    """Why no methods are compared; None where they are."""
    if data.rows is None or not data.width or not data.labels:
        return "left out"
    if not data.number and find_spec("torch") is None:
        return "Training is left out: it needs torch, pip install 'fedscape[learn]'."
    able = int((data.rows.sizes >= 2).sum())
    if able >= _LEAST_LEARNERS:
        return None
    what = f"Models of {data.column!r} are" if data.number else "Training is"
    have = f"{plural(able, 'client')} {'has' if able == 1 else 'have'} two rows or more"
    return f"{what} left out: {have}, and a tournament needs {_LEAST_LEARNERS}."


def learn(
    data: Prepared,
    mixture: Any,
    shares: Array,
    notes: list[str],
    progress: Stages,
    *,
    budget: Budget,
    sites: bool | None,
    show_clients: bool,
    seed: int,
    methods: Sequence[str] | None = None,
) -> tuple[dict[str, Any], dict[str, Array]]:
    assert data.rows is not None  # checked by the caller
    table = all(data.table[name].ndim == 1 for name in data.features)
    names = learning.entrants(methods, table=table)
    order = tuple(sorted(names, key=lambda name: name != "local"))  # the simplest first, as in choose.ORDER
    rows = learning.directions(data.rows, table=table)
    few = are_sites(len(data.counts), sites)
    guessed = replace(budget.stages[0], repeats=min(budget.stages[0].repeats, 2))
    most = sum(limits.repeats for limits in budget.stages) + guessed.repeats
    say = progress.inside("learn", len(names) * most + 4 * guessed.repeats + 1)

    memory: learning.Memory = {}

    def play(clients: Federation, limits: Limits, those: dict[str, int]) -> tuple[Judged, dict[str, list[Tuned]]]:
        return learning.tournament(
            clients, limits, seed=seed, sites=few, methods={name: those[name] for name in names if name in those},
            memory=memory, say=lambda what: say(f"true clients: {what}"),
        )  # fmt: skip

    apart = [name for name in order if METHODS[name].family == "tabular"]  # a round of trees is a level of one tree
    played = staged(rows, budget, play, order=order, common="fedavg", seed=seed, climbs=climbing, apart=apart)
    first, last = played[0], played[-1]
    notes += notes_of(rows, played, budget.name)
    true, judged, choice, limits = last.rows, last.judged, last.choice, replace(last.limits, rounds=last.rounds)
    settings = {name: learning.typical(used) for stage in played for name, used in stage.used.items()}
    simulated = _simulated(rows, mixture, len(first.who), guessed, seed)
    predicted, _ = learning.tournament(
        simulated, guessed, seed=seed, sites=few, settings=settings, methods=names,
        say=lambda what: say(f"simulated clients: {what}"),
    )  # fmt: skip
    section: dict[str, Any] = {
        "clients": len(last.who),
        "sites": few,
        "test_rows": int(judged.rows_tested.sum()),
        "train_rows": true.n_rows - round(true.n_rows / judged.folds),
        "rounds": limits.rounds,
        "seeds": limits.repeats,
        "budget": budget.name,
        "capped": bool(left_out(rows, last)),
        "stages": [about_stage(stage) for stage in played],
        "model": f"linear, {rows['x'].shape[1]} inputs"
        + (" (leading directions)" if data.width > learning.DIRECTIONS else ""),
        "inputs": int(rows["x"].shape[1]),
        "true": _standings(played, names, settings, seed),
        "simulated": standing(predicted, seed=seed),
        "advised": choice.advised,
        "best": choice.best,
        "tied": tied(played, order),
        "simplest": choice.simplest,
        "over": {**choice.over, "method": choice.best, "baseline": BASELINES[choice.baseline]},
        "stability": stability(judged, choice, order=order, seed=seed),
        "climbing": last.climbing,
        "cohorts": learning.cohorts(true, limits, lr=settings["fedavg"].rate, seed=seed, sites=few, say=say),
        "costs": _costs(learning.held_out(true, repeat=0, seed=seed), settings["fedavg"].rate, seed, names),
    }
    for cost in section["costs"]:
        name = cost["method"]
        cost["rounds"] = settings[name].rounds
        if METHODS[name].family == "tabular":
            cost["rounds"] = rounds_for(name, settings[name].rounds)
    section |= _beside(section, judged, choice, choose(predicted, order=order), shares[last.who], order)
    if few:
        section["joining"] = _joining(judged, _federated(judged, order), last.who, data, show_clients)
    return plain(section), {"who": last.who, **{name: judged.clients[name] for name in judged.hits}}


def _standings(
    played: Sequence[Stage[Judged]], names: Sequence[str], settings: dict[str, Tuned], seed: int
) -> list[dict[str, Any]]:
    """The table of the last stage, with the methods that left the tournament as they stood then."""
    table: dict[str, dict[str, Any]] = {}
    for stage in played:
        for row in standing(stage.judged, seed=seed, entered=len(names)):
            mine = settings.get(row["method"])
            row["lr"] = None if mine is None or row["method"] == "glm" else mine.rate
            row["rounds"] = None if mine is None or row["method"] == "glm" else mine.rounds
            row["behind"] = stage.judged.difference(stage.choice.best, row["method"], comparisons=len(names) - 1)
            row["clients"] = len(stage.who)
            table[row["method"]] = row
    return list(table.values())


def _simulated(rows: Federation, mixture: Any, n_clients: int, limits: Limits, seed: int) -> Federation:
    drawn = clients_of(rows, FromMixture(mixture), n_clients, seed=seed)
    drawn = drawn.take(np.flatnonzero(drawn.sizes >= 2))
    return fewer_rows(drawn, most=limits.rows, seed=seed)


def _federated(judged: Judged, order: Sequence[str]) -> str:
    """The most accurate method of those that train the same kind of model as clients alone, these excluded."""
    alike = [m for m in order if m in judged.hits and m != "local" and METHODS[m].family != "tabular"]
    return max(alike, key=lambda name: judged.means[name])


def _joining(judged: Judged, method: str, who: Array, data: Prepared, show_clients: bool) -> dict[str, Any]:
    """What each site gains by joining, largest gain first; sites have numbers unless `show_clients`."""
    gains = judged.clients[method] - judged.clients["local"]
    order = np.argsort(-np.nan_to_num(gains, nan=-2.0), kind="stable")
    names = [str(name) for name in data.table.ids[who]]
    if not show_clients:
        place = {int(c): i for i, c in enumerate(order)}
        names = [f"site {place[c] + 1}" for c in range(len(names))]
    section = joining(judged, method, names, least=1 if show_clients else FEW, exact=show_clients)
    section["rows"].sort(key=lambda row: -row["gain"]["value"])
    return section | {"called": _CALLED[method]}


def _beside(
    section: dict[str, Any], judged: Judged, choice: Choice, predicted: Choice, shares: Array, order: Sequence[str]
) -> dict[str, Any]:
    """Further numbers for the advice: by kind, federated against alone, simulated against true, rounds to settle."""
    kind = shares.argmax(axis=1)
    of_kinds = {name: judged.of_kinds(name, kind) for name in judged.hits}
    by_kind = [
        {
            "kind": f"kind {chr(ord('A') + k)}",
            "clients": n,
            **about,
            "methods": {m: of_kinds[m][i][2] for m in of_kinds},
        }
        for i, (k, n, about) in enumerate(of_kinds[choice.advised or choice.best])
    ]
    together = _federated(judged, order)
    value = {which: {row["method"]: row for row in section[which]} for which in ("true", "simulated")}
    own = [r for r in section["simulated"] if r["gain"] and METHODS[r["method"]].family == "personal"]
    own = [r for r in own if r["method"] in judged.hits]  # the gains of those that left are over an earlier FedAvg
    own = [r for r in own if r["method"] != "local"] or own  # training alone personalises nothing
    personal = max(own, key=lambda r: r["gain"]["value"] or -1)["method"]
    errors = [abs(value["true"][m]["accuracy"]["value"] - value["simulated"][m]["accuracy"]["value"]) for m in order]
    curve = section["cohorts"][-1]["curve"]
    settled = next(number for number, accuracy in curve if accuracy >= curve[-1][1] - 0.01)
    comparisons = len(order) - 1  # the best of the others
    return {
        "by_kind": by_kind,
        "federated": judged.difference(together, "local", comparisons=comparisons),
        "federated_method": _CALLED[together],
        "settled": settled,
        "prediction": {
            "predicted": _CALLED.get(predicted.advised or "", "no method"),
            "realised": _CALLED.get(choice.advised or "", "no method"),
            "same": predicted.advised == choice.advised,
            "method": value["true"][personal]["called"],
            "gain": value["simulated"][personal]["gain"],
            "true_gain": value["true"][personal]["gain"],
            "error": float(np.mean(errors)),
        },
    }


def _costs(clients: learning.Clients, lr: float, seed: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """For each method: arrays and bytes of a client's most expensive round, and its seconds on an assumed device."""
    from fedscape.core.engine import Engine

    few = clients.train.take(np.argsort(-clients.train.sizes, kind="stable")[:6])
    costs = []
    for name in names:
        local: Any = learning.way(clients.train, seed=seed, lr=lr, method=name)
        tabular = METHODS[name].family == "tabular"
        columns = learning.tree_columns(few) if name == "trees" else Columns()

        def run(engine: Engine, name: str = name, how: Any = columns if tabular else local) -> object:
            options = Options() if METHODS[name].family == "tabular" else Options(column="z")
            n_rounds = DEPTH if name == "trees" else 2
            return train(name, how, engine, n_rounds=n_rounds, seed=seed, options=options)

        phases = watched(run, few)
        heaviest = max(phases, key=lambda phase: phase["bytes_up"])
        moved = sum(math.prod(a["shape"]) for a in heaviest["sent"] if a["name"].startswith("delta."))
        learners = max(1, moved // local.n_parameters)
        size = np.array([around(clients.train.sizes, quartile) for quartile in (0.25, 0.5, 0.75)])
        operations = 6 * local.n_parameters * learners
        if name == "glm":  # products of all pairs of features, for each class
            operations *= clients.train["x"].shape[1] + 1
        work = operations * size / DEVICE["operations"]
        wire = heaviest["bytes_up"] / DEVICE["up"] + heaviest["bytes_down"] / DEVICE["down"]
        low, middle, high = (work + wire).tolist()
        costs.append(
            {
                "method": name,
                "called": METHODS[name].title,
                "bytes_up": heaviest["bytes_up"],
                "bytes_down": heaviest["bytes_down"],
                "seconds": {"value": middle, "low": low, "high": high},
                "summed": sorted({a["name"] for p in phases for a in p["sent"] if a["seen"] == "as a sum"}),
                "revealed": sorted({name for p in phases for name in p["reveals"]}),
                "kept": sorted({name for p in phases for name in p["kept"]}),
            }
        )
    return costs
