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

`few_bits` is its sibling, in which β^k Δ^k is rotated and has 8 or 4 bits per number, and those
that their sum needs.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.channels.bounds import Bounds, bounded, check_bounds
from agnosticfl.channels.compression import BITS, rotated, rotated_part
from agnosticfl.channels.plausible import Levels, Rounded, Sums, beyond_bounds, length_of
from agnosticfl.core import tree
from agnosticfl.core.channel import Adders, Channel, ChannelBuilder, Decoded, chain
from agnosticfl.core.contribution import ClientSum, usable
from agnosticfl.core.lazy_jax import Array, jax, jnp
from agnosticfl.errors import check
from agnosticfl.options import AtLeastOne, Positive, Share

LARGEST = 2**31 - 1
WIDTH = 5.0  # standard deviations of a rotated update of mean length that fit the range of few bits
FALL = 0.9  # to which part that length falls in a round at most: cohorts differ


class Words(NamedTuple):
    """A contribution, or a sum of them, as int32; only a sum modulo 2³² is ever formed."""

    weighted_delta: Any
    beta: Array  # [2] high, low
    domain_loss: Array  # [2, p]
    domain_count: Array  # [p]
    left_out: Array
    clipped: Array


class Typical(NamedTuple):
    """What the server carries and tells the clients for `few_bits`."""

    length: Array  # ℓ; 0 before the first round


class FewBits(NamedTuple):
    """The message of `few_bits`, or a sum of them, as int32."""

    words: Words  # its update, [|W|], modulo 2^bits
    length: Array  # [2] ‖β^k Δ^k‖
    outside: Array  # [2] the share of the update's numbers that were outside the range
    moved: Array  # 1 if β^k Δ^k is not 0


class Exact(NamedTuple):
    """The code of all but the update."""

    most: int  # M
    encode: Callable[[ClientSum, Array, Any], Words]  # (own, whether clipped, the update's words)
    decode: Callable[[Words, Any], ClientSum]  # (total, the update)
    # (total, ‖update‖ and by how much a client's is rounded, …): see `plausible.beyond_bounds`
    implausible: Callable[[Words, float, float, Adders, Levels | None], str | None]


def in_fixed_point(clients: int, bounds: Bounds | None = None) -> ChannelBuilder:
    """The channel of a secure sum over at most `clients`, each within `bounds`."""
    bounds = check_bounds(bounds or Bounds())
    exact = _exact(clients, bounds)
    update, most = bounds.update * bounds.examples, exact.most

    def encode(state: Any, own: ClientSum, key: Array) -> Words:
        del state
        own, clipped = bounded(bounds, usable(own))
        leaves, structure = jax.tree.flatten(own.weighted_delta)
        delta = [
            _at_random(leaf, update, most, jax.random.fold_in(key, number))
            for number, leaf in enumerate(leaves)
        ]
        return exact.encode(own, clipped, jax.tree.unflatten(structure, delta))

    def decode(state: Any, total: Words, key: Array) -> Decoded:
        del key
        delta = tree.scale(jnp.float32(update / most), _floats(total.weighted_delta))
        report = {"clients_clipped": _floats(total.clipped)}
        return Decoded(exact.decode(total, delta), state, report)

    def implausible(state: Any, total: Words, adders: Adders) -> str | None:
        del state
        unit, size = update / most, tree.size(total.weighted_delta)
        length = unit * _length(total.weighted_delta)
        return exact.implausible(total, length, unit * math.sqrt(size), adders, None)

    channel = Channel(
        init=lambda: (),
        encode=encode,
        summand=lambda message: message,
        decode=decode,
        unit_alpha=True,
        implausible=implausible,
    )
    return lambda _: channel


