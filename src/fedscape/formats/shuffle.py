"""Group rows by client out of core: partition them by a hash of the client, then group each partition.

The first pass reads every batch once and appends its rows to spill files, one per part. All rows of a client go to
one part, in order. The second pass groups one part at a time in memory and appends it to the columns of fedscape's
own folder. Memory beside one batch and one part: 16 bytes per client and the distinct texts of each text column. The
folder appears under its final name only when complete.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.random import client_keys
from fedscape.errors import DataError
from fedscape.formats.arrow import Codes, holds_texts, is_text, recode, to_float, width
from fedscape.formats.files import Name, new_folder, reading
from fedscape.formats.folder import INDEX, Growing, write_index
from fedscape.formats.grouping import Source, check_client, choose_columns, clientless, group, keyed, table_source
from fedscape.types import Array

MEMORY = 2**29  # default bytes for grouping one part
BATCH = 2**18  # rows per batch of the first pass
MOST_PARTS = 512  # maximum number of open files
STREAM_PARTS = 64  # number of parts for a source of unknown length


def shuffle(
    source: Source,
    path: Name,
    *,
    client: str,
    columns: Sequence[str] | None = None,
    memory: int = MEMORY,
    overwrite: bool = False,
) -> None:
    """Group a source by its client into fedscape's own folder, in bounded memory.

    Clients are ordered by part. Computations go by id, and results equal those of `group`.

    Parameters
    ----------
    source
        The rows; they are read once. `n_rows` is -1 if unknown.
    path
        The folder to create.
    client, columns
        The client column, or several separated by commas; and the columns to keep, by default all.
    memory
        Approximate bytes for grouping one part. A client with more rows than that still gets one part.
    overwrite
        Whether to replace a folder of this kind.
    """
    source, client, _ = keyed(source, client)
    chosen = choose_columns(source, client, columns)
    check_client(source, client)
    with new_folder(path, overwrite=overwrite, mark=INDEX) as draft, reading(source.what, "source of rows"):
        spill = draft / "spill"
        spill.mkdir()
        parts = Parts(source, client, chosen, spill, _how_many(source, chosen, memory))
        parts.scatter()
        _gather(parts, draft)
        shutil.rmtree(spill)


def _how_many(source: Source, columns: list[str], memory: int) -> int:
    """Number of parts, a power of two, that keeps grouping each part within about this much memory."""
    if source.n_rows < 0:
        return STREAM_PARTS
    row = 16 + sum(width(source.schema.field(name).type) for name in columns)
    parts = 3 * source.n_rows * row / max(memory, 2**20)
    return min(MOST_PARTS, 1 << math.ceil(math.log2(max(parts, 1))))


class Parts:
    """The rows of a source, partitioned into spill files by a hash of their client.

    Parameters
    ----------
    source, client, columns
        The rows, the client column, and the other columns.
    folder
        Folder of the spill files.
    number
        Number of parts; a power of two.
    """

    def __init__(self, source: Source, client: str, columns: list[str], folder: Path, number: int) -> None:
        self.source, self.client, self.columns = source, client, columns
        self.folder, self.number, self.n_rows = folder, number, 0
        texts = [name for name in columns if holds_texts(source.schema.field(name).type)]
        self.codes = {name: Codes(source.names.get(name, ())) for name in texts}
        self.gaps: set[str] = set()  # integer columns with missing values

    def scatter(self) -> None:
        """Read the source once and append its rows to the spill files."""
        with ExitStack() as files:
            writers: dict[int, Any] = {}
            for batch in self.source.batches([self.client, *self.columns], BATCH):
                if batch.num_rows == 0:
                    continue
                plain = self._plain(batch)
                part = self._part_of(batch.column(self.client))
                order = np.argsort(part, kind="stable")
                rows = plain.take(pa.array(order))
                ends = np.searchsorted(part[order], np.arange(self.number + 1))
                for number in np.flatnonzero(np.diff(ends)).tolist():
                    if number not in writers:
                        sink = files.enter_context(pa.OSFile(str(self._file(number)), "wb"))
                        writers[number] = files.enter_context(pa.ipc.new_stream(sink, plain.schema))
                    writers[number].write_batch(rows.slice(ends[number], ends[number + 1] - ends[number]))
                self.n_rows += batch.num_rows
        if 0 <= self.source.n_rows != self.n_rows:
            raise DataError(
                f"{self.source.what} declares {self.source.n_rows:,} rows, but {self.n_rows:,} were read: it is damaged"
            )

    def grouped(self) -> Iterator[Federation]:
        """Yield each part as a Federation; codes and names of texts are shared by all parts."""
        finished = {name: codes.finish() for name, codes in self.codes.items()}
        for number in range(self.number):
            if not self._file(number).exists():
                continue
            with pa.memory_map(str(self._file(number))) as sink, pa.ipc.open_stream(sink) as stream:
                table = stream.read_all()
            part = group(table_source(table, self.source.what), client=self.client, columns=self.columns)
            values = {name: np.array(part[name]) if name in finished else part[name] for name in self.columns}
            for name, (_, rank) in finished.items():
                recode(values[name], rank)
            values |= {name: to_float(values[name], name) for name in self.gaps}
            names: dict[str, Sequence[str]] = {name: texts_of for name, (texts_of, _) in finished.items()}
            names |= {name: texts_of for name, texts_of in self.source.names.items() if values[name].ndim > 1}
            yield Federation(values, part.offsets, part.ids, names=names)
            self._file(number).unlink()

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}"

    def _plain(self, batch: Any) -> Any:
        """Encode the texts of a batch with codes shared by all batches, to save space."""
        arrays = []
        for name in (self.client, *self.columns):
            column = batch.column(name)
            if name in self.codes:
                arrays.append(pa.array(self.codes[name].encode(column)))
                continue
            if name == self.client and pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            elif column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
                self.gaps.add(name)
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, names=[self.client, *self.columns])

    def _part_of(self, clients: Any) -> Array:
        """The part of each row: bits of a hash of its client."""
        if clients.null_count:
            row = self.n_rows + int(np.argmax(clients.is_null().to_numpy(zero_copy_only=False)))
            raise clientless(self.client, self.source.what, row)
        if is_text(clients.type):
            encoded = clients if pa.types.is_dictionary(clients.type) else clients.dictionary_encode()
            distinct = np.array([str(value) for value in encoded.dictionary.to_pylist()], dtype=object)
            keys = client_keys(distinct)[encoded.indices.to_numpy()]
        else:
            keys = clients.to_numpy().astype(np.uint64, casting="unsafe")
        mixed = (keys ^ (keys >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)  # spreads consecutive ids evenly
        part: Array = (mixed >> np.uint64(32)).astype(np.int64) & (self.number - 1)
        return part


def _gather(parts: Parts, draft: Path) -> None:
    """Group each part and append it to the columns of the folder."""
    columns = {name: Growing(draft / f"column-{j}.npy", parts.n_rows) for j, name in enumerate(parts.columns)}
    ids: list[Array] = []
    sizes: list[Array] = []
    names: dict[str, Sequence[str]] = {}
    for part in parts.grouped():
        for name, column in columns.items():
            column.append(part[name], name)
        ids.append(part.ids)
        sizes.append(part.sizes)
        names = dict(part.names)
    if not ids:
        raise DataError(f"{parts.source.what} has no rows: there is nothing to group")
    texts = any(part.dtype.kind == "U" for part in ids)
    who = np.concatenate([part.astype(str) if texts else part for part in ids])
    described = [{"name": name, **column.close()} for name, column in columns.items()]
    write_index(draft, described, who, offsets_of(np.concatenate(sizes)), names)
