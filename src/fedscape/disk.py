"""The file operations in which Linux, macOS and Windows differ; all other modules call these."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    fcntl: Any = importlib.import_module("fcntl")
except ModuleNotFoundError:  # Windows
    fcntl = None

_BINARY = getattr(os, "O_BINARY", 0)  # without it Windows writes "\n" as two bytes
_HERE, _EXCHANGE = -100, 2  # of Linux: paths count from the working folder; two names change places
_BEYOND = 2**31 - 2  # Windows locks bytes and keeps others from reading them: lock one that no such file has


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for bytes by `os.open`; a new one is for its owner alone (on Windows: for those of its folder)."""
    return os.open(path, flags | _BINARY, 0o600)


def is_own(path: Path) -> bool:
    """Whether it belongs to this user and nobody else may write to it; on Windows that follows from where it is."""
    if not hasattr(os, "getuid"):
        return True
    about = path.stat()
    return about.st_uid == os.getuid() and not about.st_mode & 0o022


@contextlib.contextmanager
def locked(handle: int) -> Iterator[None]:
    """Wait for the lock of an open file against other handles of it, in this process or another, and hold it."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
        return
    msvcrt = importlib.import_module("msvcrt")
    while True:
        os.lseek(handle, _BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_LOCK, 1)
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):  # those it raises after ten seconds of waiting
                raise
    try:
        yield
    finally:
        os.lseek(handle, _BEYOND, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Read bytes of an open file from an offset."""
    content = _read_some(handle, size, offset)
    while content and len(content) < size:  # Linux reads at most 2 GiB at a time
        more = _read_some(handle, size - len(content), offset + len(content))
        if not more:
            break
        content += more
    return content


def _read_some(handle: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, size, offset)
    os.lseek(handle, offset, os.SEEK_SET)
    return os.read(handle, size)


def exchanged(one: Path, other: Path) -> bool:
    """Whether two folders took each other's names, at once; False where the system cannot, and nothing has changed."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def sync(path: str | os.PathLike[str]) -> None:
    """Bring a file, or the entries of a folder, to disk; Windows cannot open folders, and needs no such call."""
    if Path(path).is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
