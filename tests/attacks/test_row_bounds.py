"""A search, for every Computation that bounds what one row can do, for a row that does more."""

from __future__ import annotations

from dataclasses import dataclass, replace

import computations as found
import numpy as np
import pytest

from fedscape import Computation, Federation, Gaussian, HeavyHitters, Histogram, Key, PrivacyError, rounds
from fedscape.core.arrays import offsets_of
from fedscape.core.rounds import frozen
from fedscape.errors import DataError
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.private import DifferenceMoments, Outline, ScoreAscent

SCALES = np.array([0.0, 1e-300, 1e-160, 1e-3, 1.0, 1e3, 1e160, 1e300])
CLIENTS, GENERATIONS, POOL = 96, 5, 64


@dataclass(frozen=True)
class Attack:
    """A client, as how often it has each row of the pool, and the row that is added."""

    times: np.ndarray  # [pool]
    row: int
    first: bool = False  # whether the row comes before the others


def forms(fed: Federation) -> list[Federation]:
    """The same rows as they might come too: narrower types, and count vectors instead of one category a row."""
    made = [fed]
    narrow = {n: v.astype(np.float32 if v.dtype.kind == "f" else np.int32) for n, v in fed.columns.items()}
    made.append(Federation(narrow, fed.offsets, fed.ids, names=fed.names))
    for name, values in fed.columns.items():
        if values.dtype.kind == "i" and values.ndim == 1 and name not in fed.names and values.min() >= 0:
            made.append(fed.with_column(name, np.eye(int(values.max()) + 1, dtype=np.int64)[values]))
    return made


