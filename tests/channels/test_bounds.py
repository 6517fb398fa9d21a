# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.liar import attacked
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl import agnostic_fedavg
from agnosticfl.channels.bounds import Bounds, bounded, bounding, check_bounds
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
    # 40 examples are too many by 4: a quarter of 30 and 10 is 7.5 and 2.5, whole ones of them 7, 2.
    sums, clipped = bounded(BOUNDS, contribution([1.0], 20.0, [2.0, 3.0], [30.0, 10.0]))
    assert clipped == 1
    np.testing.assert_array_equal(sums.domain_count, [7, 2])
    np.testing.assert_allclose(sums.domain_loss, [7 * 2, 2 * 3])
    np.testing.assert_allclose(sums.beta, 20 / 4)
    np.testing.assert_allclose(sums.weighted_delta["w"], [1.0 * 20 / 4])


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
