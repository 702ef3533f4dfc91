"""The server's side of secure sums over Flower: two more messages a round, or none with a second server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedscape.core import codec
from fedscape.core.computation import Computation
from fedscape.engines.flower import wire
from fedscape.engines.flower.replies import Answer, Asked, added, header_of
from fedscape.engines.flower.replies import Roster as Nodes
from fedscape.engines.flower.wire import Unreadable
from fedscape.errors import DataError, EngineError, PrivacyError, TooFewClients
from fedscape.privacy.release import INSIDE, Release
from fedscape.secure.numbers import Form
from fedscape.secure.primitives import Words
from fedscape.secure.protocol import Entry, Frame, KeyShares, Roster, Unmasking
from fedscape.secure.server import Server
from fedscape.secure.sums import Masked, SecureSum, bytes_besides
from fedscape.secure.two_servers import BYTES, Package, Round, TwoServers
from fedscape.types import Array, Arrays

Ask = Callable[[Sequence[Asked], Callable[[Asked, bytes], Answer]], dict[str, int]]
Releases = tuple[Release | None, Release | None]


class MaskedRound:
    """One round of masked sums among the nodes at these places; `faults` counts failures beside the sums."""

    def __init__(self, how: Masked, places: list[int]) -> None:
        self.how, self.places, self.parties = how, places, len(places)
        self.faults: dict[str, int] = {}
        self.question = b""  # digest of what all nodes are asked, once their requests are written

    def about(self, place: int) -> dict[str, Any]:
        """The fields of a node's request."""
        raise TypeError("a round of SecureSum or TwoServers")

    def total(self, answered: Sequence[Asked], length: int) -> Words:
        """The sum of the words of these nodes."""
        raise TypeError("a round of SecureSum or TwoServers")

    def bytes_besides(self) -> int:
        """Bytes that a node sends beside its words."""
        return BYTES

    def ask(self, requests: Sequence[Asked]) -> None:
        """Note what the nodes are asked: all of them the same."""
        self.question = wire.question_of(*wire.read(requests[0].blob))

    def read(self, one: Asked, blob: bytes, reveals: frozenset[str]) -> Answer:
        """A masked answer: its words are random, only their form can be checked."""
        return read_masked(one, blob, reveals)

    def open(self, answered: Sequence[Asked], releases: Releases, clients: int) -> Asked:
        """Combine all nodes' answers into one: the total, and the revealed arrays."""
        answers = [one.answer for one in answered if one.answer is not None]
        form: Form = answers[0].form
        try:
            words = self.total(answered, form.length)
            arrays = self.how.range(self.parties).decode(words, form, released=releases[0] is not None)
        except TooFewClients as error:
            raise TooFewClients(str(error), faults=self.faults) from None
        except PrivacyError as error:
            raise self._abandoned(error) from None
        total, metrics = codec.prefixed(arrays, "total/"), codec.prefixed(arrays, "metrics/")
        for release, grids, sums in zip(
            releases, (answers[0].grids, answers[0].measure_grids), (total, metrics), strict=True
        ):
            if release is not None:
                self._check(release, grids, sums, clients)
        shown, _ = added(answers, frozenset(answers[0].total))
        ids = shown.pop("ids", None)
        up = max(answer.bytes_up for answer in answers) + self.bytes_besides()
        whole = Answer({**total, **shown}, metrics, ids, False, answers[0].grids, answers[0].measure_grids, up)
        return Asked(answered[0].place, np.concatenate([one.clients for one in answered]), b"", whole)

    def _check(self, release: Release, grids: dict[str, float], sums: Arrays, clients: int) -> None:
        """Check that this many clipped clients can have this total; a bad part cannot be attributed to a node."""
        try:
            if set(grids) != set(sums) - {INSIDE}:
                raise PrivacyError("the sums were not clipped")
            release.take_grids(grids)
            release.check_sum(sums, clients)
        except PrivacyError as error:
            raise self._abandoned(error) from None

    def _abandoned(self, error: PrivacyError) -> TooFewClients:
        """A total that honest nodes cannot have: nobody can tell whose part is false."""
        self.faults["corrupt"] = self.faults.get("corrupt", 0) + 1
        return TooFewClients(f"{error}; the round is abandoned", faults=self.faults)


