"""A short tournament of methods, on simulated clients first and on the true ones then."""

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
from fedscape.studies.intervals import FEW, bootstrap_interval, mean_interval, plain
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning import LocalSGD

#: Methods of the tournament, the simplest first.
ENTRANTS = ("fedavg", "fedavg+", "ifca", "fedem", "fedgmm", "local")
ROUNDS = 20
SEEDS = 2
MOST_CLIENTS = 60
MOST_ROWS = 12_000
DIRECTIONS = 48  # features a model sees: the leading directions of wider rows
_GAUSSIAN = 8  # of those, the ones FedGMM's Gaussians are fitted to
_FINISH = 3
_BATCH = 32
_RATES = (0.1, 0.3, 1.0)

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Clients:
    """Rows to train and to test on, of the same clients, with the columns x, z and y."""

    train: Federation
    test: Federation

    @classmethod
    def of(cls, rows: Federation, *, seed: int) -> Clients:
        """A part of each client's rows held out: a quarter, or half where clients are small.

        A row that simulated clients share (the column `row`) is tested on only where no one trains on it.
        """
        share = 0.25 if np.median(rows.sizes[rows.sizes > 0]) >= 8 else 0.5
        train, test = rows.split(test=share, seed=seed)
        if "row" in rows:
            test = test.where(~np.isin(test["row"], train["row"]))
        return cls(train, test)


def some_clients(rows: Federation, notes: list[str], *, seed: int) -> Array:
    """The clients that take part: those with rows to train and to test on, at most MOST_CLIENTS of them."""
    able = np.flatnonzero(rows.sizes >= 2)
    if len(able) > MOST_CLIENTS:
        notes.append(f"The tournament is among {MOST_CLIENTS} of the {len(able):,} clients, chosen by the seed.")
        able = np.sort(Key(seed, purpose="clients of a tournament").generator().permutation(able)[:MOST_CLIENTS])
    return able


def fewer_rows(rows: Federation, notes: list[str], *, seed: int) -> Federation:
    """The same clients with at most MOST_ROWS rows together: the largest give up the most."""
    if rows.n_rows <= MOST_ROWS:
        return rows
    low, high = 1, int(rows.sizes.max())
    while low < high:  # the largest cap that keeps the sum
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(rows.sizes, middle).sum() <= MOST_ROWS else (low, middle - 1)
    notes.append(f"Clients train and test on at most {low:,} of their rows each, so that the tournament ends in time.")
    owner = rows.client_of_row
    order = np.argsort(owner + Key(seed, purpose="rows of a tournament").uniform_rows(rows), kind="stable")
    kept = np.zeros(rows.n_rows, dtype=bool)
    kept[order[np.arange(rows.n_rows) - rows.offsets[owner] < low]] = True
    return rows.where(kept)


