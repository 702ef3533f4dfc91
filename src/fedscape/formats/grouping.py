"""Group batches of rows by client, in bounded memory.

The first pass reads the client column alone, and counts the rows of each client. The second pass reads the other
columns and writes every row to its final position. Memory beside the finished columns: four bytes per row and one
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.core.validate import checked_ids
from fedscape.errors import DataError, nearest
from fedscape.formats.arrow import Codes, Column, check_type, is_list, is_string, recode
from fedscape.types import Array

CLIENT_ROWS = 2**19  # batch size of the first pass: looking up clients costs most per batch
ROWS = 2**16  # batch size of the second pass: working memory costs most per row


@dataclass(frozen=True)
class Source:
    """A table that can be read more than once, batch by batch.

    Parameters
    ----------
    what
        Its name in messages.
    schema
        Its Arrow schema.
    n_rows
        Number of rows.
    batches
        Reads the named columns in order, as Arrow record batches with a cap on rows.
    ids
        Clients listed separately from the rows, in order. Clients without rows appear only here.
    names
        Per column, names whose codes are fixed.
    limit
        Maximum size of one column in bytes.
    remarks
        The detected dialect of the file, if it was not declared.
    pieces
        Parts of it, in order, that can each be read on their own, again and in any process; empty if there are none.
    once
        Whether it can be read only once.
    """

    what: str
    schema: Any
    n_rows: int
    batches: Callable[[list[str], int], Iterator[Any]]
    ids: Sequence[Any] | None = None
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    limit: int | None = None
    remarks: tuple[str, ...] = ()
    pieces: Sequence[Source] = ()
    once: bool = False


def table_source(table: Any, what: str, names: Mapping[str, Sequence[str]] | None = None) -> Source:
    """Wrap an Arrow table as a source."""

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        return iter(table.select(columns).to_batches(max_chunksize=rows))

    return Source(what, table.schema, table.num_rows, batches, names=names or {})


def group(
    source: Source,
    *,
    client: str,
    columns: Sequence[str] | None = None,
    ids: npt.ArrayLike | None = None,
    rows: str | None = None,
) -> Federation:
    """Group the rows by the client column, or by several columns separated by commas.

    With `rows`, a column of this name holds the row number in the source, from 0.

    If the rows of each client are already contiguous, rows and clients keep their order. Otherwise clients are sorted
    by id. Rows of one client always keep their order.
    """
    source, client, _ = keyed(source, client)
    if rows is not None:
        source = numbered(source, rows)
        columns = None if columns is None else [*columns, rows]
    chosen = choose_columns(source, client, columns, hidden=rows)
    codes, labels = read_clients(source, client)
    who, rank = order_clients(codes, labels, source, ids)
    recode(codes, rank)
    del labels
    pa.default_memory_pool().release_unused()  # free the memory of the first pass before the second
    sizes = count(codes, len(who))
    offsets = offsets_of(sizes)
    texts = {name: texts_of for name, texts_of in source.names.items() if not is_list(source.schema.field(name).type)}
    filled = {name: Column(name, len(codes), names=texts.get(name, ()), limit=source.limit) for name in chosen}
    for part, places in placed(source, chosen, codes, offsets):
        for name, column in filled.items():
            column.write(part.column(name), places)
    del codes
    values: dict[str, Array] = {}
    names: dict[str, Sequence[str]] = {}
    for name, column in filled.items():
        if column.values is None:  # no rows: the type alone decides the column
            column.write(pa.array([], type=source.schema.field(name).type), slice(0, 0))
        values[name], texts_of = column.finish()
        if texts_of is not None:
            names[name] = texts_of
        elif values[name].ndim > 1 and name in source.names:
            names[name] = source.names[name]
    return Federation(values, offsets, who, names=names)


def keyed(source: Source, client: str) -> tuple[Source, str, list[str]]:
    """Return the source with a single client column, the name of that column, and the columns it joins.

    `ST,PUMA` names several columns unless a column has that name. A client is then one pair of values, such as
    "06/00101". A slash or backslash inside a value is escaped with a backslash, which keeps ids distinct.
    """
    parts = [name.strip() for name in client.split(",")]
    present = source.schema.names
    if client in present or len(parts) == 1:
        return source, client, [client]
    for name in parts:
        if name not in present:
            hint = nearest(name, present) or "; name the client columns with --client (client=)"
            raise DataError(f"{source.what} has no column {name!r}; its columns are {_listed(present)}{hint}")
        check_client(source, name)
    if len(set(parts)) < len(parts):
        raise DataError(f"the client joins the columns {', '.join(parts)}: name each once")
    whose = "/".join(parts)
    kept = [source.schema.field(name) for name in present if name not in parts]
    fields = pa.schema([*kept, pa.field(whose, pa.string())], metadata=source.schema.metadata)

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        others = [name for name in columns if name != whose]
        for part in source.batches([*others, *(parts if whose in columns else [])], rows):
            arrays = {name: part.column(name) for name in others}
            if whose in columns:
                arrays[whose] = _joined([part.column(name) for name in parts])
            yield pa.RecordBatch.from_pydict({name: arrays[name] for name in columns})

    names = {name: texts for name, texts in source.names.items() if name not in parts}
    return replace(source, schema=fields, batches=batches, names=names, pieces=()), whose, parts


def _joined(columns: list[Any]) -> Any:
    """Join the texts of several columns with a slash; missing if any of them is."""
    texts = []
    for column in columns:
        flat = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        escaped = flat.cast(pa.string())
        if not pa.types.is_integer(flat.type):
            escaped = pc.replace_substring(escaped, "\\", "\\\\")
            escaped = pc.replace_substring(escaped, "/", "\\/")
        texts.append(escaped)
    return pc.binary_join_element_wise(*texts, "/")


def numbered(source: Source, name: str) -> Source:
    """Add a column with the row number in the source, from 0."""
    if name in source.schema.names:
        raise DataError(f"{source.what} has a column {name!r} already, which row numbers would hide: rename it")

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        others = [each for each in columns if each != name]
        done = 0
        # a batch without columns has no row count: read the first column
        for part in source.batches(others or source.schema.names[:1], rows):
            arrays = {each: part.column(each) for each in others}
            arrays[name] = pa.array(np.arange(done, done + part.num_rows))
            done += part.num_rows
            yield pa.RecordBatch.from_pydict({each: arrays[each] for each in columns})

    return replace(source, schema=source.schema.append(pa.field(name, pa.int64())), batches=batches, pieces=())


def choose_columns(
    source: Source, client: str, columns: Sequence[str] | None, *, hidden: str | None = None
) -> list[str]:
    """Choose the columns to read, without the client column; refuse unknown, repeated and unsupported ones."""
    present = list(source.schema.names)
    for name in present:
        if present.count(name) > 1:
            raise DataError(f"{source.what} has {present.count(name)} columns called {name!r}: rename or drop some")
    if isinstance(columns, str):
        raise DataError(f"columns must be a list of names, not the text {columns!r}: write [{columns!r}]")
    shown = [name for name in present if name != hidden]
    for name in (client, *(columns or ())):
        if name not in present:
            ask = "; name the client column with --client (client=)" if name == client else ""
            hint = nearest(name, present) or ask
            raise DataError(f"{source.what} has no column {name!r}; its columns are {_listed(shown)}{hint}")
    chosen = [name for name in dict.fromkeys(present if columns is None else columns) if name != client]
    for name in chosen:
        check_type(name, source.schema.field(name).type)
    return chosen


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return shown + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")


def read_clients(source: Source, client: str) -> tuple[Array, list[Any]]:
    """First pass: read the client code of each row, int32 [rows], and the client of each code."""
    check_client(source, client)
    codes, filled, table = np.empty(source.n_rows, dtype=np.int32), 0, Codes()
    first, missing = None, 0
    for part in source.batches([client], CLIENT_ROWS):
        new = table.encode(part.column(client))
        if filled + len(new) > source.n_rows:
            raise _miscounted(source, filled + len(new))
        if len(new) and new.min() < 0:
            first = filled + int(np.argmin(new)) if first is None else first
            missing += int((new < 0).sum())
        codes[filled : filled + len(new)] = new
        filled += len(new)
    if filled < source.n_rows:
        raise _miscounted(source, filled)
    if first is not None:
        raise clientless(client, source.what, first, missing)
    return codes, list(table.table)


def clientless(client: str, what: str, row: int, missing: int = 0) -> DataError:
    """What is wrong where rows have no client, and what to do about it."""
    number = f", nor in {missing - 1:,} others" if missing > 1 else ""
    return DataError(
        f"the client column {client!r} of {what} has no value in row {row:,}{number}: keep the rows that have one (in "
        f"pandas table[table[{client!r}].notna()], in a scan filter=pyarrow.dataset.field({client!r}).is_valid()), or "
        "name another column with --client (client=)"
    )


def check_client(source: Source, client: str) -> None:
    """Refuse a client column that holds neither whole numbers nor texts."""
    kind = source.schema.field(client).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (is_string(value) or pa.types.is_integer(value) or (pa.types.is_null(value) and source.n_rows == 0)):
        raise DataError(
            f"the client column {client!r} must hold whole numbers or texts, not {kind} as in {source.what}: make it "
            "one of them, or name another with --client (client=)"
        )


def _miscounted(source: Source, counted: int) -> DataError:
    return DataError(f"{source.what} declares {source.n_rows:,} rows, but {counted:,} were read: the file is damaged")


def order_clients(codes: Array, labels: list[Any], source: Source, ids: npt.ArrayLike | None) -> tuple[Array, Array]:
    """Return the client ids in final order, and the position of each code's client (-1: it has no rows)."""
    used = np.flatnonzero(count(codes, len(labels)))
    runs = run_codes(codes, most=len(used))
    if ids is not None:
        wanted = checked_ids(ids).tolist()
    elif source.ids is not None:
        listed = set(source.ids)
        wanted = [*source.ids, *sorted(v for v in (labels[code] for code in used.tolist()) if v not in listed)]
    elif runs is not None:
        wanted = [labels[code] for code in runs.tolist()]  # clients are contiguous: keep the order of appearance
    else:
        wanted = sorted(labels[code] for code in used.tolist())
    rank_of = {value: position for position, value in enumerate(wanted)}
    rank = np.full(len(labels) + 1, -1, dtype=np.int32)
    for code in used.tolist():
        if labels[code] not in rank_of:
            raise DataError(f"client {labels[code]!r} has rows but is not among the {len(wanted):,} ids")
        rank[code] = rank_of[labels[code]]
    return id_array(wanted, source.what), rank


