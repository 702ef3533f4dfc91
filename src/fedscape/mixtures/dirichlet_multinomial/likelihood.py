"""Lookup tables for the E-step and the M-step of a Dirichlet-multinomial: rising factorials, and cells of counts.

A component is stored as a mean m (sums to one) and a dispersion r = 1/alpha_0, alpha = m / r. In these terms

    log p(c | n) = log n! - sum_j log c_j! + sum_j sum_{u < c_j} log(m_j + u r) - sum_{u < n} log(1 + u r),

which is eq. (1) of the paper and, at r = 0, the multinomial law without cancellation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from fedscape.mixtures.dirichlet_multinomial.kernels import Counts, add_ends, add_shares, fill_rising, tails_of
from fedscape.types import Array

COUNTS = (64, 8)  # cells of counts: one for each up to 64, then each an eighth wider
TOTALS = (512, 32)  # cells of a client's total, finer because there are few
MEAN_FLOOR = 1e-8  # the least mean of a category: an unseen one costs 18 nats instead of infinity
LEAST, MOST = 1e-10, 1e4  # dispersions; 1e-10 is the multinomial law to 1e-4 nats for a client of 1,000 rows
TABLE = 2**22  # maximum size of a table; larger counts are computed one by one
_SHIFT = 16


def rising(mean: Array, dispersion: Array, count: Array, kind: int) -> Array:
    """Sum over u < count of f(mean + u dispersion), f the logarithm (0), the inverse (1) or its square (2).

    The first 16 terms are summed directly, the rest by differences of Stirling's series, arranged to avoid cancellation
    at any scale.

    >>> float(rising(np.array(0.5), np.array(0.1), np.array(100), 0).round(9))
    148.822025643
    >>> float(np.log(0.5 + 0.1 * np.arange(100)).sum().round(9))
    148.822025643
    """
    mean, dispersion, count = np.broadcast_arrays(mean, dispersion, count)
    out = np.zeros(mean.shape)
    for u in range(_SHIFT):
        x = mean + u * dispersion
        out += np.where(u < count, np.log(x) if kind == 0 else x**-kind, 0.0)
    rest = np.maximum(count - _SHIFT, 0)
    a = mean / dispersion + _SHIFT
    b = a + rest
    if kind == 0:
        series = sum(k * (b**-p - a**-p) for k, p in ((1 / 12, 1.0), (-1 / 360, 3.0), (1 / 1260, 5.0)))
        return np.asarray(
            out + (a - 0.5) * np.log1p(rest / a) - rest + rest * np.log(mean + count * dispersion) + series
        )
    if kind == 1:
        series = sum(k * (a**-p - b**-p) for k, p in ((1 / 2, 1.0), (1 / 12, 2.0), (-1 / 120, 4.0), (1 / 252, 6.0)))
        return np.asarray(out + (np.log1p(rest / a) + series) / dispersion)
    series = sum(k * (a**-p - b**-p) for k, p in ((1 / 2, 2.0), (1 / 6, 3.0), (-1 / 30, 5.0), (1 / 42, 7.0)))
    return np.asarray(out + (rest / (a * b) + series) / dispersion**2)


def rows_of_entries(counts: Counts, first: Array, last: Array) -> tuple[Array, Array]:
    """Per-category values for each entry; dense counts share them between clients."""
    return (first[counts.category], last[counts.category]) if counts.stride else (first, last)


def padded(components: int) -> int:
    """The next multiple of four: kernels take four components at a time."""
    return -(-components // 4) * 4


class Tables(NamedTuple):
    """Rising sums of all components at all counts up to a cap per category; `total` for the client's total."""

    mean: Array
    dispersion: Array
    first: Array  # [C]
    cap: Array  # [C]
    rows: Array  # [rows, G, then zeros up to a multiple of four]
    total: Array  # [cap of the total + 1, likewise]
    kind: int

    @classmethod
    def build(cls, mean: Array, dispersion: Array, reach: Array, kind: int = 0) -> Tables:
        """Build tables for counts up to `reach` [C + 1] (the last is the total's), or as many as fit."""
        limit = np.int64(2**31)
        while np.minimum(reach, limit).sum() * len(dispersion) > TABLE and limit > 16:
            limit //= 2
        cap = np.minimum(reach, limit).astype(np.int32)
        first = np.concatenate(([0], np.cumsum(cap[:-2] + 1))).astype(np.int32)
        rows = np.zeros((int(cap[:-1].sum()) + len(first), padded(len(dispersion))))
        fill_rising(np.ascontiguousarray(mean), np.ascontiguousarray(dispersion), first, cap[:-1], kind, rows)
        total = np.zeros((int(cap[-1]) + 1, padded(len(dispersion))))
        one = np.ones((len(dispersion), 1))
        fill_rising(one, np.ascontiguousarray(dispersion), np.zeros(1, dtype=np.int32), cap[-1:], kind, total)
        return cls(mean, dispersion, first, cap[:-1], rows, total, kind)

    def of_total(self, n: Array) -> Array:
        """The values at these totals: [clients, G and padding]."""
        values = self.total[np.minimum(n, len(self.total) - 1)]
        over = n >= len(self.total)
        if over.any():
            values[over, : len(self.dispersion)] = rising(np.ones(1), self.dispersion, n[over, None], self.kind)
        return np.asarray(values)

    def beyond(self, counts: Counts) -> tuple[Array, Array]:
        """Entries above the tables, and the excess of their values [entries, G] over the table's end."""
        over = np.flatnonzero(counts.number > self.cap[counts.categories])
        j = counts.categories[over]
        if not len(over):
            return over, np.empty((0, len(self.dispersion)))
        exact = rising(self.mean.T[j], self.dispersion, counts.number[over, None], self.kind)
        return over, exact - self.rows[self.first[j] + self.cap[j], : len(self.dispersion)]


