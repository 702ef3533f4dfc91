"""The compiled inner loops of the sketches, each beside its plain NumPy twin."""

from __future__ import annotations

import numpy as np

from fedscape.core.kernel import kernel
from fedscape.types import Array

EMPTY = np.uint64(2**64 - 1)  # the smallest hash of a set without tokens

_ONE = np.uint64(0x9E3779B97F4A7C15)
_TWO = np.uint64(0xBF58476D1CE4E5B9)
_THREE = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@kernel
def pack_signs(products: Array, n: int, codes: Array) -> None:
    """codes[i, r] has bit b where products[i, b * rows + r] > 0; projections are ordered by bit to fill SIMD lanes."""
    rows = codes.shape[1]
    bits = products.shape[1] // rows
    for i in range(n):
        for r in range(rows):
            codes[i, r] = 0
        for b in range(bits):
            first = b * rows
            for r in range(rows):
                codes[i, r] |= np.uint16(products[i, first + r] > 0) << np.uint16(b)


def pack_signs_twin(products: Array, n: int, codes: Array) -> None:
    """The plain NumPy twin of `pack_signs`."""
    rows = codes.shape[1]
    positive = products[:n].reshape(n, -1, rows) > 0  # [rows of data, bits, rows of the sketch]
    weights = (1 << np.arange(positive.shape[1])).astype(np.uint16)
    codes[:n] = (positive * weights[:, None]).sum(axis=1)


@kernel
def hadamard_signs(x: Array, signs: Array, order: Array, normals: Array, bits: int, codes: Array) -> None:
    """codes[i, r] from the signs of H G P H D x, one transform after the other, bit by bit over the rows.

    H is the Walsh-Hadamard matrix, D a diagonal of random signs, P a permutation, G a diagonal of normal numbers. Rows
    are processed 16 at a time, to fill the SIMD lanes in the shortest inner loop.
    """
    n, d = x.shape
    rows, size = codes.shape[1], signs.shape[1]
    work = np.zeros(16 * size, dtype=np.float32)
    other = np.empty(16 * size, dtype=np.float32)
    packed = np.zeros(16 * rows, dtype=np.uint16)
    for first in range(0, n, 16):
        m = min(16, n - first)
        packed[:] = 0
        for t in range(signs.shape[0]):
            work[:] = 0
            for i in range(m):
                for j in range(d):
                    work[16 * j + i] = x[first + i, j] * signs[t, j]
            for k in range(2):
                h = 16
                while h < 16 * size:
                    for begin in range(0, 16 * size, 2 * h):
                        low, high = work[begin : begin + h], work[begin + h : begin + 2 * h]
                        for j in range(h):
                            u, v = low[j], high[j]
                            low[j] = u + v
                            high[j] = u - v
                    h *= 2
                if k == 0:
                    for j in range(size):
                        begin, factor = 16 * order[t, j], normals[t, j]
                        for i in range(16):
                            other[16 * j + i] = work[begin + i] * factor
                    work[:] = other
            place = t * size  # index among all rows x bits projections
            last = min(place + size, rows * bits)
            while place < last:
                b = place // rows
                end = min(last, (b + 1) * rows)
                begin, into = 16 * (place - t * size), 16 * (place - b * rows)
                for q in range(16 * (end - place)):
                    packed[into + q] |= np.uint16(work[begin + q] > 0) << np.uint16(b)
                place = end
        for i in range(m):
            for r in range(rows):
                codes[first + i, r] = packed[16 * r + i]


def hadamard_signs_twin(x: Array, signs: Array, order: Array, normals: Array, bits: int, codes: Array) -> None:
    """The plain NumPy twin of `hadamard_signs`, with the explicit matrix."""
    size, rows = signs.shape[1], codes.shape[1]
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    padded = np.pad(x.astype(float), ((0, 0), (0, size - x.shape[1])))
    projections = [((padded * d) @ h)[:, p] * g @ h for d, p, g in zip(signs, order, normals, strict=True)]
    positive = np.concatenate(projections, axis=1)[:, : rows * bits].reshape(len(x), bits, rows) > 0
    codes[:] = (positive * (1 << np.arange(bits))[:, None]).sum(axis=1)


@kernel
def pack_buckets(products: Array, n: int, shifts: Array, codes: Array, buckets: int) -> None:
    """codes[i, r] = floor(products[i, r] + shifts[r]) modulo the number of buckets."""
    for i in range(n):
        for r in range(codes.shape[1]):
            codes[i, r] = np.int64(np.floor(np.float64(products[i, r]) + shifts[r])) % buckets


def pack_buckets_twin(products: Array, n: int, shifts: Array, codes: Array, buckets: int) -> None:
    """The plain NumPy twin of `pack_buckets`."""
    codes[:n] = np.floor(products[:n].astype(float) + shifts).astype(np.int64) % buckets


@kernel
def count_codes(codes: Array, owner: Array, n: int, first: int, counts: Array) -> None:
    """counts[owner[i], first + r, codes[i, r]] += 1."""
    for i in range(n):
        mine = counts[owner[i]]
        for r in range(codes.shape[1]):
            mine[first + r, codes[i, r]] += 1


def count_codes_twin(codes: Array, owner: Array, n: int, first: int, counts: Array) -> None:
    """The plain NumPy twin of `count_codes`."""
    rows = first + np.arange(codes.shape[1])
    np.add.at(counts, (owner[:n, None], rows[None, :], codes[:n]), 1)


@kernel
def hash_sets(tokens: Array, ends: Array, salts: Array, bits: int, codes: Array) -> None:
    """codes[i, r]: the bucket of the token in set i with the smallest hash under salt r."""
    shift = np.uint64(64 - bits)
    for i in range(len(ends) - 1):
        for r in range(len(salts)):
            least = EMPTY
            for t in range(ends[i], ends[i + 1]):
                z = (tokens[t] ^ salts[r]) + _ONE
                z = (z ^ (z >> _S30)) * _TWO
                z = (z ^ (z >> _S27)) * _THREE
                z ^= z >> _S31
                if z < least:
                    least = z
            z = (least ^ salts[r]) + _ONE  # the bucket must not depend on the hash being small
            z = (z ^ (z >> _S30)) * _TWO
            z = (z ^ (z >> _S27)) * _THREE
            z ^= z >> _S31
            codes[i, r] = z >> shift


def mix(z: Array) -> Array:
    """Mix the bits of 64-bit words (the finaliser of SplitMix64): a bijection."""
    with np.errstate(over="ignore"):
        z = np.asarray(z, dtype=np.uint64) + _ONE
        z = (z ^ (z >> _S30)) * _TWO
        z = (z ^ (z >> _S27)) * _THREE
    return np.asarray(z ^ (z >> _S31))


def hash_sets_twin(tokens: Array, ends: Array, salts: Array, bits: int, codes: Array) -> None:
    """The plain NumPy twin of `hash_sets`."""
    for i in range(len(ends) - 1):
        mine = tokens[ends[i] : ends[i + 1]]
        least = mix(mine[:, None] ^ salts).min(axis=0) if len(mine) else np.full(len(salts), EMPTY)
        codes[i] = mix(least ^ salts) >> np.uint64(64 - bits)
