"""Randomness keyed by (seed, purpose, round, client), never streamed.

A draw is a function of its key alone: not of the order of calls, the thread, the block or the engine. The generator is
NumPy's Philox 4x64: the 128-bit key is (seed, purpose), the 256-bit counter starts at (0, 0, round, client). Two
different keys therefore never share a stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedscape.core.kernel import WarmUp, kernel
from fedscape.errors import DataError
from fedscape.types import Array, HasKeys, HasRows

TINIEST = 1e-100  # a smaller concentration could not be told from this one, but its logarithms overflow

_U64 = np.uint64
_LOW = _U64(0xFFFFFFFF)
_HALF = _U64(32)
_MULTIPLIER = (_U64(0xD2E7470EE14C6C93), _U64(0xCA5A826395121157))
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_CALL = 2**11  # draws that take as long as a call by itself takes beside them
_DRAWS = WarmUp(enough=2**17)  # of this process; which loop draws changes no bit


def client_keys(ids: Array) -> Array:
    """The 64-bit key of each client id: an integer is its own key, a text is hashed.

    >>> client_keys(np.array([3, -1]))
    array([                   3, 18446744073709551615], dtype=uint64)
    """
    if ids.dtype.kind in "iu":
        wide = np.int64 if ids.dtype.kind == "i" else np.uint64
        return ids.astype(wide, copy=False).view(np.uint64)  # mapped ids stay on disk
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8).digest() for i in ids.tolist())
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


@dataclass(frozen=True)
class Key:
    """What a random draw is a function of.

    Parameters
    ----------
    seed
        The run's seed, 0 to 2**64 - 1.
    round
        The round the draw belongs to.
    purpose
        What the draw is for; different purposes never share a stream.

    >>> key = Key(seed=7, round=2)
    >>> bool(key.generator().random() == Key(7, 2).generator().random())
    True
    >>> key.to("shuffle").generator().random() == key.generator().random()
    False
    """

    seed: int
    round: int = 0
    purpose: str = "step"

    def __post_init__(self) -> None:
        for name, value in (("seed", self.seed), ("round", self.round)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
                raise DataError(f"{name} must be a whole number from 0 to 2**64 - 1, not {value!r}")

    def to(self, purpose: str) -> Key:
        """The same seed and round for another purpose."""
        return replace(self, purpose=purpose)

    def at(self, round: int) -> Key:  # noqa: A002
        """The same seed and purpose at another round."""
        return replace(self, round=round)

    def generator(self, client: int = 0) -> np.random.Generator:
        """A generator for one client key (0 also serves the server's own draws, under a purpose of their own)."""
        counter = np.array([0, 0, self.round, client], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._philox_key(), counter=counter))

    def of(self, clients: HasKeys) -> Iterator[np.random.Generator]:
        """One generator per client, in the order of the clients."""
        return (self.generator(int(client)) for client in clients.keys)

    def uniform(self, clients: HasKeys) -> Array:
        """One number in [0, 1) per client, the first `random()` of each client's generator, computed all at once."""
        seed, purpose = self._philox_key()
        return first_uniform(clients.keys, _U64(self.round), seed, purpose)

    def uniform_rows(self, clients: HasRows) -> Array:
        """One number in [0, 1) per row, a function of the client and the row's place in it."""
        seed, purpose = self._philox_key()
        sizes = np.diff(clients.offsets)
        place = np.arange(clients.offsets[-1]) - np.repeat(clients.offsets[:-1], sizes)
        return first_uniform(np.repeat(clients.keys, sizes), _U64(self.round), seed, purpose, place.astype(np.uint64))

    def _philox_key(self) -> Array:
        digest = hashlib.blake2b(self.purpose.encode(), digest_size=8).digest()
        return np.array([self.seed, int.from_bytes(digest, "little")], dtype=np.uint64)


