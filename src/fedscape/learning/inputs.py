"""From a table to a model's inputs: columns, order, fills, scales, categories, shape and classes, saved with the model.

`learn_inputs` (fitting.py) looks at the training rows once. `Inputs.apply` is the one way from a table to arrays, in
training and whenever the model is used again; a table that does not fit gets one line that says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.validate import all_finite
from fedscape.errors import DataError, plural
from fedscape.formats.kinds import as_codes
from fedscape.learning.cells import first_texts, is_text, missing_in, numbers_in, place_of, text_at
from fedscape.types import Array

ROW = "fedscape.row"  # a column of predictions: which row of the file a row is
KINDS = ("number", "category", "array")
_MISSING = ("refuse", "fill", "drop")


@dataclass(frozen=True)
class Feature:
    """A column of the table, and how it becomes inputs.

    A "number" is one input, a "category" one input of 0 or 1 for each of `categories`, an "array" as many as it has
    numbers. `fill`, `mean` and `scale` have a number for each input; a scale of 0 marks an input that was the same in
    all training rows, which becomes 0. `low` and `high` are what values are cut to before they are scaled, where a few
    far ones would set the scale.

    >>> Feature("job", "category", ("cook", "pilot")).width
    2
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: tuple[float, ...] | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    shape: tuple[int, ...] = ()
    dtype: str = "float64"
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    @property
    def width(self) -> int:
        """How many inputs the column becomes."""
        return len(self.categories) if self.kind == "category" else math.prod(self.shape)

    def inputs(self, values: Array) -> Array:
        """Numbers [rows, width] filled and scaled; a gap without a fill stays NaN."""
        if self.fill is not None:
            values = np.where(np.isnan(values), np.asarray(self.fill), values)
        if self.mean is None or self.scale is None:
            return values
        if self.low is not None and self.high is not None:
            values = np.clip(values, np.asarray(self.low), np.asarray(self.high))
        scale = np.asarray(self.scale)
        return np.where(scale > 0, (values - np.asarray(self.mean)) / np.where(scale > 0, scale, 1.0), 0.0)


@dataclass(frozen=True)
class Applied:
    """A table as inputs: `rows` are those of the table that can be used, `used` says which.

    `rows` holds the inputs and, where the table has the target, its classes (-1 where it is missing or unknown).
    `unknown` says which rows of the table have a class that the model does not know.
    """

    rows: Federation
    used: Array
    unknown: Array
    filled: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def remarks(self) -> list[str]:
        """What was filled, not known and left out, a line each."""
        lines = []
        if len(self.filled) > 3:
            some = ", ".join(f"{n:,} of {name!r}" for name, n in list(self.filled.items())[:12])
            more = f" and {len(self.filled) - 12:,} columns more" if len(self.filled) > 12 else ""
            lines.append(f"missing values are filled in: {some}{more}")
        for name, n in self.filled.items() if len(self.filled) <= 3 else ():
            text = "1 missing value of {} is" if n == 1 else f"{n:,} missing values of {{}} are"
            lines.append(f"{text.format(repr(name))} filled in")
        for name, (n, first) in self.unseen.items():
            text = "1 row has" if n == 1 else f"{n:,} rows have"
            lines.append(f"{text} a {name!r} that the model does not know, such as {first!r}: it counts as none")
        left_out = int((~self.used).sum())
        if left_out:
            lines.append(f"{left_out:,} of {len(self.used):,} rows lack a value and are left out")
        return lines


