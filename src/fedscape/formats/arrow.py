"""Convert Arrow arrays to NumPy columns; texts become integer codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedscape.core.validate import Collected
from fedscape.errors import DataError
from fedscape.types import Array

EXACT = 2**53  # largest integer up to which every integer is exact in float64
DENSE = 2**22  # widest range of integers that a lookup array covers
_CHUNK = 2**20
_LEAVE_OUT = "or leave it out with --ignore (ignore=), or as rows are grouped with --columns (columns=)"
_HINTS = {
    "decimal": "cast it to float64",
    "binary": "decode it to texts or numbers",
    "struct": "flatten it into one column per field",
    "time32": "cast it to whole numbers",
    "time64": "cast it to whole numbers",
}


class Codes:
    """One code per distinct value, shared by any number of arrays; a missing value has the code -1.

    >>> codes = Codes()
    >>> codes.encode(pa.array(["b", None, "a"])).tolist()
    [0, -1, 1]
    >>> codes.finish()[0]
    ('a', 'b')
    """

    def __init__(self, names: Sequence[Any] = ()) -> None:
        self.table: dict[Any, int] = {value: code for code, value in enumerate(names)}
        self._n_declared = len(self.table)
        self._declared = bool(names) and not isinstance(names, Collected)
        self._arrow: Any = None  # the first values of the table as an Arrow array
        self._dictionary: Any = None
        self._codes = np.empty(0, dtype=np.int32)
        self._low = 0  # the integer with its code in _dense[0]
        self._dense = np.empty(0, dtype=np.int32)

    def encode(self, part: Any) -> Array:
        """Encode an Arrow array of texts, integers or dictionary entries."""
        if pa.types.is_integer(part.type) and len(part) and not part.null_count:
            values = part.to_numpy()
            low, high = int(values.min()), int(values.max())
            if high - low < DENSE and self._reach(low, high):
                return self._encode_dense(values)
        if pa.types.is_dictionary(part.type):
            encoded = part
        else:
            plain = part.cast(pa.large_string()) if is_view(part.type) else part
            encoded = plain.dictionary_encode()
        if self._dictionary is None or not encoded.dictionary.equals(self._dictionary):
            self._dictionary = encoded.dictionary  # batches of a row group share their dictionary: look it up once
            self._codes = np.append(self._look_up(encoded.dictionary), np.int32(-1))
        places = encoded.indices.cast(pa.int32()).fill_null(-1).to_numpy()
        codes: Array = self._codes[places]  # -1 indexes the last entry, which is -1
        return codes

    def _reach(self, low: int, high: int) -> bool:
        """Grow the dense lookup array to cover low to high, if it stays small."""
        if len(self._dense):
            low, high = min(low, self._low), max(high, self._low + len(self._dense) - 1)
        if high - low >= DENSE:
            return False
        if high - low + 1 > len(self._dense):
            wider = np.full(high - low + 1, -1, dtype=np.int32)
            wider[self._low - low :][: len(self._dense)] = self._dense
            self._low, self._dense = low, wider
        return True

    def _encode_dense(self, values: Array) -> Array:
        wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64, copy=False)
        places = (wide - wide.dtype.type(self._low)).astype(np.int64, copy=False)
        codes: Array = self._dense[places]
        fresh = np.flatnonzero(codes < 0)
        if len(fresh):
            new = np.unique(places[fresh])
            self._dense[new] = self.encode_list(self._low + offset for offset in new.tolist())
            codes[fresh] = self._dense[places[fresh]]
        return codes

    def _look_up(self, values: Any) -> Array:
        """Look up the codes of distinct values: one by one if they are few, in Arrow if they are many."""
        if len(values) < 1000 or 4 * len(values) < len(self.table):
            return self.encode_list(values.to_pylist())
        start = 0 if self._arrow is None else len(self._arrow)
        fresh = pa.array(list(islice(self.table, start, None)), type=values.type)
        self._arrow = fresh if self._arrow is None else pa.concat_arrays([self._arrow.cast(values.type), fresh])
        places = pc.index_in(values, value_set=self._arrow)
        codes: Array = places.fill_null(-1).to_numpy().copy()
        codes[codes < 0] = self.encode_list(values.filter(places.is_null()).to_pylist())
        return codes

    def encode_list(self, values: Iterable[Any]) -> Array:
        """Encode Python values; None is missing."""
        table = self.table
        return np.fromiter((-1 if v is None else table.setdefault(v, len(table)) for v in values), dtype=np.int32)

    def finish(self) -> tuple[tuple[str, ...], Array]:
        """Return the names in final order (fixed ones first, the rest sorted) and the new code of each old code."""
        values = list(self.table)
        order = [*range(self._n_declared), *sorted(range(self._n_declared, len(values)), key=values.__getitem__)]
        rank = np.full(len(values) + 1, -1, dtype=np.int32)  # the last entry maps code -1
        rank[order] = np.arange(len(values))
        names = (str(values[index]) for index in order)
        return tuple(names) if self._declared and len(values) == self._n_declared else Collected(names), rank


def recode(values: Array, rank: Array) -> None:
    """Replace each code with its new code, in place."""
    flat = values.reshape(-1)
    for begin in range(0, len(flat), _CHUNK):
        flat[begin : begin + _CHUNK] = rank[flat[begin : begin + _CHUNK]]


class Column:
    """A column that is being filled from Arrow arrays.

    Parameters
    ----------
    name
        The column's name, for messages.
    n_rows
        Number of rows.
    names
        Names whose codes are fixed: 0, 1, ...
    limit
        Maximum size of the column in bytes.
    """

    def __init__(self, name: str, n_rows: int, *, names: Sequence[str] = (), limit: int | None = None) -> None:
        self.name, self.n_rows, self.limit = name, n_rows, limit
        self.codes = Codes(names)
        self.coded = bool(names)
        self.values: Array | None = None

    def write(self, part: Any, rows: slice | Array) -> None:
        """Convert an Arrow array and put it into these rows."""
        self.coded = self.coded or holds_texts(part.type)
        new = to_numpy(part, self.name, self.codes)
        if self.values is None:
            self.values = self._allocate(new)
        if new.shape[1:] != self.values.shape[1:]:
            raise _uneven(self.name, self.values.shape[1:], new.shape[1:])
        if new.dtype != self.values.dtype:  # integers, some batches with missing values and some without
            new, self.values = to_float(new, self.name), to_float(self.values, self.name)
        self.values[rows] = new

    def finish(self) -> tuple[Array, tuple[str, ...] | None]:
        """Return the filled column, and its names if it holds codes."""
        values = np.empty(0) if self.values is None else self.values
        if not self.coded:
            return values, None
        names, rank = self.codes.finish()
        recode(values, rank)
        return values, names

    def _allocate(self, first: Array) -> Array:
        size = self.n_rows * int(np.prod(first.shape[1:], dtype=object)) * first.dtype.itemsize
        if self.limit is not None and size > self.limit:
            raise DataError(f"column {self.name!r} would take {size:,} bytes, beyond the limit of {self.limit:,}")
        return np.zeros((self.n_rows, *first.shape[1:]), dtype=first.dtype)


def to_numpy(part: Any, name: str, codes: Codes) -> Array:
    """Convert an Arrow array to [rows, ...]; texts and dictionaries become int32 codes.

    Missing numbers become NaN (whole numbers then become float64), missing times NaT, missing texts the code -1.
    """
    kind = part.type
    if isinstance(part, pa.ExtensionArray):
        return _from_extension(part, name, codes)
    if is_text(kind):
        return codes.encode(part)
    if pa.types.is_dictionary(kind):
        return to_numpy(part.dictionary_decode(), name, codes)
    if is_list(kind):
        return _from_lists(part, name, codes)
    if pa.types.is_null(kind):
        return np.full(len(part), np.nan)
    if part.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        gaps = part.is_null().to_numpy(zero_copy_only=False)
        values = to_float(part.fill_null(False if pa.types.is_boolean(kind) else 0).to_numpy(False), name)
        return np.where(gaps, np.nan, values)
    plain: Array = part.to_numpy(zero_copy_only=False)
    return plain


def to_float(values: Array, name: str) -> Array:
    """Convert numbers to float64; refuse integers that float64 cannot hold exactly."""
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and values.size:
        low, high = int(values.min()), int(values.max())
        if high > EXACT or low < -EXACT:
            raise DataError(
                f"column {name!r} mixes {high if high > EXACT else low} with missing values or fractions, and float64 "
                f"cannot hold it exactly: fill in the missing values, or make it a column of texts"
            )
    return values.astype(np.float64, copy=False)


def _from_extension(part: Any, name: str, codes: Codes) -> Array:
    if isinstance(part.type, pa.FixedShapeTensorType) and not part.null_count:
        tensor: Array = part.to_numpy_ndarray()
        return tensor
    return to_numpy(part.storage, name, codes)


def _from_lists(part: Any, name: str, codes: Codes) -> Array:
    if part.null_count:
        row = int(np.argmax(part.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"column {name!r} misses a list (row {row:,} of its batch): fill it in or drop the row")
    if pa.types.is_fixed_size_list(part.type):
        width = part.type.list_size
    else:
        lengths = np.unique(part.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise _uneven(name, lengths[:1].tolist(), lengths[-1:].tolist())
        width = int(lengths[0]) if len(lengths) else 0
    inner = to_numpy(part.flatten(), name, codes)
    return inner.reshape(len(part), width, *inner.shape[1:])


def _uneven(name: str, one: Sequence[int], other: Sequence[int]) -> DataError:
    return DataError(
        f"column {name!r} holds lists of different lengths ({list(one)} and {list(other)}): pad them to one length, or "
        "give each element a row of its own"
    )


# -- types -------------------------------------------------------------------------------------------------------------


def is_view(kind: Any) -> bool:
    """Whether an Arrow type is string_view."""
    return bool(pa.types.is_string_view(kind))


def is_string(kind: Any) -> bool:
    """Whether an Arrow type is a text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view(kind))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type becomes codes: texts, and dictionaries of texts or integers."""
    if pa.types.is_dictionary(kind):
        return is_string(kind.value_type) or bool(pa.types.is_integer(kind.value_type))
    return is_string(kind)


def holds_strings(kind: Any) -> bool:
    """Whether the column becomes codes named by its own texts."""
    inner = kind
    while is_list(inner) or pa.types.is_dictionary(inner):
        inner = inner.value_type
    return is_string(inner)


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list of fixed or variable length."""
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def holds_texts(kind: Any) -> bool:
    """Whether the column becomes codes, or a list of codes."""
    if isinstance(kind, pa.BaseExtensionType):
        return holds_texts(kind.storage_type)
    return holds_texts(kind.value_type) if is_list(kind) else is_text(kind)


