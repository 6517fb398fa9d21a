# SPDX-License-Identifier: Apache-2.0
"""What is measured on an example, as sums that are divided once, at the end."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Mean(NamedTuple):
    """A mean before the division: Σ total / Σ weight over the examples that count."""

    total: Array  # [n]
    weight: Array  # [n]; 1 for a mean over examples, tokens for a mean over tokens


def accuracy(logits: Array, label: Array) -> Mean:
    """Share of examples whose largest logit is that of the label."""
    correct = (jnp.argmax(logits, axis=-1) == label).astype(jnp.float32)
    return Mean(correct, jnp.ones_like(correct))
