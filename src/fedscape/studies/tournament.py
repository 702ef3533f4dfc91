"""A short tournament of methods on the clients of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_high
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import rounds
from fedscape.core.sampling import FixedSize
from fedscape.errors import DataError
from fedscape.methods import METHODS, Columns, Course, Options, find, train
from fedscape.methods.tabular import DEPTH
from fedscape.statistics.moments import Moments
from fedscape.studies.budget import Limits
from fedscape.studies.guessing import further_variance
from fedscape.studies.intervals import plain
from fedscape.studies.judged import BASELINES, Judged
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning import LocalSGD
    from fedscape.learning.server import Rule
    from fedscape.methods.tabular import TabularModel
    from fedscape.personal import Personalised

#: Methods of the tournament, the simplest first; tables have two more.
ENTRANTS = ("fedavg", "fedavg+", "ifca", "fedem", "fedgmm", "local")
_ON_TABLES = ("fedavg", "glm", "trees", *ENTRANTS[1:])
DIRECTIONS = 48  # model inputs: wider rows are reduced to their leading directions
_GAUSSIAN = 8  # of those, the ones FedGMM fits its Gaussians to
_FINISH = 3
_BATCH = 32
_RATES = (0.1, 0.4, 1.6)
_TABLE_RATES = (*_RATES, 6.4)  # few inputs of one scale, whose best weights are large
_TREE_RATES = (0.1, 0.3)
_PENALTY = 1.0  # l2 of a GLM: scikit-learn's default
_HIDDEN = 32  # of methods that share some layers of a network
_LAYERED = ("fedrep", "fedper", "fedbn", "fedbabu", "fedala", "feddbe", "pfedfda", "gpfl")
_STEADY = ("fedavg", "fedavg+")  # on tables: one step a round on all rows of a client, and momentum of the server
_FOLDS = 4
_RESTARTED = ("ifca", "fedem", "fedgmm")

Say = Callable[[str], None]
Memory = dict[tuple[Any, ...], Any]  # rates and hits by method, repeat, rounds, clients and rows


@dataclass(frozen=True, eq=False)
class Clients:
    """Training and test rows of the same clients, with the columns x, z and y."""

    train: Federation
    test: Federation


class Tuned(NamedTuple):
    """The rate and rounds of a method in a repeat, and what the second half of the rounds brought in accuracy."""

    rate: float
    rounds: int
    climbs: float = 0.0


def entrants(methods: Sequence[str] | None = None, *, table: bool = False) -> tuple[str, ...]:
    """The methods of a tournament: the usual ones, on tables also trees and a GLM, or those named.

    FedAvg and training alone always take part: gains are over the one, and the other needs no federation.

    >>> entrants(["trees", "fedper"])
    ('fedavg', 'trees', 'fedper', 'local')
    """
    if methods is None:
        return _ON_TABLES if table else ENTRANTS
    for name in methods:
        if find(name).family == "temporal":
            raise DataError(
                f"{name} needs a schedule of rounds, which a study does not have: 'fedscape train --schedule' trains it"
            )
    return ("fedavg", *dict.fromkeys(name for name in methods if name not in ("fedavg", "local")), "local")


def folds_for(rows: Federation) -> int:
    """Number of folds of a client's rows: four, or two if clients are small."""
    return _FOLDS if np.median(rows.sizes[rows.sizes > 0]) >= 2 * _FOLDS else 2


def held_out(rows: Federation, *, repeat: int, seed: int) -> Clients:
    """Split the rows for one repeat: cross-validation folds, redrawn when every row was held out once.

    A row that simulated clients share (the column `row`) is a test row only if no client trains on it.
    """
    folds = folds_for(rows)
    cut, fold = divmod(repeat, folds)
    key = Key(seed, purpose=f"folds of a tournament, cut {cut}")
    owner = rows.client_of_row
    order = np.argsort(owner + key.uniform_rows(rows), kind="stable")
    first = np.floor(key.to("first fold").uniform(rows) * folds).astype(
        np.int64
    )  # so that small clients occur in all folds
    chosen = np.zeros(rows.n_rows, dtype=bool)
    chosen[order[(np.arange(rows.n_rows) - rows.offsets[owner] + first[owner]) % folds == fold]] = True
    chosen &= rows.sizes[owner] > 1
    train, test = rows.where(~chosen), rows.where(chosen)
    if "row" in rows:
        test = test.where(~np.isin(test["row"], train["row"]))
    return Clients(train, test)


