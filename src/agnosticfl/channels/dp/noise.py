# SPDX-License-Identifier: Apache-2.0
"""Sums of whole numbers, and how they leave the trusted part of the program with noise on them.

A client's vector of norm at most 1 is rounded to multiples of 1 / units and added modulo 2^32, as a
secure sum does: such a sum has the same bits in any order, and what one client can change in it is
known exactly, which it is not for sums of floating-point numbers. Noise is whole numbers too, drawn
on the host (`privacy/`): JAX's generators have neither enough bits nor exact tails.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from agnosticfl.core.lazy_jax import Array, jax, jnp
from agnosticfl.errors import check
from agnosticfl.privacy.accounting import ROUNDED
from agnosticfl.privacy.discrete import LARGEST_SIGMA
from agnosticfl.privacy.noise_source import NoiseSource

NOISE_WIDTH = 10  # standard deviations of noise for which the integers have room
SMALLEST_SIGMA = (
    10  # of one draw, in units: the sum of such draws is as good as a discrete Gaussian
)
ROOM = 2  # times the noise that was planned: a resumed run may need more


class Release(Protocol):
    """(sum of clients' vectors, σ of a draw), in units -> the sum with noise; never twice alike."""

    def __call__(self, total: np.ndarray, sigma: np.ndarray, /) -> np.ndarray: ...


class Scale(NamedTuple):
    """How fine the integers are, and how much noise they get."""

    units: int  # a vector of norm 1 has norm `units`
    sigma: int  # of one draw
    shares: int  # draws that are added up: 1 by the server, c by the clients
    spread: float = 1.0  # of a round's noise, which may be made of several rounds' draws

    @property
    def noise(self) -> float:
        """z, the noise multiplier."""
        return self.sigma * math.sqrt(self.shares) / self.units


def independent(source: NoiseSource, shares: int) -> Release:
    """Noise of its own for every sum: one discrete Gaussian, or the sum of the clients' shares."""

    def release(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        noise = source(int(sigma), shares, total.size)
        return (np.asarray(total) + noise).astype(np.float32)  # int32 wraps, as a secure sum does

    return release


def by_clients(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """A sum to which clients of a federation have added their shares of the noise themselves."""
    del sigma
    return np.asarray(total).astype(np.float32)


def too_long(total: Any, scale: Scale, clients: int) -> str | None:
    """Why whole numbers cannot be the sum of so many clients' noised vectors; None if they can.

    Each vector is at most `scale.units` long, but for rounding. The noise of n clients in d numbers
    is longer than σ √n (√d + 10) with a probability below e^−50.
    """
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total)]).astype(np.float64)
    length = float(np.linalg.norm(flat))
    noise = scale.sigma * math.sqrt(clients) * (math.sqrt(flat.size) + NOISE_WIDTH)
    most = clients * scale.units * (1 + ROUNDED) + noise
    if length <= most:
        return None
    whose = f"{clients} clients and their noise" if scale.sigma else f"{clients} clients' vectors"
    return f"it is {length / most:.3g} times as long as {whose} can be"


def to_whole_numbers(vector: Any, units: Array) -> Any:
    """A client's vector in units; each number is wrong by half a unit at most."""
    return jax.tree.map(lambda leaf: jnp.rint(leaf * units).astype(jnp.int32), vector)


def released(release: Release, total: Any, sigma: Array, units: Array) -> Any:
    """The noised sum of vectors, as floating-point numbers."""
    from jax.experimental import io_callback  # here: a client that only sends needs no JAX

    leaves, structure = jax.tree.flatten(total)
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
    shape = jax.ShapeDtypeStruct(flat.shape, jnp.float32)
    noised = io_callback(release, shape, flat, sigma) / units
    parts = jnp.split(noised, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return jax.tree.unflatten(
        structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    )


def units_for(clients: int, noise: float) -> int:
    """The finest units, a power of two, for which σ and no sum over `clients` is too large."""
    finest = 2**31 / (clients + ROOM * NOISE_WIDTH * noise)
    return 2 ** math.floor(math.log2(min(finest, LARGEST_SIGMA / (ROOM * noise), LARGEST_SIGMA)))


def scale_for(noise: float, units: int, shares: int) -> Scale:
    """The scale whose noise is `noise` (z) or just above."""
    sigma = math.ceil(noise * units / math.sqrt(shares))
    check(
        SMALLEST_SIGMA <= sigma <= LARGEST_SIGMA,
        f"dp: noise multiplier {noise:.3g} would be {sigma} units; 32 bits have room for"
        f" {SMALLEST_SIGMA} to {LARGEST_SIGMA}",
    )
    return Scale(units, sigma, shares)


def scale_among(noise: float, clients: int, honest: int) -> Scale:
    """The scale for a sum over `clients`, of whom the shares of `honest` are noise `noise` (z)."""
    wide = math.sqrt(clients / honest)
    return scale_for(noise, units_for(clients, noise * wide), honest)._replace(spread=wide)


def rounding_sensitivity(size: int, units: float) -> float:
    """The norm of a vector of `size` numbers and norm 1 after rounding to 1 / `units`."""
    return 1 + math.sqrt(size) / (2 * units)
