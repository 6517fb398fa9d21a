# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl.core.algorithm1 import (
    domain_scaling,
    mean_domain_loss,
    push,
    server_step,
    step_weights,
)
from agnosticfl.core.channel import PLAIN, with_bounded_alpha
from agnosticfl.core.state import ServerState, init_state
from agnosticfl.weights import exponentiated_gradient, fixed


def state(domain_count: list[float] | None = None) -> ServerState:
    params = {"w": jnp.array([1.0, 2.0])}
    return init_state(params, optax.sgd(1.0), fixed(), 2, 2, domain_count=domain_count)


def test_alpha_is_weight_over_mean_count():
    window = state(domain_count=[3.0, 5.0]).window
    window = push(window, jnp.array([5.0, 15.0]))
    alpha = domain_scaling(jnp.array([0.4, 0.6]), window.mean)
    np.testing.assert_allclose(alpha, [0.4 / ((3 + 5) / 2), 0.6 / ((5 + 15) / 2)], rtol=1e-6)


def test_no_example_counts_more_than_so_many_times_the_mean_one():
    weights, counts = jnp.array([0.5, 0.5]), jnp.array([90.0, 10.0])
    alpha = with_bounded_alpha(domain_scaling, PLAIN._replace(most_alpha=4.0))(weights, counts)
    expected = [0.5 / 90, 4 / (90 + 10)]  # the second would be 0.05, five times the mean's 0.01
    np.testing.assert_allclose(alpha, expected, rtol=1e-6)
    assert with_bounded_alpha(domain_scaling, PLAIN) is domain_scaling


def test_a_domain_absent_from_the_whole_window_keeps_its_last_mean():
    window = state(domain_count=[4.0, 8.0]).window
    for count in ([2.0, 6.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]):
        window = push(window, jnp.array(count))
    np.testing.assert_array_equal(window.counts, [[2, 0], [2, 0]])
    np.testing.assert_array_equal(window.mean, [2, 3])  # (6 + 0) / 2 was its last


def test_mean_loss_divides_once_and_is_zero_where_absent():
    loss = mean_domain_loss(jnp.array([6.0, 0.0]), jnp.array([4.0, 0.0]))
    np.testing.assert_array_equal(loss, [1.5, 0.0])


@pytest.mark.nan_input
def test_an_overflowed_loss_stays_finite():
    assert np.isfinite(mean_domain_loss(jnp.array([jnp.inf]), jnp.array([2.0])))


def test_sgd_of_rate_one_is_the_plain_average():
    params, _, taken = server_step(
        optax.sgd(1.0), {"w": jnp.array([0.5, -1.0])}, jnp.array(3.0), state()
    )
    np.testing.assert_array_equal(params["w"], [1.0 - 0.5, 2.0 + 1.0])
    assert taken


@pytest.mark.nan_input
@pytest.mark.parametrize(("beta", "delta"), [(0.0, 1.0), (1.0, np.nan), (1.0, np.inf), (1.0, 3e38)])
def test_no_weight_or_no_finite_result_means_no_step(beta: float, delta: float):
    optimizer = optax.adam(0.1)  # its second moment overflows at 3e38
    before = state()._replace(opt_state=optimizer.init(state().params))
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam mixes dtypes
        params, opt_state, taken = server_step(
            optimizer, {"w": jnp.array([delta, 0.0])}, jnp.array(beta), before
        )
    assert not taken
    np.testing.assert_array_equal(params["w"], before.params["w"])
    assert opt_state[0].count == 0


@pytest.mark.nan_input
def test_weights_that_are_not_finite_stay_as_they_were():
    rule = exponentiated_gradient(0.1)
    before = init_state({"w": jnp.zeros(1)}, optax.sgd(1.0), rule, 2, 2)
    loss, count = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
    lost, taken = step_weights(rule, before, jnp.array([jnp.nan, 2.0]), count)
    assert not taken
    np.testing.assert_array_equal(lost.domain_weights, before.domain_weights)
    after, taken = step_weights(rule, lost, loss, count)  # and the next round goes on from there
    assert taken
    np.testing.assert_array_equal(
        after.domain_weights, step_weights(rule, before, loss, count)[0].domain_weights
    )
    assert after.domain_weights[1] > before.domain_weights[1]
