"""A Federation's rows as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.types import Array

ROWS = 2**17  # keeps the texts of a batch below Arrow's 2 GiB


def outgoing_schema(fed: Federation, client: str, metadata: Mapping[bytes, bytes] | None = None) -> Any:
    """The Arrow schema of the client column and all others; refuses dtypes that Arrow cannot hold."""
    if client in fed.columns:
        raise DataError(f"the Federation has a column {client!r} already: pass client= another name for the ids")
    if not isinstance(client, str) or not client:
        raise DataError(f"client must be a text of at least one character, not {client!r}")
    fields = [pa.field(client, pa.string() if fed.ids.dtype.kind == "U" else pa.int64())]
    for name, values in fed.columns.items():
        fields.append(pa.field(name, _type_of(name, values, coded(fed).get(name))))
    return pa.schema(fields, metadata=metadata)


def coded(fed: Federation) -> dict[str, tuple[str, ...]]:
    """The names of columns that hold codes; names of count vectors belong to their last axis."""
    return {name: texts for name, texts in fed.names.items() if fed[name].ndim == 1}


def _type_of(name: str, values: Array, names: tuple[str, ...] | None) -> Any:
    if names is not None:
        check_codes(name, values, names)
        kind = pa.string()
    else:
        try:
            kind = pa.from_numpy_dtype(values.dtype.newbyteorder("="))
        except pa.ArrowNotImplementedError:
            raise DataError(
                f"column {name!r} is {values.dtype}, which Arrow cannot hold: change it with astype()"
            ) from None
        if pa.types.is_date32(kind) and (np.abs(values[~np.isnat(values)].astype(np.int64)) >= 2**31).any():
            raise DataError(f"column {name!r} holds a day beyond the year 5,881,580, which Arrow cannot hold")
    for size in reversed(values.shape[1:]):
        if size == 0:
            raise DataError(f"column {name!r} has the shape {list(values.shape[1:])} a row and so no values: drop it")
        kind = pa.list_(kind, size)
    return kind


def check_codes(name: str, values: Array, names: tuple[str, ...]) -> None:
    """Refuse codes without a name, and repeated names, which would merge when read back."""
    if values.dtype.kind not in "biu":
        raise DataError(f"column {name!r} has names, so it must hold whole-number codes, not {values.dtype}")
    if values.size and not -1 <= int(values.min()) <= int(values.max()) < len(names):
        bad = int(values.min()) if values.min() < -1 else int(values.max())
        raise DataError(f"column {name!r} holds the code {bad}, but has names for 0 to {len(names) - 1} (-1: missing)")
    if len(set(names)) < len(names):
        twice = next(text for text in names if names.count(text) > 1)
        raise DataError(f"column {name!r} has the name {twice!r} for several codes: give each code its own")


def outgoing_batches(fed: Federation, schema: Any, rows: int = ROWS) -> Iterator[Any]:
    """Yield the rows as record batches of this schema, a bounded number of rows at a time."""
    ids = pa.array(fed.ids.tolist(), type=schema.field(0).type)
    names = {name: pa.array(texts, type=pa.string()) for name, texts in coded(fed).items()}
    for begin in range(0, fed.n_rows, rows):
        part = slice(begin, min(begin + rows, fed.n_rows))
        client = np.repeat(np.arange(len(fed)), np.diff(np.clip(fed.offsets, part.start, part.stop)))
        arrays = [ids.take(pa.array(client))]
        for field in list(schema)[1:]:
            arrays.append(_to_arrow(fed.columns[field.name][part], field.type, names.get(field.name)))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_arrow(values: Array, kind: Any, names: Any) -> Any:
    flat = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")).reshape(-1)
    if names is not None:
        codes = flat.astype(np.int64)
        column = names.take(pa.array(codes, mask=codes < 0))
    else:
        column = pa.array(flat)
    for size, layer in reversed(list(zip(values.shape[1:], _layers(kind), strict=True))):
        column = pa.FixedSizeListArray.from_arrays(column, type=layer) if size else column
    return column


def _layers(kind: Any) -> list[Any]:
    """The list types around the values, the outermost first."""
    layers = []
    while pa.types.is_fixed_size_list(kind):
        layers.append(kind)
        kind = kind.value_type
    return layers
