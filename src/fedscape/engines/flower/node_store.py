"""What a node keeps on its own disk: its ledger, and the last two versions of what its clients keep.

    FOLDER/terms.toml        the owner's terms (owner_terms.py)
    FOLDER/ledger.jsonl      what left this node, and what it cost
    FOLDER/log.jsonl         what was asked, and whether it was answered, refused or failed, in full; it never leaves
    FOLDER/failed.json       runs in which an answer failed after data were read
    FOLDER/runs/RUN/N.kept   what clients keep after request N of a run, and the reply that was given

All of it is readable by its owner alone. Files are whole or not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core import checkpoint, codec
from fedscape.core.arrays import Ragged
from fedscape.engines.flower import wire
from fedscape.errors import PrivacyError

_RUNS = 4  # how many runs' versions stay: a fit has several phases, and may go back to one
_RUN = re.compile(r"[0-9a-f]{32}")
_LOG = 2**20  # bytes of the log, and of the older part that is kept beside it
_GONE = 100
_STRIKES = 3  # a run is not answered any more after one failure, or so many answers that a killed process left open
FAILURES = 64  # runs that may fail; then none is answered until the owner has removed failed.json


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

    def log(self, outcome: str, **about: Any) -> None:
        """Write down, here and nowhere else, what was asked and what came of it."""
        path = self.path / "log.jsonl"
        if path.exists() and path.stat().st_size > _LOG:
            os.replace(path, path.with_suffix(".old"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "outcome": outcome, **about}
        with os.fdopen(handle, "a") as file:
            file.write(json.dumps(line) + "\n")
        level = logging.INFO if outcome in ("answered", "repeated") else logging.WARNING
        logging.getLogger("fedscape.node").log(level, json.dumps({"event": "request", **line}))

    # -- failures ------------------------------------------------------------------------------------------------------

    def blocked(self, run: str) -> bool:
        """Whether this run is not answered any more: it failed, or too many others did."""
        self._run(run)
        strikes = failures(self.path)
        return strikes.get(run, 0) >= _STRIKES or (run not in strikes and len(strikes) >= FAILURES)

    @contextlib.contextmanager
    def attempt(self, run: str) -> Iterator[None]:
        """Answer within it. Refusals pass; after any other error, which may depend on rows, the run is over.

        The attempt is on disk before it begins: a process that is killed cannot take its strike back.
        """
        before = failures(self.path).get(run, 0)
        self._strike(run, before + 1)
        try:
            yield
        except (wire.Unreadable, PrivacyError):
            self._strike(run, before)
            raise
        except Exception:
            self._strike(run, _STRIKES)
            raise
        self._strike(run, before)

    def _strike(self, run: str, number: int) -> None:
        strikes = {**failures(self.path), run: number}
        text = json.dumps({name: n for name, n in strikes.items() if n}).encode()
        checkpoint.replace_file(self.path / "failed.json", lambda file: file.write(text), private=True)

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

    def go_back(self, run: str, closed: int, order: wire.Order) -> tuple[dict[str, Ragged], list[str]]:
        """What clients kept after the request `closed` (-1: nothing yet); whatever came later is dropped.

        A request made before one that was answered has been under way too long: it must not undo what came after. With
        what was kept comes which servers of this run are known to be gone.
        """
        stored = {number: checkpoint.read(self._file(run, number)) for number in self.versions(run)}
        gone: list[str] = []
        if stored:
            newest = stored[max(stored)][1]
            last, gone = wire.Order(*newest["order"]), newest["gone"]
            if order.overtaken(last, gone):
                raise wire.Unreadable("older than one that was answered before")
            gone = gone if order.name == last.name else [*gone, last.name][-_GONE:]
        if closed >= 0 and closed not in stored:
            raise wire.Unreadable("a round to go on from that this node does not hold any more")
        for number in stored:
            if number > closed:
                self._file(run, number).unlink()
        if closed < 0:
            return {}, gone
        return codec.ragged_of_plain(stored[closed][0], "kept/"), gone

    def store(
        self,
        run: str,
        number: int,
        *,
        kept: Mapping[str, Ragged],
        request: str,
        reply: bytes,
        order: wire.Order,
        gone: Sequence[str],
    ) -> None:
        """Keep this version and the one before; older ones go, and so do the oldest runs."""
        self._run(run).mkdir(mode=0o700, exist_ok=True)
        arrays = codec.plain_of_ragged(kept, "kept/")
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
            raise wire.Unreadable("a run without a proper name")
        return self.path / "runs" / run

    def _file(self, run: str, number: int) -> Path:
        return self._run(run) / f"{number}.kept"


def failures(folder: Path) -> dict[str, int]:
    """The strikes of each run that has some; a file that cannot be read is an error, and nothing is answered."""
    try:
        strikes = json.loads((folder / "failed.json").read_bytes())
    except FileNotFoundError:
        return {}
    return {str(run): int(number) for run, number in strikes.items()}


def log_entries(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What a node's log says, oldest first; a torn last line is left out."""
    lines: list[dict[str, Any]] = []
    for name in ("log.old", "log.jsonl"):
        path = Path(folder) / name
        for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
    return lines
