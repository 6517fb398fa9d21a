# SPDX-License-Identifier: Apache-2.0
"""Noise that nobody can subtract, on sums of whole numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from agnosticfl.channels.dp import RunFacts, differential_privacy
from agnosticfl.channels.dp.noise import released, scale_for, to_whole_numbers, units_for
from agnosticfl.core.contribution import contribution_shapes
from tests.helpers.noised import contribution, noise_of_a_test
from tests.helpers.problems import linear

pytest.importorskip("dp_accounting")

KEY = jax.random.key(0)


def test_central_noise_is_normal_with_deviation_z_for_every_number():
    like = {"a": jnp.zeros((100, 300), jnp.int32), "b": jnp.zeros(20_000, jnp.int32)}
    scale = scale_for(3.0, 2**18, 1)
    assert scale.noise == 3.0
    noised = released(noise_of_a_test(), like, jnp.int32(scale.sigma), jnp.float32(scale.units))
    draws = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noised)])
    assert stats.kstest(draws / 3.0, "norm").pvalue > 0.01
    assert abs(np.corrcoef(draws[:20_000], draws[20_000:40_000])[0, 1]) < 0.03


def test_clients_shares_of_noise_add_up_modulo_two_to_the_32():
    clients, z = 8, 2.0
    units = units_for(clients, z)
    assert units == 2 ** math.floor(math.log2(2**22 / 4))
    scale = scale_for(z, units, clients)
    assert z <= scale.noise < 1.001 * z
    message = to_whole_numbers(jnp.full(5000, 0.6), jnp.float32(units))
    assert message.dtype == jnp.int32
    sigma, total = jnp.int32(scale.sigma), clients * message
    noised = released(noise_of_a_test(clients), total, sigma, jnp.float32(units))
    noise = np.asarray(noised) - clients * 0.6
    assert stats.kstest(noise / z, "norm").pvalue > 0.01


@pytest.mark.parametrize(("clients", "noise"), [(4, 0.5), (2000, 1.0), (20, 300.0), (100_000, 5.0)])
def test_whole_numbers_have_room_for_sum_and_noise(clients: int, noise: float):
    units = units_for(clients, noise)
    assert units * (clients + 10 * noise) < 2**31
    assert scale_for(2 * noise, units, 1).noise >= 2 * noise  # as a resumed run may want


def test_every_sum_gets_other_noise_though_the_key_is_the_same():
    """What a round is computed from is public: state, data's sum and the key of (seed, t)."""
    facts = RunFacts(contribution_shapes(linear(), 2), 10, 4, 40)
    channel = differential_privacy(facts, 2.0, 1e-5).channel(facts.like)
    own = contribution([1.0], 0.4, [20.0, 3.0], [6.0, 7.0])
    message = channel.encode(channel.init(), own, KEY)
    decode = jax.jit(channel.decode)
    one, other = (decode(channel.init(), message, KEY).total for _ in range(2))
    assert np.all(one.weighted_delta["w"] != other.weighted_delta["w"])


def test_noise_of_two_runs_of_one_seed_cannot_be_subtracted():
    """With one seed and two ε, (z₂ o₁ − z₁ o₂) / (z₂ − z₁) was the update without noise."""
    noise: list[np.ndarray] = []
    for epsilon in (64, 4):
        facts = RunFacts(contribution_shapes(linear(), 2), 1, 4, 40)
        privacy = differential_privacy(facts, epsilon, 1e-5)
        channel = privacy.channel(facts.like)
        zero = jax.tree.map(lambda leaf: jnp.zeros((500, *leaf.shape), leaf.dtype), facts.like)
        message = jax.vmap(channel.encode, (None, 0, None))(channel.init(), zero, KEY)
        total = jax.vmap(lambda m, channel=channel: channel.decode(channel.init(), m, KEY).total)
        noise.append(np.ravel(total(message).weighted_delta["w"]) / privacy.scale.noise)
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.2
