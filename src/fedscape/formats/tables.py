"""Tables in memory, one per client or one for all; and CSV files, which become such a table."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedscape.core.federation import Federation
from fedscape.core.validate import as_array, plain_array
from fedscape.errors import DataError
from fedscape.formats.arrow import Codes, check_type, holds_texts, recode, to_float, to_numpy
from fedscape.formats.dialect import Dialect, find_dialect, open_bytes, uneven_line
from fedscape.formats.files import Name, files_in, new_file, one_line, reading
from fedscape.formats.grouping import Source, group, table_source
from fedscape.formats.outgoing import outgoing_batches, outgoing_schema
from fedscape.types import Array

Piece = tuple[Array, bool]  # the rows of one client in one column, and whether they are codes of texts


def stack_clients(
    clients: Sequence[Any], *, names: Mapping[str, Sequence[str]] | None = None
) -> tuple[dict[str, Array], Array, dict[str, tuple[str, ...]]]:
    """Concatenate one table per client: the columns, the rows of each client, and the names of codes.

    Parameters
    ----------
    clients
        For each client a mapping of arrays, a pandas DataFrame, an Arrow table, or one array (column x). All have the
        same columns; a client without rows may pass empty lists.
    names
        Names with fixed codes; other texts get codes after them, in alphabetical order.

    >>> columns, sizes, names = stack_clients([{"y": ["b", "a"]}, {"y": []}])
    >>> columns["y"].tolist(), sizes.tolist(), names
    ([1, 0], [2, 0], {'y': ('a', 'b')})
    """
    if isinstance(clients, Mapping):
        raise DataError("clients must be a list of tables, not a mapping: pass list(d.values()) and ids=list(d)")
    fixed = dict(names or {})
    codes: defaultdict[str, Codes] = defaultdict(Codes, {name: Codes(names_of) for name, names_of in fixed.items()})
    tables = [_pieces(table, index, codes) for index, table in enumerate(clients)]
    sizes = np.array([_length(table, index) for index, table in enumerate(tables)], dtype=np.int64)
    first = list(tables[0]) if tables else []
    for index, table in enumerate(tables):
        if set(table) != set(first):
            raise DataError(
                f"client {index} has the columns {sorted(table, key=str)}, client 0 has {sorted(first, key=str)}: give "
                "every client the same columns"
            )
    columns: dict[str, Array] = {}
    names_of: dict[str, tuple[str, ...]] = {}
    for name in first:
        columns[name], texts = _stacked(name, [table[name] for table in tables])
        if texts or name in fixed:
            names_of[name], rank = codes[name].finish()
            columns[name] = columns[name].astype(np.int32)
            recode(columns[name], rank)
    return columns, sizes, names_of


def _pieces(table: Any, index: int, codes: Mapping[str, Codes]) -> dict[str, Piece]:
    try:
        if is_table(table):
            whole = as_table(table).combine_chunks()
            return {name: _arrow_piece(whole, name, codes[name]) for name in whole.column_names}
        columns_in = table if isinstance(table, Mapping) else {"x": table}
        return {name: _array_piece(name, values, codes) for name, values in columns_in.items()}
    except DataError as error:
        raise DataError(f"client {index}: {error}") from None


def _arrow_piece(table: Any, name: str, codes: Codes) -> Piece:
    chunks = table.column(name)
    check_type(name, chunks.type)
    part = chunks.chunk(0) if chunks.num_chunks else pa.nulls(0, chunks.type)
    return to_numpy(part, name, codes), holds_texts(part.type)


def _array_piece(name: str, raw: npt.ArrayLike, codes: Mapping[str, Codes]) -> Piece:
    try:
        values = plain_array(raw)
    except ValueError:
        values = np.empty(0)  # ragged: as_array raises with the reason
    texts = values.ndim and values.dtype.kind == "O" and {type(v) for v in values.ravel().tolist()} <= {str, type(None)}
    if not texts:
        values = as_array(name, raw)
        if values.dtype.kind != "U":
            return values, False
    return codes[name].encode_list(values.ravel().tolist()).reshape(values.shape), True


def _length(table: dict[str, Piece], index: int) -> int:
    sizes = {name: len(values) for name, (values, _) in table.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"client {index} has columns of different lengths, {sizes}: give each record one row in all")
    return next(iter(sizes.values()), 0)


def _stacked(name: str, pieces: list[Piece]) -> Piece:
    """Concatenate one column over the clients; empty pieces have no type, as an empty list looks like float64."""
    filled = [index for index, (values, _) in enumerate(pieces) if len(values)]
    if not filled:
        return pieces[0]
    head, texts = pieces[filled[0]]
    for index in filled:
        values, also = pieces[index]
        if values.shape[1:] != head.shape[1:]:
            raise DataError(
                f"column {name!r} has the shape {list(values.shape[1:])} a row in client {index}, but "
                f"{list(head.shape[1:])} in client {filled[0]}: bring all clients to one shape"
            )
        if _kind(values, also) != _kind(head, texts):
            raise DataError(
                f"column {name!r} holds {_kind(values, also)} in client {index}, but {_kind(head, texts)} in client "
                f"{filled[0]}: give it one type in all clients"
            )
    parts = [pieces[index][0] for index in filled]
    if np.result_type(*{part.dtype for part in parts}).kind == "f":
        parts = [to_float(part, name) if part.dtype.kind in "iu" else part for part in parts]
    return np.concatenate(parts), texts


def _kind(values: Array, texts: bool) -> str:
    if texts:
        return "texts"
    return {"M": "times", "m": "durations"}.get(values.dtype.kind, "numbers")


# -- one table for all -------------------------------------------------------------------------------------------------


def is_table(data: Any) -> bool:
    """Whether this is a pandas DataFrame, an Arrow table, or anything with Arrow's table protocol."""
    return isinstance(data, pa.Table | pa.RecordBatch) or _is_pandas(data) or hasattr(data, "__arrow_c_stream__")


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns")


