# SPDX-License-Identifier: Apache-2.0
"""Rules that answer with the weights that a fair objective gives its gradients.

The gradient of a function of the losses, Φ(L_1 … L_p), is Σ_i (∂Φ/∂L_i) ∇L_i: λ_i ∝ ∂Φ/∂L_i.
"""

import jax.numpy as jnp
from jax import Array

from agnosticfl.core.tree import SMALLEST
from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.errors import check
from agnosticfl.options import NotNegative, Positive
from agnosticfl.registry import WEIGHT_RULES
from agnosticfl.weights.response import LARGEST_LOSS, Prior, best_response, bounded, check_positive


@WEIGHT_RULES.add("prop_fair")
def prop_fair(baseline: Positive, margin: Positive = 0.2, prior: Prior = "start") -> WeightRule:
    """λ_i ∝ p_i / max(M − L_i, ε): PropFair (Zhang et al. 2022), Φ = −Σ_i p_i log(M − L_i).

    Proportional fairness: no domain's utility M − L_i can be raised by a larger share of it than
    the others' lose. From M − ε on the logarithm goes on as a straight line.

    Args:
      baseline: M, the loss of a domain that is not served at all, such as that of a first guess.
      margin: ε, in units of the loss.
      prior: p: λ_0 (`"start"`) or the domains' shares of the examples (`"counts"`).
    """
    check_positive(baseline, "baseline (M)")
    check_positive(margin, "margin (ε)")
    # Within these bounds neither a utility nor one over it overflows, or is too small.
    highest, lowest = min(baseline, LARGEST_LOSS), min(max(margin, SMALLEST), LARGEST_LOSS)

    def solve(p: Array, loss: Array) -> Array:
        return _shares(p / jnp.maximum(highest - bounded(loss), lowest))

    return best_response(solve, prior)


@WEIGHT_RULES.add("semi_variance")
def semi_variance(strength: NotNegative, prior: Prior = "start") -> WeightRule:
    """λ_i = p_i (1 + 2β ((L_i − L̄)_+ − S)), L̄ = Σ_j p_j L_j, S = Σ_j p_j (L_j − L̄)_+: Semi-VRed.

    Malekmohammadi and Yu 2023: Φ = L̄ + β Σ_i p_i (L_i − L̄)_+², which penalises only domains that
    are served worse than the mean. With a large β the weights of the others would be negative: they
    are 0 then.

    Args:
      strength: β, in units of one over the loss; 0 gives p.
      prior: p: λ_0 (`"start"`) or the domains' shares of the examples (`"counts"`).
    """
    check(strength >= 0, f"strength (β) is {strength}; it must be a number ≥ 0")

    def solve(p: Array, loss: Array) -> Array:
        loss = bounded(loss)
        above = jnp.maximum(loss - jnp.sum(p * loss), 0)
        gain = above - jnp.sum(p * above)
        return _shares(p * jnp.clip(1 + 2 * min(strength, LARGEST_LOSS) * gain, 0, LARGEST_LOSS))

    return best_response(solve, prior)


def _shares(weights: Array) -> Array:
    """The same, with a sum of 1; no sum of large numbers overflows."""
    weights = weights / jnp.max(weights)
    return weights / jnp.sum(weights)
