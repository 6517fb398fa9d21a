# SPDX-License-Identifier: Apache-2.0
"""Smaller uploads: updates in a few bits, or only their largest numbers.

Only β^k Δ^k is compressed; β^k, L^k and N^k are 1 + 2p numbers and stay exact. Each client has
steps or places of its own, so its message must be opened before it is added: not under the masks of
a secure sum, whose few bits are those of `channels.fixed_point.few_bits`.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.channel import Channel, ChannelBuilder, Decoded
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.lazy_jax import Array, jax, jnp
from agnosticfl.errors import check
from agnosticfl.options import PositiveShare

LARGEST_SIDE = 64  # blocks have side² numbers; a Hadamard matrix is a product of such sides
BITS = (4, 8)


class Turn(NamedTuple):
    """What all know of a round's rotation."""

    number: Array  # from which its signs follow


class Memory(NamedTuple):
    """What the server remembers for `largest`."""

    mean: Array  # h, [|W|]


class Rounded(NamedTuple):
    """A message in few bits: each block has a lowest value and a step of its own."""

    levels: Array  # [blocks, …] uint8; two of 4 bits in each
    lowest: Array  # [blocks]
    step: Array  # [blocks]
    beta: Array
    domain_loss: Array
    domain_count: Array
    left_out: Array  # uint8


class Largest(NamedTuple):
    """A message of the largest numbers of an update."""

    values: Array  # [k]
    place: Array  # [k] int32
    beta: Array
    domain_loss: Array
    domain_count: Array
    left_out: Array  # uint8


def compressed(
    bits: Literal[4, 8] | None = None,
    top_k: PositiveShare | None = None,
) -> ChannelBuilder:
    """A task's [compress]: `bits` of `rounded`, or the fraction of `top_k`.

    Args:
      bits: of each number of an update.
      top_k: the share of an update's numbers, the largest, that is sent.
    """
    check(
        (bits is None) != (top_k is None),
        f"compress: bits is {bits} and top_k {top_k}; give one of them",
    )
    return rounded(int(bits)) if bits is not None else largest(float(top_k or 0))


