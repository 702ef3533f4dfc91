"""Additive shares to two servers that do not collude: one message a party, any drop-out.

A party masks its words with a stream from a fresh seed, sends them to the first server, and with them the seed, sealed
for the second server, the helper. The first server adds what it has and passes on the sealed seeds of those it counted;
the helper opens them, adds their streams, and returns that sum, which the first takes away. The first sees masked words
and the total, the helper seeds and no words. The helper answers a round once, for at least `least` parties that have
signed, so that the first server cannot ask for one party, for two sets that differ by one, or for parties it made up.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from fedscape.errors import DataError, PrivacyError
from fedscape.secure import primitives as p
from fedscape.secure.primitives import SEED, Words
from fedscape.secure.sums import Masked, Session

_LABEL = b"fedscape two servers 1"
BYTES = SEED + SEED + p.TAG + SEED + 64  # of a package: a public key and the seed under it, who sealed it, a signature


@dataclass(frozen=True)
class Package:
    """A party's seed, sealed for the helper, and who sealed it."""

    identity: bytes
    sealed: bytes
    signature: bytes


def context_of(session: bytes, index: int, length: int) -> bytes:
    """What all keys of a round are bound to: the run, the round, and how many words there are."""
    return hashlib.sha256(_LABEL + session + f" {index} {length}".encode()).digest()


def mask(words: Words, helper: bytes, context: bytes, identity: bytes) -> tuple[Words, Package]:
    """The masked words, and the seed sealed for the helper's public key and signed with the party's own key."""
    seed, own = p.random_seed(), p.random_seed()
    public = p.public_of(own)
    key = p.derive_key(p.agree(own, helper), salt=context, info=b"seed " + public + helper)
    sealed = public + p.encrypt(key, seed, context)
    masked = np.array(words, dtype=np.uint64)
    p.add_masks(masked, [(p.derive_key(seed, salt=context, info=b"mask"), 1)])
    return masked, Package(p.verifier_of(identity), sealed, p.sign(identity, context + sealed))


class Opener(Protocol):
    """The second server, as the first one reaches it."""

    @property
    def public(self) -> bytes:
        """Its public key."""
        ...

    def sum_masks(self, session: bytes, index: int, length: int, packages: Sequence[Package]) -> Words:
        """The sum of these parties' masks, once."""
        ...


class SecondServer:
    """The second server: it opens seeds, adds their streams, and answers a round once.

    Parameters
    ----------
    seed
        Of its key; by default a new one.
    peers
        The verifying keys of parties that count; by default whoever has signed.
    least
        With fewer parties nothing is opened.
    folder
        Where it remembers which rounds it has answered; by default only as long as it lives.

    >>> helper = SecondServer(least=3)
    >>> words = np.arange(2, dtype=np.uint64)
    >>> sent = [mask(words, helper.public, context_of(b"run", 0, 2), os.urandom(32)) for _ in range(3)]
    >>> total = sum(masked for masked, _ in sent) - helper.sum_masks(b"run", 0, 2, [package for _, package in sent])
    >>> total.tolist()
    [0, 3]
    """

    def __init__(
        self,
        seed: bytes | None = None,
        *,
        peers: Iterable[bytes] | None = None,
        least: int = 3,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if least < 2:
            raise DataError(f"least must be at least 2, not {least}: the sum of one party is that party's")
        self._seed = p.random_seed() if seed is None else seed
        self.public = p.public_of(self._seed)
        self.peers, self.least = None if peers is None else frozenset(peers), least
        self._file = None if folder is None else Path(folder) / "answered"
        known = self._file.read_text().split() if self._file is not None and self._file.exists() else []
        self._answered = set(known)

    def sum_masks(self, session: bytes, index: int, length: int, packages: Sequence[Package]) -> Words:
        """The sum of these parties' masks; a second question about a round is refused, whatever it is."""
        context = context_of(session, index, length)
        who = {package.identity for package in packages}
        if len(who) < max(self.least, len(packages)):
            raise PrivacyError(
                f"two servers: {len(who)} different parties are named in {len(packages)} packages, at least "
                f"{self.least} must be"
            )
        if self.peers is not None and not who <= self.peers:
            raise PrivacyError("two servers: a party is named whom nobody vouched for")
        seeds = [self._opened(package, context) for package in packages]
        self._answer_once(hashlib.sha256(_LABEL + session + f" {index}".encode()).hexdigest())
        total = np.zeros(length, dtype=np.uint64)
        p.add_masks(total, [(p.derive_key(seed, salt=context, info=b"mask"), 1) for seed in seeds])
        return total

    def _opened(self, package: Package, context: bytes) -> bytes:
        if not p.is_signed(package.identity, package.signature, context + package.sealed):
            raise PrivacyError("two servers: a seed that its party did not sign for this round")
        public, sealed = package.sealed[:SEED], package.sealed[SEED:]
        key = p.derive_key(p.agree(self._seed, public), salt=context, info=b"seed " + public + self.public)
        seed = p.decrypt(key, sealed, context)
        if seed is None or len(seed) != SEED:
            raise PrivacyError("two servers: a seed that was not sealed for this helper and round")
        return seed

    def _answer_once(self, name: str) -> None:
        if name in self._answered:
            raise PrivacyError("two servers: this round was answered before, and is answered once")
        self._answered.add(name)
        if self._file is not None:  # on disk before anything leaves: a restart must not forget it
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(name + "\n")
                file.flush()
                os.fsync(file.fileno())


@dataclass(frozen=True, kw_only=True)
class TwoServers(Masked):
    """Sums shared out between two servers that do not collude: one message a party, any drop-out.

    Parameters
    ----------
    helper
        The second server: a `SecondServer`, or a `RemoteAggregator` with its address. A helper in this process is for
        simulations: then both servers are one.
    least
        How many parties a sum has at least; the helper holds to its own.
    bounds, allow
        See `Masked`: the largest real numbers, and arrays that may be seen client by client.

    >>> TwoServers(least=5).smallest(100)
    5
    """

    helper: Opener = field(default_factory=SecondServer)
    least: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.least, int) or self.least < 2:
            raise DataError(f"least must be a whole number of at least 2, not {self.least!r}")

    def smallest(self, parties: int) -> int:
        if parties < self.least:
            raise PrivacyError(f"two servers: a cohort of {parties}, at least {self.least} are needed")
        return self.least

    def session(self, parties: int) -> Session:
        self.smallest(parties)
        return _Exchange(self)


class _Exchange:
    """All parties of a round in one process."""

    def __init__(self, how: TwoServers) -> None:
        self._helper, self._name, self._sum = how.helper, os.urandom(16), np.zeros(0, dtype=np.uint64)
        self._packages: list[Package] = []

    def add(self, party: int, words: Words) -> None:
        context = context_of(self._name, 0, len(words))
        masked, package = mask(words, self._helper.public, context, os.urandom(32))
        self._sum = self._sum + masked if self._packages else masked
        self._packages.append(package)

    def total(self) -> Words:
        return self._sum - self._helper.sum_masks(self._name, 0, len(self._sum), self._packages)

    def bytes_up(self) -> int:
        return BYTES
