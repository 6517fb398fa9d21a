# SPDX-License-Identifier: Apache-2.0
"""The way of a contribution into the sum.

A `Channel` acts on one client's contribution before it is added to the others' (clipping, rounding
to few bits, the fixed point of a secure sum, a share of noise) and on the total after (the inverse,
noise). Channels compose: `chain(clip, rotate, round)` encodes from left to right and decodes from
right to left. The server sees nothing of a client but what its channel lets through. The channels
themselves are in the room `channels`.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from agnosticfl.core import tree
from agnosticfl.core.contribution import (
    Broadcast,
    ChannelState,
    ClientSum,
    Message,
    SumOverClients,
    Total,
)
from agnosticfl.core.lazy_jax import Array, jax, jnp
from agnosticfl.core.tree import PyTree

ChannelReport: TypeAlias = dict[str, Array]  # name -> a scalar for the round's record

ENCODE = 2**32 - 1  # what a client's key is folded with for its channel; no epoch has this number
REPORT = 2**32 - 2  # and what the keys of a second exchange, of reports, are folded with


class Decoded(NamedTuple):
    """What the server makes of a total."""

    total: PyTree  # the `ClientSum`; within a chain, the sum of what the stage before it encoded
    channel_state: ChannelState  # for the next round
    report: ChannelReport


class Encode(Protocol):
    """One client's message from its contribution (in a chain, from the message before)."""

    def __call__(self, state: ChannelState, contribution: PyTree, key: Array, /) -> Message: ...


class Decode(Protocol):
    """What the server makes of the sum of all summands."""

    def __call__(self, state: ChannelState, total: Total, key: Array, /) -> Decoded: ...


class Adders(NamedTuple):
    """Those whose messages are in a total, as far as the server knows them."""

    alpha: Array  # [p] what they were sent
    clients: int  # how many they are
    holders: Sequence[int] | None = None  # [p] how many of them may hold a domain; all, if None


class Implausible(Protocol):
    """Why a total cannot be the sum of so many honest messages; None if it can."""

    def __call__(self, state: ChannelState, total: Total, adders: Adders, /) -> str | None: ...


def _nothing_to_say(state: ChannelState, total: Total, adders: Adders) -> None:
    del state, total, adders


class Channel(NamedTuple):
    """The way of a contribution into the sum: pure functions, so a client may be anywhere."""

    init: Callable[[], ChannelState]  # what the server carries and sends down with w and α
    encode: Encode
    summand: Callable[[Message], PyTree]  # what is added up: the message itself if it can be added
    decode: Decode
    unit_alpha: bool = False  # whether it needs α with 1 as its largest entry, so that β^k ≤ N^k
    least_alpha: float = 0.0  # and then no entry of α is sent that is lower
    most_alpha: float = math.inf  # an α above so many times that of the mean example is lowered
    # In how many bits each number of a message's first leaf travels, if fewer than its type has:
    # what is added up is then added modulo 2^bits.
    bits: int | None = None
    implausible: Implausible = _nothing_to_say


class ChannelBuilder(Protocol):
    """Makes a channel for the shapes of what enters it.

    That is a `ClientSum`, unless another channel precedes it.
    """

    def __call__(self, like: PyTree, /) -> Channel: ...


def plain(like: PyTree) -> Channel:
    """Contributions as they are."""
    del like
    return PLAIN


def chain(*builders: ChannelBuilder) -> ChannelBuilder:
    """One channel after the other; the last one's messages travel, and are decoded first.

    Only the last may make messages that cannot be added as they are.
    """

    def build(like: PyTree) -> Channel:
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


def sent_by_client(
    channel: Channel, state: ChannelState, contribution: ClientSum, client_key: Array
) -> PyTree:
    """What one client adds to the sum, in whatever engine; its random bits are its own."""
    message = channel.encode(state, contribution, jax.random.fold_in(client_key, ENCODE))
    return channel.summand(message)


