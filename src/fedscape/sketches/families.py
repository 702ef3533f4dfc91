"""Locality-sensitive hash functions: the same seed gives the same functions on every client.

A family turns rows into codes, one for each row of the sketch. Its collision probability, that two rows share a code,
is the kernel of the densities that the sketch estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import erf
from typing import Protocol

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.sketches.kernels import hadamard_signs, hash_sets, pack_buckets, pack_signs
from fedscape.types import Array

# Products use full tiles, padded with zeros. A BLAS may round differently for another shape, and a bit must not
# depend on how many rows are hashed together. So the tile height depends only on the sketch: tall for many
# directions, which are repacked for each tile; low where padding would cost more.
_TALL, _LOW, _MANY = 2048, 512, 4096
_COLUMNS = 1536  # per product, which then stays in cache until its bits are packed
_SETS = 256


class Rows(Protocol):
    """Rows of numbers that can be sliced: an array [rows, d], or one that prepares rows on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, where: slice) -> Array: ...


#: A piece of the codes: first and last row of the data, first row of the sketch, codes [rows, rows of the sketch].
Piece = tuple[int, int, int, Array]


@dataclass(frozen=True)
class SignProjections:
    """Signs of Gaussian projections (SRP, Definition A.1), `bits` per code: the angle between rows.

    Rows x and y at the angle theta share a code with probability (1 - theta / pi)**bits. Length does not matter. A row
    of zeros has no direction; its code is 0. Products are in float32, whose rounding moves the angle by less than 1e-5.

    >>> family = SignProjections(rows=3, bits=2, seed=0)
    >>> family.collision(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    array([0.25])
    """

    rows: int
    bits: int
    seed: int

    def pieces(self, x: Rows) -> Iterator[Piece]:
        for begin, end, first, product, width in _products(x, _normals(self.seed, self.rows, self.bits, x.shape[1])):
            codes = np.empty((end - begin, width // self.bits), dtype=np.uint16)
            pack_signs(product, end - begin, codes)
            yield begin, end, first // self.bits, codes

    def collision(self, x: Array, y: Array) -> Array:
        """The probability that x[i] and y[i] share a code, for each i."""
        a, b = x.astype(float), y.astype(float)
        u, v = (z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300) for z in (a, b))
        theta = 2 * np.arctan2(np.linalg.norm(u - v, axis=1), np.linalg.norm(u + v, axis=1))  # exact at small angles
        return np.asarray((1 - theta / np.pi) ** self.bits)


@dataclass(frozen=True)
class HadamardProjections(SignProjections):
    """The same angles by structured projections: signs of H G P H D x (Le, Sarlos and Smola 2013, "Fastfood").

    H is the Walsh-Hadamard matrix, D a diagonal of random signs, P a permutation, G a diagonal of normal numbers. Since
    H D keeps angles and G is normal, one bit has exactly the law of a Gaussian projection; bits of one transform are
    slightly dependent. It takes d log d steps instead of d^2, and one row at a time: no code depends on a BLAS. Rows
    are padded to at least 256 dimensions.

    >>> HadamardProjections(rows=3, bits=2, seed=0).collision(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    array([0.25])
    """

    def pieces(self, x: Rows) -> Iterator[Piece]:
        transforms = _transforms(self.seed, self.rows * self.bits, x.shape[1])
        for begin in range(0, x.shape[0], _SETS):
            rows = x[begin : begin + _SETS]
            codes = np.empty((len(rows), self.rows), dtype=np.uint16)
            hadamard_signs(np.ascontiguousarray(rows), *transforms, self.bits, codes)
            yield begin, begin + len(rows), 0, codes


@dataclass(frozen=True)
class StableProjections:
    """Buckets of Gaussian projections (p-stable, p = 2): the Euclidean distance between rows.

    The code is floor((a . x + b) / width) modulo 2**bits with b uniform in [0, width). Rows at the distance c differ by
    a normal number of standard deviation s = c / width. They share a code with probability
    sum over k of E[max(0, 1 - |s U - k 2**bits|)], U standard normal: the usual law for k = 0, and the wrap.

    >>> family = StableProjections(rows=3, bits=4, seed=0, width=1.0)
    >>> family.collision(np.array([[0.0]]), np.array([[0.0]]))
    array([1.])
    """

    rows: int
    bits: int
    seed: int
    width: float

    def pieces(self, x: Rows) -> Iterator[Piece]:
        if not 0 < self.width < np.inf:
            raise DataError(f"width must be a positive number, not {self.width}")
        shifts = Key(self.seed, purpose="sketch shifts").generator().random(self.rows)
        parts = tuple((f, p / np.float32(self.width)) for f, p in _normals(self.seed, self.rows, 1, x.shape[1]))
        for begin, end, first, product, width in _products(x, parts):
            codes = np.empty((end - begin, width), dtype=np.uint16)
            pack_buckets(product, end - begin, shifts[first : first + width], codes, 2**self.bits)
            yield begin, end, first, codes

    def collision(self, x: Array, y: Array) -> Array:
        """The probability that x[i] and y[i] share a code, for each i."""
        s = np.linalg.norm(x.astype(float) - y.astype(float), axis=1) / self.width
        far = int(np.ceil(10 * s.max(initial=0.0) / 2**self.bits)) + 1
        wraps = 2**self.bits * np.arange(-far, far + 1.0)[:, None]
        return np.asarray((_hinge(wraps + 1, s) - 2 * _hinge(wraps, s) + _hinge(wraps - 1, s)).sum(axis=0))


@dataclass(frozen=True)
class MinHashes:
    """Buckets of the token with the smallest hash (MinHash, Definition A.2): the overlap of two sets.

    Sets of Jaccard similarity J share a code with probability J + (1 - J) / 2**bits. The second term is chance, and
    vanishes with more bits. Empty sets share a code with each other.

    >>> MinHashes(rows=3, bits=8, seed=0).law(0.5)
    0.501953125
    """

    rows: int
    bits: int
    seed: int

    def pieces(self, sets: Ragged) -> Iterator[Piece]:
        salts = Key(self.seed, purpose="sketch salts").generator().integers(0, 2**64, self.rows, dtype=np.uint64)
        for begin in range(0, len(sets.offsets) - 1, _SETS):
            ends = sets.offsets[begin : begin + _SETS + 1]
            codes = np.empty((len(ends) - 1, self.rows), dtype=np.uint16)
            hash_sets(sets.flat, ends, salts, self.bits, codes)
            yield begin, begin + len(codes), 0, codes

    def law(self, jaccard: float) -> float:
        """The probability that sets of this similarity share a code."""
        return float(jaccard + (1 - jaccard) / 2**self.bits)

    def collision(self, x: Ragged, y: Ragged) -> Array:
        """The probability that x[i] and y[i] share a code, for each i."""
        pairs = [[set(z.flat[a:b].tolist()) for a, b in zip(z.offsets, z.offsets[1:], strict=False)] for z in (x, y)]
        similar = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in zip(*pairs, strict=True)]
        return np.array([self.law(j) for j in similar])


