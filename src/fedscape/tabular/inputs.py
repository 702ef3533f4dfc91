"""From a table to the rows that trees and GLMs learn from: columns by name, categories, fills, ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.kinds import as_codes, as_numbers
from fedscape.types import Array


@dataclass(frozen=True)
class TableInputs:
    """Which columns of a table a model reads, and how.

    Parameters
    ----------
    columns
        Feature columns in order, each with its categories; none for numbers.
    target, classes
        The column to predict, and what its classes are called; none for numbers.
    indicators
        Whether features are one column of numbers, with an indicator for each category but the first (a GLM), instead
        of a column each (trees).
    fill
        What stands for missing numbers, by column; the code of the category that stands for a missing one.
    drop
        Whether a row that still lacks a value is left out.
    ranges
        The least and greatest value of columns of numbers. They are cut to it; with indicators they are in units of
        half of it.
    client
        The column with the client of each row, or several, comma-separated.

    >>> fed = Federation({"a": [1.0, np.nan], "b": ["u", "v"], "y": [0, 1]}, [0, 2])
    >>> inputs = TableInputs({"a": (), "b": ("u", "v")}, "y", ("0", "1"), indicators=True, fill={"a": 4.0})
    >>> inputs.rows(fed)["x"].tolist()
    [[1.0, 0.0], [4.0, 1.0]]
    """

    columns: Mapping[str, tuple[str, ...]]
    target: str
    classes: tuple[str, ...] = ()
    indicators: bool = False
    fill: Mapping[str, float] = field(default_factory=dict)
    drop: bool = False
    ranges: Mapping[str, tuple[float, float]] | None = None
    client: str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """What the columns of features are called in `rows`."""
        return ("x",) if self.indicators else tuple(f"x{i}" for i in range(len(self.columns)))

    @property
    def called(self) -> str:
        """What the target is called in `rows`: as in the table, unless a feature is called so."""
        return "y" if self.target in self.features else self.target

    @property
    def row_ranges(self) -> dict[str, tuple[float, float]] | None:
        """The declared ranges of the columns of `rows`."""
        if self.ranges is None:
            return None
        own: dict[str, tuple[float, float]] = {"x": (-1.0, 1.0)}
        if not self.indicators:
            pairs = zip(self.features, self.columns, strict=True)
            own = {x: self.ranges[name] for x, name in pairs if name in self.ranges}
        return own | ({self.called: self.ranges[self.target]} if self.target in self.ranges else {})

    def x(self, table: Federation) -> Array:
        """The features [rows, f], NaN where missing: codes of categories, or indicators."""
        parts = []
        for name, categories in self.columns.items():
            values = self._values(table, name, categories)
            if categories and self.indicators:
                none = np.nan if self.drop else 0.0  # the first category has zeros too: a gap must not pass for it
                parts += [np.where(np.isnan(values), none, values == code) for code in range(1, len(categories))]
            else:
                parts.append(values)
        return np.column_stack(parts) if parts else np.zeros((table.n_rows, 0))

    def names(self) -> list[str]:
        """What the features are called, as the table has them."""
        if not self.indicators:
            return list(self.columns)
        return [
            n for name, categories in self.columns.items() for n in ([f"{name}={k}" for k in categories[1:]] or [name])
        ]

    def usable(self, x: Array) -> Array:
        """Which rows of features have all the numbers that the model needs."""
        return np.asarray(~np.isnan(x).any(axis=1)) if self.drop else np.ones(len(x), dtype=bool)

    def rows(self, table: Federation) -> Federation:
        """The rows that have the target and can be used, with the columns `features` and `called`."""
        x, y = self.x(table), self.y(table)
        used = (y >= 0 if self.classes else np.isfinite(y)) & self.usable(x)
        parts: dict[str, Array] = {self.called: y.astype(np.int32) if self.classes else y}
        names: dict[str, Any] = {self.called: self.classes} if self.classes else {}
        if self.indicators:
            parts["x"] = x
        else:
            for name, categories, values in zip(self.features, self.columns.values(), x.T, strict=True):
                parts[name] = np.nan_to_num(values, nan=-1).astype(np.int32) if categories else values
                names |= {name: categories} if categories else {}
        return Federation(parts, table.offsets, table.ids, names=names).where(used)

    def y(self, table: Federation) -> Array:
        """The target as codes of the classes, -1 where it is none of them, or as numbers, NaN where missing."""
        if self.classes:
            return as_codes(table[self.target], self.classes, table.names.get(self.target)).astype(float)
        return _numbers(table, self.target, ())

    def remarks(self, table: Federation) -> list[str]:
        """Which columns hold a category that the model does not know, a line each."""
        lines = []
        for name, categories in self.columns.items():
            values, texts = table[name], table.names.get(name)
            if not categories or values.ndim != 1:
                continue
            present = values >= 0 if texts is not None else values == values
            unseen = np.flatnonzero(present & (as_codes(values, categories, texts) < 0))
            if len(unseen):
                first = values[unseen[0]] if texts is None else texts[int(values[unseen[0]])]
                what = "1 row has" if len(unseen) == 1 else f"{len(unseen):,} rows have"
                lines.append(
                    f"{what} a {name!r} that the model does not know, such as {str(first)!r}: it counts as missing"
                )
        return lines

    def _values(self, table: Federation, name: str, categories: Sequence[str]) -> Array:
        values = _numbers(table, name, categories)
        if name in self.fill:
            values = np.where(np.isnan(values), self.fill[name], values)
        if self.ranges is not None and not categories:
            low, high = self.ranges[name]
            values = np.clip(values, low, high)
            values = (values - (low + high) / 2) / ((high - low) / 2) if self.indicators else values
        return values

    def to_json(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            "columns": {name: list(categories) for name, categories in self.columns.items()},
            "target": self.target,
            "classes": list(self.classes),
            "fill": dict(self.fill),
            "drop": self.drop,
            "client": self.client,
            "ranges": None if self.ranges is None else {name: list(pair) for name, pair in self.ranges.items()},
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], *, indicators: bool) -> TableInputs:
        """What `to_json` gave."""
        ranges = saved.get("ranges")
        return cls(
            {str(name): tuple(map(str, categories)) for name, categories in saved["columns"].items()},
            str(saved["target"]),
            tuple(map(str, saved["classes"])),
            indicators,
            {str(name): float(value) for name, value in saved.get("fill", {}).items()},
            bool(saved.get("drop", indicators)),
            None if ranges is None else {str(name): (float(low), float(high)) for name, (low, high) in ranges.items()},
            None if saved.get("client") is None else str(saved["client"]),
        )


def fills(
    table: Federation, columns: Mapping[str, tuple[str, ...]], fill: str | float | None, *, indicators: bool = False
) -> dict[str, float]:
    """What stands for missing numbers of each column: the mean or median of these rows, or a number.

    If columns become indicators, the commonest category stands for a missing one. Trees have a side for gaps.

    >>> fed = Federation({"a": [1.0, 3.0, np.nan], "b": ["u", "v", "v"]}, [0, 3])
    >>> fills(fed, {"a": (), "b": ("u", "v")}, "mean", indicators=True)
    {'b': 1.0, 'a': 2.0}
    """
    numbers = [name for name, categories in columns.items() if not categories]
    if fill is None or fill == "drop":
        return {}
    filled: dict[str, float] = {}
    for name, categories in columns.items() if indicators else ():
        if categories:
            codes = _numbers(table, name, categories)
            counts = np.bincount(codes[~np.isnan(codes)].astype(int), minlength=len(categories))
            filled[name] = float(counts.argmax())
    if not isinstance(fill, str):
        return filled | dict.fromkeys(numbers, float(fill))
    for name in numbers:
        values = _numbers(table, name, ())
        if np.isnan(values).all():
            raise DataError(f"column {name!r} has no value in any training row: leave it out of the features")
        filled[name] = float(np.nanmean(values) if fill == "mean" else np.nanmedian(values))
    return filled


def _numbers(table: Federation, name: str, categories: Sequence[str]) -> Array:
    """A column as numbers, or as codes of its categories; NaN where missing or not known."""
    values = table[name]
    if values.ndim != 1:
        raise DataError(f"column {name!r} must hold one value a row, not {list(values.shape[1:])}")
    if categories:
        codes = as_codes(values, categories, table.names.get(name)).astype(float)
        return np.where(codes < 0, np.nan, codes)
    numbers = as_numbers(values, table.names.get(name)) if name in table.names else values  # a text among numbers: none
    if numbers.dtype.kind not in "biuf" or (numbers is not values and len(numbers) and np.isnan(numbers).all()):
        raise DataError(f"column {name!r} must hold numbers, as when the model was trained")
    return numbers.astype(float)
