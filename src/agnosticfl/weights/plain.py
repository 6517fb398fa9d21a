# SPDX-License-Identifier: Apache-2.0
"""Weights that no loss moves: FedAvg's."""

import jax.numpy as jnp
from jax import Array

from agnosticfl.weights.seam import DomainStats, WeightRule


def proportional() -> WeightRule:
    """λ_i ∝ mean N_i, so that α = λ / mean N is the same for all examples: FedAvg's weights."""

    def update(state: tuple[()], stats: DomainStats) -> tuple[Array, tuple[()]]:
        return stats.mean_count / jnp.sum(stats.mean_count), state

    return WeightRule(lambda _: (), update)


def fixed() -> WeightRule:
    """λ stays λ_0."""
    return WeightRule(lambda weights: weights, lambda weights, _: (weights, weights))
