"""The privacy ledger: one line per release, written before it happens.

The file is JSON lines. Each line carries its number and the checksum of the line before; the first has a random id.
That detects accidents: a lost or damaged line, a copy older than a checkpoint, a fresh file instead of a lost one. It
does not protect against the owner of the file, who can rewrite all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscape import disk
from fedscape.errors import DataError, PrivacyError
from fedscape.privacy.accounting import Entry, epsilon_of
from fedscape.privacy.ranges import NOISE, check_positive, check_share

Group = tuple[str, str, str]

_FORMAT = 2  # format 1 had no id


class Ledger:
    """A record of every release and of their total cost.

    Costs are kept apart by (unit, relation, place): they protect different things and cannot be added. A run reserves
    its rounds before it starts, and is refused at once if they exceed the budget. Each round is written to disk before
    it is released; unused reservations are returned. Threads may share a ledger; ledgers in any number of processes may
    share the file.

    Parameters
    ----------
    path
        The file, created if missing; None keeps the ledger in memory.
    epsilon
        The budget of each (unit, relation, place), at most 1e9; None is no limit. It is set when the file is created.
    delta
        The delta at which epsilon is reported.

    >>> ledger = Ledger(epsilon=1.0, delta=1e-5)
    >>> ledger.spent()
    {}
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, epsilon: float | None = None, delta: float = 1e-6
    ) -> None:
        if epsilon is not None:
            check_positive("a ledger's epsilon", epsilon, NOISE)
        check_share("a ledger's delta", delta, zero=True)
        self.path = None if path is None else Path(path)
        self.epsilon, self.delta = epsilon, delta
        self._mutex = threading.RLock()
        self._handle = -1  # file descriptor while this object holds the lock
        self._file: tuple[int, int] | None = None  # device and inode of the file read so far
        self._read = 0  # bytes read so far
        self._lines = 0
        self._last = ""
        self._reserved: dict[tuple[str, str], tuple[Entry, int]] = {}
        self._released: dict[tuple[str, str], set[str]] = {}
        self._known: list[dict[str, Any]] = []
        self._open(epsilon, delta)

    def _open(self, epsilon: float | None, delta: float) -> None:
        with self._locked():
            if not self._lines:
                about = {"format": _FORMAT, "id": os.urandom(16).hex(), "epsilon": epsilon, "delta": delta}
                self._append({"kind": "open", **about})
            first = self._known[0]
        if first.get("kind") != "open" or first.get("format") != _FORMAT:
            raise PrivacyError(
                f"{self.path} is no ledger of format {_FORMAT} (its format: {first.get('format')}): a ledger of an "
                "older version is read by that version; start another one here, with what is left of its budget"
            )
        if epsilon is not None and (first["epsilon"], first["delta"]) != (epsilon, delta):
            raise PrivacyError(
                f"{self.path} was made with epsilon={first['epsilon']}, delta={first['delta']}, "
                f"not {epsilon}, {delta}; a budget is set once; start another ledger to change it"
            )
        self.id, self.epsilon, self.delta = str(first["id"]), first["epsilon"], first["delta"]

    # -- spending ------------------------------------------------------------------------------------------------------

    def reserve(
        self, run: str, entries: Mapping[str, Entry], count: int | Mapping[str, int], *, begin: int = 0
    ) -> None:
        """Reserve `count` releases of each mechanism of this run, from round `begin` on, or refuse all of them.

        A run that stopped before saving its state repeats rounds that are already in the ledger. They are the same
        releases and need no reservation.
        """
        with self._locked():
            counts = dict.fromkeys(entries, count) if isinstance(count, int) else count
            wanted = {m: max(0, counts[m] - self._left(run, m) - self._rounds_from(run, m, begin)) for m in entries}
            planned = [*self._outstanding(), *((entries[m], n) for m, n in wanted.items() if n)]
            self._check_budget(planned)
            for mechanism, entry in entries.items():
                if _plain(self._reserved.get((run, mechanism), (entry, 0))[0]) != _plain(entry):
                    raise PrivacyError(
                        f"run {run} reserves {mechanism!r} with other parameters than before: use a new run"
                    )
            for mechanism, number in wanted.items():
                if number:
                    about = {"run": run, "mechanism": mechanism, "entry": dict(entries[mechanism]), "count": number}
                    self._append({"kind": "reserve", **about})

    def release(self, run: str, round_: int, mechanism: str, digest: str) -> None:
        """Record a release before it happens; a release that is already recorded counts once.

        Another release of the same round has the same cohort: it counts as if everyone took part.
        """
        name, repeat = f"{round_} {digest}", f"{mechanism} again"
        with self._locked():
            if any(name in self._released.get((run, m), ()) for m in (mechanism, repeat)):
                return
            entry = self._reserved.get((run, mechanism), (None, 0))[0]
            if entry is None:
                raise PrivacyError(f"run {run} has reserved nothing for {mechanism!r}: reserve() comes first")
            if entry["sampling"]["kind"] != "all" and self._was_released(run, mechanism, round_):
                entry, mechanism = {**entry, "sampling": {"kind": "all"}}, repeat
            if self._left(run, mechanism) < 1:
                self._check_budget([*self._outstanding(), (entry, 1)])
                about = {"run": run, "mechanism": mechanism, "entry": dict(entry), "count": 1}
                self._append({"kind": "reserve", **about})
            about = {"run": run, "mechanism": mechanism, "round": round_, "digest": digest}
            self._append({"kind": "release", **about})

    def note(self, text: str, *, run: str, round_: int, digest: str) -> None:
        """Record, once, something that no accountant can count, such as a contribution without noise."""
        about = {"kind": "note", "note": text, "run": run, "round": round_, "digest": digest}
        with self._locked():
            if not any(about.items() <= line.items() for line in self._known):
                self._append(about)

    def hand_back(self, run: str) -> None:
        """Return the unused reservations of this run."""
        with self._locked():
            for owner, mechanism in sorted(self._reserved):
                left = self._left(owner, mechanism)
                if owner == run and left:
                    self._append({"kind": "return", "run": run, "mechanism": mechanism, "count": left})

    # -- looking -------------------------------------------------------------------------------------------------------

    def spent(self) -> dict[Group, float]:
        """Epsilon of all releases so far, for each (unit, relation, place)."""
        with self._locked():
            return self._totals([(e, len(self._released.get(k, ()))) for k, (e, _) in self._reserved.items()])

    def reserved(self) -> dict[Group, float]:
        """Epsilon if all reservations were released as well."""
        with self._locked():
            return self._totals(self._outstanding())

    def entries(self) -> list[dict[str, Any]]:
        """All lines, as in the file."""
        with self._locked():
            return [dict(line) for line in self._known]

    @property
    def private(self) -> bool:
        """False if any noise is predictable (noise_seed)."""
        with self._mutex:
            return all(entry.get("private", True) for entry, _ in self._reserved.values())

    def anchor(self) -> dict[str, Any]:
        """The ledger's id and the number and checksum of its last line, for a checkpoint."""
        with self._mutex:
            return {"id": self.id, "lines": self._lines, "last": self._last}

    def check_anchor(self, anchor: Mapping[str, Any]) -> None:
        """Refuse a ledger other than the checkpoint's, or one without its last line."""
        where = "the ledger in memory" if self.path is None else self.path
        if anchor.get("id") != self.id:
            raise PrivacyError(
                f"{where} has the id {self.id}, the checkpoint was written with {anchor.get('id')}: this is another "
                "ledger; bring back the file that the run began with"
            )
        with self._locked():
            n = int(anchor["lines"])
            if n > self._lines:
                raise PrivacyError(
                    f"{where} has {self._lines} lines, the checkpoint has seen {n}: this ledger is older than the "
                    "checkpoint; bring back the newest copy"
                )
            if n and _checksum(self._known[n - 1]) != anchor["last"]:
                raise PrivacyError(
                    f"line {n} of {where} is not the one the checkpoint has seen: this is another ledger"
                )

    # -- counting ------------------------------------------------------------------------------------------------------

    def _left(self, run: str, mechanism: str) -> int:
        number = self._reserved.get((run, mechanism), (None, 0))[1]
        return number - len(self._released.get((run, mechanism), ()))

    def _rounds_from(self, run: str, mechanism: str, begin: int) -> int:
        done = {int(name.split()[0]) for name in self._released.get((run, mechanism), ())}
        return sum(number >= begin for number in done)

    def _was_released(self, run: str, mechanism: str, round_: int) -> bool:
        return any(int(name.split()[0]) == round_ for name in self._released.get((run, mechanism), ()))

    def _outstanding(self) -> list[tuple[Entry, int]]:
        return [(entry, number) for entry, number in self._reserved.values() if number]

    def _totals(self, counted: Sequence[tuple[Entry, int]]) -> dict[Group, float]:
        groups: dict[Group, list[tuple[Entry, int]]] = {}
        for entry, number in counted:
            if number:
                groups.setdefault(_group(entry), []).append((entry, number))
        return {group: epsilon_of(members, self.delta) for group, members in sorted(groups.items())}

    def _check_budget(self, planned: Sequence[tuple[Entry, int]]) -> None:
        if self.epsilon is None:
            return
        for group, total in self._totals(planned).items():
            if total > self.epsilon:
                raise PrivacyError(
                    f"refused: with what is spent and reserved, {' / '.join(group)} would reach epsilon {total:.4g} at "
                    f"delta {self.delta:g}, beyond the budget of {self.epsilon:g}; nothing was released"
                )

    def _repr_html_(self) -> str:
        """Budget and what is spent of it, in a notebook."""
        from fedscape.display import table

        about = summary_of(self)
        budget = "no budget" if self.epsilon is None else f"budget epsilon {self.epsilon:g}"
        note = "" if about["private"] else "NOT PRIVATE: its noise has a seed that is known."
        return table(
            f"Ledger: {about['releases']:,} releases, {budget}, delta {self.delta:g}", about["totals"], note=note
        )

    # -- the file ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the ledger against other threads and its file against other ledgers, after reading all new lines."""
        with self._mutex:
            if self.path is None or self._handle >= 0:  # this thread holds it already
                yield
                return
            create = 0 if self._lines else os.O_CREAT  # a file that vanished must not be recreated
            try:
                handle = disk.open_private(self.path, os.O_RDWR | create | os.O_APPEND)
            except OSError as error:
                raise PrivacyError(f"the ledger {self.path} cannot be opened: {error.strerror}") from None
            try:
                with disk.locked(handle):
                    self._handle = handle
                    self._catch_up(handle)
                    yield
            finally:
                self._handle = -1
                os.close(handle)

    def _catch_up(self, handle: int) -> None:
        about = os.fstat(handle)
        if self._file not in (None, (about.st_dev, about.st_ino)):
            raise PrivacyError(
                f"the ledger {self.path} was replaced by another file while it was in use: bring back the one with "
                f"the id {self.id}"
            )
        self._file, size = (about.st_dev, about.st_ino), about.st_size
        if size < self._read:
            raise PrivacyError(f"the ledger {self.path} has become shorter: bring back the newest copy")
        fresh = disk.read_at(handle, size - self._read, self._read) if size > self._read else b""
        if fresh and not fresh.endswith(b"\n"):
            raise PrivacyError(
                f"the last line of {self.path} is torn: nothing was released for it if the machine stopped while it "
                "was written; then remove that line by hand"
            )
        for text in fresh.splitlines():
            self._take(self._parsed(text))
        self._read = size

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            line = json.loads(text)
            sound = isinstance(line, dict) and line["line"] == self._lines and line["before"] == self._last
            sound = sound and line["sum"] == _checksum(line)
        except (ValueError, KeyError, RecursionError):
            sound = False
        if not sound:
            raise PrivacyError(f"line {self._lines + 1} of {self.path} is damaged or missing: bring back a copy")
        return dict(line)

    def _append(self, content: Mapping[str, Any]) -> None:
        line = {"line": self._lines, "before": self._last, **content}
        line["sum"] = _checksum(line)
        if self.path is not None:
            data = json.dumps(line, sort_keys=True).encode() + b"\n"
            try:
                written = os.write(self._handle, data)
                if written == len(data):
                    os.fsync(self._handle)
            except OSError as error:
                os.ftruncate(self._handle, self._read)
                raise PrivacyError(
                    f"the ledger {self.path} cannot be written: {error.strerror}; not released"
                ) from None
            if written < len(data):
                os.ftruncate(self._handle, self._read)
                raise PrivacyError(f"the ledger {self.path} cannot be written: no space left; not released")
            self._read += len(data)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        self._known.append(line)
        self._lines += 1
        self._last = line["sum"]
        key = (line.get("run", ""), line.get("mechanism", ""))
        if line["kind"] == "reserve":
            entry, number = self._reserved.get(key, (line["entry"], 0))
            self._reserved[key] = (entry, number + line["count"])
        elif line["kind"] == "return":
            entry, number = self._reserved[key]
            self._reserved[key] = (entry, number - line["count"])
        elif line["kind"] == "release":
            self._released.setdefault(key, set()).add(f"{line['round']} {line['digest']}")


