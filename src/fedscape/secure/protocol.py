"""Secure aggregation: Bonawitz et al. 2017 on the sparse graph of Bell et al. 2020, under the papers' names.

AdvertiseKeys, once per run: a client signs the public key c^PK of its channel. Then in every round

    ShareKeys              client u draws b_u, the seed of its self-mask, and s_u, the seed of a key pair s_u^PK for
                           this round only. It sends each neighbour a Shamir share of both, under their channel key
    MaskedInputCollection  y_u = x_u + PRG(b_u) + sum over neighbours v > u of PRG(s_uv) - sum over v < u of PRG(s_uv)
    Unmasking              a client opens its share of b for a living neighbour, and its share of s for a dead one

all modulo 2^64. s_u is used in one round only, so opening it for a client that dropped out reveals no other round.

A lying server could tell some clients that u is alive and others that it is dead. It never gets both secrets of u,
because 2t > k + c (see `parameters`). It could also tell others that all neighbours of u are dead, which would leave
x_u without pairwise masks. A client's answer in Unmasking is therefore encrypted under a third shared seed, a_u, whose
shares its neighbours open only if they were told that u is alive. So a client whose answer can be read is not dead to
its neighbours. In Bell et al. clients sign such acknowledgements, which takes one more message.

All keys are bound to a context: the run, the round, the roster, the cohort and the parameters. Clients that were given
different ones cannot read each other's shares, and stop. Pairwise masks are also bound to the question, a digest of
what the clients are asked to compute. A lying server could ask one client for its counts and the others for something
it knows; the masks of clients that were asked different questions do not cancel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedscape.errors import PrivacyError
from fedscape.secure import primitives as p
from fedscape.secure import shamir
from fedscape.secure.parameters import Parameters
from fedscape.secure.primitives import SEED, Words

_LABEL = b"fedscape secure sum 1"


@dataclass(frozen=True)
class Entry:
    """A client's advertisement: its identity (verifying key), its channel key, and its signature."""

    identity: bytes
    channel: bytes
    signature: bytes


@dataclass(frozen=True)
class Roster:
    """The clients of a run, by place; entries were checked."""

    session: bytes
    entries: tuple[Entry, ...]
    digest: bytes

    @classmethod
    def checked(
        cls, session: bytes, entries: Sequence[Entry], *, peers: Iterable[bytes] | None = None, least: int = 3
    ) -> Roster:
        """Check that all entries are signed and different and, if `peers` is given, listed there."""
        known = None if peers is None else set(peers)
        for entry in entries:
            if known is not None and entry.identity not in known:
                raise PrivacyError(
                    f"secure sums: the roster names {entry.identity.hex()[:16]}, who is not on this node's roster"
                )
            if not p.is_signed(entry.identity, entry.signature, _advertisement(session, entry.channel)):
                raise PrivacyError(f"secure sums: the key of {entry.identity.hex()[:16]} is not signed for this run")
        for keys in ({e.identity for e in entries}, {e.channel for e in entries}):
            if len(keys) < len(entries):
                raise PrivacyError("secure sums: the roster names one client twice")
        if len(entries) < least:
            raise PrivacyError(f"secure sums: the roster has {len(entries)} signed peers, at least {least} are needed")
        parts = (entry.identity + entry.channel for entry in entries)
        return cls(session, tuple(entries), _digest(session, *parts))


