"""What a column, a client column, an id and a category must be: checked once, at the border."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError, plural
from fedscape.types import Array

NUMBERS = "biufmM"
_MOST_CELLS = 2**26  # of counts that are made without asking how many codes are used


class Collected(tuple[str, ...]):
    """Names of codes that were collected from rows: which there are, and their numbers, tell what clients hold.

    Names that a caller, a schema or a law gives are plain tuples.

    >>> Collected(("flu", "rare")) == ("flu", "rare")
    True
    """

    __slots__ = ()


def all_finite(values: Array) -> bool:
    """Whether there is neither NaN nor infinity; other values than floating point numbers always are.

    >>> all_finite(np.array([1e300, 1e300])), all_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    return not_finite({"": values}) is None


def not_finite(arrays: Mapping[str, Array]) -> str | None:
    """The name of the first array with NaN or infinity; None if there is none.

    >>> not_finite({"a": np.array([1e300, 1e300]), "b": np.array([1.0, np.nan])})
    'b'
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for name, values in arrays.items():
            if values.dtype.kind != "f":
                continue
            flat = values.reshape(-1)
            quick = math.isfinite(flat @ flat)  # several times as fast as a look at each
            if not (quick or bool(np.isfinite(values).all())):
                return name
    return None


def check_categories(values: Array, n_categories: int, column: str) -> Array:
    """The column as whole numbers in 0..n_categories - 1 (or, two-dimensional, as counts), or a DataError."""
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values) | (values != np.floor(values))
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise DataError(
                f"column {column!r} must hold whole numbers; {values[where]} in row {where[0]:,} is not one: "
                "bin() turns numbers into categories, coded() values into classes"
            )
        values = values.astype(np.int64)
    if values.dtype.kind not in "biu" or values.ndim not in (1, 2):
        raise DataError(
            f"column {column!r} must hold categories, one a row, not {values.dtype}{list(values.shape[1:])}"
        )
    if values.ndim == 2 and values.shape[1] != n_categories:
        raise DataError(
            f"column {column!r} holds counts of {values.shape[1]} categories, n_categories says {n_categories}"
        )
    if values.size == 0:
        return values.astype(np.int64)
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    low = 0 if values.dtype.kind in "bu" else int(values.min())
    if low < 0:
        what = "count" if values.ndim == 2 else "category"
        hint = "; -1 marks a missing text: drop those rows with where()" if low == -1 and values.ndim == 1 else ""
        raise DataError(
            f"column {column!r} holds the {what} {low} in row {int(np.argwhere(values == low)[0][0]):,}{hint}"
        )
    if values.ndim == 1 and (high := int(values.max())) >= n_categories:
        row = int(np.argmax(values))
        raise DataError(
            f"column {column!r} holds the category {high} in row {row:,}, but n_categories={n_categories} allows 0 to "
            f"{n_categories - 1}: raise n_categories to {high + 1} or more"
        )
    return values


def check_dense(values: Array, n: int, clients: int, column: str) -> None:
    """Refuse large counts of codes that hardly any row has: values that are no codes 0, 1, 2, ..."""
    if n * clients <= _MOST_CELLS:
        return
    distinct = len(np.unique(values))
    if n > 4 * distinct:
        raise DataError(
            f"column {column!r} holds {distinct:,} values up to {n - 1:,}, and counts of 0 to {n - 1:,} for "
            f"{plural(clients, 'client')} would take {4e-9 * n * clients:,.1f} GB: count its values as classes "
            f"with coded({column!r})"
        )


def check_finite(values: Array, column: str) -> Array:
    """The column as float64 without NaN or infinity, or a DataError."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"column {column!r} must hold numbers, not {values.dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise DataError(
            f"column {column!r} holds {values[row] if values.ndim == 1 else 'NaN or infinity'} in row {row:,}: "
            "drop such rows with where(np.isfinite(...)) or fill them in before"
        )
    return values.astype(np.float64, copy=False)


def valid_categories(values: Array, n_categories: int) -> Array | None:
    """Which rows `check_categories` takes; None where it takes all, or none because of their type.

    >>> valid_categories(np.array([0.0, 2.0, np.nan, 1.5, -1.0]), 2).tolist()
    [True, False, False, False, False]
    """
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        return None
    limit = n_categories if values.ndim == 1 else 2**31  # or a count, of which there may be that many
    inside = (values >= 0) & (values < limit)
    if values.dtype.kind == "f":
        inside &= values == np.floor(values)
    return np.asarray(inside.all(axis=1) if values.ndim == 2 else inside)


def valid_numbers(values: Array) -> Array | None:
    """Which rows `check_finite` takes; None where it takes all, or none because of their type.

    >>> valid_numbers(np.array([[0.0, 1.0], [np.inf, 2.0]])).tolist()
    [True, False]
    """
    if values.dtype.kind != "f" or all_finite(values):
        return None
    return np.asarray(np.isfinite(values).reshape(len(values), -1).all(axis=1))


def all_valid(*masks: Array | None) -> Array | None:
    """Rows that all masks let through; None stands for all rows.

    >>> all_valid(None, np.array([True, True]), np.array([True, False])).tolist()
    [True, False]
    """
    present = [mask for mask in masks if mask is not None]
    return np.logical_and.reduce(present) if present else None


def check_whole(name: str, value: int, *, least: int) -> int:
    """A whole number of at least `least`, or a DataError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def check_number(name: str, value: float) -> float:
    """A number, or a DataError; infinity is one, NaN is not."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating) or value != value:
        raise DataError(f"{name} must be a number, not {value!r}")
    return float(value)


def codes_by_name(codes: Array, names: Sequence[str], wanted: Sequence[str]) -> Array:
    """Codes of these names as others number the same names; -1 for a name they do not have, or a code without a name.

    >>> codes_by_name(np.array([0, 1, -1]), ["birch", "yew"], ["ash", "birch"]).tolist()
    [1, -1, -1]
    """
    place = {name: j for j, name in enumerate(wanted)}
    table = np.array([*(place.get(name, -1) for name in names), -1], dtype=np.int64)
    return table[np.where((codes >= 0) & (codes < len(names)), codes, len(names))]


def column_names(features: str | Sequence[str], *, target: str) -> tuple[str, ...]:
    """The columns of features, from one name or several, each of them once and none of them the target."""
    names = (features,) if isinstance(features, str) else tuple(features)
    if not names:
        raise DataError("features must name at least one column, got none")
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"features must name a column once: {name!r} is there {names.count(name)} times")
    if target in names:
        raise DataError(f"features must not name {target!r}, the target: leave it out of them")
    return names


