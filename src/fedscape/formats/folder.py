"""fedscape's own format on disk: a folder of `.npy` columns and a JSON index with checksums."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.validate import Collected
from fedscape.errors import DataError
from fedscape.formats.files import Name, new_folder, reading
from fedscape.types import Array

FORMAT, VERSION = "fedscape federation", 1
SHARDED = 2  # the version of a folder of shards; see `sharded`
INDEX = "federation.json"
_COLUMN_FILE = re.compile(r"column-(0|[1-9][0-9]{0,5})\.npy")
_CHUNK_BYTES = 2**22
_MAX_HEADER = 10_000
PAGE = 4096  # bytes: column files of shards are laid out to be mapped one after the other


def save_folder(fed: Federation, path: Name, *, overwrite: bool = False) -> None:
    """Write a folder of `.npy` columns and a JSON index, atomically.

    The folder is written under a temporary name beside the target, synced and renamed. State that clients keep
    between rounds is not written; use a checkpoint for that. With `overwrite`, an older folder of this kind is renamed
    away, replaced and then removed. A Federation loaded from it stays readable.

    Parameters
    ----------
    fed
        The Federation to write.
    path
        The folder to create.
    overwrite
        Whether to replace a folder written by an earlier `save_folder`.
    """
    with new_folder(path, overwrite=overwrite, mark=INDEX) as draft:
        columns = [
            {"name": name, **_write_array(draft / f"column-{number}.npy", values)}
            for number, (name, values) in enumerate(fed.columns.items())
        ]
        write_index(draft, columns, fed.ids, fed.offsets, fed.names)


def write_index(
    folder: Path, columns: list[dict[str, Any]], ids: Array, offsets: Array, names: Mapping[str, Sequence[str]]
) -> None:
    """Write ids, offsets and the JSON index of a folder that already holds its columns."""
    index: dict[str, Any] = {"format": FORMAT, "version": VERSION, "columns": columns}
    index["ids"] = _write_array(folder / "ids.npy", ids)
    index["offsets"] = _write_array(folder / "offsets.npy", offsets)
    seal_index(folder, index, names)


def seal_index(folder: Path, index: dict[str, Any], names: Mapping[str, Sequence[str]]) -> None:
    """Add the names of codes and a checksum to an index, and write it: from then on the folder can be read."""
    index["names"] = {name: list(texts) for name, texts in names.items()}
    index["declared"] = [name for name, texts in names.items() if not isinstance(texts, Collected)]
    index["sha256"] = _seal(index)
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="ascii")


class Growing:
    """An array file written in parts; its number of rows is known from the start.

    Parameters
    ----------
    path, n_rows
        The file and its number of rows.
    before
        For one of several files that are mapped as one array: the number of rows in those before it.
    """

    def __init__(self, path: Path, n_rows: int, *, before: int | None = None) -> None:
        self.path, self.n_rows, self.before, self.filled = path, n_rows, before, 0
        self._hash = hashlib.sha256()
        self.dtype, self.shape = np.dtype(np.float64), ()

    def append(self, values: Array, name: str) -> None:
        """Append these rows; all parts must have the same dtype and shape, which no rows give, too."""
        if self.filled == 0:
            self.dtype, self.shape = values.dtype, values.shape[1:]
            self._head()
        if (values.dtype, values.shape[1:]) != (self.dtype, self.shape):
            raise DataError(
                f"column {name!r} holds {self.dtype}{list(self.shape)} in some rows and {values.dtype}"
                f"{list(values.shape[1:])} in others: make them one type and length"
            )
        content = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data if values.size else b""
        with self.path.open("ab") as file:
            file.write(content)
        self._hash.update(content)
        self.filled += len(values)

    def close(self) -> dict[str, Any]:
        """Close the file and return its index entry."""
        if self.filled == 0:
            self._head()
        if self.filled != self.n_rows:
            raise DataError(f"{self.path.name} has {self.filled:,} rows of {self.n_rows:,}")
        shape = [self.n_rows, *self.shape]
        return {"file": self.path.name, "dtype": self.dtype.str, "shape": shape, "sha256": self._hash.hexdigest()}

    def _head(self) -> None:
        shape = (self.n_rows, *self.shape)
        row_bytes = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        head = header_of(self.dtype, shape, None if self.before is None else self.before * row_bytes)
        self.path.write_bytes(head)
        self._hash = hashlib.sha256(head)


def header_of(dtype: np.dtype[Any], shape: tuple[int, ...], begin: int | None) -> bytes:
    """The header of an .npy file, as long as it takes for the data to lie in their page as byte `begin` of them all.

    >>> len(header_of(np.dtype(np.int64), (3,), 100)) % PAGE
    100
    """
    text = repr({"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}).encode()
    least = len(np.lib.format.MAGIC_PREFIX) + 4 + len(text) + 1
    length = least + (begin - least) % PAGE if begin is not None else -(-least // 64) * 64
    text = text.ljust(length - (least - len(text))) + b"\n"
    return np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text


def seal_of(folder: str | Path) -> str | None:
    """The checksum of the index of a saved Federation, None if there is none."""
    try:
        return str(json.loads((Path(folder) / INDEX).read_text(encoding="ascii"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_array(path: Path, values: Array) -> dict[str, Any]:
    """Write an array in C order, a few megabytes at a time, and return its index entry."""
    header = {"descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False, "shape": values.shape}
    step = max(1, _CHUNK_BYTES // max(1, values.dtype.itemsize * int(np.prod(values.shape[1:]))))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, len(values), step):
            file.write(values[begin : begin + step].tobytes())
    return {"file": path.name, "dtype": values.dtype.str, "shape": list(values.shape), "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(index: dict[str, Any]) -> str:
    content = {key: value for key, value in index.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def load_folder(path: Name, *, verify: bool = True, walk: bool = False) -> Federation:
    """Open a folder written by `save_folder` or `scan`; columns are memory-mapped, and only rows in use are read.

    The dtype, shape and length of every file are checked against the index, and the index against its checksum.

    Parameters
    ----------
    path
        The folder.
    verify
        Whether to check every byte of the columns against its checksum. Without it, damage inside them goes
        unnoticed, but only the pages of rows in use are read. That is fast for a few clients, slow for a full scan.
    walk
        Whether a full scan follows, which makes the system read ahead.
    """
    folder = Path(path)
    index = read_index(folder)
    with reading(folder / INDEX, "index of a Federation"):
        if index.get("version") == SHARDED:
            from fedscape.formats.sharded import load_shards

            return load_shards(folder, checked_index(index, SHARDED), verify=verify, walk=walk)
        columns = [
            (str(entry["name"]), open_array(folder, entry, verify, _COLUMN_FILE, walk))
            for entry in checked_index(index, VERSION)["columns"]
        ]
        if len({name for name, _ in columns}) < len(columns):
            raise ValueError("it names a column twice")
        ids = np.array(open_array(folder, index["ids"], True, re.compile(r"ids\.npy")))
        offsets = np.array(open_array(folder, index["offsets"], True, re.compile(r"offsets\.npy")))
        names = names_in(index)
    try:
        return Federation(dict(columns), offsets, ids, names=names)
    except DataError as error:
        raise DataError(f"{folder} does not hold a sound Federation: {error}") from None


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a saved Federation, unchecked."""
    if not (folder / INDEX).is_file():
        raise DataError(f"{folder} is not a saved Federation: it holds no {INDEX}")
    with reading(folder / INDEX, "index of a Federation"):
        index = json.loads((folder / INDEX).read_text(encoding="ascii"))
        if not isinstance(index, dict):
            raise ValueError(f"it does not say that it is a {FORMAT!r}")
        return index


