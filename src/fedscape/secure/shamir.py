"""Shamir's secret sharing, byte by byte over GF(256): a share is as long as the secret.

The field is that of AES, modulo x^8 + x^4 + x^3 + x + 1. Any `threshold` shares determine the secret; fewer are
independent of it. A share is identified by its point, 1 to 255; the secret is the value at 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError

Bytes = npt.NDArray[np.uint8]

LARGEST = 255  # number of points, and so of shares of a secret


def _tables() -> tuple[Bytes, Bytes]:
    """Tables of all products and inverses in GF(256)."""
    powers, logs, value = [0] * 510, [0] * 256, 1
    for i in range(255):
        powers[i] = powers[i + 255] = value
        logs[value] = i
        value ^= (value << 1) ^ (0x11B if value & 0x80 else 0)  # times 3, which generates the field
    log = np.array(logs)
    product = np.array(powers, dtype=np.uint8)[log[:, None] + log[None, :]]
    product[0, :] = product[:, 0] = 0
    inverse = np.array([0] + [powers[255 - logs[a]] for a in range(1, 256)], dtype=np.uint8)
    return product, inverse


PRODUCT, INVERSE = _tables()


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """Split a secret into shares at these points; any `threshold` of them determine it.

    >>> shares = split(b"key", 2, [1, 2, 3])
    >>> join({1: shares[1], 3: shares[3]})
    b'key'
    """
    if not 1 <= threshold <= len(points):
        raise DataError(f"threshold must be from 1 to the number of shares, {len(points)}, not {threshold}")
    if len(set(points)) != len(points) or not all(1 <= point <= LARGEST for point in points):
        raise DataError(f"points must be different numbers from 1 to {LARGEST}, not {list(points)}")
    coefficients = np.frombuffer(os.urandom((threshold - 1) * len(secret)), dtype=np.uint8)
    at = np.array(points, dtype=np.uint8)[:, None]
    values = np.zeros((len(points), len(secret)), dtype=np.uint8)
    for row in coefficients.reshape(threshold - 1, len(secret)):  # Horner, the highest power first
        values = PRODUCT[values ^ row, at]
    values = values ^ np.frombuffer(secret, dtype=np.uint8)
    return {point: values[i].tobytes() for i, point in enumerate(points)}


def join(shares: Mapping[int, bytes], *, at: int = 0) -> bytes:
    """Interpolate the polynomial through all of these shares; its value at 0 is the secret."""
    points = np.array(list(shares), dtype=np.uint8)
    if len({len(share) for share in shares.values()}) != 1:
        raise DataError("there must be shares, all of the same length")
    values = np.array([np.frombuffer(share, dtype=np.uint8) for share in shares.values()])
    out = np.zeros(values.shape[1], dtype=np.uint8)
    for weight, value in zip(_weights(points, at), values, strict=True):
        out ^= PRODUCT[weight][value]
    return out.tobytes()


def _weights(points: Bytes, at: int) -> Bytes:
    """Lagrange weights: for each point the product over the others of (at - other) / (point - other)."""
    above = np.broadcast_to(points ^ np.uint8(at), (len(points), len(points))).copy()
    below = points[:, None] ^ points[None, :]
    np.fill_diagonal(above, 1)
    np.fill_diagonal(below, 1)
    factors = PRODUCT[above, INVERSE[below]]
    weights: Bytes = factors[:, 0]
    for column in range(1, len(points)):
        weights = PRODUCT[weights, factors[:, column]]
    return weights