def dirichlet(rng: np.random.Generator, concentrations: Array) -> Array:
    """One draw from Dir(a) along the last axis, sound for the smallest a.

    A gamma variate of shape a is one of shape a + 1 times U**(1 / a); in logarithms nothing underflows, so that shares
    never become 0 / 0.

    >>> dirichlet(np.random.default_rng(0), np.full((2, 3), 1e-9)).sum(axis=1)
    array([1., 1.])
    """
    logarithm = np.log(rng.standard_gamma(concentrations + 1.0))
    logarithm -= rng.standard_exponential(concentrations.shape) / np.maximum(concentrations, TINIEST)
    shares = np.exp(logarithm - logarithm.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def first_uniform(
    clients: Array,
    round_: np.uint64,
    seed: np.uint64,
    purpose: np.uint64,
    place: Array | None = None,
    *,
    chunk: int = 8192,
) -> Array:
    """Philox 4x64-10 for many counters at once: the first double at each (place, 0, round, client).

    Works through the clients in chunks that stay in the cache (0.17 us a client on one core); a process that has drawn
    many goes on with compiled code, to the same bits.
    """
    out = np.empty(len(clients))
    if _DRAWS.pays(len(clients) + _CALL):
        where = np.zeros(len(clients), dtype=np.uint64) if place is None else place
        about = np.array([round_, seed, purpose, *_MULTIPLIER, *_WEYL], dtype=np.uint64)
        _first_uniform(out, clients.astype(np.uint64), where, about)
        return out
    for begin in range(0, len(clients), chunk):
        part = slice(begin, begin + chunk)
        first = np.ones(len(clients[part]), dtype=np.uint64)  # NumPy steps the counter before its first draw
        if place is not None:
            first += place[part]
        word = [first, np.zeros_like(first), np.full_like(first, round_), clients[part].astype(np.uint64)]
        out[part] = (_philox_first_word(word, int(seed), int(purpose)) >> _U64(11)) * 2.0**-53
    return out


@kernel
def _first_uniform(out: Array, clients: Array, place: Array, about: Array) -> None:
    """The same, one counter after the other; `about` is round, seed, purpose, multipliers and Weyl constants."""
    half, low, m0, m1 = np.uint64(32), np.uint64(0xFFFFFFFF), about[3], about[4]
    for i in range(len(out)):
        a, b, c, d = place[i] + np.uint64(1), np.uint64(0), about[0], clients[i]
        k0, k1 = about[1], about[2]
        for _ in range(10):
            cross = (a >> half) * (m0 & low) + (((a & low) * (m0 & low)) >> half)
            carry = (a & low) * (m0 >> half) + (cross & low)
            high0 = (a >> half) * (m0 >> half) + (cross >> half) + (carry >> half)
            cross = (c >> half) * (m1 & low) + (((c & low) * (m1 & low)) >> half)
            carry = (c & low) * (m1 >> half) + (cross & low)
            high1 = (c >> half) * (m1 >> half) + (cross >> half) + (carry >> half)
            a, b, c, d = high1 ^ b ^ k0, c * m1, high0 ^ d ^ k1, a * m0
            k0, k1 = k0 + about[5], k1 + about[6]
        out[i] = np.float64(a >> np.uint64(11)) * 2.0**-53


def _philox_first_word(word: list[Array], k0: int, k1: int) -> Array:
    for _ in range(10):
        high0, low0 = _multiply(word[0], _MULTIPLIER[0])
        high1, low1 = _multiply(word[2], _MULTIPLIER[1])
        word = [high1 ^ word[1] ^ _U64(k0), low1, high0 ^ word[3] ^ _U64(k1), low0]
        k0, k1 = (k0 + _WEYL[0]) % 2**64, (k1 + _WEYL[1]) % 2**64
    return word[0]


def _multiply(a: Array, b: np.uint64) -> tuple[Array, Array]:
    """High and low words of a 64 x 64 bit product."""
    a_low, a_high = a & _LOW, a >> _HALF
    b_low, b_high = b & _LOW, b >> _HALF
    cross = a_high * b_low + ((a_low * b_low) >> _HALF)
    carry = a_low * b_high + (cross & _LOW)
    return a_high * b_high + (cross >> _HALF) + (carry >> _HALF), a * b
