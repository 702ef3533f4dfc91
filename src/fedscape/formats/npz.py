"""Read untrusted .npz archives: check sizes before allocating memory, never unpickle."""

from __future__ import annotations

import gzip
import io
import math
import os
import zipfile
from typing import IO

import numpy as np

from fedscape.errors import DataError
from fedscape.formats.files import Name, reading
from fedscape.types import Array

LIMIT = 2**30
VARIABLE = "FEDSCAPE_LIMIT"
_CHUNK = 2**20
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def unpacked_limit() -> int:
    """Maximum bytes a compressed file may unpack to: one GiB, or the value of FEDSCAPE_LIMIT."""
    text = os.environ.get(VARIABLE, str(LIMIT))
    if not text.isascii() or not text.isdigit():
        raise DataError(f"{VARIABLE} must be a number of bytes, not {text!r}")
    return int(text)


def read_npz(path: Name, content: bytes | None = None, *, limit: int | None = None) -> dict[str, Array]:
    """Read the arrays of an .npz file, or raise a DataError.

    Each array's header must agree with the size stated in the archive, and the total must stay within the limit. A few
    MB of compressed zeros can state any size.

    Parameters
    ----------
    path
        The file; with `content`, only the name for messages.
    content
        The file's bytes, if already read.
    limit
        Maximum bytes of all arrays; None takes `unpacked_limit()`.
    """
    most = unpacked_limit() if limit is None else limit
    with reading(path, "npz file"), _opened(path, content) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > most:
            hint = f"; if you trust it, set {VARIABLE}={total}" if limit is None else ""
            raise DataError(
                f"{os.fspath(path)} would unpack to {total:,} bytes, more than the {most:,} allowed; not read{hint}"
            )
        arrays = {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
        if len(arrays) < len(members):
            raise ValueError("it names an array twice")
        return arrays


def read_gzip(path: Name) -> bytes:
    """Unpack a .gz file, or raise a DataError above `unpacked_limit()`."""
    most = unpacked_limit()
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DataError(
            f"{os.fspath(path)} unpacks to more than the {most:,} bytes allowed; if you trust it, set {VARIABLE}"
        )
    return data


def _opened(path: Name, content: bytes | None) -> IO[bytes]:
    return open(path, "rb") if content is None else io.BytesIO(content)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"array {member.filename!r} has a header of version {version}")
        shape, columns_first, dtype = _HEADERS[version](stream)
        if dtype.hasobject or dtype.kind not in "biufcmMSU":
            raise ValueError(f"array {member.filename!r} holds {dtype}, which is neither numbers nor texts")
        size = dtype.itemsize * math.prod(shape)
        if stream.tell() + size != member.file_size:
            raise ValueError(
                f"array {member.filename!r} says {dtype}{list(shape)}, {size:,} bytes, but has {member.file_size:,} "
                "with its header"
            )
        body = bytearray(size)
        end = 0
        while chunk := stream.read(_CHUNK):
            body[end : end + len(chunk)] = chunk
            end += len(chunk)
        if end != size:
            raise ValueError(f"array {member.filename!r} is cut short")
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(body, dtype).reshape(shape, order="F" if columns_first else "C")
