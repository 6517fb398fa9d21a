# SPDX-License-Identifier: Apache-2.0
"""Masked vectors as bytes; their first numbers may be of a smaller ring than the others.

Of a number modulo 2³² the lowest b bits are that number modulo 2^b, and sums and differences of
such are right modulo 2^b. So vectors are masked modulo 2³², whatever their rings, and cut to their
bits after that: what is sent is as uniformly random as before.
"""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

BLOCK = 2**13  # numbers at a time: they stay in the processor's cache, and fill whole bytes


class Rings(NamedTuple):
    """How many numbers a vector has, and of which rings."""

    length: int
    short: int = 0  # so many of them, the first, are modulo 2^bits; the others modulo 2³²
    bits: int = 32


def num_bytes(rings: Rings) -> int:
    """Bytes of a vector."""
    return -(-rings.short * rings.bits // 8) + 4 * (rings.length - rings.short)


def to_bytes(vector: np.ndarray, rings: Rings) -> bytes:
    """The short numbers bit after bit, then the others; the lowest bit of each first."""
    parts = [_squeezed(vector[numbers], rings.bits) for numbers, _ in _blocks(rings)]
    return b"".join([*parts, vector[rings.short :].tobytes()])


def from_bytes(data: bytes, rings: Rings) -> np.ndarray:
    """The inverse of `to_bytes`."""
    vector = np.empty(rings.length, "<u4")
    for numbers, place in _blocks(rings):
        vector[numbers] = _spread(data[place], vector[numbers].size, rings.bits)
    others = rings.length - rings.short
    vector[rings.short :] = np.frombuffer(data, "<u4", offset=len(data) - 4 * others)
    return vector


def reduced(vector: np.ndarray, rings: Rings) -> np.ndarray:
    """`vector` with each number brought to the range of its ring, from 0 on."""
    short = vector[: rings.short] & np.uint32(2**rings.bits - 1)
    return np.concatenate([short, vector[rings.short :]])


def _blocks(rings: Rings) -> Generator[tuple[slice, slice]]:
    """Places of short numbers in the vector, and of their bytes."""
    for start in range(0, rings.short, BLOCK):
        stop = min(start + BLOCK, rings.short)
        yield slice(start, stop), slice(start * rings.bits // 8, -(-stop * rings.bits // 8))


def _squeezed(numbers: np.ndarray, bits: int) -> bytes:
    every = np.ascontiguousarray(numbers, "<u4").view(np.uint8).reshape(-1, 4)
    kept = np.unpackbits(every, axis=1, count=bits, bitorder="little")
    return np.packbits(kept.ravel(), bitorder="little").tobytes()


def _spread(data: bytes, number: int, bits: int) -> np.ndarray:
    """Each number lies within the eight bytes that begin where it does."""
    windows = np.ndarray(len(data) + 1, "<u8", data + bytes(8), strides=(1,))
    first = np.arange(number, dtype=np.uint64) * np.uint64(bits)
    numbers = windows[first >> np.uint64(3)] >> (first & np.uint64(7))
    return numbers & np.uint64(2**bits - 1)
