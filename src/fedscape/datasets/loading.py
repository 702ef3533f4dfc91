"""Load a data set by name, list the names, describe one."""

from __future__ import annotations

import difflib
import os
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from fedscape.core.federation import Federation
from fedscape.datasets.catalogue import CATALOGUE, Entry
from fedscape.errors import DataError

VARIABLE = "FEDSCAPE_DATA"
EMBEDDED = Path(__file__).parent / "data"
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, EOFError, TypeError, zipfile.BadZipFile, zlib.error)
_alive: WeakValueDictionary[tuple[Path, ...], Federation] = WeakValueDictionary()


def names() -> list[str]:
    """The names of all data sets: first the embedded ones, then those that need files in FEDSCAPE_DATA.

    >>> names()[:3]
    ['femnist-mini', 'femnist-labels', 'acs-mini']
    """
    return list(CATALOGUE)


def info(name: str) -> dict[str, Any]:
    """Describe a data set without loading it.

    Returns
    -------
    A dict of: name, description, clients, rows, licence, citation, embedded, files (paths below the package's data, or
    below the folder that FEDSCAPE_DATA names) and size (bytes of these files, None where one is not there).

    >>> info("femnist-labels")["clients"]
    3597
    """
    entry = _entry(name)
    folder = EMBEDDED if entry.embedded else _folder()
    paths = [] if folder is None else [folder / file for file in entry.files]
    present = bool(paths) and all(path.is_file() for path in paths)
    return {
        "name": name,
        "description": entry.description,
        "clients": entry.clients,
        "rows": entry.rows,
        "licence": entry.licence,
        "citation": entry.citation,
        "embedded": entry.embedded,
        "files": list(entry.files),
        "size": sum(path.stat().st_size for path in paths) if present else None,
    }


def load(name: str) -> Federation:
    """Load the Federation of this name; its read-only arrays are shared by all callers.

    Embedded sets are decoded once per process. The others are read from the folder that the environment variable
    FEDSCAPE_DATA names, and stay cached while a caller holds them.

    Parameters
    ----------
    name
        One of `names()`; `info(name)` describes it.

    >>> load("femnist-mini")
    Federation(30 clients, 7,115 rows, x uint8[28, 28], y uint8)
    >>> load("acs-race").counts("y").shape
    (2462, 9)
    """
    entry = _entry(name)
    return _load_embedded(name) if entry.embedded else _load_full(name, entry)


@cache
def _load_embedded(name: str) -> Federation:
    entry = CATALOGUE[name]
    return _read(name, entry, [EMBEDDED / file for file in entry.files])


def _load_full(name: str, entry: Entry) -> Federation:
    folder = _folder()
    if folder is None:
        raise DataError(
            f"{name!r} is not embedded: set the environment variable {VARIABLE} to the folder that holds "
            f"{', '.join(entry.files)}, or load one of the embedded sets: {_embedded_names()}"
        )
    paths = [folder / file for file in entry.files]
    for path in paths:
        if not path.is_file():
            raise DataError(
                f"{name!r} needs the file {path}, which is not there ({VARIABLE} names {str(folder)!r}): put it there, "
                f"or load one of the embedded sets: {_embedded_names()}"
            )
    cache_key = (Path(name), *paths)
    fed = _alive.get(cache_key)
    if fed is None:
        fed = _alive[cache_key] = _read(name, entry, paths)
    return fed


def _read(name: str, entry: Entry, paths: list[Path]) -> Federation:
    where = ", ".join(map(str, paths))
    try:
        fed = entry.read(paths)
    except DataError as error:
        raise DataError(f"{name!r} cannot be read from {where}: {error}") from None
    except _UNREADABLE as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(
            f"{name!r} cannot be read from {where} ({what}): the file is torn or foreign, copy it again"
        ) from error
    for array in (fed.offsets, fed.ids):  # the columns are read-only already
        array.flags.writeable = False
    return fed


def _entry(name: str) -> Entry:
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(str(name).lower().replace("_", "-"), CATALOGUE, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the names are: {', '.join(CATALOGUE)}"
    raise DataError(f"there is no set of data called {name!r}: {hint}")


def _folder() -> Path | None:
    folder = os.environ.get(VARIABLE)
    return Path(folder).expanduser() if folder else None


def _embedded_names() -> str:
    return ", ".join(name for name, entry in CATALOGUE.items() if entry.embedded)
