"""Group rows by client out of core, on all cores or as tasks of a cluster, into a folder of shards.

A sample of the ids chooses ranges of ids, one for each part. Tasks read pieces of the source once and append their
rows to a spill file each, ordered by part (`spill`). Then each part is grouped in memory; several make a shard
(`gather`). A part that came out too large is scattered again over smaller ranges. Memory beside the working memory: the
distinct texts of each text column. The folder appears under its final name only when it is complete.
"""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from fedscape.core.schedule import cores
from fedscape.errors import DataError
from fedscape.formats.arrow import Codes, has_width, width
from fedscape.formats.files import Name, new_folder
from fedscape.formats.folder import INDEX
from fedscape.formats.gather import Layout, Part, Written, final_kinds, gather, unique_sample
from fedscape.formats.grouping import Source, check_client, choose_columns, keyed
from fedscape.formats.ranges import splitters_of, thinned
from fedscape.formats.sharded import write_sharded
from fedscape.formats.spill import (
    BATCH,
    LEAST_BATCH,
    PIECE,
    Spill,
    batches_of,
    checked_clients,
    has_texts,
    most_of,
    respill,
    sample,
    scatter,
)
from fedscape.types import Array

MEMORY = 2**29  # default bytes of working memory
MOST_PARTS = 4096  # maximum number of parts of one scattering
MOST_FILES = 2**13  # of columns: the system maps few files more into one process
STREAM_PARTS = 64  # number of parts for a source of unknown length
CACHED = 2**23  # bytes of a part that is grouped within the caches of a core
_LEAST_SHARD = 2**25  # bytes of a shard, where one task would be enough
_NEED = 2.5  # working memory of grouping a part, in units of its bytes
T = TypeVar("T")


