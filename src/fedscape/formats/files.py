"""Read and write files: errors in one line, writes atomic."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedscape import disk
from fedscape.errors import DataError, FedscapeError

Name = str | os.PathLike[str]


def one_line(error: BaseException) -> str:
    """The message of an error, on one line of bounded length."""
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= 300 else line[:300] + "..."


@contextmanager
def reading(path: Name, what: str) -> Iterator[None]:
    """Turn any exception of a parser into one DataError that names the file.

    Parsers of untrusted bytes raise nearly anything (ArrowInvalid, OSError, UnicodeDecodeError, MemoryError,
    RecursionError, ...). This is the only place that catches everything; our own errors pass through.
    """
    try:
        yield
    except FedscapeError:
        raise
    except Exception as error:
        raise DataError(f"{os.fspath(path)} is not a readable {what}: {one_line(error)}") from error


def files_in(path: Name, ending: str) -> list[Path]:
    """The file, or the files with this ending in the folder, sorted by name."""
    folder = Path(path)
    if folder.is_dir():
        paths = sorted(entry for entry in folder.iterdir() if entry.name.endswith(ending) and entry.is_file())
        if not paths:
            raise DataError(f"the folder {folder} holds no {ending} file: name the right folder, or one file")
        return paths
    if not folder.is_file():
        raise DataError(f"there is no file {folder}: check the path")
    return [folder]


@contextmanager
def new_file(path: Name, *, overwrite: bool) -> Iterator[Path]:
    """Yield a draft path that replaces `path` when the block ends, and is removed on an error."""
    target = free_target(path, overwrite=overwrite)
    if target.is_dir():
        raise DataError(f"{os.fspath(path)} is a folder: name a file")
    draft = draft_beside(target)
    with writing(path):
        try:
            yield draft
            disk.sync(draft)
            os.replace(draft, target)
            disk.sync(target.parent)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Name, *, overwrite: bool, mark: str) -> Iterator[Path]:
    """Yield a draft folder that replaces `path` when the block ends, and is removed on an error.

    An existing folder is replaced only if it holds the file `mark`. No other folder is ever removed, nor one that
    appears while the block runs.
    """
    target = _replaceable(path, overwrite, mark)
    draft = draft_beside(target)
    with writing(path):
        try:
            draft.mkdir()
            yield draft
            for entry in (*draft.rglob("*"), draft):
                disk.sync(entry)
            _replaceable(target, overwrite, mark)
            _put_in_place(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def free_target(path: Name, *, overwrite: bool) -> Path:
    """Resolve the path to write to; refuse an existing one without `overwrite`."""
    target = Path(os.path.realpath(path))
    if target.exists() and not overwrite:
        raise DataError(f"{os.fspath(path)} exists already: choose another path or pass overwrite=True")
    return target


def _replaceable(path: Name, overwrite: bool, mark: str) -> Path:
    """Resolve the folder to write to; refuse one that may not be replaced."""
    target = free_target(path, overwrite=overwrite)
    if target.exists() and not (target / mark).is_file():
        raise DataError(f"{os.fspath(path)} holds no {mark}, so it is not replaced: choose another path")
    return target


def draft_beside(target: Path) -> Path:
    """Pick a free name in the same folder, where a rename stays on one file system."""
    return target.with_name(f".fedscape-{secrets.token_hex(8)}.tmp")


@contextmanager
def writing(path: Name) -> Iterator[None]:
    """Turn an OSError into one DataError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{os.fspath(path)} cannot be written, and nothing was left behind: {one_line(error)}"
        ) from error


def _put_in_place(draft: Path, target: Path) -> None:
    if not target.exists():
        os.rename(draft, target)
        disk.sync(target.parent)
        return
    if disk.exchanged(draft, target):  # a kill leaves the old folder or the new one under the name, never none
        disk.sync(target.parent)
        return
    old = draft_beside(target)
    os.rename(target, old)
    try:
        os.rename(draft, target)
    except OSError:
        if target.exists():  # another process has put its folder there
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, target)
        raise
    disk.sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
