"""A node's side of secure sums: its signing key, its known peers, and its state between messages.

    FOLDER/signing.key       the seed of the node's signing key, from `fedscape deploy init` or created on first use
    FOLDER/roster.txt        the verifying keys of trusted nodes, one a line; without the file, all that sign
    FOLDER/helper.pub        the public key of the second server, if there is one; without the file, the named one
    FOLDER/secure/RUN.json   keys and shares of a run, while it lasts

Every message has its own process: the state of a round is on disk, readable by its owner only, before an answer leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core import checkpoint
from fedscape.engines.flower import wire
from fedscape.engines.flower.terms import Terms
from fedscape.engines.flower.wire import Unreadable
from fedscape.errors import DataError, PrivacyError
from fedscape.secure import primitives as p
from fedscape.secure import two_servers
from fedscape.secure.numbers import Form, Range
from fedscape.secure.parameters import Parameters
from fedscape.secure.protocol import Client, Entry, Frame, Roster, Turn
from fedscape.secure.sums import Masked, SecureSum
from fedscape.secure.two_servers import Round, TwoServers
from fedscape.types import Arrays

KEY, PEERS, HELPER = "signing.key", "roster.txt", "helper.pub"
_SESSION = re.compile(r"[0-9a-f]{32}")
_SESSIONS = 4  # runs stored at once


class Keys:
    """The keys in a node's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def identity(self) -> bytes:
        """The seed of the node's signing key, created if missing."""
        path = self.folder / KEY
        if not path.exists():
            write_key(path, p.random_seed())
        return read_key(path)

    def peers(self) -> list[bytes] | None:
        """The verifying keys of the nodes that its owner trusts; None if there is no list."""
        path = self.folder / PEERS
        try:
            return read_peers(path) if path.exists() else None
        except DataError:
            raise Unreadable(f"for a node whose {PEERS} cannot be read") from None

    def helper(self) -> bytes | None:
        """The public key of the second server."""
        path = self.folder / HELPER
        return read_key(path) if path.exists() else None


