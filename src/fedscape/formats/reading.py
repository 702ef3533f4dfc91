"""How a table was read: the kind of each column, the findings, and the features."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.federation import Federation
from fedscape.errors import DataError, nearest
from fedscape.formats.findings import Finding, find, lines_of
from fedscape.formats.kinds import ColumnKind, Overrules, as_codes, as_numbers, kind_of
from fedscape.types import Array

__all__ = ["ColumnKind", "Finding", "Overrules", "Reading", "encode", "read_columns"]
_LEAVE_OUT = ("leak", "duplicate", "of client")  # findings that exclude a column from the features by default


@dataclass(frozen=True)
class Reading:
    """How a table became columns: kinds, findings and features, printed first and saved with a model.

    Print `lines()` before any result. `encode` builds the same inputs from another table with the same columns.

    Parameters
    ----------
    columns
        The kind of every column, in the order of the table.
    findings
        Data quality findings, the worst first.
    target
        The predicted or modelled column, if any.
    features
        The feature columns, in the order of the inputs.
    fills
        The value that replaces a missing number, per feature.
    """

    columns: tuple[ColumnKind, ...]
    findings: tuple[Finding, ...] = ()
    target: str | None = None
    features: tuple[str, ...] = ()
    fills: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ColumnKind:
        for kind in self.columns:
            if kind.name == name:
                return kind
        have = ", ".join(repr(kind.name) for kind in self.columns) or "none"
        near = nearest(name, [kind.name for kind in self.columns])
        raise DataError(f"there is no column {name!r}; the columns are: {have}{near}")

    def lines(self) -> list[str]:
        """The lines to print first: every finding, then the target, then the features."""
        lines = lines_of(self.findings)
        if self.target is not None:
            lines.append(self[self.target].line)
        return [*lines, f"features: {', '.join(self.features) or 'none'}"]

    def to_json(self) -> dict[str, Any]:
        """Plain values, which `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> Reading:
        """Rebuild a Reading from `to_json`.

        >>> reading = Reading((ColumnKind("age", "number", "number"),), features=("age",), fills={"age": 40.0})
        >>> Reading.from_json(reading.to_json()) == reading
        True
        """
        try:
            return cls(
                tuple(ColumnKind(**{**kind, "values": tuple(kind["values"])}) for kind in about["columns"]),
                tuple(Finding(**finding) for finding in about["findings"]),
                about["target"],
                tuple(about["features"]),
                dict(about["fills"]),
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"this is no saved reading of a table ({error}): train again to write a new one") from None


def _check_target(reading: Reading, target: str) -> None:
    try:
        reading[target]
    except DataError as error:
        if "did you mean" in str(error):
            raise
        raise DataError(f"{error}; name one with --column (column=)") from None


def read_columns(
    federation: Federation,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    overrules: Overrules | None = None,
) -> Reading:
    """Detect the kind of every column and choose the features.

    Parameters
    ----------
    federation
        The rows.
    target
        The column to predict or model.
    features
        The columns to use, whatever their kind; by default all usable ones, or x if there is one.
    overrules
        Column kinds set by hand.

    >>> fed = Federation({"age": [31.5, 44.2, 27.9], "y": [1, 2, 1]}, [0, 3])
    >>> read_columns(fed, target="y").lines()
    ['y: class, 2 values 1 to 2; --numeric y overrules', 'features: age']
    """
    rules = overrules or Overrules()
    rules.check(list(federation.columns))
    columns = tuple(
        kind_of(name, values, federation.names.get(name) if values.ndim == 1 else None, overrules=rules)
        for name, values in federation.columns.items()
        if name not in rules.ignore
    )
    reading = Reading(columns, target=target)
    if target is not None:
        _check_target(reading, target)
    findings = find(federation, columns, target=target, overrules=rules)
    if features is None:
        odd = {each.column for each in findings if each.kind in _LEAVE_OUT} - set(rules.keep)
        arrays = [kind.name for kind in columns if kind.kind == "array" and kind.name == "x" != target]
        usable = [kind.name for kind in columns if kind.use and kind.name not in odd and kind.name != target]
        features = arrays or usable
    else:
        findings = [_asked_for(each) if each.column in features else each for each in findings]
    for name in features:
        if name == target:
            raise DataError(
                f"--features are what is predicted from, and the target {name!r} is none of them: take it out"
            )
        if not reading[name].use and reading[name].kind not in ("id", "weight", "class"):
            raise DataError(
                f"{reading[name].line.partition(';')[0]}: it cannot be a feature, take it out of --features"
            )
    used = tuple(_usable(kind) if kind.name in features else kind for kind in columns)
    return replace(reading, columns=used, findings=tuple(findings), features=tuple(features))


def _usable(kind: ColumnKind) -> ColumnKind:
    """A column requested as a feature, whatever its kind."""
    if kind.use:
        return kind
    if kind.kind == "class":
        return replace(kind, use="indicators" if kind.low is None or kind.code else "number")
    if kind.low is None:
        raise DataError(
            f"{kind.line.partition(';')[0]}: it cannot be a feature; "
            f"--categorical {shlex.quote(kind.name)} makes classes"
        )
    return replace(kind, use="number")


def _asked_for(finding: Finding) -> Finding:
    left_out = finding.kind in (*_LEAVE_OUT, "id", "weight", "text")
    return replace(finding, remedy="used, as --features says") if left_out else finding


def encode(
    federation: Federation, reading: Reading, *, dtype: npt.DTypeLike = np.float32
) -> tuple[Array, tuple[str, ...]]:
    """Encode the features of a reading as one matrix [rows, inputs], with a name per input.

    A number is one input. A class is one indicator for each class of the reading; a new class sets none. An array
    is flattened. A missing number becomes its fill, or stays NaN without one.

    >>> fed = Federation({"age": [31.0, 44.5], "sex": ["f", "m"]}, [0, 1, 2])
    >>> x, names = encode(fed, read_columns(fed, overrules=Overrules(categorical=("sex",))))
    >>> x.tolist(), names
    ([[31.0, 1.0, 0.0], [44.5, 0.0, 1.0]], ('age', 'sex=f', 'sex=m'))
    """
    parts: list[Array] = []
    called: list[str] = []
    for name in reading.features:
        kind, values = reading[name], federation[name]
        if values.ndim > 1:
            flat = values.reshape(len(values), -1)
            parts.append(flat / np.float32(255) if values.dtype == np.uint8 else flat)
            called += [f"{name}[{j}]" for j in range(flat.shape[1])]
        elif kind.use == "indicators":
            codes = as_codes(values, kind.values, federation.names.get(name))
            parts.append(codes[:, None] == np.arange(len(kind.values)))
            called += [f"{name}={value}" for value in kind.values]
        else:
            numbers = as_numbers(values, federation.names.get(name))
            fill = reading.fills.get(name)
            parts.append((numbers if fill is None else np.where(np.isnan(numbers), fill, numbers))[:, None])
            called.append(name)
    if not parts:
        return np.zeros((federation.n_rows, 0), dtype=dtype), ()
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return whole.astype(dtype, copy=False), tuple(called)
