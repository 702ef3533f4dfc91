"""Pretend to be Windows, as far as files go.

No fcntl, resource or pread, folders that cannot be opened, open files that cannot be moved, locks that give up, and
text mode for `os.open` without O_BINARY. Only for a process of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess  # noqa: F401  # it looks for msvcrt when it is loaded, so that comes first
import sys
import types
from pathlib import Path
from typing import Any

_open, _replace, _rename = os.open, os.replace, os.rename
BINARY = 0x8000  # the value on Windows; Linux has no such flag and ignores it


def pretend_windows() -> None:
    """Change this process for good, before fedscape is imported."""
    for name in ("fcntl", "resource"):
        sys.modules[name] = None  # type: ignore[assignment]
    sys.modules["msvcrt"] = _msvcrt()
    del os.pread
    os.O_BINARY = BINARY  # type: ignore[attr-defined]
    os.open = _open_files_alone  # type: ignore[assignment]
    os.replace, os.rename = _closed(_replace), _closed(_rename)  # type: ignore[assignment]
    from fedscape import disk

    disk.os = types.SimpleNamespace(**{**vars(os), "name": "nt"})  # os.name itself would change pathlib


def _msvcrt() -> types.ModuleType:
    module = types.ModuleType("msvcrt")

    def locking(handle: int, mode: int, count: int) -> None:
        assert count == 1
        assert os.lseek(handle, 0, os.SEEK_CUR) > 2**30, "other handles could not read these bytes"
        if mode == module.LK_UNLCK:
            fcntl.flock(handle, fcntl.LOCK_UN)
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OSError(errno.EDEADLK, "Resource deadlock avoided") from None

    module.LK_UNLCK, module.LK_LOCK, module.locking = 0, 1, locking
    return module


def _open_files_alone(path: Any, flags: int, *more: Any, **names: Any) -> int:
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if Path(path).is_dir() and caller.startswith("fedscape"):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    if caller.startswith("fedscape") and flags & (os.O_WRONLY | os.O_APPEND):
        assert flags & BINARY, f"{caller} writes {path} as text"
    return _open(path, flags & ~BINARY, *more, **names)


def _closed(move: Any) -> Any:
    def moved(source: Any, target: Any) -> None:
        taken = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
        for path in (source, target):
            if os.path.realpath(path) in taken:
                raise PermissionError(errno.EACCES, "The process cannot access the file: it is open", str(path))
        move(source, target)

    return moved
