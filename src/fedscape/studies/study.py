"""The main job, end to end: describe, measure, model, simulate, learn, advise."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.progress import Tell, working
from fedscape.core.random import Array
from fedscape.core.schedule import one_library_thread
from fedscape.errors import DataError, plural
from fedscape.formats.reading import Overrules, Reading
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.ranges import NOISE, check_positive
from fedscape.simulate import FromMixture
from fedscape.statistics.description import describe
from fedscape.studies import tournament as learning
from fedscape.studies.advise import DEVICE, advise
from fedscape.studies.explain import watched
from fedscape.studies.fidelity import LEAST, clients_of, simulating
from fedscape.studies.intervals import FEW, mean_interval, plain
from fedscape.studies.kinds import census, declared_counts, model
from fedscape.studies.measure import measure
from fedscape.studies.prepare import Prepared, prepare
from fedscape.studies.result import FORMAT, Study

_STAGES = {"describe": 1, "measure": 6, "model": 4, "simulate": 6, "learn": 80, "advise": 1}  # shares of the time
_PACKAGES = ("fedscape", "numpy", "scipy", "numba", "torch")
_LEAST_LEARNERS = 4


def study(
    federation: Federation,
    *,
    column: str | None = None,
    features: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    overrules: Overrules | None = None,
    reading: Reading | None = None,
    rounds: int = learning.ROUNDS,
    seeds: int = learning.SEEDS,
    epsilon: float | None = None,
    show_clients: bool = False,
    source: str = "a federation",
    command: str | None = None,
    ledger: Ledger | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Study:
    """From a federation to an answer: how clients differ, what kinds there are, which method to train, and for whom.

    Parameters
    ----------
    federation
        The clients.
    column
        Categories, ready counts, or a number (cut into bins); by default y, label, labels, target or class. Without any
        of them cells of the features stand in.
    features
        Columns to learn from; by default x, or all other columns of numbers and of few categories.
    names
        What the categories are called, in the order of their codes. With epsilon, which categories count.
    overrules
        What columns are, against what their values suggest.
    reading
        How the columns were read, from `datasets.read_table`; by default they are read here.
    rounds, seeds
        Of the tournament: every method is trained for so many rounds, so many times.
    epsilon
        Also count the categories privately within this budget (unit client, delta 1e-5); they must be declared, by
        `names` or by the data. Its noise is secret, so that two such studies differ; without it the same inputs and
        seed give the same bytes.
    show_clients
        Put ids and one row for every client into the result. By default a result is made to be shared: clients are
        numbers in the order of their places on the map.
    source
        What the data are called in the report.
    command
        What makes this study again, as the report prints it; by default a call of this function.
    ledger
        Where the private count is written before it is released; by default one in memory, of this budget.
    seed
        Everything random but the noise is a function of it.
    progress
        True shows a bar, False nothing; by default a bar on a terminal, elsewhere a line a minute.

    >>> from fedscape import datasets
    >>> done = study(datasets.load("acs-race").take(slice(40)))
    >>> done.result["describe"]["clients"], done.result["advise"][0]["answer"]
    (40, 'yes')
    """
    if rounds < 1 or seeds < 1:
        raise DataError(f"rounds and seeds must be at least 1, not {rounds} and {seeds}")
    if epsilon is not None:
        check_positive("epsilon", epsilon, NOISE, error=DataError)
        called = names if names is not None or overrules is None else overrules.names
        declared = declared_counts(federation, column, called)
    least = 1 if show_clients else FEW
    data = prepare(
        federation, column=column, features=features, names=names, overrules=overrules, reading=reading, least=least,
        seed=seed,
    )  # fmt: skip
    notes = list(data.notes)
    result: dict[str, Any] = {"format": FORMAT, "findings": [found.shared() for found in data.reading.findings]}
    result["about"] = _about(data, source, seed, show_clients)
    result["about"] |= {"asked": {"features": features and list(features), "epsilon": epsilon}}
    result["about"]["asked"] |= {"rounds": rounds, "seeds": seeds}
    result["about"]["command"] = command
    # before the long work: a budget that does not allow it is known at once
    counted = None if epsilon is None else census(declared, epsilon=epsilon, ledger=ledger)
    with working("study", total=sum(_STAGES.values()), unit="%", progress=progress) as tell:
        stages = _Stages(tell)
        _fill(result, data, notes, stages, counted, show_clients)
    return Study(result, dict(stages.seconds))


def _fill(
    result: dict[str, Any],
    data: Prepared,
    notes: list[str],
    stages: _Stages,
    counted: dict[str, Any] | None,
    show_clients: bool,
) -> None:
    """Work out the sections of a result, one stage after the other."""
    seed, asked, least = result["about"]["seed"], result["about"]["asked"], 1 if show_clients else FEW
    with stages.of("describe"):
        result["describe"] = _described(data, show_clients)
    with stages.of("measure"):
        result["measure"] = measure(data, seed=seed)
    with stages.of("model"):
        result["model"], mixture, shares = model(data, seed=seed, progress=False)
        if counted is not None:
            result["model"]["census"] = counted
            notes.append("The private count has secret noise: another run of the same study differs in it.")
    with stages.of("simulate"):
        if len(data.counts) >= LEAST:
            result["simulate"] = simulating(data, mixture, seed=seed)
        else:
            notes.append(
                f"Fidelity compares laws and needs {LEAST} clients: there are {len(data.counts)}, it is left out."
            )
    accuracies: dict[str, Array] = {}
    with stages.of("learn"):
        why = _no_learning(data)
        if why is None:
            result["learn"], accuracies = _learn(
                data, mixture, shares, notes, stages, seed, asked["rounds"], asked["seeds"]
            )
            kinds = result["learn"]["by_kind"]
            result["learn"]["by_kind"] = [kind for kind in kinds if kind["clients"] >= least]
        elif data.labels and data.width:
            notes.append(why)
    with stages.of("advise"):
        result["advise"] = advise(result)
    result["notes"] = notes
    _name_clients(result, data, shares, accuracies, show_clients)


def _about(data: Prepared, source: str, seed: int, show_clients: bool) -> dict[str, Any]:
    def known(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return {
        "source": source,
        "column": data.column,
        "labels": data.labels,
        "features": list(data.features),
        "seed": seed,
        "show_clients": show_clients,
        "versions": {"python": platform.python_version(), **{name: known(name) for name in _PACKAGES}},
        "machine": platform.machine(),
    }


def _described(data: Prepared, show: bool) -> dict[str, Any]:
    about = describe(data.given)
    for column in about["columns"]:
        for extreme in ("min", "max"):  # the value of one row
            column.pop(extreme, None)
    about["rows_per_client"]["largest"] = _about_size(int(data.given.sizes.max()), show)
    if not show:
        for extreme in ("min", "max"):  # the size of one client
            about["rows_per_client"].pop(extreme)
    counts = data.counts
    shares = counts[counts.sum(axis=1) > 0] / np.maximum(counts[counts.sum(axis=1) > 0].sum(axis=1, keepdims=True), 1)
    edges, tally = _size_bins(counts.sum(axis=1))
    n = len(shares)
    # what a comparison of two studies needs: the clients' mean shares, and how far means of so many clients vary
    spread = np.cov(shares.T, ddof=1) / n if n > 1 else np.zeros((counts.shape[1],) * 2)
    sizes = np.log(np.maximum(counts.sum(axis=1), 1))
    about["sizes"] = {"edges": edges, "clients": tally, "log_mean": mean_interval(sizes)}
    about["categories"] = {
        "names": list(data.names),
        "ordered": data.ordered,
        "rows": counts.sum(axis=0),
        "clients": (counts > 0).sum(axis=0),
        "mean_share": shares.mean(axis=0),
        "clients_with_rows": n,
    }
    made: dict[str, Any] = plain(about)
    made["categories"]["covariance"] = plain(spread, 10)  # small numbers: more digits than the rest
    return made


def _size_bins(sizes: Array) -> tuple[list[float], list[int]]:
    """Bins between powers of two, or of their roots where there are few: no edge is the size of a client."""
    known = sizes[sizes > 0]
    logs = np.log2([known.min(), known.max()])
    fine = 1 if logs[1] - logs[0] > 8 else 2
    edges = np.arange(np.floor(fine * logs[0]), np.floor(fine * logs[1]) + 2) / fine
    edges = np.unique(np.floor(2**edges))
    if len(edges) < 2:  # all clients have one row, or all have two
        edges = np.append(edges, edges[-1] + 1)
    return edges.tolist(), np.histogram(known, edges)[0].tolist()


def _no_learning(data: Prepared) -> str | None:
    if data.rows is None or not data.width or not data.labels:
        return "left out"
    if find_spec("torch") is None:
        return "Training is left out: it needs torch, pip install 'fedscape[learn]'."
    able = int((data.rows.sizes >= 2).sum())
    if able < _LEAST_LEARNERS:
        have = f"{plural(able, 'client')} {'has' if able == 1 else 'have'} two rows or more"
        return f"Training is left out: {have}, and a tournament needs {_LEAST_LEARNERS}."
    return None


def _learn(
    data: Prepared, mixture: Any, shares: Array, notes: list[str], stages: _Stages, seed: int, n_rounds: int, seeds: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    assert data.rows is not None  # asked by the caller
    rows = learning.directions(data.rows)
    who = learning.some_clients(rows, notes, seed=seed)
    true = learning.Clients.of(learning.fewer_rows(rows.take(who), notes, seed=seed), seed=seed)
    steps = 2 * len(learning.METHODS) * seeds + 6
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
    from fedscape.studies.advise import chosen

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
    from fedscape.personal import make_fedgmm, train

    local = learning.way(clients.train, seed=seed, lr=lr)
    few = clients.train.take(np.argsort(-clients.train.sizes, kind="stable")[:6])
    made = []
    for name, called in learning.METHODS.items():

        def run(engine: Engine, name: str = name) -> object:
            method: Any = make_fedgmm(local, engine, seed, column="z") if name == "fedgmm" else name
            return train(method, local, engine, n_rounds=2, seed=seed)

        phases = watched(run, few)
        heaviest = max(phases, key=lambda phase: phase["bytes_up"])
        learners = 3 if name in ("fedem", "fedgmm", "ifca") else 1
        size = np.quantile(clients.train.sizes, [0.25, 0.5, 0.75])
        work = 6 * local.n_parameters * learners * size / DEVICE["operations"]
        wire = heaviest["bytes_up"] / DEVICE["up"] + heaviest["bytes_down"] / DEVICE["down"]
        low, middle, high = (work + wire).tolist()
        made.append(
            {
                "method": name,
                "called": called,
                "bytes_up": heaviest["bytes_up"],
                "bytes_down": heaviest["bytes_down"],
                "seconds": {"value": middle, "low": low, "high": high},
                "summed": sorted({a["name"] for p in phases for a in p["sent"] if a["seen"] == "as a sum"}),
                "revealed": sorted({name for p in phases for name in p["reveals"]}),
                "kept": sorted({name for p in phases for name in p["kept"]}),
            }
        )
    return made


def _name_clients(
    result: dict[str, Any], data: Prepared, shares: Array, accuracies: dict[str, Array], show: bool
) -> None:
    """Give the points of the map a kind and a number; where clients may be shown, one row for each.

    Numbers follow the places on the map: whoever knows the order of the ids learns nothing from them.
    """
    kind = [chr(ord("A") + k) for k in shares.argmax(axis=1).tolist()]
    points = result["measure"]["map"]
    places = points.pop("clients")
    sizes = [_about_size(int(data.counts[i].sum()), show) for i in places]
    ways = [name for name in ("labels", "features") if name in points]
    printed = [
        ([[_last(v) for v in points[name]["points"][j]] for name in ways], sizes[j], kind[i])
        for j, i in enumerate(places)
    ]
    order = sorted(range(len(places)), key=printed.__getitem__)  # who is equal in all that is printed may swap
    for name in ways:
        points[name]["points"] = [points[name]["points"][j] for j in order]
    shown = [places[j] for j in order]
    points["client"] = [str(data.given.ids[i]) if show else f"client {n + 1}" for n, i in enumerate(shown)]
    points["kind"] = [kind[i] for i in shown]
    points["size"] = [sizes[j] for j in order]
    if not show:
        return
    table: list[dict[str, Any]] = []
    where = {int(c): i for i, c in enumerate(accuracies.get("who", np.empty(0)).tolist())}
    for i in range(len(data.counts)):
        row = {"client": str(data.given.ids[i]), "rows": int(data.counts[i].sum()), "kind": kind[i]}
        for name in (m for m in accuracies if m != "who"):
            row[name] = plain(accuracies[name][where[i]]) if i in where else None
        table.append(row)
    result["clients"] = table


def _last(value: float | None) -> float:
    """A coordinate to sort by; who has no place comes last."""
    return float("inf") if value is None else value


def _about_size(size: int, exact: bool) -> str:
    """A size, or the power of two it lies below: enough for a picture, and less to recognise a client by."""
    if exact or size < 2:
        return plural(size, "row")
    low = 2 ** (size.bit_length() - 1)
    return f"{low:,} to {2 * low - 1:,} rows"


class _Stages:
    """Says what is being done and how much is left; keeps the seconds of each stage."""

    def __init__(self, tell: Tell) -> None:
        self.seconds: dict[str, float] = {}
        self._tell = tell
        self._done = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        self._tell(self._done, _place(name))
        with one_library_thread():
            yield
        self.seconds[name] = round(time.perf_counter() - began, 3)
        self._done += _STAGES[name]

    def inside(self, name: str, steps: int) -> learning.Say:
        count = iter(range(steps))

        def say(what: str) -> None:
            self._tell(self._done + _STAGES[name] * next(count, steps) / steps, f"{_place(name)}: {what}")

        return say


def _place(name: str) -> str:
    return f"{list(_STAGES).index(name) + 1}/{len(_STAGES)} {name}"
