# SPDX-License-Identifier: Apache-2.0
"""Weight rules on a convex problem whose answers SciPy knows.

Three domains in the plane with L_i(w) = a_i ‖w − c_i‖² + b_i. The learner takes gradient steps on
Σ_i λ_i L_i(w), and the rule moves λ.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy.optimize import minimize

from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.weights import (
    averaged,
    averaged_loss,
    chain,
    chi_squared,
    cvar,
    decaying,
    excess,
    exponentiated_gradient,
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

CENTRES = np.array([[0.0, 0.0], [2.0, 0.0], [0.5, 1.5]])
SCALES = np.array([1.0, 0.5, 0.8])
FLOORS = np.array([0.1, 0.3, 0.2])
PRIOR = np.array([0.6, 0.1, 0.3])


def losses(w: Any) -> Any:
    return SCALES * ((w - CENTRES) ** 2).sum(1) + FLOORS


def play(rule: WeightRule, rounds: int = 4000, rate: float = 0.02) -> np.ndarray:
    """The losses that the learner ends with, as a mean over the last tenth of the rounds."""
    centres, scales, floors = (jnp.float32(x) for x in (CENTRES, SCALES, FLOORS))

    def loss(w: Array) -> Array:
        return scales * jnp.sum(jnp.square(w[None] - centres), axis=1) + floors

    def one_round(carry: Any, _: None) -> tuple[Any, Array]:
        w, weights, state = carry
        seen = DomainStats(loss(w), jnp.ones(3), jnp.ones(3))
        w = w - rate * jax.grad(lambda w: jnp.sum(weights * loss(w)))(w)
        weights, state = rule.update(state, seen)
        return (w, weights, state), w

    start = jnp.float32(PRIOR)
    first = (jnp.array([3.0, 3.0]), start, rule.init(start))
    _, path = jax.jit(lambda first: jax.lax.scan(one_round, first, None, rounds))(first)
    return losses(np.asarray(path)[-rounds // 10 :].mean(axis=0))


def solve(objective: Callable[[Any, Any], Any]) -> np.ndarray:
    """The losses at the smallest value of a smooth function of them and of one number more."""
    best = minimize(lambda v: objective(losses(v[:2]), v[2]), [0.5, 0.5, 0.5], tol=1e-10)
    return losses(best.x[:2])


def minimax() -> np.ndarray:
    """The losses where the largest is smallest: min s with L_i(w) ≤ s."""
    fits = {"type": "ineq", "fun": lambda v: v[2] - losses(v[:2])}
    best = minimize(lambda v: v[2], [0.5, 0.5, 5.0], constraints=fits, options={"ftol": 1e-12})
    return losses(best.x[:2])


MINIMAX = {
    "exponentiated_gradient": exponentiated_gradient(0.05),
    "projected_gradient": projected_gradient(0.02),
    "average iterate": chain(projected_gradient(0.02), averaged()),
    "normalised": chain(normalised(), exponentiated_gradient(0.05)),
    "decaying": chain(decaying(), exponentiated_gradient(1.0)),
    "optimistic": chain(optimistic(), exponentiated_gradient(0.05)),
    "averaged_loss": chain(averaged_loss(0.5), projected_gradient(0.02)),
    "minimum_weight": chain(exponentiated_gradient(0.05), minimum_weight(0.02)),
    "mixed, hardly": chain(exponentiated_gradient(0.05), mixed(1e-5)),
    "tilted": tilted(0.005),
    "q_fair": q_fair(200.0),
    "chi_squared": chi_squared(0.004),
    "cvar": cvar(0.1),
}


@pytest.mark.parametrize("name", MINIMAX)
def test_minimax_rules_reach_the_minimax(name: str):
    """Responses at the end of their curves; they turn sharply, and so want small steps."""
    rate = 0.001 if name in ("tilted", "q_fair", "chi_squared", "cvar") else 0.02
    rounds = 40_000 if name == "average iterate" else 10_000
    actual = play(MINIMAX[name], rounds, rate)
    np.testing.assert_allclose(actual.max(), minimax().max(), rtol=0.01)


def test_excess_risk_reaches_the_minimax_regret():
    """Where the largest L_i − b_i is smallest; that is elsewhere than where the largest L_i is."""
    actual = play(chain(excess(FLOORS.tolist()), exponentiated_gradient(0.05)), 10_000) - FLOORS
    fits = {"type": "ineq", "fun": lambda v: v[2] - (losses(v[:2]) - FLOORS)}
    best = minimize(lambda v: v[2], [0.5, 0.5, 5.0], constraints=fits, options={"ftol": 1e-12})
    np.testing.assert_allclose(actual.max(), best.x[2], rtol=0.01)
    assert (minimax() - FLOORS).max() > 1.05 * best.x[2]


def test_the_minimax_is_where_all_three_meet():
    """So the tests above cannot be passed by serving one domain, or their average."""
    answer = minimax()
    np.testing.assert_allclose(answer, answer[0], rtol=1e-4)
    assert solve(lambda loss, _: PRIOR @ loss).max() > 1.3 * answer.max()


# A rule of a parameter, what it minimises (over η too, the dual of Σ λ_i = 1, for χ²), and
# parameters from the average to the worst domain.
CURVES: dict[str, tuple[Callable[[float], WeightRule], Any, list[float]]] = {
    "tilted": (
        tilted,
        lambda loss, _, tau: tau * np.log(PRIOR @ np.exp(loss / tau)),
        [10.0, 1.0, 0.3, 0.1],
    ),
    "q_fair": (q_fair, lambda loss, _, q: PRIOR @ loss ** (q + 1), [0.0, 1.0, 4.0, 10.0]),
    "prop_fair": (
        prop_fair,
        lambda loss, _, m: -PRIOR @ np.log(m - loss),
        [1000.0, 6.0, 3.0, 2.5],
    ),
    "semi_variance": (
        semi_variance,
        lambda loss, _, beta: PRIOR @ loss + beta * PRIOR @ np.maximum(loss - PRIOR @ loss, 0) ** 2,
        [0.0, 0.1, 0.3, 0.6],
    ),
    "chi_squared": (
        chi_squared,
        lambda loss, eta, tau: (
            eta + tau / 2 * PRIOR @ (np.maximum(1 + (loss - eta) / tau, 0) ** 2 - 1)
        ),
        [20.0, 2.0, 1.0, 0.3],
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_responses_minimise_their_objectives_on_a_monotone_curve(name: str):
    """From utility to fairness: the average loss rises, the worst one falls."""
    make, objective, values = CURVES[name]
    found = np.array([play(make(value), rate=0.01) for value in values])
    wanted = np.array([solve(lambda *x, v=value: objective(*x, v)) for value in values])
    np.testing.assert_allclose(found, wanted, atol=5e-3)
    assert np.all(np.diff(found.max(axis=1)) < 1e-3)
    assert np.all(np.diff(found @ PRIOR) > -1e-3)


def test_cvar_is_a_monotone_curve():
    """min over w and s of s + E_p (L − s)_+ / θ (Rockafellar and Uryasev 2000)."""
    levels = [1.0, 0.8, 0.6, 0.3]
    found = np.array([play(cvar(level), rounds=20_000, rate=0.002) for level in levels])
    for level, loss in zip(levels, found, strict=True):
        actual = _cvar(loss, level)
        best = minimize(
            lambda w, level=level: _cvar(losses(w), level), [0.5, 0.5], method="Nelder-Mead"
        )
        np.testing.assert_allclose(actual, best.fun, rtol=3e-3)
    assert np.all(np.diff(found.max(axis=1)) < 2e-3)
    assert np.all(np.diff(found @ PRIOR) > -2e-3)


def _cvar(loss: np.ndarray, level: float) -> float:
    return min(s + PRIOR @ np.maximum(loss - s, 0) / level for s in loss)
