# SPDX-License-Identifier: Apache-2.0
"""JAX's random numbers in NumPy, bit by bit, for clients that have no JAX.

Threefry-2x32 (Salmon et al. 2011) with 20 rounds. Clients that round at random need not agree on
how; those that turn their updates before a sum must all turn them alike.
"""

import math

import numpy as np

Key = tuple[np.uint32, np.uint32]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def key(seed: int) -> Key:
    """`jax.random.key(seed)`."""
    return np.uint32(seed >> 32 & 0xFFFFFFFF), np.uint32(seed & 0xFFFFFFFF)


def fold_in(own: Key, number: int) -> Key:
    """`jax.random.fold_in(key, number)`."""
    high, low = hashed(own, np.zeros(1, np.uint32), np.array([number], np.uint32))
    return high[0], low[0]


def uniform(own: Key, shape: tuple[int, ...]) -> np.ndarray:
    """`jax.random.uniform(key, shape)`: float32 from 0 to 1 (not included)."""
    place = np.arange(math.prod(shape), dtype=np.uint64)
    high, low = hashed(own, (place >> np.uint64(32)).astype(np.uint32), place.astype(np.uint32))
    # 23 random bits behind the point of a number from 1 to 2.
    bits = (high ^ low) >> np.uint32(9) | np.uint32(0x3F800000)
    return (bits.view(np.float32) - np.float32(1)).reshape(shape)


def rademacher(own: Key, shape: tuple[int, ...]) -> np.ndarray:
    """`jax.random.rademacher(key, shape, jnp.float32)`: 1 or −1."""
    return np.where(uniform(own, shape) < np.float32(0.5), np.float32(1), np.float32(-1))


def hashed(own: Key, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """64 bits for each counter of 64 bits, in two words as they came."""
    keys = (own[0], own[1], own[0] ^ own[1] ^ PARITY)
    with np.errstate(over="ignore"):
        high, low = high + keys[0], low + keys[1]
        for group in range(5):
            for turn in ROTATIONS[group % 2]:
                high = high + low
                low = low << np.uint32(turn) | low >> np.uint32(32 - turn)
                low = low ^ high
            high = high + keys[(group + 1) % 3]
            low = low + keys[(group + 2) % 3] + np.uint32(group + 1)
    return high, low
