"""Read and write Parquet files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fedscape.core.federation import Federation
from fedscape.core.validate import Collected
from fedscape.errors import DataError, FedscapeError
from fedscape.formats.arrow import has_width, holds_strings, is_string, width
from fedscape.formats.files import Name, files_in, new_file, reading
from fedscape.formats.grouping import Source, choose_columns, group, keyed
from fedscape.formats.outgoing import outgoing_batches, outgoing_schema

BATCH_BYTES = 2**22  # bytes decoded at a time, about
STREAM_ABOVE = 2**26  # row groups larger than this are streamed
ALWAYS_ALLOWED = 2**30  # declared bytes that are always allowed
MOST_EXPANSION = 256  # maximum expansion ratio above that
IDS, NAMES, DECLARED = b"fedscape.ids", b"fedscape.names", b"fedscape.declared"
OPTIONS = {
    "pre_buffer": False,  # read on demand, per batch
    "page_checksum_verification": True,
    "thrift_string_size_limit": 2**28,
    "thrift_container_size_limit": 10**7,
}


def from_parquet(
    path: Name, *, client: str, columns: Sequence[str] | None = None, rows: str | None = None
) -> Federation:
    """Group the rows of a Parquet file, or of a folder of them, by the client column, in bounded memory.

    The files are read twice in small batches, first the client column alone. Memory beside the finished columns is
    four bytes per row. Types become columns as in `from_frame`. Files written by `to_parquet` restore clients without
    rows and the order of names.

    A file that declares more than 1 GiB, and more than 256 times its own size, is refused before anything is allocated.

    Parameters
    ----------
    path
        The file, or a folder of `.parquet` files, read in the order of their names.
    client
        The client column, integers or texts, or several columns separated by commas. They are not kept as columns.
    columns
        Only these columns; all by default.
    rows
        Name of an extra column with the row number in the file, from 0.
    """
    source = parquet_source(path, client=client, columns=columns)
    try:
        return group(source, client=client, columns=columns, rows=rows)
    except _PlainTexts:
        plain = parquet_source(path, client=client, columns=columns, dictionaries=False)
        return group(plain, client=client, columns=columns, rows=rows)


def parquet_source(
    path: Name, *, client: str, columns: Sequence[str] | None = None, dictionaries: bool = True
) -> Source:
    """Open a Parquet file or a folder of them as a source; checks sizes, reads only footers."""
    heads = [_read_head(file) for file in files_in(path, ".parquet")]
    source = Source(
        what=os.fspath(path),
        schema=heads[0].schema,
        n_rows=sum(head.n_rows for head in heads),
        batches=partial(_batches, heads, dictionaries=dictionaries),
        ids=_listed_ids(heads, client),
        names=listed_names(heads),
        limit=max(ALWAYS_ALLOWED, MOST_EXPANSION * sum(head.path.stat().st_size for head in heads)),
    )
    one, whose, parts = keyed(source, client)
    chosen = choose_columns(one, whose, columns)
    _check_declared(one, chosen)
    for head in heads[1:]:
        _check_same(head, heads[0], [*parts, *chosen])
    return source


class Head(NamedTuple):
    """The contents of a file's footer."""

    path: Path
    schema: Any
    n_rows: int
    row_bytes: int
    largest: int  # bytes of its largest row group


