"""Encode arrays as words modulo 2^64: integers as they are, real numbers on a declared grid.

Every party bounds what it sends, so the sum of all parties fits into int64. An integer is at most 2^62 / parties in
absolute value. A real number is at most its declared bound, and is rounded to the finest power of two for which the
sum of all parties' bounds is at most 2^62 grid steps. The integers of a release are bounded before noise is added
(`Release.largest`); the other half of the range of int64 is left for the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

import numpy as np

from fedscape.errors import DataError, PrivacyError
from fedscape.secure.primitives import Words
from fedscape.types import Array, Arrays

_ROOM = 2**62  # bound on the sum: half of the range of int64
_KINDS = {"whole": np.int64, "real": np.float64}


@dataclass(frozen=True)
class Form:
    """Layout of the arrays in a vector of words: names in sorted order, shapes, and whether whole or real."""

    arrays: tuple[tuple[str, tuple[int, ...], str], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Form:
        """The form of these arrays."""
        kinds = {name: "whole" if values.dtype.kind in "biu" else "real" for name, values in arrays.items()}
        return cls(tuple((name, tuple(map(int, np.shape(arrays[name]))), kinds[name]) for name in sorted(arrays)))

    @classmethod
    def read(cls, written: Any) -> Form:
        """Read a form from the JSON of another process; a DataError if it is malformed."""
        try:
            arrays = tuple((str(name), tuple(map(int, shape)), str(kind)) for name, shape, kind in written)
        except (TypeError, ValueError):
            raise DataError("a malformed form of arrays") from None
        names = [name for name, _, _ in arrays]
        valid = all(kind in _KINDS and all(n >= 0 for n in shape) for _, shape, kind in arrays)
        if not valid or names != sorted(set(names)):
            raise DataError("a malformed form of arrays")
        return cls(arrays)

    def written(self) -> list[Any]:
        """The form as JSON."""
        return [[name, list(shape), kind] for name, shape, kind in self.arrays]

    @property
    def length(self) -> int:
        """Number of words."""
        return sum(prod(shape) for _, shape, _ in self.arrays)


@dataclass(frozen=True)
class Range:
    """How large the numbers of one party may be, if this many parties are added.

    >>> Range(parties=4, bounds=1000.0).grid("x") <= 2**-48
    True
    """

    parties: int
    bounds: float | Mapping[str, float]

    @property
    def most(self) -> int:
        """The largest integer, in absolute value, that a party may send."""
        return _ROOM // self.parties

    def bound(self, name: str) -> float:
        """The largest real number, in absolute value, that a party may send in this array."""
        known = self.bounds
        return float(known.get(name, DEFAULT_BOUND) if isinstance(known, Mapping) else known)

    def grid(self, name: str) -> float:
        """The grid step to which real numbers of this array are rounded."""
        return float(2.0 ** ceil(log2(self.bound(name) * self.parties / _ROOM)))

    def encode(self, arrays: Mapping[str, Array], *, released: bool = False) -> Words:
        """The words of a party's arrays; a DataError if a number is beyond its bound.

        `released`: the integers of a release. They were bounded before noise was added and are not checked again:
        cutting a noised number would change the law of the noise in the total, which wrapping around does not.
        """
        form = Form.of(arrays)
        words = [self._cells(name, np.asarray(arrays[name]), kind, released).ravel() for name, _, kind in form.arrays]
        return np.concatenate([*words, np.empty(0, dtype=np.int64)]).view(np.uint64)

    def _cells(self, name: str, values: Array, kind: str, released: bool) -> Array:
        if kind == "whole":
            cells = values.astype(np.int64)
            if not released and cells.size and (int(cells.min()) < -self.most or int(cells.max()) > self.most):
                raise DataError(
                    f"{name!r} has whole numbers beyond {self.most}, the most that {self.parties} parties can add"
                )
            return cells
        bound = self.bound(name)
        size = float(np.abs(values).max(initial=0.0))
        if not size <= bound:
            label = name.partition("/")[2] or name
            advice = (
                f"SecureSum(bounds={{{label!r}: {2.0 ** ceil(log2(size)):.6g}}})" if size < np.inf else "finite sums"
            )
            raise DataError(
                f"{label!r} has {size:.6g}, beyond the declared bound of {bound:.6g}: secure sums of real numbers need "
                f"one, {advice}"
            )
        return np.rint(values.astype(np.float64) / self.grid(name)).astype(np.int64)

    def decode(self, total: Words, form: Form, *, released: bool = False) -> Arrays:
        """The arrays of a sum of words; a PrivacyError if parties within their bounds cannot have it."""
        arrays: Arrays = {}
        cells, begin = total.view(np.int64), 0
        if not released and cells.size and (int(cells.min()) < -_ROOM or int(cells.max()) > _ROOM):
            raise PrivacyError(
                f"secure sums: a total beyond what {self.parties} parties can have: somebody sent false words or masks"
            )
        for name, shape, kind in form.arrays:
            part = cells[begin : begin + prod(shape)].reshape(shape)
            arrays[name] = part.copy() if kind == "whole" else part * self.grid(name)
            begin += prod(shape)
        return arrays


DEFAULT_BOUND = 2.0**24