def check_share(test: float) -> None:
    if not 0 < test < 1:
        raise DataError(f"test must be a share between 0 and 1, not {test}")


def checked_columns(
    columns: Mapping[str, npt.ArrayLike], names: dict[str, Sequence[str]]
) -> tuple[dict[str, Array], dict[str, tuple[str, ...]]]:
    stored: dict[str, Array] = {}
    checked_names = {n: v if isinstance(v, Collected) else tuple(str(name) for name in v) for n, v in names.items()}
    for name, raw in columns.items():
        if not isinstance(name, str) or not name:
            raise DataError(f"a column's name must be a text of at least one character, not {name!r}")
        values = as_array(name, raw)
        if values.dtype.kind in "US" and values.ndim > 1:
            raise DataError(
                f"column {name!r} holds texts of shape {list(values.shape[1:])} a row: make it one text a row"
            )
        if values.dtype.kind in "US":
            texts, values = np.unique(values, return_inverse=True)
            collected = Collected(texts.astype(str).tolist())
            if name in checked_names:
                values = codes_by_name(values, collected, checked_names[name])
            else:
                checked_names[name] = collected
            values = values.astype(np.int32)
        if values.dtype.kind not in NUMBERS:
            raise DataError(f"column {name!r} must hold numbers or texts, not {values.dtype}")
        stored[name] = read_only(values)
    for name, given_names in checked_names.items():
        if name not in stored:
            raise DataError(f"names are given for {name!r}, which is no column")
        if stored[name].ndim > 1 and stored[name].shape[-1] != len(given_names):
            raise DataError(
                f"column {name!r} has {stored[name].shape[-1]} values along its last axis, but {len(given_names)} names"
            )
    return stored, checked_names


def read_only(values: Array) -> Array:
    """A view that cannot be written to."""
    view = values.view()
    view.flags.writeable = False
    return view


def plain_array(raw: npt.ArrayLike) -> Array:
    """The values as an array; a list like [1, "a"], whose number NumPy would turn into a text, as objects."""
    values = np.asarray(raw)
    if values.dtype.kind == "U" and not isinstance(raw, np.ndarray):
        return np.asarray(raw, dtype=object)
    return values


def as_array(name: str, raw: npt.ArrayLike) -> Array:
    try:
        values = plain_array(raw)
    except ValueError as error:
        raise DataError(f"column {name!r} is not one array: {error}; from_clients() takes a list of clients") from None
    if values.ndim == 0:
        raise DataError(f"column {name!r} must have one row per record, got the single value {raw!r}")
    if values.dtype.kind == "O":
        kinds = {type(v) for v in values.ravel().tolist()}
        if kinds and all(issubclass(kind, str) for kind in kinds):
            return values.astype(str)
        type_names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"column {name!r} mixes types ({type_names}): make it all numbers or all texts")
    return values


def checked_ids(ids: npt.ArrayLike) -> Array:
    who = plain_array(ids)
    if who.dtype.kind == "O":
        who = as_array("ids", who)
    if who.ndim != 1 or (who.dtype.kind not in "iuU" and who.size):
        raise DataError(f"ids must be whole numbers or texts, one per client, not {who.dtype}{list(who.shape)}")
    if who.size == 0:
        return np.empty(0, dtype=np.int64)
    if who.dtype.kind == "u" and who.max() > np.iinfo(np.int64).max:
        raise DataError(f"ids must fit in 64 signed bits; {who.max()} does not: pass them as texts")
    who = who.astype(np.int64) if who.dtype.kind in "iu" else who
    distinct, number = np.unique(who, return_counts=True)
    if len(distinct) < len(who):
        raise DataError(
            f"ids must differ, but {distinct[np.argmax(number)].item()!r} stands for {number.max()} clients"
        )
    return who


