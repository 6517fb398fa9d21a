# SPDX-License-Identifier: Apache-2.0
"""Linear regression on features `x` with a number `y`."""

from collections.abc import Sequence

from flax import nnx
from jax import Array

from agnosticfl.core.model import Model
from agnosticfl.models.helpers.inputs import row_of, rows
from agnosticfl.models.helpers.regression import DEFAULT_METRICS, Loss, regression
from agnosticfl.options import AtLeastOne, Positive
from agnosticfl.registry import MODELS


@MODELS.add("linear")
def linear(
    features: AtLeastOne,
    loss: Loss = "squared",
    huber_delta: Positive | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """One linear layer, from `features` numbers to one: linear regression, from zeros on.

    Args:
      features: numbers of an example.
      loss: of the error e = ŷ − y: squared is e², absolute is |e|, huber is e² / 2 up to δ and
        δ (|e| − δ / 2) from there on.
      huber_delta: δ of the loss huber (1 if left out).
      metrics: names of metrics of values.
    """
    return regression(
        lambda rngs: Linear(features, rngs), row_of(features), loss, huber_delta, metrics
    )


class Linear(nnx.Module):
    """Features [n, ...] -> numbers [n]."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(features, 1, kernel_init=nnx.initializers.zeros, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.linear(rows(x))[:, 0]
