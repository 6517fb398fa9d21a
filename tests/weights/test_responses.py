# SPDX-License-Identifier: Apache-2.0
"""Rules whose λ answers to the losses of a round, with numbers to redo by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.weights import (
    aaggff,
    chi_squared,
    cvar,
    prop_fair,
    q_fair,
    semi_variance,
    tilted,
)
from tests.weights.observed import stats, weights_after


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
