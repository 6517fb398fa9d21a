# SPDX-License-Identifier: Apache-2.0
"""What a round tells a weight rule, in numbers that can be written down."""

from collections.abc import Sequence

import jax.numpy as jnp

from agnosticfl.core.weight_rule import DomainStats


def stats(loss: list[float], count: Sequence[float] | None = None) -> DomainStats:
    """Losses and counts of the domains; one example of each if no count is given."""
    counts = jnp.array(count if count is not None else [1.0] * len(loss), jnp.float32)
    return DomainStats(jnp.array(loss, jnp.float32), counts, jnp.maximum(counts, 1.0))
