"""Group parts of the spilled rows by client, and write them as a folder of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedscape.core.arrays import offsets_of
from fedscape.errors import DataError
from fedscape.formats.arrow import to_float
from fedscape.formats.folder import Growing, seal_of, write_index
from fedscape.formats.grouping import ROWS, id_array
from fedscape.formats.ranges import text_array
from fedscape.formats.spill import Kind, Spill, uneven
from fedscape.types import Array


@dataclass(frozen=True)
class Layout:
    """What all parts have in common: whether ids are texts, the final type of each column and names of its codes."""

    what: str
    texts: bool
    kinds: dict[str, Kind]
    names: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Part:
    """Rows that are grouped at once: part `number` of these spill files.

    With `stream` it is a single client that may not fit in memory: its rows are copied as they come.
    """

    spills: Sequence[Spill]
    number: int
    stream: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A task is sent what it needs to read this part, and no other."""
        return Part, ([spill.only(self.number) for spill in self.spills], 0, self.stream)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(spill.rows_of(self.number) for spill in self.spills)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return sum(spill.bytes_of(self.number) for spill in self.spills)


@dataclass(frozen=True)
class Written:
    """The folder of a shard: its name, its size and the checksum of its index."""

    folder: str
    clients: int
    rows: int
    sha256: str


def final_kinds(spills: Sequence[Spill], columns: Sequence[str]) -> dict[str, Kind]:
    """The type of each column over all runs: whole numbers become float64 if some are missing."""
    final = {}
    for name in columns:
        kinds = {run.columns[name].kind for spill in spills for run in spill.runs}
        shapes = {kind.shape for kind in kinds}
        if len(shapes) > 1:
            raise uneven(name, shapes)
        types = {np.dtype(kind.dtype) for kind in kinds}
        if len(types) > 1 and any(kind.kind not in "biuf" for kind in types):
            listed = " and ".join(sorted(map(str, types)))
            raise DataError(f"column {name!r} holds {listed} in different rows: make them one type")
        final[name] = Kind(np.dtype(np.float64).str if len(types) > 1 else types.pop().str, shapes.pop())
    return final


def gather(parts: Sequence[Part], layout: Layout, folder: Path, before: int | None) -> Written:
    """Group parts one after the other and write them as one shard.

    Parameters
    ----------
    parts, layout
        The rows, in the order of their ids, and their columns.
    folder
        The folder to create.
    before
        Number of rows in the shards before it; column files are laid out so that all can be mapped as one. None if it
        is the only one.
    """
    folder.mkdir(exist_ok=True)
    n = sum(part.n_rows for part in parts)
    files = {name: Growing(folder / f"column-{j}.npy", n, before=before) for j, name in enumerate(layout.kinds)}
    grouped = [(_copied if part.stream else _grouped)(part, layout, files) for part in parts]
    who = np.concatenate([ids for ids, _ in grouped])
    described = [{"name": name, **file.close()} for name, file in files.items()]
    write_index(folder, described, who, offsets_of(np.concatenate([sizes for _, sizes in grouped])), layout.names)
    return Written(folder.name, len(who), n, str(seal_of(folder)))


def _copied(part: Part, layout: Layout, files: Mapping[str, Growing]) -> tuple[Array, Array]:
    """Append the rows of a single client as they come; its id and its number of rows."""
    ids = None
    for spill in part.spills:
        for part_ids, values in spill.read(part.number, layout.texts):
            ids = part_ids[:1] if ids is None else ids
            for name, file in files.items():
                file.append(_final(values[name], name, layout.kinds[name]), name)
    return arranged(ids, layout.what)[1], np.array([part.n_rows])


def _grouped(part: Part, layout: Layout, files: Mapping[str, Growing]) -> tuple[Array, Array]:
    """Append the rows of a part, client after client; the ids and their numbers of rows."""
    ids, columns = _loaded(part, layout)
    order, who, sizes = arranged(ids, layout.what)
    del ids
    for name, file in files.items():
        column = columns.pop(name)
        for begin in range(0, len(order), ROWS):
            file.append(column[order[begin : begin + ROWS]], name)
    return who, sizes


def _loaded(part: Part, layout: Layout) -> tuple[Any, dict[str, Array]]:
    """The ids and columns of a part, in the order of the spill files."""
    n, begin = part.n_rows, 0
    texts, whole = [], np.empty(0 if layout.texts else n, dtype=np.int64)
    columns = {name: np.empty((n, *kind.shape), dtype=kind.dtype) for name, kind in layout.kinds.items()}
    for ids, values in (run for spill in part.spills for run in spill.read(part.number, layout.texts)):
        rows = slice(begin, begin + len(ids))
        if layout.texts:
            texts.append(ids)
        else:
            whole[rows] = ids
        for name, kind in layout.kinds.items():
            columns[name][rows] = _final(values[name], name, kind)
        begin = rows.stop
    return (pa.concat_arrays(texts) if layout.texts else whole), columns


def _final(values: Array, name: str, kind: Kind) -> Array:
    return values if values.dtype.str == kind.dtype else to_float(values, name)


def arranged(ids: Any, what: str) -> tuple[Array, Array, Array]:
    """The order that brings the rows of each client together, the ids in their order, and their numbers of rows.

    >>> [part.tolist() for part in arranged(np.array([7, 3, 7]), "rows")]
    [[1, 0, 2], [3, 7], [1, 2]]
    """
    if isinstance(ids, np.ndarray):
        order, ordered = _sorted(ids)
        first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        return order, ordered[first], np.diff(np.append(first, len(ids)))
    encoded = ids.dictionary_encode()
    distinct = id_array(encoded.dictionary.to_pylist(), what)
    rising = np.argsort(distinct)
    rank = np.empty(len(rising), dtype=np.int64)
    rank[rising] = np.arange(len(rising))
    order, codes, sizes = arranged(rank[encoded.indices.to_numpy()], what)
    return order, distinct[rising][codes], sizes


def _sorted(ids: Array) -> tuple[Array, Array]:
    """A stable order of the ids, and the ids in it; id and row packed into one integer sort four times as fast."""
    low, bits = int(ids.min()), len(ids).bit_length()
    if (int(ids.max()) - low) >= 2 ** (63 - bits):
        order = np.argsort(ids, kind="stable")
        return order, ids[order]
    packed = ids - low
    packed <<= bits
    packed |= np.arange(len(ids))
    packed.sort()
    order = packed & ((1 << bits) - 1)
    packed >>= bits
    packed += low
    return order, packed


def unique_sample(part: Part, texts: bool, most: int) -> Array:
    """Distinct ids of a part, thinned to about this many per run; two at least if there are two."""
    samples = []
    for spill in part.spills:
        for ids, _ in spill.read(part.number, texts):
            distinct = np.unique(ids) if isinstance(ids, np.ndarray) else np.unique(text_array(ids.unique()))
            samples.append(distinct[:: max(1, len(distinct) // most)])
            samples.append(distinct[-1:])
    return np.unique(np.concatenate(samples))
