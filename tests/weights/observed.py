# SPDX-License-Identifier: Apache-2.0
"""What a round tells a weight rule, in numbers that can be written down, and what comes of it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.weights import LossTransform


def stats(loss: list[float], count: Sequence[float] | None = None) -> DomainStats:
    """Losses and counts of the domains; one example of each if no count is given."""
    counts = jnp.array(count if count is not None else [1.0] * len(loss), jnp.float32)
    return DomainStats(jnp.array(loss, jnp.float32), counts, jnp.maximum(counts, 1.0))


def weights_after(rule: WeightRule, start: list[float], *rounds: DomainStats) -> np.ndarray:
    """λ after these rounds."""
    state, weights, update = rule.init(jnp.array(start)), jnp.array(start), jax.jit(rule.update)
    for observed in rounds:
        weights, state = update(state, observed)
    return np.asarray(weights)


def losses_after(transform: LossTransform, *rounds: DomainStats) -> np.ndarray:
    """The mean losses that a rule is told after the last of these rounds."""
    state, last = transform.init(jnp.zeros(rounds[0].mean_loss.size)), rounds[0]
    update = jax.jit(transform.update)
    for observed in rounds:
        last, state = update(state, observed)
    return np.asarray(last.mean_loss)