@dataclass(frozen=True)
class Inputs:
    """All that turns a table into the inputs of one model.

    Parameters
    ----------
    features
        The columns, in the order of the inputs.
    target
        The column of classes.
    classes
        What the classes are called, in the order of their numbers.
    shape
        The shape of a row's inputs; by default that of the only column, or a row of numbers.
    missing
        What happens to a row with a gap: "refuse", "fill" or "drop".
    client
        The column with the client of each row, or several, comma-separated.

    >>> from fedscape.learning.fitting import learn_inputs
    >>> fed = Federation({"age": [20.0, np.nan, 40.0], "job": ["cook", "pilot", "cook"], "y": [3, 5, 5]}, [0, 3])
    >>> inputs = learn_inputs(fed, features=["age", "job"], target="y", fill="mean")
    >>> inputs.apply(fed).rows["x"].tolist()
    [[20.0, 1.0, 0.0], [30.0, 0.0, 1.0], [40.0, 1.0, 0.0]]
    >>> inputs.classes, inputs.apply(fed).filled
    (('3', '5'), {'age': 1})
    """

    features: tuple[Feature, ...]
    target: str
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    missing: str = "refuse"
    client: str | None = None

    @property
    def column(self) -> str:
        """What the column of inputs is called: as the only feature, else x."""
        if len(self.features) == 1:
            return self.features[0].name
        return "x" if self.target != "x" else "inputs"

    @property
    def width(self) -> int:
        """How many numbers the inputs of a row are."""
        return sum(each.width for each in self.features)

    @property
    def as_stored(self) -> bool:
        """Whether the inputs are one column of arrays as it is."""
        first = self.features[0]
        plain = first.kind == "array" and first.fill is None and first.mean is None
        return len(self.features) == 1 and plain and self.missing != "drop"

    def remarks(self) -> list[str]:
        """What was learned that one may want to know, a line each: columns cut before scaling."""
        cut = [each.name for each in self.features if each.low is not None]
        if not cut:
            return []
        return [f"far values would set the scale of {', '.join(cut)}: all are cut to the quantiles 0.005 and 0.995"]

    def apply(self, table: Federation) -> Applied:
        """The rows of a table as inputs; columns that are missing or of another kind are refused."""
        for each in self.features:
            _check_column(table, each)
        if table.n_rows == 0:
            raise DataError("the table has no rows, and a model needs some: name another file")
        filled: dict[str, int] = {}
        unseen: dict[str, tuple[int, str]] = {}
        used = np.ones(table.n_rows, dtype=bool)
        if self.as_stored:
            x = table[self.features[0].name]
            if not all_finite(x):
                raise self._gap(table, self.features[0], x)
            if x.ndim == 1:
                x = x.astype(np.float32)[:, None]
        else:
            x = self._encoded(table, used, filled, unseen)
        if self.shape is not None:
            x = x.reshape(len(x), *self.shape)
        labels, unknown = self._labels(table)
        inputs = table.select([]).with_column(self.column, x)
        if labels is not None:
            inputs = inputs.with_column(self.target, labels, names=self.classes or None)
        return Applied(inputs if used.all() else inputs.where(used), used, unknown, filled, unseen)

    def _encoded(
        self, table: Federation, used: Array, filled: dict[str, int], unseen: dict[str, tuple[int, str]]
    ) -> Array:
        x = np.zeros((table.n_rows, self.width), dtype=np.float32)
        begin = 0
        for each in self.features:
            part = x[:, begin : begin + each.width]
            begin += each.width
            if each.kind == "category":
                self._indicate(table, each, part, used, unseen)
                continue
            values = numbers_in(table, each.name)
            gaps = np.isnan(values)
            if gaps.any() and self.missing == "refuse":
                raise self._gap(table, each, values)
            if gaps.any() and self.missing == "fill":
                filled[each.name] = int(gaps.sum())
            with np.errstate(over="ignore"):
                part[:] = each.inputs(values)
            if self.missing == "drop":
                used &= ~gaps.any(axis=1)
            _check_range(table, each, values, part, used)
        return x

    def _indicate(
        self, table: Federation, each: Feature, part: Array, used: Array, unseen: dict[str, tuple[int, str]]
    ) -> None:
        codes, present = self._codes(table, each.name, each.categories), ~missing_in(table, each.name)
        coded = np.flatnonzero(codes >= 0)
        part[coded, codes[coded]] = 1
        strange = np.flatnonzero((codes < 0) & present)
        if len(strange):
            first = text_at(table, each.name, int(strange[0]))
            if not len(coded):
                raise DataError(
                    f"column {each.name!r} holds none of the categories that the model knows "
                    f"({first_texts(each.categories)}); its first is {first!r}: give the column as it was in training"
                )
            unseen[each.name] = (len(strange), first)
        if self.missing == "drop":
            used &= present

    def _labels(self, table: Federation) -> tuple[Array | None, Array]:
        if self.target not in table:
            return None, np.zeros(table.n_rows, dtype=bool)
        if not self.classes:
            return table[self.target], np.zeros(table.n_rows, dtype=bool)
        if table[self.target].ndim != 1:
            raise DataError(f"column {self.target!r} must hold one class a row, not arrays")
        codes = self._codes(table, self.target, self.classes)
        return codes, (codes < 0) & ~missing_in(table, self.target)

    @staticmethod
    def _codes(table: Federation, name: str, categories: Sequence[str]) -> Array:
        return as_codes(table[name], categories, table.names.get(name))

    def _gap(self, table: Federation, each: Feature, values: Array) -> DataError:
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        row = int(np.argmax(bad))
        return DataError(
            f"column {each.name!r} must hold one finite number a row to be a feature: {plural(int(bad.sum()), 'row')} "
            f"without one, the first is {place_of(table, row)}; pass fill='mean' (or median, drop) in training"
        )

    def check_labels(self, table: Federation, applied: Applied) -> None:
        """Refuse a class that the model does not know."""
        if applied.unknown.any():
            row = int(np.argmax(applied.unknown))
            raise DataError(
                f"column {self.target!r} holds {text_at(table, self.target, row)!r} in "
                f"{place_of(table, row)}, but the model knows {first_texts(self.classes)}: drop such rows"
            )

    def to_json(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Inputs:
        """What `to_json` gave; anything else is refused."""
        try:
            features = tuple(_feature(each) for each in content["features"])
            shape = None if content["shape"] is None else tuple(int(n) for n in content["shape"])
            inputs = cls(
                features, content["target"], tuple(content["classes"]), shape, content["missing"], content["client"]
            )
            _check(inputs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            raise DataError(f"what is saved about the inputs is damaged ({why}): train the model again") from None
        return inputs


def as_it_is(column: str, target: str, classes: Sequence[str] = ()) -> Inputs:
    """Inputs of a model whose column of arrays is taken as it is, whatever its shape.

    >>> as_it_is("x", "y").column
    'x'
    """
    return Inputs((Feature(column, "array", dtype=""),), target, tuple(classes))


def _check_column(table: Federation, each: Feature) -> None:
    """Refuse a column that is missing, or not what it was in training."""
    if each.name not in table:
        have = ", ".join(map(repr, [name for name in table.columns if name != ROW][:20])) or "none"
        raise DataError(f"the model needs the column {each.name!r}, which is not there; the columns are: {have}")
    values = table[each.name]
    if each.kind == "category":
        if values.ndim != 1:
            raise DataError(f"column {each.name!r} must hold a category a row, not an array {list(values.shape[1:])}")
        return
    shape = tuple(values.shape[1:]) or (1,)
    if each.shape and shape != each.shape:
        raise DataError(
            f"column {each.name!r} has the shape {list(shape)} a row, but the model was trained on {list(each.shape)}"
        )
    if each.kind == "array" and is_text(table, each.name):
        raise DataError(f"column {each.name!r} holds texts, but the model was trained on {each.dtype or 'numbers'}")
    if each.dtype and each.kind == "array" and (values.dtype == np.uint8) != (each.dtype == "uint8"):
        raise DataError(
            f"column {each.name!r} is {values.dtype}, but it was {each.dtype} in training: bytes count as 0 to 1, "
            "other numbers as they are"
        )


def _check_range(table: Federation, each: Feature, values: Array, part: Array, used: Array) -> None:
    bad = ~np.isfinite(part).all(axis=1) & used
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"column {each.name!r} holds {values[row][~np.isfinite(part[row])][0]:g} in {place_of(table, row)}, beyond "
            "what a model computes with (float32): mend it or leave the column out"
        )


def _feature(content: Mapping[str, Any]) -> Feature:
    def numbers(name: str) -> tuple[float, ...] | None:
        return None if content.get(name) is None else tuple(float(v) for v in content[name])

    shape = tuple(int(n) for n in content["shape"])
    numbers_of = {name: numbers(name) for name in ("fill", "mean", "scale", "low", "high")}
    return Feature(
        content["name"],
        content["kind"],
        tuple(content["categories"]),
        shape=shape,
        dtype=content["dtype"],
        **numbers_of,
    )


def _check(inputs: Inputs) -> None:
    texts = [inputs.target, inputs.missing, *inputs.classes, *(each.name for each in inputs.features)]
    texts += [text for each in inputs.features for text in each.categories]
    if not all(isinstance(text, str) for text in texts) or not isinstance(inputs.client, str | None):
        raise ValueError("a name is no text")
    if not inputs.features or inputs.missing not in _MISSING:
        raise ValueError(f"missing values are said to be {inputs.missing!r}")
    for each in inputs.features:
        lengths = {len(v) for v in (each.fill, each.mean, each.scale, each.low, each.high) if v is not None}
        if each.kind not in KINDS or not lengths <= {each.width}:
            raise ValueError(f"{each.name!r} is a {each.kind!r} of {each.width} inputs with {sorted(lengths)} numbers")
