"""NumPy's .npz archives from anyone: sizes are compared before memory is taken, and nothing is unpickled."""

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
    """The bytes that a compressed file may unpack to: one GiB, or what the variable FEDSCAPE_LIMIT says."""
    text = os.environ.get(VARIABLE, str(LIMIT))
    if not text.isascii() or not text.isdigit():
        raise DataError(f"{VARIABLE} must be a number of bytes, not {text!r}")
    return int(text)


def read_npz(path: Name, content: bytes | None = None, *, limit: int | None = None) -> dict[str, Array]:
    """The arrays of an .npz file, or a DataError.

    Each array's header must agree with the size that the archive states for it, and all of them together must stay
    within the limit: a few MB of compressed zeros can state any size.

    Parameters
    ----------
    path
        The file; with `content`, only its name in messages.
    content
        The file's bytes, where they are at hand.
    limit
        The bytes that the arrays may take; None takes `unpacked_limit()`.
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
    """What a .gz file unpacks to, or a DataError where that is more than `unpacked_limit()`."""
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
