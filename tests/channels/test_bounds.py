# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.liar import attacked
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl import agnostic_fedavg
from agnosticfl.channels.bounds import (
    ROUNDED_COUNTS,
    Bounds,
    bounded,
    bounding,
    check_bounds,
    shared_out,
)
from agnosticfl.core.contribution import ClientSum
from agnosticfl.errors import BadInput
from tests.helpers.problems import federated, linear

BOUNDS = Bounds(update=2.0, examples=10, loss=4.0)


def contribution(
    delta: list[float], beta: float, loss: list[float], count: list[float]
) -> ClientSum:
    """β^k Δ^k for Δ^k = `delta`, with mean losses `loss`."""
    counts = jnp.array(count)
    return ClientSum(
        {"w": beta * jnp.array(delta)},
        jnp.float32(beta),
        jnp.array(loss) * counts,
        counts,
        jnp.zeros(()),
    )


def test_what_is_within_its_bounds_is_left_alone():
    own = contribution([1.2, 1.6], 3.0, [4.0, -4.0], [4.0, 6.0])  # ‖Δ‖ = 2, N = 10
    sums, clipped = bounded(BOUNDS, own)
    assert clipped == 0
    jax.tree.map(np.testing.assert_array_equal, sums, own)


def test_a_long_update_keeps_its_direction():
    sums, clipped = bounded(BOUNDS, contribution([3.0, 4.0], 2.0, [1.0], [5.0]))
    assert clipped == 1
    np.testing.assert_allclose(sums.weighted_delta["w"], 2.0 * np.array([3, 4]) * 2 / 5, rtol=1e-6)
    assert sums.beta == 2
    assert sums.domain_loss == 5


def test_a_high_loss_becomes_the_bound_and_the_others_stay():
    sums, clipped = bounded(BOUNDS, contribution([1.0], 2.0, [1.0, 1e6, -9.0], [3.0, 2.0, 1.0]))
    assert clipped == 1
    np.testing.assert_allclose(sums.domain_loss, [3 * 1, 2 * 4, 1 * -4])
    np.testing.assert_array_equal(sums.domain_count, [3, 2, 1])


def test_too_many_examples_count_as_the_most_that_are_allowed():
    # 40 examples are too many by 4: a quarter of 30 and 10 is 7.5 and 2.5, whole ones of them 7, 2,
    # and the one that is left goes to the first of the two.
    sums, clipped = bounded(BOUNDS, contribution([1.0], 20.0, [2.0, 3.0], [30.0, 10.0]))
    assert clipped == 1
    np.testing.assert_array_equal(sums.domain_count, [8, 2])
    np.testing.assert_allclose(sums.domain_loss, [8 * 2, 2 * 3])
    np.testing.assert_allclose(sums.beta, 20 / 4)
    np.testing.assert_allclose(sums.weighted_delta["w"], [1.0 * 20 / 4])


@pytest.mark.parametrize(
    ("count", "most", "shared"),
    [
        ([333, 333, 334], 1000, [333, 333, 334]),  # as many as are allowed
        ([500, 500, 1], 1000, [500, 499, 1]),  # 499.5, 499.5 and 0.999: two are left of 1000
        ([1, 1, 1], 2, [1, 1, 0]),
        ([10**6, 1], 1000, [1000, 0]),
        ([3_000_001, 3_000_000, 2_999_999], 1000, [334, 333, 333]),
        ([2**24, 2**24], 2**24, [2**23, 2**23]),
        ([0, 0], 5, [0, 0]),
    ],
)
def test_whole_numbers_are_shared_out_by_the_largest_remainder(
    count: list[int], most: int, shared: list[int]
):
    found = jax.jit(shared_out, static_argnums=1)(jnp.array(count, jnp.float32), most)
    np.testing.assert_array_equal(found, shared)


