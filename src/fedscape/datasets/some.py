"""Part of a federation that is too large to be read at once, chosen by the seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.sampling import Poisson, Sampler, candidates
from fedscape.types import Array

MOST_ROWS = 20_000_000  # rows that a command holds in memory
MOST_BYTES = 2**33  # the same in bytes
_FEW = 10_000  # with fewer clients some rows of each are taken, not some clients
_CHUNK = 2**20

Draw = Callable[[Sampler, Key], Array]


def some_rows(federation: Federation, *, seed: int, draw: Draw | None = None) -> tuple[Federation, str | None]:
    """The federation itself, or of one with more than MOST_ROWS rows or MOST_BYTES some clients; and a remark.

    Of fewer than 10,000 clients all stay, and some rows of each are taken. What is taken depends on the seed and the
    client alone.

    Parameters
    ----------
    federation
        The clients; rows that are not taken are not read.
    seed
        Seed of the choice.
    draw
        Draws a cohort elsewhere, as `Ray.draw` does; by default here, a million clients at a time.

    >>> some_rows(Federation({"y": [1, 2]}, [0, 1, 2]), seed=0)[1] is None
    True
    """
    most = most_rows(federation)
    if federation.n_rows <= most:
        return federation, None
    rate, key = most / federation.n_rows, Key(seed, purpose="part of a federation")
    whole = f"{len(federation):,} clients with {federation.n_rows:,} rows"
    if len(federation) < _FEW:
        part = _thinned(federation, rate, key)
        return part, f"of {whole}, {part.n_rows:,} rows are looked at, chosen by the seed inside each client"
    sampler = Poisson(rate)
    cohort = _drawn(federation, sampler, key) if draw is None else draw(sampler, key)
    part = federation.take(cohort)
    return part, f"of {whole}, {len(part):,} clients are looked at, chosen by the seed, with {part.n_rows:,} rows"


def most_rows(federation: Federation) -> int:
    """Number of rows of this federation that are held in memory.

    >>> most_rows(Federation({"x": np.zeros((2, 1024))}, [0, 1, 2]))
    1048576
    """
    row = sum(values.dtype.itemsize * int(np.prod(values.shape[1:])) for values in federation.columns.values())
    return min(MOST_ROWS, max(1, MOST_BYTES // max(1, row)))


def _drawn(federation: Federation, sampler: Poisson, key: Key) -> Array:
    parts = []
    for begin in range(0, len(federation), _CHUNK):
        ids = np.array(federation.ids[begin : begin + _CHUNK])
        parts.append(candidates(sampler, ids, np.arange(begin, begin + len(ids)), key)[0])
    return np.concatenate(parts)


def _thinned(federation: Federation, rate: float, key: Key) -> Federation:
    """Some rows of each client, a million rows at a time."""
    rows, sizes = [], []
    for client in range(len(federation)):
        begin, end = int(federation.offsets[client]), int(federation.offsets[client + 1])
        rng = key.generator(int(federation.keys[client]))
        chosen = [
            first + np.flatnonzero(rng.random(min(_CHUNK, end - first)) < rate) for first in range(begin, end, _CHUNK)
        ]
        rows += chosen
        sizes.append(sum(map(len, chosen)))
    where = np.concatenate(rows)
    columns = {name: values[where] for name, values in federation.columns.items()}
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return Federation.trusted(columns, offsets, federation.ids, dict(federation.names))