@lru_cache(maxsize=1)
def _factorials() -> Array:
    return np.asarray(gammaln(np.arange(2**14) + 1.0))


def log_coefficient(counts: Counts) -> Array:
    """log n! - sum_j log c_j! of each client."""
    table = _factorials()
    small = table[np.minimum(counts.number, len(table) - 1)]
    if counts.number.size and counts.number.max() >= len(table):
        small = np.where(counts.number < len(table), small, gammaln(counts.number + 1.0))
    if counts.stride == 0:
        below = small.reshape(len(counts.total), -1).sum(axis=1)
    else:
        below = np.bincount(counts.client, weights=small, minlength=len(counts.total))
    return np.asarray(gammaln(counts.total + 1.0) - below)


@lru_cache(maxsize=4)
def edges(grid: tuple[int, int]) -> Array:
    """The first count of each cell, to 2**31: one per count up to grid[0], then each wider by a grid[1]-th of itself.

    >>> edges((64, 8))[62:68]
    array([62, 63, 64, 72, 81, 91])
    """
    ends = list(range(grid[0] + 1))
    while ends[-1] < 2**31:
        ends.append(ends[-1] + ends[-1] // grid[1])
    return np.array(ends, dtype=np.int64)


class Cells(NamedTuple):
    """The cells of counts of each category: those below the largest count of any client.

    For each component, category and cell, a client sends its responsibility times the part of the cell below its count.
    For the cell of the single count u that is w 1[c > u], the tail count. Each is between 0 and 1.
    """

    first: Array  # [C], in arrays with one extra row for count 0
    length: Array  # [C]
    grid: tuple[int, int]

    @classmethod
    def covering(cls, reach: Array, grid: tuple[int, int]) -> Cells:
        """Cells up to these counts; counts above the last cell are ignored in the M-step."""
        length = np.searchsorted(edges(grid), np.maximum(reach, 1), side="left").astype(np.int32)
        return cls(np.concatenate(([0], np.cumsum(length[:-1] + 1))).astype(np.int32), length, grid)

    @property
    def number(self) -> int:
        return int(self.length.sum())

    def tails(self, counts: Counts, shares: Array, owner: Array, n: int, components: int) -> Array:
        """The parts of the cells below the counts, weighted, by owner: [n, cells, G]."""
        ends = np.zeros((n, self.number + len(self.first), shares.shape[1]))
        first, length = rows_of_entries(counts, self.first, self.length)
        grid = edges(self.grid)
        if len(self.first) == 1 and counts.number.max(initial=0) <= min(self.grid[0], int(self.length[0])):
            add_shares(shares, owner, counts.number, ends)  # one number per client, none in a wide cell
        else:
            add_ends(
                counts.offsets, counts.number, shares, owner, first, length, counts.stride, grid, self.grid[0], ends
            )
        tails = np.empty((n, self.number, components))
        tails_of(ends, self.first, self.length, tails)
        return tails


class Points(NamedTuple):
    """Quadrature points of the sums over u of T(u) f(m + u r); T(u) is known only on cells.

    A cell of one count is one point. In a wide cell T falls linearly, with a slope from the neighbours, limited to
    neither rise nor leave their range; two points integrate polynomials up to the cubic exactly.
    """

    at: Array  # [points] the count u
    cell: Array  # [points] which cell
    width: Array  # [points] number of counts that the point represents
    reach: Array  # [points] the signed distance from the middle of the cell
    begin: Array  # [C] first point of each category
    category: Array  # [points]
    before: Array  # [cells] distance to the middle of the previous cell, inf in the first
    after: Array  # [cells]

    @classmethod
    def of(cls, cells: Cells) -> Points:
        """The points of these cells."""
        grid, length = edges(cells.grid), cells.length
        begin = np.concatenate(([0], np.cumsum(length)[:-1]))
        place = np.arange(int(length.sum())) - np.repeat(begin, length)  # index of the cell in its category
        wide = (grid[place + 1] - grid[place]).astype(float)
        middle = (grid[place] + grid[place + 1] - 1) / 2
        before = np.where(place > 0, middle - np.concatenate(([0.0], middle[:-1])), np.inf)
        twice = np.where(wide > 1, 2, 1)
        cell = np.repeat(np.arange(len(place)), twice)
        sign = np.where(twice[cell] == 1, 0.0, np.where(np.diff(cell, prepend=-1) > 0, -1.0, 1.0))
        reach = sign * np.sqrt((wide[cell] ** 2 - 1) / 12)
        category = np.repeat(np.arange(len(length)), length)[cell]
        start = np.searchsorted(category, np.arange(len(length)))
        after = (wide + wide[np.minimum(np.arange(len(wide)) + 1, len(wide) - 1)]) / 2
        return cls(middle[cell] + reach, cell, wide[cell] / twice[cell], reach, start, category, before, after)

    def weights(self, tails: Array) -> Array:
        """The weight of each point, [points, G], for tails [cells, G]."""
        tails = np.maximum(tails, 0.0)
        if not self.reach.any():
            return tails[self.cell]
        left = np.vstack((tails[:1], tails[:-1])) - tails
        right = tails - np.vstack((tails[1:], np.zeros_like(tails[:1])))
        last = np.append(self.before[1:] == np.inf, True)  # nothing lies above a category's last cell
        right[last] = tails[last]
        fall = np.minimum(2 * left / self.before[:, None], 2 * right / self.after[:, None])
        fall = np.minimum(fall, (left + right) / (self.before + self.after)[:, None])
        fall = np.where((left > 0) & (right > 0), fall, 0.0)
        return np.asarray(self.width[:, None] * (tails[self.cell] - fall[self.cell] * self.reach[:, None]))