@given(
    st.lists(st.integers(0, 2**22), min_size=1, max_size=8),
    st.integers(1, 2**24),
    st.lists(st.floats(0, 1, width=32), min_size=8, max_size=8),
)
def test_a_client_with_too_many_examples_counts_with_as_many_as_are_allowed(
    count: list[int], most: int, alphas: list[float]
):
    total, p = sum(count), len(count)
    exact = [Fraction(c * most, max(total, most)) for c in count]
    shared = np.asarray(shared_out(jnp.array(count, jnp.float32), most))
    assert shared.sum() == min(total, most)
    # What is given is ⌊n_i⌋ or ⌈n_i⌉, and nobody has one more whose remainder is smaller.
    assert all(abs(s - n) < 1 and s >= 0 for s, n in zip(shared, exact, strict=True))
    up = [n % 1 for s, n in zip(shared, exact, strict=True) if s > n]
    down = [n % 1 for s, n in zip(shared, exact, strict=True) if s < n]
    assert min(up, default=1) >= max(down, default=0)
    # β^k shrinks with all counts alike; that is what the rounding of each makes of Σ_i α_i N_i.
    alpha = [Fraction(a) for a in alphas[:p]]
    off = sum(a * (Fraction(float(s)) - n) for a, s, n in zip(alpha, shared, exact, strict=True))
    assert abs(off) <= ROUNDED_COUNTS * p * (max(alpha) - min(alpha))


def test_a_client_without_examples_stays_nothing():
    sums, clipped = bounded(BOUNDS, contribution([0.0], 0.0, [0.0], [0.0]))
    assert clipped == 0
    assert sums.beta == sums.weighted_delta["w"] == sums.domain_count == 0


numbers = st.floats(-1e6, 1e6, width=32)


@given(
    st.lists(numbers, min_size=3, max_size=3),
    st.lists(numbers, min_size=2, max_size=2),
    st.lists(st.integers(0, 10**6), min_size=2, max_size=2),
    st.floats(0, 1, width=32),
)
def test_nothing_passes_its_bound(
    delta: list[float], loss: list[float], count: list[int], alpha: float
):
    own = contribution(delta, alpha * sum(count), loss, [float(c) for c in count])
    sums, _ = bounded(BOUNDS, own)
    room = 1 + 1e-5
    assert float(sums.beta) <= BOUNDS.examples * room
    assert float(jnp.sum(sums.domain_count)) <= BOUNDS.examples
    assert np.linalg.norm(sums.weighted_delta["w"]) <= BOUNDS.update * BOUNDS.examples * room
    assert np.all(np.abs(sums.domain_loss) <= BOUNDS.loss * np.asarray(sums.domain_count) * room)
    np.testing.assert_array_equal(sums.domain_count, np.floor(sums.domain_count))


def test_a_round_says_how_many_it_clipped():
    data = federated([[1.0], [1e4], [2.0]], [[0], [0], [0]], 1)
    algorithm = agnostic_fedavg(
        linear(),  # L = 4 x: 4, 40000 and 8 before the bound, 4, 10 and 8 after
        data,
        clients_per_round=3,
        batch_size=1,
        client_optimizer=optax.sgd(1e-3),
        channel=bounding(Bounds(update=100, examples=10, loss=10)),
    )
    _, info = algorithm.round(algorithm.init(), algorithm.cohort(1))
    assert info.channel_report["clients_clipped"] == 1
    np.testing.assert_allclose(info.mean_domain_loss, (4 + 10 + 8) / 3)


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        (Bounds(update=0), "bound of update is 0; it must be above 0"),
        (Bounds(loss=float("nan")), "bound of loss is nan; it must be above 0"),
        (Bounds(examples=2**25), "bound of examples is 33554432; it must be a whole number up to"),
        (Bounds(examples=1.5), "bound of examples is 1.5; it must be a whole number"),  # type: ignore[arg-type]
    ],
)
def test_bad_bounds_are_refused(bounds: Bounds, problem: str):
    with pytest.raises(BadInput, match=problem):
        check_bounds(bounds)


@pytest.mark.slow
def test_one_client_in_fifty_cannot_take_all_the_weight():
    free, held = attacked(1e6, rounds=600), attacked(1e6, 20.0, 0.6, rounds=600)
    # Unbounded, its domain gets all of λ and the model goes to its centre, 1.
    assert free.weight > 0.99
    assert free.worst > 3.5
    # Bounded, its examples, 8 of 350 around that centre, add at most 20 each to the domain's mean
    # loss: 4 w = 8 · 19 / 350 moves the balance of the extreme domains, (1 − w)² and (−1 − w)².
    assert abs(held.w) < 0.15
    assert held.worst < 1.45
    assert held.clipped == 1
