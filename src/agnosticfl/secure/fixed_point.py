# SPDX-License-Identifier: Apache-2.0
"""Contributions as whole numbers modulo 2³²: what a secure sum adds up.

Each kind of number has a scale of its own, so that for the stated number of clients no sum can
leave the range of 32 bits. M is the largest power of two that as many clients can each add:

    β^k Δ^k     1 word, in units of (update · examples) / M, rounded at random without bias
    β^k         2 words, in units of examples / M and of 1/M of that
    L^k_i       2 words, in units of (loss · examples) / M and of 1/M of that
    N^k_i       1 word, exact
    left out    1 word, exact; and so is whether the contribution had to be clipped

`update`, `examples` and `loss` are the client's bounds (`bounds.Bounds`). β^k ≤ N^k makes them
enough, which is why this channel wants α with 1 as its largest entry.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.bounds import Bounds, bounded, check_bounds
from agnosticfl.channel import Channel, ChannelBuilder, ClientSum, Decoded
from agnosticfl.client import usable
from agnosticfl.errors import check

LARGEST = 2**31 - 1


class Words(NamedTuple):
    """A contribution, or a sum of them, as int32; only a sum modulo 2³² is ever formed."""

    weighted_delta: Any
    beta: Array  # [2] high, low
    domain_loss: Array  # [2, p]
    domain_count: Array  # [p]
    left_out: Array
    clipped: Array


def fixed_point(clients: int, bounds: Bounds | None = None) -> ChannelBuilder:
    """The channel of a secure sum over at most `clients`, each within `bounds`."""
    bounds = check_bounds(bounds or Bounds())
    most = largest_word(clients)
    check(
        bounds.examples <= most,
        f"counts up to {bounds.examples} of {clients} clients can add up to more than 2^31;"
        f" with so many clients the bound of examples is at most {most}",
    )
    update, loss = bounds.update * bounds.examples, bounds.loss * bounds.examples

    def encode(state: Any, own: ClientSum, key: Array) -> Words:
        del state
        own, clipped = bounded(bounds, usable(own))
        leaves, structure = jax.tree.flatten(own.weighted_delta)
        delta = [
            _at_random(leaf, update, most, jax.random.fold_in(key, number))
            for number, leaf in enumerate(leaves)
        ]
        return Words(
            weighted_delta=jax.tree.unflatten(structure, delta),
            beta=_two_words(own.beta, bounds.examples, most),
            domain_loss=_two_words(own.domain_loss, loss, most),
            domain_count=own.domain_count.astype(jnp.int32),
            left_out=own.left_out.astype(jnp.int32),
            clipped=clipped.astype(jnp.int32),
        )

    def decode(state: Any, total: Words, key: Array) -> Decoded:
        del key
        sums = ClientSum(
            weighted_delta=jax.tree.map(
                lambda t: t * jnp.float32(update / most), _floats(total[0])
            ),
            beta=_from_two_words(total.beta, bounds.examples, most),
            domain_loss=_from_two_words(total.domain_loss, loss, most),
            domain_count=_floats(total.domain_count),
            left_out=_floats(total.left_out),
        )
        return Decoded(sums, state, {"clients_clipped": _floats(total.clipped)})

    channel = Channel(lambda: (), encode, lambda message: message, decode, unit_alpha=True)
    return lambda _: channel


def simulated(
    clients: int, update: float = 10.0, examples: int = 1000, loss: float = 100.0
) -> ChannelBuilder:
    """The numbers of a secure sum without its masks: what it costs in accuracy."""
    return fixed_point(clients, Bounds(update, examples, loss))


def largest_word(clients: int) -> int:
    """M, so that `clients` numbers from −M to M add up to what an int32 holds."""
    check(1 <= clients <= LARGEST, f"number of clients is {clients}; it must be 1 or more")
    return 1 << (LARGEST // clients).bit_length() - 1


def _at_random(values: Array, largest: float, most: int, key: Array) -> Array:
    """Up or down to a whole number, by chance, so that the mean is right."""
    scaled = values.astype(jnp.float32) * jnp.float32(most / largest)
    words = jnp.floor(scaled + jax.random.uniform(key, scaled.shape))
    return jnp.clip(words, -most, most).astype(jnp.int32)


def _two_words(values: Array, largest: float, most: int) -> Array:
    scaled = jnp.clip(values.astype(jnp.float32) * jnp.float32(most / largest), -most, most)
    high = jnp.floor(scaled)
    low = jnp.floor((scaled - high) * most)
    return jnp.stack([high, low]).astype(jnp.int32)


def _from_two_words(words: Array, largest: float, most: int) -> Array:
    high, low = _floats(words)
    return (high + low / most) * jnp.float32(largest / most)


def _floats(total: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.float32), total)