def few_bits(clients: int, bits: int, bounds: Bounds | None = None) -> ChannelBuilder:
    """The same with an update of `bits` + ⌈log₂ clients⌉ bits per number.

    Levels can be added while masked if they mean the same for all. So all clients rotate alike
    (`compression.rotated`), and have one range, from −R to R with R = 5 ℓ / √2^n. ℓ is the mean of
    ‖β^k Δ^k‖ in the round before, which is in the sum, too (or 0.9 of the ℓ before, if that is
    more), and ℓ / √2^n bounds the standard deviation of a rotated number of an update that long. It
    is outside with probability 2 exp(−5²/2) < 10⁻⁵ at most; with 0.09 if the update is twice as
    long. A number outside becomes ±R, and one inside is rounded at random without bias to a
    multiple of R / (2^(bits−1) − 1).

    In the first round ℓ is not known and no update is sent: it only measures.
    """
    check(bits in BITS, f"compress: bits is {bits}; it must be one of {BITS}")
    bounds = check_bounds(bounds or Bounds())
    exact, longest = _exact(clients, bounds), bounds.update * bounds.examples
    top, ring = 2 ** (bits - 1) - 1, bits + (clients - 1).bit_length()
    check(ring <= 32, f"a sum of {clients} clients in {bits} bits needs {ring} bits; it has 32")

    def build(like: ClientSum) -> Channel:
        deviation = 1 / math.sqrt(rotated_part(like.weighted_delta.size))  # type: ignore[union-attr]

        def unit(state: Typical) -> Array:
            return jnp.float32(WIDTH * deviation / top) * state.length

        def encode(state: Typical, own: ClientSum, key: Array) -> FewBits:
            own, clipped = bounded(bounds, usable(own))
            length = tree.norm(own.weighted_delta)
            scaled = tree.divide(own.weighted_delta, unit(state))  # type: ignore[arg-type]
            levels = jnp.floor(scaled + jax.random.uniform(key, scaled.shape))
            inside = jnp.clip(levels, -top, top)
            return FewBits(
                words=exact.encode(own, clipped, inside.astype(jnp.int32)),
                length=_two_words(length, longest, exact.most),
                outside=_two_words(jnp.mean(inside != levels), 1.0, exact.most),
                moved=(length > 0).astype(jnp.int32),
            )

        def decode(state: Typical, total: FewBits, key: Array) -> Decoded:
            del key
            levels = _floats(_signed(total.words.weighted_delta, ring))
            sums = exact.decode(total.words, unit(state) * levels)
            moved = _floats(total.moved)
            length = tree.divide(_from_two_words(total.length, longest, exact.most), moved)
            outside = tree.divide(_from_two_words(total.outside, 1.0, exact.most), moved)
            report = {
                "clients_clipped": _floats(total.words.clipped),
                "numbers_clipped": outside,
            }
            longer = jnp.maximum(length, FALL * state.length)
            return Decoded(sums, Typical(jnp.where(length > 0, longer, state.length)), report)

        def implausible(state: Typical, total: FewBits, adders: Adders) -> str | None:
            width, words = float(unit(state)), total.words
            sums = np.asarray(_signed(words.weighted_delta, ring), np.float64)
            levels = Levels(
                length=float(_exact_number(total.length, longest, exact.most)),
                outside=float(_exact_number(total.outside, 1.0, exact.most)),
                moved=float(total.moved),
                highest=float(np.max(np.abs(sums), initial=0)),
                most=top if width > tree.SMALLEST else 0,  # there is no range in the first round
                length_rounded=_two_words_rounded(longest, exact.most),
                outside_rounded=_two_words_rounded(1.0, exact.most),
            )
            length, rounded = width * _length(sums), width * math.sqrt(sums.size)
            return exact.implausible(words, length, rounded, adders, levels)

        return Channel(
            init=lambda: Typical(jnp.zeros(())),
            encode=encode,
            summand=lambda message: message,
            decode=decode,
            unit_alpha=True,
            bits=ring,
            implausible=implausible,
        )

    return chain(rotated, build)


