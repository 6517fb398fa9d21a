# SPDX-License-Identifier: Apache-2.0
"""The most that one client may add to a round's sum, whatever its data.

Under a secure sum nobody can look at a single contribution, so honest code bounds its own before it
leaves the client: a client with broken or hostile data cannot drown the others. (A client that runs
other code is not held by this; see docs/security.md.)
"""

from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.channel import Channel, ChannelBuilder, Decoded
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.lazy_jax import Array, jnp
from agnosticfl.errors import check

LARGEST_COUNT = 2**24  # up to here float32 has every whole number
ROUNDING = 1e-6  # β^k ≤ N^k when no α_i is above 1, but for float32's rounding

# How far β^k of a client with too many examples can be from Σ_i α_i N^k_i, for each domain and for
# max α − min α = 1. Say m of the p domains get one of those that are left. Their remainders are the
# largest and add up to m²/p at least, since all p add up to m: so they gain m − m²/p ≤ p/4
# together, which is what the others lose.
ROUNDED_COUNTS = 1 / 4


class Bounds(NamedTuple):
    """What one client may contribute at most."""

    update: float = 10.0  # ‖Δ^k‖ = ‖w_{t-1} − w^k‖
    examples: int = 1000  # N^k, of all domains together; and β^k
    loss: float = 100.0  # |L^k_i| / N^k_i, the mean loss of a domain


class Bounded(NamedTuple):
    """A contribution within its bounds."""

    sums: ClientSum
    clipped: Array  # 1 if it was not before, else 0; in a total, the number of such clients


def check_bounds(bounds: Bounds) -> Bounds:
    """Returns `bounds`, or says which of them is not allowed."""
    for name, value in bounds._asdict().items():
        check(np.isfinite(value) and value > 0, f"bound of {name} is {value}; it must be above 0")
    check(
        bounds.examples == int(bounds.examples) and bounds.examples <= LARGEST_COUNT,
        f"bound of examples is {bounds.examples}; it must be a whole number up to 2^24",
    )
    return bounds


def bounded(bounds: Bounds, own: ClientSum) -> Bounded:
    """One client's contribution, brought within the bounds.

    With too many examples the client counts as if it had as many as are allowed, with the same
    mean losses and update. A mean loss that is too large becomes the bound. An update that is too
    long keeps its direction.

    β^k = Σ_i α_i N^k_i then holds but for the counts' rounding to whole numbers: α is not known
    here, so β^k shrinks with Σ_i N^k_i alone. `ROUNDED_COUNTS` is by how much they can differ.
    """
    count = shared_out(own.domain_count, bounds.examples)
    fewer = jnp.sum(count) < jnp.sum(own.domain_count)
    size = jnp.maximum(jnp.sum(own.domain_count), own.beta / (1 + ROUNDING))
    many = fewer | (size > bounds.examples)
    share = jnp.where(many, tree.divide(jnp.asarray(bounds.examples, size.dtype), size), 1)
    beta, length = share * own.beta, share * tree.norm(own.weighted_delta)
    longest = bounds.update * beta
    long = length > longest
    shrink = jnp.where(long, tree.divide(longest, length), 1)
    mean = tree.divide(own.domain_loss, own.domain_count)
    high = jnp.abs(mean) > bounds.loss
    limited = jnp.clip(mean, -bounds.loss, bounds.loss) * count
    sums = ClientSum(
        weighted_delta=tree.scale(share * shrink, own.weighted_delta),
        beta=beta,
        domain_loss=jnp.where(high | fewer, limited, own.domain_loss),
        domain_count=count,
        left_out=own.left_out,
    )
    return Bounded(sums, (many | long | jnp.any(high)).astype(size.dtype))


def shared_out(count: Array, most: int) -> Array:
    """`count`, [p] whole numbers, or `most` in all, shared out in proportion to it.

    By the largest remainder: each gets ⌊n_i⌋ of n_i = most · count_i / Σ count, and what is then
    left goes one by one to those with the largest n_i − ⌊n_i⌋. In whole numbers, since float32
    does not tell how many are left.
    """
    # At most 2^29 in all, so that no step of the long division needs more than 32 bits.
    room = jnp.minimum(tree.divide(jnp.float32(2**29), jnp.sum(count)), 1)
    parts = jnp.floor(room * count).astype(jnp.uint32)
    total = jnp.maximum(jnp.sum(parts), 1)
    given, rest = jnp.zeros_like(parts), jnp.zeros_like(parts)
    for digit in map(int, f"{most:b}"):
        rest = 2 * rest + digit * parts
        given, rest = 2 * given + rest // total, rest % total
    left = most - jnp.sum(given)
    order = jnp.argsort(jnp.argsort(rest, descending=True)).astype(left.dtype)
    shared = given + (order < left).astype(given.dtype)
    return jnp.where(total > most, shared.astype(count.dtype), count)


def bounding(bounds: Bounds) -> ChannelBuilder:
    """A channel for contributions within bounds; it reports how many were not."""
    check_bounds(bounds)

    def encode(state: Any, own: ClientSum, key: Array) -> Bounded:
        del state, key
        return bounded(bounds, own)

    def decode(state: Any, total: Bounded, key: Array) -> Decoded:
        del key
        return Decoded(total.sums, state, {"clients_clipped": total.clipped})

    channel = Channel(lambda: (), encode, lambda message: message, decode, unit_alpha=True)
    return lambda _: channel