@dataclass(frozen=True)
class Frame:
    """One round as all clients must see it: its number, its cohort (ascending places) and its parameters."""

    roster: Roster
    index: int
    cohort: tuple[int, ...]
    parameters: Parameters

    def __post_init__(self) -> None:
        last, places = len(self.roster.entries), self.cohort
        if self.index < 0 or any(a >= b for a, b in pairwise(places)):
            raise PrivacyError("secure sums: a cohort must be ascending places, a round a number from 0")
        if not places or places[0] < 0 or places[-1] >= last or len(places) != self.parameters.clients:
            raise PrivacyError(f"secure sums: a cohort of {len(places)} that does not fit its roster of {last}")

    @cached_property
    def context(self) -> bytes:
        """A digest of the frame."""
        numbers = np.array([self.index, *self.cohort], dtype="<i8").tobytes()
        return _digest(b"round", self.roster.digest, numbers, repr(self.parameters).encode())

    @cached_property
    def _graph(self) -> dict[int, tuple[int, ...]]:
        """Neighbours on a ring whose order depends on all advertised keys; see `parameters`."""
        n, k = len(self.cohort), self.parameters.neighbours
        if k >= n - 1:
            return {u: tuple(v for v in self.cohort if v != u) for u in self.cohort}
        ring = sorted(self.cohort, key=lambda u: _digest(b"place", self.context, str(u).encode()))
        steps = [step for step in range(-(k // 2), k // 2 + 1) if step]
        return {u: tuple(sorted(ring[(i + step) % n] for step in steps)) for i, u in enumerate(ring)}

    def neighbours(self, u: int) -> tuple[int, ...]:
        """The neighbours of a client, in ascending order."""
        return self._graph[u]

    def point(self, u: int, v: int) -> int:
        """The point of neighbour v's share of the secrets of u."""
        return self.neighbours(u).index(v) + 1

    def key(self, secret: bytes, label: str, *places: int) -> bytes:
        """A single-use key of this round."""
        return p.derive_key(secret, salt=self.context, info=" ".join([label, *map(str, places)]).encode())

    def pairwise(self, secret: bytes, u: int, v: int, question: bytes) -> tuple[bytes, int]:
        """The mask that u adds for v, from their shared secret and the question they were asked: its key and sign."""
        label = f"mask {question.hex()}"
        return self.key(secret, label, min(u, v), max(u, v)), 1 if u < v else -1


@dataclass(frozen=True)
class KeyShares:
    """A client's message in ShareKeys: s_u^PK, a commitment to b_u, and encrypted shares for its neighbours."""

    public: bytes
    commitment: bytes
    packages: Mapping[int, bytes]


@dataclass(frozen=True)
class Unmasking:
    """A client's message in Unmasking: shares of a_v of living neighbours and, encrypted, those of b_v and s_v."""

    alive: Mapping[int, bytes]
    sealed: bytes


@dataclass
class Turn:
    """A client's secret state of a round, between messages."""

    index: int
    stage: str
    context: bytes
    b: bytes
    s: bytes
    a: bytes
    held: dict[int, bytes] = field(default_factory=dict)  # by neighbour: shares of its b, s and a


class Client:
    """A client of the protocol; it checks everything that the server sends.

    Parameters
    ----------
    identity
        The seed of its signing key.
    session
        The run.
    channel
        The seed of its channel key; by default a new one.
    """

    def __init__(self, identity: bytes, session: bytes, *, channel: bytes | None = None) -> None:
        self.identity, self.session = identity, session
        self.channel = p.random_seed() if channel is None else channel
        self.turn: Turn | None = None
        self.last = -1  # number of the last round begun

    def advertise_keys(self) -> Entry:
        """AdvertiseKeys: sign the channel key for this run."""
        public = p.public_of(self.channel)
        signature = p.sign(self.identity, _advertisement(self.session, public))
        return Entry(p.verifier_of(self.identity), public, signature)

    def place(self, frame: Frame) -> int:
        """This client's place on the roster; it must be in the cohort, with its own keys."""
        mine = p.verifier_of(self.identity), p.public_of(self.channel)
        places = [u for u in frame.cohort if frame.roster.entries[u].identity == mine[0]]
        if frame.roster.session != self.session or not places:
            raise PrivacyError("secure sums: a roster of another run, or a cohort without this client")
        if frame.roster.entries[places[0]].channel != mine[1]:
            raise PrivacyError("secure sums: the roster has another key for this client than its own")
        return places[0]

    def share_keys(self, frame: Frame) -> KeyShares:
        """ShareKeys: begin a round, with a larger number than all rounds before."""
        if frame.index <= self.last:
            raise PrivacyError(f"secure sums: round {frame.index} was begun before, the last one was {self.last}")
        u = self.place(frame)
        b, s, a = (p.random_seed() for _ in range(3))
        turn = Turn(frame.index, "shared", frame.context, b, s, a)
        near, public = frame.neighbours(u), p.public_of(turn.s)
        shares = shamir.split(turn.b + turn.s + turn.a, frame.parameters.threshold, range(1, len(near) + 1))
        packages = {
            v: p.encrypt(self._channel_key(frame, u, v, public, v), share, public)
            for v, share in zip(near, shares.values(), strict=True)
        }
        self.turn, self.last = turn, frame.index
        return KeyShares(public, commitment_of(frame, turn.b), packages)

    def masked_input(
        self, frame: Frame, numbers: Words, received: Mapping[int, tuple[bytes, bytes]], question: bytes = b""
    ) -> Words:
        """MaskedInputCollection: y_u, from x_u and (s_v^PK, package) of each neighbour that shared its keys.

        `question` is a digest of what this client was asked to compute: the masks of two clients that were asked
        different things do not cancel.
        """
        turn, u = self._in_turn(frame, "shared"), self.place(frame)
        near = frame.neighbours(u)
        if not set(received) <= set(near):
            raise PrivacyError("secure sums: keys of clients that are no neighbours")
        if len(received) < frame.parameters.threshold:
            raise PrivacyError(
                f"secure sums: {len(received)} of {len(near)} neighbours sent keys, {frame.parameters.threshold} must"
            )
        masks = [(frame.key(turn.b, "self"), 1)]
        held: dict[int, bytes] = {}
        for v, (public, package) in received.items():
            shares = p.decrypt(self._channel_key(frame, u, v, public, u), package, public)
            if shares is None or len(shares) != 3 * SEED:
                raise PrivacyError(
                    "secure sums: a neighbour's shares are not for this client, round, roster and cohort"
                )
            held[v] = shares
            masks.append(frame.pairwise(p.agree(turn.s, public), u, v, question))
        turn.stage, turn.held = "masked", held  # before anything leaves: only one vector is masked
        masked = np.array(numbers, dtype=np.uint64)
        p.add_masks(masked, masks)
        return masked

    def unmask(self, frame: Frame, living: Iterable[int], dead: Iterable[int]) -> Unmasking:
        """Unmasking: open one share of each neighbour, if the lists are plausible; once per round."""
        turn, u = self._in_turn(frame, "masked"), self.place(frame)
        alive, gone, held = set(living), set(dead), set(turn.held)
        if alive & gone:
            raise PrivacyError("secure sums: the lists of the living and the dead overlap")
        if not alive | gone <= set(frame.cohort) or u not in alive or not held <= alive | gone:
            raise PrivacyError("secure sums: lists of the living and the dead that are not of this cohort")
        if len(alive) < frame.parameters.least:
            raise PrivacyError(f"secure sums: {len(alive)} are said to live, {frame.parameters.least} must")
        if len(held & alive) < frame.parameters.threshold:
            raise PrivacyError(
                f"secure sums: {len(held & alive)} neighbours are said to live, {frame.parameters.threshold} must"
            )
        turn.stage = "done"
        opened = b"".join(_part(turn.held[v], 0 if v in alive else 1) for v in sorted(held))
        acknowledged = {v: _part(turn.held[v], 2) for v in sorted(held & alive)}
        which = bytes(v in alive for v in sorted(held))
        sealed = p.encrypt(frame.key(turn.a, "answer", u), which + opened, frame.context)
        turn.b = turn.s = turn.a = b""
        turn.held = {}
        return Unmasking(acknowledged, sealed)

    def _in_turn(self, frame: Frame, stage: str) -> Turn:
        if self.turn is None or self.turn.context != frame.context:
            raise PrivacyError(f"secure sums: round {frame.index} with this roster and cohort was not begun here")
        if self.turn.stage != stage:
            raise PrivacyError(
                f"secure sums: round {frame.index} is already {self.turn.stage}: nothing is answered twice"
            )
        return self.turn

    def _channel_key(self, frame: Frame, u: int, v: int, public: bytes, to: int) -> bytes:
        """The key of a package between u, this client, and v; bound to the sender's key of the round."""
        secret = p.agree(self.channel, frame.roster.entries[v].channel)
        sender = v if to == u else u
        return p.derive_key(secret, salt=frame.context, info=f"shares {sender} {to} ".encode() + public)


def _part(shares: bytes, number: int) -> bytes:
    """The share of b (0), s (1) or a (2)."""
    return shares[number * SEED : (number + 1) * SEED]


def _advertisement(session: bytes, channel: bytes) -> bytes:
    return _digest(b"keys", session, channel)


def commitment_of(frame: Frame, b: bytes) -> bytes:
    """The commitment to b_u in ShareKeys; it does not reveal b_u."""
    return frame.key(b, "commitment")


def _digest(*parts: bytes) -> bytes:
    whole = hashlib.sha256(_LABEL)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.digest()