def read_key(path: Path) -> bytes:
    """A key of 32 bytes in hex."""
    try:
        return _of_hex(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        raise DataError(f"{path} is not a key of 32 bytes in hex") from None


def read_peers(path: Path) -> list[bytes]:
    """The verifying keys in a roster: the first word of each line."""
    try:
        lines = (line.partition("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines())
        return [_of_hex(words[0]) for words in lines if words]
    except (OSError, ValueError):
        raise DataError(f"{path} is not a list of verifying keys, one a line") from None


def write_key(path: Path, key: bytes) -> None:
    """Write a key that only its owner can read."""
    checkpoint.replace_file(path, lambda file: file.write(key.hex().encode() + b"\n"), private=True)


def _of_hex(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != p.SEED:
        raise ValueError("not a key")
    return key


# -- state of a run ----------------------------------------------------------------------------------------------------


class Memory:
    """A run as stored in its file: the protocol's client, the frame of its round, and the replies sent."""

    def __init__(self, folder: Path, session: Any) -> None:
        if not isinstance(session, str) or not _SESSION.fullmatch(session):
            raise Unreadable("a secure sum of a run without a proper name")
        self.session, self.path = session, folder / "secure" / f"{session}.json"
        self._keys = Keys(folder)
        about = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        channel = bytes.fromhex(about["channel"]) if about else None
        self.known = bool(about)
        self.client = Client(self._keys.identity(), bytes.fromhex(session), channel=channel)
        self.client.last = int(about.get("last", -1))
        self.frame_said: dict[str, Any] | None = about.get("frame")
        self.replies: dict[str, list[str]] = about.get("replies", {})
        if about.get("turn"):
            turn = about["turn"]
            held = {int(v): bytes.fromhex(share) for v, share in turn.pop("held").items()}
            seeds = {name: bytes.fromhex(turn[name]) for name in ("context", "b", "s", "a")}
            self.client.turn = Turn(int(turn["index"]), str(turn["stage"]), **seeds, held=held)

    def save(self) -> None:
        """Write it to disk and delete the oldest runs."""
        turn = None
        if self.client.turn is not None:
            turn = {n: v.hex() if isinstance(v, bytes) else v for n, v in asdict(self.client.turn).items()}
            turn["held"] = {str(v): share.hex() for v, share in self.client.turn.held.items()}
        about = {
            "channel": self.client.channel.hex(),
            "last": self.client.last,
            "turn": turn,
            "frame": self.frame_said,
            "replies": self.replies,
        }
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        text = json.dumps(about).encode()
        checkpoint.replace_file(self.path, lambda file: file.write(text), private=True)
        others = sorted(
            (path for path in self.path.parent.glob("*.json") if path != self.path),
            key=lambda path: path.stat().st_mtime,
        )
        for old in others[: 1 - _SESSIONS]:
            old.unlink()

    def frame(self, terms: Terms, fields: Any = None) -> Frame:
        """The frame of a round, from the server or as stored when the round began; checked in both cases."""
        fields = self.frame_said if fields is None else fields
        try:
            entries = [Entry(*(bytes.fromhex(text) for text in entry)) for entry in fields["roster"]]
            how, cohort = SecureSum(**fields["how"]), tuple(map(int, fields["cohort"]))
            index = int(fields["index"])
            parameters = how.parameters(len(cohort))
        except (KeyError, TypeError, ValueError):
            raise Unreadable("a secure sum without a roster, a cohort or parameters") from None
        peers = self._keys.peers()
        if terms.secure and peers is None:
            raise Unreadable(f"for a node that has no {PEERS}: fedscape deploy init --secure writes it")
        _check_parameters(terms, parameters)
        roster = Roster.checked(bytes.fromhex(self.session), entries, peers=peers, least=max(3, terms.smallest))
        return Frame(roster, index, cohort, parameters)


def _check_parameters(terms: Terms, parameters: Parameters) -> None:
    if parameters.smallest < terms.smallest:
        raise Unreadable("a secure sum of fewer honest nodes than the owner demands")
    if parameters.colluding < terms.colluders * parameters.clients:
        raise Unreadable("a secure sum that allows for fewer colluding nodes than the owner demands")


# -- requests ----------------------------------------------------------------------------------------------------------


def advertise(folder: Path, session: Any) -> dict[str, str]:
    """AdvertiseKeys: the node's message at the beginning of a run."""
    memory = Memory(folder, session)
    entry = memory.client.advertise_keys()
    memory.save()
    return {name: getattr(entry, name).hex() for name in ("identity", "channel", "signature")}


def answer(folder: Path, terms: Terms, header: Mapping[str, Any], request: str) -> dict[str, Any]:
    """ShareKeys or Unmasking; the same request gets the same answer."""
    memory, op = Memory(folder, header.get("session")), str(header["op"])
    if op in memory.replies and memory.replies[op][0] == request:
        return dict(json.loads(memory.replies[op][1]))
    reply = _share(memory, terms, header) if op == "share" else _unmask(memory, terms, header)
    memory.replies[op] = [request, json.dumps(reply)]
    memory.save()
    return reply


def _share(memory: Memory, terms: Terms, header: Mapping[str, Any]) -> dict[str, Any]:
    if not memory.known:
        raise Unreadable("a secure sum of a run whose keys this node does not have")
    frame = memory.frame(terms, header)
    shares = memory.client.share_keys(frame)
    memory.frame_said = {name: header[name] for name in ("roster", "cohort", "how", "index")}
    return {
        "public": shares.public.hex(),
        "commitment": shares.commitment.hex(),
        "packages": {str(v): package.hex() for v, package in shares.packages.items()},
    }


def _unmask(memory: Memory, terms: Terms, header: Mapping[str, Any]) -> dict[str, Any]:
    if memory.frame_said is None or memory.frame_said["index"] != header.get("index"):
        raise Unreadable("a secure sum of a round that was not begun here")
    try:
        living, dead = ([int(u) for u in header[name]] for name in ("living", "dead"))
    except (KeyError, TypeError, ValueError):
        raise Unreadable("a secure sum without lists of the living and the dead") from None
    opened = memory.client.unmask(memory.frame(terms), living, dead)
    return {"alive": {str(v): share.hex() for v, share in opened.alive.items()}, "sealed": opened.sealed.hex()}


@dataclass(frozen=True)
class Envelope:
    """How the sums of one request leave: masked, and under which terms; read before anything is computed.

    `smallest` is the number of honest nodes in any sum that can be opened, `question` a digest of what was asked.
    """

    header: Mapping[str, Any]
    folder: Path
    parties: int
    smallest: int
    question: bytes
    frame: Frame | None = None
    helper: bytes | None = None

    @classmethod
    def of(cls, header: Mapping[str, Any], question: bytes, folder: Path, terms: Terms) -> Envelope | None:
        """The envelope of a request; None if sums leave unmasked and the owner allows it."""
        fields = header.get("secure")
        if fields is None:
            if terms.secure:
                raise Unreadable("a sum that would leave unmasked, which the owner does not allow")
            return None
        if not isinstance(fields, dict) or fields.get("kind") not in ("sum", "two"):
            raise Unreadable("a secure sum of an unknown kind")
        try:
            Masked(bounds=fields["bounds"])
            if fields["kind"] == "two":
                return cls._of_two_servers(fields, question, folder, terms)
            memory = Memory(folder, fields.get("session"))
            if memory.client.turn is None or memory.client.turn.index != fields["index"]:
                raise Unreadable("a secure sum of a round that was not begun here")
            frame = memory.frame(terms)
            memory.client.masked_input(frame, np.empty(0, dtype=np.uint64), _received(fields))  # a trial, not saved
            return cls(fields, folder, len(frame.cohort), frame.parameters.smallest, question, frame=frame)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Unreadable("a secure sum without its round") from None

    @classmethod
    def _of_two_servers(cls, fields: Mapping[str, Any], question: bytes, folder: Path, terms: Terms) -> Envelope:
        helper = _helper(fields, folder, terms)
        how = TwoServers(least=fields["least"], colluders=fields["colluders"])
        round_ = _round(fields, 0, question)
        smallest = how.smallest(round_.parties)
        if smallest < terms.smallest:
            raise Unreadable("a secure sum of fewer honest nodes than the owner demands")
        if how.colluders < terms.colluders:
            raise Unreadable("a secure sum that allows for fewer colluding nodes than the owner demands")
        return cls(fields, folder, round_.parties, smallest, question, helper=helper)

    @property
    def most(self) -> int:
        """The largest whole number, in size, that a sum may have on this node before noise."""
        return self._range.most

    @property
    def _range(self) -> Range:
        return Range(self.parties, self.header["bounds"])

    def seal(self, arrays: Arrays, *, released: bool) -> tuple[Arrays, dict[str, Any]]:
        """The masked words of these arrays, and the header fields that go with them."""
        words = self._range.encode(arrays, released=released)
        about: dict[str, Any] = {"form": Form.of(arrays).written()}
        if self.helper is not None:
            context = _round(self.header, len(words), self.question).context
            masked, package = two_servers.mask(words, self.helper, context, Keys(self.folder).identity())
            names = ("identity", "sealed", "signature")
            return {"masked": masked}, {**about, **{name: getattr(package, name).hex() for name in names}}
        memory = Memory(self.folder, self.header.get("session"))
        received = _received(self.header)
        masked = memory.client.masked_input(self.frame, words, received, self.question)  # type: ignore[arg-type]
        memory.save()  # before anything leaves: a vector is masked once
        return {"masked": masked}, about


def _received(fields: Mapping[str, Any]) -> dict[int, tuple[bytes, bytes]]:
    """The keys and packages of a node's neighbours."""
    return {int(v): (bytes.fromhex(a), bytes.fromhex(b)) for v, (a, b) in fields["received"].items()}


def _round(fields: Mapping[str, Any], length: int, question: bytes) -> Round:
    """The round that a node signs for the second server."""
    session = bytes.fromhex(fields["session"])
    return Round(session, fields["index"], length, fields["parties"], fields["least"], question)


def _helper(fields: Mapping[str, Any], folder: Path, terms: Terms) -> bytes:
    own, named = Keys(folder).helper(), _of_hex(str(fields["helper"]))
    if own is None and terms.secure:
        raise Unreadable(f"for a node that has no {HELPER}: fedscape deploy init --helper writes it")
    if own is not None and own != named:
        raise Unreadable("a secure sum with another second server than the node knows")
    return named


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn refusals of the protocol, which do not depend on rows, into refusals that the server sees."""
    try:
        yield
    except PrivacyError as error:
        raise Unreadable(f"a secure sum that this node does not join: {wire.one_line(error)}") from None


def verifying_key(folder: str | os.PathLike[str]) -> bytes:
    """The key by which a node's peers know it."""
    return p.verifier_of(Keys(Path(folder)).identity())
