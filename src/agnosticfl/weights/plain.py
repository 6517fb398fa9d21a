# SPDX-License-Identifier: Apache-2.0
"""Weights that no loss moves: FedAvg's."""

import jax.numpy as jnp
from jax import Array

from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.registry import WEIGHT_RULES


@WEIGHT_RULES.add("proportional")
def proportional() -> WeightRule:
    """λ_i ∝ mean N_i, so that α = λ / mean N is the same for all examples: FedAvg's weights."""

    def update(state: tuple[()], stats: DomainStats) -> tuple[Array, tuple[()]]:
        return stats.mean_count / jnp.sum(stats.mean_count), state

    return WeightRule(lambda _: (), update, follows_losses=False)


@WEIGHT_RULES.add("fixed")
def fixed() -> WeightRule:
    """λ stays λ_0."""
    return WeightRule(
        lambda weights: weights, lambda weights, _: (weights, weights), follows_losses=False
    )
