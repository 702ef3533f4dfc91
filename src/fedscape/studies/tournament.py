"""A short tournament of methods on the clients of a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.sampling import FixedSize
from fedscape.methods import METHODS, Options, train
from fedscape.statistics.moments import Moments
from fedscape.studies.budget import Budget
from fedscape.studies.guessing import further_variance
from fedscape.studies.intervals import plain
from fedscape.studies.judged import BASELINES, Judged
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning import LocalSGD
    from fedscape.methods.tabular import TabularModel
    from fedscape.personal import Personalised

#: Methods of the tournament, the simplest first.
ENTRANTS = ("fedavg", "fedavg+", "ifca", "fedem", "fedgmm", "local")
DIRECTIONS = 48  # model inputs: wider rows are reduced to their leading directions
_GAUSSIAN = 8  # of those, the ones FedGMM fits its Gaussians to
_FINISH = 3
_BATCH = 32
_RATES = (0.1, 0.4, 1.6)
_FOLDS = 4
_RESTARTED = ("ifca", "fedem", "fedgmm")

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Clients:
    """Training and test rows of the same clients, with the columns x, z and y."""

    train: Federation
    test: Federation


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


def some_clients(rows: Federation, notes: list[str], *, seed: int, most: int) -> Array:
    """The clients that take part: those with two rows or more, up to a cap."""
    able = np.flatnonzero(rows.sizes >= 2)
    if len(able) > most:
        notes.append(
            f"The tournament uses {most:,} of the {len(able):,} clients, chosen by the seed; a larger --budget uses "
            "more of them."
        )
        able = np.sort(Key(seed, purpose="clients of a tournament").generator().permutation(able)[:most])
    return able


def fewer_rows(rows: Federation, notes: list[str], *, seed: int, most: int) -> Federation:
    """Cap the total number of rows by a cap per client."""
    if rows.n_rows <= most:
        return rows
    low, high = 1, int(rows.sizes.max())
    while low < high:  # bisect for the largest cap per client
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(rows.sizes, middle).sum() <= most else (low, middle - 1)
    notes.append(
        f"Clients train and test on at most {low:,} of their rows each, to stay within the budget; a larger --budget "
        "uses more of them."
    )
    owner = rows.client_of_row
    order = np.argsort(owner + Key(seed, purpose="rows of a tournament").uniform_rows(rows), kind="stable")
    kept = np.zeros(rows.n_rows, dtype=bool)
    kept[order[np.arange(rows.n_rows) - rows.offsets[owner] < low]] = True
    return rows.where(kept)


def directions(rows: Federation) -> Federation:
    """Project x on its leading principal directions, scaled; add z, the first few of them whitened.

    Mean and covariance are two sums over the clients.

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
    return rows.with_column("x", x.astype(np.float32)).with_column("z", z)


def way(rows: Federation, *, seed: int, lr: float = 1.0) -> LocalSGD:
    """Local training in the tournament: a linear model, one epoch of small batches."""
    from fedscape.learning import LocalSGD, cross_entropy, models

    model = models.linear(rows["x"].shape[1], max(2, rows.categories("y")), seed=seed)
    return LocalSGD(model, cross_entropy, lr=lr, epochs=1, batch_size=_BATCH)


def tuned(method: str, clients: Clients, *, seed: int, n_rounds: int) -> tuple[float, int]:
    """Tune the learning rate, then the initial seed, on rows held out of the training rows.

    The score is the Brier score, mean over clients. Test rows are not used. Methods with several models can end in bad
    local optima, so for them the best of three starts is taken.
    """
    fit, held = clients.train.split(test=0.25, seed=seed + 1)
    if held.n_rows == 0:  # one training row per client: nothing to hold out
        return _RATES[1], seed
    right = np.eye(max(2, clients.train.categories("y")))[held["y"]]
    weight = 1 / held.sizes[held.client_of_row]  # mean over clients, as in the evaluation

    def score(lr: float, start: int) -> float:
        proba = trained(method, fit, lr=lr, seed=start, n_rounds=n_rounds).predict_proba(held)
        brier = float(weight @ ((proba - right) ** 2).sum(axis=1))
        return brier if np.isfinite(brier) else np.inf

    by_rate = {lr: score(lr, seed) for lr in _RATES}
    lr = min(by_rate, key=lambda rate: by_rate[rate])
    if method not in _RESTARTED:
        return lr, seed
    by_start = {seed: by_rate[lr], **{start: score(lr, start) for start in (seed + 1000, seed + 2000)}}
    return lr, min(by_start, key=lambda start: by_start[start])


