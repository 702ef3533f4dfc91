"""Masked sums with two servers that do not collude: one message per party, any number of dropouts.

A party masks its words with the key stream of a fresh seed. It sends them to the first server, with the seed encrypted
to the second server, the helper. The first server adds up the words it received and forwards the encrypted seeds of
those parties. The helper decrypts the seeds, adds up their streams, and returns that sum; the first server subtracts
it. The first server sees masked words and the total, the helper sees seeds and no words.

Each party signs its encrypted seed together with the round as it was told: the run, the round's number, the question,
how many parties there are, and how many must be in the sum. The helper answers a round once, and only for packages
that all sign the same round. So the first server cannot ask for one party, for two sets that differ by one party, for
parties it made up (if the helper has a roster), nor tell parties different things.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np

from fedscape import disk
from fedscape.errors import DataError, PrivacyError
from fedscape.secure import primitives as p
from fedscape.secure.primitives import SEED, Words
from fedscape.secure.sums import Masked, Session

_LABEL = b"fedscape two servers 2"
BYTES = (
    SEED + SEED + p.TAG + SEED + 64
)  # of a package: a public key, the seed encrypted to it, an identity, a signature


@dataclass(frozen=True)
class Round:
    """One round as every party and the helper must see it.

    Parameters
    ----------
    session
        The run.
    index
        The number of the round.
    length
        Number of words in a party's vector.
    parties
        Number of parties that are asked.
    least
        Number of parties that a sum must have.
    question
        A digest of what all parties are asked to compute.

    >>> Round(b"run", 0, 2, 5, 3).context == Round(b"run", 0, 2, 5, 4).context
    False
    """

    session: bytes
    index: int
    length: int
    parties: int
    least: int
    question: bytes = b""

    def __post_init__(self) -> None:
        numbers = (self.index, self.length, self.parties, self.least)
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in numbers):
            raise PrivacyError("two servers: a round is described by whole numbers from 0")
        if not 2 <= self.least <= self.parties:
            raise PrivacyError(f"two servers: a sum of at least {self.least} of {self.parties} parties is not possible")

    @property
    def context(self) -> bytes:
        """A digest of the round, to which all keys and signatures are bound."""
        numbers = f" {self.index} {self.length} {self.parties} {self.least} ".encode()
        return hashlib.sha256(_LABEL + _sized(self.session) + numbers + _sized(self.question)).digest()

    @property
    def name(self) -> str:
        """The name under which the helper remembers that it has answered."""
        return hashlib.sha256(_LABEL + _sized(self.session) + f" {self.index}".encode()).hexdigest()


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + part


@dataclass(frozen=True)
class Package:
    """A party's seed, encrypted to the helper, with the party's identity and signature."""

    identity: bytes
    sealed: bytes
    signature: bytes

    def is_signed(self, context: bytes) -> bool:
        """Whether its party signed it for this round."""
        return p.is_signed(self.identity, self.signature, context + self.sealed)


def mask(words: Words, helper: bytes, context: bytes, identity: bytes) -> tuple[Words, Package]:
    """The masked words, and their seed encrypted to the helper's public key and signed with the party's key."""
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

    def sum_masks(self, round_: Round, packages: Sequence[Package]) -> Words:
        """The sum of these parties' masks; it is available once."""
        ...


