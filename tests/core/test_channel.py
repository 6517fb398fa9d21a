# SPDX-License-Identifier: Apache-2.0
"""Channels: what one client's contribution becomes, the same in every engine."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import Array

from agnosticfl import agnostic_fedavg, from_functions
from agnosticfl.core import ledger, sampling
from agnosticfl.core.channel import (
    Channel,
    ChannelBuilder,
    Decoded,
    chain,
    is_plain,
    plain,
    sent_by_client,
)
from agnosticfl.core.contribution import Broadcast, ClientSum, contribution_shapes
from agnosticfl.core.model import Model
from agnosticfl.core.random import client_key
from agnosticfl.core.work import ClientWork
from agnosticfl.engines import lanes_engine
from agnosticfl.registry import ENGINES
from tests.helpers.problems import federated, linear, quadratic, random_federated

FAST = ["lanes", "steps", "padded"]
UNIT = 2.0**-12


def scaled(factor: float) -> ChannelBuilder:
    """Multiplies what is sent by a number that the server carries and doubles every round."""

    def encode(state: Array, contribution: Any, key: Array) -> Any:
        del key
        return jax.tree.map(lambda leaf: state * leaf, contribution)

    def decode(state: Array, total: Any, key: Array) -> Decoded:
        del key
        back = jax.tree.map(lambda leaf: leaf / state, total)
        return Decoded(back, 2 * state, {"scale": state})

    return lambda _: Channel(lambda: jnp.float32(factor), encode, lambda m: m, decode)


def integers(like: Any) -> Channel:
    """Whole multiples of a unit, modulo 2^32, under a mask that the whole cohort shares.

    Messages are what travels, a pair; only its first part is added. Each client counts itself.
    """
    del like

    def encode(state: tuple[()], contribution: Any, key: Array) -> Any:
        del state
        noise = jax.random.randint(key, (), -8, 8, jnp.int32)
        words = jax.tree.map(
            lambda leaf: jnp.round(leaf / UNIT).astype(jnp.int32).astype(jnp.uint32), contribution
        )
        return {"words": words, "one": jnp.uint32(2**31 + 1), "noise": noise}

    def decode(state: tuple[()], total: Any, key: Array) -> Decoded:
        del key
        signed = jax.tree.map(lambda leaf: leaf.astype(jnp.int32), total["words"])
        sums = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) * UNIT, signed)
        return Decoded(sums, state, {"clients": total["one"], "noise": total["noise"]})

    return Channel(lambda: (), encode, lambda message: message, decode)


def total(engine: Any, work: ClientWork, data: Any, cohort: int, seed: int) -> Any:
    seam = engine(work, data, sampling.uniform(data.num_clients, cohort, seed), seed)
    sent = Broadcast(
        work.model.init(jax.random.key(seed)), jnp.array([0.1, 0.3, 0.5]), work.channel.init()
    )
    return seam.compile(seam.sum_over_clients)(sent, seam.cohort(seed % 7 + 1))


def zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def work_with(builder: ChannelBuilder, model: Model, **options: Any) -> ClientWork:
    channel = builder(contribution_shapes(model, 3))
    return ClientWork(model, optax.sgd(0.1), 3, channel=channel, **options)


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize(("seed", "cohort"), [(0, 6), (4, 3)])
def test_every_engine_adds_the_same_messages(engine: str, seed: int, cohort: int):
    data = random_federated(seed)
    assert seed or 0 in data.sizes  # an empty client sends a message like everybody else
    work = work_with(chain(scaled(3.0), integers), quadratic(), batch_size=4)
    actual, expected = (
        total(ENGINES.get(name), work, data, cohort, seed) for name in (engine, "reference")
    )
    assert actual["one"] == np.uint32(cohort * (2**31 + 1) % 2**32)
    assert actual["noise"] == expected["noise"]
    jax.tree.map(
        # Each client's numbers may be rounded to the neighbouring integer.
        lambda a, b: np.testing.assert_array_less(np.abs((a - b).astype(np.int32)), cohort + 1),
        actual["words"],
        expected["words"],
    )


def test_random_bits_are_the_client_s_own():
    data = random_federated(1)
    work = work_with(integers, quadratic(), batch_size=2)
    noise = [
        sent_by_client(
            work.channel, (), zeros(contribution_shapes(work.model, 3)), client_key(4, 5, k)
        )["noise"]
        for k in sampling.uniform(6, 4, 4)(5)
    ]
    assert len({int(n) for n in noise}) > 1
    assert total(lanes_engine, work, data, 4, 4)["noise"] == sum(noise)


@pytest.mark.nan_input
@pytest.mark.parametrize("engine", [*FAST, "reference"])
def test_a_client_that_is_not_finite_sends_zeros_and_is_counted(engine: str):
    data = federated([[1.0, 2.0], [np.nan], [3.0]], [[0, 1], [1], [2]], 3)
    work = work_with(chain(scaled(1.0), integers), linear(2.0), batch_size=1)
    encoded = total(ENGINES.get(engine), work, data, 3, 0)
    sums: ClientSum = work.channel.decode(work.channel.init(), encoded, jax.random.key(0)).total
    assert encoded["one"] == np.uint32(3 * (2**31 + 1) % 2**32)
    assert sums.left_out == 1
    np.testing.assert_array_equal(sums.domain_count, [1, 1, 1])
    assert np.isfinite(sums.weighted_delta["w"])


@pytest.mark.parametrize("engine", FAST)
def test_a_round_decodes_carries_the_state_and_reports(engine: str):
    data = random_federated(2)
    plainly, scaling = (
        agnostic_fedavg(
            quadratic(), data, clients_per_round=4, batch_size=3,
            client_optimizer=optax.sgd(0.1), engine=ENGINES.get(engine), channel=channel,
        )
        for channel in (plain, scaled(4.0))
    )  # fmt: skip
    a, b = plainly.init(), scaling.init()
    for t in range(1, 4):
        a, _ = plainly.round(a, plainly.cohort(t))
        b, info = scaling.round(b, scaling.cohort(t))
        assert info.channel_report["scale"] == 4.0 * 2 ** (t - 1)
        np.testing.assert_allclose(a.params["w"], b.params["w"], rtol=1e-5)
        np.testing.assert_allclose(a.domain_weights, b.domain_weights, rtol=1e-5)


def test_a_chain_encodes_forwards_and_decodes_backwards():
    like = contribution_shapes(quadratic(), 3)
    channel = chain(scaled(2.0), plain, scaled(8.0), integers)(like)
    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), like)
    state, key = channel.init(), jax.random.key(0)
    assert state == (2.0, 8.0, ())
    message = channel.encode(state, ones, key)
    assert message["words"].beta == int(2 * 8 / UNIT)
    decoded = channel.decode(state, message, key)
    assert decoded.channel_state == (4.0, 16.0, ())
    assert set(decoded.report) == {"scale", "clients", "noise"}
    jax.tree.map(np.testing.assert_array_equal, decoded.total, ones)


def test_a_chain_of_nothing_is_plain():
    like = contribution_shapes(quadratic(), 3)
    assert is_plain(chain()(like))
    assert is_plain(chain(plain, plain)(like))
    assert not is_plain(chain(plain, scaled(1.0))(like))


def test_the_ledger_counts_the_message_and_the_state():
    builder = chain(scaled(1.0), integers)
    algorithm = agnostic_fedavg(
        quadratic(), random_federated(0), clients_per_round=2, batch_size=2,
        client_optimizer=optax.sgd(0.1), channel=builder,
    )  # fmt: skip
    state = algorithm.init()
    cost = ledger.bytes_per_client(state, builder(contribution_shapes(quadratic(), 3)))
    w, p = 1, 3
    assert cost.down == 4 * (w + p + 1)  # w, α, the scale
    assert cost.up == 4 * (w + 1 + p + p + 1) + 4 + 4  # all of the sum, one, noise
    assert algorithm.bytes_per_round(state) == (2 * cost.down, 2 * cost.up)


@pytest.mark.parametrize("builder", [scaled(2.0), integers])
def test_memory_does_not_grow_with_the_cohort(builder: ChannelBuilder):
    """A contribution is encoded where it ends, so c clients never lie side by side."""
    size = 10_000
    data = random_federated(1, clients=60)
    model = from_functions(
        lambda _: {"w": jnp.ones(size)}, lambda w, e: e["x"] * jnp.sum(w["w"]) / size
    )
    work = work_with(builder, model, batch_size=2)

    def needed(clients: int) -> int:
        engine = lanes_engine(work, data, sampling.uniform(60, clients, 0), 0, lanes=3)
        sent = Broadcast(model.init(jax.random.key(0)), jnp.ones(3), work.channel.init())
        compiled = jax.jit(engine.sum_over_clients).lower(sent, engine.cohort(1)).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    few, many = needed(6), needed(60)
    assert few > 3 * size * 4
    assert many - few < size * 4


def test_blocks_of_rounds_have_the_bits_of_rounds_one_by_one():
    algorithm = agnostic_fedavg(
        quadratic(), random_federated(2, clients=30), clients_per_round=7, batch_size=3,
        client_optimizer=optax.sgd(0.1), channel=chain(scaled(2.0), integers),
        engine=functools.partial(lanes_engine, lanes=2),
    )  # fmt: skip
    assert algorithm.block is not None
    states, _ = algorithm.block(algorithm.init())
    state = algorithm.init()
    for t in range(1, 4):
        state, _ = algorithm.round(state, algorithm.cohort(t))
        inside = jax.tree.map(lambda leaf, t=t: leaf[t - 1], states)
        jax.tree.map(np.testing.assert_array_equal, inside, state)
