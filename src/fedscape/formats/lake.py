"""Read large data: folders of Parquet, partitions, globs, URIs, SQL, and anything that streams Arrow."""

from __future__ import annotations

import atexit
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from fedscape.errors import DataError, require
from fedscape.formats.files import Name, one_line
from fedscape.formats.grouping import Source, table_source

_GLOB = ("*", "?", "[")
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


def lake_source(where: Any, *, filter: Any = None, connection: Any = None) -> Source:  # noqa: A002
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
    """
    if connection is not None:
        return _unfiltered(_query_source(str(where), connection), filter, "rows in the query")
    if hasattr(where, "collect") and hasattr(where, "collect_schema"):
        return _unfiltered(_lazy_source(where), filter, "frame")
    if isinstance(where, ds.Dataset):
        return _dataset_source(where, "the dataset", filter)
    if hasattr(where, "to_arrow_reader") and hasattr(where, "select"):
        return _unfiltered(_relation_source(where), filter, "relation")
    if isinstance(where, pa.Table):
        return _unfiltered(_sliced(where), filter, "table")
    if hasattr(where, "__arrow_c_stream__"):
        return _unfiltered(_stream_source(where), filter, "frame or relation")
    if isinstance(where, Batches):
        own = Source(f"the {type(where).__name__}", where.schema, getattr(where, "n_rows", -1), _once(where.batches))
        return _unfiltered(own, filter, "rows")
    paths = [where] if isinstance(where, str | os.PathLike) else list(where)
    if not paths:
        raise DataError("there is nothing to scan: name a file, folder, glob or URI")
    return _dataset_source(_open(paths), ", ".join(os.fspath(path) for path in paths[:3]), filter)


def _unfiltered(source: Source, filter: Any, what: str) -> Source:  # noqa: A002
    if filter is not None:
        raise DataError(_FILTERED.format(what=what))
    return source


# -- files -------------------------------------------------------------------------------------------------------------


def _open(paths: Sequence[Name]) -> ds.Dataset:
    """Open these paths as one Parquet dataset."""
    system, files = None, []
    for path in [os.fspath(each) for each in paths]:
        if "://" in path:
            system, inner = _file_system(path)
            files += _matching(system, inner, path) if any(sign in inner for sign in _GLOB) else [inner]
        elif any(sign in path for sign in _GLOB) and not Path(path).exists():
            matches = sorted(glob.glob(path, recursive=True))
            if not matches:
                raise DataError(f"no file matches {path}: check the pattern")
            files += matches
        elif not Path(path).exists():
            raise DataError(f"there is no file or folder {path}: check the path")
        else:
            files.append(path)
    try:
        return ds.dataset(
            files[0] if len(files) == 1 else files, format="parquet", partitioning="hive", filesystem=system
        )
    except (OSError, ValueError, TypeError) as error:  # pa.ArrowInvalid is a ValueError
        if "magic bytes" in str(error):
            raise DataError(
                f"{os.fspath(paths[0])} is no Parquet, which alone can be scanned: 'fedscape data convert' reads CSV "
                "and others and writes .parquet"
            ) from None
        raise DataError(f"{os.fspath(paths[0])} cannot be scanned as Parquet: {one_line(error)}") from error


def _file_system(uri: str) -> tuple[Any, str]:
    """Resolve a URI to its file system and the path in it."""
    try:
        system, inner = pafs.FileSystem.from_uri(uri)
        return system, inner
    except pa.ArrowInvalid:
        fsspec = require("fsspec", extra="lake")
        try:
            system, inner = fsspec.core.url_to_fs(uri)
        except (ValueError, ImportError) as error:
            raise DataError(f"nothing here opens {uri}: {one_line(error)}") from error
        return pafs.PyFileSystem(pafs.FSSpecHandler(system)), inner


def _matching(system: Any, pattern: str, uri: str) -> list[str]:
    """The files of a file system that match a pattern, sorted."""
    from fnmatch import fnmatchcase

    fixed = pattern[: min(pattern.index(sign) for sign in _GLOB if sign in pattern)]
    folder = fixed.rpartition("/")[0]
    entries = system.get_file_info(pafs.FileSelector(folder, recursive=True))
    matches = sorted(info.path for info in entries if info.is_file and fnmatchcase(info.path, pattern))
    if not matches:
        raise DataError(f"no file matches {uri}: check the pattern")
    return matches


@dataclass(frozen=True)
class _RowGroup:
    """A row group of a file, which any process that sees the file can read."""

    fragment: Any
    schema: Any
    filter: Any
    what: str

    def __call__(self, columns: list[str], rows: int) -> Iterator[Any]:
        try:
            scanner = self.fragment.scanner(
                schema=self.schema, columns=columns, filter=self.filter, batch_size=rows, use_threads=False,
                batch_readahead=1, fragment_readahead=1,
            )  # fmt: skip
            yield from scanner.to_batches()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.what} cannot be read: {one_line(error)}") from error


def _dataset_source(dataset: ds.Dataset, what: str, filter: Any) -> Source:  # noqa: A002
    schema = dataset.schema
    if len(schema.names) == 0:
        raise DataError(f"{what} holds no Parquet file: name the right folder")
    if not isinstance(dataset, ds.FileSystemDataset):
        return _whole_dataset(dataset, what, filter)
    pieces = []
    try:
        for fragment in dataset.get_fragments(filter=filter):
            for group in fragment.split_by_row_group(filter=filter, schema=schema):
                numbers = ", ".join(str(info.id) for info in group.row_groups)
                one = f"row group {numbers} of {fragment.path}"
                n = sum(info.num_rows for info in group.row_groups) if filter is None else -1
                pieces.append(Source(one, schema, n, _RowGroup(group, schema, filter, one)))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{what} cannot be read: {one_line(error)}") from error

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        for piece in pieces:
            yield from piece.batches(columns, rows)

    n_rows = sum(piece.n_rows for piece in pieces) if filter is None else _counted(dataset, what, filter)
    return Source(what, schema, n_rows, batches, pieces=tuple(pieces))


def _whole_dataset(dataset: ds.Dataset, what: str, filter: Any) -> Source:  # noqa: A002
    """A dataset that is not made of files, such as one of tables in memory."""

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        yield from dataset.scanner(columns=columns, filter=filter, batch_size=rows, use_threads=False).to_batches()

    return Source(what, dataset.schema, _counted(dataset, what, filter), batches)


def _counted(dataset: ds.Dataset, what: str, filter: Any) -> int:  # noqa: A002
    try:
        return int(dataset.count_rows(filter=filter))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{what} cannot be filtered: {one_line(error)}") from error


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

    source = lake_source(where, filter=filter, connection=connection)
    how = {"client": client, "columns": columns, "memory": memory or MEMORY, "overwrite": overwrite, "tasks": tasks}
    shuffle(source, path, **how)


def temporary_folder() -> Path:
    """Return a free folder name; the folder is removed when this process ends."""
    parent = Path(tempfile.mkdtemp(prefix="fedscape-scan-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return parent / "federation"
