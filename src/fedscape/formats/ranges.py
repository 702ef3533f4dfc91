"""Ranges of client ids, chosen from a sample so that each has about as many rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.types import Array

SAMPLE_TEXTS = 2**16  # texts to look at at a time, each of which is an object


class Ranges:
    """Ranges of ids, one for each part.

    Parameters
    ----------
    splitters
        The first id of every part but the first, rising.

    >>> Ranges(np.array([3, 7])).part_of(np.array([7, 2, 5])).tolist()
    [2, 0, 1]
    """

    def __init__(self, splitters: Array) -> None:
        self.splitters, self.number = splitters, len(splitters) + 1
        self._least: Array | None = None
        if splitters.dtype.kind == "i" and len(splitters):
            self._low, self._high = int(splitters[0]), int(splitters[-1])
            if self._high - self._low < 2**62 and self._low > np.iinfo(np.int64).min:
                self._set_buckets()

    def _set_buckets(self) -> None:
        """A table over buckets of ids: their part, or the least where a bucket holds a splitter."""
        low, width = self._low - 1, self._high - self._low + 1
        self._shift = max(0, width.bit_length() - 16)
        first = (np.arange((width >> self._shift) + 1, dtype=np.int64) << self._shift) + low
        self._least = self._searched(first)
        self._unsure = self._least != self._searched(first + ((1 << self._shift) - 1))

    def _searched(self, ids: Array) -> Array:
        return np.searchsorted(self.splitters, ids, side="right").astype(np.uint16)

    def part_of(self, ids: Any) -> Array:
        """The part of each row: how many splitters are not above its id."""
        if len(self.splitters) == 0:
            return np.zeros(len(ids), dtype=np.uint16)
        if isinstance(ids, np.ndarray):
            return self._searched(ids) if self._least is None else self._looked_up(ids, self._least)
        encoded = ids.dictionary_encode()
        slices = (
            encoded.dictionary.slice(begin, SAMPLE_TEXTS) for begin in range(0, len(encoded.dictionary), SAMPLE_TEXTS)
        )
        part: Array = np.concatenate([self._searched(text_array(each)) for each in slices])[encoded.indices.to_numpy()]
        return part

    def _looked_up(self, ids: Array, least: Array) -> Array:
        bucket = np.clip(ids, self._low - 1, self._high)  # 0 is below all splitters
        bucket -= self._low - 1
        bucket >>= self._shift
        part: Array = least[bucket]
        if self._shift:
            unsure = np.flatnonzero(self._unsure[bucket])
            part[unsure] = self._searched(ids[unsure])
        return part


def text_array(texts: Any) -> Array:
    """Arrow texts as NumPy texts, whose order is that of the ids of a Federation."""
    return np.array(texts.to_pylist(), dtype=str) if len(texts) else np.empty(0, dtype="<U1")


def thinned(ids: Any, step: int) -> Array:
    """Every `step`-th id of a batch, as an array of its own."""
    some = ids[::step]
    return some.copy() if isinstance(some, np.ndarray) else text_array(some)


def splitters_of(ids: Array, parts: int) -> Array:
    """First ids of parts 1, 2, ... so that a sample is spread evenly; fewer if ids repeat.

    >>> splitters_of(np.array([5, 1, 2, 2, 9, 7]), 3).tolist()
    [2, 7]
    """
    if len(ids) == 0 or parts < 2:
        return ids[:0]
    ordered = np.sort(ids)
    firsts = np.unique(ordered[(np.arange(1, parts) * len(ordered)) // parts])
    splitters: Array = firsts[firsts > ordered[0]]
    return splitters
