# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from agnosticfl.core.weight_rule import DomainStats, WeightRule, check_domain_weights
from agnosticfl.errors import BadInput
from agnosticfl.registry import LOSS_TRANSFORMS, WEIGHT_RULES, WEIGHT_TRANSFORMS
from agnosticfl.weights import (
    aaggff,
    adjusted,
    averaged,
    averaged_loss,
    capped,
    chain,
    chi_squared,
    cvar,
    decaying,
    exponentiated_gradient,
    fixed,
    minimum_weight,
    mixed,
    normalised,
    optimistic,
    projected_gradient,
    prop_fair,
    proportional,
    q_fair,
    semi_variance,
    tilted,
)
from tests.weights.observed import stats


def one_update(rule: WeightRule, weights: list[float], observed: DomainStats) -> Array:
    return jax.jit(rule.update)(rule.init(jnp.array(weights)), observed)[0]


# Every rule, as a task would build it, goes through the same contract.
CONTRACT = {
    "exponentiated_gradient": exponentiated_gradient(0.1),
    "exponentiated_gradient, hold": exponentiated_gradient(0.1, "hold"),
    "projected_gradient": projected_gradient(0.1),
    "projected_gradient, hold": projected_gradient(0.1, "hold"),
    "tilted": tilted(0.5),
    "tilted, counts": tilted(0.5, "counts"),
    "q_fair": q_fair(2.0),
    "chi_squared": chi_squared(0.5),
    "chi_squared, counts": chi_squared(2.0, "counts"),
    "cvar": cvar(0.4),
    "exponentiated_gradient, presence": exponentiated_gradient(0.1, "presence"),
    "projected_gradient, presence": projected_gradient(0.1, "presence"),
    "prop_fair": prop_fair(2.0),
    "semi_variance": semi_variance(1.0),
    "semi_variance, counts": semi_variance(0.1, "counts"),
    "aaggff": aaggff(),
    "proportional": proportional(),
    "fixed": fixed(),
    "normalised": chain(normalised(), exponentiated_gradient(0.1)),
    "decaying": chain(decaying(), projected_gradient(0.1)),
    "optimistic": chain(optimistic(), exponentiated_gradient(0.1)),
    "averaged_loss": chain(averaged_loss(), cvar(0.4)),
    "adjusted": chain(adjusted(1.0), exponentiated_gradient(0.1, "hold")),
    "minimum_weight": chain(exponentiated_gradient(0.1), minimum_weight(0.1)),
    "capped": chain(exponentiated_gradient(0.1), capped(1.0)),
    "mixed": chain(projected_gradient(0.1), mixed(0.1)),
    "averaged": chain(projected_gradient(0.1), averaged()),
    "all together": chain(
        normalised(), decaying(), optimistic(), exponentiated_gradient(0.1), mixed(0.1), averaged()
    ),
}

UPDATES = {name: jax.jit(rule.update) for name, rule in CONTRACT.items()}

weights_and_losses = st.sampled_from([1, 3]).flatmap(
    lambda p: st.tuples(
        st.lists(st.floats(0.0, 1.0), min_size=p, max_size=p).filter(lambda w: sum(w) > 1e-3),
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=p, max_size=p),
        st.lists(st.integers(0, 3), min_size=p, max_size=p),
    )
)


def test_the_contract_covers_every_rule():
    entries = [
        name
        for registry in (WEIGHT_RULES, LOSS_TRANSFORMS, WEIGHT_TRANSFORMS)
        for name in registry.names()
    ]
    assert {name.split(",")[0] for name in CONTRACT} - {"all together"} == set(entries)


@pytest.mark.parametrize("name", CONTRACT)
@given(weights_and_losses)
def test_weights_stay_on_the_simplex(name: str, case: tuple[list[float], list[float], list[int]]):
    weights, loss, count = case
    rule = CONTRACT[name]
    state = rule.init(jnp.array(check_domain_weights(np.array(weights) / sum(weights), len(loss))))
    observed = stats([v if c else 0.0 for v, c in zip(loss, count, strict=True)], count)
    for _ in range(3):
        new, state = UPDATES[name](state, observed)
        assert np.all(np.asarray(new) >= 0)
        np.testing.assert_allclose(np.sum(new), 1, rtol=1e-5)


