"""Where the files of a lake are: paths, globs and URIs, and the `key=value` folders in their paths."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from fedscape.errors import DataError, require
from fedscape.formats.files import Name, one_line

_GLOB = ("*", "?", "[")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True)
class Listing:
    """Files on one file system (None is the local one).

    Folders in their paths below `base` may be keys.
    """

    system: Any
    files: list[str]
    base: str = ""

    def keys(self) -> dict[str, set[str]]:
        """The values of each key that the paths tell, as texts."""
        values: dict[str, set[str]] = {}
        for folder in {path.removeprefix(self.base).rpartition("/")[0] for path in self.files}:
            for part in folder.split("/"):
                name, sign, value = part.partition("=")
                if sign and name:
                    values.setdefault(unquote(name), set()).add(unquote(value))
        return values


def listings_of(paths: Sequence[Name]) -> list[Listing]:
    """The files of each part of what is named; single files that follow one another are one listing."""
    listings: list[Listing] = []
    for path in paths:
        listing = _listing(os.fspath(path))
        if listings and not (listing.base or listings[-1].base) and listings[-1].system == listing.system:
            listings[-1].files.extend(listing.files)
        else:
            listings.append(listing)
    return listings


def key_type(values: set[str], stored: Any) -> Any:
    """The Arrow type of a key: that of the column in the files, if there is one, else of its values.

    A text such as 007 is no number, or it would be the same client as 7.

    >>> key_type({"7", "12"}, None), key_type({"7", "007"}, None)
    (DataType(int32), DataType(string))
    """
    if stored is not None:
        return stored.value_type if pa.types.is_dictionary(stored) else stored
    texts = values - {_NO_VALUE}
    if not texts or not all(_WHOLE.fullmatch(text) for text in texts):
        return pa.string()
    furthest = max(abs(int(text)) for text in texts)
    return pa.int32() if furthest < 2**31 else pa.int64() if furthest < 2**63 else pa.string()


def _listing(path: str) -> Listing:
    if "://" in path:
        system, inner = _file_system(path)
        with _asking(path):
            if any(sign in inner for sign in _GLOB):
                return Listing(system, _matching(system, inner, path))
            kind = system.get_file_info(inner).type
            if kind == pafs.FileType.NotFound:
                raise _nothing(path)
            return (
                Listing(system, _inside(system, inner), inner)
                if kind == pafs.FileType.Directory
                else Listing(system, [inner])
            )
    if any(sign in path for sign in _GLOB) and not Path(path).exists():
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise DataError(f"no file matches {path}: check the pattern")
        return Listing(
            None, [file for match in matches for file in (_local(match) if Path(match).is_dir() else [match])]
        )
    if not Path(path).exists():
        raise _nothing(path)
    return Listing(None, _local(path), path) if Path(path).is_dir() else Listing(None, [path])


def _nothing(path: str) -> DataError:
    return DataError(f"there is no file or folder {path}: check the path")


def _local(folder: str) -> list[str]:
    """The same on this machine, with links to nothing: to read them is an error."""
    walk = os.walk(folder, followlinks=True)
    paths = [os.path.join(where, name).replace(os.sep, "/") for where, _, names in walk for name in names]
    return _shown(folder, paths)


def _shown(folder: str, files: list[str]) -> list[str]:
    """The files sorted, but those that are hidden by a dot or an underscore below the folder."""
    shown = [
        path
        for path in files
        if not any(part[:1] in (".", "_") for part in path.removeprefix(folder).strip("/").split("/"))
    ]
    if not shown:
        raise DataError(f"{folder} holds no Parquet file: name the right folder")
    return sorted(shown)


@contextmanager
def _asking(path: str) -> Iterator[None]:
    """Name the path in errors of a file system."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {one_line(error)}") from error


def _inside(system: Any, folder: str) -> list[str]:
    """The files of a folder at any depth."""
    selected = system.get_file_info(pafs.FileSelector(folder, recursive=True))
    return _shown(folder, [info.path for info in selected if info.is_file])


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


def _matching(system: Any, pattern: str, uri: str) -> list[str]:
    """The files of a file system that match a pattern, sorted."""
    fixed = pattern[: min(pattern.index(sign) for sign in _GLOB if sign in pattern)]
    folder = fixed.rpartition("/")[0]
    entries = system.get_file_info(pafs.FileSelector(folder, recursive=True))
    matches = sorted(info.path for info in entries if info.is_file and fnmatchcase(info.path, pattern))
    if not matches:
        raise DataError(f"no file matches {uri}: check the pattern")
    return matches
