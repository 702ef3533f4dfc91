"""Messages between a server and its nodes: one checksummed container of arrays and JSON, never code.

`computations.py` encodes computations.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from fedscape.core import codec
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.engines.flower.library import Array as FlowerArray
from fedscape.engines.flower.library import ArrayRecord, RecordDict
from fedscape.errors import CheckpointError
from fedscape.privacy.mechanisms import AdaptiveClip, Gaussian, Laplace, Privacy
from fedscape.privacy.release import Release, digest_of
from fedscape.types import Arrays

ACTION = "fedscape"  # messages are of the type query.fedscape
FORMAT = 2

_ORDER = re.compile(r"(\d{1,18}) ([0-9a-f]{16}) (\d{1,18})")
_HEADER = 2**22  # bytes: parsed JSON takes many times its size
_MECHANISMS: dict[str, type[Privacy]] = {"Gaussian": Gaussian, "Laplace": Laplace}


class Unreadable(Exception):
    """The received message is invalid; the text is written here and repeats nothing of the message."""


class Away(Exception):
    """Failure on a node after it read data. The server sees the node as away; the text stays in the node's log."""


# -- envelopes ---------------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """Order of the requests of a run, independent of clocks.

    `life` counts how often the run was resumed from a checkpoint. A checkpoint can be resumed twice, so each time has
    its own `name`. `number` counts the requests since then.
    """

    life: int
    name: str
    number: int

    def overtaken(self, last: Order, past_servers: Sequence[str]) -> bool:
        """Whether the request is older than the last answered one; `past_servers` are known to be gone."""
        if self.life != last.life:
            return self.life < last.life
        return self.number < last.number if self.name == last.name else self.name in past_servers


def enclose(blob: bytes, order: Order | None = None) -> Any:
    """The content of a message; the order is beside the blob, so a retry is the same request."""
    parts = {"blob": blob} if order is None else {"blob": blob, "order": " ".join(map(str, order)).encode()}
    arrays = {n: FlowerArray(dtype="uint8", shape=(len(v),), stype="fedscape", data=v) for n, v in parts.items()}
    return RecordDict({ACTION: ArrayRecord(arrays)})


def order_of(content: Any) -> Order:
    """The order of a request."""
    try:
        match = _ORDER.fullmatch(content[ACTION]["order"].data.decode())
    except (KeyError, TypeError, AttributeError, ValueError):
        match = None
    if match is None:
        raise Unreadable("a request that does not say when it was made")
    return Order(int(match[1]), match[2], int(match[3]))


def disclose(content: Any, largest: float = np.inf) -> bytes:
    """The bytes in the content of a message, if it is one of ours and not too large."""
    try:
        array = content[ACTION]["blob"]
        blob = array.data
        if array.stype != "fedscape" or not isinstance(blob, bytes):
            raise Unreadable("not a message of fedscape")
    except (KeyError, TypeError, AttributeError):
        raise Unreadable("not a message of fedscape") from None
    if len(blob) > largest:
        raise Unreadable("larger than allowed")
    return blob


def read(blob: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the header."""
    try:
        arrays, header = codec.unpack(blob, largest_header=_HEADER)
    except CheckpointError:
        raise Unreadable("torn, damaged or foreign") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Unreadable("of another format")
    return arrays, header


def digest(blob: bytes) -> str:
    """The digest by which a reply names its request."""
    return hashlib.sha256(blob).hexdigest()


def question_of(arrays: Arrays, header: Mapping[str, Any]) -> bytes:
    """A digest of what a request asks of every node: all but the node's own clients, kept version and shares."""
    own = ("cohort", "state/of_client.")
    shared = {name: values for name, values in arrays.items() if not name.startswith(own)}
    about = {name: value for name, value in header.items() if name != "closed"}
    if isinstance(about.get("secure"), dict):
        about["secure"] = {name: value for name, value in about["secure"].items() if name != "received"}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode() + digest_of(shared)).digest()


def narrow(values: Any) -> Any:
    """The same numbers in a smaller dtype if it is lossless: whole numbers that fit, floats that are float32.

    >>> narrow(np.array([3, 200])).dtype.name, narrow(np.array([0.5])).dtype.name, narrow(np.array([0.1])).dtype.name
    ('uint8', 'float32', 'float64')
    """
    if values.dtype == np.int64 and values.size:
        kind = np.promote_types(np.min_scalar_type(values.min()), np.min_scalar_type(values.max()))
        return values.astype(kind) if kind.kind in "iu" and kind.itemsize < 8 else values
    if values.dtype == np.float64:
        with np.errstate(over="ignore"):
            half = values.astype(np.float32)
        return half if np.array_equal(half, values) else values
    return values


def one_line(text: object, *, longest: int = 200) -> str:
    r"""Text from the other side as one line of bounded length: it cannot forge lines of a log.

    >>> one_line("no\nround 9, node 3: forged")
    'no\\nround 9, node 3: forged'
    """
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text)[:longest])
    return "".join(shown)


# -- releases ----------------------------------------------------------------------------------------------------------


def release_written(release: Release | None) -> dict[str, Any] | None:
    """A release as JSON, without its key: the key of central noise is the server's secret."""
    if release is None:
        return None
    mechanism = release.privacy
    about = {f.name: getattr(mechanism, f.name) for f in fields(mechanism) if f.name != "noise_seed"}
    if isinstance(mechanism.clip, AdaptiveClip):
        about["clip"] = {f.name: getattr(mechanism.clip, f.name) for f in fields(AdaptiveClip)}
    about["scales"] = dict(mechanism.scales)
    return {
        "mechanism": type(mechanism).__name__,
        "privacy": about,
        "clip": float(release.clip),
        "counted": release.counted,
        "min_clients": release.min_clients,
    }


def release_read(
    about: Mapping[str, Any] | None, key: bytes, computation: Computation, state: Arrays, clients: Federation
) -> Release | None:
    """Read a release, with the node's own key and its own bound on the effect of a row, from its column types."""
    if about is None:
        return None
    try:
        settings = dict(about["privacy"])
        if isinstance(settings["clip"], dict):
            settings["clip"] = AdaptiveClip(**settings["clip"])
        privacy = _MECHANISMS[about["mechanism"]](**settings)
        bound = computation.row_bound(state, privacy.norm, clients) if privacy.unit == "row" else None
        clip, counted, number = about["clip"], about["counted"], about["min_clients"]
        if not (isinstance(clip, float) and 0 < clip < np.inf and isinstance(counted, bool) and int(number) >= 1):
            raise Unreadable("a clip or a number of clients that cannot be")
        return Release(privacy, clip, key, counted, int(number), bound)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unreadable("not a mechanism of privacy") from None