def names_in(index: dict[str, Any]) -> dict[str, Any]:
    """The names of codes in an index."""
    declared = set(index.get("declared", ()))  # older folders lack it
    return {
        str(name): (tuple if name in declared else Collected)(str(text) for text in texts)
        for name, texts in index["names"].items()
    }


def checked_index(index: Any, version: int) -> dict[str, Any]:
    """Check format, version and checksum of an index."""
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"it does not say that it is a {FORMAT!r}")
    if index.get("version") != version:
        raise ValueError(
            f"it has version {index.get('version')!r}, and this fedscape reads {VERSION} and {SHARDED}: upgrade "
            "fedscape"
        )
    if index.get("sha256") != _seal(index):
        raise ValueError("it does not match its checksum, so it is damaged or was edited")
    return index


def open_array(
    folder: Path, entry: dict[str, Any], verify: bool, pattern: re.Pattern[str], walk: bool = False
) -> Array:
    """Memory-map an array, after checking its file against its index entry."""
    name = entry["file"]
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise ValueError(f"it names the file {name!r}, which no saved Federation has")
    path = folder / name
    if not path.is_file():
        raise DataError(f"{name} of {folder} is missing: the folder is damaged")
    dtype, shape = np.dtype(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if dtype.hasobject or dtype.kind not in "biufmMU" or not shape or min(shape) < 0:
        raise ValueError(f"it says that {name} holds {dtype}{list(shape)}, which no column can")
    _check_header(path, folder, dtype, shape)
    if verify and _digest(path) != entry["sha256"]:
        raise DataError(f"{name} of {folder} does not match its checksum: the file is damaged")
    mapped: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    if not verify and not walk and hasattr(mmap, "MADV_RANDOM"):
        mapped._mmap.madvise(mmap.MADV_RANDOM)  # otherwise the system reads megabytes around every client
    values: Array = mapped
    return values


def _check_header(path: Path, folder: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    damaged = f"{path.name} of {folder} is not the array that {INDEX} describes: the file is damaged"
    with path.open("rb") as file:
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise DataError(f"{damaged} (its header has another version)")
            header = np.lib.format.read_array_header_1_0(file, max_header_size=_MAX_HEADER)
        except DataError:
            raise
        except Exception as error:  # a damaged header is parsed as a literal, which raises nearly anything
            raise DataError(f"{damaged} (its header cannot be read)") from error
        if header != (shape, False, dtype):
            raise DataError(f"{damaged} ({header[2]}{list(header[0])} instead of {dtype}{list(shape)})")
        expected = file.tell() + dtype.itemsize * int(np.prod(shape, dtype=object))
    if os.path.getsize(path) != expected:
        raise DataError(f"{damaged} ({os.path.getsize(path):,} bytes instead of {expected:,})")
