"""Loops over the counts of many clients, each a serial Numba kernel beside its plain NumPy twin.

Counts are in compressed rows: client i owns the entries `offsets[i]:offsets[i + 1]` of `category` and `number`. Dense
counts are the special case of C entries per client, zeros included (skipping them would cost a branch and be slower);
`category` then holds 0 to C - 1 only once. Tables are flat: the value of category j at count c is row `first[j] + c`,
one column per component, padded with zeros to a multiple of four. Kernels process four components at a time in local
variables, because accumulators in memory would stall; fixed offsets in a slice of four columns are one vector load.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.core.arrays import rows_of
from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.core.validate import all_valid, check_categories, is_rising, valid_categories
from fedscape.errors import DataError
from fedscape.types import Array

DENSE = 512  # up to this number of categories zeros are stored, above only non-zeros


class Counts(NamedTuple):
    """The counts of some clients in compressed rows, and their totals."""

    offsets: Array  # [clients + 1]
    category: Array  # [entries], or [C] if every client has an entry for each category
    number: Array  # [entries]
    total: Array  # [clients]

    @property
    def stride(self) -> int:
        """0 if `category` is shared by all clients, else 1."""
        return int(len(self.category) == len(self.number))

    @property
    def categories(self) -> Array:
        """The category of each entry."""
        return np.resize(self.category, len(self.number))

    @property
    def client(self) -> Array:
        """The client of each entry."""
        return np.repeat(np.arange(len(self.total)), np.diff(self.offsets))

    def only(self, clients: Array) -> Counts:
        """The counts of these clients."""
        entries, offsets = rows_of(self.offsets, clients)
        category = self.category[entries] if self.stride else self.category
        return Counts(offsets, category, self.number[entries], self.total[clients])

    def dense(self, n_categories: int) -> Array:
        """The counts as [clients, C]."""
        if len(self.number) == len(self.total) * n_categories:
            return self.number.reshape(-1, n_categories)
        out = np.zeros((len(self.total), n_categories), dtype=np.int32)
        out[self.client, self.categories] = self.number
        return out


def counts_of(clients: Federation, column: str, count: str | None, n_categories: int) -> Counts:
    """Count the categories of each client.

    Parameters
    ----------
    column
        One category per row, or (two-dimensional) count vectors.
    count
        A column with the number of occurrences of each row's category; by default one.
    """
    if count is not None:
        return _from_pairs(clients, column, count, n_categories)
    values = clients[column]
    if values.ndim == 2 and len(values) == len(clients) and bool(np.all(clients.sizes == 1)):
        counts = check_categories(values, n_categories, column)
    elif values.ndim == 2 or n_categories <= DENSE:
        counts = clients.counts(column, n_categories)
    else:
        check_categories(values, n_categories, column)
        return _from_rows(values.astype(np.int64), clients.offsets, n_categories)
    if counts.dtype.itemsize > 4 and counts.size and counts.max() > np.iinfo(np.int32).max:
        raise DataError(f"column {column!r} holds the count {counts.max()}; counts must be below 2**31")
    if n_categories <= DENSE:
        flat = np.ascontiguousarray(counts, dtype=np.int32).reshape(-1)
        offsets = np.arange(len(clients) + 1, dtype=np.int64) * n_categories
        return _with_total(offsets, np.arange(n_categories, dtype=np.int32), flat)
    client, category = np.nonzero(counts)
    offsets = np.searchsorted(client, np.arange(len(clients) + 1)).astype(np.int64)
    return _with_total(offsets, category.astype(np.int32), counts[client, category].astype(np.int32))


def valid_counts(clients: Federation, column: str, count: str | None, n_categories: int) -> Array | None:
    """Which rows `counts_of` accepts; None if all."""
    pairs = None if count is None else valid_categories(clients[count], 2**31 - 1)
    return all_valid(valid_categories(clients[column], n_categories), pairs)


def stand_for_many(clients: Federation | None, column: str, count: str | None) -> bool:
    """Whether a row may count more than once: count vectors, or a count column."""
    return count is not None or (clients is not None and clients[column].ndim > 1)


def _from_pairs(clients: Federation, column: str, count: str, n_categories: int) -> Counts:
    category = check_categories(clients[column], n_categories, column)
    number = check_categories(clients[count], 2**31 - 1, count)
    if category.ndim != 1 or number.ndim != 1:
        raise DataError(f"columns {column!r} and {count!r} must hold one category and one count a row")
    cells = clients.client_of_row * n_categories + category
    if not is_rising(cells):  # a category twice in one client, or out of order
        cells, inverse = np.unique(cells, return_inverse=True)
        number = np.bincount(inverse, weights=number, minlength=len(cells))
        if number.size and number.max() > np.iinfo(np.int32).max:
            raise DataError(f"column {count!r} adds up to {number.max():.0f}; counts must be below 2**31")
    return _from_cells(cells, number, len(clients), n_categories)


def _from_rows(values: Array, offsets: Array, n_categories: int) -> Counts:
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    cells, number = np.unique(owner * n_categories + values, return_counts=True)
    return _from_cells(cells, number, len(offsets) - 1, n_categories)


def _from_cells(cells: Array, number: Array, clients: int, n_categories: int) -> Counts:
    ends = np.searchsorted(cells, np.arange(clients + 1) * n_categories).astype(np.int64)
    return _with_total(ends, (cells % n_categories).astype(np.int32), np.ascontiguousarray(number, dtype=np.int32))


def _with_total(offsets: Array, category: Array, count: Array) -> Counts:
    total = np.zeros(len(offsets) - 1, dtype=np.int64)
    add_up_counts(offsets, count, total)
    return Counts(offsets, category, count, total)


@kernel
def add_up_counts(offsets: Array, number: Array, total: Array) -> None:
    """total[client] += each of its counts."""
    for i in range(len(total)):
        mine = number[offsets[i] : offsets[i + 1]]
        n = 0
        for q in range(len(mine)):
            n += mine[q]
        total[i] += n


def add_up_counts_twin(offsets: Array, number: Array, total: Array) -> None:
    """The plain NumPy twin of `add_up_counts`."""
    total += np.diff(np.concatenate(([0], np.cumsum(number, dtype=np.int64)))[offsets])


@kernel
def fill_rising(mean: Array, dispersion: Array, first: Array, cap: Array, kind: int, table: Array) -> None:
    """table[first[j] + c, g] = sum over m < c of f(mean[g, j] + m dispersion[g]), c = 0 to cap[j].

    f is the logarithm (kind 0), the inverse (1) or the squared inverse (2): rising factorials and differences of
    digamma and trigamma functions, in units of the scale. The multinomial limit, dispersion 0, is exact.
    """
    for j in range(len(first)):
        for g in range(len(dispersion)):
            running = 0.0
            table[first[j], g] = 0.0
            for m in range(cap[j]):
                x = mean[g, j] + m * dispersion[g]
                if kind == 0:
                    running += np.log(x)
                elif kind == 1:
                    running += 1.0 / x
                else:
                    running += 1.0 / (x * x)
                table[first[j] + m + 1, g] = running


def fill_rising_twin(mean: Array, dispersion: Array, first: Array, cap: Array, kind: int, table: Array) -> None:
    """The plain NumPy twin of `fill_rising`."""
    for j in range(len(first)):
        x = mean[:, j] + np.arange(cap[j])[:, None] * dispersion
        f = np.log(x) if kind == 0 else x**-kind
        table[first[j]] = 0.0
        table[first[j] + 1 : first[j] + cap[j] + 1] = np.cumsum(f, axis=0)


@kernel
def posterior(
    offsets: Array,
    number: Array,
    total: Array,
    first: Array,
    cap: Array,
    stride: int,
    table: Array,
    by_total: Array,
    models: Array,
    shares: Array,
    likelihood: Array,
) -> int:
    """The E-step: shares[client, g] (responsibilities), and each model's log-sum-exp in likelihood[client, model].

    Entry q of a client has the table rows from first[stride * offset + q] on, up to cap. by_total[n, g] depends only on
    the client's total. Returns the number of counts and totals above the tables: NumPy handles those.
    """
    above, last = 0, by_total.shape[0] - 1
    longest = 0
    for i in range(len(total)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    row = np.empty(longest, dtype=np.uint64)
    for i in range(len(total)):
        mine = number[offsets[i] : offsets[i + 1]]
        begin, end = first[stride * offsets[i] :], cap[stride * offsets[i] :]
        for q in range(len(mine)):
            above += mine[q] > end[q]
            row[q] = np.uint64(begin[q] + min(mine[q], end[q]))
        above += total[i] > last
        n = min(total[i], last)
        for g in range(0, shares.shape[1], 4):
            four, at = table[:, g : g + 4], by_total[n, g : g + 4]
            s0, s1, s2, s3 = at[0], at[1], at[2], at[3]
            for q in range(len(mine)):
                r = row[q]
                s0 += four[r, 0]
                s1 += four[r, 1]
                s2 += four[r, 2]
                s3 += four[r, 3]
            shares[i, g], shares[i, g + 1], shares[i, g + 2], shares[i, g + 3] = s0, s1, s2, s3
        for m in range(len(models) - 1):
            largest = shares[i, models[m]]
            for g in range(models[m] + 1, models[m + 1]):
                largest = max(largest, shares[i, g])
            together = 0.0
            for g in range(models[m], models[m + 1]):
                shares[i, g] = np.exp(shares[i, g] - largest)
                together += shares[i, g]
            for g in range(models[m], models[m + 1]):
                shares[i, g] /= together
            likelihood[i, m] = largest + np.log(together)
        for g in range(models[-1], shares.shape[1]):
            shares[i, g] = 0.0
    return above


def posterior_twin(logarithm: Array, models: Array) -> tuple[Array, Array]:
    """The end of `posterior` in plain NumPy: from log joint [clients, G] to responsibilities and likelihoods."""
    sizes = np.diff(models)
    largest = np.maximum.reduceat(logarithm, models[:-1], axis=1)
    shares = np.exp(logarithm - np.repeat(largest, sizes, axis=1))
    together = np.add.reduceat(shares, models[:-1], axis=1)
    return shares / np.repeat(together, sizes, axis=1), largest + np.log(together)


@kernel
def add_ends(
    offsets: Array,
    number: Array,
    shares: Array,
    owner: Array,
    first: Array,
    length: Array,
    stride: int,
    edges: Array,
    exact: int,
    out: Array,
) -> None:
    """out[owner, first + cell, g] += share, in the cell of each count.

    A count inside a wide cell is split between this cell and the next: sums from above are then the parts of the cells
    below the count. Row `first` is for count 0 and keeps the loop free of branches.
    """
    longest = 0
    for i in range(len(owner)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    row = np.empty(longest, dtype=np.uint64)
    for i in range(len(owner)):
        mine = number[offsets[i] : offsets[i + 1]]
        begin, end = first[stride * offsets[i] :], length[stride * offsets[i] :]
        cells = out[owner[i]]
        wide = 0
        for q in range(len(mine)):
            wide += mine[q] > exact
            row[q] = np.uint64(begin[q] + min(mine[q], end[q]))
        if wide > 0:
            for q in range(len(mine)):
                c = mine[q]
                if c <= exact:
                    continue
                low, high = exact, len(edges) - 1
                while high - low > 1:
                    middle = (low + high) // 2
                    if edges[middle] <= c:
                        low = middle
                    else:
                        high = middle
                row[q] = np.uint64(begin[q] + min(low, end[q]))
                above = begin[q] + min(low + 1, end[q])
                part = (c - edges[low]) / (edges[low + 1] - edges[low])
                for g in range(shares.shape[1]):
                    cells[above, g] += part * shares[i, g]
                    cells[row[q], g] -= part * shares[i, g]
        for g in range(0, shares.shape[1], 4):
            w0, w1, w2, w3 = shares[i, g], shares[i, g + 1], shares[i, g + 2], shares[i, g + 3]
            four = cells[:, g : g + 4]
            for q in range(len(mine)):
                r = row[q]
                four[r, 0] += w0
                four[r, 1] += w1
                four[r, 2] += w2
                four[r, 3] += w3


def add_ends_twin(
    offsets: Array,
    number: Array,
    shares: Array,
    owner: Array,
    first: Array,
    length: Array,
    stride: int,
    edges: Array,
    exact: int,
    out: Array,
) -> None:
    """The plain NumPy twin of `add_ends`."""
    client = np.repeat(np.arange(len(owner)), np.diff(offsets))
    first, length = np.resize(first, len(number)), np.resize(length, len(number))
    low = np.minimum(np.searchsorted(edges, number, side="right") - 1, len(edges) - 2)
    part = np.where(number <= exact, 0.0, (number - edges[low]) / (edges[low + 1] - edges[low]))[:, None]
    np.add.at(out, (owner[client], first + np.minimum(low, length)), (1.0 - part) * shares[client])
    np.add.at(out, (owner[client], first + np.minimum(low + 1, length)), part * shares[client])


@kernel
def tails_of(ends: Array, first: Array, length: Array, tails: Array) -> None:
    """Sums from above: tails[client, first[j] - j + b] = the mass in the cells after b, for b = 0 to length[j] - 1."""
    for i in range(ends.shape[0]):
        for j in range(len(first)):
            for g in range(tails.shape[2]):
                tails[i, first[j] - j + length[j] - 1, g] = ends[i, first[j] + length[j], g]
            for b in range(length[j] - 2, -1, -1):
                for g in range(tails.shape[2]):
                    tails[i, first[j] - j + b, g] = ends[i, first[j] + b + 1, g] + tails[i, first[j] - j + b + 1, g]


def tails_of_twin(ends: Array, first: Array, length: Array, tails: Array) -> None:
    """The plain NumPy twin of `tails_of`."""
    for j in range(len(first)):
        rows = ends[:, first[j] + 1 : first[j] + length[j] + 1, : tails.shape[2]]
        tails[:, first[j] - j : first[j] - j + length[j]] = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1]


@kernel
def add_looked_up(
    offsets: Array,
    category: Array,
    number: Array,
    shares: Array,
    owner: Array,
    first: Array,
    cap: Array,
    stride: int,
    table: Array,
    out: Array,
) -> None:
    """out[owner, j, g] += share times the table at the count of category j (capped at the end of the table)."""
    for i in range(len(owner)):
        mine, which = number[offsets[i] : offsets[i + 1]], category[stride * offsets[i] :]
        begin, end = first[stride * offsets[i] :], cap[stride * offsets[i] :]
        for q in range(len(mine)):
            row = begin[q] + min(mine[q], end[q])
            for g in range(out.shape[2]):
                out[owner[i], which[q], g] += shares[i, g] * table[row, g]


def add_looked_up_twin(
    offsets: Array,
    category: Array,
    number: Array,
    shares: Array,
    owner: Array,
    first: Array,
    cap: Array,
    stride: int,
    table: Array,
    out: Array,
) -> None:
    """The plain NumPy twin of `add_looked_up`."""
    client = np.repeat(np.arange(len(owner)), np.diff(offsets))
    first, cap, category = (np.resize(v, len(number)) for v in (first, cap, category))
    looked_up = (shares[client] * table[first + np.minimum(number, cap)])[:, : out.shape[2]]
    np.add.at(out, (owner[client], category), looked_up)


@kernel
def add_shares(shares: Array, owner: Array, row: Array, out: Array) -> None:
    """out[owner, row of the client, g] += share."""
    for i in range(len(owner)):
        for g in range(out.shape[2]):
            out[owner[i], row[i], g] += shares[i, g]


def add_shares_twin(shares: Array, owner: Array, row: Array, out: Array) -> None:
    """The plain NumPy twin of `add_shares`."""
    np.add.at(out, (owner, row), shares[:, : out.shape[2]])
