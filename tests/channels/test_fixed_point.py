# SPDX-License-Identifier: Apache-2.0
"""Contributions as whole numbers: what is exact, what is rounded, and that nothing overflows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl import agnostic_fedavg, fedavg
from agnosticfl.channels.bounds import Bounds
from agnosticfl.channels.fixed_point import in_fixed_point, largest_word
from agnosticfl.core import ledger, tree
from agnosticfl.core.channel import Channel
from agnosticfl.core.contribution import ClientSum
from agnosticfl.errors import BadInput
from agnosticfl.registry import ENGINES
from tests.helpers.problems import quadratic, random_federated
from tests.secagg.federation import Play, federation

BOUNDS = Bounds(update=2.0, examples=100, loss=10.0)


def channel_for(clients: int, bounds: Bounds = BOUNDS) -> Channel:
    return in_fixed_point(clients, bounds)(None)


def client(rng: np.random.Generator) -> ClientSum:
    count = rng.integers(0, 50, 2).astype(np.float32)
    beta = np.float32(count @ [1.0, 0.125])
    delta = {"a": rng.uniform(-0.5, 0.5, (3, 2)), "b": rng.uniform(-0.5, 0.5, ())}
    return ClientSum(
        jax.tree.map(lambda d: jnp.float32(beta * d), delta),
        jnp.asarray(beta),
        jnp.asarray(count * rng.uniform(0, 9, 2).astype(np.float32)),
        jnp.asarray(count),
        jnp.zeros(()),
    )


def messages_of(channel: Channel, clients: list[ClientSum]) -> list[Any]:
    encode = jax.jit(channel.encode)
    return [encode((), own, jax.random.key(i)) for i, own in enumerate(clients)]


def vector_of(message: Any) -> np.ndarray:
    """What is masked: all words of a message, one after the other."""
    leaves = jax.tree.leaves(message)
    return np.concatenate([np.ravel(np.asarray(leaf, np.int32)) for leaf in leaves]).view(np.uint32)


def summed(channel: Channel, clients: list[ClientSum]) -> Any:
    messages = messages_of(channel, clients)
    return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *messages)


@pytest.mark.parametrize("clients", [1, 7, 40])
def test_sums_come_back_within_a_unit_a_client_and_counts_exactly(clients: int):
    rng = np.random.default_rng(clients)
    contributions = [client(rng) for _ in range(clients)]
    channel = channel_for(clients)
    decoded, _, report = channel.decode((), summed(channel, contributions), jax.random.key(0))
    exact = jax.tree.map(lambda *leaves: np.sum(np.asarray(leaves, np.float64), 0), *contributions)
    unit = BOUNDS.update * BOUNDS.examples / largest_word(clients)
    for a, b in zip(*map(jax.tree.leaves, (decoded[0], exact[0])), strict=True):
        np.testing.assert_allclose(a, b, atol=unit * clients, rtol=1e-6)
    np.testing.assert_allclose(decoded.beta, exact.beta, rtol=1e-6)
    np.testing.assert_allclose(decoded.domain_loss, exact.domain_loss, rtol=1e-6)
    np.testing.assert_array_equal(decoded.domain_count, exact.domain_count)
    assert report["clients_clipped"] == 0


def test_rounding_has_no_bias():
    channel = channel_for(1000)
    unit = BOUNDS.update * BOUNDS.examples / largest_word(1000)
    one = jnp.ones(1)
    own = ClientSum(jnp.full(20_000, 0.3 * unit), jnp.float32(1), one, one, jnp.zeros(()))
    words = channel.encode((), own, jax.random.key(0)).weighted_delta
    assert set(np.unique(words)) == {0, 1}
    assert abs(float(jnp.mean(words)) - 0.3) < 5 * (0.3 * 0.7 / 20_000) ** 0.5


@pytest.mark.parametrize(("clients", "sign"), [(1, -1.0), (3, 1.0), (1000, -1.0), (99_999, 1.0)])
def test_no_cohort_of_the_stated_size_overflows(clients: int, sign: float):
    """Every client at every bound at once, and beyond."""
    bounds = BOUNDS._replace(examples=min(BOUNDS.examples, largest_word(clients)))
    own = ClientSum(
        jnp.full(1, sign * 1e30),
        jnp.float32(1e30),
        jnp.full(1, sign * 1e30),
        jnp.full(1, 1e9),
        jnp.ones(()),
    )
    words = channel_for(clients, bounds).encode((), own, jax.random.key(0))
    for leaf in jax.tree.leaves(words):
        assert np.max(np.abs(np.asarray(leaf, np.int64))) * clients <= 2**31 - 1


def test_small_weights_beside_large_ones_are_not_lost():
    """Of β^k = 100 and 10^-4 a single word of 21 bits would not see the second."""
    contributions = [
        ClientSum(jnp.zeros(1), jnp.float32(b), jnp.zeros(1), jnp.ones(1), jnp.zeros(()))
        for b in [100.0] + [1e-4] * 9
    ]
    channel = channel_for(1000)
    small = channel.decode((), summed(channel, contributions[1:]), jax.random.key(0)).total.beta
    np.testing.assert_allclose(small, 9e-4, rtol=1e-4)


@pytest.mark.nan_input
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_contribution_that_is_not_finite_adds_nothing_but_itself_to_those_left_out(bad: float):
    rng = np.random.default_rng(0)
    good, broken = client(rng), client(rng)
    broken = broken._replace(domain_loss=broken.domain_loss.at[0].set(bad))
    channel = channel_for(2)
    total = channel.decode((), summed(channel, [good, broken]), jax.random.key(0)).total
    alone = channel.decode((), summed(channel, [good]), jax.random.key(0)).total
    jax.tree.map(
        np.testing.assert_array_equal, total._replace(left_out=0), alone._replace(left_out=0)
    )
    assert total.left_out == 1


def test_clipping_is_counted_inside_the_sum():
    rng = np.random.default_rng(0)
    loud = client(rng)._replace(domain_loss=jnp.full(2, 1e9))
    channel = channel_for(3)
    total = summed(channel, [client(rng), loud, loud])
    assert channel.decode((), total, jax.random.key(0)).report["clients_clipped"] == 2


def test_a_message_is_four_bytes_a_parameter():
    model = quadratic()
    algorithm = agnostic_fedavg(
        model,
        random_federated(0),
        clients_per_round=3,
        batch_size=2,
        client_optimizer=optax.sgd(0.1),
        channel=in_fixed_point(3, BOUNDS),
    )
    state = algorithm.init()
    p, size = 3, tree.size(state.params)
    up = ledger.bytes_per_client(state, channel_for(3)).up
    assert algorithm.bytes_per_round(state).up == 3 * up
    assert up == 4 * (size + 2 + 2 * p + p + 2)


def test_a_secure_sum_of_vectors_is_the_simulated_sum():
    """encode, mask, add, unmask and decode: number by number what the simulation adds."""
    members = federation(5)
    rng = np.random.default_rng(0)
    contributions = [client(rng) for _ in members]
    channel = channel_for(len(members))
    vectors = np.stack([vector_of(m) for m in messages_of(channel, contributions)])
    play = Play(members, length=vectors.shape[1])
    play.vectors = vectors
    play.to_the_end()
    expected = vector_of(summed(channel, contributions))
    np.testing.assert_array_equal(play.server.total, expected)


@pytest.mark.parametrize(
    ("engine", "make"),
    [
        ("lanes", agnostic_fedavg),
        ("steps", agnostic_fedavg),
        ("padded", agnostic_fedavg),
        ("reference", agnostic_fedavg),
        ("lanes", fedavg),
    ],
)
def test_rounds_in_fixed_point_are_those_in_the_clear(engine: str, make: Any):
    def rounds(**options: Any) -> Any:
        algorithm = make(
            quadratic(3.0),
            random_federated(0, clients=8),
            clients_per_round=6,
            batch_size=4,
            client_optimizer=optax.sgd(0.05),
            window_size=2,
            engine=ENGINES.get(engine),
            **options,
        )
        state = algorithm.init()
        for t in range(1, 5):
            state, info = algorithm.round(state, algorithm.cohort(t))
        return state, info  # pyright: ignore[reportPossiblyUnboundVariable]

    (clear, info), (fixed, fixed_info) = rounds(), rounds(channel=in_fixed_point(6))
    np.testing.assert_allclose(fixed.params["w"], clear.params["w"], atol=1e-5)
    np.testing.assert_allclose(fixed.domain_weights, clear.domain_weights, rtol=1e-5)
    np.testing.assert_array_equal(fixed.window.counts, clear.window.counts)
    np.testing.assert_allclose(fixed_info.beta, info.beta, rtol=1e-5)
    np.testing.assert_allclose(fixed_info.alpha, info.alpha, rtol=1e-5)  # as the paper has it


@pytest.mark.parametrize(
    ("clients", "bounds", "problem"),
    [
        (0, BOUNDS, "number of clients is 0; it must be 1 or more"),
        (10**6, Bounds(examples=5000), "the bound of examples is at most 2048"),
        (10, Bounds(update=-1), "bound of update is -1"),
    ],
)
def test_what_cannot_be_summed_is_refused(clients: int, bounds: Bounds, problem: str):
    with pytest.raises(BadInput, match=problem):
        in_fixed_point(clients, bounds)
