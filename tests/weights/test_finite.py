# SPDX-License-Identifier: Apache-2.0
"""Finite losses give a finite λ, whatever the rule and its options."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.registry import WEIGHT_RULES
from agnosticfl.weights import (
    adjusted,
    averaged_loss,
    chain,
    cvar,
    excess,
    exponentiated_gradient,
    from_table,
    normalised,
    prop_fair,
    q_fair,
    semi_variance,
    tilted,
)
from tests.weights.observed import stats

HUGE = float(np.finfo(np.float32).max)  # what a sum of losses that overflowed is counted as
EVEN, ONE = [0.5, 0.5], [0.0, 1.0]
BOTH = [stats([1e30, 1e-30]), stats([0.0, 1e-30], [0, 1])]  # the first domain is there, then not

WAYS = {  # in which a λ that is no number could come from losses that are: rule, λ_0, rounds
    "∞ - ∞, all λ of weight lost": (q_fair(1e38), ONE, [stats([2.0, 1.0])]),
    "p / θ is infinite": (cvar(1e-39), EVEN, [stats([1.0, 2.0])]),
    "p / ε is infinite": (prop_fair(1.0, margin=1e-40), EVEN, [stats([2.0, 3.0])]),
    "p / M is 0": (prop_fair(3e38), EVEN, [stats([2.0, 3.0])]),
    "2 β L is infinite": (semi_variance(1e10), EVEN, [stats([HUGE, 0.0])]),
    "0 · ∞": (semi_variance(1e10), ONE, [stats([HUGE, 0.0])]),
    "L + C / √n is infinite": (chain(adjusted(3e38), tilted(1.0)), EVEN, [stats([HUGE, 1.0])]),
    "L - L* is infinite": (chain(excess([-HUGE, 0.0]), tilted(1.0)), EVEN, [stats([HUGE, 1.0])]),
    "γ = 0 times ∞": (
        chain(averaged_loss(), normalised(), exponentiated_gradient(0.0)),
        EVEN,
        BOTH,
    ),
}

CLIMBING = [{"learning_rate": 1e38, "absent": a} for a in ("zero", "hold", "presence")]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "exponentiated_gradient": CLIMBING,
    "projected_gradient": CLIMBING,
    "tilted": [{"temperature": 1e-300}, {"temperature": 1e300, "prior": "counts"}],
    "q_fair": [{"q": 0.0}, {"q": 1e300}],
    "chi_squared": [{"temperature": 1e-300}, {"temperature": 1e300}],
    "cvar": [{"level": 1e-300}, {"level": 1.0}],
    "prop_fair": [{"baseline": 1e-300, "margin": 1e-300}, {"baseline": 1e300, "margin": 1e300}],
    "semi_variance": [{"strength": 1e300}, {"strength": 0.0}],
    "aaggff": [{}],
    "proportional": [{}],
    "fixed": [{}],
}


def played(rule: WeightRule, start: list[float], rounds: list[DomainStats]) -> np.ndarray:
    state, weights, update = rule.init(jnp.array(start)), jnp.array(start), jax.jit(rule.update)
    for observed in rounds:
        weights, state = update(state, observed)
    return np.asarray(weights)


def on_the_simplex(weights: np.ndarray) -> bool:
    sums = weights.astype(np.float64).sum(-1)
    return bool(np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.allclose(sums, 1))


@pytest.mark.parametrize("way", WAYS)
def test_no_way_from_finite_losses_to_a_weight_that_is_no_number(way: str):
    assert on_the_simplex(played(*WAYS[way]))


def test_every_rule_has_options_here():
    assert set(OPTIONS) == set(WEIGHT_RULES.names())


@pytest.mark.parametrize("name", OPTIONS)
def test_two_rounds_of_any_finite_losses_end_on_the_simplex(name: str):
    losses = [-HUGE, -1.0, 0.0, 1e-38, 1.0, HUGE]
    starts = jnp.array([EVEN, ONE, [1.0, 0.0], [1e-30, 1.0]])
    observed = [
        stats(list(loss), count)
        for loss in itertools.product(losses, repeat=2)
        for count in ([3.0, 3.0], [0.0, 3.0], [0.0, 0.0])
    ]
    rounds: Any = jax.tree.map(lambda *leaves: jnp.stack(leaves), *observed)
    for options in OPTIONS[name]:
        rule = from_table({"name": name, **options})

        def after(start: jax.Array, first: DomainStats, rule: WeightRule = rule) -> jax.Array:
            _, state = rule.update(rule.init(start), first)
            again = first._replace(mean_loss=-first.mean_loss)
            return rule.update(state, again)[0]

        each = jax.jit(jax.vmap(jax.vmap(after, (None, 0)), (0, None)))
        assert on_the_simplex(np.asarray(each(starts, rounds))), options


def test_the_one_round_that_was_lost_gives_a_number_by_the_rule():
    """Losses and λ as a run on an accelerator wrote them down before a λ that was none."""
    before = np.array([0.18130353093147278, 0.8186964392662048])
    losses = [3.6308138370513916, 4.2752251625061035]
    after = played(exponentiated_gradient(0.1), list(before), [stats(losses, [1094, 359])])
    raised = before * np.exp(0.1 * np.array(losses))
    np.testing.assert_allclose(after, raised / raised.sum(), rtol=1e-6)
