"""Files that are whole or not there: the container of `codec`, written in one move."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fedscape import disk
from fedscape.core.codec import parts_of, unpack
from fedscape.errors import CheckpointError
from fedscape.types import Array


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], header: Mapping[str, Any], *, secret: bool = False
) -> None:
    """Write arrays and a header to one file, atomically.

    Parameters
    ----------
    path
        The file; an older one is replaced only when the new one is complete and on disk.
    arrays
        Plain arrays of numbers or texts.
    header
        Anything JSON can say.
    secret
        Whether the file holds a secret: readable by its owner alone.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder + "/a.ckpt", {"x": np.arange(3)}, {"round": 4})
    ...     arrays, header = read(folder + "/a.ckpt")
    >>> arrays["x"].tolist(), header["round"]
    ([0, 1, 2], 4)
    """
    parts = parts_of(arrays, header)

    def fill(file: IO[bytes]) -> None:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
            file.write(part)
        file.write(digest.digest())

    replace_file(path, fill, private=secret)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read a file of `write`; a torn, damaged or foreign one is refused."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise CheckpointError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
    return unpack(content, os.fspath(path))


def replace_file(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], object], *, private: bool = False) -> None:
    """Write a file beside `path`, bring it to disk, and put it in place in one move; on failure nothing changes.

    A private file can be read by its owner alone (mode 0600); others get the mode that the process gives new files.
    """
    target = Path(path)
    try:
        with _beside(target) as (file, temporary):
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            file.close()  # Windows moves no open file
            os.chmod(temporary, 0o600 if private else 0o666 & ~_umask())
            os.replace(temporary, target)
        disk.sync(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{target} cannot be written: {error.strerror or error}; what was there is unchanged"
        ) from None


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[tuple[IO[bytes], str]]:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
