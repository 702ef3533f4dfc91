"""The primitives of the protocol, under the papers' names; all from the package `cryptography`.

KA is X25519 with HKDF-SHA-256 (RFC 7748, RFC 5869), AE is ChaCha20-Poly1305 (RFC 8439), SIG is Ed25519 (RFC 8032), and
PRG is AES-256 in counter mode (SP 800-38A). Each key of AE and PRG is derived for a single use, so nonces are zero.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.errors import PrivacyError, require

require("cryptography", extra="flower")

from cryptography.exceptions import InvalidSignature, InvalidTag  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey  # noqa: E402
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: E402
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: E402
from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: E402

Words = npt.NDArray[np.uint64]

SEED = 32  # bytes of every seed, key and share
TAG = 16
_CHUNK = 2**14  # words: the sum, the key stream and the zeros fit into the cache together
_ZEROS = bytes(8 * _CHUNK)
_NONCE = bytes(12)


def random_seed() -> bytes:
    """A seed from the operating system."""
    return os.urandom(SEED)


def derive_key(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Derive one key with HKDF-SHA-256."""
    return bytes(HKDF(algorithm=hashes.SHA256(), length=SEED, salt=salt, info=info).derive(secret))


def public_of(seed: bytes) -> bytes:
    """The public key of an X25519 key."""
    return _raw(X25519PrivateKey.from_private_bytes(seed).public_key())


def agree(seed: bytes, public: bytes) -> bytes:
    """KA.agree, without HKDF; refuse a public key of low order."""
    try:
        return bytes(X25519PrivateKey.from_private_bytes(seed).exchange(X25519PublicKey.from_public_bytes(public)))
    except ValueError:
        raise PrivacyError("secure sums: a public key of low order") from None


def verifier_of(seed: bytes) -> bytes:
    """The public key of a signing key."""
    return _raw(Ed25519PrivateKey.from_private_bytes(seed).public_key())


def sign(seed: bytes, message: bytes) -> bytes:
    """SIG.sign."""
    return bytes(Ed25519PrivateKey.from_private_bytes(seed).sign(message))


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """SIG.verify."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def encrypt(key: bytes, plain: bytes, bound: bytes) -> bytes:
    """AE.enc under a single-use key; `bound` is authenticated with it."""
    return bytes(ChaCha20Poly1305(key).encrypt(_NONCE, plain, bound))


def decrypt(key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    """AE.dec; None if it was not encrypted with this key and `bound`."""
    try:
        return bytes(ChaCha20Poly1305(key).decrypt(_NONCE, sealed, bound))
    except (InvalidTag, ValueError):
        return None


def add_masks(numbers: Words, masks: Iterable[tuple[bytes, int]]) -> None:
    """Add or subtract (sign 1 or -1) the stream of each key to the numbers, modulo 2^64, in place.

    >>> numbers = np.arange(3, dtype=np.uint64)
    >>> add_masks(numbers, [(bytes(32), 1), (bytes(32), -1)])
    >>> numbers
    array([0, 1, 2], dtype=uint64)
    """
    streams = [(_stream(key), np.add if sign > 0 else np.subtract) for key, sign in masks]
    words = np.empty(_CHUNK + 2, dtype="<u8")  # OpenSSL needs room for one more block
    room = memoryview(words.data).cast("B")
    for begin in range(0, len(numbers), _CHUNK):
        part = numbers[begin : begin + _CHUNK]
        zeros = _ZEROS if len(part) == _CHUNK else _ZEROS[: 8 * len(part)]
        for stream, apply in streams:
            stream.update_into(zeros, room)
            apply(part, words[: len(part)], out=part)


def _stream(key: bytes) -> Any:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _raw(public: Any) -> bytes:
    return bytes(public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))
