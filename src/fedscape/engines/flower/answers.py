"""The answer of a node: its bytes, and its line in the owner's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core import codec
from fedscape.core.blocks import Reply, on_host
from fedscape.engines.flower import wire
from fedscape.privacy.release import Release
from fedscape.types import Arrays

if TYPE_CHECKING:
    from fedscape.engines.flower.secure_node import Envelope


def written(
    reply: Reply,
    digest: str,
    *,
    keeps: bool,
    release: Release | None,
    metrics: Release | None,
    envelope: Envelope | None,
    shown: Sequence[str],
) -> bytes:
    """The answer of a round; with an envelope everything is masked except arrays revealed per client."""
    total = {f"total/{name}": values for name, values in on_host(reply.total).items() if name != "clients"}
    measured = {f"metrics/{name}": values for name, values in reply.metrics.items()}
    sealed: dict[str, Any] = {}
    if envelope is not None:
        clear = {f"total/{name}" for name in (*shown, "ids")}
        hidden = {**{n: v for n, v in total.items() if n not in clear}, **measured}
        words, sealed = envelope.seal(hidden, released=release is not None)
        total, measured = {**{n: v for n, v in total.items() if n in clear}, **words}, {}
    elif release is None:  # clipped arrays stay 8-byte integers, all of one size
        total = {name: wire.narrow(values) for name, values in total.items()}
    about = {
        "clients": reply.clients,
        "keeps": keeps,
        "grids": {} if release is None else dict(release.grids),
        "measure_grids": {} if metrics is None else dict(metrics.grids),
        **sealed,
    }
    return packed({**total, **measured}, digest, **about)


def log_line(reply: Reply, release: Release | None, *, masked: bool) -> str:
    """The line of the owner's log for an answer; it does not depend on rows."""
    numbers = sum(int(np.prod(np.shape(v))) for v in (*reply.total.values(), *reply.metrics.values())) - 1
    noise = "none" if release is None else release.privacy.place
    return f"{numbers} numbers of {reply.clients} clients, {'masked' if masked else 'as sums'}, noise: {noise}"


def packed(arrays: Arrays, request: str, **about: Any) -> bytes:
    """Pack arrays and a header that names the request they answer."""
    return codec.pack(on_host(arrays), {"format": wire.FORMAT, "request": request, **about})
