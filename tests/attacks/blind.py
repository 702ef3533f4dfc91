"""Releases that no row has touched: in place of the real ones they leave nothing to tell of any row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest

from fedscape.core.history import History
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.release import Release

CLIENTS = 41  # what every release says of their number
_SECRET = ("run", "id", "digest", "sum", "before", "last", "seconds")  # drawn anew in every run, or time


@contextmanager
def nothing_released(monkeypatch: pytest.MonkeyPatch, size: float = 30.0) -> Iterator[None]:
    """Within it every release has numbers of its own, the same in every run: whatever follows rows came another way."""
    numbers = count()

    def on_total(self: Release, total: Any, reported: int) -> Any:
        out = {}
        for name, cells in total.items():
            if name.startswith("privacy."):
                continue
            text = f"{next(numbers)} {name} {cells.shape}"
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
            out[name] = np.random.default_rng(seed).uniform(0.2, 1.0, cells.shape) * size
        self.inside = 0.5
        return {**out, "clients": np.asarray(float(CLIENTS))}

    with monkeypatch.context() as blind:
        blind.setattr(Release, "on_total", on_total)
        yield


def told(value: Any, depth: int = 0) -> Any:
    """All that an object holds, as plain values that can be compared; without times and random names."""
    if isinstance(value, np.ndarray):
        return (
            value.dtype.str,
            value.shape,
            value.tobytes().hex() if value.dtype.kind != "O" else repr(value.tolist()),
        )
    if isinstance(value, Ledger):
        return [told({k: v for k, v in line.items() if k not in _SECRET}) for line in value.entries()]
    if isinstance(value, History):
        return [value.private, list(value.notes), [told({k: v for k, v in r.items() if k != "seconds"}) for r in value]]
    if isinstance(value, dict):
        return [(str(k), told(v, depth)) for k, v in sorted(value.items(), key=lambda item: str(item[0]))]
    if isinstance(value, list | tuple):
        return [told(v, depth) for v in value]
    if (
        hasattr(value, "__dict__")
        and depth < 4
        and not isinstance(value, type)
        and type(value).__module__ != "builtins"
    ):
        own = {k: v for k, v in vars(value).items() if not callable(v)}
        return [type(value).__qualname__, told(own, depth + 1)]
    return repr(value)


def outcome(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any], size: float = 30.0) -> Any:
    """What work gives or refuses, and all warnings, with releases that no row has touched."""
    import warnings

    with nothing_released(monkeypatch, size), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = told(work())
        except Exception as error:
            result = (type(error).__name__, str(error))
    return result, [str(w.message) for w in said]


def sums_of(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any], size: float = 30.0) -> list[dict[str, Any]]:
    """The exact sums of each release, in units of the clip, where what was released before tells nothing."""
    seen: list[dict[str, Any]] = []
    with nothing_released(monkeypatch, size), monkeypatch.context() as watching:
        blind = Release.on_total

        def on_total(self: Release, total: Any, reported: int) -> Any:
            lengths = {
                n: v * (self._grids[n] / self._scale(n) / self.clip) for n, v in total.items() if n in self._grids
            }
            seen.append({**lengths, "clients": reported})
            return blind(self, total, reported)

        watching.setattr(Release, "on_total", on_total)
        work()
    return seen


def moved(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far two sums of a release are apart, in clips."""
    assert {n: np.shape(v) for n, v in one.items()} == {n: np.shape(v) for n, v in other.items()}
    return float(np.sqrt(sum(((one[n] - other[n]) ** 2).sum() for n in one if n != "clients")))