def directions(rows: Federation, *, table: bool = False) -> Federation:
    """Project x on its leading principal directions, scaled; add z, the first few of them whitened.

    Mean and covariance are two sums over the clients. A table keeps its inputs as u, which trees split.

    >>> fed = Federation({"x": [[0.0, 1.0], [2.0, 1.0], [4.0, 1.1]]}, [0, 1, 3])
    >>> directions(fed)["z"].shape
    (3, 2)
    """
    moments = Moments().fit(rows.select(["x"]), progress=False)
    values, vectors = np.linalg.eigh(moments.covariance_)
    keep = min(DIRECTIONS, len(values))
    values, vectors = np.maximum(values[::-1][:keep], 0), vectors[:, ::-1][:, :keep]
    blocks = range(0, max(rows.n_rows, 1), 8192)
    x = np.concatenate([(rows["x"][a : a + 8192] - moments.mean_) @ vectors for a in blocks])
    x = x / max(float(np.sqrt(values.mean())), 1e-12)
    few = x[:, :_GAUSSIAN]
    spread = few.std(axis=0)
    z = few / np.where(spread > 1e-9, spread, np.inf)
    rows = rows.with_column("u", rows["x"]) if table else rows
    return rows.with_column("x", x.astype(np.float32)).with_column("z", z)


def way(rows: Federation, *, seed: int, lr: float = 1.0, method: str = "fedavg") -> LocalSGD:
    """Local training in the tournament: a linear model, one epoch of small batches.

    Methods that share some layers of a network have a hidden one. On tables FedAvg steps on all rows of a client at
    once: at the large rates that tables need, clients with many batches would drift away from the others.
    """
    from fedscape.learning import LocalSGD, cross_entropy, models

    width, classes = rows["x"].shape[1], max(2, rows.categories("y"))
    model = models.linear(width, classes, seed=seed)
    if method in _LAYERED:
        model = models.mlp(width, _HIDDEN, classes, seed=seed)
    if method == "fedbn":
        from fedscape.personal.fedbn import with_norm

        model = with_norm(model)
    proximal = 0.1 if method == "fedprox" else 0.0
    batch = max(int(rows.sizes.max(initial=1)), _BATCH) if is_steady(method, rows) else _BATCH
    return LocalSGD(model, cross_entropy, lr=lr, epochs=1, batch_size=batch, proximal=proximal)


def is_steady(method: str, rows: Federation) -> bool:
    """Whether the method takes one step a round on all rows of a client, with momentum of the server."""
    return method in _STEADY and "u" in rows


def rule(method: str, rows: Federation) -> Rule | None:
    """The server's rule, where it is not the method's own."""
    from fedscape.learning.server import Momentum

    return Momentum() if is_steady(method, rows) else None


def tuned(method: str, clients: Clients, *, seed: int, n_rounds: int) -> tuple[float, int]:
    """Tune the learning rate, then the initial seed, on rows held out of the training rows.

    The score is the Brier score, mean over clients. Test rows are not used. Methods with several models can end in bad
    local optima, so for them the best of three starts is taken.
    """
    if method == "glm":
        return _PENALTY, seed
    rates = _TREE_RATES if method == "trees" else _TABLE_RATES if "u" in clients.train else _RATES
    fit, held = clients.train.split(test=0.25, seed=seed + 1)
    if held.n_rows == 0:  # one training row per client: nothing to hold out
        return rates[1], seed
    right = np.eye(max(2, clients.train.categories("y")))[held["y"]]
    weight = 1 / held.sizes[held.client_of_row]  # mean over clients, as in the evaluation

    def score(lr: float, start: int) -> float:
        proba = trained(method, fit, lr=lr, seed=start, n_rounds=n_rounds).predict_proba(held)
        brier = float(weight @ ((proba - right) ** 2).sum(axis=1))
        return brier if np.isfinite(brier) else np.inf

    by_rate = climbed(rates, lambda lr: score(lr, seed))
    lr = min(by_rate, key=lambda rate: by_rate[rate])
    if method not in _RESTARTED:
        return lr, seed
    by_start = {seed: by_rate[lr], **{start: score(lr, start) for start in (seed + 1000, seed + 2000)}}
    return lr, min(by_start, key=lambda start: by_start[start])


