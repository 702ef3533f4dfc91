"""Scatter rows over parts on disk: each part holds a range of the client ids, and all rows of a client.

Rows are taken a run at a time: a batch, or several where there are many parts. A run is ordered by part and appended to
a spill file, part after part; within a part the ids come first and then each column, whole numbers in as few bytes as
hold them. So a part of a run is read back with one call, and a spill file stays one file for any number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fedscape import disk
from fedscape.errors import DataError
from fedscape.formats.arrow import Codes, holds_texts, is_string, to_float, to_numpy
from fedscape.formats.files import reading
from fedscape.formats.grouping import Source, clientless, id_array
from fedscape.formats.ranges import SAMPLE_TEXTS, Ranges, thinned
from fedscape.types import Array

BATCH = 2**18  # most rows per batch that a source is asked for
LEAST_BATCH = 2**10
SAMPLE = 2**20  # ids from which the ranges of the parts are chosen
MOST_BYTES = 1024  # of an id: all ids of a Federation take as much room as the longest
_SAMPLED = 16  # pieces of a source that the sample is from
PIECE = 2**17  # bytes of a part in a run, about: smaller ones would be as many calls to read back
_UNKNOWN = 2**12  # ids of a batch, where the length of a piece is not known
_ROW_BYTES = 16  # working memory per row beside its columns


class Kind(NamedTuple):
    """The type and shape of one row of a column."""

    dtype: str
    shape: tuple[int, ...]


class _Stored(NamedTuple):
    """A column of a run: its type and shape, and the type that it has in the file."""

    kind: Kind
    dtype: str

    @property
    def saved(self) -> int:
        """Bytes per row that the file saves."""
        elements = math.prod(self.kind.shape)
        return elements * (np.dtype(self.kind.dtype).itemsize - np.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class Run:
    """Rows in a spill file, ordered by part.

    `ends[p]` and `positions[p]` are where part p begins, in rows and in bytes; both have one entry more than there are
    parts.
    """

    ends: Array
    positions: Array
    columns: dict[str, _Stored]


@dataclass
class Spill:
    """A spill file: its runs in the order of the rows.

    `texts` are the distinct texts of each column in the order of their codes; `ranks` are the final codes, once the
    texts of all files are known.
    """

    path: str
    runs: list[Run] = field(default_factory=list)
    texts: dict[str, list[Any]] = field(default_factory=dict)
    ranks: dict[str, Array] = field(default_factory=dict)
    n_rows: int = 0

    def rows_of(self, part: int) -> int:
        """Number of rows of a part."""
        return sum(int(run.ends[part + 1] - run.ends[part]) for run in self.runs)

    def bytes_of(self, part: int) -> int:
        """Bytes of a part in memory."""
        saved = sum(
            int(run.ends[part + 1] - run.ends[part]) * sum(column.saved for column in run.columns.values())
            for run in self.runs
        )
        return saved + sum(int(run.positions[part + 1] - run.positions[part]) for run in self.runs)

    def only(self, part: int) -> Spill:
        """The same file with this part alone, as its part 0: all that a task needs to read it."""
        runs = [Run(run.ends[part : part + 2], run.positions[part : part + 2], run.columns) for run in self.runs]
        runs = [run for run in runs if run.ends[0] < run.ends[1]]
        return Spill(self.path, runs, ranks=self.ranks, n_rows=self.rows_of(part))

    def read(self, part: int, texts: bool) -> Iterator[tuple[Any, dict[str, Array]]]:
        """Yield the ids and columns of a part, run by run, with final codes."""
        with open(self.path, "rb") as file:
            for run in self.runs:
                n, begin = int(run.ends[part + 1] - run.ends[part]), int(run.positions[part])
                if n:
                    content = disk.read_at(file.fileno(), int(run.positions[part + 1]) - begin, begin)
                    if len(content) != run.positions[part + 1] - begin:
                        raise DataError(f"the spill file {self.path} is shorter than what was written to it")
                    yield self._parsed(content, n, run.columns, texts)

    def _parsed(
        self, content: bytes, n: int, columns: Mapping[str, _Stored], texts: bool
    ) -> tuple[Any, dict[str, Array]]:
        """Ids and columns of n rows in these bytes."""
        values, position, ids = {}, 0, None
        if texts:
            lengths = np.frombuffer(content, dtype=np.int32, count=n)
            offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
            letters = pa.py_buffer(content).slice(4 * n, int(offsets[-1]))
            ids = pa.LargeStringArray.from_buffers(n, pa.py_buffer(offsets.astype(np.int64)), letters)
            position = 4 * n + int(offsets[-1])
        for name, (kind, dtype) in columns.items():
            count = n * math.prod(kind.shape)
            array = np.frombuffer(content, dtype=dtype, count=count, offset=position).reshape(n, *kind.shape)
            position += array.nbytes
            values[name] = self.ranks[name][array] if name in self.ranks else array.astype(kind.dtype, copy=False)
        return (ids if texts else values.pop("")), values


# -- writing -----------------------------------------------------------------------------------------------------------


def scatter(
    sources: Iterable[Source], client: str, columns: Sequence[str], splitters: Array, path: Path, memory: int, rows: int
) -> Spill:
    """Read sources one after the other and append their rows to a spill file, ordered by part run by run.

    Parameters
    ----------
    sources
        Pieces of a table, in the order of its rows.
    client, columns
        The client column and the other columns.
    splitters
        The first id of every part but the first, rising.
    path
        The spill file.
    memory, rows
        Approximate bytes to work with, and rows to read at a time.
    """
    codes: dict[str, Codes] = {}
    spill, ranges = Spill(str(path)), Ranges(splitters)
    with path.open("wb") as file:
        for ids, values in _runs(sources, client, columns, codes, min(memory // 3, ranges.number * PIECE), rows):
            spill.runs.append(_append(file, ids, values, ranges))
            spill.n_rows += len(ids)
    spill.texts = {name: list(each.table) for name, each in codes.items()}
    return spill


def respill(spills: Sequence[Spill], part: int, splitters: Array, path: Path, *, texts: bool) -> Spill:
    """Scatter one part of spill files anew, over smaller ranges of ids; its codes are final."""
    finer, ranges = Spill(str(path)), Ranges(splitters)
    with path.open("wb") as file:
        for spill in spills:
            for ids, values in spill.read(part, texts):
                finer.runs.append(_append(file, ids, values, ranges))
                finer.n_rows += len(ids)
    return finer


def _runs(
    sources: Iterable[Source], client: str, columns: Sequence[str], codes: dict[str, Codes], least: int, rows: int
) -> Iterator[tuple[Any, dict[str, Array]]]:
    """Yield the ids and columns of batches, joined until they take more than `least` bytes."""
    ids: list[Any] = []
    parts: list[dict[str, Array]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    held = 0
    for source in sources:
        done = 0
        for name in columns:
            if name not in codes and holds_texts(source.schema.field(name).type):
                codes[name] = Codes(source.names.get(name, ()))
        for batch in batches_of(source, [client, *columns], rows):
            if batch.num_rows == 0:
                continue
            with reading(source.what, "source of rows"):
                if has_texts(batch.column(client).type) != has_texts(source.schema.field(client).type):
                    raise DataError(
                        f"the client column {client!r} of {source.what} is {source.schema.field(client).type} by its "
                        f"schema, but its rows hold {batch.column(client).type}: cast it"
                    )
                ids.append(checked_clients(batch.column(client), client, source.what, done))
                parts.append(_converted(batch, columns, codes, shapes, source.what))
            held += sum(values.nbytes for values in parts[-1].values()) + _ROW_BYTES * batch.num_rows
            held += 0 if isinstance(ids[-1], np.ndarray) else 2 * ids[-1].nbytes
            done += batch.num_rows
            if held > least:
                yield _joined(ids, parts, columns)
                ids, parts, held = [], [], 0
    if ids:
        yield _joined(ids, parts, columns)


def _converted(
    batch: Any, columns: Sequence[str], codes: Mapping[str, Codes], shapes: dict[str, tuple[int, ...]], what: str
) -> dict[str, Array]:
    """The columns of a batch; errors say where it is from."""
    try:
        values = {name: to_numpy(batch.column(name), name, codes.get(name) or Codes()) for name in columns}
        for name, column in values.items():
            if shapes.setdefault(name, column.shape[1:]) != column.shape[1:]:
                raise uneven(name, {shapes[name], column.shape[1:]})
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    return values


def batches_of(source: Source, columns: list[str], rows: int = BATCH) -> Iterator[Any]:
    """The batches of a source; whatever its reader raises names the source."""
    with reading(source.what, "source of rows"):
        yield from source.batches(columns, rows)


def has_texts(kind: Any) -> bool:
    """Whether ids of this Arrow type are texts; else they are whole numbers."""
    return is_string(kind.value_type if pa.types.is_dictionary(kind) else kind)


def checked_clients(column: Any, name: str, what: str, before: int) -> Any:
    """The ids of a batch: a NumPy array of integers, or an Arrow array of texts."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        raise clientless(name, what, before + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))))
    if not has_texts(column.type):
        ids = column.to_numpy()
        if ids.dtype == np.uint64 and len(ids) and ids.max() >= 2**63:
            id_array([int(ids.max())], what)  # says that they do not fit
        return ids.astype(np.int64, copy=False)
    texts = column.cast(pa.large_string())
    texts.validate(full=True)  # bytes that are no text
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    longest = int(np.diff(offsets).max(initial=0))
    if longest > MOST_BYTES:
        raise DataError(
            f"an id of the client column {name!r} of {what} takes {longest:,} bytes, and more than {MOST_BYTES:,} "
            "cannot be grouped on disk: name another column, or make the ids shorter"
        )
    return texts