@pytest.mark.parametrize("name", CONTRACT)
def test_permuting_domains_permutes_weights(name: str):
    order = np.array([2, 0, 1])
    weights, loss, count = np.array([0.2, 0.3, 0.5]), np.array([1.0, 2.0, 0.0]), [4.0, 2.0, 0.0]
    straight = one_update(CONTRACT[name], weights.tolist(), stats(loss.tolist(), count))
    permuted = one_update(
        CONTRACT[name],
        weights[order].tolist(),
        stats(loss[order].tolist(), np.array(count)[order].tolist()),
    )
    np.testing.assert_allclose(np.asarray(straight)[order], permuted, rtol=1e-6)


def test_exponentiated_gradient_is_its_formula():
    weights, loss, rate = np.array([0.1, 0.2, 0.3, 0.4]), np.array([10.0, 0.0, 5.0, 0.0]), 0.1
    expected = weights * np.exp(rate * loss) / np.sum(weights * np.exp(rate * loss))
    np.testing.assert_allclose(expected, [0.198931, 0.14636526, 0.36197326, 0.2927305], rtol=1e-6)
    actual = one_update(exponentiated_gradient(rate), weights.tolist(), stats(loss.tolist()))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_absent_zero_lowers_and_hold_keeps_the_weight_of_an_absent_domain():
    weights, loss, count = [0.2, 0.3, 0.5], [1.0, 2.0, 0.0], [5.0, 5.0, 0.0]
    raised = np.array(weights) * np.exp(np.array(loss))
    zero = one_update(exponentiated_gradient(1.0), weights, stats(loss, count))
    np.testing.assert_allclose(zero, raised / raised.sum(), rtol=1e-6)
    assert zero[2] < 0.5
    hold = one_update(exponentiated_gradient(1.0, "hold"), weights, stats(loss, count))
    np.testing.assert_allclose(hold[2], 0.5, rtol=1e-6)
    np.testing.assert_allclose(hold[:2], 0.5 * raised[:2] / raised[:2].sum(), rtol=1e-6)


def test_a_weight_that_underflows_comes_back():
    rule = exponentiated_gradient(1.0)
    state = rule.init(jnp.array([0.5, 0.5]))
    weights, state = rule.update(state, stats([200.0, 0.0]))
    assert weights[1] == 0.0  # e^-200 is no float32, but its logarithm is
    weights, state = rule.update(state, stats([0.0, 201.0]))
    np.testing.assert_allclose(weights, np.array([1, np.e]) / (1 + np.e), rtol=1e-4)


def test_equal_huge_losses_change_nothing():
    actual = one_update(exponentiated_gradient(1.0), [0.3, 0.7], stats([1e30, 1e30]))
    np.testing.assert_allclose(actual, [0.3, 0.7], rtol=1e-6)


def test_a_domain_of_weight_zero_stays_there():
    for absent in ("zero", "hold"):
        rule = exponentiated_gradient(0.1, absent)
        actual = one_update(rule, [0.0, 1.0], stats([5.0, 0.0], [3.0, 0.0]))
        np.testing.assert_array_equal(actual, [0.0, 1.0])


def test_proportional_weights_follow_the_counts():
    observed = DomainStats(jnp.zeros(2), jnp.array([3.0, 0.0]), jnp.array([3.0, 1.0]))
    np.testing.assert_allclose(one_update(proportional(), [0.5, 0.5], observed), [0.75, 0.25])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, 0.6], "domain weights sum to 1.1; they must sum to 1"),
        ([-0.5, 1.5], "domain weight 0 is -0.5; weights must be numbers ≥ 0"),
        ([float("nan"), 1.0], "domain weight 0 is nan"),
        ([1.0], "1 domain weights were given for 2 domains"),
    ],
)
def test_bad_weights_are_refused(weights: list[float], message: str):
    with pytest.raises(BadInput, match=message.replace("(", r"\(")):
        check_domain_weights(weights, 2)


def test_bad_rates_are_refused():
    with pytest.raises(BadInput, match=r"γ_λ\) is -0.1; it must be a number ≥ 0"):
        exponentiated_gradient(-0.1)
    with pytest.raises(BadInput, match=r"rule for absent domains 'holt'; did you mean 'hold'"):
        exponentiated_gradient(0.1, "holt")  # type: ignore[arg-type]
