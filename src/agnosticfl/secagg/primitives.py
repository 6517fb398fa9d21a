# SPDX-License-Identifier: Apache-2.0
"""The cryptography of the secure sum, each part a thin use of a maintained library.

Keys, ciphers and signatures are `cryptography`'s, Shamir's shares are `pycryptodome`'s.
"""

import hashlib
import os

import numpy as np

from agnosticfl.errors import BadInput

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise BadInput(
        f"secure aggregation needs {error.name}: pip install 'agnosticfl[secure]'"
    ) from error

SEED = 16  # bytes: what Shamir shares at a time, and as strong as X25519 itself
KEY = 32  # bytes of a key of X25519, Ed25519 or AES-256, and of a digest
SIGNATURE = 64
NONCE, TAG = 12, 16  # of AES-GCM
BLOCK = 2**15  # numbers of a mask made at a time: they stay in the processor's cache


class CryptoError(ValueError):
    """A signature, a box or a key that is not what it should be."""


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts; no two lists of parts run into the same bytes."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def random_bytes(number: int) -> bytes:
    """A fresh secret."""
    return os.urandom(number)


def derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869): a key for one purpose."""
    return HKDF(SHA256(), KEY, salt, info).derive(secret)


def public_key(private: bytes) -> bytes:
    """X25519 (RFC 7748): the public key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """X25519: the secret that two clients share."""
    try:
        key = X25519PublicKey.from_public_bytes(public)
        return X25519PrivateKey.from_private_bytes(private).exchange(key)
    except ValueError:
        raise CryptoError("the public key is of a small order") from None


def signing_key() -> Ed25519PrivateKey:
    """A new key for a client's place in the roster."""
    return Ed25519PrivateKey.generate()


def verify_key(key: Ed25519PrivateKey) -> bytes:
    """What the roster holds of a signing key."""
    return key.public_key().public_bytes_raw()


def check_signature(verify_key: bytes, signature: bytes, message: bytes) -> None:
    """Ed25519 (RFC 8032)."""
    try:
        Ed25519PublicKey.from_public_bytes(verify_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise CryptoError("the signature is not that of the key in the roster") from None


def seal(key: bytes, plain: bytes, bound_to: bytes) -> bytes:
    """AES-256-GCM: a box that opens only with `key` and for what it is bound to."""
    nonce = random_bytes(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, plain, bound_to)


def unseal(key: bytes, box: bytes, bound_to: bytes) -> bytes:
    """The inverse of `seal`."""
    try:
        return AESGCM(key).decrypt(box[:NONCE], box[NONCE:], bound_to)
    except InvalidTag:
        raise CryptoError("the box does not open") from None


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Shamir's shares of a seed; holder j's is the polynomial at j + 1."""
    return [share for _, share in Shamir.split(threshold, holders, secret, False)]


def combine(shares: dict[int, bytes]) -> bytes:
    """The seed from exactly `threshold` shares, by holder."""
    return Shamir.combine([(holder + 1, share) for holder, share in shares.items()], False)


def add_mask(vector: np.ndarray, key: bytes, sign: int) -> None:
    """vector ← vector ± the key stream of AES-256-CTR, as numbers modulo 2³², in place.

    A key serves for one mask, so its counter starts at 0.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    nothing, mask = bytes(4 * BLOCK), np.empty(BLOCK, "<u4")
    change = np.add if sign > 0 else np.subtract
    for start in range(0, vector.size, BLOCK):
        part = vector[start : start + BLOCK]
        stream.update_into(nothing[: 4 * part.size], mask.view(np.uint8).data)
        change(part, mask[: part.size], out=part)
