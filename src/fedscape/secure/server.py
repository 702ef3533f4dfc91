"""The server of the protocol: forwards encrypted shares, adds masked vectors, and opens the total."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, islice

from fedscape.errors import PrivacyError, TooFewClients
from fedscape.secure import primitives as p
from fedscape.secure import shamir
from fedscape.secure.primitives import SEED, Words
from fedscape.secure.protocol import Frame, KeyShares, Unmasking, commitment_of

_TRIES = 2000  # sets of shares to try if some shares are false


class Server:
    """The server in one round; `liars` are clients whose shares were found to be false and left out."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.shared: dict[int, KeyShares] = {}
        self.living: set[int] = set()
        self.liars: set[int] = set()
        self._sum: Words | None = None
        self._answers: dict[int, Unmasking] = {}

    def take_shares(self, u: int, shares: KeyShares) -> None:
        """Store a client's message of ShareKeys."""
        lengths = {len(package) for package in shares.packages.values()}
        form = len(shares.public), len(shares.commitment), lengths
        if set(shares.packages) != set(self.frame.neighbours(u)) or form != (SEED, SEED, {3 * SEED + p.TAG}):
            raise PrivacyError("secure sums: malformed key shares")
        self.shared[u] = shares

    def received_by(self, v: int) -> dict[int, tuple[bytes, bytes]]:
        """The keys and packages of a client's neighbours, which it needs for MaskedInputCollection."""
        near = (u for u in self.frame.neighbours(v) if u in self.shared)
        return {u: (self.shared[u].public, self.shared[u].packages[v]) for u in near}

    def take_masked(self, u: int, masked: Words) -> None:
        """Add a client's masked vector; only the sum is stored."""
        if u not in self.shared or u in self.living or (self._sum is not None and len(self._sum) != len(masked)):
            raise PrivacyError("secure sums: a masked vector that was not asked for, or of another length")
        self.living.add(u)
        if self._sum is None:
            self._sum = masked.copy()
        else:
            self._sum += masked

    def lists(self) -> tuple[list[int], list[int]]:
        """The living and the dead, for Unmasking; with too few living the round ends and nothing is opened."""
        least = self.frame.parameters.least
        if len(self.living) < least:
            raise TooFewClients(
                f"round {self.frame.index}: {len(self.living)} of {len(self.frame.cohort)} clients sent masked sums, "
                f"{least} must: nothing was opened"
            )
        return sorted(self.living), sorted(set(self.frame.cohort) - self.living)

    def take_unmasking(self, w: int, answer: Unmasking) -> None:
        """Store a client's message of Unmasking."""
        if w not in self.living or not set(answer.alive) <= self.living & set(self.frame.neighbours(w)):
            raise PrivacyError("secure sums: an unmasking that was not asked for")
        self._answers[w] = answer

    def total(self, question: bytes = b"") -> Words:
        """The sum of the living clients' vectors modulo 2^64, in place; `question` is the digest of what was asked."""
        if self._sum is None:
            raise TooFewClients(f"round {self.frame.index}: no client sent a masked sum")
        opened = self._opened()
        masks: list[tuple[bytes, int]] = []
        for u in sorted(self.living):
            seed = self._secret(u, opened, 0)
            masks.append((self.frame.key(seed, "self"), -1))
        for u in sorted(set(self.shared) - self.living):
            near = [v for v in self.frame.neighbours(u) if v in self.living]
            if near:
                seed = self._secret(u, opened, 1)
                masks += [self._left_over(seed, v, u, question) for v in near]
        p.add_masks(self._sum, masks)
        return self._sum

    def _left_over(self, seed: bytes, v: int, u: int, question: bytes) -> tuple[bytes, int]:
        """The mask that v added for the dead client u, with the opposite sign."""
        key, sign = self.frame.pairwise(p.agree(seed, self.shared[v].public), v, u, question)
        return key, -sign

    def _opened(self) -> dict[int, dict[int, dict[int, bytes]]]:
        """Shares of b (0) and s (1), by owner and neighbour, from answers that `threshold` neighbours acknowledged."""
        shares: dict[int, dict[int, dict[int, bytes]]] = {0: {}, 1: {}}
        for w, answer in self._answers.items():
            alive = {v: a.alive[w] for v, a in self._answers.items() if w in a.alive}
            held = sorted(v for v in self.frame.neighbours(w) if v in self.shared)
            form: list[bytes] = []

            def opens(seed: bytes, w: int = w, sealed: bytes = answer.sealed, form: list[bytes] = form) -> bool:
                plain = p.decrypt(self.frame.key(seed, "answer", w), sealed, self.frame.context)
                form[:] = [] if plain is None else [plain]
                return plain is not None

            if self._joined(w, alive, opens) is None or len(form[0]) != len(held) * (1 + SEED):
                continue
            which, rest = form[0][: len(held)], form[0][len(held) :]
            for i, v in enumerate(held):
                shares[0 if which[i] else 1].setdefault(v, {})[w] = rest[i * SEED : (i + 1) * SEED]
        return shares

    def _secret(self, u: int, opened: Mapping[int, Mapping[int, Mapping[int, bytes]]], kind: int) -> bytes:
        """A client's b_u (0) or s_u (1), checked against its message of ShareKeys."""

        def is_own(seed: bytes) -> bool:
            if kind == 0:
                return commitment_of(self.frame, seed) == self.shared[u].commitment
            return p.public_of(seed) == self.shared[u].public

        seed = self._joined(u, opened[kind].get(u, {}), is_own)
        if seed is None:
            number, threshold = len(opened[kind].get(u, {})), self.frame.parameters.threshold
            raise TooFewClients(
                f"round {self.frame.index}: {number} neighbours opened a share of one client's mask, {threshold} true "
                "ones are needed: the total stays closed"
            )
        return seed

    def _joined(self, u: int, shares: Mapping[int, bytes], check: Check) -> bytes | None:
        """The secret of u that passes the check; with shares to spare, false ones are detected."""
        threshold = self.frame.parameters.threshold
        points = {self.frame.point(u, w): share for w, share in shares.items() if len(share) == SEED}
        if len(points) < threshold:
            return None
        for chosen in islice(_choices(sorted(points), threshold), _TRIES):
            some = {x: points[x] for x in chosen}
            secret = shamir.join(some)
            if check(secret):
                near = self.frame.neighbours(u)
                false = (x for x in points if x not in some and shamir.join(some, at=x) != points[x])
                self.liars |= {near[x - 1] for x in false}
                return secret
        return None


Check = Callable[[bytes], bool]


def _choices(points: list[int], threshold: int) -> Iterable[tuple[int, ...]]:
    """Subsets of `threshold` points: first consecutive ones, which soon leave out a single false one, then all."""
    turns = [points[i:] + points[:i] for i in range(len(points))]
    yield from (tuple(turn[:threshold]) for turn in turns)
    yield from combinations(points, threshold)