def message_shapes(channel: Channel, like: PyTree) -> Message:
    """Shapes and types of the message that a contribution like `like` becomes."""
    return jax.eval_shape(channel.encode, jax.eval_shape(channel.init), like, jax.random.key(0))


def message_bytes(channel: Channel, message: Message) -> int:
    """Bytes of a message, or of one with these shapes, as it travels."""
    if channel.bits is None:
        return tree.num_bytes(message)
    first, *rest = jax.tree.leaves(message)
    return -(-first.size * channel.bits // 8) + tree.num_bytes(rest)


def summand_zeros(channel: Channel, like: PyTree) -> Total:
    """The sum over no clients."""
    shapes = jax.eval_shape(channel.summand, message_shapes(channel, like))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def with_bounded_alpha(
    scaling: Callable[[Array, Array], Array], channel: Channel
) -> Callable[[Array, Array], Array]:
    """(λ, mean N) -> α by `scaling`, but no example counts more than `channel.most_alpha` allows.

    That is a multiple of what the mean one counts, Σ_i α_i N_i / Σ_i N_i = 1 / Σ_i N_i, since
    Σ_i λ_i = 1.
    """
    if channel.most_alpha == math.inf:
        return scaling

    def bounded(domain_weights: Array, mean_count: Array) -> Array:
        most = channel.most_alpha / jnp.sum(mean_count)
        return jnp.minimum(scaling(domain_weights, mean_count), most)

    return bounded


def with_unit_alpha(
    sum_over_clients: SumOverClients[PyTree], channel: Channel
) -> tuple[SumOverClients[PyTree], Channel]:
    """Sends α with 1 as its largest entry, and brings Σ_k β^k Δ^k and Σ_k β^k back to α's scale.

    An entry below `channel.least_alpha` is raised to it. The scale of α cancels in the clients'
    losses and in the mean update; what it changes is the size of β^k, which a channel can bound
    only so.
    """

    def summed(sent: Broadcast, cohort: PyTree) -> tuple[Total, Array]:
        scale = jnp.max(sent.alpha)
        alpha = jnp.maximum(tree.divide(sent.alpha, scale), channel.least_alpha)
        return sum_over_clients(sent._replace(alpha=alpha), cohort), scale

    def decode(state: ChannelState, summed: tuple[Total, Array], key: Array) -> Decoded:
        encoded, scale = summed
        total, state, report = channel.decode(state, encoded, key)
        delta = tree.scale(scale, total.weighted_delta)
        return Decoded(total._replace(weighted_delta=delta, beta=scale * total.beta), state, report)

    return summed, channel._replace(decode=decode)


def _encode_nothing(state: ChannelState, contribution: PyTree, key: Array) -> Message:
    del state, key
    return contribution


PLAIN = Channel(
    init=lambda: (),
    encode=_encode_nothing,
    summand=lambda message: message,
    decode=lambda state, total, _: Decoded(total, state, {}),
)


def _one_after_the_other(stages: list[Channel]) -> Channel:
    def encode(states: ChannelState, contribution: PyTree, key: Array) -> Message:
        for number, (stage, state) in enumerate(zip(stages, states, strict=True)):
            contribution = stage.encode(state, contribution, jax.random.fold_in(key, number))
        return contribution

    def decode(states: ChannelState, total: Total, key: Array) -> Decoded:
        after, report = list(states), ChannelReport()
        for number in reversed(range(len(stages))):
            own = jax.random.fold_in(key, number)
            total, after[number], more = stages[number].decode(states[number], total, own)
            report |= more
        return Decoded(total, tuple(after), report)

    def init() -> ChannelState:
        return tuple(stage.init() for stage in stages)

    def implausible(states: ChannelState, total: Total, adders: Adders) -> str | None:
        return last.implausible(states[-1], total, adders)

    last = stages[-1]
    return Channel(
        init,
        encode,
        last.summand,
        decode,
        unit_alpha=any(stage.unit_alpha for stage in stages),
        least_alpha=max(stage.least_alpha for stage in stages),
        most_alpha=min(stage.most_alpha for stage in stages),
        bits=last.bits,
        implausible=implausible,
    )
