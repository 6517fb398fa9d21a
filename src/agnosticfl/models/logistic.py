# SPDX-License-Identifier: Apache-2.0
"""Multinomial logistic regression on a feature vector `x` with label `y`."""

from collections.abc import Mapping

import optax
from flax import nnx
from jax import Array

from agnosticfl.metrics import Mean, accuracy
from agnosticfl.model import Examples, Model, from_nnx


def logistic(features: int, classes: int) -> Model:
    """One linear layer, from `features` numbers to `classes` logits, trained by cross-entropy."""

    def create(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(features, classes, rngs=rngs)

    def loss(layer: nnx.Linear, examples: Examples) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(layer(examples["x"]), examples["y"])

    def metrics(layer: nnx.Linear, examples: Examples) -> Mapping[str, Mean]:
        return {"accuracy": accuracy(layer(examples["x"]), examples["y"])}

    return from_nnx(create, loss, metrics)