def _read_head(path: Path) -> Head:
    with reading(path, "Parquet file"), pq.ParquetFile(path, **OPTIONS) as file:
        footer, schema = file.metadata, file.schema_arrow
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        if any(group.num_rows < 0 for group in groups) or sum(group.num_rows for group in groups) != footer.num_rows:
            raise DataError(
                f"{path} is not a readable Parquet file: its footer declares {footer.num_rows:,} rows, its row groups "
                f"{sum(group.num_rows for group in groups):,}"
            )
        held = sum(max(group.total_byte_size, 0) for group in groups)
        largest = min(path.stat().st_size, max((group.total_byte_size for group in groups), default=0))
        return Head(path, schema, footer.num_rows, held // max(footer.num_rows, 1), largest)


def _check_declared(source: Source, columns: list[str]) -> None:
    """Refuse declared sizes that no intact file of this length has, before allocating memory."""
    size = source.n_rows * (4 + sum(width(source.schema.field(name).type) for name in columns))
    if source.limit is not None and size > source.limit:
        raise DataError(
            f"{source.what} declares {source.n_rows:,} rows of {size:,} bytes, beyond the limit of {source.limit:,} "
            f"(1 GiB, or {MOST_EXPANSION} times the file): it is damaged; if not, pass its table to from_frame()"
        )


def _check_same(head: Head, first: Head, columns: list[str]) -> None:
    for name in columns:
        if head.schema.names.count(name) != 1:
            raise DataError(f"{head.path} has {head.schema.names.count(name)} columns {name!r}, {first.path} has one")
        one, other = head.schema.field(name).type, first.schema.field(name).type
        if one != other and not (holds_strings(one) and holds_strings(other)):
            raise DataError(f"column {name!r} is {one} in {head.path}, but {other} in {first.path}: cast one of them")


def _batches(heads: list[Head], wanted: list[str], rows: int, *, dictionaries: bool) -> Iterator[Any]:
    """Yield the batches of all files; texts are decoded straight to dictionaries, to save memory."""
    for head in heads:
        fields = [head.schema.field(name) for name in wanted]
        size = max(1, min(rows, BATCH_BYTES // max(1, sum(width(field.type) for field in fields))))
        if not all(has_width(field.type) for field in fields):
            size = max(1, min(size, BATCH_BYTES // max(1, head.row_bytes)))
        # A stream trusts a damaged page and reserves up to 2 GiB; a row group read at once does not.
        options = {**OPTIONS, "buffer_size": 2**20 if head.largest > STREAM_ABOVE else 0}
        texts = [field.name for field in fields if dictionaries and is_string(field.type)]
        with reading(head.path, "Parquet file"), pq.ParquetFile(head.path, read_dictionary=texts, **options) as file:
            try:
                for batch in file.iter_batches(size, columns=wanted, use_threads=False):
                    batch.validate(full=True)  # a damaged page can hold indices and offsets out of bounds
                    if not set(wanted) <= set(batch.schema.names):
                        raise ValueError("its row groups lack a column that its schema has")
                    yield batch
            except OSError as error:
                if texts and "Not yet implemented" in str(error):
                    raise _PlainTexts from error
                raise


class _PlainTexts(FedscapeError):
    """Raised for a text encoding (delta) that pyarrow cannot decode to a dictionary."""


def _listed_ids(heads: list[Head], client: str) -> list[Any] | None:
    """The clients that `to_parquet` listed for this client column, or None."""
    listed: dict[Any, None] = {}
    for head in heads:
        stored = _metadata(head, IDS)
        if stored.get("client") != client:
            continue
        ids = stored.get("ids")
        if not isinstance(ids, list) or not ({type(v) for v in ids} <= {int} or {type(v) for v in ids} <= {str}):
            raise DataError(f"{head.path} lists its clients under {IDS.decode()!r} wrongly: remove that metadata")
        listed.update(dict.fromkeys(ids))
    return list(listed) or None


def listed_names(heads: list[Head]) -> dict[str, Sequence[str]]:
    """The names of codes that `to_parquet` listed, merged over all files; declared if all files agree."""
    listed: dict[str, dict[str, None]] = {}
    declared: list[dict[str, Any]] = [_metadata(head, DECLARED) for head in heads]
    for head in heads:
        for column, names in _metadata(head, NAMES).items():
            if not isinstance(names, list) or not all(isinstance(text, str) for text in names):
                raise DataError(f"{head.path} lists its names under {NAMES.decode()!r} wrongly: remove that metadata")
            if column in head.schema.names and has_names(head.schema.field(column).type, len(names)):
                listed.setdefault(column, {}).update(dict.fromkeys(names))
    return {
        column: tuple(names)
        if all(names_in_file.get(column) == list(names) for names_in_file in declared)
        else Collected(names)
        for column, names in listed.items()
    }


def has_names(kind: Any, number: int) -> bool:
    """Whether a column of this type can have this many names: a text any, counts one per entry of the last axis."""
    if not pa.types.is_fixed_size_list(kind):
        return holds_strings(kind)
    while pa.types.is_fixed_size_list(kind.value_type):
        kind = kind.value_type
    return int(kind.list_size) == number


def _metadata(head: Head, key: bytes) -> dict[str, Any]:
    text = (head.schema.metadata or {}).get(key)
    if text is None:
        return {}
    with reading(head.path, f"Parquet file (metadata {key.decode()!r})"):
        return dict(json.loads(text))


def to_parquet(fed: Federation, path: Name, *, client: str = "client", overwrite: bool = False) -> None:
    """Write the rows as one Parquet file; codes are written as their names, extra dimensions as fixed-size lists.

    The file's metadata keeps clients without rows and the order of names, for `from_parquet`. Codes come back as
    int32, times in seconds as milliseconds.

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
    metadata = {}
    if fed.names:
        metadata[NAMES] = json.dumps(dict(fed.names)).encode()
        declared = {name: texts for name, texts in fed.names.items() if not isinstance(texts, Collected)}
        metadata[DECLARED] = json.dumps(declared).encode()
    if not fed.sizes.all():
        metadata[IDS] = json.dumps({"client": client, "ids": fed.ids.tolist()}).encode()
    schema = outgoing_schema(fed, client, metadata)
    with new_file(path, overwrite=overwrite) as draft, pq.ParquetWriter(draft, schema, write_page_checksum=True) as out:
        for batch in outgoing_batches(fed, schema):
            out.write_batch(batch)
