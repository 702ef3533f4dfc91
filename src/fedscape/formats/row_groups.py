"""Parquet files of a lake: paths, globs and URIs as one table, whose row groups any process can read on its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fedscape.errors import DataError
from fedscape.formats.arrow import holds_strings, is_string
from fedscape.formats.files import Name, one_line
from fedscape.formats.grouping import Source
from fedscape.formats.listing import Listing, key_type, listings_of
from fedscape.formats.parquet import OPTIONS, Head, listed_names

_BUFFER = 2**20  # bytes that are read of a column at a time
_SCAN = ds.ParquetFragmentScanOptions(pre_buffer=False)
_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}  # which pyarrow can keep as such
_OWN_SCHEMA = "or scan a pyarrow dataset with a schema of your own"


def files_source(paths: Sequence[Name], filter: Any, wanted: Sequence[str] | None) -> Source:  # noqa: A002
    """Open files, folders, globs and URIs as one source.

    Parameters
    ----------
    paths
        Where the files are.
    filter
        A pyarrow expression on the rows, or None.
    wanted
        The columns that will be read, which must be the same in all files; None for all.
    """
    if not paths:
        raise DataError("there is nothing to scan: name a file, folder, glob or URI")
    what = ", ".join(os.fspath(path) for path in paths[:3])
    datasets = _datasets(listings_of(paths))
    if wanted is not None:
        wanted = [part for name in wanted for part in _parts(name, datasets[0].schema)]
    return _source(datasets, what, filter, wanted, strict=True)


def dataset_source(dataset: ds.Dataset, filter: Any) -> Source:  # noqa: A002
    """Open a pyarrow Dataset as a source: the schema is its own."""
    if isinstance(dataset, ds.FileSystemDataset) and isinstance(dataset.format, ds.ParquetFileFormat):
        return _source([dataset], "the dataset", filter, None, strict=False)

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        yield from dataset.scanner(columns=columns, filter=filter, batch_size=rows, use_threads=False).to_batches()

    return Source("the dataset", dataset.schema, _counted(dataset, "the dataset", filter), batches)


def _parts(name: str, schema: Any) -> list[str]:
    """A client may be several columns."""
    return [name] if name in schema.names else [part.strip() for part in name.split(",")]


def _datasets(listings: Sequence[Listing]) -> list[ds.Dataset]:
    """A dataset for each listing; the keys in their paths have the same types in all."""
    values_of: dict[str, set[str]] = {}
    for listing in listings:
        for name, values in listing.keys().items():
            values_of[name] = values_of.get(name, set()) | values
    datasets: list[ds.Dataset] = []
    for listing in listings:
        how = {"format": "parquet", "filesystem": listing.system}
        try:
            if not datasets:
                first = ds.dataset(listing.files[:1], **how).schema
                stored = {name: first.field(name).type if name in first.names else None for name in values_of}
                kinds = pa.schema([(name, key_type(values, stored[name])) for name, values in values_of.items()])
            base = {"partition_base_dir": listing.base} if listing.base else {}
            keys = ds.partitioning(kinds, flavor="hive") if values_of else None
            datasets.append(ds.dataset(listing.files, partitioning=keys, **how, **base))
        except (OSError, ValueError, TypeError) as error:  # pa.ArrowInvalid is a ValueError
            raise _unreadable(listing.files[0], error) from error
    return datasets


def _unreadable(file: str, error: Exception) -> DataError:
    if "magic bytes" in str(error) or "file size is" in str(error):
        return DataError(
            f"{file} is no Parquet, which alone can be scanned, or is cut off: 'fedscape data convert' reads CSV and "
            "others and writes .parquet; a glob such as 'lake/**/*.parquet' leaves other files out"
        )
    if isinstance(error, FileNotFoundError):
        return DataError(f"{one_line(error)} is no file, perhaps a link to nothing: remove it")
    return DataError(f"{file} cannot be read as Parquet: {one_line(error)}")


# -- row groups --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RowGroup:
    """A row group of a file, which any process that sees the file can read.

    `keys` are the columns that the path of the file tells, None where rows must be filtered or cast.
    """

    fragment: Any
    schema: Any
    filter: Any
    keys: Mapping[str, Any] | None
    what: str

    def __call__(self, columns: list[str], rows: int) -> Iterator[Any]:
        own = None if self.keys is None else [name for name in columns if name not in self.keys]
        try:
            yield from self._streamed(columns, own, rows) if own else self._scanned(columns, rows)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.what} cannot be read: {one_line(error)}") from error

    def _streamed(self, columns: list[str], own: list[str], rows: int) -> Iterator[Any]:
        """Decode as many rows at a time as are asked for: a scanner takes the memory of a whole row group."""
        groups = [info.id for info in self.fragment.row_groups]
        options = {"buffer_size": _BUFFER, "read_dictionary": self._dictionaries(groups[0], own), **OPTIONS}
        with self.fragment.open() as opened, pq.ParquetFile(opened, **options) as file:
            for batch in file.iter_batches(rows, row_groups=groups, columns=own, use_threads=False):
                batch.validate(full=True)  # a damaged page can hold offsets out of bounds
                arrays = {name: batch.column(name) for name in own}
                for name, value in (self.keys or {}).items():
                    arrays[name] = pa.repeat(pa.scalar(value, self.schema.field(name).type), batch.num_rows)
                yield pa.RecordBatch.from_pydict({name: arrays[name] for name in columns})

    def _dictionaries(self, group: int, own: list[str]) -> list[str]:
        """The texts that the file holds as dictionaries: decoded to such, each text is looked up once."""
        about = self.fragment.metadata.row_group(group)
        chunks = (about.column(j) for j in range(about.num_columns))
        as_dictionaries = {chunk.path_in_schema for chunk in chunks if _ENCODINGS.issuperset(chunk.encodings)}
        return [n for n in own if n in as_dictionaries and is_string(self.schema.field(n).type)]

    def _scanned(self, columns: list[str], rows: int) -> Iterator[Any]:
        scanner = self.fragment.scanner(
            schema=self.schema, columns=columns, filter=self.filter, batch_size=rows, use_threads=False,
            batch_readahead=1, fragment_readahead=1, fragment_scan_options=_SCAN,
        )  # fmt: skip
        yield from scanner.to_batches()


def _source(
    datasets: Sequence[ds.Dataset],
    what: str,
    filter: Any,  # noqa: A002
    wanted: Sequence[str] | None,
    *,
    strict: bool,
) -> Source:
    schema = datasets[0].schema
    if len(schema.names) == 0:
        raise DataError(f"{what} holds no Parquet file: name the right folder")
    pieces: list[Source] = []
    heads: list[Head] = []
    for fragment in _fragments(datasets, what, filter):
        try:
            keys = ds.get_partition_keys(fragment.partition_expression)
            heads.append(Head(Path(fragment.path), fragment.physical_schema, 0, 0, 0))
            if strict:
                _check_same(heads[-1], keys, heads[0].path, schema, wanted)
            stream = keys if strict and filter is None else None
            for group in fragment.split_by_row_group(filter=filter, schema=schema):
                numbers = ", ".join(str(info.id) for info in group.row_groups)
                one = f"row group {numbers} of {fragment.path}"
                if strict:
                    _check_keys(one, keys, heads[-1].schema, group.row_groups[0].statistics, wanted)
                n = sum(info.num_rows for info in group.row_groups) if filter is None else -1
                pieces.append(Source(one, schema, n, _RowGroup(group, schema, filter, stream, one)))
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(fragment.path, error) from error

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        for piece in pieces:
            yield from piece.batches(columns, rows)

    n_rows = sum(piece.n_rows for piece in pieces)
    if filter is not None:
        n_rows = sum(_counted(dataset, what, filter) for dataset in datasets)
    return Source(what, schema, n_rows, batches, names=listed_names(heads), pieces=tuple(pieces))


def _fragments(datasets: Sequence[ds.Dataset], what: str, filter: Any) -> Iterator[Any]:  # noqa: A002
    try:
        yield from (each for dataset in datasets for each in dataset.get_fragments(filter=filter))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{what} cannot be filtered: {one_line(error)}") from error


def _check_keys(
    what: str, keys: Mapping[str, Any], stored: Any, statistics: Mapping[str, Any] | None, wanted: Sequence[str] | None
) -> None:
    """Refuse a column that is in the path and in the file, unless all its values are those of the path."""
    for name in {*keys} & {*stored.names} & {*(keys if wanted is None else wanted)}:
        limits = (statistics or {}).get(name)
        if limits is None or not limits["min"] == limits["max"] == keys[name]:
            holds = "no statistics of it" if limits is None else f"{limits['min']!r} to {limits['max']!r}"
            raise DataError(
                f"column {name!r} is {keys[name]!r} in the path of {what}, which holds {holds}: rename one, or leave "
                "the column out of columns="
            )


def _check_same(head: Head, keys: Mapping[str, Any], first: Path, schema: Any, wanted: Sequence[str] | None) -> None:
    """Refuse files of other columns or types than the first: missing values or casts would stand for them."""
    present = {*head.schema.names, *keys}
    differing = present.symmetric_difference(schema.names) if wanted is None else {*wanted} & {*schema.names} - present
    for name in sorted(differing):
        what = f"has a column {name!r}, unlike {first}" if name in present else f"lacks the column {name!r} of others"
        raise DataError(f"{head.path} {what}: name columns that all files have, {_OWN_SCHEMA}")
    for name in present & {*(schema.names if wanted is None else wanted)} - {*keys}:
        own, kind = head.schema.field(name).type, schema.field(name).type
        if own != kind and not (holds_strings(own) and holds_strings(kind)):
            raise DataError(
                f"column {name!r} is {own} in {head.path}, but {kind} in {first}: cast one of them, {_OWN_SCHEMA}"
            )


def _counted(dataset: ds.Dataset, what: str, filter: Any) -> int:  # noqa: A002
    try:
        return int(dataset.count_rows(filter=filter))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{what} cannot be filtered: {one_line(error)}") from error
