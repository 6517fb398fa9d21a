# SPDX-License-Identifier: Apache-2.0
"""Everything random is a function of (seed, round): counter-based bits, JAX keys, shuffles."""

import numpy as np

from agnosticfl.core.lazy_jax import Array, jax, jnp

SERVER = 2**32 - 1  # what a round's key is folded with for the server; no client has this number


def example_order(
    seed: int, t: int | np.ndarray, clients: np.ndarray, sizes: np.ndarray, length: int
) -> np.ndarray:
    """A fresh shuffle of each client's examples for round t, [clients, length].

    `t` may be an array with a round for each client.

    Row k holds the numbers 0 … sizes[k]−1 in random order first, then 0 as padding. The order of
    one client depends on (seed, t, client) alone: not on its cohort, not on `length`.
    """
    position = np.arange(length)
    padding = position >= sizes[:, None]
    bits = random_bits(seed, np.reshape(t, (-1, 1)), clients[:, None], position)
    # 32 random bits, then the example's own number: a sort of plain numbers, which is faster than
    # one that has to carry the examples along.
    bits = bits >> np.uint64(32) << np.uint64(32) | position.astype(np.uint64)
    bits[padding] = np.iinfo(np.uint64).max
    bits.sort(axis=1)
    bits[padding] = 0
    return (bits & np.uint64(2**32 - 1)).astype(np.int64)


def any_key() -> "jax.ShapeDtypeStruct":
    """What stands for a key where only shapes count, and none need be made."""
    return jax.eval_shape(jax.random.key, 0)


def random_bits(*words: int | np.ndarray) -> np.ndarray:
    """64 random bits for each tuple of (broadcast) integers: SplitMix64, word after word.

    Counter-based, so the bits of millions of clients need no state, come at once as one array
    operation, and are the same in every process and language.
    """
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            step = np.asarray(word).astype(np.uint64) + np.uint64(1)
            state = state + step * np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def random_unit(*words: int | np.ndarray) -> np.ndarray:
    """Random numbers from 0 to 1 (not included), a function of the words."""
    return (random_bits(*words) >> np.uint64(11)) / 2.0**53


def client_key(seed: int | Array, t: int | Array, client: int | Array) -> Array:
    """The random key of client k in round t: the same in every engine.

    Args:
      seed: a number, or the data of the key that JAX makes of it, [2] uint32.
    """
    key = (
        jax.random.key(seed) if jnp.ndim(seed) == 0 else jax.random.wrap_key_data(jnp.asarray(seed))
    )
    return jax.random.fold_in(jax.random.fold_in(key, t), client)


def server_key(seed: int, t: int | Array) -> Array:
    """The random key of the server in round t, for the channel's decoding."""
    return client_key(seed, t, SERVER)


def step_key(client_key: Array, epoch: int | Array, step: int | Array) -> Array:
    """The random key of one local step."""
    return jax.random.fold_in(jax.random.fold_in(client_key, epoch), step)
