"""Rows as sets of tokens: indicators, sequences of codes and texts, in shingles."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal

import numpy as np

from fedscape.core.arrays import Ragged, offsets_of, rows_of
from fedscape.errors import DataError
from fedscape.sketches.kernels import mix
from fedscape.types import Array


def token_sets(
    values: Array, shingle: int | Literal["words"], *, column: str, names: tuple[str, ...] | None = None
) -> Ragged:
    """The tokens of each row, as 64-bit words; MinHash ignores order and repetition.

    Booleans [rows, d] are indicators: a row has token j if entry j is True. Integers [rows, length] are sequences of
    codes, padded with negative ones; k consecutive codes form one token (a shingle). A text column is split into
    shingles of k characters, or into words at white space. Integers [rows] without names are sets of one token.

    >>> token_sets(np.array([[3, 5, 3], [7, -1, -1]]), 1, column="x").lengths
    array([3, 1])
    """
    if shingle != "words" and (not isinstance(shingle, int | np.integer) or shingle < 1):
        raise DataError(f"shingle must be at least 1, or 'words' for texts, not {shingle}")
    if values.dtype.kind == "b" and values.ndim == 2:
        return _indicated(values)
    if values.dtype.kind not in "iu" or values.ndim not in (1, 2):
        raise DataError(
            f"MinHash needs texts, sequences of whole numbers or indicators; column {column!r} is "
            f"{values.dtype}{list(values.shape[1:])}: compare numbers with family='srp'"
        )
    if names is not None and values.ndim == 1:
        if len(values) and values.min() < 0:
            raise DataError(
                f"column {column!r} holds the code {values.min()} in row {int(np.argmin(values)):,}; -1 marks a "
                "missing text: drop those rows with where()"
            )
        texts = _texts(names, shingle)
        rows, ends = rows_of(texts.offsets, values.astype(np.int64))
        return Ragged(texts.flat[rows], ends)
    return _shingled(values[:, None] if values.ndim == 1 else values, 1 if shingle == "words" else shingle)


def valid_tokens(values: Array, names: tuple[str, ...] | None) -> Array | None:
    """Which rows `token_sets` accepts; None if all.

    >>> valid_tokens(np.array([0, -1, 2]), ("ash", "oak")).tolist()
    [True, False, False]
    """
    texts = names is not None and values.ndim == 1 and values.dtype.kind in "iu"
    return np.asarray((values >= 0) & (values < len(names or ()))) if texts else None


def _indicated(values: Array) -> Ragged:
    row, token = np.nonzero(values)
    return Ragged(token.astype(np.uint64), offsets_of(np.bincount(row, minlength=len(values))))


def _shingled(codes: Array, k: int) -> Ragged:
    """Windows of k codes as words; a row with fewer than k codes is a single window."""
    present = codes >= 0
    length = present.sum(axis=1)
    k = min(k, max(codes.shape[1], 1))
    words = codes.astype(np.int64).view(np.uint64)
    places = codes.shape[1] - k + 1 if codes.shape[1] else 0
    tokens, keep = np.zeros((len(codes), places), dtype=np.uint64), np.zeros((len(codes), places), dtype=bool)
    for begin in range(places):
        word, whole = words[:, begin], present[:, begin : begin + k].all(axis=1)
        for step in range(1, k):
            word = mix(word) ^ words[:, begin + step]
        tokens[:, begin] = word
        keep[:, begin] = whole | ((begin == 0) & (length > 0) & (length < k))
    ends = offsets_of(keep.sum(axis=1))
    return Ragged(tokens[keep], ends)


@lru_cache(maxsize=8)
def _texts(names: tuple[str, ...], k: int | Literal["words"]) -> Ragged:
    sets = [set(text.split()) if k == "words" else _parts(text, k) for text in names]
    words = {t: int.from_bytes(hashlib.blake2b(t.encode(), digest_size=8).digest(), "little") for s in sets for t in s}
    flat = np.array([words[t] for s in sets for t in sorted(s)], dtype=np.uint64)
    return Ragged(flat, offsets_of([len(s) for s in sets]))


def _parts(text: str, k: int) -> set[str]:
    return {text[i : i + k] for i in range(max(len(text) - k + 1, 1))} if text else set()
