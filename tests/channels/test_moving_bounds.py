# SPDX-License-Identifier: Apache-2.0
"""Bounds that follow a quantile stay where they belong, whatever the noise; or do not move."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.channels.dp import RunFacts, differential_privacy
from agnosticfl.channels.dp.clipping import SHARE_NOISE, SHARES, follow
from agnosticfl.core.channel import Channel
from agnosticfl.core.contribution import ClientSum, contribution_shapes
from agnosticfl.privacy.entropy import Secrets, secret_of_a_test
from agnosticfl.runs.public_bounds import as_options, find_bounds, following
from agnosticfl.runs.resolve import resolve
from tests.helpers.problems import linear

pytest.importorskip("dp_accounting")

ROUNDS = 500
FACTOR = 4.0


def contributions(clients: int, t: Any) -> ClientSum:
    """Updates around 1 that fall a little, losses around 2 and 20 examples.

    Nine clients of ten have a domain that λ leaves, by a factor of 2000 in all.
    """
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), t), 2)
    wide = jnp.exp(0.7 * jax.random.normal(keys[0], (clients,)) - 0.001 * t)
    count = jnp.round(20 * jnp.exp(0.4 * jax.random.normal(keys[1], (clients,))))
    rare = jnp.arange(clients) % 10 == 0
    beta = jnp.where(rare, 1, jnp.exp(-0.015 * t)) * count
    each = jnp.stack([jnp.where(rare, 0, count), jnp.where(rare, count, 0)], axis=1)
    return ClientSum({"w": beta * wide}, beta, 2 * each, each, jnp.zeros(clients))


def bounds_of(channel: Channel, clients: int) -> np.ndarray:
    """[rounds, 3]"""

    @jax.jit
    def one(state: Any, t: Any) -> Any:
        messages = jax.vmap(channel.encode, (None, 0, None))(
            state, contributions(clients, t), jax.random.key(0)
        )
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), messages)
        after = channel.decode(state, total, jax.random.key(0)).channel_state
        return after, jnp.array(after.bounds)

    times = jnp.arange(1.0, ROUNDS + 1)
    return np.asarray(jax.lax.scan(one, channel.init(), times)[1], np.float64)


@pytest.mark.parametrize("clients", [20, 200])
def test_no_bound_drifts_by_a_factor_of_four(clients: int):
    first: dict[str, Any] = {"clip": 0.6, "examples": 30.0, "loss": 2.0}
    wanted = bounds_of(following(clients, 0.5, first), clients)
    like = contribution_shapes(linear(), 2)
    for epsilon in (1.0, 8.0, 64.0):
        secrets = Secrets(secret_of_a_test(int(epsilon)))
        facts = RunFacts(like, ROUNDS, clients, 10 * clients, secrets)
        privacy = differential_privacy(facts, epsilon, 1e-6, **first)
        found = bounds_of(privacy.channel(like), clients)
        drift = np.exp(np.abs(np.log(found / wanted)).max())
        assert drift < FACTOR, (epsilon, privacy.bounds, drift)


def test_bounds_move_only_on_shares_with_little_noise():
    for noise, clients in ((0.2, 20), (4.0, 200), (4.0, 2000), (30.0, 2000)):
        how = follow(0.5, noise, clients, 100_000)
        assert how is not None
        one_round = noise / (SHARES.within**0.5 * clients)
        assert one_round / how.every**0.5 <= SHARE_NOISE
        assert how.every == 1 or one_round / (how.every - 1) ** 0.5 > 0.99 * SHARE_NOISE
    assert follow(0.5, 4.0, 20, 500) is None  # 20 clients can tell nothing in 500 rounds
    assert follow(0.0, 0.01, 2000, 500) is None  # not wanted


def test_public_data_says_where_bounds_belong():
    """Toy: no client has more than a few points, of a loss around 1; what is found fits them."""
    found = find_bounds(resolve("toy", sets=["clients_per_round=10", "engine=padded"]), rounds=60)
    assert found.keys() == {"clip", "examples", "loss"}
    assert all(0.01 < value < 200 for value in found.values())
    other = find_bounds(
        resolve("toy", seed=1, sets=["clients_per_round=10", "engine=padded"]), rounds=60
    )
    for name, value in found.items():
        assert 0.4 < other[name] / value < 2.5, name


def test_options_are_in_the_units_of_dp():
    channel = following(10, 0.5, {"clip": 3.0, "examples": 50.0, "loss": 4.0})
    back = as_options(channel.init().bounds)
    assert back == pytest.approx({"clip": 3.0, "examples": 50.0, "loss": 4.0})