def as_table(frame: Any) -> Any:
    """Convert a table to an Arrow table; the pandas index is dropped."""
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if not is_table(frame):
        raise DataError(f"the frame must be a pandas DataFrame or an Arrow table, not {type(frame).__name__}")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False) if _is_pandas(frame) else pa.table(frame)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"the frame cannot become an Arrow table: {one_line(error)}: make each column all numbers or all texts"
        ) from error


def from_frame(frame: Any, *, client: str, ids: npt.ArrayLike | None = None) -> Federation:
    """Group the rows of a pandas DataFrame or an Arrow table by the client column.

    Texts and dictionaries become int32 codes, -1 if missing, with their sorted names in `names`. Missing numbers become
    NaN (integers then become float64) and missing times NaT. Lists of equal length become the second dimension. Times
    with a zone are converted to UTC.

    Parameters
    ----------
    frame
        The table. A pandas index is not read: `reset_index()` turns it into a column.
    client
        The client column, integers or texts, or several columns separated by commas. They are not kept as columns.
    ids
        All clients, where some have no rows; the order of the result.

    >>> table = pa.table({"who": ["b", "a", "b"], "y": ["no", None, "yes"]})
    >>> fed = from_frame(table, client="who")
    >>> fed.ids.tolist(), fed["y"].tolist(), fed.names["y"]
    (['a', 'b'], [-1, 0, 1], ('no', 'yes'))
    """
    return group(table_source(as_table(frame), "the frame"), client=client, ids=ids)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def from_csv(path: Name, *, client: str, columns: Sequence[str] | None = None, rows: str | None = None) -> Federation:
    """Group the rows of a CSV file with a header, or of a folder of them, by the client column.

    The file is read into memory. Types are inferred from the values, but clients stay texts unless every id is a
    plain integer: "007" and "7" are two clients. In a number column an empty cell, NA, NaN and null are missing; in a
    text column only an unquoted empty cell is.

    Separator (comma, semicolon, tab, bar), encoding (UTF-8, UTF-16, Windows-1252), decimal commas and compression (by
    the ending: .gz, .bz2, .zst, .lz4) are detected; `datasets.read_table` reports them.

    Parameters
    ----------
    path
        The file, or a folder of `.csv` files.
    client
        The client column, or several separated by commas.
    columns
        Only these columns; all by default.
    rows
        Name of an extra column with the row number in the file, from 0.
    """
    return group(csv_source(path, client=client, columns=columns), client=client, columns=columns, rows=rows)


def csv_source(path: Name, *, client: str, columns: Sequence[str] | None = None) -> Source:
    """Open a CSV file, or a folder of them, as a source with remarks on the dialect."""
    files = files_in(path, ".csv")
    dialects = [find_dialect(file) for file in files]
    tables = [_read_csv(file, dialect, client, columns) for file, dialect in zip(files, dialects, strict=True)]
    for file, table in zip(files, tables, strict=True):
        if table.schema.names != tables[0].schema.names:
            raise DataError(_other_columns(file, table.schema.names, files[0], tables[0].schema.names))
    try:
        whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        about = _unlike_types([file.name for file in files], tables) or f"a column's type: {one_line(error)}"
        raise DataError(f"the files of {os.fspath(path)} disagree about {about}") from error
    index = whole.schema.get_field_index(client)
    if index >= 0:
        whole = whole.set_column(index, client, _plain_ids(whole.column(client)))
    remarks = [f"{file.name} is {d.remark}" for file, d in zip(files, dialects, strict=True) if d.remark]
    bare = [index for index, name in enumerate(whole.column_names) if not name]
    if bare:
        names = [name if name else f"Unnamed: {index}" for index, name in enumerate(whole.column_names)]
        whole = whole.rename_columns(names)
        remarks += [f"column {index + 1} has no name and is called {names[index]!r}" for index in bare]
    return replace(table_source(whole, os.fspath(path)), remarks=tuple(remarks))


