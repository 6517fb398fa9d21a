# SPDX-License-Identifier: Apache-2.0
"""Noise of standard deviation z on a sum of vectors of norm at most 1.

Who adds it decides who must be trusted: with `central`, the server does; with `distributed` the
clients do, and whoever sees the sum only, as under secure aggregation, need not be trusted.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

DRAWS = 4  # normal draws in one of ours: float32 tails end near 5.4 σ, those of four at twice that
NOISE_WIDTH = 10  # standard deviations of noise for which the integers have room
SMALLEST_SHARE = (
    10.0  # of a client's noise, in units: the sum of such shares is a discrete Gaussian
)


class Mechanism(NamedTuple):
    """How the sum gets its noise; z is the noise multiplier, vectors are pytrees."""

    encode: Callable[[Array, Any, Array], Any]  # (z, vector, key) -> the client's message
    decode: Callable[[Array, Any, Array], Any]  # (z, Σ of messages, key) -> Σ of vectors + noise


def central() -> Mechanism:
    """The server adds N(0, z²) to every number of the sum."""

    def decode(noise: Array, total: Any, key: Array) -> Any:
        return jax.tree.map(lambda leaf, n: leaf + noise * n, total, _for_each(_normal, key, total))

    return Mechanism(lambda _z, vector, _key: vector, decode)


def distributed(clients: int, units: int) -> Mechanism:
    """Every client adds its share, a discrete Gaussian of variance z² / `clients`, in whole units.

    The vector is rounded to multiples of 1 / `units`; integers are added modulo 2^32, as a secure
    sum does, and `units_for` leaves room for them. Kairouz, Liu and Steinke (2021).

    Args:
      clients: how many shares a sum holds at least.
    """

    def encode(noise: Array, vector: Any, key: Array) -> Any:
        share = noise * units / math.sqrt(clients)
        draws = _for_each(lambda k, shape: discrete_normal(k, share, shape), key, vector)
        return jax.tree.map(
            lambda leaf, n: jnp.rint(leaf * units).astype(jnp.int32) + n, vector, draws
        )

    def decode(noise: Array, total: Any, key: Array) -> Any:
        del noise, key
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) / units, total)

    return Mechanism(encode, decode)


def units_for(clients: int, noise: float) -> int:
    """The finest units, a power of two, in which no sum over `clients` runs over 31 bits."""
    return 2 ** math.floor(math.log2(2**31 / (clients + NOISE_WIDTH * noise)))


def rounding_sensitivity(size: int, units: int) -> float:
    """The norm of a vector of `size` numbers and norm 1 after rounding to 1 / `units`."""
    return 1 + math.sqrt(size) / (2 * units)


def discrete_normal(key: Array, sigma: Array, shape: tuple[int, ...]) -> Array:
    """Integers with probability ∝ exp(−x² / 2σ²) (Canonne, Kamath and Steinke 2020, algorithm 3).

    A discrete Laplace proposal, kept with probability exp(−(|x| − σ²/t)² / 2σ²); what is not kept
    is drawn again. Exact but for the rounding of probabilities to float32.
    """
    t = jnp.floor(sigma) + 1
    width = t.astype(jnp.int32)

    def again(carry: Any) -> Any:
        key, value, done = carry
        key, *keys = jax.random.split(key, 6)
        low = jax.random.randint(keys[0], shape, 0, width)
        high = jnp.floor(jax.random.exponential(keys[1], shape))
        kept = jax.random.uniform(keys[2], shape) < jnp.exp(-low.astype(jnp.float32) / t)
        size = low.astype(jnp.float32) + t * high
        negative = jax.random.bernoulli(keys[3], 0.5, shape)
        kept &= ~(negative & (size == 0))
        chance = jnp.exp(-jnp.square((size - sigma**2 / t) / sigma) / 2)
        kept &= jax.random.uniform(keys[4], shape) < chance
        whole = low + width * high.astype(jnp.int32)
        return key, jnp.where(kept & ~done, jnp.where(negative, -whole, whole), value), done | kept

    start = (key, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool))
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), again, start)[1]


def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    draws = [jax.random.normal(k, shape) for k in jax.random.split(key, DRAWS)]
    return sum(draws[1:], start=draws[0]) / np.float32(math.sqrt(DRAWS))


def _for_each(draw: Callable[[Array, tuple[int, ...]], Array], key: Array, vector: Any) -> Any:
    """A draw of its own for each number of `vector`."""
    leaves, structure = jax.tree.flatten(vector)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [draw(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    )
