# SPDX-License-Identifier: Apache-2.0
"""Multinomial logistic regression on features `x` with label `y`."""

from flax import nnx
from jax import Array

from agnosticfl.model import Model
from agnosticfl.models.classifier import classifier, decode


def logistic(features: int, classes: int) -> Model:
    """One linear layer, from `features` numbers to `classes` logits, trained by cross-entropy.

    An image counts as the row of its pixels.
    """
    return classifier(lambda rngs: Logistic(features, classes, rngs))


class Logistic(nnx.Module):
    """Features [n, ...] -> logits [n, classes]."""

    def __init__(self, features: int, classes: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.linear(decode(x).reshape(len(x), -1))