def summary(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Summarise a ledger file: budget, totals spent and reserved, number of releases; the file is not changed.

    Parameters
    ----------
    path
        The file, which must exist.
    """
    if not Path(path).is_file():
        raise DataError(f"there is no ledger {os.fspath(path)}")
    with open(path, "rb") as file:
        begins = file.read(1)
    if begins not in (b"", b"{"):
        raise DataError(f"{os.fspath(path)} is no ledger: give the .jsonl file that a private run wrote")
    try:
        return summary_of(Ledger(path))
    except PrivacyError as error:  # nothing is released here: it is a file that cannot be read
        raise DataError(str(error)) from None


def summary_of(ledger: Ledger) -> dict[str, Any]:
    """Summarise an open ledger, as `summary`.

    >>> summary_of(Ledger(epsilon=1.0))["releases"]
    0
    """
    spent, reserved = ledger.spent(), ledger.reserved()
    names = ("unit", "relation", "place")
    totals = [
        {**dict(zip(names, group, strict=True)), "spent": spent.get(group, 0.0), "reserved": total}
        for group, total in reserved.items()
    ]
    releases = sum(line["kind"] == "release" for line in ledger.entries())
    budget = {"epsilon": ledger.epsilon, "delta": ledger.delta}
    return {**budget, "totals": totals, "releases": releases, "private": ledger.private}


def _group(entry: Entry) -> Group:
    return entry["unit"], entry["relation"], entry["place"]


def _plain(entry: Entry) -> str:
    return json.dumps(entry, sort_keys=True)


def _checksum(line: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in line.items() if name != "sum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
