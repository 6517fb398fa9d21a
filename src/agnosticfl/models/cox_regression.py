# SPDX-License-Identifier: Apache-2.0
"""Cox's proportional hazards, by the partial likelihood within a client."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl.core.model import Examples, Model, Need
from agnosticfl.models.helpers.survival import DEFAULT_METRICS, Risk, survival
from agnosticfl.options import AtLeastOne
from agnosticfl.registry import MODELS


@MODELS.add("cox")
def cox(features: AtLeastOne, metrics: Sequence[str] = DEFAULT_METRICS) -> Model:
    """A linear risk, trained by Cox's partial likelihood: who of those at risk has the event?

    The loss of an event is −log of its share of the risk of all who were still there (ties as
    Breslow has them); without an event it is 0. Who was there is no matter of the batch: an example
    brings the others at risk with it, `at_risk` [most, features] and their number
    `at_risk_count`, so losses are per example and the same in whatever batch.

    Args:
      features: numbers of an example.
      metrics: names of metrics of values, which get minus the log risk and (time, event).
    """
    others = Need(
        "at_risk",
        f"{features} numbers of each other at risk (data prepare … --risk-sets)",
        lambda shape: len(shape) == 2 and shape[1] == features,
    )
    count = Need("at_risk_count", "how many others are at risk", lambda shape: shape == ())

    def loss(module: Cox, time: Array, event: Array, examples: Examples) -> Array:
        del time  # it decides who is in `at_risk`
        own, rest = module.risk(examples["x"]), module.risk(examples["at_risk"])
        there = jnp.arange(rest.shape[1])[None] < examples["at_risk_count"][:, None]
        everybody = jnp.concatenate([own[:, None], jnp.where(there, rest, -jnp.inf)], axis=1)
        return event * (jax.nn.logsumexp(everybody, axis=1) - own)

    return survival(lambda rngs: Cox(features, rngs), loss, features, metrics, (others, count))


class Cox(nnx.Module):
    """A risk, and nothing else: what all have in common cancels."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        self.risk = Risk(features, rngs)