def tuning_rounds(method: str, clients: Clients, n_rounds: int) -> int:
    """Rounds of a tuning: a third of a training's, but all where momentum makes the first ones unlike the last."""
    return n_rounds if is_steady(method, clients.train) else max(1, n_rounds // 3)


def climbed(rates: Sequence[float], score: Callable[[float], float]) -> dict[float, float]:
    """Scores of rates, the lower the better: two in the middle, then on the better side as long as it gets better.

    >>> list(climbed((1.0, 2.0, 4.0, 8.0), lambda rate: abs(rate - 9)))
    [2.0, 4.0, 8.0]
    """
    middle = max(0, len(rates) // 2 - 1)
    scores = {rate: score(rate) for rate in rates[middle : middle + 2]}
    low, high = scores.values()
    last, others = (high, rates[middle + 2 :]) if high <= low else (low, rates[:middle][::-1])
    for rate in others:
        scores[rate] = score(rate)
        if scores[rate] > last:
            break
        last = scores[rate]
    return scores


def trained(method: str, clients: Federation, *, lr: float, seed: int, n_rounds: int) -> Personalised | TabularModel:
    """Train a method for all its rounds; trees grow one tree per round of the others, a GLM converges."""
    if method == "glm":
        return train(method, Columns(), clients, n_rounds=100, seed=seed, options=Options(l2=lr))
    return next(grown(method, clients, lr=lr, seed=seed, marks=[n_rounds]))


def grown(
    method: str, clients: Federation, *, lr: float, seed: int, marks: Sequence[int]
) -> Iterator[Personalised | TabularModel]:
    """Train a method once, and yield its model after each number of rounds: that of a training that ends there."""
    each, how = 1, Options(column="z", server=rule(method, clients), seed=seed, initial="seed", progress=False)
    local: Any = None
    if method == "trees":
        each, local, how = DEPTH, tree_columns(clients), Options(trees=marks[-1], learning_rate=lr, seed=seed)
    else:
        local = way(clients, seed=seed, lr=lr, method=method)
    course = Course(method, local, clients, how, tune=_FINISH)
    work = course.computation
    with rounds(work, course.engine, n_rounds=each * marks[-1], seed=seed, measure=0, allow=work.reveals) as loop:
        for r in loop:
            if r.index + 1 in (each * mark for mark in marks):
                yield course.end(r.state)


def tree_columns(rows: Federation) -> Columns:
    """What trees split: the inputs of a table, else the directions."""
    return Columns(features="u" if "u" in rows else "x")


def guesses(clients: Clients) -> dict[str, Array]:
    """Predictions of the baselines for the test rows, from the labels of the training rows.

    >>> fed = Federation({"y": [0, 0, 1, 1, 1, 1]}, [0, 3, 6])
    >>> {name: classes.tolist() for name, classes in guesses(Clients(fed, fed)).items()}
    {'commonest': [1, 1, 1, 1, 1, 1], 'own-commonest': [0, 0, 0, 1, 1, 1]}
    """
    counts = clients.train.counts("y", max(2, clients.train.categories("y")))
    together = counts.sum(axis=0)
    own = (counts + together / (together.sum() + 1)).argmax(
        axis=1
    )  # ties go to the class that is more frequent overall
    common = np.full(clients.test.n_rows, int(together.argmax()))
    return {"commonest": common, "own-commonest": own[clients.test.client_of_row]}


def tournament(
    rows: Federation,
    limits: Limits,
    *,
    seed: int,
    say: Say,
    settings: Mapping[str, Tuned] | None = None,
    sites: bool = False,
    methods: Sequence[str] | Mapping[str, int] = ENTRANTS,
    memory: Memory | None = None,
) -> tuple[Judged, dict[str, list[Tuned]]]:
    """Train every method in every repeat; return its hits and its settings, tuned in each repeat or passed.

    `methods` may say how many rounds each has, if they are not those of the limits. What the `memory` of a study has of
    the same rows and rounds is not done again.
    """
    memory = {} if memory is None else memory
    hits = {name: np.full((limits.repeats, rows.n_rows), -1, dtype=np.int8) for name in (*methods, *BASELINES)}
    used: dict[str, list[Tuned]] = {name: [] for name in methods}
    rows = rows.with_column("at", np.arange(rows.n_rows))
    lengths = methods if isinstance(methods, Mapping) else dict.fromkeys(methods, limits.rounds)
    for repeat in range(limits.repeats):
        clients = held_out(rows, repeat=repeat, seed=seed)
        at, truth = clients.test["at"], clients.test["y"]
        for name, n_rounds in lengths.items():
            say(METHODS[name].title)
            key, start = (name, repeat, limits.rounds, len(rows), rows.n_rows), seed + repeat
            if settings is not None:
                lr, n_rounds, _ = settings[name]
            elif key in memory:
                lr, start = memory[key]
            else:
                tuning = tuning_rounds(name, clients, limits.rounds)
                lr, start = memory[key] = tuned(name, clients, seed=start, n_rounds=tuning)
            if (*key, n_rounds) not in memory:
                memory[*key, n_rounds] = _curve(name, clients, lr=lr, seed=start, n_rounds=n_rounds)
            hits[name][repeat, at], climbs = memory[*key, n_rounds]
            used[name].append(Tuned(lr, n_rounds, climbs))
        for name, classes in guesses(clients).items():
            hits[name][repeat, at] = classes == truth
    more = further_variance(_fold_counts(rows, seed), sites=sites, seed=seed)
    return Judged(hits, rows.client_of_row, len(rows), folds_for(rows), sites, more=more), used


def _curve(name: str, clients: Clients, *, lr: float, seed: int, n_rounds: int) -> tuple[Array, float]:
    """The test rows that a method hits, and by how much fewer it hit after half of its rounds, mean over clients."""
    truth, test = clients.test["y"], clients.test
    if name == "glm":
        return trained(name, clients.train, lr=lr, seed=seed, n_rounds=n_rounds).predict(test) == truth, 0.0
    marks = sorted({max(1, n_rounds // 2), n_rounds})
    models = grown(name, clients.train, lr=lr, seed=seed, marks=marks)
    hits = [model.predict(test) == truth for model in models]
    weight = 1 / test.sizes[test.client_of_row] / max(int((test.sizes > 0).sum()), 1)
    return hits[-1], float(weight @ (hits[-1].astype(float) - hits[0]))


def _fold_counts(rows: Federation, seed: int) -> Array:
    """The classes of the rows of each fold: [folds, clients, C]."""
    folds = [held_out(rows, repeat=repeat, seed=seed).test for repeat in range(folds_for(rows))]
    return np.stack([fold.counts("y", max(2, rows.categories("y"))) for fold in folds])


def typical(settings: Sequence[Tuned]) -> Tuned:
    """Median rate and rounds over the repeats, and the mean of what the second half of the rounds brought.

    >>> typical([Tuned(0.1, 80, 0.25), Tuned(1.0, 80, 0.75), Tuned(1.0, 80, 0.5)])
    Tuned(rate=1.0, rounds=80, climbs=0.5)
    """
    rates, lengths, climbs = zip(*settings, strict=True)
    return Tuned(median_high(rates), median_high(lengths), fmean(climbs))


def cohorts(
    rows: Federation, limits: Limits, *, lr: float, seed: int, say: Say, sites: bool = False
) -> list[dict[str, Any]]:
    """Run FedAvg with fewer clients per round: accuracy in ten rounds or so, and the final gap to all clients."""
    from fedscape.learning import evaluate
    from fedscape.learning.server import Mean
    from fedscape.personal import Personalised
    from fedscape.personal.methods import Common

    n, folds = len(rows), folds_for(rows)
    every = max(2, limits.rounds // 10)
    sizes = sorted({max(1, n // 8), max(1, n // 4), max(1, n // 2), n})
    rows = rows.with_column("at", np.arange(rows.n_rows))
    repeats = min(limits.repeats, 2)
    hits = {str(size): np.full((repeats, rows.n_rows), -1, dtype=np.int8) for size in sizes}
    curves: dict[int, list[list[tuple[int, float]]]] = {size: [] for size in sizes}
    for run in range(repeats):
        clients = held_out(rows, repeat=run, seed=seed)
        local = way(clients.train, seed=seed, lr=lr)
        server = rule("fedavg", clients.train) or Mean()
        for size in sizes:
            say(f"cohorts of {size}")
            sampler, curve = None if size == n else FixedSize(size), []
            loop = rounds(
                Common(local, initial="seed", server=server), clients.train, n_rounds=limits.rounds, sampler=sampler,
                seed=seed + run, measure=0,
            )  # fmt: skip
            for r in loop:
                if (r.index + 1) % every == 0 or r.index + 1 == limits.rounds:
                    accuracy = np.asarray(evaluate(local, r.state, clients.test).accuracy)
                    curve.append((r.index + 1, float(np.nanmean(accuracy))))
            curves[size].append(curve)
            proba = Personalised(Common(local), r.state, clients.train.ids[:0], {}).predict(clients.test)
            hits[str(size)][run, clients.test["at"]] = proba == clients.test["y"]
    judged = Judged(hits, rows.client_of_row, n, folds, sites)
    table = []
    for size in sizes:
        curve = np.mean(curves[size], axis=0).tolist()
        behind = judged.difference(str(n), str(size), comparisons=max(1, len(sizes) - 1))
        if size == n:
            behind = {"value": 0.0, "low": 0.0, "high": 0.0}
        table.append(
            {
                "clients": size,
                "curve": [[int(number), value] for number, value in curve],
                "accuracy": judged.accuracy(str(size)),
                "behind": behind,
            }
        )
    return plain(table)  # type: ignore[no-any-return]