def _unlike_types(files: Sequence[str], tables: Sequence[Any]) -> str:
    """Name the first column that holds texts in one file and no texts in another, "" if none does."""
    for name in tables[0].column_names:
        columns = [table.column(name) for table in tables]
        filled = [i for i, column in enumerate(columns) if not pa.types.is_null(column.type)]
        texts = [i for i in filled if pa.types.is_string(columns[i].type)]
        if texts and len(texts) < len(filled):
            other = next(i for i in filled if i not in texts)
            return (
                f"the column {name!r}: {files[texts[0]]} holds texts, {files[other]} holds {columns[other].type} "
                "values: write it alike in all"
            )
    return ""


def _other_columns(file: Name, mine: Sequence[str], first: Name, others: Sequence[str]) -> str:
    """Say what a file's columns differ in from those of the first one, and what to do."""
    lacks = ", ".join(repr(name) for name in others if name not in mine)
    more = ", ".join(repr(name) for name in mine if name not in others)
    parts = [f"it lacks {lacks}"] if lacks else []
    parts += [f"it has {more}, which the first has not"] if more else []
    differ = ", and ".join(parts) or "in another order, or one twice"
    remedy = "give all files the same header in the same order, with empty cells where a site has no values"
    return f"{file} has other columns than {first}: {differ}; {remedy}"


def _read_csv(path: Name, dialect: Dialect, client: str, columns: Sequence[str] | None) -> Any:
    from pyarrow import csv

    whose = list(dict.fromkeys([client, *(name.strip() for name in client.split(","))]))

    def read(**convert: Any) -> Any:
        with open_bytes(path) as stream:
            return csv.read_csv(
                stream,
                read_options=csv.ReadOptions(encoding=dialect.encoding),
                parse_options=csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True),
                convert_options=csv.ConvertOptions(decimal_point=dialect.decimal, **convert),
            )

    wanted = None
    if dialect.size == 0:
        raise DataError(f"{os.fspath(path)} is not a readable CSV file: Empty, without even a header")
    with reading(path, "CSV file"):
        try:
            table = read(column_types=dict.fromkeys(whose, pa.string()))
        except pa.ArrowInvalid:
            if uneven := uneven_line(path, dialect):
                raise DataError(f"{os.fspath(path)} is not a readable CSV file: {uneven}") from None
            raise
        if columns is not None:
            own = [client] if client in table.column_names else whose[1:]
            wanted = [*own, *(name for name in columns if name not in own)]
        table = table if wanted is None or not set(wanted) <= set(table.column_names) else table.select(wanted)
        texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
        if len(set(table.column_names)) == table.num_columns:
            large = [field.name for field in table.schema if _is_large(table.column(field.name))]
            texts += large
        if len(set(table.column_names)) < table.num_columns or not texts:
            return table
        # Read the texts again: "NA" is a text there, and only an unquoted empty cell is missing.
        reread = read(
            column_types=dict.fromkeys(texts, pa.string()),
            include_columns=texts,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        for name in texts:
            if name not in large or _are_digits(reread.column(name)):
                table = table.set_column(table.schema.get_field_index(name), name, reread.column(name))
        return table


def _is_large(column: Any) -> bool:
    """Whether a float64 column may hold integers of more than 64 bits: ids that float64 cannot hold."""
    if not pa.types.is_float64(column.type):
        return False
    values = column.to_numpy()
    return bool((np.abs(values[np.isfinite(values)]) >= 2.0**63).any())


def _are_digits(column: Any) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, r"^\s*[-+]?\d+\s*$")).as_py())


def _plain_ids(column: Any) -> Any:
    """Convert texts to integers if each is written as Python would write it."""
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column
    return numbers if numbers.cast(column.type).equals(column) else column


def to_csv(fed: Federation, path: Name, *, client: str = "client", overwrite: bool = False) -> None:
    """Write the rows as a CSV file with a header; codes are written as their names.

    CSV has no types: names that look like numbers come back as numbers, and narrow numbers as int64 or float64. Clients
    without rows are lost. Texts round-trip: one that begins with =, +, - or @ is written unchanged, and a spreadsheet
    may run it as a formula. Columns with more than one dimension are refused.

    Parameters
    ----------
    fed
        The rows to write.
    path
        The file to create, atomically.
    client
        The name of the column for the client's id.
    overwrite
        Whether to replace an existing file.
    """
    from pyarrow import csv

    for name, values in fed.columns.items():
        if values.ndim > 1:
            raise DataError(
                f"column {name!r} has the shape {list(values.shape[1:])} a row, and a CSV cell holds one value: use "
                "to_parquet(), or leave it out with select()"
            )
    schema = outgoing_schema(fed, client)
    with new_file(path, overwrite=overwrite) as draft, csv.CSVWriter(draft, schema) as writer:
        for batch in outgoing_batches(fed, schema):
            writer.write_batch(batch)
