# SPDX-License-Identifier: Apache-2.0
"""A contribution as one vector of norm 1, and what is made of a noised sum of such."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.channels.dp.clipping import (
    FIXED_SHARES,
    MARGIN,
    SHARES,
    ClipBounds,
    Follow,
    Segments,
    estimate,
    private,
    unit_vector,
)
from agnosticfl.channels.dp.noise import Scale
from agnosticfl.core import tree
from tests.helpers.noised import contribution, noise_of_a_test

BOUNDS = ClipBounds(*map(jnp.float32, (20.0, 30.0, 10.0)))  # ‖n Δ‖, ‖L‖, n
ROOTS = Segments(*(math.sqrt(share) for share in SHARES))
FINE = Scale(2**20, 1, 1)
KEY = jax.random.key(0)


def nothing(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """A sum that gets no noise."""
    del sigma
    return np.asarray(total, np.float32)


def test_shares_are_of_a_vector_of_norm_one():
    for shares in (SHARES, FIXED_SHARES):
        assert sum(shares) == pytest.approx(1)


NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@given(
    update=st.lists(NUMBERS, min_size=3, max_size=3),
    beta=st.floats(0, 2.0**60, width=32, allow_subnormal=False),
    loss=st.lists(NUMBERS, min_size=2, max_size=2),
    count=st.lists(st.floats(0, 2.0**30, width=32, allow_subnormal=False), min_size=2, max_size=2),
)
def test_no_client_adds_more_than_norm_one_or_its_share_of_any_segment(
    update: list[float], beta: float, loss: list[float], count: list[float]
):
    vector = unit_vector(BOUNDS, ROOTS, contribution(update, beta, loss, count))
    exact = [np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(part)])
             for part in vector]  # fmt: skip
    for segment, share in zip(exact, ROOTS, strict=True):
        assert np.linalg.norm(segment) <= share
    assert np.linalg.norm(np.concatenate(exact)) <= 1


def test_a_contribution_by_hand():
    # Of 20 examples with a mean α of 1/4, 10 are too many: N, β and L are halved, L to 25 of 30.
    # ‖β Δ‖ = 10 is ‖n Δ‖ = 40 of 20, so half of it is left.
    own = contribution([6.0, 8.0], 5.0, [30.0, 40.0], [12.0, 8.0])
    vector = unit_vector(BOUNDS, ROOTS, own)
    a = [MARGIN * math.sqrt(share) for share in SHARES]
    np.testing.assert_allclose(vector.update["w"], [a[0] * 3 / 20, a[0] * 4 / 20], rtol=1e-6)
    np.testing.assert_allclose(vector.beta, a[1] * 2.5 / 10, rtol=1e-6)
    np.testing.assert_allclose(vector.loss, [a[2] * 15 / 30, a[2] * 20 / 30], rtol=1e-6)
    np.testing.assert_allclose(vector.count, [a[3] * 0.6, a[3] * 0.4], rtol=1e-6)
    np.testing.assert_allclose(vector.within, np.array([-1, 1, -1]) * a[4] / 2, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 0.3, 1e-6])
def test_what_is_within_its_bounds_does_not_depend_on_alpha(alpha: float):
    """β^k Δ^k and β^k are α times n_k Δ^k and n_k, and so is what is sent of them."""
    whole, part = (
        unit_vector(BOUNDS, ROOTS, contribution([30.0 * a, 0.0], 8.0 * a, [9.0, 1.0], [5.0, 3.0]))
        for a in (1.0, alpha)
    )
    np.testing.assert_allclose(part.update["w"], alpha * whole.update["w"], rtol=1e-5)
    np.testing.assert_allclose(part.beta, alpha * whole.beta, rtol=1e-5)
    for name in ("loss", "count", "within"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))


def test_what_is_within_its_bounds_comes_back():
    channel = private(BOUNDS, FINE, 1, None, nothing)
    own = contribution([0.3, -0.2], 0.4, [20.0, 3.0], [2.0, 7.0])
    sums, _, report = channel.decode(channel.init(), channel.encode(channel.init(), own, KEY), KEY)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), sums, own)
    assert report == {}


@given(st.lists(NUMBERS, min_size=9, max_size=9), st.floats(1e-3, 1e3))
def test_no_noise_makes_anything_negative_or_not_finite(numbers: list[float], noise: float):
    x = jnp.array(numbers)
    noised = Segments({"w": x[:2]}, x[2], x[3:5], x[5:7], jnp.zeros(3))
    sums = estimate(BOUNDS, jnp.float32(noise), ROOTS, noised)
    assert tree.all_finite(sums)
    assert sums.beta > 0
    assert jnp.all(sums.domain_count >= 0)
    assert jnp.all(sums.domain_loss >= 0)
    assert jnp.all((sums.domain_count == 0) <= (sums.domain_loss == 0))


def test_bounds_follow_the_quantile():
    """Norms of updates are 2^−4 … 2^4, evenly in the logarithm: their median is 1."""
    clients = 41
    first = ClipBounds(20.0, 30.0, 10.0)
    channel = private(first, FINE, clients, Follow(0.5, 1), noise_of_a_test())
    norms = 2.0 ** np.linspace(-4, 4, clients)
    # Those of every other client have a tenth of the weight.
    alpha = np.where(np.arange(clients) % 2, 0.1, 1.0).astype(np.float32)
    many = jax.vmap(lambda x, a: contribution([0.0, 0.0], 0.0, [1.0, 1.0], [1.0, 1.0])._replace(
        weighted_delta={"w": jnp.stack([a * x, 0 * x])}, beta=2 * a,
    ))(jnp.array(norms, jnp.float32), alpha)  # fmt: skip

    @jax.jit
    def step(state: Any, key: Any) -> Any:
        messages = jax.vmap(channel.encode, (None, 0, None))(state, many, key)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), messages)
        return channel.decode(state, total, key).channel_state, None

    state, _ = jax.lax.scan(step, channel.init(), jax.random.split(KEY, 150))
    assert 2**-0.5 < state.bounds.update < 2**0.5
    assert state.bounds.count < 3.0  # all are within; the bound comes down to what is needed
