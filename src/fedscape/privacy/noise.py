"""Integer noise from a secret key.

The bits come from SHAKE-256 of the key: past bits do not predict future ones, and the same key gives the same noise.
All draws are integers: a release has no low-order bits that could reveal its input. Acceptance probabilities are
evaluated in double precision; each draw is within 2**-50 of its law in total variation.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedscape.types import Array

_CHUNK = 2**20


class Stream:
    """Random words from a secret key.

    >>> Stream(b"key").words(2).tolist() == Stream(b"key").words(2).tolist()
    True
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._used = 0

    def words(self, n: int) -> Array:
        """The next n 64-bit words."""
        parts = []
        for begin in range(0, n, _CHUNK):
            seed = self._key + self._used.to_bytes(8, "little")
            self._used += 1
            parts.append(np.frombuffer(hashlib.shake_256(seed).digest(8 * min(_CHUNK, n - begin)), dtype="<u8"))
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)

    def uniform(self, n: int) -> Array:
        """The next n numbers in (0, 1]."""
        return np.asarray(((self.words(n) >> np.uint64(11)) + 1.0) * 2.0**-53)


def discrete_laplace(stream: Stream, scale: float, n: int) -> Array:
    """n integers with P(x) proportional to exp(-|x| / scale): the difference of two geometric numbers.

    The binary digits of a geometric number are independent: digit k is 1 with probability r / (1 + r), r = q**(2**k).

    >>> int(np.abs(discrete_laplace(Stream(b"k"), 2.0, 1000)).max()) < 60
    True
    """
    return _geometric(stream, scale, n) - _geometric(stream, scale, n)


def _geometric(stream: Stream, scale: float, n: int) -> Array:
    out = np.zeros(n, dtype=np.int64)
    k = 0
    while 2.0**k / scale < 700:  # above that, exp() is zero
        r = np.exp(-(2.0**k) / scale)
        out += (stream.uniform(n) <= r / (1 + r)).astype(np.int64) << k
        k += 1
    return out


def discrete_gaussian(stream: Stream, sigma: float, n: int) -> Array:
    """n integers with P(x) proportional to exp(-x**2 / (2 sigma**2)), by rejection from a discrete Laplace law.

    Canonne, Kamath and Steinke (2020), Algorithms 2 and 3, with a power of two as the proposal's scale.

    >>> abs(float(discrete_gaussian(Stream(b"k"), 3.0, 10_000).std()) - 3.0) < 0.2
    True
    """
    out = np.empty(n, dtype=np.int64)
    filled = 0
    while filled < n:
        y = _laplace_proposals(stream, sigma, int((n - filled) * 2.6) + 32)
        t = _proposal_scale(sigma)
        keep = stream.uniform(len(y)) <= np.exp(-((np.abs(y) - sigma**2 / t) ** 2) / (2 * sigma**2))
        good = y[keep][: n - filled]
        out[filled : filled + len(good)] = good
        filled += len(good)
    return out


def _proposal_scale(sigma: float) -> int:
    return 1 << max(0, int(np.ceil(np.log2(sigma))))


def _laplace_proposals(stream: Stream, sigma: float, n: int) -> Array:
    """Discrete Laplace numbers of scale t = 2**m: u + t v with u below t kept with probability exp(-u / t)."""
    t = _proposal_scale(sigma)
    bits = stream.words(n)
    u = (bits >> np.uint64(1)) & np.uint64(t - 1)
    keep = stream.uniform(n) <= np.exp(-(u.astype(float)) / t)
    u, negative = u[keep].astype(np.int64), (bits[keep] & np.uint64(1)).astype(bool)
    size = u + t * np.floor(-np.log(stream.uniform(len(u)))).astype(np.int64)
    valid = ~(negative & (size == 0))  # zero has only one sign
    return np.asarray(np.where(negative, -size, size)[valid])
