# SPDX-License-Identifier: Apache-2.0
"""Few bits within a secure sum: what is added while masked, and what comes back."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl import agnostic_fedavg, from_functions
from agnosticfl.channels.bounds import Bounds
from agnosticfl.channels.compression import Turn, rotated_part
from agnosticfl.channels.fixed_point import WIDTH, FewBits, Typical, few_bits, in_fixed_point
from agnosticfl.core import ledger
from agnosticfl.core.channel import Channel, ChannelBuilder, message_shapes, plain
from agnosticfl.core.contribution import ClientSum, contribution_shapes
from agnosticfl.core.model import Model
from agnosticfl.core.state import ServerState
from agnosticfl.deploy import wire
from agnosticfl.engines import padded_engine
from agnosticfl.errors import BadInput
from agnosticfl.methods.base import Algorithm
from tests.helpers.problems import random_federated
from tests.secagg.federation import STAGES, Play, federation

KEY = jax.random.key(0)
BOUNDS = Bounds(update=100.0, examples=100, loss=10.0)
SIZE = 1500  # not a power of two: 1024 numbers are rotated, then the last 1024
P = 3


def wide() -> Model:
    direction = jnp.asarray(np.random.default_rng(0).normal(size=SIZE), jnp.float32)
    return from_functions(
        lambda _: {"a": jnp.zeros((50, 20)), "b": jnp.zeros(500)},
        lambda w, e: jnp.square(
            e["x"] + jnp.concatenate([w["a"].ravel(), w["b"]]) @ direction / math.sqrt(SIZE)
        ),
    )


def channel_for(clients: int, bits: int) -> Channel:
    return few_bits(clients, bits, BOUNDS)(contribution_shapes(wide(), P))


def client(seed: int) -> ClientSum:
    rng = np.random.default_rng(seed)
    flat = rng.standard_t(2, SIZE).astype(np.float32)  # with some very large numbers
    count = rng.integers(1, 20, P).astype(np.float32)
    return ClientSum(
        {"a": jnp.asarray(flat[:1000].reshape(50, 20)), "b": jnp.asarray(flat[1000:])},
        jnp.float32(count.sum()),
        jnp.asarray(2 * count),
        jnp.asarray(count),
        jnp.zeros(()),
    )


def flat(sums: ClientSum) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(sums.weighted_delta)])


def state_for(length: float) -> tuple[Turn, Typical]:
    return Turn(jnp.uint32(5)), Typical(jnp.float32(length))


def unit(state: tuple[Turn, Typical], bits: int) -> float:
    """What one level stands for."""
    spread = float(state[1].length) / math.sqrt(rotated_part(SIZE))
    return WIDTH * spread / (2 ** (bits - 1) - 1)


def messages_of(channel: Channel, state: Any, contributions: list[ClientSum]) -> list[Any]:
    encode = jax.jit(channel.encode)
    return [encode(state, own, jax.random.key(i)) for i, own in enumerate(contributions)]


def added(messages: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *messages)


def test_three_clients_by_hand():
    """Of one number, in 4 bits: seven levels on either side of 0, five times ℓ away."""
    model = from_functions(lambda _: {"w": jnp.zeros(())}, lambda w, e: e["x"] * w["w"])
    channel = few_bits(3, 4, BOUNDS)(contribution_shapes(model, 1))
    state = Turn(jnp.uint32(1)), Typical(jnp.float32(7 / 5))  # so that a level is 1
    one = jnp.ones(1)
    contributions = [
        ClientSum({"w": jnp.float32(x)}, jnp.float32(1), one, one, jnp.zeros(()))
        for x in (3.0, -5.0, 20.0)
    ]
    messages = messages_of(channel, state, contributions)
    assert {abs(int(m.words.weighted_delta[0])) for m in messages} == {3, 5, 7}
    total, (turn, typical), report = channel.decode(state, added(messages), KEY)
    np.testing.assert_allclose(total.weighted_delta["w"], 3 - 5 + 7, rtol=1e-6)
    np.testing.assert_allclose(typical.length, (3 + 5 + 20) / 3, rtol=1e-6)
    np.testing.assert_allclose(report["numbers_clipped"], 1 / 3, rtol=1e-6)
    assert report["clients_clipped"] == 0
    assert turn.number == 2
    assert (total.beta, total.domain_loss, total.domain_count) == (3, 3, 3)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_sum_errs_by_less_than_a_level_a_client_and_the_rest_not_at_all(bits: int):
    contributions = [client(seed) for seed in range(6)]
    lengths = [float(np.linalg.norm(flat(own))) for own in contributions]
    channel, state = channel_for(6, bits), state_for(max(lengths))  # nothing is outside
    messages = messages_of(channel, state, contributions)
    total, (_, typical), report = channel.decode(state, added(messages), KEY)
    exact = added(contributions)
    error = np.linalg.norm(flat(total) - flat(exact))
    assert report["numbers_clipped"] == 0
    assert error < 6 * unit(state, bits) * math.sqrt(SIZE)
    # Each rounding has a variance of at most a quarter.
    assert error < math.sqrt(6 * SIZE / 4) * unit(state, bits)
    expected = max(float(np.mean(lengths)), 0.9 * max(lengths))
    np.testing.assert_allclose(typical.length, expected, rtol=1e-4)
    np.testing.assert_allclose(total.beta, exact.beta, rtol=1e-6)
    np.testing.assert_allclose(total.domain_loss, exact.domain_loss, rtol=1e-6)
    np.testing.assert_array_equal(total.domain_count, exact.domain_count)


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_has_no_bias(bits: int):
    """The error of a mean of 400 draws is a twentieth of that of one."""
    own, channel = client(0), channel_for(1, bits)
    state = state_for(float(np.linalg.norm(flat(own))))

    def through(key: jax.Array) -> Any:
        return channel.decode(state, channel.encode(state, own, key), key).total.weighted_delta

    draws = jax.jit(jax.vmap(through))(jax.random.split(KEY, 400))
    draws = np.concatenate([np.reshape(leaf, (400, -1)) for leaf in jax.tree.leaves(draws)], axis=1)
    one = np.mean(np.linalg.norm(draws - flat(own), axis=1))
    assert np.linalg.norm(draws.mean(axis=0) - flat(own)) < one / 20 * 1.1


@pytest.mark.parametrize(("clients", "bits"), [(1, 4), (3, 8), (1024, 4), (2**20, 8)])
def test_nothing_overflows_with_all_clients_at_the_edge(clients: int, bits: int):
    """The sum, cut to its ring as a secure sum cuts it, comes back with its sign."""
    channel, state = channel_for(clients, bits), state_for(1e-3)
    (message,) = messages_of(channel, state, [client(0)])
    levels, top = message.words.weighted_delta, 2 ** (bits - 1) - 1
    ring = bits + math.ceil(math.log2(clients))
    assert channel.bits == ring
    # A few numbers near 0 may be within the range.
    assert np.mean(np.asarray(levels) == top) > 0.4
    assert np.mean(np.asarray(levels) == -top) > 0.4
    total = np.asarray(levels, np.int64) * clients
    assert np.max(np.abs(total)) < 2 ** (ring - 1)
    cut = jnp.asarray(total % 2**ring, jnp.int32)
    words = message.words._replace(weighted_delta=cut)
    summed = channel.decode(state, message._replace(words=words), KEY).total
    alone = channel.decode(state, message, KEY).total
    np.testing.assert_allclose(flat(summed), clients * flat(alone), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_a_secure_sum_is_the_simulated_one_of_those_left(stage: str):
    """encode, mask, cut to the ring, add, unmask, decode; one is lost on the way."""
    members, bits = federation(5), 4
    channel, state = channel_for(len(members), bits), state_for(60.0)
    messages = messages_of(channel, state, [client(place) for place in range(len(members))])
    vectors = np.stack([wire.pack(m)["int32"].view(np.uint32) for m in messages])
    assert channel.bits is not None
    play = Play(members, 1, vectors.shape[1], SIZE, channel.bits)
    play.vectors = vectors
    play.to_the_end({2: stage})
    assert play.server.total is not None
    shapes = message_shapes(channel, contribution_shapes(wide(), P))
    masked = wire.unpack({"int32": play.server.total.view(np.int32)}, shapes)
    simulated = added([messages[place] for place in play.server.survivors])
    one, other = (channel.decode(state, sums, KEY) for sums in (masked, simulated))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("clients", [3, 20, 500])
def test_an_upload_has_so_many_bits_a_number(bits: int, clients: int):
    make = functools.partial(
        agnostic_fedavg,
        wide(),
        random_federated(0),
        clients_per_round=2,
        batch_size=3,
        client_optimizer=optax.sgd(0.1),
        engine=padded_engine,
    )
    shapes = contribution_shapes(wide(), P)

    def cost_of(channel: ChannelBuilder) -> ledger.Bytes:
        algorithm = make(channel=channel)
        state = algorithm.init()
        each = ledger.bytes_per_client(state, channel(shapes))
        assert algorithm.bytes_per_round(state) == (2 * each.down, 2 * each.up)
        return each

    cost, before = cost_of(few_bits(clients, bits)), cost_of(in_fixed_point(clients))
    exact = 4 * (2 + 2 * P + P + 2)  # β, L, N, left out, clipped
    assert before.up == 4 * SIZE + exact
    share = (bits + math.ceil(math.log2(clients))) / 32
    assert cost.up == math.ceil(4 * SIZE * share) + exact + 4 * (2 + 2 + 1)
    assert cost.down == 4 * (SIZE + P + 2)  # w, α, the turn's number and ℓ


@pytest.mark.nan_input
def test_a_contribution_that_is_not_finite_adds_nothing():
    good, broken = client(0), client(1)
    broken = broken._replace(domain_loss=broken.domain_loss.at[0].set(np.nan))
    channel, state = channel_for(2, 8), state_for(50.0)
    one, other = (channel.encode(state, own, KEY) for own in (good, broken))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(other._replace(words=())))
    assert not np.any(other.words.weighted_delta)
    assert channel.decode(state, added([one, other]), KEY).total.left_out == 1


def test_a_round_in_which_nobody_moves_leaves_the_range():
    channel, state = channel_for(1, 8), state_for(50.0)
    nothing = jax.tree.map(jnp.zeros_like, client(0))
    message: FewBits = channel.encode(state, nothing, KEY)
    decoded = channel.decode(state, message, KEY)
    assert decoded.channel_state[1].length == 50
    assert decoded.report["numbers_clipped"] == 0


CLIENTS, ROUNDS = 6, 5


def algorithm_with(channel: ChannelBuilder) -> Algorithm:
    return agnostic_fedavg(
        wide(),
        random_federated(0),
        clients_per_round=CLIENTS,
        batch_size=4,
        engine=padded_engine,
        channel=channel,
        client_optimizer=optax.sgd(0.1),
        normalisation="batch",
    )


@functools.cache
def in_the_clear() -> list[ServerState]:
    algorithm = algorithm_with(plain)
    states = [algorithm.init()]
    for t in range(1, ROUNDS + 1):
        states.append(algorithm.round(states[-1], algorithm.cohort(t))[0])
    return states


@pytest.mark.parametrize("bits", [4, 8])
def test_rounds_in_few_bits_are_those_in_the_clear_but_for_rounding(bits: int):
    algorithm, (first, second, *_, last) = algorithm_with(few_bits(CLIENTS, bits)), in_the_clear()
    state, _ = algorithm.round(algorithm.init(), algorithm.cohort(1))
    # The first round measures: w stays, and λ and the counts go on.
    jax.tree.map(np.testing.assert_array_equal, state.params, first.params)
    np.testing.assert_allclose(state.domain_weights, second.domain_weights, rtol=1e-5)
    np.testing.assert_array_equal(state.window.counts, second.window.counts)
    # All again, with a range that nothing leaves.
    turn, typical = state.channel_state
    state = algorithm.init()._replace(channel_state=(turn, Typical(3 * typical.length)))
    variance = 0.0
    for t in range(1, ROUNDS + 1):
        before = state.channel_state
        state, info = algorithm.round(state, algorithm.cohort(t))
        assert info.channel_report["numbers_clipped"] == 0
        beta = float(info.beta / jnp.max(info.alpha))
        variance += CLIENTS * SIZE / 4 * (unit(before, bits) / beta) ** 2
    error = np.linalg.norm(_vector(state) - _vector(last))
    assert 0 < error < math.sqrt(variance)
    np.testing.assert_allclose(state.domain_weights, last.domain_weights, rtol=1e-2)


def _vector(state: ServerState) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])


@pytest.mark.parametrize(
    ("clients", "bits", "problem"),
    [
        (5, 3, r"compress: bits is 3; it must be one of \(4, 8\)"),
        (2**25, 8, "needs 33 bits; it has 32"),
        (0, 8, "number of clients is 0"),
    ],
)
def test_what_cannot_be_summed_is_refused(clients: int, bits: int, problem: str):
    with pytest.raises(BadInput, match=problem):
        few_bits(clients, bits, Bounds(examples=10))