def width(kind: Any) -> int:
    """Minimum number of bytes per row in NumPy."""
    if isinstance(kind, pa.BaseExtensionType):
        return width(kind.storage_type)
    if is_text(kind):
        return 4
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * width(kind.value_type)
    if is_list(kind):
        return 1
    if pa.types.is_dictionary(kind):
        return width(kind.value_type)
    return 8 if pa.types.is_null(kind) else max(1, int(kind.bit_width) // 8)


def has_width(kind: Any) -> bool:
    """Whether `width` is exact: the type has no variable-length list inside."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_width(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        return has_width(kind.value_type)
    return not is_list(kind)


def check_type(name: str, kind: Any) -> None:
    """Refuse a type that cannot be a column. The message names the column, its type and the remedy."""
    inner = kind
    while True:
        if isinstance(inner, pa.BaseExtensionType):
            inner = inner.storage_type
        elif is_list(inner) and holds_texts(inner):
            raise DataError(f"column {name!r} has the Arrow type {kind}: make it one text a row, {_LEAVE_OUT}")
        elif is_list(inner) or (pa.types.is_dictionary(inner) and not is_text(inner)):
            inner = inner.value_type
        else:
            break
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    times = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_date)
    if is_text(inner) or any(test(inner) for test in (*plain, *times)):
        return
    hint = next((hint for word, hint in _HINTS.items() if word in str(inner)), "turn it into numbers or texts")
    raise DataError(f"column {name!r} has the Arrow type {kind}, which no column can hold: {hint}, {_LEAVE_OUT}")