def id_array(ids: list[Any], what: str) -> Array:
    """Convert ids to int64 or NumPy texts, and check that none changes."""
    if all(type(value) is int for value in ids):
        if ids and not -(2**63) <= min(ids) <= max(ids) < 2**63:
            raise DataError(f"the ids of {what} must fit in 64 signed bits, but reach {max(ids)}: pass them as texts")
        return np.array(ids, dtype=np.int64)
    if not all(type(value) is str for value in ids):
        raise DataError(f"the ids of {what} must be all whole numbers or all texts, not both")
    if any(value.endswith("\0") for value in ids):
        raise DataError(f"an id of {what} ends in a NUL character, which NumPy texts cannot keep: rename it")
    return np.array(ids, dtype=str)


def run_codes(codes: Array, *, most: int) -> Array | None:
    """Return the code of each run of equal codes, or None if there are more than `most` runs."""
    starts, number = [codes[:1]], 1
    for begin in range(0, len(codes) - 1, CLIENT_ROWS):
        part = codes[begin : begin + CLIENT_ROWS + 1]
        starts.append(part[1:][part[1:] != part[:-1]])
        number += len(starts[-1])
        if number > most:
            return None
    return np.concatenate(starts)


def count(codes: Array, n: int) -> Array:
    """Count how often each of n codes occurs."""
    total = np.zeros(n, dtype=np.int64)
    step = max(CLIENT_ROWS, n)  # bincount works in int64: count in parts
    for begin in range(0, len(codes), step):
        total += np.bincount(codes[begin : begin + step], minlength=n)
    return total