def _joined(ids: list[Any], parts: list[dict[str, Array]], columns: Sequence[str]) -> tuple[Any, dict[str, Array]]:
    joined = (
        ids[0] if len(ids) == 1 else np.concatenate(ids) if isinstance(ids[0], np.ndarray) else pa.concat_arrays(ids)
    )
    values = {}
    for name in columns:
        pieces = [part.pop(name) for part in parts]
        types = {piece.dtype for piece in pieces}
        if len(types) > 1 and all(each.kind in "biuf" for each in types):  # whole numbers, some of which are missing
            pieces = [to_float(piece, name) for piece in pieces]
        values[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return joined, values


def uneven(name: str, shapes: Iterable[tuple[int, ...]]) -> DataError:
    """What is wrong where the rows of a column differ in shape."""
    shown = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
    return DataError(
        f"column {name!r} holds lists of different lengths ({shown}): pad them to one length, or give each element a "
        "row of its own"
    )


def _append(file: Any, ids: Any, values: dict[str, Array], ranges: Ranges) -> Run:
    """Write rows in the order of their parts, part after part."""
    part, number = ranges.part_of(ids), ranges.number
    order = np.argsort(part, kind="stable")  # a radix sort: parts are 16 bits
    ends = np.concatenate(([0], np.cumsum(np.bincount(part, minlength=number))))
    texts = not isinstance(ids, np.ndarray)
    stored, columns = {}, [_Bytes(ids.take(pa.array(order)))] if texts else []
    for name in ([] if texts else [""]) + list(values):
        column = values.pop(name) if name else ids
        narrow = _narrow(column)
        stored[name] = _Stored(Kind(column.dtype.str, column.shape[1:]), narrow.dtype.str)
        columns.append(_Bytes(narrow.take(order, axis=0)))
    positions = np.empty(number + 1, dtype=np.int64)
    position = file.tell()
    for p in range(number):
        positions[p] = position
        if ends[p] < ends[p + 1]:
            for column in columns:
                for piece in column.rows(int(ends[p]), int(ends[p + 1])):
                    position += file.write(piece)
    positions[number] = position
    return Run(ends, positions, stored)


def _narrow(values: Array) -> Array:
    """The same whole numbers in as few bytes as hold them.

    >>> _narrow(np.array([300, -1])).dtype.str
    '<i2'
    """
    if values.dtype.kind not in "iu" or not values.size:
        return values
    low, high = int(values.min()), int(values.max())
    for size in (1, 2, 4):
        if size < values.dtype.itemsize and -(2 ** (8 * size - 1)) <= low <= high < 2 ** (8 * size - 1):
            return values.astype(f"i{size}")
    return values


class _Bytes:
    """Rows as bytes: of an array its own, of texts their lengths and then their letters."""

    def __init__(self, values: Any) -> None:
        self.texts = None
        if isinstance(values, np.ndarray):
            self._set(values)
        else:
            buffers = values.buffers()
            offsets = np.frombuffer(buffers[1], dtype=np.int64)[values.offset : values.offset + len(values) + 1]
            self.texts = (offsets, memoryview(buffers[2] or b""))
            self._set(np.diff(offsets).astype(np.int32))

    def _set(self, values: Array) -> None:
        self.width = values.dtype.itemsize * math.prod(values.shape[1:])
        self.flat: memoryview = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data

    def rows(self, begin: int, end: int) -> list[memoryview]:
        pieces = [self.flat[begin * self.width : end * self.width]]
        if self.texts is not None:
            offsets, letters = self.texts
            pieces.append(letters[int(offsets[begin]) : int(offsets[end])])
        return pieces


# -- choosing the ranges -----------------------------------------------------------------------------------------------


def sample(source: Source, pieces: Sequence[Source], client: str) -> Any:
    """Ids from all over a source that can be read again."""
    step = max(1, -(-len(pieces) // _SAMPLED))
    chosen = pieces[::step]
    most = most_of(source.schema.field(client).type)
    samples: list[Any] = []
    for piece in chosen:
        wanted, done = max(1, most // len(chosen)), 0
        for batch in batches_of(piece, [client]):
            ids = checked_clients(batch.column(client), client, piece.what, done)
            done += len(ids)
            samples.append(thinned(ids, max(1, piece.n_rows // wanted if piece.n_rows > 0 else len(ids) // _UNKNOWN)))
    return np.concatenate(samples) if samples else np.empty(0, dtype=np.int64)


def most_of(kind: Any) -> int:
    """About how many ids of this Arrow type to look at."""
    return SAMPLE_TEXTS if has_texts(kind) else SAMPLE