@lru_cache(maxsize=4)
def _normals(seed: int, rows: int, bits: int, d: int) -> tuple[tuple[int, Array], ...]:
    """Gaussian directions split into products that fit the cache: (first column, [d, columns]), ordered by bit."""
    all_ = Key(seed, purpose="sketch directions").generator().standard_normal((d, bits, rows), dtype=np.float32)
    each = max(1, _COLUMNS // bits)
    cuts = [(r, min(r + each, rows)) for r in range(0, rows, each)]
    return tuple((a * bits, np.ascontiguousarray(all_[:, :, a:b].reshape(d, -1))) for a, b in cuts)


@lru_cache(maxsize=4)
def _transforms(seed: int, projections: int, d: int) -> tuple[Array, Array, Array]:
    """Signs, permutations and normal numbers, [transforms, size] each; scaled to roughly keep lengths."""
    size = max(256, 1 << (d - 1).bit_length())
    shape = (-(-projections // size), size)
    rng = Key(seed, purpose="sketch transforms").generator()
    signs = (2 * rng.integers(0, 2, shape) - 1) / np.sqrt(size)
    order = rng.permuted(np.tile(np.arange(size, dtype=np.int32), (shape[0], 1)), axis=1)
    normals = rng.standard_normal(shape) / np.sqrt(size)
    return signs.astype(np.float32), order, normals.astype(np.float32)


def _products(x: Rows, parts: tuple[tuple[int, Array], ...]) -> Iterator[tuple[int, int, int, Array, int]]:
    """Multiply x by the directions, tile by tile: (first row, last row, first column, product, its columns)."""
    widths = [directions.shape[1] for _, directions in parts]
    height = _TALL if sum(widths) >= _MANY else _LOW
    tile, out = np.zeros((height, x.shape[1]), dtype=np.float32), np.empty(height * max(widths), dtype=np.float32)
    for begin in range(0, x.shape[0], height):
        end = min(begin + height, x.shape[0])
        tile[: end - begin] = x[begin:end]
        tile[end - begin :] = 0
        for first, directions in parts:
            width = directions.shape[1]
            with np.errstate(over="ignore", invalid="ignore"):  # a warning would reveal a very long row
                product = np.matmul(tile, directions, out=out[: height * width].reshape(height, width))
            yield begin, end, first, product, width


def _hinge(z: Array, s: Array) -> Array:
    """E[max(0, z - s U)] for a standard normal U."""
    ratio = np.clip(z / np.maximum(s, 1e-300), -40, 40)
    density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(np.where(s > 0, z * _normal_cdf(ratio) + s * density, np.maximum(z, 0.0)))


def _normal_cdf(z: Array) -> Array:
    return np.asarray(np.vectorize(lambda value: 0.5 * (1 + erf(value / np.sqrt(2))), otypes=[float])(z))
