# SPDX-License-Identifier: Apache-2.0
"""Each weight rule and each part of a chain by its own formula, with numbers to redo by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.errors import BadInput
from agnosticfl.weights import (
    LossTransform,
    WeightTransform,
    aaggff,
    adjusted,
    averaged,
    averaged_loss,
    capped,
    chain,
    chi_squared,
    cvar,
    decaying,
    excess,
    exponentiated_gradient,
    fixed,
    from_table,
    minimum_weight,
    mixed,
    normalised,
    optimistic,
    projected_gradient,
    prop_fair,
    q_fair,
    semi_variance,
    tilted,
)
from agnosticfl.weights.simplex import project
from tests.weights.observed import stats


def weights_after(rule: WeightRule, start: list[float], *rounds: DomainStats) -> np.ndarray:
    state, weights, update = rule.init(jnp.array(start)), jnp.array(start), jax.jit(rule.update)
    for observed in rounds:
        weights, state = update(state, observed)
    return np.asarray(weights)


def losses_after(transform: LossTransform, *rounds: DomainStats) -> np.ndarray:
    state, last = transform.init(jnp.zeros(rounds[0].mean_loss.size)), rounds[0]
    update = jax.jit(transform.update)
    for observed in rounds:
        last, state = update(state, observed)
    return np.asarray(last.mean_loss)


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


def test_tilted_by_hand():
    # p exp(L / τ) = (0.25 · 3, 0.75 · 1)
    rule = tilted(0.5)
    observed = stats([0.5 * float(np.log(3)), 0.0])
    np.testing.assert_allclose(weights_after(rule, [0.25, 0.75], observed), [0.5, 0.5], rtol=1e-6)


def test_q_fair_by_hand():
    np.testing.assert_allclose(
        weights_after(q_fair(2), [0.5, 0.5], stats([1.0, 2.0])), [1 / 5, 4 / 5], rtol=1e-6
    )
    np.testing.assert_allclose(weights_after(q_fair(0), [0.3, 0.7], stats([1.0, 2.0])), [0.3, 0.7])


def test_chi_squared_by_hand():
    def answer(temperature: float) -> np.ndarray:
        return weights_after(chi_squared(temperature), [0.5, 0.5], stats([1.0, 0.0]))

    # η = 1/2 by symmetry: λ = (1 ± 1 / (2τ)) / 2, until one of them is 0.
    np.testing.assert_allclose(answer(2.0), [0.625, 0.375], rtol=1e-6)
    np.testing.assert_allclose(answer(0.5), [1, 0], atol=1e-6)
    np.testing.assert_allclose(answer(0.1), [1, 0], atol=1e-6)


def test_cvar_by_hand():
    # λ_i ≤ p_i / θ = (0.4, 0.6, 1): the worst domain takes 0.4, the next one what is left.
    actual = weights_after(cvar(0.5), [0.2, 0.3, 0.5], stats([3.0, 1.0, 2.0]))
    np.testing.assert_allclose(actual, [0.4, 0, 0.6], rtol=1e-6)
    everybody = weights_after(cvar(1.0), [0.2, 0.3, 0.5], stats([3.0, 1.0, 2.0]))
    np.testing.assert_allclose(everybody, [0.2, 0.3, 0.5], rtol=1e-6)
    alone = weights_after(cvar(0.2), [0.2, 0.3, 0.5], stats([3.0, 1.0, 2.0]))
    np.testing.assert_allclose(alone, [1, 0, 0], rtol=1e-6)


def test_prop_fair_by_hand():
    # p / (M − L) = (0.5 / 1, 0.5 / 3): λ = (3, 1) / 4.
    observed = stats([3.0, 1.0])
    np.testing.assert_allclose(
        weights_after(prop_fair(4.0), [0.5, 0.5], observed), [0.75, 0.25], rtol=1e-6
    )
    # A loss beyond M − ε = 3.5 counts 1 / ε = 2 and no more: (2, 1/3) / (7/3).
    beyond = stats([9.0, 1.0])
    np.testing.assert_allclose(
        weights_after(prop_fair(4.0, margin=0.5), [0.5, 0.5], beyond), [6 / 7, 1 / 7], rtol=1e-6
    )
    # A baseline far above all losses is the average that p stands for.
    np.testing.assert_allclose(
        weights_after(prop_fair(1e6), [0.3, 0.7], observed), [0.3, 0.7], rtol=1e-4
    )


def test_semi_variance_by_hand():
    # L̄ = 2, above it (2, 0, 0), S = 0.25 · 2 = 0.5; β = 0.1: p (1 + 0.2 (2 − 0.5, −0.5, −0.5)).
    start, observed = [0.25, 0.25, 0.5], stats([4.0, 2.0, 1.0])
    np.testing.assert_allclose(
        weights_after(semi_variance(0.1), start, observed),
        [0.25 * 1.3, 0.25 * 0.9, 0.5 * 0.9],
        rtol=1e-6,
    )
    np.testing.assert_allclose(weights_after(semi_variance(0.0), start, observed), start)
    # β = 2: p (1 + 4 (1.5, −0.5, −0.5)) has a negative part, and the worst domain is left.
    np.testing.assert_allclose(weights_after(semi_variance(2.0), start, observed), [1, 0, 0])


@pytest.mark.parametrize("name", ["prop_fair", "semi_variance"])
def test_a_fair_objective_s_gradient_has_these_weights(name: str):
    """∂Φ/∂L_i by automatic differentiation, where no bound is met."""
    p, loss = jnp.array([0.2, 0.3, 0.5]), jnp.array([1.5, 0.4, 0.9])

    def proportional_fairness(losses: Any) -> Any:
        return -jnp.sum(p * jnp.log(3.0 - losses))

    def mean_and_semi_variance(losses: Any) -> Any:
        mean = jnp.sum(p * losses)
        return mean + 0.3 * jnp.sum(p * jnp.maximum(losses - mean, 0) ** 2)

    rule, objective = {
        "prop_fair": (prop_fair(3.0), proportional_fairness),
        "semi_variance": (semi_variance(0.3), mean_and_semi_variance),
    }[name]
    gradient = np.asarray(jax.grad(objective)(loss))
    actual = weights_after(rule, p.tolist(), stats(loss.tolist()))
    np.testing.assert_allclose(actual, gradient / gradient.sum(), rtol=1e-5)


def test_aaggff_by_hand():
    # L / mean L = (1.5, 0.5): r = (1 − e^−2.25, 1 − e^−0.25) = (0.894601, 0.221199),
    # r̄ = 0.557900, r / (1 + r̄) = (0.574235, 0.141986). √(log 2 / 2) / 3 = 0.196235, so the
    # exponents differ by 0.196235 · 0.432250 = 0.084822.
    one = stats([3.0, 1.0])
    first = weights_after(aaggff(), [0.5, 0.5], one)
    np.testing.assert_allclose(np.log(first[0] / first[1]), 0.084822, rtol=1e-4)
    # The same again: twice the sum, √(log 2 / 3) / 3 = 0.160225.
    second = weights_after(aaggff(), [0.5, 0.5], one, one)
    np.testing.assert_allclose(np.log(second[0] / second[1]), 0.160225 * 2 * 0.432250, rtol=1e-4)
    # Losses in another unit are the same losses.
    np.testing.assert_allclose(weights_after(aaggff(), [0.5, 0.5], stats([30.0, 10.0])), first)


def test_aaggff_gives_an_absent_domain_the_mean_response():
    one, gone = stats([3.0, 1.0]), stats([3.0, 0.0], [5, 0])
    # Alone, L / mean L = 1: r = r̄ for both, and the difference stays 0.432250.
    after = weights_after(aaggff(), [0.5, 0.5], one, gone)
    np.testing.assert_allclose(np.log(after[0] / after[1]), 0.160225 * 0.432250, rtol=1e-4)
    # Back again, the second was there in 2 of 3 rounds: r̆ = r̄ + 1.5 (r − r̄), so the difference
    # grows by (0.336701 + 1.5 · 0.336701) / 1.557900 = 0.540312. √(log 2 / 4) / 3 = 0.138759.
    after = weights_after(aaggff(), [0.5, 0.5], one, gone, one)
    expected = 0.138759 * (0.432250 + 0.540312)
    np.testing.assert_allclose(np.log(after[0] / after[1]), expected, rtol=1e-4)


def test_excess_by_hand():
    observed = stats([1.0, 0.5, 0.0], [5, 5, 0])
    np.testing.assert_allclose(
        losses_after(excess([0.75, 0.1, 0.2]), observed), [0.25, 0.4, 0], rtol=1e-6
    )


# rule, the penalty that it pays for a λ away from p, and the bounds of λ
PENALTIES: dict[str, tuple[WeightRule, Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "tilted": (
        tilted(0.7),
        lambda x, p: 0.7 * np.sum(x * np.log(np.maximum(x, 1e-12) / p)),
        np.ones_like,
    ),
    "chi_squared": (
        chi_squared(0.7), lambda x, p: 0.35 * np.sum((x - p) ** 2 / p), np.ones_like,
    ),
    "cvar": (cvar(0.6), lambda *_: 0.0, lambda p: p / 0.6),
}  # fmt: skip


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_response_is_the_best_one(name: str, seed: int):
    """SciPy finds the same largest Σ λ_i L_i − R(λ, p) on the simplex."""
    rule, penalty, highest = PENALTIES[name]
    rng = np.random.default_rng(seed)
    p, loss = rng.dirichlet(np.ones(4)), rng.uniform(0, 3, size=4)
    best = minimize(
        lambda x: penalty(x, p) - x @ loss,
        p,
        bounds=[(0, float(u)) for u in highest(p)],
        constraints={"type": "eq", "fun": lambda x: np.sum(x) - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    actual = weights_after(rule, p.tolist(), stats(loss.tolist()))
    np.testing.assert_allclose(actual, best.x, atol=1e-4)


def test_the_prior_of_a_response_may_be_the_counts():
    observed = stats([1.0, 2.0], [30, 10])
    np.testing.assert_allclose(
        weights_after(q_fair(1, "counts"), [0.5, 0.5], observed), [3 / 5, 2 / 5], rtol=1e-6
    )


def test_a_response_remembers_the_loss_of_an_absent_domain():
    seen, absent = stats([1.0, 3.0], [5, 5]), stats([2.0, 0.0], [5, 0])
    np.testing.assert_allclose(
        weights_after(q_fair(1), [0.5, 0.5], seen, absent), [2 / 5, 3 / 5], rtol=1e-6
    )
    # Never seen: as bad as the others are on average.
    np.testing.assert_allclose(weights_after(q_fair(1), [0.5, 0.5], absent), [0.5, 0.5])


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


def test_a_task_names_a_chain():
    table = {
        "name": "exponentiated_gradient",
        "learning_rate": 0.5,
        "before": ["normalised", {"name": "averaged_loss", "decay": 0.5}],
        "after": [{"name": "minimum_weight", "lowest": 0.1}],
    }
    same = chain(normalised(), averaged_loss(0.5), exponentiated_gradient(0.5), minimum_weight(0.1))
    rounds = [stats([9.0, 1.0]), stats([2.0, 3.0])]
    np.testing.assert_array_equal(
        weights_after(from_table(table), [0.5, 0.5], *rounds),
        weights_after(same, [0.5, 0.5], *rounds),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: projected_gradient(-1), r"γ_λ\) is -1; it must be a number ≥ 0"),
        (lambda: projected_gradient(1, "no"), "rule for absent domains 'no'"),  # type: ignore[arg-type]
        (lambda: tilted(0), r"temperature \(τ\) is 0; it must be a number above 0"),
        (lambda: tilted(1, "uniform"), "unknown prior 'uniform'"),  # type: ignore[arg-type]
        (lambda: q_fair(-0.5), "q is -0.5; it must be a number ≥ 0"),
        (lambda: chi_squared(float("nan")), r"temperature \(τ\) is nan"),
        (lambda: cvar(0), r"level \(θ\) is 0; it must be above 0 and at most 1"),
        (lambda: cvar(1.5), r"level \(θ\) is 1.5; .* cannot sum to 1"),
        (lambda: prop_fair(0), r"baseline \(M\) is 0; it must be a number above 0"),
        (lambda: prop_fair(1, margin=-1), r"margin \(ε\) is -1"),
        (lambda: semi_variance(-1), r"strength \(β\) is -1; it must be a number ≥ 0"),
        (lambda: excess([float("nan")]), r"reference losses are \[nan\]; they must be numbers"),
        (
            lambda: chain(excess([1.0]), fixed()).init(jnp.ones(2)),
            "1 reference losses were given for 2 domains",
        ),
        (lambda: averaged_loss(1.0), "decay is 1.0; it must be at least 0 and below 1"),
        (lambda: adjusted(-1), r"constant \(C\) is -1"),
        (lambda: mixed(0), r"share of the prior \(ε\) is 0"),
        (lambda: minimum_weight(0), "minimum weight is 0; it must be above 0"),
        (
            lambda: minimum_weight(0.3).init(jnp.ones(4)),
            "minimum weight is 0.3 for 4 domains; it must be at most 0.25, or they cannot sum",
        ),
        (lambda: capped(0), "highest weight is 0; it must be above 0 and at most 1"),
        (
            lambda: capped(0.2).init(jnp.ones(4)),
            "highest weight is 0.2 for 4 domains; it must be at least 0.25, or they cannot sum",
        ),
        (lambda: chain(normalised()), "a chain of LossTransform; it must be transforms of losses"),
        (lambda: chain(mixed(0.1), tilted(1)), "a chain of WeightTransform, WeightRule"),
        (lambda: from_table({"name": "tilted", "temperature": 1, "after": "mixed"}), "be a list"),
        (lambda: from_table({"name": "fixed", "before": [3]}), "weight_rule.before has 3"),
        (
            lambda: from_table({"name": "fixed", "after": ["normalised"]}),
            "unknown weight_rule.after 'normalised'",
        ),
        (
            lambda: from_table({"name": "tilted", "temperature": "hot"}),
            "temperature of weight_rule 'tilted' is 'hot'; it must be a number",
        ),
        (
            lambda: from_table({"name": "fixed", "after": ["mixed"]}),
            "weight_rule.after 'mixed' needs the option 'share'",
        ),
    ],
)
def test_bad_parameters_are_refused(make: Callable[[], Any], message: str):
    with pytest.raises(BadInput, match=message):
        make()
