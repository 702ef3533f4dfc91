"""Arrays as words modulo 2^64 and back: whole numbers as they are, real numbers on a declared grid.

Every party of a sum bounds what it puts in, so that the sum of all cannot leave the range of int64. A whole number is
at most 2^62 / parties in size. A real number is at most its declared bound in size, and is rounded to the finest grid,
a power of two, on which that many bounds fit into 2^62.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

import numpy as np

from fedscape.errors import DataError
from fedscape.secure.primitives import Words
from fedscape.types import Array, Arrays

_ROOM = 2**62  # of the sum: half of what int64 holds
_KINDS = {"whole": np.int64, "real": np.float64}


@dataclass(frozen=True)
class Form:
    """The arrays in a vector of words: name, shape, and whether whole or real, in the order of names."""

    arrays: tuple[tuple[str, tuple[int, ...], str], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Form:
        """The form of these arrays."""
        kinds = {name: "whole" if values.dtype.kind in "biu" else "real" for name, values in arrays.items()}
        return cls(tuple((name, tuple(map(int, np.shape(arrays[name]))), kinds[name]) for name in sorted(arrays)))

    @classmethod
    def read(cls, said: Any) -> Form:
        """The form that another process wrote as JSON; DataError where it is none."""
        try:
            arrays = tuple((str(name), tuple(map(int, shape)), str(kind)) for name, shape, kind in said)
        except (TypeError, ValueError):
            raise DataError("a form of arrays that is none") from None
        names = [name for name, _, _ in arrays]
        sound = all(kind in _KINDS and all(n >= 0 for n in shape) for _, shape, kind in arrays)
        if not sound or names != sorted(set(names)):
            raise DataError("a form of arrays that is none")
        return cls(arrays)

    def written(self) -> list[Any]:
        """For JSON."""
        return [[name, list(shape), kind] for name, shape, kind in self.arrays]

    @property
    def length(self) -> int:
        """The number of words."""
        return sum(prod(shape) for _, shape, _ in self.arrays)


@dataclass(frozen=True)
class Range:
    """How large the numbers of one party may be, where so many parties are added.

    >>> Range(parties=4, bounds=1000.0).grid("x") <= 2**-48
    True
    """

    parties: int
    bounds: float | Mapping[str, float]

    def bound(self, name: str) -> float:
        """The largest real number, in size, that a party may send in this array."""
        known = self.bounds
        return float(known.get(name, DEFAULT_BOUND) if isinstance(known, Mapping) else known)

    def grid(self, name: str) -> float:
        """The cell to which real numbers of this array are rounded."""
        return float(2.0 ** ceil(log2(self.bound(name) * self.parties / _ROOM)))

    def encode(self, arrays: Mapping[str, Array], *, clip: bool = False) -> Words:
        """The words of a party's arrays; what is too large is refused or, with `clip`, cut to what fits."""
        form = Form.of(arrays)
        words = [self._cells(name, np.asarray(arrays[name]), kind, clip).ravel() for name, _, kind in form.arrays]
        return np.concatenate([*words, np.empty(0, dtype=np.int64)]).view(np.uint64)

    def _cells(self, name: str, values: Array, kind: str, clip: bool) -> Array:
        most = _ROOM // self.parties
        if kind == "whole":
            cells = values.astype(np.int64)
            if clip:
                return np.clip(cells, -most, most)
            if cells.size and (int(cells.min()) < -most or int(cells.max()) > most):
                raise DataError(
                    f"{name!r} has whole numbers beyond {most}, the most that {self.parties} parties can add"
                )
            return cells
        bound = self.bound(name)
        size = float(np.abs(values).max(initial=0.0))
        if size > bound:
            label = name.partition("/")[2] or name
            raise DataError(
                f"{label!r} has {size:.6g}, beyond the declared bound of {bound:.6g}: secure sums of real numbers need "
                f"one, SecureSum(bounds={{{label!r}: {2.0 ** ceil(log2(size)):.6g}}})"
            )
        return np.rint(values.astype(np.float64) / self.grid(name)).astype(np.int64)

    def decode(self, total: Words, form: Form) -> Arrays:
        """The arrays of a sum of words."""
        arrays: Arrays = {}
        cells, begin = total.view(np.int64), 0
        for name, shape, kind in form.arrays:
            part = cells[begin : begin + prod(shape)].reshape(shape)
            arrays[name] = part.copy() if kind == "whole" else part * self.grid(name)
            begin += prod(shape)
        return arrays


DEFAULT_BOUND = 2.0**24