def trained(method: str, clients: Federation, *, lr: float, seed: int, n_rounds: int) -> Personalised | TabularModel:
    """Train a method for all its rounds."""
    local = way(clients, seed=seed, lr=lr)
    options = Options(column="z")
    return train(method, local, clients, n_rounds=n_rounds, seed=seed, finish_rounds=_FINISH, options=options)


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
    budget: Budget,
    *,
    seed: int,
    say: Say,
    rates: Mapping[str, float] | None = None,
    sites: bool = False,
) -> tuple[Judged, dict[str, list[float]]]:
    """Train every method in every repeat; return its hits and its learning rates, tuned in each repeat or passed."""
    hits = {name: np.full((budget.repeats, rows.n_rows), -1, dtype=np.int8) for name in (*ENTRANTS, *BASELINES)}
    used: dict[str, list[float]] = {name: [] for name in ENTRANTS}
    rows = rows.with_column("at", np.arange(rows.n_rows))
    for repeat in range(budget.repeats):
        clients = held_out(rows, repeat=repeat, seed=seed)
        at, truth = clients.test["at"], clients.test["y"]
        for name in ENTRANTS:
            say(METHODS[name].title)
            lr, start = 0.0 if rates is None else rates[name], seed + repeat
            if rates is None:
                lr, start = tuned(name, clients, seed=start, n_rounds=max(1, budget.rounds // 3))
            used[name].append(lr)
            model = trained(name, clients.train, lr=lr, seed=start, n_rounds=budget.rounds)
            hits[name][repeat, at] = model.predict(clients.test) == truth
        for name, classes in guesses(clients).items():
            hits[name][repeat, at] = classes == truth
    more = further_variance(_fold_counts(rows, seed), sites=sites, seed=seed)
    return Judged(hits, rows.client_of_row, len(rows), folds_for(rows), sites, more=more), used


def _fold_counts(rows: Federation, seed: int) -> Array:
    """The classes of the rows of each fold: [folds, clients, C]."""
    folds = [held_out(rows, repeat=repeat, seed=seed).test for repeat in range(folds_for(rows))]
    return np.stack([fold.counts("y", max(2, rows.categories("y"))) for fold in folds])


def typical(rates: Mapping[str, list[float]]) -> dict[str, float]:
    """Median learning rate of each method over the repeats.

    >>> typical({"fedavg": [0.1, 1.0, 1.0]})
    {'fedavg': 1.0}
    """
    return {name: sorted(values)[len(values) // 2] for name, values in rates.items()}


def cohorts(
    rows: Federation, budget: Budget, *, lr: float, seed: int, say: Say, sites: bool = False
) -> list[dict[str, Any]]:
    """Run FedAvg with fewer clients per round: accuracy every second round, and the final gap to all clients."""
    from fedscape.core.rounds import rounds
    from fedscape.learning import evaluate
    from fedscape.personal import Personalised
    from fedscape.personal.methods import Common

    n, folds = len(rows), folds_for(rows)
    sizes = sorted({max(1, n // 8), max(1, n // 4), max(1, n // 2), n})
    rows = rows.with_column("at", np.arange(rows.n_rows))
    repeats = min(budget.repeats, 2)
    hits = {str(size): np.full((repeats, rows.n_rows), -1, dtype=np.int8) for size in sizes}
    curves: dict[int, list[list[tuple[int, float]]]] = {size: [] for size in sizes}
    for run in range(repeats):
        clients = held_out(rows, repeat=run, seed=seed)
        local = way(clients.train, seed=seed, lr=lr)
        for size in sizes:
            say(f"cohorts of {size}")
            sampler, curve = None if size == n else FixedSize(size), []
            loop = rounds(
                Common(local, initial="seed"), clients.train, n_rounds=budget.rounds, sampler=sampler, seed=seed + run,
                measure=0,
            )  # fmt: skip
            for r in loop:
                if r.index % 2 == 1 or r.index + 1 == budget.rounds:
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
