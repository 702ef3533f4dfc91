"""A node's files: its ledger, and the last two versions of its clients' kept arrays.

    FOLDER/terms.toml        the owner's terms (terms.py)
    FOLDER/ledger.jsonl      all answers that left this node, and their cost
    FOLDER/log.jsonl         all requests, and whether they were answered, refused or failed, in full; it never leaves
    FOLDER/failed.json       runs in which an answer failed after data were read
    FOLDER/runs/RUN/N.kept   the clients' kept arrays after request N of a run, and the reply

Only the owner can read them. Files are written atomically.
"""

from __future__ import annotations

import contextlib
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

from fedscape import disk
from fedscape.core import checkpoint, codec
from fedscape.core.arrays import Ragged
from fedscape.engines.flower import wire
from fedscape.errors import PrivacyError

_RUNS = 4  # runs whose versions are kept: a fit has several phases, and may go back to one
_RUN = re.compile(r"[0-9a-f]{32}")
_LOG = 2**20  # bytes of the log, and of the one older part
_GONE = 100
_STRIKES = 3  # a run is blocked after one failure, or this many attempts that a killed process left open
FAILURES = 64  # runs that may fail; then all are blocked until the owner removes failed.json


class Folder:
    """The folder of one node."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.path / "runs").mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder: requests are answered one at a time."""
        handle = disk.open_private(self.path / "lock", os.O_RDWR | os.O_CREAT)
        try:
            with disk.locked(handle):
                yield
        finally:
            os.close(handle)

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    def log(self, outcome: str, **about: Any) -> None:
        """Log a request and its outcome, only in this folder."""
        path = self.path / "log.jsonl"
        if path.exists() and path.stat().st_size > _LOG:
            os.replace(path, path.with_suffix(".old"))
        handle = disk.open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "outcome": outcome, **about}
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        level = logging.INFO if outcome in ("answered", "repeated") else logging.WARNING
        logging.getLogger("fedscape.node").log(level, json.dumps({"event": "request", **line}))

    # -- failures ------------------------------------------------------------------------------------------------------

    def blocked(self, run: str) -> bool:
        """Whether this run is blocked: it failed, or too many others did."""
        self._run(run)
        strikes = failures(self.path)
        return strikes.get(run, 0) >= _STRIKES or (run not in strikes and len(strikes) >= FAILURES)

    @contextlib.contextmanager
    def attempt(self, run: str) -> Iterator[None]:
        """Context of an answer. Refusals pass; any other error may depend on rows and blocks the run.

        The attempt is written to disk first: killing the process does not undo the strike.
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
        """Numbers of the stored requests of a run, ascending."""
        return sorted(int(file.stem) for file in self._run(run).glob("*.kept"))

    def replied(self, run: str, number: int, request: str) -> bytes | None:
        """The reply to this exact request, if it was answered before."""
        if number not in self.versions(run):
            return None
        arrays, header = checkpoint.read(self._file(run, number))
        return arrays["reply"].tobytes() if header["request"] == request else None

    def go_back(self, run: str, closed: int, order: wire.Order) -> tuple[dict[str, Ragged], list[str]]:
        """The clients' kept arrays after the request `closed` (-1: none yet); later versions are dropped.

        A request older than an answered one arrived too late and must not undo it. Also return the servers of this
        run that are known to be gone.
        """
        stored = {number: checkpoint.read(self._file(run, number)) for number in self.versions(run)}
        past_servers: list[str] = []
        if stored:
            newest = stored[max(stored)][1]
            last, past_servers = wire.Order(*newest["order"]), newest["gone"]
            if order.overtaken(last, past_servers):
                raise wire.Unreadable("older than one that was answered before")
            past_servers = past_servers if order.name == last.name else [*past_servers, last.name][-_GONE:]
        if closed >= 0 and closed not in stored:
            raise wire.Unreadable("a round to go on from that this node does not hold any more")
        for number in stored:
            if number > closed:
                self._file(run, number).unlink()
        if closed < 0:
            return {}, past_servers
        return codec.ragged_of_plain(stored[closed][0], "kept/"), past_servers

    def store(
        self,
        run: str,
        number: int,
        *,
        kept: Mapping[str, Ragged],
        request: str,
        reply: bytes,
        order: wire.Order,
        past_servers: Sequence[str],
    ) -> None:
        """Store this version and keep the one before; delete older ones and the oldest runs."""
        self._run(run).mkdir(mode=0o700, exist_ok=True)
        arrays = codec.plain_of_ragged(kept, "kept/")
        arrays["reply"] = np.frombuffer(reply, dtype=np.uint8)
        checkpoint.write(
            self._file(run, number),
            arrays,
            {"request": request, "order": list(order), "gone": list(past_servers)},
            secret=True,
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
    """The strikes of each run; an unreadable file is an error, and then nothing is answered."""
    try:
        strikes = json.loads((folder / "failed.json").read_bytes())
    except FileNotFoundError:
        return {}
    return {str(run): int(number) for run, number in strikes.items()}


def log_entries(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The entries of a node's log, oldest first; a torn last line is left out."""
    lines: list[dict[str, Any]] = []
    for name in ("log.old", "log.jsonl"):
        path = Path(folder) / name
        for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
    return lines