class Tasks(Protocol):
    """Where the work of a shuffle is done: threads here, or tasks of a cluster that sees the same files.

    `stopped` says, where it can, whether another item has failed, so that the result of this one is not needed.
    """

    number: int
    stopped: Callable[[], bool] | None

    def map(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """The results of the items, in order."""
        ...


class Threads:
    """Threads of this process.

    >>> Threads(2).map(abs, [-1, -2])
    [1, 2]
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._stop = threading.Event()
        self.stopped: Callable[[], bool] | None = self._stop.is_set

    def map(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """The results of the items, in order; after an error or Ctrl-C nothing more is begun."""
        if self.number == 1 or len(items) == 1:
            return [work(item) for item in items]
        self._stop.clear()
        with ThreadPoolExecutor(self.number, thread_name_prefix="fedscape-shuffle") as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise


class _Stopped(Exception):
    """Raised inside a task whose result nobody needs."""


def shuffle(
    source: Source,
    path: Name,
    *,
    client: str,
    columns: Sequence[str] | None = None,
    memory: int = MEMORY,
    overwrite: bool = False,
    tasks: Tasks | None = None,
) -> None:
    """Group a source by its client into fedscape's own folder, in bounded memory.

    Clients lie in the order of their ids. More than one part makes a folder of shards; see `sharded`.

    Parameters
    ----------
    source
        The rows; they are read once, after a sample of the client column. `n_rows` is -1 if unknown.
    path
        The folder to create.
    client, columns
        The client column, or several separated by commas; and the columns to keep, by default all.
    memory
        Approximate bytes of working memory of all threads together (of each task of a cluster).
    overwrite
        Whether to replace a folder of this kind.
    tasks
        Where the work is done; by default on one thread per core.
    """
    tasks = Threads(cores()) if tasks is None else tasks
    whole, whose, _ = keyed(source, client)
    chosen = choose_columns(whole, whose, columns)
    check_client(whole, whose)
    with new_folder(path, overwrite=overwrite, mark=INDEX) as draft:
        spills = draft / "spill"
        spills.mkdir()
        plan = Plan(source, client, whose, chosen, max(memory, 2**20), tasks)
        plan.scatter(spills)
        written = plan.gather(plan.parts(spills), draft)
        if len(written) > 1:
            write_sharded(draft, written, plan.layout)
        shutil.rmtree(spills)


@dataclass(frozen=True)
class _Scatter:
    """The work of one scattering task: pieces of the source."""

    pieces: Sequence[Source]
    splitters: Array
    path: Path


class Plan:
    """A shuffle at work.

    Parameters
    ----------
    source, client, whose, columns
        The rows, the client as it was given, the one client column, and the other columns.
    memory, tasks
        As for `shuffle`.
    """

    def __init__(self, source: Source, client: str, whose: str, columns: list[str], memory: int, tasks: Tasks) -> None:
        self.source, self.client, self.whose, self.columns = source, client, whose, columns
        self.memory, self.tasks = memory, tasks
        self.share = memory // tasks.number if isinstance(tasks, Threads) else memory  # of one task
        whole = keyed(source, client)[0]
        self.texts = has_texts(whole.schema.field(whose).type)
        self.row_bytes = row_bytes(whole, whose, columns)
        self.spills: list[Spill] = []
        self.number = 1  # of parts
        self.layout = Layout(source.what, self.texts, {}, {})

    def scatter(self, folder: Path) -> None:
        """Choose ranges of ids, read the source, and append its rows to spill files."""
        source = keyed(self.source, self.client)[0]
        pieces = list(self.source.pieces)
        if self.source.n_rows < 0 or self.source.once:
            source, ids = _peeked(source, self.whose, [self.whose, *self.columns], self.memory, self._rows(self.memory))
            counted = self.source.n_rows >= 0
            parts = how_many(self.source.n_rows, self.row_bytes, self.share) if counted else STREAM_PARTS
            splitters = splitters_of(ids, parts)
        else:
            splitters = self._splitters(source, pieces)
        self.number = len(splitters) + 1
        if len(pieces) > 1:
            work = partial(
                _scatter, client=self.client, whose=self.whose, columns=self.columns, stopped=self.tasks.stopped,
                memory=self.share, rows=self._rows(self.share),
            )  # fmt: skip
            each = -(-len(pieces) // self.tasks.number)
            groups = [pieces[begin : begin + each] for begin in range(0, len(pieces), each)]
            items = [_Scatter(group, splitters, folder / f"rows-{i:05d}") for i, group in enumerate(groups)]
            self.spills = self.tasks.map(work, items)
        else:
            path, rows = folder / "rows-00000", self._rows(self.memory)
            self.spills = [scatter([source], self.whose, self.columns, splitters, path, self.memory, rows)]
        read = sum(spill.n_rows for spill in self.spills)
        if 0 <= self.source.n_rows != read:
            raise DataError(
                f"{self.source.what} declares {self.source.n_rows:,} rows, but {read:,} were read: it is damaged"
            )
        if read == 0:
            raise DataError(f"{self.source.what} has no rows: there is nothing to group")
        self._merge_texts(source)

    def _rows(self, memory: int) -> int:
        """Number of rows to read at a time."""
        return int(np.clip(memory // (8 * self.row_bytes), LEAST_BATCH, BATCH))

    def _splitters(self, source: Source, pieces: Sequence[Source]) -> Array:
        parts = how_many(source.n_rows, self.row_bytes, self.share)
        if parts == 1:
            return np.empty(0, dtype=np.int64)
        some = [keyed(piece, self.client)[0] for piece in pieces] or [source]
        return splitters_of(sample(source, some, self.whose), parts)

    def _merge_texts(self, source: Source) -> None:
        """Give all spill files the same codes: declared names first, the rest sorted."""
        names: dict[str, Sequence[str]] = {}
        for name in {name for spill in self.spills for name in spill.texts}:
            codes = Codes(source.names.get(name, ()))
            local = [codes.encode_list(spill.texts.setdefault(name, [])) for spill in self.spills]
            names[name], rank = codes.finish()
            for spill, own in zip(self.spills, local, strict=True):
                del spill.texts[name]
                spill.ranks[name] = np.append(rank[own], np.int32(-1))  # the last entry is for a missing text
        kinds = final_kinds(self.spills, self.columns)
        names |= {n: texts for n, texts in source.names.items() if n in kinds and kinds[n].shape}
        self.layout = Layout(self.source.what, self.texts, kinds, {n: names[n] for n in self.columns if n in names})

    def parts(self, folder: Path) -> list[Part]:
        """The parts that have rows, in order; each fits in memory or is one client."""
        return [part for number in range(self.number) for part in self._fitting(Part(self.spills, number), folder)]

    def _fitting(self, part: Part, folder: Path) -> Iterator[Part]:
        """Split a part until each piece of it fits in memory or is one client."""
        if part.n_rows == 0:
            return
        if _NEED * part.bytes <= 2 * self.share:
            yield part
            return
        distinct = unique_sample(part, self.texts, 4096)
        if len(distinct) == 1:
            yield replace(part, stream=True)
            return
        parts = min(MOST_PARTS, math.ceil(2 * _NEED * part.bytes / self.share))
        path = folder / f"again-{len(list(folder.iterdir())):05d}"
        splitters = splitters_of(distinct, parts)
        finer = respill(part.spills, part.number, splitters, path, texts=self.texts)
        for number in range(len(splitters) + 1):
            yield from self._fitting(Part([finer], number), folder)

    def gather(self, parts: Sequence[Part], draft: Path) -> list[Written]:
        """Group the parts and write them as shards; a single shard is written into the draft itself."""
        shards = self._packed(parts)
        before = np.cumsum([0, *(sum(part.n_rows for part in shard) for shard in shards)]).tolist()
        alone = len(shards) == 1
        items = [
            (shard, draft if alone else draft / f"part-{i:05d}", None if alone else before[i])
            for i, shard in enumerate(shards)
        ]
        return self.tasks.map(partial(_gather, layout=self.layout), items)

    def _packed(self, parts: Sequence[Part]) -> list[list[Part]]:
        """Consecutive parts that make a shard each: shards for all tasks, but no more files than can be mapped."""
        begins = np.cumsum([0, *(part.bytes for part in parts)])
        some = max(_LEAST_SHARD, begins[-1] / self.tasks.number)
        size = max(min(some, self.share / _NEED), begins[-1] * max(1, len(self.columns)) / MOST_FILES)
        shards = groupby(zip(begins // size, parts, strict=False), key=itemgetter(0))
        return [[part for _, part in shard] for _, shard in shards]


def how_many(n_rows: int, row_bytes: int, memory: int) -> int:
    """Number of parts: each is grouped within this memory, and in the caches where runs can have pieces for that."""
    size = n_rows * row_bytes
    cached = min(math.ceil(size / CACHED), memory // (3 * PIECE))
    return min(MOST_PARTS, max(1, math.ceil(_NEED * size / memory), cached))


def row_bytes(source: Source, whose: str, columns: Sequence[str]) -> int:
    """Bytes of a row; where types do not say them and the source can be read again, as its first rows have them."""
    kinds = {name: source.schema.field(name).type for name in columns}
    total = 16 + sum(width(kind) for kind in kinds.values())
    open_ended = [name for name, kind in kinds.items() if not has_width(kind)]
    open_ended += [whose] if has_texts(source.schema.field(whose).type) else []
    if open_ended and source.n_rows > 0 and not source.once:
        first = next((batch for batch in batches_of(source, open_ended, LEAST_BATCH) if batch.num_rows), None)
        total += 0 if first is None else first.nbytes // first.num_rows
    return total


def _scatter(
    item: _Scatter,
    *,
    client: str,
    whose: str,
    columns: Sequence[str],
    stopped: Callable[[], bool] | None,
    memory: int,
    rows: int,
) -> Spill:
    def pieces() -> Iterator[Source]:
        for piece in item.pieces:
            if stopped is not None and stopped():
                raise _Stopped
            yield keyed(piece, client)[0]

    return scatter(pieces(), whose, columns, item.splitters, item.path, memory, rows)


def _gather(item: tuple[Sequence[Part], Path, int | None], *, layout: Layout) -> Written:
    parts, folder, before = item
    written = gather(parts, layout, folder, before)
    pa.default_memory_pool().release_unused()
    return written


def _peeked(source: Source, whose: str, columns: list[str], memory: int, rows: int) -> tuple[Source, Array]:
    """Read the beginning of a stream for its ids; the source that is returned begins with the same rows."""
    batches = batches_of(source, columns, rows)
    first: list[Any] = []
    for batch in batches:
        first.append(batch)
        if sum(each.nbytes for each in first) > memory // 4:
            break
    step = max(1, sum(batch.num_rows for batch in first) // most_of(source.schema.field(whose).type))
    full = [batch.column(whose) for batch in first if batch.num_rows]
    arrays = [thinned(checked_clients(column, whose, source.what, 0), step) for column in full]

    def again(_columns: list[str], _rows: int) -> Iterator[Any]:
        while first:
            yield first.pop(0)
        yield from batches

    return replace(source, batches=again), np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