class Keyring:
    """The keys that nodes advertised to this engine, and the rounds that used them."""

    def __init__(self, how: Masked) -> None:
        self.how, self.session, self.index = how, os.urandom(16).hex(), -1
        self.entries: dict[int, Entry] = {}

    def take(self, node: int, header: Mapping[str, Any]) -> None:
        """Store a node's key for this run."""
        try:
            fields = header["secure"]
            parts = (bytes.fromhex(fields[name]) for name in ("identity", "channel", "signature"))
            self.entries[node] = Entry(*parts)
        except (KeyError, TypeError, ValueError):
            raise Unreadable("without keys for secure sums: does the node have this version of fedscape?") from None

    def begin(self, computation: Computation, holders: Nodes, cohort: Array, ask: Ask) -> MaskedRound:
        """Begin a round with the nodes of the clients in this cohort, if the computation may be masked."""
        self.how.check_reveals(type(computation).__name__, computation.reveals)
        self.index += 1
        where = holders.nodes[cohort]
        clients = {int(place): cohort[where == place] for place in np.unique(where)}
        nodes, places = holders.node_ids, sorted(clients)
        if isinstance(self.how, TwoServers):
            return _Shared(self, self.how, places)
        if not isinstance(self.how, SecureSum):
            raise DataError(f"secure must be a SecureSum or TwoServers, not {type(self.how).__name__}")
        roster = Roster.checked(bytes.fromhex(self.session), [self.entries[node] for node in nodes])
        frame = Frame(roster, self.index, tuple(places), self.how.parameters(len(places)))
        return _Ring(self, self.how, frame, ask, clients)

    def bounds(self) -> Any:
        """The declared bounds in their JSON form."""
        declared = self.how.range(1).bounds
        return dict(declared) if isinstance(declared, Mapping) else declared


class _Ring(MaskedRound):
    """Bonawitz et al.: keys are shared before the sums are requested, and masks opened after."""

    def __init__(self, keys: Keyring, how: SecureSum, frame: Frame, ask: Ask, clients: Mapping[int, Array]) -> None:
        super().__init__(how, list(frame.cohort))
        self._keys, self._ask, self._clients, self.server = keys, ask, clients, Server(frame)
        settings = {name: getattr(how, name) for name in ("neighbours", "threshold", "dropouts", "colluders")}
        self._common = {"format": wire.FORMAT, "session": keys.session, "index": frame.index}
        entries = [[e.identity.hex(), e.channel.hex(), e.signature.hex()] for e in frame.roster.entries]
        about = {**self._common, "op": "share", "roster": entries, "cohort": list(frame.cohort), "how": settings}
        self._exchange(frame.cohort, about, self._take_shares)
        self.places, least = sorted(self.server.shared), frame.parameters.least
        if len(self.places) < least:
            raise TooFewClients(
                f"secure sums: {len(self.places)} of {self.parties} nodes shared their keys, {least} must",
                faults=self.faults,
            )

    def about(self, place: int) -> dict[str, Any]:
        received = {str(v): [a.hex(), b.hex()] for v, (a, b) in self.server.received_by(place).items()}
        fields = {name: self._common[name] for name in ("session", "index")}
        return {"kind": "sum", **fields, "received": received, "bounds": self._keys.bounds()}

    def total(self, answered: Sequence[Asked], length: int) -> Words:
        for one in answered:
            if one.answer is not None and one.answer.masked is not None:
                self.server.take_masked(one.place, one.answer.masked)
        living, dead = self.server.lists()
        self._exchange(living, {**self._common, "op": "unmask", "living": living, "dead": dead}, self._take_unmasking)
        return self.server.total(self.question)

    def bytes_besides(self) -> int:
        return bytes_besides(self.server.frame.parameters)

    def _exchange(
        self, places: Sequence[int], about: Mapping[str, Any], take: Callable[[int, Mapping[str, Any]], None]
    ) -> None:
        def check(one: Asked, blob: bytes) -> Answer:
            _, header = header_of(one, blob)
            try:
                take(one.place, header["answer"])
            except (KeyError, TypeError, ValueError, AttributeError):
                raise Unreadable("not an answer of secure sums") from None
            return Answer({}, {}, None, False, {}, {}, 0)

        faults = self._ask([Asked(place, self._clients[place], codec.pack({}, about)) for place in places], check)
        self.faults = {name: self.faults.get(name, 0) + n for name, n in faults.items()}

    def _take_shares(self, place: int, fields: Mapping[str, Any]) -> None:
        packages = {int(v): bytes.fromhex(text) for v, text in fields["packages"].items()}
        shares = KeyShares(bytes.fromhex(fields["public"]), bytes.fromhex(fields["commitment"]), packages)
        self.server.take_shares(place, shares)

    def _take_unmasking(self, place: int, fields: Mapping[str, Any]) -> None:
        alive = {int(v): bytes.fromhex(text) for v, text in fields["alive"].items()}
        self.server.take_unmasking(place, Unmasking(alive, bytes.fromhex(fields["sealed"])))


