"""The modelled column: a label, a binned number, several columns crossed, or a code learned from the features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import Collected, check_categories, check_finite
from fedscape.errors import DataError
from fedscape.types import Array


class Codes(NamedTuple):
    """The category of each row, the number of categories, and their names."""

    values: Array
    number: int
    names: tuple[str, ...] | None


class Code(Protocol):
    """Anything that assigns a category to each row of a Federation."""

    def codes(self, federation: Federation) -> Codes: ...


Column = str | Code | Sequence["str | Code"]


@dataclass(frozen=True)
class Labels:
    """A column of categories with a declared number of categories, the same for all data.

    Parameters
    ----------
    column
        The column.
    n_categories
        Categories are 0 to n_categories - 1; by default from the names or the largest code.

    >>> Labels("y", 3).codes(Federation({"y": [1, 0]}, [0, 2])).number
    3
    """

    column: str
    n_categories: int | None = None

    def codes(self, federation: Federation) -> Codes:
        number = federation.categories(self.column) if self.n_categories is None else self.n_categories
        values = check_categories(federation[self.column], number, self.column)
        if values.ndim == 2:
            raise DataError(
                f"column {self.column!r} holds count vectors: clients are cut from rows, one category each; "
                "give the proxy's rows"
            )
        return Codes(values, number, federation.names.get(self.column))


@dataclass(frozen=True)
class Binned:
    """A number binned at these edges, as in `Federation.bin`.

    >>> Binned("income", (0, 50, np.inf)).codes(Federation({"income": [10.0, 70.0]}, [0, 2])).values.tolist()
    [0, 1]
    """

    column: str
    edges: Sequence[float]

    def codes(self, federation: Federation) -> Codes:
        cut = federation.select([self.column]).bin(self.column, self.edges)
        return Codes(cut[self.column], len(self.edges) - 1, cut.names[self.column])


@dataclass(frozen=True)
class Cells:
    """The cell of a fitted model that a row's features fall into: k-means cells or mixture components.

    Parameters
    ----------
    model
        Anything fitted with `predict(rows)`, such as FederatedKMeans.
    number
        Number of cells.
    column
        The column of features.

    >>> from fedscape import FederatedKMeans
    >>> fed = Federation({"x": [[0.0], [0.1], [9.0]]}, [0, 1, 3])
    >>> Cells(FederatedKMeans(2).fit(fed), 2).codes(fed).values.tolist()
    [0, 0, 1]
    """

    model: Any
    number: int
    column: str = "x"

    def codes(self, federation: Federation) -> Codes:
        x = _flat(federation, self.column)
        cells = [np.asarray(self.model.predict(x[a : a + 65536])) for a in range(0, len(x), 65536)]
        values = np.concatenate(cells) if cells else np.empty(0, dtype=np.int64)
        return Codes(check_categories(values, self.number, self.column), self.number, None)


@dataclass(frozen=True)
class SignCodes:
    """The signs of a few random projections of the features: 2**bits codes, often shared by near rows.

    Features are first centred at `centre`, because signs depend only on the direction from the origin. The default
    is 0, or half of the maximum for unsigned integers (bytes of images). The same seed gives the same projections.

    >>> fed = Federation({"x": [[1.0, 2.0], [1.1, 2.1], [-1.0, -2.0]]}, [0, 1, 3])
    >>> first, second, third = SignCodes(3).codes(fed).values
    >>> bool(first == second), bool(first == third)
    (True, False)
    """

    bits: int
    column: str = "x"
    centre: float | None = None
    seed: int = 0

    def codes(self, federation: Federation) -> Codes:
        if not 1 <= self.bits <= 20:
            raise DataError(f"bits must be from 1 to 20, not {self.bits}")
        x = _flat(federation, self.column)
        kind = federation[self.column].dtype
        middle = (np.iinfo(kind).max / 2 if kind.kind == "u" else 0.0) if self.centre is None else self.centre
        directions = Key(self.seed, purpose="sign codes").generator().standard_normal((x.shape[1], self.bits))
        values = np.zeros(len(x), dtype=np.int64)
        for begin in range(0, len(x), 65536):
            part = slice(begin, begin + 65536)
            above = (check_finite(x[part], self.column) - middle) @ directions > 0
            values[part] = above @ (1 << np.arange(self.bits))
        return Codes(values, 2**self.bits, None)


def codes_of(federation: Federation, column: Column) -> Codes:
    """The modelled category of each row; several columns are crossed, the last one varying fastest.

    >>> codes_of(Federation({"a": [0, 1], "b": [2, 0]}, [0, 2]), ["a", "b"]).values.tolist()
    [2, 3]
    """
    parts = [column] if isinstance(column, str) or hasattr(column, "codes") else list(column)
    if not parts:
        raise DataError("column must name at least one column")
    coded = [(Labels(part) if isinstance(part, str) else part).codes(federation) for part in parts]
    number = math.prod(part.number for part in coded)  # of Python's integers, which do not overflow
    if number > 2**24:
        raise DataError(f"the columns cross to {number:,} categories, at most {2**24:,} are sensible: use fewer bins")
    values = np.zeros(federation.n_rows, dtype=np.int64)
    for part in coded:
        values = values * part.number + part.values
    return Codes(values, number, _crossed(coded))


def with_codes(federation: Federation, column: Column, *, name: str = "code") -> Federation:
    """Add the modelled category as a column, for fitting a mixture.

    >>> fed = Federation({"y": [0, 1, 1], "g": [0, 0, 1]}, [0, 1, 3])
    >>> with_codes(fed, ["y", "g"])["code"].tolist()
    [0, 2, 3]
    """
    coded = codes_of(federation, column)
    names = coded.names or [str(code) for code in range(coded.number)]
    return federation.with_column(name, coded.values.astype(np.int32), names=names)


def _crossed(parts: list[Codes]) -> tuple[str, ...] | None:
    if len(parts) == 1:
        return parts[0].names
    named = [part.names or tuple(map(str, range(part.number))) for part in parts]
    crossed = tuple(" x ".join(names) for names in product(*named))
    return Collected(crossed) if any(isinstance(part.names, Collected) for part in parts) else crossed


def _flat(federation: Federation, column: str) -> Array:
    values = federation[column]
    return values.reshape(len(values), -1) if len(values) else values.reshape(0, int(np.prod(values.shape[1:])))