def simulated(
    clients: int,
    bits: int | None,
    update: Positive = 10.0,
    examples: AtLeastOne = 1000,
    loss: Positive = 100.0,
    least_alpha: Share = 0.0,
    most_clients: AtLeastOne | None = None,
) -> ChannelBuilder:
    """The numbers of a secure sum without its masks: what it costs in accuracy.

    Args:
      update: the longest update of a client, ‖w_{t-1} − w^k‖; a longer one is shortened.
      examples: the most examples with which a client counts.
      loss: the largest mean loss of a domain that a client may report.
      least_alpha: the smallest α of a domain, where the largest is 1: a lower one is raised to it,
        so that no domain's holders are alone in the sum (0: as the paper has it).
      most_clients: how many clients the numbers of a sum have room for; by default those of a
        round. A federation that asks more of them than it waits for needs more.
    """
    most = clients if most_clients is None else most_clients
    check(
        most >= clients,
        f"secure: most_clients is {most}; it must be at least the clients of a round, {clients}",
    )
    clients, bounds = most, Bounds(update, examples, loss)
    build = in_fixed_point(clients, bounds) if bits is None else few_bits(clients, bits, bounds)
    return lambda like: build(like)._replace(least_alpha=least_alpha)


def largest_word(clients: int) -> int:
    """M, so that `clients` numbers from −M to M add up to what an int32 holds."""
    check(1 <= clients <= LARGEST, f"number of clients is {clients}; it must be 1 or more")
    return 1 << (LARGEST // clients).bit_length() - 1


def _exact(clients: int, bounds: Bounds) -> Exact:
    most, loss = largest_word(clients), bounds.loss * bounds.examples
    check(
        bounds.examples <= most,
        f"counts up to {bounds.examples} of {clients} clients can add up to more than 2^31;"
        f" with so many clients the bound of examples is at most {most}",
    )

    def encode(own: ClientSum, clipped: Array, update: Any) -> Words:
        return Words(
            weighted_delta=update,
            beta=_two_words(own.beta, bounds.examples, most),
            domain_loss=_two_words(own.domain_loss, loss, most),
            domain_count=own.domain_count.astype(jnp.int32),
            left_out=own.left_out.astype(jnp.int32),
            clipped=clipped.astype(jnp.int32),
        )

    def decode(total: Words, update: Any) -> ClientSum:
        return ClientSum(
            weighted_delta=update,
            beta=_from_two_words(total.beta, bounds.examples, most),
            domain_loss=_from_two_words(total.domain_loss, loss, most),
            domain_count=_floats(total.domain_count),
            left_out=_floats(total.left_out),
        )

    def implausible(
        total: Words, length: float, rounded: float, adders: Adders, levels: Levels | None
    ) -> str | None:
        sums = Sums(
            update=length,
            beta=float(_exact_number(total.beta, bounds.examples, most)),
            domain_loss=_exact_number(total.domain_loss, loss, most),
            domain_count=np.asarray(total.domain_count, np.float64),
            left_out=float(total.left_out),
            clipped=float(total.clipped),
        )
        by = Rounded(
            rounded,
            _two_words_rounded(bounds.examples, most),
            _two_words_rounded(loss, most),
        )
        return beyond_bounds(sums, tree.size(total.weighted_delta), by, bounds, adders, levels)

    return Exact(most, encode, decode, implausible)


def _signed(total: Array, bits: int) -> Array:
    """The number from −2^(bits−1) on that is `total` modulo 2^bits."""
    return total << 32 - bits >> 32 - bits


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


def _two_words_rounded(largest: float, most: int) -> float:
    """By how much two words can be off, beside the two roundings of `scaled`.

    The lower word is cut to a whole number, and of a negative number near 0 it is 1 − ε, which
    float32 rounds to a multiple of 2^-24.
    """
    return (1 / most + 2.0**-24) * largest / most


def _exact_number(words: Array, largest: float, most: int) -> np.ndarray:
    """As `_from_two_words`, but not in float32."""
    high, low = np.asarray(words, np.float64)
    return (high + low / most) * largest / most


def _length(words: Any) -> float:
    return length_of([np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(words)])


def _floats(total: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.float32), total)
