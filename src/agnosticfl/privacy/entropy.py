# SPDX-License-Identifier: Apache-2.0
"""Secret random bits: from the operating system, never from a run's seed.

A secret of 256 bits is drawn once (`fresh_secret`), shared by the processes of one run, and lives
in their memory only. `Secrets` stretches it with SHAKE-256: each use has a stream of its own.
"""

import collections
import hashlib
import secrets
import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

Bits: TypeAlias = Callable[[int], np.ndarray]  # n -> the next n random bytes, [n] uint8

SECRET_BYTES = 32
PIECE = 1 << 16  # bytes that are stretched at a time


def fresh_secret() -> bytes:
    """256 bits of the operating system's entropy."""
    return secrets.token_bytes(SECRET_BYTES)


def secret_of_a_test(seed: int) -> bytes:
    """A secret that anybody can compute: what it noises is not private."""
    return hashlib.sha256(f"not private: {seed}".encode()).digest()


class Secrets:
    """Streams of secret bits, one for each use.

    `bits` gives another stream every time, so a round that is computed again has other noise.
    Processes that share the secret and ask in the same order get the same bits. Threads may ask at
    once: two sums of one round can be noised side by side.
    """

    def __init__(self, secret: bytes):
        self._secret = secret
        self._asked: collections.Counter[str] = collections.Counter()
        self._counting = threading.Lock()  # two that read the same count would get the same bits

    def bits(self, use: str) -> Bits:
        """The next stream for this use."""
        with self._counting:
            self._asked[use] += 1
            number = self._asked[use]
        return stretched(self._secret, use, number)

    def generator(self, use: str, number: int) -> np.random.Generator:
        """For what is secret but no noise (who is in cohort `number`): the same at every call."""
        start = stretched(self._secret, use, number)(SECRET_BYTES)
        return np.random.default_rng(start.view(np.uint32))


def stretched(secret: bytes, *words: str | int) -> Bits:
    """SHAKE-256 of the secret, the words and the number of the piece: a function of them alone."""
    start = secret + repr(words).encode()
    left = np.zeros(0, np.uint8)
    piece = 0

    def bits(number: int) -> np.ndarray:
        nonlocal left, piece
        pieces = range(piece, piece + max(-(-(number - len(left)) // PIECE), 0))
        more = (hashlib.shake_256(start + n.to_bytes(8, "big")).digest(PIECE) for n in pieces)
        whole = np.concatenate([left, *(np.frombuffer(each, np.uint8) for each in more)])
        left, piece = whole[number:], pieces.stop
        return whole[:number]

    return bits


def from_system(number: int) -> np.ndarray:
    """Bits of the operating system as they come, for a client that shares them with nobody."""
    return np.frombuffer(secrets.token_bytes(number), np.uint8)
