"""Arrays and parameters as bytes and as JSON: the one codec of files and messages.

Layout: the line `fedscape 1`, the length of the header as eight bytes, the header (JSON), the arrays' bytes one after
the other, and the SHA-256 of all that. Nothing in it can execute; declared sizes are compared with the bytes at hand
before anything is allocated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.errors import CheckpointError
from fedscape.types import Array, Arrays

_MAGIC = b"fedscape 1\n"
_DIGEST = hashlib.sha256().digest_size
_DTYPE = re.compile(r"[<>|=](b1|[iu][1248]|f[248]|c(8|16)|U[1-9]\d{0,5}|U0)")
_DEEPEST = 8  # parameters within parameters


def pack(arrays: Mapping[str, Array], header: Mapping[str, Any]) -> bytes:
    """Arrays and a header as bytes, for a file or a message; the same arrays and header give the same bytes.

    >>> unpack(pack({"x": np.arange(3)}, {"round": 4}))[1]
    {'round': 4}
    """
    body = b"".join(parts_of(arrays, header))
    return body + hashlib.sha256(body).digest()


def parts_of(arrays: Mapping[str, Array], header: Mapping[str, Any]) -> list[bytes]:
    """The bytes of `pack` in parts, without the digest at their end: what a large file is written from."""
    solid = {name: np.asarray(values) for name, values in arrays.items()}
    for name, values in solid.items():
        if not _DTYPE.fullmatch(values.dtype.str):
            raise CheckpointError(f"array {name!r} of type {values.dtype} cannot be saved: only numbers and texts can")
    listing = [{"name": n, "dtype": v.dtype.str, "shape": list(v.shape)} for n, v in solid.items()]
    text = json.dumps({"arrays": listing, "header": dict(header)}, sort_keys=True).encode()
    return [_MAGIC, len(text).to_bytes(8, "little"), text, *(v.tobytes() for v in solid.values())]


def unpack(
    content: bytes, what: str = "what was received", *, largest_header: int | None = None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and header of the bytes of `pack`; torn, damaged and foreign bytes are refused, and longer headers."""
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


def prefixed(arrays: Mapping[str, Array], prefix: str) -> Arrays:
    """The arrays under this prefix, without it.

    >>> prefixed({"state/x": np.arange(2), "ids": np.arange(3)}, "state/")
    {'x': array([0, 1])}
    """
    return {name[len(prefix) :]: values for name, values in arrays.items() if name.startswith(prefix)}


def plain_of_ragged(kept: Mapping[str, Ragged], prefix: str) -> Arrays:
    """Ragged arrays as plain ones, under this prefix.

    >>> kept = {"own": Ragged(np.arange(3), np.array([0, 1, 3]))}
    >>> list(plain_of_ragged(kept, "kept/"))
    ['kept/own/flat', 'kept/own/offsets']
    >>> ragged_of_plain(plain_of_ragged(kept, "kept/"), "kept/")["own"].lengths
    array([1, 2])
    """
    arrays: Arrays = {}
    for name, ragged in kept.items():
        arrays[f"{prefix}{name}/flat"], arrays[f"{prefix}{name}/offsets"] = ragged
    return arrays


def ragged_of_plain(arrays: Mapping[str, Array], prefix: str) -> dict[str, Ragged]:
    """What `plain_of_ragged` wrote under this prefix."""
    under = prefixed(arrays, prefix)
    names = [name.removesuffix("/flat") for name in under if name.endswith("/flat")]
    return {name: Ragged(under[f"{name}/flat"], under[f"{name}/offsets"]) for name in names}


# -- parameters --------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A parameter as JSON that people read: arrays and tuples are lists, and come back as lists.

    >>> plain({"rate": np.float64(0.5), "ends": (0, np.arange(2))})
    {'rate': 0.5, 'ends': [0, [0, 1]]}
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Sequence | range) and not isinstance(value, str):
        return [plain(each) for each in value]
    return value


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """A parameter as JSON from which `decode` makes the same again.

    Parameters
    ----------
    value
        None, a number, a text, an array of numbers or texts, or lists and tuples of such.
    other
        Encodes what is none of these, as a dict with a tag of its own; without it, or where it raises, a TypeError.

    >>> decode(encode((1, [0.5, None], np.arange(3, dtype=np.int8))))
    (1, [0.5, None], array([0, 1, 2], dtype=int8))
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [encode(each, other) for each in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        return {"array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    if other is None:
        raise TypeError(f"a {type(value).__name__} is neither a number nor a text nor an array")
    return other(value)


def decode(value: Any, other: Callable[[Mapping[str, Any], int], Any] | None = None, depth: int = 0) -> Any:
    """What `encode` wrote; anything else is a ValueError, whose text carries nothing of it.

    Parameters
    ----------
    value
        The JSON.
    other
        Decodes a dict with another tag, at this depth.
    depth
        How many lists and dicts it is in; deeper than 8 is refused.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > _DEEPEST or not isinstance(value, dict):
        raise ValueError("an argument that is neither a number nor a text nor an array")
    if "array" in value:
        return _decode_array(value["array"])
    if "tuple" in value or "list" in value:
        items = [decode(each, other, depth + 1) for each in value["tuple" if "tuple" in value else "list"]]
        return tuple(items) if "tuple" in value else items
    if other is None:
        raise ValueError("an argument that is neither a number nor a text nor an array")
    return other(value, depth)


def _decode_array(value: Any) -> Array:
    try:
        dtype, shape, text = value
        kind = np.dtype(dtype) if _DTYPE.fullmatch(dtype) else None
        if kind is None or kind.kind not in "biufU" or any(not isinstance(n, int) or n < 0 for n in shape):
            raise ValueError
        if len(text) != 4 * -(-math.prod(shape) * kind.itemsize // 3):
            raise ValueError
        return np.frombuffer(base64.b64decode(text, validate=True), kind).reshape(shape).copy()
    except (ValueError, TypeError, binascii.Error):
        raise ValueError("an array whose size and shape disagree") from None
