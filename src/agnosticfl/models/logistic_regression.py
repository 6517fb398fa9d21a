# SPDX-License-Identifier: Apache-2.0
"""Multinomial logistic regression on features `x` with label `y`."""

import math
from collections.abc import Sequence

from flax import nnx
from jax import Array

from agnosticfl.core.model import Model, Need
from agnosticfl.errors import check
from agnosticfl.models.helpers.classifier import DEFAULT_METRICS, classifier, decode
from agnosticfl.options import AtLeastOne
from agnosticfl.registry import MODELS


@MODELS.add("logistic")
def logistic(
    features: AtLeastOne, classes: AtLeastOne, metrics: Sequence[str] = DEFAULT_METRICS
) -> Model:
    """One linear layer, from `features` numbers to `classes` logits, trained by cross-entropy.

    An image counts as the row of its pixels.

    Args:
      features: numbers of an example.
      classes: K, how many labels there are.
      metrics: names of metrics of labels.
    """
    check(features >= 1, f"features of logistic is {features}; it must be at least 1")
    text = f"{features} numbers (features = {features})"
    row = Need("x", text, lambda shape: math.prod(shape) == features)
    return classifier(lambda rngs: Logistic(features, classes, rngs), row, classes, metrics)


class Logistic(nnx.Module):
    """Features [n, ...] -> logits [n, classes]."""

    def __init__(self, features: int, classes: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.linear(decode(x).reshape(len(x), -1))