def is_sorted(codes: Array) -> bool:
    """Whether no value is smaller than the one before."""
    return len(codes) < 2 or bool(np.all(codes[1:] >= codes[:-1]))


def is_rising(ids: Array) -> bool:
    """Whether each value is larger than the one before."""
    return bool(np.all(ids[1:] > ids[:-1]))


def factorise(clients: npt.ArrayLike, ids: Array | None) -> tuple[Array, Array]:
    """Position of each row's client, and the ids of the clients."""
    import pyarrow as pa

    column = clients if isinstance(clients, pa.Array | pa.ChunkedArray) else pa.array(_client_column(clients))
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise _missing_client(column.null_count, int(np.argmax(np.asarray(column.is_null()))))
    encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    values = encoded.dictionary
    if pa.types.is_integer(values.type):
        labels = values.to_numpy(zero_copy_only=False).astype(np.int64)
    elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        labels = np.array(values.to_pylist(), dtype=str) if len(values) else np.empty(0, dtype="<U1")
    else:
        raise DataError(f"the client column must hold whole numbers or texts, not {values.type}")
    if ids is None:
        if is_sorted(codes) and isinstance(column, pa.Array) and len(labels) == (codes[-1] + 1 if len(codes) else 0):
            return codes, labels  # rows lie together: nothing to move, order of appearance
        order = np.argsort(labels, kind="stable")
        rank = np.empty(len(labels), dtype=np.int64)
        rank[order] = np.arange(len(labels))
        used = np.zeros(len(labels), dtype=bool)
        used[codes] = True
        if not used.all():  # categories without rows are not clients
            rank = np.cumsum(used[order])[rank] - 1
            order = order[used[order]]
        return rank[codes], labels[order]
    where = {v: i for i, v in enumerate(ids.tolist())}
    try:
        rank = np.array([where[v] for v in labels.tolist()], dtype=np.int64)
    except KeyError as error:
        raise DataError(f"client {error.args[0]!r} has rows but is not among the {len(ids):,} ids") from None
    return rank[codes] if len(codes) else codes, ids


def _client_column(clients: npt.ArrayLike) -> Array:
    who = plain_array(clients)
    if who.dtype.kind in "Of":
        missing = np.array([v is None or v != v for v in who.ravel().tolist()])
        if missing.any():
            raise _missing_client(int(missing.sum()), int(np.argmax(missing)))
        who = as_array("clients", who)
    if who.ndim != 1 or (who.dtype.kind not in "iuU" and who.size):
        raise DataError(
            f"the client column must hold whole numbers or texts, one per row, not {who.dtype}{list(who.shape)}"
        )
    return who if who.size else who.astype(np.int64)


def _missing_client(number: int, row: int) -> DataError:
    return DataError(
        f"the client column has {number:,} missing values, the first in row {row:,}: every row needs a client"
    )


def positions(clients: npt.ArrayLike, n: int) -> Array:
    where = np.asarray(clients)
    if where.dtype == bool:
        if where.shape != (n,):
            raise DataError(f"a mask of clients needs {n:,} entries, got shape {where.shape}")
        return np.flatnonzero(where)
    if where.size == 0:
        return np.empty(0, dtype=np.int64)
    if where.dtype.kind not in "iu" or where.ndim != 1:
        raise DataError(
            f"clients are taken by position, mask or slice, not by {where.dtype}{where.shape}; positions(ids) finds ids"
        )
    if where.min() < 0 or where.max() >= n:
        raise DataError(f"client positions go from 0 to {n - 1:,}; got {where.min()} to {where.max()}")
    if len(where) > 1 and not np.all(where[1:] > where[:-1]) and len(np.unique(where)) < len(where):
        raise DataError("a client can be taken only once, but some positions are repeated")
    return where.astype(np.int64, copy=False)


def codes_between(values: Array, edges: npt.ArrayLike, column: str) -> tuple[Array, Array]:
    """Codes of numbers, k where edges[k] <= value < edges[k + 1], and the edges; a value outside them is refused.

    >>> codes_between(np.array([10.0, 70.0]), [0, 50, np.inf], "income")[0].tolist()
    [0, 1]
    """
    cuts = np.asarray(edges, dtype=float)
    if cuts.ndim != 1 or len(cuts) < 2 or not np.all(np.diff(cuts) > 0):
        raise DataError(f"edges must be at least two rising numbers, got {np.array2string(cuts, threshold=8)}")
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise DataError(f"bin() needs a column of single numbers; {column!r} is {values.dtype}{list(values.shape[1:])}")
    codes = np.searchsorted(cuts, values, side="right") - 1
    outside = (codes < 0) | (codes >= len(cuts) - 1) | np.isnan(values)
    if outside.any():
        row = int(np.argmax(outside))
        raise DataError(
            f"{int(outside.sum()):,} values of {column!r} lie outside the edges, the first is {values[row]} "
            f"in row {row:,}: widen the edges (-inf and inf are allowed) or drop those rows with where()"
        )
    return codes.astype(np.int32), cuts