def rounded(bits: int) -> ChannelBuilder:
    """Updates in `bits` bits per number: stochastic rounding after a random rotation.

    The rotation (random signs, then a Hadamard matrix, block by block; Suresh et al. 2017) spreads
    what a few numbers hold over the whole block, so that the range of a block, which sets the step,
    is small. Rounding up or down at random has the right mean, so the sum is unbiased; the error of
    a number is below its block's step, (highest − lowest) / (2^bits − 1).
    """
    check(bits in BITS, f"compress: bits is {bits}; it must be one of {BITS}")

    def build(like: ClientSum) -> Channel:
        size = tree.size(like.weighted_delta)
        block = block_size(size)
        blocks = -(-size // block)
        flatten, unflatten = _flattening(like.weighted_delta)

        def encode(state: Turn, sums: ClientSum, key: Array) -> Rounded:
            flat = jnp.pad(flatten(sums.weighted_delta), (0, blocks * block - size))
            turned = rotate(flat.reshape(blocks, block) * _signs(state, blocks, block))
            levels, lowest, step = round_randomly(turned, bits, key)
            return Rounded(pack(levels, bits), lowest, step, *_exact(sums))

        def summand(message: Rounded) -> ClientSum:
            levels = unpack(message.levels, bits).astype(jnp.float32)
            turned = message.lowest[:, None] + message.step[:, None] * levels
            return _with_exact(turned, message)

        def decode(state: Turn, total: ClientSum, key: Array) -> Decoded:
            del key
            flat = (rotate(total.weighted_delta) * _signs(state, blocks, block)).ravel()[:size]
            after = Turn(state.number + 1)
            return Decoded(total._replace(weighted_delta=unflatten(flat)), after, {})

        return Channel(lambda: Turn(jnp.uint32(1)), encode, summand, decode)

    return build


def block_size(size: int) -> int:
    """Numbers in a block, a power of four that is not much larger than a small model."""
    side = 2
    while side**2 < size and side < LARGEST_SIDE:
        side *= 2
    return side**2


def rotate(blocks: Array) -> Array:
    """Each row, of 2^n numbers, by the orthonormal Hadamard matrix, which is its own inverse."""
    sides, left = list[int](), blocks.shape[1]
    while left > 1:
        sides.append(min(left, LARGEST_SIDE))
        left //= sides[-1]
    turned = blocks.reshape(-1, *sides)
    for side in sides:  # the axis that is multiplied goes to the end: after all, they are in order
        precise = jax.lax.Precision.HIGHEST
        turned = jnp.tensordot(turned, _hadamard(side), axes=(1, 0), precision=precise)
    return turned.reshape(blocks.shape)


def rotated(like: ClientSum) -> Channel:
    """The whole update as one vector, turned at random: a stage before others in a chain.

    All clients turn the same way, so sums are turned back once. The first 2^n numbers are rotated,
    as in `rounded`, then the last 2^n of what that gives, for the largest n that |W| has room for:
    so no number is added. Each that comes out is a sum with random signs and a variance of at most
    σ² = ‖x‖² / 2^n, so that it lies beyond ±aσ with probability 2 exp(−a² / 2) at most (Hoeffding).
    """
    size = tree.size(like.weighted_delta)
    part = rotated_part(size)
    flatten, unflatten = _flattening(like.weighted_delta)

    def encode(state: Turn, sums: ClientSum, key: Array) -> ClientSum:
        del key
        first, last = _signs(state, 2, part)
        flat = flatten(sums.weighted_delta)
        flat = jnp.concatenate([rotate((flat[:part] * first)[None])[0], flat[part:]])
        turned = rotate((flat[size - part :] * last)[None])[0]
        return sums._replace(weighted_delta=jnp.concatenate([flat[: size - part], turned]))

    def decode(state: Turn, total: ClientSum, key: Array) -> Decoded:
        del key
        first, last = _signs(state, 2, part)
        flat = total.weighted_delta
        back = rotate(flat[None, size - part :])[0] * last
        flat = jnp.concatenate([flat[: size - part], back])
        flat = jnp.concatenate([rotate(flat[None, :part])[0] * first, flat[part:]])
        return Decoded(total._replace(weighted_delta=unflatten(flat)), Turn(state.number + 1), {})

    return Channel(lambda: Turn(jnp.uint32(1)), encode, lambda message: message, decode)


def rotated_part(size: int) -> int:
    """2^n, the largest power of two that is not above `size`."""
    return 1 << size.bit_length() - 1


def round_randomly(values: Array, bits: int, key: Array) -> tuple[Array, Array, Array]:
    """Each row as levels 0 … 2^bits − 1 from its lowest to its highest value, and these two."""
    most = 2**bits - 1
    lowest = jnp.min(values, axis=1)
    step = (jnp.max(values, axis=1) - lowest) / most
    exact = tree.divide(values - lowest[:, None], jnp.broadcast_to(step[:, None], values.shape))
    levels = jnp.floor(exact + jax.random.uniform(key, values.shape))
    return jnp.clip(levels, 0, most).astype(jnp.uint8), lowest, step


def pack(levels: Array, bits: int) -> Array:
    """Levels of 4 bits two in a byte; those of 8 as they are."""
    if bits == 8:
        return levels
    return levels[:, ::2] | levels[:, 1::2] << 4


def unpack(packed: Array, bits: int) -> Array:
    """The inverse of `pack`."""
    if bits == 8:
        return packed
    return jnp.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def largest(fraction: float) -> ChannelBuilder:
    """Only the k largest numbers of an update are sent; what is not is made up for later.

    Error feedback by differences, after EF21 (Richtárik, Sokolov and Fatkhullin 2021), but with one
    memory h for all at the server: the mean update as it last knew it. It goes down with w; a
    client sends the k largest numbers of β^k (Δ^k − h), and the server adds Σ_k β^k h to the sum. A
    number that is not sent is thus as h has it, and comes when its error is among the largest.

    EF21 has a memory h_k at each client, towards which its own Δ^k − h_k shrinks: its rate of
    convergence rests on that, and does not hold here, where Δ^k − h stays as large as clients
    differ. A memory at each client would cost no download, but most clients of a large federation
    take part once.

    Args:
      fraction: k, as a part of |W|.
    """
    check(0 < fraction < 1, f"compress: top_k is {fraction}; it must lie between 0 and 1")

    def build(like: ClientSum) -> Channel:
        size = tree.size(like.weighted_delta)
        k = max(round(fraction * size), 1)
        flatten, unflatten = _flattening(like.weighted_delta)

        def encode(memory: Memory, sums: ClientSum, key: Array) -> Largest:
            del key
            news = flatten(sums.weighted_delta) - sums.beta * memory.mean
            _, place = jax.lax.top_k(jnp.abs(news), k)
            return Largest(news[place], place.astype(jnp.int32), *_exact(sums))

        def summand(message: Largest) -> ClientSum:
            news = jnp.zeros(size).at[message.place].set(message.values)
            return _with_exact(news, message)

        def decode(memory: Memory, total: ClientSum, key: Array) -> Decoded:
            del key
            flat = total.weighted_delta + total.beta * memory.mean
            mean = tree.divide(flat, jnp.broadcast_to(total.beta, flat.shape))
            after = Memory(jnp.where(total.beta > 0, mean, memory.mean))
            return Decoded(total._replace(weighted_delta=unflatten(flat)), after, {})

        return Channel(lambda: Memory(jnp.zeros(size)), encode, summand, decode)

    return build


def _exact(sums: ClientSum) -> tuple[Array, Array, Array, Array]:
    """What is sent as it is; a client left out says so in one byte."""
    left_out = sums.left_out.astype(jnp.uint8)
    return sums.beta, sums.domain_loss, sums.domain_count, left_out


def _with_exact(update: Array, message: Rounded | Largest) -> ClientSum:
    exact = (message.beta, message.domain_loss, message.domain_count)
    return ClientSum(update, *exact, message.left_out.astype(jnp.float32))


def _hadamard(side: int) -> Array:
    """The orthonormal Hadamard matrix."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < side:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return jnp.asarray(matrix / np.float32(math.sqrt(side)))


def _signs(turn: Turn, blocks: int, block: int) -> Array:
    """The round's random signs, known to everybody."""
    return jax.random.rademacher(jax.random.key(turn.number), (blocks, block), jnp.float32)


def _flattening(like: Any) -> tuple[Callable[[Any], Array], Callable[[Array], Any]]:
    """A tree of these shapes as one vector, and back."""
    from jax.flatten_util import ravel_pytree

    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
    return lambda full: ravel_pytree(full)[0], ravel_pytree(zeros)[1]
