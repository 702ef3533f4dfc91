"""A folder of shards: fedscape's own folders part-00000, part-00001, ... beside one index, opened as one Federation.

Shards hold consecutive ranges of the client ids. The folder itself holds ids and offsets of all clients. Each column is
mapped as one array: the files of its shards are laid out so that they can follow one another in memory. Only the pages
in which one shard ends and the next begins are copied.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.validate import checked_columns
from fedscape.errors import DataError
from fedscape.formats.folder import (
    FORMAT,
    INDEX,
    PAGE,
    SHARDED,
    Growing,
    checked_index,
    names_in,
    open_array,
    read_index,
    seal_index,
)
from fedscape.formats.gather import Layout, Written
from fedscape.types import Array

_SHARD = re.compile(r"part-[0-9]{5,}")
_COLUMN = re.compile(r"column-(0|[1-9][0-9]{0,5})\.npy")
_CHECKED = 2**20  # clients whose ids and offsets are compared at a time
_FIXED, _NO_RESERVE = 0x10, 0x4000  # of Linux: at this address; take memory only for pages that are written


def write_sharded(folder: Path, shards: Sequence[Written], layout: Layout) -> None:
    """Write ids and offsets of all shards and the index of a folder that already holds the shards."""
    n = sum(shard.clients for shard in shards)
    ids, offsets = Growing(folder / "ids.npy", n), Growing(folder / "offsets.npy", n + 1)
    types = [np.load(folder / shard.folder / "ids.npy", mmap_mode="r").dtype for shard in shards]
    width = max(types, key=lambda dtype: dtype.itemsize)
    offsets.append(np.zeros(1, dtype=np.int64), "offsets")
    rows = 0
    for shard in shards:
        ids.append(np.load(folder / shard.folder / "ids.npy").astype(width), "ids")
        ends = np.load(folder / shard.folder / "offsets.npy")
        offsets.append(ends[1:] + rows, "offsets")
        rows += int(ends[-1])
    index: dict[str, Any] = {"format": FORMAT, "version": SHARDED}
    index["columns"] = [
        {"name": name, "dtype": kind.dtype, "shape": [rows, *kind.shape]} for name, kind in layout.kinds.items()
    ]
    index["shards"] = [shard.__dict__ for shard in shards]
    index |= {"ids": ids.close(), "offsets": offsets.close()}
    seal_index(folder, index, layout.names)


def load_shards(folder: Path, index: dict[str, Any], *, verify: bool, walk: bool) -> Federation:
    """Open a folder of shards; every file is checked against the index, and with `verify` every byte."""
    ids = open_array(folder, index["ids"], True, re.compile(r"ids\.npy"), walk=True)
    offsets = open_array(folder, index["offsets"], True, re.compile(r"offsets\.npy"), walk=True)
    shards = [_Opened(folder, entry, index["columns"], verify) for entry in index["shards"]]
    n_clients, n_rows = sum(shard.clients for shard in shards), sum(shard.rows for shard in shards)
    if (len(ids), len(offsets), int(offsets[-1])) != (n_clients, n_clients + 1, n_rows):
        raise ValueError(f"its shards hold {n_clients:,} clients and {n_rows:,} rows, and its ids and offsets do not")
    if ids.dtype.kind not in "iU" or offsets.dtype != np.int64 or int(offsets[0]) != 0:
        raise ValueError("its ids are neither whole numbers nor texts, or its offsets do not begin with 0")
    for begin in range(0, n_clients, _CHECKED):
        some, ends = ids[begin : begin + _CHECKED + 1], offsets[begin : begin + _CHECKED + 1]
        if not (some[1:] > some[:-1]).all() or not (ends[1:] >= ends[:-1]).all():
            raise ValueError("its ids do not rise, or its offsets fall")
    columns = {}
    for j, column in enumerate(index["columns"]):
        dtype, shape = np.dtype(column["dtype"]), tuple(int(size) for size in column["shape"])
        columns[str(column["name"])] = mapped([shard.paths[j] for shard in shards], dtype, shape, walk=walk)
    stored, names = checked_columns(columns, names_in(index))
    return Federation.trusted(stored, offsets, ids, names)


def edges(path: str | os.PathLike[str]) -> list[int]:
    """Positions of clients at which the shards of a folder begin, and the end; one range for a folder without shards.

    Raises DataError if it is no such folder.
    """
    index = read_index(Path(path))
    if index.get("version") != SHARDED:
        return [0, int(index["ids"]["shape"][0])]
    return [0, *np.cumsum([int(entry["clients"]) for entry in index["shards"]]).tolist()]


def verify_shards(path: str | os.PathLike[str], first: int, last: int) -> None:
    """Check every byte of the shards that hold the clients first to last - 1; DataError names a damaged one."""
    folder = Path(path)
    index = read_index(folder)
    if index.get("version") != SHARDED:
        return
    begin = 0
    for entry in index["shards"]:
        end = begin + int(entry["clients"])
        if begin < last and end > first:
            _Opened(folder, entry, index["columns"], True)
        begin = end


class _Opened:
    """A shard whose index and files were checked."""

    def __init__(
        self, folder: Path, entry: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], verify: bool
    ) -> None:
        name = entry["folder"]
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise ValueError(f"it names the shard {name!r}, which no folder of shards has")
        own_folder = folder / name
        if not (own_folder / INDEX).is_file():
            raise DataError(f"the shard {name} of {folder} is missing or has no {INDEX}: the folder is damaged")
        index = checked_index(read_index(own_folder), 1)
        if index["sha256"] != entry["sha256"]:
            raise DataError(f"the shard {name} of {folder} is not the one that was written: the folder is damaged")
        self.clients, self.rows = int(entry["clients"]), int(entry["rows"])
        self.paths = []
        for own, column in zip(index["columns"], columns, strict=True):
            if (own["name"], own["dtype"], own["shape"][1:]) != (column["name"], column["dtype"], column["shape"][1:]):
                raise ValueError(f"its shard {name} holds other columns")
            array = open_array(own_folder, own, verify, _COLUMN)
            if len(array) != self.rows:
                raise ValueError(f"its shard {name} holds {len(array):,} rows, not {self.rows:,}")
            self.paths.append(own_folder / own["file"])


# -- one array of many files -------------------------------------------------------------------------------------------


def mapped(paths: Sequence[Path], dtype: np.dtype[Any], shape: tuple[int, ...], *, walk: bool) -> Array:
    """The rows of several `.npy` files as one read-only array, mapped where the system can, else read into memory."""
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if size == 0 or len(paths) == 1 or not sys.platform.startswith("linux") or mmap.PAGESIZE != PAGE:
        parts = [np.load(path, mmap_mode="r") for path in paths]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    space = _Space(size)
    for path in paths:
        space.map(path)
    if not walk:
        space.advise(mmap.MADV_RANDOM)
    rows: Array = np.frombuffer(memoryview(space.view), dtype=dtype).reshape(shape)
    rows.flags.writeable = False
    return rows


class _Space:
    """A range of addresses into which files are mapped one after the other."""

    def __init__(self, size: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc, self.size, self._filled = libc, -(-size // PAGE) * PAGE, 0
        self._base = self._mmap(0, self.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = (ctypes.c_char * size).from_address(self._base)
        # arrays refer to the view: once the last of them is gone, so is the mapping
        weakref.finalize(self.view, libc.munmap, self._base, self.size)

    def map(self, path: Path) -> None:
        """Append the rows of a file: whole pages are mapped, and the rest is copied."""
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file, max_header_size=PAGE * 2 + 128)
            begin, end = file.tell(), os.fstat(file.fileno()).st_size
            if (begin - self._filled) % PAGE and end > begin:
                raise DataError(f"{path} is not laid out to follow the shard before it: the folder is damaged")
            head = min(-self._filled % PAGE, end - begin)
            whole = (end - begin - head) // PAGE * PAGE
            self._copy(file.read(head))
            if whole:
                self._mmap(
                    self._base + self._filled, whole, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, file, begin + head
                )
                self._filled += whole
                file.seek(begin + head + whole)
            self._copy(file.read())

    def _copy(self, content: bytes) -> None:
        ctypes.memmove(self._base + self._filled, content, len(content))
        self._filled += len(content)

    def _mmap(self, where: int, size: int, rights: int, how: int, file: Any = None, begin: int = 0) -> int:
        handle = -1 if file is None else file.fileno()
        base = self._libc.mmap(where or None, size, rights, how | (_NO_RESERVE if file is None else 0), handle, begin)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "the shards cannot be mapped into memory")
        return int(base)

    def advise(self, how: int) -> None:
        """Tell the system how the rows will be read."""
        self._libc.madvise(self._base, self.size, how)
