"""Learn from training rows how a table becomes a model's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.kinds import kind_of, label_of
from fedscape.formats.reading import Reading
from fedscape.learning.cells import is_text, missing_in, numbers_in
from fedscape.learning.inputs import Feature, Inputs
from fedscape.statistics.tails import tails

if TYPE_CHECKING:
    from fedscape.statistics.undeclared import Scale

FILLS = ("mean", "median", "drop")
MOST_CATEGORIES = 1_000  # of one column: each becomes an input
MOST_CLASSES = 10_000
_NUMBER = "float64"  # the type of single numbers: what a file has depends on whether one row has a gap or a fraction


def learn_inputs(
    rows: Federation,
    *,
    features: Sequence[str],
    target: str,
    fill: str | float | None = None,
    standardise: bool = False,
    shape: Sequence[int] | None = None,
    kinds: Mapping[str, str] | None = None,
    classes: Sequence[str] | None = None,
    client: str | None = None,
    scales: Mapping[str, Scale] | None = None,
) -> Inputs:
    """Learn from these rows how a table becomes inputs.

    Parameters
    ----------
    rows
        The training rows: fills, scales and categories are theirs.
    features
        Columns in the order of the inputs. Texts become one input a category, in the order of the alphabet.
    target
        The column of classes.
    fill
        For missing numbers "mean" or "median" of these rows, "drop" leaves the row out, a number is put in as it is.
        A missing text is no category: all its inputs are 0.
    standardise
        Whether numbers get mean 0 and deviation 1; where a value is more than 20 deviations from the mean, all are
        first cut to the quantiles 0.005 and 0.995. Inputs of 0 and 1 that stand for categories stay as they are.
    shape
        The shape of a row's inputs, such as (28, 28); it must hold as many numbers as there are.
    kinds
        "number" or "category" for columns that are not what they look like: codes of occupations are categories.
    classes
        All classes, where the rows may lack some; by default those of the rows.
    client
        The column with the client of each row; kept as information only.
    scales
        Where the numbers of columns lie, found without a look at these rows: medians to fill in with, centre, scale
        and cuts to standardise by.

    >>> fed = Federation({"a": [1.0, 3.0], "b": ["u", "v"], "y": [0, 1]}, [0, 2])
    >>> [each.kind for each in learn_inputs(fed, features=["a", "b"], target="y").features]
    ['number', 'category']
    """
    if isinstance(fill, str) and fill not in FILLS:
        raise DataError(f"fill must be one of {', '.join(FILLS)} or a number, not {fill!r}")
    repeated = sorted({name for name in features if list(features).count(name) > 1})
    if not features or repeated or target in features:
        why = "at least one column" if not features else f"a column once, not {', '.join([*repeated, target])} again"
        raise DataError(f"features must name {why}: the target {target!r} is none of them")
    overruled = dict(kinds or {})
    learned = tuple(
        _learned(rows, name, overruled.get(name), fill, standardise, (scales or {}).get(name)) for name in features
    )
    missing = "refuse" if fill is None else "drop" if fill == "drop" else "fill"
    names = class_names(rows, target) if classes is None else tuple(classes)
    inputs = Inputs(learned, target, names, None if shape is None else tuple(shape), missing, client)
    if shape is not None and (math.prod(shape) != inputs.width or min(shape) < 1):
        raise DataError(
            f"shape must hold the {inputs.width:,} numbers of a row, {','.join(map(str, shape))} holds "
            f"{math.prod(shape):,}"
        )
    return inputs


def class_names(rows: Federation, target: str) -> tuple[str, ...]:
    """What the classes of a column are called: its names, or its different whole numbers in order.

    >>> class_names(Federation({"stars": [5, 1, 4]}, [0, 3]), "stars")
    ('1', '4', '5')
    """
    values = rows[target]
    if values.ndim == 1 and values.dtype.kind in "biuf" and not missing_in(rows, target).all():
        if is_text(rows, target):
            return tuple(rows.names[target])
        kind = kind_of(target, values)
        if kind.kind in ("class", "ordered", "constant") or values.dtype.kind in "biu":
            values_in_use = _values(rows, target)
            if len(values_in_use) > MOST_CLASSES:
                raise DataError(
                    f"the column {target!r} has {len(values_in_use):,} different values: that is no class, bin it"
                )
            return values_in_use
        raise DataError(
            f"{target!r} is a number, not a class: 'fedscape regress' predicts numbers; to train on it, make a column "
            "of classes first"
        )
    missing = int(missing_in(rows, target).sum()) if values.ndim == 1 else 0
    hint = f"; values that are missing: {missing:,}, fill them in or drop their rows" if missing else ""
    raise DataError(f"the column {target!r} must hold classes 0, 1, 2, ..., not {values.dtype}{hint}")


def feature_kinds(reading: Reading) -> dict[str, str]:
    """What the features of a reading become; a date, a text or an id that is no number is refused.

    >>> from fedscape.formats.reading import read_columns
    >>> feature_kinds(read_columns(Federation({"a": [1.5, 2.5], "b": ["u", "v"]}, [0, 2])))
    {'a': 'number', 'b': 'category'}
    """
    kinds = {}
    for name in reading.features:
        column = reading[name]
        if column.kind in ("date", "text", "empty") or (not column.use and column.low is None and not column.values):
            raise DataError(
                f"the column {name!r} cannot be a feature, it is: {column.line.split(';')[0].partition(': ')[2]}; "
                "leave it out"
            )
        category = column.use == "indicators" or (not column.use and column.low is None)
        kinds[name] = "array" if column.kind == "array" else "category" if category else "number"
    return kinds


def _values(rows: Federation, name: str) -> tuple[str, ...]:
    """The different values of a column as texts, in order."""
    distinct = np.unique(rows[name][~missing_in(rows, name)])
    if is_text(rows, name):
        return tuple(rows.names[name][int(code)] for code in distinct)
    return tuple(label_of(value) for value in distinct)


def _learned(
    rows: Federation,
    name: str,
    kind: str | None,
    fill: str | float | None,
    standardise: bool,
    given_scale: Scale | None,
) -> Feature:
    values = rows[name]
    if kind is None:
        kind = "array" if values.ndim > 1 else "category" if is_text(rows, name) else "number"
    if kind == "category":
        distinct = tuple(rows.names[name]) if rows.is_declared(name) else _values(rows, name)
        if not 0 < len(distinct) <= MOST_CATEGORIES:
            what = f"{len(distinct):,} different values" if len(distinct) else "no value in any row"
            raise DataError(f"column {name!r} has {what}: that is no category, leave it out of the features")
        return Feature(name, "category", distinct, dtype="str" if is_text(rows, name) else _NUMBER)
    shape = tuple(int(n) for n in values.shape[1:]) if kind == "array" else (1,)
    feature = Feature(name, kind, shape=shape, dtype=values.dtype.name if kind == "array" else _NUMBER)
    if given_scale is not None:
        below, centre, unit, above = (tuple(part.tolist()) for part in given_scale)
        if fill is not None and fill != "drop":
            feature = replace(feature, fill=centre if fill == "median" else (float(fill),) * feature.width)
        return replace(feature, low=below, mean=centre, scale=unit, high=above) if standardise else feature
    if fill is None and not standardise:
        return feature
    cells = numbers_in(rows, name)
    if not rows.n_rows or np.isnan(cells).all(axis=0).any():
        raise DataError(f"column {name!r} has no value in any training row: leave it out of the features")
    if fill in ("mean", "median"):
        average = np.nanmean(cells, axis=0) if fill == "mean" else np.nanmedian(cells, axis=0)
        feature = replace(feature, fill=tuple(average.tolist()))
    elif fill is not None and fill != "drop":
        feature = replace(feature, fill=(float(fill),) * feature.width)
    if standardise:
        if feature.fill is not None:
            cells = np.where(np.isnan(cells), np.asarray(feature.fill), cells)
        mean, spread = np.nanmean(cells, axis=0), np.nanstd(cells, axis=0)
        ends = tails(cells, rows.offsets)
        if ends is not None:
            low, high = ends
            feature = replace(feature, low=tuple(low.tolist()), high=tuple(high.tolist()))
            cells = np.clip(cells, low, high)
            mean, spread = np.nanmean(cells, axis=0), np.nanstd(cells, axis=0)
        scale = np.where(spread > 1e-9 * (np.abs(mean) + 1), spread, 0.0)
        feature = replace(feature, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))
    return feature