class SecondServer:
    """The second server: decrypts seeds, adds up their streams, and answers each round once.

    Parameters
    ----------
    seed
        The seed of its key; by default a new one.
    peers
        Verifying keys of the parties that count; by default any party with a valid signature.
    least
        Number of parties that a sum must have; a round may ask for more.
    folder
        Where it records the rounds it has answered; by default in memory only.

    >>> helper, round_ = SecondServer(), Round(b"run", 0, 2, parties=3, least=3)
    >>> words = np.arange(2, dtype=np.uint64)
    >>> sent = [mask(words, helper.public, round_.context, os.urandom(32)) for _ in range(3)]
    >>> total = sum(masked for masked, _ in sent) - helper.sum_masks(round_, [package for _, package in sent])
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
            raise DataError(f"least must be at least 2, not {least}: the sum of one party is that party's vector")
        self._seed = p.random_seed() if seed is None else seed
        self.public = p.public_of(self._seed)
        self.peers, self.least = None if peers is None else frozenset(peers), least
        self._folder = None if folder is None else Path(folder) / "answered"
        self._answered: set[str] = set()
        self._lock = Lock()

    def sum_masks(self, round_: Round, packages: Sequence[Package]) -> Words:
        """The sum of these parties' masks; a second request for the same round is refused, whatever it contains."""
        identities = {package.identity for package in packages}
        least = max(self.least, round_.least)
        if len(identities) < max(least, len(packages)):
            raise PrivacyError(
                f"two servers: {len(packages)} packages of {len(identities)} different parties, at least {least} are "
                "needed"
            )
        if len(packages) > round_.parties:
            raise PrivacyError(f"two servers: {len(packages)} packages in a round of {round_.parties} parties")
        for identity in identities:
            if self.peers is not None and identity not in self.peers:
                raise PrivacyError(f"two servers: {identity.hex()[:16]} is not on the helper's roster")
        context = round_.context
        seeds = [self._decrypt(package, context) for package in packages]
        self._answer_once(round_.name)
        total = np.zeros(round_.length, dtype=np.uint64)
        p.add_masks(total, [(p.derive_key(seed, salt=context, info=b"mask"), 1) for seed in seeds])
        return total

    def _decrypt(self, package: Package, context: bytes) -> bytes:
        who = package.identity.hex()[:16]
        if not package.is_signed(context):
            raise PrivacyError(f"two servers: {who} did not sign its seed for this round and question")
        public, sealed = package.sealed[:SEED], package.sealed[SEED:]
        key = p.derive_key(p.agree(self._seed, public), salt=context, info=b"seed " + public + self.public)
        seed = p.decrypt(key, sealed, context)
        if seed is None or len(seed) != SEED:
            raise PrivacyError(f"two servers: the seed of {who} was not encrypted for this helper and round")
        return seed

    def _answer_once(self, name: str) -> None:
        """Record the round before anything leaves; with a folder, also against restarts and a second process."""
        with self._lock:
            known = name in self._answered
            self._answered.add(name)
        if self._folder is not None and not known:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            try:
                os.close(disk.open_private(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                known = True
            else:
                disk.sync(self._folder)
        if known:
            raise PrivacyError("two servers: this round was answered before, and each round is answered once")


@dataclass(frozen=True, kw_only=True)
class TwoServers(Masked):
    """Masked sums with two servers that do not collude: one message per party, any number of dropouts.

    Parameters
    ----------
    helper
        The second server: a `SecondServer`, or a `RemoteAggregator` with its address. A helper in this process is for
        simulations only: both servers are then one.
    least
        Number of parties that a sum must have; nodes sign it, and the helper enforces it.
    colluders
        The share of a cohort that may collude with the first server; distributed noise counts the others only.
    bounds, allow
        See `Masked`: the largest real numbers, and arrays that may be seen client by client.

    >>> TwoServers(least=10, colluders=0.05).smallest(100)
    5
    """

    helper: Opener = field(default_factory=SecondServer)
    least: int = 3
    colluders: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.least, int) or isinstance(self.least, bool) or self.least < 2:
            raise DataError(f"least must be a whole number of at least 2, not {self.least!r}")
        if not isinstance(self.colluders, int | float) or not 0 <= self.colluders < 1:
            raise DataError(f"colluders must be a share from 0 to below 1, not {self.colluders!r}")

    def smallest(self, parties: int) -> int:
        if parties < self.least:
            raise PrivacyError(f"two servers: a cohort of {parties}, at least {self.least} parties are needed")
        return honest(parties, self.least, self.colluders)

    def session(self, parties: int) -> Session:
        self.smallest(parties)
        return _Exchange(self, parties)


def honest(parties: int, least: int, colluders: float) -> int:
    """Number of honest parties in any sum that the helper opens; a PrivacyError if there may be fewer than two."""
    number = least - ceil(colluders * parties - 1e-9)
    if number < 2:
        raise PrivacyError(
            f"two servers: least={least} of {parties} parties leaves {max(number, 0)} honest ones with "
            f"colluders={colluders:g}: raise least"
        )
    return number


class _Exchange:
    """All parties of a round in one process."""

    def __init__(self, how: TwoServers, parties: int) -> None:
        self._how, self._parties, self._name = how, parties, os.urandom(16)
        self._sum: Words = np.zeros(0, dtype=np.uint64)
        self._packages: list[Package] = []

    def add(self, party: int, words: Words) -> None:
        masked, package = mask(words, self._how.helper.public, self._round(len(words)).context, os.urandom(32))
        self._sum = self._sum + masked if self._packages else masked
        self._packages.append(package)

    def total(self) -> Words:
        return self._sum - self._how.helper.sum_masks(self._round(len(self._sum)), self._packages)

    def bytes_up(self) -> int:
        return BYTES

    def _round(self, length: int) -> Round:
        return Round(self._name, 0, length, self._parties, self._how.least)
