"""What a node keeps on its own disk: its ledger, and the last two versions of what its clients keep.

    FOLDER/ledger.jsonl      what left this node, and what it cost
    FOLDER/log.txt           why something was refused or failed, in full; it never leaves
    FOLDER/runs/RUN/N.kept   what clients keep after request N of a run, and the reply that was given

All of it is readable by its owner alone. Files are whole or not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedscape import checkpoint
from fedscape.engines import _wire
from fedscape.ragged import Ragged

_RUNS = 4  # how many runs' versions stay: a fit has several phases, and may go back to one
_RUN = re.compile(r"[0-9a-f]{32}")
_LOG = 2**20
_GONE = 100


class Folder:
    """The folder of one node."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.path / "runs").mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder: two requests are answered one after the other."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    def log(self, text: str) -> None:
        """Write down, here and nowhere else, what happened."""
        path = self.path / "log.txt"
        if path.exists() and path.stat().st_size > _LOG:
            os.replace(path, path.with_suffix(".old"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")

    # -- versions ------------------------------------------------------------------------------------------------------

    def versions(self, run: str) -> list[int]:
        """The requests of a run after which something is stored here, rising."""
        return sorted(int(file.stem) for file in self._run(run).glob("*.kept"))

    def replied(self, run: str, number: int, request: str) -> bytes | None:
        """The reply that was given to this very request, if it was asked before."""
        if number not in self.versions(run):
            return None
        arrays, header = checkpoint.read(self._file(run, number))
        return arrays["reply"].tobytes() if header["request"] == request else None

    def go_back(self, run: str, closed: int, order: _wire.Order) -> tuple[dict[str, Ragged], list[str]]:
        """What clients kept after the request `closed` (-1: nothing yet); whatever came later is dropped.

        A request made before one that was answered has been under way too long: it must not undo what came after. With
        what was kept comes which servers of this run are known to be gone.
        """
        found = {number: checkpoint.read(self._file(run, number)) for number in self.versions(run)}
        gone: list[str] = []
        if found:
            newest = found[max(found)][1]
            last, gone = _wire.Order(*newest["order"]), newest["gone"]
            if order.overtaken(last, gone):
                raise _wire.Unreadable("older than one that was answered before")
            gone = gone if order.name == last.name else [*gone, last.name][-_GONE:]
        if closed >= 0 and closed not in found:
            raise _wire.Unreadable("a round to go on from that this node does not hold any more")
        for number in found:
            if number > closed:
                self._file(run, number).unlink()
        if closed < 0:
            return {}, gone
        arrays = _wire.prefixed(found[closed][0], "kept/")
        names = [name.removesuffix("/flat") for name in arrays if name.endswith("/flat")]
        return {name: Ragged(arrays[f"{name}/flat"], arrays[f"{name}/offsets"]) for name in names}, gone

    def store(
        self,
        run: str,
        number: int,
        *,
        kept: Mapping[str, Ragged],
        request: str,
        reply: bytes,
        order: _wire.Order,
        gone: Sequence[str],
    ) -> None:
        """Keep this version and the one before; older ones go, and so do the oldest runs."""
        self._run(run).mkdir(mode=0o700, exist_ok=True)
        arrays = dict(_wire.flat(kept, "kept/"))
        arrays["reply"] = np.frombuffer(reply, dtype=np.uint8)
        checkpoint.write(
            self._file(run, number), arrays, {"request": request, "order": list(order), "gone": list(gone)}, secret=True
        )
        for old in self.versions(run)[:-2]:
            self._file(run, old).unlink()
        others = (folder for folder in (self.path / "runs").iterdir() if folder.name != run)
        for folder in sorted(others, key=lambda folder: folder.stat().st_mtime)[: 1 - _RUNS]:
            shutil.rmtree(folder)

    def _run(self, run: str) -> Path:
        if not _RUN.fullmatch(run):
            raise _wire.Unreadable("a run without a proper name")
        return self.path / "runs" / run

    def _file(self, run: str, number: int) -> Path:
        return self._run(run) / f"{number}.kept"
