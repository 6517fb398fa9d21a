# SPDX-License-Identifier: Apache-2.0
"""The most that one client may add to a round's sum, whatever its data.

Under a secure sum nobody can look at a single contribution, so honest code bounds its own before it
leaves the client: a client with broken or hostile data cannot drown the others. (A client that runs
other code is not held by this; see docs/security.md.)
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.channel import Channel, ChannelBuilder, Decoded
from agnosticfl.core.contribution import ClientSum
from agnosticfl.errors import check

LARGEST_COUNT = 2**24  # up to here float32 has every whole number
ROUNDING = 1e-6  # β^k ≤ N^k when no α_i is above 1, but for float32's rounding


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
    """
    size = jnp.maximum(jnp.sum(own.domain_count), own.beta / (1 + ROUNDING))
    length = tree.divide(tree.norm(own.weighted_delta), own.beta)
    mean = tree.divide(own.domain_loss, own.domain_count)
    many, long, high = size > bounds.examples, length > bounds.update, jnp.abs(mean) > bounds.loss
    share = jnp.where(many, tree.divide(jnp.asarray(bounds.examples, size.dtype), size), 1)
    shrink = jnp.where(long, tree.divide(jnp.asarray(bounds.update, size.dtype), length), 1)
    count = jnp.floor(share * own.domain_count)
    limited = jnp.clip(mean, -bounds.loss, bounds.loss) * count
    sums = ClientSum(
        weighted_delta=tree.scale(share * shrink, own.weighted_delta),
        beta=share * own.beta,
        domain_loss=jnp.where(high | many, limited, own.domain_loss),
        domain_count=count,
        left_out=own.left_out,
    )
    return Bounded(sums, (many | long | jnp.any(high)).astype(size.dtype))


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
