# SPDX-License-Identifier: Apache-2.0
"""Multinomial logistic regression on features `x` with label `y`."""

from collections.abc import Sequence
from functools import partial

from flax import nnx
from jax import Array

from agnosticfl.core.model import Model
from agnosticfl.models.helpers.classifier import DEFAULT_METRICS, ClassWeights, classifier
from agnosticfl.models.helpers.inputs import row_of, rows
from agnosticfl.options import AtLeastOne
from agnosticfl.registry import MODELS


@MODELS.add("logistic")
def logistic(
    features: AtLeastOne,
    classes: AtLeastOne,
    metrics: Sequence[str] = DEFAULT_METRICS,
    class_weights: ClassWeights = None,
) -> Model:
    """One linear layer, from `features` numbers to `classes` logits, trained by cross-entropy.

    An image counts as the row of its pixels.

    Args:
      features: numbers of an example.
      classes: K, how many labels there are.
      metrics: names of metrics of labels.
      class_weights: for each class, what the losses of its examples are multiplied with; λ follows
        the losses so weighted, while metrics stay as they are.
    """
    create = partial(Logistic, features, classes)
    return classifier(create, row_of(features), classes, metrics, class_weights)


class Logistic(nnx.Module):
    """Features [n, ...] -> logits [n, classes]."""

    def __init__(self, features: int, classes: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.linear(rows(x))