class _Shared(MaskedRound):
    """Two servers: the mask seeds come with the sums."""

    def __init__(self, keys: Keyring, how: TwoServers, places: list[int]) -> None:
        how.smallest(len(places))
        super().__init__(how, places)
        self._keys, self._how, self._index = keys, how, keys.index

    def about(self, place: int) -> dict[str, Any]:
        return {
            "kind": "two",
            "session": self._keys.session,
            "index": self._index,
            "parties": self.parties,
            "least": self._how.least,
            "colluders": self._how.colluders,
            "helper": self._how.helper.public.hex(),
            "bounds": self._keys.bounds(),
        }

    def read(self, one: Asked, blob: bytes, reveals: frozenset[str]) -> Answer:
        """A masked answer whose seed is signed; the helper would refuse all of them for one that is not."""
        answer = super().read(one, blob, reveals)
        if not answer.seal or not _package(answer.seal).is_signed(self._round(answer.form.length).context):
            raise Unreadable("not signed for this round and question")
        return answer

    def total(self, answered: Sequence[Asked], length: int) -> Words:
        if len(answered) < self._how.least:
            raise TooFewClients(f"two servers: {len(answered)} nodes sent masked sums, {self._how.least} must")
        total, packages = np.zeros(length, dtype=np.uint64), []
        for one in answered:
            if one.answer is not None and one.answer.masked is not None:
                total += one.answer.masked
                packages.append(_package(one.answer.seal))
        try:
            return total - self._how.helper.sum_masks(self._round(length), packages)
        except (PrivacyError, EngineError) as error:  # refused or not reachable: another round may do better
            raise TooFewClients(f"{error}; the round is abandoned") from None

    def _round(self, length: int) -> Round:
        session = bytes.fromhex(self._keys.session)
        return Round(session, self._index, length, self.parties, self._how.least, self.question)


def _package(fields: Mapping[str, Any]) -> Package:
    return Package(*(bytes.fromhex(fields[name]) for name in ("identity", "sealed", "signature")))


def read_masked(one: Asked, blob: bytes, reveals: frozenset[str]) -> Answer:
    """A masked answer: its words are random, only their form can be checked."""
    arrays, header = header_of(one, blob)
    try:
        form = Form.read(header["form"])
        masked = arrays["masked"]
        seal: dict[str, Any] = {n: header[n] for n in ("identity", "sealed", "signature") if n in header}
        if seal:
            _package(seal)
    except (KeyError, DataError, ValueError, TypeError):
        raise Unreadable("not a masked sum") from None
    if masked.dtype != np.uint64 or masked.shape != (form.length,) or header.get("clients") != len(one.clients):
        raise Unreadable("a masked sum of another form than it says")
    shown = codec.prefixed(arrays, "total/")
    ids = shown.pop("ids", None)
    if set(shown) != reveals or (ids is not None) != bool(reveals):
        raise Unreadable("with arrays that are not masked")
    for values in shown.values():
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all() or len(values) != len(one.clients):
            raise Unreadable("without a row for each client")
    grids = [header.get(name, {}) for name in ("grids", "measure_grids")]
    if not all(isinstance(g, dict) and all(isinstance(v, float) for v in g.values()) for g in grids):
        raise Unreadable("not clipped")
    up = masked.nbytes + sum(values.nbytes for values in shown.values())
    return Answer(shown, {}, ids, bool(header.get("keeps")), grids[0], grids[1], up, masked, form, seal)
