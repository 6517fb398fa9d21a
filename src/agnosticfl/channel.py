# SPDX-License-Identifier: Apache-2.0
"""What a client sends, and what happens to it on its way into the sum.

A `Channel` acts on one client's contribution before it is added to the others' (clipping, rounding
to few bits, the fixed point of a secure sum, a share of noise) and on the total after (the inverse,
noise). Channels compose: `chain(clip, rotate, round)` encodes from left to right and decodes from
right to left. The server sees nothing of a client but what its channel lets through.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl import tree
from agnosticfl.model import Params

Report: TypeAlias = dict[str, Array]  # name -> a scalar for the round's record

ENCODE = 2**32 - 1  # what a client's key is folded with for its channel; no epoch has this number


class ClientSum(NamedTuple):
    """A client's contribution, or the sum of many: it can be added, sharded, masked or noised."""

    weighted_delta: Params  # Σ_k β^k (w_{t-1} − w^k)
    beta: Array  # Σ_k β^k
    domain_loss: Array  # [p] Σ_k L^k_i, summed over examples, at w_{t-1}
    domain_count: Array  # [p] Σ_k N^k_i
    left_out: Array  # clients whose contribution was not finite; they add nothing else


class Decoded(NamedTuple):
    """What the server makes of a total."""

    total: Any  # the `ClientSum`; within a chain, the sum of what the channel before it encoded
    state: Any  # of the channel, for the next round
    report: Report


class Channel(NamedTuple):
    """The way of a contribution into the sum: pure functions, so a client may be anywhere."""

    init: Callable[[], Any]  # the state, which the server carries and sends down with w and α
    encode: Callable[[Any, Any, Array], Any]  # (state, contribution, key) -> message of one client
    summand: Callable[[Any], Any]  # message -> what is added up, itself if it can be added
    decode: Callable[[Any, Any, Array], Decoded]  # (state, Σ of summands, key) -> by the server
    unit_alpha: bool = False  # whether it needs α with 1 as its largest entry, so that β^k ≤ N^k
    # In how many bits each number of a message's first leaf travels, if fewer than its type has:
    # what is added up is then added modulo 2^bits.
    bits: int | None = None


# A channel is made for the shapes of what enters it (a `ClientSum`, unless another precedes it).
ChannelBuilder: TypeAlias = Callable[[Any], Channel]


def plain(like: Any) -> Channel:
    """Contributions as they are."""
    del like
    return PLAIN


def chain(*builders: ChannelBuilder) -> ChannelBuilder:
    """One channel after the other; the last one's messages travel, and are decoded first.

    Only the last may make messages that cannot be added as they are.
    """

    def build(like: Any) -> Channel:
        stages: list[Channel] = []
        for builder in builders:
            stages.append(builder(like))
            like = message_shapes(stages[-1], like)
        stages = [stage for stage in stages if not is_plain(stage)]
        return _one_after_the_other(stages) if stages else PLAIN

    return build


def is_plain(channel: Channel) -> bool:
    """Whether contributions pass unchanged, so that they may be summed in any way."""
    return channel.encode is _encode_nothing


def sent_by_client(channel: Channel, state: Any, contribution: ClientSum, client_key: Array) -> Any:
    """What one client adds to the sum, in whatever engine; its random bits are its own."""
    message = channel.encode(state, contribution, jax.random.fold_in(client_key, ENCODE))
    return channel.summand(message)


def message_shapes(channel: Channel, like: Any) -> Any:
    """Shapes and types of the message that a contribution like `like` becomes."""
    return jax.eval_shape(channel.encode, jax.eval_shape(channel.init), like, jax.random.key(0))


def message_bytes(channel: Channel, message: Any) -> int:
    """Bytes of a message, or of one with these shapes, as it travels."""
    if channel.bits is None:
        return tree.num_bytes(message)
    first, *rest = jax.tree.leaves(message)
    return -(-first.size * channel.bits // 8) + tree.num_bytes(rest)


def summand_zeros(channel: Channel, like: Any) -> Any:
    """The sum over no clients."""
    shapes = jax.eval_shape(channel.summand, message_shapes(channel, like))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _encode_nothing(state: Any, contribution: Any, key: Array) -> Any:
    del state, key
    return contribution


PLAIN = Channel(
    init=lambda: (),
    encode=_encode_nothing,
    summand=lambda message: message,
    decode=lambda state, total, _: Decoded(total, state, {}),
)


def _one_after_the_other(stages: list[Channel]) -> Channel:
    def encode(states: Any, contribution: Any, key: Array) -> Any:
        for number, (stage, state) in enumerate(zip(stages, states, strict=True)):
            contribution = stage.encode(state, contribution, jax.random.fold_in(key, number))
        return contribution

    def decode(states: Any, total: Any, key: Array) -> Decoded:
        after, report = list(states), dict[str, Array]()
        for number in reversed(range(len(stages))):
            own = jax.random.fold_in(key, number)
            total, after[number], more = stages[number].decode(states[number], total, own)
            report |= more
        return Decoded(total, tuple(after), report)

    def init() -> Any:
        return tuple(stage.init() for stage in stages)

    unit_alpha = any(stage.unit_alpha for stage in stages)
    return Channel(init, encode, stages[-1].summand, decode, unit_alpha, stages[-1].bits)
