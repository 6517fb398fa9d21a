# SPDX-License-Identifier: Apache-2.0
"""Rules whose λ moves a step per round, with numbers to redo by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.weights import (
    exponentiated_gradient,
    from_table,
    projected_gradient,
)
from agnosticfl.weights.simplex import project
from tests.weights.observed import stats, weights_after


@given(
    st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4),
    st.floats(0.125, 3, width=32),
    st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
)
def test_a_projection_is_the_nearest_point(values: list[float], mass: float, where: list[bool]):
    """The conditions of optimality: v_i − x_i is one θ where x_i > 0, and at most θ elsewhere."""
    v, chosen = np.array(values, np.float32), np.array(where)
    x = np.asarray(project(jnp.array(v), jnp.float32(mass), jnp.array(chosen)))
    assert np.all(x >= 0)
    assert np.all(x[~chosen] == 0)
    np.testing.assert_allclose(x.sum(), mass, rtol=1e-5)
    threshold = (v - x)[x > 0]
    np.testing.assert_allclose(threshold, threshold[0], atol=1e-5)
    assert np.all(v[chosen] - x[chosen] <= threshold[0] + 1e-5)


def test_projected_gradient_by_hand():
    rule = projected_gradient(0.2)
    # λ + γ L = (0.7, 0.5), and θ = 0.1 brings the sum back to 1.
    np.testing.assert_allclose(weights_after(rule, [0.5, 0.5], stats([1, 0])), [0.6, 0.4])
    # A weight is 0 after finitely many rounds, and comes back at once.
    gone, back = stats([10.0, 0.0]), stats([0.0, 1.0])
    np.testing.assert_allclose(weights_after(rule, [0.5, 0.5], gone), [1, 0])
    np.testing.assert_allclose(weights_after(rule, [0.5, 0.5], gone, back), [0.9, 0.1], rtol=1e-6)


def test_projected_gradient_can_hold_an_absent_domain():
    observed = stats([1.0, 0.0, 0.0], [5, 5, 0])
    held = weights_after(projected_gradient(0.2, "hold"), [0.3, 0.2, 0.5], observed)
    np.testing.assert_allclose(held, [0.4, 0.1, 0.5], rtol=1e-6)  # θ = 0.1 for the two that move
    moved = weights_after(projected_gradient(0.2), [0.3, 0.2, 0.5], observed)
    np.testing.assert_allclose(moved, [0.3 + 2 / 15, 0.2 - 1 / 15, 0.5 - 1 / 15], rtol=1e-6)


def test_presence_makes_up_for_the_rounds_that_a_domain_missed():
    both, first = stats([1.0, 2.0], [5, 5]), stats([1.0, 0.0], [5, 0])
    rule = projected_gradient(0.1, "presence")
    # Round 1 has both, so nothing is scaled: (0.6, 0.7), and θ = 0.15 brings the sum back to 1.
    np.testing.assert_allclose(weights_after(rule, [0.5, 0.5], both), [0.45, 0.55], rtol=1e-6)
    # Round 2 lacks domain 1: (0.55, 0.55), θ = 0.05. Round 3 has it, 2 of 3 times: its loss counts
    # 2 · 3/2, so (0.6, 0.8), θ = 0.2.
    np.testing.assert_allclose(weights_after(rule, [0.5, 0.5], both, first), [0.5] * 2, rtol=1e-6)
    np.testing.assert_allclose(
        weights_after(rule, [0.5, 0.5], both, first, both), [0.4, 0.6], rtol=1e-6
    )
    # The same for exp: log λ moves by 0.1 (1 + 1 + 1, 2 + 0 + 3).
    raised = np.exp([0.3, 0.5])
    np.testing.assert_allclose(
        weights_after(exponentiated_gradient(0.1, "presence"), [0.5] * 2, both, first, both),
        raised / raised.sum(),
        rtol=1e-6,
    )


@pytest.mark.parametrize("make", [exponentiated_gradient, projected_gradient])
def test_a_worse_domain_that_half_of_the_rounds_have_wins_by_presence_only(make: Any):
    """Losses 1 and 1.25, the second in every other round: as a 0 in between it is 0.625."""
    rounds = [stats([1.0, 1.25], [5, 5]), stats([1.0, 0.0], [5, 0])] * 40
    assert weights_after(make(0.1), [0.5, 0.5], *rounds)[1] < 0.2
    assert weights_after(make(0.1, "presence"), [0.5, 0.5], *rounds)[1] > 0.7


@pytest.mark.nan_input
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_largest_loss_and_a_presence_make_no_nan(rate: float):
    rounds = [stats([1.0, 0.0], [5, 0]), stats([1.0, 3e38], [5, 5])]
    after = weights_after(projected_gradient(rate, "presence"), [0.5, 0.5], *rounds)
    assert np.all(np.isfinite(after))


def test_which_rules_let_an_absent_domain_sink():
    def sinks(name: str, **options: Any) -> bool:
        return from_table({"name": name, **options}).sinks_absent

    for name in ("exponentiated_gradient", "projected_gradient"):
        assert sinks(name, learning_rate=0.1)
        assert sinks(name, learning_rate=0.1, before=["normalised"], after=["averaged"])
        assert not sinks(name, learning_rate=0.1, before=["averaged_loss"])  # it has its last loss
        for absent in ("presence", "hold"):
            assert not sinks(name, learning_rate=0.1, absent=absent)
    assert not sinks("tilted", temperature=1.0)  # responses remember the loss
    assert not sinks("proportional")
