# SPDX-License-Identifier: Apache-2.0
"""Weights that no loss moves: FedAvg's."""

import jax.numpy as jnp
from jax import Array

from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.registry import WEIGHT_RULES


@WEIGHT_RULES.add("proportional")
def proportional() -> WeightRule:
    """λ_i ∝ mean N_i, so that α = λ / mean N is the same for all examples: FedAvg's weights.

    It is so from round 1 on, whatever λ_0 says.
    """

    def share(count: Array) -> Array:
        return count / jnp.sum(count)

    return WeightRule(
        init=lambda _: (),
        update=lambda state, stats: (share(stats.mean_count), state),
        follows_losses=False,
        first=lambda _, count: share(count),
    )


@WEIGHT_RULES.add("fixed")
def fixed() -> WeightRule:
    """λ stays λ_0."""
    return WeightRule(
        lambda weights: weights, lambda weights, _: (weights, weights), follows_losses=False
    )
