"""Gradient histograms and best splits: the compiled inner loops of boosted trees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedscape.core.kernel import kernel
from fedscape.types import Array

_BYTES = 32  # per split: one bit for each of 256 bins, set if its rows go left


class Rules(NamedTuple):
    """Constraints on splits: penalties, the least weight of a leaf, and monotone directions (-1, 0, 1)."""

    l2: float
    least_weight: float
    least_gain: float
    monotone: Array  # [features]
    n_bins: Array  # [features], without the bin for missing values
    is_category: Array  # [features]


class Splits(NamedTuple):
    """The best split of each node; `feature` is -1 if no split gains enough."""

    feature: Array  # [nodes]
    left: Array  # [nodes, 32]: packed bits of the bins that go left
    sums: Array  # [nodes, 2, 2]: gradient and curvature of left and right


@kernel
def add_histograms(codes: Array, rows: Array, slots: Array, g: Array, h: Array, out: Array) -> None:
    """out[slot, feature, code] += (g, h) for these rows in this order."""
    for i in range(len(rows)):
        row, s = rows[i], slots[i]
        a, b = g[row], h[row]
        for f in range(codes.shape[1]):
            cell = codes[row, f]
            out[s, f, cell, 0] += a
            out[s, f, cell, 1] += b


def rows_in_slots(
    node: Array, first: int, slot_of: Array, owner: Array, n_slots: int, used: Array, near: bool
) -> tuple[Array, Array]:
    """The used rows whose node has a slot, and their slots; each owner has as many.

    Parameters
    ----------
    node, first, slot_of
        The node of each row; `slot_of` has the slot of node `first` and those after it, -1 where it has none.
    owner, n_slots, used
        Whose a row is, the slots of an owner, and whether it counts.
    near
        Whether the histograms of an owner stay in the processor's cache. Then rows are read one after the other, which
        is two to four times quicker than slot by slot; else slot by slot, in order within each.
    """
    rows, slots = placed(node, first, slot_of, owner, n_slots, used)
    return (rows, slots) if near or not len(rows) else by_slot(rows, slots, int(slots.max()) + 1)


@kernel
def placed(node: Array, first: int, slot_of: Array, owner: Array, n_slots: int, used: Array) -> tuple[Array, Array]:
    """The rows of `rows_in_slots`, in order, and their slots."""
    rows, slots, n = np.empty(len(node), dtype=np.int64), np.empty(len(node), dtype=np.int64), 0
    for row in range(len(node)):
        place = node[row] - first  # negative for a leaf of a level above
        if place >= 0 and used[row] and slot_of[place] >= 0:
            rows[n], slots[n] = row, owner[row] * n_slots + slot_of[place]
            n += 1
    return rows[:n], slots[:n]


@kernel
def by_slot(rows: Array, slots: Array, n_slots: int) -> tuple[Array, Array]:
    """The same rows sorted by slot: a counting sort."""
    place = np.zeros(n_slots + 1, dtype=np.int64)
    for i in range(len(rows)):
        place[slots[i] + 1] += 1
    for s in range(n_slots):
        place[s + 1] += place[s]
    sorted_rows, sorted_slots = np.empty_like(rows), np.empty_like(slots)
    for i in range(len(rows)):
        at = place[slots[i]]
        sorted_rows[at], sorted_slots[at] = rows[i], slots[i]
        place[slots[i]] += 1
    return sorted_rows, sorted_slots


@kernel
def descend(codes: Array, node: Array, feature: Array, left: Array, steps: int) -> None:
    """Move each row down from its node by at most `steps` splits, in place; feature -1 is a leaf."""
    inner = len(feature)
    for row in range(len(node)):
        at = node[row]
        for _ in range(steps):
            if at >= inner or feature[at] < 0:
                break
            code = codes[row, feature[at]]
            goes_left = (left[at, code >> 3] >> (code & 7)) & 1
            at = 2 * at + 2 - goes_left
        node[row] = at


@kernel
def best_thresholds(
    hist: Array, n_bins: Array, skip: Array, monotone: Array, low: Array, high: Array, l2: float, least: float,
    gain: Array, choice: Array,
) -> None:  # fmt: skip
    """Find the best threshold of each node over numeric features.

    Both outputs are updated in place if a split is better: `gain` [nodes], and `choice` [nodes, 3] with the feature,
    the last bin that goes left, and whether missing values go left.
    """
    missing = hist.shape[2] - 1
    for node in range(hist.shape[0]):
        lowest, highest = low[node], high[node]
        for f in range(hist.shape[1]):
            if skip[f]:
                continue
            g, h = hist[node, f, missing, 0], hist[node, f, missing, 1]
            for b in range(n_bins[f]):
                g += hist[node, f, b, 0]
                h += hist[node, f, b, 1]
            value = min(max(-g / max(h + l2, 1e-12), lowest), highest)
            before = -(g * value + (h + l2) * value * value / 2)
            gaps = 1 if hist[node, f, missing, 1] == 0.0 and hist[node, f, missing, 0] == 0.0 else 2
            for side in range(gaps):  # missing values to the right, then to the left
                gl = hist[node, f, missing, 0] if side == 1 else 0.0
                hl = hist[node, f, missing, 1] if side == 1 else 0.0
                last = n_bins[f] - 1 if side == 1 or gaps == 1 else n_bins[f]
                for b in range(last):
                    gl += hist[node, f, b, 0]
                    hl += hist[node, f, b, 1]
                    gr, hr = g - gl, h - hl
                    if hl < least or hr < least:
                        continue
                    vl = min(max(-gl / (hl + l2), lowest), highest)
                    vr = min(max(-gr / (hr + l2), lowest), highest)
                    if monotone[f] * (vr - vl) < 0:
                        continue
                    after = -(gl * vl + (hl + l2) * vl * vl / 2) - (gr * vr + (hr + l2) * vr * vr / 2)
                    if after - before > gain[node]:
                        gain[node] = after - before
                        choice[node, 0], choice[node, 1], choice[node, 2] = f, b, side


def best_splits(hist: Array, low: Array, high: Array, rules: Rules) -> Splits:
    """Find the best split of each node from its histograms [nodes, features, bins + 1, 2]; the last bin is for missing.

    A threshold may be after any bin, with missing values on either side. Categories are first sorted by
    gradient over curvature, in which the best subset is a prefix (Fisher 1958).
    """
    nodes, gain = len(hist), np.full(len(hist), max(rules.least_gain, 1e-12))
    least = max(rules.least_weight, 1e-12)
    choice = np.full((nodes, 3), -1, dtype=np.int64)
    tables = np.zeros((nodes, 8 * _BYTES), dtype=bool)
    best_thresholds(
        hist, rules.n_bins, rules.is_category, rules.monotone, low, high, float(rules.l2), least, gain, choice
    )
    for node in np.flatnonzero(choice[:, 0] >= 0).tolist():
        tables[node, : choice[node, 1] + 1] = True
        tables[node, hist.shape[2] - 1] = choice[node, 2] == 1
    for f in np.flatnonzero(rules.is_category).tolist():
        for node in range(nodes):
            better, chosen = _best_subset(hist[node, f], low[node], high[node], rules.l2, least, gain[node])
            if chosen is not None:
                gain[node], choice[node, 0] = better, f
                tables[node] = False
                tables[node, chosen] = True
    feature = choice[:, 0].astype(np.int32)
    sums = np.zeros((nodes, 2, 2))
    for node in np.flatnonzero(feature >= 0).tolist():
        cells, goes = hist[node, feature[node]], tables[node, : hist.shape[2]]
        sums[node] = cells[goes].sum(axis=0), cells[~goes].sum(axis=0)
    return Splits(feature, np.packbits(tables, axis=1, bitorder="little"), sums)


def _best_subset(
    cells: Array, low: float, high: float, l2: float, least: float, gain: float
) -> tuple[float, Array | None]:
    """Find the best set of bins to go left, missing values included; None if none is better than `gain`."""
    used = np.flatnonzero(cells[:, 1] > 0)
    if len(used) < 2:
        return gain, None
    order = used[np.argsort(cells[used, 0] / (cells[used, 1] + 1.0), kind="stable")]
    total = cells[used].sum(axis=0)
    left = np.cumsum(cells[order], axis=0)[:-1]
    right = total - left

    def score(sums: Array) -> Array:
        value = np.clip(-sums[..., 0] / (sums[..., 1] + l2), low, high)
        return np.asarray(-(sums[..., 0] * value + (sums[..., 1] + l2) * value**2 / 2))

    gains = score(left) + score(right) - score(total)
    gains[(left[:, 1] < least) | (right[:, 1] < least)] = -np.inf
    best = int(np.argmax(gains))
    return (float(gains[best]), order[: best + 1]) if gains[best] > gain else (gain, None)