def placed(source: Source, columns: list[str], codes: Array, offsets: Array) -> Iterator[tuple[Any, slice | Array]]:
    """Second pass: yield each batch with its target rows."""
    if not columns:
        return
    together = all(
        bool(np.all(np.diff(codes[begin : begin + CLIENT_ROWS + 1]) >= 0))
        for begin in range(0, len(codes), CLIENT_ROWS)
    )
    done, cursor = 0, offsets[:-1].copy()
    for part in source.batches(columns, ROWS):
        size = part.num_rows
        if done + size > len(codes):
            raise _miscounted(source, done + size)
        if size:
            yield part, slice(done, done + size) if together else destinations(codes[done : done + size], cursor)
        done += size
    if done < len(codes):
        raise _miscounted(source, done)


def destinations(codes: Array, place: Array) -> Array:
    """Compute the target of each row: the next free row of its client. Advances `place`, the next free rows.

    Sorting (code, row) packed into one int64 is four times as fast as a stable argsort, and needs no compiled kernel.

    >>> place = np.array([0, 2])
    >>> destinations(np.array([1, 0, 1]), place).tolist(), place.tolist()
    ([2, 0, 3], [1, 4])
    """
    n = len(codes)
    bits = n.bit_length()
    packed = (codes.astype(np.int64) << bits) | np.arange(n)
    packed.sort()
    rows, ordered = packed & ((1 << bits) - 1), packed >> bits
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.append(first, n))
    target = np.empty(n, dtype=np.int64)
    target[rows] = place[ordered] + np.arange(n) - np.repeat(first, sizes)
    place[ordered[first]] += sizes
    return target