def pool_of(fed: Federation, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows that there are, and rows at the ends of what a column can hold."""
    pool = {}
    for name, values in fed.columns.items():
        some = values[rng.integers(0, len(values), POOL)]
        shape = (POOL // 2, *values.shape[1:])
        if values.dtype.kind == "f":
            corner = rng.choice([-1.0, 0.0, 1.0], shape) * rng.choice([1.0, 1.0, rng.random()], shape)
            scale = rng.choice(SCALES, len(corner)).reshape(-1, *[1] * (values.ndim - 1))
            far = np.clip(corner * scale, np.finfo(values.dtype).min, np.finfo(values.dtype).max)
            some[: len(far)] = far
        elif values.ndim == 1:
            some[: POOL // 2] = rng.integers(values.min(), values.max() + 1, POOL // 2)
        else:
            large = rng.choice([0, 0, 1, 1000, 2**12], shape)
            some[: len(large)] = large
        pool[name] = some
    return pool


def first_attacks(rng: np.random.Generator) -> list[Attack]:
    made = []
    for i in range(CLIENTS):
        times = np.zeros(POOL, dtype=np.int64)
        kind = i % 4  # no row, one, a few, and many of a few kinds
        some = rng.integers(0, POOL, (0, 1, 4, 6)[kind])
        times[some] = 1 if kind < 3 else rng.choice([3, 30, 1000], len(some))
        made.append(Attack(times, int(rng.integers(0, POOL)), i % 3 == 0))
    return made


def changed(attack: Attack, rng: np.random.Generator) -> Attack:
    """Another row, a kind of row left out, one more, or many more of one."""
    times, kind, some = attack.times.copy(), rng.integers(0, 4), rng.integers(0, POOL)
    if kind == 0:
        return replace(attack, row=int(some))
    if kind == 1:
        held = np.flatnonzero(times)
        times[rng.choice(held, 1) if len(held) else []] = 0
    else:
        times[some] += 1 if kind == 2 else int(rng.choice([10, 100, 1000]))
    return replace(attack, times=times if times.sum() < 10_000 else attack.times)


def clients_of(attacks: list[Attack], pool: dict[str, np.ndarray], names, *, more: bool) -> Federation:
    which = []
    for attack in attacks:
        rows = np.repeat(np.arange(POOL), attack.times)
        which.append(np.insert(rows, 0 if attack.first else len(rows), attack.row) if more else rows)
    rows = np.concatenate(which)
    return Federation({n: v[rows] for n, v in pool.items()}, offsets_of([len(w) for w in which]), names=names)


def moved(computation: Computation, state, attacks, pool, names) -> np.ndarray:
    """How far the row moves what each client sends, in the norms L1 and L2: [2, clients]."""
    sums = []
    for more in (False, True):
        clients = clients_of(attacks, pool, names, more=more)
        inside = computation.valid_rows(computation.prepare(state), clients)
        clients = clients if inside is None else clients.where(inside)  # as an engine does under a release
        sent, _ = computation.step(computation.prepare(state), clients, Key(0, 1))
        sums.append(np.concatenate([np.reshape(v, (len(clients), -1)).astype(float) for v in sent.values()], axis=1))
    change = np.abs(sums[1] - sums[0])
    return np.stack((change.sum(axis=1), np.sqrt((change**2).sum(axis=1))))


def furthest(computation: Computation, state, fed: Federation, seed: int) -> np.ndarray:
    """The furthest that a search finds a row to move the sums, in L1 and in L2."""
    rng, best = np.random.default_rng(seed), np.zeros(2)
    pool = pool_of(fed, rng)
    attacks = first_attacks(rng)
    for generation in range(GENERATIONS):
        reached = moved(computation, state, attacks, pool, fed.names)
        assert np.isfinite(reached).all(), "a row can make what a client sends infinite"
        best = np.maximum(best, reached.max(axis=1))
        order = np.argsort(-reached[generation % 2])[: CLIENTS // 4]
        attacks = [changed(attacks[i], rng) for i in order for _ in range(4)]
    return best


def states(computation: Computation, fed: Federation) -> list[dict]:
    """First states of two seeds, and those after each of two rounds."""
    loop = rounds(computation, fed, n_rounds=2, allow=computation.reveals, measure=0)
    return [frozen(computation.start(1)), loop.state, *(r.state for r in loop)]


def cases():
    """Every computation that is found and bounds a row in some form of its data, but for those asked already."""
    seen = set()
    for name, computation, fed in found.examples():
        at = computation.start(0)
        for number, form in enumerate(forms(fed)):
            bounded = [computation.row_bound(at, norm, form) is not None for norm in (1, 2)]
            key = (type(computation), computation.digest(), number)
            if any(bounded) and key not in seen:
                seen.add(key)
                yield pytest.param(computation, fed, form, id=f"{name}-{number}")


def reads(computation: Computation, state, form: Federation) -> bool:
    """Whether the computation takes data of this form."""
    try:
        computation.step(computation.prepare(state), form, Key(0, 0))
    except DataError:
        return False
    return True


@pytest.mark.parametrize(("computation", "fed", "form"), list(cases()))
def test_no_row_moves_the_sums_further_than_the_bound(computation, fed, form):
    for number, state in enumerate(states(computation, fed)):
        if not reads(computation, state, form):
            return
        bounds = [computation.row_bound(state, norm, form) for norm in (1, 2)]
        reached = furthest(computation, state, form, seed=number)
        for norm, bound, most in zip((1, 2), bounds, reached, strict=True):
            assert bound is None or most <= bound * (1 + 1e-9), f"L{norm} in state {number}: {most} above {bound}"


def test_the_search_reaches_bounds_that_are_tight():
    computation, fed = Histogram.examples()[0]
    assert furthest(computation, computation.start(0), fed, seed=0).tolist() == [1.0, 1.0]


def test_a_row_of_ready_counts_is_not_one_row():
    computation, fed = Histogram.examples()[1]
    with pytest.raises(PrivacyError, match="does not bound what one row can change: use unit='client'"):
        computation.fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0, unit="row"))


def test_a_row_that_stands_for_many_has_the_bound_of_a_client():
    counts = Federation({"y": np.array([[1000, 0, 0, 0]])}, [0, 1])
    one, pairs = ScoreAscent((1,), np.array([128, 64, 32, 32, 320])), Federation({"y": [0], "n": [1000]}, [0, 1])
    several = ScoreAscent((1,), one.reach, count="n")
    wide, narrow = one.row_bound(one.start(0), 2, counts), one.row_bound(one.start(0), 2, pairs)
    assert wide > narrow
    assert several.row_bound(several.start(0), 2, pairs) == wide
    assert one.row_bound(one.start(0), 2) == narrow  # a server without rows trusts that clients look
    exact = TailCountEM((1,), one.reach)
    assert exact.row_bound(exact.start(0), 2, counts) is None
    assert exact.row_bound(exact.start(0), 2, pairs) == 2.0
    assert {type(c)(4).row_bound({}, 2, counts) for c in (Outline(4), DifferenceMoments(4))} == {np.sqrt(2)}


def test_one_row_may_exchange_all_cells_that_are_drawn():
    """The examples have too few letters for it: half of the bound would pass the search above."""
    work = HeavyHitters(2, column="y", length=4, most=2)
    letters, reached = [chr(97 + i) for i in range(12)], 0.0
    for number in range(40):
        feds = [Federation.from_arrays({"y": letters[:n]}, clients=[f"c{number}"] * n) for n in (9, 10)]
        one, other = (work.step(work.start(0), fed, Key(0, 0))[0]["clients_with"][0] for fed in feds)
        reached = max(reached, float(np.linalg.norm(one - other)))
    assert reached == work.row_bound(work.start(0), 2) == 2.0
