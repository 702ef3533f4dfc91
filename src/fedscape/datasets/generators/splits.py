"""Split one data set into clients as in the sketch paper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedscape.core.random import Key, dirichlet
from fedscape.core.validate import check_whole
from fedscape.datasets.generators.draws import check_positive
from fedscape.errors import DataError
from fedscape.types import Array

_TRIES = 1000


def sketch_dirichlet(
    labels: npt.ArrayLike, n_clients: int = 30, *, concentration: float = 0.5, least: int = 20, seed: int = 0
) -> list[Array]:
    """Split the rows class by class with Dirichlet proportions (sketch paper, Section 5.1).

    A client that already has its even share of all rows gets no more. The draw repeats until every client has at least
    `least` rows. Every row goes to one client.

    >>> rows = sketch_dirichlet([0, 1] * 100, 4)
    >>> sum(map(len, rows)), min(map(len, rows)) >= 20
    (200, True)
    """
    y = _labels(labels)
    n = check_whole("n_clients", n_clients, least=1)
    alpha = np.full(n, check_positive("concentration", concentration))
    if len(y) < n * check_whole("least", least, least=0):
        raise DataError(f"{len(y):,} rows cannot give {n:,} clients {least} rows each")
    rng = Key(seed, purpose="sketch dirichlet split").generator()
    for _ in range(_TRIES):
        owner = np.empty(len(y), dtype=np.int64)
        have = np.zeros(n)
        for label in np.unique(y):
            mine = rng.permutation(np.flatnonzero(y == label))
            shares = dirichlet(rng, alpha) * (have < len(y) / n)
            ends = np.round(np.cumsum(shares) / max(shares.sum(), 1e-300) * len(mine)).astype(np.int64)
            owner[mine] = np.searchsorted(ends, np.arange(len(mine)), side="right").clip(max=n - 1)
            have += np.bincount(owner[mine], minlength=n)
        if have.min() >= least:
            return _rows_of(owner, n)
    raise DataError(f"{_TRIES} draws left some of {n:,} clients with fewer than {least} rows: lower `least`")


def sketch_dirichlet_uniform(
    labels: npt.ArrayLike, n_clients: int = 30, *, concentration: float = 0.5, least: int = 20, seed: int = 0
) -> list[Array]:
    """Split half of the clients by a Dirichlet law, the other half uniformly (sketch paper, Section 5.1).

    Each half of the clients shares a random half of the rows; no row goes to two clients.

    >>> rows = sketch_dirichlet_uniform([0, 1] * 200, 4)
    >>> [len(r) for r in rows[2:]], sum(map(len, rows))
    ([100, 100], 400)
    """
    y = _labels(labels)
    n = check_whole("n_clients", n_clients, least=2)
    order = Key(seed, purpose="sketch halves").generator().permutation(len(y))
    first, second = np.sort(order[: len(y) // 2]), order[len(y) // 2 :]
    skewed = sketch_dirichlet(y[first], n // 2, concentration=concentration, least=least, seed=seed)
    return [*(first[rows] for rows in skewed), *(np.sort(part) for part in np.array_split(second, n - n // 2))]


def sketch_by_class(
    labels: npt.ArrayLike, n_clients: int = 100, *, classes: int = 2, twins: bool = False, seed: int = 0
) -> list[Array]:
    """Split into clients of two classes each, of floor(lognormal(0, 2)) + 20 rows (sketch paper, Section 5.4).

    Rows are dealt from shuffled classes, starting over when a class is used up. With twins, client i + n / 2 has the
    classes of client i: the favourable case, where every new client has a counterpart.

    >>> rows = sketch_by_class([0, 1, 2] * 100, 6, twins=True)
    >>> y = np.array([0, 1, 2] * 100)
    >>> all(set(y[a]) == set(y[b]) for a, b in zip(rows[:3], rows[3:]))
    True
    """
    y = _labels(labels)
    n, kinds = check_whole("n_clients", n_clients, least=1), np.unique(y)
    k = check_whole("classes", classes, least=1)
    if k > len(kinds) or (twins and n % 2):
        raise DataError(f"{len(kinds)} classes cannot give {k} to each client, or {n} clients cannot be paired")
    rng = Key(seed, purpose="sketch by class").generator()
    chosen = np.array([rng.choice(len(kinds), k, replace=False) for _ in range(n // 2 if twins else n)])
    chosen = np.concatenate((chosen, chosen)) if twins else chosen
    sizes = np.minimum(np.floor(rng.lognormal(0.0, 2.0, n)).astype(np.int64) + 20, len(y))
    pools = [rng.permutation(np.flatnonzero(y == kind)) for kind in kinds]
    dealt, rows = np.zeros(len(kinds), dtype=np.int64), []
    for mine, size in zip(chosen, sizes, strict=True):
        parts = []
        for index, kind in enumerate(mine):
            number = min(size // k + (index < size % k), len(pools[kind]))
            parts.append(pools[kind][(dealt[kind] + np.arange(number)) % len(pools[kind])])
            dealt[kind] += number
        rows.append(np.sort(np.concatenate(parts)))
    return rows


def sketch_uneven(
    n_rows: int, n_clients: int = 100, *, least: int = 100, most: int = 700, seed: int = 0
) -> list[Array]:
    """Split into clients of `least` to `most` rows, drawn at random (sketch paper, Appendix C.2).

    The paper takes the split of the FedShare repository. It calls it non-IID, but clients differ by size alone: every
    client is a random sample of the rows, without replacement. Rows that are left over go to nobody.

    >>> rows = sketch_uneven(50_000)
    >>> len(rows), min(map(len, rows)) >= 100, max(map(len, rows)) <= 700
    (100, True, True)
    """
    n = check_whole("n_clients", n_clients, least=1)
    low, high = check_whole("least", least, least=0), check_whole("most", most, least=0)
    if low > high:
        raise DataError(f"least must be at most most: {low}, {high}")
    rng = Key(seed, purpose="sketch uneven split").generator()
    sizes = rng.integers(low, high + 1, n)
    if sizes.sum() > n_rows:
        raise DataError(f"{n_rows:,} rows cannot give {n:,} clients {sizes.sum():,} in all: lower `most`")
    order = rng.permutation(n_rows)
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes))[:-1]]


def _labels(labels: npt.ArrayLike) -> Array:
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "biu" or len(y) == 0:
        raise DataError(f"labels must be one whole number a row, at least one row, not {y.dtype}{list(y.shape)}")
    return y


def _rows_of(owner: Array, n: int) -> list[Array]:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=n))[:-1])
