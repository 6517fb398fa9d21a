# SPDX-License-Identifier: Apache-2.0
"""What is done to losses before a rule and to λ after it, with numbers to redo by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.weights import (
    WeightTransform,
    adjusted,
    averaged,
    averaged_loss,
    capped,
    chain,
    decaying,
    excess,
    exponentiated_gradient,
    fixed,
    minimum_weight,
    mixed,
    normalised,
    optimistic,
    projected_gradient,
    tilted,
)
from tests.weights.observed import losses_after, stats, weights_after


def test_excess_by_hand():
    observed = stats([1.0, 0.5, 0.0], [5, 5, 0])
    np.testing.assert_allclose(
        losses_after(excess([0.75, 0.1, 0.2]), observed), [0.25, 0.4, 0], rtol=1e-6
    )


@given(st.floats(1e-6, 1e6), st.sampled_from(["exponentiated", "projected", "tilted"]))
def test_normalised_losses_have_no_unit(unit: float, name: str):
    rule = {
        "exponentiated": exponentiated_gradient(0.3),
        "projected": projected_gradient(0.3),
        "tilted": tilted(0.3),
    }[name]
    loss = np.array([1.0, 4.0, 2.0])
    one, other = (
        weights_after(chain(normalised(), rule), [0.2, 0.3, 0.5], stats((u * loss).tolist()))
        for u in (1.0, unit)
    )
    np.testing.assert_allclose(one, other, rtol=1e-4)


def test_normalised_by_hand():
    np.testing.assert_allclose(
        losses_after(normalised(), stats([1, 3, 0], [5, 5, 0])), [0.5, 1.5, 0]
    )


def test_decaying_by_hand():
    np.testing.assert_allclose(losses_after(decaying(), stats([6.0])), [6])
    np.testing.assert_allclose(losses_after(decaying(), *[stats([6.0])] * 4), [3])


def test_optimistic_by_hand():
    first, absent, second = stats([1.0], [5]), stats([0.0], [0]), stats([4.0], [5])
    np.testing.assert_allclose(losses_after(optimistic(), first), [1])
    np.testing.assert_allclose(losses_after(optimistic(), first, second), [2 * 4 - 1])
    np.testing.assert_allclose(losses_after(optimistic(), first, absent), [0])
    np.testing.assert_allclose(losses_after(optimistic(), first, absent, second), [2 * 4 - 1])


def test_averaged_loss_by_hand():
    first, absent, second = stats([1.0], [5]), stats([0.0], [0]), stats([3.0], [5])
    transform = averaged_loss(0.75)
    np.testing.assert_allclose(losses_after(transform, first), [1])
    np.testing.assert_allclose(losses_after(transform, first, absent), [1])
    np.testing.assert_allclose(losses_after(transform, first, absent, second), [0.75 + 0.25 * 3])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # Remembered in round 2, so it missed no round: the steps are 0.1 (1 + 1, 3 + 3).
        (chain(averaged_loss(0.0), projected_gradient(0.1, "presence")), [0.3, 0.7]),
        # (1 − 0.5, 3 − 2.5) in both rounds: λ stays.
        (chain(averaged_loss(0.0), excess([0.5, 2.5]), projected_gradient(0.1)), [0.5, 0.5]),
        # (1 + 1/√4, 3 + 1/√4), then n_1 = 1: (1 + 1/√4, 3 + 1/√1). Apart by 2 and 2.5.
        (chain(averaged_loss(0.0), adjusted(1.0), projected_gradient(0.1)), [0.275, 0.725]),
        # Divided by (1 + 3) / 2 in both rounds: apart by 1 and 1.
        (chain(averaged_loss(0.0), normalised(), projected_gradient(0.1)), [0.4, 0.6]),
    ],
    ids=["presence", "excess", "adjusted", "normalised"],
)
def test_a_loss_that_is_remembered_is_treated_as_one_that_was_measured(
    rule: WeightRule, expected: list[float]
):
    both, first = stats([1.0, 3.0], [4, 4]), stats([1.0, 0.0], [4, 0])
    np.testing.assert_allclose(weights_after(rule, [0.5, 0.5], both, first), expected, rtol=1e-5)


def test_adjusted_by_hand():
    observed = stats([1.0, 1.0, 0.0], [4, 16, 0])
    np.testing.assert_allclose(losses_after(adjusted(2.0), observed), [1 + 2 / 2, 1 + 2 / 4, 0])


def test_minimum_weight_by_hand():
    rule = chain(projected_gradient(1.0), minimum_weight(0.1))
    np.testing.assert_allclose(
        weights_after(rule, [0.4, 0.4, 0.2], stats([5.0, 0.0, 0.0])), [0.8, 0.1, 0.1], rtol=1e-6
    )


def test_capped_by_hand():
    rule = chain(projected_gradient(1.0), capped(0.5))
    # (1, 0, 0) has 0.5 too much in its first weight; the nearest point gives it to both others.
    np.testing.assert_allclose(
        weights_after(rule, [0.4, 0.4, 0.2], stats([5.0, 0.0, 0.0])), [0.5, 0.25, 0.25], rtol=1e-6
    )
    # Two at the cap leave the rest to the others: 0.45 and 0.45, and what is missing to 0.1.
    rule = chain(fixed(), capped(0.45))
    np.testing.assert_allclose(
        weights_after(rule, [0.5, 0.45, 0.05], stats([0.0, 0.0, 0.0])), [0.45, 0.45, 0.1], rtol=1e-5
    )
    within = chain(fixed(), capped(0.6))
    np.testing.assert_allclose(
        weights_after(within, [0.6, 0.3, 0.1], stats([0.0, 0.0, 0.0])), [0.6, 0.3, 0.1], rtol=1e-5
    )


@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=8).filter(lambda w: sum(w) > 1e-3))
def test_no_weight_passes_its_cap(weights: list[float]):
    start = (np.array(weights) / sum(weights)).tolist()
    after = weights_after(chain(fixed(), capped(0.4)), start, stats([0.0] * len(start)))
    assert np.max(after) <= 0.4 + 1e-6
    assert np.min(after) >= 0
    np.testing.assert_allclose(np.sum(after), 1, rtol=1e-5)


def test_the_rule_goes_on_from_the_weight_that_it_was_given():
    """A domain held at its minimum for long comes back as fast as after one round."""
    easy, hard = stats([3.0, 0.0]), stats([0.0, 3.0])
    rule = chain(exponentiated_gradient(1.0), minimum_weight(0.1))
    after_one = weights_after(rule, [0.5, 0.5], easy, hard)
    after_many = weights_after(rule, [0.5, 0.5], *[easy] * 50, hard)
    np.testing.assert_allclose(after_one, after_many, rtol=1e-5)
    raised = np.array([0.9, 0.1 * np.e**3])
    np.testing.assert_allclose(after_one, raised / raised.sum(), rtol=1e-5)


def test_mixed_by_hand():
    rule = chain(projected_gradient(1.0), mixed(0.25))
    np.testing.assert_allclose(
        weights_after(rule, [0.2, 0.8], stats([5.0, 0.0])), [0.75 + 0.25 * 0.2, 0.25 * 0.8]
    )


def test_averaged_by_hand():
    easy, hard = stats([5.0, 0.0]), stats([0.0, 0.5])
    rule = chain(projected_gradient(1.0), averaged())
    # The rule itself goes from (1, 0) to (0.75, 0.25); λ_0 is no iterate.
    np.testing.assert_allclose(weights_after(rule, [0.5, 0.5], easy), [1, 0])
    np.testing.assert_allclose(
        weights_after(rule, [0.5, 0.5], easy, hard), [(1 + 0.75) / 2, 0.25 / 2]
    )


def test_a_weight_too_small_for_a_float_survives_a_transform():
    unchanged = WeightTransform(lambda _: (), lambda state, weights: (weights, state))
    rule = chain(exponentiated_gradient(1.0), unchanged)
    actual = weights_after(rule, [0.5, 0.5], stats([200.0, 0.0]), stats([0.0, 201.0]))
    np.testing.assert_allclose(actual, np.array([1, np.e]) / (1 + np.e), rtol=1e-4)