def directions(rows: Federation) -> Federation:
    """The same rows with x cut to its leading directions, scaled to one size, and z, the first few of them whitened.

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
    """How clients train in the tournament: a linear model, one epoch of small batches."""
    from fedscape.learning import LocalSGD, cross_entropy, models

    model = models.linear(rows["x"].shape[1], max(2, rows.categories("y")), seed=seed)
    return LocalSGD(model, cross_entropy, lr=lr, epochs=1, batch_size=_BATCH)


def best_rate(clients: Clients, *, seed: int) -> float:
    """The learning rate with which FedAvg has the lowest loss on rows held out of the training rows."""
    from fedscape.learning import grid, sweep

    fit, held = clients.train.split(test=0.25, seed=seed + 1)
    if held.n_rows == 0:  # clients of one row to train on: nothing can be held out of them
        return _RATES[1]
    trials = sweep(
        way(fit, seed=seed), fit, grid(lr=list(_RATES)), n_rounds=8, validation=held, seed=seed, progress=False
    )
    sound = [trial for trial in trials if not trial.diverged]
    return float(sound[0].setting.lr) if sound else min(_RATES)


def trained(method: str, clients: Clients, *, lr: float, seed: int, n_rounds: int = ROUNDS) -> Array:
    """The accuracy of every client under its own model, NaN where it has no rows to test on."""
    local = way(clients.train, seed=seed, lr=lr)
    model = train(
        method, local, clients.train, n_rounds=n_rounds, seed=seed, finish_rounds=_FINISH, options=Options(column="z")
    )
    return np.asarray(model.evaluate(clients.test).accuracy)


def tournament(
    clients: Clients, *, lr: float, seed: int, say: Say, n_rounds: int = ROUNDS, seeds: int = SEEDS
) -> dict[str, Array]:
    """Accuracies [seeds, clients] of every method."""
    made = {}
    for name in ENTRANTS:
        runs = []
        for run in range(seeds):
            say(METHODS[name].title)
            runs.append(trained(name, clients, lr=lr, seed=seed + run, n_rounds=n_rounds))
        made[name] = np.array(runs)
    return made


def seed_variance(found: Mapping[Any, Array], first: Any, second: Any) -> tuple[float, float]:
    """The variance over seeds of the mean difference of two methods, and its degrees of freedom; 0 with one seed.

    Two seeds say little about one method, so that the variance is pooled over all of them; a method that moves more
    than most keeps its own.

    >>> seed_variance({"a": np.array([[0.0], [0.2]]), "b": np.array([[0.1], [0.1]])}, "a", "b")
    (0.010000000000000002, 2)
    """
    means = {name: np.nanmean(runs, axis=1) for name, runs in found.items()}
    n = len(means[first])
    if n < 2:
        return 0.0, np.inf
    pooled = 2 * np.mean([values.var(ddof=1) for values in means.values()])
    own = (means[first] - means[second]).var(ddof=1)
    return float(max(pooled, own) / n), len(means) * (n - 1)


def standing(found: dict[str, Array], *, seed: int, sizes: Array | None = None) -> list[dict[str, Any]]:
    """Every method with its accuracy, its worst tenth and its gain over FedAvg, intervals over clients.

    The gain is paired: the difference client by client, averaged over seeds; its interval also holds how far the mean
    moves from seed to seed, and those of all methods hold together. `together` is the interval of the accuracy that
    also holds for a method that was chosen for it. `seeds` is how far the accuracy moves. With `sizes`, the clients'
    numbers of rows to test on, the worst tenth is put beside that of clients who are all served equally well.
    """
    base = found["fedavg"].mean(axis=0)
    known = np.isfinite(base)
    rows = []
    for name, runs in found.items():
        mine = runs.mean(axis=0)
        row: dict[str, Any] = {
            "method": name,
            "called": METHODS[name].title,
            "accuracy": mean_interval(mine, least=0.0, most=1.0),
            "together": mean_interval(mine, least=0.0, most=1.0, comparisons=len(found)),
        }
        row["worst"] = bootstrap_interval(mine[known], worst_tenth, seed=seed)
        row["worst"]["clients"] = worst_clients(int(known.sum()))
        row["worst"]["equal"] = None if sizes is None else equal_tenth(mine[known], sizes[known], seed=seed)
        row["gain"] = None
        if name != "fedavg":
            variance = seed_variance(found, name, "fedavg")
            row["gain"] = mean_interval(mine - base, comparisons=len(found) - 1, variance=variance)
            row["better"] = float(((mine - base)[known] > 0).mean())
        row["seeds"] = float(np.nanmean(runs, axis=1).std(ddof=1)) if len(runs) > 1 else None
        rows.append(row)
    return plain(rows)  # type: ignore[no-any-return]


def worst_clients(n: int) -> int:
    """How many clients the worst tenth of n are: at least five, fewer would be about single clients.

    >>> worst_clients(20), worst_clients(80), worst_clients(4)
    (5, 8, 4)
    """
    return max(min(FEW, n), n // 10)


def worst_tenth(values: Array) -> float:
    """The mean of the lowest tenth, at least five.

    >>> worst_tenth(np.arange(20.0))
    2.0
    """
    return float(np.sort(values)[: worst_clients(len(values))].mean())


def equal_tenth(accuracy: Array, sizes: Array, *, seed: int, draws: int = 200) -> float:
    """The worst tenth of clients who all have the mean accuracy: what few rows to test on do by themselves.

    >>> equal_tenth(np.full(50, 0.5), np.full(50, 10**8), seed=0).__round__(3)
    0.5
    """
    rng = Key(seed, purpose="clients served equally").generator()
    drawn = rng.binomial(sizes, accuracy.mean(), size=(draws, len(sizes))) / sizes
    return float(np.mean([worst_tenth(values) for values in drawn]))


def cohorts(
    clients: Clients, *, lr: float, seed: int, say: Say, n_rounds: int = ROUNDS, seeds: int = SEEDS
) -> list[dict[str, Any]]:
    """FedAvg with fewer clients a round: accuracy after every other round, the last beside that of all clients."""
    from fedscape.core.rounds import rounds
    from fedscape.learning import FedAvg, evaluate

    n = len(clients.train)
    sizes = sorted({max(1, n // 8), max(1, n // 4), max(1, n // 2), n})
    local = way(clients.train, seed=seed, lr=lr)
    made: list[dict[str, Any]] = []
    found: dict[int, Array] = {}
    for size in sizes:
        say(f"cohorts of {size}")
        curves, ends = [], []
        for run in range(seeds):
            sampler = None if size == n else FixedSize(size)
            method = FedAvg(local, initial="seed")
            curve = []
            for r in rounds(method, clients.train, n_rounds=n_rounds, sampler=sampler, seed=seed + run, measure=0):
                if r.index % 2 == 1 or r.index + 1 == n_rounds:
                    accuracy = np.asarray(evaluate(local, r.state, clients.test).accuracy)
                    curve.append((r.index + 1, float(np.nanmean(accuracy))))
            curves.append(curve)
            ends.append(accuracy)
        found[size] = np.array(ends)
        made.append(
            {
                "clients": size,
                "curve": np.mean(curves, axis=0).tolist(),
                "accuracy": mean_interval(found[size].mean(axis=0), least=0.0, most=1.0),
            }
        )
    for row, size in zip(made, sizes, strict=True):
        row["curve"] = [[int(number), value] for number, value in row["curve"]]
        behind = (found[n] - found[size]).mean(axis=0)
        variance = (0.0, np.inf) if size == n else seed_variance(found, n, size)
        row["behind"] = mean_interval(behind, comparisons=max(1, len(sizes) - 1), variance=variance)
    return plain(made)  # type: ignore[no-any-return]
