# SPDX-License-Identifier: Apache-2.0
"""Smaller uploads: unbiased, bounded, and as small as they say."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl import agnostic_fedavg, from_functions
from agnosticfl.channels.compression import (
    Memory,
    Turn,
    block_size,
    largest,
    pack,
    rotate,
    rotated,
    round_randomly,
    rounded,
    unpack,
)
from agnosticfl.core import ledger
from agnosticfl.core.channel import Channel, ChannelBuilder, plain
from agnosticfl.core.contribution import ClientSum, contribution_shapes
from agnosticfl.core.model import Model
from agnosticfl.engines import lanes_engine, padded_engine
from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from tests.helpers.problems import random_federated

BLOCK = 4096
KEY = jax.random.key(0)
SIZE = 5000  # two blocks, the second not full


def wide() -> Model:
    """A model of 5000 numbers whose examples pull at all of them."""
    direction = jnp.asarray(np.random.default_rng(0).normal(size=SIZE), jnp.float32)
    return from_functions(
        lambda _: {"a": jnp.zeros((50, 80)), "b": jnp.zeros(1000)},
        lambda w, e: jnp.square(
            e["x"]
            + jnp.concatenate([w["a"].ravel(), w["b"]]) @ direction / math.sqrt(SIZE)
        ),
    )  # fmt: skip


def channel_of(builder: ChannelBuilder) -> Channel:
    return builder(contribution_shapes(wide(), 3))


def contribution(seed: int = 0) -> ClientSum:
    rng = np.random.default_rng(seed)
    flat = jnp.asarray(rng.standard_t(2, SIZE), jnp.float32)  # with some very large numbers
    update = {"a": flat[:4000].reshape(50, 80), "b": flat[4000:]}
    return ClientSum(update, jnp.float32(0.5), jnp.arange(3.0), jnp.ones(3), jnp.zeros(()))


def flat(sums: ClientSum) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(sums.weighted_delta)])


def through(channel: Channel, sums: ClientSum, key: jax.Array) -> ClientSum:
    state = channel.init()
    message = channel.encode(state, sums, key)
    return channel.decode(state, channel.summand(message), key).total


def test_a_rotation_keeps_norms_and_is_its_own_inverse():
    blocks = jnp.zeros((2, BLOCK)).at[0, 17].set(8.0).at[1, 0].set(1.0)
    turned = rotate(blocks)
    # One large number becomes SIDE² small ones.
    np.testing.assert_allclose(jnp.abs(turned[0]), 8.0 / math.sqrt(BLOCK), rtol=1e-5)
    np.testing.assert_allclose(jnp.linalg.norm(turned, axis=1), [8.0, 1.0], rtol=1e-5)
    np.testing.assert_allclose(rotate(turned), blocks, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 128, 8192])
def test_any_power_of_two_is_rotated_by_the_hadamard_matrix(size: int):
    places = np.arange(size)
    ones = np.array([[(i & j).bit_count() for i in places.tolist()] for j in places[:5].tolist()])
    # Entry (i, j) is ±1 by the parity of the bits that i and j share.
    np.testing.assert_allclose(
        rotate(jnp.eye(min(size, 5), size)), (-1.0) ** ones / math.sqrt(size), atol=1e-5
    )


@pytest.mark.parametrize("size", [1, 3, 4096, 5000, 8191])
def test_a_whole_update_is_turned_and_back(size: int):
    update = np.random.default_rng(0).normal(size=size).astype(np.float32)
    one, own = jnp.ones(1), {"w": jnp.asarray(update)}
    sums = ClientSum(own, jnp.float32(1), one, one, jnp.zeros(()))
    channel = rotated(sums)
    turned = channel.encode(channel.init(), sums, KEY)
    assert turned.weighted_delta.shape == (size,)
    np.testing.assert_allclose(
        jnp.linalg.norm(turned.weighted_delta), np.linalg.norm(update), rtol=1e-5
    )
    back = channel.decode(channel.init(), turned, KEY)
    np.testing.assert_allclose(back.total.weighted_delta["w"], update, atol=1e-5)
    assert back.channel_state.number == 2


@pytest.mark.parametrize("place", [0, 2500, 4999])
@pytest.mark.parametrize("others", [0.0, 0.02])
def test_turned_numbers_are_seldom_far_from_zero(place: int, others: float):
    """No more of them beyond aσ than Hoeffding allows, wherever the large one was."""
    update = others * np.random.default_rng(place).normal(size=SIZE).astype(np.float32)
    update[place] = 1.0
    one = jnp.ones(1)
    sums = ClientSum({"w": jnp.asarray(update)}, jnp.float32(1), one, one, jnp.zeros(()))
    channel = rotated(sums)
    states = [Turn(jnp.uint32(n)) for n in range(20)]
    turned = np.array([channel.encode(s, sums, KEY).weighted_delta for s in states])
    deviations = np.abs(turned) * math.sqrt(BLOCK) / np.linalg.norm(update)
    for a in (2.0, 3.0, 4.0):
        assert np.mean(deviations > a) <= 2 * math.exp(-(a**2) / 2)
    assert np.mean(deviations**2) <= 1


@pytest.mark.parametrize(
    ("size", "block"), [(1, 4), (4, 4), (5, 16), (4096, 4096), (4_050_748, 4096)]
)
def test_blocks_fit_small_models(size: int, block: int):
    assert block_size(size) == block


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_errs_by_less_than_a_step_and_not_on_average(bits: int):
    values = jnp.asarray(np.random.default_rng(1).normal(size=(3, 40)), jnp.float32)
    values = values.at[2].set(0.25)  # all alike: no step at all
    draws = 4000

    def back(key: jax.Array) -> jax.Array:
        levels, lowest, step = round_randomly(values, bits, key)
        return lowest[:, None] + step[:, None] * unpack(pack(levels, bits), bits).astype(float)

    rounds = jax.vmap(back)(jax.random.split(KEY, draws))
    step = np.ptp(values, axis=1, keepdims=True) / (2**bits - 1)
    assert np.all(np.abs(rounds - values[None]) <= step * (1 + 1e-4) + 1e-7)
    # A mean of draws, each with a deviation of at most half a step, six deviations wide.
    assert np.all(np.abs(rounds.mean(axis=0) - values) <= 6 * step / 2 / draws**0.5 + 1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_rounded_update_is_near_and_the_rest_exact(bits: int):
    own = contribution()
    got = through(channel_of(rounded(bits)), own, KEY)
    for name in ("beta", "domain_loss", "domain_count", "left_out"):
        np.testing.assert_array_equal(getattr(got, name), getattr(own, name))
    error = np.linalg.norm(flat(got) - flat(own)) / np.linalg.norm(flat(own))
    # Rotated numbers are about normal: 8 deviations in 2^bits − 1 steps, a sixth of step² each.
    assert error < 8 / (2**bits - 1) / math.sqrt(6) * 1.3
    unturned, lowest, step = round_randomly(jnp.asarray(flat(own))[None], bits, KEY)
    without = lowest + step * unturned[0].astype(float) - flat(own)
    assert error < 0.5 * np.linalg.norm(without) / np.linalg.norm(flat(own))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_sum_of_rounded_updates_is_unbiased(bits: int):
    channel, own = channel_of(rounded(bits)), contribution()
    got = jax.vmap(lambda k: through(channel, own, k))(jax.random.split(KEY, 400))
    once = jax.tree.map(lambda leaf: leaf[0], got)
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), got)
    one, all_of_them = (np.linalg.norm(flat(x) - flat(own)) for x in (once, mean))
    assert all_of_them < one / math.sqrt(400) * 1.2


@pytest.mark.parametrize("bits", [4, 8])
def test_messages_have_as_many_bytes_as_the_ledger_says(bits: int):
    channel = channel_of(rounded(bits))
    message = channel.encode(channel.init(), contribution(), KEY)
    sent = sum(np.asarray(leaf).nbytes for leaf in message)
    blocks, p = 2, 3
    assert sent == blocks * BLOCK * bits // 8 + blocks * 2 * 4 + 4 * (1 + p + p) + 1
    state = agnostic_fedavg(
        wide(), random_federated(0), clients_per_round=2, batch_size=3,
        client_optimizer=optax.sgd(0.1), channel=rounded(bits), engine=padded_engine,
    ).init()  # fmt: skip
    assert ledger.bytes_per_client(state, channel).up == sent
    assert ledger.bytes_per_client(state, channel).down == 4 * (SIZE + p + 1)


# The largest numbers.


def test_the_largest_numbers_by_hand():
    model = from_functions(lambda _: {"w": jnp.zeros(4)}, lambda w, e: e["x"] * w["w"][0])
    channel = largest(0.5)(contribution_shapes(model, 1))
    memory = Memory(jnp.array([1.0, 0.0, 0.0, -2.0]))
    one, update = jnp.ones(1), {"w": jnp.array([3.0, 1.0, -2.0, -4.0])}
    own = ClientSum(update, jnp.float32(2.0), one, one, jnp.zeros(()))
    # β (Δ − h) = [3, 1, −2, −4] − 2 [1, 0, 0, −2] = [1, 1, −2, 0]
    message = channel.encode(memory, own, KEY)
    assert message.place.tolist() == [2, 0]
    assert message.values.tolist() == [-2.0, 1.0]
    sums, memory, _ = channel.decode(memory, channel.summand(message), KEY)
    np.testing.assert_array_equal(sums.weighted_delta["w"], [3.0, 0.0, -2.0, -4.0])
    np.testing.assert_array_equal(
        memory.mean, [1.5, 0.0, -1.0, -2.0]
    )  # the mean update, of weight 2


def test_what_is_not_sent_comes_later():
    """Of an update that stays the same, every number has arrived after |W| / k rounds."""
    channel, own = channel_of(largest(0.1)), contribution()
    memory = channel.init()
    for t in range(1, 11):
        message = channel.encode(memory, own, KEY)
        sums, memory, _ = channel.decode(memory, channel.summand(message), KEY)
        arrived = np.isclose(flat(sums), flat(own), rtol=1e-4, atol=1e-6)
        assert np.mean(arrived) >= t / 10


def test_a_round_without_weight_leaves_the_memory():
    channel = channel_of(largest(0.1))
    nothing = jax.tree.map(jnp.zeros_like, contribution())
    memory = Memory(jnp.arange(float(SIZE)))
    message = channel.encode(memory, nothing, KEY)
    after = channel.decode(memory, channel.summand(message), KEY)
    np.testing.assert_array_equal(after.channel_state.mean, memory.mean)
    np.testing.assert_array_equal(flat(after.total), np.zeros(SIZE))


def test_the_ledger_counts_places_and_the_memory():
    state = agnostic_fedavg(
        wide(), random_federated(0), clients_per_round=2, batch_size=3,
        client_optimizer=optax.sgd(0.1), channel=largest(0.01), engine=padded_engine,
    ).init()  # fmt: skip
    cost = ledger.bytes_per_client(state, channel_of(largest(0.01)))
    k, p = 50, 3
    assert cost.up == 8 * k + 4 * (1 + p + p) + 1
    assert cost.down == 4 * (SIZE + p + SIZE)


@pytest.mark.parametrize(("builder", "near"), [(rounded(4), 0.3), (largest(0.1), 0.8)])
def test_training_goes_on_under_compression(builder: ChannelBuilder, near: float):
    """Through the channel, two engines go the way of each other and near that of a plain one."""
    data = random_federated(0)

    def trained(channel: ChannelBuilder, engine: Any) -> np.ndarray:
        algorithm = agnostic_fedavg(
            wide(), data, clients_per_round=6, batch_size=4, engine=engine, channel=channel,
            client_optimizer=optax.sgd(0.1), normalisation="batch",
        )  # fmt: skip
        state = algorithm.init()
        for t in range(1, 11):
            state, _ = algorithm.round(state, algorithm.cohort(t))
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])

    exact, one = trained(plain, padded_engine), trained(builder, padded_engine)
    other = trained(builder, lanes_engine)
    length = np.linalg.norm(exact)
    assert np.linalg.norm(one - other) < 0.05 * length
    assert np.linalg.norm(one - exact) < near * length


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["compress.bits=3"], "bits of compress is 3; it must be 4 or 8"),
        (["compress={}"], "bits is None and top_k None; give one of them"),
        (["compress={bits=8, top_k=0.5}"], "give one of them"),
        (
            ["compress.top_k=1.5"],
            "top_k of compress is 1.5; it must be a number above 0 and at most 1",
        ),
        (["compress.bit=8"], "unknown option of compress 'bit'; did you mean 'bits'"),
        (
            ["compress.bits=8", "dp.epsilon=50", "dp.delta=1e-3"],
            "makes it longer; not with dp: leave it out",
        ),
        (["compress.top_k=0.1", "secure.name=simulate"], "places cannot be added while masked"),
        (["compress.bits=3", "secure.name=simulate"], "bits of compress is 3; it must be 4 or 8"),
        (
            ["compress.bits=8", "secure.name=simulate", "dp.epsilon=50", "dp.delta=1e-3"],
            "makes it longer; not with dp: leave it out",
        ),
    ],
)
def test_bad_settings_are_refused(sets: list[str], message: str):
    with pytest.raises(BadInput, match=message):
        build(resolve("toy", rounds=3, sets=sets))


def test_a_task_chooses_its_compression(tmp_path: Path):
    summary = run(resolve("toy", rounds=3, sets=["compress.bits=8"]), tmp_path / "run")
    p = 5
    assert summary["bytes"]["up_per_round"] == 50 * (4 + 8 + 4 * (1 + p + p) + 1)  # a block of 4
