# SPDX-License-Identifier: Apache-2.0
"""Metrics of a classifier: logits [n, K] and labels [n]."""

import jax.numpy as jnp
from jax import Array

from agnosticfl.core.metrics.base import Mean, metric


@metric("accuracy", of="labels", higher_is_better=True)
def accuracy(logits: Array, label: Array) -> Mean:
    """Share of examples whose largest logit is that of the label."""
    correct = (jnp.argmax(logits, axis=-1) == label).astype(jnp.float32)
    return Mean(correct, jnp.ones_like(correct))
