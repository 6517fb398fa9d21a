# SPDX-License-Identifier: Apache-2.0
"""Multinomial logistic regression on a feature vector `x` with label `y`."""

from flax import nnx

from agnosticfl.model import Model
from agnosticfl.models.classifier import classifier


def logistic(features: int, classes: int) -> Model:
    """One linear layer, from `features` numbers to `classes` logits, trained by cross-entropy."""
    return classifier(lambda rngs: nnx.Linear(features, classes, rngs=rngs))
