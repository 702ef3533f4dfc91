"""The section learn: the tournament on simulated and true clients, and what advice needs beside its tables."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedscape.errors import plural
from fedscape.methods import METHODS, Options, train
from fedscape.simulate import FromMixture
from fedscape.studies import tournament as learning
from fedscape.studies.advise import DEVICE, chosen
from fedscape.studies.explain import watched
from fedscape.studies.fidelity import clients_of
from fedscape.studies.intervals import mean_interval, plain
from fedscape.studies.prepare import Prepared
from fedscape.studies.stages import Stages
from fedscape.types import Array

_LEAST_LEARNERS = 4


def why_not(data: Prepared) -> str | None:
    if data.rows is None or not data.width or not data.labels:
        return "left out"
    if find_spec("torch") is None:
        return "Training is left out: it needs torch, pip install 'fedscape[learn]'."
    able = int((data.rows.sizes >= 2).sum())
    if able < _LEAST_LEARNERS:
        have = f"{plural(able, 'client')} {'has' if able == 1 else 'have'} two rows or more"
        return f"Training is left out: {have}, and a tournament needs {_LEAST_LEARNERS}."
    return None


def learn(
    data: Prepared, mixture: Any, shares: Array, notes: list[str], stages: Stages, seed: int, n_rounds: int, seeds: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    assert data.rows is not None  # asked by the caller
    rows = learning.directions(data.rows)
    who = learning.some_clients(rows, notes, seed=seed)
    true = learning.Clients.of(learning.fewer_rows(rows.take(who), notes, seed=seed), seed=seed)
    steps = 2 * len(learning.ENTRANTS) * seeds + 6
    how: dict[str, Any] = {"seed": seed, "n_rounds": n_rounds, "seeds": seeds}
    said = stages.inside("learn", steps)
    said("learning rate")
    lr = learning.best_rate(true, seed=seed)
    drawn = clients_of(rows, FromMixture(mixture), len(who), seed=seed)
    drawn = drawn.take(np.flatnonzero(drawn.sizes >= 2))
    simulated = learning.Clients.of(learning.fewer_rows(drawn, [], seed=seed), seed=seed)
    predicted = learning.tournament(simulated, lr=lr, **how, say=lambda what: said(f"simulated clients: {what}"))
    found = learning.tournament(true, lr=lr, **how, say=lambda what: said(f"true clients: {what}"))
    standing = learning.standing(found, seed=seed, sizes=true.test.sizes)
    made: dict[str, Any] = {
        "clients": len(who),
        "test_rows": true.test.n_rows,
        "train_rows": true.train.n_rows,
        "rounds": n_rounds,
        "seeds": seeds,
        "lr": lr,
        "model": f"linear, {rows['x'].shape[1]} inputs"
        + (" (leading directions)" if data.width > learning.DIRECTIONS else ""),
        "inputs": int(rows["x"].shape[1]),
        "true": standing,
        "simulated": learning.standing(predicted, seed=seed, sizes=simulated.test.sizes),
        "cohorts": learning.cohorts(true, lr=lr, **how, say=said),
        "costs": _costs(true, lr, seed),
    }
    made |= _beside(made, found, shares[who])
    return plain(made), {"who": who, **{name: runs.mean(axis=0) for name, runs in found.items()}}


def _beside(made: dict[str, Any], found: dict[str, Array], shares: Array) -> dict[str, Any]:
    """What advice needs beside the tables: kinds, federation against none, prediction against truth, settled rounds."""
    best = chosen(made["true"])["method"]
    mine = found[best].mean(axis=0)
    kind = shares.argmax(axis=1)
    by_kind = [
        {
            "kind": f"kind {chr(ord('A') + k)}",
            "clients": int((kind == k).sum()),
            **mean_interval(mine[kind == k], least=0.0, most=1.0),
        }
        for k in range(shares.shape[1])
        if (kind == k).any()
    ]
    others = [row for row in made["true"] if row["method"] != "local"]
    together = max(others, key=lambda row: row["accuracy"]["value"] or 0)
    value = {which: {row["method"]: row for row in made[which]} for which in ("true", "simulated")}
    personal = max((r for r in made["simulated"] if r["gain"]), key=lambda r: r["gain"]["value"] or -1)["method"]
    first = {which: chosen(made[which]) for which in ("true", "simulated")}
    errors = [
        abs(value["true"][m]["accuracy"]["value"] - value["simulated"][m]["accuracy"]["value"]) for m in value["true"]
    ]
    curve = made["cohorts"][-1]["curve"]
    settled = next(number for number, accuracy in curve if accuracy >= curve[-1][1] - 0.01)
    paired = found[together["method"]].mean(axis=0) - found["local"].mean(axis=0)
    variance = learning.seed_variance(found, together["method"], "local")
    return {
        "by_kind": by_kind,
        "federated": mean_interval(paired, comparisons=len(others), variance=variance),  # the best of the others
        "federated_method": together["called"],
        "settled": settled,
        "prediction": {
            "predicted": first["simulated"]["called"],
            "realised": first["true"]["called"],
            "same": first["simulated"]["method"] == first["true"]["method"],
            "method": value["true"][personal]["called"],
            "gain": value["simulated"][personal]["gain"],
            "true_gain": value["true"][personal]["gain"],
            "error": float(np.mean(errors)),
        },
    }


def _costs(clients: learning.Clients, lr: float, seed: int) -> list[dict[str, Any]]:
    """For each method: arrays and bytes of the costliest round of a client, and its seconds on an assumed device."""
    from fedscape.core.engine import Engine

    local = learning.way(clients.train, seed=seed, lr=lr)
    few = clients.train.take(np.argsort(-clients.train.sizes, kind="stable")[:6])
    made = []
    for name in learning.ENTRANTS:

        def run(engine: Engine, name: str = name) -> object:
            return train(name, local, engine, n_rounds=2, seed=seed, options=Options(column="z"))

        phases = watched(run, few)
        heaviest = max(phases, key=lambda phase: phase["bytes_up"])
        moved = sum(math.prod(a["shape"]) for a in heaviest["sent"] if a["name"].startswith("delta."))
        learners = max(1, moved // local.n_parameters)
        size = np.quantile(clients.train.sizes, [0.25, 0.5, 0.75])
        work = 6 * local.n_parameters * learners * size / DEVICE["operations"]
        wire = heaviest["bytes_up"] / DEVICE["up"] + heaviest["bytes_down"] / DEVICE["down"]
        low, middle, high = (work + wire).tolist()
        made.append(
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
    return made
