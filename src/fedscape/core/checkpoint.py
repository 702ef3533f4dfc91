"""Files that are whole or not there: arrays and a JSON header in one checksummed container.

Layout: the line `fedscape 1`, the length of the header as eight bytes, the header (JSON), the arrays' bytes one after
the other, and the SHA-256 of all that. Nothing in it can execute; sizes are compared with the file before anything is
allocated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedscape.core.random import Array
from fedscape.errors import CheckpointError

_MAGIC = b"fedscape 1\n"
_DIGEST = hashlib.sha256().digest_size
_DTYPE = re.compile(r"[<>|=](b1|[iu][1248]|f[248]|c(8|16)|U[1-9]\d{0,5}|U0)")


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
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder + "/a.ckpt", {"x": np.arange(3)}, {"round": 4})
    ...     arrays, header = read(folder + "/a.ckpt")
    >>> arrays["x"].tolist(), header["round"]
    ([0, 1, 2], 4)
    """
    parts = _parts(arrays, header)

    def fill(file: IO[bytes]) -> None:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
            file.write(part)
        file.write(digest.digest())

    replace_file(path, fill, private=secret)


def pack(arrays: Mapping[str, Array], header: Mapping[str, Any]) -> bytes:
    """The bytes of such a file, to be sent instead of stored; the same arrays and header give the same bytes.

    >>> unpack(pack({"x": np.arange(3)}, {"round": 4}))[1]
    {'round': 4}
    """
    body = b"".join(_parts(arrays, header))
    return body + hashlib.sha256(body).digest()


def _parts(arrays: Mapping[str, Array], header: Mapping[str, Any]) -> list[bytes]:
    solid = {name: np.asarray(values) for name, values in arrays.items()}
    for name, values in solid.items():
        if not _DTYPE.fullmatch(values.dtype.str):
            raise CheckpointError(f"array {name!r} of type {values.dtype} cannot be saved: only numbers and texts can")
    listing = [{"name": n, "dtype": v.dtype.str, "shape": list(v.shape)} for n, v in solid.items()]
    text = json.dumps({"arrays": listing, "header": dict(header)}, sort_keys=True).encode()
    return [_MAGIC, len(text).to_bytes(8, "little"), text, *(v.tobytes() for v in solid.values())]


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read a file of `write`; a torn, damaged or foreign one is refused."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise CheckpointError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
    return unpack(content, os.fspath(path))


def unpack(
    content: bytes, what: str = "what was received", *, largest_header: int | None = None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read bytes of `pack` or of a file; torn, damaged or foreign ones are refused, and headers of more bytes."""
    if not content.startswith(_MAGIC):
        raise CheckpointError(f"{what} is not a fedscape checkpoint")
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise CheckpointError(f"{what} is torn or damaged: its checksum does not match; use an older checkpoint")
    try:
        return _unpack(memoryview(body), len(body) if largest_header is None else largest_header)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{what} is not a checkpoint this version can read: {error}") from None


def _unpack(body: memoryview, largest_header: int) -> tuple[dict[str, Array], dict[str, Any]]:
    begin = len(_MAGIC) + 8
    end = begin + int.from_bytes(body[len(_MAGIC) : begin], "little")
    if end > len(body):
        raise ValueError("the header is longer than the file")
    if end - begin > largest_header:
        raise ValueError(f"the header has {end - begin} bytes, more than {largest_header}")
    described = json.loads(bytes(body[begin:end]))
    arrays: dict[str, Array] = {}
    for entry in described["arrays"]:
        if not _DTYPE.fullmatch(entry["dtype"]) or any(not isinstance(n, int) or n < 0 for n in entry["shape"]):
            raise ValueError(f"array {entry['name']!r} is described as {entry['dtype']}{entry['shape']}")
        dtype = np.dtype(entry["dtype"])
        number = 1
        for n in entry["shape"]:
            number *= n
        if end + number * dtype.itemsize > len(body):
            raise ValueError(f"array {entry['name']!r} is longer than the file")
        values = np.frombuffer(body, dtype, count=number, offset=end) if number else np.empty(0, dtype)
        arrays[entry["name"]] = values.reshape(entry["shape"]).copy()
        end += number * dtype.itemsize
    if end != len(body):
        raise ValueError(f"{len(body) - end} bytes are left over")
    return arrays, described["header"]


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
            os.chmod(temporary, 0o600 if private else 0o666 & ~_umask())
            os.replace(temporary, target)
        _sync_folder(target.parent)
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


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
