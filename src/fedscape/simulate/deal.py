"""Deal rows to clients: keyed shuffles and draws, compiled, each beside its plain twin.

Every random number is a function of a 64-bit word per client (or category) and of its position in that client's
sequence: SplitMix64 (Steele, Lea and Flood 2014), seeded with a word from Philox.
"""

from __future__ import annotations

import numpy as np

from fedscape.core.kernel import kernel
from fedscape.core.random import Key, first_uniform
from fedscape.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_A, _B, _C, _D = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53
_MASK = 2**64 - 1


def words(key: Key, end: int, *, begin: int = 0) -> Array:
    """A 64-bit word for each client (or category) from `begin` to `end`, a function of key and position only."""
    seed, purpose = key._philox_key()
    places = np.arange(begin, end, dtype=np.uint64)
    return np.asarray(first_uniform(places, np.uint64(key.round), seed, purpose)).view(np.uint64) * _SECOND


@kernel
def shuffle_groups(order: Array, starts: Array, state: Array) -> None:
    """Shuffle order[starts[j]:starts[j + 1]] for each j, from the word state[j] (Fisher and Yates)."""
    for j in range(len(starts) - 1):
        s = state[j]
        first = starts[j]
        for i in range(starts[j + 1] - first - 1, 0, -1):
            s += _GOLDEN
            z = (s ^ (s >> _A)) * _FIRST
            z = (z ^ (z >> _B)) * _SECOND
            k = int(((z ^ (z >> _C)) >> _D) * _UNIT * (i + 1))
            order[first + i], order[first + k] = order[first + k], order[first + i]


@kernel
def deal(
    counts: Array, order: Array, starts: Array, shared: Array, state: Array, stamp: Array, offsets: Array, out: Array
) -> None:
    """Give client i counts[i, j] rows of category j, and shuffle its rows.

    A category that is not shared is dealt in the order of the clients: no two clients share a row. From a shared
    category every client draws its own rows without replacement (Floyd's algorithm: one draw per row). A client that
    needs more rows than there are gets full copies first.
    """
    dealt = starts[:-1].copy()
    for i in range(counts.shape[0]):
        s = state[i]
        to = offsets[i]
        for j in range(counts.shape[1]):
            number = counts[i, j]
            if number == 0:
                continue
            if not shared[j]:
                for t in range(number):
                    out[to + t] = order[dealt[j] + t]
                dealt[j] += number
                to += number
                continue
            first, stock = starts[j], starts[j + 1] - starts[j]
            for _ in range(number // stock):
                for t in range(stock):
                    out[to + t] = order[first + t]
                to += stock
            for t in range(stock - number % stock, stock):
                s += _GOLDEN
                z = (s ^ (s >> _A)) * _FIRST
                z = (z ^ (z >> _B)) * _SECOND
                k = int(((z ^ (z >> _C)) >> _D) * _UNIT * (t + 1))
                if stamp[first + k] == i:
                    k = t
                stamp[first + k] = i
                out[to] = order[first + k]
                to += 1
        for t in range(to - offsets[i] - 1, 0, -1):
            s += _GOLDEN
            z = (s ^ (s >> _A)) * _FIRST
            z = (z ^ (z >> _B)) * _SECOND
            k = int(((z ^ (z >> _C)) >> _D) * _UNIT * (t + 1))
            out[offsets[i] + t], out[offsets[i] + k] = out[offsets[i] + k], out[offsets[i] + t]


def _below(state: int, n: int) -> tuple[int, int]:
    """Advance the state, and draw a number from 0 to n - 1."""
    state = (state + int(_GOLDEN)) & _MASK
    z = ((state ^ (state >> 30)) * int(_FIRST)) & _MASK
    z = ((z ^ (z >> 27)) * int(_SECOND)) & _MASK
    return state, int(((z ^ (z >> 31)) >> 11) * _UNIT * n)


def _shuffled(rows: list[int], state: int) -> list[int]:
    for i in range(len(rows) - 1, 0, -1):
        state, k = _below(state, i + 1)
        rows[i], rows[k] = rows[k], rows[i]
    return rows


def shuffle_groups_twin(order: Array, starts: Array, state: Array) -> None:
    """The plain twin of `shuffle_groups`."""
    for j in range(len(starts) - 1):
        part = slice(starts[j], starts[j + 1])
        order[part] = _shuffled(order[part].tolist(), int(state[j]))


def deal_twin(
    counts: Array, order: Array, starts: Array, shared: Array, state: Array, stamp: Array, offsets: Array, out: Array
) -> None:
    """The plain twin of `deal`."""
    dealt = starts[:-1].copy()
    for i, wanted in enumerate(counts):
        s, rows = int(state[i]), []
        for j in np.flatnonzero(wanted):
            number, group = int(wanted[j]), order[starts[j] : starts[j + 1]].tolist()
            if not shared[j]:
                rows += order[dealt[j] : dealt[j] + number].tolist()
                dealt[j] += number
                continue
            rows += group * (number // len(group))
            taken: set[int] = set()
            for t in range(len(group) - number % len(group), len(group)):
                s, k = _below(s, t + 1)
                k = t if k in taken else k
                taken.add(k)
                rows.append(group[k])
        out[offsets[i] : offsets[i + 1]] = _shuffled(rows, s)
