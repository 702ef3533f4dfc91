"""Read large data: folders of Parquet, partitions, globs, URIs, SQL, and anything that streams Arrow."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.dataset as ds

from fedscape.errors import DataError
from fedscape.formats.files import Name, one_line
from fedscape.formats.grouping import Source, table_source
from fedscape.formats.row_groups import dataset_source, files_source

_FILTERED = "filter= goes with files and datasets: filter the {what} itself"


@runtime_checkable
class Batches(Protocol):
    """A table of your own that `Federation.scan` can read: its Arrow schema, and its rows batch by batch.

    >>> class Squares:
    ...     schema = pa.schema([("who", pa.int64()), ("y", pa.int64())])
    ...     def batches(self, columns, rows):
    ...         yield pa.record_batch({"who": [1, 2, 1], "y": [1, 4, 9]}).select(columns)
    >>> lake_source(Squares()).n_rows
    -1
    """

    schema: Any

    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield the named columns of all rows, in order, as Arrow record batches of about this many rows.

        It is called once. Where the object has `n_rows`, that many rows must come.
        """
        ...


def lake_source(
    where: Any,
    *,
    filter: Any = None,  # noqa: A002
    connection: Any = None,
    wanted: Sequence[str] | None = None,
) -> Source:
    """Open a data lake as a source; reads only footers.

    Parameters
    ----------
    where
        A Parquet file, a folder of them at any depth with `key=value` partitions, a glob, a list of those, or a URI
        (s3://, gs://, file://, hdfs://, and through fsspec any other). Or a pyarrow Dataset, a Polars frame or
        LazyFrame, a DuckDB relation, an Arrow table, anything else that streams Arrow by `__arrow_c_stream__`, an
        object with `Batches`; or, with `connection`, a SQL query.
    filter
        A pyarrow expression on the rows, such as `pyarrow.dataset.field("year") == 2024`. Row groups and partitions
        that it excludes are not read.
    connection
        For SQL: a connection of DuckDB, or of ADBC (or any with `cursor()` whose cursor fetches record batches).
    wanted
        The columns that will be read; in these all files must agree. By default in all.
    """
    if connection is not None:
        return _unfiltered(_query_source(str(where), connection), filter, "rows in the query")
    if hasattr(where, "collect") and hasattr(where, "collect_schema"):
        return _unfiltered(_lazy_source(where), filter, "frame")
    if isinstance(where, ds.Dataset):
        return dataset_source(where, filter)
    if hasattr(where, "to_arrow_reader") and hasattr(where, "select"):
        return _unfiltered(_relation_source(where), filter, "relation")
    if isinstance(where, pa.Table):
        return _unfiltered(_sliced(where), filter, "table")
    if hasattr(where, "__arrow_c_stream__"):
        return _unfiltered(_stream_source(where), filter, "frame or relation")
    if isinstance(where, Batches):
        n_rows, batches = getattr(where, "n_rows", -1), _once(where.batches)
        own = Source(f"the {type(where).__name__}", where.schema, n_rows, batches, once=True)
        return _unfiltered(own, filter, "rows")
    return files_source([where] if isinstance(where, str | os.PathLike) else list(where), filter, wanted)


def _unfiltered(source: Source, filter: Any, what: str) -> Source:  # noqa: A002
    if filter is not None:
        raise DataError(_FILTERED.format(what=what))
    return source


# -- frames, relations, queries ----------------------------------------------------------------------------------------


def _sliced(table: Any, rows: int = 2**20) -> Source:
    """An Arrow table in pieces, which threads can take."""
    slices = [table.slice(begin, rows) for begin in range(0, table.num_rows, rows)]
    whole = table_source(table, "the table")
    return replace(whole, pieces=tuple(table_source(each, "the table") for each in slices))


def _once(batches: Any) -> Any:
    """The same reader, refusing to be called again."""
    used: list[bool] = []

    def once(columns: list[str], rows: int) -> Iterator[Any]:
        if used:
            raise DataError("the stream was read already, and a stream can be read once: create a new one")
        used.append(True)
        yield from batches(columns, rows)

    return once


def _in_slices(reader: Any, columns: list[str], rows: int) -> Iterator[Any]:
    for batch in reader:
        part = batch.select(columns)
        for begin in range(0, part.num_rows, rows):
            yield part.slice(begin, rows)


def _stream_source(where: Any) -> Source:
    reader = pa.RecordBatchReader.from_stream(where)
    return Source(
        f"the {type(where).__name__}", reader.schema, -1, _once(lambda columns, rows: _in_slices(reader, columns, rows))
    )


def _lazy_source(frame: Any) -> Source:
    """A Polars LazyFrame: only the columns in use are computed, batch by batch."""
    schema = frame.head(0).collect().to_arrow().schema

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        for part in frame.select(columns).collect_batches(chunk_size=rows, maintain_order=True):
            yield from part.to_arrow().to_batches(max_chunksize=rows)

    return Source("the LazyFrame", schema, -1, _once(batches))


def _relation_source(relation: Any) -> Source:
    """A DuckDB relation: only the columns in use are computed, batch by batch."""
    schema = relation.limit(0).to_arrow_table().schema

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        chosen = relation.select(*[_quoted(name) for name in columns])
        yield from chosen.to_arrow_reader(rows)

    return Source("the relation", schema, -1, _once(batches))


def _query_source(query: str, connection: Any) -> Source:
    """The rows of a SQL query; the database leaves out the columns that are not in use."""
    inner = query.strip().rstrip(";")

    @contextmanager
    def run(text: str, rows: int) -> Iterator[Any]:
        with ExitStack() as opened:
            try:
                if hasattr(connection, "sql"):  # DuckDB
                    reader = connection.sql(text).to_arrow_reader(rows)
                else:
                    cursor = connection.cursor()
                    if hasattr(cursor, "close"):
                        opened.callback(cursor.close)  # the reader ends with its cursor
                    cursor.execute(text)
                    reader = cursor.fetch_record_batch()
            except Exception as error:  # every database has exceptions of its own
                raise DataError(f"the query fails: {one_line(error)}") from error
            with reader:
                yield reader

    # some databases find out types from rows
    with run(f"SELECT * FROM ({inner}) AS fedscape_rows LIMIT 1000", 1000) as first:
        schema = first.schema

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        listed = ", ".join(_quoted(name) for name in columns)
        with run(f"SELECT {listed} FROM ({inner}) AS fedscape_rows", rows) as reader:
            yield from _in_slices(reader, columns, rows)

    return Source("the query", schema, -1, _once(batches))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# -- scanning ----------------------------------------------------------------------------------------------------------


def scan(
    where: Any,
    path: Name,
    *,
    client: str,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002
    connection: Any = None,
    memory: int | None = None,
    overwrite: bool = False,
    tasks: Any = None,
) -> None:
    """Group the rows of a lake by client into fedscape's own folder, in bounded memory; see `Federation.scan`."""
    from fedscape.formats.shuffle import MEMORY, shuffle

    wanted = None if columns is None else [client, *columns]
    source = lake_source(where, filter=filter, connection=connection, wanted=wanted)
    how = {"client": client, "columns": columns, "memory": memory or MEMORY, "overwrite": overwrite, "tasks": tasks}
    shuffle(source, path, **how)


def temporary_folder() -> Path:
    """Return a free folder name; the folder is removed when this process ends."""
    parent = Path(tempfile.mkdtemp(prefix="fedscape-scan-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return parent / "federation"
