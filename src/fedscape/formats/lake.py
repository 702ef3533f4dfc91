"""Read large data: folders of Parquet, partitions, globs, URIs, and anything that streams Arrow."""

from __future__ import annotations

import atexit
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from fedscape.errors import DataError, require
from fedscape.formats.files import Name, one_line
from fedscape.formats.grouping import Source

_GLOB = ("*", "?", "[")


def lake_source(where: Any, *, filter: Any = None) -> Source:  # noqa: A002
    """Open a data lake as a source; reads only footers.

    Parameters
    ----------
    where
        A Parquet file, a folder of them at any depth with `key=value` partitions, a glob, a list of those, or a URI
        (s3://, gs://, file://, hdfs://, and through fsspec any other). Or a pyarrow Dataset, or anything that streams
        Arrow by `__arrow_c_stream__`: an Arrow table, a Polars frame, a DuckDB relation, a reader of ADBC. A Polars
        LazyFrame is collected in its streaming engine.
    filter
        A pyarrow expression on the rows, such as `pyarrow.dataset.field("year") == 2024`. Row groups and partitions
        that it excludes are not read.
    """
    if hasattr(where, "collect") and hasattr(where, "collect_schema"):
        where = where.collect(engine="streaming")
    if isinstance(where, ds.Dataset):
        return _dataset_source(where, "the dataset", filter)
    if hasattr(where, "__arrow_c_stream__"):
        if filter is not None:
            raise DataError("filter= goes with files and datasets: filter the frame or relation itself")
        return _stream_source(where)
    paths = [where] if isinstance(where, str | os.PathLike) else list(where)
    if not paths:
        raise DataError("there is nothing to scan: name a file, folder, glob or URI")
    return _dataset_source(_open(paths), ", ".join(os.fspath(path) for path in paths[:3]), filter)


def _open(paths: Sequence[Name]) -> ds.Dataset:
    """Open these paths as one Parquet dataset."""
    system, files = None, []
    for path in [os.fspath(each) for each in paths]:
        if "://" in path:
            system, inner = _file_system(path)
            files.append(inner)
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


def _dataset_source(dataset: ds.Dataset, what: str, filter: Any) -> Source:  # noqa: A002
    schema = dataset.schema
    if len(schema.names) == 0:
        raise DataError(f"{what} holds no Parquet file: name the right folder")
    n_rows = dataset.count_rows(filter=filter)

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        fragments = dataset.get_fragments(filter=filter)
        for fragment in fragments:
            try:
                scanner = fragment.scanner(
                    schema=schema, columns=columns, filter=filter, batch_size=rows, use_threads=False,
                    batch_readahead=1, fragment_readahead=1,
                )  # fmt: skip
                yield from scanner.to_batches()
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{fragment.path} of {what} cannot be read: {one_line(error)}") from error

    return Source(what, schema, n_rows, batches)


def _stream_source(where: Any) -> Source:
    reader = pa.RecordBatchReader.from_stream(where)
    what = f"the {type(where).__name__}"
    used: list[bool] = []

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        if used:
            raise DataError(f"{what} was read already, and a stream can be read once: create a new one")
        used.append(True)
        for batch in reader:
            part = batch.select(columns)
            for begin in range(0, part.num_rows, rows):
                yield part.slice(begin, rows)

    return Source(what, reader.schema, where.num_rows if isinstance(where, pa.Table) else -1, batches)


def scan(
    where: Any,
    path: Name,
    *,
    client: str,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002
    memory: int | None = None,
    overwrite: bool = False,
) -> None:
    """Group the rows of a lake by client into fedscape's own folder, in bounded memory; see `Federation.scan`."""
    from fedscape.formats.shuffle import MEMORY, shuffle

    source = lake_source(where, filter=filter)
    shuffle(source, path, client=client, columns=columns, memory=memory or MEMORY, overwrite=overwrite)


def temporary_folder() -> Path:
    """Return a free folder name; the folder is removed when this process ends."""
    parent = Path(tempfile.mkdtemp(prefix="fedscape-scan-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return parent / "federation"
